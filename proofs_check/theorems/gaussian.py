"""Speculative sampling of Gaussians by reflection (De Bortoli et al. 2025).

Draft N(m₁, σ²I), target N(m₂, σ²I) in n dimensions, δ = (m₁ - m₂)/σ, a = |δ| > 0, e = δ/a. x = m₁ + σ z with z ~ N(0,
I) is kept with probability min(1, target(x)/draft(x)); otherwise the output is the reflection m₂ + σ (z - 2 (e·z) e).
Φ is the standard normal distribution function, φ its density."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from proofs_check import strategies as laws
from proofs_check.theorems.algebra import either_order, equal, nonnegative
from proofs_check.theorems.theorem import Theorem, Verdict, counter_example

__all__ = ["THEOREMS"]

DIFFUSION = "De Bortoli et al. 2025, arXiv 2501.05370; reflection coupling: Bou-Rabee et al. 2020, arXiv 1805.00452"
SAMPLES = 20_000
few = settings(max_examples=20, deadline=None, derandomize=True, database=None)

s = sp.Symbol("s", real=True)
a = sp.Symbol("a", positive=True)


def density(x: Any) -> Any:
    """φ."""
    return sp.exp(-(x**2) / 2) / sp.sqrt(2 * sp.pi)


def below(x: Any) -> Any:
    """Φ."""
    return (1 + sp.erf(x / sp.sqrt(2))) / 2


def kept_share(shift: float) -> float:
    """2Φ(-|δ|/2) in floats, for |δ| = shift."""
    return math.erfc(shift / (2 * math.sqrt(2)))


# --- one dimension is enough --------------------------------------------------------------------------------------


def ratio_along_the_shift(shifted: Any = s + a) -> None:
    """With x = m₁ + σ (s e + w), w ⊥ e: target(x)/draft(x) = φ(s + a)/φ(s), whatever w is.

    (x - m₂)/σ = (s + a) e + w, and |r e + w|² = r² + |w|². shifted: that coordinate along e.
    """
    across, n = sp.symbols("across n", positive=True)  # |w|², dimensions
    constant = (2 * sp.pi) ** (-n / 2)
    target, draft = (constant * sp.exp(-(r**2 + across) / 2) for r in (shifted, s))
    equal(target / draft * density(s), density(s + a), "the ratio")
    equal(draft, constant * sp.sqrt(2 * sp.pi) * density(s) * sp.exp(-across / 2), "s and w are independent")


def where_the_target_is_larger(crossing: Any = -a / 2) -> None:
    """ln φ(s + a) - ln φ(s) = -a (s + a/2): zero at the crossing, negative above it and positive below."""
    gap: Any = -((s + a) ** 2) / 2 + s**2 / 2
    up = sp.Symbol("up", nonnegative=True)
    nonnegative(-gap.subs(s, crossing + up), "the target is smaller above")
    nonnegative(gap.subs(s, crossing - up), "and larger below")


# --- acceptance -----------------------------------------------------------------------------------------------------


def overlap(crossing: Any = -a / 2) -> Any:
    """∫ min(φ(s), φ(s + a)) ds, taking φ below the crossing and φ(s + a) above."""
    return sp.integrate(density(s), (s, -sp.oo, crossing)) + sp.integrate(density(s + a), (s, crossing, sp.oo))


def _acceptance(full: bool) -> Verdict:
    """P(kept) = ∫ draft min(1, target/draft) = ∫ min(φ(s), φ(s + a)) ds, the components across e integrating to 1.
    Below s = -a/2 the minimum is φ(s), above it φ(s + a); the two integrals are Φ(-a/2) each."""
    ratio_along_the_shift()
    where_the_target_is_larger()
    equal(overlap(), 2 * below(-a / 2), "the integral")
    return Verdict("proved", "symbolically, all m₁ ≠ m₂, σ > 0 and dimensions")


@few
@given(st.floats(0.01, 6), st.floats(0.1, 3))
def _acceptance_falsifier(shift: float, sigma: float) -> None:
    """The overlap of the two densities on the line, by quadrature."""

    def least(x: float) -> float:
        return min(math.exp(-(((x - m) / sigma) ** 2) / 2) for m in (shift, 0.0)) / (sigma * math.sqrt(2 * math.pi))

    whole = sum(quad(least, *part)[0] for part in ((-12 * sigma, shift / 2), (shift / 2, shift + 12 * sigma)))
    assert abs(whole - kept_share(shift / sigma)) < 1e-7


# --- exactness ------------------------------------------------------------------------------------------------------


def kept_and_reflected(reflected: Callable[[Any], Any] = lambda s: -s) -> None:
    """In the target's coordinate u along e, Y = m₂ + σ (u e + w): a kept x has u = s + a, a reflected one u = -s, and
    w is the same. The density of Y at u is min(φ(u - a), φ(u)) + (φ(u) - φ(u - a))+ = φ(u).

    reflected: s -> u for a refused x, its own inverse.
    """
    u = sp.Symbol("u", real=True)
    source = reflected(u)  # the s that is reflected to u
    equal(reflected(source), u, "its own inverse")
    equal(sp.Abs(sp.diff(reflected(s), s)), 1, "lengths are kept")
    equal(density((u - a) + a), density(u), "a kept x: the target's density at s + a = u")
    equal(density(source), density(u), "a refused x: the draft's density at its source")
    equal(density(source + a), density(u - a), "a refused x: the target's density at its source")
    for there, here in either_order("there", "here"):  # φ(u - a), φ(u)
        equal(sp.Min(there, here) + sp.Max(here - there, 0), here, "kept and reflected")


def _exact(full: bool) -> Verdict:
    """The reflection keeps w and turns s into -s. The refused mass at s has density (φ(s) - φ(s + a))+; at u = -s that
    is (φ(u) - φ(u - a))+, since φ is even. A kept x lands at u = s + a with density min(φ(u - a), φ(u)). The sum is
    φ(u), times the unchanged density of w: Y = m₂ + σ (u e + w) has law N(m₂, σ²I)."""
    ratio_along_the_shift()
    kept_and_reflected()
    return Verdict("proved", "symbolically, all m₁ ≠ m₂, σ > 0 and dimensions")


def coupled(means: np.ndarray, sigma: float, noise: np.ndarray, coins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Outputs (N, n) and whether x was kept, for noise (N, n) and coins (N,), by the definition of the rule."""
    shift = (means[0] - means[1]) / sigma
    e = shift / np.linalg.norm(shift)
    x = means[0] + sigma * noise
    log_ratio = (((x - means[0]) / sigma) ** 2).sum(axis=1) / 2 - (((x - means[1]) / sigma) ** 2).sum(axis=1) / 2
    kept = np.log(np.maximum(coins, 1e-300)) < log_ratio
    reflected = means[1] + sigma * (noise - 2 * (noise @ e)[:, None] * e)
    return np.where(kept[:, None], x, reflected), kept


