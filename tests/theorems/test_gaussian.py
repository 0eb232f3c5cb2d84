"""The checks of the reflection coupling refuse wrong pieces, and its falsifiers find wrong rules."""

from __future__ import annotations

import numpy as np
import pytest

from proofs_check.theorems import gaussian as paper
from proofs_check.theorems.algebra import equal
from proofs_check.theorems.theorem import Refuted


@pytest.mark.parametrize(
    "broken",
    [
        lambda: paper.ratio_along_the_shift(paper.s - paper.a),
        lambda: paper.where_the_target_is_larger(paper.a / 2),
        lambda: equal(paper.overlap(0), 2 * paper.below(-paper.a / 2)),
        lambda: paper.kept_and_reflected(lambda s: s),
        lambda: paper.kept_and_reflected(lambda s: -s - paper.a),
        lambda: paper.kept_and_reflected(lambda s: -2 * s),
        lambda: paper.half_line_bound(paper.a),
    ],
)
def test_a_wrong_piece_is_refused(broken):
    with pytest.raises(Refuted):
        broken()


def test_a_rule_without_the_reflection_is_found(monkeypatch, finds_a_fault):
    whole = paper.coupled

    def shifted(means, sigma, noise, coins):
        out, kept = whole(means, sigma, noise, coins)
        return np.where(kept[:, None], out, means[1] + sigma * noise), kept

    monkeypatch.setattr(paper, "coupled", shifted)
    finds_a_fault(paper._exact_falsifier)


def test_a_rule_that_keeps_more_is_found(monkeypatch, finds_a_fault):
    whole = paper.coupled
    monkeypatch.setattr(paper, "coupled", lambda means, sigma, noise, coins: whole(means, sigma, noise, coins / 2))
    finds_a_fault(paper._exact_falsifier)
    finds_a_fault(paper._fresh_falsifier)


@pytest.mark.parametrize("falsifier", [paper._acceptance_falsifier, paper._maximal_falsifier])
def test_another_acceptance_is_found(falsifier, monkeypatch, finds_a_fault):
    monkeypatch.setattr(paper, "kept_share", lambda shift: shift / (1 + shift))
    finds_a_fault(falsifier)


def test_a_claim_that_its_example_does_not_break_is_not_refuted(monkeypatch):
    assert paper._fresh(False).status == "refuted"
    whole = paper.short
    monkeypatch.setattr(paper, "short", lambda: whole() * 0)
    assert paper._fresh(False).status == "tested"
