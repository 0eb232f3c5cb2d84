"""The checks of point masses and fixed trees refuse wrong pieces, and their falsifiers find wrong rules."""

from __future__ import annotations

from fractions import Fraction

import pytest

from proofs_check.theorems import point_mass as paper
from proofs_check.theorems.theorem import Refuted
from solvers import get_selector
from solvers.selectors.membership import Membership

SHARES = [Fraction(1, 2 + b) for b in range(7)]


@pytest.mark.parametrize(
    "broken",
    [
        lambda: paper.product_law(lambda t, covered: t * covered**2),
        lambda: paper.accepted_inside(lambda inside, outside: outside),
        lambda: paper.zeroed_and_renormalised(lambda t, here: t),
        lambda: paper.zeroed_and_renormalised(lambda t, here: t / (1 + here)),
        lambda: paper.compare_with_all_trees(5, 4, SHARES, skip=1),
    ],
)
def test_a_wrong_piece_is_refused(broken):
    with pytest.raises(Refuted):
        broken()


def test_trees_are_counted_by_catalans_numbers():
    assert [len(list(paper.shapes(size, size))) for size in range(1, 8)] == [1, 1, 2, 5, 14, 42, 132]
    assert [len(list(paper.shapes(5, levels))) for levels in range(1, 6)] == [0, 1, 8, 13, 14]


def test_a_small_tree_has_its_value():
    assert paper.value(((), ((),)), [Fraction(1, 2), Fraction(1, 4)]) == 1 + Fraction(1, 2) + Fraction(1, 4) * Fraction(
        3, 2
    )


@pytest.mark.parametrize("falsifier", [paper._membership_falsifier, paper._same_law_falsifier])
def test_another_rule_is_found(falsifier, monkeypatch, finds_a_fault):
    class Other(Membership):
        def _conditional(self, target, draft, tokens, filled, valid):
            law, valid = super()._conditional(target, draft, tokens, filled, valid)
            return law[..., ::-1], valid

        def _chosen(self, target, draft, tokens, filled, valid, coins):
            return super()._chosen(target[..., ::-1], draft, tokens, filled, valid, coins)

    monkeypatch.setattr(paper, "get_selector", lambda _: Other())
    finds_a_fault(falsifier)


def test_a_smaller_optimum_is_found(monkeypatch, finds_a_fault):
    monkeypatch.setattr(paper, "get_selector", lambda _: get_selector("rrs"))
    monkeypatch.setattr(paper, "Fixed", lambda chosen: paper.IID(len(chosen)))
    finds_a_fault(paper._fixed_falsifier)


@pytest.mark.parametrize("falsifier", [paper._nodes_falsifier, paper._best_first_falsifier])
def test_another_weight_is_found(falsifier, monkeypatch, finds_a_fault):
    monkeypatch.setattr(paper, "weight", lambda target, node: Fraction(1) if not node else target(())[node[-1]])
    finds_a_fault(falsifier)


def test_a_wrong_recursion_is_found(monkeypatch, finds_a_fault):
    whole = paper.recursion
    monkeypatch.setattr(paper, "recursion", lambda size, levels, shares, skip: whole(size, levels - 1, shares, skip))
    finds_a_fault(paper._sequoia_falsifier)


def test_a_claim_that_its_example_does_not_break_is_not_refuted(monkeypatch):
    assert paper._judged(False).status == "refuted"
    monkeypatch.setattr(paper, "most_likely_as_drawn", lambda target, draft: list(target))
    assert paper._judged(False).status == "tested"
    with pytest.raises(AssertionError):
        paper._judged_falsifier()
