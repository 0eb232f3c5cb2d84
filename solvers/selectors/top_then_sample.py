"""The optimal rule for top-then-sample candidates ("greedy" candidates of Hu et al. 2025)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ot_spec.arrays import Array, constant, gather, namespace, total
from ot_spec.draft_law import DraftLaw, TopThenSample
from solvers.selectors.canonical import CanonicalRule, Picking


class TopThenSampleRule(CanonicalRule):
    """The candidates are T, the k - 1 most likely tokens of the draft (among equals the lowest ids), and one token x
    of d~, the draft outside T renormalised: keep x with min(1, target(x)/d~(x)), else draw from (target - d~)+.

    d~ is zero on T, so the whole target mass of T is in the residual, and a draw that lands in T counts as accepted.
    Acceptance target(T) + sum_(y not in T) min(target, d~), which is the optimum; target(T) where the draft has no
    mass outside T and the last slot is empty.

    Candidates other than those of `TopThenSample(k)` are refused (CandidateError naming row and slot).

    >>> import numpy as np
    >>> target, draft = np.array([0.25, 0.25, 0.5]), np.array([0.5, 0.375, 0.125])
    >>> float(TopThenSampleRule().acceptance(target, draft, TopThenSample(2)))
    0.75
    """

    name = "top_then_sample"
    laws = ("top_then_sample",)

    def split(self, draft: Array, k: int) -> tuple[Array, Array]:
        """The tokens (..., m) that are always candidates, and the law (..., V) of the other one."""
        return TopThenSample(k).split(draft)

    def picking(self, target: Array, draft: Array, tokens: Array, filled: Array) -> Picking:
        xp = namespace(target, draft)
        held, rest = self.split(draft, tokens.shape[-1])
        drawn = filled & ~among(xp, tokens, held)
        return Picking(xp.where(drawn, constant(1, target), constant(0, target)), rest)

    def _acceptance(self, target: Array, draft: Array, law: DraftLaw) -> Array:
        xp = namespace(target, draft)
        held, rest = self.split(draft, law.k)
        return total(xp, gather(xp, target, held)) + total(xp, xp.minimum(target, rest))

    def _possible(self, draft: Array, candidates: Array) -> Array:
        xp = namespace(draft)
        k = candidates.shape[-1]
        held, rest = self.split(draft, k)
        slots = [candidates[..., slot : slot + 1] == held[..., slot : slot + 1] for slot in range(held.shape[-1])]
        slots.append(sampled(xp, candidates[..., held.shape[-1] :][..., :1], rest))
        slots += [candidates[..., slot : slot + 1] == -1 for slot in range(held.shape[-1] + 1, k)]
        lead = np.broadcast_shapes(*(tuple(slot.shape[:-1]) for slot in slots))
        return xp.concat([xp.broadcast_to(slot, (*lead, 1)) for slot in slots], axis=-1)

    def _reason(self, token: int, mass: Any) -> str:
        return f"is not what the law {self.laws[0]} puts there"


def among(xp: Any, tokens: Array, held: Array) -> Array:
    """Whether each token is one of `held`, (..., k)."""
    return xp.any(tokens[..., :, None] == held[..., None, :], axis=-1)


def sampled(xp: Any, token: Array, rest: Array) -> Array:
    """Whether token (..., 1) can be the draw from `rest`; -1 iff there is nothing to draw."""
    empty = token == -1
    mass = gather(xp, rest, xp.where(empty, xp.zeros_like(token), token))
    return xp.where(empty, ~(total(xp, rest, keepdims=True) > 0), mass > 0)
