"""Block verification of one path (Sun et al. 2024, arXiv 2403.10444)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ot_spec.arrays import Array, namespace, ratio, total
from ot_spec.draft_law import DraftLaw
from ot_spec.errors import ShapeError
from ot_spec.tree import DraftTree
from solvers.selectors.rule import excess
from solvers.sequence.rule import StoppingRule, StopTest, finite, first_law, laws_at, passing


class Block(StoppingRule):
    """p_0 = 1, p_i = min(1, p_(i-1) target(x_i)/draft(x_i)); keep the largest i with coin_i < h_i.

    h_i = A_i/(A_i + 1 - p_i), A_i = sum (p_i target - draft)+ for i < L, h_L = p_L, h_0 = 1; then one token from
    (p_i target - draft)+, at i = L from the target. A later position may rescue an earlier one. E[accepted] is the
    largest that any exact rule reaches on one path.

    >>> from ot_spec import DraftTree, expected_accepted, fractions
    >>> target, draft = fractions([["1/3", "2/3"]] * 3), fractions([["2/3", "1/3"]] * 3)
    >>> expected_accepted(Block(), DraftTree.chain([0, 1]), target, draft)
    Fraction(2, 1)
    """

    name = "block"

    def supports(self, law: DraftLaw) -> bool:
        return law.k == 1 and law.name in ("iid", "without_replacement", "top_then_sample")

    def tests(self, tree: DraftTree, target_laws: Array, draft_laws: Array) -> Iterator[StopTest]:
        size = len(tree)
        if tree.draws.size > size or (tree.parents != np.arange(size) - 1).any():
            raise ShapeError(f"{self.name} takes one path, got {tree!r}; traversal and spectr take trees")
        xp = namespace(first_law(target_laws))
        laws = [laws_at(tree, [node], target_laws, draft_laws) for node in range(-1, size)]
        rates = [total(xp, laws[0][0] * 0) + 1]
        valid = rates[0] == rates[0]
        for node, token in enumerate(tree.tokens.tolist()):
            target, draft = laws[node]
            rate, positive = passing(xp, rates[-1] * target[:, token], draft[:, token], token, node)
            rates.append(rate)
            valid = valid & positive
        for target, draft in laws:
            valid = valid & finite(xp, target, draft, rates[0])
        yield StopTest(size, rates[size], laws[size][0], laws[size][0], valid)
        for row in range(size - 1, -1, -1):
            target, draft = laws[row]
            over = excess(xp, rates[row][:, None] * target, draft)
            mass = total(xp, over)
            # 0/0: the laws agree and a later position has passed but for rounding
            yield StopTest(row, ratio(xp, mass, mass + (1 - rates[row]), 1), over, target, valid)
