"""Random priority lists and the optimal selector for drafts without replacement."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flint import fmpq

from ot_spec import IID, WithoutReplacement, output_law
from ot_spec.draft_law import inside_by_sets
from ot_spec.errors import CandidateError, OptionError, UnsupportedLawError
from ot_spec.selector import acceptance_by_enumeration, as_float, select_law
from proofs_check import audit
from solvers import get_selector, optimal_acceptance
from solvers.exact import compiled_lists
from solvers.exact.optimal_flow import optimal_flow
from solvers.exact.priority_lists import DONE, ByEnumeration, ByQuadrature, _cuts, mixture, priority_lists
from solvers.selectors.optimal_without_replacement import OptimalWithoutReplacement
from tests.exact.cases import generated

CASES = generated()


def law_of_lists(orders, weights, draft, law):
    """sum of weights times the pick law of each list, from the law's sets."""
    increments = ByEnumeration(draft, law)
    mixed = draft * 0
    for order, weight in zip(orders, weights, strict=True):
        mixed[order] += weight * increments.steps(increments.begin(), order, 0)[0]
    return mixed


@pytest.mark.parametrize("start", range(0, 320, 40))
def test_the_mixture_is_the_optimal_pick_law(start):
    for target, draft, k in CASES[start : start + 40]:
        for law in (IID(k), WithoutReplacement(k)):
            made = priority_lists(target, draft, law)
            assert made.law.sum() == 1
            assert np.minimum(target, made.law).sum() == optimal_acceptance(target, draft, law)
            orders, weights = made.lists()
            assert (weights > 0).all() and weights.sum() == 1
            assert len(weights) <= (draft > 0).sum()
            assert (np.sort(orders, axis=1) == np.flatnonzero(draft > 0)).all()
            assert (law_of_lists(orders, weights, draft, law) == made.law).all()
            tuples, probs = law.tuples(draft)
            shares = made.shares(tuples, tuples >= 0)
            assert (shares.sum(axis=1) == 1).all()
            picked = draft * 0
            np.add.at(picked, np.maximum(tuples, 0), probs[:, None] * shares)
            assert (picked == made.law).all()


def test_the_highest_candidate_of_each_list_is_picked():
    for target, draft, k in CASES[:60]:
        made = priority_lists(target, draft, WithoutReplacement(k))
        orders, weights = made.lists()
        tuples, _ = WithoutReplacement(k).tuples(draft)
        stated = made.shares(tuples, tuples >= 0)
        for row, tokens in enumerate(tuples):
            place = [[list(order).index(t) if t >= 0 else -1 for t in tokens] for order in orders]
            for slot in range(k):
                won = [w for p, w in zip(place, weights, strict=True) if p[slot] == max(p) and p[slot] >= 0]
                assert stated[row, slot] == sum(won, start=draft[0] * 0)


@pytest.mark.parametrize("start", range(0, 320, 40))
def test_output_law_and_acceptance_are_exact(start):
    selector = get_selector("optimal_without_replacement")
    for target, draft, k in CASES[start : start + 40]:
        law = WithoutReplacement(k)
        best = optimal_acceptance(target, draft, law)
        assert (output_law(selector, target, draft, law) == target).all()
        assert selector.acceptance(target, draft, law) == best
        assert acceptance_by_enumeration(selector, target, draft, law) == best
        floats = as_float(target), as_float(draft)
        np.testing.assert_allclose(output_law(selector, *floats, law), floats[0], atol=1e-14)
        assert selector.acceptance(*floats, law) == pytest.approx(float(best), abs=1e-12)


@pytest.mark.parametrize("start", range(0, 60, 20))
def test_select_is_measured_to_be_conditional(start):
    selector = OptimalWithoutReplacement()
    for target, draft, k in CASES[start : start + 20]:
        some = WithoutReplacement(k).tuples(draft)[0][:3]
        assert (select_law(selector, target, draft, some) == selector.conditional(target, draft, some)).all()


def test_subnormal_masses():
    target = np.array([0.25, 0.25, 0.5, 0.0])
    for draft in ([1.0, 5e-324, 0, 0], [0.5, 0.5, 1e-310, 0]):
        for k in (2, 3, 5):
            made = OptimalWithoutReplacement().lists(target, np.array(draft), k)
            assert made.law.sum() == pytest.approx(1, abs=1e-15)
            assert made.law[0] == pytest.approx(0.25, abs=1e-15)
            inside = target[np.array(draft) > 0].sum() if k >= np.count_nonzero(draft) else 0.5
            assert np.minimum(target, made.law).sum() == pytest.approx(inside, abs=1e-15)


