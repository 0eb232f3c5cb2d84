"""Temperature and filters: F69, F70, F71, F74, F75, F76, F77, F79."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from ot_spec import as_exact, filtered, from_logits, from_probs, reheated
from ot_spec.arrays import as_fraction, to_numpy
from ot_spec.errors import OptionError
from proofs_check.strategies import laws as exact_laws
from tests.faults import mutants as wrong
from tests.faults.kind import Kind, mutants, ours, recorded, refused

# --- temperature -----------------------------------------------------------------------------------------------


class Heated(NamedTuple):
    """Logits (rows, V) and one temperature a row."""

    logits: np.ndarray
    temperatures: np.ndarray


def softmax(logits: np.ndarray, temperature: float) -> list[float]:
    """The law by its definition, in Python floats."""
    values = [float(v) for v in logits]
    if temperature == 0:
        first = values.index(max(values))
        return [float(y == first) for y in range(len(values))]
    weights = [math.exp((v - max(values)) / temperature) for v in values]
    return [w / math.fsum(weights) for w in weights]


def check_heated(convert, case: Heated) -> None:
    """Each row is the softmax at its own temperature, alone and in a batch, on numpy and torch."""
    expected = [softmax(row, float(t)) for row, t in zip(*case, strict=True)]
    together = convert(case.logits, temperature=case.temperatures)
    assert np.asarray(together).ravel().tolist() == pytest.approx(np.ravel(expected).tolist(), rel=1e-12, abs=1e-300)
    alone = [convert(row, temperature=float(t)) for row, t in zip(*case, strict=True)]
    assert np.array_equal(np.stack(alone), together)
    if convert is from_logits:
        tensors = from_logits(torch.as_tensor(case.logits), temperature=case.temperatures)
        assert tensors.numpy().ravel().tolist() == pytest.approx(np.ravel(expected).tolist(), rel=1e-12, abs=1e-300)


def read_heated(case: dict) -> Heated:
    logits = np.array(case.get("logits") or np.log(case["law"]), dtype=case.get("dtype", "float64"))
    temperatures = np.array(case["temperatures"])
    return Heated(np.tile(logits, (len(temperatures), 1)), temperatures)


@st.composite
def heated(draw: st.DrawFn, temperatures: st.SearchStrategy[float], dtypes: tuple = ("float64",)) -> Heated:
    rows, size = draw(st.integers(2, 3)), draw(st.integers(2, 6))
    values = draw(st.lists(st.integers(-40, 40), min_size=rows * size, max_size=rows * size))
    logits = (np.array(values) / 4).astype(draw(st.sampled_from(dtypes))).reshape(rows, size)
    return Heated(logits, np.array([draw(temperatures) for _ in range(rows)]))


USUAL = st.sampled_from([0.25, 0.5, 0.7, 1.0, 1.5, 3.0])
TINY = st.sampled_from([5e-324, 1e-300, 1e-12, 1e-6, 1e-4, 1e-3])
HALF = ("float16", "float32", "float64")

# --- filters ---------------------------------------------------------------------------------------------------


class Cut(NamedTuple):
    """A law, exact or in floats, and the filters."""

    law: np.ndarray
    top_k: Any = None
    top_p: Any = None
    min_p: Any = None

    @property
    def options(self) -> dict:
        return {"top_k": self.top_k, "top_p": self.top_p, "min_p": self.min_p}


def by_definition(case: Cut) -> tuple[list[Fraction], Fraction]:
    """Top-k, top-p of what is left, min-p of what is left, one token at a time; and how near the nearest cut was."""
    left = dict(enumerate(as_exact(case.law)))
    near = Fraction(1)

    def ranked() -> list[int]:
        return sorted(left, key=lambda y: (-left[y], y))

    def keep(tokens: list[int]) -> None:
        mass = sum(left[y] for y in tokens)
        for y in left:
            left[y] = left[y] / mass if y in tokens else Fraction(0)

    if case.top_k is not None and case.top_k > 0:
        keep(ranked()[: case.top_k])
    if case.top_p is not None and case.top_p < 1:
        kept, reached = [], Fraction(0)
        for y in ranked():
            if kept and left[y]:
                near = min(near, abs(reached - as_fraction(case.top_p)))
            if not kept or reached < as_fraction(case.top_p):
                kept.append(y)
                reached += left[y]
        keep(kept)
    if case.min_p:
        bar = as_fraction(case.min_p) * max(left.values())
        near = min([near, *(abs(left[y] - bar) for y in left if left[y])])
        keep([y for y in left if left[y] >= bar])
    return [left[y] for y in range(len(left))], near


def check_filtered(cut, case: Cut) -> None:
    """The definition, exactly on fractions; on floats the same support unless a cut is a matter of rounding."""
    expected, near = by_definition(case)
    assert cut(as_exact(case.law), **case.options).tolist() == expected, case
    law = from_probs(case.law.astype(float))
    if near < 1e-9:
        return
    for convert in (np.asarray, torch.as_tensor)[: 2 if cut is filtered else 1]:
        found = to_numpy(cut(convert(law), **case.options))
        assert found.tolist() == pytest.approx([float(m) for m in expected], abs=1e-14)
        assert ((found > 0) == [m > 0 for m in expected]).all()
        batch = to_numpy(cut(convert(np.stack([law[::-1], law])), **case.options))
        assert batch[1].tolist() == pytest.approx(found.tolist(), abs=1e-15)


def read_cut(case: dict) -> Cut:
    return Cut(np.array(case["law"]), case.get("top_k"), case.get("top_p"), case.get("min_p"))


def cuts(top_k: list = [None], top_p: list = [None], min_p: list = [None], most: int = 9) -> Any:  # noqa: B006
    return st.builds(
        Cut, exact_laws(2, 8, most), st.sampled_from(top_k), st.sampled_from(top_p), st.sampled_from(min_p)
    )


P = [None, 0.0, 0.25, 0.5, 0.8, 0.9, 1.0]
EVERY = cuts([None, -1, 0, 1, 2, 3, 4, 8, 10**9], P, [None, 0.0, 0.1, 0.5, 1.0])
FILTERED = {"filtered": filtered}
KINDS = [
    Kind(
        "F69",
        check_heated,
        read_heated,
        {"from_logits": from_logits},
        {"temperature_ignored": wrong.temperature_ignored},
        heated(USUAL),
    ),
    Kind(
        "F70",
        check_heated,
        read_heated,
        {"from_logits": from_logits},
        {"divided_by_zero": wrong.divided_by_zero},
        heated(st.sampled_from([0.0, 0.0, 0.7])),
    ),
    Kind(
        "F71",
        check_heated,
        read_heated,
        {"from_logits": from_logits},
        {"divided_before_the_maximum": wrong.divided_before_the_maximum},
        heated(TINY, HALF),
    ),
    Kind(
        "F74",
        check_filtered,
        read_cut,
        FILTERED,
        {"joint": wrong.joint_filters},
        cuts([2, 3, 4, 5], [0.25, 0.5, 0.8, 0.9]) | EVERY,
        examples=60,
    ),
    Kind(
        "F75",
        check_filtered,
        read_cut,
        FILTERED,
        {"unnormalised": wrong.unnormalised_top_k},
        cuts([1, 2], [0.25, 0.5, 0.8]),
        examples=60,
    ),
    Kind("F76", check_filtered, read_cut, FILTERED, {"zero_is_off": wrong.top_p_zero_is_off}, cuts([None, 3], P)),
    Kind(
        "F77",
        check_filtered,
        read_cut,
        FILTERED,
        {"ties_kept": wrong.ties_kept, "last_of_ties": wrong.last_of_ties},
        cuts([1, 2, 3, 4], most=2),
    ),
    Kind(
        "F79",
        check_filtered,
        read_cut,
        FILTERED,
        {"by_index": wrong.k_th_by_index},
        cuts([None, 0, -1, 1, 2, 8, 9, 10**9]),
    ),
]


@ours(KINDS)
def test_ours(kind, subject):
    kind.holds(subject)


@mutants(KINDS)
def test_mutant_is_caught(kind, mutant):
    kind.caught(mutant)


@pytest.mark.parametrize("fault", ["F69", "F70", "F71"])
def test_recorded_temperatures(fault):
    for case in recorded(fault):
        logits, temperatures = read_heated(case)
        found = from_logits(logits, temperature=temperatures)
        assert found.ravel().tolist() == pytest.approx(np.ravel(case["right"]).tolist(), rel=1e-12)


@pytest.mark.parametrize("fault", ["F74", "F75", "F76", "F77", "F79"])
def test_recorded_filters(fault):
    for case in recorded(fault):
        cut = read_cut(case)
        assert filtered(cut.law, **cut.options).tolist() == pytest.approx(case["right"], rel=1e-12)
        logits = np.log(np.where(cut.law > 0, cut.law, 1)) + np.where(cut.law > 0, 0, -np.inf)
        assert from_logits(logits, **cut.options).tolist() == pytest.approx(case["right"], rel=1e-12)


@pytest.mark.parametrize("temperature", [-1.0, -0.0001, float("nan"), float("inf")])
def test_F70_impossible_temperatures_are_refused(temperature):
    logits = np.zeros((2, 3))
    for given in (temperature, np.array([1.0, temperature]), torch.tensor([1.0, temperature], dtype=torch.float64)):
        with refused(OptionError, "temperature", str(temperature)):
            from_logits(logits, temperature=given)
    with refused(OptionError, "temperature", str(temperature)):
        reheated(np.array([0.5, 0.5]), temperature)


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-12, 1e-6])
@pytest.mark.parametrize("dtype", HALF)
def test_F71_the_limit_is_greedy_everywhere(temperature, dtype):
    """No threshold of its own: a tiny temperature and 0 give the same law, from logits and from a law."""
    logits = np.array([[10, 9, -3], [-60000, 60000, 0], [0, -np.inf, -1]], dtype=dtype)
    greedy = from_logits(logits, temperature=0)
    assert (from_logits(logits, temperature=temperature) == greedy).all()
    assert (from_logits(torch.as_tensor(logits), temperature=temperature).numpy() == greedy).all()
    assert (reheated(from_logits(logits), temperature) == greedy).all()
    assert (reheated(torch.as_tensor(from_logits(logits)), temperature).numpy() == greedy).all()


def test_F71_extreme_float64_logits_do_not_overflow():
    logits = np.array([1e308, -1e308, 0.0])
    for temperature in (0, 1e-5, 1.0, 1e5):
        assert from_logits(logits, temperature=temperature).tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("top_k", [-2, 1.5, True, float("nan"), float("inf"), "two"])
def test_F79_impossible_top_k_is_refused(top_k):
    with refused(OptionError, "top_k"):
        filtered(np.array([0.5, 0.5]), top_k=top_k)


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf")])
@pytest.mark.parametrize("option", ["top_p", "min_p"])
def test_F76_shares_outside_the_unit_interval_are_refused(option, value):
    with refused(OptionError, option, str(value)):
        filtered(np.array([0.5, 0.5]), **{option: value})
