"""The pick law of an optimal rule from two cumulative maxima.

A canonical rule picks one candidate with P(pick = y) = f_y, then makes the one-draft step with (f, target). It is
optimal iff sum_y min(target, f) = alpha*. A law f can be the law of a pick iff it is *reachable*: f(H) >= Q(H) for
every token set H, f total 1. For draft laws whose best cut is a prefix of target/draft ascending such an f is found
without solving anything.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ot_spec.arrays import Array, constant, cumulative, gather, is_exact, namespace, positive_part, running_sum
from ot_spec.draft_law import IID, DraftLaw
from ot_spec.errors import UnsupportedLawError
from solvers.selectors.rule import as_laws


class Flow(NamedTuple):
    """The pick law along the order of target/draft ascending.

    order (..., V): token ids. pick, steps (..., V): f and the increment of Q of each token, in that order. ahead,
    inside (..., V + 1): f(prefix) - Q(prefix) >= 0, and Q(prefix). cut (...): length of the prefix that attains
    alpha*. Tokens without draft mass come last and have pick 0.
    """

    order: Array
    pick: Array
    steps: Array
    ahead: Array
    inside: Array
    cut: Array

    def law(self) -> Array:
        """f by token id, (..., V)."""
        xp = namespace(self.pick)
        return gather(xp, self.pick, xp.argsort(self.order, axis=-1, stable=True))


def optimal_flow(target: Any, draft: Any, law: DraftLaw) -> Flow:
    """f with sum min(target, f) = alpha*, reachable for candidates of `law` (i.i.d. or without replacement).

    psi_i = Q(first i tokens) - target(first i tokens), i = 0..V; E is the running maximum of psi up to an argmax and
    the running maximum from the right after it; f_i = target_i + E_i - E_(i-1). f/draft ascends with target/draft. In
    floats f_i is target_i itself where E does not move and the increment of Q where E touches psi at both ends, so
    that nothing cancels there. Batched over leading axes; numpy, torch and fractions.

    Raises UnsupportedLawError for other draft laws.

    >>> from ot_spec import IID, as_exact
    >>> optimal_flow(as_exact([0.5, 0.5]), as_exact([0.75, 0.25]), IID(2)).law()
    array([Fraction(9, 16), Fraction(7, 16)], dtype=object)
    """
    if law.name not in ("iid", "without_replacement"):
        raise UnsupportedLawError(f"no prefix flow is known for candidates of {law.name}")
    target, draft = as_laws(target, draft)
    xp = namespace(target, draft)
    order = law.prefix_order(target, draft)
    assert order is not None
    return flow_along(gather(xp, target, order), gather(xp, draft, order), order, law.inside(draft, order), law)


def flow_along(wanted: Array, drafted: Array, order: Array, inside: Array, law: DraftLaw) -> Flow:
    """`optimal_flow` of target and draft masses (..., V) that are in order already; also for classes of tokens."""
    xp = namespace(wanted)
    steps = _increments(xp, drafted, inside, law)
    # summed from its increments, so that a fall of psi is one of target over Q and not of rounding
    psi = running_sum(xp, steps - wanted)
    psi = xp.concat([psi[..., :1] * 0, psi], axis=-1)
    best = xp.argmax(psi, axis=-1) if not is_exact(psi) else np.asarray(_first_most(psi))
    place = xp.arange(psi.shape[-1], device=getattr(psi, "device", None))
    least = constant(-2, psi)
    rising = running_maximum(xp, xp.where(place <= best[..., None], psi, least))
    falling = xp.flip(running_maximum(xp, xp.flip(xp.where(place >= best[..., None], psi, least), axis=-1)), axis=-1)
    envelope = xp.where(place <= best[..., None], rising, falling)
    moved = envelope[..., 1:] - envelope[..., :-1]
    touches = envelope == psi
    pick = xp.where(touches[..., 1:] & touches[..., :-1], steps, wanted + moved)
    pick = xp.where(drafted > 0, positive_part(xp, pick), constant(0, pick))
    return Flow(order, pick, steps, envelope - psi, inside, best)


def _first_most(psi: np.ndarray) -> np.ndarray:
    rows = psi.reshape(-1, psi.shape[-1])
    return np.array([max(range(len(row)), key=row.__getitem__) for row in rows]).reshape(psi.shape[:-1])


def running_maximum(xp: Any, values: Array) -> Array:
    """The largest so far along the last axis."""
    if isinstance(values, np.ndarray):
        return np.maximum.accumulate(values, axis=-1)
    return xp.cummax(values, dim=-1).values


def _increments(xp: Any, drafted: Array, inside: Array, law: DraftLaw) -> Array:
    """Q(first i) - Q(first i - 1). i.i.d.: D^k expm1(k log1p(d/D)) with D the mass before, (D + d)^k - D^k at d > D."""
    steps = inside[..., 1:] - inside[..., :-1]
    if is_exact(steps) or not isinstance(law, IID) or law.name != "iid":
        return positive_part(xp, steps)
    sums = cumulative(xp, drafted)
    before = xp.concat([sums[..., :1] * 0, sums[..., :-1]], axis=-1)
    little = (before > 0) & (drafted <= before)
    base = xp.where(little, before, constant(1, before))
    share = xp.where(little, drafted, constant(0, drafted)) / base
    grown = base**law.k * xp.expm1(law.k * xp.log1p(share))
    return xp.where(little, grown, (before + drafted) ** law.k - before**law.k)