def test_the_audit_finds_it_lossless():
    report = audit(get_selector("optimal_without_replacement"), law=WithoutReplacement(2), k=2, tier="exact")
    assert report.verdict == "lossless", report


def masses(rng, size, tiny):
    """Small weights, or some down to about 1e-40 of the others, as fractions of sum 1."""
    drawn = [int(w) * 10 ** int(rng.integers(0, 40) if tiny else 0) for w in rng.integers(1, 30, size)]
    return np.array([fmpq(w, sum(drawn)) for w in drawn], dtype=object)


@pytest.mark.parametrize("k", [2, 3, 4, 5, 7])
def test_increments_by_quadrature_equal_enumeration(k):
    """Also in groups, and where the support is no larger than k; what is small is right to its own digits."""
    rng = np.random.default_rng(k)
    for size in (k, k + 1, 9):
        for tiny in (False, True):
            exact = masses(rng, size, tiny)
            draft, order = as_float(exact), rng.permutation(size)
            wanted = as_float(np.diff(inside_by_sets(WithoutReplacement(k), exact, order)))
            found = ByQuadrature(draft, k)
            steps, _ = found.steps(found.begin(), order, 0.0)
            np.testing.assert_allclose(steps, wanted, atol=3e-14)
            if k == 4:  # below the smallest node lies u^k
                np.testing.assert_allclose(steps[wanted > 1e-9], wanted[wanted > 1e-9], rtol=1e-12)
            group = np.unique(np.sort(rng.integers(0, 3, size)), return_inverse=True)[1]
            several = ByQuadrature(draft, k, group)
            ranked = rng.permutation(group[-1] + 1)
            several.record(several.begin(), ranked, 0.0, 1.0)
            law = np.empty(ranked.size)
            law[ranked] = several.steps(several.begin(), ranked, 0.0)[0]
            order = np.concatenate([np.flatnonzero(group == g) for g in ranked])
            wanted = as_float(np.diff(inside_by_sets(WithoutReplacement(k), exact, order)))
            np.testing.assert_allclose(several.by_token(law)[order], wanted, atol=3e-14)


@pytest.mark.parametrize("k", [2, 3, 4, 5, 7])
def test_compiled_increments_equal_enumeration(k):
    rng = np.random.default_rng(k)
    for size in (k, k + 1, 9):
        for tiny in (False, True):
            exact = masses(rng, size, tiny)
            wanted = as_float(np.diff(inside_by_sets(WithoutReplacement(k), exact, np.arange(size))))
            found = compiled_lists.increments(compiled_lists.clocks(as_float(exact), k))
            np.testing.assert_allclose(found, wanted, atol=1e-13)


@pytest.mark.parametrize("k", [2, 4, 8, 32])
def test_every_quadrature_is_as_good(k):
    """Gauss rules of each size and the trapezoid rule, as the mass outside the likeliest tokens shrinks."""
    rng = np.random.default_rng(k)
    sizes = set()
    for top in (0.0, 0.3, 0.6, 0.8, 0.9, 0.97, 0.999):
        draft = rng.dirichlet(np.full(200, 0.5)) * (1 - top)
        draft[7] += top
        clocks = compiled_lists.clocks(draft, k)
        sizes.add(clocks.spread.size)
        rule = ByQuadrature(draft, k)
        wanted, _ = rule.steps(rule.begin(), np.arange(200), 0.0)
        found = compiled_lists.increments(clocks)
        assert abs(found - wanted).sum() < 5e-13
        assert found.sum() == pytest.approx(1, abs=1e-13)
    assert len(sizes) > 3


def test_natural_merge_sort():
    rng = np.random.default_rng(0)
    waves = np.sin(np.arange(100) / 7)
    for keys in (
        np.empty(0),
        np.ones(1),
        np.ones(9),
        np.arange(9.0),
        -np.arange(9.0),
        waves,
        rng.integers(0, 5, 50) / 1,
    ):
        order = np.empty(keys.size, dtype=np.int64)
        compiled_lists._ascending(keys, order, np.empty_like(order))
        assert (order == np.argsort(keys, kind="stable")).all()


