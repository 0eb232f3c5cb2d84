"""The rest of the selectors: output law, acceptance and draft law of each, as fractions, by enumeration."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from flint import fmpq

from ot_spec import (
    IID,
    Coupling,
    Fixed,
    HubPair,
    Independent,
    Selector,
    TopThenSample,
    WithoutReplacement,
    as_exact,
    output_law,
)
from ot_spec.arrays import as_fraction
from ot_spec.coin import exact_measure
from ot_spec.draft_law import DraftLaw, collapse, contains_by_sets, inside_by_sets
from ot_spec.errors import CandidateError, OptionError, ShapeError, TooLargeError, UnsupportedLawError
from ot_spec.problem import MembershipTransport
from ot_spec.selector import acceptance_by_enumeration, as_float, select_law
from solvers import SELECTORS, get_selector, optimal_acceptance
from solvers.exact.solve import solve
from solvers.selectors import COUPLINGS, GumbelList, Hub, Importance, Luce, get_coupling
from solvers.selectors.canonical import CanonicalRule, rational
from solvers.selectors.luce import hull, pick_law
from tests.exact.cases import generated, to_law, weights

CASES = generated()
CHUNK = 30
LAST_COIN = 1 - 2.0**-53


def shelf(vocab, k, rng):
    """Each rule with a draft law it is exact for."""
    hub = int(rng.integers(vocab))
    return (
        (get_selector("top_then_sample"), TopThenSample(k)),
        (Hub(), HubPair()),
        (Hub(hub), HubPair(hub)),
        (get_selector("importance"), IID(k)),
        (Importance(top=1, classes=2), IID(k)),
        (get_selector("luce"), IID(k)),
        (get_selector("membership"), membership_law(vocab, k, rng)),
    )


def membership_law(vocab, k, rng):
    made = (
        IID(k),
        WithoutReplacement(k),
        TopThenSample(k),
        HubPair(int(rng.integers(vocab))),
        Fixed(rng.integers(0, vocab, k)),
        Independent(np.stack([to_law(weights(rng, vocab)) for _ in range(k)])),
    )
    return made[rng.integers(len(made))]


@pytest.mark.parametrize("start", range(0, 120, CHUNK))
def test_output_law_is_the_target(start):
    rng = np.random.default_rng(start)
    for target, draft, k in CASES[start : start + CHUNK]:
        for rule, law in shelf(target.size, k, rng):
            assert rule.exact and rule.supports(law)
            assert (output_law(rule, target, draft, law) == target).all(), (rule.name, law, target, draft)
            accepted = rule.acceptance(target, draft, law)
            assert accepted == acceptance_by_enumeration(rule, target, draft, law), (rule.name, law, target, draft)
            if law.name == "independent":
                best = solve(MembershipTransport(target, draft, law), method="rational").acceptance
            else:
                best = optimal_acceptance(target, draft, law)
            assert accepted <= best
            if law.name in ("fixed", "hub_pair", "top_then_sample") and rule.name != "membership":
                assert accepted == best
            if law.name == "fixed":
                assert accepted == best


@pytest.mark.parametrize("start", range(0, 120, CHUNK))
def test_select_has_the_law_that_conditional_states(start):
    rng = np.random.default_rng(start)
    for target, draft, k in CASES[start : start + CHUNK]:
        for rule, law in shelf(target.size, k, rng):
            tuples, _ = law.tuples(draft)
            some = tuples[rng.permutation(len(tuples))[:6]]
            stated = rule.conditional(target, draft, some)
            assert (select_law(rule, target, draft, some) == stated).all(), (rule.name, law, target, draft)


@pytest.mark.parametrize("array", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_floats_follow_the_fractions(array):
    rng = np.random.default_rng(0)
    for target, draft, k in CASES[120:200]:
        floats = array(as_float(target)), array(as_float(draft))
        for rule, law in shelf(target.size, k, rng):
            if law.name == "independent":
                continue
            exact = float(as_fraction(rule.acceptance(target, draft, law)))
            assert float(rule.acceptance(*floats, law)) == pytest.approx(exact, abs=1e-12), (rule.name, target, draft)
            tuples, _ = law.tuples(draft)
            some = tuples[:: max(1, len(tuples) // 6)]
            stated = as_float(rule.conditional(target, draft, some))
            np.testing.assert_allclose(np.asarray(rule.conditional(*floats, array(some))), stated, atol=1e-12)
            coins = rng.random((len(some), rule.coins(some.shape[-1])))
            coins[0] = LAST_COIN
            chosen = rule.select(*floats, array(some), array(coins))
            there = rule.select(as_float(target), as_float(draft), some, coins)
            assert np.asarray(chosen.token).tolist() == there.token.tolist()
            possible = rule.conditional(as_float(target), as_float(draft), some) > 0
            assert possible[np.arange(len(some)), there.token].all()


def test_batches_are_their_rows():
    rng = np.random.default_rng(1)
    target, draft = rng.dirichlet(np.full(20, 0.3), 6), rng.dirichlet(np.full(20, 0.3), 6)
    for rule, law in shelf(20, 2, rng)[:-1]:
        candidates = law.sample(draft, rng.random((6, 2))).tokens
        coins = rng.random((6, rule.coins(2)))
        arrays = target, draft, candidates, coins
        for a in arrays:
            a.flags.writeable = False
        whole = rule.select(*arrays)
        rows = [rule.select(*(a[i] for a in arrays)) for i in range(6)]
        there = rule.select(*(torch.tensor(a) for a in arrays))
        assert whole.token.tolist() == [int(r.token) for r in rows] == there.token.tolist()
        assert whole.index.tolist() == [int(r.index) for r in rows] == there.index.tolist()
        assert (whole.accepted == (candidates == whole.token[:, None]).any(axis=1)).all()
        stated = rule.conditional(*arrays[:3])
        np.testing.assert_allclose(
            [rule.conditional(*(a[i] for a in arrays[:3])) for i in range(6)], stated, atol=1e-15
        )
        accepted = rule.acceptance(target, draft, law)
        np.testing.assert_allclose([rule.acceptance(t, d, law) for t, d in zip(target, draft, strict=True)], accepted)
        assert (accepted <= optimal_acceptance(target, draft, law) + 1e-12).all()
        for a in arrays:
            a.flags.writeable = True


def test_the_registry():
    for name in SELECTORS:
        assert isinstance(get_selector(name), Selector)
    assert isinstance(get_coupling("gumbel_list"), Coupling)
    assert list(COUPLINGS) == ["gumbel_list"]
    with pytest.raises(OptionError, match="no coupling 'gumbel'; there are gumbel_list"):
        get_coupling("gumbel")
    assert get_selector("membership").supports(Fixed([0]))
    assert not Hub(1).supports(HubPair()) and not Hub().supports(HubPair(0))
    with pytest.raises(UnsupportedLawError, match="luce is not exact for candidates of without_replacement"):
        get_selector("luce").acceptance(np.full(4, 0.25), np.full(4, 0.25), WithoutReplacement(2))


def test_the_pick_is_exact_whatever_the_program_returns(monkeypatch):
    """Weights that no program would give: the law that is stored is the law that is used."""
    rng = np.random.default_rng(2)

    def arbitrary(target, champion, masses):
        size = target.size
        stay = np.tril(rng.random((size, size)), -1)
        return stay + np.triu(1 - stay.T, 1) + np.eye(size)

    monkeypatch.setattr("solvers.selectors.importance._stage", arbitrary)
    for target, draft, _ in CASES[200:230]:
        rule = Importance(top=2, classes=2)
        for k in (2, 3):
            accepted = rule.acceptance(target, draft, IID(k))
            assert (output_law(rule, target, draft, IID(k)) == target).all()
            assert accepted == acceptance_by_enumeration(rule, target, draft, IID(k))
            assert accepted < 1 or not (target != draft).any()


def test_two_candidates_with_a_group_each_are_optimal():
    for target, draft, _ in CASES[:80]:
        floats = as_float(target), as_float(draft)
        best = optimal_acceptance(*floats, IID(2))
        assert Importance(top=6).acceptance(*floats, IID(2)) == pytest.approx(best, abs=1e-9)


def test_luce_is_optimal_at_any_size():
    rng = np.random.default_rng(3)
    for vocab, k in ((6, 2), (64, 2), (64, 8), (3000, 4)):
        for spread in (0.05, 1.0):
            target, draft = rng.dirichlet(np.full(vocab, spread), 2)
            for pair in ((target, draft), (0.5 * target + 0.5 * draft, draft), (target, target)):
                best = optimal_acceptance(*pair, IID(k))
                assert Luce().acceptance(*pair, IID(k)) == pytest.approx(best, abs=1e-12)
                assert Luce().bias(*pair, k) < 1e-13


def test_luce_pick_law_by_quadrature_equals_enumeration():
    """Weights over thirty orders of magnitude."""
    rng = np.random.default_rng(4)
    for _, draft, k in CASES[:60]:
        target = to_law(weights(rng, draft.size))
        plan = Luce()._plan(as_float(target), as_float(draft), k)
        plan = plan._replace(weight=np.exp(rng.uniform(-70, 0, draft.size)))
        stated = Luce()._law(draft, plan._replace(weight=rational(plan.weight, draft)), k)
        assert stated.sum() == 1
        np.testing.assert_allclose(pick_law(as_float(draft), plan, k), as_float(stated), rtol=1e-12, atol=1e-15)


def test_the_hull_is_reachable_and_optimal():
    for target, draft, k in CASES:
        _, aim = hull(as_float(target), as_float(draft), k)
        floats = as_float(target), as_float(draft)
        assert aim.sum() == pytest.approx(1, abs=1e-14)
        assert np.minimum(aim, floats[0]).sum() == pytest.approx(optimal_acceptance(*floats, IID(k)), abs=1e-13)
        for subset in range(1, 1 << draft.size):
            held = (subset >> np.arange(draft.size) & 1).astype(bool)
            assert aim[held].sum() <= 1 - (1 - floats[1][held].sum()) ** k + 1e-13


def test_luce_truncated_is_biased_by_what_it_says():
    """The published form: exact = False, its output law is off the target by `bias`, as a fraction."""
    assert Luce().exact and Luce().name == "luce"
    some = 0
    for target, draft, k in CASES[:100]:
        rule = Luce(top=1, recompute=False)
        assert not rule.exact and rule.name == "luce_truncated"
        stated = rule.bias(target, draft, k)
        assert stated == abs(output_law(rule, target, draft, IID(k)) - target).sum() / 2
        assert rule.bias(as_float(target), as_float(draft), k) == pytest.approx(float(as_fraction(stated)), abs=1e-13)
        assert rule.acceptance(target, draft, IID(k)) == acceptance_by_enumeration(rule, target, draft, IID(k))
        assert rule.acceptance(as_float(target), as_float(draft), IID(k)) == pytest.approx(
            float(as_fraction(rule.acceptance(target, draft, IID(k)))), abs=1e-12
        )
        assert Luce().bias(target, draft, k) == 0
        some += stated * 1000 > 1
    assert some > 10


def test_luce_and_importance_options():
    with pytest.raises(OptionError, match="top must be at least 0 or None, got -1"):
        Luce(top=-1)
    with pytest.raises(OptionError, match="got 0 and 0"):
        Importance(top=0, classes=0)
    with pytest.raises(TooLargeError, match="tuples of 6 candidates"):
        Luce().acceptance(as_exact(np.full(8, 0.125)), as_exact(np.full(8, 0.125)), IID(6))


def test_fewer_candidates_than_slots():
    target, draft = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.4, 0.3, 0.2, 0.1])
    rule = get_selector("importance")
    mixed = rule.conditional(target, draft, np.array([[2, 0, -1, -1], [1, 2, 3, 3], [-1, -1, -1, -1]]))
    np.testing.assert_allclose(mixed[0], rule.conditional(target, draft, np.array([2, 0])), atol=1e-15)
    np.testing.assert_allclose(mixed[2], target, atol=1e-15)
    # luce keeps the weights of four slots, with the law that they have for two candidates
    exact = as_exact(target), as_exact(draft)
    tuples, probs = IID(2).tuples(exact[1])
    short = np.pad(tuples, ((0, 0), (0, 2)), constant_values=-1)
    assert (probs @ Luce().conditional(*exact, short) == exact[0]).all()
    np.testing.assert_allclose(Luce().conditional(target, draft, np.full((1, 3), -1))[0], target, atol=1e-15)


# --- HubPair


def hubs(draft, rng):
    return HubPair(), HubPair(int(rng.integers(draft.size)))


@pytest.mark.parametrize("start", range(0, 240, 60))
def test_hub_pair_closed_forms_equal_enumeration(start):
    rng = np.random.default_rng(start)
    for _, draft, _ in CASES[start : start + 60]:
        floats, order = as_float(draft), rng.permutation(draft.size)
        for law in hubs(draft, rng):
            assert isinstance(law, DraftLaw) and law.k == 2
            tuples, masses = law.tuples(draft)
            members, probs = law.sets(draft)
            assert masses.sum() == probs.sum() == 1
            assert (masses > 0).all()
            collapsed, sums = collapse(tuples, masses)
            rank = np.lexsort(members.T[::-1])
            assert (members[rank] == collapsed).all() and (probs[rank] == sums).all()
            assert (law.inside(draft, order) == inside_by_sets(law, draft, order)).all()
            assert (law.contains(draft) == contains_by_sets(law, draft)).all()
            hub = law.split(draft)[0][0]
            if draft[hub] < 1:
                first = np.zeros(draft.size, dtype=object)
                np.add.at(first, tuples[:, 0], masses)
                assert (first == draft).all()
                assert ((tuples == hub).sum(axis=1) == 1).all()
            else:
                assert tuples.tolist() == [[hub, -1]]
            size = law.size(floats)
            assert len(tuples) <= size.tuples and len(members) <= size.sets
            assert (members >= 0).sum() <= size.edges
            for array in (np.asarray, torch.as_tensor):
                np.testing.assert_allclose(
                    np.asarray(law.inside(array(floats), array(order))), as_float(law.inside(draft, order)), atol=1e-14
                )
                np.testing.assert_allclose(
                    np.asarray(law.contains(array(floats))), as_float(law.contains(draft)), atol=1e-14
                )


def test_hub_pair_samples_have_the_enumerated_law():
    rng = np.random.default_rng(5)
    for _, draft, _ in CASES[:40]:
        for law in hubs(draft, rng):
            base = draft.size + 1
            tuples, probs = law.tuples(draft)
            measured = exact_measure(
                lambda rows, coins, law=law, draft=draft, base=base: (
                    (law.sample(draft[None], coins).tokens + 1) @ [1, base]
                ),
                rows=1,
                coins=2,
                outcomes=base**2,
                one=draft[0] * 0 + 1,
            )[0]
            stated = np.zeros(base**2, dtype=object)
            np.add.at(stated, (tuples + 1) @ np.array([1, base]), probs)
            assert (measured == stated).all()


def test_hub_pair_prefix_order_holds_an_optimal_cut():
    """Against all token sets."""
    rng = np.random.default_rng(6)
    for target, draft, _ in CASES[:80]:
        for law in hubs(draft, rng):
            members, probs = law.sets(draft)
            best = 1
            for subset in range(1 << draft.size):
                held = np.append((subset >> np.arange(draft.size) & 1).astype(bool), True)
                best = min(best, 1 + target[held[:-1]].sum() - probs[held[members].all(axis=1)].sum())
            assert optimal_acceptance(target, draft, law) == best


def test_hub_pair_where_the_hub_has_everything_or_nothing():
    certain = as_exact([0.0, 1.0, 0.0])
    assert HubPair().sample(as_float(certain), np.array([0.5, 0.5])).tokens.tolist() == [1, -1]
    assert HubPair().sample(as_float(certain), np.array([0.5, 0.5])).count == 1
    target = as_exact([0.25, 0.5, 0.25])
    assert Hub().acceptance(target, certain, HubPair()) == Fraction(1, 2)
    away = HubPair(0)
    assert away.tuples(certain)[0].tolist() == [[1, 0]]
    assert Hub(0).acceptance(target, certain, away) == Fraction(3, 4)
    bad: Any
    for bad in (-1, 1.5, True):
        with pytest.raises(OptionError, match="hub must be a token id or None"):
            HubPair(bad)
    with pytest.raises(OptionError, match="hub 3 is not one of 3 tokens"):
        HubPair(3).contains(as_float(certain))
    assert HubPair(1) == HubPair(1) != HubPair()


def test_ties_go_to_the_lowest_id():
    target, draft = as_exact([0.5, 0.25, 0.25, 0.0]), as_exact([0.125, 0.375, 0.375, 0.125])
    rule = get_selector("top_then_sample")
    # T = (1), d~ = (1/5, 0, 3/5, 1/5): 1/4 + 1/5 + 1/4
    assert rule.acceptance(target, draft, TopThenSample(2)) == Fraction(7, 10)
    with pytest.raises(CandidateError, match="slot 0: candidate 2 is not what the law top_then_sample puts there"):
        rule.conditional(target, draft, np.array([2, 0]))


BAD = [
    ("top_then_sample", [[0, 1, 2], [0, 2, 1]], "row 1, slot 1: candidate 2 is not what the law top_then_sample"),
    ("top_then_sample", [[0, 1, 3]], "slot 2: candidate 3 is not what"),
    ("top_then_sample", [[0, 1, -1]], "slot 2: candidate -1 is not what"),
    ("top_then_sample", [[0, 1, 0]], "slot 2: candidate 0 is not what"),
    ("hub", [[0, 1], [1, 2]], "row 1, slot 1: candidate 2 is not what the law hub_pair"),
    ("hub", [[0, 0]], "slot 1: candidate 0 is not what"),
    ("hub", [[3, 0]], "slot 0: candidate 3 is not what"),
    ("hub", [[0, -1]], "slot 1: candidate -1 is not what"),
    ("importance", [[0, 3]], "slot 1: candidate 3 has probability 0 under the draft law"),
    ("luce", [[0, 4]], "slot 1: candidate 4 is not one of 4 tokens"),
    ("membership", [[0, -2]], "slot 1: candidate -2 is not one of 4 tokens"),
    ("membership", [[-1, 2]], "slot 1: candidate 2 follows an empty slot"),
]


@pytest.mark.parametrize(("name", "candidates", "message"), BAD)
def test_bad_candidates(name, candidates, message):
    rule, candidates = get_selector(name), np.array(candidates)
    rows = len(candidates)
    target, draft = np.full((rows, 4), 0.25), np.array([[0.5, 0.25, 0.25, 0.0]] * rows)
    coins = np.zeros((rows, rule.coins(candidates.shape[-1])))
    with pytest.raises(CandidateError, match=message):
        rule.conditional(target, draft, candidates)
    with pytest.raises(CandidateError, match=message):
        rule.select(target, draft, candidates, coins)
    chosen = rule.select(*(torch.tensor(a) for a in (target, draft, candidates, coins)))
    assert not chosen.valid[-1] and not chosen.accepted[-1] and chosen.token[-1] == -1


def test_rows_that_hold_no_law_are_flagged_on_torch():
    rng = np.random.default_rng(9)
    target, draft = (torch.tensor(rng.dirichlet(np.ones(6), 3)) for _ in range(2))
    target[1, 2] = float("nan")
    for rule, law in shelf(6, 2, rng)[:6]:
        candidates = law.sample(draft, torch.tensor(rng.random((3, 2)))).tokens
        chosen = rule.select(target, draft, candidates, torch.tensor(rng.random((3, rule.coins(2)))))
        assert chosen.valid.tolist() == [True, False, True]
        assert chosen.token[1] == -1 and (chosen.token[[0, 2]] >= 0).all()
        assert rule.conditional(target, draft, candidates).isnan().all(dim=-1).tolist() == [False, True, False]


def test_shapes_and_coins():
    law = np.full(4, 0.25)
    with pytest.raises(ShapeError, match="hub takes a pair of candidates, got 3"):
        get_selector("hub").conditional(law, law, np.array([0, 1, 2]))
    with pytest.raises(ShapeError, match="membership with k = 2 takes 1 coins"):
        get_selector("membership").select(law, law, np.array([0, 1]), np.zeros(3))
    with pytest.raises(OptionError, match=r"coins lie in \[0, 1\)"):
        get_selector("luce").select(law, law, np.array([0, 1]), np.array([0.5, 1.0, 0.5]))
    assert isinstance(get_selector("luce"), CanonicalRule)


# --- Gumbel lists


def test_gumbel_list_joint_law_of_two_tokens_exactly():
    """V = 2, k = 1: the noise up to its size is (u, 1 - u) with u uniform, and only ratios matter."""
    rule = GumbelList()
    for target, draft in ((as_exact([0.25, 0.75]), as_exact([0.5, 0.5])), (as_exact([0.875, 0.125]), as_exact([0, 1]))):
        target, draft = (
            np.array([fmpq(v.numerator, v.denominator) for v in law], dtype=object) for law in (target, draft)
        )

        def code(rows, coins, target=target, draft=draft):
            noise = np.stack([coins, 1 - coins], axis=-1)
            candidates, chosen = rule.couple(np.tile(target, (len(rows), 1)), np.tile(draft, (len(rows), 1)), noise)
            return 2 * candidates[..., 0] + chosen.token

        joint = exact_measure(code, rows=1, coins=1, outcomes=4, one=fmpq(1)).reshape(2, 2)
        assert (joint.sum(axis=0) == target).all()
        assert (joint.sum(axis=1) == draft).all()
        assert joint.trace() == rule.acceptance(target, draft, 1) == rule.matched(target, draft, 1)


@pytest.mark.parametrize(("vocab", "k"), [(2, 2), (3, 2), (4, 3), (3, 4)])
def test_gumbel_list_against_its_integral(vocab, k):
    """A rank-1 lattice of 2^17 points in the noise's cube; its error here stays below 4e-3."""
    rng = np.random.default_rng(vocab)
    steps = np.sqrt([2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37][: vocab * k])
    uniform = (0.5 + np.arange(1, 2**17 + 1)[:, None] * steps) % 1.0
    noise = -np.log1p(-uniform).reshape(-1, k, vocab)
    rule = GumbelList()
    for target, draft in rng.dirichlet(np.ones(vocab), (3, 2)):
        candidates, chosen = rule.couple(target, draft, noise)
        assert chosen.valid.all()
        np.testing.assert_allclose(np.bincount(chosen.token, minlength=vocab) / 2**17, target, atol=4e-3)
        codes = candidates @ vocab ** np.arange(k)
        drawn = np.bincount(codes, minlength=vocab**k) / 2**17
        tuples, probs = IID(k).tuples(draft)
        np.testing.assert_allclose(drawn[tuples @ vocab ** np.arange(k)], probs, atol=4e-3)
        assert (chosen.accepted == (candidates == chosen.token[:, None]).any(axis=1)).all()
        own = np.argmin(noise[np.arange(2**17), :, chosen.token], axis=1)
        matched = (candidates[np.arange(2**17), own] == chosen.token).mean()
        assert chosen.accepted.mean() == pytest.approx(rule.acceptance(target, draft, k), abs=4e-3)
        assert matched == pytest.approx(rule.matched(target, draft, k), abs=4e-3)


