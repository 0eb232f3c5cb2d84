"""Decoding many prompts, with records from which a killed run goes on. Silent but for its callbacks."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpu_decoder.coins import row_keys
from gpu_decoder.decode import Decoder, Generation
from gpu_decoder.drafters import Drafter, get_drafter
from gpu_decoder.metrics import Clock, Meter, Step, Summary, Tally
from gpu_decoder.models import DEFAULT, LanguageModel, encode_prompt, fingerprint, load
from gpu_decoder.processing import Processing
from gpu_decoder.prompt_file import Prompt, as_prompts
from gpu_decoder.records import Records, dtype_of, environment
from gpu_decoder.verify import check_readable
from ot_spec.errors import OptionError, OutOfMemoryError


@dataclass(frozen=True)
class Stage:
    """How far a run is: models `loaded` or not yet, `done` of `prompts`, `tokens` made by this call."""

    loaded: bool
    done: int
    prompts: int
    tokens: int


@dataclass(frozen=True)
class Run:
    """Prompts decoded: their records in the order of the prompts, `new` of them made by this call, and their sum.

    measured: where asked for, what the laws met would have given other selectors (`measured`).
    """

    records: list[dict[str, Any]]
    new: int
    summary: Summary
    measured: dict[str, Any] | None
    settings: dict[str, Any]
    environment: dict[str, Any]


def decode_prompts(
    prompts: str | Path | Sequence[str | Prompt],
    out: str | Path | None = None,
    *,
    target: str | Path | LanguageModel = DEFAULT,
    draft: str | Path | LanguageModel | Drafter | None = None,
    selector: str = "k_seq",
    candidates: int = 4,
    length: int = 4,
    draft_temperature: float | None = None,
    law: Processing | None = None,
    max_new_tokens: int = 128,
    min_new_tokens: int = 0,
    stop: Sequence[str] = (),
    chat: bool | None = None,
    batch: int = 1,
    limit: int | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    seed: int = 0,
    measure: bool = False,
    progress: Callable[[Stage], None] | None = None,
    on_text: Callable[[str], None] | None = None,
    on_record: Callable[[dict[str, Any]], None] | None = None,
) -> Run:
    """Continue prompts with a `Decoder`, `batch` at a time, and record each in the folder `out`.

    Parameters
    ----------
    prompts: a file (`read_prompts`), or the prompts themselves; of a prompt with several turns the first
    out: where the records go (`gpu_decoder.records`); None keeps them in memory
    target, draft, selector, candidates, length, draft_temperature: those of `Decoder`
    law: temperature and filters of the target
    max_new_tokens, min_new_tokens, stop, chat: those of `Decoder.generate`
    batch: prompts decoded together, >= 1; in float64 the tokens do not depend on it
    limit: at most this many prompts, >= 1; a run can be continued with another limit
    seed: >= 0; a prompt's tokens depend on it, its text, and how many equal prompts came before
    measure: also work out, at every law pair met, the optimum and what other selectors would have accepted; one
        prompt at a time
    progress: called with a `Stage` at the beginning, after loading, after every step
    on_text: called with the text as it comes, where there is one prompt
    on_record: called with each new record

    A run that was interrupted goes on with the prompts that are not recorded, and ends up the same.

    Raises PromptError, OptionError, ModelError, VocabularyError, UnsupportedLawError, RecordFileError (`out` holds
    records made with other settings) and OutOfMemoryError, which says how many prompts are recorded.
    """
    law = law or Processing()
    for name, value in (("batch", batch), ("limit", limit)):
        if value is not None and value < 1:
            raise OptionError(f"{name} must be at least 1, got {value}")
    if measure and batch > 1:
        raise OptionError(f"measuring takes one prompt at a time, got batch = {batch}")
    chosen = as_prompts(prompts)
    tell = progress or (lambda stage: None)
    tell(Stage(False, 0, len(chosen[:limit]), 0))
    model = target if isinstance(target, LanguageModel) else load(target, dtype, device)
    meter = Meter(predict=True) if measure else None
    drafter = get_drafter(draft, model)
    decoder = Decoder(
        model, drafter, selector=selector, candidates=candidates, length=length, draft_temperature=draft_temperature,
        meter=meter,
    )  # fmt: skip
    asked: Any = {**asdict(law), "min_new_tokens": min_new_tokens, "stop": stop, "seed": seed}
    decoder.generate([], max_new_tokens, **asked)  # options that are out of range come first
    every, chosen = chosen, chosen[:limit]
    texts = read_texts(model, chosen, chat, max_new_tokens)
    keys = row_keys(seed, texts)
    settings = {
        "target": model.name,
        "draft": drafter.name,
        "tokenizer": fingerprint(model.tokenizer),
        "prompts": hashlib.sha256(json.dumps([[p.id, p.turns[0]] for p in every]).encode()).hexdigest(),
        "selector": selector,
        "candidates": candidates,
        "length": length,
        "draft_temperature": draft_temperature,
        **asdict(law),
        "max_new_tokens": max_new_tokens,
        "min_new_tokens": min_new_tokens,
        "stop": list(stop),
        "chat": chat,
        "dtype": dtype_of(model),
        "seed": seed,
        "measure": measure,
    }
    # before anything is written, what does not fit is refused, and what compiles at its first call does
    decoder.generate([texts[0][-2:]], min(max_new_tokens, length + 1), **asked)
    about = environment(model) | {"batch": batch}
    speaker = Speaker(model.tokenizer) if len(chosen) == 1 else None
    recorded: dict[str, dict[str, Any]] = {}
    new = tokens = 0
    with nullcontext() if out is None else Records(out, settings) as records:
        if records is not None:
            recorded = records.rows
        left = [place for place, prompt in enumerate(chosen) if prompt.id not in recorded]
        tell(Stage(True, len(chosen) - len(left), len(chosen), 0))
        for start in range(0, len(chosen), batch):  # the same batches whatever is left
            members = [place for place in left if start <= place < start + batch]
            if not members:
                continue
            clock, seen = Clock(exact=model.model.device.type == "cuda"), _seen(meter)

            def show(made: int, done: int, before: int = tokens, finished: int = new) -> None:
                tell(Stage(True, len(chosen) - len(left) + finished + done, len(chosen), before + made))

            def say(row: int, ids: list[int]) -> None:
                if speaker is not None and on_text is not None and (text := speaker.add(ids)):
                    on_text(text)

            try:
                made = decoder.generate(
                    [texts[place] for place in members],
                    max_new_tokens,
                    **asked,
                    keys=[keys[place] for place in members],
                    stream=say,
                    on_progress=show,
                    clock=clock,
                )
            except OutOfMemoryError as reason:
                kept = f"; {len(recorded)} of {len(chosen)} prompts are recorded in {out}" if out is not None else ""
                raise OutOfMemoryError(f"{reason}{kept}") from reason
            seconds = {part: spent / len(members) for part, spent in clock.seconds.items()}
            lines = [
                _record(chosen[place].id, one, seconds, _measured_since(meter, seen), about)
                for place, one in zip(members, made, strict=True)
            ]
            if records is not None:
                records.write(lines)
            recorded |= {line["id"]: {**line, "settings": settings} for line in lines}
            new, tokens = new + len(lines), tokens + sum(len(one.tokens) for one in made)
            if speaker is not None and on_text is not None:
                on_text(speaker.rest())
            for line in lines:
                if on_record is not None:
                    on_record(line)
            tell(Stage(True, len(chosen) - len(left) + new, len(chosen), tokens))
    rows = [recorded[prompt.id] for prompt in chosen]
    return Run(rows, new, summary_of(rows), measured(rows), settings, about)


def read_texts(model: LanguageModel, prompts: Sequence[Prompt], chat: bool | None, room: int) -> list[list[int]]:
    """Ids of each prompt's first turn, which leave room for so many more; PromptError naming the prompt."""
    texts = [encode_prompt(model, prompt.turns[0], chat) for prompt in prompts]
    check_readable(model, texts, room, [repr(prompt.id) for prompt in prompts])
    return texts


