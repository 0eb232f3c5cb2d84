"""Capturing laws: run a target and a draft on prompts and record both next-token laws at every position.

`capture` is the library function, silent but for its callback; `capture_command` is ``ot-spec capture``.
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from gpu_decoder.drafters import Drafter, EarlyExitDrafter, FeatureDrafter, ModelDrafter, get_drafter, widened
from gpu_decoder.drafters.model import draft_vocabulary
from gpu_decoder.models import (
    DEFAULT,
    Follower,
    LanguageModel,
    Reading,
    check_one_tokenizer,
    early_exit,
    encode,
    encode_chat,
    fingerprint,
    load,
)
from gpu_decoder.options import AsJson, Device, DType, Limit, MinP, Prompts, Seed, Target, Temperature, TopK, TopP
from gpu_decoder.processing import Processing
from gpu_decoder.prompt_file import DEMO_PROMPTS, Prompt, as_prompts
from ot_spec.arrays import pick, to_numpy
from ot_spec.captured import CapturedWriter, read
from ot_spec.cli import console, emit_json
from ot_spec.errors import LawError, OptionError, PromptError, VocabularyError
from ot_spec.law import align, from_probs


@dataclass(frozen=True)
class Stage:
    """How far a capture is: models `loaded` or not yet, `done` of `prompts`, `rows` recorded by this call."""

    loaded: bool
    done: int
    prompts: int
    rows: int


@dataclass(frozen=True)
class Summary:
    """What a capture holds.

    `rows` positions of `prompts` prompts lie in `out` (`bytes` in all), of which this call made `new_rows` in
    `seconds`, loading included. `overlap` is the mean over positions of sum min(target, draft), the entropies
    are means in nats; NaN where there is no row.
    """

    out: str
    rows: int
    prompts: int
    new_rows: int
    new_prompts: int
    vocab: int
    overlap: float
    target_entropy: float
    draft_entropy: float
    bytes: int
    seconds: float


def capture(
    prompts: str | Path | Sequence[str | Prompt],
    out: str | Path,
    *,
    target: str | Path | LanguageModel = DEFAULT,
    draft: str | Path | LanguageModel | Drafter | None = None,
    positions: Literal["generated", "prompt"] = "generated",
    tokens: int = 32,
    chat: bool = True,
    all_turns: bool = False,
    target_law: Processing | None = None,
    draft_law: Processing | None = None,
    compact: int | None = None,
    limit: int | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    seed: int = 0,
    progress: Callable[[Stage], None] | None = None,
) -> Summary:
    """Record the laws of `target` and `draft` on the prompts, as parquet in the folder `out`.

    Parameters
    ----------
    prompts: a file (`read_prompts`), or the prompts themselves
    target: a model, its folder, or "smollm2"
    draft: a drafter that is a model, or its name (`get_drafter`): a folder, "trained", or "exit:N", the target leaving
        N layers before its end (default: as there); ids past the target's are never drafted
    positions: "generated" records where the target's own text is made, each token drawn from the target's
        recorded law, until a token that ends the text or that the draft cannot read; "prompt" records the
        positions of the prompt, from the second token on
    tokens: at most this many positions a turn, >= 1: the first ones of the generated text, the last ones of
        the prompt
    chat: put the prompt into the target's chat template; otherwise the text is read as it stands
    all_turns: take all turns of a prompt, with the target's own answers between, and not the first only
    target_law, draft_law: temperature and filters; the laws recorded are the processed ones
    compact: keep the `compact` most probable tokens of each law only
    limit: at most this many prompts, >= 1; a capture can be continued with another limit
    seed: >= 0; the text of a prompt depends on the seed and its place among the prompts
    progress: called with a `Stage` at the beginning, after loading, and after every position

    A capture that was interrupted continues with the first prompt that is not complete, and ends up the same.
    The files are described in `ot_spec.captured`.

    Raises PromptError, OptionError, ModelError, VocabularyError (the tokenizers differ), CaptureFileError
    (`out` holds a capture made with other settings), LawError (logits that make no law, naming prompt and
    position).
    """
    started = time.perf_counter()
    target_law, draft_law = target_law or Processing(), draft_law or Processing()
    _check_options(positions, tokens, chat, all_turns, target_law, draft_law, compact, limit, seed)
    chosen = as_prompts(prompts)
    tell = progress or (lambda stage: None)
    tell(Stage(False, 0, len(chosen[:limit]), 0))
    pair = _Pair(target, draft, dtype, device, target_law, draft_law)
    settings = {
        "target": pair.target.name,
        "draft": pair.draft_name,
        "tokenizer": fingerprint(pair.target.tokenizer),
        "prompts": hashlib.sha256(json.dumps([[p.id, *p.turns] for p in chosen]).encode()).hexdigest(),
        "positions": positions,
        "tokens": tokens,
        "chat": chat,
        "all_turns": all_turns,
        "target_law": asdict(target_law),
        "draft_law": asdict(draft_law),
        "dtype": str(pair.target.model.dtype).removeprefix("torch."),
        "seed": seed,
    }
    about = {"device": str(pair.target.model.device), "python": platform.python_version()}
    about |= {name: metadata.version(name) for name in ("ot-spec", "torch", "transformers", "numpy")}
    writer = CapturedWriter(out, pair.target.vocab, compact, settings, about)

    chosen = chosen[:limit]
    texts = [_opening(pair, prompt, positions, chat) for prompt in chosen]
    left = [number for number, prompt in enumerate(chosen) if prompt.id not in writer.done()]
    new_rows = 0
    for new_prompts, number in enumerate(left):
        prompt = chosen[number]
        if positions == "prompt":
            rows = _prompt_rows(pair, texts[number], tokens)
        else:
            coins = np.random.default_rng([seed, number])
            rows = _generated_rows(pair, texts[number], prompt, all_turns, tokens, coins)
        stage = Stage(True, len(chosen) - len(left) + new_prompts, len(chosen), new_rows)
        tell(stage)
        try:
            with writer.part(number, prompt.id) as part:
                for row in rows:
                    part.append(*row)
                    new_rows += 1
                    tell(replace(stage, rows=new_rows))
        except LawError as reason:
            raise LawError(f"prompt {prompt.id!r}, {reason}") from reason
    tell(Stage(True, len(chosen), len(chosen), new_rows))

    found = read(out)
    means = {
        name: float(found.column(name).mean()) if found.rows else float("nan")
        for name in ("overlap", "target_entropy", "draft_entropy")
    }
    return Summary(
        out=str(out),
        rows=found.rows,
        prompts=len(found.prompts),
        new_rows=new_rows,
        new_prompts=len(left),
        vocab=found.vocab,
        **means,
        bytes=sum(file.stat().st_size for file in Path(out).glob("part-*.parquet")),
        seconds=time.perf_counter() - started,
    )


def _check_options(
    positions: str,
    tokens: int,
    chat: bool,
    all_turns: bool,
    target_law: Processing,
    draft_law: Processing,
    compact: int | None,
    limit: int | None,
    seed: int,
) -> None:
    if positions not in ("generated", "prompt"):
        raise OptionError(f'positions must be "generated" or "prompt", got {positions!r}')
    for name, value in (("tokens", tokens), ("compact", compact), ("limit", limit)):
        if value is not None and value < 1:
            raise OptionError(f"{name} must be at least 1, got {value}")
    if seed < 0:
        raise OptionError(f"seed must be at least 0, got {seed}")
    if all_turns and (not chat or positions != "generated"):
        raise OptionError("all turns need the chat template and generated positions: the answers lie between them")
    for processing in (target_law, draft_law):
        processing.law(torch.zeros(2))


class _Pair:
    """A target and a draft that read the same text and give the laws of its next token."""

    def __init__(
        self,
        target: str | Path | LanguageModel,
        draft: str | Path | LanguageModel | Drafter | None,
        dtype: str,
        device: str,
        target_law: Processing,
        draft_law: Processing,
    ):
        self._follower: Follower | None = None
        self.target = target if isinstance(target, LanguageModel) else load(target, dtype, device)
        self._laws = target_law, draft_law
        self._draft, self._known = None, None
        drafter = get_drafter(draft, self.target)
        if isinstance(drafter, EarlyExitDrafter):
            self._follower = early_exit(self.target, drafter.layers_left_out)
        elif isinstance(drafter, FeatureDrafter):
            self._follower = drafter.follower(self.target)
        elif isinstance(drafter, ModelDrafter):
            self._draft = drafter.model
            self._known = draft_vocabulary(self._draft)
            check_one_tokenizer(self.target, self._draft)
        else:
            raise OptionError(f"the laws of {drafter.name!r} cannot be captured: they are no model's")
        models = [model for model in (self.target, self._draft) if model is not None]
        self.draft_name = drafter.name
        self.context = min((m.context for m in models if m.context is not None), default=None)
        self.readable = min(m.model.get_input_embeddings().weight.shape[0] for m in models)

    def begin(self) -> None:
        """Forget the text read so far."""
        self._readings = [Reading(self.target, self._follower)]
        if self._draft is not None:
            self._readings.append(Reading(self._draft))

    def laws(self, ids: Sequence[int], positions: range) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Read the ids that end before the last of these positions; float32 laws (V,) at each."""
        pieces = [reading.stream(ids, len(positions)) for reading in self._readings]
        left = iter(positions)
        for piece in zip(*pieces, strict=True):
            target_logits, draft_logits = piece[0] if self._draft is None else (piece[0][0], piece[1][0])
            for target_row, draft_row, position in zip(target_logits, draft_logits, left, strict=False):
                yield self._recorded(target_row, draft_row, position)

    def _recorded(
        self, target_logits: torch.Tensor, draft_logits: torch.Tensor, position: int
    ) -> tuple[np.ndarray, np.ndarray]:
        vocab = self.target.vocab
        if self._known is not None:
            draft_logits = widened(draft_logits[None, self._known], self._known, len(draft_logits))[0]
        if len(draft_logits) > vocab:  # the embedding's padding is no token
            draft_logits = draft_logits.clone()
            draft_logits[vocab:] = -torch.inf
        laws = []
        for name, logits, made in zip(("target", "draft"), (target_logits, draft_logits), self._laws, strict=True):
            try:
                laws.append(to_numpy(made.law(logits)))
            except LawError as reason:
                raise LawError(f"position {position}, {name}: {reason}") from reason
        target, draft = align(*laws, pad=True)
        return target.astype(np.float32), draft.astype(np.float32)


