"""The optimal selector: its flow is reachable and optimal, its output law the target, its acceptance the optimum."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch

from ot_spec import IID, MembershipTransport, TopThenSample, WithoutReplacement, as_exact, from_logits, output_law
from ot_spec.arrays import is_numpy, namespace
from ot_spec.errors import OptionError, UnsupportedLawError
from ot_spec.selector import acceptance_by_enumeration, as_float, select_law
from solvers import optimal_acceptance
from solvers.exact.optimal_flow import flow_along, optimal_flow
from solvers.selectors import optimal as optimal_module
from solvers.selectors.optimal import Optimal, Windows
from tests.exact.cases import generated

CASES = generated()


@pytest.mark.parametrize("start", range(0, 300, 50))
def test_the_flow_is_reachable_and_optimal(start):
    for target, draft, k in CASES[start : start + 50]:
        for law in (IID(k), WithoutReplacement(k)):
            flow = optimal_flow(target, draft, law)
            pick = flow.law()
            assert pick.sum() == 1
            assert np.minimum(target, pick).sum() == optimal_acceptance(target, draft, law)
            problem = MembershipTransport(target, draft, law)
            for many in range(target.size + 1):
                for held in combinations(range(target.size), many):
                    assert sum((pick[i] for i in held), start=target[0] * 0) >= problem.inside(list(held))
            cut = flow.order[: int(flow.cut)]
            held = sum((target[i] for i in cut), start=target[0] * 0)
            assert 1 + held - problem.inside(cut) == optimal_acceptance(target, draft, law)
            floats = optimal_flow(as_float(target), as_float(draft), law).law()
            # the order among equal ratios, and so the flow, may differ; its worth may not
            worth = optimal_acceptance(as_float(target), as_float(draft), law)
            assert np.minimum(as_float(target), floats).sum() == pytest.approx(worth, abs=1e-13)
            assert floats.sum() == pytest.approx(1, abs=1e-13)


def test_increments_are_right_to_their_own_digits():
    """Also where all that comes before is far below the rounding of one."""
    rng = np.random.default_rng(0)
    for k in (1, 2, 5):
        powers = 10.0 ** np.linspace(-30, 0, 60)
        floats = [powers * (1 + rng.random(60)), powers * rng.random(60)]
        target, draft = (as_exact(weights / weights.sum()) for weights in floats)
        order = np.argsort(rng.random(60) + np.arange(60) / 20)
        drafted = draft[order]
        inside = np.concatenate([drafted[:1] * 0, np.cumsum(drafted)]) ** k
        exact = flow_along(target[order], drafted, order, inside, IID(k))
        found = flow_along(as_float(target[order]), as_float(drafted), order, as_float(inside), IID(k))
        np.testing.assert_allclose(found.steps, as_float(exact.steps), rtol=1e-13)


def test_no_flow_is_offered_for_other_laws():
    law = np.full(4, 0.25)
    with pytest.raises(UnsupportedLawError, match="no prefix flow is known for candidates of top_then_sample"):
        optimal_flow(law, law, TopThenSample(2))


@pytest.mark.parametrize("start", range(0, 320, 40))
def test_output_law_and_acceptance_are_exact(start):
    selector = Optimal()
    for target, draft, k in CASES[start : start + 40]:
        law = IID(k)
        assert (output_law(selector, target, draft, law) == target).all(), (target, draft, k)
        best = optimal_acceptance(target, draft, law)
        assert selector.acceptance(target, draft, law) == best
        assert acceptance_by_enumeration(selector, target, draft, law) == best


@pytest.mark.parametrize("start", range(0, 320, 40))
def test_the_winner_has_the_law_of_the_flow(start):
    """Strictly more than the output law, which would be right for any pick whose law is known."""
    selector = Optimal()
    for target, draft, k in CASES[start : start + 40]:
        tuples, probs = IID(k).tuples(draft)
        share, law = selector.picking(target[None], draft[None], tuples, np.ones(tuples.shape, dtype=bool))
        assert (share.sum(axis=-1) == 1).all()
        picked = np.full(target.size, target[0] * 0, dtype=object)
        np.add.at(picked, tuples, probs[:, None] * share)
        assert (picked == law[0]).all()
        assert (law[0] == optimal_flow(target, draft, IID(k)).law()).all()


@pytest.mark.parametrize("start", range(0, 100, 20))
def test_select_is_measured_to_be_conditional(start):
    selector = Optimal()
    for target, draft, k in CASES[start : start + 20]:
        tuples, _ = IID(k).tuples(draft)
        some = tuples[np.random.default_rng(start).permutation(len(tuples))[: {1: 6, 2: 6, 3: 2}.get(k, 1)]]
        assert (select_law(selector, target, draft, some) == selector.conditional(target, draft, some)).all()


def pairs(vocab):
    """Law pairs at a large vocabulary: peaked, flat, float32 softmax rows, masses down to 1e-300, ties and zeros."""
    rng = np.random.default_rng(vocab)
    logits = rng.normal(size=vocab)
    yield "peaked", from_logits(6 * logits), from_logits(6 * logits + 2 * rng.normal(size=vocab))
    yield "flat", from_logits(0.1 * logits), from_logits(0.1 * logits + 0.05 * rng.normal(size=vocab))
    single = [from_logits((3 * logits + s * rng.normal(size=vocab)).astype(np.float32)) for s in (0, 1)]
    yield "float32", single[0], single[1]
    tiny = np.exp(-690 * rng.random(vocab)), np.exp(-690 * rng.random(vocab))
    yield "tiny", tiny[0] / tiny[0].sum(), tiny[1] / tiny[1].sum()
    weights = rng.integers(0, 4, (2, vocab)).astype(float)
    yield "ties and zeros", *(weights / weights.sum(axis=1, keepdims=True))
    yield "equal", single[0], single[0]
    half = np.arange(vocab) < vocab // 2
    yield "disjoint", half / half.sum(), ~half / (~half).sum()
    yield "one-hot draft", single[0], np.eye(1, vocab, 5)[0]
    yield "one-hot target", np.eye(1, vocab, 5)[0], single[1]


def pick_law(windows: Windows, draft: np.ndarray, k: int) -> np.ndarray:
    """The law of the winner from what is stored, in long doubles: every piece of the two running sums that a token and
    a partner share is a swap of known probability; windows win by the mass that is really in them."""
    wide = np.longdouble
    draft = draft[np.argsort(windows.place)].astype(wide)
    natural, shift = windows.natural.astype(wide), windows.shift.astype(wide)
    lack, surplus = windows.lack.astype(wide) / 2**62, windows.surplus.astype(wide) / 2**62
    vocab = draft.size
    ends = np.union1d(lack, surplus)
    middle, length = (ends[1:] + ends[:-1]) / 2, np.diff(ends)
    left = np.minimum(np.searchsorted(lack[1:], middle, side="right"), vocab - 1)
    right = np.minimum(np.searchsorted(surplus[1:], middle, side="right"), vocab - 1)
    apart = np.maximum(abs(natural[right] - natural[left]), np.maximum(shift[left], shift[right]))
    level = {}
    for token, partner, own in ((left, right, lack), (right, left, surplus)):
        inside = (middle < own[-1]) & (apart > 0)
        span = own[token + 1] - own[token]
        chance = np.where(inside, length / np.where(span > 0, span, 1), 0)
        chance = chance * shift[token] / np.where(apart > 0, apart, 1)
        level[id(own)] = (token, partner, chance * draft[token])
    mass = draft.copy()
    for token, partner, moved in level.values():
        np.subtract.at(mass, token, moved)
        np.add.at(mass, partner, moved)
    below = np.concatenate([[0], np.cumsum(mass)])
    below /= below[-1]
    base = np.where(below[:-1] > 0, below[:-1], 1)
    wins = np.where(
        below[:-1] > 0, base**k * np.expm1(k * np.log1p(mass / mass.sum() / base)), (mass / mass.sum()) ** k
    )
    rate = wins / np.where(mass > 0, mass, 1)
    law = draft * rate
    for token, partner, moved in level.values():
        np.subtract.at(law, token, moved * rate[token])
        np.add.at(law, token, moved * rate[partner])
    out = np.empty(vocab, dtype=wide)
    out[np.argsort(windows.place)] = law
    return out


def test_pick_law_of_the_test_itself():
    for target, draft, k in CASES[:40]:
        floats = as_float(target), as_float(draft)
        tuples, probs = IID(k).tuples(floats[1])
        share, _ = Optimal().picking(*floats, tuples, np.ones(tuples.shape, dtype=bool))
        picked = np.zeros(target.size)
        np.add.at(picked, tuples, probs[:, None] * share)
        np.testing.assert_allclose(
            pick_law(Optimal().windows(*floats, k), floats[1], k).astype(float), picked, atol=1e-14
        )


@pytest.mark.parametrize("k", [1, 2, 4, 8, 32, 64])
def test_full_vocabulary(k):
    vocab = 151_936
    for name, target, draft in pairs(vocab):
        windows = Optimal().windows(target, draft, k)
        law = windows.whole_law(target, draft)
        for field in (*windows[:5], law):
            assert np.isfinite(np.asarray(field)).all(), (name, k)
        best = optimal_acceptance(target, draft, IID(k))
        assert np.minimum(target, law).sum() == pytest.approx(best, abs=1e-10), (name, k)
        picked = pick_law(windows, draft, k)
        sure = law <= target  # as select compares: coin * law < target
        keep = np.where(sure, target > 0, target / np.where(law > 0, law, 1))
        residual = np.maximum(target - law, 0)
        residual = residual / residual.sum() if residual.sum() > 0 else target
        out = picked * keep + (1 - (picked * keep).sum()) * residual
        assert abs(out - target).sum() / 2 < 1e-12, (name, k)
        assert (out[target == 0] == 0).all(), (name, k)


def matched_on_every_path(off, ahead):
    here = optimal_module._matched(np, off, ahead)
    tensors = torch.tensor(off), torch.tensor(ahead)
    there = optimal_module._matched(namespace(tensors[0]), *tensors)
    assert all((a == b.numpy()).all() for a, b in zip(here, there, strict=True))
    return here


@pytest.mark.parametrize("k", [2, 4, 32])
def test_compiled_matching_is_the_rule_to_the_last_bit(k):
    rng = np.random.default_rng(k)
    rows = [(as_float(target), as_float(draft)) for target, draft, _ in CASES[:100]]
    rows += [(target, draft) for _, target, draft in pairs(3000)]
    rows.append((rng.dirichlet(np.full(50, 0.1), 7), rng.dirichlet(np.full(50, 0.1), 7)))
    for target, draft in rows:
        flow = optimal_flow(target, draft, IID(k))
        matched_on_every_path(flow.pick - flow.steps, flow.ahead[..., 1:])


def test_surplus_never_precedes_what_lacks():
    """Also where rounding puts it first: then it waits."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        off = rng.normal(size=(3, 20)) * 10.0 ** rng.integers(-18, -1)
        ahead = np.where(rng.random((3, 20)) < 0.1, 0.0, 1e-18)
        lack, surplus = matched_on_every_path(off, ahead)
        assert (surplus <= lack).all() and (np.diff(surplus) >= 0).all() and (np.diff(lack) >= 0).all()
    lack, surplus = matched_on_every_path(np.array([-1e-3, 1e-3, 1e-3, -1e-3]), np.array([1.0, 0.0, 1.0, 0.0]))
    assert surplus.tolist() == [0, 0, 0, 0, lack[-1]]


