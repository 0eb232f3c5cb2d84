"""Hypothesis profiles, benchmarks that run only when they are named, and the list of what did not run."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import settings

import proofs_check.strategies  # noqa: F401  (registers the profiles)

# `fast` and `ci` draw the same cases on every run; `deep` draws new ones.
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "fast")
settings.load_profile(f"ot-spec-{PROFILE}")

DEEP = PROFILE == "deep"
BENCHMARKS = Path(__file__).with_name("benchmarks")
_DESELECTED = pytest.StashKey[dict[str, str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_DESELECTED] = {}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    named = [(config.invocation_params.dir / arg.partition("::")[0]).resolve() for arg in config.args]
    if any(path.is_relative_to(BENCHMARKS) for path in named):
        return
    left = [item for item in items if item.path.is_relative_to(BENCHMARKS) or (not DEEP and _deep(item))]
    if left:
        items[:] = [item for item in items if item not in left]
        config.hook.pytest_deselected(items=left)


def _deep(item: pytest.Item) -> bool:
    return item.get_closest_marker("deep") is not None


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        chosen = " ".join(filter(None, (item.config.getoption("-k"), item.config.getoption("-m"))))
        reason = f"not chosen by '{chosen}'" if chosen else "named by --deselect"
        if item.path.is_relative_to(BENCHMARKS):
            reason = "a benchmark, which runs alone: make bench"
        elif not DEEP and _deep(item):
            reason = "a long search: make deep"
        item.config.stash[_DESELECTED][item.nodeid] = reason


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)  # of a worker of pytest-xdist
    if output is not None:
        output["deselected"] = session.config.stash[_DESELECTED]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
    node.config.stash[_DESELECTED].update(getattr(node, "workeroutput", {}).get("deselected", {}))


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    _summarise_faults(terminalreporter)
    _summarise_what_did_not_run(terminalreporter, config)


def _summarise_faults(terminalreporter) -> None:
    """Tier by fault: whether the audit said what it must, how long it took, and the smallest counter-example."""
    rows = [
        {**dict(report.user_properties)["audited"], "passed": outcome == "passed"}
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, [])
        if "audited" in dict(getattr(report, "user_properties", ()))
    ]
    if not rows:
        return
    terminalreporter.section("known rules under audit")
    for row in sorted(rows, key=lambda row: (row["tier"], int(row["fault"][1:]), row["rule"])):
        terminalreporter.line(
            f"{row['tier']:<12}{row['fault']:<6}{row['rule']:<32}{row['verdict']:<18}"
            f"{'' if row['passed'] else 'WRONG '}{row['seconds']:>6.2f} s  {row['counter-example']}".rstrip()
        )


def _summarise_what_did_not_run(terminalreporter, config: pytest.Config) -> None:
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
