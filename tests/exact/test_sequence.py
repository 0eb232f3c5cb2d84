"""What the sequence rules commit has the target's law, as fractions, over whole drafts and their continuation.

Models are tables: a law for every prefix, so that laws differ along and across the paths of a tree.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch.utils._python_dispatch import TorchDispatchMode

from ot_spec import (
    IID,
    DraftTree,
    SequenceRule,
    TopThenSample,
    WithoutReplacement,
    commit_law,
    expected_accepted,
    fractions,
    output_law,
    sequence_law,
)
from ot_spec.errors import CandidateError, LawError, OptionError, ShapeError
from ot_spec.selector import as_float
from ot_spec.tree import Commit, drafted_sequences, drafted_trees, joint_law
from solvers.selectors import KSeq, RRSWithoutReplacement, get_selector
from solvers.selectors.rule import residual_or_target
from solvers.sequence import SEQUENCE_RULES, Block, PointMass, SpecTr, Traversal, get_sequence_rule
from solvers.sequence.rule import StopTest, TreeRule
from tests.exact.cases import to_law, weights

SHAPES = ("free", "free", "free", "equal", "disjoint", "narrow")


def models(seed: int, vocab: int, convert: Callable = np.asarray) -> tuple[Callable, Callable]:
    """A target and a draft, each a law for every prefix."""
    shape = SHAPES[seed % len(SHAPES)]

    def table(which: int) -> Callable:
        known: dict[tuple[int, ...], np.ndarray] = {}

        def law(prefix: tuple[int, ...]) -> np.ndarray:
            if prefix not in known:
                drawn = weights(np.random.default_rng([seed, which, len(prefix), *prefix]), vocab)
                if shape == "disjoint" and len(prefix) == 1:
                    drawn = drawn * (np.arange(vocab) % 2 == which) + (np.arange(vocab) == which)
                if shape == "narrow" and which == 1:
                    drawn = (np.arange(vocab) == sum(prefix) % vocab).astype(int)
                known[prefix] = convert(to_law(drawn))
            return known[prefix]

        return law

    return table(0), table(0 if shape == "equal" else 1)


def constant(law) -> Callable:
    law = fractions(law)
    return lambda prefix: law


def laws(tree: DraftTree, target: Callable, draft: Callable) -> tuple[np.ndarray, np.ndarray]:
    """Both models' laws along the tree, (N + 1, V)."""
    prefixes = [tree.prefix(node) for node in range(-1, len(tree))]
    return np.stack([target(prefix) for prefix in prefixes]), np.stack([draft(prefix) for prefix in prefixes])


def sequences(count: int, length: int) -> Callable:
    return lambda draft: drafted_sequences(draft, count, length)


def levels(*ks: int, law: type[IID] = WithoutReplacement) -> Callable:
    return lambda draft: drafted_trees(draft, [law(k) for k in ks])


# rule, its options, vocabulary, tokens a commit may hold, drafts
WHOLE = [
    *[(name, {}, v, n + 1, sequences(1, n)) for name in SEQUENCE_RULES for v in (3, 4) for n in (2, 3)],
    ("spectr", {"selector": "maximal_coupling"}, 4, 3, sequences(1, 2)),
    *[("spectr", {"selector": s}, v, 3, sequences(k, 2))
      for s in ("k_seq", "rrs") for v, k in ((3, 2), (4, 2), (3, 3))],
    ("spectr", {"selector": "rrs"}, 3, 4, sequences(2, 3)),
    ("spectr", {"selector": "k_seq", "rho": Fraction(2)}, 3, 3, sequences(2, 2)),
    ("spectr", {"selector": "rrs"}, 3, 3, levels(2, 2, law=IID)),
    *[("spectr", {"selector": "rrs_without_replacement"}, v, len(ks) + 1, levels(*ks))
      for v, ks in ((3, (2, 2)), (4, (2, 1)), (4, (3, 1)), (3, (2, 1, 1)))],
    *[("traversal", {}, v, len(ks) + 1, levels(*ks))
      for v, ks in ((3, (2, 2)), (4, (2, 2)), (4, (3, 1)), (3, (3, 2)), (3, (2, 1, 1)))],
    ("point_mass", {}, 3, 3, sequences(3, 2)),
    ("point_mass", {}, 4, 3, levels(2, 2)),
]  # fmt: skip
IDS = [
    f"{'-'.join([name, *map(str, options.values())])}-V{v}-{n}-{i}" for i, (name, options, v, n, _) in enumerate(WHOLE)
]


