"""Every selector's output law is the target, as fractions, by enumerating all candidate tuples."""

from __future__ import annotations

import sys
from fractions import Fraction

import numpy as np
import pytest
import torch

from ot_spec import IID, HubPair, TopThenSample, WithoutReplacement, as_exact, families, output_law
from ot_spec.arrays import as_fraction, is_exact
from ot_spec.errors import CandidateError, OptionError, ShapeError, UnsupportedLawError
from ot_spec.selector import Selector, acceptance_by_enumeration, as_float, select_law
from solvers import SELECTORS, get_selector, optimal_acceptance
from solvers.gap.study import default_selectors
from solvers.selectors import KSeq, RRSWithoutReplacement
from solvers.selectors.k_seq import _tangents
from solvers.selectors.rule import SequentialRule
from tests.exact.cases import generated, residual_after

CHUNK = 20
LAST_COIN = 1 - 2.0**-53
CASES = generated()


def pairs(k):
    """The selectors that are exact for k candidates, each with its draft law."""
    yield "k_seq", IID(k)
    yield "rrs", IID(k)
    yield "rrs_without_replacement", WithoutReplacement(k)
    if k == 1:
        yield "maximal_coupling", IID(1)


def test_the_generated_cases_reach_the_hard_corners():
    assert len(CASES) >= 500
    hard = sum((residual_after(t, d, 2) > 0).sum() >= 2 for t, d, k in CASES if k >= 2)
    assert hard >= len(CASES) / 2
    assert any((t == d).all() for t, d, _ in CASES)
    assert any(not np.minimum(t, d).any() for t, d, _ in CASES)
    assert any((d > 0).sum() < k for _, d, k in CASES)
    assert {(len(t), k) for t, _, k in CASES} == {(v, k) for v in (4, 5, 6) for k in (1, 2, 3, 4)}


@pytest.mark.parametrize("start", range(0, len(CASES), CHUNK))
def test_output_law_is_the_target(start):
    for target, draft, k in CASES[start : start + CHUNK]:
        for name, law in pairs(k):
            selector = get_selector(name)
            assert (output_law(selector, target, draft, law) == target).all(), (name, k, target, draft)
            accepted = selector.acceptance(target, draft, law)
            assert accepted == acceptance_by_enumeration(selector, target, draft, law), (
                name,
                k,
                target,
                draft,
            )
            assert accepted <= optimal_acceptance(target, draft, law)


@pytest.mark.parametrize("start", range(0, len(CASES), CHUNK))
def test_select_has_the_law_that_conditional_states(start):
    rng = np.random.default_rng(start)
    for target, draft, k in CASES[start : start + CHUNK]:
        for name, law in pairs(k):
            tuples, _ = law.tuples(draft)
            some = tuples[rng.permutation(len(tuples))[: 16 if k < 3 else 2]]
            selector = get_selector(name)
            stated = selector.conditional(target, draft, some)
            assert (select_law(selector, target, draft, some) == stated).all(), (name, k, target, draft)


@pytest.mark.parametrize("name", list(SELECTORS))
def test_fractions_and_fmpq_agree(name):
    target, draft = as_exact([0.125, 0.25, 0.5, 0.125]), as_exact([0.5, 0.25, 0.125, 0.125])
    laws = IID(2), WithoutReplacement(2), TopThenSample(2), HubPair(), IID(1)
    law = next(law for law in laws if get_selector(name).supports(law))
    assert output_law(get_selector(name), target, draft, law, by="select").tolist() == target.tolist()
    assert all(isinstance(v, Fraction) for v in output_law(get_selector(name), target, draft, law))


def outcome(selector: Selector, target, draft, candidates, coins):
    chosen = selector.select(target, draft, np.array([candidates]), np.array([coins], dtype=object))
    return int(chosen.token[0]), int(chosen.index[0])


