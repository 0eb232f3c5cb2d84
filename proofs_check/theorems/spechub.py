"""SpecHub: two candidates of which one is the hub (Sun et al. 2024).

The pair law of a hub a with d(a) < 1: (i, a) has probability d(i) and (a, i) has d(a) d(i)/(1 - d(a)), for every
token i other than a. The rule: the candidate x other than a has the law d~ = d/(1 - d(a)) outside a; keep it with
probability min(1, t(x)/d~(x)), otherwise draw from (t - d~)+, d~(a) = 0, divided by its sum.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp
from hypothesis import given, settings

from ot_spec import IID, HubPair, TopThenSample, output_law
from ot_spec.problem import MembershipTransport
from proofs_check import strategies as laws
from proofs_check.theorems.algebra import either_order, equal, nonnegative
from proofs_check.theorems.instances import found, instance
from proofs_check.theorems.theorem import Theorem, Verdict, counter_example
from solvers import get_selector, solve
from solvers.selectors import Hub

__all__ = ["THEOREMS"]

SPECHUB = "Sun et al. 2024 (SpecHub), arXiv 2411.05289"
quick = settings(max_examples=50, deadline=None, derandomize=True, database=None)


def usable(pair: Any) -> bool:
    """Whether the draft's most likely token leaves room for a second candidate."""
    return bool(pair.draft.max() < 1)


# --- the pair law -------------------------------------------------------------------------------------------------


def pair_law(second: Callable[[Any, Any], Any] = lambda hub, d: hub * d / (1 - hub)) -> None:
    """The masses of the pairs, and of each slot; second: the mass of (a, i) from d(a) and d(i).

    Sums over i other than a are linear in d(i), and Σ d(i) = 1 - d(a).
    """
    hub, d = sp.symbols("hub d", nonnegative=True)  # d(a), d(i)
    equal(second(hub, d), d * second(hub, 1), "linear in d(i), so that sums over i put 1 - d(a) in its place")
    equal(second(hub, 1 - hub), hub, "P(x_1 = a) = d(a)")
    equal((1 - hub) + second(hub, 1 - hub), 1, "all pairs")
    equal(d + second(hub, d), d / (1 - hub), "the token other than a is i with probability d~(i)")


def _pairs(full: bool) -> Verdict:
    """P(x_1 = i) = d(i) by definition, and P(x_1 = a) = Σ_i d(a) d(i)/(1 - d(a)) = d(a): in all 1. The unordered pair
    {i, a} has probability d(i) + d(a) d(i)/(1 - d(a)) = d(i)/(1 - d(a))."""
    pair_law()
    return Verdict("proved", "symbolically, all d and a with d(a) < 1, all V")


@quick
@given(laws.pairs(smallest=2, largest=5))
def _pairs_falsifier(pair: Any) -> None:
    """The law that the library draws from."""
    draft, hub = pair.draft, int(np.argmax(pair.draft))
    if not usable(pair):
        return
    tuples, probs = HubPair().tuples(draft)
    assert probs.sum() == 1
    first, other = draft * 0, draft * 0
    for (one, two), mass in zip(tuples, probs, strict=True):
        assert hub in (one, two)
        first[one] += mass
        other[two if one == hub else one] += mass
    assert (first == draft).all()
    assert all(other[i] == (0 if i == hub else draft[i] / (1 - draft[hub])) for i in range(len(draft)))


# --- exactness and value --------------------------------------------------------------------------------------------


def kept_and_replaced(kept: Callable[[Any, Any], Any] = sp.Min) -> None:
    """The step with d~: what is kept and what is drawn instead add up to t, and the weights match."""
    for t, d in either_order("t", "d"):
        equal(kept(t, d) + sp.Max(t - d, 0), t, "outside the hub")
        equal(sp.Max(t - d, 0), t - sp.Min(t, d), "Σ (t - d~)+ = 1 - Σ min(t, d~) = P(x is refused)")
    hub = sp.Symbol("hub", nonnegative=True)
    equal(sp.Max(hub - 0, 0), hub, "at the hub, where d~ = 0")


def _exact(full: bool) -> Verdict:
    """The rule looks at the token other than a only, which has the law d~ (spechub.1). P(Y = y) = min(t, d~) +
    P(refused) (t - d~)+/Σ (t - d~)+ = min(t, d~) + (t - d~)+ = t; where nothing is refused, t = d~."""
    kept_and_replaced()
    return Verdict("proved", "symbolically, all laws with d(a) < 1, all V")


@quick
@given(laws.pairs(smallest=2, largest=5))
def _exact_falsifier(pair: Any) -> None:
    if not usable(pair):
        return
    assert (output_law(Hub(), pair.target, pair.draft, HubPair(), by="select") == pair.target).all()


def hub_is_a_candidate() -> None:
    """What the rule accepts of a token, at the hub and elsewhere, and what any coupling can."""
    for t, d in either_order("t", "d"):
        equal(t - sp.Max(t - d, 0), sp.Min(t, d), "elsewhere: what is kept; the residual's tokens were not drafted")
        equal((d - sp.Min(t, d)) * sp.Max(t - d, 0), 0, "a refused token is not drawn again")
    both, only_x, only_y = sp.symbols("both only_x only_y", nonnegative=True)
    for whole in (both + only_x, both + only_y):  # P(x ∈ X) and t(x), of which P(Y = x ∈ X) is a part
        nonnegative(whole - both, "a part of either marginal")


