"""Candidates taken as they are: membership, point masses and fixed trees (SpecInfer, EAGLE, OPT-Tree, Sequoia).

Membership: draw Y ~ t; it is accepted iff Y ∈ X. Point mass: keep x_1 with probability t(x_1), otherwise zero it in t,
renormalise, and go on with x_2; after the last candidate draw from what is left. On a tree: draw from the target at
each node and go on while the token is a child."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import cache
from itertools import combinations, product
from typing import Any

import numpy as np
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from ot_spec import IID, DraftTree, Fixed, TopThenSample, WithoutReplacement, expected_accepted, output_law
from ot_spec.draft_law import DraftLaw
from ot_spec.problem import MembershipTransport
from ot_spec.tree import Model
from proofs_check import strategies as laws
from proofs_check.theorems.algebra import equal, nonnegative
from proofs_check.theorems.block import tables
from proofs_check.theorems.instances import found
from proofs_check.theorems.theorem import Refuted, Theorem, Verdict, counter_example
from solvers import get_selector, solve
from solvers.sequence import PointMass

__all__ = ["THEOREMS"]

SEQUOIA = "Chen et al. 2024 (Sequoia), arXiv 2402.12374"
OPT_TREE = "Wang et al. 2024 (OPT-Tree), arXiv 2406.17276"
quick = settings(max_examples=40, deadline=None, derandomize=True, database=None)


# --- membership -----------------------------------------------------------------------------------------------------


def product_law(share: Callable[[Any, Any], Any] = lambda t, covered: t * covered) -> None:
    """Y and X are independent: of Y = y the part P(y ∈ X) t(y) is accepted, the rest is not, together t(y)."""
    t, covered = sp.symbols("t covered", nonnegative=True)  # P(y ∈ X)
    equal(share(t, covered) + share(t, 1 - covered), t, "accepted or not")


def _membership(full: bool) -> Verdict:
    """Y is drawn from t, whatever X is; P(Y = y, y ∈ X) = t(y) P(y ∈ X), as Y does not depend on X. In detail
    Σ_X P(X) t(y) 1{y ∈ X}, and summed with the rest t(y)."""
    product_law()
    return Verdict("proved", "symbolically, all laws and all draft laws, all V and k")


@quick
@given(laws.pairs(smallest=2, largest=4, most_k=2), st.integers(0, 3))
def _membership_falsifier(pair: Any, which: int) -> None:
    target, draft, k = pair
    k = min(k, int((draft > 0).sum()))
    rule = get_selector("membership")
    law: DraftLaw = (IID(k), WithoutReplacement(k), TopThenSample(k), Fixed(list(range(k))))[which]
    assert (output_law(rule, target, draft, law, by="select") == target).all()
    tuples, probs = law.tuples(draft)
    covered = sum(
        mass * target[np.unique(tokens[tokens >= 0])].sum() for tokens, mass in zip(tuples, probs, strict=True)
    )
    assert rule.acceptance(target, draft, law) == covered


def accepted_inside(bound: Callable[[Any, Any], Any] = lambda inside, outside: inside) -> None:
    """P(Y ∈ C) of a law t is t(C) in every coupling, so that P(accepted) <= t(C)."""
    inside, outside = sp.symbols("inside outside", nonnegative=True)  # t(C), t(elsewhere)
    equal(inside + outside - outside, bound(inside, outside), "P(Y ∈ C)")


def _fixed(full: bool) -> Verdict:
    """X = C is known, so that in every coupling P(Y ∈ X) = P(Y ∈ C) = t(C); membership accepts Σ_y t(y) 1{y ∈ C}."""
    accepted_inside()
    product_law()
    return Verdict("proved", "symbolically, all t and C, all V")


@quick
@given(laws.pairs(smallest=2, largest=5), st.data())
def _fixed_falsifier(pair: Any, data: Any) -> None:
    target, draft, _ = pair
    chosen = data.draw(st.lists(st.integers(0, len(target) - 1), min_size=1, max_size=3, unique=True))
    plan = solve(MembershipTransport(target, draft, Fixed(chosen)), method="rational")
    assert (
        plan.acceptance == get_selector("membership").acceptance(target, draft, Fixed(chosen)) == target[chosen].sum()
    )


# --- point masses ---------------------------------------------------------------------------------------------------


def zeroed_and_renormalised(after: Callable[[Any, Any], Any] = lambda t, here: t / (1 - here)) -> None:
    """Refuse x with probability 1 - t(x) and go on with t(y)/(1 - t(x)): y keeps its mass t(y)."""
    here, t = sp.Symbol("here", nonnegative=True), sp.Symbol("t", nonnegative=True)
    equal((1 - here) * after(t, here), t, "a token other than x")
    rest = sp.Symbol("rest", positive=True)  # 1 - t(x)
    equal(after(rest, 1 - rest), 1, "what is left is a law")


def _same_law(full: bool) -> Verdict:
    """Given the candidates, the output law is t: by induction on their number, for every law in the place of t. No
    candidate: a draw from it. x_1 is the output with t(x_1); otherwise, with 1 - t(x_1), the other candidates turn the
    law t/(1 - t(x_1)) outside x_1 into itself, so y ≠ x_1 has (1 - t(x_1)) t(y)/(1 - t(x_1)) = t(y). So for given
    candidates both rules have output law t, and both accept t(S), S their set. A candidate that returns has mass 0 by
    then: it is refused, and zeroing it changes nothing. If t(x_1) = 1 nothing is refused."""
    zeroed_and_renormalised()
    return Verdict("proved", "symbolically, all t and candidates, all V and k, by induction on k")


def one_by_one(target: Sequence[Fraction], tokens: Sequence[int]) -> list[Fraction]:
    """The output law of the point-mass rule given its candidates, by its definition."""
    left, law, reach = list(target), [Fraction(0)] * len(target), Fraction(1)
    for x in tokens:
        law[x] += reach * left[x]
        reach *= 1 - left[x]
        left[x] = Fraction(0)
        left = [mass / sum(left) for mass in left] if any(left) else left
    return [mass + reach * rest for mass, rest in zip(law, left, strict=True)]


@quick
@given(laws.laws(2, 5), st.data())
def _same_law_falsifier(target: Any, data: Any) -> None:
    tokens = data.draw(st.lists(st.integers(0, len(target) - 1), min_size=1, max_size=5))
    assert one_by_one(target, tokens) == list(get_selector("membership").conditional(target, target, np.array(tokens)))


# --- fixed trees ----------------------------------------------------------------------------------------------------


def paths_multiply() -> None:
    """P(the walk reaches a child) = P(it reaches the node) t(child | node)."""
    reach, step, others = sp.symbols("reach step others", nonnegative=True)  # step + others = 1
    equal(reach * (step + others) - reach * others, reach * step, "the child, of all that follows the node")


def _nodes(full: bool) -> Verdict:
    """The walk draws from the target at each node, so it passes a node with the target's probability of its path, by
    induction on the depth. The number of accepted tokens is the number of nodes passed, and expectation is linear; one
    more token is always committed, which is the root's 1. For any exact rule an accepted path is the beginning of the
    text, which has law T: P(node accepted) <= T(path of the node), so no rule has a larger sum."""
    paths_multiply()
    text, lost = sp.symbols("text lost", nonnegative=True)  # T(path) = P(accepted) + lost
    nonnegative((text + lost) - text, "P(node accepted) <= T(path)")
    return Verdict("proved", "symbolically, all models, all trees fixed beforehand")


@st.composite
def fixed_trees(draw: st.DrawFn, vocab: int, most: int = 6, depth: int = 3) -> DraftTree:
    """Trees of up to `most` nodes without repeats, no deeper than `depth`."""
    nodes: list[tuple[int, ...]] = [()]
    for _ in range(draw(st.integers(0, most))):
        open_ends = sorted({(*node, y) for node in nodes if len(node) < depth for y in range(vocab)} - set(nodes))
        if open_ends:
            nodes.append(draw(st.sampled_from(open_ends)))
    return as_tree(nodes)


def as_tree(nodes: Sequence[tuple[int, ...]]) -> DraftTree:
    """The tree of these prefixes, parents first; the root () may be left out."""
    drafted = [node for node in nodes if node]
    return DraftTree(
        [node[-1] for node in drafted], [drafted.index(node[:-1]) if node[:-1] else -1 for node in drafted]
    )


def weight(target: Model, node: Sequence[int]) -> Fraction:
    """The target's probability of a path."""
    return math.prod((target(tuple(node[:n]))[node[n]] for n in range(len(node))), start=Fraction(1))


