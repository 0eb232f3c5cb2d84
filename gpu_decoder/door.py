"""The door of transformers: `model.generate(..., custom_generate=ot_spec_generate(drafter))`."""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessorList,
    MaxLengthCriteria,
    PrefixConstrainedLogitsProcessor,
    PreTrainedModel,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteriaList,
    StopStringCriteria,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerationMixin

from gpu_decoder.decode import Decoder, Generation
from gpu_decoder.draft_tree import TreePolicy
from gpu_decoder.drafters import Drafter
from gpu_decoder.metrics import Meter
from gpu_decoder.models import LanguageModel, as_language_model
from gpu_decoder.processing import LogitsProcessor, Processors
from ot_spec.errors import ModelError, OptionError, PromptError
from ot_spec.selector import Selector
from ot_spec.tree import SequenceRule

_UNDERSTOOD = ("attention_mask", "position_ids", "use_cache", "cache", "logits_to_keep")
_CACHES = (None, "dynamic", "dynamic_full", "static", "hybrid", "sliding_window")


class ot_spec_generate:
    """Speculative decoding inside `generate`: what comes back has the law that `generate` itself would give. ::

        target.generate(**inputs, max_new_tokens=64, custom_generate=ot_spec_generate())

    drafter: as for `Decoder`: "exit:N", "lookup[:N]", "none", a folder, a model of transformers, a `Drafter`.
    selector, candidates, length, tree, meter: those of `Decoder`. draft_temperature: what the draft's scores, processed
    as the target's are, are divided by; by default 1. tokenizer: the target's, for stop_strings and to compare with a
    draft's. stop_strings: as for `generate`, which does not let a tokenizer through to a function of ours. seed: of the
    coins; by default drawn from torch's generator, which `torch.manual_seed` sets. A call may give another one:
    `generate(..., seed=1)`.

    Temperature, filters, penalties and all other processors are those that `generate` prepares: the target's law is
    the float64 softmax of its processed scores. Processors see one row at a time, with its padding, once a token and in
    order; what they keep is copied for branches that are rejected. Stopping criteria are asked after every token, one
    row at a time. Padding on the left, `num_return_sequences`, a streamer and `return_dict_in_generate` are understood;
    scores and logits too, for one row. `generations` holds what was made of each row in the last call, with its tally.

    Refused: beams and other modes, encoders and other inputs than ids, caches and positions of the caller's, attentions
    and hidden states. Raises OptionError, PromptError or ModelError, before anything is decoded. An object that is
    called again has its models loaded and checked.
    """

    def __init__(
        self,
        drafter: str | Path | LanguageModel | PreTrainedModel | Drafter | None = None,
        *,
        selector: str | Selector | SequenceRule = "k_seq",
        candidates: int = 4,
        length: int = 4,
        draft_temperature: float | None = None,
        tree: TreePolicy | None = None,
        meter: Meter | None = None,
        tokenizer: Any = None,
        stop_strings: str | Sequence[str] = (),
        seed: int | None = None,
    ):
        self._drafter, self._tokenizer, self._seed = drafter, tokenizer, seed
        self._options: dict[str, Any] = {
            "selector": selector, "candidates": candidates, "length": length,
            "draft_temperature": draft_temperature, "tree": tree, "meter": meter,
        }  # fmt: skip
        self._criteria: list[Any] = []
        if stop_strings:
            if tokenizer is None:
                raise OptionError("stop_strings need a tokenizer: ot_spec_generate(..., tokenizer=tokenizer)")
            strings = stop_strings if isinstance(stop_strings, str) else list(stop_strings)
            self._criteria.append(StopStringCriteria(tokenizer, strings))
        self._decoder: Decoder | None = None
        self.generations: list[Generation] = []

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        streamer: Any = None,
        seed: int | None = None,
        **model_kwargs: Any,
    ) -> torch.Tensor | GenerateDecoderOnlyOutput:
        """What `generate` calls with what it has prepared."""
        asked = _caller()
        streamer = streamer if streamer is not None else asked.get("streamer")
        _check_asked(model, generation_config, asked)
        _check_inputs(input_ids, model_kwargs)
        sample, kept = bool(generation_config.do_sample), _kept(generation_config)
        if len(input_ids) > 1 and (kept or streamer is not None):
            raise OptionError(
                f"{'a streamer takes' if streamer is not None else 'scores and logits are given for'} one row, and "
                f"these are {len(input_ids)}: rows of a batch do not go on in step"
            )
        prompts = _prompts(input_ids, model_kwargs.get("attention_mask"))
        decoder = self._decoder_of(model)
        _check_rows(logits_processor, input_ids, decoder.target.vocab)
        notes = {name: _Note(input_ids[0].tolist()) for name in kept}

        def processors(place: int) -> Processors:
            own = [_for_row(processor, place, len(prompts)) for processor in logits_processor]
            given: list[Any] = [_Single(), notes.get("logits"), *own, notes.get("scores")]
            before = input_ids[place, : input_ids.shape[1] - len(prompts[place])].tolist()
            return Processors([processor for processor in given if processor is not None], before)

        def stream(place: int, tokens: list[int]) -> None:
            for note in notes.values():
                note.keep(tokens)
            if streamer is not None:
                for token in tokens:
                    streamer.put(torch.tensor([token]))

        room = max(1, (stopping_criteria.max_length or generation_config.max_length) - input_ids.shape[1])
        ending = _Ending([*stopping_criteria, *self._criteria], input_ids, prompts, room)
        self.generations = decoder.generate(
            prompts,
            room,
            temperature=1.0 if sample else 0.0,
            logits_processors=processors,
            until=ending,
            ends=ending.ids,
            seed=self._seed_of(seed, sample),
            stream=stream,
        )
        if streamer is not None:
            streamer.end()
        sequences = ending.sequences([made.tokens for made in self.generations], generation_config)
        if not generation_config.return_dict_in_generate:
            return sequences
        parts: dict[str, Any] = {name: tuple(row.clone() for row in note.kept) for name, note in notes.items()}
        return GenerateDecoderOnlyOutput(sequences, **parts)  # pyright: ignore[reportArgumentType]

    def _decoder_of(self, model: Any) -> Decoder:
        if self._decoder is None or self._decoder.target.model is not model:
            self._decoder = Decoder(as_language_model(model, self._tokenizer), self._drafter, **self._options)
        return self._decoder

    def _seed_of(self, seed: int | None, sample: bool) -> int:
        seed = self._seed if seed is None else seed
        if seed is None:
            return int(torch.randint(2**63 - 1, ())) if sample else 0
        return seed


