"""Coins, noise and inverse distribution functions: F24, F25, F26, F27, F29, F32, F95."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

import array_api_compat.torch
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ot_spec import IID, TopThenSample, WithoutReplacement, arrays, fractions, from_probs, kernels, output_law
from ot_spec.arrays import pick, to_numpy
from ot_spec.coin import exact_measure
from ot_spec.errors import CandidateError, OptionError
from proofs_check.strategies import LAST_COIN, Pair, pairs, weights
from proofs_check.strategies import laws as exact_laws
from tests.faults import mutants as wrong
from tests.faults.kind import Kind, mutants, ours, recorded, refused
from tests.faults.mutants import mixed
from tests.faults.test_residuals import EVERY, RULES, check_output_law, each, law_for, read_pair

# --- F24 -------------------------------------------------------------------------------------------------------


def race(law: np.ndarray) -> np.ndarray:
    """The law of the first of exponential clocks to ring, by quadrature over its time."""
    won = np.zeros(law.size)
    rates = law[law > 0]
    won[law > 0] = kernels.inclusion(rates, 1, kernels.nodes(rates.min(), -40.0), kernels.STEP)
    return won


def race_from_behind(law: np.ndarray) -> np.ndarray:
    """The same, by P(the first is among the first i), as a difference."""
    beyond = np.concatenate([np.cumsum(law[::-1])[::-1], [0.0]])
    times = kernels.nodes(beyond[beyond > 0].min(), -40.0)
    return np.diff(kernels.prefix_inside(law, beyond, 1, times, kernels.STEP))


def first_drawn(draft_law) -> object:
    """The exact law of the first candidate that `sample` returns."""

    def drawn(law: np.ndarray) -> np.ndarray:
        exact = fractions(law) / fractions(law).sum()
        sample = lambda rows, thrown: draft_law.sample(exact, thrown).tokens[..., 0]  # noqa: E731
        measure = exact_measure(sample, rows=1, coins=draft_law.k, outcomes=law.size, one=Fraction(1))
        return measure[0].astype(float)

    return drawn


def check_winner(drawn, case: np.ndarray) -> None:
    assert drawn(case).tolist() == pytest.approx(case.tolist(), abs=1e-12)


# --- F25 -------------------------------------------------------------------------------------------------------


def as_floats(pair: Pair) -> tuple[np.ndarray, np.ndarray]:
    return from_probs(pair.target.astype(float)), from_probs(pair.draft.astype(float))


def check_support(rule, case: Pair, converts=(np.asarray, torch.as_tensor)) -> None:
    """Whatever the candidates and the coins, ends included, the output has target mass."""
    target, draft = as_floats(case)
    law = law_for(rule, case.k)
    tuples, _ = law.tuples(draft)
    ends = np.array(list(itertools.product((0.0, LAST_COIN), repeat=rule.coins(law.k))))
    candidates, thrown = np.repeat(tuples, len(ends), axis=0), np.tile(ends, (len(tuples), 1))
    for convert in converts:
        chosen = rule.select(*map(convert, (target, draft, candidates, thrown)))
        tokens = to_numpy(chosen.token)
        assert (target[tokens] > 0).all(), f"token {tokens[target[tokens] == 0][0]} has no target mass"


# --- F26 -------------------------------------------------------------------------------------------------------


class Thrown(NamedTuple):
    """A pair, and a coin for one slot."""

    pair: Pair
    coin: float
    slot: int


def hashed(pair: Pair, integer: int, slot: int) -> Thrown:
    """The coin that float32 arithmetic makes of a 32-bit hash."""
    return Thrown(pair, float(np.float32(integer) / np.float32(2**32)), slot)


def check_coin_is_refused(rule, case: Thrown) -> None:
    target, draft = as_floats(case.pair)
    law = law_for(rule, case.pair.k)
    candidates = np.tile(law.tuples(draft)[0][:1], (2, 1))
    many = rule.coins(law.k)
    slot = case.slot % many
    thrown = np.full((2, many), 0.5)
    thrown[1, slot] = case.coin
    with refused(OptionError, "[0, 1)", f"coin (1, {slot})", repr(np.float64(case.coin))):
        rule.select(target, draft, candidates, thrown)
    flagged = rule.select(*map(torch.as_tensor, (target, draft, candidates, thrown)))
    assert flagged.valid.tolist() == [True, False] and int(flagged.token[1]) == int(flagged.index[1]) == -1
    assert int(flagged.token[0]) == rule.select(target, draft, candidates[0], thrown[0]).token
    with refused(CandidateError, "row 1"):
        flagged.checked()


REFUSED = st.builds(hashed, pairs(), st.integers(2**32 - 128, 2**32 - 1), st.integers(0, 2)) | st.builds(
    Thrown, pairs(), st.sampled_from([-5e-324, -1.0, 1.5, float("nan"), float("inf")]), st.integers(0, 2)
)

# --- F27, F32, F95 ---------------------------------------------------------------------------------------------


class Wheel(NamedTuple):
    """Weights (V,) of any total, and coins."""

    weights: np.ndarray
    coins: np.ndarray


def both(draw, wheel: Wheel) -> Iterator[np.ndarray]:
    """What is drawn on numpy and, by code that takes tensors, on torch."""
    yield np.asarray(draw(wheel.weights, wheel.coins))
    if draw is pick:
        yield to_numpy(pick(*map(torch.as_tensor, wheel)))


def check_drawn(draw, case: Wheel) -> None:
    """The first token whose running sum is over coin x total, the last one of positive weight if there is none."""
    cdf = np.cumsum(case.weights)
    last = int(np.flatnonzero(case.weights > 0)[-1])
    expected = [next((y for y in range(last) if cdf[y] > coin * cdf[-1]), last) for coin in case.coins]
    for drawn in both(draw, case):
        assert drawn.tolist() == expected, case
        assert (case.weights[drawn] > 0).all()


def around_breakpoints(drawn: Sequence[float]) -> Wheel:
    """Coins at every breakpoint and both its neighbours."""
    masses = np.array(drawn, dtype=np.float64)
    breaks = np.concatenate([[0.0], np.cumsum(masses) / np.cumsum(masses)[-1]])
    near = np.concatenate([np.nextafter(breaks, -1), breaks, np.nextafter(breaks, 2)])
    return Wheel(masses, np.unique(near[(near >= 0) & (near < 1)]))


SIZES = st.integers(1, 9)
WEIGHTS = SIZES.flatmap(weights)
SCALED = st.builds(
    lambda w, scale: Wheel(np.array(w) * scale, np.array([0.99999994, LAST_COIN, 1.0])),
    WEIGHTS,
    st.sampled_from([1.0, 0.0999, 1e-3, 1e-30]),
)
NOISELESS = WEIGHTS.map(lambda w: Wheel(np.array(w, dtype=float), np.zeros(2)))


def check_noiseless(draw, case: Wheel) -> None:
    """Coins of 0 draw a token of positive weight; without replacement they draw the support in order."""
    check_drawn(draw, case)
    law = from_probs(case.weights / case.weights.sum())
    support = np.flatnonzero(law > 0).tolist()
    k = len(support) + 1
    for convert in (np.asarray, torch.as_tensor):
        tokens, count = WithoutReplacement(k).sample(convert(law), convert(np.zeros(k)))
        assert tokens.tolist() == [*support, -1] and int(count) == k - 1
        contained = [to_numpy(d(2).contains(convert(law))) for d in (IID, WithoutReplacement, TopThenSample)]
        assert all(np.isfinite(c).all() and (c[law == 0] == 0).all() for c in contained)


# --- F95, parallel scans ---------------------------------------------------------------------------------------


class Scan(NamedTuple):
    """Weights (V,) and how many units in the last place a parallel scan is off at each token."""

    weights: np.ndarray
    steps: np.ndarray


@contextlib.contextmanager
def parallel(steps: np.ndarray) -> Iterator[None]:
    """Torch as on a device: nothing may wait, and running sums are off by some units in the last place."""

    def scanned(a, axis=-1, **_):
        return torch.cumsum(a, dim=axis) * torch.as_tensor(1 + steps * 2.0**-52)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "may_wait", lambda array: isinstance(array, np.ndarray))
        patch.setattr(array_api_compat.torch, "cumulative_sum", scanned)
        yield


def check_scan(draw, case: Scan) -> None:
    masses = torch.as_tensor(case.weights)
    cdf = torch.cumsum(masses, 0) * torch.as_tensor(1 + case.steps * 2.0**-52)
    cdf = cdf / cdf[-1]
    near = torch.cat([torch.nextafter(cdf, cdf - 1), cdf, torch.nextafter(cdf, cdf + 1), torch.zeros(1)])
    thrown = near.clamp(0, LAST_COIN)
    with parallel(case.steps):
        drawn = draw(masses, thrown)
    assert (masses[drawn] > 0).all(), f"token {int(drawn[masses[drawn] == 0][0])} has no weight"
    exact = np.cumsum(case.weights) / case.weights.sum()
    before = np.concatenate([[0.0], exact])
    coins_ = thrown.numpy()
    assert (before[drawn] - 4e-15 <= coins_).all() and (coins_ <= exact[drawn] + 4e-15).all()


@st.composite
def scans(draw: st.DrawFn) -> Scan:
    size = draw(st.integers(3, 9))
    masses = np.array(draw(weights(size)), dtype=np.float64)
    return Scan(masses / masses.sum(), np.array(draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))))


PICK = {"pick": pick}
KINDS = [
    Kind(
        "F24",
        check_winner,
        lambda case: fractions(case["target"]).astype(float),
        {
            "race": race,
            "race_from_behind": race_from_behind,
            "iid": first_drawn(IID(1)),
            "without_replacement": first_drawn(WithoutReplacement(2)),
        },
        {"always_the_largest": wrong.always_the_largest},
        exact_laws(2, 5).map(lambda law: law.astype(float)),
        examples=15,
    ),
    Kind("F25", check_support, read_pair, EVERY, each(wrong.Weak), pairs()),
    Kind(
        "F26",
        check_coin_is_refused,
        lambda case: hashed(read_pair(case), case["hash"], case["slot"]),
        EVERY,
        each(wrong.AnyCoin),
        REFUSED,
    ),
    Kind(
        "F27",
        check_drawn,
        lambda case: Wheel(np.array(case["weights"]), np.array(case["coins"])),
        PICK,
        {f.__name__: f for f in (wrong.pick_last_index, wrong.pick_past_the_end)},
        SCALED,
    ),
    Kind("F29", check_output_law, read_pair, RULES, each(wrong.OneCoin), pairs()),
    Kind(
        "F32",
        check_noiseless,
        lambda case: Wheel(np.array(case["weights"]), np.zeros(2)),
        PICK,
        {f.__name__: f for f in (wrong.pick_by_race, wrong.pick_left)},
        NOISELESS,
    ),
    Kind(
        "F95",
        check_drawn,
        lambda case: around_breakpoints(case["weights"]),
        PICK,
        {f.__name__: f for f in (wrong.pick_left, wrong.pick_by_race)},
        WEIGHTS.map(around_breakpoints),
        examples=60,
    ),
    Kind(
        "F95",
        check_scan,
        lambda case: Scan(np.array(case["weights"]), np.array(case["steps"])),
        PICK,
        {"pick_by_raw_scan": wrong.pick_by_raw_scan},
        scans(),
        examples=60,
        what="scan",
    ),
]


@ours(KINDS)
def test_ours(kind, subject):
    kind.holds(subject)


@mutants(KINDS)
def test_mutant_is_caught(kind, mutant):
    kind.caught(mutant)


@pytest.mark.parametrize("fault", ["F27", "F32"])
def test_recorded_draws(fault):
    for case in recorded(fault):
        right = np.atleast_1d(case["right"])
        thrown = np.array(case.get("coins", np.zeros(len(right))))
        assert pick(np.array(case["weights"]), thrown).tolist() == right.tolist()


LONG = st.builds(
    lambda size, places, masses, parts: Wheel(*long_row(size, places, masses, parts)),
    st.integers(2049, 5000),
    st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=12),
    st.lists(st.integers(1, 2**20), min_size=12, max_size=12),
    st.lists(st.floats(0, 1, exclude_max=True), max_size=4),
)


def long_row(size, places, masses, parts) -> tuple[np.ndarray, np.ndarray]:
    """A few whole weights in a long row, so that all sums are exact; coins at every breakpoint, just before it, at 1
    and wherever else is asked."""
    row = np.zeros(size)
    for place, mass in zip(places, masses, strict=False):
        row[int(place * size)] = mass
    whole = 2**24
    row[np.flatnonzero(row)[-1]] += whole - row.sum()
    breaks = np.cumsum(row[row > 0])[:-1] / whole
    return row, np.concatenate([[0.0, LAST_COIN, 1.0], parts, breaks, np.nextafter(breaks, -1)])


@given(LONG)
def test_long_rows_are_drawn_from_by_the_same_rule(case):
    for scale in (1.0, 2.0**-60):
        check_drawn(pick, Wheel(case.weights * scale, case.coins))


def test_long_rows_are_drawn_from_beside_each_other():
    rows = np.stack([np.roll(np.arange(3000.0), i) for i in range(3)])
    thrown = np.linspace(0, 1, 50, endpoint=False)
    alone = np.stack([pick(row, thrown) for row in rows])
    assert pick(rows, thrown).tolist() == alone.tolist() == pick(rows, np.stack([thrown] * 3)).tolist()
    assert pick(rows[0], np.stack([thrown] * 2)).tolist() == [alone[0].tolist()] * 2
    assert pick(np.zeros((2, 3000)), thrown[:2]).tolist() == [[2999] * 2] * 2
    assert pick(np.ones((0, 3000)), np.zeros((0, 2))).shape == (0, 2)
    many = np.linspace(0, 1, 5000, endpoint=False)  # too many to look for each by itself
    assert pick(rows[0], many)[::100].tolist() == alone[0].tolist()


def test_one_coin_has_the_recorded_law():
    (case,) = recorded("F29")
    pair = read_pair(case)
    one_coin = mixed(wrong.OneCoin, RULES["maximal_coupling"])
    law = output_law(one_coin, pair.target, pair.draft, IID(1), by="select")
    assert law.tolist() == fractions(case["wrong"]["one_coin"]).tolist()


@pytest.mark.parametrize("name", RULES)
def test_rules_written_out_are_right_but_for_their_fault(name):
    """`RowByRow` without an override passes every check that its mutants fail."""
    rule = mixed(wrong.RowByRow, RULES[name])
    for fault in ("F13", "F25", "F29"):
        for case in recorded(fault):
            check_output_law(rule, read_pair(case))
            check_support(rule, read_pair(case), [np.asarray])


@pytest.mark.parametrize("law", [IID(3), WithoutReplacement(3), TopThenSample(3)], ids=lambda law: law.name)
@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_a_sample_has_draft_mass_at_both_ends(law, convert):
    draft = np.array([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    # a coin of exactly 1 is refused on numpy and harmless elsewhere
    ends = (0.0, LAST_COIN) if convert is np.asarray else (0.0, LAST_COIN, 1.0)
    thrown = np.array(list(itertools.product(ends, repeat=3)))
    tokens = to_numpy(law.sample(convert(draft), convert(thrown)).tokens)
    assert (draft[tokens] > 0).all()
