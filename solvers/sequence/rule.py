"""What the sequence rules share: going down a tree token by token, or testing where to stop from its ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ot_spec.arrays import (
    Array,
    coins_like,
    constant,
    is_numpy,
    like,
    may_wait,
    namespace,
    or_else,
    pick,
    to_numpy,
    total,
)
from ot_spec.draft_law import DraftLaw
from ot_spec.errors import CandidateError, LawError, OptionError, ShapeError
from ot_spec.tree import Commit, DraftTree, LawsByNode, ids_beside, laws_array
from solvers.selectors.rule import as_laws, residual_or_target


class TreeRule(ABC):
    """A sequence rule, in two readings of the same numbers: `conditional` and `commit`.

    `answers` makes a few integers a tree where the laws are and waits for no device (the coins lie there too); `read`
    turns them into a `Commit` on the host. `commit` is the two together, so a device is waited for once; a caller with
    many trees can fetch the answers of all of them at once. On a CPU `commit` works out only what it comes to: the
    nodes on the way, or the tests up to the one that passes.
    """

    name: str
    exact: bool = True
    reads_draft_laws: bool = True

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @abstractmethod
    def supports(self, law: DraftLaw) -> bool: ...

    @abstractmethod
    def coins(self, tree: DraftTree) -> int: ...

    def conditional(self, tree: DraftTree, target_laws: Array, draft_laws: Array) -> Array:
        """P(the accepted path ends at the row's node and y is the token after it | tree), (N + 1, V), total 1."""
        self._check_laws(tree, target_laws, draft_laws)
        return self._conditional(tree, laws_array(target_laws), laws_array(draft_laws))

    def commit(self, tree: DraftTree, target_laws: Array, draft_laws: Array, coins: Array) -> Commit:
        """The outcome for coins (coins(tree),) in [0, 1).

        Raises CandidateError where a token of the tree cannot come from the draft law it was drawn from, LawError for
        a row that is no law, OptionError for a coin outside [0, 1), ShapeError for arrays that do not fit the tree.
        """
        coins = self._checked(tree, target_laws, draft_laws, coins)
        if may_wait(first_law(target_laws)):
            return self._commit(tree, target_laws, draft_laws, coins)
        return self.read(tree, to_numpy(self._answers(tree, laws_array(target_laws), laws_array(draft_laws), coins)))

    def answers(self, tree: DraftTree, target_laws: Array, draft_laws: Array, coins: Array) -> Array:
        """What `read` needs, a few integers (m,), without waiting for a device."""
        coins = self._checked(tree, target_laws, draft_laws, coins)
        return self._answers(tree, laws_array(target_laws), laws_array(draft_laws), coins)

    @abstractmethod
    def read(self, tree: DraftTree, answers: np.ndarray) -> Commit:
        """The outcome from `answers`; CandidateError where the input was invalid."""

    @abstractmethod
    def _conditional(self, tree: DraftTree, target_laws: Array, draft_laws: Array) -> Array: ...

    @abstractmethod
    def _commit(self, tree: DraftTree, target_laws: Array, draft_laws: Array, coins: Array) -> Commit: ...

    @abstractmethod
    def _answers(self, tree: DraftTree, target_laws: Array, draft_laws: Array, coins: Array) -> Array: ...

    def _checked(self, tree: DraftTree, target_laws: Array, draft_laws: Array, coins: Array) -> Array:
        self._check_laws(tree, target_laws, draft_laws)
        if tuple(coins.shape) != (self.coins(tree),):
            raise ShapeError(f"{self.name} takes {self.coins(tree)} coins for {tree!r}, got shape {tuple(coins.shape)}")
        if may_wait(coins):
            check_coins(coins)
        return like(coins, first_law(target_laws))

    def _check_laws(self, tree: DraftTree, target_laws: Array, draft_laws: Array) -> None:
        if draft_laws is None and self.reads_draft_laws and len(tree):
            raise ShapeError(f"{self.name} needs the draft_laws that the tree was drawn from")
        check_laws(tree, target_laws, draft_laws)


class DescendingRule(TreeRule):
    """Takes a token at the root, goes on while it is a child of the node, and stops at the first that is none."""

    @abstractmethod
    def coins_after(self, draws: int) -> int:
        """How many coins the token after a node takes that so many drafts go on from."""

    @abstractmethod
    def laws_after(self, tree: DraftTree, node: int, target: Array, draft: Array) -> Array:
        """P(y comes after `node` | tree), (1, V)."""

    @abstractmethod
    def tokens_after(self, tree: DraftTree, nodes: list[int], target: Array, draft: Array, coins: Array) -> Array:
        """The tokens after nodes (n,), all with as many draws, from laws (n, V) and coins (n, many)."""

    def coins(self, tree: DraftTree) -> int:
        return int(self._ends(tree)[-1])

    def _ends(self, tree: DraftTree) -> np.ndarray:
        draws = [tree.drawn(node).size for node in range(-1, len(tree))]
        coins = {many: self.coins_after(many) for many in {*draws}}
        return np.cumsum([0, *(coins[many] for many in draws)])

    def _tokens(self, tree: DraftTree, nodes: list[int], target: Array, draft: Array, coins: Array) -> Array:
        xp = namespace(target)
        tokens = self.tokens_after(tree, nodes, target, draft, coins)
        return xp.where(sound(xp, target, coins), tokens, xp.full_like(tokens, -1))

    def _conditional(self, tree: DraftTree, target_laws: Array, draft_laws: Array) -> Array:
        rows: list[Array] = []
        reach: list[Any] = [1] * (len(tree) + 1)
        xp = namespace(target_laws)
        for node in range(-1, len(tree)):
            law = reach[node + 1] * self.laws_after(tree, node, *laws_at(tree, [node], target_laws, draft_laws))
            for child in tree.children(node).tolist():
                token = int(tree.tokens[child])
                reach[child + 1] = law[:, token : token + 1]
                law = xp.concat([law[:, :token], law[:, token : token + 1] * 0, law[:, token + 1 :]], axis=-1)
            rows.append(law)
        return xp.concat(rows, axis=0)

    def _commit(self, tree: DraftTree, target_laws: Array, draft_laws: Array, coins: Array) -> Commit:
        ends, node = self._ends(tree), -1
        while True:
            target, draft = laws_at(tree, [node], target_laws, draft_laws)
            thrown = coins[None, int(ends[node + 1]) : int(ends[node + 2])]
            token = int(self._tokens(tree, [node], target, draft, thrown)[0])
            if token < 0:
                raise CandidateError(f"the draws at node {node} or the laws there are invalid")
            child = tree.child(node, token)
            if child < 0:
                return Commit.at(tree, node, token)
            node = child

    def _answers(self, tree: DraftTree, target_laws: Array, draft_laws: Array, coins: Array) -> Array:
        """The token after every node, (N + 1,)."""
        xp, ends = namespace(target_laws), self._ends(tree)
        groups: dict[int, list[int]] = {}
        for node in range(-1, len(tree)):
            groups.setdefault(tree.drawn(node).size, []).append(node)
        parts, order = [], []
        for nodes in groups.values():
            target, draft = laws_at(tree, nodes, target_laws, draft_laws)
            starts, many = ends[np.array(nodes) + 1], self.coins_after(tree.drawn(nodes[0]).size)
            thrown = take(coins, (starts[:, None] + np.arange(many)).reshape(-1)).reshape(len(nodes), many)
            parts.append(self._tokens(tree, nodes, target, draft, thrown))
            order += nodes
        return take(xp.concat(parts, axis=0), np.argsort(order))

    def read(self, tree: DraftTree, answers: np.ndarray) -> Commit:
        node = -1
        while True:
            token = int(answers[node + 1])
            if token < 0:
                raise CandidateError(f"the draws at node {node}, its laws or its coins are invalid")
            child = tree.child(node, token)
            if child < 0:
                return Commit.at(tree, node, token)
            node = child


class StopTest(NamedTuple):
    """The path ends at row - 1 iff no test before this one passed and coin < rate (strict), y ~ weights then.

    rate (1,); weights (1, V), all zeros where the test passes by rounding only, target (1, V) then instead.
    valid (1,): False where a token before the row has no mass under its draft law.
    """

    row: int
    rate: Array
    weights: Array
    target: Array
    valid: Array


class StoppingRule(TreeRule):
    """Tests one node after the other, children before their parents, and ends the path at the first that passes.

    Coin i belongs to node i, coin N to the token after the path. The root needs none: it passes.
    """

    @abstractmethod
    def tests(self, tree: DraftTree, target_laws: Array, draft_laws: Array) -> Iterator[StopTest]:
        """The tests in order, the root's last; each is worked out when it is asked for."""

    def coins(self, tree: DraftTree) -> int:
        """N + 1: one for each node and one for the token after the path."""
        return len(tree) + 1

    def _conditional(self, tree: DraftTree, target_laws: Array, draft_laws: Array) -> Array:
        xp = namespace(target_laws)
        left, rows = 1, {}
        for test in self.tests(tree, target_laws, draft_laws):
            stop = test.rate if test.row else test.rate * 0 + 1
            rows[test.row] = (left * stop)[:, None] * residual_or_target(xp, test.weights, test.target)
            left = left * (1 - stop)
        return xp.concat([rows[row] for row in range(len(tree) + 1)], axis=0)

    def _commit(self, tree: DraftTree, target_laws: Array, draft_laws: Array, coins: Array) -> Commit:
        coins = coins_like(coins, first_law(target_laws))
        for test in self.tests(tree, target_laws, draft_laws):
            if not bool(test.valid):
                raise CandidateError(
                    f"row {test.row}: a token before it cannot come from its draft law, or a law is none"
                )
            if test.row == 0 or bool(coins[test.row - 1 : test.row] < test.rate):
                weights = or_else(namespace(test.target), test.weights, test.target)
                return Commit.at(tree, test.row - 1, int(pick(weights, coins[None, -1:])[0, 0]))
        raise AssertionError("unreachable: the root passes")

    def _answers(self, tree: DraftTree, target_laws: Array, draft_laws: Array, coins: Array) -> Array:
        """The row at which the path ends and the token after it, (2,); the token is -1 where the input was invalid."""
        xp, coins = namespace(target_laws), coins_like(coins, target_laws)
        tests = list(self.tests(tree, target_laws, draft_laws))
        rows = np.array([test.row for test in tests])
        rates = xp.concat([test.rate for test in tests])
        passed = xp.concat([take(coins, rows[:-1] - 1) < rates[:-1], rates[-1:] == rates[-1:]])
        first = xp.argmax(xp.astype(passed, xp.int64), axis=0, keepdims=True)
        weights = xp.concat([or_else(xp, test.weights, test.target) for test in tests], axis=0)
        token = pick(xp.take(weights, first, axis=0), coins[None, -1:])[0]
        valid = xp.all(xp.concat([test.valid for test in tests])) & sound(xp, target_laws, coins)[0]
        row = xp.take(ids_beside(rows, first), first, axis=0)
        return xp.concat([row, xp.where(valid, token, xp.full_like(token, -1))])

    def read(self, tree: DraftTree, answers: np.ndarray) -> Commit:
        row, token = (int(answer) for answer in answers)
        if token < 0:
            raise CandidateError("a token of the tree cannot come from its draft law, or a law or a coin is none")
        return Commit.at(tree, row - 1, token)


def first_law(laws: Array) -> Array:
    """The laws or, where they are made on demand, the root's (1, V): what they are made of."""
    return laws[:1] if isinstance(laws, LawsByNode) else laws


def check_laws(tree: DraftTree, target_laws: Array, draft_laws: Array) -> None:
    """Raise ShapeError for laws that do not fit the tree, CandidateError for tokens that do not fit the laws."""
    rows = len(tree) + 1
    if target_laws.ndim != 2 or target_laws.shape[0] != rows:
        raise ShapeError(f"target_laws of {tree!r} have shape ({rows}, V), got {tuple(target_laws.shape)}")
    vocab = target_laws.shape[1]
    needed = int(tree.parents.max(initial=-2)) + 2
    if draft_laws is not None and (
        draft_laws.ndim != 2 or not needed <= draft_laws.shape[0] <= rows or draft_laws.shape[1] != vocab
    ):
        raise ShapeError(
            f"draft_laws of {tree!r} have shape ({rows}, {vocab}), or {needed} rows at least, "
            f"got {tuple(draft_laws.shape)}"
        )
    if len(tree) and tree.tokens.max() >= vocab:
        node = int(np.argmax(tree.tokens >= vocab))
        raise CandidateError(f"node {node}: token {tree.tokens[node]} is not one of {vocab} tokens")


def check_coins(coins: Array) -> None:
    host = to_numpy(coins)
    if host.dtype != object and not ((host >= 0) & (host < 1)).all():
        index = int(np.argmin((host >= 0) & (host < 1)))
        raise OptionError(f"coins lie in [0, 1); coin {index} is {host[index]!r}")


def laws_at(tree: DraftTree, nodes: list[int], target_laws: Array, draft_laws: Array) -> tuple[Array, Array]:
    """The laws after nodes (n, V), checked; the target's in place of the draft's where a node has no children."""
    target = rows_of(target_laws, nodes)
    inner = draft_laws is not None and all(tree.drawn(node).size for node in nodes)
    try:
        return as_laws(target, rows_of(draft_laws, nodes) if inner else target)
    except LawError as reason:
        raise LawError(f"laws after node {', '.join(str(node) for node in nodes)}: {reason}") from None


def rows_of(laws: Array, nodes: list[int]) -> Array:
    if len(nodes) == 1:
        return laws[nodes[0] + 1 : nodes[0] + 2]
    return take(laws, np.array(nodes) + 1)


def take(array: Array, index: np.ndarray) -> Array:
    """array[index] along the first axis, for an index on the host."""
    return namespace(array).take(array, ids_beside(index, array), axis=0)


def sound(xp: Any, laws: Array, coins: Array) -> Array:
    """Whether laws (n, V) are finite and their coins (n or 1, m) lie in [0, 1), (n,)."""
    if is_numpy(laws):  # checked where they come in
        return np.ones(len(laws), dtype=bool)
    coins = coins if coins.ndim == 2 else coins[None]
    return xp.isfinite(total(xp, laws)) & xp.all((coins >= 0) & (coins < 1), axis=-1)


def finite(xp: Any, target: Array, draft: Array, rate: Array) -> Array:
    """Whether both rows are finite, (1,); numpy laws are checked where they come in."""
    return rate == rate if is_numpy(target) else xp.isfinite(total(xp, target + draft))


def passing(xp: Any, top: Array, mass: Array, token: int, node: int) -> tuple[Array, Array]:
    """min(1, top/mass) for the draft mass of a node's token (1,), and whether that is positive; numpy raises if not."""
    positive = mass > 0
    if is_numpy(mass) and not positive[0]:
        raise CandidateError(f"node {node}: token {token} has probability 0 under the draft law it was drawn from")
    sure = top >= mass
    return xp.where(sure, constant(1, mass), top / xp.where(sure, constant(1, mass), mass)), positive