@pytest.mark.parametrize("k", [2, 3, 5])
def test_compiled_lists_and_the_rule_come_to_the_same_law(k):
    for name, target, draft in pairs(60):
        law = WithoutReplacement(k)
        flow = optimal_flow(target, draft, law)
        many = int((draft > 0).sum())
        if many <= k:
            continue
        order, cuts = flow.order[:many], _cuts(flow.ahead[1 : many + 1])
        increments = ByQuadrature(draft[order], k)
        pieces, by_rule = mixture(flow.pick[:many], cuts, increments, DONE)
        assert sum(piece.groups.size for piece in pieces) >= many
        *_, compiled = compiled_lists.decompose(flow.pick[:many], cuts, compiled_lists.clocks(draft[order], k), DONE)
        np.testing.assert_allclose(by_rule, flow.pick[:many], atol=3e-12, err_msg=name)
        np.testing.assert_allclose(compiled, flow.pick[:many], atol=3e-12, err_msg=name)


def pairs(size):
    rng = np.random.default_rng(size)
    logits = rng.normal(size=size)

    def softmax(values):
        return np.exp(values) / np.exp(values).sum()

    yield "peaked", softmax(3 * logits), softmax(2.4 * logits + rng.normal(size=size))
    yield "flat", softmax(logits), softmax(logits + 0.3 * rng.normal(size=size))
    yield "tiny", softmax(-690 * rng.random(size)), softmax(-690 * rng.random(size))
    weights = rng.integers(0, 4, (2, size)).astype(float)
    yield "ties and zeros", *(weights / weights.sum(axis=1, keepdims=True))
    yield "equal", softmax(logits), softmax(logits)
    half = np.arange(size) < size // 2
    yield "disjoint", half / half.sum(), ~half / (~half).sum()
    yield "one-hot draft", softmax(logits), np.eye(1, size, 5)[0]
    yield "one-hot target", np.eye(1, size, 5)[0], softmax(logits)
    yield "few", softmax(logits), np.where(np.arange(size) < 3, 1 / 3, 0.0)


def output_of_stored(target, draft, made, k):
    """The output law from the lists as stored, each list's pick law taken by the draft law's own quadrature."""
    orders, weights = made.lists()
    picked = np.zeros(target.size)
    rest = np.flatnonzero(draft <= 0)
    for order, weight in zip(orders, weights, strict=True):
        picked[order] += weight * np.diff(WithoutReplacement(k).inside(draft, np.append(order, rest)))[: order.size]
    keep = np.where(made.law <= target, target > 0, target / np.where(made.law > 0, made.law, 1))
    residual = np.maximum(target - made.law, 0)
    residual = residual / residual.sum() if residual.sum() > 0 else target
    return picked * keep + (1 - (picked * keep).sum()) * residual


@pytest.mark.parametrize(("size", "k"), [(150, 1), (150, 2), (150, 4), (150, 8), (1000, 2), (1000, 4)])
def test_large_supports(size, k):
    selector = OptimalWithoutReplacement()
    for name, target, draft in pairs(size):
        if size > 150 and name == "tiny":
            continue
        made = selector.lists(target, draft, k)
        best = float(optimal_acceptance(target, draft, WithoutReplacement(k)))
        assert np.isfinite(made.law).all() and (made.law >= 0).all(), name
        assert np.minimum(target, made.law).sum() == pytest.approx(best, abs=1e-10), name
        out = output_of_stored(target, draft, made, k)
        assert abs(out - target).sum() / 2 < 1e-12, (name, k)
        assert (out[target == 0] == 0).all(), name


@pytest.mark.parametrize("k", range(1, 9))
def test_acceptance_on_a_thousand_tokens(k):
    for name, target, draft in pairs(1000):
        best = float(optimal_acceptance(target, draft, WithoutReplacement(k)))
        found = OptimalWithoutReplacement().acceptance(target, draft, WithoutReplacement(k))
        assert found == pytest.approx(best, abs=1e-10), name


