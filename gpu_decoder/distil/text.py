"""Text that the target writes for its own drafter, with what training needs at every token of it.

The target opens a user's turn in its chat template and writes the turn itself, ends it, and answers. Prompts of a
file may join: these it answers, and of their first tokens it makes further prompts of their kind. The work is cut into
shards of conversations; a shard depends on its own number and the settings alone, and is written whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from gpu_decoder.distil.whole import write_whole
from gpu_decoder.models import LanguageModel, encode_prompt
from gpu_decoder.prompt_file import Prompt
from gpu_decoder.tree_slots import Block
from gpu_decoder.verify import TreeReader
from ot_spec.arrays import pick
from ot_spec.errors import OptionError

SLOTS = 36_000  # tokens of one shard's cache, padding included: bounds the memory
BEGUN = 160  # most tokens of a given prompt that the target makes another of
CHUNK = 2_048  # tokens of all rows read in one pass of an opening: bounds the logits

_TOP = 64  # likeliest tokens that a drawn one is sought among first
_MARK = "\u241e"


@dataclass(frozen=True)
class TextSettings:
    """What decides the text.

    conversations: how many the target writes by itself. answers: how many answers it gives to each prompt of the
    file. begun: how many conversations it writes of which each prompt gives the first tokens, up to BEGUN; none without
    a chat template. temperatures: of the answers, taken in turn, shard by shard; turn_temperature: of what it writes as
    the user. turn, answer: most tokens of a user's turn and of an answer. lead: most tokens of a given prompt that are
    kept before its answer. rows: conversations of a shard. top: tokens of each law that are kept, the rest's mass being
    what they leave. tap: layers whose outputs are kept (none: the drafter reads no features).
    """

    seed: int = 0
    conversations: int = 4_000
    answers: int = 2
    begun: int = 8
    temperatures: tuple[float, ...] = (1.0, 0.6)
    turn_temperature: float = 0.8
    turn: int = 96
    answer: int = 256
    lead: int = 128
    rows: int = 96
    top: int = 256
    tap: tuple[int, ...] = ()


@dataclass(frozen=True)
class Shard:
    """One unit of writing: openings (ids) of each conversation, whether the target writes the user's turn."""

    number: int
    openings: tuple[tuple[int, ...], ...]
    writes_turn: bool
    temperature: float


@dataclass
class _Row:
    """A conversation being written."""

    place: int
    tokens: list[int]
    forced: list[int]
    writes_turn: bool
    left: int
    begin: int
    answer_from: int
    parts: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = field(default_factory=list)


def around_turn(model: LanguageModel) -> tuple[list[int], list[int]]:
    """Ids before and after what a user writes, in the chat template; without a template: the start of a text."""
    if not model.tokenizer.chat_template:
        start = model.tokenizer.bos_token_id
        stops = sorted(model.stops)
        return [start if start is not None else stops[0]], []
    chat = [{"role": "user", "content": _MARK}]
    text = model.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    before, mark, after = text.partition(_MARK)
    if not mark or not after:
        raise OptionError(f"the chat template of {model.name!r} does not put a turn into the text as it stands")
    ids = [model.tokenizer(part, add_special_tokens=False)["input_ids"] for part in (before, after)]
    return [int(i) for i in ids[0]], [int(i) for i in ids[1]]