@quick
@given(tables(3), fixed_trees(2))
def _nodes_falsifier(pair: tuple[Model, Model], tree: DraftTree) -> None:
    """By the law of what the library's rule commits."""
    target, _ = pair
    rows = np.stack([target(tree.prefix(node)) for node in range(-1, len(tree))])
    accepted = expected_accepted(PointMass(), tree, rows, None)
    assert accepted == sum(weight(target, tree.prefix(node)) for node in range(len(tree)))


def paths_only_lose() -> None:
    """A longer path is no more probable: w step <= w."""
    w, step, others = sp.symbols("w step others", nonnegative=True)
    nonnegative(w * (step + others) - w * step, "a child of a node")


def _best_first(full: bool) -> Verdict:
    """Path probabilities do not grow along a path, so the n most probable nodes (of equal ones, parents first) are
    closed under taking parents: a tree. Its sum of path probabilities is the largest sum of n of them, over trees or
    any sets."""
    paths_only_lose()
    w, worse = sp.symbols("w worse", nonnegative=True)
    nonnegative((w + worse) - w, "exchanging a chosen node for one that is not chosen")
    return Verdict("proved", "symbolically, all models, all n")


@quick
@given(tables(3), st.integers(1, 5))
def _best_first_falsifier(pair: tuple[Model, Model], size: int) -> None:
    """Greedy growth against all trees of that many nodes."""
    target, _ = pair
    everything = [node for n in range(1, 4) for node in product(range(2), repeat=n)]
    grown: list[tuple[int, ...]] = [()]
    while len(grown) <= size:
        ends = sorted({(*node, y) for node in grown if len(node) < 3 for y in range(2)} - set(grown))
        grown.append(max(ends, key=lambda node: weight(target, node)))
    best = max(
        sum(weight(target, node) for node in chosen)
        for chosen in combinations(everything, size)
        if all(len(node) == 1 or node[:-1] in chosen for node in chosen)
    )
    assert sum(weight(target, node) for node in grown[1:]) == best