@few
@given(st.integers(1, 3), st.floats(0.2, 4), st.floats(0.3, 2), laws.generators())
def _exact_falsifier(dimensions: int, shift: float, sigma: float, generator: np.random.Generator) -> None:
    """Quantiles of the output along drawn directions, against Φ, and the frequency of keeping, to 5.5 standard
    errors."""
    direction, look = generator.standard_normal((2, dimensions))
    means = np.stack([direction / np.linalg.norm(direction) * shift * sigma, np.zeros(dimensions)])
    noise, coins = generator.standard_normal((SAMPLES, dimensions)), generator.uniform(size=SAMPLES)
    out, kept = coupled(means, sigma, noise, coins)
    for line in (look, direction):
        along = out @ line / np.linalg.norm(line) / sigma
        for level in (-1.5, -0.5, 0.0, 0.8):
            mass = math.erfc(-level / math.sqrt(2)) / 2
            assert abs((along <= level).mean() - mass) <= 5.5 * math.sqrt(mass * (1 - mass) / SAMPLES)
    accepted = kept_share(shift)
    assert abs(kept.mean() - accepted) <= 5.5 * math.sqrt(accepted * (1 - accepted) / SAMPLES)


# --- maximality -----------------------------------------------------------------------------------------------------


def half_line_bound(cut: Any = a / 2) -> None:
    """P(X = Y) <= P(X·e <= c) + P(Y·e > c): with the target at 0 and the draft at a along e, the bound at c is Φ(c -
    a) + 1 - Φ(c), and at c = a/2 it is 2Φ(-a/2)."""
    bound = below(cut - a) + 1 - below(cut)
    equal(bound, 2 * below(-a / 2), "the bound at the middle")


def _maximal(full: bool) -> Verdict:
    """If X = Y then X is on the target's side of the middle hyperplane or Y is on the draft's, so in every coupling
    P(X = Y) <= P(X on the target's side) + P(Y on the draft's side) = 2Φ(-a/2), which the reflection attains
    (gaussian.1). TV = 1 - 2Φ(-a/2), as TV is at least the difference of the probabilities of a side and at most P(X ≠
    Y)."""
    half_line_bound()
    equal(overlap(), 2 * below(-a / 2), "attained")
    difference = below(a / 2) - below(-a / 2)
    equal(difference, 1 - 2 * below(-a / 2), "the target's side: Φ(a/2) for the target, Φ(-a/2) for the draft")
    equal(difference, sp.erf(a / (2 * sp.sqrt(2))), "as an error function")
    return Verdict("proved", "symbolically, all m₁ ≠ m₂, σ > 0 and dimensions; uses gaussian.1")


