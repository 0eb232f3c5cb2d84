"""The optimal selectors as transport plans: the flow is what the rule does, so nothing is solved.

The flow of y in S is the sum over the draws x that make the set S of D(x) P(Y = y | x). What it leaves of each marginal
the rule couples independently, as every plan does: a refused pick is replaced from (target - f)+, whatever the
candidates. Neither window exchange (i.i.d.) nor random priority lists (without replacement) look at the order of the
candidates: a draw is a multiset with multiplicities m_y, of probability k! prod d_y^m_y / m_y!, or the set itself.
"""

from __future__ import annotations

from itertools import combinations_with_replacement
from math import comb
from typing import Any

import numpy as np

from ot_spec.arrays import spelled
from ot_spec.errors import SolverError, TooLargeError
from ot_spec.plan import LazyPlan, Plan, TransportPlan
from ot_spec.problem import EDGE_LIMIT, MembershipTransport
from solvers.exact.certificate import certified
from solvers.exact.linear_program import TOLERANCE
from solvers.exact.subset_selection import optimal_cut
from solvers.selectors.optimal import Optimal
from solvers.selectors.optimal_without_replacement import OptimalWithoutReplacement

ENTRIES = 1 << 28  # draws times tokens times k^2, some seconds; in fractions a thousandth of it
INSTEAD = "acceptance, column_marginal, conditional and gap of this plan"
_BLOCK = 1 << 20  # entries of a block of draws


def solve(problem: MembershipTransport, limit: int = EDGE_LIMIT) -> Plan:
    """The plan of the optimal rule in the problem's own arithmetic; a `lazy` one over `limit` edges or too many draws.

    Raises SolverError unless its acceptance is the value of a cut: to 1e-10, exactly on fractions.
    """
    try:
        _require_few(problem, limit)
    except TooLargeError as why:
        return lazy(problem, why)
    tokens, probs, row = drawn(problem)
    rule = _rule(problem)
    accepted = np.full(problem.members.shape, problem.probs[0] * 0, dtype=problem.probs.dtype)
    step = max(1, _BLOCK // (problem.vocab * problem.law.k))
    for start in range(0, len(tokens), step):
        here = slice(start, start + step)
        output = rule.conditional(problem.target, problem.draft, tokens[here])
        members = problem.members[row[here]]
        np.add.at(accepted, row[here], probs[here, None] * np.take_along_axis(output, np.maximum(members, 0), axis=1))
    slot = np.argmax(problem.members[problem.edge_set] == problem.edge_token[:, None], axis=1)
    flow = accepted[problem.edge_set, slot]
    info = {"backend": "selector", "rule": rule.name, "draws": len(tokens)}
    if problem.exact:
        plan = TransportPlan(problem, flow, "lifting", info)
    else:
        plan = TransportPlan.repaired(problem, flow, "lifting", **info)
    order = problem.law.prefix_order(problem.target, problem.draft)
    assert order is not None
    return certified(plan, -np.argsort(order, kind="stable"), 0 if problem.exact else TOLERANCE)


def lazy(problem: MembershipTransport, why: TooLargeError) -> LazyPlan:
    """The optimal rule as a plan that enumerates nothing.

    i.i.d. its gap to the cut in ``info["cut"]`` is below 1e-10 (SolverError otherwise), zero on fractions. Without
    replacement that holds for a support of up to 2,000 tokens; beyond, ``info["groups"]`` groups are listed, the output
    is the target all the same, and the gap says what that gives up.

    Raises TooLargeError for fractions without replacement, whose lists are made by enumeration.
    """
    rule, k = _rule(problem), problem.law.k
    target, draft = problem.target, problem.draft
    info: dict[str, Any] = {"backend": "selector", "rule": rule.name}
    close = True
    if isinstance(rule, Optimal):
        pick = rule.windows(target[None], draft[None], k).whole_law(target[None], draft[None])[0]
    elif problem.exact and k > 1:
        what = f"priority lists in fractions for {problem.law.name}(k={k}), by enumeration"
        raise TooLargeError(what, why.size, why.limit, "laws in float64")
    else:
        pick = rule.lists(target, draft, k).law
        close = k == 1 or problem.exact or int((draft > 0).sum()) <= rule.limit
        if not close:
            info["groups"] = rule.groups
    plan = LazyPlan(problem, rule, pick, why, "lifting", info)
    plan.info["cut"] = optimal_cut(target, draft, problem.law)
    gap = plan.gap(plan.info["cut"])
    if close and not abs(gap) <= (0 if problem.exact else TOLERANCE):
        raise SolverError(f"lifting: acceptance is {spelled(gap)} below its cut", status="not optimal")
    return plan


def drawn(problem: MembershipTransport) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What can be drawn, whatever the order: tokens (N, k), -1 in empty slots, probabilities (N,) and the row (N,) of
    `problem.members` that each makes.

    >>> from ot_spec import IID
    >>> tokens, probs, row = drawn(MembershipTransport([0.5, 0.5], [0.75, 0.25], IID(2)))
    >>> tokens.tolist(), probs.tolist(), row.tolist()
    ([[0, 0], [0, 1], [1, 1]], [0.5625, 0.375, 0.0625], [0, 2, 1])
    """
    if problem.law.name != "iid":
        return problem.members, problem.probs, np.arange(len(problem.members))
    support, k = np.flatnonzero(problem.draft > 0), problem.law.k
    tokens = np.array(list(combinations_with_replacement(support.tolist(), k)))
    again = np.concatenate([np.zeros((len(tokens), 1), dtype=bool), tokens[:, 1:] == tokens[:, :-1]], axis=1)
    probs = np.full(len(tokens), problem.draft[0] * 0 + 1, dtype=problem.draft.dtype)
    run = np.zeros(len(tokens), dtype=np.int64)
    for slot in range(k):  # k! / prod m! is the product of (slot + 1) / (place in the run of equal tokens)
        run = np.where(again[:, slot], run + 1, 1)
        probs = probs * problem.draft[tokens[:, slot]] * (slot + 1) / run
    last = problem.vocab
    sets = np.sort(np.where(again, last, tokens), axis=1)
    sets[sets == last] = -1
    _, which = np.unique(np.concatenate([problem.members, sets]), axis=0, return_inverse=True)
    which = which.reshape(-1)
    place = np.empty(len(problem.members), dtype=np.int64)
    place[which[: place.size]] = np.arange(place.size)
    return tokens, probs, place[which[place.size :]]


def _require_few(problem: MembershipTransport, limit: int) -> None:
    problem.require(min(limit, EDGE_LIMIT), INSTEAD)
    law, draws = problem.law, problem.size.sets
    if law.name == "iid":
        draws = comb(int((problem.draft > 0).sum()) + law.k - 1, law.k)
    entries, most = draws * problem.vocab * law.k**2, ENTRIES >> 10 if problem.exact else ENTRIES
    if entries > most:
        what = f"the draws of {law.name}(k={law.k}), times {problem.vocab:,} tokens and k^2"
        raise TooLargeError(what, entries, most, INSTEAD)


def _rule(problem: MembershipTransport) -> Optimal | OptimalWithoutReplacement:
    return Optimal() if problem.law.name == "iid" else OptimalWithoutReplacement()