@pytest.mark.parametrize(("name", "options", "vocab", "length", "drafts"), WHOLE, ids=IDS)
def test_whole_commits_have_the_targets_law(name, options, vocab, length, drafts):
    for seed in range(len(SHAPES)):
        target, draft = models(seed, vocab)
        rule = get_sequence_rule(name, **options)
        law, accepted = sequence_law(rule, target, draft, drafts(draft), length)
        assert (law == joint_law(target, length)).all(), seed
        assert 0 <= accepted < length


@pytest.mark.parametrize(("name", "options", "vocab", "length", "drafts"), WHOLE, ids=IDS)
def test_commit_has_the_law_that_conditional_states(name, options, vocab, length, drafts):
    rng = np.random.default_rng(length)
    for seed in (0, 2, 4):
        target, draft = models(seed, vocab)
        rule, trees = get_sequence_rule(name, **options), list(drafts(draft))
        for chosen in rng.permutation(len(trees))[:2]:
            tree, _ = trees[chosen]
            along = laws(tree, target, draft)
            measured = commit_law(rule, tree, *along)
            assert measured.sum() == 1
            assert (measured == commit_law(rule, tree, *along, by="conditional")).all(), (
                seed,
                tree.tokens,
                tree.parents,
            )


@pytest.mark.parametrize("name", list(SEQUENCE_RULES))
def test_whole_commits_measured_by_their_coins_have_the_targets_law(name):
    target, draft = models(0, 3)
    rule = get_sequence_rule(name, **({"selector": "rrs"} if name == "spectr" else {}))
    drafts = drafted_sequences(draft, 2 if name in ("spectr", "point_mass") else 1, 2)
    law, _ = sequence_law(rule, target, draft, drafts, 3, by="commit")
    assert (law == joint_law(target, 3)).all()


def test_a_law_of_one_level_is_the_selectors():
    for seed in range(4):
        target, draft = models(seed, 4)
        for name, law in (("k_seq", IID(2)), ("rrs", IID(2)), ("rrs_without_replacement", WithoutReplacement(2))):
            along, accepted = sequence_law(SpecTr(name), target, draft, drafted_trees(draft, [law]), 2)
            selector = get_selector(name)
            assert (along.sum(axis=1) == output_law(selector, target(()), draft(()), law)).all()
            assert accepted == selector.acceptance(target(()), draft(()), law)


# ---- values


def expected(rule: SequenceRule, target, draft, drafts, length: int):
    target, draft = constant(target), constant(draft)
    law, accepted = sequence_law(rule, target, draft, drafts(draft), length)
    assert (law == joint_law(target, length)).all()
    return accepted


def test_block_and_token_verification_are_not_the_same_rule():
    pair = ["1/3", "2/3"], ["2/3", "1/3"]
    assert expected(Block(), *pair, sequences(1, 2), 3) == Fraction(11, 9)
    assert expected(Traversal(), *pair, sequences(1, 2), 3) == Fraction(11, 9)
    for selector in ("maximal_coupling", "k_seq", "rrs"):
        assert expected(SpecTr(selector), *pair, sequences(1, 2), 3) == Fraction(10, 9)


@pytest.mark.parametrize(("length", "block", "token"), [(2, 0.8, 0.75), (3, 1.0115, 0.875)])
def test_block_keeps_more_than_token_verification(length, block, token):
    pair = ["2/5", "2/5", "1/5"], ["9/10", "1/20", "1/20"]
    assert float(expected(Block(), *pair, sequences(1, length), length + 1)) == pytest.approx(block, abs=5e-5)
    assert float(expected(SpecTr(), *pair, sequences(1, length), length + 1)) == pytest.approx(token, abs=5e-5)


