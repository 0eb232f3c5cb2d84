"""The checks of SpecHub refuse wrong pieces, and its falsifiers find wrong rules."""

from __future__ import annotations

import pytest
import sympy as sp

from ot_spec import TopThenSample
from proofs_check.theorems import spechub as paper
from proofs_check.theorems.theorem import Refuted
from solvers.selectors import Hub
from solvers.selectors.canonical import Picking


@pytest.mark.parametrize(
    "broken",
    [
        lambda: paper.pair_law(lambda hub, d: hub * d),
        lambda: paper.pair_law(lambda hub, d: d / (1 - hub)),
        lambda: paper.pair_law(lambda hub, d: d**2 * hub / (1 - hub) ** 2),
        lambda: paper.kept_and_replaced(sp.Max),
        lambda: paper.kept_and_replaced(lambda t, d: t * d),
    ],
)
def test_a_wrong_piece_is_refused(broken):
    with pytest.raises(Refuted):
        broken()


def test_a_hub_rule_that_judges_by_the_draft_is_found(monkeypatch, finds_a_fault):
    class NotRenormalised(Hub):
        def picking(self, target, draft, tokens, filled):
            weights, _ = super().picking(target, draft, tokens, filled)
            return Picking(weights, draft)

    monkeypatch.setattr(paper, "Hub", NotRenormalised)
    finds_a_fault(paper._exact_falsifier)


def test_a_wrong_value_is_found(monkeypatch, finds_a_fault):
    class Doubtful(Hub):
        def acceptance(self, target, draft, law):
            return super().acceptance(target, draft, law) / 2

    monkeypatch.setattr(paper, "Hub", Doubtful)
    finds_a_fault(paper._value_falsifier)
    finds_a_fault(paper._top_falsifier)


def test_another_pair_law_is_found(monkeypatch, finds_a_fault):
    monkeypatch.setattr(paper, "HubPair", lambda: TopThenSample(2))
    finds_a_fault(paper._pairs_falsifier)


def test_a_claim_that_its_example_does_not_break_is_not_refuted(monkeypatch):
    assert paper._behind(False).status == "refuted"
    monkeypatch.setattr(paper, "BEHIND", (paper.BEHIND[1], paper.BEHIND[1]))
    assert paper._behind(False).status == "tested"
    with pytest.raises(AssertionError):
        paper._behind_falsifier()
