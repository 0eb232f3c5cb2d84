"""torch's random functions answered by branches. Imported only where torch is loaded already."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
from flint import fmpq

from proofs_check.branching import CannotFollow, Source, as_exact_weights, filled, log, race, ranking
from proofs_check.numpy_source import search


class Symbols(torch.Tensor):
    """A tensor whose entries are coins or clocks, in `cells`; its storage only carries shape, dtype and device."""

    cells: np.ndarray

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.__name__
        if name in _AS_STORED:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if name in _IN_PLACE:
            return _become(args[0], _IN_PLACE[name](*map(_cells, args)))
        handler = _HANDLERS.get(name)
        if handler is None:
            raise CannotFollow(f"torch.{name} of random numbers")
        return handler(*args, **kwargs)


def symbols(cells: np.ndarray, model: torch.Tensor) -> Symbols:
    """A symbolic tensor of those entries, of the dtype and device of `model`."""
    with torch._C.DisableTorchFunctionSubclass():
        carrier = torch.empty(cells.shape, dtype=model.dtype, device=model.device)
    return _become(carrier, cells)


def _become(tensor: Any, cells: np.ndarray) -> Symbols:
    """Turn a tensor into symbols in place, as `exponential_` and `div_` change the tensor they are called on."""
    if tuple(_shape(tensor)) != cells.shape:
        raise CannotFollow("an in-place operation on random numbers that changes the shape")
    tensor.__class__ = Symbols
    tensor.cells = cells
    return tensor


def _shape(tensor: Any) -> tuple[int, ...]:
    with torch._C.DisableTorchFunctionSubclass():
        return tuple(tensor.shape)


def _cells(value: Any) -> Any:
    if isinstance(value, Symbols):
        return value.cells
    if isinstance(value, torch.Tensor):
        cells = np.empty(_shape(value), dtype=object)
        cells[...] = (
            value.detach().cpu().double().numpy() if value.is_floating_point() else value.detach().cpu().numpy()
        )
        return cells
    return value


def _model(args: Any) -> torch.Tensor:
    return next(a for a in args if isinstance(a, Symbols))


def _pointwise(operation: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        args = tuple(a for a in args if a is not None)
        return symbols(np.asarray(operation(*map(_cells, args)), dtype=object), _model(args))

    return run


def _compare(operation: Callable[..., Any]) -> Callable[..., Any]:
    def run(left: Any, right: Any) -> torch.Tensor:
        verdicts = np.asarray(operation(_cells(left), _cells(right)), dtype=bool)
        return torch.as_tensor(verdicts, device=_model((left, right)).device)

    return run


def _reshape(function: Callable[..., Any]) -> Callable[..., Any]:
    """Shape-only operations, done to the places of the entries."""

    def run(tensor: Symbols, *args: Any, **kwargs: Any) -> Any:
        places = torch.arange(tensor.cells.size).reshape(tensor.cells.shape)
        moved = function(places, *args, **kwargs)
        if isinstance(moved, tuple | list):
            return type(moved)(symbols(_at(tensor, m), tensor) for m in moved)
        return symbols(_at(tensor, moved), tensor)

    return run


def _at(tensor: Symbols, places: torch.Tensor) -> np.ndarray:
    return np.asarray(tensor.cells.reshape(-1)[places.numpy()], dtype=object).reshape(tuple(places.shape))


def _getitem(tensor: Any, index: Any) -> Any:
    if not isinstance(tensor, Symbols):
        raise CannotFollow("random numbers used as an index")
    return _reshape(lambda places: places[index])(tensor)


def _along(decide: Callable[[np.ndarray], Any]) -> Callable[..., Any]:
    def run(tensor: Symbols, dim: int | None = None, keepdim: bool = False, **_: Any) -> torch.Tensor:
        cells = tensor.cells
        if dim is None:
            return torch.tensor(decide(cells.reshape(-1)), device=tensor.device)
        rows = np.moveaxis(cells, dim, -1)
        out = np.empty(rows.shape[:-1], dtype=np.int64)
        for index in np.ndindex(rows.shape[:-1]):
            out[index] = decide(rows[index])
        found = torch.as_tensor(np.expand_dims(out, dim) if keepdim else out, device=tensor.device)
        return found

    return run


def _sorted(tensor: Symbols, dim: int, largest: bool, many: int | None) -> torch.Tensor:
    rows = np.moveaxis(tensor.cells, dim, -1)
    orders = [ranking(rows[i], largest)[:many] for i in np.ndindex(rows.shape[:-1])]
    found = np.array(orders, dtype=np.int64).reshape(*rows.shape[:-1], -1)
    return torch.as_tensor(np.moveaxis(found, -1, dim).copy(), device=tensor.device)


def _topk(tensor: Symbols, k: int, dim: int = -1, largest: bool = True, sorted: bool = True, **_: Any) -> Any:
    index = _sorted(tensor, dim, largest, k)
    places = torch.arange(tensor.cells.size).reshape(tensor.cells.shape).gather(dim, index.cpu())
    return torch.return_types.topk((symbols(_at(tensor, places), tensor), index))


def _searchsorted(edges: Any, values: Any, *, right: bool = False, side: str | None = None, **_: Any) -> torch.Tensor:
    if isinstance(edges, Symbols):
        raise CannotFollow("torch.searchsorted among random edges")
    sorted_rows, cells = _cells(edges), _cells(values)
    out = np.empty(cells.shape, dtype=np.int64)
    which = side or ("right" if right else "left")
    for index in np.ndindex(cells.shape):
        row = sorted_rows if sorted_rows.ndim == 1 else sorted_rows[index[:-1]]
        out[index] = search(row, cells[index], which)
    return torch.as_tensor(out, device=values.device)


def _where(condition: torch.Tensor, left: Any, right: Any) -> Symbols:
    chosen = np.where(condition.detach().cpu().numpy(), _cells(left), _cells(right))
    return symbols(np.asarray(chosen, dtype=object), _model((left, right)))


def _clamp(tensor: Symbols, min: Any = None, max: Any = None, **_: Any) -> Symbols:
    """Guards against exact zeros and ones are of measure zero; any other clamp is not."""
    if (min is not None and not 0 <= float(min) <= 1e-10) or (max is not None and not float(max) >= 1 - 1e-6):
        raise CannotFollow("torch.clamp of random numbers")
    return tensor


def _item(tensor: Symbols) -> Any:
    return tensor.cells.reshape(-1)[0] if tensor.cells.size == 1 else tensor.cells.tolist()


_logs = np.vectorize(log, otypes=[object])
_IN_PLACE: dict[str, Callable[..., Any]] = {
    "mul_": operator.mul, "div_": operator.truediv, "true_divide_": operator.truediv, "add_": operator.add,
    "sub_": operator.sub, "neg_": operator.neg, "log_": lambda cells: _logs(cells), "__imul__": operator.mul,
    "__itruediv__": operator.truediv, "__iadd__": operator.add, "__isub__": operator.sub,
}  # fmt: skip
_HANDLERS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("mul", "multiply", "__mul__", "__rmul__"), _pointwise(operator.mul)),
    **dict.fromkeys(("div", "divide", "true_divide", "__truediv__"), _pointwise(operator.truediv)),
    **dict.fromkeys(("__rdiv__", "__rtruediv__"), _pointwise(lambda a, b: b / a)),
    "reciprocal": _pointwise(lambda a: 1 / a),
    **dict.fromkeys(("add", "__add__", "__radd__"), _pointwise(operator.add)),
    **dict.fromkeys(("sub", "subtract", "__sub__"), _pointwise(operator.sub)),
    **dict.fromkeys(("rsub", "__rsub__"), _pointwise(lambda a, b: b - a)),
    **dict.fromkeys(("neg", "negative", "__neg__"), _pointwise(operator.neg)),
    "log": _pointwise(lambda cells: _logs(cells)),
    **dict.fromkeys(("lt", "less", "__lt__"), _compare(operator.lt)),
    **dict.fromkeys(("le", "less_equal", "__le__"), _compare(operator.le)),
    **dict.fromkeys(("gt", "greater", "__gt__"), _compare(operator.gt)),
    **dict.fromkeys(("ge", "greater_equal", "__ge__"), _compare(operator.ge)),
    "argmax": _along(lambda row: race(row, largest=True)),
    "argmin": _along(lambda row: race(row, largest=False)),
    "argsort": lambda t, dim=-1, descending=False, **_: _sorted(t, dim, descending, None),
    "topk": _topk,
    "searchsorted": _searchsorted,
    "bucketize": lambda values, edges, **kwargs: _searchsorted(edges, values, **kwargs),
    "where": _where,
    "__getitem__": _getitem,
    **dict.fromkeys(("clamp", "clip", "clamp_", "clip_", "clamp_min", "clamp_min_"), _clamp),
    **dict.fromkeys(("item", "tolist", "numpy"), _item),
    **{
        name: _reshape(getattr(torch.Tensor, name))
        for name in (
            "reshape", "view", "flatten", "squeeze", "unsqueeze", "expand", "expand_as", "transpose", "permute",
            "movedim", "gather", "index_select", "select", "narrow", "chunk", "split", "unbind", "take_along_dim",
            "repeat", "contiguous", "clone", "detach",
        )
    },
    **dict.fromkeys(("to", "float", "double", "half", "cpu", "type_as", "bfloat16"), lambda tensor, *_, **__: tensor),
    "__len__": lambda tensor: len(tensor.cells),
    "__iter__": lambda tensor: iter([_getitem(tensor, i) for i in range(len(tensor.cells))]),
}  # fmt: skip
_AS_STORED = {
    "__get__", "__set__", "size", "dim", "numel", "is_floating_point", "is_contiguous", "stride", "ndimension",
    "empty_like", "zeros_like", "ones_like", "full_like", "get_device", "is_cuda",
}  # fmt: skip


def _draws(source: Source, probs: Any, many: int, replacement: bool) -> torch.Tensor:
    """torch.multinomial: rows of weights, with or (its default) without replacement."""
    if isinstance(probs, Symbols):
        raise CannotFollow("torch.multinomial of random weights")
    rows = _cells(probs)
    out = np.empty((*rows.shape[:-1], many), dtype=np.int64)
    for index in np.ndindex(rows.shape[:-1]):
        weights = as_exact_weights(rows[index])
        if min(weights) < 0 or not sum(weights, start=fmpq(0)) > 0:
            raise RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")
        if not replacement and sum(w > 0 for w in weights) < many:
            raise RuntimeError("cannot sample n_sample > number of positive weights without replacement")
        for slot in range(many):
            chosen = source.choose(weights)
            out[(*index, slot)] = chosen
            if not replacement:
                weights[chosen] = fmpq(0)
    return torch.as_tensor(out, device=probs.device)


def _heads(source: Source, probs: torch.Tensor) -> torch.Tensor:
    cells = _cells(probs)
    out = np.empty(cells.shape)
    for index in np.ndindex(cells.shape):
        head = as_exact_weights([cells[index]])[0]
        out[index] = source.choose([1 - head, head])
    return torch.as_tensor(out, dtype=probs.dtype, device=probs.device)


@contextmanager
def patched(source: Source) -> Iterator[None]:
    """torch's random functions answered by the source, for the time of one run."""
    empty = torch.empty

    def shape_of(size: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
        size = size or kwargs.pop("size", ())
        return tuple(size[0]) if size and not isinstance(size[0], int) else tuple(size)

    def rand(*size: Any, dtype: Any = None, device: Any = None, **kwargs: Any) -> Symbols:
        shape = shape_of(size, kwargs)
        return symbols(filled(shape, source.coin), empty(shape, dtype=dtype, device=device))

    def like(tensor: Any, dtype: Any = None, **_: Any) -> Symbols:
        model = tensor if dtype is None else empty(_shape(tensor), dtype=dtype, device=tensor.device)
        return symbols(filled(_shape(tensor), source.coin), model)

    def uniform_(tensor: Any, start: float = 0.0, to: float = 1.0, **_: Any) -> Symbols:
        span = to - start
        make = source.coin if (start, span) == (0.0, 1.0) else lambda: source.coin() * span + start
        return _become(tensor, filled(_shape(tensor), make))

    def exponential_(tensor: Any, lambd: float = 1.0, **_: Any) -> Symbols:
        make = source.clock if lambd == 1.0 else lambda: source.clock() / lambd
        return _become(tensor, filled(_shape(tensor), make))

    def multinomial(probs: Any, num_samples: int, replacement: bool = False, **_: Any) -> torch.Tensor:
        return _draws(source, probs, num_samples, replacement)

    def bernoulli(probs: Any, p: Any = None, **_: Any) -> torch.Tensor:
        return _heads(source, probs if p is None else torch.full_like(probs, p))

    def bernoulli_(tensor: Any, p: Any = 0.5, **_: Any) -> Any:
        tensor.copy_(_heads(source, torch.as_tensor(p, dtype=torch.float64).expand(_shape(tensor))))
        return tensor

    def randint(low: int, high: Any = None, size: Any = None, **kwargs: Any) -> torch.Tensor:
        if size is None:
            low, high, size = 0, low, high
        values = filled(tuple(size), lambda: low + source.choose([fmpq(1)] * (high - low))).astype(np.int64)
        return torch.as_tensor(values, device=kwargs.get("device"))

    def cannot(name: str) -> Callable[..., Any]:
        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise CannotFollow(name)

        return refuse

    swaps: list[tuple[Any, str, Any]] = [
        (torch, "rand", rand),
        (torch, "rand_like", like),
        (torch, "multinomial", multinomial),
        (torch, "bernoulli", bernoulli),
        (torch, "randint", randint),
        *((torch, name, cannot(f"torch.{name}")) for name in ("randn", "randn_like", "normal", "randperm", "poisson")),
        (torch.Tensor, "multinomial", multinomial),
        (torch.Tensor, "bernoulli", bernoulli),
        (torch.Tensor, "bernoulli_", bernoulli_),
        (torch.Tensor, "uniform_", uniform_),
        (torch.Tensor, "exponential_", exponential_),
        *((torch.Tensor, name, cannot(f"Tensor.{name}")) for name in ("normal_", "geometric_", "random_", "cauchy_")),
    ]
    with ExitStack() as stack:
        for owner, name, new in swaps:
            stack.enter_context(mock.patch.object(owner, name, new))
        yield
