"""K-SEQ selection (SpecTr 2023, Algorithm 2)."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from ot_spec.arrays import (
    Array,
    as_fraction,
    constant,
    gather,
    is_exact,
    is_numpy,
    like,
    may_wait,
    minimum,
    namespace,
    positive_part,
    to_numpy,
    total,
)
from ot_spec.draft_law import DraftLaw
from ot_spec.errors import OptionError
from solvers.selectors.rule import SequentialRule, Tests, all_filled

_EQUAL = 4e-16  # laws that share all but this are equal: rho* = 1, where the root would be one of rounding errors
# fixed, so that nothing waits for the device
_DEVICE_STEPS, _INNER_STEPS = 14, 12


class KSeq(SequentialRule):
    """For i = 1..k accept x_i with min(1, target/(rho draft)); else draw from target - c min(draft, target/rho).

    beta = sum_y min(draft, target/rho), c = sum_(i<k) (1 - beta)^i, with the rho and beta really used. Exact for
    every rho >= rho*, the root in [1, k] of 1 - (1 - beta)^k = rho beta. At rho*, the default, acceptance is
    sum_y min(rho* draft, target) >= (1 - (1 - 1/k)^k) alpha*.

    rho: None for rho* (rounded up), or a number, or an array over the leading axes. A rho for which some residual
    would be negative is refused (OptionError naming the row, rho and rho*); on other backends than numpy the row is
    flagged invalid instead.

    >>> import numpy as np
    >>> from ot_spec import IID
    >>> target, draft = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.4, 0.3, 0.2, 0.1])
    >>> float(KSeq().divisor(target, draft, 2).round(12)), float(KSeq().acceptance(target, draft, IID(2)).round(12))
    (1.5, 0.75)
    """

    name = "k_seq"

    def __init__(self, rho: Any = None):
        if rho is not None:
            values = np.atleast_1d(to_numpy(rho) if hasattr(rho, "shape") else np.asarray(rho, dtype=object))
            if not all(0 < float(as_fraction(v)) < np.inf for v in values.reshape(-1)):
                raise OptionError(f"rho must be a positive number, got {rho}")
        self.rho = rho

    def divisor(self, target: Array, draft: Array, k: Any) -> Array:
        """rho*, rounded up, (...): k an integer or an array (...) of them; 1 where no token is shared.

        Floats: to some 4e-15, the upper end. Exact laws: bisection to
        2^-53, the upper end.
        """
        if is_exact(target):
            return _exact_divisor(target, draft, k)
        return _divisor(target, draft, k)

    def _parts(self, target: Array, draft: Array, k: Any, most: int) -> tuple[Array, Array, Array, Array]:
        """rho, min(draft, target/rho), beta, c for k candidates (an integer, or an array of integers up to `most`)."""
        xp = namespace(target, draft)
        rho = self.divisor(target, draft, k) if self.rho is None else self._given(target)
        share = xp.minimum(draft, target / rho[..., None])
        beta = minimum(xp, total(xp, share), 1)
        return rho, share, beta, _geometric(xp, beta, k, most)

    def _given(self, target: Array) -> Array:
        if is_exact(target):
            one = target.reshape(-1)[0] * 0 + 1
            exact = np.vectorize(lambda v: one * as_fraction(v).numerator / as_fraction(v).denominator, otypes=[object])
            return exact(np.asarray(self.rho, dtype=object))
        xp = namespace(target)
        return xp.astype(like(np.asarray(self.rho, dtype=np.float64), target), xp.float64)

    def tests(self, target: Array, draft: Array, tokens: Array, filled: Array) -> Tests:
        xp = namespace(target, draft)
        most = k = tokens.shape[-1]
        if k > 1 and not all_filled(filled):
            k = xp.sum(xp.astype(filled, xp.int64), axis=-1)
        rho, share, _, c = self._parts(target, draft, k, most)
        residual = target - share * c[..., None]
        valid = None
        if self.rho is not None:
            valid = self._valid(target, draft, k, rho, residual)
        return Tests(
            gather(xp, target, tokens),
            gather(xp, draft, tokens) * rho[..., None],
            positive_part(xp, residual),
            valid,
        )

    def _valid(self, target: Array, draft: Array, k: Any, rho: Array, residual: Array) -> Array:
        xp = namespace(target, draft)
        slack = 0 if is_exact(target) else 1e-12
        valid = xp.min(residual, axis=-1) >= -slack
        if is_numpy(target) and not np.all(valid):
            row = tuple(int(i) for i in np.argwhere(~np.atleast_1d(valid))[0])
            least = np.broadcast_to(np.atleast_1d(self.divisor(target, draft, k)), np.atleast_1d(valid).shape)[row]
            given = np.broadcast_to(np.atleast_1d(rho), np.atleast_1d(valid).shape)[row]
            raise OptionError(
                f"row {row[0] if len(row) == 1 else row}: rho = {float(as_fraction(given)):.12g} is below "
                f"rho* = {float(as_fraction(least)):.12g}, a residual would be negative"
            )
        return valid

    def _acceptance(self, target: Array, draft: Array, law: DraftLaw) -> Array:
        xp = namespace(target, draft)
        k = law.k
        rho, share, beta, c = self._parts(target, draft, k, k)
        kept = beta * c
        if self.rho is None and not is_exact(target):
            return minimum(xp, kept, 1)
        residual = positive_part(xp, target - share * c[..., None])
        if self.rho is not None:
            self._valid(target, draft, k, rho, target - share * c[..., None])
        # a token drawn from the residual may be among the refused: the law of k refusals that miss y is a power too
        refused, mass = (1 - beta) ** k, total(xp, residual, keepdims=True)
        missed = ((1 - beta)[..., None] - positive_part(xp, draft - share)) ** k
        law_left = xp.where(mass > 0, residual / xp.where(mass > 0, mass, constant(1, mass)), target)
        return kept + total(xp, law_left * positive_part(xp, refused[..., None] - missed))

    def kept(self, target: Array, draft: Array, k: int) -> Array:
        """P(a candidate passes its test) = 1 - (1 - beta)^k, (...); at most the acceptance, which counts a residual
        draw that falls on a refused candidate too."""
        _, _, beta, c = self._parts(target, draft, k, k)
        return beta * c


def _geometric(xp: Any, beta: Array, k: Any, most: int) -> Array:
    """c = sum_(i<k) (1 - beta)^i = (1 - (1 - beta)^k)/beta, by its terms."""
    c, term = beta * 0, beta * 0 + 1
    for i in range(most):
        c = c + (term if most is k else xp.where(k > i, term, constant(0, term)))
        term = term * (1 - beta)
    return c


def _divisor(target: Array, draft: Array, k: Any) -> Array:
    """The root of phi(rho) = 1 - (1 - g/rho)^k - g, g(rho) = sum min(rho draft, target); phi falls from phi(1) >= 0 to
    phi(k) <= 0. The compiled loop on a CPU, the vectorised steps elsewhere."""
    xp = namespace(target, draft)
    scalar = isinstance(k, int | np.integer)
    lead = np.broadcast_shapes(tuple(target.shape[:-1]), tuple(draft.shape[:-1]), () if scalar else tuple(k.shape))
    if not may_wait(target):
        return _tangents(xp, target, draft, k)
    over, under = (
        np.ascontiguousarray(np.broadcast_to(to_numpy(a), (*lead, a.shape[-1])).reshape(-1, a.shape[-1]))
        for a in (target, draft)
    )
    counts = np.broadcast_to(np.asarray(k if scalar else to_numpy(k), dtype=np.int64), lead).reshape(-1)
    return like(tangent_rows(over, under, np.ascontiguousarray(counts)).reshape(lead), target)


def _tangents(xp: Any, target: Array, draft: Array, k: Any) -> Array:
    """`tangent_rows` for all rows together and with a fixed number of steps; k, which is always large enough, where
    they did not suffice.

    The root with the tangent slope * rho + level in place of g: w = level/rho solves
    1 - (far - w)^k - level - slope level/w = 0, far = 1 - slope; this rises and is concave in w, so that Newton steps
    from below stay below, and rho = level/w is rounded up (by up to 1e-6 of acceptance where the root is multiple).
    """
    one = total(xp, target + draft) * 0 + 1
    count = one * k
    rho = one
    for _ in range(_DEVICE_STEPS):
        open_ = draft * rho[..., None] < target
        zero = constant(0, target)
        slope, far = total(xp, xp.where(open_, draft, zero)), total(xp, xp.where(open_, zero, draft))
        level = total(xp, xp.where(open_, zero, target))
        bent, filled = level > 0, xp.where(level > 0, level, one)
        w = least = filled / count
        for _ in range(_INNER_STEPS):
            miss = xp.maximum(far - w, 0 * w)
            value = 1 - miss**count - level - slope * filled / w
            w = xp.maximum(w - value / (count * miss ** (count - 1) + slope * filled / w**2 + 1e-300), least)
        w = xp.where(slope > 0, w, far - xp.maximum(1 - level, 0 * level) ** (1 / count))
        straight = (1 - far**count) / xp.where(slope > 0, slope, one)
        root = xp.where(bent & (w > 0), filled / xp.where(w > 0, w, one), xp.where(slope > 0, straight, one))
        rho = xp.minimum(xp.maximum(root, rho), count)
    g = total(xp, xp.minimum(draft * rho[..., None], target))
    rho = xp.where(1 - (1 - minimum(xp, g / rho, 1)) ** count - g <= 1e-14, rho, count)
    shared = total(xp, xp.minimum(target, draft))
    return xp.where((shared > 0) & (shared < 1 - _EQUAL), rho, one)


@numba.njit(cache=True, fastmath={"reassoc", "contract"}, error_model="numpy")
def tangent_rows(target: np.ndarray, draft: np.ndarray, k: np.ndarray) -> np.ndarray:
    """rho* of each row, rounded up. g is concave and piecewise linear, so the root with its tangent in place of g is a
    lower bound; iterating climbs to rho* and ends when no token changes sides."""
    out = np.ones(target.shape[0])
    for row in range(target.shape[0]):
        count = k[row]
        rho = 1.0
        for _ in range(1000):
            slope = 0.0
            level = 0.0
            for y in range(target.shape[1]):
                t = target[row, y]
                d = draft[row, y]
                inside = rho * d < t
                slope += d if inside else 0.0
                level += 0.0 if inside else t
            shared = slope + level
            if rho == 1.0 and (shared == 0.0 or shared >= 1.0 - _EQUAL):
                break
            low = rho
            high = max(float(count), 1.0)
            for _ in range(70):
                middle = low + 0.5 * (high - low)
                if middle <= low or middle >= high:
                    break
                g = slope * middle + level
                beta = min(g / middle, 1.0)
                if 1.0 - (1.0 - beta) ** count <= g:
                    high = middle
                else:
                    low = middle
            g = slope * rho + level
            if 1.0 - (1.0 - min(g / rho, 1.0)) ** count <= g:
                high = rho
            moved = high - rho
            rho = high
            if moved <= 4e-15 * rho:
                break
        out[row] = rho
    return out


def _exact_divisor(target: np.ndarray, draft: np.ndarray, k: Any) -> np.ndarray:
    lead = np.broadcast_shapes(target.shape[:-1], draft.shape[:-1], np.shape(k))
    out = np.empty(lead, dtype=object)
    pairs = [np.broadcast_to(a, (*lead, a.shape[-1])) for a in (target, draft)]
    counts = np.broadcast_to(np.asarray(k), lead)
    solved: dict[Any, Any] = {}
    for index in np.ndindex(lead):
        key = (*pairs[0][index], *pairs[1][index], int(counts[index]))
        if key not in solved:
            solved[key] = _bisected(pairs[0][index], pairs[1][index], int(counts[index]))
        out[index] = solved[key]
    return out[()]


def _bisected(target: np.ndarray, draft: np.ndarray, k: int) -> Any:
    one = target[0] * 0 + 1
    if k <= 1 or not np.minimum(target, draft).sum():
        return one

    def enough(rho: Any) -> bool:
        g = np.minimum(rho * draft, target).sum()
        return 1 - (1 - g / rho) ** k <= g

    low, high = one, one * k
    if enough(low):
        return low
    for _ in range(53):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