@pytest.mark.parametrize("k", [2, 4])
def test_groups_stay_exact(k):
    """Beyond `limit`: the law is still that of what is stored, and acceptance is what is given up."""
    lost = []
    for groups in (8, 32, 128):
        selector = OptimalWithoutReplacement(limit=100, groups=groups)
        for name, target, draft in pairs(400):
            if name != "tiny":
                out = output_of_stored(target, draft, selector.lists(target, draft, k), k)
                assert abs(out - target).sum() / 2 < 1e-12, name
        target, draft = next(iter(pairs(400)))[1:]
        best = float(optimal_acceptance(target, draft, WithoutReplacement(k)))
        lost.append(best - selector.acceptance(target, draft, WithoutReplacement(k)))
    assert -1e-12 <= lost[2] < lost[1] < lost[0] < 0.1
    assert lost[2] < 5e-3
    small = OptimalWithoutReplacement(limit=3, groups=2)
    for target, draft, k in CASES[:40]:
        target, draft = as_float(target), as_float(draft)
        law = WithoutReplacement(k)
        np.testing.assert_allclose(output_law(small, target, draft, law), target, atol=1e-14)
        kept = acceptance_by_enumeration(small, target, draft, law)
        assert small.acceptance(target, draft, law) == pytest.approx(kept, abs=1e-12)


def test_fifty_thousand_tokens():
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=50_000)
    target, draft = np.exp(logits), np.exp(0.8 * logits + rng.normal(size=50_000))
    target, draft = target / target.sum(), draft / draft.sum()
    best = float(optimal_acceptance(target, draft, WithoutReplacement(4)))
    assert 0 <= best - OptimalWithoutReplacement().acceptance(target, draft, WithoutReplacement(4)) < 1e-3


def test_backends_batches_and_fewer_candidates():
    rng = np.random.default_rng(0)
    target, draft = rng.dirichlet(np.full(40, 0.3), 6), rng.dirichlet(np.full(40, 0.3), 6)
    selector = OptimalWithoutReplacement()
    for k in (1, 2, 5):
        candidates = WithoutReplacement(k).sample(draft, rng.random((6, k))).tokens
        candidates[2, max(1, k - 1) :] = -1
        coins = rng.random((6, selector.coins(k)))
        here = selector.select(target, draft, candidates, coins)
        there = selector.select(*(torch.tensor(a) for a in (target, draft, candidates, coins)))
        assert there.valid.all() and (here.token == there.token.numpy()).all()
        single = [selector.select(*(a[i] for a in (target, draft, candidates, coins))).token for i in range(6)]
        assert here.token.tolist() == [int(t) for t in single]
        stated = selector.conditional(target, draft, candidates)
        np.testing.assert_allclose(stated.sum(axis=-1), 1, atol=1e-13)
        accepted = selector.acceptance(target, draft, WithoutReplacement(k))
        assert accepted.shape == (6,)
    nothing = selector.conditional(target, draft, np.full((6, 2), -1))
    np.testing.assert_allclose(nothing, target, atol=1e-15)


@pytest.mark.parametrize("name", ["optimal", "optimal_without_replacement"])
def test_no_coin_keeps_what_the_target_excludes(name):
    selector, target = get_selector(name), np.array([0.0, 0.5, 0.0, 0.5])
    for draft in (np.full(4, 0.25), np.array([0.5, 0.0, 0.5, 0.0])):
        held = np.flatnonzero(draft)
        candidates = np.array([[a, b] for a in held for b in held if a != b])
        for coin in (0.0, 1 - 2.0**-53):
            coins = np.full((len(candidates), selector.coins(2)), coin)
            assert (target[selector.select(target, draft, candidates, coins).token] > 0).all()


def test_rows_that_are_no_rows():
    law, other = np.full(4, 0.25), np.array([0.5, 0.5, 0, 0])
    selector = OptimalWithoutReplacement()
    with pytest.raises(CandidateError, match="slot 1: candidate 1 is a duplicate"):
        selector.conditional(law, law, np.array([1, 1]))
    with pytest.raises(CandidateError, match="has probability 0 under the draft law"):
        selector.conditional(law, other, np.array([0, 3]))
    bad = torch.tensor([[0, 3], [0, 1], [1, 1], [-1, 0]])
    got = selector.select(torch.tensor(law), torch.tensor(other), bad, torch.full((4, 3), 0.5, dtype=torch.float64))
    assert got.valid.tolist() == [False, True, False, False]
    with pytest.raises(OptionError, match="limit and groups must be at least 1, got 0 and 5"):
        OptimalWithoutReplacement(0, 5)
    with pytest.raises(UnsupportedLawError, match="no priority lists in floats for iid candidates"):
        priority_lists(law, law, IID(2))
    with pytest.raises(UnsupportedLawError, match="not exact for candidates of iid with k = 2"):
        selector.acceptance(law, law, IID(2))
