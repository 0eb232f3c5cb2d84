"""Drafts of several tokens: the tree they form, the rules that verify it, and the exact law of what is committed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from ot_spec.arrays import Array, is_exact, is_numpy, may_wait, namespace, to_numpy
from ot_spec.coin import exact_measure
from ot_spec.draft_law import DraftLaw
from ot_spec.errors import CandidateError, OptionError, ShapeError
from ot_spec.law import as_exact, from_probs

Prefix = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class DraftTree:
    """Drafted tokens as a prefix tree, held on the host.

    tokens (N,): token ids. parents (N,): the node before each node, -1 for a child of the root (the last committed
    token); parents come before their children. draws (M,): the node each draw led to, in the order drawn, where
    siblings were drawn more than once; by default every node was drawn once, in the order of the ids. Siblings hold
    different tokens: a token drawn twice is one node of multiplicity 2.

    Laws along a tree are arrays (N + 1, V): row 0 at the root, row i + 1 after node i.

    Raises CandidateError for a token that is no id, a parent that is no earlier node (naming cycles), equal siblings
    and draws that miss a node; ShapeError for arrays that do not fit.

    >>> tree = DraftTree.from_sequences([[5, 7], [5, 8], [5, 7]])
    >>> tree.tokens, tree.parents, tree.multiplicity
    (array([5, 7, 8]), array([-1,  0,  0]), array([3, 2, 1]))
    >>> tree.drawn(0)
    array([1, 2, 1])
    """

    tokens: Any
    parents: Any
    draws: Any = None
    sequences: np.ndarray | None = field(default=None, init=False)
    """Node ids (K, L) of the sequences the tree was made from, -1 past the end of one; None for other trees."""

    def __post_init__(self) -> None:
        tokens, parents = _ids(self.tokens, "tokens"), _ids(self.parents, "parents")
        if tokens.shape != parents.shape:
            raise ShapeError(f"{tokens.size} tokens and {parents.size} parents")
        draws = np.arange(tokens.size) if self.draws is None else _ids(self.draws, "draws")
        _check_nodes(tokens, parents)
        _check_draws(draws, tokens.size)
        for name, value in (("tokens", tokens), ("parents", parents), ("draws", draws)):
            value.setflags(write=False)
            object.__setattr__(self, name, value)

    @classmethod
    def chain(cls, tokens: Any) -> DraftTree:
        """One path; tokens (L,).

        >>> DraftTree.chain([3, 3]).parents
        array([-1,  0])
        """
        tokens = _ids(tokens, "tokens")
        return cls.from_sequences(tokens[None])

    @classmethod
    def from_sequences(cls, tokens: Any) -> DraftTree:
        """The prefix tree of K drafted sequences; tokens (K, L), -1 past the end of a shorter one.

        Nodes are numbered as they are first met; draws keep the order of the sequences at every node. Tokens on a
        device are fetched once.
        """
        tokens = np.asarray(to_numpy(tokens) if hasattr(tokens, "shape") else tokens)
        if tokens.ndim != 2:
            raise ShapeError(f"sequences have shape (K, L), got {tokens.shape}")
        ids, known, parents = np.full(tokens.shape, -1), {}, []
        for row, sequence in enumerate(_ids(tokens.reshape(-1), "tokens").reshape(tokens.shape).tolist()):
            node = -1
            for place, token in enumerate(sequence):
                if token == -1:
                    if any(later != -1 for later in sequence[place:]):
                        raise CandidateError(f"sequence {row}: a token follows its end at position {place}")
                    break
                key = node, token
                if key not in known:
                    known[key] = len(parents)
                    parents.append(node)
                ids[row, place] = node = known[key]
        tree = cls(np.array([token for _, token in known], dtype=np.int64), np.array(parents, dtype=np.int64),
                   ids[ids >= 0])  # fmt: skip
        ids.setflags(write=False)
        object.__setattr__(tree, "sequences", ids)
        return tree

    def __len__(self) -> int:
        return self.tokens.size

    def __repr__(self) -> str:
        return f"DraftTree({len(self)} nodes, {self.draws.size} draws, depth {self.height})"

    @cached_property
    def depth(self) -> np.ndarray:
        """Nodes before each node, (N,): its position counted from the first drafted one.

        >>> DraftTree([4, 5, 6, 7], [-1, 0, 0, 1]).depth
        array([0, 1, 1, 2])
        """
        depth = np.zeros(len(self), dtype=np.int64)
        for node, parent in enumerate(self.parents.tolist()):
            depth[node] = 0 if parent < 0 else depth[parent] + 1
        return depth

    @property
    def height(self) -> int:
        """Tokens on the longest path."""
        return int(self.depth.max(initial=-1)) + 1

    @cached_property
    def multiplicity(self) -> np.ndarray:
        """How often each node was drawn, (N,)."""
        return np.bincount(self.draws, minlength=len(self))

    @cached_property
    def _drawn(self) -> list[list[int]]:
        drawn: list[list[int]] = [[] for _ in range(len(self) + 1)]
        parents = self.parents.tolist()
        for node in self.draws.tolist():
            drawn[parents[node] + 1].append(node)
        return drawn

    @cached_property
    def _by_token(self) -> list[dict[int, int]]:
        tokens = self.tokens.tolist()
        return [{tokens[node]: node for node in nodes} for nodes in self._drawn]

    def drawn(self, node: int) -> np.ndarray:
        """The node each draw at `node` (-1: the root) led to, in the order drawn, repeats included."""
        return np.array(self._drawn[node + 1], dtype=np.int64)

    def children(self, node: int) -> np.ndarray:
        """The distinct children of `node` (-1: the root), in the order first drawn."""
        return np.array(list(dict.fromkeys(self._drawn[node + 1])), dtype=np.int64)

    def child(self, node: int, token: int) -> int:
        """The child of `node` that holds `token`, -1 if none does."""
        return self._by_token[node + 1].get(token, -1)

    def path(self, node: int) -> np.ndarray:
        """Node ids from a child of the root down to `node`; empty for the root, -1."""
        path, parents = [], self.parents
        while node >= 0:
            path.append(node)
            node = int(parents[node])
        return np.array(path[::-1], dtype=np.int64)

    def prefix(self, node: int) -> Prefix:
        """The tokens of `path(node)`."""
        return tuple(self.tokens[self.path(node)].tolist())

    def mask(self) -> np.ndarray:
        """Which node each node attends to, (N, N): mask[i, j] is True iff j is i or before it on its path.

        >>> DraftTree([4, 5, 6], [-1, 0, 0]).mask().astype(int)
        array([[1, 0, 0],
               [1, 1, 0],
               [1, 0, 1]])
        """
        mask = np.eye(len(self), dtype=bool)
        for node, parent in enumerate(self.parents.tolist()):
            if parent >= 0:
                mask[node] |= mask[parent]
        return mask

    def rows(self, laws: Array) -> Array:
        """Laws along the tree, (N + 1, V), from laws along its sequences, (K, L or L + 1, V).

        laws[j, l] is the law after the first l tokens of sequence j; of equal prefixes the first sequence's is taken.
        Where only L are given, rows of nodes at depth L repeat some law: no rule reads them.
        """
        if self.sequences is None:
            raise ShapeError("the tree was not made from sequences; give its laws by node")
        many, length = self.sequences.shape
        if laws.ndim != 3 or laws.shape[0] != many or laws.shape[1] not in (length, length + 1) or not laws.shape[1]:
            raise ShapeError(f"laws of shape {tuple(laws.shape)} do not fit {many} sequences of {length} tokens")
        flat = np.zeros(len(self) + 1, dtype=np.int64)
        for row in range(many - 1, -1, -1):
            for place, node in enumerate(self.sequences[row].tolist()):
                if node >= 0:
                    flat[node + 1] = row * laws.shape[1] + min(place + 1, laws.shape[1] - 1)
        return namespace(laws).take(laws.reshape(-1, laws.shape[-1]), ids_beside(flat, laws), axis=0)


class LawsByNode:
    """Laws along a tree, (N + 1, V), each made when a rule first reads it: `make(row)` is a law (V,).

    A rule that goes down one path reads a few rows of many, and a law of a large vocabulary is dear. `made` holds the
    rows that were read. A rule takes this in place of an array; on a device all rows are made at once.
    """

    ndim = 2

    def __init__(self, rows: int, vocab: int, make: Callable[[int], Array]):
        self.shape = rows, vocab
        self._make = make
        self.made: dict[int, Array] = {}

    def row(self, row: int) -> Array:
        if row not in self.made:
            self.made[row] = self._make(row)
        return self.made[row]

    def __getitem__(self, rows: slice) -> Array:
        """laws[a:b], (b - a, V); of one row, a view."""
        chosen = range(*rows.indices(self.shape[0]))
        if len(chosen) == 1:
            return self.row(chosen[0])[None]
        return namespace(self.row(0)).stack([self.row(row) for row in chosen])


def laws_array(laws: Array | LawsByNode) -> Array:
    """All rows as an array."""
    return laws[:] if isinstance(laws, LawsByNode) else laws


def ids_beside(ids: Any, model: Array) -> Array:
    """A few integers from the host, where `model` lives. The copy does not wait for what a device is doing."""
    ids = np.asarray(ids, dtype=np.int64)
    if is_numpy(model):
        return ids
    placed = namespace(model).asarray(ids)
    return placed if may_wait(model) else placed.to(model.device, non_blocking=True)


def _ids(values: Any, name: str) -> np.ndarray:
    values = np.asarray(to_numpy(values) if hasattr(values, "shape") else values)
    if values.ndim != 1:
        raise ShapeError(f"{name} have one axis, got shape {values.shape}")
    if values.size and values.dtype.kind not in "iu":
        raise CandidateError(f"{name} are integers, got dtype {values.dtype}")
    return values.astype(np.int64)


def _check_nodes(tokens: np.ndarray, parents: np.ndarray) -> None:
    if tokens.size and tokens.min() < 0:
        node = int(np.argmax(tokens < 0))
        raise CandidateError(f"node {node}: {tokens[node]} is no token id")
    seen: dict[tuple[int, int], int] = {}
    for node, (token, parent) in enumerate(zip(tokens.tolist(), parents.tolist(), strict=True)):
        if not -1 <= parent < tokens.size:
            raise CandidateError(f"node {node}: parent {parent} is none of {tokens.size} nodes")
        if parent >= node:
            trail = [node]
            while parent not in trail and parent >= 0:
                trail.append(parent)
                parent = int(parents[parent])
            if parent >= 0:
                raise CandidateError(f"node {parent} is before itself: a cycle of {len(trail) - trail.index(parent)}")
            raise CandidateError(f"node {node}: its parent {trail[1]} comes after it")
        first = seen.setdefault((parent, token), node)
        if first != node:
            raise CandidateError(
                f"node {node} repeats token {token} of its sibling {first}; draw that node twice (draws) instead"
            )


def _check_draws(draws: np.ndarray, size: int) -> None:
    if draws.size and not (draws.min() >= 0 and draws.max() < size):
        raise CandidateError(f"draws lead to nodes {draws.min()}..{draws.max()}, but there are {size} nodes")
    missed = np.setdiff1d(np.arange(size), draws)
    if missed.size:
        raise CandidateError(f"node {missed[0]} was never drawn ({missed.size} such in all)")


class Commit(NamedTuple):
    """What one verified tree adds to the text, on the host.

    tokens (accepted + 1,): those of the accepted path and one more, a correction or, at the end of a path, a bonus.
    path (accepted,): the accepted nodes. accepted: how many.
    """

    tokens: np.ndarray
    path: np.ndarray
    accepted: int

    @classmethod
    def at(cls, tree: DraftTree, node: int, token: int) -> Commit:
        """The path to `node` (-1: nothing accepted), then `token`."""
        path = tree.path(node)
        return cls(np.append(tree.tokens[path], token), path, path.size)


@runtime_checkable
class SequenceRule(Protocol):
    """A rule that commits a path of a drafted tree and one token more, together with the target's law.

    tree: the draft. target_laws (N + 1, V): row 0 the target's law at the root, row i + 1 after node i. draft_laws:
    likewise the law the children of the node were drawn from; rows of nodes without children are not read, and may be
    left out at the end. Either may be a `LawsByNode`. All methods are pure.
    """

    name: str
    exact: bool

    def supports(self, law: DraftLaw) -> bool:
        """Whether what is committed has the target's law where every node's children are candidates of `law`."""
        ...

    def coins(self, tree: DraftTree) -> int:
        """How many coins `commit` takes."""
        ...

    def conditional(self, tree: DraftTree, target_laws: Array, draft_laws: Array) -> Array:
        """P(the accepted path ends at the row's node and y is the token after it | tree), (N + 1, V), total 1."""
        ...

    def commit(self, tree: DraftTree, target_laws: Array, draft_laws: Array, coins: Array) -> Commit:
        """The outcome for coins (coins(tree),) in [0, 1)."""
        ...


def commit_law(
    rule: SequenceRule,
    tree: DraftTree,
    target_laws: Any,
    draft_laws: Any,
    by: Literal["conditional", "commit"] = "commit",
) -> np.ndarray:
    """P(the accepted path ends at the row's node and y is the token after it | tree), (N + 1, V).

    by="commit" measures the coins for which `commit` does so, as fractions; by="conditional" asks the rule. draft_laws
    may be None for a rule that does not read them.
    """
    if by not in ("conditional", "commit"):
        raise OptionError(f"by must be 'conditional' or 'commit', got {by!r}")
    if by == "conditional":
        return to_numpy(rule.conditional(tree, target_laws, draft_laws))
    target_laws, draft_laws = (a if a is None or is_exact(a) else as_exact(a) for a in (target_laws, draft_laws))
    vocab = target_laws.shape[-1]

    def outcome(_: np.ndarray, coins: np.ndarray) -> list[int]:
        done = (rule.commit(tree, target_laws, draft_laws, row) for row in coins)
        return [(int(c.path[-1]) + 1 if c.accepted else 0) * vocab + int(c.tokens[-1]) for c in done]

    one = target_laws.reshape(-1)[0] * 0 + 1
    law = exact_measure(outcome, rows=1, coins=rule.coins(tree), outcomes=(len(tree) + 1) * vocab, one=one)
    return law.reshape(-1, vocab)


def expected_accepted(rule: SequenceRule, tree: DraftTree, target_laws: Any, draft_laws: Any) -> Any:
    """E[accepted | tree]; one more token than that is committed."""
    stops = commit_law(rule, tree, target_laws, draft_laws, by="conditional").sum(axis=1)
    return (stops * np.append(0, tree.depth + 1)).sum()


# ---- laws of whole commits, for small vocabularies

Model = Callable[[Prefix], Any]
"""The next-token law (V,) after a prefix."""


def drafted_sequences(draft: Model, count: int, length: int) -> Iterator[tuple[DraftTree, Any]]:
    """Every draft of `count` independent sequences of `length` tokens, as a tree, with its probability."""
    joint = _cached(draft)
    paths = [(path, weight) for path, weight in _paths(joint, length) if weight]
    for drawn in product(paths, repeat=count):
        weight = drawn[0][1]
        for _, other in drawn[1:]:
            weight = weight * other
        yield DraftTree.from_sequences(np.array([path for path, _ in drawn]).reshape(count, length)), weight


def drafted_trees(draft: Model, laws: Sequence[DraftLaw]) -> Iterator[tuple[DraftTree, Any]]:
    """Every tree whose nodes at depth l have children drawn by laws[l], with its probability.

    A node drawn twice has its children drawn once.
    """
    model = _cached(draft)

    def grow(tree: DraftTree, weight: Any, level: int) -> Iterator[tuple[DraftTree, Any]]:
        if level == len(laws):
            yield tree, weight
            return
        ends = [node for node in range(len(tree)) if tree.depth[node] == level - 1] if level else [-1]
        options = [list(zip(*laws[level].tuples(model(tree.prefix(node))), strict=True)) for node in ends]
        for chosen in product(*options):
            tokens, parents, draws = tree.tokens.tolist(), tree.parents.tolist(), tree.draws.tolist()
            mass = weight
            for node, (drawn, probability) in zip(ends, chosen, strict=True):
                here: dict[int, int] = {}
                mass = probability if mass is None else mass * probability
                for token in drawn.tolist():
                    if token >= 0:
                        if token not in here:
                            here[token] = len(tokens)
                            tokens.append(token)
                            parents.append(node)
                        draws.append(here[token])
            yield from grow(DraftTree(tokens, parents, draws), mass, level + 1)

    yield from grow(DraftTree([], []), None, 0)


def sequence_law(
    rule: SequenceRule,
    target: Model,
    draft: Model,
    drafts: Iterable[tuple[DraftTree, Any]],
    length: int,
    by: Literal["conditional", "commit"] = "conditional",
) -> tuple[np.ndarray, Any]:
    """The law of the first `length` tokens, (V,) * length, and E[accepted], where the target goes on after a commit.

    target, draft: the models. drafts: trees with their probabilities, as `drafted_sequences` gives them. length: at
    least the most tokens one commit holds. A rule is exact iff the law is `joint_law(target, length)`.

    >>> from ot_spec import fractions
    >>> from solvers.sequence import get_sequence_rule
    >>> target, draft = (lambda prefix: fractions(["1/3", "2/3"])), (lambda prefix: fractions(["2/3", "1/3"]))
    >>> law, accepted = sequence_law(
    ...     get_sequence_rule("block"), target, draft, drafted_sequences(draft, count=1, length=2), length=3
    ... )
    >>> accepted, bool((law == joint_law(target, 3)).all())
    (Fraction(11, 9), True)
    """
    model, drafter = _cached(target), _cached(draft)
    vocab = model(()).shape[-1]
    committed: dict[Prefix, Any] = {}
    expected = 0
    for tree, weight in drafts:
        if tree.height >= length:
            raise OptionError(f"length must be at least {tree.height + 1} for a tree of depth {tree.height}")
        prefixes = [tree.prefix(node) for node in range(-1, len(tree))]
        rows = [np.stack([of(prefix) for prefix in prefixes]) for of in (model, drafter)]
        for prefix, law in zip(prefixes, commit_law(rule, tree, *rows, by=by), strict=True):
            committed[prefix] = committed.get(prefix, 0) + weight * law
            expected = expected + weight * len(prefix) * law.sum()
    out = np.zeros((vocab,) * length, dtype=model(()).dtype)
    for prefix, law in committed.items():
        for token, mass in enumerate(law):
            if mass:
                start = (*prefix, token)
                out[start] = out[start] + mass * _continued(model, start, length)
    return out, expected


def joint_law(law: Model, length: int) -> np.ndarray:
    """The law of the first `length` tokens of a model, (V,) * length."""
    return _continued(_cached(law), (), length)


def _continued(model: Model, prefix: Prefix, length: int) -> Any:
    if len(prefix) == length:
        return 1
    law = model(prefix)
    parts = [mass * _continued(model, (*prefix, token), length) for token, mass in enumerate(law)]
    return np.array(parts, dtype=law.dtype)


def _paths(model: Model, length: int) -> Iterator[tuple[Prefix, Any]]:
    if length == 0:
        yield (), model(()).reshape(-1)[0] * 0 + 1
        return
    for path, weight in _paths(model, length - 1):
        for token, mass in enumerate(model(path)):
            if mass:
                yield (*path, token), weight * mass


def _cached(model: Model) -> Model:
    known: dict[Prefix, np.ndarray] = {}

    def law(prefix: Prefix) -> np.ndarray:
        if prefix not in known:
            known[prefix] = to_numpy(from_probs(model(prefix), name=f"law after {prefix}"))
        return known[prefix]

    return law