# ---- what generate was asked for


def _caller() -> dict[str, Any]:
    """The arguments of the `generate` that calls: it keeps streamers and assistants from functions of ours."""
    frame = sys._getframe(2)
    ours = frame.f_code.co_name == "generate" and isinstance(frame.f_locals.get("self"), GenerationMixin)
    names = ("streamer", "assistant_model", "synced_gpus")
    return {name: frame.f_locals.get(name) for name in names} if ours else {}


def _check_asked(model: Any, config: GenerationConfig, asked: dict[str, Any]) -> None:
    if model.config.is_encoder_decoder:
        raise ModelError(f"{type(model).__name__} has an encoder; this decodes models without one")
    if model.training:
        raise ModelError(f"{type(model).__name__} is in training mode: call model.eval() first")
    mode = config.get_generation_mode(asked.get("assistant_model")).value
    if mode not in ("greedy_search", "sample"):
        instead = "; give the assistant as drafter: ot_spec_generate(assistant_model)" if "assist" in mode else ""
        raise OptionError(f"greedy search and sampling are decoded here, and not {mode}{instead}")
    if asked.get("synced_gpus"):
        raise OptionError("synced_gpus asks for steps in time with other processes, which a draft does not keep")
    if config.cache_implementation not in _CACHES:
        raise OptionError(f"cache_implementation={config.cache_implementation!r}: the decoder keeps a cache of its own")
    for name in ("output_attentions", "output_hidden_states"):
        if config.return_dict_in_generate and getattr(config, name):
            raise OptionError(f"{name}: passes over a tree of drafted tokens have none to return")


