"""Tokens in classes of nearly equal target/draft, without a sort: by the exponent and the first bits of the ratio."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from ot_spec.arrays import Array, gather, is_exact, like, may_wait, namespace, positive_part, ratio, to_numpy
from ot_spec.selector import as_float

PER_DOUBLING = (1, 2, 4, 8, 16, 32, 64, 128)
_DOUBLINGS = 20  # ratios below 2^-20 and above 2^20 share the outermost classes
_MANTISSA = 52


def histogram(target: Array, draft: Array, per_doubling: int) -> tuple[Array, Array, Array]:
    """The class of each token (..., V), and the target and draft mass of each class (..., C), classes ascending.

    C = 40 c + 2 for c = `per_doubling`: a class for target = 0 and smaller ratios, c classes from each power of two to
    the next, equally wide, and one for larger ratios and draft = 0. Any classes whose ratios do not overlap will do, so
    exact laws are classed by their floats.
    """
    xp = namespace(target, draft)
    lead = np.broadcast_shapes(tuple(target.shape[:-1]), tuple(draft.shape[:-1]))
    vocab = target.shape[-1]
    shift, first, count = _bins(per_doubling)
    if is_exact(target):
        place = _classed(np, as_float(target), as_float(draft), shift, first, count)
        place = np.broadcast_to(place, (*lead, vocab))
        masses = [np.full((*lead, count), target.flat[0] * 0, dtype=object) for _ in range(2)]
        for sums, law in zip(masses, (target, draft), strict=True):
            law = np.broadcast_to(law, place.shape)
            for row in np.ndindex(lead):
                np.add.at(sums[row], place[row], law[row])
        return place, masses[0], masses[1]
    if may_wait(target):
        over, under = (
            np.ascontiguousarray(np.broadcast_to(to_numpy(a), (*lead, vocab)).reshape(-1, vocab))
            for a in (target, draft)
        )
        place, *masses = _class_rows(over, under, shift, first, count)
        return tuple(like(a.reshape(*lead, -1), target) for a in (place, *masses))  # type: ignore[return-value]
    place = xp.broadcast_to(_classed(xp, target, draft, shift, first, count), (*lead, vocab))
    sums = []
    for law in (target, draft):
        empty = xp.zeros((*lead, count), dtype=xp.float64, device=place.device)
        sums.append(empty.scatter_add(-1, place, xp.broadcast_to(law, place.shape)))
    return place, sums[0], sums[1]


def class_edges(target: Array, draft: Array, place: Array, per_doubling: int) -> tuple[Array, Array]:
    """The least and the largest target/draft a class can hold, (C,); for exact laws those it does hold, (..., C)."""
    if is_exact(target):
        return _held_ratios(target, draft, place, per_doubling)
    shift, first, count = _bins(per_doubling)
    bounds = ((np.arange(count + 1, dtype=np.int64) - 1 + first) << shift).view(np.float64).copy()
    bounds[0], bounds[-1] = 0.0, np.inf
    return like(bounds[:-1], target), like(bounds[1:], target)


def _held_ratios(target: np.ndarray, draft: np.ndarray, place: np.ndarray, per_doubling: int) -> tuple[Array, Array]:
    lead, zero = place.shape[:-1], target.flat[0] * 0
    least = np.full((*lead, _bins(per_doubling)[2]), None, dtype=object)
    most = np.full_like(least, zero)
    laws = [np.broadcast_to(a, place.shape) for a in (target, draft)]
    for index in np.ndindex(place.shape):
        if laws[1][index] > 0:
            which, share = (*index[:-1], place[index]), laws[0][index] / laws[1][index]
            least[which] = share if least[which] is None else min(least[which], share)
            most[which] = max(most[which], share)
    return np.where(least == None, zero, least), most  # noqa: E711  (entry by entry)


def spread(tilt: Array, rest: Array, place: Array, target: Array, draft: Array) -> Array:
    """(tilt * target + rest * draft)+ with the numbers (..., C) of each token's class, (..., V)."""
    xp = namespace(draft)
    return positive_part(xp, gather(xp, tilt, place) * target + gather(xp, rest, place) * draft)


def residual_pick(
    tilt: Array, rest: Array, place: Array, target: Array, draft: Array, coins: Array, skip: Array
) -> Array:
    """`pick` from (target - spread(..))+, from the target where that is zero, in one pass over rows on a CPU.

    place (..., V), coins (..., 1), skip (...): rows whose token is not needed and comes out as 0.
    """
    lead, vocab = tuple(place.shape[:-1]), place.shape[-1]
    hosts = [to_numpy(a) for a in (tilt, rest, place, target, draft, coins, skip[..., None])]
    wide = np.broadcast_shapes(lead, *(a.shape[:-1] for a in hosts))
    rows = [np.ascontiguousarray(np.broadcast_to(a, (*wide, a.shape[-1])).reshape(-1, a.shape[-1])) for a in hosts]
    assert rows[2].shape[-1] == vocab
    return like(_residual_rows(*rows).reshape(wide), target)


def _bins(per_doubling: int) -> tuple[int, int, int]:
    """How far to shift the bits of a ratio, what the lowest bounded class is then, and how many classes there are."""
    shift = _MANTISSA - int(np.log2(per_doubling))
    return shift, int(np.float64(2.0**-_DOUBLINGS).view(np.int64)) >> shift, 2 * _DOUBLINGS * per_doubling + 2


def _classed(xp: Any, target: Array, draft: Array, shift: int, first: int, count: int) -> Array:
    with np.errstate(over="ignore"):
        bits = ratio(xp, target, draft, float("inf")).view(xp.int64)
    return xp.clip((bits >> shift) - first + 1, 0, count - 1)


@numba.njit(cache=True, error_model="numpy")
def _class_rows(
    target: np.ndarray, draft: np.ndarray, shift: int, first: int, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows, vocab = target.shape
    place = np.empty((rows, vocab), dtype=np.int64)
    wanted = np.zeros((rows, count))
    drafted = np.zeros((rows, count))
    ratios = np.empty(vocab)
    bits = ratios.view(np.int64)
    for row in range(rows):
        for y in range(vocab):
            ratios[y] = target[row, y] / draft[row, y] if draft[row, y] > 0.0 else np.inf
        for y in range(vocab):
            which = min(max((bits[y] >> shift) - first + 1, 0), count - 1)
            place[row, y] = which
            wanted[row, which] += target[row, y]
            drafted[row, which] += draft[row, y]
    return place, wanted, drafted


@numba.njit(cache=True, error_model="numpy")
def _residual_rows(
    tilt: np.ndarray,
    rest: np.ndarray,
    place: np.ndarray,
    target: np.ndarray,
    draft: np.ndarray,
    coins: np.ndarray,
    skip: np.ndarray,
) -> np.ndarray:
    out = np.zeros(target.shape[0], dtype=np.int64)
    left = np.empty(target.shape[1])
    for row in range(target.shape[0]):
        if skip[row, 0]:
            continue
        mass = 0.0
        for y in range(target.shape[1]):
            which = place[row, y]
            law = max(tilt[row, which] * target[row, y] + rest[row, which] * draft[row, y], 0.0)
            left[y] = max(target[row, y] - law, 0.0)
            mass += left[y]
        if not mass > 0.0:
            mass = 0.0
            for y in range(target.shape[1]):
                left[y] = target[row, y]
                mass += left[y]
        aim, reached, last = coins[row, 0] * mass, 0.0, 0
        for y in range(target.shape[1]):
            if left[y] > 0.0:
                last = y
                reached += left[y]
                if reached > aim:
                    break
        out[row] = last
    return out