def _opening(pair: _Pair, prompt: Prompt, positions: str, chat: bool) -> list[int]:
    """The ids of the first turn, fit for both models."""
    if chat:
        ids = encode_chat(pair.target, prompt.turns[:1], answer=positions == "generated")
    else:
        ids = encode(pair.target, prompt.turns[0])
    if not ids:
        raise PromptError(f"prompt {prompt.id!r} is empty: there is nothing to read before its first token")
    _check_readable(pair, ids, prompt.id, room=positions == "generated")
    return ids


def _check_readable(pair: _Pair, ids: list[int], name: str, room: bool) -> None:
    if max(ids) >= pair.readable:
        raise VocabularyError(
            f"prompt {name!r} has token {max(ids)}; one of the models reads tokens below {pair.readable} only"
        )
    if pair.context is not None and len(ids) + room > pair.context:
        raise PromptError(
            f"prompt {name!r} has {len(ids)} tokens{' and needs room for one more' if room else ''}; "
            f"the models read at most {pair.context}"
        )


_Row = tuple[list[int], int, np.ndarray, np.ndarray]


def _prompt_rows(pair: _Pair, ids: list[int], tokens: int) -> Iterator[_Row]:
    """The positions of a text from its second token on, the last `tokens` of them."""
    first = max(1, len(ids) - tokens)
    if first >= len(ids):
        return
    pair.begin()
    for position, laws in enumerate(pair.laws(ids[:-1], range(first, len(ids))), start=first):
        yield ids[:position], ids[position], *laws