def test_gumbel_list_acceptance():
    rule = GumbelList()
    for target, draft, k in CASES[:200]:
        accepted = rule.acceptance(target, draft, k)
        assert rule.matched(target, draft, k) <= accepted <= optimal_acceptance(target, draft, IID(k))
        floats = as_float(target), as_float(draft)
        for array in (np.asarray, torch.as_tensor):
            stated = float(rule.acceptance(array(floats[0]), array(floats[1]), k))
            assert stated == pytest.approx(float(as_fraction(accepted)), abs=1e-13)
        if (target == draft).all():
            assert accepted == 1
        if not np.minimum(target, draft).any():
            assert accepted == 0
    rng = np.random.default_rng(7)
    target, draft = rng.dirichlet(np.ones(9), 3), rng.dirichlet(np.ones(9), 3)
    assert rule.acceptance(target, draft, 2).shape == (3,)
    assert (np.diff([rule.acceptance(target, draft, k) for k in (1, 2, 4, 8)], axis=0) > 0).all()


def test_gumbel_list_noise_at_the_ends():
    rule = GumbelList()
    even = np.array([0.5, 0.5])
    for array in (np.asarray, torch.as_tensor):
        for noise in ([[0.0, 1.0]], [[0.0, 0.0]], [[1e300, 1e308]], [[5e-324, 1.0]]):
            candidates, chosen = rule.couple(array(np.array([0.0, 1.0])), array(even), array(np.array(noise)))
            assert int(chosen.token) == 1 and bool(chosen.valid)
            assert int(candidates[0]) == 0
            candidates, _ = rule.couple(array(even), array(np.array([1e-320, 1.0])), array(np.array(noise)))
            assert int(candidates[0]) == (0 if noise[0][0] < 1 else 1)
    with pytest.raises(OptionError, match=r"entry \(1, 0, 0\) is .*nan"):
        rule.couple(even, even, np.array([[[0.5, 0.5]], [[np.nan, 0.5]]]))
    bad = torch.tensor([[[0.5, 0.5]], [[-1.0, 0.5]], [[float("inf"), 0.5]]])
    chosen = rule.couple(torch.tensor(even), torch.tensor(even), bad)[1]
    assert chosen.valid.tolist() == [True, False, False] and chosen.token.tolist()[1:] == [-1, -1]
    with pytest.raises(ShapeError, match=r"noise has shape \(\.\.\., k, 2\)"):
        rule.couple(even, even, np.ones(2))
    with pytest.raises(OptionError, match="k must be at least 1"):
        rule.acceptance(even, even, 0)


def test_gumbel_list_output_does_not_read_the_draft():
    rng = np.random.default_rng(8)
    target, noise = rng.dirichlet(np.ones(7), 50), rng.exponential(size=(50, 3, 7))
    drafts = rng.dirichlet(np.ones(7), (2, 50))
    tokens = [GumbelList().couple(target, draft, noise)[1].token.tolist() for draft in drafts]
    assert tokens[0] == tokens[1]
    there = GumbelList().couple(torch.tensor(target), torch.tensor(drafts[0]), torch.tensor(noise))
    here = GumbelList().couple(target, drafts[0], noise)
    assert here[0].tolist() == there[0].tolist() and here[1].index.tolist() == there[1].index.tolist()
