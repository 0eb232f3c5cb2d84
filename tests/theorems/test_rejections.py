"""The checks of the number of rejections refuse wrong pieces, and its falsifiers find wrong counts."""

from __future__ import annotations

import numpy as np
import pytest
import sympy as sp

from proofs_check.theorems import rejections as paper
from proofs_check.theorems.theorem import Refuted


@pytest.mark.parametrize(
    "broken",
    [
        lambda: paper.one_token(lambda t, d: sp.Max(d - t, 0)),
        lambda: paper.one_token(lambda t, d: t),
        lambda: paper.lenient_token(lambda kept, t: sp.Max(t - kept, 0)),
        lambda: paper.lenient_token(lambda kept, t: 0 * t),
        lambda: paper.lenient_token(lambda kept, t: sp.Abs(kept - t)),
    ],
)
def test_a_wrong_piece_is_refused(broken):
    with pytest.raises(Refuted):
        broken()


@pytest.mark.parametrize("falsifier", [paper._expected_falsifier, paper._lenient_falsifier, paper._least_falsifier])
def test_another_distance_is_found(falsifier, monkeypatch, finds_a_fault):
    monkeypatch.setattr(paper, "distance", lambda target, draft: np.abs(target - draft).sum())
    finds_a_fault(falsifier)


def test_a_claim_that_its_example_does_not_break_is_not_refuted(monkeypatch):
    assert paper._fewer(False).status == "refuted"
    monkeypatch.setattr(
        paper, "rejections_of_a_block", lambda target, draft: 2 * paper.distance(*map(np.array, (target, draft)))
    )
    assert paper._fewer(False).status == "tested"
    with pytest.raises(AssertionError):
        paper._fewer_falsifier()
