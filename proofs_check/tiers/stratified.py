"""The stratified tier: the law of a kernel that takes coins, from a grid of coins and the thresholds found on it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ot_spec.errors import OptionError
from proofs_check.cases import Case
from proofs_check.law_of import Law
from proofs_check.report import CounterExample, Verdict
from proofs_check.subjects import Subject
from proofs_check.tiers.judge import Judge
from proofs_check.tiers.play import Kernel

_POINTS = {1: 128, 2: 24, 3: 10, 4: 7}
_LARGEST = 200_000


class StratifiedJudge(Judge):
    """Compares with the expected law the law that `coin_law` measures, candidates weighed by their exact law.

    A rule is biased where the TV is larger than the error bound (and what rounding of the inputs explains); it is
    lossless to within that bound, and undecided where the bound is larger than `tv`.
    """

    tier = "stratified"

    def __init__(self, subject: Subject, tv: float = 0.01):
        super().__init__(subject)
        if not 0 < tv < 1:
            raise OptionError(f"tv must lie in (0, 1), got {tv}")
        self.kernel, self.wanted = Kernel(subject), tv
        self.bound = 0.0

    def judge(self, case: Case) -> CounterExample | None:
        expected = self.expected(case)
        laws, before = self.kernel.laws(case), self.kernel.calls
        masses, bound = np.zeros(case.vocab), 0.0
        subject: Any = self.subject
        for tokens, mass in subject.candidates(case):
            law, error = coin_law(self.kernel, laws, tokens, case.vocab, self.wanted / 20)
            masses += float(mass) * law
            bound += float(mass) * error
        self.runs += self.kernel.calls - before
        law = Law(dict(enumerate(masses.tolist())))
        tv = law.tv(expected)
        if tv > self.slack + as_exact_bound(bound):
            message = (
                f"the output law is {float(tv):.6g} away from the {self.what} in TV, measured to within {bound:.2g}"
            )
            return CounterExample(case, message, law, expected, tv)
        self.last, self.tv, self.bound = law, tv, max(self.bound, bound)
        return None

    def verdict(self) -> Verdict:
        return super().verdict() if self.bound <= self.wanted else "undecided"

    def notes(self) -> tuple[str, ...]:
        return (
            f"stratified: the law is measured to within {self.bound:.2g} in TV (asked for {self.wanted:g}), if every "
            "threshold on a coin shows on the grid",
        )


def as_exact_bound(bound: float) -> Any:
    """The bound, and what sums of 64-bit floats add to it, as a fraction."""
    return Law({0: bound + 1e-12})[0]


def coin_law(
    kernel: Kernel, laws: tuple[Any, Any], candidates: tuple[int, ...], vocab: int, error: float
) -> tuple[np.ndarray, float]:
    """The law of kernel(laws, candidates, coins) for uniform coins, (V,), and a bound on its TV error.

    The kernel is asked on a grid: along each coin the midpoints of n equal intervals, 0 and the last coin below 1.
    Where two neighbours along coin j differ, thresholds lie between them; halving confines each to a bracket, so short
    that all brackets together are expected below `error`. The rest of [0, 1) along a coin are its pieces; those without
    a grid point get one, until none is left. The law is the volume of the boxes (products of pieces) by outcome.

    Bound. Suppose that the outcome does not change inside a box. Then the law of the outcome, given that no coin lies
    in a bracket, is measured without error, and its TV to the law itself is at most P(some coin lies in a bracket) <=
    sum_j B_j, where B_j is the total length of the brackets of coin j. The supposition is tested at all grid points;
    where two of one box differ, or there is no end of thresholds, the bound is 1. What it can miss is a region between
    two neighbours of equal outcome on every line of the grid, thinner than 1/n along some coin.
    """
    many = kernel.coins(len(candidates))
    points = _POINTS.get(many, max(2, int(5000 ** (1 / max(many, 1)))))
    last = 1 - 2.0 ** (-24 if kernel.subject.arrays.endswith("32") else -53)
    axes = [np.array([0.0, *(np.arange(points) + 0.5) / points, last]) for _ in range(many)]

    def ask(coins: np.ndarray) -> np.ndarray:
        return kernel(laws, np.tile(np.array(candidates), (len(coins), 1)), coins)

    while True:
        shape = tuple(len(axis) for axis in axes)
        if math.prod(shape) > _LARGEST:
            return np.full(vocab, 1 / vocab), 1.0
        grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(*shape, many)
        seen = ask(grid.reshape(-1, many)).reshape(shape)
        width = error / (max(many, 1) * vocab)
        pieces = [_pieces(_brackets(ask, grid, seen, j, width, 4 * vocab)) for j in range(many)]
        if not all(pieces):
            return np.full(vocab, 1 / vocab), 1.0
        empty = [_centres_without(part, axis) for part, axis in zip(pieces, axes, strict=True)]
        if not any(len(new) for new in empty):
            break
        axes = [np.sort(np.concatenate([axis, new])) for axis, new in zip(axes, empty, strict=True)]
    place = [_place(part, axis) for part, axis in zip(pieces, axes, strict=True)]
    kept = [np.flatnonzero(p >= 0) for p in place]
    boxes = np.full([len(part) for part in pieces], -1)
    inside = seen[np.ix_(*kept)]
    index = np.ix_(*[p[k] for p, k in zip(place, kept, strict=True)])
    boxes[index] = inside
    bound = min(1.0, sum(1 - sum(high - low for low, high in part) for part in pieces))
    if (boxes[index] != inside).any():
        bound = 1.0
    volume = np.ones(())
    for part in pieces:
        volume = volume[..., None] * np.array([high - low for low, high in part])
    law = np.bincount(boxes.reshape(-1), weights=volume.reshape(-1), minlength=vocab)
    return law / law.sum(), bound


def _brackets(
    ask: Any, grid: np.ndarray, seen: np.ndarray, j: int, width: float, most: int
) -> list[tuple[float, float]]:
    """Intervals of coin j, none longer than `width`, around all thresholds between neighbours of the grid; [0, 1] where
    a line along the coin has more than `most` on average, as no rule of thresholds would have."""
    steps = seen.shape[j]
    ends = [np.take(seen, range(*span), axis=j) for span in ((steps - 1,), (1, steps))]
    index = np.argwhere(ends[0] != ends[1])
    rows = grid[tuple(index.T)]
    low, high = rows[:, j], grid[tuple((index + np.eye(seen.ndim, dtype=int)[j]).T)][:, j]
    left, right = (end[tuple(index.T)] for end in ends)
    found: set[tuple[float, float]] = set()
    while len(rows):
        if len(rows) > most * seen.size // steps:
            return [(0.0, 1.0)]
        short = high - low <= width
        found |= set(zip(low[short].tolist(), high[short].tolist(), strict=True))
        rows, low, high, left, right = (a[~short] for a in (rows, low, high, left, right))
        middle = (low + high) / 2
        halves = rows.copy()
        halves[:, j] = middle
        between = ask(halves)
        lower, upper = between != left, between != right
        rows = np.concatenate([rows[lower], rows[upper]])
        low, high = np.concatenate([low[lower], middle[upper]]), np.concatenate([middle[lower], high[upper]])
        left, right = np.concatenate([left[lower], between[upper]]), np.concatenate([between[lower], right[upper]])
    return sorted(found)


def _pieces(brackets: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """What [0, 1) is without the brackets."""
    pieces, start = [], 0.0
    for low, high in brackets:
        if low > start:
            pieces.append((start, low))
        start = max(start, high)
    return [*pieces, (start, 1.0)] if start < 1 else pieces


def _place(pieces: list[tuple[float, float]], points: np.ndarray) -> np.ndarray:
    """The piece of each point, -1 in a bracket."""
    lows, highs = np.array(pieces).T
    found = np.searchsorted(lows, points, side="right") - 1
    return np.where((found >= 0) & (points <= highs[found]), found, -1)


def _centres_without(pieces: list[tuple[float, float]], axis: np.ndarray) -> np.ndarray:
    """Centres of the pieces in which no point of the axis lies."""
    taken = set(_place(pieces, axis).tolist())
    return np.array([(low + high) / 2 for i, (low, high) in enumerate(pieces) if i not in taken])
