"""Faults of tests themselves: F113, F114, F116, F117, F118."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.errors import DeadlineExceeded, FailedHealthCheck, FlakyFailure
from scipy.stats import chisquare

from proofs_check import audit
from proofs_check.faults import point_mass, single_draft
from proofs_check.strategies import PROFILES, generators, laws
from proofs_check.subjects import FunctionSubject
from proofs_check.tiers import SequentialTest, StatisticalJudge
from proofs_check.tiers.statistical import draws_for

ROOT = Path(__file__).parents[2]
quiet = settings(database=None, derandomize=True)

# --- F113: expected counts of zero -----------------------------------------------------------------------------------

Judge = Callable[[Mapping[int, int], Mapping[int, float]], bool]
SEQUENTIAL_ERROR = 1e-9


def ours(observed: Mapping[int, int], expected: Mapping[int, float]) -> bool:
    """Whether the draws are consistent with the law."""
    test = SequentialTest(expected, tv=0.3, error=SEQUENTIAL_ERROR, draws=sum(observed.values()))
    test.add(observed)
    return not test.refused


def _p_value(observed: Mapping[int, int], expected: Mapping[int, float]) -> float:
    many = sum(observed.values())
    cells = sorted(set(observed) | set(expected))
    counts = np.array([observed.get(y, 0) for y in cells])
    due = np.array([many * expected.get(y, 0.0) for y in cells])
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(chisquare(counts, due * many / due.sum()).pvalue)


def passes_if_large(observed: Mapping[int, int], expected: Mapping[int, float]) -> bool:
    return _p_value(observed, expected) > 1e-3


def passes_unless_small(observed: Mapping[int, int], expected: Mapping[int, float]) -> bool:
    return not _p_value(observed, expected) < 1e-3


def check_zero_cells(judge: Judge) -> None:
    assert judge({0: 1000, 1: 0}, {0: 1.0, 1: 0.0})
    assert judge({0: 1000}, {0: 1.0, 1: 0.0})
    assert judge({0: 520, 1: 480, 2: 0}, {0: 0.5, 1: 0.5, 2: 0.0})
    assert not judge({0: 999, 1: 1}, {0: 1.0, 1: 0.0})
    assert not judge({0: 300, 1: 700, 2: 0}, {0: 0.9, 1: 0.1, 2: 0.0})
    assert judge({0: 500, 1: 500}, {0: 0.5 - 1e-7, 1: 0.5 - 1e-7})


def test_F113_zero_cells() -> None:
    check_zero_cells(ours)


@pytest.mark.parametrize("wrong", [passes_if_large, passes_unless_small])
def test_F113_mutants(wrong: Judge) -> None:
    with pytest.raises(AssertionError):
        check_zero_cells(wrong)


@given(laws(2, 6), generators())
def test_F113_draws_of_the_law_pass_and_impossible_ones_never(law: np.ndarray, rng: np.random.Generator) -> None:
    expected = dict(enumerate(law.tolist()))
    counts = dict(enumerate(rng.multinomial(2000, law.astype(float)).tolist()))
    assert ours(counts, expected)
    for impossible in np.flatnonzero(law == 0).tolist():
        assert not ours({**counts, impossible: 1}, expected)


# --- F114: many checks share one error -------------------------------------------------------------------------------


def shared(checks: int, error: float) -> float:
    """The chance of a false alarm that each of so many cases is given."""
    subject = FunctionSubject(point_mass, 1, 4, None, None, "float64")
    return StatisticalJudge(subject, checks, error=error).level


def each_alone(checks: int, error: float) -> float:
    return error


def check_family(level: Callable[[int, float], float]) -> None:
    for checks in (1, 60, 2200):
        for error in (1e-6, 1e-3):
            assert 1 - (1 - level(checks, error)) ** checks <= error * (1 + 1e-6)


def test_F114_error_is_that_of_the_whole_run() -> None:
    check_family(shared)


def test_F114_mutant() -> None:
    with pytest.raises(AssertionError):
        check_family(each_alone)
    assert round(1 - (1 - each_alone(2200, 1e-3)) ** 2200, 2) == 0.89


def test_F114_draws_follow_from_the_bias_to_be_found_and_the_rate_is_printed() -> None:
    report = audit(point_mass, k=1, tier="statistical", tv=0.2, cases=3)
    assert "false-alarm rate 1e-06 a run" in str(report)
    assert "a bias of TV 0.2 on a case is found with power 0.99" in str(report)
    sizes = [draws_for(10, tv, 1e-6) for tv in (0.2, 0.02, 0.002)]
    assert sizes[0] * 90 < sizes[1] < sizes[0] * 110 and sizes[1] * 90 < sizes[2] < sizes[1] * 110
    assert SequentialTest(dict.fromkeys(range(10), 0.1), tv=0.02, error=1e-6).draws == sizes[1]


# --- F116: strategies that filter ------------------------------------------------------------------------------------


@st.composite
def filtered_simplex(draw: st.DrawFn) -> np.ndarray:
    """Points of the simplex by rejection."""
    drawn = np.array(draw(st.lists(st.floats(0, 1), min_size=4, max_size=4)))
    assume(abs(drawn.sum() - 1) < 1e-6)
    return drawn


def check_unfiltered(strategy: st.SearchStrategy) -> None:
    @settings(quiet, suppress_health_check=[], deadline=None, max_examples=60)
    @given(strategy)
    def run(law: np.ndarray) -> None:
        assert abs(float(sum(law)) - 1) < 1e-6

    run()


def test_F116_laws_are_built_and_not_sought() -> None:
    check_unfiltered(laws())


def test_F116_mutant() -> None:
    with pytest.raises(FailedHealthCheck):
        check_unfiltered(filtered_simplex())


# --- F117: a slow first call -----------------------------------------------------------------------------------------


class Compiled:
    """Slow once, as what is compiled or started on first use."""

    def __init__(self) -> None:
        self.warm = False

    def __call__(self, law: np.ndarray) -> None:
        if not self.warm:
            time.sleep(0.5)
            self.warm = True


def check_slow_start(profile: settings) -> None:
    called = Compiled()

    @settings(profile, database=None, max_examples=3)
    @given(laws())
    def run(law: np.ndarray) -> None:
        called(law)

    run()


@pytest.mark.parametrize("name", PROFILES)
def test_F117_slow_first_call(name: str) -> None:
    check_slow_start(PROFILES[name])


def test_F117_mutant() -> None:
    with pytest.raises((DeadlineExceeded, FlakyFailure)):
        check_slow_start(settings(deadline=200, suppress_health_check=[HealthCheck.too_slow]))


def test_F117_no_wall_clock_in_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine so slow that no time is left to shrink, the verdict stays."""
    ticks = iter(range(0, 10**9, 3600))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(ticks)))
    report = audit(single_draft, k=1, draft_sampler=lambda draft, rng: (int(np.argmax(draft)),))
    assert report.verdict == "biased" and report.counterexample is not None
    assert audit(single_draft, k=1, cases=10).verdict == "lossless"


