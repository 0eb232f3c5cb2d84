"""Coupling by shared noise (Daliri et al. 2024; Rowan et al. 2025).

Noise S_i^(j) ~ Exp(1), independent over tokens i and lists j = 1..k. Candidate x_j = argmin_i S_i^(j)/d_i, output Y =
argmin_i min_j S_i^(j)/t_i; tokens of probability 0 never win. A_i = Σ_l (d_l t_i/d_i - t_l)+, infinite where d_i = 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from itertools import permutations
from typing import Any

import numpy as np
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from ot_spec import IID
from proofs_check import strategies as laws
from proofs_check.theorems.algebra import either_order, equal, nonnegative
from proofs_check.theorems.instances import Instance, found, instance, pairs
from proofs_check.theorems.theorem import Refuted, Theorem, Verdict, counter_example
from solvers import optimal_acceptance
from solvers.selectors import GumbelList

__all__ = ["THEOREMS"]

LISTS = "Rowan et al. 2025 (list-level coupling), arXiv 2506.05632"
quick = settings(max_examples=25, deadline=None, derandomize=True, database=None)
SAMPLES = 20_000


# --- the two marginals -----------------------------------------------------------------------------------------------


def race_is_won_by_rate(total: Any = 1) -> None:
    """Independent clocks Exp(k t_i), Σ t = total: the first is i with probability t_i."""
    s, k = sp.symbols("s k", positive=True)
    t = sp.Symbol("t", positive=True)
    rings = k * t * sp.exp(-k * t * s)  # the density of clock i
    silent = sp.exp(-k * (total - t) * s)  # no other clock has rung: Π_{l ≠ i} e^{-k t_l s}
    whole = sp.integrate(sp.powsimp(sp.expand(rings * silent), force=True), (s, 0, sp.oo))
    equal(whole, t, "the race")


def minimum_of_lists() -> None:
    """P(min_j S^(j)/t > s) = Π_j e^{-t s} = e^{-k t s}: an Exp(k t) clock."""
    s, t, k = sp.symbols("s t k", positive=True)
    equal(sp.exp(-t * s) ** k, sp.exp(-k * t * s), "k clocks at once")


def _exact(full: bool) -> Verdict:
    """S/d ~ Exp(d), so x_j is the winner of a race with rates d, lists being independent; min_j S^(j)/t ~ Exp(k t), so
    Y is the winner of a race with rates k t. A race is won by i with probability ∫ (rate of i) e^{-(sum of rates) s}
    ds."""
    minimum_of_lists()
    race_is_won_by_rate()
    return Verdict("proved", "symbolically, all laws, all V and k")


@quick
@given(laws.pairs(smallest=2, largest=4, most_k=3, arrays="float64"), laws.generators(), st.data())
def _exact_falsifier(pair: Any, generator: np.random.Generator, data: Any) -> None:
    """Frequencies within 5.5 standard errors; another draft, the same noise: the same output."""
    target, draft, k = pair
    noise = generator.exponential(size=(SAMPLES, k, len(target)))
    candidates, chosen = GumbelList().couple(target, draft, noise)
    for tokens, law in ((chosen.token, target), *((candidates[:, j], draft) for j in range(k))):
        drawn = np.bincount(tokens, minlength=len(law)) / SAMPLES
        assert (abs(drawn - law) <= 5.5 * np.sqrt(law * (1 - law) / SAMPLES)).all()
    other = data.draw(laws.laws(len(draft), len(draft), arrays="float64"))
    assert (GumbelList().couple(target, other, noise)[1].token == chosen.token).all()


# --- bounds ---------------------------------------------------------------------------------------------------------


def own_list_agrees(late: Callable[[Any, Any], Any] = lambda w, t: sp.Max(w - t, 0)) -> None:
    """Y = i at time s of the clock Exp(k t_i); its list proposes i iff S_l > w s, w = d_l t_i/d_i, for all other l,
    given S_l > t_l s. late: (w, t_l) -> the rate at which this fails; summed over l it is A_i."""
    s = sp.Symbol("s", positive=True)
    for w, t in either_order("w", "t"):
        given_silence = sp.exp(-sp.Max(w, t) * s) / sp.exp(-t * s)
        equal(given_silence, sp.exp(-late(w, t) * s), "one other clock of the list")
        equal(late(w, t), sp.Max(w, t) - t, "so that A_i = Σ_l max(t_l, w_l) - 1")
    t, k, total = sp.symbols("t k A", positive=True)
    agree = sp.integrate(sp.powsimp(k * t * sp.exp(-k * s) * sp.exp(-total * s)), (s, 0, sp.oo))
    equal(agree, t * k / (k + total), "over the time of the win")


def _matched(full: bool) -> Verdict:
    """Let Y = i, the winning clock ring at time s in list j: density k t_i e^{-k s}. All other clocks S_l^(j) are
    known to exceed t_l s and nothing else. x_j = i iff S_l/d_l > t_i s/d_i for all l ≠ i. Given the silence each has
    probability e^{-(w_l - t_l)+ s}, w_l = d_l t_i/d_i, together e^{-A_i s}; integrated over s, t_i k/(k + A_i). And
    x_j ∈ X."""
    own_list_agrees()
    return Verdict("proved", "symbolically, all laws, all V and k")


@quick
@given(laws.pairs(smallest=2, largest=4, most_k=3, arrays="float64"), laws.generators())
def _matched_falsifier(pair: Any, generator: np.random.Generator) -> None:
    """The winning list's proposal, sampled."""
    target, draft, k = pair
    noise = generator.exponential(size=(SAMPLES, k, len(target)))
    candidates, chosen = GumbelList().couple(target, draft, noise)
    rows = np.arange(SAMPLES)
    own = candidates[rows, np.argmin(noise[rows, :, chosen.token], axis=1)]
    value = sum(
        t * k / (k + np.maximum(draft * t / d - target, 0).sum()) for t, d in zip(target, draft, strict=True) if d
    )
    error = 5.5 * np.sqrt(value * (1 - value) / SAMPLES) + 1e-9
    assert abs((own == chosen.token).mean() - value) <= error
    assert chosen.accepted.mean() >= value - error