def test_two_siblings_without_replacement():
    pair = ["1/10", "1/5", "3/10", "2/5"], ["2/5", "3/10", "1/5", "1/10"]
    exact = RRSWithoutReplacement().acceptance(fractions(pair[0]), fractions(pair[1]), WithoutReplacement(2))
    assert float(exact) == pytest.approx(0.764, abs=5e-4)
    for rule in (SpecTr("rrs_without_replacement"), Traversal()):
        assert expected(rule, *pair, levels(2), 2) == exact


def test_two_models_alike_keep_everything_and_add_the_bonus():
    bonus = np.zeros(5, dtype=int)
    bonus[3] = 1
    same = to_law(np.array([1, 2, 3, 4, 0]))
    along = np.stack([same, same, to_law(bonus)])
    tree, rng = DraftTree.chain([2, 0]), np.random.default_rng(0)
    for name in ("block", "traversal", "spectr"):
        rule = get_sequence_rule(name)
        for coins in (
            np.zeros(rule.coins(tree)),
            np.full(rule.coins(tree), 1 - 2.0**-53),
            rng.random(rule.coins(tree)),
        ):
            commit = rule.commit(tree, as_float(along), as_float(along), coins)
            assert (commit.tokens.tolist(), commit.path.tolist(), commit.accepted) == ([2, 0, 3], [0, 1], 2)


def test_the_first_drafted_token_can_be_refused():
    target, draft = fractions([[0, 1], [1, 0]]), fractions([["1/2", "1/2"]])
    tree = DraftTree.chain([0])
    for name in SEQUENCE_RULES:
        law = commit_law(get_sequence_rule(name), tree, target, draft)
        assert law.tolist() == [[0, 1], [0, 0]]


def test_an_empty_draft_commits_one_token_of_the_target():
    target = fractions([["1/4", "3/4"]])
    for name in SEQUENCE_RULES:
        rule, tree = get_sequence_rule(name), DraftTree.chain([])
        assert rule.coins(tree) == 1
        assert commit_law(rule, tree, target, target[:0]).tolist() == target.tolist()
        assert commit_law(rule, tree, target, target[:0], by="conditional").tolist() == target.tolist()


@pytest.mark.parametrize("name", list(SEQUENCE_RULES))
def test_at_temperature_zero_the_targets_path_is_walked(name):
    steps = np.eye(4)[[2, 1, 3, 0]]
    tree = DraftTree.chain([2, 1, 3])
    rule = get_sequence_rule(name)
    for coins in (np.zeros(rule.coins(tree)), np.full(rule.coins(tree), 1 - 2.0**-53)):
        assert rule.commit(tree, steps, np.full((3, 4), 0.25), coins).tokens.tolist() == [2, 1, 3, 0]
        wrong = DraftTree.chain([2, 3, 3])
        assert rule.commit(wrong, steps, np.full((3, 4), 0.25), coins).tokens.tolist() == [2, 1]


def test_point_mass_keeps_the_path_probability_of_every_node():
    for seed in range(6):
        target, draft = models(seed, 4)
        for tree, _ in list(drafted_sequences(draft, 2, 2))[:10]:
            along = laws(tree, target, draft)
            reach = 0
            for node in range(len(tree)):
                path = tree.path(node)
                reach += np.prod([along[0][tree.parents[i] + 1, tree.tokens[i]] for i in path])
            assert expected_accepted(PointMass(), tree, along[0], None) == reach


# ---- block verification


def test_traversal_is_block_on_a_chain():
    rng = np.random.default_rng(5)
    for seed in range(12):
        target, draft = models(seed, 4)
        for tree, _ in drafted_sequences(draft, 1, 3):
            along = laws(tree, target, draft)
            assert (Block().conditional(tree, *along) == Traversal().conditional(tree, *along)).all()
            coins = rng.random(4)
            one, other = (rule.commit(tree, *along, coins) for rule in (Block(), Traversal()))
            assert one.tokens.tolist() == other.tokens.tolist() and one.accepted == other.accepted


