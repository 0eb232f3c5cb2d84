"""Certificates: from a solver's duals to a token set whose value proves the plan optimal."""

from __future__ import annotations

from typing import Any

import numpy as np

from ot_spec.arrays import as_fraction, spelled
from ot_spec.errors import SolverError
from ot_spec.plan import Cut, TransportPlan
from ot_spec.problem import MembershipTransport


def best_cut(problem: MembershipTransport, duals: Any) -> Cut:
    """The least 1 + target(H) - Q(H) over the prefixes H of the tokens in descending order of `duals` (V,).

    duals: prices of the token constraints, in [0, 1]; an optimal vertex has them 0 or 1, an interior point in
    between, and then every level set of exact duals is an optimal cut. Only their order is used, so a
    solver's rounding does not matter. Tokens without target mass are free and come first whatever their dual,
    which keeps the certificate feasible on pairs that have no variable.

    >>> from ot_spec import IID
    >>> problem = MembershipTransport([0.5, 0.5], [0.75, 0.25], IID(2))
    >>> cut = best_cut(problem, [0.9, 0.1])
    >>> cut.tokens, float(cut.value)
    (array([0]), 0.9375)
    """
    target, probs = problem.target, problem.probs
    order = np.lexsort((-np.asarray(duals, dtype=np.float64), np.asarray(target > 0, dtype=bool)))
    place = np.zeros(problem.vocab + 1, dtype=np.int64)
    place[order] = np.arange(1, problem.vocab + 1)
    complete = place[problem.members].max(axis=1)  # the first prefix that holds the whole set
    ending = np.zeros(problem.vocab + 1, dtype=probs.dtype)
    np.add.at(ending, complete, probs)
    # D outside H is added up, not taken from 1: a small optimum keeps its digits
    outside = np.cumsum(ending[::-1])[::-1] - ending if problem.exact else _tails(ending)
    held = np.cumsum(np.concatenate([target[:1] * 0, target[order]]))
    size = int(np.argmin(held + outside))
    tokens = order[:size]
    value = (target[:1] * 0).sum() + target[tokens].sum() + probs[complete > size].sum()
    return Cut.of(problem, tokens, value)


def _tails(ending: np.ndarray) -> np.ndarray:
    return np.concatenate([np.cumsum(ending[:0:-1])[::-1], [0.0]])


def dual_slack(problem: MembershipTransport, sets: np.ndarray, tokens: np.ndarray) -> Any:
    """The least sets_S + tokens_y - 1{y in S} over *all* pairs (S, y), also those with target(y) = 0.

    sets (N,), tokens (V,): potentials. Non-negative iff they are feasible for the dual.
    """
    elsewhere = min(sets) + min(tokens)
    held, slots = np.nonzero(problem.members >= 0)
    return min(elsewhere, min(sets[held] + tokens[problem.members[held, slots]] - 1, default=elsewhere))


def certified(plan: TransportPlan, duals: Any, tolerance: float) -> TransportPlan:
    """The plan, with the best cut by `duals` in its info, which proves it optimal to within `tolerance`.

    Recomputed here from the problem: acceptance of the plan (whose own constructor checks sign and
    marginals), the cut's value, dual feasibility on all pairs, and that the objectives agree. Raises
    SolverError otherwise.
    """
    problem = plan.problem
    cut = best_cut(problem, duals)
    sets, tokens = cut.duals()
    slack = dual_slack(problem, sets, tokens)
    if slack < 0:
        raise SolverError(f"{plan.method}: the duals are infeasible by {spelled(-slack)}", status="dual infeasible")
    price = (problem.probs * sets).sum() + (problem.target * tokens).sum()
    for name, bound in (("cut value", cut.value), ("dual objective", price)):
        gap = bound - plan.acceptance
        if not abs(gap) <= tolerance:
            raise SolverError(
                f"{plan.method}: {name} {_decimal(bound)} and acceptance {_decimal(plan.acceptance)} "
                f"differ by {float(as_fraction(gap)):.3g}, allowed is {tolerance:.3g}",
                status="not optimal",
            )
    plan.info["cut"] = cut
    return plan


def _decimal(value: Any) -> str:
    return f"{float(as_fraction(value)):.17g}"
