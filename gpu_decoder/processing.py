"""From logits to the law a token is drawn from: processors, temperature, filters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch

from ot_spec.arrays import Array, may_wait
from ot_spec.errors import OptionError
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
        law = from_logits(logits.detach(), **asdict(self), check=may_wait(logits))
        return law.numpy() if may_wait(law) else law


class Processors:
    """Logits processors along one text, called once a position and in order, as plain generation calls them.

    Trees ask for laws after tokens that may be rejected, so a processor with a state is copied for every branch
    (`fork`), and the text goes on with the copies of the path it took. transformers' own keep no state, but for a few
    that are copied too.
    """

    def __init__(self, processors: Sequence[LogitsProcessor]):
        self._processors = list(processors)
        self._stateful = [not _without_state(processor) for processor in self._processors]

    def __bool__(self) -> bool:
        return bool(self._processors)

    def __call__(self, ids: Sequence[int], scores: torch.Tensor) -> torch.Tensor:
        """Scores (V,) after these ids, in float32 at least."""
        if not self._processors:
            return scores
        scores = scores[None] if scores.dtype == torch.float64 else scores[None].float()
        before = torch.tensor([list(ids)], device=scores.device)
        for processor in self._processors:
            scores = processor(before, scores)
        return scores[0]

    def fork(self) -> Processors:
        """For one branch: what keeps a state is copied as it is now."""
        if not any(self._stateful):
            return self
        forked = Processors([])
        forked._stateful = self._stateful
        for processor, stateful in zip(self._processors, self._stateful, strict=True):
            try:
                forked._processors.append(copy.deepcopy(processor) if stateful else processor)
            except Exception as reason:
                raise OptionError(
                    f"the logits processor {type(processor).__name__} keeps a state and cannot be copied for a branch "
                    f"of the draft: {reason}"
                ) from reason
        return forked

    def stateless(self) -> Processors:
        """Those that keep no state: fit for laws that are asked for in any order, such as the draft's."""
        return Processors([p for p, stateful in zip(self._processors, self._stateful, strict=True) if not stateful])


def _without_state(processor: LogitsProcessor) -> bool:
    kind = type(processor)
    return kind.__module__ == "transformers.generation.logits_process" and kind.__name__ not in _STATEFUL