def test_backends_and_batches_agree():
    rng = np.random.default_rng(0)
    target, draft = rng.dirichlet(np.full(500, 0.1), 6), rng.dirichlet(np.full(500, 0.1), 6)
    selector = Optimal()
    for k in (1, 2, 5):
        candidates = IID(k).sample(draft, rng.random((6, k))).tokens
        candidates[2, k - 1 :] = -1
        coins = rng.random((6, selector.coins(k)))
        here = selector.select(target, draft, candidates, coins)
        there = selector.select(*(torch.tensor(a) for a in (target, draft, candidates, coins)))
        assert there.valid.all()
        assert (here.token == there.token.numpy()).all()
        single = [selector.select(*(a[i] for a in (target, draft, candidates, coins))).token for i in range(6)]
        assert here.token.tolist() == [int(t) for t in single]
        stated = selector.conditional(target, draft, candidates)
        there = selector.conditional(*(torch.tensor(a) for a in (target, draft, candidates)))
        np.testing.assert_allclose(there, stated, atol=1e-13)
        np.testing.assert_allclose(stated.sum(axis=-1), 1, atol=1e-13)


class Recorded(Optimal):
    """Keeps what it picked last, so that one evaluation serves several checks."""

    def picking(self, *row):
        self.last = super().picking(*row)
        return self.last


