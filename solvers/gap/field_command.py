"""The command `ot-spec field`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from ot_spec.cli import emit_json
from solvers.gap.field import FILTERS, METHODS, SOFTMAX_NORMAL, VOCABULARIES, field_study, field_summary
from solvers.gap.field_pictures import draw_field
from solvers.gap.screen import families_of, names_of, new_table, numbers_of, output, progress_bar
from solvers.gap.study import write

__all__ = ["field_command"]

Frame = Any  # a DataFrame; its declared return types are unions too wide to check against

_LAWS = {"iid": "i.i.d.", "without_replacement": "w/o repl.", "top_then_sample": "top"}
_FILTER_HELP = "Such as top_k=50, top_p=0.9, none, or top_k=50,top_p=0.9; may be given several times. Default: "


def field_command(
    captured: Annotated[
        list[Path] | None,
        typer.Option(help="Folder or file of captured laws; may be given several times.", metavar="PATH"),
    ] = None,
    family: Annotated[
        list[str] | None,
        typer.Option(help=f"Random family; may be given several times. Default: {SOFTMAX_NORMAL}.", metavar="NAME"),
    ] = None,
    vocab: Annotated[
        str, typer.Option(help="Vocabularies of the families, separated by commas; '' for captured laws alone.")
    ] = ",".join(map(str, VOCABULARIES)),
    k: Annotated[str, typer.Option(help="Numbers of candidates, separated by commas.")] = "2,4,8,16,32,64",
    filter_: Annotated[
        list[str] | None,
        typer.Option("--filter", help=_FILTER_HELP + ", ".join(FILTERS) + ".", metavar="FILTER"),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help=f"Separated by commas, among {', '.join(METHODS)}. Default: all.")
    ] = None,
    rows: Annotated[int, typer.Option(help="Law pairs of each family and vocabulary.")] = 1,
    limit: Annotated[int, typer.Option(help="Rows of each capture, evenly spread.")] = 4,
    budget: Annotated[float, typer.Option(help="CPU seconds a law after which nothing larger is tried.")] = 2.0,
    runs: Annotated[int, typer.Option(help="Most runs of each line, in which the least time counts.")] = 3,
    seed: Annotated[int, typer.Option(help="Laws and candidates depend on it.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for the table and the pictures.")] = None,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output, nothing else there.")
    ] = False,
) -> None:
    """CPU time a law and acceptance of every method, from 50 tokens to a full vocabulary.

    A selector's time is that of one select on one row with nothing prepared; that of 'optimum' the number alpha*
    alone; that of lp, max_flow and pot stating the transport problem and solving it. Least CPU time of some runs in
    one process, its threads added up: OMP_NUM_THREADS=1 keeps it to one. What is too large or over the budget has a
    line that says so. --out gets field.csv, field.parquet, summary.csv and pictures (png, svg).

    --json gives {"rows": lines of the whole table, "seed": int, "seconds": number, "summary": [{"source", "vocab",
    "filter", "k", "law", "method", "kind", "rows", "support", "seconds", "acceptance", "acceptance_error",
    "optimum", "share", "status", "note"}], "files": [paths]}.
    """
    started = time.monotonic()
    with progress_bar() as progress:
        bar = progress.add_task("field study", total=None)
        table = field_study(
            methods=None if methods is None else names_of(methods),
            k=numbers_of("k", k, int),
            families=None if family is None else families_of(family),
            vocab=numbers_of("vocab", vocab, int),
            captured=captured or (),
            filters=filter_ or FILTERS,
            rows=rows,
            limit=limit,
            budget=budget,
            runs=runs,
            seed=seed,
            callback=lambda done, many: progress.update(bar, completed=done, total=many),
        )
    short: Frame = field_summary(table)
    files = [] if out is None else _written(table, short, out)
    if json:
        emit_json(
            {
                "rows": len(table),
                "seed": seed,
                "seconds": time.monotonic() - started,
                "summary": short.to_dict("records"),
                "files": [str(file) for file in files],
            }
        )
        return
    screen = output()
    for (source, size, text), lines in short.groupby(["source", "vocab", "filter"], sort=False):
        screen.print(
            f"{source}, V = {size:,}, filter {text}: CPU ms a law, acceptance", style="italic", highlight=False
        )
        screen.print(_setting(lines))
    if files:
        screen.print(f"written to {out}: field.csv, field.parquet, summary.csv and {len(files) - 3} pictures")


def _written(table: Frame, short: Frame, out: Path) -> list[Path]:
    out.mkdir(parents=True, exist_ok=True)
    return [
        write(out / "field.csv", lambda file: table.to_csv(file, index=False)),
        write(out / "field.parquet", lambda file: table.to_parquet(file, index=False)),
        write(out / "summary.csv", lambda file: short.to_csv(file, index=False)),
        *draw_field(table, out),
    ]


def _setting(lines: Frame) -> Table:
    """A line a method and draft law, a column a k."""
    counts = sorted(lines["k"].unique())
    view = new_table(None, ("draft law", "method", *(f"k = {k}" for k in counts)))
    for (law, method), rows in lines.groupby(["law", "method"], sort=False):
        cells = {row["k"]: _cell(row) for _, row in rows.iterrows()}
        view.add_row(_LAWS[law], method, *(cells[k] for k in counts))
    return view


def _cell(row: Any) -> str:
    if np.isnan(row["seconds"]):
        return row["status"]
    spent = 1e3 * row["seconds"]
    time_ = f"{spent:,.0f}" if spent >= 100 else f"{spent:.2g}"
    return time_ if np.isnan(row["acceptance"]) else f"{time_} {row['acceptance']:.3f}"