def plan(model: LanguageModel, settings: TextSettings, prompts: Sequence[Prompt] = ()) -> list[Shard]:
    """The shards of these settings, in the order of their numbers."""
    shards: list[Shard] = []

    def add(openings: list[tuple[int, ...]], writes_turn: bool) -> None:
        heat = settings.temperatures[len(shards) % len(settings.temperatures)]
        shards.append(Shard(len(shards), tuple(openings), writes_turn, heat))

    def add_all(openings: list[tuple[int, ...]], writes_turn: bool, written: int) -> None:
        """Shards of these openings, those of one length together, so that little is padded."""
        group: list[tuple[int, ...]] = []
        for opening in sorted(openings, key=lambda i: (len(i), i)):
            if group and (
                (len(group) + 1) * (len(opening) + written) > SLOTS
                or len(group) == settings.rows
                or len(opening) > 1.5 * len(group[0]) + 32
            ):
                add(group, writes_turn)
                group = []
            group.append(opening)
        if group:
            add(group, writes_turn)

    before, after = around_turn(model)
    written = settings.turn + len(after) + settings.answer
    rows = max(1, min(settings.rows, SLOTS // (len(before) + written)))
    for start in range(0, settings.conversations, rows):
        add([tuple(before)] * min(rows, settings.conversations - start), bool(after))
    ids = [tuple(encode_prompt(model, prompt.turns[0])) for prompt in prompts]
    for _ in range(settings.answers):
        add_all(ids, False, settings.answer)
    turns = [i[len(before) : -len(after)] for i in ids if after and len(i) > len(before) + len(after) + 1]
    for number in range(settings.begun):
        generator = np.random.default_rng([settings.seed, number])
        cuts = generator.random(len(turns))
        begun = [turn[: 1 + int(cut * min(BEGUN, len(turn) - 1))] for turn, cut in zip(turns, cuts, strict=True)]
        add_all([(*before, *part) for part in begun], True, written)
    return shards


@torch.inference_mode()
def write_shard(
    model: LanguageModel,
    settings: TextSettings,
    shard: Shard,
    file: Path,
    on_progress: Callable[[int], None] = lambda tokens: None,
) -> None:
    """Write a shard: tokens (N,), first (conversations + 1,) their places, answer (conversations,) where each answer
    begins, and after each token the law at temperature 1: ids (N, top), logs (N, top) the logarithms of their
    probabilities; features (N, taps * width) in the model's dtype."""
    rows = []
    for place, opening in enumerate(shard.openings):
        left = settings.turn if shard.writes_turn else settings.answer
        begin = max(0, len(opening) - settings.lead)
        rows.append(_Row(place, list(opening), [], shard.writes_turn, left, begin, len(opening)))
    reader = TreeReader(model, len(rows), settings.tap)
    reader.prefill([row.tokens[: row.begin] for row in rows])
    reader.taken()
    for _ in _written(reader, rows, model, settings, shard, on_progress):
        pass
    first = np.cumsum([0, *(sum(len(ids) for ids, _, _ in row.parts) for row in rows)])
    ids, logs, features = (torch.cat([part[i] for row in rows for part in row.parts]) for i in range(3))
    read = [row.tokens[row.begin : row.begin + int(n)] for row, n in zip(rows, np.diff(first), strict=True)]
    made = {
        "tokens": torch.tensor([token for tokens in read for token in tokens], dtype=torch.int32),
        "first": torch.from_numpy(first),
        "answer": torch.tensor([row.answer_from - row.begin for row in rows]),
        "ids": ids,
        "logs": logs,
        "features": features,
    }
    write_whole(file, lambda unfinished: save_file(made, unfinished))


def _written(
    reader: TreeReader,
    rows: list[_Row],
    model: LanguageModel,
    settings: TextSettings,
    shard: Shard,
    on_progress: Callable[[int], None],
) -> Iterator[None]:
    generator = np.random.default_rng([settings.seed, shard.number])
    _, after = around_turn(model)
    everyone, active = list(rows), list(rows)
    ends = {token for token in (*model.stops, *after[:1])}
    while any(row.left > 0 or row.forced for row in active):
        unread = [row.tokens[length:] for row, length in zip(active, reader.lengths, strict=True)]
        logits = _read(reader, active, unread, settings.top)
        coins = generator.random(len(everyone))
        heats = [settings.turn_temperature if row.writes_turn else shard.temperature for row in active]
        drawn = _draw(logits, np.asarray([coins[row.place] for row in active]), torch.tensor(heats)[:, None])
        for row, token in zip(active, drawn, strict=True):
            _grow(row, token, ends, after, settings)
        on_progress(sum(row.left > 0 for row in active))
        # a finished text is read on, unrecorded, until enough are finished: leaving them out copies the cache
        left = [place for place, row in enumerate(active) if row.left > 0 or row.forced]
        if left and len(left) <= 0.85 * len(active):
            reader.select(left)
            active = [active[place] for place in left]
        yield


def _grow(row: _Row, token: int, ends: set[int], after: list[int], settings: TextSettings) -> None:
    if row.left <= 0 and not row.forced:
        row.tokens.append(token)  # read and forgotten
        return
    if row.forced:
        token = row.forced.pop(0)
        row.tokens.append(token)
        if not row.forced:
            row.left, row.answer_from = settings.answer, len(row.tokens)
        return
    row.left -= 1
    if row.writes_turn and (token in ends or row.left == 0):
        row.writes_turn = False
        row.tokens.append(after[0])
        row.forced = list(after[1:])
        row.left = 0 if row.forced else settings.answer
        row.answer_from = len(row.tokens)
        return
    row.tokens.append(token)
    if token in ends:
        row.left = 0


def _read(reader: TreeReader, active: list[_Row], unread: list[list[int]], top: int) -> torch.Tensor:
    """Read on, note what training needs of the texts that are not finished; logits (rows, V) after each text."""
    last: list[torch.Tensor] = [torch.empty(0)] * len(active)
    width = max(1, CHUNK // len(active))
    for start in range(0, max(map(len, unread)), width):
        parts = [tokens[start : start + width] for tokens in unread]
        logits = reader.read([Block.chain(part) for part in parts])
        reader.keep([list(range(len(part))) for part in parts])
        features = reader.taken()
        counts = [len(part) for part in parts]
        flat = torch.cat([row[:count] for row, count in zip(logits, counts, strict=True)]).float()
        best, ids = flat.topk(min(top, flat.shape[-1]))
        logs = (best - flat.logsumexp(-1, keepdim=True)).half()
        place = 0
        for number, (row, count) in enumerate(zip(active, counts, strict=True)):
            if count:
                here = slice(place, place + count)
                if row.left > 0 or row.forced:
                    noted = features[number] if len(features[number]) else features[number].new_empty(count, 0)
                    row.parts.append((ids[here].to(torch.int32), logs[here], noted))
                last[number] = flat[place + count - 1]
                place += count
    return torch.stack(last)


def _draw(logits: torch.Tensor, coins: np.ndarray, temperature: torch.Tensor) -> list[int]:
    """A token of each law softmax(logits / temperature), temperature (rows, 1)."""
    scaled = logits / temperature
    best, ids = scaled.topk(min(_TOP, scaled.shape[-1]))
    share = (best.double() - scaled.logsumexp(-1, keepdim=True).double()).exp().cumsum(-1)
    aims = torch.from_numpy(coins)[:, None]
    found = (share <= aims).sum(-1)
    tokens = ids.gather(-1, found.clamp(max=ids.shape[-1] - 1)[:, None])[:, 0]
    for row in (found == ids.shape[-1]).nonzero()[:, 0].tolist():
        rest = scaled[row].double().softmax(-1)
        rest[ids[row]] = 0
        if not rest.any():  # the likeliest are all there are: their shares come to less than 1 by rounding
            tokens[row] = ids[row, (share[row] < share[row, -1]).sum()]
            continue
        coin = (aims[row] - share[row, -1]) / (1 - share[row, -1])
        tokens[row] = pick(rest, coin.clamp(0, 1 - 1e-9))[0]
    return tokens.tolist()
