"""Random choices followed through all their outcomes: the source that stands in for a generator.

A function is run again and again; each random choice it makes is a branch with exact weights, taken in depth-first
order. Coins are symbols that branch when they are compared; exponential and Gumbel noise are symbols that branch
when a race (argmax, argmin) is decided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flint import fmpq

from ot_spec.arrays import as_fraction
from ot_spec.coin import Coin, Interval
from ot_spec.errors import OptionError


class CannotFollow(OptionError):
    """Randomness that exact branching cannot follow; names the operation and the tier to use instead."""

    def __init__(self, operation: str, tier: str = "statistical"):
        super().__init__(f"exact branching cannot follow {operation}; use the {tier} tier")
        self.operation, self.tier = operation, tier


class BudgetSpent(OptionError):
    """More runs than the budget allows; nothing is reported from a part of the outcomes."""


def exact(value: Any) -> fmpq:
    """The exact value of a number as `fmpq`."""
    if isinstance(value, fmpq):
        return value
    number = as_fraction(value)
    return fmpq(number.numerator, number.denominator)


class Source:
    """The outcomes of one run's random choices, and the walk over all runs.

    `choose` answers each choice with a branch and multiplies `weight`; `advance` moves to the next run.
    """

    def __init__(self) -> None:
        self._trace: list[tuple[int, tuple[fmpq, ...]]] = []
        self._depth = 0
        self.weight = fmpq(1)

    def restart(self) -> None:
        self._depth = 0
        self.weight = fmpq(1)

    def choose(self, weights: Sequence[fmpq]) -> int:
        """An index with probability weights[i] / sum(weights); a choice with one possible outcome is no branch."""
        possible = [i for i, w in enumerate(weights) if w > 0]
        if not possible:
            raise OptionError(f"a choice among weights without any mass: {[str(w) for w in weights][:8]}")
        if min(weights) < 0:
            raise OptionError(f"a choice among negative weights: {[str(w) for w in weights][:8]}")
        if len(possible) == 1:
            return possible[0]
        shares = tuple(weights)
        if self._depth == len(self._trace):
            self._trace.append((possible[0], shares))
        index, recorded = self._trace[self._depth]
        if recorded != shares:
            raise CannotFollow("a function whose choices change from run to run (a generator of its own, or state)")
        self._depth += 1
        self.weight *= shares[index] / sum(shares[1:], start=shares[0])
        return index

    @property
    def branched(self) -> bool:
        """Whether this run has made a choice."""
        return self._depth > 0

    def advance(self) -> bool:
        """Go on to the next outcome; False once all have been seen."""
        if self._depth != len(self._trace):
            raise CannotFollow("a function that makes fewer choices when it is run again (state kept between calls)")
        while self._trace:
            index, weights = self._trace.pop()
            later = [i for i in range(index + 1, len(weights)) if weights[i] > 0]
            if later:
                self._trace.append((later[0], weights))
                return True
        return False

    def coin(self) -> Coin:
        """A fresh uniform coin in [0, 1)."""
        return Coin(fmpq(1), fmpq(0), Box(self))

    def clock(self) -> Clock:
        """A fresh standard exponential."""
        return Clock(Timer(self))


class Box(Interval):
    """The interval a coin is known to lie in; a threshold inside it is a branch."""

    __slots__ = ("source",)

    def __init__(self, source: Source):
        super().__init__(fmpq(0), fmpq(1))
        self.source = source

    def number(self, value: Any) -> fmpq:
        return exact(value)

    def meet(self, threshold: Any) -> None:
        if self.low < threshold < self.high:
            above = self.source.choose([threshold - self.low, self.high - threshold])
            self.low, self.high = (threshold, self.high) if above else (self.low, threshold)
            self.middle = (self.low + self.high) / 2


class Timer:
    """One exponential variable; decided once, by the race or the comparison it takes part in."""

    __slots__ = ("source", "spent")

    def __init__(self, source: Source):
        self.source, self.spent = source, False

    def decide(self) -> None:
        if self.spent:
            raise CannotFollow("exponential noise that is used in two decisions")
        self.spent = True


class Clock:
    """scale * E^power with its sign, or the logarithm of scale * E^power, for an exponential E; power is 1 or -1.

    Enough for races: argmax p/E, argmin E/p, argmax log p - log E, argmax logits + Gumbel noise.
    """

    __slots__ = ("logged", "power", "scale", "sign", "timer")

    def __init__(self, timer: Timer, power: int = 1, scale: Any = None, sign: int = 1, logged: bool = False):
        self.timer, self.power, self.sign, self.logged = timer, power, sign, logged
        self.scale = fmpq(1) if scale is None else scale

    def _with(self, **changes: Any) -> Clock:
        parts = {name: getattr(self, name) for name in ("power", "scale", "sign", "logged")}
        return Clock(self.timer, **{**parts, **changes})

    def _plain(self, operation: str) -> None:
        if self.logged:
            raise CannotFollow(f"{operation} of a logarithm of exponential noise")

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, np.ndarray):
            return other * self
        if isinstance(other, Clock | Coin):
            raise CannotFollow("a product of two random numbers")
        factor = exact(other)
        self._plain("a multiple")
        return self._with(scale=self.scale * abs(factor), sign=self.sign * (-1 if factor < 0 else 1))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        if isinstance(other, np.ndarray):
            return (1 / other) * self
        return self * (1 / exact(other))

    def __rtruediv__(self, other: Any) -> Clock:
        self._plain("the inverse")
        factor = exact(other)
        return self._with(power=-self.power, scale=abs(factor) / self.scale, sign=self.sign * (-1 if factor < 0 else 1))

    def __neg__(self) -> Clock:
        if self.logged:
            return self._with(power=-self.power, scale=1 / self.scale)
        return self._with(sign=-self.sign)

    def __add__(self, other: Any) -> Any:
        if isinstance(other, np.ndarray):
            return other + self
        if isinstance(other, Clock | Coin):
            raise CannotFollow("a sum of two random numbers")
        if not self.logged:
            if other == 0:
                return self
            raise CannotFollow("exponential noise plus a number")
        return self._with(scale=self.scale * _exp(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self + (-other)

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def log(self) -> Clock:
        """Called by numpy.log on each entry."""
        self._plain("the logarithm")
        if self.sign < 0:
            raise OptionError("the logarithm of a negative number")
        return self._with(logged=True)

    def key(self) -> tuple[fmpq, int]:
        """(weight, direction): in a race for the largest of a_i / E_i the winner has weight a_i, direction 1; for the
        largest of -b_i E_i the weight is 1 / b_i; direction -1 is the same race for the smallest."""
        rate = self.scale if self.power < 0 else 1 / self.scale
        return rate, (-self.power) * self.sign

    def _compare(self, other: Any) -> int:
        """Sign of self - other for a number `other`, by the exponential's distribution function."""
        if isinstance(other, Clock | Coin):
            raise CannotFollow("two random numbers that are compared with each other")
        if self.logged:
            bound = _exp(other)
        else:
            bound = exact(other) * self.sign
            if bound <= 0:
                return self.sign
        limit = bound / self.scale if self.power > 0 else self.scale / bound if bound > 0 else None
        self.timer.decide()
        below = fmpq(1) if limit is None else exact(-math.expm1(-float(as_fraction(limit))))
        smaller = self.timer.source.choose([1 - below, below])  # whether E < limit
        less = bool(smaller) == (self.power > 0)
        return (-1 if less else 1) * (1 if self.logged else self.sign)

    def __lt__(self, other: Any) -> bool:
        return self._compare(other) < 0

    __le__ = __lt__

    def __gt__(self, other: Any) -> bool:
        return self._compare(other) > 0

    __ge__ = __gt__


