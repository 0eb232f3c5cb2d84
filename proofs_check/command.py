"""The command `ot-spec audit`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ot_spec import IID, HubPair, TopThenSample, WithoutReplacement
from ot_spec.cli import CheckFailed, console, emit_json
from ot_spec.draft_law import DraftLaw
from ot_spec.errors import OptionError
from proofs_check.audit import KINDS, TIERS, audit
from proofs_check.subjects import ARRAYS

__all__ = ["audit_command"]

_LAWS = {"iid": IID, "without_replacement": WithoutReplacement, "top_then_sample": TopThenSample}


def audit_command(
    rule: Annotated[str, typer.Argument(help="What to audit, as module:name.", metavar="MODULE:FUNCTION")],
    kind: Annotated[str, typer.Option(help=f"Its interface: auto, {', '.join(KINDS)}.")] = "auto",
    k: Annotated[int, typer.Option(help="Candidates at a position, or sequences of a tree.")] = 2,
    length: Annotated[int, typer.Option(help="Drafted tokens, for chains, trees and decoders.")] = 2,
    vocab_max: Annotated[
        int | None, typer.Option(help="Largest vocabulary. Default: 4, or 3 for sequences.", metavar="V")
    ] = None,
    tier: Annotated[str, typer.Option(help=f"How to judge: {', '.join(TIERS)}.")] = "auto",
    arrays: Annotated[str, typer.Option(help=f"What the rule is given: {', '.join(ARRAYS)}.")] = "float64",
    coins: Annotated[
        int | None, typer.Option(help="The function takes an array of so many coins instead of a generator.")
    ] = None,
    batch: Annotated[bool, typer.Option("--batch", help="The function takes and returns rows.")] = False,
    law: Annotated[
        str, typer.Option(help=f"The draft law of the candidates: {', '.join(_LAWS)}, hub_pair (k = 2).")
    ] = "iid",
    draft_sampler: Annotated[
        str | None, typer.Option(help="What really draws the candidates.", metavar="MODULE:FUNCTION")
    ] = None,
    declared: Annotated[
        str | None,
        typer.Option(help="fn(target, draft) -> law: what a lossy rule promises.", metavar="MODULE:FUNCTION"),
    ] = None,
    tv: Annotated[float, typer.Option(help="The bias that the stratified and statistical tiers must find.")] = 0.01,
    error: Annotated[float, typer.Option(help="False alarms of the statistical tier, a run.")] = 1e-6,
    draws: Annotated[
        int | None, typer.Option(help="Most draws of a case there. Default: what the power takes.")
    ] = None,
    cases: Annotated[int | None, typer.Option(help="How many law pairs. Default: by kind and tier.")] = None,
    seed: Annotated[int, typer.Option(help="The verdict depends on it and on the options only.")] = 0,
    junit: Annotated[Path | None, typer.Option(help="Write a JUnit report to this file.", metavar="FILE")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for report.txt, report.json, junit.xml and, if biased, test_counterexample.py."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output, nothing else there.")
    ] = False,
) -> None:
    """Whether a verifier is lossless: its exact output law on small cases, and the smallest counter-example.

    The module is looked for in the current folder too. Exit status 0 if the rule is lossless, or lossy exactly as
    declared; 1 if it is biased or the tier cannot tell.

    --json gives {"rule", "kind", "verdict": "lossless" | "biased" | "lossy as declared" | "undecided", "tier",
    "cases": int, "runs": int, "seconds": number, "tv": number | null, "acceptance": [rule, optimum] | null,
    "notes": [str], "counterexample": null | {"message", "target": weights, "draft": weights, "k": int, "length":
    int, "tv": number | null, "law": {outcome: fraction} | null, "expected": the same, "test": Python source}}.
    """
    subject = _found(rule, "rule")
    if isinstance(subject, type):
        subject = subject()
    with progress_bar() as progress:
        bar = progress.add_task("audit", total=None)
        report = audit(
            subject,
            kind=kind,
            k=k,
            length=length,
            vocab_max=vocab_max,
            law=_law(law, k),
            draft_sampler=None if draft_sampler is None else _found(draft_sampler, "draft-sampler"),
            declared=None if declared is None else _found(declared, "declared"),
            tier=tier,
            arrays=arrays,
            coins=coins,
            batch=batch,
            tv=tv,
            error=error,
            draws=draws,
            cases=cases,
            seed=seed,
            progress=lambda done, many: progress.update(bar, completed=done, total=many),
        )
    if junit is not None:
        junit.write_text(report.as_junit(), encoding="utf-8")
    if out is not None:
        _write(report, out)
    if json:
        emit_json(report.as_dict())
    else:
        typer.echo(str(report))
    if not report.passed:
        why = f": {report.counterexample.message}" if report.counterexample is not None else ""
        raise CheckFailed(f"{rule} is {report.verdict}{why}")


def _found(name: str, option: str) -> Any:
    """The object that module:name stands for."""
    module, _, path = name.partition(":")
    if not module or not path:
        raise OptionError(f"{option}: write module:function, got {name!r}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as reason:
        if reason.name is None or not f"{module}.".startswith(f"{reason.name}."):
            raise OptionError(f"{option}: module {module} needs {reason.name}, which is not installed") from reason
        raise OptionError(f"{option}: there is no module {module} here or among the installed ones") from reason
    except Exception as reason:
        raise OptionError(f"{option}: module {module} raises {type(reason).__name__}: {reason}") from reason
    for part in path.split("."):
        if not hasattr(found, part):
            raise OptionError(f"{option}: module {module} has no {path}")
        found = getattr(found, part)
    if not callable(found) and not (hasattr(found, "conditional") and hasattr(found, "select")):
        raise OptionError(f"{option}: {name} cannot be called: {found!r:.60}")
    return found


def _law(name: str, k: int) -> DraftLaw | None:
    if name == "hub_pair":
        if k != 2:
            raise OptionError(f"hub_pair gives two candidates, got k = {k}")
        return HubPair()
    if name not in _LAWS:
        raise OptionError(f"--law must be one of {', '.join(_LAWS)}, hub_pair, got {name!r}")
    return None if name == "iid" else _LAWS[name](k)


def _write(report: Any, out: Path) -> None:
    import json

    out.mkdir(parents=True, exist_ok=True)
    texts = {
        "report.txt": f"{report}\n",
        "report.json": json.dumps(report.as_dict(), indent=1) + "\n",
        "junit.xml": report.as_junit(),
    }
    if report.counterexample is not None:
        texts["test_counterexample.py"] = report.as_test() + "\n"
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")


def progress_bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
