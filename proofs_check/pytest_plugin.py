"""A pytest plugin: audits as tests of one line.

    def test_my_sampler_is_lossless(lossless):
        lossless(my_sampler, k=2)

Registered under the entry-point group `pytest11`, so that it is there wherever the package is installed. It offers the
fixtures `lossless` and `audit`, the option `--ot-spec-profile` for their extent, and the Hypothesis profiles
"ot-spec-fast", "ot-spec-ci" and "ot-spec-deep" for `--hypothesis-profile`.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

import pytest

from proofs_check.report import Report

SEEDS = {"fast": 1, "ci": 3, "deep": 20}


class Auditor(Protocol):
    """`audit`, or `lossless`, as a fixture."""

    def __call__(self, rule: Any, **options: Any) -> Report: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("ot-spec", "audits of verifiers").addoption(
        "--ot-spec-profile",
        choices=sorted(SEEDS),
        default=None,
        help="extent of audits: cases of 1 seed (fast, the default), 3 (ci) or 20 (deep); also OT_SPEC_PROFILE",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if str(config.getoption("--hypothesis-profile", None)).startswith("ot-spec-"):
        import proofs_check.strategies  # noqa: F401  (registers the profiles)


@pytest.fixture(scope="session")
def audit(pytestconfig: pytest.Config) -> Auditor:
    """`proofs_check.audit`, repeated over as many seeds as the profile says; the first report that does not pass."""
    profile = pytestconfig.getoption("--ot-spec-profile") or os.environ.get("OT_SPEC_PROFILE", "fast")
    if profile not in SEEDS:
        raise pytest.UsageError(f"OT_SPEC_PROFILE must be one of {', '.join(SEEDS)}, got {profile!r}")

    def run(rule: Any, **options: Any) -> Report:
        from proofs_check import audit

        given = "seed" in options or isinstance(options.get("cases"), list | tuple)
        reports = (audit(rule, **{"seed": seed, **options}) for seed in range(1 if given else SEEDS[profile]))
        report = next(reports)
        while report.passed and (following := next(reports, None)):
            report = following
        return report

    return run


@pytest.fixture(scope="session")
def lossless(audit: Auditor) -> Auditor:
    """`lossless(rule, **options)` fails unless the rule keeps its law: the target's, or the declared one."""

    def check(rule: Any, **options: Any) -> Report:
        __tracebackhide__ = True
        report = audit(rule, **options)
        if not report.passed:
            pytest.fail(str(report), pytrace=False)
        return report

    return check
