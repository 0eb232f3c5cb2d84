"""Validated next-token laws.

A law is an array (..., V): V non-negative masses along the last axis, total 1, any number of leading axes. Every
law in this project is float64 (numpy or torch) or an object array of exact rationals; the functions here are the
door through which other arrays come in.

Order of processing, here and everywhere: temperature, top-k, top-p of the renormalised law, min-p, renormalise.
"""

from __future__ import annotations

import math
import operator
from fractions import Fraction
from typing import Any

import array_api_compat
import numpy as np

from ot_spec.arrays import (
    Array,
    as_fraction,
    constant,
    cumulative,
    fractions,
    is_exact,
    is_numpy,
    like,
    may_wait,
    namespace,
    one_hot,
    positions,
    spelled,
    to_numpy,
    total,
)
from ot_spec.errors import LawError, OptionError, ShapeError, VocabularyError

TOLERANCE_EPS = 64
_FEW = 1024  # masses that are sorted first where a law is cut
_LARGEST = float(np.finfo(np.float64).max)
_BLOCK = 1 << 17  # entries worked on at a time on a CPU, so that temporaries stay in its cache


def from_probs(probs: Any, *, name: str = "law", check: bool = True) -> Array:
    """A law from probabilities: checked, in float64, normalised once.

    probs: (..., V) of float16/32/64, integers, exact rationals (or strings such as "1/3"), numpy, torch or nested
    lists. A row whose float64 sum is within max(64, sqrt V) eps of its own dtype of 1 is divided by that sum, since a
    softmax in float32 is off by so much on some processors; exact rows must sum to exactly 1. `check=False` skips the
    checks (they wait for the device): NaN then travels on, and a selector flags the row.

    Raises LawError naming the first bad row and the amount: NaN, infinite or negative entries, a sum that is off;
    ShapeError for an array without an axis or with V = 0.

    >>> from_probs([[0.25, 0.75], [1, 0]])
    array([[0.25, 0.75],
           [1.  , 0.  ]])
    >>> from_probs(["1/3", "2/3"])
    array([Fraction(1, 3), Fraction(2, 3)], dtype=object)
    """
    xp, law = _array(probs, name)
    if is_numpy(law) and law.dtype.kind in "US":
        law = fractions(law)
    if law.ndim == 0 or law.shape[-1] == 0:
        raise ShapeError(f"{name}: a law needs a last axis of at least one token, got shape {tuple(law.shape)}")
    if is_exact(law):
        if any(isinstance(mass, int | float | str) for mass in law.flat) or len({type(mass) for mass in law.flat}) > 1:
            law = fractions(law)
        _check_exact(law, name)
        return law
    if xp.isdtype(law.dtype, ("bool", "complex floating")) or not xp.isdtype(law.dtype, ("integral", "real floating")):
        raise LawError(f"{name}: cannot read probabilities of dtype {law.dtype}")
    eps = float(xp.finfo(law.dtype).eps) if xp.isdtype(law.dtype, "real floating") else 0.0
    law = xp.astype(law, xp.float64)
    sums = total(xp, law, keepdims=True)
    if check:
        _check(xp, law, sums[..., 0], max(TOLERANCE_EPS, math.sqrt(law.shape[-1])) * eps, name)
    return law / sums


def _array(values: Any, name: str) -> tuple[Any, Array]:
    xp = namespace(values)
    if array_api_compat.is_array_api_obj(values):
        return xp, values
    try:
        return xp, xp.asarray(values)
    except ValueError as reason:  # rows of different lengths
        raise ShapeError(f"{name}: every row needs the same number of tokens") from reason


def _between(value: Any, least: float, most: float) -> bool:
    try:
        return bool(least <= value <= most)
    except (TypeError, ValueError):  # no number, or more than one
        return False


def _given(law: Any) -> Array:
    """An array as it is, anything else through the door."""
    return law if array_api_compat.is_array_api_obj(law) else from_probs(law)


def _check(xp: Any, law: Array, sums: Array, tolerance: float, name: str) -> None:
    # min and sum decide whether anything is wrong; what it is, is looked for only then
    if bool(xp.all((xp.min(law, axis=-1) >= 0) & (abs(sums - 1) <= tolerance))):
        return
    rows, sums = np.atleast_2d(to_numpy(law)), np.atleast_1d(to_numpy(sums))
    lead = rows.shape[:-1] if law.ndim > 1 else ()
    for index in np.ndindex(rows.shape[:-1]):
        row, where = rows[index], _row_name(name, index if lead else ())
        if not np.isfinite(row).all():
            token = int(np.argmax(~np.isfinite(row)))
            raise LawError(f"{where}: probability of token {token} is {row[token]}")
        if (row < 0).any():
            token = int(np.argmin(row))
            raise LawError(f"{where}: probability of token {token} is negative, {row[token]:.17g}")
        off = float(sums[index]) - 1
        if not abs(off) <= tolerance:
            raise LawError(f"{where}: probabilities sum to 1 {off:+.6g}, allowed is {tolerance:.3g} either way")


