"""Hypothesis profiles, benchmarks that run only when they are named, and the list of what did not run."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# `fast` and `ci` draw the same cases on every run; `deep` draws new ones. The speed of the machine decides no
# verdict: no deadline, and no complaint about slow generation.
_COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fast", _COMMON, derandomize=True, max_examples=40)
settings.register_profile("ci", _COMMON, derandomize=True, max_examples=150)
settings.register_profile("deep", _COMMON, max_examples=3000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "fast"))

BENCHMARKS = Path(__file__).with_name("benchmarks")
_DESELECTED = pytest.StashKey[dict[str, str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_DESELECTED] = {}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    named = [(config.invocation_params.dir / arg.partition("::")[0]).resolve() for arg in config.args]
    if any(path.is_relative_to(BENCHMARKS) for path in named):
        return
    benchmarks = [item for item in items if item.path.is_relative_to(BENCHMARKS)]
    if benchmarks:
        items[:] = [item for item in items if not item.path.is_relative_to(BENCHMARKS)]
        config.hook.pytest_deselected(items=benchmarks)


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        chosen = " ".join(filter(None, (item.config.getoption("-k"), item.config.getoption("-m"))))
        reason = f"not chosen by '{chosen}'" if chosen else "named by --deselect"
        if item.path.is_relative_to(BENCHMARKS):
            reason = "a benchmark, which runs alone: make bench"
        item.config.stash[_DESELECTED][item.nodeid] = reason


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)  # of a worker of pytest-xdist
    if output is not None:
        output["deselected"] = session.config.stash[_DESELECTED]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
    node.config.stash[_DESELECTED].update(getattr(node, "workeroutput", {}).get("deselected", {}))


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    """Name every test that did not run, by reason: a skip is not a pass."""
    reasons = defaultdict(list)
    for nodeid, reason in config.stash[_DESELECTED].items():
        reasons[reason].append(nodeid)
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[reason.removeprefix("Skipped: ")].append(report.nodeid)
    for report in terminalreporter.stats.get("xfailed", []):
        reasons[f"known to fail: {report.wasxfail}"].append(report.nodeid)
    terminalreporter.section("what did not run, and why")
    if not reasons:
        terminalreporter.line("nothing: every collected test ran")
    for reason, nodeids in sorted(reasons.items()):
        terminalreporter.line(f"{reason} ({len(nodeids)})")
        for nodeid in sorted(nodeids):
            terminalreporter.line(f"    {nodeid}")
