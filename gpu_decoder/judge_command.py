"""The command `ot-spec judge`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from filelock import FileLock, Timeout

from gpu_decoder.distil.card import worth
from gpu_decoder.distil.evaluate import judge
from gpu_decoder.distil.progress import on_console
from gpu_decoder.drafters import get_drafter
from gpu_decoder.models import DEFAULT, load
from gpu_decoder.options import AsJson, Device, DType, Prompts, Target
from gpu_decoder.prompt_file import DEMO_PROMPTS, held_out, read_prompts
from gpu_decoder.verify import TreeReader
from ot_spec.cli import emit_json
from ot_spec.errors import OptionError, RecordFileError
from solvers.gap.screen import new_table, output


def judge_command(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to work in, or to go on in.")],
    draft: Annotated[
        str | None,
        typer.Option(
            help="As in decode: trained, a folder with a drafter, exit:N. Default: trained where it fits the target.",
            show_default=False,
        ),
    ] = None,
    target: Target = DEFAULT,
    prompts: Prompts = DEMO_PROMPTS,
    hold_out: Annotated[
        int | None,
        typer.Option(help="Only so many of them, those that distil holds out with this seed.", show_default=False),
    ] = None,
    tokens: Annotated[int, typer.Option(help="Positions of the target's own answer to each prompt.")] = 24,
    rows: Annotated[int, typer.Option(help="Positions that the selectors are judged on, evenly spread.")] = 96,
    dear_rows: Annotated[
        int, typer.Option(help="The same for drafts without replacement of more than 4,096 tokens.")
    ] = 12,
    dtype: DType = "float32",
    device: Device = "cpu",
    seed: Annotated[int, typer.Option(help="Of the target's text, and of the prompts held out.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Say what a drafter is worth: how often its drafts are accepted, by selector and k, and what a draft costs.

    The target answers the prompts at temperatures 1 and 0.6; at each position of its answers the law of the drafter is
    held against its own. Written to DIR: evaluation.json, and evaluation.md, the part of a drafter's card that says it.
    An interrupted evaluation goes on; a folder of other prompts or another drafter is refused.

    --json prints {"prompts": [string], "tokens": int, "temperatures": {temperature: {"positions", "overlap",
    "overlap_error", "overlaps": {draft temperature: number}, "target_entropy", "selectors": [{"k", "law", "selector",
    "draft_temperature", "edge", "rows", "acceptance", "standard_error", ..}]}}, "cost": {"target", "draft", "ratio"}}:
    means of sum min(target, draft), acceptances at the best draft temperature of each selector, seconds of a call.
    """
    given = read_prompts(prompts)
    if hold_out is not None:
        _, given = held_out(given, hold_out, seed)
    if not given:
        raise OptionError("there are no prompts to judge by")
    for name, value, least in (
        ("tokens", tokens, 1),
        ("rows", rows, 1),
        ("dear_rows", dear_rows, 0),
        ("seed", seed, 0),
    ):
        if value < least:
            raise OptionError(f"{name} must be at least {least}, got {value}")
    model = load(target, dtype, device)
    drafter = get_drafter(draft, model)
    drafter.start(TreeReader(model, 1, getattr(drafter, "tap", ())), 1)  # refuses what is none for this target
    options = {"tokens": tokens, "rows": rows, "dear_rows": dear_rows, "seed": seed}
    settings = {"target": model.name, "drafter": drafter.name, "dtype": dtype, **options}
    out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(out / ".lock", timeout=0), on_console() as tell:
            found = judge(model, drafter, given, out, settings=settings, tell=tell, **options)
    except Timeout:
        raise RecordFileError(f"another process judges a drafter in {out}") from None
    (out / "evaluation.md").write_text("\n".join(worth(found)).strip() + "\n")
    if as_json:
        emit_json(found)
        return
    show_worth(found)


def show_worth(found: Mapping[str, Any]) -> None:
    """An evaluation on the screen."""
    screen = output()
    for heat, one in found.get("temperatures", {}).items():
        view = new_table(
            f"Target temperature {heat}: mean sum min(t, d) {one['overlap']:.3f} ± {one['overlap_error']:.3f}",
            ("law", "selector", "k", "acceptance", "draft temperature"),
        )
        for line in sorted(one["selectors"], key=lambda line: (line["k"], -line["acceptance"])):
            view.add_row(
                line["law"], line["selector"], str(line["k"]),
                f"{line['acceptance']:.3f} ± {line['standard_error']:.3f}", f"{line['draft_temperature']:g}",
            )  # fmt: skip
        screen.print(view)
    if found:
        cost = found["cost"]
        screen.print(
            f"A draft takes {1e3 * cost['draft']:.1f} ms, a call of the target {1e3 * cost['target']:.1f} ms: "
            f"{cost['ratio']:.3f}"
        )