def _check_exact(law: np.ndarray, name: str) -> None:
    for index in np.ndindex(law.shape[:-1]):
        row, where = law[index], _row_name(name, index)
        for token, mass in enumerate(row):
            if as_fraction(mass) < 0:
                raise LawError(f"{where}: probability of token {token} is negative, {spelled(mass)}")
        mass = sum(row[1:], start=row[0])
        if mass != 1:
            raise LawError(f"{where}: exact probabilities sum to {_beside_one(mass)}")


def _beside_one(mass: Any) -> str:
    off = as_fraction(mass) - 1
    return f"{mass}, not to 1" if off.denominator < 10**9 else f"1 {float(off):+.6g}"


def _row_name(name: str, index: tuple[int, ...]) -> str:
    if not index:
        return name
    return f"{name}, row {index[0] if len(index) == 1 else index}"


def as_exact(law: Any) -> np.ndarray:
    """The law as `Fraction`s: the exact value of every entry, divided by their exact sum.

    >>> as_exact(from_probs([0.5, 0.25, 0.25]))
    array([Fraction(1, 2), Fraction(1, 4), Fraction(1, 4)], dtype=object)
    """
    checked = from_probs(law)
    if not is_exact(checked):
        xp = namespace(checked)
        checked = xp.astype(xp.asarray(law), xp.float64)
    law = fractions(checked)
    return law / law.sum(axis=-1, keepdims=True)


