"""Comparison: rules of this project beside transformers' own generation, on the same prompts, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.utils import logging as transformers_logging

from gpu_decoder.coins import row_keys
from gpu_decoder.decode import Decoder, rules_that_fit
from gpu_decoder.drafters import Drafter, EarlyExitDrafter, LookupDrafter, ModelDrafter, get_drafter
from gpu_decoder.metrics import Summary
from gpu_decoder.models import DEFAULT, LanguageModel, load
from gpu_decoder.processing import Processing
from gpu_decoder.prompt_file import Prompt, as_prompts
from gpu_decoder.records import dtype_of, environment
from gpu_decoder.run import read_texts
from ot_spec.errors import OptionError

SLOW = ("luce", "importance")  # left out of "all": each solves a problem of its own at every law pair

# num_assistant_tokens, schedule, assistant_confidence_threshold; the first are transformers' defaults
_ASSISTED = (
    (20, "constant", 0.4),
    (2, "constant", 0.0),
    (3, "constant", 0.0),
    (4, "constant", 0.0),
    (6, "constant", 0.0),
    (8, "constant", 0.4),
    (4, "heuristic", 0.0),
    (4, "heuristic", 0.4),
)
_LOOKUP = ((10, 2), (2, 2), (4, 2), (4, 3), (8, 3))  # prompt_lookup_num_tokens, max_matching_ngram_size
_TUNED_ON, _TUNED_AGAIN = 2, 3  # prompts of the warm-up; settings that are tried a second time


@dataclass(frozen=True)
class Choice:
    """A rule with the size of its tree, written NAME, NAME:K or NAME:K:L."""

    selector: str
    candidates: int
    length: int

    @classmethod
    def of(cls, text: str, candidates: int, length: int) -> Choice:
        """
        >>> Choice.of("block:1:6", 4, 4)
        Choice(selector='block', candidates=1, length=6)
        """
        name, *sizes = text.split(":")
        if len(sizes) > 2 or not all(size.isdecimal() for size in sizes):
            raise OptionError(f"a selector is written NAME, NAME:K or NAME:K:L, got {text!r}")
        return cls(name, *(int(size) for size in sizes), *(candidates, length)[len(sizes) :])


def choices_of(texts: Sequence[str], candidates: int, length: int) -> list[Choice]:
    """The rules so written; "all" stands for every rule that has a tree of this size, but for the slow ones."""
    found: list[Choice] = []
    for text in texts:
        head, _, sizes = text.partition(":")
        if head == "all":
            size = Choice.of(text, candidates, length)
            names = [name for name in rules_that_fit(size.candidates, size.length) if name not in SLOW]
            found += [Choice.of(f"{name}:{sizes}" if sizes else name, candidates, length) for name in names]
        else:
            found.append(Choice.of(text, candidates, length))
    return list(dict.fromkeys(found))


@dataclass
class MethodRun:
    """One method over all rounds.

    method: "generate" and "assisted", "prompt_lookup" (of transformers), "plain" (this loop, nothing drafted), or a
    selector. tokens, target_calls, draft_calls: of all rounds; draft_calls None where they are not counted.
    block_efficiency: tokens per target call. seconds: by round. tokens_per_second: of the median round. ratio: median
    over rounds of the speed against "generate" in the same round; ratio_range: the least and the largest. settings:
    of the method, those found on the warm-up included.
    """

    method: str
    drafter: str | None
    candidates: int | None
    length: int | None
    settings: dict[str, Any]
    tokens: int = 0
    target_calls: int = 0
    draft_calls: int | None = None
    block_efficiency: float = float("nan")
    tokens_per_second: float = float("nan")
    ratio: float = float("nan")
    ratio_range: tuple[float, float] = (float("nan"), float("nan"))
    seconds: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Comparison:
    """runs: a method each. left_out: methods that could not run, and why."""

    runs: list[MethodRun]
    left_out: list[dict[str, str]]
    rounds: int
    prompts: int
    settings: dict[str, Any]
    environment: dict[str, Any]


@dataclass(frozen=True)
class _Counts:
    tokens: int
    target_calls: int
    draft_calls: int | None = None


@dataclass
class _Method:
    run: MethodRun
    call: Callable[[list[list[int]], int, int], _Counts]  # (texts, new tokens of each, seed)


def compare(
    prompts: str | Path | Sequence[str | Prompt],
    *,
    target: str | Path | LanguageModel = DEFAULT,
    draft: str | Path | LanguageModel | Drafter | None = None,
    selectors: Sequence[str] = ("block:1", "k_seq"),
    candidates: int = 4,
    length: int = 4,
    draft_temperature: float | None = None,
    law: Processing | None = None,
    new_tokens: int = 64,
    rounds: int = 3,
    chat: bool | None = None,
    batch: int = 1,
    limit: int | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> Comparison:
    """Time transformers' `generate`, its assisted generation with the same pair, its prompt lookup, the plain loop of
    this project and the selectors, on the same prompts.

    Everyone makes `new_tokens` tokens of each prompt (ends of texts are passed over), with the same temperature and
    filters, dtype and threads. The methods take turns, prompt by prompt and in another order each round, so that a
    slow moment of the machine meets them all. A warm-up tries draft lengths, schedules and confidence thresholds of
    assisted generation and takes the fastest. Assisted generation takes one text at a time: with batch > 1 it is left
    out.

    selectors: names, with NAME:K:L in place of `candidates` and `length`; "all" is every rule that fits. Other
    parameters: those of `decode_prompts`. progress(what, done, of): called as the work goes on.

    Raises PromptError, OptionError, ModelError, VocabularyError and UnsupportedLawError.
    """
    law = law or Processing()
    for name, value in (("rounds", rounds), ("batch", batch), ("limit", limit), ("new tokens", new_tokens)):
        if value is not None and value < 1:
            raise OptionError(f"{name} must be at least 1, got {value}")
    chosen = as_prompts(prompts)[:limit]
    tell = progress or (lambda what, done, of: None)
    tell("loading models", 0, 1)
    model = target if isinstance(target, LanguageModel) else load(target, dtype, device)
    drafter = get_drafter(draft, model)
    texts = read_texts(model, chosen, chat, new_tokens)
    batches = [texts[start : start + batch] for start in range(0, len(texts), batch)]
    methods = [
        _generate(model, law),
        _ours("plain", Decoder(model, "none", selector="maximal_coupling", candidates=1, length=1), law),
    ]
    for choice in choices_of(selectors, candidates, length):
        decoder = Decoder(
            model, drafter, selector=choice.selector, candidates=choice.candidates, length=choice.length,
            draft_temperature=draft_temperature,
        )  # fmt: skip
        methods.append(_ours(choice.selector, decoder, law))
    for method in methods:
        tell(f"warming up {method.run.method}", 0, 1)
        method.call(batches[0], min(new_tokens, 16), seed)

    assistants = {} if drafter.name == "none" else _assistants(model, drafter, law)
    left_out = [{"method": name, "reason": "takes one text at a time"} for name in assistants if batch > 1]
    for name, tried in assistants.items() if batch == 1 else ():
        try:
            methods.append(_fastest(name, tried, batches[:_TUNED_ON], new_tokens, seed, tell))
        except Exception as reason:  # whatever the library makes of a model it does not serve
            left_out.append({"method": name, "reason": f"{type(reason).__name__}: {reason}".partition("\n")[0]})

    done, steps = 0, rounds * len(batches) * len(methods)
    for turn in range(rounds):
        spent = [0.0] * len(methods)
        for number, part in enumerate(batches):
            for step in range(len(methods)):
                place = (step + number + turn) % len(methods)
                method = methods[place]
                tell(f"round {turn + 1}: {method.run.method}", done, steps)
                seconds, counts = _timed(method, part, new_tokens, seed + turn)
                spent[place] += seconds
                _add(method.run, counts)
                done += 1
        for method, seconds in zip(methods, spent, strict=True):
            method.run.seconds.append(seconds)
    for method in methods:
        _settle(method.run, methods[0].run, rounds)
    return Comparison(
        runs=[method.run for method in methods],
        left_out=left_out,
        rounds=rounds,
        prompts=len(texts),
        settings={
            "target": model.name,
            "draft": drafter.name,
            **asdict(law),
            "draft_temperature": draft_temperature,
            "new_tokens": new_tokens,
            "chat": chat,
            "batch": batch,
            "dtype": dtype_of(model),
            "seed": seed,
        },
        environment=environment(model),
    )


def _add(run: MethodRun, counts: _Counts) -> None:
    run.tokens += counts.tokens
    run.target_calls += counts.target_calls
    if counts.draft_calls is not None:
        run.draft_calls = (run.draft_calls or 0) + counts.draft_calls


def _settle(run: MethodRun, generate: MethodRun, rounds: int) -> None:
    run.block_efficiency = run.tokens / run.target_calls
    run.tokens_per_second = run.tokens / rounds / median(run.seconds)
    speeds = [theirs / ours for theirs, ours in zip(generate.seconds, run.seconds, strict=True)]
    run.ratio, run.ratio_range = median(speeds), (min(speeds), max(speeds))


def _timed(method: _Method, texts: list[list[int]], tokens: int, seed: int) -> tuple[float, _Counts]:
    _wait()
    started = time.perf_counter()
    counts = method.call(texts, tokens, seed)
    _wait()
    return time.perf_counter() - started, counts


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


# ---- this project's loop


def _ours(name: str, decoder: Decoder, law: Processing) -> _Method:
    def call(texts: list[list[int]], tokens: int, seed: int) -> _Counts:
        made = decoder.generate(texts, tokens, **asdict(law), ends=frozenset(), keys=row_keys(seed, texts))
        summary = Summary.of([one.tally for one in made])
        return _Counts(summary.tokens, summary.target_calls)

    silent = decoder.drafter.name == "none"
    run = MethodRun(
        method=name,
        drafter=None if silent else decoder.drafter.name,
        candidates=None if silent else decoder.candidates,
        length=None if silent else decoder.length,
        settings={"draft_temperature": decoder.draft_temperature},
    )
    return _Method(run, call)


# ---- transformers' own


def _generate(model: LanguageModel, law: Processing) -> _Method:
    own = _Own(model, law)
    return _Method(MethodRun("generate", None, None, None, {}), own)


def _assistants(model: LanguageModel, drafter: Drafter, law: Processing) -> dict[str, list[_Method]]:
    """Each of transformers' ways to draft, with the settings worth trying."""
    ways: dict[str, list[_Method]] = {}
    known: dict[str, Any] | None = None
    if isinstance(drafter, EarlyExitDrafter):
        layers = model.model.config.get_text_config().num_hidden_layers
        known = {"assistant_early_exit": layers - drafter.layers_left_out}
    elif isinstance(drafter, ModelDrafter):
        known = {"assistant_model": drafter.model.model}
    if known is not None:
        ways["assisted"] = []
        for many, schedule, threshold in _ASSISTED:
            settings = {
                "num_assistant_tokens": many,
                "num_assistant_tokens_schedule": schedule,
                "assistant_confidence_threshold": threshold,
            }
            run = MethodRun("assisted", drafter.name, 1, many, settings)
            ways["assisted"].append(_Method(run, _Own(model, law, known, settings)))
    ways["prompt_lookup"] = []
    own = ((4, drafter.longest), (8, drafter.longest)) if isinstance(drafter, LookupDrafter) else ()
    for many, suffix in dict.fromkeys((*_LOOKUP, *own)):
        settings = {"prompt_lookup_num_tokens": many, "max_matching_ngram_size": suffix}
        run = MethodRun("prompt_lookup", f"lookup:{suffix}", 1, many, settings)
        ways["prompt_lookup"].append(_Method(run, _Own(model, law, settings)))
    return ways


