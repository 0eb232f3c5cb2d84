"""The checks of traversal verification refuse wrong pieces, and its falsifiers find wrong rules."""

from __future__ import annotations

import pytest

from proofs_check.theorems import traversal as paper
from proofs_check.theorems.instances import models
from proofs_check.theorems.theorem import Refuted
from solvers.sequence import SpecTr, Traversal
from tests.theorems import mutants


class OwnDraftLaw(Traversal):
    """Forgets that a refused child cannot be drawn again."""

    def _without(self, xp, here, token):
        draft = here.draft
        super()._without(xp, here, token)
        here.draft = draft


class Timid(mutants.Timid, Traversal): ...


@pytest.mark.parametrize(
    ("rule", "falsifier"),
    [
        (OwnDraftLaw, paper._exact_falsifier),
        (OwnDraftLaw, paper._merged_falsifier),
        (OwnDraftLaw, paper._star_falsifier),
        (Timid, paper._chain_falsifier),
        (Timid, paper._star_falsifier),
    ],
)
def test_a_wrong_rule_is_found(rule, falsifier, monkeypatch, finds_a_fault):
    monkeypatch.setattr(paper, "Traversal", rule)
    finds_a_fault(falsifier)


def test_other_siblings_are_found(monkeypatch, finds_a_fault):
    """Repeats merged in the order of ids, not of first appearance."""

    def sorted_by_id(draft, count, length):
        for tree, weight in paper.drafted_sequences(draft, count, length):
            nodes = sorted(range(len(tree)), key=lambda node: (tree.depth[node], tree.prefix(node)))
            place = {node: i for i, node in enumerate(nodes)} | {-1: -1}
            parents = [place[int(tree.parents[node])] for node in nodes]
            yield paper.DraftTree(tree.tokens[nodes], parents), weight

    monkeypatch.setattr(paper, "merged", sorted_by_id)
    finds_a_fault(paper._merged_falsifier)


@pytest.mark.parametrize(
    "broken",
    [
        lambda: paper.root_keeps_rate_one(lambda excess, rate: excess / (excess + 2 - rate)),
        lambda: paper.root_keeps_rate_one(lambda excess, rate: excess),
    ],
)
def test_a_wrong_piece_is_refused(broken):
    with pytest.raises(Refuted):
        broken()


def test_comparisons_refuse_other_rules(monkeypatch):
    monkeypatch.setattr(paper, "Block", lambda: SpecTr("maximal_coupling"))
    with pytest.raises(Refuted, match="path"):
        paper.compare_on_chains(models(8, 2), 2)
    monkeypatch.setattr(paper, "Traversal", lambda: SpecTr("rrs_without_replacement"))
    monkeypatch.setattr(paper, "SpecTr", lambda name: Traversal())
    with pytest.raises(Refuted, match="widths"):
        paper.compare_with_top_down(models(8, 2), 2, 1)


def test_a_claim_that_its_example_does_not_break_is_not_refuted(monkeypatch):
    assert paper._best_first(False).status == "refuted"
    monkeypatch.setattr(paper, "best_first", lambda target, draft: list(target))
    assert paper._best_first(False).status == "tested"
    with pytest.raises(AssertionError):
        paper._best_first_falsifier()


def test_siblings_by_token_id_are_found_on_trees_that_look_at_what_was_drawn(monkeypatch, finds_a_fault):
    right = paper.adaptive
    monkeypatch.setattr(paper, "adaptive", lambda draft, last, lucky: right(draft, last, lucky, by_id=True))
    finds_a_fault(paper._exact_falsifier)


def test_shapes_that_look_are_laws():
    for _, draft in models(6, 2, 3):
        trees = paper.adaptive(draft, 0, 2)
        assert sum(weight for _, weight in trees) == 1
        assert draft(())[0] == 0 or any(len(tree) == 1 for tree, _ in trees)
