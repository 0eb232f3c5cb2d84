"""Steps of a symbolic proof: each function returns None where sympy shows its step, and raises Refuted where not.

A step is shown by rewriting only, never by putting in numbers; what sympy cannot rewrite counts as not shown.
"""

from __future__ import annotations

from typing import Any

import sympy as sp

from proofs_check.theorems.theorem import Refuted

__all__ = [
    "either_order",
    "equal",
    "least",
    "nonnegative",
    "nonpositive",
    "positive",
    "powers_are_convex",
    "powers_are_monotone",
    "powers_lie_above_their_tangent",
    "sums_to",
]


def either_order(left: str = "a", right: str = "b") -> list[tuple[Any, Any]]:
    """Two nonnegative numbers in both orders: the pairs (x, x + h) and (x + h, x) with x, h >= 0 cover all.

    sympy sees through minima, maxima and absolute values of either, so that a statement about two masses is checked
    case by case.

    >>> [sp.Min(a, b) + abs(a - b) - sp.Max(a, b) for a, b in either_order()]
    [0, 0]
    """
    low, more = sp.Symbol(f"{left}_or_{right}", nonnegative=True), sp.Symbol("h", nonnegative=True)
    return [(low, low + more), (low + more, low)]


def least(left: Any, right: Any) -> Any:
    """The smaller of two expressions of which sympy sees that one is never above the other; Refuted otherwise.

    >>> x, y = sp.symbols("x y", positive=True)
    >>> least((x + y) / (1 + y), (x + 2 * y) / (1 + y))
    (x + y)/(y + 1)
    """
    for low, high in ((left, right), (right, left)):
        if sp.factor(sp.sympify(high) - low).is_nonnegative:
            return low
    raise Refuted(f"{left} and {right} are not seen to be in one order")


def equal(left: Any, right: Any, step: str = "") -> None:
    """Both expressions are the same for all values of their symbols.

    >>> x = sp.Symbol("x")
    >>> equal((x + 1)**2, x**2 + 2*x + 1)
    >>> equal((x + 1)**2, x**2 + 1, "a binomial")
    Traceback (most recent call last):
    ...
    proofs_check.theorems.theorem.Refuted: a binomial: (x + 1)**2 differs from x**2 + 1 by 2*x
    """
    rest = sp.sympify(left) - sp.sympify(right)
    for rewrite in (sp.expand, sp.simplify, lambda e: sp.simplify(sp.powsimp(sp.expand(e))), sp.factor):
        rest = rewrite(rest)
        if rest == 0:
            return
    raise Refuted(f"{_label(step)}{left} differs from {right} by {rest}")


def nonnegative(expression: Any, step: str = "") -> None:
    """The expression is >= 0 wherever its symbols obey their assumptions.

    Shown if sympy concludes it from the assumptions, as it stands, factored, or expanded (a sum of products of
    nonnegative factors and even powers). Put x = y + a, a >= 0, for x >= y; write the squares by hand.

    >>> nonnegative(sp.Symbol("x", nonnegative=True) * (1 + sp.Symbol("y", real=True)**2))
    >>> nonnegative(sp.Symbol("x", real=True), "x")
    Traceback (most recent call last):
    ...
    proofs_check.theorems.theorem.Refuted: x: x is not seen to be nonnegative
    """
    expression = sp.sympify(expression)
    for rewrite in (lambda e: e, sp.factor, sp.expand, sp.simplify, lambda e: sp.factor(sp.simplify(e))):
        if rewrite(expression).is_nonnegative:
            return
    raise Refuted(f"{_label(step)}{expression} is not seen to be nonnegative")


def nonpositive(expression: Any, step: str = "") -> None:
    """The expression is <= 0 wherever its symbols obey their assumptions."""
    nonnegative(-sp.sympify(expression), step)


def positive(expression: Any, step: str = "") -> None:
    """The expression is > 0 wherever its symbols obey their assumptions."""
    expression = sp.sympify(expression)
    for rewrite in (lambda e: e, sp.factor, sp.expand, sp.simplify, lambda e: sp.factor(sp.simplify(e))):
        if rewrite(expression).is_positive:
            return
    raise Refuted(f"{_label(step)}{expression} is not seen to be positive")


def sums_to(term: Any, closed: Any, index: sp.Symbol, start: int = 0, step: str = "") -> None:
    """Σ_{start <= i < n} term(i) = closed(n) for every integer n >= start, by induction on n.

    term, closed: expressions in `index`, which stands for i and for n.

    >>> i, x = sp.Symbol("i", integer=True, nonnegative=True), sp.Symbol("x", positive=True)
    >>> sums_to(i, i * (i - 1) / 2, i)
    """
    equal(sp.sympify(closed).subs(index, start), 0, f"{step}: the empty sum")
    equal(sp.sympify(closed).subs(index, index + 1) - closed, term, f"{step}: one more term")


def powers_are_monotone() -> None:
    """a >= b >= 0 gives a^n >= b^n for every integer n >= 0, by induction on n:
    a^(n+1) - b^(n+1) = a (a^n - b^n) + b^n (a - b)."""
    b, more, known = sp.symbols("b more known", nonnegative=True)  # a = b + more, known = a^n - b^n
    n = sp.Symbol("n", integer=True, nonnegative=True)
    a = sp.Symbol("a", nonnegative=True)
    equal(a**0 - b**0, 0, "n = 0")
    equal(a ** (n + 1) - b ** (n + 1), a * (a**n - b**n) + b**n * (a - b), "one more factor")
    nonnegative((b + more) * known + b**n * more, "one more factor")


def powers_lie_above_their_tangent() -> None:
    """(1 - b)^k >= 1 - k b for 0 <= b <= 1 and every integer k >= 0 (Bernoulli), by induction on k: the difference
    grows by b (1 - (1 - b)^k), and (1 - b)^k <= 1^k."""
    powers_are_monotone()
    b, missing = sp.symbols("b missing", nonnegative=True)  # missing = 1 - (1 - b)^k
    k = sp.Symbol("k", integer=True, nonnegative=True)

    def surplus(k: Any) -> Any:
        return (1 - b) ** k - 1 + k * b

    equal(surplus(sp.Integer(0)), 0, "k = 0")
    equal(surplus(k + 1) - surplus(k), b * (1 - (1 - b) ** k), "one more factor")
    nonnegative(b * missing, "one more factor")


def powers_are_convex() -> None:
    """(w x + v y)^n <= w x^n + v y^n for x, y >= 0, w + v = 1, w, v >= 0, by induction on n: with m = w x + v y
    w x^(n+1) + v y^(n+1) - m^(n+1) = m (w x^n + v y^n - m^n) + w v (x - y)(x^n - y^n)."""
    powers_are_monotone()  # so that (x - y)(x^n - y^n) >= 0
    w, x, y, power = sp.symbols("w x y power", nonnegative=True)  # power = m^n
    n = sp.Symbol("n", integer=True, nonnegative=True)
    v = 1 - w
    m = w * x + v * y
    equal(w + v, 1, "n = 0")
    equal(
        w * x ** (n + 1) + v * y ** (n + 1) - m * power,
        m * (w * x**n + v * y**n - power) + w * v * (x - y) * (x**n - y**n),
        "one more factor",
    )
    mean, known, weights, product = sp.symbols("mean known weights product", nonnegative=True)
    nonnegative(mean * known + weights * product, "one more factor")


def _label(step: str) -> str:
    return f"{step}: " if step else ""
