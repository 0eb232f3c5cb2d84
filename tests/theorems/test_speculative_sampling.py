"""The checks of the one-draft statements refuse wrong pieces."""

from __future__ import annotations

import pytest
import sympy as sp

from proofs_check.theorems import speculative_sampling as paper
from proofs_check.theorems.theorem import Refuted


@pytest.mark.parametrize(
    "broken",
    [
        lambda: paper.overlap_of_masses(sp.Max),
        lambda: paper.overlap_of_masses(lambda t, d: t * d),
        lambda: paper.kept_and_replaced(lambda t, d: sp.Max(d - t, 0)),
        lambda: paper.kept_and_replaced(lambda t, d: t),
        lambda: paper.tokens_a_call(lambda a, n: (1 - a ** (n + 1)) / (1 - a)),
        lambda: paper.tokens_a_call(lambda a, n: n * a),
    ],
)
def test_a_wrong_piece_is_refused(broken):
    with pytest.raises(Refuted):
        broken()


def test_the_slip_is_judged_by_its_example(monkeypatch, finds_a_fault):
    assert paper._slip(False).status == "refuted"
    monkeypatch.setattr(paper, "replaced_from_the_target", lambda target, draft: list(target))
    assert paper._slip(False).status == "tested"
    finds_a_fault(paper._slip_falsifier)


def test_a_biased_chain_rule_is_found(monkeypatch):
    class Longer:
        def __getattr__(self, name):
            return getattr(paper_rule, name)

        def conditional(self, tree, target_laws, draft_laws):
            return paper_rule.conditional(tree, draft_laws, draft_laws)

    paper_rule = paper.get_sequence_rule("spectr", selector="maximal_coupling")
    monkeypatch.setattr(paper, "get_sequence_rule", lambda *names, **options: Longer())
    with pytest.raises(Refuted, match="do not have the target's law"):
        paper._chains(False)