def each_multiset_once(tuples, probs, target):
    """The ascending tuples, and the mass of all that are permutations of each."""
    ascending = (np.diff(tuples, axis=1) >= 0).all(axis=1)
    _, which = np.unique(np.sort(tuples, axis=1), axis=0, return_inverse=True)
    mass = np.full(ascending.sum(), target[0] * 0, dtype=object)
    np.add.at(mass, which.reshape(-1), probs)
    return tuples[ascending], mass


@pytest.mark.parametrize("classes", [1, 4])
@pytest.mark.parametrize("start", range(0, 120, 40))
def test_shared_windows_are_exact_too(classes, start):
    """The histogram form: output law, the winner's law, and `select` measured, whatever the classes. Candidates in
    ascending order stand for their permutations, which are compared on some."""
    selector, rng = Recorded(classes), np.random.default_rng(start)
    for target, draft, k in CASES[start : start + 40]:
        law = IID(k)
        tuples, probs = law.tuples(draft)
        sets, mass = each_multiset_once(tuples, probs, target)
        stated = selector.conditional(target, draft, sets)
        assert ((mass[:, None] * stated).sum(axis=0) == target).all()
        share, pick = selector.last
        picked = np.full(target.size, target[0] * 0, dtype=object)
        np.add.at(picked, sets, mass[:, None] * share)
        assert (picked == pick[0]).all()
        held = (sets[:, :, None] == np.arange(target.size)).any(axis=1)
        accepted = (mass[:, None] * np.where(held, stated, target[0] * 0)).sum()
        assert accepted <= optimal_acceptance(target, draft, law)
        if len(tuples) < 40:
            assert selector.acceptance(target, draft, law) == accepted
            assert (output_law(selector, target, draft, law) == target).all()
        some = tuples[rng.integers(len(tuples), size=4)]
        again = [stated[(sets == np.sort(row)).all(axis=1)][0] for row in some]
        assert (selector.conditional(target, draft, some) == np.array(again)).all()
        if k <= 2:
            some = tuples[::7]
            assert (select_law(selector, target, draft, some) == selector.conditional(target, draft, some)).all()


