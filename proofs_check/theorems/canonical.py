"""The canonical form of a rule: pick a candidate, then make the one-draft step (Khisti et al. 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from ot_spec import IID, WithoutReplacement, output_law
from ot_spec.draft_law import Independent
from ot_spec.problem import MembershipTransport
from proofs_check import strategies as laws
from proofs_check.theorems.algebra import nonnegative
from proofs_check.theorems.speculative_sampling import kept_and_replaced, refusals_meet_the_residual
from proofs_check.theorems.theorem import Theorem, Verdict, counter_example
from solvers import get_selector, optimal_acceptance, solve

__all__ = ["THEOREMS"]

KHISTI = "Khisti et al. 2025, arXiv 2410.18234"
quick = settings(max_examples=30, deadline=None, derandomize=True, database=None)

Rule = dict[tuple[int, ...], list[Fraction]]
"""P(token is picked | tuple), or P(Y = token | tuple), for each candidate tuple."""


def pick_law(rule: Rule, probs: dict[tuple[int, ...], Fraction]) -> list[Fraction]:
    """f(y) = Σ_x D(x) b(y|x)."""
    return [
        sum((probs[x] * row[y] for x, row in rule.items()), Fraction(0)) for y in range(len(next(iter(rule.values()))))
    ]


def canonical(rule: Rule, probs: dict[tuple[int, ...], Fraction], target: Sequence[Fraction]) -> Rule:
    """The rule that picks by `rule` and then makes the one-draft step with (f, t)."""
    law = pick_law(rule, probs)
    excess = [max(t - f, Fraction(0)) for t, f in zip(target, law, strict=True)]
    rest = [e / sum(excess) if any(excess) else Fraction(t) for e, t in zip(excess, target, strict=True)]
    made = {}
    for x, row in rule.items():
        kept = [b * min(Fraction(1), t / f) if f else Fraction(0) for b, t, f in zip(row, target, law, strict=True)]
        left = sum(row) - sum(kept)
        made[x] = [m + left * r for m, r in zip(kept, rest, strict=True)]
    return made


def acceptance(rule: Rule, probs: dict[tuple[int, ...], Fraction]) -> Fraction:
    """P(Y in X)."""
    return sum((probs[x] * row[y] for x, row in rule.items() for y in set(x) if y >= 0), Fraction(0))


def table(draft: Any, law: Any) -> dict[tuple[int, ...], Fraction]:
    tuples, probs = law.tuples(draft)
    return dict(zip(map(tuple, tuples.tolist()), map(Fraction, probs), strict=True))


# --- exactness ---------------------------------------------------------------------------------------------------


def _exact(full: bool) -> Verdict:
    """The picked token has law f, whatever the rule that picks and whatever the laws of the candidates. It is kept with
    probability f min(1, t/f) = min(f, t), refused with Σ (t - f)+, and replaced by (t - f)+: together t."""
    kept_and_replaced()
    refusals_meet_the_residual()
    return Verdict("proved", "symbolically, all laws, all draft laws, all V, all k ≥ 1, all rules that pick")


@quick
@given(laws.pairs(smallest=2, largest=4, most_k=2), st.integers(0, 2**32 - 1))
def _exact_falsifier(pair: Any, seed: int) -> None:
    """Random picking rules for drafts of different laws, by enumeration; and the library's own canonical rule."""
    target, draft, _ = pair
    rng = np.random.default_rng(seed)
    second = np.roll(draft, 1)
    for law in (Independent(np.stack([draft, second])), WithoutReplacement(2)):
        probs = table(draft, law)
        rule = {}
        for x in probs:
            weights = [int(rng.integers(0, 4)) * (y in x) for y in range(len(target))]
            weights[x[0]] += not any(weights)
            rule[x] = [Fraction(w, sum(weights)) for w in weights]
        assert pick_law(canonical(rule, probs, target), probs) == list(target)
    assert (output_law(get_selector("optimal"), target, draft, IID(2)) == target).all()


# --- the optimum is attained -------------------------------------------------------------------------------------


def accepted_mass_is_picked() -> None:
    """g(y) = P(Y = y, y in X) of any exact rule is at most t(y). Picking y with the rule's own P(Y = y | x) for y in x,
    and any candidate for the rest, gives f = g + more; then min(f, t) >= g."""
    g, more, slack = sp.symbols("g more slack", nonnegative=True)
    f, t = g + more, g + slack  # g is a part of both
    nonnegative(f - g, "f")
    nonnegative(t - g, "t")


def acceptance_is_at_least_what_is_kept() -> None:
    """The kept token is a candidate, so α = P(kept) + P(refused, Y in X)."""
    kept, lucky = sp.symbols("kept lucky", nonnegative=True)
    nonnegative((kept + lucky) - kept, "kept")


def _attained(full: bool) -> Verdict:
    """From an exact rule of acceptance α make the picking rule above. Its canonical rule keeps Σ min(f, t) >= Σ g = α,
    and what it keeps is a candidate. From an optimal rule this makes an optimal canonical one, with
    Σ min(f, t) = α*."""
    accepted_mass_is_picked()
    acceptance_is_at_least_what_is_kept()
    return Verdict("proved", "symbolically, all laws, all draft laws, all V, all k ≥ 1")


