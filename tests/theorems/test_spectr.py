"""The checks of K-SEQ's statements refuse wrong pieces."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import sympy as sp

from ot_spec import IID
from proofs_check.theorems import spectr as paper
from proofs_check.theorems.algebra import least
from proofs_check.theorems.theorem import Refuted
from solvers import get_selector


@pytest.mark.parametrize(
    "broken",
    [
        lambda: paper.prove_exact(enough=lambda rho, beta, k: 1 - (1 - beta) ** k <= (rho + Fraction(1, 100)) * beta),
        lambda: paper.prove_exact(weight=lambda t, m, c, rho: t - m),
        lambda: paper.prove_exact(weight=lambda t, m, c, rho: t - rho * m),
        lambda: paper.residual_is_nonnegative(lambda t, m, c, rho: t - (c + 2 * (rho - c)) * m),
        lambda: paper.residual_is_nonnegative(lambda t, m, c, rho: c * m - t),
        lambda: paper.output_is_target(lambda t, m, c, rho: t - m),
        lambda: paper.kept_mass_falls(lambda t, d, rho: least(rho * d, t)),
        lambda: paper.scaled_mass_grows(lambda t, d, rho: least(d, t / rho)),
        lambda: paper.residual_at_the_root(lambda rho: rho + 1),
        lambda: paper.power_grows(lambda x: (x + 1) * sp.log(1 - 1 / x)),
        lambda: paper.chord(lambda m, k: 1 - (1 - m / k) ** (k + 1)),
        lambda: paper.merging_keeps_the_kept_mass(lambda a, b: b if least(a, b) == a else a),
        lambda: paper.prove_least_share(2, Fraction(8, 9) + Fraction(1, 10**4)),
        lambda: paper.prove_least_share(3, paper.LEAST_SHARE[3] + Fraction(2, 10**5)),
    ],
)
def test_a_wrong_piece_is_refused(broken):
    with pytest.raises(Refuted):
        broken()


def test_a_pair_that_is_not_the_worst_is_found(monkeypatch):
    monkeypatch.setattr(paper, "worst_pair", lambda k: ([Fraction(1, 2)] * 2, [Fraction(1, 2)] * 2))
    with pytest.raises(Refuted, match="accepts more"):
        paper._worst(False)


def test_the_worst_pairs_meet_the_search():
    for k, share in paper.LEAST_SHARE.items():
        assert abs(paper.sharp_guarantee(k) - share) < 2e-5
    assert paper.accepted_at_most(*paper.worst_pair(2), 2) - Fraction(8, 9) < Fraction(1, 2**50)


def test_the_kept_share_of_a_small_divisor():
    """ρ below ρ* but below the least ratio too: the same rule, exact."""
    target, draft = np.array([Fraction(1, 2)] * 2, dtype=object), np.array([Fraction(1, 2)] * 2, dtype=object)
    assert paper.divisor_suffices(target, draft, 2, Fraction(1))
    share, beta, c = paper.parts(target, draft, 2, Fraction(1, 2))
    assert (list(share), beta, c) == ([Fraction(1, 2)] * 2, 1, 1)


@pytest.mark.parametrize(
    ("name", "piece", "mended"),
    [
        ("_order", "law_in_order", lambda target, draft, k, rho, order: list(target)),
        ("_kept", "kept_and_member", lambda divisor, k=2: (Fraction(1), Fraction(1))),
        ("_longest", "longest_published", lambda target, draft, k: list(target)),
    ],
)
def test_a_refuted_claim_is_judged_by_its_example(name, piece, mended, monkeypatch, finds_a_fault):
    assert getattr(paper, name)(False).status == "refuted"
    monkeypatch.setattr(paper, piece, mended)
    assert getattr(paper, name)(False).status == "tested"
    finds_a_fault(getattr(paper, f"{name}_falsifier"))


def test_a_tight_bound_would_not_be_refuted(monkeypatch, finds_a_fault):
    monkeypatch.setattr(paper, "LOOSE", ([Fraction(1, 2)] * 2, [Fraction(1, 2)] * 2))
    assert paper._loose(False).status == "tested"
    finds_a_fault(paper._loose_falsifier)


def test_falsifiers_see_a_wrong_rule(monkeypatch, finds_a_fault):
    class Biased(paper.KSeq):
        def tests(self, target, draft, tokens, filled):
            made = super().tests(target, draft, tokens, filled)
            return made._replace(residual=target)

    monkeypatch.setattr(paper, "KSeq", Biased)
    for falsifier in (paper._exact_falsifier, paper._general_falsifier):
        finds_a_fault(falsifier)


def test_the_guarantee_fails_for_a_rule_that_accepts_less(monkeypatch, finds_a_fault):
    class Poor:
        def acceptance(self, target, draft, law):
            return get_selector("k_seq").acceptance(target, draft, IID(1)) * 0.9

    monkeypatch.setattr(paper, "get_selector", lambda name: Poor())
    for falsifier in (paper._guarantee_falsifier, paper._worst_falsifier, paper._limit_falsifier):
        finds_a_fault(falsifier)
