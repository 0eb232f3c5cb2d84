"""The checks of the speed-of-light bounds refuse wrong pieces."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import sympy as sp

from proofs_check.theorems import speed_of_light as paper
from proofs_check.theorems.theorem import Refuted

HALF = [Fraction(1, 2)] * 2
SKEW = [Fraction(9, 10), Fraction(1, 10)]


def model(prefix):
    return SKEW if len(prefix) % 2 else [Fraction(2, 5), Fraction(3, 5)]


@pytest.mark.parametrize(
    "broken",
    [
        lambda: paper.one_node(lambda level, inside: 0),
        lambda: paper.one_node(lambda level, inside: -level * inside),
        lambda: paper.renewals(lambda mu, mu2: mu2 / (2 * mu)),
        lambda: paper.at_log_size(lambda size: 2 * sp.log(size)),
        lambda: paper.collected(power=2),
        lambda: paper.best_level(lambda mu, over: mu * over),
        lambda: paper.best_level(lambda mu, over: 1 + 2 * mu * over),
        lambda: paper.published_follows(lambda ratio: 1),
        lambda: paper.sharper_is_sharper(shift=1),
        lambda: paper.one_more_leaf(both=2),
        lambda: paper.at_most_uniform(parts=2),
        lambda: paper.swing(low=sp.Rational(-1, 20)),
        lambda: paper.cumulants(one=0),
    ],
)
def test_a_wrong_piece_is_refused(broken):
    with pytest.raises(Refuted):
        broken()


def test_a_tree_that_is_not_one_exceeds_its_bound():
    tree = paper.most_probable(model, 4)
    paper.below_threshold(tree, model, Fraction(1, 4), "model")
    with pytest.raises(Refuted, match="exceeds"):
        paper.below_threshold([(2 * mass, prefix) for mass, prefix in tree], model, Fraction(1, 4), "model")


def test_a_level_counted_twice_is_seen(monkeypatch):
    assert paper.along_paths(model, 2, Fraction(1, 4), 6, "model")
    assert not paper.along_paths(model, 2, Fraction(1, 100), 3, "model")
    real = paper.above
    monkeypatch.setattr(paper, "above", lambda *args: [*real(*args), (Fraction(1, 4), (0, 0))])
    with pytest.raises(Refuted, match="along paths"):
        paper.along_paths(model, 2, Fraction(1, 4), 6, "model")


@pytest.mark.parametrize("name", ["simple", "sharper"])
def test_a_smaller_bound_is_broken_by_a_fixed_law(name):
    def bound(of, size):
        return getattr(paper.bounds(of, size), name)

    paper.value_below(SKEW, 400, bound)
    with pytest.raises(Refuted, match="is above"):
        paper.value_below(SKEW, 400, lambda of, size: bound(of, size) * 0.7)


def test_the_sharper_bound_is_met_within_its_constant():
    """One renewal constant apart from the limit: C/2 and terms that vanish."""
    of, size = paper.moments(SKEW), 2**26
    found, value = paper.bounds(of, size), paper.optimal_value([0.9, 0.1], size)
    assert value <= found.sharper < value + of.ratio / 2 + 0.01
    assert found.published > 2.6 * value


def test_worst_first_is_refused(monkeypatch):
    paper.best_first_is_best(model, 2, 4, "model")
    monkeypatch.setattr(paper, "most_probable", lambda model, size: [(Fraction(1), ())] * (size - 1))
    with pytest.raises(Refuted, match="best first"):
        paper.best_first_is_best(model, 2, 4, "model")


def test_every_tree_is_listed_once():
    assert [sum(1 for _ in paper.trees_of(model, 2, size)) for size in range(1, 6)] == [1, 2, 5, 14, 42]


def test_entropies_are_compared_exactly(monkeypatch):
    tree = paper.most_probable(model, 5)
    paper.exit_entropy_holds(tree, model, "model")
    law = [Fraction(1, 6), Fraction(1, 3), Fraction(1, 2)]
    exact = sum(float(value) * math.log(prime) for prime, value in paper.logs_of(law).items())
    assert exact == pytest.approx(-sum(float(p) * math.log(p) for p in law))
    with pytest.raises(Refuted, match="entropies differ"):
        paper.exit_entropy_holds(tree[:-1], lambda prefix: [t / 2 for t in model(prefix)], "model")


def test_another_limit_is_refused(monkeypatch):
    paper.near_its_limit([0.6, 0.4], (32, 2**20), 0.006)
    with pytest.raises(Refuted, match="differs from its limit"):
        paper.near_its_limit([0.5, 0.5], (32, 2**20), 0.006)


def test_full_levels_alone_are_counted_right(monkeypatch, finds_a_fault):
    monkeypatch.setattr(paper, "optimal_value", lambda law, size: math.log2(size + 1))
    finds_a_fault(paper.lattice_falsifier)


@pytest.mark.parametrize("row", paper.TABLE, ids=lambda row: f"{row.name}, {row.size}")
def test_a_wrong_number_of_the_table_is_refused(row):
    with pytest.raises(Refuted, match="and not"):
        paper.row_is_right(row._replace(value=row.value + 2.0), 8)
    with pytest.raises(Refuted, match="and not"):
        paper.row_is_right(row._replace(columns=row.columns._replace(sharper=row.columns.sharper - 0.002)), 4)


def test_the_sampled_tree_is_the_computed_one():
    value, error = paper.sampled_value(lambda: np.array([0.9, 0.1]), 50, 3)
    assert value == pytest.approx(paper.optimal_value([0.9, 0.1], 50)) and error == pytest.approx(0)


def test_dirichlet_moments_tend_to_those_of_even_masses():
    of = paper.dirichlet_moments(1e7, 8)
    assert of.first == pytest.approx(math.log(8), abs=1e-6) and of.ratio == pytest.approx(1, abs=1e-6)


def test_the_belief_would_stand_if_sampled_drafts_were_refused(monkeypatch, finds_a_fault):
    assert paper.any_drafter(False).status == "refuted"
    monkeypatch.setattr(paper, "sampled_chain", lambda target, draft, size: Fraction(3))
    assert paper.any_drafter(False).status == "tested"
    finds_a_fault(paper.any_drafter_falsifier)


@pytest.mark.parametrize(
    ("number", "piece", "wrong"),
    [
        (3, "bounds", lambda of, size: paper.Bounds(0.5, 0.5, 0.5, 0.5)),
        (4, "bounds", lambda of, size: paper.Bounds(0.5, 0.5, 0.5, 0.5)),
        (5, "bounds", lambda of, size: paper.Bounds(2.0, 1.0, 0.0, 0.0)),
        (6, "most_probable", lambda model, size: [(Fraction(1), ())]),
        (8, "optimal_value", lambda law, size: 0.0),
        (10, "dirichlet_moments", lambda concentration, vocab: paper.Moments(1.0, 2.0)),
        (11, "row_is_right", lambda row, trees: None),
        (13, "most_probable", lambda model, size: [(Fraction(1), ())]),
    ],
)
def test_a_falsifier_finds_a_wrong_number(number, piece, wrong, monkeypatch, finds_a_fault):
    monkeypatch.setattr(paper, piece, wrong)
    finds_a_fault(paper.THEOREMS[number - 1].falsifier)


def test_values_of_random_laws_by_enumeration():
    """P = 2: the root and its likelier child."""
    laws = [HALF, SKEW]
    assert paper.mixture_value(laws, 2) == 1 + (Fraction(1, 2) + Fraction(9, 10)) / 2