def best_chain_rule(target: Callable, draft: Callable, vocab: int, length: int) -> float:
    """The largest E[accepted] of any exact rule that sees one drafted path, by linear programming.

    Variables w(x, m, y) >= 0: the path x was drafted, its first m tokens are kept and y follows. They sum to the
    draft's probability of x for every x. With the target going on, the first L + 1 tokens must have its law:
    sum over (x, m, y) with (x_1, .., x_m, y) a prefix of z of w(x, m, y) target(z | that prefix) = target(z) for all z.
    """
    drafted, wanted = as_float(joint_law(draft, length)), as_float(joint_law(target, length + 1))
    paths = [x for x in product(range(vocab), repeat=length) if drafted[x] > 0]
    columns = [(x, m, y) for x in paths for m in range(length + 1) for y in range(vocab)]
    rows = np.zeros((len(paths) + wanted.size, len(columns)))
    place = {x: i for i, x in enumerate(paths)}

    def go_on(prefix: tuple[int, ...]) -> np.ndarray:
        law = np.ones(())
        for free in range(length + 1 - len(prefix)):
            steps = [float(v) for rest in product(range(vocab), repeat=free) for v in target((*prefix, *rest))]
            law = law[..., None] * np.array(steps).reshape((vocab,) * (free + 1))
        return law

    for column, (x, m, y) in enumerate(columns):
        rows[place[x], column] = 1
        out = np.zeros(wanted.shape)
        out[(*x[:m], y)] = go_on((*x[:m], y))
        rows[len(paths) :, column] = out.reshape(-1)
    sums = np.concatenate([[drafted[x] for x in paths], wanted.reshape(-1)])
    solved = linprog([-m for _, m, _ in columns], A_eq=rows, b_eq=sums, method="highs")
    assert solved.status == 0, solved.message
    return -solved.fun


def test_block_is_the_best_chain_rule():
    strictly = 0
    for seed in range(36):
        vocab = 3 + seed % 2
        target, draft = models(seed, vocab, fractions)
        _, block = sequence_law(Block(), target, draft, drafted_sequences(draft, 1, 2), 3)
        _, token = sequence_law(SpecTr("rrs"), target, draft, drafted_sequences(draft, 1, 2), 3)
        assert float(block) == pytest.approx(best_chain_rule(target, draft, vocab, 2), abs=1e-9), seed
        assert block >= token
        strictly += block > token
    assert strictly >= 5


# ---- rules that are wrong in one place


class Wrong(TreeRule):
    """A rule known by its `conditional` only."""

    def __init__(self, rule: TreeRule):
        self.rule, self.name = rule, rule.name

    def supports(self, law) -> bool:
        return self.rule.supports(law)

    def coins(self, tree: DraftTree) -> int:
        return self.rule.coins(tree)

    def read(self, tree, answers):
        raise NotImplementedError

    def _commit(self, tree, target_laws, draft_laws, coins):
        raise NotImplementedError

    _answers = _commit


class LongestAccepted(Wrong):
    """Verifies every sequence by itself and publishes the longest; of equals the first."""

    def _conditional(self, tree, target_laws, draft_laws):
        out = target_laws * 0
        assert tree.sequences is not None
        outcomes = []
        for sequence in tree.sequences:
            rows = np.append(0, sequence + 1)
            chain = DraftTree.chain(tree.tokens[sequence])
            law = self.rule.conditional(chain, target_laws[rows], draft_laws[rows])
            outcomes.append([(m, int(rows[m]), y, law[m, y]) for m, y in zip(*np.nonzero(law), strict=True)])
        for drawn in product(*outcomes):
            _, row, token, _ = max(drawn, key=lambda one: one[0])
            out[row, token] += np.prod([mass for *_, mass in drawn])
        return out


class Merged(Wrong):
    """Forgets how often a node was drawn."""

    def _conditional(self, tree, target_laws, draft_laws):
        return self.rule.conditional(DraftTree(tree.tokens, tree.parents), target_laws, draft_laws)


class CountsTwo(KSeq):
    """The residual of two candidates, however many there are."""

    def _parts(self, target, draft, k, most):
        return super()._parts(target, draft, 2, 2)


class Grouped(Wrong):
    """Puts repeats next to each other: an order that looks at the tokens."""

    def _conditional(self, tree, target_laws, draft_laws):
        return self.rule.conditional(DraftTree(tree.tokens, tree.parents, np.sort(tree.draws)), target_laws, draft_laws)