# --- F118: randomness that is not drawn ------------------------------------------------------------------------------


def check_replay(draws: st.SearchStrategy) -> None:
    """A failure is found again, and shrunk, because the same example gives the same verdict."""

    @settings(quiet, deadline=None, max_examples=40)
    @given(draws)
    def run(draw: Any) -> None:
        if not draw.random() < 0.9:
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        run()


def test_F118_drawn_seeds_are_replayed() -> None:
    check_replay(generators())


def test_F118_mutant() -> None:
    hidden = np.random.default_rng(5)
    with pytest.raises(FlakyFailure):
        check_replay(st.integers(0, 999).map(lambda _: hidden))


_GLOBAL = ("random", "np.random", "numpy.random", "torch")
_SEEDED = ("default_rng", "Generator", "PCG64", "SeedSequence", "fork_rng")
_TORCH = ("manual_seed", "rand", "randn", "randint", "rand_like", "multinomial", "bernoulli", "randperm", "normal")


def global_draws(source: str) -> list[str]:
    """Calls of global generators inside property tests."""
    found = []
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        decorators = [ast.unparse(d.func if isinstance(d, ast.Call) else d) for d in function.decorator_list]
        if not any(name.split(".")[-1] == "given" for name in decorators):
            continue
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                owner, name = ast.unparse(call.func.value), call.func.attr
                drawn = any(word.arg == "generator" for word in call.keywords)
                known = name in _TORCH if owner == "torch" else name not in _SEEDED
                if owner in _GLOBAL and known and not drawn:
                    found.append(f"{function.name}: {owner}.{name}")
    return found


def test_F118_no_property_test_draws_from_a_global_generator() -> None:
    files = sorted((ROOT / "tests").rglob("*.py"))
    assert len(files) > 20
    assert {str(file): found for file in files if (found := global_draws(file.read_text(encoding="utf-8")))} == {}


def test_F118_scan_sees_them() -> None:
    source = """
@settings(deadline=None)
@given(laws())
def test_it(law):
    np.random.seed(0)
    torch.rand(3)
    torch.rand(3, generator=generator)
    np.random.default_rng(0).random()
    random.random()

def helper():
    np.random.rand()
"""
    assert global_draws(source) == ["test_it: np.random.seed", "test_it: torch.rand", "test_it: random.random"]


def test_F118_same_arguments_same_report() -> None:
    """Also in the tier that samples."""
    for tier in ("exact", "statistical"):
        first, second = (
            audit(single_draft, k=1, tier=tier, tv=0.2, cases=4, seed=3, draft_sampler=lambda draft, rng: (0,))
            for _ in range(2)
        )
        assert str(first.counterexample) == str(second.counterexample)
        assert (first.verdict, first.runs) == (second.verdict, second.runs)
