"""What the commands of the study share on the command line: lists of numbers, progress, tables."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from ot_spec.cli import console
from ot_spec.errors import OptionError
from ot_spec.families import FAMILIES

_WIDTH = 118
_NAMES = ("draft law", "selector", "method")


def numbers_of(option: str, text: str, kind: type) -> list[Any]:
    try:
        return [kind(item) for item in names_of(text)]
    except ValueError:
        raise OptionError(f"--{option} takes numbers separated by commas, got {text!r}") from None


def names_of(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def families_of(names: list[str]) -> list[str]:
    return list(dict.fromkeys(each for name in names for each in (FAMILIES if name == "all" else [name])))


def progress_bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def output() -> Console:
    """Standard output, of a fixed width where it is no terminal."""
    out = Console()
    return out if out.is_terminal else Console(width=_WIDTH)


def new_table(title: str | None, headings: tuple[str, ...]) -> Table:
    view = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in headings:
        left = heading in _NAMES
        view.add_column(heading, justify="left" if left else "right", no_wrap=True)
    return view
