"""Coins that remember what they were compared with, so that a rule's law can be measured exactly.

A rule that only forms a * coin + b with rational a, b and compares it with rationals is constant on finitely many
boxes of coin space. `exact_measure` finds those boxes by evaluating the rule at the middle of a box and splitting
it at every threshold that was met inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ot_spec.arrays import as_fraction
from ot_spec.errors import OptionError

BOX_LIMIT = 200_000


class CannotMeasure(OptionError):
    """A rule that does more with coins than compare linear functions of them."""

    def __init__(self, operation: str):
        super().__init__(f"the law of this rule cannot be measured exactly: {operation}")
        self.operation = operation


@dataclass(slots=True, eq=False)
class Coin:
    """scale * u + shift for the u of one coin, at the middle of the interval `box` of u."""

    scale: Any
    shift: Any
    box: Interval

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, Coin):
            raise CannotMeasure("a product of two coins")
        if isinstance(other, np.ndarray):
            return other * self
        other = self.box.number(other)
        return Coin(self.scale * other, self.shift * other, self.box)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        if isinstance(other, np.ndarray):
            return (1 / other) * self
        return self * (1 / self.box.number(other))

    def __add__(self, other: Any) -> Any:
        if isinstance(other, Coin):
            if other.box is not self.box:
                raise CannotMeasure("different coins added or compared with each other")
            return Coin(self.scale + other.scale, self.shift + other.shift, self.box)
        if isinstance(other, np.ndarray):
            return other + self
        return Coin(self.scale, self.shift + self.box.number(other), self.box)

    __radd__ = __add__

    def __neg__(self) -> Coin:
        return Coin(-self.scale, -self.shift, self.box)

    def __sub__(self, other: Any) -> Coin:
        return self + (-other)

    def __rsub__(self, other: Any) -> Coin:
        return -self + other

    def _sign(self, other: Any) -> int:
        """Sign of self - other at the middle of the box; a zero in the open box is remembered as a threshold."""
        if isinstance(other, float | np.floating) and not np.isfinite(other):
            return -1 if other > 0 else 1
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

    def __floor__(self) -> int:
        """The integer part, by comparing with each integer in reach: floor(coin * n) draws one of n."""
        ends = self.scale * self.box.low + self.shift, self.scale * self.box.high + self.shift
        whole, last = math.floor(as_fraction(min(ends))), math.ceil(as_fraction(max(ends)))
        while whole + 1 < last and self >= whole + 1:
            whole += 1
        return whole

    def __int__(self) -> int:
        return math.floor(self) if self >= 0 else -math.floor(-self)

    def __float__(self) -> float:
        raise CannotMeasure("a coin turned into a number")

    __hash__ = None  # type: ignore[assignment]  # a coin is no key: equality depends on its box


class Interval:
    """An interval of one coin, in exact numbers of one type, and the thresholds met inside it."""

    __slots__ = ("high", "low", "met", "middle")

    def __init__(self, low: Any, high: Any):
        self.low, self.high = low, high
        self.middle = (low + high) / 2
        self.met: set[Any] = set()

    def number(self, value: Any) -> Any:
        """`value` in the arithmetic of the interval, floats at their exact value."""
        if isinstance(value, float | np.floating):
            exact = as_fraction(value)
            return type(self.low)(exact.numerator, exact.denominator)
        return value.item() if isinstance(value, np.integer) else value

    def meet(self, threshold: Any) -> None:
        if self.low < threshold < self.high:
            self.met.add(threshold)

    def parts(self) -> list[Interval]:
        if not self.met:
            return [self]
        ends = [self.low, *sorted(self.met), self.high]
        return [Interval(a, b) for a, b in pairwise(ends)]


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
    todo: list[tuple[int, list[Interval]]] = [
        (row, [Interval(one * 0, one) for _ in range(coins)]) for row in range(rows)
    ]
    done = 0
    while todo:
        index = np.array([row for row, _ in todo])
        thrown = np.empty((len(todo), coins), dtype=object)
        for i, (_, boxes) in enumerate(todo):
            for j, box in enumerate(boxes):
                thrown[i, j] = Coin(one, one * 0, box)
        tokens = np.asarray(outcome(index, thrown))
        split: list[tuple[int, list[Interval]]] = []
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
                fresh = [part if j == cut else Interval(box.low, box.high) for j, box in enumerate(boxes)]
                split.append((row, fresh))
        todo = split
        if done + len(todo) > BOX_LIMIT:
            raise OptionError(
                f"the rule needs more than {BOX_LIMIT:,} boxes of coins; measure fewer candidates at once"
            )
    return law