class LogCoin:
    """log of a coin plus a shift: minus an exponential, and a threshold when compared with a number."""

    __slots__ = ("coin", "shift")

    def __init__(self, coin: Coin, shift: float = 0.0):
        self.coin, self.shift = coin, shift

    def __neg__(self) -> Clock:
        box = self.coin.box
        fresh = (
            isinstance(box, Box) and box.low == 0 and box.high == 1 and self.coin.scale == 1 and self.coin.shift == 0
        )
        if not fresh or self.shift:
            raise CannotFollow("minus the logarithm of a coin that has been used already")
        assert isinstance(box, Box)
        box.low = box.high  # the coin lives on as an exponential
        return box.source.clock()

    def __add__(self, other: Any) -> Any:
        return other + self if isinstance(other, np.ndarray) else LogCoin(self.coin, self.shift + float(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self + (-other)

    def _bound(self, other: Any) -> fmpq | float:
        level = float(other) - self.shift
        return _exp(level) if level < 700 else math.inf

    def __lt__(self, other: Any) -> bool:
        return self.coin < self._bound(other)

    __le__ = __lt__

    def __gt__(self, other: Any) -> bool:
        return self.coin > self._bound(other)

    __ge__ = __gt__


def _exp(value: Any) -> fmpq:
    value = float(value)
    return fmpq(0) if value == -math.inf else exact(math.exp(value))


def log(value: Any) -> Any:
    """The logarithm of a symbol or a number."""
    if isinstance(value, Coin):
        return LogCoin(value)
    return value.log() if isinstance(value, Clock) else math.log(value) if value > 0 else -math.inf


def race(cells: np.ndarray, largest: bool) -> int:
    """The index of the largest (smallest) of a row of clocks and numbers that never win."""
    clocks = [c for c in cells if isinstance(c, Clock)]
    if not clocks:
        if any(isinstance(c, Coin | LogCoin) for c in cells):
            raise CannotFollow("argmax or argmin over coins")
        return int(np.argmax(cells) if largest else np.argmin(cells))
    want = 1 if largest else -1
    weights = []
    for cell in cells:
        if not isinstance(cell, Clock):
            loses = cell == (-math.inf if largest else math.inf) or (largest and cell == 0)
            if not loses:
                raise CannotFollow(f"a race between exponential noise and the number {cell}")
            weights.append(fmpq(0))
            continue
        weight, direction = cell.key()
        if direction != want or cell.logged != clocks[0].logged:
            raise CannotFollow("a race for the largest of exponentials, or for the smallest of their inverses")
        cell.timer.decide()
        weights.append(weight)
    if not any(w > 0 for w in weights):
        return 0
    return clocks[0].timer.source.choose(weights)


def ranking(cells: np.ndarray, largest_first: bool) -> list[int]:
    """The order of a row of clocks, first to last: a race among those that are left, again and again."""
    clocks = [c for c in cells if isinstance(c, Clock)]
    if len(clocks) != len(cells):
        raise CannotFollow("sorting numbers and exponential noise together, or coins")
    keys = [c.key() for c in clocks]
    # each race settles who is first; the others start afresh, as exponentials do
    if any(direction != (1 if largest_first else -1) for _, direction in keys):
        return ranking(cells, not largest_first)[::-1]
    for clock in clocks:
        clock.timer.decide()
    left, order = list(range(len(cells))), []
    while left:
        weights = [keys[i][0] for i in left]
        order.append(left.pop(clocks[0].timer.source.choose(weights) if any(w > 0 for w in weights) else 0))
    return order


def filled(shape: tuple[int, ...], make: Callable[[], Any]) -> np.ndarray:
    """An object array of that shape, each entry made by `make`."""
    cells = np.empty(shape, dtype=object)
    for index in np.ndindex(shape):
        cells[index] = make()
    return cells


def as_exact_weights(weights: Any) -> list[fmpq]:
    return [exact(w) for w in np.asarray(weights, dtype=object).reshape(-1)]


__all__ = [
    "Box",
    "BudgetSpent",
    "CannotFollow",
    "Clock",
    "LogCoin",
    "Source",
    "as_exact_weights",
    "exact",
    "filled",
    "log",
    "race",
    "ranking",
]
