"""Keys and values of a batch of texts in slots, from which a path of a tree can be kept and the rest dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

_LEAST = 256  # slots at first: growing copies everything


@dataclass
class _Pool:
    """Slots of layers of one shape on one device: keys (layers, rows, heads, slots, size), values likewise."""

    keys: torch.Tensor
    values: torch.Tensor
    taken: int = 0


class _Layer(CacheLayerMixin):
    """One layer's place in a `TreeCache`; what attention calls."""

    is_sliding = False  # windows are kept by the mask, so that a rejected token never pushes one out

    def __init__(self, owner: TreeCache):
        super().__init__()
        self._owner, self._pool, self._place = owner, None, 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self._pool, self._place = self._owner._place_for(key_states, value_states)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self._pool is not None
        end = self._owner.end
        start = end - key_states.shape[-2]
        found = []
        for pool, new in ((self._pool.keys, key_states), (self._pool.values, value_states)):
            layer = pool[self._place]
            layer[:, :, start:end] = new
            found.append(layer[:, :, :end])
        return found[0], found[1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._owner.end, 0

    def get_seq_length(self) -> int:
        return self._owner.end

    def get_max_length(self) -> int:
        return -1


class TreeCache(Cache):
    """Slots for `rows` texts; a forward pass over n tokens a row fills the slots end - n .. end of every row.

    Which slots a token sees is for the mask to say: those of other branches, of padding and of what was dropped stay
    where they are until something is written over them. All layers of a device lie in one array, so that moving a
    path costs one operation and not one a layer.
    """

    def __init__(self, layers: int, rows: int):
        super().__init__(layers=[_Layer(self) for _ in range(layers)])  # pyright: ignore[reportArgumentType]
        self.rows, self.slots, self.end = rows, _LEAST, 0
        self._pools: list[_Pool] = []

    def _place_for(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[_Pool, int]:
        for pool in self._pools:
            fits = all(
                a.shape[2] == b.shape[1] and a.shape[-1] == b.shape[-1] and a.device == b.device and a.dtype == b.dtype
                for a, b in ((pool.keys, keys), (pool.values, values))
            )
            if fits and pool.taken < len(pool.keys):
                break
        else:
            left = len(self.layers) - sum(pool.taken for pool in self._pools)
            new = [a.new_zeros(left, self.rows, a.shape[1], self.slots, a.shape[-1]) for a in (keys, values)]
            pool = _Pool(new[0], new[1])
            self._pools.append(pool)
        pool.taken += 1
        return pool, pool.taken - 1

    def lay_out(self, groups: int, size: int, like: torch.Tensor) -> None:
        """Give every layer its place: keys and values of `groups` heads of `size`, dtype and device of `like`."""
        nothing = like.new_empty(self.rows, groups, 0, size)
        layer: Any
        for layer in self.layers:
            layer.lazy_initialization(nothing, nothing)

    @property
    def in_one(self) -> bool:
        """Whether every layer has a place, in one array."""
        return len(self._pools) == 1 and self._pools[0].taken == len(self.layers)

    def views(self, layers: int, n: int) -> tuple[Any, Any]:
        """Keys and values of the first layers, where all lie `in_one`: the last n slots in use, and all in use."""
        pool = self._pools[0]
        keys, values = pool.keys[:layers], pool.values[:layers]
        new, seen = slice(self.end - n, self.end), slice(self.end)
        return tuple(
            zip(keys[..., part, :].unbind(0), values[..., part, :].unbind(0), strict=True) for part in (new, seen)
        )  # pyright: ignore[reportReturnType]

    def reserve(self, slots: int) -> None:
        """Make room for `slots` slots; what lies in the cache stays."""
        if slots <= self.slots:
            return
        self.slots = max(slots, 2 * self.slots)
        for pool in self._pools:
            for name in ("keys", "values"):
                old = getattr(pool, name)
                new = old.new_zeros(*old.shape[:3], self.slots, old.shape[-1])
                new[..., : old.shape[-2], :] = old
                setattr(pool, name, new)

    def move(self, rows: list[int], sources: list[int], goals: list[int]) -> None:
        """Copy slot sources[i] of text rows[i] to slot goals[i], all at once."""
        if not rows:
            return
        for pool in self._pools:
            where = [torch.tensor(places, device=pool.keys.device) for places in (rows, sources, goals)]
            for slots in (pool.keys, pool.values):
                slots[:, where[0], :, where[2]] = slots[:, where[0], :, where[1]]

    def select(self, rows: list[int]) -> None:
        """Keep these texts, in this order."""
        self.rows = len(rows)
        for pool in self._pools:
            which = torch.tensor(rows, device=pool.keys.device)
            pool.keys, pool.values = pool.keys[:, which], pool.values[:, which]
