"""Optimal acceptance and its cut: against all subsets, against shape and backend, and by their own certificates."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch

from ot_spec import (
    IID,
    Fixed,
    Independent,
    MembershipTransport,
    TopThenSample,
    WithoutReplacement,
    marginal_bound,
)
from ot_spec.errors import LawError, ShapeError, SolverError
from ot_spec.selector import as_float
from solvers import optimal_acceptance, optimal_cut
from solvers.exact.subset_selection import minimise
from tests.exact.cases import generated, to_law, weights

CASES = generated()


def least_over_all_subsets(problem):
    """1 + min over every H of target(H) - Q(H), no order assumed."""
    values = []
    for many in range(problem.vocab + 1):
        for tokens in combinations(range(problem.vocab), many):
            held = sum((problem.target[i] for i in tokens), start=problem.target[0] * 0)
            values.append(1 + held - problem.inside(list(tokens)))
    return min(values)


@pytest.mark.parametrize("start", range(0, 200, 40))
def test_no_subset_is_better_than_the_prefix(start):
    rng = np.random.default_rng(start)
    for target, draft, k in CASES[start : start + 40]:
        for law in (IID(k), WithoutReplacement(k), TopThenSample(k), Fixed(rng.integers(0, draft.size, k))):
            problem = MembershipTransport(target, draft, law)
            best = least_over_all_subsets(problem)
            assert optimal_acceptance(target, draft, law) == best, (law, target, draft)
            cut = optimal_cut(target, draft, law)
            assert cut.check() == cut.value == best
            floats = as_float(target), as_float(draft)
            assert optimal_acceptance(*floats, law) == pytest.approx(float_of(best), abs=1e-13)
            assert problem.is_perfect() == (best == 1)
            assert best <= marginal_bound(target, draft, law)
        drafts = np.stack([to_law(weights(rng, draft.size)) for _ in range(k)])
        law = Independent(drafts)
        best = least_over_all_subsets(MembershipTransport(target, None, law))
        assert optimal_acceptance(target, None, law) == best
        assert optimal_cut(target, None, law).check() == best


def float_of(value):
    return as_float(np.array([value], dtype=object))[0]


def test_without_replacement_is_never_worse_than_iid():
    for target, draft, k in CASES:
        assert optimal_acceptance(target, draft, WithoutReplacement(k)) >= optimal_acceptance(target, draft, IID(k))


@pytest.mark.parametrize("law", [IID(3), WithoutReplacement(3), TopThenSample(3)], ids=lambda law: law.name)
def test_batches_and_backends_agree(law):
    rng = np.random.default_rng(0)
    target, draft = rng.dirichlet(np.full(40, 0.2), (2, 3)), rng.dirichlet(np.full(40, 0.2), (2, 3))
    values, cuts = optimal_acceptance(target, draft, law), optimal_cut(target, draft, law)
    assert values.shape == (2, 3)
    assert cuts.inside.shape == (2, 3, 40)
    there = optimal_cut(torch.tensor(target), torch.tensor(draft), law)
    np.testing.assert_allclose(there.value, values, atol=1e-14)
    assert (there.inside.numpy() == cuts.inside).all()
    for i in np.ndindex(2, 3):
        assert optimal_acceptance(target[i], draft[i], law) == values[i]
        assert cuts[i].check() == pytest.approx(values[i], abs=1e-13)
        assert cuts[i].tokens.tolist() == optimal_cut(target[i], draft[i], law).tokens.tolist()
    broadcast = optimal_acceptance(target[0, 0], draft, law)
    assert broadcast[1, 2] == optimal_acceptance(target[0, 0], draft[1, 2], law)


def test_known_corners():
    for law in (IID(2), WithoutReplacement(2)):
        same = np.array([0.5, 0.3, 0.2])
        assert optimal_acceptance(same, same, law) == pytest.approx(1, abs=1e-15)
        assert optimal_acceptance(np.array([1.0, 0, 0]), np.array([0, 0.5, 0.5]), law) == 0
        assert optimal_acceptance(np.array([1.0]), np.array([1.0]), law) == 1
    spread = np.array([0.25] * 4)
    assert optimal_acceptance(spread, spread, Fixed([0, 1, 1, -1])) == 0.5
    assert optimal_acceptance(spread, None, Fixed([-1, -1])) == 0


def test_independent_drafts_at_a_thousand_tokens():
    """Against the plan's own bounds: the cut is a value of 1 + target(H) - Q(H), and the duality gap is closed."""
    rng = np.random.default_rng(0)
    target, drafts = rng.dirichlet(np.full(1000, 0.1)), rng.dirichlet(np.full(1000, 0.1), 3)
    law = Independent(drafts)
    cut = optimal_cut(target, None, law)
    held = cut.inside
    assert cut.value == pytest.approx(1 + target[held].sum() - np.prod(drafts[:, held].sum(1)), abs=1e-12)
    assert cut.value <= marginal_bound(target, target, law)
    same = Independent(np.stack([drafts[0]] * 3))
    assert optimal_acceptance(target, None, same) == pytest.approx(
        optimal_acceptance(target, drafts[0], IID(3)), abs=1e-11
    )


def test_minimise_says_so_when_the_function_is_not_submodular():
    """F(2) = -5, F(0) = F(1) = F of any two = 1, F of all = 0: adding to {2} costs more than adding to nothing."""
    with pytest.raises(SolverError, match="not submodular: F = -5 is below its bound -1"):
        minimise(lambda order: np.array([0.0, -5.0 if order[0] == 2 else 1.0, 1.0, 0.0]), 3)


def test_bad_laws_name_the_row():
    good = np.full((2, 3), 1 / 3)
    bad = good.copy()
    bad[1, 2] = np.nan
    with pytest.raises(LawError, match="draft, row 1: probability of token 2 is nan"):
        optimal_acceptance(good, bad, IID(2))
    with pytest.raises(LawError, match=r"target, row 1: probabilities sum to 1 \+0\.5"):
        optimal_acceptance(np.array([[0.5, 0.5], [1.0, 0.5]]), good[:, :2] * 1.5, IID(2))
    with pytest.raises(ShapeError, match="target has 3 tokens and draft has 4"):
        optimal_acceptance(good, np.full((2, 4), 0.25), IID(2))
    with pytest.raises(ShapeError, match="do not broadcast"):
        optimal_acceptance(good, np.full((5, 3), 1 / 3), IID(2))
