"""`ot-spec distil` as a test runs it, on a small recipe."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from gpu_decoder.distil.distil import Recipe
from gpu_decoder.distil.text import TextSettings
from gpu_decoder.distil.train import TrainSettings
from ot_spec.cli import main

PROMPTS = [f"w{i} w{(5 * i + 2) % 21}" for i in range(7)]
SMALL = [
    "--conversations", "4", "--answers", "2", "--begun", "1", "--steps", "5", "--batch-tokens", "128",
    "--vocabulary", "20", "--full", "12", "--rank", "3", "--width", "32", "--hold-out", "3", "--seed", "5",
    "--dtype", "bfloat16",
]  # fmt: skip
RECIPE = Recipe(
    vocabulary=20, full=12, rank=3, width=32, hold_out=3,
    text=TextSettings(seed=5, conversations=4, answers=2, begun=1),
    train=TrainSettings(seed=5, steps=5, tokens=128),
)  # fmt: skip


def run(*arguments: Any) -> tuple[int, str]:
    said = StringIO()
    with redirect_stdout(said), pytest.raises(SystemExit) as left:
        main(["distil", *map(str, arguments)])
    return int(left.value.code or 0), said.getvalue()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
