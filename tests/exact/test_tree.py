"""The draft tree: what it keeps of the drafts, masks and positions, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ot_spec import IID, DraftTree, WithoutReplacement, fractions
from ot_spec.errors import CandidateError, LawError, OptionError, ShapeError
from ot_spec.tree import Commit, drafted_sequences, drafted_trees, joint_law, sequence_law
from solvers.sequence import get_sequence_rule

SEQUENCES = st.integers(1, 4).flatmap(
    lambda many: st.integers(0, 4).flatmap(
        lambda length: st.lists(
            st.lists(st.integers(0, 2), min_size=length, max_size=length), min_size=many, max_size=many
        )
    )
)


@given(SEQUENCES)
def test_a_prefix_tree_keeps_every_draw(drawn):
    tree = DraftTree.from_sequences(np.array(drawn).reshape(len(drawn), -1))
    prefixes = {tuple(s[:n]) for s in drawn for n in range(1, len(s) + 1)}
    assert len(tree) == len(prefixes) == len({tree.prefix(node) for node in range(len(tree))})
    assert tree.sequences is not None
    for row, sequence in enumerate(drawn):
        for place, node in enumerate(tree.sequences[row].tolist()):
            assert tree.prefix(node) == tuple(sequence[: place + 1])
            assert tree.path(node).tolist() == tree.sequences[row, : place + 1].tolist()
            assert tree.depth[node] == place
    for node in range(-1, len(tree)):
        here = tree.prefix(node)
        expected = [s[len(here)] for s in drawn if len(s) > len(here) and tuple(s[: len(here)]) == here]
        assert tree.tokens[tree.drawn(node)].tolist() == expected
        assert tree.tokens[tree.children(node)].tolist() == list(dict.fromkeys(expected))
        assert all(tree.child(node, token) == (child if token in expected else -1)
                   for child, token in zip(tree.children(node), dict.fromkeys(expected), strict=True))  # fmt: skip
        assert tree.child(node, 3) == -1
        if node >= 0:
            assert tree.multiplicity[node] == sum(tuple(s[: len(here)]) == here for s in drawn)
    assert tree.height == max((len(s) for s in drawn), default=0)


@given(SEQUENCES)
def test_a_node_attends_to_its_path(drawn):
    tree = DraftTree.from_sequences(np.array(drawn).reshape(len(drawn), -1))
    mask = tree.mask()
    for node in range(len(tree)):
        assert np.flatnonzero(mask[node]).tolist() == tree.path(node).tolist()
    assert (mask.sum(axis=1) == tree.depth + 1).all()


def test_positions_count_from_the_root_not_along_the_list():
    tree = DraftTree([9, 9, 8, 9], [-1, 0, 0, 1])
    assert tree.depth.tolist() == [0, 1, 1, 2] != list(range(4))
    assert tree.mask().astype(int).tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]


def test_the_order_of_the_draws_is_kept():
    tree = DraftTree.from_sequences([[7], [5], [7], [5], [7]])
    assert tree.tokens.tolist() == [7, 5] and tree.multiplicity.tolist() == [3, 2]
    assert tree.tokens[tree.drawn(-1)].tolist() == [7, 5, 7, 5, 7]
    late = DraftTree([5, 7], [-1, -1], draws=[1, 0, 1])
    assert late.children(-1).tolist() == [1, 0] and late.multiplicity.tolist() == [1, 2]


def test_shorter_sequences_end_with_minus_one():
    tree = DraftTree.from_sequences([[1, 2, 3], [1, -1, -1], [2, 2, -1]])
    assert tree.multiplicity.tolist() == [2, 1, 1, 1, 1]
    assert tree.sequences is not None and tree.sequences.tolist() == [[0, 1, 2], [0, -1, -1], [3, 4, -1]]
    with pytest.raises(CandidateError, match="sequence 1: a token follows its end at position 1"):
        DraftTree.from_sequences([[1, 2, 3], [1, -1, 3]])


def test_torch_and_lists_make_the_same_tree():
    drawn = [[1, 2], [1, 3]]
    for values in (drawn, np.array(drawn), torch.tensor(drawn)):
        tree = DraftTree.from_sequences(values)
        assert (tree.tokens.tolist(), tree.parents.tolist()) == ([1, 2, 3], [-1, 0, 0])
    assert DraftTree.chain(torch.tensor([4, 4])).parents.tolist() == [-1, 0]


@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_laws_of_sequences_become_laws_of_nodes(convert):
    drawn = np.array([[1, 2], [1, 2], [1, 0]])
    tree = DraftTree.from_sequences(drawn)
    marks = np.arange(3 * 3).reshape(3, 3, 1) * np.ones(4)
    # of equal prefixes the first sequence's; nodes: (1), (1, 2), (1, 0)
    assert tree.rows(convert(marks))[:, 0].tolist() == [0, 1, 2, 8]
    assert tree.rows(convert(marks[:, :2]))[:2, 0].tolist() == [0, 1]
    with pytest.raises(ShapeError, match=r"laws of shape \(3, 1, 4\) do not fit 3 sequences of 2 tokens"):
        tree.rows(convert(marks[:, :1]))
    with pytest.raises(ShapeError, match="not made from sequences"):
        DraftTree([1], [-1]).rows(convert(marks))


def test_an_empty_draft_is_a_tree():
    tree = DraftTree.from_sequences(np.zeros((2, 0), dtype=int))
    assert (len(tree), tree.height, tree.mask().shape, tree.children(-1).size) == (0, 0, (0, 0), 0)


def test_a_tree_cannot_be_changed():
    tree = DraftTree([1, 2], [-1, 0])
    for values in (tree.tokens, tree.parents, tree.draws):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 0
    tokens = np.array([1, 2])
    copied = DraftTree(tokens, [-1, 0])
    tokens[0] = 7
    assert copied.tokens.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("error", "arguments", "message"),
    [
        (ShapeError, ([1, 2], [-1]), "2 tokens and 1 parents"),
        (ShapeError, ([[1]], [-1]), r"tokens have one axis, got shape \(1, 1\)"),
        (CandidateError, ([0.5], [-1]), "tokens are integers, got dtype float64"),
        (CandidateError, ([3, -2], [-1, 0]), "node 1: -2 is no token id"),
        (CandidateError, ([3, 4], [-1, 2]), "node 1: parent 2 is none of 2 nodes"),
        (CandidateError, ([3, 4], [-1, -2]), "node 1: parent -2 is none of 2 nodes"),
        (CandidateError, ([3, 4], [-1, 1]), "node 1 is before itself: a cycle of 1"),
        (CandidateError, ([3, 4, 5], [-1, 2, 1]), "node 1 is before itself: a cycle of 2"),
        (CandidateError, ([3, 4], [1, -1]), "node 0: its parent 1 comes after it"),
        (CandidateError, ([3, 4, 4], [-1, 0, 0]), "node 2 repeats token 4 of its sibling 1"),
        (CandidateError, ([3, 4], [-1, 0], [0, 2]), "draws lead to nodes 0..2, but there are 2 nodes"),
        (CandidateError, ([3, 4], [-1, 0], [0, 0]), "node 1 was never drawn"),
    ],
)
def test_what_is_no_tree_is_refused(error, arguments, message):
    with pytest.raises(error, match=message):
        DraftTree(*arguments)


def test_a_commit_holds_the_path_and_one_token_more():
    tree = DraftTree([4, 5, 6], [-1, 0, 0])
    commit = Commit.at(tree, 2, 9)
    assert (commit.tokens.tolist(), commit.path.tolist(), commit.accepted) == ([4, 6, 9], [0, 2], 2)
    nothing = Commit.at(tree, -1, 9)
    assert (nothing.tokens.tolist(), nothing.path.tolist(), nothing.accepted) == ([9], [], 0)


# ---- enumerating drafts


def draft(prefix):
    return fractions(["1/2", "1/3", "1/6"] if sum(prefix) % 2 else ["1/4", 0, "3/4"])


def test_all_drafts_of_sequences_have_probability_one():
    trees = list(drafted_sequences(draft, count=2, length=2))
    assert sum(weight for _, weight in trees) == 1
    assert len(trees) == int((joint_law(draft, 2) > 0).sum()) ** 2
    assert all(tree.draws.size == 4 and tree.height == 2 for tree, _ in trees)


@pytest.mark.parametrize("laws", [[WithoutReplacement(2), WithoutReplacement(2)], [IID(2), IID(2)], [IID(3)]])
def test_all_drafts_of_trees_have_probability_one(laws):
    trees = list(drafted_trees(draft, laws))
    assert sum(weight for _, weight in trees) == 1
    for tree, weight in trees:
        probability = 1
        for node in [-1, *np.flatnonzero(tree.depth < len(laws) - 1).tolist()]:
            tuples, masses = laws[len(tree.prefix(node))].tuples(draft(tree.prefix(node)))
            drawn = tree.tokens[tree.drawn(node)].tolist()
            (found,) = [m for t, m in zip(tuples.tolist(), masses, strict=True) if [x for x in t if x >= 0] == drawn]
            probability = probability * found
        assert weight == probability


def test_the_joint_law_is_the_product_along_the_path():
    law = joint_law(draft, 2)
    assert law.sum() == 1
    assert all(law[x, y] == draft(())[x] * draft((x,))[y] for x in range(3) for y in range(3))


def test_a_law_too_short_for_a_commit_is_refused():
    drafts = drafted_sequences(draft, count=1, length=2)
    with pytest.raises(OptionError, match="length must be at least 3 for a tree of depth 2"):
        sequence_law(get_sequence_rule("block"), draft, draft, drafts, 2)


def test_a_model_that_gives_no_law_is_refused_with_its_prefix():
    with pytest.raises(LawError, match=r"law after \(0,\)"):
        joint_law(lambda prefix: fractions(["1/2", "1/3"]) if prefix else fractions(["1/2", "1/2"]), 2)
