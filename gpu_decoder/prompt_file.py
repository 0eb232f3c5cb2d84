"""Prompts: what a file of them holds, and the few that come with the project."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from ot_spec.errors import OptionError, PromptError

DEMO_PROMPTS = Path(str(resources.files("gpu_decoder"))) / "prompts" / "demo.txt"


@dataclass(frozen=True)
class Prompt:
    """What a user says: one turn, or several with an answer between them."""

    id: str
    turns: tuple[str, ...]


def read_prompts(path: str | Path) -> list[Prompt]:
    """The prompts of a file: JSON Lines if its name ends in .jsonl or .ndjson, else one prompt a line.

    A JSON line is an object with a list of strings ``turns``, or a string ``prompt``; its ``id``,
    ``prompt_id`` or ``question_id`` (a string or an integer) names the prompt. Prompts without a name are
    called by the number of their line, the first being 1. Empty lines are passed over.

    Raises PromptError naming the file, and the line where one is wrong.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as reason:
        raise PromptError(f"{path} is not UTF-8 text: byte {reason.start} cannot be read") from reason
    except OSError as reason:
        raise PromptError(f"cannot read prompts from {path}: {reason.strerror}") from reason
    parse = _parse_json if path.suffix.lower() in (".jsonl", ".ndjson") else _parse_plain
    prompts: dict[str, tuple[int, Prompt]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        prompt = parse(line, number, f"{path}, line {number}")
        before, _ = prompts.setdefault(prompt.id, (number, prompt))
        if before != number:
            raise PromptError(f"{path}, line {number}: prompt {prompt.id!r} already stands in line {before}")
    if not prompts:
        raise PromptError(f"{path} holds no prompts")
    return [prompt for _, prompt in prompts.values()]


def _parse_plain(line: str, number: int, where: str) -> Prompt:
    return Prompt(str(number), (line.strip(),))


def _parse_json(line: str, number: int, where: str) -> Prompt:
    try:
        row = json.loads(line)
    except ValueError as reason:
        raise PromptError(f"{where}: not JSON, {reason}") from reason
    if not isinstance(row, dict):
        raise PromptError(f"{where}: expected an object, got {type(row).__name__}")
    turns: Any = row["turns"] if "turns" in row else [row.get("prompt")]
    if not isinstance(turns, list) or not turns or not all(_is_text(turn) for turn in turns):
        raise PromptError(f'{where}: expected a list "turns" of non-empty strings, or a string "prompt"')
    name = next((row[key] for key in ("id", "prompt_id", "question_id") if key in row), number)
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise PromptError(f"{where}: the prompt's id should be a string or an integer, got {name!r}")
    return Prompt(str(name), tuple(turns))


def _is_text(turn: object) -> bool:
    # half of a surrogate pair is valid JSON and no text
    return isinstance(turn, str) and turn.strip() != "" and not any("\ud800" <= c <= "\udfff" for c in turn)


def as_prompts(prompts: str | Path | Sequence[str | Prompt]) -> list[Prompt]:
    """Prompts from a file, or from texts, which are called 1, 2, ..; PromptError for none, or two of one id."""
    if isinstance(prompts, str | Path):
        return read_prompts(prompts)
    made = [p if isinstance(p, Prompt) else Prompt(str(i), (p,)) for i, p in enumerate(prompts, start=1)]
    if not made:
        raise PromptError("no prompts given")
    if len({p.id for p in made}) < len(made):
        raise PromptError("two prompts have the same id")
    return made


def held_out(prompts: Sequence[Prompt], many: int, seed: int) -> tuple[list[Prompt], list[Prompt]]:
    """All but `many` of the prompts, and those, drawn by the seed; OptionError where there are not so many."""
    if not 0 <= many <= len(prompts):
        raise OptionError(f"{many} prompts cannot be held out of {len(prompts)}")
    held = set(random.Random(seed).sample(range(len(prompts)), many))
    return [p for i, p in enumerate(prompts) if i not in held], [p for i, p in enumerate(prompts) if i in held]


def hash_of(prompts: Sequence[Prompt]) -> str:
    """A hash of the prompts, names included."""
    return hashlib.sha256(json.dumps([[p.id, *p.turns] for p in prompts]).encode()).hexdigest()
