"""Coins that remember what they were compared with, so that a rule's law can be measured exactly.

A rule that only forms a * coin + b with rational a, b and compares it with rationals is constant on finitely many
boxes of coin space. `exact_measure` finds those boxes by evaluating the rule at the middle of a box and splitting
it at every threshold that was met inside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ot_spec.errors import OptionError

BOX_LIMIT = 200_000


@dataclass(slots=True, eq=False)
class Coin:
    """scale * u + shift for the u of one coin, at the middle of the interval `box` of u."""

    scale: Any
    shift: Any
    box: _Interval

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, Coin):
            raise OptionError("a product of two coins has no rational thresholds; such a rule cannot be measured here")
        return Coin(self.scale * other, self.shift * other, self.box)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Coin:
        return self * (1 / other)

    def __add__(self, other: Any) -> Coin:
        if isinstance(other, Coin):
            if other.box is not self.box:
                raise OptionError("a sum of different coins cannot be measured here")
            return Coin(self.scale + other.scale, self.shift + other.shift, self.box)
        return Coin(self.scale, self.shift + other, self.box)

    __radd__ = __add__

    def __neg__(self) -> Coin:
        return Coin(-self.scale, -self.shift, self.box)

    def __sub__(self, other: Any) -> Coin:
        return self + (-other)

    def __rsub__(self, other: Any) -> Coin:
        return -self + other

    def _sign(self, other: Any) -> int:
        """Sign of self - other at the middle of the box; a zero in the open box is remembered as a threshold."""
        line = self - other
        if line.scale == 0:
            return (line.shift > 0) - (line.shift < 0)
        self.box.meet(-line.shift / line.scale)
        value = line.scale * self.box.middle + line.shift
        return (value > 0) - (value < 0)

    def __lt__(self, other: Any) -> bool:
        return self._sign(other) < 0

    def __le__(self, other: Any) -> bool:
        return self._sign(other) <= 0

    def __gt__(self, other: Any) -> bool:
        return self._sign(other) > 0

    def __ge__(self, other: Any) -> bool:
        return self._sign(other) >= 0

    def __eq__(self, other: object) -> bool:
        return self._sign(other) == 0

    __hash__ = None  # type: ignore[assignment]  # a coin is no key: equality depends on its box


class _Interval:
    __slots__ = ("high", "low", "met", "middle")

    def __init__(self, low: Any, high: Any):
        self.low, self.high = low, high
        self.middle = (low + high) / 2
        self.met: set[Any] = set()

    def meet(self, threshold: Any) -> None:
        if self.low < threshold < self.high:
            self.met.add(threshold)

    def parts(self) -> list[_Interval]:
        if not self.met:
            return [self]
        ends = [self.low, *sorted(self.met), self.high]
        return [_Interval(a, b) for a, b in pairwise(ends)]


def exact_measure(
    outcome: Callable[[np.ndarray, np.ndarray], Any], *, rows: int, coins: int, outcomes: int, one: Any
) -> np.ndarray:
    """P(outcome = y) for each of `rows` inputs when `coins` independent uniform coins are thrown, (rows, outcomes).

    outcome(index (n,), coins (n, coins)) -> ids (n,): the rule, on object arrays of `Coin`. `one` is 1 in the exact
    arithmetic to use. Raises OptionError where a rule is not piecewise constant in this sense, or where it needs more
    than 200,000 boxes.
    """
    law = np.empty((rows, outcomes), dtype=object)
    law.fill(one * 0)
    todo: list[tuple[int, list[_Interval]]] = [
        (row, [_Interval(one * 0, one) for _ in range(coins)]) for row in range(rows)
    ]
    done = 0
    while todo:
        index = np.array([row for row, _ in todo])
        thrown = np.empty((len(todo), coins), dtype=object)
        for i, (_, boxes) in enumerate(todo):
            for j, box in enumerate(boxes):
                thrown[i, j] = Coin(one, one * 0, box)
        tokens = np.asarray(outcome(index, thrown))
        split: list[tuple[int, list[_Interval]]] = []
        for (row, boxes), token in zip(todo, tokens, strict=True):
            # one coin at a time, the first that met a threshold: later coins may matter on one side only
            cut = next((j for j, box in enumerate(boxes) if box.met), None)
            if cut is None:
                volume = one
                for box in boxes:
                    volume = volume * (box.high - box.low)
                law[row, int(token)] += volume
                done += 1
                continue
            for part in boxes[cut].parts():
                fresh = [part if j == cut else _Interval(box.low, box.high) for j, box in enumerate(boxes)]
                split.append((row, fresh))
        todo = split
        if done + len(todo) > BOX_LIMIT:
            raise OptionError(
                f"the rule needs more than {BOX_LIMIT:,} boxes of coins; measure fewer candidates at once"
            )
    return law
