"""Reading a finished text afresh: what plain decoding would have seen at every token, and where it was near a tie."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from gpu_decoder.decode import Generation
from gpu_decoder.models import LanguageModel, Reading


@dataclass(frozen=True)
class NearTie:
    """A token of a greedy text that is not the first choice of a fresh reading.

    place: among the new tokens. best: the fresh reading's choice. margin: by how much its logit is above the token's.
    """

    place: int
    token: int
    best: int
    margin: float


def near_ties(target: LanguageModel, made: Generation) -> list[NearTie]:
    """Where a greedy text departs from the argmax of one plain reading of it, with the margins.

    In float64 there are none. In float32 and below a sum taken in another order (several tokens a call, a batch, a
    cache) moves logits in their last bits, so that two nearly equal ones may change places; a margin that is not
    tiny beside the logits says that something is wrong. Texts of two runs need not be equal after a tie, so this is
    the check to make, not equality of strings; texts that were sampled differ in strings and agree in law.
    """
    with torch.inference_mode():
        logits, _ = Reading(target).read(made.prompt + made.tokens[:-1], keep=len(made.tokens))
    tokens = torch.tensor(made.tokens, device=logits.device)[:, None]
    best = logits.argmax(dim=-1)
    margins = (logits.gather(1, best[:, None]) - logits.gather(1, tokens))[:, 0].double().cpu().numpy()
    return [
        NearTie(int(place), made.tokens[place], int(best[place]), float(margins[place]))
        for place in np.flatnonzero(margins > 0)
    ]


@dataclass(frozen=True)
class Parting:
    """The first token at which two runs of one seed differ.

    shift: the largest difference of log probabilities over the tokens before it, which both runs share: how far
    apart the two readings are. A coin that close to a boundary falls on either side.
    """

    place: int
    tokens: tuple[int, int]
    shift: float


def parting(one: Generation, other: Generation) -> Parting | None:
    """Where two texts of one seed part, alone and in a batch for instance; None if they are equal.

    Exact where arithmetic does not depend on the shape of a batch (float64 toys); in float32 a difference is a coin
    within rounding of a boundary, and everything after it differs.
    """
    shared = min(len(one.tokens), len(other.tokens))
    place = next((i for i in range(shared) if one.tokens[i] != other.tokens[i]), shared)
    if place == len(one.tokens) == len(other.tokens):
        return None
    shifts = [abs(a - b) for a, b in zip(one.logprobs[:place], other.logprobs[:place], strict=True)]
    ends = tuple(made.tokens[place] if place < len(made.tokens) else -1 for made in (one, other))
    return Parting(place, (ends[0], ends[1]), max(shifts, default=0.0))
