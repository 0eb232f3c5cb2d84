"""From logits to the law a token is drawn from: processors, temperature, filters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from ot_spec.arrays import Array, may_wait
from ot_spec.errors import OptionError, ShapeError
from ot_spec.law import from_logits

LogitsProcessor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(ids (1, T), scores (1, V)) -> scores (1, V), as transformers has them."""

_STATEFUL = ("SynthIDTextWatermarkLogitsProcessor", "UnbatchedClassifierFreeGuidanceLogitsProcessor")


@dataclass(frozen=True)
class Processing:
    """What makes a law of logits: temperature, top-k, top-p, min-p, in this order."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def law(self, logits: torch.Tensor) -> Array:
        """(..., V) logits -> (..., V) law in float64: a numpy array of logits on the CPU, a tensor on a device."""
        law = from_logits(
            logits.detach(), temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, min_p=self.min_p,
            check=may_wait(logits),
        )  # fmt: skip
        return law.numpy() if may_wait(law) else law


class Processors:
    """Logits processors along one text, called once a position and in order, as plain generation calls them.

    Trees ask for laws after tokens that may be rejected, so a processor with a state is copied for every branch
    (`fork`), and the text goes on with the copies of the path it took; models and tokenizers that a processor holds are
    not copied. transformers' own keep no state, but for a few that are copied too. A processor of your own that keeps
    none says so in an attribute `keeps_state = False`: it is not copied then, and applied to the draft as well.

    before: ids put before the text for them, such as padding.
    """

    def __init__(self, processors: Sequence[LogitsProcessor], before: Sequence[int] = ()):
        self.processors, self.before = list(processors), list(before)
        self._stateful = [not _without_state(processor) for processor in self.processors]

    def __bool__(self) -> bool:
        return bool(self.processors)

    def __call__(self, ids: Sequence[int], scores: torch.Tensor) -> torch.Tensor:
        """Scores (V,) after these ids, in float32 at least."""
        if not self.processors:
            return scores
        scores = scores[None] if scores.dtype == torch.float64 else scores[None].float()
        shape, text = scores.shape, torch.tensor([[*self.before, *ids]], device=scores.device)
        for processor in self.processors:
            scores = processor(text, scores)
            if scores.shape != shape:
                raise ShapeError(
                    f"the logits processor {_name(processor)} makes scores of shape {tuple(scores.shape)} of "
                    f"{tuple(shape)}"
                )
        return scores[0]

    def after(self, processor: LogitsProcessor) -> Processors:
        """These, with another one called before them."""
        return Processors([processor, *self.processors], self.before)

    def fork(self) -> Processors:
        """For one branch: what keeps a state is copied as it is now."""
        if not any(self._stateful):
            return self
        forked = Processors([], self.before)
        forked._stateful = self._stateful
        for processor, stateful in zip(self.processors, self._stateful, strict=True):
            try:
                forked.processors.append(copy.deepcopy(processor, _shared(processor)) if stateful else processor)
            except Exception as reason:
                raise OptionError(
                    f"the logits processor {_name(processor)} keeps a state and cannot be copied for a branch "
                    f"of the draft: {reason}"
                ) from reason
        return forked

    def stateless(self) -> Processors:
        """Those that keep no state: fit for laws that are asked for in any order, such as the draft's."""
        plain = [p for p, stateful in zip(self.processors, self._stateful, strict=True) if not stateful]
        return Processors(plain, self.before)


def _name(processor: LogitsProcessor) -> str:
    return getattr(processor, "__name__", type(processor).__name__)


def _shared(processor: LogitsProcessor) -> dict[int, Any]:
    """What a copy of a processor refers to as it is, as a memo of `deepcopy`."""
    held = getattr(processor, "__dict__", {}).values()
    return {id(value): value for value in held if isinstance(value, torch.nn.Module | PreTrainedTokenizerBase)}


def _without_state(processor: LogitsProcessor) -> bool:
    kind = type(processor)
    if hasattr(processor, "keeps_state"):
        return not processor.keeps_state  # pyright: ignore[reportFunctionMemberAccess]
    return kind.__module__ == "transformers.generation.logits_process" and kind.__name__ not in _STATEFUL
