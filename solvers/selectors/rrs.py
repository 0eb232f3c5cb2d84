"""Recursive rejection sampling over independent drafts (SpecInfer 2023; MCSD 2024)."""

from __future__ import annotations

from ot_spec.arrays import Array, gather, namespace, total
from ot_spec.draft_law import DraftLaw
from solvers.selectors.rule import SequentialRule, Tests, all_filled, excess, residual_or_target


class RRS(SequentialRule):
    """r_1 = target; accept x_i with min(1, r_i/draft), else r_(i+1) = norm((r_i - draft)+); at last draw from r_(k+1).

    Acceptance 1 - prod_i (1 - sum_y min(r_i, draft)): a token of positive residual would have been kept when seen,
    so the token drawn from the residual is never among the candidates.

    >>> import numpy as np
    >>> from ot_spec import IID
    >>> float(RRS().acceptance(np.array([0.5, 0.5]), np.array([0.75, 0.25]), IID(2)))
    0.8125
    """

    name = "rrs"

    def tests(self, target: Array, draft: Array, tokens: Array, filled: Array) -> Tests:
        xp = namespace(target, draft)
        residual, tops = target, []
        for slot in range(tokens.shape[-1]):
            tops.append(gather(xp, residual, tokens[..., slot : slot + 1]))
            after = residual_or_target(xp, excess(xp, residual, draft), target)
            # an empty slot is no refusal
            residual = after if all_filled(filled) else xp.where(filled[..., slot : slot + 1], after, residual)
        return Tests(xp.concat(tops, axis=-1), gather(xp, draft, tokens), residual)

    def _acceptance(self, target: Array, draft: Array, law: DraftLaw) -> Array:
        xp = namespace(target, draft)
        residual, refused = target, 1
        for _ in range(law.k):
            over = excess(xp, residual, draft)
            refused = refused * total(xp, over)
            residual = residual_or_target(xp, over, target)
        return 1 - refused
