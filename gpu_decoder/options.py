"""Options that the commands of this room share, with one meaning each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Target = Annotated[str, typer.Option(help="Folder of the target model, or 'smollm2'.")]
Prompts = Annotated[
    Path,
    typer.Option(
        "--prompts",
        metavar="FILE",
        help="A prompt a line, or JSON Lines (.jsonl, .ndjson) with 'turns'. Default: 12 of the project.",
        show_default=False,
    ),
]
Temperature = Annotated[float, typer.Option(help="Of the target; 0 is greedy.")]
TopK = Annotated[int | None, typer.Option(help="Of the target: keep the k most probable tokens.")]
TopP = Annotated[float | None, typer.Option(help="Of the target: keep the tokens that reach mass p.")]
MinP = Annotated[float | None, typer.Option(help="Of the target: keep tokens of p times the largest.")]
Limit = Annotated[int | None, typer.Option(help="At most this many prompts.")]
DType = Annotated[str, typer.Option(help="float32, bfloat16, float16 or float64.")]
Device = Annotated[str, typer.Option(help="A torch device, such as cpu or cuda.")]
Seed = Annotated[int, typer.Option(help="Of the generated text.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
