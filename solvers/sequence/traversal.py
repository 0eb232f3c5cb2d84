"""Traversal verification of trees drawn without replacement (arXiv 2505.12398)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ot_spec.arrays import Array, constant, namespace, positions, ratio, total
from ot_spec.draft_law import DraftLaw
from ot_spec.errors import CandidateError
from ot_spec.tree import DraftTree
from solvers.selectors.rule import excess, residual_or_target
from solvers.sequence.rule import StoppingRule, StopTest, finite, first_law, laws_at, passing


@dataclass
class _Visit:
    """A node on the way: rate p (1,), target and draft (1, V) as its refused children left them."""

    node: int
    rate: Any
    target: Array
    draft: Array
    valid: Any
    left: list[int]  # children still to visit, the next one last


class Traversal(StoppingRule):
    """From the ends of the tree: a node without children left passes with its rate p and emits from its target T.

    The root has p = 1. Child x of a node with (p, T, D) gets min(1, p T(x)/D(x)). Once x is refused its parent goes on
    with T <- (p T - D)+/A and p <- A/(A + 1 - p), A = sum (p T - D)+, and D without x, renormalised. Exact where
    siblings were drawn without replacement; on one path it is block verification.

    >>> from ot_spec import DraftTree, expected_accepted, fractions
    >>> target, draft = fractions([["1/2", "1/2"]] * 3), fractions([["3/4", "1/4"]] * 3)
    >>> expected_accepted(Traversal(), DraftTree([0, 1], [-1, -1]), target, draft)
    Fraction(1, 1)
    """

    name = "traversal"

    def supports(self, law: DraftLaw) -> bool:
        return law.name == "without_replacement" or (law.k == 1 and law.name in ("iid", "top_then_sample"))

    def tests(self, tree: DraftTree, target_laws: Array, draft_laws: Array) -> Iterator[StopTest]:
        if tree.draws.size > len(tree):
            node = int(np.argmax(tree.multiplicity > 1))
            raise CandidateError(
                f"node {node} was drawn {tree.multiplicity[node]} times; {self.name} takes siblings drawn without "
                "replacement"
            )
        xp = namespace(first_law(target_laws))

        def enter(node: int, rate: Any, valid: Any) -> _Visit:
            target, draft = laws_at(tree, [node], target_laws, draft_laws)
            rate = total(xp, target * 0) + 1 if rate is None else rate
            valid = valid & finite(xp, target, draft, rate)
            return _Visit(node, rate, target, draft, valid, tree.children(node).tolist()[::-1])

        way = [enter(-1, None, True)]
        refused = -1
        while way:
            here = way[-1]
            if refused >= 0:
                self._without(xp, here, int(tree.tokens[refused]))
                refused = -1
            if here.left:
                child = here.left.pop()
                token = int(tree.tokens[child])
                rate, positive = passing(xp, here.rate * here.target[:, token], here.draft[:, token], token, child)
                way.append(enter(child, rate, here.valid & positive))
                continue
            way.pop()
            yield StopTest(here.node + 1, here.rate, here.target, here.target, here.valid)
            refused = here.node

    def _without(self, xp: Any, here: _Visit, token: int) -> None:
        over = excess(xp, here.rate[:, None] * here.target, here.draft)
        mass = total(xp, over)
        # 0/0: p = 1 and T = D, where no child is refused but by rounding
        here.rate = ratio(xp, mass, mass + (1 - here.rate), 1)
        here.target = residual_or_target(xp, over, here.target)
        if here.left:
            rest = xp.where(positions(xp, over) == token, constant(0, over), here.draft)
            here.draft = residual_or_target(xp, rest, rest)
