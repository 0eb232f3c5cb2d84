"""Masses down to the smallest float: the float answers are those of the fractions, without a warning."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from ot_spec import (
    IID,
    MembershipTransport,
    TopThenSample,
    WithoutReplacement,
    as_exact,
    from_probs,
    marginal_bound,
    output_law,
)
from ot_spec.arrays import order_by_ratio
from ot_spec.errors import LawError
from ot_spec.selector import as_float
from solvers import SELECTORS, get_selector, optimal_acceptance, solve

MASSES = (1.0, 0.3, 1e-8, 1e-16, 1e-100, 1e-300, 1e-308, 1e-318, 5e-324, 0.0)
# left out: those that solve a problem of their own for every pair, luce one in logarithms of masses
RULES = [name for name in SELECTORS if name not in ("importance", "luce")]


def pairs(many: int) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(11)
    found: list[tuple[np.ndarray, np.ndarray]] = []
    while len(found) < many:
        raw = rng.choice(MASSES, size=(2, int(rng.integers(2, 6))))
        if (raw.sum(axis=-1) > 0.2).all():
            target, draft = from_probs(raw / raw.sum(axis=-1, keepdims=True))
            found.append((target, target if rng.random() < 0.2 else draft))
    return found


@pytest.mark.parametrize("make", (IID, WithoutReplacement, TopThenSample))
def test_values_and_output_laws_are_those_of_the_fractions(make):
    for target, draft in pairs(60):
        exact = as_exact(target), as_exact(draft)
        for k in (2, 4):
            law = make(k)
            best = float(optimal_acceptance(*exact, law))
            assert abs(optimal_acceptance(target, draft, law) - best) < 1e-12, (target, draft, k)
            assert abs(marginal_bound(target, draft, law) - float(marginal_bound(*exact, law))) < 1e-12
            for name in RULES:
                rule = get_selector(name)
                if rule.supports(law):
                    value = float(rule.acceptance(*exact, law))
                    assert abs(rule.acceptance(target, draft, law) - value) < 1e-9, (name, target, draft, k)
                    off = np.abs(output_law(rule, target, draft, law) - target).max()
                    assert off < 1e-9, (name, target, draft, k)


def test_tuples_without_replacement_keep_the_digits_of_small_masses():
    draft = from_probs([0.0005, 0.49975, 0.49975, 5e-321])
    law = WithoutReplacement(4)
    tuples, probs = law.tuples(draft)
    expected = as_float(law.tuples(as_exact(draft))[1])
    assert tuples.shape == (24, 4)
    np.testing.assert_allclose(probs, expected, rtol=1e-12, atol=1e-320)


def test_a_token_that_is_never_drafted_comes_after_every_drafted_one():
    assert order_by_ratio(np.array([0.25, 0.25, 0.5]), np.array([0.0, 5e-324, 1.0])).tolist() == [2, 1, 0]


def test_long_fractions_are_spelled_as_decimals():
    long = Fraction(1, 3**9000)
    with pytest.raises(LawError, match=r"sum to 1 \+5\.82098e-48$"):
        from_probs([1 - long, long * (1 + 3**8901)])
    target = as_exact(from_probs([0.5, 1e-300, 0.3, 0.2]))
    draft = as_exact(from_probs([1e-300, 1e-98, 0.9, 0.1]))
    problem = MembershipTransport(target, draft, WithoutReplacement(3))
    assert solve(problem, "rational").acceptance == optimal_acceptance(target, draft, problem.law)
