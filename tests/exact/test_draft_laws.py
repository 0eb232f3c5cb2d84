"""Closed forms of the draft laws against enumeration, sampling against the coins' exact law."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from ot_spec import IID, Fixed, Independent, TopThenSample, WithoutReplacement, as_exact
from ot_spec.coin import exact_measure
from ot_spec.draft_law import DraftLaw, collapse, contains_by_sets, inside_by_sets
from ot_spec.errors import CandidateError, OptionError, ShapeError
from ot_spec.kernels import inclusion, prefix_inside
from ot_spec.selector import as_float
from tests.exact.cases import generated, to_law, weights

CASES = generated()


def laws(k, vocab, rng):
    return (
        IID(k),
        WithoutReplacement(k),
        TopThenSample(k),
        Fixed(rng.integers(0, vocab, k)),
        Independent(rng.dirichlet(np.full(vocab, 0.5), k)),
    )


@pytest.mark.parametrize("start", range(0, 240, 40))
def test_closed_forms_equal_enumeration(start):
    rng = np.random.default_rng(start)
    for _, draft, k in CASES[start : start + 40]:
        floats, order = as_float(draft), rng.permutation(draft.size)
        for law in laws(k, draft.size, rng):
            assert isinstance(law, DraftLaw)
            tuples, masses = law.tuples(floats)
            members, probs = law.sets(floats)
            collapsed, sums = collapse(tuples, masses)
            rank = np.lexsort(members.T[::-1])
            assert (members[rank] == collapsed).all()
            np.testing.assert_allclose(probs[rank], sums, atol=1e-14)
            assert probs.sum() == pytest.approx(1, abs=1e-13)
            np.testing.assert_allclose(law.inside(floats, order), inside_by_sets(law, floats, order), atol=1e-13)
            np.testing.assert_allclose(law.contains(floats), contains_by_sets(law, floats), atol=1e-13)
            size = law.size(floats)
            assert len(tuples) <= size.tuples
            assert len(members) <= size.sets
            assert (members >= 0).sum() <= size.edges
            if law.name in ("iid", "without_replacement", "top_then_sample", "fixed"):
                assert law.sets(draft)[1].sum() == 1
                assert law.tuples(draft)[1].sum() == 1
                exact = law.inside(draft, order)
                assert (exact == inside_by_sets(law, draft, order)).all()
                np.testing.assert_allclose(as_float(exact), law.inside(floats, order), atol=1e-13)
                np.testing.assert_allclose(as_float(law.contains(draft)), law.contains(floats), atol=1e-13)
                device = torch.tensor(floats)
                np.testing.assert_allclose(
                    law.inside(device, torch.tensor(order)), law.inside(floats, order), atol=1e-14
                )
                np.testing.assert_allclose(law.contains(device), law.contains(floats), atol=1e-14)


@pytest.mark.parametrize("start", range(0, 60, 20))
def test_samples_have_the_enumerated_law(start):
    """`sample` measured over all coins, exactly, against `tuples`."""
    for _, draft, k in CASES[start : start + 20]:
        k = min(k, 3)
        rng = np.random.default_rng(start)
        drafts = np.stack([to_law(weights(rng, draft.size)) for _ in range(k)])
        for law in (IID(k), WithoutReplacement(k), TopThenSample(k), Independent(drafts)):
            base = draft.size + 1

            def code(rows, coins, law=law, draft=draft, base=base):
                tokens = law.sample(draft[None], coins).tokens
                return ((tokens + 1) * base ** np.arange(tokens.shape[-1])).sum(axis=-1)

            measured = exact_measure(code, rows=1, coins=k, outcomes=base**k, one=draft[0] * 0 + 1)[0]
            tuples, probs = law.tuples(draft)
            stated = np.zeros(base**k, dtype=object)
            np.add.at(stated, ((tuples + 1) * base ** np.arange(k)).sum(axis=-1), probs)
            assert (measured == stated).all(), (law, draft)


def test_batched_samples_on_numpy_and_torch_agree():
    rng = np.random.default_rng(4)
    draft, coins = rng.dirichlet(np.full(30, 0.2), (3, 5)), rng.random((3, 5, 4))
    draft[0, 0] = np.eye(30)[7]
    for law in (IID(4), WithoutReplacement(4), TopThenSample(4)):
        here = law.sample(draft, coins)
        there = law.sample(torch.tensor(draft), torch.tensor(coins))
        assert (here.tokens == there.tokens.numpy()).all()
        assert (here.count == there.count.numpy()).all()
        one = law.sample(draft[1, 2], coins[1, 2])
        assert (one.tokens == here.tokens[1, 2]).all()
    assert WithoutReplacement(4).sample(draft, coins).tokens[0, 0].tolist() == [7, -1, -1, -1]
    assert IID(4).sample(draft, coins).tokens[0, 0].tolist() == [7, 7, 7, 7]


def test_fewer_tokens_than_slots():
    """Without replacement draws the whole support where it is smaller than k."""
    draft = as_exact([0.75, 0.25, 0.0, 0.0])
    tuples, probs = WithoutReplacement(3).tuples(draft)
    assert tuples.tolist() == [[0, 1, -1], [1, 0, -1]]
    assert probs.tolist() == [Fraction(3, 4), Fraction(1, 4)]
    floats = as_float(draft)
    assert WithoutReplacement(3).inside(floats, np.array([1, 0, 2, 3])).tolist() == [0, 0, 1, 1, 1]
    assert WithoutReplacement(3).contains(floats).tolist() == [1, 1, 0, 0]
    assert TopThenSample(3).tuples(floats)[0].tolist() == [[0, 1, -1]]


@pytest.mark.parametrize("k", [2, 3, 8, 32])
def test_quadrature_without_replacement_at_scale(k):
    """Uniform draft: P(X inside i tokens) = C(i, k)/C(V, k), and every token is included with probability k/V."""
    vocab = 2000
    draft = np.full(vocab, 1 / vocab)
    order = np.random.default_rng(0).permutation(vocab)
    falling = np.cumprod([np.maximum(np.arange(vocab + 1) - i, 0) / (vocab - i) for i in range(k)], axis=0)[-1]
    np.testing.assert_allclose(WithoutReplacement(k).inside(draft, order), falling, atol=2e-14)
    np.testing.assert_allclose(WithoutReplacement(k).contains(draft), k / vocab, rtol=1e-11)


def test_quadrature_with_masses_down_to_1e_300():
    draft = np.array([0.5, 0.5 - 1e-9, 1e-9, 1e-30, 1e-300, 0.0])
    draft /= draft.sum()
    exact = as_exact(draft)
    for k in (2, 3, 4):
        for order in (np.arange(6), np.arange(6)[::-1], np.array([3, 0, 5, 4, 2, 1])):
            stated = WithoutReplacement(k).inside(exact, order)
            np.testing.assert_allclose(WithoutReplacement(k).inside(draft, order), as_float(stated), atol=1e-14)
        stated = as_float(WithoutReplacement(k).contains(exact))
        np.testing.assert_allclose(WithoutReplacement(k).contains(draft), stated, rtol=1e-11, atol=1e-300)


def test_compiled_loops_equal_their_python_source():
    rng = np.random.default_rng(1)
    rates = rng.dirichlet(np.full(7, 0.5))
    beyond = np.append(np.cumsum(rates[::-1])[::-1], 0.0)
    times = np.exp(np.arange(-8.0, 6.0, 0.5))
    for k in (2, 3):
        inside, included = (rates, beyond, k, times, 0.5), (rates, k, times, 0.5)
        np.testing.assert_allclose(prefix_inside(*inside), prefix_inside.py_func(*inside), rtol=1e-12)
        np.testing.assert_allclose(inclusion(*included), inclusion.py_func(*included), rtol=1e-12)


def test_top_then_sample_breaks_ties_by_the_lowest_id():
    draft = np.array([0.2, 0.3, 0.3, 0.2])
    assert TopThenSample(3).tuples(draft)[0].tolist() == [[1, 2, 0], [1, 2, 3]]
    assert TopThenSample(2).tuples(draft)[0][:, 0].tolist() == [1, 1, 1]


def test_prefix_orders_hold_their_cut():
    rng = np.random.default_rng(8)
    for target, draft, k in CASES[:60]:
        for law in laws(k, draft.size, rng)[:4]:
            order = law.prefix_order(as_float(target), as_float(draft))
            assert sorted(order.tolist()) == list(range(draft.size))
    assert Independent(np.full((2, 3), 1 / 3)).prefix_order(np.full(3, 1 / 3), np.full(3, 1 / 3)) is None


@pytest.mark.parametrize("k", [0, -1, 1.5, True, "2"])
@pytest.mark.parametrize("law", [IID, WithoutReplacement, TopThenSample])
def test_k_is_a_positive_integer(law, k):
    with pytest.raises(OptionError, match="k must be an integer of at least 1, got"):
        law(k)


def test_bad_arguments_of_draft_laws():
    draft = np.full(4, 0.25)
    with pytest.raises(ShapeError, match="need 2 coins"):
        IID(2).sample(draft, np.zeros(3))
    for law in (IID(2), WithoutReplacement(2), TopThenSample(2)):
        with pytest.raises(OptionError, match=r"coins lie in \[0, 1\); coin \(1,\) is"):
            law.sample(draft, np.array([0.5, -0.1]))
    with pytest.raises(ShapeError, match=r"one law of shape \(V,\)"):
        IID(2).sets(np.stack([draft, draft]))
    with pytest.raises(CandidateError, match="row 0, slot 1: candidate 4 is not one of 4 tokens"):
        Fixed([1, 4]).contains(draft)
    with pytest.raises(ShapeError, match=r"shape \(\.\.\., k, V\)"):
        Independent(draft)
