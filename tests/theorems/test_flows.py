"""The checks of the optimal rules refuse wrong pieces."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from ot_spec import IID, WithoutReplacement
from proofs_check.strategies import normalised
from proofs_check.theorems import flows as paper
from proofs_check.theorems.theorem import Refuted
from solvers import get_selector

TARGET, DRAFT = normalised([2, 4, 7, 3, 4]), normalised([4, 5, 8, 2, 1])
INSIDE = paper.enumerated_inside(DRAFT, IID(2))
ORDER = paper.ascending(TARGET, DRAFT)


@pytest.mark.parametrize(
    "broken",
    [
        lambda: paper.summed_by_parts(-1),
        lambda: paper.overlap_below_a_cut(-1),
        lambda: paper.neighbours("rising", exchange=False),
        lambda: paper.neighbours("falling", exchange=False),
        lambda: paper.neighbours("peak", exchange=False),
        lambda: paper.neighbours("rising", sorted_=False),
        lambda: paper.neighbours("falling", sorted_=False),
        lambda: paper.highest_of_many(lambda k: k),
        lambda: paper.top_levels(lambda u, k: k * u**k),
        lambda: paper.largest_part(lambda a: a),
        lambda: paper.window_wins(lambda u, k: u ** (k - 1)),
        lambda: paper.partners_lie_right(ahead=False),
        lambda: paper.chances(right=False),
        lambda: paper.swapped_masses_agree(lambda matched, whole: matched),
        lambda: paper.below_the_chord(lambda a, b, c, l: (c - a) * (b - l) / 2),
        lambda: paper.scaled_picks(right=False),
        lambda: paper.worst_bin(lambda s: (s - 1) / (s + 2)),
        lambda: paper.tilted(-1),
        lambda: paper.inside_a_bin(lambda power, before, after: power - after),
        lambda: paper.luce_is_right(TARGET, DRAFT, 2, "weights that were not solved for", solved=False),
    ],
)
def test_a_wrong_piece_is_refused(broken):
    with pytest.raises(Refuted):
        broken()


def test_the_flow_holds_along_its_order_alone():
    paper.flow_is_right(TARGET, DRAFT, INSIDE, "pair")
    with pytest.raises(Refuted):
        paper.flow_is_right(TARGET, DRAFT, INSIDE, "pair", order=ORDER[::-1])


@pytest.mark.parametrize("law", [IID(2), WithoutReplacement(2)], ids=["iid", "without replacement"])
def test_one_running_maximum_is_not_enough(law, monkeypatch):
    """E from the left all the way: the law is no law any more, or not the best."""

    def rising_only(target, order, inside, last=False):
        psi = [inside(order[:size]) - paper.of(target, order[:size]) for size in range(len(order) + 1)]
        envelope = [max(psi[: i + 1]) for i in range(len(psi))]
        pick = [Fraction(0)] * len(target)
        for place, token in enumerate(order):
            pick[token] = target[token] + envelope[place + 1] - envelope[place]
        return pick, psi, envelope

    monkeypatch.setattr(paper, "from_maxima", rising_only)
    with pytest.raises(Refuted):
        paper.flow_is_right(TARGET, DRAFT, paper.enumerated_inside(DRAFT, law), "pair")


def test_the_target_itself_cannot_always_be_picked():
    with pytest.raises(Refuted, match="H ="):
        paper.must_be_reachable(normalised([0, 1, 1, 1, 1]), INSIDE, "pair")
    with pytest.raises(Refuted):
        paper.must_be_reachable([*DRAFT[:4], Fraction(0)], INSIDE, "pair")


def test_an_upper_hull_is_refused(monkeypatch):
    paper.hull_is_right(TARGET, DRAFT, INSIDE, "pair")
    monkeypatch.setattr(paper, "ascending", lambda top, bottom: ORDER[::-1])
    with pytest.raises(Refuted):
        paper.hull_is_right(TARGET, DRAFT, INSIDE, "pair")


def test_levels_of_another_number_of_candidates_are_seen():
    levels = paper.some_levels(np.random.default_rng(0), 5)
    assert paper.by_cells(DRAFT, levels, 2) == paper.by_formula(DRAFT, levels, 2)
    assert paper.by_cells(DRAFT, levels, 2) != paper.by_formula(DRAFT, levels, 3)


def test_windows_in_another_order_or_for_another_law_are_refused():
    pick, *_ = paper.from_maxima(TARGET, ORDER, INSIDE)
    paper.exchanged(DRAFT, pick, INSIDE, "pair")
    with pytest.raises(Refuted):
        paper.exchanged(DRAFT, pick, INSIDE, "pair", order=ORDER[::-1])
    with pytest.raises(Refuted):
        paper.exchanged(DRAFT, normalised([0, 1, 1, 1, 1]), INSIDE, "pair")


def test_one_sided_swaps_overfill_a_window(monkeypatch):
    pick, *_ = paper.from_maxima(TARGET, ORDER, INSIDE)
    real = paper.swaps

    def one_sided(draft, pick, inside, order):
        moved = real(draft, pick, inside, order)
        return {pair: chance for pair, chance in moved.items() if order.index(pair[0]) < order.index(pair[1])}

    monkeypatch.setattr(paper, "swaps", one_sided)
    with pytest.raises(Refuted, match="holds"):
        paper.exchanged(DRAFT, pick, INSIDE, "pair")


def test_lists_are_read_from_the_last(monkeypatch):
    assert paper.of_list(ORDER, INSIDE, 5) == paper.picked_by_list(DRAFT, IID(2), ORDER)
    assert paper.of_list(ORDER, INSIDE, 5) != paper.picked_by_list(DRAFT, IID(2), ORDER[::-1])


@pytest.mark.parametrize("fault", ["weights", "order", "number"])
def test_wrong_lists_are_refused(fault, monkeypatch):
    paper.decomposed(TARGET, DRAFT, WithoutReplacement(2), "pair")
    real = paper.priority_lists

    class Wrong:
        def __init__(self, made):
            self.law = made.law
            orders, weights = made.lists()
            if fault == "weights":
                weights = np.array([Fraction(1, len(weights))] * len(weights), dtype=object)
            elif fault == "order":
                orders = orders[:, ::-1]
            else:
                orders = np.repeat(orders, 8, axis=0)
                weights = np.repeat(weights, 8) / 8
            self.found = orders, weights

        def lists(self):
            return self.found

    monkeypatch.setattr(paper, "priority_lists", lambda *laws: Wrong(real(*laws)))
    with pytest.raises(Refuted, match="lists"):
        paper.decomposed(TARGET, DRAFT, WithoutReplacement(2), "pair")


def test_a_narrower_ratio_than_the_bins_have_is_refused(monkeypatch):
    bins = [[0, 1, 2, 3, 4]]
    paper.binned(TARGET, DRAFT, 2, bins, "pair")
    real = max
    monkeypatch.setattr(
        paper, "max", lambda *args, **more: paper.ONE if "default" in more else real(*args, **more), False
    )
    with pytest.raises(Refuted, match="lose"):
        paper.binned(TARGET, DRAFT, 2, bins, "pair")


def test_the_curtain_needs_a_reachable_law():
    pick, *_ = paper.from_maxima(TARGET, ORDER, INSIDE)
    assert paper.curtain_is_right(DRAFT.astype(float), np.array(pick, dtype=float), 2, "pair") <= 10
    with pytest.raises(Refuted):
        paper.curtain_is_right(DRAFT.astype(float), np.array([0, 0.25, 0.25, 0.25, 0.25]), 2, "pair")


@pytest.mark.parametrize("name", ["overlap_needed", "best_ratio"])
def test_a_refuted_claim_is_judged_by_its_example(name, monkeypatch, finds_a_fault):
    assert getattr(paper, name)(False).status == "refuted"
    monkeypatch.setattr(paper, "canonical_acceptance", lambda target, draft, k, choose: (Fraction(1), Fraction(1)))
    assert getattr(paper, name)(False).status == "tested"
    finds_a_fault(getattr(paper, f"{name}_falsifier"))


@pytest.mark.parametrize(
    ("number", "piece", "wrong"),
    [
        (1, "enumerated_inside", lambda draft, law: lambda tokens: Fraction(0)),
        (2, "min", lambda *values: values[-1]),
        (3, "optimal_flow", lambda target, draft, law: Target(target)),
        (4, "from_hull", lambda target, draft, inside: list(draft)),
        (5, "by_formula", lambda draft, levels, k: list(draft)),
        (6, "some_reachable", lambda generator, draft, inside: [Fraction(1), *[Fraction(0)] * (len(draft) - 1)]),
        (7, "get_selector", lambda name: get_selector("rrs")),
        (8, "picked_by_list", lambda draft, law, order: list(draft)),
        (9, "get_selector", lambda name: get_selector("rrs_without_replacement")),
        (10, "Optimal", lambda classes: get_selector("membership")),
        (12, "optimal_flow", lambda target, draft, law: Target(target)),
    ],
)
def test_a_falsifier_finds_a_wrong_rule(number, piece, wrong, monkeypatch, finds_a_fault):
    monkeypatch.setattr(paper, piece, wrong, raising=False)
    finds_a_fault(paper.THEOREMS[number - 1].falsifier)


class Target:
    """A flow that is the target, reachable or not."""

    def __init__(self, target):
        self.target = target

    def law(self):
        return self.target