def _record(
    name: str, made: Generation, seconds: dict[str, float], met: dict[str, Any] | None, about: dict[str, Any]
) -> dict[str, Any]:
    steps, logprobs = made.tally.steps, made.logprobs
    return {
        "id": name,
        "prompt_tokens": len(made.prompt),
        "text": made.text,
        "tokens": made.tokens,
        "finish": made.finish,
        "steps": {field: [getattr(step, field) for step in steps] for field in Step.__dataclass_fields__},
        "logprob": {"sum": sum(logprobs), "mean": float(np.mean(logprobs)), "least": min(logprobs)}
        if logprobs
        else None,
        "seconds": seconds,
        **({} if met is None else {"measured": met}),
        "environment": about,
    }


def summary_of(records: Sequence[dict[str, Any]]) -> Summary:
    """Counts and seconds of records together."""
    tallies = [Tally([Step(*counts) for counts in zip(*row["steps"].values(), strict=True)]) for row in records]
    clock = Clock()
    for row in records:
        for part, spent in row["seconds"].items():
            clock.seconds[part] += spent
    return Summary.of(tallies, clock)


# ---- what the laws met would have given


def _seen(meter: Meter | None) -> tuple[int, int]:
    return (0, 0) if meter is None else (len(meter.rows), len(meter.predicted))


