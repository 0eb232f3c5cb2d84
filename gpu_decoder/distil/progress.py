"""How long work tells how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ot_spec.cli import console

Tell = Callable[[str, int, int, str], None]
"""(what is being done, how much is done, of how much, a remark)"""

_EVERY = 60.0  # seconds between lines where there is no terminal for a bar


@contextmanager
def on_console() -> Iterator[Tell]:
    """A bar with the time left for each thing that is done, or a line a minute where there is no terminal."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[remark]}"),
        console=console,
        transient=True,
        speed_estimate_period=600,
        disable=not console.is_terminal,
    ) as bar:
        tasks: dict[str, Any] = {}
        told = -_EVERY

        def tell(what: str, done: int, of: int, remark: str) -> None:
            nonlocal told
            now = time.monotonic()
            if not console.is_terminal and now - told >= _EVERY:
                console.print(f"{what}: {done} of {of}  {remark}".rstrip(), markup=False, highlight=False)
                told = now
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=of, completed=done, remark=remark)
            bar.update(tasks[what], completed=done, total=of, remark=remark)

        yield tell
