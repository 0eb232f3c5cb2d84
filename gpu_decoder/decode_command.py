"""The command `ot-spec decode`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from gpu_decoder.compare import choices_of, compare
from gpu_decoder.fit import fit
from gpu_decoder.models import DEFAULT
from gpu_decoder.options import AsJson, Device, DType, Limit, MinP, Prompts, Seed, Target, Temperature, TopK, TopP
from gpu_decoder.processing import Processing
from gpu_decoder.prompt_file import DEMO_PROMPTS
from gpu_decoder.records import FILE
from gpu_decoder.report import show_comparison, show_fit, show_run
from gpu_decoder.run import Run, Stage, decode_prompts
from ot_spec.cli import console, emit_json
from ot_spec.errors import OptionError
from solvers.gap.screen import output
from solvers.gap.study import write


def decode_command(
    text: Annotated[str | None, typer.Argument(help="A prompt; its answer is streamed.")] = None,
    prompts: Prompts = DEMO_PROMPTS,
    target: Target = DEFAULT,
    draft: Annotated[
        str | None,
        typer.Option(
            help="trained, the project's own for its default model; a folder with a drafter; exit:N, the target "
            "leaving N layers early; lookup or lookup:N, what followed the last N tokens before; or none. Default: "
            "trained where it fits the target, else an early exit after nine tenths of it.",
            show_default=False,
        ),
    ] = None,
    selector: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:K[:L]]",
            help="Selector or sequence rule, with K and L of its own if wanted; with --compare several times, or all. "
            "Default: k_seq; with --compare block:1 and k_seq.",
            show_default=False,
        ),
    ] = None,
    candidates: Annotated[int, typer.Option(help="K, drafts of every target call.")] = 4,
    length: Annotated[int, typer.Option(help="L, tokens of a draft.")] = 4,
    draft_temperature: Annotated[
        float | None,
        typer.Option(help="Of the draft. Default: the target's; 1 for several drafts of a greedy target."),
    ] = None,
    temperature: Temperature = 1.0,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            help="At most this many tokens a prompt; all of them with --compare and --fit. Default: 128; 64 with "
            "--compare, 24 with --fit.",
            show_default=False,
        ),
    ] = None,
    min_new_tokens: Annotated[int, typer.Option(help="No end of the text before.")] = 0,
    stop: Annotated[
        list[str] | None, typer.Option(help="Text that ends an answer; may be given several times.")
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--no-chat", help="Use the target's chat template. Default: where there is one."),
    ] = None,
    batch: Annotated[int, typer.Option(help="Prompts decoded together.")] = 1,
    limit: Limit = None,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Also what the laws met would have given other selectors, and the optimum."),
    ] = False,
    comparison: Annotated[
        bool,
        typer.Option("--compare", help="Time the selectors beside transformers' own generation, on the same prompts."),
    ] = False,
    rounds: Annotated[int, typer.Option(help="Of --compare, in which the methods take turns.")] = 3,
    fitting: Annotated[
        bool, typer.Option("--fit", help="Which drafter and selector fit this model? Tries them on two prompts.")
    ] = False,
    dtype: DType = "float32",
    device: Device = "cpu",
    seed: Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help=f"Folder for {FILE}, a line a prompt; a killed run continues in it."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Generate from a model, several tokens a target call, without changing its distribution.

    Prints the answers, and after them tokens per target call, how many drafted tokens were accepted at each position,
    and where the time went. With --out each prompt is recorded when it is done; the same command again goes on
    where it was, and other settings are refused.

    --json prints {"prompts": int, "new": int, "tokens": int, "target_calls": int, "block_efficiency": number,
    "accept_rate": number, "accepted_at": [int], "offered_at": [int], "seconds": {"target", "draft", "selection",
    "cache", "rest"}, "tokens_per_second": number, "measured": null or {"nodes", "acceptance": {selector: {"mean",
    "of_optimum", "nodes", "by_depth"}}, "predicted", "deviation", "tokens"}, "records": [{"id", "text", "tokens",
    "finish", ..}], "settings", "environment", "out"}. With --compare: {"runs": [{"method", "tokens_per_second",
    "block_efficiency", "target_calls", "tokens", "draft_calls", "drafter", "candidates", "length", "ratio",
    "ratio_range", "seconds", "settings"}], "left_out": [{"method", "reason"}], "rounds", "prompts", "settings",
    "environment"}. With --fit: {"target", "reason", "plain_tokens_per_second", "pairs": [{"drafter", "selector",
    "candidates", "length", "block_efficiency", "error", "tokens_per_second", "ratio"}], "refused": [{"drafter",
    "reason"}], "rules", "recommended", "advice", "settings", "environment"}. Numbers are null where there is nothing
    to count.
    """
    if text is not None and prompts != DEMO_PROMPTS:
        raise OptionError("a prompt is given and a file of prompts: which of them?")
    if comparison and fitting:
        raise OptionError("--compare and --fit are two commands: one at a time")
    given = prompts if text is None else [text]
    shared: dict[str, Any] = {
        "target": target,
        "draft_temperature": draft_temperature,
        "law": Processing(temperature, top_k, top_p, min_p),
        "chat": chat,
        "dtype": dtype,
        "device": device,
        "seed": seed,
    }
    if comparison or fitting:
        for name, value in (("min-new-tokens", min_new_tokens), ("stop", stop), ("measure", measure)):
            if value:
                raise OptionError(f"--{name} has no meaning with {'--compare' if comparison else '--fit'}")
    if comparison:
        with _progress() as tell:
            found = compare(
                given,
                **shared,
                draft=draft,
                selectors=selector or ("block:1", "k_seq"),
                candidates=candidates,
                length=length,
                new_tokens=64 if max_new_tokens is None else max_new_tokens,
                rounds=rounds,
                batch=batch,
                limit=limit,
                progress=tell,
            )
        _answer(found, "compare.json", out, as_json, show_comparison)
    elif fitting:
        if selector or batch > 1:
            raise OptionError(f"--{'selector' if selector else 'batch'} has no meaning with --fit")
        with _progress() as tell:
            answer = fit(
                **shared,
                prompts=given,
                drafters=() if draft is None else (draft,),
                candidates=candidates,
                lengths=sorted({max(1, length // 2), length}),
                new_tokens=24 if max_new_tokens is None else max_new_tokens,
                limit=2 if limit is None else limit,
                progress=tell,
            )
        _answer(answer, "fit.json", out, as_json, show_fit)
    else:
        rules = choices_of(selector or ["k_seq"], candidates, length)
        if len(rules) > 1:
            raise OptionError(f"{len(rules)} selectors, and one can decode: several need --compare")
        with _telling(as_json) as shown:
            run = decode_prompts(
                given,
                out,
                **shared,
                draft=draft,
                selector=rules[0].selector,
                candidates=rules[0].candidates,
                length=rules[0].length,
                max_new_tokens=128 if max_new_tokens is None else max_new_tokens,
                min_new_tokens=min_new_tokens,
                stop=tuple(stop or ()),
                batch=batch,
                limit=limit,
                measure=measure,
                **shown,
            )
        if as_json:
            emit_json(_as_object(run, out))
        else:
            show_run(run, out)


# ---- progress and text


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    with _bar() as bar:
        task = bar.add_task("loading models", total=None, note="")
        yield lambda what, done, of: bar.update(task, description=what, completed=done, total=of)


@contextmanager
def _telling(quiet: bool) -> Iterator[dict[str, Any]]:
    """Callbacks that print the answers as they come, on standard output, with a progress bar below them."""
    with _bar() as bar:
        task = bar.add_task("loading models", total=None, note="")
        streamed: list[str] = []

        def show(stage: Stage) -> None:
            if streamed:
                return
            what = "decoding" if stage.loaded else "loading models"
            note = f"prompts, {stage.tokens:,} new tokens"
            bar.update(task, description=what, completed=stage.done, total=stage.prompts, note=note)

        def say(text: str) -> None:
            bar.stop()  # the text has the terminal to itself
            streamed.append(text)
            sys.stdout.write(text)
            sys.stdout.flush()

        def record(row: dict[str, Any]) -> None:
            if streamed:
                sys.stdout.write("\n\n")
            else:
                with _above(bar):
                    sys.stdout.write(f"[{row['id']}] {row['text']}\n\n")
            sys.stdout.flush()

        yield {"progress": show} if quiet else {"progress": show, "on_text": say, "on_record": record}


@contextmanager
def _above(bar: Progress) -> Iterator[None]:
    shown = not bar.disable and bar.live.is_started
    if shown:
        bar.stop()
    yield
    if shown:
        bar.start()


# ---- answers


def _answer(found: Any, name: str, out: Path | None, as_json: bool, show: Callable[[Any], None]) -> None:
    answer = asdict(found)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write(out / name, lambda file: file.write_text(json.dumps(answer, indent=1) + "\n"))
    if as_json:
        emit_json(answer)
        return
    show(found)
    if out is not None:
        output().print(f"written to {out / name}", highlight=False)


def _as_object(run: Run, out: Path | None) -> dict[str, Any]:
    rows = [{name: value for name, value in row.items() if name != "settings"} for row in run.records]
    return {
        "prompts": len(run.records),
        "new": run.new,
        **asdict(run.summary),
        "measured": run.measured,
        "records": rows,
        "settings": run.settings,
        "environment": run.environment,
        "out": out,
    }