def each_token_keeps_its_overlap() -> None:
    """t_i k/(k + A_i) >= k min(t_i, d_i)/(k + TV): with c = t_i/d_i, k + A_i = k - 1 + Σ_l max(t_l, c d_l), and
    Σ_l max(t_l, d_l) = 1 + TV."""
    excess, rest = sp.symbols("c_more k_less", nonnegative=True)  # c - 1 or 1 - c, k - 1
    far = sp.Symbol("TV", nonnegative=True)
    for t, d in either_order("t", "d"):
        top = sp.Max(t, d)
        equal(top, (t + d) / 2 + sp.Abs(t - d) / 2, "so that Σ max(t, d) = 1 + TV")
        nonnegative(top - t, "c <= 1: t is at most max(t, d)")
        nonnegative(top - d + excess * d, "c <= 1: so is c d, c = 1 - excess")
        nonnegative((1 + excess) * top - t, "c >= 1: t is at most c max(t, d)")
        nonnegative((1 + excess) * top - (1 + excess) * d, "c >= 1: so is c d")
    # c <= 1: k + A_i <= k - 1 + 1 + TV, and t_i = min(t_i, d_i).
    equal(rest + (1 + far), (rest + 1) + far, "k + TV")
    # c >= 1: k + A_i <= k - 1 + c (1 + TV) <= c (k + TV), and t_i/c = d_i = min(t_i, d_i).
    c = 1 + excess
    nonnegative(c * (rest + 1 + far) - (rest + c * (1 + far)), "c >= 1")


def _distance(full: bool) -> Verdict:
    """Token by token t_i k/(k + A_i) >= k min(t_i, d_i)/(k + TV), and Σ min(t, d) = 1 - TV. Tokens with d_i = 0 add
    nothing on either side."""
    own_list_agrees()
    each_token_keeps_its_overlap()
    return Verdict("proved", "symbolically, all laws, all V and k; uses gumbel.2")


@settings(quick, max_examples=60)
@given(laws.pairs(smallest=2, largest=4, most_k=2))
def _distance_falsifier(pair: Any) -> None:
    """For the exact acceptance, in fractions."""
    target, draft, k = pair
    far = 1 - np.minimum(target, draft).sum()
    assert GumbelList().acceptance(target, draft, k) >= k * (1 - far) / (k + far)


def between_its_bounds(instances: Iterable[Instance]) -> int:
    """How many pairs were compared: winning list <= acceptance <= α*, and equality where t = d."""
    rule, done = GumbelList(), 0
    for drawn in instances:
        matched, accepted = rule.matched(*drawn), rule.acceptance(*drawn)
        best = optimal_acceptance(drawn.target, drawn.draft, IID(drawn.k))
        if not matched <= accepted <= best:
            raise Refuted(f"{drawn}: {matched}, {accepted}, {best} are not in order")
        if (drawn.target == drawn.draft).all() and accepted != 1:
            raise Refuted(f"{drawn}: equal laws accept {accepted}")
        done += 1
    return done


def _between(full: bool) -> Verdict:
    """The acceptance by multiplying out the integral over the time of the win, α* by the best cut, in fractions."""
    done = between_its_bounds(pairs(240 if full else 60, vocab_max=5, ks=(1, 2, 3), room=130))
    return Verdict("certified", f"{done} rational instances, V <= 5, k <= 3")