def _kept(config: GenerationConfig) -> list[str]:
    if not config.return_dict_in_generate:
        return []
    return [name for name in ("scores", "logits") if getattr(config, f"output_{name}")]


def _check_inputs(input_ids: torch.Tensor, model_kwargs: dict[str, Any]) -> None:
    others = [name for name, value in model_kwargs.items() if name not in _UNDERSTOOD and value is not None]
    if others:
        raise OptionError(f"{others[0]}: a model is decoded from ids and their mask alone")
    cache, mask = model_kwargs.get("cache"), model_kwargs.get("attention_mask")
    if cache is not None and (getattr(cache, "_is_user_defined", False) or cache.get_seq_length() > 0):
        raise OptionError("cache: the decoder keeps a cache of its own, and reads the whole text itself")
    places = model_kwargs.get("position_ids")
    if places is not None:
        seen = torch.ones_like(input_ids) if mask is None else mask
        expected = (seen.cumsum(-1) - 1).to(places.device)
        if places.shape != expected.shape or bool((places != expected)[seen.to(places.device) != 0].any()):
            raise OptionError("position_ids: a text is read at the positions 0, 1, ..")


def _prompts(input_ids: torch.Tensor, mask: torch.Tensor | None) -> list[list[int]]:
    if mask is None:
        return input_ids.tolist()
    prompts = []
    for row, (ids, seen) in enumerate(zip(input_ids.tolist(), (mask != 0).tolist(), strict=True)):
        length = sum(seen)
        if seen != [False] * (len(ids) - length) + [True] * length:
            raise PromptError(
                f'row {row} of attention_mask hides tokens after the first seen: pad on the left (padding_side="left")'
            )
        prompts.append(ids[len(ids) - length :])
    return prompts


# ---- processors, row by row


class _Single:
    """Scores in float32, as generate hands them to its processors."""

    keeps_state = False

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.float()


class _Note:
    """A processor that changes nothing, and keeps the scores along the text of one row."""

    keeps_state = True  # what a draft proposes is none of its business

    def __init__(self, text: Sequence[int]):
        self._text = list(text)
        self._seen: dict[tuple[int, ...], torch.Tensor] = {}
        self.kept: list[torch.Tensor] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> _Note:
        return self  # branches write to one place

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._seen[tuple(ids[0].tolist())] = scores.clone()
        return scores

    def keep(self, tokens: Sequence[int]) -> None:
        """These tokens were committed."""
        for token in tokens:
            self.kept.append(self._seen[tuple(self._text)])
            self._text.append(token)
        self._seen = {}


