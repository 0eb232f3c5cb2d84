"""The one-draft step of speculative sampling (Leviathan et al. 2023; Chen et al. 2023)."""

from __future__ import annotations

from ot_spec.arrays import Array, gather, namespace
from ot_spec.draft_law import DraftLaw
from ot_spec.errors import ShapeError
from solvers.selectors.rule import SequentialRule, Tests, excess, overlap


class MaximalCoupling(SequentialRule):
    """k = 1: accept x with min(1, target(x)/draft(x)), else draw from (target - draft)+.

    Acceptance sum_y min(target, draft) = 1 - TV(target, draft), the optimum for one candidate.

    >>> import numpy as np
    >>> from ot_spec import IID
    >>> float(MaximalCoupling().acceptance(np.array([0.5, 0.5]), np.array([1.0, 0.0]), IID(1)))
    0.5
    """

    name = "maximal_coupling"
    laws = ()

    def tests(self, target: Array, draft: Array, tokens: Array, filled: Array) -> Tests:
        if tokens.shape[-1] != 1:
            raise ShapeError(f"maximal_coupling takes one candidate, got {tokens.shape[-1]}")
        xp = namespace(target, draft)
        return Tests(gather(xp, target, tokens), gather(xp, draft, tokens), excess(xp, target, draft))

    def _acceptance(self, target: Array, draft: Array, law: DraftLaw) -> Array:
        return overlap(namespace(target, draft), target, draft)
