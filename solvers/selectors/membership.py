"""The naive rule: draw from the target, look whether the token is a candidate."""

from __future__ import annotations

import numpy as np

from ot_spec.arrays import Array, constant, is_exact, like, namespace, pick, total
from ot_spec.draft_law import DraftLaw
from solvers.selectors.rule import Rule, laws_valid


class Membership(Rule):
    """Draw y from the target; it is accepted iff y is among the candidates. One coin.

    Exact for every draft law, whether or not its candidates have draft mass; acceptance sum_y target(y) P(y in X).
    Optimal for candidates that are known beforehand (`Fixed`).

    >>> import numpy as np
    >>> from ot_spec import Fixed
    >>> law = np.array([0.5, 0.3, 0.2])
    >>> float(Membership().acceptance(law, law, Fixed([0, 1])))
    0.8
    """

    name = "membership"

    def supports(self, law: DraftLaw) -> bool:
        return True

    def coins(self, k: int) -> int:
        """1: for the token."""
        return 1

    def _conditional(
        self, target: Array, draft: Array, tokens: Array, filled: Array, valid: Array
    ) -> tuple[Array, Array]:
        xp = namespace(target)
        lead = np.broadcast_shapes(tuple(target.shape[:-1]), tuple(tokens.shape[:-1]))
        law = xp.broadcast_to(target, (*lead, target.shape[-1])) + constant(0, target)
        return law, valid & laws_valid(target, draft)

    def _chosen(
        self, target: Array, draft: Array, tokens: Array, filled: Array, valid: Array, coins: Array
    ) -> tuple[Array, Array]:
        token = pick(np.atleast_2d(target) if is_exact(target) else target, coins)[..., 0]
        xp = namespace(token)
        lead = np.broadcast_shapes(tuple(token.shape), tuple(tokens.shape[:-1]))
        return xp.broadcast_to(token, lead), valid & laws_valid(target, draft)

    def _acceptance(self, target: Array, draft: Array, law: DraftLaw) -> Array:
        xp = namespace(target)
        return total(xp, target * like(law.contains(draft), target))

    def _possible(self, draft: Array, candidates: Array) -> Array:
        return candidates >= -1
