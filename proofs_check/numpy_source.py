"""A numpy `Generator` and the `random` module whose draws branch."""

from __future__ import annotations

import math
import random as standard
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
from flint import fmpq

from proofs_check.branching import (
    CannotFollow,
    Source,
    as_exact_weights,
    exact,
    filled,
    log,
    race,
    ranking,
)


class Draws(np.ndarray):
    """An object array of coins or clocks; arithmetic and comparisons are numpy's own, entry by entry."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
        if ufunc is np.log and method == "__call__":
            return np.vectorize(log, otypes=[object])(inputs[0].view(np.ndarray)).view(Draws)
        plain = [i.view(np.ndarray) if isinstance(i, Draws) else i for i in inputs]
        if method != "__call__" or ufunc.nout != 1:
            raise CannotFollow(f"numpy.{ufunc.__name__}.{method}")
        targets = tuple(o.view(np.ndarray) if isinstance(o, Draws) else o for o in out) if out else None
        try:
            result = ufunc(*plain, **({"out": targets} if targets else {}), **kwargs)
        except TypeError as reason:
            raise CannotFollow(f"numpy.{ufunc.__name__} of random numbers") from reason
        if out:
            return out[0]
        if ufunc in _COMPARISONS:
            return np.asarray(result, dtype=bool)
        return result.view(Draws) if isinstance(result, np.ndarray) else result

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        handler = _FUNCTIONS.get(func.__name__)
        if handler is not None:
            return handler(*args, **kwargs)
        if func.__name__ not in _SHAPES:
            raise CannotFollow(f"numpy.{func.__name__} of random numbers")
        return super().__array_function__(func, types, args, kwargs)

    def argmax(self, axis: int | None = None, out: None = None, *, keepdims: bool = False) -> Any:
        return _along(self, axis, keepdims, lambda row: race(row, largest=True))

    def argmin(self, axis: int | None = None, out: None = None, *, keepdims: bool = False) -> Any:
        return _along(self, axis, keepdims, lambda row: race(row, largest=False))

    def argsort(self, axis: int = -1, **kwargs: Any) -> Any:
        return _argsort(self, axis)


_COMPARISONS = (np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal)
_SHAPES = {
    "where", "reshape", "ravel", "squeeze", "expand_dims", "broadcast_to", "take", "take_along_axis", "stack",
    "concatenate", "transpose", "moveaxis", "swapaxes", "copy", "atleast_1d", "atleast_2d", "shape", "ndim", "size",
    "array_split", "split", "repeat", "tile", "array_repr", "array_str", "broadcast_arrays",
}  # fmt: skip


def _along(cells: np.ndarray, axis: int | None, keepdims: bool, decide: Callable[[np.ndarray], int]) -> Any:
    cells = cells.view(np.ndarray)
    if axis is None:
        return decide(cells.reshape(-1))
    rows = np.moveaxis(cells, axis, -1)
    out = np.empty(rows.shape[:-1], dtype=np.int64)
    for index in np.ndindex(rows.shape[:-1]):
        out[index] = decide(rows[index])
    return np.expand_dims(out, axis) if keepdims else out if out.ndim else int(out)


def _argsort(cells: np.ndarray, axis: int = -1, **kwargs: Any) -> np.ndarray:
    rows = np.moveaxis(cells.view(np.ndarray), axis, -1)
    out = np.empty(rows.shape, dtype=np.int64)
    for index in np.ndindex(rows.shape[:-1]):
        out[index] = ranking(rows[index], largest_first=False)
    return np.moveaxis(out, -1, axis)


def search(edges: Any, coin: Any, side: str) -> int:
    """searchsorted of one coin among ascending edges, a branch at each edge until it is found."""
    for place, edge in enumerate(edges):
        if coin < edge or (side == "left" and coin <= edge):
            return place
    return len(edges)


def _searchsorted(edges: Any, coins: Any, side: str = "left", sorter: Any = None) -> Any:
    if sorter is not None or isinstance(edges, Draws):
        raise CannotFollow("numpy.searchsorted among random edges")
    edges = np.asarray(edges).tolist()
    cells = np.asarray(coins, dtype=object)
    out = np.empty(cells.shape, dtype=np.int64)
    for index in np.ndindex(cells.shape):
        out[index] = search(edges, cells[index], side)
    return out if out.ndim else int(out)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "searchsorted": _searchsorted,
    "digitize": lambda coins, bins, right=False: _searchsorted(bins, coins, side="left" if right else "right"),
    "argmax": lambda a, axis=None, out=None, *, keepdims=False: a.argmax(axis, keepdims=keepdims),
    "argmin": lambda a, axis=None, out=None, *, keepdims=False: a.argmin(axis, keepdims=keepdims),
    "argsort": lambda a, axis=-1, **kwargs: _argsort(a, axis),
    "log": lambda a: np.log(a),
}


def _shape(size: Any) -> tuple[int, ...] | None:
    return None if size is None else (int(size),) if np.ndim(size) == 0 else tuple(int(n) for n in size)


class BranchingGenerator(np.random.Generator):
    """Stands in for `numpy.random.Generator`; methods that it does not follow raise CannotFollow when called."""

    _FOLLOWED = frozenset(
        {
            "random", "uniform", "integers", "choice", "multinomial", "binomial", "permutation", "shuffle",
            "exponential", "standard_exponential", "gumbel",
        }
    )  # fmt: skip

    def __init__(self, source: Source):
        super().__init__(np.random.PCG64(0))
        self._source = source

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name not in BranchingGenerator._FOLLOWED:
            raise CannotFollow(f"Generator.{name}")
        return super().__getattribute__(name)

    def _draw(self, size: Any, make: Callable[[], Any]) -> Any:
        shape = _shape(size)
        return make() if shape is None else filled(shape, make).view(Draws)

    def random(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        return self._draw(size, self._source.coin)

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        span = exact(high) - exact(low)
        return self._draw(size, lambda: self._source.coin() * span + exact(low))

    def standard_exponential(self, size: Any = None, dtype: Any = None, method: str = "zig", out: Any = None) -> Any:
        return self._draw(size, self._source.clock)

    def exponential(self, scale: Any = 1.0, size: Any = None) -> Any:
        return self._draw(size, lambda: self._source.clock() * scale)

    def gumbel(self, loc: float = 0.0, scale: float = 1.0, size: Any = None) -> Any:
        if scale != 1.0:
            raise CannotFollow("Generator.gumbel of a scale other than 1")
        return self._draw(size, lambda: -self._source.clock().log() + loc)

    def integers(
        self, low: Any, high: Any = None, size: Any = None, dtype: Any = np.int64, endpoint: bool = False
    ) -> Any:
        first, last = (0, low) if high is None else (low, high)
        many = int(last) - int(first) + bool(endpoint)
        return self._whole(size, lambda: int(first) + self._source.choose([fmpq(1)] * many))

    def _whole(self, size: Any, make: Callable[[], int]) -> Any:
        shape = _shape(size)
        return make() if shape is None else filled(shape, make).astype(np.int64)

    def choice(
        self, a: Any, size: Any = None, replace: bool = True, p: Any = None, axis: int = 0, shuffle: bool = True
    ) -> Any:
        items = np.arange(int(a)) if np.ndim(a) == 0 else np.asarray(a)
        weights = [fmpq(1)] * len(items) if p is None else _checked_weights(p, len(items))
        if replace or size is None:
            index = self._whole(size, lambda: self._source.choose(weights))
            return items.take(index, axis=axis) if size is not None else items[index]
        shape, left, taken = _shape(size), list(range(len(items))), []
        assert shape is not None
        for _ in range(math.prod(shape)):
            if not any(weights[i] > 0 for i in left):
                raise ValueError("Fewer non-zero entries in p than size")
            taken.append(left.pop(self._source.choose([weights[i] for i in left])))
        return items.take(np.array(taken, dtype=np.int64).reshape(shape), axis=axis)

    def multinomial(self, n: Any, pvals: Any, size: Any = None) -> Any:
        pvals = np.asarray(pvals)
        shape = _shape(size) or np.broadcast_shapes(np.shape(n), pvals.shape[:-1])
        many = np.broadcast_to(n, shape)
        laws = np.broadcast_to(pvals, (*shape, pvals.shape[-1]))
        counts = np.zeros(laws.shape, dtype=np.int64)
        for index in np.ndindex(shape):
            weights = as_exact_weights(laws[index])
            for _ in range(int(many[index])):
                counts[index][self._source.choose(weights)] += 1
        return counts

    def binomial(self, n: Any, p: Any, size: Any = None) -> Any:
        heads = exact(p)
        return self._whole(size, lambda: sum(self._source.choose([1 - heads, heads]) for _ in range(int(n))))

    def permutation(self, x: Any, axis: int = 0) -> Any:
        items = np.arange(int(x)) if np.ndim(x) == 0 else np.asarray(x)
        left, order = list(range(items.shape[axis])), []
        while left:
            order.append(left.pop(self._source.choose([fmpq(1)] * len(left))))
        return items.take(order, axis=axis)

    def shuffle(self, x: Any, axis: int = 0) -> None:
        x[:] = self.permutation(np.asarray(x), axis=axis)


def _checked_weights(p: Any, many: int) -> list[fmpq]:
    weights = as_exact_weights(p)
    if len(weights) != many:
        raise ValueError("'a' and 'p' must have same size")
    if abs(sum(weights, start=fmpq(0)) - 1) > fmpq(1, 10**6):
        raise ValueError("probabilities do not sum to 1")
    return weights


@contextmanager
def patched(source: Source) -> Iterator[BranchingGenerator]:
    """`random` and numpy's global functions answered by the source, for the time of one run."""
    generator = BranchingGenerator(source)

    def choices(population: Any, weights: Any = None, *, cum_weights: Any = None, k: int = 1) -> list[Any]:
        if cum_weights is not None:
            edges = as_exact_weights(cum_weights)
            weights = [b - a for a, b in pairwise([fmpq(0), *edges])]
        mass = [fmpq(1)] * len(population) if weights is None else as_exact_weights(weights)
        return [population[source.choose(mass)] for _ in range(k)]

    def sample(population: Any, k: int, **_: Any) -> list[Any]:
        return [population[i] for i in generator.permutation(len(population))[:k]]

    def cannot(name: str) -> Callable[..., Any]:
        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise CannotFollow(name)

        return refuse

    legacy = np.random
    swaps: list[tuple[Any, str, Any]] = [
        (standard, "random", source.coin),
        (standard, "uniform", lambda a, b: generator.uniform(a, b)),
        (standard, "choices", choices),
        (standard, "choice", lambda seq: seq[source.choose([fmpq(1)] * len(seq))]),
        (standard, "sample", sample),
        (standard, "randrange", lambda *a: range(*a)[source.choose([fmpq(1)] * len(range(*a)))]),
        (standard, "randint", lambda a, b: a + source.choose([fmpq(1)] * (b - a + 1))),
        (standard, "shuffle", generator.shuffle),
        (standard, "expovariate", lambda lambd=1.0: source.clock() / lambd),
        *((standard, name, cannot(f"random.{name}")) for name in ("gauss", "normalvariate", "getrandbits")),
        (legacy, "rand", lambda *shape: generator.random(shape or None)),
        (legacy, "random", generator.random),
        (legacy, "random_sample", generator.random),
        (legacy, "uniform", generator.uniform),
        (legacy, "choice", lambda a, size=None, replace=True, p=None: generator.choice(a, size, replace, p)),
        (legacy, "multinomial", generator.multinomial),
        (legacy, "randint", lambda low, high=None, size=None, dtype=int: generator.integers(low, high, size)),
        (legacy, "permutation", generator.permutation),
        (legacy, "shuffle", generator.shuffle),
        (legacy, "exponential", generator.exponential),
        (legacy, "standard_exponential", generator.standard_exponential),
        (legacy, "gumbel", generator.gumbel),
        *((legacy, name, cannot(f"numpy.random.{name}")) for name in ("randn", "normal", "dirichlet")),
        (legacy, "default_rng", lambda seed=None: generator),
    ]  # fmt: skip
    with ExitStack() as stack:
        for owner, name, new in swaps:
            stack.enter_context(mock.patch.object(owner, name, new))
        yield generator
