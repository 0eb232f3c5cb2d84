"""The command `ot-spec gap`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from rich.progress import Progress
from rich.table import Table

from ot_spec.cli import emit_json
from ot_spec.families import FAMILIES
from solvers import get_selector
from solvers.gap.pictures import draw_pictures
from solvers.gap.screen import families_of, names_of, new_table, numbers_of, output, progress_bar
from solvers.gap.study import (
    DRAFT_LAWS,
    OPTIMUM,
    SLOW_SELECTORS,
    default_selectors,
    gap_study,
    labelled,
    summary,
    write,
)
from solvers.gap.tuned import REFERENCES, tuned
from solvers.gap.worst import WorstCase, worst_case

__all__ = ["gap_command"]

Frame = Any  # a DataFrame; its declared return types are unions too wide to check against

_NOT_SEARCHED = ("importance",)  # solves a problem of its own for every pair: minutes, unless it is asked for
_SELECTORS_HELP = f"Selectors, separated by commas. Default: all but {', '.join(SLOW_SELECTORS)} (slow)."
_FAMILY_HELP = (
    f"Random family: {', '.join(FAMILIES)}, or all; with parameters as in dirichlet:concentration=0.1; "
    "may be given several times. Default: all, or none beside --captured."
)


def gap_command(
    captured: Annotated[
        list[Path] | None,
        typer.Option(help="Folder or file of captured laws; may be given several times.", metavar="PATH"),
    ] = None,
    family: Annotated[list[str] | None, typer.Option(help=_FAMILY_HELP, metavar="NAME")] = None,
    vocab: Annotated[int, typer.Option(help="Tokens of the random laws.")] = 64,
    rows: Annotated[int, typer.Option(help="Law pairs of each family.")] = 32,
    limit: Annotated[int | None, typer.Option(help="Rows of each capture, evenly spread. Default: all.")] = None,
    k: Annotated[str, typer.Option(help="Numbers of candidates, separated by commas.")] = "1,2,4,8",
    selectors: Annotated[str | None, typer.Option(help=_SELECTORS_HELP, metavar="NAMES")] = None,
    laws: Annotated[str, typer.Option(help="Draft laws, separated by commas.")] = ",".join(DRAFT_LAWS),
    target_temperature: Annotated[
        str, typer.Option(help="Temperatures by which the target is reheated, separated by commas.")
    ] = "1",
    draft_temperature: Annotated[
        str, typer.Option(help="Temperatures by which the draft is reheated; with several, each rule is tuned.")
    ] = "1",
    dear_rows: Annotated[
        int, typer.Option(help="Rows of a source with drafts without replacement beyond 4,096 tokens.")
    ] = 6,
    bound: Annotated[
        bool, typer.Option(help="The marginal bound too, most of the time of drafts without replacement.")
    ] = True,
    worst: Annotated[
        bool, typer.Option("--worst-case", help="Also search the law pairs on which selectors lose most.")
    ] = False,
    jobs: Annotated[int, typer.Option(help="Processes; -1 for all cores.")] = 1,
    seed: Annotated[int, typer.Option(help="The table depends on it and on the options only.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for tables and pictures; a killed study continues in it."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output, nothing else there.")
    ] = False,
) -> None:
    """How far selectors are from the optimum, on random families and on captured laws.

    The tables show per source, draft law, k and draft temperature T the mean of the optimum alpha* and of the
    marginal bound, and for each selector its mean acceptance and its share of the optimum, on average and in
    the worst row. With several draft temperatures a last table has each rule at the best of them, and what the
    optimum of independent drafts and of drafts without replacement wins over it, row by row. --out gets gap.csv,
    gap.parquet, summary.csv, tuned.csv and pictures (png, svg).

    --json gives {"rows": lines of the whole table, "seed": int, "seconds": number, "summary": [{"source",
    "law", "k", "target_temperature", "draft_temperature", "selector", "rows", "acceptance", "acceptance_error",
    "optimum", "marginal_bound", "mean_ratio", "worst_ratio", "guarantee"}], "tuned": [{"source",
    "target_temperature", "k", "law", "selector", "draft_temperature", "edge", "rows", "acceptance",
    "standard_error", "won_by_iid", "won_by_iid_error", "won_by_without_replacement",
    "won_by_without_replacement_error"}], "worst_cases": [{"selector", "law", "k",
    "target", "draft", "acceptance", "optimum", "ratio", "guarantee", "evaluated"}], "files": [paths]}.
    The lines of selector "optimum" are alpha* itself.
    """
    started = time.monotonic()
    counts = numbers_of("k", k, int)
    target_temperatures = numbers_of("target-temperature", target_temperature, float)
    draft_temperatures = numbers_of("draft-temperature", draft_temperature, float)
    names = names_of(selectors) if selectors is not None else None
    families = None if family is None else families_of(family)
    with progress_bar() as progress:
        bar = progress.add_task("gap study", total=None)
        table = gap_study(
            selectors=names,
            draft_laws=names_of(laws),
            k=counts,
            target_temperatures=target_temperatures,
            draft_temperatures=draft_temperatures,
            families=families,
            captured=captured or (),
            vocab=vocab,
            rows=rows,
            limit=limit,
            dear_rows=dear_rows,
            bound=bound,
            seed=seed,
            jobs=jobs,
            resume_dir=out,
            callback=lambda done, many: progress.update(bar, completed=done, total=many),
        )
        cases = _worst_cases(names, names_of(laws), counts, seed, progress) if worst else []
    short = summary(table)
    best: Frame = tuned(table)
    files = [] if out is None else _written(table, short, best, out)
    if json:
        emit_json(
            {
                "rows": len(table),
                "seed": seed,
                "seconds": time.monotonic() - started,
                "summary": short.to_dict("records"),
                "tuned": best.to_dict("records"),
                "worst_cases": [vars(case) for case in cases],
                "files": [str(file) for file in files],
            }
        )
        return
    screen = output()
    ordered: Frame = labelled(short).sort_values(["law", "k", "draft_temperature"], key=_place(short), kind="stable")
    for source in labelled(table)["source"].unique():
        screen.print(_source_table(ordered[ordered["source"] == source], source))
    if len(set(draft_temperatures)) > 1 and len(best):
        for source, lines in labelled(best).groupby("source", sort=False):
            screen.print(_tuned_table(lines, str(source)))
    for note in _notes(table):
        screen.print(note, highlight=False)
    if cases:
        screen.print(_case_table(cases))
    if files:
        what = f"gap.csv, gap.parquet, summary.csv, tuned.csv and {len(files) - 4} pictures"
        screen.print(f"written to {out}: {what}", highlight=False)


def _worst_cases(
    names: list[str] | None, laws: list[str], counts: list[int], seed: int, progress: Progress
) -> list[WorstCase]:
    if names is None:
        names = [name for name in default_selectors() if name not in _NOT_SEARCHED]
    rules = [get_selector(name) for name in names]
    wanted = [
        (rule, law, k) for law in laws for k in counts for rule in rules if k > 1 and rule.supports(DRAFT_LAWS[law](k))
    ]
    bar = progress.add_task("worst cases", total=len(wanted))
    cases = []
    for rule, law, k in wanted:
        # two tokens are enough for independent drafts; elsewhere k of them are all the candidates there are
        tokens = 2 if law == "iid" else k + 1
        budget = 2000 if law == "without_replacement" else 20_000  # its tuples are enumerated for every pair
        cases.append(worst_case(rule, k, vocab=tokens, law=law, seed=seed, budget=budget))
        progress.advance(bar)
    return cases


def _written(table: Frame, short: Frame, best: Frame, out: Path) -> list[Path]:
    return [
        write(out / "gap.csv", lambda file: table.to_csv(file, index=False)),
        write(out / "gap.parquet", lambda file: table.to_parquet(file, index=False)),
        write(out / "summary.csv", lambda file: short.to_csv(file, index=False)),
        write(out / "tuned.csv", lambda file: best.to_csv(file, index=False)),
        *draw_pictures(table, out),
    ]


def _source_table(short: Frame, source: str) -> Table:
    headings = (
        "draft law",
        "k",
        "T",
        "rows",
        "optimum",
        "bound",
        "selector",
        "acceptance",
        "of optimum",
        "worst",
    )
    view = new_table(f"{source}: mean acceptance", headings)
    last = None
    for (law, k, temperature), lines in short.groupby(["law", "k", "draft_temperature"], sort=False):
        best = lines[lines["selector"] == OPTIMUM].iloc[0]
        rules = lines[lines["selector"] != OPTIMUM]
        if k == 1 and len(rules):
            rules = _alike(rules)
        cells = [_cells(rule) for _, rule in rules.iterrows()] or [("none", "", "", "")]
        if last is not None and law != last:
            view.add_section()
        about = [str(k), f"{temperature:g}", str(best["rows"]), _value(best), f"{best['marginal_bound']:.4f}"]
        view.add_row(law if law != last else "", *about, *cells[0])
        for others in cells[1:]:
            view.add_row(*[""] * 6, *others)
        last = law
    return view


def _tuned_table(best: Frame, source: str) -> Table:
    """Rules at their best draft temperatures, the most accepting first."""
    won = [f"won by {reference}" for reference in REFERENCES]
    view = new_table(
        f"{source}: at the best draft temperature T", ("k", "draft law", "selector", "T", "acceptance", *won)
    )
    for k, lines in best.groupby("k"):
        ordered = (_alike(lines) if k == 1 else lines).sort_values("acceptance", ascending=False, kind="stable")
        for place, (_, line) in enumerate(ordered.iterrows()):
            shown = [
                _with_error(line[f"won_by_{reference}"], line[f"won_by_{reference}_error"]) for reference in REFERENCES
            ]
            temperature = f"{line['draft_temperature']:g}" + ("*" if line["edge"] else "")
            acceptance = _with_error(line["acceptance"], line["standard_error"])
            view.add_row("" if place else str(k), line["law"], line["selector"], temperature, acceptance, *shown)
        view.add_section()
    view.caption = "± standard errors over rows; * an end of the grid of temperatures"
    return view


def _with_error(value: float, error: float) -> str:
    return "" if np.isnan(value) else f"{round(value, 4) + 0:.4f}" + ("" if np.isnan(error) else f" ±{error:.4f}")


def _alike(rules: Frame) -> Frame:
    """One line for all selectors of the same acceptance: with one candidate most are one rule."""
    lines = []
    for _, group in rules.groupby(rules["acceptance"].round(9), sort=False):
        name = min(group["selector"], key=len)
        lines.append(group.iloc[:1].assign(selector=f"{name} (and {len(group) - 1} more)" if len(group) > 1 else name))
    return pd.concat(lines)


def _place(short: Frame) -> Callable[[Any], Any]:
    """A sorting key by which draft laws stay in the order of the study."""
    places = {law: place for place, law in enumerate(short["law"].unique())}
    return lambda column: column.map(places) if column.name == "law" else column


def _value(line: Any) -> str:
    error = line["acceptance_error"]
    return f"{line['acceptance']:.4f}" + (f" ±{error:.4f}" if error >= 5e-5 else "")


def _cells(line: Any) -> tuple[str, str, str, str]:
    share, worst = (f"{100 * line[name]:.1f} %" for name in ("mean_ratio", "worst_ratio"))
    return line["selector"], _value(line), share, worst


def _notes(table: Frame) -> list[str]:
    notes = []
    for note, lines in table[table["kind"] == "left out"].groupby("note", sort=False):
        names = ", ".join(lines["selector"].unique())
        notes.append(f"left out of {', '.join(lines['source'].unique())} ({note}): {names}")
    meanings = {"estimate": "standard error", "bracket": "half the width of a proven bracket"}
    known = [meaning for kind, meaning in meanings.items() if (table["kind"] == kind).any()]
    return [*notes, f"±: {', or '.join(known)}, the largest of the rows"] if known else notes


def _case_table(cases: list[WorstCase]) -> Table:
    headings = "selector", "draft law", "k", "of optimum", "guaranteed", "target", "draft"
    view = new_table("worst law pairs found", headings)
    for case in cases:
        if case.ratio > 1 - 1e-9:  # no pair found on which it loses: there is none to show
            view.add_row(case.selector, case.law, str(case.k), f"{100 * case.ratio:.2f} %", "", "none found", "")
            continue
        pair = case.target, case.draft
        masses = (" ".join(f"{m:.2f}" for m in law[:3]) + " .." * (len(law) > 3) for law in pair)
        shown = f"{100 * case.guarantee:.2f} %" if case.selector == "k_seq" else ""
        numbers = str(case.k), f"{100 * case.ratio:.2f} %", shown
        view.add_row(case.selector, case.law, *numbers, *masses)
    return view
