"""The canonical form of a selector (Khisti et al. 2025): pick one candidate, then the one-draft step."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import numpy as np

from ot_spec.arrays import (
    Array,
    coins_like,
    constant,
    gather,
    is_exact,
    is_numpy,
    minimum,
    namespace,
    or_else,
    pick,
    positions,
    ratio,
    to_numpy,
    total,
)
from solvers.selectors.rule import Rule, excess, laws_valid, residual_or_target


class Picking(NamedTuple):
    """share (..., k): P(slot is picked | candidates), 1 in all, 0 in all where there is none to pick.
    law (..., V): that of the picked token over all draws of the candidates."""

    share: Array
    law: Array


class CanonicalRule(Rule):
    """Pick a slot with the probabilities `share`, keep its token x with min(1, target(x)/law(x)), else draw from
    (target - law)+.

    The picked token has law f = `law`, so the output is min(f, target) + (target - f)+ = target whatever the rule
    that picks; f must be the law of the numbers that pick, not of those that were aimed at. Subclasses write
    `picking`. Three coins: pick, test, residual.
    """

    def coins(self, k: int) -> int:
        """3: for the pick, the test and the residual."""
        return 3

    @abstractmethod
    def picking(self, target: Array, draft: Array, tokens: Array, filled: Array) -> Picking:
        """How one of the candidates `tokens` (..., k) is picked; ids in slots not `filled` are 0 and mean nothing."""

    def _conditional(
        self, target: Array, draft: Array, tokens: Array, filled: Array, valid: Array
    ) -> tuple[Array, Array]:
        (share, law), target, valid = self._picking(target, draft, tokens, filled, valid)
        xp = namespace(target)
        zero = constant(0, target)
        top = gather(xp, target, tokens)
        keep = xp.where(top > 0, minimum(xp, ratio(xp, top, gather(xp, law, tokens), 1), 1), zero)
        out = zero
        for slot in range(tokens.shape[-1]):
            here = (share * keep)[..., slot : slot + 1]
            out = out + xp.where(positions(xp, target) == tokens[..., slot : slot + 1], here, zero)
        left = total(xp, share * (1 - keep)) + xp.where(total(xp, share) > 0, zero, constant(1, target))
        return out + left[..., None] * residual_or_target(xp, excess(xp, target, law), target), valid

    def _chosen(
        self, target: Array, draft: Array, tokens: Array, filled: Array, valid: Array, coins: Array
    ) -> tuple[Array, Array]:
        (share, law), target, valid = self._picking(target, draft, tokens, filled, valid)
        xp = namespace(target)
        slot = pick(share, coins[..., :1])
        picked = gather(xp, tokens, slot)
        some = total(xp, share) > 0
        kept = (coins[..., 1:2] * gather(xp, law, picked) < gather(xp, target, picked))[..., 0] & some
        fallen = pick(or_else(xp, excess(xp, target, law), target), coins[..., 2:])[..., 0]
        return xp.where(kept, picked[..., 0], fallen), valid

    def _picking(
        self, target: Array, draft: Array, tokens: Array, filled: Array, valid: Array
    ) -> tuple[Picking, Array, Array]:
        if is_exact(target):  # sums of rows stay arrays
            target, draft = np.atleast_2d(target), np.atleast_2d(draft)
        sound = laws_valid(target, draft)
        if not is_numpy(target):  # rows that are flagged already must not stop the others
            xp = namespace(target)
            even = constant(1 / target.shape[-1], target)
            target, draft = (xp.where(sound[..., None], law, even) for law in (target, draft))
        return self.picking(target, draft, tokens, filled), target, valid & sound


def host_rows(*laws: Array) -> tuple[tuple[int, ...], list[tuple[Any, ...]]]:
    """The leading shape that laws (..., V) broadcast to, and their rows on the host."""
    lead = np.broadcast_shapes(*(tuple(law.shape[:-1]) for law in laws))
    rows = [np.broadcast_to(to_numpy(law), (*lead, law.shape[-1])).reshape(-1, law.shape[-1]) for law in laws]
    return lead, list(zip(*rows, strict=True))


def rational(values: np.ndarray, model: np.ndarray) -> np.ndarray:
    """The exact values of floats, in the arithmetic of the exact law `model`."""
    return coins_like(np.asarray(values, dtype=np.float64), model)
