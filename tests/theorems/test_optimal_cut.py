"""The checks of the cut's statements refuse wrong pieces."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import sympy as sp

from ot_spec import IID
from ot_spec.problem import MembershipTransport
from proofs_check.theorems import optimal_cut as paper
from proofs_check.theorems.algebra import least
from proofs_check.theorems.instances import pairs
from proofs_check.theorems.theorem import Refuted


@pytest.mark.parametrize(
    "broken",
    [
        lambda: paper.accepted_outside_the_cut(lambda accepted, inside, in_set: True),
        lambda: paper.any_flow_is_a_plan(lambda row, column, left: row * column),
        lambda: paper.any_flow_is_a_plan(lambda row, column, left: sp.Min(row, column)),
        lambda: paper.prefixes_hold_least(lambda s: 2 * s),
        lambda: paper.prefixes_hold_least(lambda s: s / 2),
        lambda: paper.concave_on_a_segment(lambda x, k: x ** (k + 1)),
        lambda: paper.flow_on_two_tokens(lambda a, b: a),
        lambda: paper.flow_on_two_tokens(lambda a, b: least(a, b) / 2),
        lambda: paper.value_of_top_then_sample(lambda held: held / 2),
        lambda: paper.sets_and_tuples(lambda mass, whole: mass),
    ],
)
def test_a_wrong_piece_is_refused(broken):
    with pytest.raises(Refuted):
        broken()


def test_a_wrong_cut_is_found(monkeypatch, finds_a_fault):
    def prefixes_by_mass(problem, sets=None):
        order = np.argsort(-problem.draft, kind="stable").tolist()
        return right(problem, [order[:size] for size in range(len(order) + 1)])

    right = paper.least_cut
    monkeypatch.setattr(paper, "least_cut", prefixes_by_mass)
    with pytest.raises(Refuted, match="least cut"):
        paper._strong(False)
    finds_a_fault(paper._strong_falsifier)


def test_prefixes_of_another_order_do_not_suffice(monkeypatch, finds_a_fault):
    monkeypatch.setattr(paper, "ascending", lambda target, draft: sorted(range(len(target)), key=lambda y: target[y]))
    finds_a_fault(paper._prefixes_falsifier)


def test_inside_counts_what_the_law_says():
    for target, draft, k in pairs(30, 4, (1, 2), room=20):
        problem = MembershipTransport(target, draft, IID(k))
        for held in paper.subsets(len(target)):
            assert paper.inside(problem, held) == (draft[held].sum() ** k if held else 0)
        assert paper.least_cut(problem, [[]]) == 1
        assert paper.least_cut(problem) <= min(Fraction(1), paper.least_cut(problem, [[0]]))


def test_a_pair_without_a_tie_refutes_nothing(monkeypatch, finds_a_fault):
    assert paper._ties(False).status == "refuted"
    monkeypatch.setattr(paper, "FLAT", ([Fraction(1, 3)] * 3, [Fraction(1, 3)] * 3))
    assert paper._ties(False).status == "tested"
    finds_a_fault(paper._ties_falsifier)
