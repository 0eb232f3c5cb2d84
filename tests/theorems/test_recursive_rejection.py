"""The checks of recursive rejection refuse wrong pieces, and its falsifiers find wrong rules."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import sympy as sp

from proofs_check.theorems import recursive_rejection as paper
from proofs_check.theorems import smt
from proofs_check.theorems.theorem import Refuted
from solvers import get_selector
from solvers.selectors.rrs import RRS


@pytest.mark.parametrize(
    "broken",
    [
        lambda: paper.one_more_candidate(lambda r, d: sp.Max(d - r, 0)),
        lambda: paper.one_more_candidate(lambda r, d: r),
        lambda: paper.one_more_candidate(lambda r, d: sp.Max(r - d / 2, 0)),
        lambda: paper.two_independent_by_smt(lambda r, d: r),
        lambda: paper.two_independent_by_smt(lambda r, d: smt.maximum(r, d)),
        lambda: paper.two_without_replacement_by_smt(lambda r, d: r),
        lambda: paper.refusals_add_up(lambda t, w, c: sp.Max(t - c, 0)),
        lambda: paper.refusals_add_up(lambda t, w, c: t - w - c),
        lambda: paper.early_products_are_smaller(lambda i, k: i * k),
        lambda: paper.slow_falls(lambda a, gain: gain / 2),
    ],
)
def test_a_wrong_piece_is_refused(broken):
    with pytest.raises(Refuted):
        broken()


@pytest.mark.parametrize(
    ("step", "wrong"),
    [
        (paper.refused_tokens_never_return, lambda r, d: sp.Max(r - d / 2, 0)),
        (paper.excess_is_less_likely, lambda r, d: r),
        (paper.residuals_stay_inside, lambda r, d: r + d),
        (paper.slow_falls, lambda a, gain: a + gain),
    ],
)
def test_a_wrong_excess_is_refused(step, wrong, monkeypatch):
    step()
    monkeypatch.setattr(paper, "excess", wrong)
    with pytest.raises(Refuted):
        step()


class KeepsItsResidual(RRS):
    """Forgets the second refusal."""

    def tests(self, target, draft, tokens, filled):
        made = super().tests(target, draft, tokens, filled)
        first = super().tests(target, draft, tokens[..., :1], filled[..., :1])
        return made._replace(residual=first.residual)


@pytest.mark.parametrize("falsifier", [paper._exact_falsifier, paper._by_smt_falsifier, paper._acceptance_falsifier])
def test_a_biased_rule_is_found(falsifier, monkeypatch, finds_a_fault):
    monkeypatch.setattr(paper, "get_selector", lambda name: KeepsItsResidual())
    finds_a_fault(falsifier)


def test_rrs_for_draws_without_replacement_is_found(monkeypatch, finds_a_fault):
    class Unaware(RRS):
        laws = ("without_replacement",)

    monkeypatch.setattr(paper, "get_selector", lambda name: Unaware())
    finds_a_fault(paper._exact_without_replacement_falsifier)
    finds_a_fault(paper._without_replacement_by_smt_falsifier)


@pytest.mark.parametrize(
    ("falsifier", "turned"),
    [
        (paper._below_k_seq_falsifier, {"rrs": "k_seq", "k_seq": "rrs"}),
        (paper._beats_membership_falsifier, {"rrs": "membership", "membership": "rrs"}),
    ],
)
def test_a_comparison_the_other_way_round_is_refuted(falsifier, turned, monkeypatch, finds_a_fault):
    monkeypatch.setattr(paper, "get_selector", lambda name: get_selector(turned[name]))
    finds_a_fault(falsifier)


def test_less_than_rrs_is_found(monkeypatch, finds_a_fault):
    def selector(name):
        rule = get_selector(name)
        half = SimpleNamespace(acceptance=lambda *pair: rule.acceptance(*pair) / 2)
        return half if name == "rrs_without_replacement" else rule

    monkeypatch.setattr(paper, "get_selector", selector)
    finds_a_fault(paper._without_replacement_refuses_less_falsifier)


def test_a_claim_that_its_example_does_not_break_is_not_refuted(monkeypatch):
    assert [check(False).status for check in (paper._skipping, paper._not_optimal, paper._overtaken)] == ["refuted"] * 3
    whole = paper.rejection_law
    monkeypatch.setattr(paper, "rejection_law", lambda target, draft, k, skips=False: whole(target, draft, k))
    assert paper._skipping(False).status == "tested"
    with pytest.raises(AssertionError):
        paper._skipping_falsifier()
    monkeypatch.setattr(paper, "EVEN", (paper.EVEN[0], paper.EVEN[0]))
    assert paper._not_optimal(False).status == "tested"
    monkeypatch.setattr(paper, "OVERTAKEN", (paper.OVERTAKEN[1], paper.OVERTAKEN[1]))
    assert paper._overtaken(False).status == "tested"
    for falsifier in (paper._not_optimal_falsifier, paper._overtaken_falsifier):
        with pytest.raises(AssertionError):
            falsifier()


def test_what_is_kept_without_replacement_is_compared_with_what_is_accepted(monkeypatch, finds_a_fault):
    right = paper.accepted_without_replacement
    monkeypatch.setattr(paper, "accepted_without_replacement", lambda target, draft: right(target, draft) / 2)
    finds_a_fault(paper._exact_without_replacement_falsifier)


def test_a_refused_token_that_returns_breaks_exactness_without_replacement(monkeypatch):
    monkeypatch.setattr(paper, "excess", lambda r, d: sp.Max(r - d / 2, 0))
    with pytest.raises(Refuted):
        paper._exact_without_replacement(False)
