"""The checks of shared noise refuse wrong pieces, and its falsifiers find wrong couplings."""

from __future__ import annotations

import numpy as np
import pytest
import sympy as sp

from proofs_check.theorems import gumbel as paper
from proofs_check.theorems.instances import pairs
from proofs_check.theorems.theorem import Refuted
from solvers.selectors import GumbelList


@pytest.mark.parametrize(
    "broken",
    [
        lambda: paper.race_is_won_by_rate(2),
        lambda: paper.own_list_agrees(lambda w, t: w),
        lambda: paper.own_list_agrees(lambda w, t: sp.Max(t - w, 0)),
        lambda: paper.own_list_agrees(lambda w, t: sp.Max(w - t, 0) / 2),
    ],
)
def test_a_wrong_piece_is_refused(broken):
    with pytest.raises(Refuted):
        broken()


class FirstList(GumbelList):
    """Decides by the first list's noise divided by the draft."""

    def output(self, target, candidates, noise):
        return super().output(target, candidates, noise[..., :1, :])

    def acceptance(self, target, draft, k):
        return super().acceptance(target, draft, k) / 4


class ReadsTheDraft(GumbelList):
    def couple(self, target, draft, noise):
        return super().couple(draft, draft, noise)


class OneNoise(GumbelList):
    """Every list has the first one's noise."""

    def couple(self, target, draft, noise):
        return super().couple(target, draft, np.repeat(noise[..., :1, :], noise.shape[-2], axis=-2))


@pytest.mark.parametrize(
    ("rule", "falsifier"),
    [
        (ReadsTheDraft, paper._exact_falsifier),
        (OneNoise, paper._matched_falsifier),
        (FirstList, paper._matched_falsifier),
        (FirstList, paper._distance_falsifier),
        (OneNoise, paper._between_falsifier),
        (FirstList, paper._between_falsifier),
    ],
)
def test_a_wrong_coupling_is_found(rule, falsifier, monkeypatch, finds_a_fault):
    monkeypatch.setattr(paper, "GumbelList", rule)
    finds_a_fault(falsifier)


def test_values_out_of_order_are_refused(monkeypatch):
    monkeypatch.setattr(paper, "GumbelList", FirstList)
    with pytest.raises(Refuted, match="are not in order"):
        paper.between_its_bounds(pairs(4, vocab_max=3, ks=(1,)))


def test_a_claim_that_its_example_does_not_break_is_not_refuted(monkeypatch):
    assert paper._maximal(False).status == "refuted"
    monkeypatch.setattr(paper, "agreement_of_halves", lambda: sp.Rational(1, 2))
    assert paper._maximal(False).status == "tested"
    monkeypatch.setattr(paper, "THREE", (paper.THREE[0], paper.THREE[0]))
    with pytest.raises(AssertionError):
        paper._maximal_falsifier()
