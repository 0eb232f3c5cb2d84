"""Speculative sampling with one draft (Leviathan et al. 2023; Chen et al. 2023).

A token x ~ d is kept with probability min(1, t(x)/d(x)); a refused one is replaced by a draw from (t - d)+.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from ot_spec import IID, output_law
from ot_spec.problem import MembershipTransport
from ot_spec.tree import drafted_sequences, joint_law, sequence_law
from proofs_check import strategies as laws
from proofs_check.theorems.algebra import either_order, equal, nonnegative, sums_to
from proofs_check.theorems.instances import models, seeded
from proofs_check.theorems.theorem import Refuted, Theorem, Verdict, counter_example
from solvers import get_selector, solve
from solvers.sequence import get_sequence_rule

__all__ = ["THEOREMS"]

LEVIATHAN = "Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318"
quick = settings(max_examples=60, deadline=None, derandomize=True, database=None)


# --- the overlap of two laws -------------------------------------------------------------------------------------


def overlap_of_masses(overlap: Callable[[Any, Any], Any] = sp.Min) -> None:
    """min(a, b) = (a + b - |a - b|)/2 for the two masses of a token, whichever is larger."""
    for t, d in either_order("t", "d"):
        equal(overlap(t, d), (t + d - sp.Abs(t - d)) / 2, "a token's overlap")


def _overlap(full: bool) -> Verdict:
    """Token by token min(t, d) = (t + d - |t - d|)/2. Summed over the tokens, with Σ t = Σ d = 1: the first two terms
    give 1 and the third is TV(t, d) = (1/2) Σ |t - d|."""
    overlap_of_masses()
    distances = sp.Symbol("distances", nonnegative=True)  # Σ |t - d|
    equal((sp.Integer(1) + 1 - distances) / 2, 1 - distances / 2, "the sum")
    return Verdict("proved", "symbolically, all laws, all V")


@quick
@given(laws.pairs(smallest=1, largest=6))
def _overlap_falsifier(pair: Any) -> None:
    """Total variation as the largest difference of probabilities of a token set, over all sets."""
    target, draft, _ = pair
    sets = [c for size in range(len(target) + 1) for c in combinations(range(len(target)), size)]
    distance = max(sum(target[list(chosen)]) - sum(draft[list(chosen)]) for chosen in sets)
    assert np.minimum(target, draft).sum() == 1 - distance


# --- the step with the residual ----------------------------------------------------------------------------------


def kept_and_replaced(residual: Callable[[Any, Any], Any] = lambda t, d: sp.Max(t - d, 0)) -> None:
    """For the two masses of a token: what is kept, d min(1, t/d), is min(t, d), and with the residual it makes t."""
    x, h = sp.symbols("x h", positive=True)
    for t, d in ((x, x), (x + h, x), (x, x + h), (sp.Integer(0), x)):
        share = sp.Integer(1) if sp.simplify(t - d).is_nonnegative else t / d
        equal(d * share, sp.Min(t, d), "kept")
    for t, d in either_order("t", "d"):
        equal(sp.Min(t, d) + residual(t, d), t, "kept and replaced")


def refusals_meet_the_residual() -> None:
    """P(refused) = 1 - Σ min(t, d) = Σ (t - d)+, so that the replaced mass at y is exactly (t(y) - d(y))+."""
    for t, d in either_order("t", "d"):
        equal(sp.Max(t - d, 0), t - sp.Min(t, d), "an excess")
    kept, excess = sp.symbols("kept excess", nonnegative=True)  # Σ min(t, d), (t(y) - d(y))+
    refused = 1 - kept
    equal(refused * (excess / (1 - kept)), excess, "a replaced token")


def _residual(full: bool) -> Verdict:
    """P(Y = y) = d min(1, t/d) + P(refused) (t - d)+/Σ (t - d)+. The first term is min(t, d) (0 where d = 0: then y is
    never drafted); Σ (t - d)+ = Σ (t - min(t, d)) = 1 - Σ min(t, d) = P(refused), so the second is (t - d)+; together
    they are t. If P(refused) = 0 the residual is never drawn from, and (t - d)+ = 0."""
    kept_and_replaced()
    refusals_meet_the_residual()
    return Verdict("proved", "symbolically, all laws, all V")


@quick
@given(laws.pairs(smallest=1, largest=5, most_k=1))
def _residual_falsifier(pair: Any) -> None:
    target, draft, _ = pair
    selector = get_selector("maximal_coupling")
    assert (output_law(selector, target, draft, IID(1), by="select") == target).all()


# --- its optimality ----------------------------------------------------------------------------------------------


def coupled_mass_is_bounded() -> None:
    """P(X = y, Y = y) is a part of P(X = y) = d(y) and of P(Y = y) = t(y)."""
    both, only_x, only_y = sp.symbols("both only_x only_y", nonnegative=True)
    d, t = both + only_x, both + only_y
    nonnegative(d - both, "within the draft's mass")
    nonnegative(t - both, "within the target's mass")


def no_refused_token_returns() -> None:
    """A token is refused only where t < d, and drawn from the residual only where t > d."""
    for t, d in either_order("t", "d"):
        equal(sp.Max(d - t, 0) * sp.Max(t - d, 0), 0, "refused and drawn again")


def _optimal(full: bool) -> Verdict:
    """In every coupling P(X = y, Y = y) <= min(t(y), d(y)), so α <= Σ min(t, d). The rule keeps min(t(y), d(y)) of each
    token, and a token it refused is not in the residual, so its acceptance is Σ min(t, d)."""
    coupled_mass_is_bounded()
    no_refused_token_returns()
    kept_and_replaced()
    return Verdict("proved", "symbolically, all laws, all V, k = 1")


@quick
@given(laws.pairs(smallest=2, largest=4, most_k=1))
def _optimal_falsifier(pair: Any) -> None:
    """Against the exact optimum of the transport problem."""
    target, draft, _ = pair
    plan = solve(MembershipTransport(target, draft, IID(1)), method="rational")
    assert plan.acceptance == np.minimum(target, draft).sum()
    assert get_selector("maximal_coupling").acceptance(target, draft, IID(1)) == plan.acceptance


# --- chains ------------------------------------------------------------------------------------------------------


def _chains(full: bool) -> Verdict:
    """The law of everything that is committed, and continued by the target, over all drafts, as fractions."""
    reach, count = (3, 24) if full else (2, 8)
    rule = get_sequence_rule("spectr", selector="maximal_coupling")
    done = 0
    for length in range(1, reach + 1):
        for target, draft in models(count, length):
            law, _ = sequence_law(rule, target, draft, drafted_sequences(draft, 1, length), length + 1)
            if not (law == joint_law(target, length + 1)).all():
                raise Refuted(
                    f"the committed tokens do not have the target's law, first laws {target(())} and {draft(())}"
                )
            done += 1
    return Verdict("certified", f"{done} rational tables of laws, V <= 3, up to {reach} drafted tokens")


@settings(max_examples=6, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 10**6))
def _chains_falsifier(seed: int) -> None:
    """The same for coins measured in the code that commits, on fresh tables."""
    with seeded(seed):
        *_, (target, draft) = models(5, length=2, vocab_max=2)
    rule = get_sequence_rule("spectr", selector="maximal_coupling")
    law, _ = sequence_law(rule, target, draft, drafted_sequences(draft, 1, 2), 3, by="commit")
    assert (law == joint_law(target, 3)).all()


def tokens_a_call(closed: Callable[[Any, Any], Any] = lambda a, n: (1 - a**n) / (1 - a)) -> None:
    """Σ_{i < n} a^i = closed(a, n)."""
    a, n = sp.Symbol("a", positive=True), sp.Symbol("n", integer=True, nonnegative=True)
    sums_to(a**n, closed(a, n), n, 0, "tokens a call")


def _efficiency(full: bool) -> Verdict:
    """The call commits more than i tokens iff the first i drafts are kept, with probability a^i, i = 0..L; the sum of
    these probabilities is the mean (for a counting variable), a geometric sum, shown by induction on L."""
    tokens_a_call()
    return Verdict("proved", "symbolically, all L >= 0, 0 <= a < 1")


@quick
@given(st.integers(0, 6), st.fractions(0, Fraction(9, 10), max_denominator=20))
def _efficiency_falsifier(length: int, a: Fraction) -> None:
    """The mean from the law of the number of kept drafts."""
    law = [a**i * (1 - a) for i in range(length)] + [a**length]
    assert sum(law) == 1
    assert sum((i + 1) * mass for i, mass in enumerate(law)) == (1 - a ** (length + 1)) / (1 - a)


# --- the slip ----------------------------------------------------------------------------------------------------

SLIP = ([Fraction(1, 2), Fraction(1, 2)], [Fraction(0), Fraction(1)])


def replaced_from_the_target(target: Any, draft: Any) -> list[Fraction]:
    """The output law of the rule that replaces a refused token by a draw from the target itself."""
    kept = [min(t, d) for t, d in zip(target, draft, strict=True)]
    return [m + (1 - sum(kept)) * t for m, t in zip(kept, target, strict=True)]


def _slip(full: bool) -> Verdict:
    """On the counter-example, by the definition of the rule."""
    law = replaced_from_the_target(*SLIP)
    example = (
        "t = (1/2, 1/2), d = (0, 1): token 1 is drafted and kept with probability 1/2; a refused one is replaced by "
        f"token 0 with probability 1/2, so P(Y = 0) = 1/2 · 1/2 = {law[0]} and not 1/2"
    )
    return counter_example(law != SLIP[0], "one law pair, V = 2", example)


@quick
@given(laws.pairs(smallest=2, largest=4, most_k=1))
def _slip_falsifier(pair: Any) -> None:
    """The claim breaks on the example, and wherever something can be refused and two tokens differ by it."""
    assert replaced_from_the_target(*SLIP) != SLIP[0]
    target, draft, _ = pair
    biased = list(target) != replaced_from_the_target(target, draft)
    kept = np.minimum(target, draft)
    assert biased == any(m != kept.sum() * t for m, t in zip(kept, target, strict=True))


THEOREMS = (
    Theorem(
        "speculative_sampling.1",
        "Σ_y min(t(y), d(y)) = 1 − TV(t, d), where TV(t, d) = ½ Σ_y |t(y) − d(y)|.",
        LEVIATHAN,
        "proved",
        _overlap,
        _overlap_falsifier,
    ),
    Theorem(
        "speculative_sampling.2",
        "One draft x ~ d, kept with probability min(1, t(x)/d(x)), otherwise replaced by a draw from (t − d)₊ divided "
        "by its sum: the output has law t.",
        LEVIATHAN,
        "proved",
        _residual,
        _residual_falsifier,
    ),
    Theorem(
        "speculative_sampling.3",
        "k = 1: α* = Σ_y min(t(y), d(y)), and the rule of speculative_sampling.2 attains it.",
        LEVIATHAN,
        "proved",
        _optimal,
        _optimal_falsifier,
    ),
    Theorem(
        "speculative_sampling.4",
        "A chain of L drafted tokens, each verified by the rule of speculative_sampling.2 with the laws after its "
        "prefix, up to the first refusal, and one more token from the target if there is none: the committed tokens, "
        "continued by the target, have the target's law over sequences.",
        LEVIATHAN,
        "certified",
        _chains,
        _chains_falsifier,
    ),
    Theorem(
        "speculative_sampling.5",
        "If each of L drafted tokens is kept with probability a < 1, independently, up to the first refusal, a target "
        "call commits (1 − a^(L+1))/(1 − a) tokens on average.",
        "Leviathan et al. 2023, arXiv 2211.17192",
        "proved",
        _efficiency,
        _efficiency_falsifier,
    ),
    Theorem(
        "speculative_sampling.6",
        "A refused token may as well be replaced by a draw from the target t itself: the output still has law t.",
        "common belief (a slip often met in code)",
        "refuted",
        _slip,
        _slip_falsifier,
    ),
)