class TokenResidual(Block):
    """Corrects from (target - draft)+, as token verification does."""

    def tests(self, tree, target_laws, draft_laws) -> Iterator[StopTest]:
        for test in super().tests(tree, target_laws, draft_laws):
            row = test.row
            if row < len(tree):
                over = np.maximum(target_laws[row : row + 1] - draft_laws[row : row + 1], target_laws[:1] * 0)
                test = test._replace(weights=over)
            yield test


class Contiguous(Block):
    """Stops at the first position whose coin fails."""

    def _conditional(self, tree, target_laws, draft_laws):
        tests = sorted(self.tests(tree, target_laws, draft_laws), key=lambda test: test.row)
        rows, reach = [], 1
        for test, after in zip(tests, [*tests[1:], None], strict=True):
            stop = 1 if after is None else 1 - after.rate
            rows.append(reach * stop * residual_or_target(np, test.weights, test.target)[0])
            reach = reach * (1 - stop)
        return np.stack(rows)


class NoBonus(Wrong):
    """Drops the token after a path that was kept to its end: publishes its last token as the correction."""

    def _conditional(self, tree, target_laws, draft_laws):
        law = self.rule.conditional(tree, target_laws, draft_laws).copy()
        for node in range(len(tree)):
            if not tree.children(node).size:
                law[tree.parents[node] + 1, tree.tokens[node]] += law[node + 1].sum()
                law[node + 1] = law[node + 1] * 0
        return law


class OwnDraftLaw(Traversal):
    """Forgets that a refused child cannot be drawn again."""

    def _without(self, xp, here, token):
        draft = here.draft
        super()._without(xp, here, token)
        here.draft = draft


def distance(law: np.ndarray, other: np.ndarray):
    """Total variation."""
    return abs(law - other).sum() / 2


def broken(rule: SequenceRule, target: Callable, draft: Callable, drafts: Callable, length: int):
    """TV from the target's law, and the law of the first token."""
    law, accepted = sequence_law(rule, target, draft, drafts(draft), length)
    return distance(law, joint_law(target, length)), law.sum(axis=tuple(range(1, length))), accepted


FREE = (0, 1, 2, 6, 7)


@pytest.mark.parametrize(
    ("rule", "drafts", "vocab"),
    [
        (LongestAccepted(SpecTr("rrs")), sequences(2, 2), 3),
        (LongestAccepted(Block()), sequences(2, 2), 3),
        (LongestAccepted(PointMass()), sequences(2, 2), 3),
        (Merged(SpecTr("rrs")), sequences(2, 2), 3),
        (Merged(SpecTr("k_seq")), sequences(2, 2), 3),
        (Grouped(SpecTr("rrs")), sequences(3, 2), 3),
        (TokenResidual(), sequences(1, 2), 4),
        (Contiguous(), sequences(1, 2), 3),
        (OwnDraftLaw(), levels(2, 2), 3),
        (SpecTr("rrs"), levels(2, 2), 3),
        (SpecTr("k_seq"), levels(2, 2), 3),
    ],
    ids=lambda value: f"{type(value).__name__}-{value.name}" if isinstance(value, TreeRule) else None,
)
def test_a_wrong_rule_is_seen(rule, drafts, vocab):
    biased = 0
    for seed in FREE:
        target, draft = models(seed, vocab)
        biased += broken(rule, target, draft, drafts, 3)[0] > 0
    assert biased


def rounded(law) -> list[float]:
    return [round(float(v), 3) for v in law]