def test_shared_windows_lose_little():
    """Softmax-normal laws of 50,000 tokens: below 1e-4 at 32 windows a doubling, and less at 128."""
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=50_000)
    target, draft = from_logits(logits), from_logits(logits + rng.normal(size=50_000))
    for k in (2, 4, 8):
        best = optimal_acceptance(target, draft, IID(k))
        lost = [best - Optimal(classes).acceptance(target, draft, IID(k)) for classes in (32, 128)]
        assert -1e-13 <= lost[1] <= lost[0] <= 1e-4
        device = torch.tensor(target), torch.tensor(draft)
        assert float(Optimal(32).acceptance(*device, IID(k))) == pytest.approx(best - lost[0], abs=1e-12)


def test_classes_are_checked():
    with pytest.raises(OptionError, match="classes must be None or one of 1, 2, 4, 8, 16, 32, 64, 128, got 3"):
        Optimal(3)


def test_shared_windows_select_alike_on_every_path():
    """The compiled pass against the vectorised one (as a device runs it) and against conditional, row by row."""
    rng = np.random.default_rng(2)
    target, draft = rng.dirichlet(np.full(300, 0.2), 40), rng.dirichlet(np.full(300, 0.2), 40)
    draft[3] = target[3]
    selector = Optimal(32)
    candidates = IID(3).sample(draft, rng.random((40, 3))).tokens
    coins = rng.random((40, selector.coins(3)))
    here = selector.select(target, draft, candidates, coins)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimal_module, "may_wait", is_numpy)
        there = selector.select(*(torch.tensor(a) for a in (target, draft, candidates, coins)))
    assert here.token.tolist() == there.token.tolist()
    assert len(set(here.index.tolist())) > 2
    stated = selector.conditional(target, draft, candidates)
    assert (stated[np.arange(40), here.token] > 0).all()
