"""Products with the matrices of a model, those of one input side by side.

On a CPU a product of a few rows reads its matrix once and should take as long as that; the general routine takes up to
four times as long in float32, up to twice in bfloat16. Matrices laid out beforehand for a few rows do not, at the price
of a second copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F

from gpu_decoder.models import has_bfloat16

_ROWS = 8  # rows that matrices are laid out for; others come out right, and nearly as fast
_DTYPES = (torch.float32, torch.bfloat16)
_SAMPLED = 8  # rows and columns of a weight that are looked at for changes


class Matrix:
    """x (..., n) -> for each group of linear maps what they make of x, side by side; weights as the maps hold them
    then."""

    def __init__(self, *groups: Sequence[Any]):
        self.groups = groups

    def __call__(self, x: torch.Tensor) -> Sequence[torch.Tensor]:
        made = [[F.linear(x, *_weights(part)) for part in group] for group in self.groups]
        return [torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0] for parts in made]


class PackedMatrix(Matrix):
    """The same, up to rounding, from one matrix laid out beforehand; anew where a weight was replaced, or changed in
    place by an operation that torch counts. `look` finds changes that it does not count."""

    def __init__(self, *groups: Sequence[Any]):
        super().__init__(*groups)
        self._parts = list(chain.from_iterable(groups))
        self._sizes = [sum(_weights(part)[0].shape[0] for part in group) for group in groups]
        self._forget()

    def _forget(self) -> None:
        self._state, self._sample, self._packed, self._bias = None, None, None, None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_state": None, "_sample": None, "_packed": None, "_bias": None}

    def __call__(self, x: torch.Tensor) -> Sequence[torch.Tensor]:
        weights = [_weights(part) for part in self._parts]
        if x.dtype != weights[0][0].dtype or x.dtype not in _DTYPES or x.device.type != "cpu" or _other_ways():
            return super().__call__(x)  # a training, or a model moved since
        state = [(id(a), a.data_ptr(), _version(a)) for pair in weights for a in pair if a is not None]
        if state != self._state:
            self._packed, self._bias = _packed(weights)
            self._state = state
        made = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return made.split_with_sizes(self._sizes, dim=-1) if len(self._sizes) > 1 else [made]

    def look(self) -> None:
        """Pack anew at the next call where a few entries of the weights are others than when this was called last."""
        found = [_corner(a) for part in self._parts for a in _weights(part) if a is not None]
        if found != self._sample:
            self._forget()
            self._sample = found


def _weights(part: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight and bias of a linear map; a module's own way to them takes ten times as long."""
    held = vars(part).get("_parameters", {})
    return (held["weight"], held.get("bias")) if "weight" in held else (part.weight, part.bias)


def _other_ways() -> bool:
    return torch.is_grad_enabled() or torch.is_autocast_enabled("cpu")


def _corner(a: torch.Tensor) -> list[Any]:
    return a.detach()[tuple(slice(None, None, max(1, size // _SAMPLED)) for size in a.shape)].tolist()


def _packed(parts: Sequence[tuple[torch.Tensor, torch.Tensor | None]]) -> tuple[Any, torch.Tensor | None]:
    whole = torch.cat([weight for weight, _ in parts]) if len(parts) > 1 else parts[0][0]
    biases = None
    if any(bias is not None for _, bias in parts):
        biases = torch.cat([w.new_zeros(len(w)) if bias is None else bias for w, bias in parts])
    return torch.ops.mkldnn._reorder_linear_weight(whole.detach(), _ROWS), biases


def _version(a: torch.Tensor) -> int:
    return 0 if a.is_inference() else a._version


def can_pack(like: torch.Tensor) -> bool:
    """Whether matrices of this one's dtype and device can be laid out beforehand here."""
    return (
        like.device.type == "cpu"
        and like.dtype in _DTYPES
        and (like.dtype == torch.float32 or has_bfloat16("cpu"))
        and torch.backends.mkldnn.is_available()
        and torch.backends.mkldnn.enabled
        and all(hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise"))
    )


def matrix(*groups: Sequence[Any], packed: bool) -> Matrix:
    """Linear maps of one input, in groups that come out side by side."""
    return PackedMatrix(*groups) if packed else Matrix(*groups)
