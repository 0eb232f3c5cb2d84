"""The number of rejections (Yin et al. 2024).

Token by token: the next token is drafted, x ~ d(. | text so far), kept with probability b(x) = min(1, t(x)/d(x)), and
otherwise, a rejection, replaced by a draw from (t - d)+ divided by its sum. TV(t, d) = Σ (d - t)+.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from ot_spec.tree import Model, commit_law, drafted_sequences
from proofs_check import strategies as laws
from proofs_check.theorems.algebra import either_order, equal, nonnegative
from proofs_check.theorems.block import tables
from proofs_check.theorems.instances import found
from proofs_check.theorems.theorem import Theorem, Verdict, counter_example
from solvers.sequence import Block, SpecTr

__all__ = ["THEOREMS"]

YIN = "Yin et al. 2024, arXiv 2411.00841"
few = settings(max_examples=20, deadline=None, derandomize=True, database=None)


def distance(target: Any, draft: Any) -> Any:
    """TV(t, d) = Σ (d - t)+."""
    return np.maximum(draft - target, 0).sum()


# --- token by token -------------------------------------------------------------------------------------------------


def one_token(residual: Callable[[Any, Any], Any] = lambda t, d: sp.Max(t - d, 0)) -> None:
    """Given the text so far: the token has law t, and it is a rejection with probability TV(t, d)."""
    for t, d in either_order("t", "d"):
        equal(d - sp.Min(t, d), sp.Max(d - t, 0), "refused, summed over the tokens: Σ (d - t)+")
        equal(sp.Min(t, d) + residual(t, d), t, "kept or replaced")
        equal(sp.Max(t - d, 0) - sp.Max(d - t, 0), t - d, "summed: Σ (t - d)+ = Σ (d - t)+ = P(rejection)")


def _expected(full: bool) -> Verdict:
    """The number of rejections is the sum over positions of their indicators, and expectation is linear. Position n is
    tested once, with the text before it. Given the text, the next token has law t, so by induction the text before n
    has law T; given it, a rejection has probability TV(t_n, d_n). It does not matter how many tokens are drafted
    ahead: those behind a rejection are drafted again."""
    one_token()
    return Verdict("proved", "symbolically, all models, all numbers of tokens, by induction on the position")


def rejections(target: Model, draft: Model, text: tuple[int, ...], left: int) -> Fraction:
    """The mean number of rejections among the next `left` tokens after `text`, outcome by outcome."""
    if not left:
        return Fraction(0)
    t, d = target(text), draft(text)
    over, mean = np.maximum(t - d, 0), Fraction(0)
    for x in range(len(d)):
        if d[x]:
            kept = min(Fraction(1), t[x] / d[x])
            mean += d[x] * kept * rejections(target, draft, (*text, x), left - 1)
            for y in np.flatnonzero(over) if kept < 1 else ():
                weight = d[x] * (1 - kept) * over[y] / over.sum()
                mean += weight * (1 + rejections(target, draft, (*text, int(y)), left - 1))
    return mean


@few
@given(tables(3))
def _expected_falsifier(pair: tuple[Model, Model]) -> None:
    """Outcome by outcome for three tokens."""
    target, draft = pair
    mean = Fraction(0)
    for length in range(3):
        for text in product(range(2), repeat=length):
            weight = math.prod([target(text[:n])[text[n]] for n in range(length)], start=Fraction(1))
            mean += weight * distance(target(text), draft(text))
    assert rejections(target, draft, (), 3) == mean


def agreement_is_bounded() -> None:
    """P(X = y, Y = y) is a part of d(y) and of t(y)."""
    both, only_x, only_y = sp.symbols("both only_x only_y", nonnegative=True)
    for whole in (both + only_x, both + only_y):
        nonnegative(whole - both, "a part of either marginal")
    for t, d in either_order("t", "d"):
        equal(d - sp.Min(t, d), sp.Max(d - t, 0), "1 - Σ min(t, d) = TV")


def _least(full: bool) -> Verdict:
    """Given the text so far, such a rule couples the draft x_n ~ d_n with the next token, which must have law t_n:
    else the text would not have law T. A token that differs from its draft is a rejection, and in every coupling P(X =
    Y) <= Σ min(t, d), so P(rejection) >= TV(t_n, d_n); the text before n has law T by exactness."""
    agreement_is_bounded()
    one_token()
    return Verdict("proved", "symbolically, all models; uses rejections.1")


@settings(few, max_examples=60)
@given(laws.pairs(smallest=2, largest=4), st.data())
def _least_falsifier(pair: Any, data: Any) -> None:
    """Couplings with given marginals, made by filling a table in an arbitrary order of its cells."""
    target, draft, _ = pair
    size = len(target)
    cells = data.draw(st.permutations(list(product(range(size), repeat=2))))
    rows, columns, agrees = list(draft), list(target), Fraction(0)
    for x, y in cells:
        mass = min(rows[x], columns[y])
        rows[x], columns[y] = rows[x] - mass, columns[y] - mass
        agrees += mass if x == y else 0
    assert not any(rows) and not any(columns)
    assert 1 - agrees >= distance(target, draft)


# --- lenient acceptance ---------------------------------------------------------------------------------------------


def lenient_token(loss: Callable[[Any, Any], Any] = lambda kept, t: sp.Max(kept - t, 0)) -> None:
    """Refused mass d - d b plus the kept mass above t, (d b - t)+, make (d - t)+, token by token.

    Where d <= t, b = 1; where d > t, d b lies anywhere between t and d.
    """
    t, more, beyond = sp.symbols("t more beyond", nonnegative=True)
    d = t  # d <= t: t = d + more and b = 1
    equal((d - d) + loss(d, d + more), sp.Max(d - (d + more), 0), "where d <= t")
    kept, d = t + more, t + more + beyond  # t <= d b <= d
    equal((d - kept) + loss(kept, t), sp.Max(d - t, 0), "where d > t")


def least_loss() -> None:
    """The least TV over all replacement laws is E = Σ (d b - t)+. R = Σ (d - d b) is refused, G = Σ (t - d b)+
    missing."""
    further, share = sp.symbols("further share", nonnegative=True)  # what a replacement adds; R/G = 1/(1 + share)
    for kept, t in either_order("kept", "t"):
        equal(sp.Max(t - kept, 0) - sp.Max(kept - t, 0), t - kept, "summed: G - E = 1 - Σ d b = R")
        # Below: the output's mass kept + further exceeds t by at least kept - t, and by at least 0.
        nonnegative((kept + further - t) - (kept - t), "not below E")
        # At: the replacement R (t - d b)+/G does not lift the output above t where it adds.
        missing = sp.Max(t - kept, 0)
        nonnegative(missing - missing / (1 + share), "no new excess")


def _lenient(full: bool) -> Verdict:
    """Every output law has at least the kept mass d b at each token, so TV(output, t) = Σ (output - t)+ >= Σ (d b -
    t)+ = E. The replacement law (t - d b)+/G attains it: it adds R (t - d b)+/G <= (t - d b)+, nothing where d b > t.
    And refused and lost mass are R + E = Σ [(d - d b) + (d b - t)+] = Σ (d - t)+ = TV(t, d). With R = 0 nothing is
    replaced."""
    lenient_token()
    least_loss()
    return Verdict("proved", "symbolically, all laws, all V, all b with min(1, t/d) ≤ b ≤ 1")


@settings(few, max_examples=60)
@given(laws.pairs(smallest=2, largest=5), st.data())
def _lenient_falsifier(pair: Any, data: Any) -> None:
    """The best replacement against drawn ones, for drawn acceptances."""
    target, draft, _ = pair
    sizes = st.lists(st.fractions(0, 1, max_denominator=6), min_size=len(draft), max_size=len(draft))
    least = np.array([min(Fraction(1), t / d) if d else Fraction(1) for t, d in zip(target, draft, strict=True)])
    kept = draft * (least + (1 - least) * np.array(data.draw(sizes)))
    refused, missing = 1 - kept.sum(), np.maximum(target - kept, 0)
    best = missing / missing.sum() if missing.any() else target
    value = refused + distance(target, kept + refused * best)
    assert value == distance(target, draft)
    other = data.draw(laws.laws(len(draft), len(draft)))
    assert refused + distance(target, kept + refused * other) >= value


# --- refuted --------------------------------------------------------------------------------------------------------

FEWER = ([Fraction(1, 3), Fraction(2, 3)], [Fraction(2, 3), Fraction(1, 3)])


def rejections_of_a_block(target: Any, draft: Any) -> Fraction:
    """Mean rejections among two tokens, verified as one block; the same laws after every prefix. A path that ends at 0
    or 1 has one rejection there, and after it a single token is left, which is rejected with probability TV."""
    one, zero = Fraction(1), Fraction(0)
    far = sum((max(d - t, zero) for t, d in zip(target, draft, strict=True)), start=zero)
    mean = zero
    for x, y in product(range(len(draft)), repeat=2):
        if draft[x] and draft[y]:
            first = min(one, target[x] / draft[x])
            excess = sum((max(first * t - d, zero) for t, d in zip(target, draft, strict=True)), start=zero)
            here = excess / (excess + 1 - first) if excess + 1 - first else one
            both = min(one, first * target[y] / draft[y])
            at_one, at_none = (1 - both) * here, (1 - both) * (1 - here)
            mean += draft[x] * draft[y] * (at_one + at_none * (1 + far))
    return mean


def _fewer(full: bool) -> Verdict:
    """Both counts for two tokens on the counter-example; block verification is exact (block.1)."""
    block = rejections_of_a_block(*FEWER)
    tokens = 2 * sum(max(d - t, Fraction(0)) for t, d in zip(*FEWER, strict=True))
    breaks = block < tokens
    example = (
        f"t = (1/3, 2/3), d = (2/3, 1/3) after every prefix, two tokens. Token by token: TV = 1/3 at each, {tokens} "
        "in all. As one block: p_1 = 1/2 where 0 is drafted first and 1 where 1 is, p_2 = 1/4, 1, 1/2, 1 on the "
        "paths 00, 01, 10, 11, so P(both kept) = 4/9 · 1/4 + 2/9 + 2/9 · 1/2 + 1/9 = 5/9 and P(first kept) = 2/3: "
        "with probability 1/9 the second token is the one rejection, with probability 1/3 the first is, and then the "
        f"second with probability 1/3 more: 1/9 + 1/3 · 4/3 = {block}"
    )
    return counter_example(breaks, "one pair of laws, V = 2, two tokens", example)


def _fewer_falsifier() -> None:
    """Another law pair, by the laws of what the library's rules commit."""

    def mean(rule: Any, target: Any, draft: Any) -> Fraction:
        far, total = distance(target, draft), Fraction(0)
        for tree, weight in drafted_sequences(lambda _: draft, 1, 2):
            law = commit_law(rule, tree, np.stack([target] * 3), np.stack([draft] * 3)).sum(axis=1)
            total += weight * (law[0] * (1 + far) + law[1])
        return total

    def fewer(pair: Any) -> bool:
        return rejections_of_a_block(pair.target, pair.draft) < 2 * distance(pair.target, pair.draft)

    pair = found(laws.pairs(smallest=2, largest=3), fewer)
    for target, draft in ((pair.target, pair.draft), [np.array(law) for law in FEWER]):
        tokens = mean(SpecTr("maximal_coupling"), target, draft)
        assert tokens == 2 * distance(target, draft)
        assert mean(Block(), target, draft) == rejections_of_a_block(target, draft) < tokens


