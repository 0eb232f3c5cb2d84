"""What a statement of the ledger is, and what a machine check may say about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

__all__ = ["NOTATION", "Refuted", "Status", "Theorem", "Undecided", "Verdict", "counter_example", "worse"]

NOTATION = (
    "t target law, d draft law, k candidates, V tokens, X the random candidates, Y the output, α = P(Y ∈ X), "
    "α* its largest value, t(H) = Σ_{y ∈ H} t(y), Q(H) = P(X ⊆ H), x₊ = max(x, 0); tokens are numbered from 0. Proved: "
    "by the proof that the check's docstring tells in words, whose formulas sympy rewrites or z3 decides, for the "
    "parameters of the scope; certified: exactly, on the instances that the scope counts; tested: in floats or by "
    "sampling"
)
"""The letters that statements do not explain, and what a status says."""

Status = Literal["proved", "certified", "tested", "refuted"]
_ORDER: tuple[Status, ...] = ("proved", "certified", "tested", "refuted")


class Refuted(AssertionError):
    """A statement that should hold does not; the message is the counter-example."""


class Undecided(RuntimeError):
    """A prover gave up: neither a proof nor a counter-example."""


@dataclass(frozen=True)
class Verdict:
    """What a machine check established.

    status: "proved" (symbolically for all parameters, or by SMT for those the scope names: the words of the proof are
    the docstring of the check, and people read them; the machine shows its formulas), "certified" (exactly, on as many
    generated instances as the scope names), "tested" (in floats or by sampling), "refuted".
    scope: for which parameters, in words, with the quoted theorems a proof uses.
    example: the counter-example of a refuted claim, to be checked by hand.
    """

    status: Status
    scope: str
    example: str | None = None


def counter_example(breaks: bool, scope: str, example: str) -> Verdict:
    """The verdict of a claim that one example refutes: a lesser one, which fails the ledger, if it does not."""
    return Verdict("refuted", scope, example) if breaks else Verdict("tested", f"not broken by its example: {example}")


@dataclass(frozen=True)
class Theorem:
    """An entry of the ledger.

    id: the paper's module, a dot, and a number within it, from 1. statement: in unicode text; the ledger's letters
    are t (target), d (draft), k (candidates), V (tokens), X (the random candidates), α (acceptance), α* (the
    optimum), t(H) = Σ_{y ∈ H} t(y), Q(H) = P(X ⊆ H). source: the paper, or who believes it. promised: the status
    that a run must reach. check: check(full) -> Verdict; the fast form differs in numbers and sizes only, and in
    status where the theorem is `slow`: there instances may stand for a proof. falsifier: a Hypothesis test that tries
    to break the statement by a route of its own.
    """

    id: str
    statement: str
    source: str
    promised: Status
    check: Callable[[bool], Verdict]
    falsifier: Callable[[], None]
    slow: bool = False

    def allowed(self, full: bool) -> Status:
        """The worst status that a run may come out with, among those that hold."""
        return "certified" if self.slow and not full and self.promised == "proved" else self.promised


def worse(status: Status, promised: Status) -> bool:
    """Whether a run that came out as `status` breaks what was `promised`.

    >>> worse("certified", "proved"), worse("proved", "certified"), worse("proved", "refuted")
    (True, False, True)
    """
    if "refuted" in (status, promised):
        return status != promised
    return _ORDER.index(status) > _ORDER.index(promised)
