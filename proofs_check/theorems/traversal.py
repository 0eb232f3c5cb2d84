"""Traversal verification of trees (Weng et al. 2025).

A visit of a node has a rate p and laws T and D; at the root p = 1, T = t and D = d. While children are left, the next
one, x, is visited with the rate min(1, p T(x)/D(x)) and its own t and d; if nothing below it passes, the node goes on
with T <- (p T - D)+/A, p <- A/(A + 1 - p), A = Σ (p T - D)+, and D without x, renormalised. A node without children
left passes with probability p, and then the committed path ends there with one more token from T."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from ot_spec import WithoutReplacement, output_law
from ot_spec.draft_law import DraftLaw
from ot_spec.tree import DraftTree, Model, drafted_sequences, drafted_trees, joint_law, sequence_law
from proofs_check import strategies as laws
from proofs_check.theorems.algebra import equal
from proofs_check.theorems.block import Stop, node_emits_the_rest, node_keeps_its_rate, stop_rate, tables
from proofs_check.theorems.instances import found, models
from proofs_check.theorems.theorem import Refuted, Theorem, Verdict, counter_example
from solvers import get_selector
from solvers.sequence import Block, SpecTr, Traversal

__all__ = ["THEOREMS"]

TRAVERSAL = "Weng et al. 2025 (traversal verification), arXiv 2505.12398"
few = settings(max_examples=10, deadline=None, derandomize=True, database=None)


def levels(draft: Model, *widths: int) -> list[tuple[DraftTree, Any]]:
    """All trees whose nodes at each depth have that many children, drawn without replacement."""
    drawn: list[DraftLaw] = [WithoutReplacement(width) for width in widths]
    return list(drafted_trees(draft, drawn))


def adaptive(draft: Model, last: int, lucky: int, by_id: bool = False) -> list[tuple[DraftTree, Any]]:
    """Trees whose shape looks at what was drawn: the root has a second child unless the first is the token `last`, and
    the first child has a child of its own iff the second is the token `lucky`.

    by_id: a mistake; siblings are visited by token id and not in the order drawn.
    """
    law, made = draft(()), []
    for x in np.flatnonzero(law).tolist():
        stops = x == last or law[x] == 1
        for y in [None] if stops else [y for y in np.flatnonzero(law).tolist() if y != x]:
            weight = law[x] if y is None else law[x] * law[y] / (1 - law[x])
            drawn = [x] if y is None else [x, y]
            siblings = sorted(drawn) if by_id else drawn
            parents = [-1] * len(siblings)
            if y != lucky:
                made.append((DraftTree(siblings, parents), weight))
                continue
            below = draft((siblings[0],))
            for z in np.flatnonzero(below).tolist():
                made.append((DraftTree([*siblings, z], [*parents, 0]), weight * below[z]))
    return made


# --- exactness ------------------------------------------------------------------------------------------------------


def _exact(full: bool) -> Verdict:
    """Claim, for a visit with (p, T, D) and any number of children still to come, each drawn from the D of its turn:
    something in the visit passes with probability p, and the text then goes on from the node with its next token from
    T and the target after that. Induction on the number of children to come, here and below. None: by definition.
    Otherwise the next child x ~ D passes with min(1, p T(x)/D(x)) by induction on what is below it, in all Σ min(D, p
    T) = p - A, and its text goes on from x with the target. If not, with probability 1 - p + A, the visit goes on with
    p', T' and D', to which the induction applies for every x; p' and T' do not depend on x. So something passes with
    (p - A) + (1 - p + A) p' = p, and the next token is y with min(D, p T)(y) + (1 - p + A) p' T'(y) = min(D, p T) + (p
    T - D)+ = p T(y). The root has p = 1."""
    node_keeps_its_rate()
    node_emits_the_rest()
    scope = "symbolically, all models, all trees, whose shape may depend on earlier draws, by induction on the children"
    return Verdict("proved", scope)


@few
@given(
    tables(2, vocab=3),
    st.sampled_from([(2,), (2, 1), (1, 2), (2, 2)]),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
)
def _exact_falsifier(pair: tuple[Model, Model], widths: tuple[int, ...], looks: tuple[int, int]) -> None:
    """Trees of fixed widths, and trees whose shape looks at what was drawn."""
    target, draft = pair
    for trees in (levels(draft, *widths), adaptive(draft, *looks)):
        law, _ = sequence_law(Traversal(), target, draft, trees, 3)
        assert (law == joint_law(target, 3)).all()


def merged(draft: Model, count: int, length: int) -> Iterator[tuple[DraftTree, Any]]:
    """Independent sequences as a prefix tree that forgets how often a node was drawn, children by first appearance."""
    for tree, weight in drafted_sequences(draft, count, length):
        yield DraftTree(tree.tokens, tree.parents), weight


def _merged(full: bool) -> Verdict:
    """Among independent draws from D after x was drawn, the first that is not x has law D without x, renormalised,
    whatever was drawn below x, how often, and whether it passed: sequences that agree up to here are independent after
    it. So each child in the order of first appearance is drawn from the D of its turn, and traversal.1 applies;
    whether there is another child depends on earlier draws only."""
    node_keeps_its_rate()
    node_emits_the_rest()
    again, other = sp.symbols("again other", positive=True)  # D(x), D(y)
    equal(other + again * (other / (1 - again)), other / (1 - again), "the first draw other than x, by its first draw")
    return Verdict("proved", "symbolically, all models, any number of sequences of any length; uses traversal.1")


@few
@given(tables(2), st.integers(2, 3))
def _merged_falsifier(pair: tuple[Model, Model], count: int) -> None:
    target, draft = pair
    law, _ = sequence_law(Traversal(), target, draft, merged(draft, count, 2), 3)
    assert (law == joint_law(target, 3)).all()


# --- what it equals -------------------------------------------------------------------------------------------------


def compare_on_chains(pairs: Iterable[tuple[Model, Model]], length: int) -> int:
    """How many paths were compared; Refuted where the two rules differ."""
    done = 0
    for target, draft in pairs:
        for tree, _ in drafted_sequences(draft, 1, length):
            prefixes = [tree.prefix(node) for node in range(-1, len(tree))]
            rows = [np.stack([model(prefix) for prefix in prefixes]) for model in (target, draft)]
            one, other = (rule.conditional(tree, *rows) for rule in (Traversal(), Block()))
            if (one != other).any():
                raise Refuted(f"path {tree.tokens.tolist()}: {one.tolist()} and {other.tolist()}")
            done += 1
    return done


def _chain(full: bool) -> Verdict:
    """The laws of (accepted tokens, next token), given the path, of both rules as they are coded, as fractions."""
    reach, count = (4, 30) if full else (3, 12)
    done = sum(compare_on_chains(models(count, length), length) for length in range(1, reach + 1))
    return Verdict("certified", f"{done} drafted paths, V <= 3, L <= {reach}, rational laws")


@few
@given(tables(2), st.data())
def _chain_falsifier(pair: tuple[Model, Model], data: Any) -> None:
    """The same text for the same coins."""
    target, draft = pair
    drawn = list(drafted_sequences(draft, 1, 2))
    tree, _ = data.draw(st.sampled_from(drawn))
    t, d = (np.stack([model(tree.prefix(node)) for node in range(-1, 2)]) for model in (target, draft))
    coins = data.draw(laws.coins(3))
    one, other = (rule.commit(tree, t, d, coins) for rule in (Traversal(), Block()))
    assert one.tokens.tolist() == other.tokens.tolist()


def root_keeps_rate_one(stop: Stop = stop_rate) -> None:
    """A/(A + 1 - p) = 1 at p = 1."""
    equal(stop(sp.Symbol("A", positive=True), 1), 1, "the rate at the root")


def _star(full: bool) -> Verdict:
    """At the root p stays 1, so that child x is kept with min(1, T(x)/D(x)), and a refusal makes T <- (T - D)+/A and D
    without x: the rule of RRS without replacement, whose r is T."""
    root_keeps_rate_one()
    return Verdict("proved", "symbolically, all laws, all V and k")


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(laws.pairs(smallest=3, largest=4, most_k=3))
def _star_falsifier(pair: Any) -> None:
    """Given the candidates, as coded."""
    target, draft, k = pair
    rule = get_selector("rrs_without_replacement")
    for tokens in WithoutReplacement(min(k, int((draft > 0).sum()))).tuples(draft)[0]:
        size = len(tokens)
        tree = DraftTree(tokens, [-1] * size)
        law = Traversal().conditional(tree, np.stack([target] * (size + 1)), draft[None])
        mass = law[0].copy()
        mass[tokens] += law[1:].sum(axis=1)
        assert (mass == rule.conditional(target, draft, tokens)).all()


def compare_with_top_down(pairs: Iterable[tuple[Model, Model]], *widths: int) -> tuple[int, int]:
    """On how many pairs of models both accept equally, and on how many traversal more; Refuted where it accepts
    less."""
    even = more = 0
    for target, draft in pairs:
        if (draft(()) > 0).sum() < widths[0]:
            continue
        trees = levels(draft, *widths)
        up, down = (
            sequence_law(rule, target, draft, trees, len(widths) + 1)[1]
            for rule in (Traversal(), SpecTr("rrs_without_replacement"))
        )
        if up < down:
            raise Refuted(f"{up} < {down} for target {target(())}, draft {draft(())} at the root, widths {widths}")
        even, more = even + (up == down), more + (up > down)
    return even, more


def _beats_top_down(full: bool) -> Verdict:
    """E[accepted] of both rules over all trees, as fractions."""
    count = 40 if full else 9
    shapes = ((2, 1), (1, 2), (2, 2), (2, 1, 1)) if full else ((2, 1), (1, 2), (2, 2))
    done = [compare_with_top_down(models(count, len(widths)), *widths) for widths in shapes]
    even, more = (sum(counts) for counts in zip(*done, strict=True))
    shown = ", ".join("-".join(map(str, widths)) for widths in shapes)
    return Verdict(
        "certified", f"{even + more} rational tables of laws, V <= 3, widths {shown}; more on {more} of them"
    )


@settings(few, max_examples=6)
@given(tables(2, vocab=3))
def _beats_top_down_falsifier(pair: tuple[Model, Model]) -> None:
    compare_with_top_down([pair], 2, 2)


# --- refuted --------------------------------------------------------------------------------------------------------

BEST_FIRST = ([Fraction(2, 3), Fraction(1, 3)], [Fraction(1, 2), Fraction(1, 2)])


def best_first(target: Sequence[Fraction], draft: Sequence[Fraction]) -> list[Fraction]:
    """The output law on two siblings drawn without replacement and visited from the one the target likes best."""
    vocab, zero, law = range(len(target)), Fraction(0), [Fraction(0)] * len(target)
    for x in vocab:
        for y in vocab:
            if x == y or not draft[x] or not draft[y]:
                continue
            reach = draft[x] * draft[y] / (1 - draft[x])
            judged, left = list(draft), list(target)
            for token in sorted((x, y), key=lambda z: (-target[z], z)):
                share = min(Fraction(1), left[token] / judged[token])
                law[token] += reach * share
                reach *= 1 - share
                over = [max(r - d, zero) for r, d in zip(left, judged, strict=True)]
                left = [mass / sum(over) for mass in over] if any(over) else left
                judged[token] = zero
                judged = [mass / sum(judged) for mass in judged] if any(judged) else judged
            law = [mass + reach * r for mass, r in zip(law, left, strict=True)]
    return law


def _best_first(full: bool) -> Verdict:
    """On the counter-example, over both orders of the draws."""
    law = best_first(*BEST_FIRST)
    breaks = law != BEST_FIRST[0]
    example = (
        "t = (2/3, 1/3), d = (1/2, 1/2), two siblings: both tokens, always. The one that t likes best, 0, is visited "
        f"first and kept with min(1, (2/3)/(1/2)) = 1, so P(Y = 0) = {law[0]} and not 2/3. In the order drawn 0 comes "
        "first half of the time, and 1/2 + 1/2 · (1 - 2/3) = 2/3"
    )
    return counter_example(breaks, "one law pair, V = 2, two siblings", example)


def _best_first_falsifier() -> None:
    """Another law pair, on which the rule in the order drawn is exact."""

    def biased(pair: Any) -> bool:
        return (pair.draft > 0).sum() > 1 and best_first(pair.target, pair.draft) != list(pair.target)

    pair = found(laws.pairs(smallest=3, largest=3), biased)
    rule = get_selector("rrs_without_replacement")
    assert (output_law(rule, pair.target, pair.draft, WithoutReplacement(2)) == pair.target).all()


THEOREMS = (
    Theorem(
        "traversal.1",
        "Traversal verification: a visit of a node has a rate p and laws T and D, at the root 1, t and d. The next "
        "child x is visited with the rate min(1, p T(x)/D(x)) and the laws after it; if nothing below passes, A = Σ "
        "(p T − D)₊, T ← (p T − D)₊/A, p ← A/(A + 1 − p), D ← D without x, renormalised. A node without children "
        "left passes with probability p, and then the path to it and one token from T are committed. It is exact on "
        "every tree whose siblings are drawn without replacement: the committed tokens, continued by the target, "
        "have the target's law over sequences. The number of children of a node may depend on what was drawn before.",
        TRAVERSAL,
        "proved",
        _exact,
        _exact_falsifier,
    ),
    Theorem(
        "traversal.2",
        "Traversal verification is exact on the prefix tree of any number of independent sequences, too, if a token "
        "drawn twice is one node and siblings are visited in the order of first appearance.",
        "this project",
        "proved",
        _merged,
        _merged_falsifier,
    ),
    Theorem(
        "traversal.3",
        "On a single path traversal verification is block verification: the same law of (accepted tokens, next "
        "token) given the path.",
        TRAVERSAL,
        "certified",
        _chain,
        _chain_falsifier,
    ),
    Theorem(
        "traversal.4",
        "On children of the root alone traversal verification is RRS without replacement.",
        TRAVERSAL,
        "proved",
        _star,
        _star_falsifier,
    ),
    Theorem(
        "traversal.5",
        "Traversal verification accepts at least as many tokens on average as RRS without replacement from the root "
        "down, on trees drawn without replacement with the same number of children at each node of a level.",
        "this project",
        "certified",
        _beats_top_down,
        _beats_top_down_falsifier,
    ),
    Theorem(
        "traversal.6",
        "The order in which siblings are visited is free: one may begin with the sibling that the target likes best.",
        "common belief",
        "refuted",
        _best_first,
        _best_first_falsifier,
    ),
)
