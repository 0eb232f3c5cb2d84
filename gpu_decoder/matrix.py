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


class Matrix:
    """x (..., n) -> for each group of linear maps what they make of x, side by side."""

    def __init__(self, *groups: Sequence[Any]):
        self.groups = [[(part.weight, part.bias) for part in group] for group in groups]

    def __call__(self, x: torch.Tensor) -> Sequence[torch.Tensor]:
        made = [[F.linear(x, weight, bias) for weight, bias in group] for group in self.groups]
        return [torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0] for parts in made]


class PackedMatrix(Matrix):
    """The same, up to rounding, from one matrix laid out beforehand; anew where a weight was changed in place."""

    def __init__(self, *groups: Sequence[Any]):
        super().__init__(*groups)
        self._parts = list(chain.from_iterable(self.groups))
        self._sizes = [sum(weight.shape[0] for weight, _ in group) for group in self.groups]
        self._state: Any = None

    def __call__(self, x: torch.Tensor) -> Sequence[torch.Tensor]:
        if torch.is_grad_enabled() or x.dtype not in _DTYPES or x.device.type != "cpu":
            return super().__call__(x)  # a training, or a model moved since
        state = [(a.data_ptr(), _version(a)) for part in self._parts for a in part if a is not None]
        if state != self._state:
            self._packed, self._bias = _packed(self._parts)
            self._state = state
        made = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return made.split_with_sizes(self._sizes, dim=-1) if len(self._sizes) > 1 else [made]


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
