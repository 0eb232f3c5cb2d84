"""What decodes, comparisons and fits look like on a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpu_decoder.compare import Comparison
from gpu_decoder.fit import Fit
from gpu_decoder.metrics import Summary
from gpu_decoder.records import FILE
from gpu_decoder.run import Run
from solvers.gap.screen import new_table, output

_BAR = 30  # characters
_PARTS = {
    "target": "target calls",
    "draft": "drafting",
    "selection": "selection",
    "cache": "cache",
    "rest": "the rest",
}


def show_run(run: Run, out: Path | None) -> None:
    screen, found = output(), run.summary
    many = len(run.records)
    if many == 1 and not run.new:
        screen.print(run.records[0]["text"], highlight=False, markup=False)
    screen.print(_sums(found, f"{_counted(many, 'prompt')}, {_counted(found.tokens, 'token')}"))
    if found.offered_at:
        screen.print(_histogram(found))
    if run.measured is not None and run.measured["acceptance"]:
        screen.print(_measured_table(run.measured))
    if out is not None:
        screen.print(f"{_counted(many, 'record')} in {out / FILE} ({run.new} new)", highlight=False)


def _sums(found: Summary, title: str) -> Any:
    view = new_table(title, ("", ""))
    view.show_header = False
    view.columns[0].justify = "left"
    calls = f"  ({_counted(found.target_calls, 'call')})"
    view.add_row("tokens per target call", _number(found.block_efficiency, ".2f") + calls)
    view.add_row("drafted tokens accepted", _share(found.accept_rate))
    view.add_row("tokens per second", _number(found.tokens_per_second, ".1f"))
    whole = sum(found.seconds.values())
    for part, spent in found.seconds.items():
        share = f"  {_share(spent / whole if whole else None)}"
        view.add_row(f"time in {_PARTS.get(part, part)}", f"{spent:.2f} s{share:>8}")
    return view


def _histogram(found: Summary) -> Any:
    view = new_table("drafted tokens accepted by position", ("position", "drafted", "accepted", "share", ""))
    view.columns[-1].justify = "left"
    for place, (accepted, offered) in enumerate(zip(found.accepted_at, found.offered_at, strict=True), start=1):
        share = accepted / offered
        bar = "█" * round(_BAR * share)
        view.add_row(str(place), f"{offered:,}", f"{accepted:,}", _share(share), bar)
    return view


def _measured_table(found: dict[str, Any]) -> Any:
    depths = max(len(row["by_depth"]) for row in found["acceptance"].values())
    headings = ("selector", "law pairs", "acceptance", "of optimum", *(f"at {depth}" for depth in range(1, depths + 1)))
    view = new_table(f"acceptance at {_counted(found['nodes'], 'law pair')} met", headings)
    for name, row in found["acceptance"].items():
        by_depth = (_number(value, ".4f") for value in row["by_depth"])
        view.add_row(name, f"{row['nodes']:,}", f"{row['mean']:.4f}", _share(row["of_optimum"]), *by_depth)
    if found["predicted"] is not None:
        made = f"{found['tokens']:.3f} made"
        view.caption = f"tokens a call: {found['predicted']:.3f} ±{found['deviation']:.3f} by these laws, {made}"
    return view


def show_comparison(found: Comparison) -> None:
    headings = ("method", "drafter", "K", "L", "tokens/s", "of generate", "range", "tokens a call", "target calls")
    each = _counted(found.settings["new_tokens"], "token")
    title = f"{_counted(found.prompts, 'prompt')} of {each}, {_counted(found.rounds, 'round')}"
    view = new_table(title, headings)
    view.columns[1].justify = "left"
    for run in found.runs:
        low, high = run.ratio_range
        view.add_row(
            run.method,
            run.drafter or "",
            "" if run.candidates is None else str(run.candidates),
            "" if run.length is None else str(run.length),
            f"{run.tokens_per_second:.1f}",
            f"{run.ratio:.2f}",
            f"{low:.2f} to {high:.2f}",
            f"{run.block_efficiency:.2f}",
            f"{run.target_calls:,}",
        )
    screen = output()
    screen.print(view)
    screen.print("generate, assisted and prompt_lookup are of transformers; plain is this loop without a draft")
    for run in found.runs:
        if run.method in ("assisted", "prompt_lookup"):
            chosen = ", ".join(f"{name} = {value}" for name, value in run.settings.items())
            screen.print(f"{run.method}, the fastest on the warm-up: {chosen}", highlight=False)
    for out in found.left_out:
        screen.print(f"left out: {out['method']} ({out['reason']})", highlight=False, markup=False)


def show_fit(found: Fit) -> None:
    screen = output()
    if found.pairs:
        headings = ("drafter", "selector", "K", "L", "tokens a call", "tokens/s", "of plain")
        view = new_table(
            f"{found.target}: predicted from {_counted(found.settings['prompts'], 'short text')}", headings
        )
        view.columns[0].justify = "left"
        for pair in found.pairs:
            view.add_row(
                pair.drafter,
                pair.selector,
                str(pair.candidates),
                str(pair.length),
                f"{pair.block_efficiency:.2f}" + ("" if pair.error is None else f" ±{pair.error:.2f}"),
                f"{pair.tokens_per_second:.1f}",
                f"{pair.ratio:.2f}",
            )
        view.add_row("none", "", "", "", "1.00", f"{found.plain_tokens_per_second:.1f}", "1.00")
        screen.print(view)
    if found.rules:
        screen.print(f"rules that fit: {', '.join(found.rules)}", highlight=False)
    for out in found.refused:
        screen.print(f"does not fit: {out['drafter']} ({out['reason']})", highlight=False, markup=False)
    screen.print(found.advice, highlight=False, markup=False)


def _counted(many: int, what: str) -> str:
    return f"{many:,} {what}{'s' * (many != 1)}"


def _number(value: float | None, how: str) -> str:
    return "none" if value is None else format(value, how)


def _share(value: float | None) -> str:
    return "none" if value is None else f"{100 * value:.1f} %"