@few
@given(st.floats(0.05, 4), st.integers(20, 120))
def _maximal_falsifier(shift: float, cells: int) -> None:
    """On the line cut into cells no coupling agrees more than the overlap of the cells' masses, which comes down to
    2Φ(-a/2) where the middle is a boundary."""
    edges = np.concatenate([[-np.inf], np.linspace(-6, 6 + shift, cells), [shift / 2, np.inf]])
    edges.sort()
    masses = [np.diff([math.erfc(-(x - m) / math.sqrt(2)) / 2 for x in edges]) for m in (0.0, shift)]
    assert abs(np.minimum(*masses).sum() - kept_share(shift)) < 1e-12


# --- refuted --------------------------------------------------------------------------------------------------------


def short(side: Any = None) -> Any:
    """What the rule that replaces a refused x by a fresh draw of the target misses on the target's side of the middle.

    A kept x is there with Φ(-a/2), a refused one has 1 - 2Φ(-a/2). side: P(a replacement is there), Φ(a/2) if fresh.
    """
    tail = below(-a / 2)
    side = below(a / 2) if side is None else side
    return below(a / 2) - (tail + (1 - 2 * tail) * side)


def _fresh(full: bool) -> Verdict:
    """For every a > 0 it misses Φ(-a/2) (1 - 2Φ(-a/2)) > 0 there; in numbers for a = 2."""
    tail = below(-a / 2)
    breaks = sp.simplify(short() - tail * (1 - 2 * tail)) == 0 and short().subs(a, 2).is_positive
    example = (
        "a = |δ| = 2, p = Φ(-1) = 0.1587. Of the kept x half, p, are on the target's side of the middle hyperplane; a "
        "refused one, probability 1 - 2p, is replaced there with probability 1 - p. So P(Y there) = "
        "p + (1 - 2p)(1 - p) = 0.733, and the target has 1 - p = 0.841"
    )
    scope = "all a > 0: P(Y on the target's side) falls short by p (1 - 2p), p = Φ(-a/2)"
    return counter_example(bool(breaks), scope, example)


@few
@given(st.floats(0.5, 4), laws.generators())
def _fresh_falsifier(shift: float, generator: np.random.Generator) -> None:
    """Sampled: the rule with fresh draws is short on the target's side by Φ(-a/2) (1 - 2Φ(-a/2)); the reflection is
    not."""
    noise, fresh = generator.standard_normal((2, SAMPLES, 1))
    means, coins = np.array([[shift], [0.0]]), generator.uniform(size=SAMPLES)
    out, kept = coupled(means, 1.0, noise, coins)
    tail = kept_share(shift) / 2
    error = 5.5 / (2 * math.sqrt(SAMPLES))
    assert abs((out < shift / 2).mean() - (1 - tail)) <= error
    replaced = np.where(kept[:, None], out, fresh)
    assert abs((replaced < shift / 2).mean() - (1 - tail - tail * (1 - 2 * tail))) <= error
    assert tail * (1 - 2 * tail) > error


THEOREMS = (
    Theorem(
        "gaussian.1",
        "Reflection coupling of the draft x = m₁ + σz, z ~ N(0, I), with the target N(m₂, σ²I), m₁ ≠ m₂, δ = (m₁ − "
        "m₂)/σ, e = δ/|δ|: keep x with probability min(1, target(x)/draft(x)), the ratio of the densities, otherwise "
        "the output is m₂ + σ(z − 2(e·z)e). It keeps the draft with probability 2Φ(−|δ|/2), Φ the standard normal "
        "distribution function.",
        DIFFUSION,
        "proved",
        _acceptance,
        _acceptance_falsifier,
    ),
    Theorem(
        "gaussian.2",
        "The output of the reflection coupling has law N(m₂, σ²I), in any dimension.",
        DIFFUSION,
        "proved",
        _exact,
        _exact_falsifier,
    ),
    Theorem(
        "gaussian.3",
        "The reflection coupling is maximal: no coupling of X and Y with these laws has P(X = Y) > 2Φ(−|δ|/2), and "
        "TV(N(m₁, σ²I), N(m₂, σ²I)) = 1 − 2Φ(−|δ|/2) = erf(|δ|/(2√2)).",
        DIFFUSION,
        "proved",
        _maximal,
        _maximal_falsifier,
    ),
    Theorem(
        "gaussian.4",
        "A refused draft may be replaced by a fresh draw from N(m₂, σ²I) in place of the reflection: the output "
        "still has that law.",
        "common belief",
        "refuted",
        _fresh,
        _fresh_falsifier,
    ),
)
