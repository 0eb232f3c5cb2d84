"""Selection at every level of a tree over the drafts still alive (SpecTr 2023, arXiv 2310.15141, Algorithm 3)."""

from __future__ import annotations

import numpy as np

from ot_spec.arrays import Array, pick
from ot_spec.draft_law import DraftLaw
from ot_spec.selector import Selector
from ot_spec.tree import DraftTree, ids_beside
from solvers.selectors import get_selector
from solvers.sequence.rule import DescendingRule


class SpecTr(DescendingRule):
    """At each node select among what was drawn there, repeats included; go on with the drafts that hold the token.

    The selector sees the k draws that passed through the node, in the order drawn; k falls along the path. The first
    token that no draft holds is the correction; after a node without children one bonus token comes from the target.
    For K i.i.d. sequences the selector must be exact for i.i.d. candidates of every k <= K; for trees whose siblings
    were drawn without replacement, for those. With one sequence this is token-wise verification.

    selector: a selector or its name; options go to the latter.

    >>> from ot_spec import DraftTree, fractions
    >>> law = fractions([["1/4", "3/4"]] * 3)
    >>> tree = DraftTree.from_sequences([[0, 1]])
    >>> SpecTr().commit(tree, law, law, fractions([0, 0, 0, 0, "1/2"])).tokens
    array([0, 1, 1])
    """

    name = "spectr"

    def __init__(self, selector: str | Selector = "k_seq", **options: object):
        self.selector = get_selector(selector, **options) if isinstance(selector, str) else selector
        self.exact = self.selector.exact

    def __repr__(self) -> str:
        return f"SpecTr({self.selector.name!r})"

    def supports(self, law: DraftLaw) -> bool:
        return self.selector.supports(law)

    def coins_after(self, draws: int) -> int:
        return self.selector.coins(draws) if draws else 1

    def laws_after(self, tree: DraftTree, node: int, target: Array, draft: Array) -> Array:
        drawn = tree.drawn(node)
        if not drawn.size:
            return target
        return self.selector.conditional(target, draft, ids_beside(tree.tokens[drawn][None], target))

    def tokens_after(self, tree: DraftTree, nodes: list[int], target: Array, draft: Array, coins: Array) -> Array:
        candidates = tree.tokens[np.stack([tree.drawn(node) for node in nodes])]
        if not candidates.size:
            return pick(target, coins)[:, 0]
        return self.selector.select(target, draft, ids_beside(candidates, target), coins).token