# --- Sequoia's recursion ----------------------------------------------------------------------------------------------

Shape = tuple[Any, ...]
"""An ordered tree as the tuple of its root's subtrees."""


def shapes(size: int, levels: int) -> Iterator[Shape]:
    """All ordered trees of `size` nodes and at most `levels` levels, the root's included."""
    yield from (forest for forest in forests(size - 1, levels - 1)) if size and levels else ()


@cache
def forests(size: int, levels: int) -> tuple[Shape, ...]:
    """All ordered forests of `size` nodes and at most `levels` levels."""
    if not size:
        return ((),)
    made = []
    for first in range(1, size + 1):
        for tree in shapes(first, levels):
            made += [(tree, *rest) for rest in forests(size - first, levels)]
    return tuple(made)


def value(shape: Shape, shares: Sequence[Fraction]) -> Fraction:
    """Mean number of tokens, the root counted: 1 and, for child number b, its share times its value."""
    return 1 + sum((p * value(child, shares) for p, child in zip(shares, shape, strict=False)), start=Fraction(0))


def recursion(
    size: int, levels: int, shares: Sequence[Fraction], skip: int = 0
) -> dict[tuple[int, int, int], Fraction]:
    """F[m, l, b] for m <= size, l <= levels: 1 at F[1, l, 0], and max_(y<m) F[y, l, b-1] + p_b max_b' F[m-y, l-1, b'].
    States that no tree has are left out.

    skip: by how much the share is misplaced (a mistake where it is not 0).
    """
    best: dict[tuple[int, int, int], Fraction] = {(1, level, 0): Fraction(1) for level in range(1, levels + 1)}
    for m in range(2, size + 1):
        for level in range(1, levels + 1):
            for b in range(1, m):
                options = []
                for y in range(1, m):
                    inner = [best[m - y, level - 1, c] for c in range(m - y) if (m - y, level - 1, c) in best]
                    if inner and (y, level, b - 1) in best:
                        options.append(best[y, level, b - 1] + shares[b - 1 + skip] * max(inner))
                if options:
                    best[m, level, b] = max(options)
    return best


def compare_with_all_trees(size: int, levels: int, shares: Sequence[Fraction], skip: int = 0) -> int:
    """How many states were compared; Refuted where the recursion is not the maximum over all trees."""
    best = recursion(size, levels, shares, skip)
    done = 0
    for m, level in product(range(1, size + 1), range(1, levels + 1)):
        values: dict[int, Fraction] = {}
        for shape in shapes(m, level):
            values[len(shape)] = max(value(shape, shares), values.get(len(shape), Fraction(0)))
        for b in range(m):
            if values.get(b) != best.get((m, level, b)):
                raise Refuted(f"F[{m}, {level}, {b}] = {best.get((m, level, b))}, the best tree has {values.get(b)}")
            done += b in values
    return done


def _sequoia(full: bool) -> Verdict:
    """Against the best of all ordered trees, for shares that fall, rise and do neither."""
    size, levels = (9, 6) if full else (7, 5)
    lists = [
        [Fraction(1, 2 + b) for b in range(size)],
        [Fraction(3**b, 4 ** (b + 1)) for b in range(size)],
        [Fraction(1 + b, 20) for b in range(size)],
        [Fraction(1 + (5 * b) % 4, 16) for b in range(size)],
    ]
    done = sum(compare_with_all_trees(size, levels, shares) for shares in lists)
    return Verdict(
        "certified", f"{done} states, {len(lists)} lists of acceptances, all ordered trees of up to {size} nodes"
    )