@quick
@given(laws.pairs(smallest=2, largest=4, most_k=3, arrays="float64"), laws.generators())
def _between_falsifier(pair: Any, generator: np.random.Generator) -> None:
    """Acceptance sampled, against its formula and the optimum."""
    target, draft, k = pair
    noise = generator.exponential(size=(SAMPLES, k, len(target)))
    rule = GumbelList()
    accepted = rule.couple(target, draft, noise)[1].accepted.mean()
    stated = rule.acceptance(target, draft, k)
    assert abs(accepted - stated) <= 5.5 * np.sqrt(max(stated * (1 - stated), 0) / SAMPLES) + 1e-9
    assert stated <= optimal_acceptance(target, draft, IID(k)) + 1e-12


# --- refuted --------------------------------------------------------------------------------------------------------

THREE = ([Fraction(1, 2), Fraction(1, 2), Fraction(0)], [Fraction(1, 2), Fraction(0), Fraction(1, 2)])


def agreement_of_halves() -> Fraction:
    """P(x_1 = Y) on THREE, over the orders of the three clocks, all equally likely; both races have equal rates."""
    orders = list(permutations(range(3)))
    firsts = [[min(runners, key=order.index) for runners in ((0, 1), (0, 2))] for order in orders]
    return Fraction(sum(y == x for y, x in firsts), len(orders))


def _maximal(full: bool) -> Verdict:
    """Over the orders of the clocks; and by gumbel.2's formula, which is exact for k = 1."""
    agrees = agreement_of_halves()
    target, draft = THREE
    overlap = sum(min(t, d) for t, d in zip(target, draft, strict=True))
    breaks = agrees == GumbelList().matched(*instance(THREE)) < overlap
    example = (
        "t = (1/2, 1/2, 0), d = (1/2, 0, 1/2), k = 1. Y = 0 iff S_0 < S_1, x = 0 iff S_0 < S_2, and they agree iff "
        f"both: S_0 is the least of three, with probability {agrees}. Speculative sampling accepts Σ min(t, d) = "
        f"{overlap}"
    )
    return counter_example(breaks, "one law pair, V = 3, k = 1", example)


def _maximal_falsifier() -> None:
    """Another pair on which the coupling accepts less than α* = Σ min(t, d), by the library's exact acceptance."""

    def less(pair: Any) -> bool:
        accepted = GumbelList().acceptance(pair.target, pair.draft, 1)
        return accepted < np.minimum(pair.target, pair.draft).sum()

    assert less(instance(THREE))
    found(laws.pairs(smallest=3, largest=4), less)


THEOREMS = (
    Theorem(
        "gumbel.1",
        "Noise S_i^(j) ~ Exp(1), independent over tokens i and lists j = 1..k; x_j = argmin_i S_i^(j)/d(i) and Y = "
        "argmin_i min_j S_i^(j)/t(i). Then x_1..x_k are independent with law d, and Y has law t. Y is a function of "
        "the noise and t alone: no change of d changes it.",
        LISTS,
        "proved",
        _exact,
        _exact_falsifier,
    ),
    Theorem(
        "gumbel.2",
        "In the coupling of gumbel.1 let A_i = Σ_l (d_l t_i/d_i − t_l)₊, infinite where d_i = 0. The list that has the "
        "least S_Y^(j) proposes Y with probability Σ_i t_i k/(k + A_i); hence α ≥ Σ_i t_i k/(k + A_i), with equality "
        "for k = 1.",
        "Rowan et al. 2025 (list matching), arXiv 2506.05632; k = 1: Daliri et al. 2024, arXiv 2408.07978",
        "proved",
        _matched,
        _matched_falsifier,
    ),
    Theorem(
        "gumbel.3",
        "The coupling of gumbel.1 has α ≥ k (1 − TV(t, d))/(k + TV(t, d)); for k = 1 that is (1 − TV)/(1 + TV).",
        "k = 1: Daliri et al. 2024, arXiv 2408.07978; k lists: this project",
        "proved",
        _distance,
        _distance_falsifier,
    ),
    Theorem(
        "gumbel.4",
        "With A_i as in gumbel.2, Σ_i t_i k/(k + A_i) ≤ α ≤ α*, for α = 1 − Σ_i t_i ∫ k e^{−ks} (1 − e^{−A_i s}) (1 "
        "− r_i(s))^{k−1} ds. Here the tokens with d > 0 are sorted by t/d ascending, D_m is the mass of d on the "
        "first m of them, A_{V+1} is infinite, and r_i(s) = d_i Σ_{m ≥ i} (e^{−A_m s} − e^{−A_{m+1} s})/D_m.",
        "bound: Rowan et al. 2025, arXiv 2506.05632; the integral: this project",
        "certified",
        _between,
        _between_falsifier,
    ),
    Theorem(
        "gumbel.5",
        "Shared noise couples as well as any rule: for k = 1, α = Σ_y min(t(y), d(y)).",
        "common belief (true for V = 2)",
        "refuted",
        _maximal,
        _maximal_falsifier,
    ),
)