def _for_row(processor: LogitsProcessor, row: int, rows: int) -> LogitsProcessor:
    """A processor of a batch as it is for one row of it."""
    own: Any = copy.copy(processor)
    if isinstance(processor, RepetitionPenaltyLogitsProcessor) and isinstance(own.prompt_ignore_length, torch.Tensor):
        own.prompt_ignore_length = own.prompt_ignore_length[row : row + 1]
    elif isinstance(processor, EncoderRepetitionPenaltyLogitsProcessor):
        given = row * len(own.encoder_input_ids) // rows  # several rows go on from one prompt
        own.encoder_input_ids = own.encoder_input_ids[given : given + 1]
    elif isinstance(processor, EncoderNoRepeatNGramLogitsProcessor):
        own.generated_ngrams = [own.generated_ngrams[row * own.batch_size // rows]]
        own.batch_size = 1
    elif isinstance(processor, PrefixConstrainedLogitsProcessor):
        allowed, given = own._prefix_allowed_tokens_fn, row // own._num_beams
        own._prefix_allowed_tokens_fn, own._num_beams = lambda _, ids: allowed(given, ids), 1
    elif isinstance(processor, UnbatchedClassifierFreeGuidanceLogitsProcessor):
        names = ("input_ids", "attention_mask")
        given = {name: own.unconditional_context[name] for name in names}
        sliced = {name: ids[row * len(ids) // rows :][:1] for name, ids in given.items() if ids is not None}
        own.unconditional_context = own.unconditional_context | sliced
    else:
        return processor
    return own


def _check_rows(processors: Sequence[LogitsProcessor], input_ids: torch.Tensor, vocab: int) -> None:
    """Raise OptionError for a processor of the caller's that treats rows of a batch by their place in it."""
    if len(input_ids) == 1:
        return
    scores = torch.linspace(-1, 1, vocab, device=input_ids.device).repeat(len(input_ids), 1)
    for processor in processors:
        if type(processor).__module__ == "transformers.generation.logits_process":
            continue

        def asked(rows: slice, processor: LogitsProcessor = processor) -> torch.Tensor:
            [forked] = Processors([processor]).fork().processors
            return forked(input_ids[rows], scores[rows].clone())

        together = asked(slice(None))
        alone = [asked(slice(row, row + 1)) for row in range(len(input_ids))]
        if any(one.shape != (1, vocab) for one in alone) or not torch.equal(together, torch.cat(alone)):
            raise OptionError(
                f"the logits processor {type(processor).__name__} treats the rows of a batch by their place, and rows "
                "are processed one at a time here: decode one prompt a call"
            )


# ---- where texts end


class _Ending:
    """The stopping criteria of a call, asked for one row at a time.

    Rows that stop are padded where there is a token that ends a text, as by generate; where there is none, generate
    goes on with all rows until the last one stops, and so do these.
    """

    def __init__(self, criteria: Sequence[Any], input_ids: torch.Tensor, prompts: list[list[int]], room: int):
        self.ids = frozenset(int(i) for c in criteria if isinstance(c, EosTokenCriteria) for i in c.eos_token_id)
        self._padded = any(hasattr(c, "eos_token_id") for c in criteria)
        self._criteria = [c for c in criteria if not isinstance(c, EosTokenCriteria | MaxLengthCriteria)]
        self._input_ids, self._prompts, self._room = input_ids, prompts, room
        self._reached: dict[int, int] = {}

    def __call__(self, row: int, ids: list[int]) -> bool:
        new = ids[len(self._prompts[row]) :]
        if row not in self._reached and (self._asked(row, new) or len(new) == self._room):
            self._reached[row] = len(new)
        if self._padded or len(self._prompts) == 1:
            return self._reached.get(row, self._room) < self._room
        return len(self._reached) == len(self._prompts) and self._room > len(new) >= max(self._reached.values())

    def _asked(self, row: int, new: list[int]) -> bool:
        if not self._criteria:
            return False
        text = torch.cat([self._input_ids[row], self._input_ids.new_tensor(new)])[None]
        return any([bool(torch.as_tensor(criterion(text, None)).any()) for criterion in self._criteria])

    def sequences(self, tokens: list[list[int]], config: GenerationConfig) -> torch.Tensor:
        """Prompts and new tokens (B, T), padded on the right."""
        if not self._padded and len(tokens) > 1:
            last = max(self._reached.values())
            tokens = [new[:last] for new in tokens]
        longest = max(len(new) for new in tokens)
        pad = getattr(config, "_pad_token_tensor", None)
        rows = [[*new, *[0 if pad is None else int(pad)] * (longest - len(new))] for new in tokens]
        return torch.cat([self._input_ids, self._input_ids.new_tensor(rows)], dim=1)
