"""Which drafter and rule fit a model: what there is, what a few short texts show, and what is refused and why."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median, stdev
from typing import Any

from gpu_decoder.coins import row_keys
from gpu_decoder.decode import Decoder, rules_that_fit
from gpu_decoder.drafters import Drafter, get_drafter
from gpu_decoder.models import DEFAULT, LanguageModel, load
from gpu_decoder.processing import Processing
from gpu_decoder.prompt_file import DEMO_PROMPTS, Prompt, as_prompts
from gpu_decoder.records import dtype_of, environment
from gpu_decoder.run import read_texts
from gpu_decoder.verify import check_tree_attention
from ot_spec.errors import ModelError, OptionError, OtSpecError

_TREES = ("traversal", "k_seq", "optimal", "point_mass")  # rules for several candidates, tried with the best drafters
_DRAFTERS_TRIED_FURTHER = 2
_WORTH_IT = 1.05


@dataclass(frozen=True)
class Pair:
    """A drafter and a rule, tried on a few short texts.

    block_efficiency: tokens per target call, with its standard error over steps (None for one). tokens_per_second:
    predicted for a long text: block_efficiency / seconds of the median step, the prompt not counted. ratio: that
    against the plain loop's.
    """

    drafter: str
    selector: str
    candidates: int
    length: int
    block_efficiency: float
    error: float | None
    tokens_per_second: float
    ratio: float


@dataclass(frozen=True)
class Fit:
    """What fits a target.

    reason: why the target cannot be decoded at all, else None. pairs: those tried, the fastest first. refused: drafters
    that do not fit, and why. rules: every rule that has a tree of this size. recommended: the fastest pair, None if
    none is faster than the plain loop by more tokens a call. advice: that in a sentence.
    """

    target: str
    reason: str | None
    plain_tokens_per_second: float | None
    pairs: list[Pair]
    refused: list[dict[str, str]]
    rules: list[str]
    recommended: Pair | None
    advice: str
    settings: dict[str, Any]
    environment: dict[str, Any]


def fit(
    target: str | Path | LanguageModel = DEFAULT,
    drafters: Sequence[str | Path | LanguageModel | Drafter] = (),
    *,
    prompts: str | Path | Sequence[str | Prompt] = DEMO_PROMPTS,
    limit: int | None = 2,
    new_tokens: int = 24,
    candidates: int = 4,
    lengths: Sequence[int] = (2, 4),
    law: Processing | None = None,
    draft_temperature: float | None = None,
    chat: bool | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> Fit:
    """Try drafters and rules on a model and say which to take.

    Tried are the default drafter, early exits of three depths, prompt lookup and `drafters`: first with one candidate
    (`block`) of each length, then the best of them with `candidates` and the rules for trees. The texts are short and
    the answer is a prediction; `compare` measures. progress(what, done, of): called as the work goes on.

    Raises PromptError, OptionError, and ModelError for a target that cannot be loaded; what else does not fit is
    part of the answer.
    """
    law = law or Processing()
    if not lengths or min(lengths) < 1 or new_tokens < 2:
        raise OptionError("a fit needs lengths of at least 1 and at least 2 new tokens")
    tell = progress or (lambda what, done, of: None)
    tell("loading models", 0, 1)
    model = target if isinstance(target, LanguageModel) else load(target, dtype, device)
    texts = read_texts(model, as_prompts(prompts)[:limit], chat, new_tokens)
    settings = asdict(law) | {
        "draft_temperature": draft_temperature,
        "prompts": len(texts),
        "new_tokens": new_tokens,
        "dtype": dtype_of(model),
        "seed": seed,
    }
    about = environment(model)
    try:
        check_tree_attention(model)
    except ModelError as reason:
        return Fit(model.name, str(reason), None, [], [], [], None, str(reason), settings, about)

    def tried(drafter: Any, selector: str, many: int, length: int) -> Pair:
        decoder = Decoder(
            model, drafter, selector=selector, candidates=many, length=length, draft_temperature=draft_temperature
        )
        decoder.generate(texts[:1], min(new_tokens, 4), **asdict(law), seed=seed)
        committed, seconds = _steps(decoder, texts, new_tokens, law, seed)
        mean = sum(committed) / len(committed)
        error = stdev(committed) / len(committed) ** 0.5 if len(committed) > 1 else None
        return Pair(decoder.drafter.name, selector, many, length, mean, error, mean / median(seconds), float("nan"))

    def alone() -> float:
        return tried("none", "maximal_coupling", 1, 1).tokens_per_second

    plain = alone()
    offered = [*_offered(model), *drafters]
    pairs: list[Pair] = []
    refused: list[dict[str, str]] = []
    known: dict[str, Drafter] = {}
    for place, given in enumerate(offered):
        name = given.name if isinstance(given, LanguageModel | Drafter) else str(given)
        tell(f"trying {name}", place, len(offered) + _DRAFTERS_TRIED_FURTHER)
        try:
            drafter = get_drafter(given, model)
            if drafter.name in known:
                continue
            pairs += [tried(drafter, "block", 1, length) for length in lengths]
            known[drafter.name] = drafter
        except OtSpecError as reason:
            refused.append({"drafter": name, "reason": str(reason)})
    best = {pair.drafter: pair for pair in sorted(pairs, key=lambda pair: pair.tokens_per_second)}
    first = sorted(best.values(), key=lambda pair: -pair.tokens_per_second)[:_DRAFTERS_TRIED_FURTHER]
    for place, pair in enumerate(first if candidates > 1 else ()):
        tell(f"trying trees of {pair.drafter}", len(offered) + place, len(offered) + _DRAFTERS_TRIED_FURTHER)
        pairs += [tried(known[pair.drafter], name, candidates, pair.length) for name in _TREES]
    plain = max(plain, alone())  # a slow moment of the machine makes nothing else look fast
    pairs = [replace(pair, ratio=pair.tokens_per_second / plain) for pair in pairs]
    pairs.sort(key=lambda pair: -pair.tokens_per_second)
    recommended = next((pair for pair in pairs if _worth_it(pair)), None)
    return Fit(
        target=model.name,
        reason=None,
        plain_tokens_per_second=plain,
        pairs=pairs,
        refused=refused,
        rules=rules_that_fit(candidates, max(lengths)),
        recommended=recommended,
        advice=_advice(recommended),
        settings=settings,
        environment=about,
    )


def _worth_it(pair: Pair) -> bool:
    """Faster, and by more tokens a call: a call with drafts is no cheaper than one without."""
    if pair.error is None:
        return False
    return min(pair.ratio, pair.block_efficiency - pair.error) >= _WORTH_IT


def _offered(model: LanguageModel) -> list[str | Drafter]:
    """The default, early exits that leave a tenth, a quarter and a half of the layers out, and prompt lookup."""
    layers = model.model.config.get_text_config().num_hidden_layers
    depths = dict.fromkeys(max(1, round(layers * share)) for share in (0.1, 0.25, 0.5))
    default = get_drafter(None, model)
    return [*([default] if default.name != "none" else []), *(f"exit:{depth}" for depth in depths), "lookup"]


def _steps(
    decoder: Decoder, texts: Sequence[Sequence[int]], new_tokens: int, law: Processing, seed: int
) -> tuple[list[int], list[float]]:
    """Tokens and seconds of each step, one text at a time, without the steps that read a prompt."""
    committed: list[int] = []
    seconds: list[float] = []
    for text, key in zip(texts, row_keys(seed, texts), strict=True):
        times = [time.perf_counter()]
        [made] = decoder.generate(
            [text],
            new_tokens,
            **asdict(law),
            ends=frozenset(),
            keys=[key],
            on_progress=lambda made, done, times=times: times.append(time.perf_counter()),
        )
        committed += [step.committed for step in made.tally.steps]
        spans = [after - before for before, after in pairwise(times)]
        seconds += spans[1:] or spans
    return committed, seconds


def _advice(pair: Pair | None) -> str:
    if pair is None:
        return "nothing tried is faster than plain decoding here: decode with --draft none"
    size = f"--candidates {pair.candidates} --length {pair.length}"
    return (
        f"decode with --draft {pair.drafter} --selector {pair.selector} {size}: {pair.block_efficiency:.2f} tokens per "
        f"target call, some {pair.ratio:.2f} times the speed of plain decoding"
    )