def from_plan(plan: Any, probs: dict[tuple[int, ...], Fraction]) -> Rule:
    """The picking rule made from a coupling: what it accepts, and the first candidate for the rest."""
    rule = {}
    for x in probs:
        conditional = plan.conditional(np.array(x))
        row = [Fraction(mass) if y in x else Fraction(0) for y, mass in enumerate(conditional)]
        row[x[0]] += 1 - sum(row)
        rule[x] = row
    return rule


@quick
@given(laws.pairs(smallest=2, largest=4, most_k=3))
def _attained_falsifier(pair: Any) -> None:
    """Optimal plans of the linear program made canonical."""
    target, draft, k = pair
    for law in (IID(k), WithoutReplacement(k)):
        plan = solve(MembershipTransport(target, draft, law), method="rational")
        probs = table(draft, law)
        rule = from_plan(plan, probs)
        made = canonical(rule, probs, list(target))
        assert pick_law(made, probs) == list(target)
        kept = sum(min(f, t) for f, t in zip(pick_law(rule, probs), target, strict=True))
        assert acceptance(made, probs) == kept == plan.acceptance


# --- a claim that fails -------------------------------------------------------------------------------------------

HALF, QUARTER = Fraction(1, 2), Fraction(1, 4)
MIXED_TARGET, EVEN_DRAFT = [Fraction(3, 8), Fraction(3, 8), QUARTER], [HALF, HALF, Fraction(0)]
MIXED: Rule = {
    (0, 0): [Fraction(1), Fraction(0), Fraction(0)],
    (1, 1): [Fraction(0), Fraction(1), Fraction(0)],
    (0, 1): [QUARTER, QUARTER, HALF],
    (1, 0): [QUARTER, QUARTER, HALF],
}


def room_for_a_pick(rule: Rule, probs: dict[tuple[int, ...], Fraction], target: Sequence[Fraction]) -> Fraction:
    """An upper bound of Σ f if the rule were canonical: where (y, .., y) gives y for sure, y is never refused there, as
    a refusal needs f(y) > t(y), and then the residual has nothing at y; so f(y) <= t(y)."""
    sure = [y for y in range(len(target)) if any(set(x) == {y} and row[y] == 1 for x, row in rule.items())]
    candidates = {y for x in probs for y in x if y >= 0}
    return sum((target[y] if y in sure else Fraction(1) for y in candidates), Fraction(0))


def _not_canonical(full: bool) -> Verdict:
    """The rule is exact and optimal; were it canonical with pick law f, then (0, 0) and (1, 1), on which token 0 and 1
    come out for sure, force f(0) <= t(0) and f(1) <= t(1), so f has total at most 3/4."""
    probs = table(np.array(EVEN_DRAFT, dtype=object), IID(2))
    exact = pick_law(MIXED, probs) == MIXED_TARGET
    target, draft = (np.array(law, dtype=object) for law in (MIXED_TARGET, EVEN_DRAFT))
    best = optimal_acceptance(target, draft, IID(2))
    optimal = acceptance(MIXED, probs) == best
    room = room_for_a_pick(MIXED, probs, MIXED_TARGET)
    example = (
        "k = 2, d = (1/2, 1/2, 0), t = (3/8, 3/8, 1/4): (0, 0) gives 0, (1, 1) gives 1, a mixed pair (1/4, 1/4, "
        f"1/2). Exact (1/4 + 1/8 = 3/8), and α = {best} = α*. If it picked with law f and then made the one-draft "
        "step, (0, 0) would never refuse 0 (a refused token is not in the residual): f(0) ≤ t(0), likewise "
        "f(1) ≤ t(1); but f(0) + f(1) = 1 > 3/4"
    )
    return counter_example(exact and optimal and room == Fraction(3, 4), "one law pair, V = 3, k = 2", example)


@quick
@given(st.fractions(0, 1, max_denominator=12), st.fractions(0, 1, max_denominator=12))
def _not_canonical_falsifier(first: Fraction, second: Fraction) -> None:
    """No pick on the mixed pairs makes the rule: their picks are all there is to choose."""
    probs = table(np.array(EVEN_DRAFT, dtype=object), IID(2))
    picks: Rule = {
        (0, 0): [Fraction(1), Fraction(0), Fraction(0)],
        (1, 1): [Fraction(0), Fraction(1), Fraction(0)],
        (0, 1): [first, 1 - first, Fraction(0)],
        (1, 0): [second, 1 - second, Fraction(0)],
    }
    assert pick_law(MIXED, probs) == MIXED_TARGET
    assert canonical(picks, probs, MIXED_TARGET) != MIXED


THEOREMS = (
    Theorem(
        "canonical.1",
        "Canonical form: pick one candidate y by any rule b(·|x) whose law f(y) = Σ_x P(X = x) b(y|x) is known, keep "
        "it with probability min(1, t(y)/f(y)), otherwise draw from (t − f)₊ divided by its sum. The output has law "
        "t, for candidates of any joint law, identically distributed or not.",
        KHISTI,
        "proved",
        _exact,
        _exact_falsifier,
    ),
    Theorem(
        "canonical.2",
        "For every exact rule of acceptance α there is a canonical one that keeps its pick with probability "
        "Σ_y min(f(y), t(y)) ≥ α. Hence α* is attained by a canonical rule, with Σ_y min(f(y), t(y)) = α*.",
        KHISTI,
        "proved",
        _attained,
        _attained_falsifier,
    ),
    Theorem(
        "canonical.3",
        "Every optimal exact rule is of canonical form.",
        "common belief (the optimum is attained by canonical rules)",
        "refuted",
        _not_canonical,
        _not_canonical_falsifier,
    ),
)