@settings(quick, max_examples=15)
@given(st.lists(st.fractions(0, Fraction(1, 5), max_denominator=30), min_size=6, max_size=6))
def _sequoia_falsifier(shares: list[Fraction]) -> None:
    compare_with_all_trees(6, 4, shares)


# --- refuted --------------------------------------------------------------------------------------------------------

JUDGED = ([Fraction(1, 2), Fraction(1, 2)], [Fraction(3, 4), Fraction(1, 4)])


def most_likely_as_drawn(target: Sequence[Fraction], draft: Sequence[Fraction]) -> list[Fraction]:
    """The output law if x is always the draft's most likely token and kept with probability min(1, t(x)/d(x)), else
    drawn from (t - d)+ divided by its sum."""
    x = max(range(len(draft)), key=lambda y: (draft[y], -y))
    kept = min(Fraction(1), target[x] / draft[x])
    over = [max(t - d, Fraction(0)) for t, d in zip(target, draft, strict=True)]
    rest = [mass / sum(over) for mass in over] if any(over) else list(target)
    return [kept * (y == x) + (1 - kept) * mass for y, mass in enumerate(rest)]


def _judged(full: bool) -> Verdict:
    """By the definition of the rule."""
    law = most_likely_as_drawn(*JUDGED)
    example = (
        "t = (1/2, 1/2), d = (3/4, 1/4), k = 1. The candidate is always 0 and is kept with (1/2)/(3/4) = 2/3, "
        f"otherwise the output is 1: P(Y = 0) = {law[0]} and not 1/2. Kept with t(0) = 1/2 (point mass), it would be "
        "right"
    )
    return counter_example(law != JUDGED[0], "one law pair, V = 2, k = 1", example)


def _judged_falsifier() -> None:
    """Another law pair, on which the point-mass rule is exact."""
    pair = found(laws.pairs(smallest=3, largest=4), lambda p: most_likely_as_drawn(p.target, p.draft) != list(p.target))
    x = int(np.argmax(pair.draft))
    assert one_by_one(pair.target, [x]) == list(pair.target)
    assert (output_law(get_selector("membership"), pair.target, pair.draft, Fixed([x])) == pair.target).all()


THEOREMS = (
    Theorem(
        "point_mass.1",
        "Membership (draw Y ~ t, whatever the candidates are) has output law t for every law of the candidates, and "
        "accepts Σ_y t(y) P(y ∈ X).",
        "Miao et al. 2023 (SpecInfer, naive sampling), arXiv 2305.09781",
        "proved",
        _membership,
        _membership_falsifier,
    ),
    Theorem(
        "point_mass.2",
        "For a set C of candidates that is fixed beforehand α* = t(C), and membership attains it.",
        "folklore",
        "proved",
        _fixed,
        _fixed_falsifier,
    ),
    Theorem(
        "point_mass.3",
        "Point-mass rule: keep x_1 with probability t(x_1), otherwise zero it in t, renormalise, and go on with x_2; "
        "after the last candidate draw from what is left. For any candidates, repeats among them or not, it and "
        "membership have the same law of the output given the candidates, which is t.",
        "rule: Li et al. 2024 (EAGLE-2), arXiv 2406.16858; this form: this project",
        "proved",
        _same_law,
        _same_law_falsifier,
    ),
    Theorem(
        "point_mass.4",
        "On a tree that is fixed beforehand, siblings all different, draw from the target at each node and go on while "
        "the token is a child: E[committed tokens] = Σ over the nodes, the root counted, of the target's path "
        "probability, and no exact rule has more.",
        OPT_TREE,
        "proved",
        _nodes,
        _nodes_falsifier,
    ),
    Theorem(
        "point_mass.5",
        "Of all trees of n nodes the one that holds the n nodes of largest path probability has the largest Σ of path "
        "probabilities; best-first growth finds it.",
        OPT_TREE,
        "proved",
        _best_first,
        _best_first_falsifier,
    ),
    Theorem(
        "point_mass.6",
        "If child number b of any node passes with probability p_b, given that the node is reached, F[m][l][b] is "
        "the largest mean number of tokens of a tree with m nodes, at most l levels and b children of the root: "
        "F[1][l][0] = 1 for l ≥ 1, F[m][l][b] = max_{1 ≤ y < m} F[y][l][b−1] + p_b max_{b'} F[m−y][l−1][b'], −∞ "
        "where there is no such tree.",
        SEQUOIA,
        "certified",
        _sequoia,
        _sequoia_falsifier,
    ),
    Theorem(
        "point_mass.7",
        "The draft's most likely tokens may be verified with min(1, t/d), as if they had been drawn from d: the "
        "output has law t.",
        "common belief (a slip often met in code)",
        "refuted",
        _judged,
        _judged_falsifier,
    ),
)