def test_recorded_values_of_wrong_rules():
    target, draft = constant(["1/10", "1/5", "3/10", "2/5"]), constant(["2/5", "3/10", "1/5", "1/10"])
    assert rounded(broken(SpecTr("rrs"), target, draft, levels(2), 2)[1]) == [0.1, 0.2, 0.343, 0.357]
    assert rounded(broken(Merged(SpecTr("rrs")), target, draft, sequences(2, 1), 2)[1]) == [0.1, 0.2, 0.327, 0.373]

    target, draft = constant(["4/5", "1/5"]), constant(["1/2", "1/2"])
    merged = Merged(SpecTr(CountsTwo(rho=Fraction(13521, 10000))))
    assert rounded(broken(merged, target, draft, sequences(2, 1), 2)[1]) == [0.852, 0.148]

    target, draft = constant(["1/3", "2/3"]), constant(["2/3", "1/3"])
    off, _, accepted = broken(Contiguous(), target, draft, sequences(1, 2), 3)
    assert (accepted, off) == (Fraction(5, 9), Fraction(1, 3))
    # two tokens hide a wrong residual
    assert broken(TokenResidual(), target, draft, sequences(1, 2), 3)[0] == 0

    target, draft = constant(["2/5", "2/5", "1/5"]), constant(["9/10", "1/20", "1/20"])
    assert rounded([broken(TokenResidual(), target, draft, sequences(1, n), n + 1)[0] for n in (2, 3)]) == [0.01, 0.018]


def test_paths_that_share_a_token_share_its_sample():
    """Candidates ab, ac, ad, ef where a and e come with 1/2 each and nothing that follows matches."""
    start, after = fractions(["1/2", 0, 0, 0, "1/2", 0]), fractions([1, 0, 0, 0, 0, 0])
    tree = DraftTree.from_sequences([[0, 1], [0, 2], [0, 3], [4, 5]])
    along = np.stack([start] + [after] * len(tree))
    first = {node: PointMass().conditional(tree, along, None)[node + 1].sum() for node in tree.children(-1).tolist()}
    assert list(first.values()) == [Fraction(1, 2)] * 2
    apart = LongestAccepted(PointMass()).conditional(tree, along, along)
    a, e = tree.children(-1).tolist()
    assert (apart[a + 1].sum(), apart[e + 1].sum()) == (Fraction(7, 8), Fraction(1, 16))
    assert apart[0].tolist() == [0, 0, 0, 0, Fraction(1, 16), 0]


def test_a_dropped_bonus_is_seen_in_the_count():
    target, draft = models(0, 4)
    tree = DraftTree.chain([0, 1])
    along = laws(tree, draft, draft)
    assert expected_accepted(Block(), tree, *along) == 2
    assert expected_accepted(NoBonus(Block()), tree, *along) == 1
    assert target(()).sum() == 1


# ---- arrays, devices, errors


def random_laws(rng: np.random.Generator, rows: int, vocab: int) -> np.ndarray:
    drawn = rng.dirichlet(np.full(vocab, 0.3), rows)
    return drawn / drawn.sum(axis=1, keepdims=True)


def drafted(rng: np.random.Generator, name: str, vocab: int) -> tuple[DraftTree, np.ndarray, np.ndarray]:
    """A tree that fits the rule, with context-dependent float laws; rows of the draft that nobody reads are NaN."""
    if name == "block":
        tree = DraftTree.chain(rng.integers(0, vocab, 3))
    elif name == "traversal":
        tree = DraftTree([3, 1, 2, 3, 1], [-1, -1, 0, 0, 2])
    else:
        tree = DraftTree.from_sequences(rng.integers(0, 3, (3, 2)))
    target, draft = random_laws(rng, len(tree) + 1, vocab), random_laws(rng, len(tree) + 1, vocab)
    draft[[node + 1 for node in range(len(tree)) if not tree.children(node).size]] = np.nan
    return tree, target, draft


@pytest.mark.parametrize("name", list(SEQUENCE_RULES))
def test_numpy_torch_and_answers_agree_and_nothing_is_mutated(name):
    rng = np.random.default_rng(11)
    rule = get_sequence_rule(name)
    assert isinstance(rule, SequenceRule) and isinstance(rule, TreeRule)
    seen = set()
    for _ in range(60):
        tree, target, draft = drafted(rng, name, 5)
        coins = rng.random(rule.coins(tree))
        before = [a.tobytes() for a in (target, draft, coins)]
        commit = rule.commit(tree, target, draft, coins)
        assert [a.tobytes() for a in (target, draft, coins)] == before
        last = int(tree.parents.max()) + 2
        others = [
            rule.commit(tree, *(torch.as_tensor(a) for a in (target, draft, coins))),
            rule.commit(tree, target, draft[:last], coins),
            rule.read(tree, np.asarray(rule.answers(tree, target, draft, coins))),
        ]
        for other in others:
            assert all(np.array_equal(a, b) for a, b in zip(commit, other, strict=True))
        assert commit.tokens[:-1].tolist() == tree.tokens[commit.path].tolist()
        assert commit.accepted == commit.path.size == commit.tokens.size - 1
        assert (np.diff(tree.depth[commit.path]) == 1).all()
        seen.add(commit.accepted)
    assert len(seen) >= 3


