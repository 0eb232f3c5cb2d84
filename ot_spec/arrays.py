"""The few array operations that must mean the same on numpy, torch and object arrays of fractions.

A law is a float64 array of numpy or torch, or a numpy object array whose entries are exact rationals
(`fractions.Fraction`, `flint.fmpq`). `namespace` gives the array-api namespace for any of them; the helpers
below are the operations in which the three differ.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import array_api_compat
import numpy as np

from ot_spec.errors import LawError, OptionError, ShapeError

Array = Any


def namespace(*arrays: Array) -> Any:
    """The array-api namespace of the arrays; plain sequences and scalars count as numpy."""
    kinds = {*map(type, arrays)}
    if len(kinds) == 1 and (found := _namespaces.get(*kinds)):
        return found
    known = [a for a in arrays if array_api_compat.is_array_api_obj(a)]
    try:
        found = array_api_compat.array_namespace(*(known or [np.empty(0)]))
    except TypeError:
        kinds = " and ".join(dict.fromkeys(type(a).__module__.partition(".")[0] for a in known))
        raise ShapeError(f"arrays of {kinds} do not mix; convert one of them") from None
    if len(kinds) == 1 and known:
        _namespaces[next(iter(kinds))] = found
    return found


_namespaces: dict[type, Any] = {}


def is_exact(array: Array) -> bool:
    """True for object arrays, whose entries are exact rationals."""
    return isinstance(array, np.ndarray) and array.dtype == object


def is_numpy(array: Array) -> bool:
    return isinstance(array, np.ndarray)


def may_wait(array: Array) -> bool:
    """Whether a value may be looked at without stalling a device: the array lives on the CPU."""
    return is_numpy(array) or str(array.device) == "cpu"


def to_numpy(array: Array) -> np.ndarray:
    """A numpy view or copy on the host; the only place where a device is left on purpose."""
    if isinstance(array, np.ndarray):
        return array
    if array_api_compat.is_torch_array(array):
        return array.detach().cpu().numpy()
    return np.asarray(array)


def like(values: Any, model: Array) -> Array:
    """`values` as an array of the namespace and device of `model`."""
    xp = namespace(model)
    if xp is namespace(values) and array_api_compat.is_array_api_obj(values):
        return values
    if is_numpy(model):
        return np.asarray(to_numpy(values) if array_api_compat.is_array_api_obj(values) else values)
    return xp.asarray(values, device=array_api_compat.device(model))


def fractions(values: Any) -> np.ndarray:
    """An object array of `Fraction`, from nested fractions, integers, floats (exact value) or strings.

    >>> fractions(["1/3", 0.5])
    array([Fraction(1, 3), Fraction(1, 2)], dtype=object)
    """
    values = np.asarray(to_numpy(values) if array_api_compat.is_array_api_obj(values) else values, dtype=object)
    return np.asarray(np.vectorize(as_fraction, otypes=[object])(values)) if values.size else values


def as_fraction(value: Any) -> Fraction:
    """The exact value of an int, float, string, `Fraction` or `flint.fmpq`."""
    if isinstance(value, Fraction):
        return value
    if isinstance(value, np.generic | np.ndarray) and value.ndim == 0:
        value = value.item()
    try:
        parts = getattr(value, "p", None), getattr(value, "q", None)
        return Fraction(value) if None in parts else Fraction(int(parts[0]), int(parts[1]))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError) as reason:
        raise LawError(f"{value!r} is not an exact rational number") from reason


def spelled(value: Any) -> str:
    """A mass for a message: a fraction of many digits as a decimal.

    >>> spelled(Fraction(-1, 3)), spelled(Fraction(1, 3**99))
    ('-1/3', '5.82098e-48')
    """
    if not isinstance(value, float | int) and max(abs(part) for part in as_fraction(value).as_integer_ratio()) > 10**15:
        return f"{float(as_fraction(value)):.6g}"
    return str(value)


def coins_like(coins: Array, law: Array) -> Array:
    """Coins in the arithmetic of `law`: float64, or the exact value of each coin beside exact laws."""
    if not is_exact(law):
        xp = namespace(law)
        return xp.astype(like(coins, law), xp.float64, copy=False)
    coins = np.asarray(coins)
    if coins.dtype == object:
        return coins
    one = law.reshape(-1)[0] * 0 + 1
    exact = fractions(coins)
    if isinstance(one, Fraction):
        return exact
    return np.vectorize(lambda c: type(one)(c.numerator, c.denominator), otypes=[object])(exact)


def check_coins(coins: Array) -> None:
    """Raise OptionError for a numpy coin outside [0, 1), naming it; other backends flag the row instead."""
    if not is_numpy(coins) or coins.dtype == object:
        return
    bad = ~((coins >= 0) & (coins < 1))
    if bad.any():
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        raise OptionError(f"coins lie in [0, 1); coin {index} is {coins[index]!r}")


def ratio(xp: Any, top: Array, bottom: Array, otherwise: Any) -> Array:
    """top / bottom where bottom > 0, `otherwise` elsewhere; never divides by zero. Infinite past the largest float."""
    positive = bottom > 0
    with np.errstate(over="ignore"):
        shares = top / xp.where(positive, bottom, constant(1, bottom))
    return xp.where(positive, shares, _full(xp, otherwise, bottom))


def _full(xp: Any, value: Any, model: Array) -> Any:
    if is_exact(model) or array_api_compat.is_array_api_obj(value):
        return constant(value, model) if isinstance(value, int) else value
    if is_numpy(model):
        return model.dtype.type(value)
    return xp.full((), value, dtype=model.dtype, device=array_api_compat.device(model))


def constant(value: float, model: Array) -> Any:
    """A scalar of the arithmetic of `model`, fit for `xp.where` and `xp.minimum` beside it."""
    if is_exact(model):  # a bare integer would turn into a float when divided
        return model.flat[0] * 0 + value
    return _full(namespace(model), value, model)


def minimum(xp: Any, a: Array, b: Array) -> Array:
    """min(a, b), either of which may be a Python scalar."""
    a, b = (
        (constant(a, b) if isinstance(a, int | float) else a),
        (constant(b, a) if isinstance(b, int | float) else b),
    )
    return xp.minimum(a, b)


def positive_part(xp: Any, a: Array) -> Array:
    """max(a, 0) with an exact zero outside its support."""
    return xp.maximum(a, constant(0, a))


def total(xp: Any, a: Array, keepdims: bool = False) -> Array:
    return xp.sum(a, axis=-1, keepdims=keepdims)


_SUMMED = 256  # entries summed in a row before a new partial sum is begun


def cumulative(xp: Any, a: Array) -> Array:
    """Running sums along the last axis of non-negative `a`, non-decreasing on every backend; see `running_sum`."""
    sums = running_sum(xp, a)
    if is_exact(a) or may_wait(a):
        return sums
    # a parallel scan may step down by an ulp, or up where nothing is added: hold the level there
    return xp.cummax(xp.where(a > 0, sums, xp.zeros_like(sums)), dim=-1).values


def running_sum(xp: Any, a: Array) -> Array:
    """Running sums along the last axis.

    Long rows are summed in blocks, whose totals are summed in turn: the error grows with the length of a block and the
    number of blocks, not with their product.
    """
    size = a.shape[-1]
    if is_exact(a):
        return np.cumsum(a, axis=-1)
    if size <= 8 * _SUMMED:
        return xp.cumulative_sum(a, axis=-1)
    blocks = -(-size // _SUMMED)
    short = blocks * _SUMMED - size
    if short:
        zeros = xp.zeros((*a.shape[:-1], short), dtype=a.dtype, device=getattr(a, "device", None))
        a = xp.concat([a, zeros], axis=-1)
    sums = xp.cumulative_sum(xp.reshape(a, (*a.shape[:-1], blocks, _SUMMED)), axis=-1)
    ends = xp.cumulative_sum(sums[..., -1], axis=-1)
    sums[..., 1:, :] += ends[..., :-1, None]
    return xp.reshape(sums, a.shape)[..., :size]


def or_else(xp: Any, weights: Array, otherwise: Array) -> Array:
    """The rows of `weights`, with `otherwise` in rows that are all zero."""
    empty = ~(total(xp, weights, keepdims=True) > 0)
    if may_wait(weights) and not bool(xp.any(empty)):
        return weights
    return xp.where(empty, otherwise, weights)


def gather(xp: Any, rows: Array, index: Array) -> Array:
    """rows[..., index[..., j]] for each j, broadcasting the leading axes."""
    if is_numpy(rows) and rows.size == rows.shape[-1] and index.ndim >= rows.ndim:
        return rows.reshape(-1)[index]
    if rows.shape[:-1] != index.shape[:-1]:
        lead = np.broadcast_shapes(tuple(rows.shape[:-1]), tuple(index.shape[:-1]))
        rows = xp.broadcast_to(rows, (*lead, rows.shape[-1]))
        index = xp.broadcast_to(index, (*lead, index.shape[-1]))
    return xp.take_along_axis(rows, index, axis=-1)


def pick(weights: Array, coins: Array) -> Array:
    """Inverse distribution function: the first y with w_1 + .. + w_y > coin * (w_1 + .. + w_V).

    weights (..., V), non-negative, any positive total; coins (..., m) in [0, 1). Returns ids (..., m).
    A token of weight zero is never returned: a coin whose product rounds up to the total, or past it, gives the
    last token of positive weight. Rows without any weight give the last id; callers branch on the total.
    """
    xp = namespace(weights)
    coins = coins_like(coins, weights)
    few = coins.size * _SUMMED <= 16 * weights.size if is_numpy(weights) else False
    if few and not is_exact(weights) and weights.shape[-1] > 8 * _SUMMED:
        return _pick_by_blocks(weights, coins)
    cdf = cumulative(xp, weights)
    found = search(cdf, coins * cdf[..., -1:])
    if is_numpy(weights):
        last = weights.shape[-1] - 1 - np.argmax((weights > 0)[..., ::-1], axis=-1)
    else:  # the last positive token is where the running sum first reaches its total
        last = xp.searchsorted(cdf.contiguous(), cdf[..., -1:].contiguous(), right=False)[..., 0]
    return xp.minimum(found, xp.broadcast_to(last, found.shape[:-1])[..., None])


def _pick_by_blocks(weights: np.ndarray, coins: np.ndarray) -> np.ndarray:
    """`pick` from long rows: the block by running sums of the blocks' totals, then the token by those in the block."""
    size = weights.shape[-1]
    short = -size % _SUMMED
    if short:
        weights = np.concatenate([weights, np.zeros((*weights.shape[:-1], short))], axis=-1)
    blocks = weights.reshape(*weights.shape[:-1], weights.shape[-1] // _SUMMED, _SUMMED)
    ends = np.cumsum(blocks.sum(axis=-1), axis=-1)
    aims = coins * ends[..., -1:]
    last = (ends < ends[..., -1:]).sum(axis=-1, keepdims=True)  # the first at which the total is reached
    which = np.minimum(search(ends, aims), last)
    inside = aims - gather(np, np.concatenate([ends[..., :1] * 0, ends], axis=-1), which)
    blocks = np.broadcast_to(blocks, (*which.shape[:-1], *blocks.shape[-2:]))
    sums = np.cumsum(np.take_along_axis(blocks, which[..., None], axis=-2), axis=-1)
    place = np.minimum((sums <= inside[..., None]).sum(axis=-1), (sums < sums[..., -1:]).sum(axis=-1))
    return np.where(ends[..., -1:] > 0, which * _SUMMED + place, size - 1)


def search(levels: Array, aims: Array) -> Array:
    """How many of the ascending levels (..., n) are at most each aim (..., m): the first that is above it, (..., m)."""
    lead = np.broadcast_shapes(tuple(levels.shape[:-1]), tuple(aims.shape[:-1]))
    size, many = levels.shape[-1], aims.shape[-1]
    if not is_numpy(levels):
        xp = namespace(levels)
        rows = xp.broadcast_to(levels, (*lead, size)).contiguous()
        return xp.searchsorted(rows, xp.broadcast_to(aims, (*lead, many)).contiguous(), right=True)
    aims = np.broadcast_to(aims, (*lead, many)).reshape(-1, many)
    single = levels.size == size
    rows = (levels if single else np.broadcast_to(levels, (*lead, size))).reshape(-1, size)
    found = np.empty((len(aims), many), dtype=np.int64)
    if is_exact(levels):  # numpy's searchsorted would compare coins with each other
        found[:] = (rows[:, None, :] <= aims[..., None]).sum(axis=-1)
    elif single:
        found[:] = np.searchsorted(rows[0], aims, side="right")
    else:
        for row in range(len(aims)):
            found[row] = np.searchsorted(rows[row], aims[row], side="right")
    return found.reshape(*lead, many)


def one_hot(xp: Any, index: Array, model: Array) -> Array:
    """Rows of the arithmetic of `model`, one where its last axis is at `index` (...), zero elsewhere."""
    hit = positions(xp, model) == index[..., None]
    return xp.where(hit, constant(1, model), constant(0, model))


def positions(xp: Any, model: Array) -> Array:
    """0..V-1 along the last axis of `model`, on its device."""
    return xp.arange(model.shape[-1], device=getattr(model, "device", None))


def order_by_ratio(top: Array, bottom: Array) -> Array:
    """Stable order of the last axis by top / bottom ascending; bottom = 0 last."""
    xp = namespace(top, bottom)
    if is_exact(bottom):
        unbounded = 1 + max((t / b for t, b in np.broadcast(top, bottom) if b > 0), default=0)
        return xp.argsort(ratio(xp, top, bottom, unbounded), axis=-1, stable=True)
    # over a power of two, so that no ratio is as large as that of the tokens that are never drafted
    return xp.argsort(ratio(xp, top, bottom * 2.0**60, float("inf")), axis=-1, stable=True)