def _value(full: bool) -> Verdict:
    """The hub is in every pair, so that the residual's mass on it, t(a), is accepted; elsewhere min(t, d~) is kept,
    and a draw from the residual is no candidate. In every coupling P(Y = a, a ∈ X) <= t(a), and P(Y = x, x ∈ X) <=
    min(t(x), P(x ∈ X)) with P(x ∈ X) = d~(x): the same sum is an upper bound."""
    kept_and_replaced()
    hub_is_a_candidate()
    return Verdict("proved", "symbolically, all laws with d(a) < 1, all V")


@quick
@given(laws.pairs(smallest=2, largest=5))
def _value_falsifier(pair: Any) -> None:
    """Against the linear program over the sets of candidates, in fractions."""
    target, draft, hub = pair.target, pair.draft, int(np.argmax(pair.draft))
    if not usable(pair):
        return
    rest = np.delete(draft / (1 - draft[hub]), hub)
    value = target[hub] + np.minimum(np.delete(target, hub), rest).sum()
    assert value == solve(MembershipTransport(target, draft, HubPair()), method="rational").acceptance
    assert value == Hub().acceptance(target, draft, HubPair())


def same_sets() -> None:
    """Top-then-sample at k = 2 takes a for sure and i from d without a, renormalised."""
    hub, d = sp.symbols("hub d", positive=True)
    equal(d + hub * d / (1 - hub), d / (1 - hub), "P(X = {a, i})")


def _top(full: bool) -> Verdict:
    """With a = the most likely token of d both draft laws give {a, i} the probability d(i)/(1 - d(a)): the transport
    problems on candidate sets are the same, and so are their optima; both rules attain it (spechub.3; for
    top-then-sample it is t(T) + Σ_{y ∉ T} min(t, d~) with T = {a}, the same sum)."""
    same_sets()
    kept_and_replaced()
    hub_is_a_candidate()
    return Verdict("proved", "symbolically, all laws with max d < 1, all V")


@quick
@given(laws.pairs(smallest=2, largest=6))
def _top_falsifier(pair: Any) -> None:
    if not usable(pair):
        return
    top, law = get_selector("top_then_sample"), TopThenSample(2)
    assert Hub().acceptance(pair.target, pair.draft, HubPair()) == top.acceptance(pair.target, pair.draft, law)


# --- refuted --------------------------------------------------------------------------------------------------------

BEHIND = ([Fraction(0), Fraction(1), Fraction(0)], [Fraction(2, 5), Fraction(3, 10), Fraction(3, 10)])


def hub_value(target: Any, draft: Any) -> Fraction:
    """SpecHub's acceptance by its formula, the hub being the draft's most likely token."""
    hub = max(range(len(draft)), key=lambda y: (draft[y], -y))
    rest = (min(t, d / (1 - draft[hub])) for y, (t, d) in enumerate(zip(target, draft, strict=True)) if y != hub)
    return target[hub] + sum(rest, start=Fraction(0))


def _behind(full: bool) -> Verdict:
    """Where t is one token y, a rule accepts iff y is a candidate: P(y ∈ X) for both draft laws."""
    _, draft = BEHIND
    hub, independent = hub_value(*BEHIND), 1 - (1 - draft[1]) ** 2
    breaks = hub < independent
    example = (
        "t = (0, 1, 0), d = (2/5, 3/10, 3/10), k = 2. The hub is token 0 and the other candidate is 1 with probability "
        f"(3/10)/(3/5) = {hub}. Two independent candidates hold 1 with probability 1 - (7/10)² = {independent}, and "
        "RRS then keeps it"
    )
    return counter_example(breaks, "one law pair, V = 3, k = 2", example)


def _behind_falsifier() -> None:
    """By the library's rules, on the example and on another pair."""

    def behind(pair: Any) -> bool:
        if not usable(pair):
            return False
        hub = Hub().acceptance(pair.target, pair.draft, HubPair())
        return get_selector("rrs").acceptance(pair.target, pair.draft, IID(2)) > hub

    assert behind(instance(BEHIND, 2))
    found(laws.pairs(smallest=3, largest=4), behind)


THEOREMS = (
    Theorem(
        "spechub.1",
        "SpecHub, hub a with d(a) < 1: for every i ≠ a the pair (i, a) has probability d(i) and the pair (a, i) has "
        "d(a) d(i)/(1 − d(a)). This is a law; its first candidate has law d, and the candidate other than a has law "
        "d̃ = d/(1 − d(a)) outside a.",
        SPECHUB,
        "proved",
        _pairs,
        _pairs_falsifier,
    ),
    Theorem(
        "spechub.2",
        "SpecHub's rule on the pairs of spechub.1: keep the candidate x other than the hub with probability min(1, "
        "t(x)/d̃(x)), otherwise draw from (t − d̃)₊, d̃(a) = 0, divided by its sum. The output has law t.",
        SPECHUB,
        "proved",
        _exact,
        _exact_falsifier,
    ),
    Theorem(
        "spechub.3",
        "SpecHub accepts t(a) + Σ_{x ≠ a} min(t(x), d(x)/(1 − d(a))), the most that any coupling of its pair law "
        "with t can, for every hub a with d(a) < 1.",
        "value: Sun et al. 2024 (SpecHub), arXiv 2411.05289; optimality for every hub: this project",
        "proved",
        _value,
        _value_falsifier,
    ),
    Theorem(
        "spechub.4",
        "With the most likely token of d as the hub, SpecHub's value is that of top-then-sample at k = 2: both "
        "draft laws give the set {a, i} the probability d(i)/(1 − d(a)).",
        "this project",
        "proved",
        _top,
        _top_falsifier,
    ),
    Theorem(
        "spechub.5",
        "A pair with the most likely token in it never accepts less than RRS on two independent candidates.",
        "common belief",
        "refuted",
        _behind,
        _behind_falsifier,
    ),
)
