"""The edge tier: coins and laws at which arithmetic gives way, and tokens that must not come out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from ot_spec.arrays import is_exact, to_numpy
from proofs_check.branching import BudgetSpent, CannotFollow
from proofs_check.cases import Case
from proofs_check.report import CounterExample, Verdict
from proofs_check.subjects import Fault, Subject
from proofs_check.tiers.judge import Judge
from proofs_check.tiers.play import Kernel

# 1 - 2^-24 is the last float32 below 1; 0.99999997 rounds to 1 in float32; 1 - 2^-53 is the last float64 below 1
COINS64 = (0.0, 5e-324, 0.5, 1 - 2.0**-24, 0.99999997, 1 - 2.0**-53)
# 1.0 is no coin: it is what 0.99999997 becomes in float32. It may be refused (ValueError, AssertionError, a flagged -1)
COINS32 = (0.0, 2.0**-149, 0.5, 1 - 2.0**-24, 1.0)
_ROWS = 1300

# a token that the target lacks at the end, masses far below the resolution of a sum, and equal laws of odd weights
_HAND = (
    ((1, 1, 0), (1, 1, 1)), ((1, 1, 0), (0, 1, 1)), ((1, 0, 0), (1, 0, 0)), ((1, 2, 3), (1, 2, 3)),
    ((10**30, 1, 0), (1, 1, 1)), ((1, 1, 1), (10**30, 1, 0)), ((0, 10**15, 1), (10**15, 0, 1)),
    ((3, 7, 0, 0), (1, 1, 7, 1)), ((0, 1, 10**12, 1), (10**12, 1, 1, 0)), ((1, 3, 3, 0), (1, 3, 3, 0)),
)  # fmt: skip


class EdgeJudge(Judge):
    """No exception, no id outside the vocabulary, no token without target mass, no changed input, no wrong flag.

    Coins are all combinations of the edge values of the rule's dtype (for more than four coins, those with at most one
    coin apart from the others); every candidate tuple that can be drawn. Laws are given as they are and, in floats,
    with a target or a draft that sums to 1 - 2 eps, as a softmax may. Says nothing about the law in between: a rule
    that passes is "undecided" here.
    """

    tier = "edge"

    def __init__(self, subject: Subject):
        super().__init__(subject)
        self.kernel = Kernel(subject)
        self._edges = COINS32 if subject.arrays.endswith("32") else COINS64

    def judge(self, case: Case) -> CounterExample | None:
        self.expected(case)
        before = self.kernel.calls
        try:
            for laws, about in self._laws(case):
                self._judge(case, laws, about)
        except Fault as fault:
            return CounterExample(case, str(fault))
        finally:
            self.runs += self.kernel.calls - before
        return None

    def _judge(self, case: Case, laws: tuple[Any, Any], about: str) -> None:
        possible = to_numpy(laws[0]) > 0, to_numpy(laws[1]) > 0
        tuples = np.array([t for t in self._tuples(case) if all(possible[1][y] for y in t if y >= 0)])
        if not len(tuples):
            return
        coins = corners(self._edges, self.kernel.coins(case.k))
        for edge, refusable in ((coins[(coins < 1).all(axis=1)], False), (coins[(coins == 1).any(axis=1)], True)):
            if not len(edge):
                continue
            rows, thrown = np.repeat(tuples, len(edge), axis=0), np.tile(edge, (len(tuples), 1))
            try:
                tokens = self.kernel(laws, rows, thrown, may_refuse=refusable)
            except Fault as fault:
                raise Fault(f"{fault}{about}") from fault
            declared = self.subject.declared is not None
            wrong = (tokens >= 0) & ~possible[0][tokens] & (not declared)
            if wrong.any():
                row = int(np.argmax(wrong))
                raise Fault(
                    f"the rule returns {tokens[row]}, which the target never gives (candidates "
                    f"{tuple(rows[row].tolist())}, coins {tuple(thrown[row].tolist())}{about})"
                )

    def _tuples(self, case: Case) -> list[tuple[int, ...]]:
        subject: Any = self.subject
        try:
            return [tokens for tokens, mass in subject.candidates(case) if mass]
        except (CannotFollow, BudgetSpent):
            return [tuple(t) for t in subject.declared_law(case).tuples(case.laws()[1])[0].tolist()]

    def _laws(self, case: Case) -> Iterator[tuple[tuple[Any, Any], str]]:
        target, draft = self.kernel.laws(case)
        yield (target, draft), ""
        if is_exact(target):
            return
        less = 1 - 2 * float(np.finfo(np.float32 if self.subject.arrays.endswith("32") else np.float64).eps)
        yield (target * less, draft), ", a target that sums to 1 - 2 eps"
        yield (target, draft * less), ", a draft that sums to 1 - 2 eps"

    def verdict(self) -> Verdict:
        return "undecided"

    def notes(self) -> tuple[str, ...]:
        return (f"edge coins: no fault in {self.runs:,} calls",)


def edge_cases(k: int, vocab_max: int) -> list[Case]:
    """Law pairs at which rounding shows, small ones first.

    >>> edge_cases(1, 3)[0]
    Case(target=(1, 0, 0), draft=(1, 0, 0), k=1, length=0)
    """
    return sorted((Case(t, d, k) for t, d in _HAND if len(t) <= vocab_max), key=Case.size)


def corners(edges: tuple[float, ...], many: int) -> np.ndarray:
    """Rows of `many` coins: all combinations of the edge values, or those with at most one coin apart.

    >>> corners((0.0, 0.5), 2).tolist()
    [[0.0, 0.0], [0.0, 0.5], [0.5, 0.0], [0.5, 0.5]]
    """
    if len(edges) ** many <= _ROWS:
        return np.array(list(product(edges, repeat=many))).reshape(len(edges) ** many, many)
    rows = {tuple(b if j == i else a for j in range(many)) for a in edges for b in edges for i in range(many)}
    return np.array(sorted(rows))
