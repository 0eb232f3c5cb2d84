"""Small law pairs on which rules are judged, in integer weights, and the search for a smaller one that still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from ot_spec.errors import LawError, OptionError


@dataclass(frozen=True)
class Case:
    """One law pair (or one table of them) by integer weights: a row w stands for the law w / sum(w).

    target, draft: tuples of weights, one law each, for a rule at one position; for chains and decoders tuples of rows,
    one for each prefix in the order of `prefixes`: target up to `length` tokens, draft up to length - 1.
    k: candidates at a position, or drafted sequences. length: drafted tokens in a row, 0 for one position.

    >>> Case(target=(1, 0, 1), draft=(0, 2, 1), k=2).laws()[1]
    array([Fraction(0, 1), Fraction(2, 3), Fraction(1, 3)], dtype=object)
    """

    target: tuple[Any, ...]
    draft: tuple[Any, ...]
    k: int = 1
    length: int = 0

    def __post_init__(self) -> None:
        for name in ("target", "draft"):
            rows = getattr(self, name)
            object.__setattr__(self, name, _tuples(rows))
            for row in self._rows(name):
                if min(row) < 0 or not sum(row):
                    raise LawError(f"{name}: weights {row} are negative or all zero")
        if self.length:
            for name, reach in (("target", self.length), ("draft", self.length - 1)):
                need = len(prefixes(self.vocab, reach))
                if len(getattr(self, name)) != need:
                    raise OptionError(f"{name}: {len(getattr(self, name))} rows for {need} prefixes")

    def _rows(self, name: str) -> tuple[tuple[int, ...], ...]:
        rows = getattr(self, name)
        return rows if self.length else (rows,)

    @property
    def vocab(self) -> int:
        return len(self._rows("target")[0])

    def laws(self) -> tuple[np.ndarray, np.ndarray]:
        """target, draft as arrays of fractions: (V,) each, or (prefixes, V)."""
        target, draft = (np.stack([_law(row) for row in self._rows(name)]) for name in ("target", "draft"))
        return (target, draft) if self.length else (target[0], draft[0])

    def size(self) -> tuple[int, int, int, int]:
        """What "smaller" means: vocabulary, length, k, then all weights."""
        weights = sum(sum(row) for name in ("target", "draft") for row in self._rows(name))
        return self.vocab, self.length, self.k, weights

    def smaller(self) -> Iterator[Case]:
        """Cases that are smaller by one step."""
        if not self.length and self.vocab > 2:
            for token in range(self.vocab):
                rows = [tuple(w for i, w in enumerate(row) if i != token) for row in (self.target, self.draft)]
                if all(any(row) for row in rows):
                    yield Case(rows[0], rows[1], self.k)
        if self.length and self.vocab > 2:
            for token in range(self.vocab):
                yield self._restricted(self.length, token)
        if self.length > 1:
            yield self._restricted(self.length - 1)
        if self.k > 1:
            yield Case(self.target, self.draft, self.k - 1, self.length)
        for name in ("target", "draft"):
            rows = self._rows(name)
            for i, row in enumerate(rows):
                for j, weight in enumerate(row):
                    for less in sorted({0, 1, weight // 2, weight - 1}):
                        if 0 <= less < weight and sum(row) - weight + less:
                            changed = (*row[:j], less, *row[j + 1 :])
                            whole = (*rows[:i], changed, *rows[i + 1 :]) if self.length else changed
                            parts = {"target": self.target, "draft": self.draft, name: whole}
                            yield Case(parts["target"], parts["draft"], self.k, self.length)

    def _restricted(self, length: int, without: int | None = None) -> Case:
        """The tables up to a length, and without a token; a law that had no other becomes uniform."""
        tables = []
        for name, reach, old in (("target", length, self.length), ("draft", length - 1, self.length - 1)):
            kept = [
                tuple(w for token, w in enumerate(row) if token != without)
                for prefix, row in zip(prefixes(self.vocab, old), getattr(self, name), strict=True)
                if len(prefix) <= reach and without not in prefix
            ]
            tables.append(tuple(row if any(row) else (1,) * len(row) for row in kept))
        return Case(tables[0], tables[1], self.k, length)


def _tuples(rows: Any) -> tuple[Any, ...]:
    return tuple(_tuples(row) if isinstance(row, Sequence | np.ndarray) else int(row) for row in rows)


def _law(row: Sequence[int]) -> np.ndarray:
    return np.array([Fraction(w, sum(row)) for w in row], dtype=object)


def prefixes(vocab: int, length: int) -> list[tuple[int, ...]]:
    """All token sequences of up to `length` tokens, shorter ones first, then by token."""
    return [p for many in range(length + 1) for p in product(range(vocab), repeat=many)]


# zeros in the target, zeros in the draft, ties, equal, disjoint, one-hot, support smaller than k, and residuals of two
# tokens or more after one and two refusals; two and three tokens alone would hide faults
_HAND = [
    ((1, 1), (3, 1)), ((1, 3), (3, 1)), ((1, 0), (1, 1)), ((1, 1), (0, 1)), ((1, 2), (2, 1)), ((1, 1), (1, 1)),
    ((1, 0, 1), (0, 2, 1)), ((2, 1, 1), (1, 2, 1)), ((5, 3, 2), (1, 3, 6)), ((1, 1, 0), (0, 1, 1)),
    ((2, 2, 1), (1, 1, 3)), ((1, 2, 2), (16, 3, 1)), ((1, 1, 1), (1, 1, 1)), ((0, 0, 1), (1, 1, 1)),
    ((4, 4, 2), (8, 1, 1)), ((1, 1, 2), (4, 1, 1)), ((1, 2, 3, 4), (4, 3, 2, 1)), ((1, 1, 1, 1), (4, 2, 1, 1)),
    ((1, 1, 0, 0), (0, 0, 1, 1)), ((7, 1, 1, 1), (1, 1, 1, 1)), ((0, 1, 2, 3), (3, 2, 1, 0)),
    ((2, 2, 1, 1), (2, 2, 1, 1)), ((1, 1, 1, 3), (1, 0, 0, 0)), ((0, 0, 0, 1), (1, 1, 1, 1)),
    ((3, 3, 2, 2), (6, 2, 1, 1)), ((1, 3, 3, 3), (7, 1, 1, 1)),
]  # fmt: skip


def one_step(k: int, vocab_max: int, count: int, seed: int) -> list[Case]:
    """`count` cases for a rule at one position, the hand-picked ones first, small vocabularies before large ones."""
    made = [Case(t, d, k) for t, d in _HAND if len(t) <= vocab_max]
    rng = np.random.default_rng(seed)
    while len(made) < count:
        vocab = int(rng.integers(min(3, vocab_max), vocab_max + 1))
        rows = [rng.integers(0, rng.choice([3, 6, 11]), vocab) for _ in range(2)]
        if all(row.any() for row in rows):
            made.append(Case(tuple(rows[0].tolist()), tuple(rows[1].tolist()), k))
    return sorted(made[:count], key=Case.size)


def sequences(k: int, length: int, vocab_max: int, count: int, seed: int) -> list[Case]:
    """`count` tables of laws that depend on the prefix, with `length` drafted tokens."""
    made = [
        Case(
            (target,) * len(prefixes(len(target), length)), (draft,) * len(prefixes(len(target), length - 1)), k, length
        )
        for target, draft in (((1, 2), (2, 1)), ((2, 2, 1), (18, 1, 1)))
        if len(target) <= vocab_max
    ]
    # half of them are the same for every seed, so that no verdict hangs on the seed alone
    fixed, free = np.random.default_rng(0), np.random.default_rng(seed)
    while len(made) < count:
        rng = fixed if len(made) < max(4, count // 2) else free
        vocab = int(rng.integers(2, vocab_max + 1)) if len(made) % 3 else vocab_max
        tables = []
        for reach in (length, length - 1):
            rows = rng.integers(0, 5, (len(prefixes(vocab, reach)), vocab))
            rows[~rows.any(axis=1)] = 1
            tables.append(tuple(map(tuple, rows.tolist())))
        made.append(Case(tables[0], tables[1], k, length))
    return sorted(made[:count], key=Case.size)


def shrink(case: Case, fails: Callable[[Case], bool], attempts: int = 400) -> Case:
    """A case that still fails and none of whose smaller neighbours does, within a number of attempts."""
    while True:
        for other in sorted(case.smaller(), key=Case.size):
            attempts -= 1
            if attempts < 0:
                return case
            if fails(other):
                case = other
                break
        else:
            return case