def _generated_rows(
    pair: _Pair, ids: list[int], prompt: Prompt, all_turns: bool, tokens: int, coins: np.random.Generator
) -> Iterator[_Row]:
    """The positions of the target's answer to each turn, up to `tokens` of each."""
    said: list[str] = []
    for turn in prompt.turns if all_turns else prompt.turns[:1]:
        said.append(turn)
        if len(said) > 1:
            ids = encode_chat(pair.target, said)
            _check_readable(pair, ids, f"{prompt.id}, up to turn {len(said) // 2 + 1}", room=True)
        text, unread = list(ids), ids
        pair.begin()
        while len(text) < len(ids) + tokens and (pair.context is None or len(text) < pair.context):
            [(target, draft)] = pair.laws(unread, range(len(text), len(text) + 1))
            token = int(pick(from_probs(target), coins.random(1))[0])
            yield text, token, target, draft
            text.append(token)
            if token in pair.target.stops or token >= pair.readable:
                break
            unread = [token]
        said.append(pair.target.tokenizer.decode(text[len(ids) :], skip_special_tokens=True))


# ---- the command


def capture_command(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write to, or to continue.")],
    prompts: Prompts = DEMO_PROMPTS,
    positions: Annotated[
        str,
        typer.Option(metavar="generated|prompt", help="Laws along the target's own text, or along the prompt."),
    ] = "generated",
    tokens: Annotated[int, typer.Option(help="At most this many positions a turn.")] = 32,
    chat: Annotated[bool, typer.Option("--chat/--no-chat", help="Use the target's chat template.")] = True,
    all_turns: Annotated[
        bool,
        typer.Option("--all-turns", help="All turns, with the target's answers between; else the first."),
    ] = False,
    target: Target = DEFAULT,
    draft: Annotated[
        str | None,
        typer.Option(
            help="Folder of a drafter; trained, the project's own; or exit:N, the target leaving N layers early. "
            "Default: trained where it fits the target, else an early exit after nine tenths of it.",
            show_default=False,
        ),
    ] = None,
    temperature: Temperature = 1.0,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    draft_temperature: Annotated[float, typer.Option(help="Of the draft; 0 is greedy.")] = 1.0,
    draft_top_k: Annotated[int | None, typer.Option(help="Of the draft.")] = None,
    draft_top_p: Annotated[float | None, typer.Option(help="Of the draft.")] = None,
    draft_min_p: Annotated[float | None, typer.Option(help="Of the draft.")] = None,
    compact: Annotated[
        int | None,
        typer.Option(metavar="M", help="Keep the M most probable tokens of each law and the rest's mass."),
    ] = None,
    limit: Limit = None,
    dtype: DType = "float32",
    device: Device = "cpu",
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Record next-token laws of a target and a draft model as parquet.

    Both laws are recorded as processed (temperature, top-k, top-p, min-p in this order) at every position,
    over the full vocabulary or in a compact form, and can be read with ot_spec.captured.read. An interrupted
    capture continues where it was; a folder captured with other settings is refused.

    --json prints {"out": string, "rows": int, "prompts": int, "new_rows": int, "new_prompts": int, "vocab":
    int, "overlap": number, "target_entropy": number, "draft_entropy": number, "bytes": int, "seconds":
    number}: what the folder holds, what this run added, the mean of sum min(target, draft) and the mean
    entropies in nats (null without rows).
    """
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("prompts, {task.fields[rows]} new rows"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("loading models", total=None, rows=0)

        def show(stage: Stage) -> None:
            description = "capturing" if stage.loaded else "loading models"
            bar.update(task, description=description, completed=stage.done, total=stage.prompts, rows=stage.rows)

        summary = capture(
            prompts,
            out,
            target=target,
            draft=draft,
            positions=positions,  # pyright: ignore[reportArgumentType]
            tokens=tokens,
            chat=chat,
            all_turns=all_turns,
            target_law=Processing(temperature, top_k, top_p, min_p),
            draft_law=Processing(draft_temperature, draft_top_k, draft_top_p, draft_min_p),
            compact=compact,
            limit=limit,
            dtype=dtype,
            device=device,
            seed=seed,
            progress=show,
        )
    if as_json:
        emit_json(asdict(summary))
        return
    table = Table(title=f"Captured laws in {summary.out}", show_header=False)
    for name, value in (
        ("positions", f"{summary.rows:,} of {summary.prompts} prompts ({summary.new_rows:,} new)"),
        ("vocabulary", f"{summary.vocab:,}"),
        ("mean sum min(target, draft)", f"{summary.overlap:.4f}"),
        ("mean entropy, target", f"{summary.target_entropy:.4f} nats"),
        ("mean entropy, draft", f"{summary.draft_entropy:.4f} nats"),
        ("size", f"{summary.bytes / 1e6:.1f} MB"),
        ("time", f"{summary.seconds:.1f} s"),
    ):
        table.add_row(name, value)
    Console().print(table)
