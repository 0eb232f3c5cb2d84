"""The command `ot-spec distil`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from gpu_decoder.distil.distil import SHAPES, Recipe, distil
from gpu_decoder.distil.progress import on_console
from gpu_decoder.distil.text import TextSettings
from gpu_decoder.distil.train import LOSSES, TrainSettings
from gpu_decoder.judge_command import show_worth
from gpu_decoder.models import DEFAULT
from gpu_decoder.options import AsJson, Device, Target
from ot_spec.cli import emit_json
from solvers.gap.screen import output


def distil_command(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to work in, or to go on in.")],
    target: Target = DEFAULT,
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Prompts that the target answers too, beside those it writes itself."),
    ] = None,
    hold_out: Annotated[
        int, typer.Option(help="This many of them are kept for the evaluation, drawn by the seed.")
    ] = 0,
    evaluation: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Prompts to judge the drafter by. Default: those held out."),
    ] = None,
    shape: Annotated[
        str,
        typer.Option(metavar="|".join(SHAPES), help="A net over the target's hidden states, or a small causal model."),
    ] = "feature",
    vocabulary: Annotated[int, typer.Option(help="Tokens that can be drafted, the likeliest ones.")] = 16_384,
    full: Annotated[int, typer.Option(help="Tokens whose rows of a net's head have the whole width.")] = 4_096,
    rank: Annotated[
        int | None,
        typer.Option(
            help="Entries of the other rows; 0: all rows are whole. Default: a quarter of the width.",
            show_default=False,
        ),
    ] = None,
    layers: Annotated[int, typer.Option(help="Of the drafter.")] = 1,
    width: Annotated[int, typer.Option(help="Of a causal model; a net has the target's.")] = 256,
    loss: Annotated[
        str,
        typer.Option(
            metavar="|".join(LOSSES),
            help="kl; tv, what one draft is refused with; alpha, what --k drafts are refused with.",
        ),
    ] = "kl",
    k: Annotated[int, typer.Option(help="Of the loss alpha.")] = 4,
    warm: Annotated[float, typer.Option(help="Share of the steps with kl before tv or alpha.")] = 0.6,
    conversations: Annotated[int, typer.Option(help="That the target writes by itself.")] = 4_000,
    answers: Annotated[int, typer.Option(help="To each of the prompts.")] = 2,
    begun: Annotated[
        int, typer.Option(help="Conversations of which each of the prompts gives the first tokens, cut at random.")
    ] = 8,
    steps: Annotated[int, typer.Option(help="Of training.")] = 1_200,
    batch_tokens: Annotated[int, typer.Option(help="Tokens of a step.")] = 4_096,
    unroll: Annotated[int, typer.Option(help="Steps that the drafter goes on by itself in training.")] = 2,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Of the target while it writes. Default: bfloat16 where the processor has it, else float32.",
            show_default=False,
        ),
    ] = None,
    device: Device = "cpu",
    seed: Annotated[int, typer.Option(help="Of text, training and the prompts held out.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Train a drafter for a model on text that the model writes itself.

    The target writes conversations from its bare chat template, and answers given prompts; a drafter is trained on
    its laws there, judged on prompts that are in no training text, and written to DIR/drafter with a card. The folder
    serves as --draft everywhere. Killed at any point, the same command goes on and ends with the same weights (same
    machine, same number of threads); other settings are refused.

    --json prints {"drafter": string, "bytes": int, "evaluation": null or what judge --json prints}.
    """
    recipe = Recipe(
        shape=shape,
        vocabulary=vocabulary,
        full=full,
        rank=rank,
        layers=layers,
        width=width,
        hold_out=hold_out,
        text=TextSettings(seed=seed, conversations=conversations, answers=answers, begun=begun),
        train=TrainSettings(seed=seed, loss=loss, k=k, warm=warm, steps=steps, tokens=batch_tokens, unroll=unroll),
    )
    with on_console() as tell:
        found = distil(
            out,
            recipe,
            target=target,
            prompts=prompts or (),
            evaluation=evaluation,
            dtype=dtype,
            device=device,
            command=_said(),
            tell=tell,
        )
    folder = out / "drafter"
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    if as_json:
        emit_json({"drafter": str(folder), "bytes": size, "evaluation": found or None})
        return
    show_worth(found)
    output().print(f"The drafter is in {folder} ({size / 1e6:.1f} MB): --draft {folder}")


def _said() -> str:
    """The command as given, without folders of this machine."""
    words, said = sys.argv[1:], []
    if "distil" not in words:
        return ""
    for word in words:
        option, equals, value = word.partition("=")
        if not equals:
            option, value = said[-1] if said else "", word
        if option == "--out":
            value = "DIR"
        elif option in ("--prompts", "--evaluation", "--target"):
            value = Path(value).name
        said.append(f"{option}={value}" if equals else value)
    return shlex.join(["ot-spec", *said])
