"""The checks of block verification refuse wrong pieces, and its falsifiers find wrong rules."""

from __future__ import annotations

import numpy as np
import pytest
import sympy as sp

from proofs_check.theorems import block as paper
from proofs_check.theorems.theorem import Refuted
from solvers.sequence import Block, SpecTr
from tests.theorems import mutants


def no_rescue(excess, rate):
    """Passes as if nothing behind could."""
    return rate


@pytest.mark.parametrize(
    "broken",
    [
        lambda: paper.node_keeps_its_rate(no_rescue),
        lambda: paper.node_keeps_its_rate(lambda excess, rate: excess / (excess + rate)),
        lambda: paper.node_emits_the_rest(scaled=False),
        lambda: paper.node_emits_the_rest(stop=no_rescue),
        lambda: paper.two_positions_by_smt(scaled=False),
        lambda: paper.rates_beat_products(lambda p, m: m),
        lambda: paper.rates_are_minima(sp.Max),
        lambda: paper.rates_are_minima(lambda d, w: d * w),
    ],
)
def test_a_wrong_piece_is_refused(broken):
    with pytest.raises(Refuted):
        broken()


class TokenResidual(Block):
    """Draws from (target - draft)+, not scaled by the rate."""

    def tests(self, tree, target_laws, draft_laws):
        for test in super().tests(tree, target_laws, draft_laws):
            inner = test.row < len(tree)
            over = np.maximum(test.target - draft_laws[test.row : test.row + 1], 0) if inner else test.weights
            yield test._replace(weights=over)


class Timid(mutants.Timid, Block): ...


@pytest.mark.parametrize(
    ("rule", "falsifier"),
    [
        (TokenResidual, paper._by_smt_falsifier),
        (Timid, paper._exact_falsifier),
        (Timid, paper._by_smt_falsifier),
        (Timid, paper._beats_tokens_falsifier),
        (lambda: SpecTr("maximal_coupling"), paper._best_falsifier),
    ],
)
def test_a_wrong_rule_is_found(rule, falsifier, monkeypatch, finds_a_fault):
    monkeypatch.setattr(paper, "Block", rule)
    finds_a_fault(falsifier)


def test_a_larger_bound_is_found(monkeypatch, finds_a_fault):
    whole = paper.bound
    monkeypatch.setattr(paper, "bound", lambda *pair: whole(*pair) + 1)
    finds_a_fault(paper._best_falsifier)


def test_a_claim_that_its_example_does_not_break_is_not_refuted(monkeypatch):
    assert paper._early(False).status == "refuted"
    monkeypatch.setattr(paper, "first_token", lambda target, draft, until_a_failure: list(target))
    assert paper._early(False).status == "tested"
    with pytest.raises(AssertionError):
        paper._early_falsifier()
