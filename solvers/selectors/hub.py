"""SpecHub (Sun et al. 2024): a pair of candidates of which one is the hub."""

from __future__ import annotations

from ot_spec.arrays import Array, gather, namespace, total
from ot_spec.draft_law import DraftLaw, HubPair, TopThenSample
from ot_spec.errors import ShapeError
from solvers.selectors.top_then_sample import TopThenSampleRule, sampled


class Hub(TopThenSampleRule):
    """SpecHub (Sun et al. 2024) for the pairs of `HubPair(hub)`: one candidate is the hub a, the other one, x, has
    law d~ = draft/(1 - draft(a)) outside a. Keep x with min(1, target(x)/d~(x)), else draw from (target - d~)+.

    The hub's target mass is wholly in the residual: to fall back to the hub with
    min(1, target(a)/P(x is refused)), as published, is the same rule. Acceptance target(a) + sum_(x != a)
    min(target(x), draft(x)/(1 - draft(a))), the optimum for these pairs; target(a) where draft(a) = 1, which leaves
    no second candidate.

    hub: the hub's id, None for the draft's most likely token (the lowest id among equals). One candidate alone is
    taken as a draw from the draft; three are too many (ShapeError).

    >>> import numpy as np
    >>> target, draft = np.array([0.25, 0.25, 0.5]), np.array([0.5, 0.375, 0.125])
    >>> float(Hub().acceptance(target, draft, HubPair()))
    0.75
    """

    name = "hub"
    laws = ("hub_pair",)

    def __init__(self, hub: int | None = None):
        self.hub = HubPair(hub).hub

    def supports(self, law: DraftLaw) -> bool:
        if law.name == "hub_pair":
            return getattr(law, "hub", None) == self.hub
        return super().supports(law)

    def split(self, draft: Array, k: int) -> tuple[Array, Array]:
        if k > 2:
            raise ShapeError(f"hub takes a pair of candidates, got {k}")
        return TopThenSample(1).split(draft) if k == 1 else HubPair(self.hub).split(draft)

    def _possible(self, draft: Array, candidates: Array) -> Array:
        if candidates.shape[-1] != 2:
            return super()._possible(draft, candidates)
        xp = namespace(draft)
        hub, rest = self.split(draft, 2)
        first, second = candidates[..., :1], candidates[..., 1:]
        leads = first == hub
        possible = gather(xp, draft, hub) > 0
        certain = ~(total(xp, rest, keepdims=True) > 0)
        one = xp.where(leads, possible, sampled(xp, first, rest) & ~certain)
        two = xp.where(leads, sampled(xp, second, rest), second == hub)
        return xp.concat([one, two], axis=-1)
