"""Optimal acceptance and its cut by subset selection: alpha* = 1 + min over H of target(H) - Q(H) (Hu 2025).

Where the draft law knows an order in which some best H is a prefix (i.i.d.: Hu 2025; without replacement, top-then-
sample, fixed: see its docstring), one sort and one scan find it. For other laws Q is still supermodular, since it
is the probability that a random set lies inside H, and the minimum is found by submodular minimisation.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ot_spec.arrays import (
    Array,
    constant,
    cumulative,
    gather,
    is_exact,
    is_numpy,
    like,
    namespace,
    to_numpy,
)
from ot_spec.draft_law import DraftLaw
from ot_spec.errors import ShapeError, SolverError
from ot_spec.plan import Cut
from solvers.selectors.rule import as_laws

_GAP = 1e-12


def optimal_acceptance(target: Any, draft: Any, law: DraftLaw) -> Array:
    """alpha*, the largest P(Y in X) over all couplings of candidates X ~ law and Y ~ target; (..., V) -> (...).

    target, draft: laws (..., V), numpy (checked), torch (as `from_probs` or `from_logits` made them) or exact; leading
    axes broadcast. `draft` may be None for a law that does
    not look at it. O(V log V) a row for i.i.d., top-then-sample and fixed candidates, O(V k T) with some T = 300 nodes
    without replacement; independent, unequal drafts by minimum-norm-point iterations with a duality gap below 1e-12
    (SolverError naming the gap if it is not reached).

    >>> from ot_spec import IID, WithoutReplacement
    >>> target, draft = np.array([0.5, 0.5]), np.array([0.75, 0.25])
    >>> float(optimal_acceptance(target, draft, IID(2)))
    0.9375
    >>> float(optimal_acceptance(target, draft, WithoutReplacement(2)))
    1.0
    """
    return _solve(target, draft, law, want_cut=False)[0]


def optimal_cut(target: Any, draft: Any, law: DraftLaw) -> Cut:
    """The token set that attains alpha*, with its value: why no coupling accepts more. Batched like
    `optimal_acceptance`; among equal values the smallest prefix.

    >>> from ot_spec import IID
    >>> cut = optimal_cut(np.array([0.5, 0.5]), np.array([0.75, 0.25]), IID(2))
    >>> cut.tokens.tolist(), float(cut.value)
    ([0], 0.9375)
    """
    value, inside, target, draft = _solve(target, draft, law, want_cut=True)
    return Cut(target, draft, law, inside, value)


def _solve(target: Any, draft: Any, law: DraftLaw, want_cut: bool) -> tuple[Array, Array | None, Array, Array]:
    target, draft = as_laws(target, target if draft is None else draft)
    xp = namespace(target, draft)
    lead = np.broadcast_shapes(tuple(target.shape[:-1]), tuple(draft.shape[:-1]))
    order = law.prefix_order(target, draft)
    if order is None:
        value, inside = _without_order(target, draft, law, lead)
        return value, inside, target, draft
    along = gather(xp, target, order)
    held = cumulative(xp, along)
    held = xp.concat([held[..., :1] * 0, held], axis=-1)
    slack = held - law.inside(draft, order)
    best = xp.argmin(slack, axis=-1) if not is_exact(slack) else np.asarray(_first_least(slack))
    least = gather(xp, slack, best[..., None])[..., 0]
    value = xp.minimum(xp.maximum(1 + least, constant(0, least)), constant(1, least))
    if not want_cut:
        return value, None, target, draft
    place = xp.argsort(order, axis=-1, stable=True)
    return value, place < best[..., None], target, draft


def _first_least(slack: np.ndarray) -> np.ndarray:
    rows = slack.reshape(-1, slack.shape[-1])
    return np.array([min(range(len(row)), key=row.__getitem__) for row in rows]).reshape(slack.shape[:-1])


def _without_order(target: Array, draft: Array, law: DraftLaw, lead: tuple[int, ...]) -> tuple[Array, Array]:
    shape = (*lead, target.shape[-1])
    if lead:
        raise ShapeError(f"{law.name} candidates belong to one law pair of shape (V,), got {shape}")
    host, host_draft = to_numpy(target), to_numpy(draft)

    def covered(order: np.ndarray) -> np.ndarray:
        return to_numpy(law.inside(host_draft, order))

    if covered(np.arange(host.size)).ndim > 1:
        raise ShapeError(f"{law.name} candidates of several rows; give those of one law pair")
    inside = minimise(lambda order: np.concatenate([[0], np.cumsum(host[order])]) - covered(order), host.size)
    order = np.argsort(~inside, kind="stable")
    slack = (host[order][: inside.sum()].sum() if inside.any() else 0) - covered(order)[inside.sum()]
    value = 1 + slack
    if is_numpy(target):
        return value if is_exact(target) else np.float64(min(max(value, 0.0), 1.0)), inside
    xp = namespace(target)
    return xp.astype(like(np.float64(value), target), xp.float64), like(inside, target)


def minimise(prefix_values: Any, size: int) -> np.ndarray:
    """A minimiser, as a mask, of a submodular set function F with F(empty) = 0 over `size` elements.

    prefix_values(order) -> (size + 1,): F of every prefix of an order of the elements. Fujishige-Wolfe minimum-norm
    point: x minimises |x| over the base polytope, and {x < 0} minimises F, certified by the gap
    F(H) - sum min(x, 0) <= 1e-12 (SolverError if it stays open, or is crossed because F is not submodular).
    """

    def vertex(direction: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        order = np.argsort(direction, kind="stable")
        values = np.asarray(prefix_values(order), dtype=np.float64)
        base = np.empty(size)
        base[order] = np.diff(values)
        return base, order, values

    point, order, values = vertex(np.zeros(size))
    corners, weights = point[None, :], np.ones(1)
    best, best_value, bound = np.zeros(size, dtype=bool), 0.0, -np.inf
    for _ in range(50 * size + 200):
        corner, order, values = vertex(point)
        least = int(np.argmin(values))
        if values[least] < best_value:
            best_value = values[least]
            best = np.zeros(size, dtype=bool)
            best[order[:least]] = True
        bound = max(bound, np.minimum(point, 0.0).sum())
        if best_value < bound - 1e-9:
            raise SolverError(f"not submodular: F = {best_value:.6g} is below its bound {bound:.6g}", "bound")
        if best_value - bound <= _GAP:
            return best
        if point @ point - point @ corner <= 1e-16 * max(1.0, point @ point):
            break
        corners, weights = np.vstack([corners, corner]), np.append(weights, 0.0)
        while True:
            affine = _affine_minimiser(corners)
            if (affine > 1e-14).all():
                weights = affine
                break
            shrinking = affine <= 1e-14
            theta = np.min(weights[shrinking] / np.maximum(weights[shrinking] - affine[shrinking], 1e-300))
            weights = weights + min(theta, 1.0) * (affine - weights)
            keep = weights > 1e-14
            if keep.all():
                keep[np.argmin(weights)] = False
            corners, weights = corners[keep], weights[keep] / weights[keep].sum()
        point = weights @ corners
    if best_value - bound <= 1e-9:
        return best
    raise SolverError(f"submodular minimisation stopped at a duality gap of {best_value - bound:.3g}", "gap")


def _affine_minimiser(corners: np.ndarray) -> np.ndarray:
    """Weights, summing to 1, of the least-norm point of the affine hull of the rows."""
    many = len(corners)
    system = np.zeros((many + 1, many + 1))
    system[0, 1:] = system[1:, 0] = 1.0
    system[1:, 1:] = corners @ corners.T
    right = np.zeros(many + 1)
    right[0] = 1.0
    return np.linalg.lstsq(system, right, rcond=None)[0][1:]