def _measured_since(meter: Meter | None, seen: tuple[int, int]) -> dict[str, Any] | None:
    """Sums over the nodes met since then, by depth and number of drafts, and over steps."""
    if meter is None:
        return None
    nodes: dict[tuple[int, int], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in meter.rows[seen[0] :]:
        sums = nodes[row["depth"], row["k"]]
        sums["nodes"] += 1
        for name, value in row.items():
            if name not in ("depth", "k"):
                sums[name] += value
    predicted = meter.predicted[seen[1] :]
    names = ("predicted", "variance", "tokens")
    return {
        "nodes": [{"depth": depth, "k": k, **sums} for (depth, k), sums in sorted(nodes.items())],
        "steps": {"steps": len(predicted), **{n: float(sum(p[i] for p in predicted)) for i, n in enumerate(names)}},
    }


def measured(records: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """What the laws met would have given, None where it was not measured.

    acceptance: by selector, the optimum first, its mean over the nodes met and, in `by_depth`, over those at each
    depth, for as many independent drafts as there were; its share of the optimum on the same nodes. predicted: mean
    tokens a target call that the laws promise, with the standard deviation of the measured mean about it. tokens: the
    measured mean, ends of texts not cut.
    """
    met = [row["measured"] for row in records if "measured" in row]
    if not met:
        return None
    groups = [group for one in met for group in one["nodes"]]
    depths = sorted({group["depth"] for group in groups})
    names = list(dict.fromkeys(name for group in groups for name in group if name not in ("depth", "k", "nodes")))

    def sums(name: str, depth: int | None = None) -> tuple[float, float, float]:
        found = [g for g in groups if name in g and depth in (None, g["depth"])]
        return tuple(sum(g[column] for g in found) for column in (name, "optimum", "nodes"))  # pyright: ignore

    def acceptance(name: str) -> dict[str, Any]:
        accepted, optimum, nodes = sums(name)
        by_depth = [sums(name, depth) for depth in depths]
        return {
            "mean": accepted / nodes,
            "of_optimum": accepted / optimum if optimum else None,
            "nodes": int(nodes),
            "by_depth": [one / many if many else None for one, _, many in by_depth],
        }

    steps = {name: sum(one["steps"][name] for one in met) for name in met[0]["steps"]}
    count = steps["steps"]
    return {
        "nodes": int(sum(group["nodes"] for group in groups)),
        "acceptance": {name: acceptance(name) for name in names},
        "predicted": steps["predicted"] / count if count else None,
        "deviation": steps["variance"] ** 0.5 / count if count else None,
        "tokens": steps["tokens"] / count if count else None,
    }


# ---- text as it comes


class Speaker:
    """The text of tokens that come in pieces: what is said is never taken back.

    A token may end within a character; nothing is said until the character is whole.
    """

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._from, self._said = 0, 0  # of the last tokens said; what they say may depend on those before

    def add(self, tokens: Sequence[int]) -> str:
        """What these tokens add to the text."""
        self._ids += tokens
        return self._new(final=False)

    def rest(self) -> str:
        """What is left to say."""
        return self._new(final=True)

    def _new(self, final: bool) -> str:
        before, text = (self._text(self._ids[self._from : end]) for end in (self._said, len(self._ids)))
        if len(text) <= len(before) or (text.endswith("\ufffd") and not final):
            return ""
        self._from, self._said = self._said, len(self._ids)
        return text[len(before) :]

    def _text(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)
