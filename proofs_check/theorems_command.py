"""The command `ot-spec theorems`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from ot_spec.cli import CheckFailed, emit_json
from ot_spec.errors import OptionError
from proofs_check.command import progress_bar
from proofs_check.theorems.ledger import Outcome, run, theorems, title
from proofs_check.theorems.theorem import NOTATION
from solvers.gap.screen import output
from solvers.gap.study import write

__all__ = ["theorems_command"]


def theorems_command(
    full: Annotated[
        bool,
        typer.Option("--full/--fast", help="Every proof and all instances, and the falsifiers; or fewer, in a minute."),
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(help="A theorem (spectr.3) or a paper (spectr); may be given several times.", metavar="ID"),
    ] = None,
    seed: Annotated[int, typer.Option(help="The instances depend on it and on the options only.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for theorems.json and theorems.md.")] = None,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output, nothing else there.")
    ] = False,
) -> None:
    """Statements of the field: proved, certified on instances, tested, or refuted, each checked again here.

    Exit status 0 if every entry reaches the status that the ledger promises, 1 otherwise. Some proofs need z3.

    --json gives {"theorems": [{"id", "statement", "source", "status": "proved" | "certified" | "tested" | "refuted" |
    null, "scope", "seconds": CPU seconds, "promised": a status, "example": str | null, "passed": bool}]}; status is
    null where a check gave no verdict, and scope then says why.
    """
    if seed < 0:
        raise OptionError(f"seed must be at least 0, got {seed}")
    names = only or ()
    outcomes: list[Outcome] = []
    with progress_bar() as progress:
        bar = progress.add_task("theorems", total=len(theorems(names)))
        for outcome in run(names, full=full, seed=seed, falsify=full):
            outcomes.append(outcome)
            progress.advance(bar)
    rows = [outcome.as_dict() for outcome in outcomes]
    if out is not None:
        _write(rows, out)
    if json:
        emit_json({"theorems": rows})
    else:
        _show(outcomes)
    failed = [outcome for outcome in outcomes if not outcome.passed]
    if failed:
        what = f"{len(failed)} of {len(outcomes)} theorems are not what the ledger promises"
        raise CheckFailed(f"{what}: {'; '.join(_reasons(failed))}")


def _reasons(failed: list[Outcome]) -> list[str]:
    """A sentence for each entry, and one for all that came to no verdict for the same reason."""
    silent: dict[str, list[str]] = {}
    for outcome in failed:
        if outcome.status is None:
            silent.setdefault(outcome.scope, []).append(outcome.theorem.id)
    told = [outcome.sentence() for outcome in failed if outcome.status is not None]
    return told + [f"no verdict on {', '.join(ids)}: {why}" for why, ids in silent.items()]


def _show(outcomes: list[Outcome]) -> None:
    """A table for each paper, and the counter-examples under it."""
    screen, papers = output(), dict[str, list[Outcome]]()
    for outcome in outcomes:
        papers.setdefault(outcome.theorem.id.partition(".")[0], []).append(outcome)
    for paper, found in papers.items():
        view = Table(title=escape(title(paper)), title_justify="left", show_lines=True, expand=True)
        view.add_column("theorem", overflow="fold", ratio=3)
        view.add_column("status", no_wrap=True)
        view.add_column("scope", overflow="fold", ratio=1)
        view.add_column("s", justify="right", no_wrap=True)
        for outcome in found:
            theorem = outcome.theorem
            lines = [f"[bold]{theorem.id}[/]", escape(theorem.statement)]
            if outcome.example is not None:
                lines.append(f"[italic]Counter-example[/]: {escape(outcome.example)}.")
            lines.append(f"[dim]{escape(theorem.source)}[/]")
            status = outcome.status or "no verdict"
            promised = "" if outcome.passed else f"\nnot {theorem.promised}"
            view.add_row("\n".join(lines), status + promised, escape(outcome.scope), f"{outcome.seconds:.2f}")
        screen.print(view)
    counts = {
        status: sum(o.status == status for o in outcomes) for status in ("proved", "certified", "tested", "refuted")
    }
    told = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    many = "1 theorem" if len(outcomes) == 1 else f"{len(outcomes)} theorems"
    screen.print(f"{NOTATION}.\n{many}: {told}", markup=False, highlight=False)


def _write(rows: list[dict[str, Any]], out: Path) -> None:
    import json

    out.mkdir(parents=True, exist_ok=True)
    lines = ["# Theorems", "", f"{NOTATION}.", ""]
    for row in rows:
        lines += [f"## {row['id']}: {row['status'] or 'no verdict'}", "", str(row["statement"]), ""]
        lines += [f"Source: {row['source']}. Checked: {row['scope']}.", ""]
        if row["example"] is not None:
            lines += [f"Counter-example: {row['example']}.", ""]
    texts = {"theorems.json": json.dumps({"theorems": rows}, indent=1, ensure_ascii=False) + "\n"}
    texts["theorems.md"] = "\n".join(lines)
    for name, text in texts.items():
        write(out / name, lambda file, text=text: file.write_text(text, encoding="utf-8"))