@pytest.mark.parametrize("start", range(0, 60, 10))
def test_both_sides_of_every_breakpoint(start):
    """A test coin at its breakpoint refuses and just below it keeps; a residual coin at a breakpoint moves on."""
    for target, draft, k in CASES[start : start + 10]:
        for name, law in pairs(k):
            selector = get_selector(name)
            tuples, _ = law.tuples(draft)
            candidates = tuples[len(tuples) // 2]
            filled = candidates >= 0
            assert isinstance(selector, SequentialRule)
            tests = selector.tests(target[None], draft[None], np.where(filled, candidates, 0)[None], filled[None])
            keep = [min(Fraction(1), as_fraction(t) / as_fraction(b)) if f else 0
                    for t, b, f in zip(tests.top[0], tests.bottom[0], filled, strict=True)]  # fmt: skip
            residual = np.array([as_fraction(w) for w in np.broadcast_to(tests.residual, (1, target.size))[0]])
            refuse = [Fraction(LAST_COIN)] * k
            for slot in range(k):
                coins = [*refuse, 0]
                for coin, kept in ((0, keep[slot] > 0), (keep[slot] - Fraction(1, 10**30), keep[slot] > 0),
                                   (keep[slot], False), (Fraction(LAST_COIN), keep[slot] == 1)):  # fmt: skip
                    if not 0 <= coin < 1 or not filled[slot] or any(p == 1 for p in keep[:slot]):
                        continue
                    coins[slot] = coin
                    token, _ = outcome(selector, target, draft, candidates, [number(target, c) for c in coins])
                    later = [i for i in range(slot + 1, k) if keep[i] == 1]
                    if kept:
                        assert token == candidates[slot]
                    elif later:
                        assert token == candidates[later[0]]
                    elif residual.sum():
                        assert token == np.flatnonzero(residual)[0]
            if residual.sum() and all(p < 1 for p in keep):
                reached = np.cumsum(residual) / residual.sum()
                for token in np.flatnonzero(residual):
                    at = reached[token]
                    below = outcome(selector, target, draft, candidates,
                                    [number(target, c) for c in [*refuse, at - Fraction(1, 10**30)]])  # fmt: skip
                    assert below[0] == token
                    if at < 1:
                        above = outcome(selector, target, draft, candidates, [number(target, c) for c in [*refuse, at]])
                        assert above[0] == np.flatnonzero(residual[token + 1 :])[0] + token + 1


def number(law, value):
    value = Fraction(value)
    return law[0] * 0 + type(law[0])(value.numerator, value.denominator)


@pytest.mark.parametrize("array", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("start", range(0, len(CASES), 130))
def test_floats_follow_the_fractions(start, array):
    for target, draft, k in CASES[start : start + 130]:
        floats = array(as_float(target)), array(as_float(draft))
        for name, law in pairs(k):
            selector = get_selector(name)
            exact = selector.acceptance(target, draft, law)
            assert float(selector.acceptance(*floats, law)) == pytest.approx(float(as_fraction(exact)), abs=1e-12)
            tuples, _ = law.tuples(draft)
            some = tuples[:: max(1, len(tuples) // 12)]
            stated = as_float(selector.conditional(target, draft, some))
            np.testing.assert_allclose(np.asarray(selector.conditional(*floats, array(some))), stated, atol=1e-12)


def test_coins_at_the_ends_in_floats():
    rng = np.random.default_rng(3)
    for target, draft, k in CASES[:200]:
        floats = as_float(target), as_float(draft)
        for name, law in pairs(k):
            selector = get_selector(name)
            tuples, _ = law.tuples(draft)
            some = tuples[rng.permutation(len(tuples))[:8]]
            possible = selector.conditional(*floats, some) > 0
            for low in (0.0, LAST_COIN):
                for residual in (0.0, LAST_COIN):
                    coins = np.full((len(some), k + 1), low)
                    coins[:, -1] = residual
                    token = selector.select(*floats, some, coins).token
                    exact = selector.select(target, draft, some, coins).token
                    assert possible[np.arange(len(some)), token].all() or is_exact(target)
                    assert (as_float(target)[token] > 0).all()
                    assert (as_float(target)[exact] > 0).all()


def test_k_seq_with_a_larger_divisor():
    """kept 3/4, membership 15/16 at target = draft = (1/2, 1/2), k = 2, rho = 2 (the pick that was kept is rarer)."""
    law = as_exact([0.5, 0.5])
    selector = KSeq(rho=2)
    assert selector.kept(law[None], law[None], 2)[0] == Fraction(3, 4)
    assert selector.acceptance(law, law, IID(2)) == Fraction(15, 16)
    assert acceptance_by_enumeration(selector, law, law, IID(2)) == Fraction(15, 16)
    for target, draft, k in CASES[:120]:
        least = as_fraction(KSeq().divisor(target, draft, k))
        for rho in (least, least * Fraction(7, 5), k * 3):
            larger = KSeq(rho=rho)
            assert (output_law(larger, target, draft, IID(k)) == target).all()
            accepted = larger.acceptance(target, draft, IID(k))
            assert accepted == acceptance_by_enumeration(larger, target, draft, IID(k))
            assert larger.kept(target[None], draft[None], k)[0] <= accepted


def test_k_seq_refuses_a_smaller_divisor_naming_row_and_amount():
    target, draft = np.array([[0.5, 0.5], [0.1, 0.9]]), np.array([[0.5, 0.5], [0.9, 0.1]])
    with pytest.raises(OptionError, match=r"row 1: rho = 1\.1 is below rho\* = 1\.84"):
        KSeq(rho=1.1).acceptance(target, draft, IID(2))
    chosen = KSeq(rho=1.1).select(
        torch.tensor(target), torch.tensor(draft), torch.tensor([[0, 1], [0, 1]]), torch.full((2, 3), 0.5)
    )
    assert chosen.valid.tolist() == [True, False]
    assert chosen.token[1] == -1
    with pytest.raises(CandidateError, match="row 1"):
        chosen.checked()


def test_k_seq_divisor_below_the_root_where_it_is_the_same_rule():
    """rho < rho* is exact when every shared token has target/draft >= rho*: the tests always keep."""
    target, draft = as_exact([0.5, 0.5, 0.0]), as_exact([0.25, 0.25, 0.5])
    least = KSeq().divisor(target, draft, 2)
    assert 1 < least < 2
    assert (output_law(KSeq(rho=1), target, draft, IID(2)) == target).all()


def test_k_seq_acceptance_is_the_overlap_at_the_divisor():
    rng = np.random.default_rng(5)
    selector = KSeq()
    for k in (1, 2, 3, 8, 32):
        target, draft = rng.dirichlet(np.full(50, 0.3), 40), rng.dirichlet(np.full(50, 0.3), 40)
        rho = selector.divisor(target, draft, k)
        accepted = selector.acceptance(target, draft, IID(k))
        np.testing.assert_allclose(accepted, np.minimum(rho[:, None] * draft, target).sum(1), atol=1e-13)
        assert (accepted >= (1 - (1 - 1 / k) ** k) * optimal_acceptance(target, draft, IID(k)) - 1e-12).all()


@pytest.mark.parametrize("name", ["sparse", "softmax_normal", "dirichlet"])
@pytest.mark.parametrize("k", [1, 2, 4, 8, 32])
def test_the_divisor_of_a_device(name, k):
    """The vectorised tangents: large enough (1 - (1 - beta)^k <= rho beta), and as good as the compiled loop."""
    target, draft = families.draw(name, 1, 8, 2000)
    here = KSeq().divisor(target, draft, k)
    there = _tangents(np, target, draft, k)
    kept = []
    for rho in (here, there):
        overlap = np.minimum(rho[:, None] * draft, target).sum(axis=-1)
        kept.append(1 - (1 - np.minimum(overlap / rho, 1)) ** k)
        assert (kept[-1] <= overlap + 2e-14).all()
        assert ((rho >= 1) & (rho <= k)).all()
    assert abs(kept[0] - kept[1]).max() < 1e-5
    assert np.median(abs(kept[0] - kept[1])) < 1e-14


def test_disjoint_laws_have_divisor_one():
    target, draft = np.array([0.5, 0.5, 0, 0]), np.array([0, 0, 0.5, 0.5])
    selector = KSeq()
    assert selector.divisor(target, draft, 4) == 1
    assert selector.acceptance(target, draft, IID(4)) == 0


@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_half_of_a_large_vocabulary(k):
    """V = 50,000, target uniform on one half, draft uniform: every rule misses iff no candidate is in the half."""
    vocab = 50_000
    target, draft = np.zeros(vocab), np.full(vocab, 1 / vocab)
    target[::2] = 2 / vocab
    missed = 0.5**k
    distinct = np.prod((vocab / 2 - np.arange(k)) / (vocab - np.arange(k)))
    for array in (np.asarray, torch.as_tensor):
        laws = array(target), array(draft)
        for name, law in (("k_seq", IID(k)), ("rrs", IID(k))):
            assert float(get_selector(name).acceptance(*laws, law)) == pytest.approx(1 - missed, abs=1e-12)
        assert float(optimal_acceptance(*laws, IID(k))) == pytest.approx(1 - missed, abs=1e-12)
        assert float(optimal_acceptance(*laws, WithoutReplacement(k))) == pytest.approx(1 - distinct, abs=1e-12)
        if k <= 2:
            accepted = RRSWithoutReplacement().acceptance(*laws, WithoutReplacement(k))
            assert float(accepted) == pytest.approx(1 - distinct, abs=1e-12)
    assert KSeq().divisor(target, draft, k) == pytest.approx(2 - 2 * missed, abs=1e-12)


def test_rrs_without_replacement_estimate_is_within_its_error():
    rng = np.random.default_rng(0)
    selector, law = RRSWithoutReplacement(samples=256), WithoutReplacement(3)
    target, draft = rng.dirichlet(np.full(40, 0.3), 6), rng.dirichlet(np.full(40, 0.3), 6)
    exact = [acceptance_by_enumeration(selector, t, d, law) for t, d in zip(target, draft, strict=True)]
    error = selector.acceptance_error(target, draft, law)
    assert (error > 0).all()
    assert (abs(selector.acceptance(target, draft, law) - exact) <= error).all()
    two = WithoutReplacement(2)
    target, draft = rng.dirichlet(np.full(200, 0.3), 3), rng.dirichlet(np.full(200, 0.3), 3)
    exact = [acceptance_by_enumeration(selector, t, d, two) for t, d in zip(target, draft, strict=True)]
    np.testing.assert_allclose(selector.acceptance(target, draft, two), exact, atol=1e-12)
    assert (selector.acceptance_error(target, draft, two) == 0).all()


def test_fewer_candidates_than_slots():
    """Empty slots at the end: the rule of as many candidates as there are."""
    target, draft = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.4, 0.3, 0.2, 0.1])
    for name in ("k_seq", "rrs", "rrs_without_replacement"):
        selector = get_selector(name)
        short = selector.conditional(target, draft, np.array([[2, 0]]))
        mixed = selector.conditional(target, draft, np.array([[2, 0, -1, -1], [1, 2, 3, -1], [-1, -1, -1, -1]]))
        np.testing.assert_allclose(mixed[0], short[0], atol=1e-15)
        np.testing.assert_allclose(mixed[2], target, atol=1e-15)


def test_blocks_of_rows_change_nothing():
    rng = np.random.default_rng(1)
    target, draft = rng.dirichlet(np.full(60_000, 0.1), 12), rng.dirichlet(np.full(60_000, 0.1), 12)
    for name, law in (("k_seq", IID(3)), ("rrs", IID(3)), ("rrs_without_replacement", WithoutReplacement(3))):
        candidates = law.sample(draft, rng.random((12, 3))).tokens
        coins = rng.random((12, 4))
        whole = get_selector(name).select(target, draft, candidates, coins)
        single = [get_selector(name).select(*(a[i] for a in (target, draft, candidates, coins))) for i in range(12)]
        assert whole.token.tolist() == [int(s.token) for s in single]
        assert whole.index.tolist() == [int(s.index) for s in single]


BAD = [
    ([[0, 4]], CandidateError, "slot 1: candidate 4 is not one of 4 tokens"),
    ([[0, 1], [-2, 0]], CandidateError, "row 1, slot 0: candidate -2 is not one of 4 tokens"),
    ([[-1, 0]], CandidateError, "slot 1: candidate 0 follows an empty slot"),
    ([[0, 3]], CandidateError, "slot 1: candidate 3 has probability 0 under the draft law"),
    ([[0.0, 1.0]], CandidateError, "token ids, got dtype float64"),
    ([[0, 1]] * 3, ShapeError, "do not fit laws"),
]


@pytest.mark.parametrize(("candidates", "error", "message"), BAD)
@pytest.mark.parametrize("name", ["k_seq", "rrs", "rrs_without_replacement"])
def test_bad_candidates(name, candidates, error, message):
    target, draft = np.full((2, 4), 0.25), np.array([[0.5, 0.25, 0.25, 0.0]] * 2)
    candidates = np.array(candidates)
    with pytest.raises(error, match=message):
        get_selector(name).conditional(target, draft, candidates)
    with pytest.raises(error, match=message):
        get_selector(name).select(target, draft, candidates, np.zeros((len(candidates), 3)))
    if error is CandidateError and candidates.dtype != np.float64:
        chosen = get_selector(name).select(
            torch.tensor(target[: len(candidates)]), torch.tensor(draft[: len(candidates)]),
            torch.tensor(candidates), torch.zeros(len(candidates), 3))  # fmt: skip
        assert not chosen.valid[-1]
        assert not chosen.accepted[-1]
        assert chosen.token[-1] == -1


def test_duplicates_without_replacement_are_refused():
    law = np.full(4, 0.25)
    with pytest.raises(CandidateError, match="slot 1: candidate 2 is a duplicate, which rrs_without_replacement"):
        get_selector("rrs_without_replacement").conditional(law, law, np.array([2, 2]))


def test_bad_coins_and_unsupported_laws():
    law = np.full(4, 0.25)
    for coin in (1.0, -0.1, float("nan")):
        with pytest.raises(OptionError, match=r"coins lie in \[0, 1\)"):
            get_selector("rrs").select(law, law, np.array([0, 1]), np.array([0.5, coin, 0.5]))
    with pytest.raises(ShapeError, match="takes 3 coins"):
        get_selector("rrs").select(law, law, np.array([0, 1]), np.array([0.5, 0.5]))
    with pytest.raises(UnsupportedLawError, match="rrs is not exact for candidates of without_replacement"):
        get_selector("rrs").acceptance(law, law, WithoutReplacement(2))
    with pytest.raises(ShapeError, match="takes one candidate"):
        get_selector("maximal_coupling").conditional(law, law, np.array([0, 1]))
    with pytest.raises(OptionError, match="no selector 'best'; there are"):
        get_selector("best")
    with pytest.raises(OptionError, match="k_seq"):
        get_selector("k_seq", divisor=3)
    for name in SELECTORS:
        assert isinstance(get_selector(name), Selector)
        assert get_selector(name).supports(TopThenSample(1))


def test_inputs_are_neither_written_nor_remembered():
    rng = np.random.default_rng(2)
    target, draft, coins = rng.dirichlet(np.ones(9), 5), rng.dirichlet(np.ones(9), 5), rng.random((5, 4))
    for name, law in (("k_seq", IID(3)), ("rrs", IID(3)), ("rrs_without_replacement", WithoutReplacement(3))):
        candidates = law.sample(draft, rng.random((5, 3))).tokens
        arrays = target, draft, candidates, coins
        before = [a.tobytes() for a in arrays]
        for a in arrays:
            a.flags.writeable = False
        first = get_selector(name).select(*arrays)
        again = get_selector(name).select(*arrays)
        assert first.token.tobytes() == again.token.tobytes()
        assert [a.tobytes() for a in arrays] == before
        for a in arrays:
            a.flags.writeable = True


@pytest.mark.parametrize("law", [IID(1), WithoutReplacement(1), TopThenSample(1)], ids=lambda law: law.name)
def test_one_candidate_is_not_enumerated(law, monkeypatch):
    """It is accepted with probability sum min(target, draft), of however many tokens; enumeration took minutes."""
    target, draft = (row[0] for row in families.draw("softmax_normal", 3, 12_000, 1))
    modules = {type(get_selector(name)).__module__ for name in SELECTORS}
    for module in modules:
        if hasattr(sys.modules[module], "acceptance_by_enumeration"):
            monkeypatch.setattr(f"{module}.acceptance_by_enumeration", lambda *given: pytest.fail("enumerated"))
    asked = [get_selector(name) for name in default_selectors()]
    asked = [rule for rule in asked if rule.supports(law) and rule.name != "membership"]
    assert {"rrs_without_replacement", "optimal_without_replacement", "k_seq", "optimal"} <= {r.name for r in asked}
    for rule in asked:
        found = float(rule.acceptance(target, draft, law))
        assert found == pytest.approx(np.minimum(target, draft).sum(), abs=1e-9), rule.name
