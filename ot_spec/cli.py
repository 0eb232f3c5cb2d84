"""The ``ot-spec`` command: one shell around the sub-commands that the rooms offer.

A sub-command is a plain function with typer annotations, offered under the entry-point group
``ot_spec.commands``; the entry's name is the sub-command's name. It is imported when it is called and not
before, so the ground floor reaches no room above it and ``ot-spec gap`` never imports torch.
``ot-spec --help`` reads the first line of each docstring from the source file instead of importing it.

Exit status: 0 done, 1 a check failed (:class:`CheckFailed`), 2 bad input, 70 a solver gave up or a fault of
ours, 130 interrupted. A failed check, bad input and a solver each say one sentence on standard error.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from numbers import Rational
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

from ot_spec.errors import OtSpecError, SolverError

__all__ = ["CheckFailed", "app", "console", "emit_json", "main"]

GROUP = "ot_spec.commands"

console = Console(stderr=True)
"""Tables, logs and progress go here: standard error, so that standard output stays free for ``--json``."""

# typer carries its own copy of click in some versions and the package in others: take the class from typer.
_UsageError = typer.BadParameter.__mro__[1]
_ClickException = typer.BadParameter.__mro__[2]


class CheckFailed(Exception):
    """Raised by a sub-command whose check failed: its message goes to standard error, exit status 1."""


def emit_json(value: Mapping[str, Any]) -> None:
    """Write one JSON object and a newline to standard output.

    Arrays and NumPy scalars become lists and numbers, paths and fractions become strings, and a number that
    JSON cannot hold (NaN, infinity) becomes ``null``; a TypeError for anything else.

    >>> emit_json({"rows": 3, "gap": float("nan"), "out": Path("out")})
    {"rows": 3, "gap": null, "out": "out"}
    """
    sys.stdout.write(json.dumps(_plain(value), allow_nan=False) + "\n")
    sys.stdout.flush()


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, (os.PathLike, Rational)) and not isinstance(value, int) else value


class _LazyCommand(TyperCommand):
    """Stands for an entry point in listings and becomes the real command when it is run."""

    def __init__(self, entry: metadata.EntryPoint):
        super().__init__(name=entry.name, callback=None, help=_summary(entry.value), rich_markup_mode=None)
        self._entry = entry

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return _command(self._entry).make_context(info_name, args, parent=parent, **extra)


class _CommandGroup(TyperGroup):
    """The sub-commands found in the entry-point group, in alphabetical order."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(_entries())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = _entries().get(cmd_name)
        return None if entry is None else _LazyCommand(entry)


def _entries() -> dict[str, metadata.EntryPoint]:
    return {entry.name: entry for entry in metadata.entry_points(group=GROUP)}


@cache
def _command(entry: metadata.EntryPoint) -> Any:
    shell = typer.Typer(add_completion=False, rich_markup_mode=None)
    shell.command(entry.name)(entry.load())
    return typer.main.get_command(shell)


def _summary(value: str) -> str:
    """First line of the docstring of ``value``, a "package.module:function", read from its source."""
    module, _, function = value.partition(":")
    package, *inner = module.split(".")
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder, *inner)
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if path.is_file():
            for node in ast.parse(path.read_bytes()).body:
                if isinstance(node, ast.FunctionDef) and node.name == function:
                    return (ast.get_docstring(node) or "").partition("\n")[0]
    return ""


app = typer.Typer(cls=_CommandGroup, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ot-spec {metadata.version('ot-spec')}")
        raise typer.Exit


@app.callback()
def _shell(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
    show_traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where an error came from, not only its sentence.")
    ] = False,
) -> None:
    """Multi-draft speculative decoding as optimal transport.

    Every command takes --json (one object on standard output, logs on standard error), --seed and --out.
    Exit status: 0 done, 1 a check failed, 2 bad input, 70 a fault of ours.
    """


def main(argv: Sequence[str] | None = None) -> None:
    """Run the ``ot-spec`` command on ``argv`` (default: the process's arguments) and exit with its status."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        result = typer.main.get_command(app)(args=args or ["--help"], prog_name="ot-spec", standalone_mode=False)
    except Exception as error:
        status, sentence = _explain(error)
        if sentence is None or "--traceback" in args:
            traceback.print_exc()
        else:
            console.print(f"ot-spec: {sentence}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(status)
    sys.exit(result if isinstance(result, int) else 0)


def _explain(error: Exception) -> tuple[int, str | None]:
    """Exit status and sentence of an error; the sentence is None where only a traceback helps."""
    if isinstance(error, CheckFailed):
        return 1, str(error)
    if isinstance(error, OtSpecError):
        return 2, str(error)
    if isinstance(error, SolverError):
        return 70, str(error)
    if isinstance(error, typer.Abort):
        return 130, "interrupted"
    if isinstance(error, _ClickException):
        sentence = error.format_message()  # pyright: ignore[reportAttributeAccessIssue]
        return 2, sentence.rstrip(".") + "; see --help" * isinstance(error, _UsageError)
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        extra = _extra_with(package)
        if extra:
            return 2, f"{package} is not installed; get it with: pip install 'ot-spec[{extra}]'"
    if isinstance(error, OSError) and error.filename is not None:
        return 2, f"cannot use {os.fspath(error.filename)!r}: {error.strerror}"
    return 70, None


def _extra_with(package: str) -> str | None:
    """The extra of this distribution that brings the importable ``package``, if one does."""
    wanted = {"distributed": "dask", "z3": "z3-solver"}.get(package, package)
    for requirement in metadata.requires("ot-spec") or []:
        name = re.match(r"[\w.-]+", requirement)
        extra = re.search(r"extra == ['\"](\w+)['\"]", requirement)
        if name and extra and name.group() == wanted and extra.group(1) != "dev":
            return extra.group(1)
    return None
