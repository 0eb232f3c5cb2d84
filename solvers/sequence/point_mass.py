"""The target's own path through a tree (SpecInfer 2023; EAGLE-2, SpecExec, OPT-Tree 2024)."""

from __future__ import annotations

from ot_spec.arrays import Array, pick
from ot_spec.draft_law import DraftLaw
from ot_spec.tree import DraftTree
from solvers.sequence.rule import DescendingRule


class PointMass(DescendingRule):
    """Sample the target at each node and go on while the sample is a child; one sample a node, however many paths.

    Exact for every tree that is independent of the coins; the draft laws are not read and may be None. E[accepted]
    is the sum over nodes of the target's probability of their paths, the most any rule reaches on a tree that is
    fixed beforehand.

    >>> from ot_spec import DraftTree, expected_accepted, fractions
    >>> law = fractions([["1/4", "3/4"]] * 3)
    >>> expected_accepted(PointMass(), DraftTree.chain([1, 1]), law, None)
    Fraction(21, 16)
    """

    name = "point_mass"
    reads_draft_laws = False

    def supports(self, law: DraftLaw) -> bool:
        return True

    def coins_after(self, draws: int) -> int:
        return 1

    def laws_after(self, tree: DraftTree, node: int, target: Array, draft: Array) -> Array:
        return target

    def tokens_after(self, tree: DraftTree, nodes: list[int], target: Array, draft: Array, coins: Array) -> Array:
        return pick(target, coins)[:, 0]
