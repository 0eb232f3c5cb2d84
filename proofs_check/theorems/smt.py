"""Proofs over all laws on a few tokens by z3: a statement is proved when its negation has no model."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

from proofs_check.theorems.theorem import Refuted, Undecided

__all__ = ["law", "maximum", "minimum", "positive_part", "prove", "solver"]


def solver() -> ModuleType:
    """The module z3; ModuleNotFoundError names the extra that brings it, also where z3 is there but does not load."""
    get = "get it with: pip install 'ot-spec[smt]'"
    try:
        import z3
    except ModuleNotFoundError as reason:
        raise ModuleNotFoundError(f"z3 is not installed; {get}", name="z3") from reason
    except ImportError as reason:
        raise ModuleNotFoundError(f"z3 does not load ({reason}); {get}", name="z3") from reason
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
    Raises Refuted with the model, a counter-example, where there is one; Undecided where z3 gives up, and where it
    finds no model of the assumptions alone, from which anything would follow.

    >>> t, is_law = law("t", 2)
    >>> prove(t[0] * t[1] > 1 / 4, is_law)
    >>> prove(t[0] * t[1] >= 1 / 4, is_law)
    Traceback (most recent call last):
    ...
    proofs_check.theorems.theorem.Refuted: t0 = 1/2, t1 = 1/2
    """
    z3 = solver()
    assumptions = list(assumptions)
    formulas = negation if isinstance(negation, list | tuple) else [negation]
    if not formulas:
        raise ValueError("there is nothing to prove")

    def asked(*more: Any) -> tuple[Any, Any]:
        query = z3.Solver()
        query.set("timeout", round(1000 * timeout))
        query.add(*assumptions, *more)
        return query, query.check()

    if asked()[1] != z3.sat:
        raise Undecided("z3 knows no model of the assumptions: nothing would be shown")
    for formula in formulas:
        query, answer = asked(formula)
        if answer == z3.sat:
            model = query.model()
            named = sorted((entry.name(), model[entry]) for entry in model.decls() if entry.arity() == 0)
            raise Refuted(", ".join(f"{name} = {value}" for name, value in named))
        if answer != z3.unsat:
            raise Undecided(f"z3 gave up after at most {timeout:g} s: {query.reason_unknown()}")