@pytest.mark.parametrize("name", list(SEQUENCE_RULES))
def test_floats_follow_the_fractions(name):
    rule = get_sequence_rule(name)
    for seed in range(6):
        target, draft = models(seed, 4, fractions)
        many = 2 if name in ("spectr", "point_mass") else 1
        for tree, _ in list(drafted_sequences(draft, many, 2))[:4]:
            along = laws(tree, target, draft)
            exact = as_float(rule.conditional(tree, *along))
            for convert in (np.asarray, torch.as_tensor):
                got = rule.conditional(tree, *(convert(as_float(a)) for a in along))
                np.testing.assert_allclose(np.asarray(got), exact, atol=1e-12)


class NoWaiting(TorchDispatchMode):
    """Refuses the operations that make the host wait for a device."""

    refused = ("_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "equal.default", "unique")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(f"aten.{name}" in str(func) for name in self.refused):
            raise AssertionError(f"{func} waits for the device")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", list(SEQUENCE_RULES))
def test_answers_never_wait_for_a_device(name, monkeypatch):
    for module in list(sys.modules.values()):
        if module.__name__.startswith(("ot_spec", "solvers")) and hasattr(module, "may_wait"):
            monkeypatch.setattr(module, "may_wait", lambda array: isinstance(array, np.ndarray))
    rng = np.random.default_rng(3)
    rule = get_sequence_rule(name)
    assert isinstance(rule, TreeRule)
    for _ in range(20):
        tree, target, draft = drafted(rng, name, 5)
        coins = rng.random(rule.coins(tree))
        tensors = [torch.as_tensor(a) for a in (target, draft, coins)]
        with NoWaiting():
            answers = rule.answers(tree, *tensors)
        assert not answers.is_floating_point() and answers.numel() <= len(tree) + 2
        commit = rule.read(tree, answers.numpy())
        assert all(np.array_equal(a, b) for a, b in zip(commit, rule.commit(tree, *tensors), strict=True))
        assert commit.tokens.tolist() == rule.commit(tree, target, draft, coins).tokens.tolist()
    with pytest.raises(AssertionError, match="waits"), NoWaiting():
        tensors[0].sum().item()
    bad = tensors[2].clone()
    bad[:] = 1.0
    with pytest.raises(CandidateError):
        rule.read(tree, rule.answers(tree, tensors[0], tensors[1], bad).numpy())
    with pytest.raises(CandidateError):
        rule.read(tree, rule.answers(tree, tensors[0] * float("nan"), *tensors[1:]).numpy())
    if name != "point_mass":
        impossible = tensors[1].clone()
        impossible[0, int(tree.tokens[0])] = 0
        with pytest.raises(CandidateError):
            rule.read(tree, rule.answers(tree, tensors[0], impossible, tensors[2]).numpy())


@pytest.mark.parametrize("name", list(SEQUENCE_RULES))
@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_what_does_not_fit_is_refused(name, convert):
    rule = get_sequence_rule(name)
    tree = DraftTree.chain([1, 2])
    target, draft = (convert(np.full((3, 4), 0.25)) for _ in range(2))
    coins = convert(np.full(rule.coins(tree), 0.5))
    assert isinstance(rule.commit(tree, target, draft, coins), Commit)
    with pytest.raises(ShapeError, match=r"target_laws of DraftTree\(2 nodes, 2 draws, depth 2\) have shape \(3, V\)"):
        rule.commit(tree, target[:2], draft, coins)
    with pytest.raises(ShapeError, match=r"draft_laws .* or 2 rows at least, got \(1, 4\)"):
        rule.commit(tree, target, draft[:1], coins)
    with pytest.raises(ShapeError, match=r"draft_laws .* got \(3, 3\)"):
        rule.commit(tree, target, draft[:, :3], coins)
    with pytest.raises(ShapeError, match=f"{name} takes {len(coins)} coins"):
        rule.commit(tree, target, draft, coins[1:])
    with pytest.raises(CandidateError, match="node 1: token 4 is not one of 4 tokens"):
        rule.commit(DraftTree.chain([1, 4]), target, draft, coins)
    for coin in (-0.25, 1.0, float("nan")):
        with pytest.raises(OptionError, match=rf"coins lie in \[0, 1\); coin 0 is .*{coin}"):
            rule.commit(tree, target, draft, convert(np.full(len(coins), coin)))
    if name == "point_mass":
        assert isinstance(rule.commit(tree, target, None, coins), Commit)
    else:
        with pytest.raises(ShapeError, match=f"{name} needs the draft_laws"):
            rule.commit(tree, target, None, coins)
        impossible = np.full((3, 4), 0.25)
        impossible[0] = [0.5, 0, 0.5, 0]
        with pytest.raises(CandidateError):
            rule.commit(tree, target, convert(impossible), coins)
    broken_law = np.full((3, 4), 0.25)
    broken_law[:, 3] = np.nan
    with pytest.raises((LawError, CandidateError)):
        rule.commit(tree, convert(broken_law), draft, coins)


def test_an_unnormalised_row_is_named():
    tree = DraftTree.chain([1, 2])
    target = np.full((3, 4), 0.25)
    target[0, 0] = 0.5
    for name in SEQUENCE_RULES:
        rule = get_sequence_rule(name)
        with pytest.raises(LawError, match=r"laws after node -1: target, row 0: probabilities sum to 1 \+0\.25"):
            rule.commit(tree, target, np.full((3, 4), 0.25), np.zeros(rule.coins(tree)))


def test_trees_that_a_rule_cannot_verify_are_refused():
    uniform = np.full((4, 4), 0.25)
    twice = DraftTree.from_sequences([[1], [1]])
    with pytest.raises(CandidateError, match="node 0 was drawn 2 times; traversal takes siblings drawn without"):
        Traversal().commit(twice, uniform[:2], uniform[:2], np.zeros(2))
    with pytest.raises(CandidateError, match="duplicate"):
        SpecTr("rrs_without_replacement").commit(twice, uniform[:2], uniform[:2], np.zeros(4))
    for tree in (twice, DraftTree([1, 2], [-1, -1]), DraftTree([1, 2, 3], [-1, 0, 0])):
        rows = uniform[: len(tree) + 1]
        with pytest.raises(ShapeError, match="block takes one path"):
            Block().commit(tree, rows, rows, np.zeros(len(tree) + 1))


def test_the_draft_laws_that_fit():
    iid, one, without, top = IID(2), IID(1), WithoutReplacement(2), TopThenSample(2)
    fits = {
        "block": {one},
        "traversal": {one, without},
        "spectr": {one, iid},
        "point_mass": {one, iid, without, top},
    }
    assert {
        n: {x for x in (iid, one, without, top) if get_sequence_rule(n).supports(x)} for n in SEQUENCE_RULES
    } == fits
    assert SpecTr("rrs_without_replacement").supports(without)
    with pytest.raises(OptionError, match="no sequence rule 'beam'; there are"):
        get_sequence_rule("beam")
    with pytest.raises(OptionError, match="by must be"):
        commit_law(Block(), DraftTree.chain([]), np.ones((1, 1)), None, by="coins")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", list(SEQUENCE_RULES))
def test_every_coin_decides_something(name):
    rule = get_sequence_rule(name, **({"selector": "rrs"} if name == "spectr" else {}))
    rng = np.random.default_rng(7)
    tree = DraftTree.chain([1, 2])
    moved = np.zeros(rule.coins(tree), dtype=bool)
    for _ in range(400):
        target, draft = random_laws(rng, 3, 4), random_laws(rng, 3, 4)
        coins = rng.random(rule.coins(tree))
        was = rule.commit(tree, target, draft, coins).tokens.tolist()
        for i in range(len(coins)):
            other = coins.copy()
            other[i] = rng.random()
            moved[i] |= rule.commit(tree, target, draft, other).tokens.tolist() != was
    assert moved.all()
