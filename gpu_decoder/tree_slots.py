"""A batch of texts and the trees that are read after them, in the slots of a cache: which slots each token sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gpu_decoder.kv_cache import TreeCache


@dataclass(frozen=True)
class Block:
    """Tokens to read after a text: parents[i] is the place, among all tokens read since the last `keep`, of the one
    before tokens[i]; -1 is the end of the text."""

    tokens: Sequence[int]
    parents: Sequence[int]

    @classmethod
    def chain(cls, tokens: Sequence[int], after: int = -1, seen: int = 0) -> Block:
        """One path after place `after`, where `seen` tokens have been read."""
        return cls(tokens, [after, *range(seen, seen + len(tokens) - 1)][: len(tokens)])


@dataclass
class _Pending:
    """What was read of one text since the last `keep`: the slots each token sees, itself last, and its depth."""

    sees: list[tuple[int, ...]] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)


class TreeSlots:
    """Where tokens lie: those kept of a text in slots 0 .. length - 1, trees of blocks after the longest of them.

    lengths: tokens kept of each text. A token sees its text, its own path and itself, at the position its depth says.
    """

    def __init__(self, layers: int, rows: int):
        self.lengths = [0] * rows
        self.cache = TreeCache(layers, rows)
        self._pending = [_Pending() for _ in range(rows)]
        self._used = 0

    def take(self, width: int) -> int:
        """Make room for `width` tokens a row; the slot of the first."""
        first = max(self._used, *self.lengths)
        self._used = self.cache.end = first + width
        self.cache.reserve(self._used)
        return first

    def slots(self, row: int, path: Sequence[int]) -> list[int]:
        """Where the tokens at these places, among those read since the last `keep`, lie."""
        return [self._pending[row].sees[place][-1] for place in path]

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Keep the tokens at these places, from the text's end down one path, of each row; drop the others."""
        rows, sources, goals = [], [], []
        for row, path in enumerate(paths):
            for source in self.slots(row, path):
                goal = self.lengths[row]
                if source != goal:
                    rows.append(row)
                    sources.append(source)
                    goals.append(goal)
                self.lengths[row] += 1
        self.cache.move(rows, sources, goals)
        self.drop()

    def leave_out(self, slots: int) -> None:
        """Leave slots free before what is read next."""
        self._used = max(self._used, *self.lengths) + slots

    def drop(self) -> None:
        """Forget what was read since the last `keep`."""
        self._pending = [_Pending() for _ in self.lengths]
        self._used = 0

    def select(self, rows: list[int]) -> None:
        """Go on with these texts only, in this order."""
        self.lengths = [self.lengths[row] for row in rows]
        self._pending = [self._pending[row] for row in rows]
        self.cache.select(rows)

    def laid_out(self, blocks: Sequence[Block], first: int, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Note blocks in the slots from `first` on: what each token sees (rows, width, slots), the position of every
        slot (rows, slots), the tokens (rows, width). Padding of shorter blocks is seen by nothing."""
        rows = len(blocks)
        mask = np.zeros((rows, width, first + width), dtype=bool)
        positions = np.zeros((rows, first + width), dtype=np.int64)
        tokens = np.zeros((rows, width), dtype=np.int64)
        for row, (block, pending) in enumerate(zip(blocks, self._pending, strict=True)):
            length, seen = self.lengths[row], len(pending.sees)
            tokens[row, : len(block.tokens)] = block.tokens
            positions[row, :length] = np.arange(length)
            for sees, depth in zip(pending.sees, pending.depths, strict=True):
                positions[row, sees[-1]] = length + depth
            for place, parent in enumerate(block.parents):
                slot = first + place
                depth = 0 if parent < 0 else pending.depths[parent] + 1
                positions[row, slot] = length + depth
                if parent >= seen:
                    mask[row, place] = mask[row, parent - seen]
                else:
                    mask[row, place, :length] = True
                    mask[row, place, list(pending.sees[parent]) if parent >= 0 else []] = True
                mask[row, place, slot] = True
                pending.sees.append((*(pending.sees[parent] if parent >= 0 else ()), slot))
                pending.depths.append(depth)
            padding = np.arange(len(block.tokens), width)
            mask[row, padding, first + padding] = True  # a token that sees nothing makes NaN
        return mask, positions, tokens
