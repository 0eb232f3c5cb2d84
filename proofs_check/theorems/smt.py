"""Proofs over all laws on a few tokens by z3: a statement is proved when its negation has no model."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

from proofs_check.theorems.theorem import Refuted, Undecided

__all__ = ["law", "maximum", "minimum", "positive_part", "prove", "solver"]


def solver() -> ModuleType:
    """The module z3; ModuleNotFoundError names the extra that brings it."""
    try:
        import z3
    except ModuleNotFoundError as reason:
        raise ModuleNotFoundError("z3 is not installed; get it with: pip install 'ot-spec[smt]'", name="z3") from reason
    return z3


def law(name: str, vocab: int) -> tuple[list[Any], list[Any]]:
    """Real variables name0, name1, .. and what makes them a law: each >= 0, sum 1."""
    masses = list(solver().Reals([f"{name}{token}" for token in range(vocab)]))
    return masses, [*(mass >= 0 for mass in masses), sum(masses) == 1]


def minimum(left: Any, right: Any) -> Any:
    return solver().If(left <= right, left, right)


def maximum(left: Any, right: Any) -> Any:
    return solver().If(left <= right, right, left)


def positive_part(value: Any) -> Any:
    return solver().If(value > 0, value, 0)


def prove(negation: Any, assumptions: Iterable[Any] = (), timeout: float = 60.0) -> None:
    """Prove that no model of the assumptions satisfies the negation of a statement.

    negation: a z3 formula, or several of which one would break the statement. timeout: seconds for each formula.
    Raises Refuted with the model, a counter-example, where there is one; Undecided where z3 gives up.

    >>> t, is_law = law("t", 2)
    >>> prove(t[0] * t[1] > 1 / 4, is_law)
    >>> prove(t[0] * t[1] >= 1 / 4, is_law)
    Traceback (most recent call last):
    ...
    proofs_check.theorems.theorem.Refuted: t0 = 1/2, t1 = 1/2
    """
    z3 = solver()
    assumptions = list(assumptions)
    for formula in negation if isinstance(negation, list | tuple) else [negation]:
        query = z3.Solver()
        query.set("timeout", round(1000 * timeout))
        query.add(*assumptions, formula)
        answer = query.check()
        if answer == z3.sat:
            model = query.model()
            named = sorted((entry.name(), model[entry]) for entry in model.decls() if entry.arity() == 0)
            raise Refuted(", ".join(f"{name} = {value}" for name, value in named))
        if answer != z3.unsat:
            raise Undecided(f"z3 gave up after at most {timeout:g} s: {query.reason_unknown()}")
