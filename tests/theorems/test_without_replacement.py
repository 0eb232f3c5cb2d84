"""The checks of drafts without replacement refuse wrong pieces."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import sympy as sp

from proofs_check.strategies import normalised
from proofs_check.theorems import without_replacement as paper
from proofs_check.theorems.theorem import Refuted

DRAFT = normalised([1, 2, 3, 4])


def too_early(order, one, other, waits):
    """`split` without "y after c" for the one that rings before c."""
    return paper.split(order, one, other, False)


@pytest.mark.parametrize(
    "broken",
    [
        lambda: paper.one_clock(lambda wait: sp.exp(-2 * wait)),
        lambda: paper.inserted(lambda earlier, later, clock: later and clock),
        lambda: paper.inserted(lambda earlier, later, clock: earlier or clock),
        lambda: paper.events(too_early),
        lambda: paper.events(lambda order, one, other, waits: order["c"] < order["w"]),
        lambda: paper.masses(lambda z: z**2),
        lambda: paper.integrands(lambda y, z, s, c: y * c - z * s),
        lambda: paper.integrands(lambda y, z, s, c: -z * s),
        lambda: paper.swap_gains(-1),
        lambda: paper.one_draw(lambda inside, gone, whole: inside / (whole - gone)),
    ],
)
def test_a_wrong_piece_is_refused(broken):
    with pytest.raises(Refuted):
        broken()


def test_a_ring_too_early_is_seen(monkeypatch):
    monkeypatch.setattr(paper, "ring", lambda earlier, later, clock: min(clock, later))
    for check in (paper.gained, paper.events):
        with pytest.raises(Refuted):
            check()


def test_draws_that_are_not_renormalised_are_seen():
    def inside(tokens):
        mass = sum((DRAFT[y] for y in tokens), Fraction(0))
        return mass**2 - sum((DRAFT[y] ** 2 for y in tokens), Fraction(0))

    assert paper.race_integral(DRAFT, (0, 1, 2), 2) == paper.drawn_inside(DRAFT, 2)((0, 1, 2)) != inside((0, 1, 2))


def test_the_exchange_inequality_needs_its_weights():
    inside = paper.drawn_inside(DRAFT, 2)
    paper.exchange_holds(DRAFT, inside)
    with pytest.raises(Refuted, match="is less than"):
        paper.exchange_holds(DRAFT, inside, weight=lambda mass: mass**2)
    with pytest.raises(Refuted, match="is less than"):
        paper.exchange_holds(DRAFT, inside, weight=lambda mass: Fraction(1))


def test_another_order_misses_the_best_set():
    inside = paper.drawn_inside(DRAFT, 2)
    cost = [Fraction(w, 6) for w in (0, 3, 0, 1)]
    paper.scan_finds(cost, DRAFT, inside, (), [0, 1, 2, 3])
    with pytest.raises(Refuted, match="beats every prefix"):
        paper.scan_finds(cost, DRAFT[::-1], inside, (), [0, 1, 2, 3])


def test_q_of_one_draw_less_is_too_large():
    with pytest.raises(Refuted, match="is above"):
        paper.fewer_inside(paper.drawn_inside(DRAFT, 1), DRAFT, 2)


def test_a_coarse_rule_is_off(monkeypatch):
    with pytest.raises(Refuted, match="off by"):
        paper.quadrature_close(DRAFT, (2,), 2, most=1e-18)
    monkeypatch.setattr("ot_spec.kernels.STEP", 2.0)
    with pytest.raises(Refuted, match="off by"):
        paper.quadrature_close(DRAFT, (2,), 2)


def test_orders_are_all_there():
    assert sum(1 for _ in paper.weak_orders("a b c d")) == 75
    assert paper.surely({"a": 0, "b": 1, "c": 1}, "a") and not paper.surely({"a": 0, "b": 1, "c": 1}, "c")


@pytest.mark.parametrize("number", [2, 4])
def test_a_falsifier_sees_independent_drafts(number, monkeypatch, finds_a_fault):
    """α* without replacement, compared with candidates of another law."""
    monkeypatch.setattr(paper, "WithoutReplacement" if number == 4 else "enumerated_inside", _swapped(number))
    finds_a_fault(paper.THEOREMS[number - 1].falsifier)


def _swapped(number):
    if number == 4:
        return lambda k: paper.IID(1)
    return lambda draft, law: lambda tokens: max((draft[y] for y in tokens), default=Fraction(0))


def test_a_bound_that_is_met_is_not_refuted(monkeypatch):
    assert paper.marginals(False).status == "refuted"
    monkeypatch.setattr(paper, "drawn_inside", lambda draft, k: lambda tokens: Fraction(int(len(tokens) == 4)))
    assert paper.marginals(False).status == "tested"
    assert np.isclose(float(paper.drawn_inside(DRAFT, 2)((0, 1, 2, 3))), 1)