def from_logits(
    logits: Any,
    *,
    temperature: Any = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    check: bool = True,
) -> Array:
    """The law softmax(logits / temperature), filtered; float64 whatever the dtype of the logits.

    logits: (..., V), -inf for a token that cannot occur. temperature: a number or a host array over the leading
    axes, >= 0; 0 is the first largest logit. The filters are those of `filtered`. The largest logit is subtracted
    before dividing, so that no temperature overflows.

    Raises LawError for NaN or +inf logits and for rows of -inf only (skipped by `check=False`, which never waits
    for a device), OptionError for a parameter out of range.

    >>> from_logits(np.log([0.6, 0.4]), temperature=0.5).round(3)
    array([0.692, 0.308])
    >>> from_logits([1.0, 1.0, 0.0], temperature=0)
    array([1., 0., 0.])
    """
    xp, logits = _array(logits, "logits")
    if is_exact(logits):
        raise LawError("logits are floats; give exact rationals to from_probs")
    if logits.ndim == 0 or logits.shape[-1] == 0:
        raise ShapeError(f"logits: need a last axis of at least one token, got shape {tuple(logits.shape)}")
    if is_numpy(logits) and logits.dtype.kind not in "biuf":
        raise LawError(f"logits: cannot read numbers of dtype {logits.dtype}")
    if xp.isdtype(logits.dtype, "integral"):
        logits = xp.astype(logits, xp.float64)
    temperature = _temperature(temperature, logits)
    rows = xp.reshape(logits, (-1, logits.shape[-1]))
    heat = np.broadcast_to(temperature, tuple(logits.shape[:-1])).reshape(-1, 1)
    step = max(1, _BLOCK // rows.shape[-1]) if may_wait(rows) else rows.shape[0]
    if rows.shape[0] <= step:
        law = _softmax(xp, rows, heat, logits if check else None)
    else:
        law = xp.empty(rows.shape, dtype=xp.float64, device=getattr(logits, "device", None))
        for start in range(0, rows.shape[0], step):
            block = slice(start, start + step)
            law[block] = _softmax(xp, rows[block], heat[block], logits if check else None)
    return filtered(xp.reshape(law, logits.shape), top_k=top_k, top_p=top_p, min_p=min_p)


def _softmax(xp: Any, logits: Array, temperature: np.ndarray, checked: Array | None) -> Array:
    """Rows (n, V) of `checked`, which is looked at as a whole where one of them is no row of logits."""
    weights = xp.astype(logits, xp.float64)
    top = xp.max(weights, axis=-1, keepdims=True)
    if checked is not None and not bool(xp.all(xp.isfinite(top))):
        _refuse_logits(xp, checked)  # NaN or +inf where any entry is, -inf where all are
    # in place, but where what is written over is needed for a gradient
    own = not getattr(weights, "requires_grad", False)
    less, over = (operator.isub, operator.itruediv) if own else (operator.sub, operator.truediv)
    with np.errstate(over="ignore"):  # -inf is right for what is further down than a float can say
        weights = less(weights, top)
        if (temperature != 1).any():
            weights = over(weights, like(np.where(temperature > 0, temperature, 1.0), logits))
    weights = xp.exp(weights)
    law = over(weights, total(xp, weights, keepdims=True))
    if (temperature > 0).all():
        return law
    return xp.where(like(temperature > 0, logits), law, one_hot(xp, xp.argmax(logits, axis=-1), law))


def _temperature(temperature: Any, model: Array) -> np.ndarray:
    try:
        host = np.asarray(to_numpy(temperature) if hasattr(temperature, "shape") else temperature, dtype=np.float64)
    except (TypeError, ValueError) as reason:
        raise OptionError(f"temperature must be a finite number >= 0, got {temperature!r}") from reason
    if not np.all((host >= 0) & np.isfinite(host)):
        raise OptionError(
            f"temperature must be a finite number >= 0, got {host[~((host >= 0) & np.isfinite(host))][0]}"
        )
    try:
        np.broadcast_to(host, tuple(model.shape[:-1]))
    except ValueError:
        raise ShapeError(
            f"temperature of shape {host.shape} does not fit leading axes {tuple(model.shape[:-1])}"
        ) from None
    return host


def _refuse_logits(xp: Any, logits: Array) -> None:
    rows = np.atleast_2d(to_numpy(xp.astype(logits, xp.float64)))
    for index in np.ndindex(rows.shape[:-1]):
        row, where = rows[index], _row_name("logits", index if logits.ndim > 1 else ())
        bad = np.isnan(row) | (row == np.inf)
        if bad.any():
            token = int(np.argmax(bad))
            raise LawError(f"{where}: logit of token {token} is {row[token]}")
        if (row == -np.inf).all():
            raise LawError(f"{where}: all {row.size} logits are -inf, no token is left")


def filtered(law: Array, *, top_k: int | None = None, top_p: float | None = None, min_p: float | None = None) -> Array:
    """The law restricted and renormalised: top-k, then top-p of what is left, then min-p of what is left.

    top_k keeps the k largest masses, exactly k of them: among equals the lowest ids. None, 0, -1 and k >= V keep all.
    top_p in [0, 1] keeps the smallest set of largest masses that reaches top_p; 0 keeps one token, None and 1 keep
    all. min_p in [0, 1] keeps masses of at least min_p times the largest; None and 0 keep all. At least one token
    always survives.

    >>> filtered(from_probs([0.4, 0.3, 0.3, 0.0]), top_k=2).round(4)
    array([0.5714, 0.4286, 0.    , 0.    ])
    """
    if top_k is not None and (isinstance(top_k, bool) or not hasattr(top_k, "__index__") or top_k < -1):
        raise OptionError(f"top_k must be None, 0 or -1 (off), or a positive integer, got {top_k}")
    for option, value in (("top_p", top_p), ("min_p", min_p)):
        if value is not None and not _between(value, 0, 1):
            raise OptionError(f"{option} must lie in [0, 1], got {value}")
    law = _given(law)
    xp = namespace(law)
    cut_k = top_k is not None and 0 < top_k < law.shape[-1]
    cut_p = top_p is not None and top_p < 1
    if (cut_k or cut_p) and may_wait(law) and not is_exact(law) and law.shape[-1] > _FEW:
        law = like(_cut(to_numpy(law), top_k if cut_k else None, top_p if cut_p else None), law)
    elif cut_k or cut_p:
        order = xp.argsort(-law, axis=-1, stable=True)
        down = xp.take_along_axis(law, order, axis=-1)
        if cut_k:
            rank = positions(xp, law)
            down = _renormalised(xp, xp.where(rank < top_k, down, constant(0, law)))
        if cut_p:
            reach = _share(top_p, law)
            before = cumulative(xp, down) - down
            first = positions(xp, law) == 0
            down = _renormalised(xp, xp.where(first | (before < reach), down, constant(0, law)))
        back = xp.argsort(order, axis=-1, stable=True)
        law = xp.take_along_axis(down, back, axis=-1)
    if min_p:
        least = _share(min_p, law) * xp.max(law, axis=-1, keepdims=True)
        law = _renormalised(xp, xp.where(law >= least, law, constant(0, law)))
    return law


def _cut(law: np.ndarray, top_k: int | None, top_p: float | None) -> np.ndarray:
    """`filtered` by top_k and top_p with only the largest masses sorted: a row of a large vocabulary sorts in 5 ms."""
    out = np.zeros_like(law)
    for row, kept in zip(law.reshape(-1, law.shape[-1]), out.reshape(-1, law.shape[-1]), strict=True):
        many = _FEW if top_k is None else top_k
        while True:
            ids = _largest(row, many)
            down = row[ids]
            if top_k is not None:
                down = down / down.sum()
            sums = cumulative(np, down)
            if top_p is None or top_k is not None or sums[-1] >= top_p or many >= row.size:
                break
            many *= 8
        if top_p is not None:
            before = sums - down
            before[0] = -1
            down = np.where(before < top_p, down, 0)
            down = down / down.sum()
        kept[ids] = down
    return out


def _largest(row: np.ndarray, many: int) -> np.ndarray:
    """Ids of the `many` largest masses in descending order, the lowest ids first among equals."""
    if many >= row.size:
        return np.argsort(-row, kind="stable")
    least = np.partition(row, row.size - many)[row.size - many]
    ids = np.flatnonzero(row >= least)
    return ids[np.argsort(-row[ids], kind="stable")[:many]]


def _share(value: Any, law: Array) -> Any:
    """A number in the arithmetic of the law."""
    if not is_exact(law):
        return value
    exact, one = as_fraction(value), law.reshape(-1)[0] * 0 + 1
    return exact if isinstance(one, Fraction) else type(one)(exact.numerator, exact.denominator)


def _renormalised(xp: Any, weights: Array) -> Array:
    return weights / total(xp, weights, keepdims=True)


def reheated(law: Array, temperature: float | Fraction) -> Array:
    """The law at another temperature: law^(1/temperature), renormalised; zeros stay zeros.

    temperature > 0 is relative to the one the law was made with (2 flattens, 0.5 sharpens); 0 is the first largest
    mass. Exact laws take temperatures whose inverse is an integer.

    >>> reheated(from_probs([0.8, 0.2, 0.0]), 2.0).round(4)
    array([0.6667, 0.3333, 0.    ])
    """
    if not _between(temperature, 0, _LARGEST):
        raise OptionError(f"temperature must be a finite number >= 0, got {temperature!r}")
    law = _given(law)
    xp = namespace(law)
    if temperature == 0:
        return one_hot(xp, xp.argmax(law, axis=-1), law)
    if temperature == 1:
        return law
    if is_exact(law):
        power = 1 / as_fraction(temperature)
        if power.denominator != 1:
            raise OptionError(f"an exact law can be raised to integer powers only, not to 1/{temperature}")
        return _renormalised(xp, law ** int(power))
    top = xp.max(law, axis=-1, keepdims=True)
    return _renormalised(xp, (law / top) ** (1 / float(temperature)))


def align(target: Array, draft: Array, *, pad: bool = False) -> tuple[Array, Array]:
    """Target and draft over one vocabulary, that of the target.

    Unequal sizes are refused unless `pad`: then the shorter draft law is zero on the target's further tokens, and a
    longer one is cut if it has no mass past the target's last token. Padding says that equal ids mean equal tokens
    (one tokenizer, embeddings padded to different sizes); ids of different tokenizers cannot be aligned by size.

    Raises VocabularyError with the sizes, or the row and the mass that would be cut.
    """
    target, draft = _given(target), _given(draft)
    size, drafted = target.shape[-1], draft.shape[-1]
    if size == drafted:
        return target, draft
    if not pad:
        raise VocabularyError(
            f"target has {size} tokens and draft has {drafted}; "
            "give pad=True if both use one tokenizer and differ in padding only"
        )
    xp = namespace(target, draft)
    if drafted < size:
        zeros = xp.zeros((*draft.shape[:-1], size - drafted), dtype=draft.dtype, device=getattr(draft, "device", None))
        return target, xp.concat([draft, zeros * 0 if not is_exact(draft) else zeros], axis=-1)
    lost = np.atleast_1d(to_numpy(xp.sum(draft[..., size:], axis=-1)))
    if np.any(lost > 0):
        row = np.unravel_index(int(np.argmax(lost > 0)), lost.shape)
        raise VocabularyError(
            f"{_row_name('draft', tuple(int(i) for i in row) if draft.ndim > 1 else ())}: mass {float(lost[row]):.6g} "
            f"lies on tokens {size} and above, which the target of {size} tokens does not have"
        )
    return target, draft[..., :size]