THEOREMS = (
    Theorem(
        "rejections.1",
        "Token-by-token speculative sampling of N tokens, without bonus tokens: E[rejections] = Σ_{n ≤ N} E[TV(t_n, "
        "d_n)], t_n and d_n the laws after the first n − 1 tokens of a text of law T.",
        YIN,
        "proved",
        _expected,
        _expected_falsifier,
    ),
    Theorem(
        "rejections.2",
        "No exact rule that decides token n from the text before it and one draft token x_n ~ d_n alone rejects "
        "less on average, a rejection being a token that differs from its draft.",
        YIN,
        "proved",
        _least,
        _least_falsifier,
    ),
    Theorem(
        "rejections.3",
        "Lenient acceptance: if x ~ d is kept with probability b(x), min(1, t/d) ≤ b ≤ 1, then P(rejection) + min "
        "TV(output, t) = TV(t, d), the minimum over all laws of the replacement; (t − d b)₊ divided by its sum "
        "attains it.",
        YIN,
        "proved",
        _lenient,
        _lenient_falsifier,
    ),
    Theorem(
        "rejections.4",
        "Σ_n E[TV(t_n, d_n)] is the least expected number of rejections of any exact algorithm with one draft model.",
        "a broad reading of Yin et al. 2024, arXiv 2411.00841, whose theorem is about rules as in rejections.2",
        "refuted",
        _fewer,
        _fewer_falsifier,
    ),
)