def _fastest(
    name: str,
    tried: list[_Method],
    batches: list[list[list[int]]],
    tokens: int,
    seed: int,
    tell: Callable[[str, int, int], None],
) -> _Method:
    """The method that makes most tokens a second of the warm-up; the best ones are tried twice."""

    def pace(method: _Method) -> float:
        return sum(_timed(method, part, tokens, seed)[0] for part in batches)

    tried[0].call(batches[0], min(tokens, 16), seed)
    seconds = []
    for done, method in enumerate(tried):
        tell(f"tuning {name}", done, len(tried) + _TUNED_AGAIN)
        seconds.append(pace(method))
    best = sorted(range(len(tried)), key=lambda place: seconds[place])[:_TUNED_AGAIN]
    for done, place in enumerate(best):
        tell(f"tuning {name}", len(tried) + done, len(tried) + _TUNED_AGAIN)
        seconds[place] = min(seconds[place], pace(tried[place]))
    return tried[min(best, key=lambda place: seconds[place])]


class _Own:
    """transformers' `generate` on texts of token ids; its target and draft calls counted.

    asked: arguments of `generate`. assistant: what it reads from the drafting model's generation config instead, where
    the heuristic schedule also keeps the length it has found.
    """

    def __init__(
        self,
        model: LanguageModel,
        law: Processing,
        asked: dict[str, Any] | None = None,
        assistant: dict[str, Any] | None = None,
    ):
        self._model, self._asked = model, asked or {}
        self._config = GenerationConfig(pad_token_id=0, **(assistant or {}))  # no token ends a text
        if law.temperature == 0:
            self._law: dict[str, Any] = {"do_sample": False}
        else:
            filters = {"top_k": law.top_k or 0, "top_p": law.top_p or 1.0, "min_p": law.min_p}
            self._law = {"do_sample": True, "temperature": law.temperature, **filters}

    def __call__(self, texts: list[list[int]], tokens: int, seed: int) -> _Counts:
        model, drafting = self._model.model, self._asked.get("assistant_model")
        device = model.get_input_embeddings().weight.device
        width = max(map(len, texts))
        ids = torch.tensor([[0] * (width - len(text)) + text for text in texts], device=device)
        mask = torch.tensor([[0] * (width - len(text)) + [1] * len(text) for text in texts], device=device)
        cuda = [device] if device.type == "cuda" else []
        with (
            _set_aside(model, self._config),
            _set_aside(drafting, self._config),
            _calls(model) as calls,
            _calls(drafting) as draft_calls,
            torch.random.fork_rng(devices=cuda),
        ):
            torch.manual_seed(seed)
            found = model.generate(ids, attention_mask=mask, max_new_tokens=tokens, **self._law, **self._asked)
        made = (found.shape[1] - width) * len(texts)
        return _Counts(made, calls[0] * len(texts), (calls[1] + draft_calls[0]) if self._asked else None)


@contextmanager
def _set_aside(module: Any, config: GenerationConfig) -> Iterator[None]:
    """The model with this generation config in place of its own, and silent about it."""
    if module is None:
        yield
        return
    own, loud = module.generation_config, transformers_logging.get_verbosity()
    module.generation_config = config
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        module.generation_config = own
        transformers_logging.set_verbosity(loud)


@contextmanager
def _calls(module: Any) -> Iterator[list[int]]:
    """Counts forward passes of the whole model, and of it with fewer layers."""
    counts = [0, 0]
    if module is None:
        yield counts
        return
    decoder = module.get_decoder()
    layers = decoder.config.num_hidden_layers

    def count(*_: object) -> None:
        counts[decoder.config.num_hidden_layers < layers] += 1

    hook = module.register_forward_pre_hook(count)
    try:
        yield counts
    finally:
        hook.remove()
