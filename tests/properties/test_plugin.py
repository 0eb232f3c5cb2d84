"""The pytest plugin, in test runs of its own."""

from __future__ import annotations

import textwrap
from importlib.metadata import entry_points

import pytest

from proofs_check import pytest_plugin

RULES = """
from fractions import Fraction

def draw(weights, rng):
    return int(rng.choice(len(weights), p=weights / weights.sum()))

def right(target, draft, candidates, rng):
    (token,) = candidates
    if rng.random() * draft[token] < target[token]:
        return token
    over = (target - draft).clip(0)
    return draw(over if over.sum() > 0 else target, rng)

def wrong(target, draft, candidates, rng):
    (token,) = candidates
    return token if rng.random() * draft[token] < target[token] else draw(target, rng)

def promised(target, draft):
    both = [min(t, d) for t, d in zip(target, draft)]
    return [b + (1 - sum(both)) * t for b, t in zip(both, target)]
"""
OPTIONS = ("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:benchmark", "-q")


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """Runs a test module that imports `rules`, without the options of this project."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.delenv("OT_SPEC_PROFILE", raising=False)
    pytester.makepyfile(rules=RULES)
    pytester.makeini("[pytest]\npythonpath = .\n")

    def start(source: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(test_it=f"from rules import *\n{textwrap.dedent(source)}")
        return pytester.runpytest_inprocess(*OPTIONS, *options)

    return start


def test_plugin_is_found_without_being_named() -> None:
    (found,) = [entry for entry in entry_points(group="pytest11") if entry.name == "ot_spec"]
    assert found.load() is pytest_plugin


def test_one_line_is_a_test(run) -> None:
    result = run(
        """
        def test_right(lossless):
            assert lossless(right, k=1).verdict == "lossless"

        def test_declared(lossless):
            assert lossless(wrong, k=1, declared=promised).verdict == "lossy as declared"

        def test_wrong(lossless):
            lossless(wrong, k=1)

        def test_report(audit):
            assert audit(wrong, k=1).verdict == "biased"
        """
    )
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*wrong: biased*", "smallest counter-example:", "*target (1/2, 1/2)*"])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*pytest_plugin.py*")


COUNT = """
    def test_extent(audit, monkeypatch):
        import proofs_check
        from types import SimpleNamespace

        seeds = []
        monkeypatch.setattr(
            proofs_check, "audit", lambda rule, seed, **_: seeds.append(seed) or SimpleNamespace(passed=rule)
        )
        audit(True)
        assert seeds == list(range(EXPECTED))
        seeds.clear()
        audit(False)
        audit(True, seed=7)
        assert seeds == [0, 7]
"""


@pytest.mark.parametrize(("profile", "seeds"), pytest_plugin.SEEDS.items())
@pytest.mark.parametrize("way", ["option", "environment"])
def test_profiles_set_the_extent(run, monkeypatch, profile: str, seeds: int, way: str) -> None:
    options = [f"--ot-spec-profile={profile}"] if way == "option" else []
    if way == "environment":
        monkeypatch.setenv("OT_SPEC_PROFILE", profile)
    run(COUNT.replace("EXPECTED", str(seeds)), *options).assert_outcomes(passed=1)


def test_unknown_profile_is_refused(run, monkeypatch) -> None:
    monkeypatch.setenv("OT_SPEC_PROFILE", "quick")
    result = run(COUNT)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*OT_SPEC_PROFILE must be one of fast, ci, deep, got 'quick'*"])


def test_hypothesis_profiles_are_there_for_the_command_line(pytester, run) -> None:
    """In a process of its own: a profile stays loaded."""
    run("def test_nothing(): pass")
    pytester.makepyfile(
        test_profile="""
        from hypothesis import settings

        def test_profile():
            assert settings.default.max_examples == 150
            assert settings.default.deadline is None
        """
    )
    result = pytester.runpytest_subprocess(*OPTIONS, "--hypothesis-profile=ot-spec-ci", "test_profile.py")
    result.assert_outcomes(passed=1)
