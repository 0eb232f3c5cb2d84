"""What a drafter is trained to make small, on laws of which the likeliest tokens and the rest's mass are known."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ot_spec.errors import OptionError


class Cells(NamedTuple):
    """Target and draft laws on the target's likeliest tokens, and in the last cell the rest: (..., M + 1), float.

    A token outside the draft vocabulary has draft mass 0. `logs` are the logarithms of the draft's masses.
    """

    target: torch.Tensor
    draft: torch.Tensor
    logs: torch.Tensor


def cells(logits: torch.Tensor, ids: torch.Tensor, probs: torch.Tensor) -> Cells:
    """Laws of draft logits (..., drafted) beside target masses probs (..., M) of the tokens that stand at the places
    ids (..., M) of the draft vocabulary, -1 outside it."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    inside = ids >= 0
    logs = logits.gather(-1, ids.clamp(min=0)) - logits.logsumexp(-1, keepdim=True)
    draft = torch.where(inside, logs.exp(), 0.0)
    logs = torch.where(inside, logs, -torch.inf)
    rest = (1 - draft.sum(-1, keepdim=True)).clamp(min=1e-6)
    target_rest = (1 - probs.sum(-1, keepdim=True)).clamp(min=0)
    return Cells(torch.cat((probs, target_rest), -1), torch.cat((draft, rest), -1), torch.cat((logs, rest.log()), -1))


def kl(made: Cells) -> torch.Tensor:
    """sum t ln(t / d) over the tokens that can be drafted, up to the entropy of t: -sum t ln d."""
    return -torch.where(made.logs > -torch.inf, made.target * made.logs.clamp(min=-80), 0.0).sum(-1)


def total_variation(made: Cells) -> torch.Tensor:
    """1 - sum min(t, d): what one draft token is refused with."""
    return 1 - torch.minimum(made.target, made.draft).sum(-1)


def optimal_loss(made: Cells, k: int) -> torch.Tensor:
    """1 - α*_k of k i.i.d. drafts = max over prefixes H of d(H)^k - t(H), tokens by t/d ascending.

    The gradient is that of the maximal prefix, a subgradient where there are several (Hu et al. 2025: the dual of the
    transport problem). k = 1 is the total variation.
    """
    if k < 1:
        raise OptionError(f"k must be at least 1, got {k}")
    with torch.no_grad():
        ratio = torch.where(made.draft > 0, made.target / made.draft.clamp(min=1e-30), torch.inf)
        order = ratio.argsort(-1)
    draft, target = made.draft.gather(-1, order).cumsum(-1), made.target.gather(-1, order).cumsum(-1)
    return (draft.clamp(0, 1) ** k - target).max(-1).values.clamp(min=0)


LOSSES = {"kl": kl, "tv": total_variation, "alpha4": lambda made: optimal_loss(made, 4)}
