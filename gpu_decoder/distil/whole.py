"""Files that are there whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_whole(file: Path, how: Callable[[Path], Any]) -> None:
    """Let `how` write a file beside `file`, and give it its name when it is complete. What a killed writer left is
    written over by the next; two must not write one file at once."""
    unfinished = file.with_suffix(".unfinished")
    how(unfinished)
    unfinished.rename(file)


def write_json(file: Path, what: Any) -> None:
    write_whole(file, lambda unfinished: unfinished.write_text(json.dumps(what, indent=1) + "\n"))
