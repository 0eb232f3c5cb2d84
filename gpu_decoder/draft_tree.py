"""Which trees are drafted: policies, and the loop that grows a tree from a drafter's laws."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from gpu_decoder.coins import Coins
from gpu_decoder.drafters import DraftSession, Scores, widened
from gpu_decoder.tree_slots import Block
from ot_spec.arrays import Array, gather, is_exact, is_numpy, like, may_wait, namespace, to_numpy, total
from ot_spec.draft_law import IID, DraftLaw, Fixed, HubPair, TopThenSample, WithoutReplacement
from ot_spec.errors import LawError, OptionError
from ot_spec.tree import DraftTree, LawsByNode


@dataclass(frozen=True)
class Draft:
    """What is handed to a sequence rule: the tree, and the laws its nodes were drawn from (None: nothing was drawn)."""

    tree: DraftTree
    laws: LawsByNode | None


class TreePolicy(ABC):
    """Decides how many children a node gets and by which draft law. `length`: tokens on the longest path."""

    length: int
    sampled: bool = True

    @abstractmethod
    def laws(self) -> list[DraftLaw]:
        """Every draft law that the children of a node may be drawn by."""

    @abstractmethod
    def law_at(self, level: int, drawn: int) -> DraftLaw:
        """The draft law of the children of a node at `level` (0: the root) that was drawn `drawn` times."""


@dataclass(frozen=True)
class Sequences(TreePolicy):
    """`count` independent sequences, merged where they agree (SpecTr): a node drawn m times has m draws below it."""

    count: int
    length: int

    def __post_init__(self) -> None:
        check_size(self.count, self.length)

    def laws(self) -> list[DraftLaw]:
        return [IID(k) for k in range(1, self.count + 1)]

    def law_at(self, level: int, drawn: int) -> DraftLaw:
        return IID(self.count if level == 0 else drawn)


@dataclass(frozen=True)
class Branches(TreePolicy):
    """widths[l] children at every node of level l, drawn by `law` (Sequoia, RSD); repeats, if any, are one node."""

    widths: tuple[int, ...]
    law: Callable[[int], DraftLaw] = WithoutReplacement

    def __post_init__(self) -> None:
        check_size(min(self.widths, default=0), len(self.widths))

    @property
    def length(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return len(self.widths)

    def laws(self) -> list[DraftLaw]:
        return [self._law(width) for width in sorted(set(self.widths))]

    def law_at(self, level: int, drawn: int) -> DraftLaw:
        return self._law(self.widths[level])

    def _law(self, width: int) -> DraftLaw:
        return IID(1) if width == 1 else self.law(width)


@dataclass(frozen=True)
class BestFirst(TreePolicy):
    """The `nodes` prefixes of largest draft probability, at most `length` deep (OPT-Tree 2024): no coin is thrown.

    Nothing is sampled, so the tree is verified by the target's own path (`point_mass`).
    """

    nodes: int
    length: int
    sampled = False

    def __post_init__(self) -> None:
        check_size(self.nodes, self.length)

    def laws(self) -> list[DraftLaw]:
        return [Fixed(np.arange(self.nodes))]

    def law_at(self, level: int, drawn: int) -> DraftLaw:
        raise NotImplementedError("children are chosen, not drawn")


def hub_pairs(width: int) -> DraftLaw:
    if width != 2:
        raise OptionError(f"a hub makes pairs: 2 candidates, not {width}")
    return HubPair()


POLICIES: dict[str, Callable[[int, int], TreePolicy]] = {
    "iid": Sequences,
    "without_replacement": lambda count, length: Branches((count, *[1] * (length - 1))),
    "top_then_sample": lambda count, length: Branches((count, *[1] * (length - 1)), TopThenSample),
    "hub_pair": lambda count, length: Branches((count, *[1] * (length - 1)), hub_pairs),
    "fixed": lambda count, length: BestFirst(count * length, length),
}
"""The default tree of K candidates and length L for each draft law, the first that a rule supports being taken."""


def check_size(candidates: int, length: int) -> None:
    for name, value in (("candidates", candidates), ("length", length)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise OptionError(f"{name} must be an integer of at least 1, got {value!r}")


# ---- growing


@dataclass
class _Growing:
    """One row's tree while it grows. tokens, parents, chances by node; draws in order; law rows by node (-1: root)."""

    text: Sequence[int]
    depth: int
    coins: Coins
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    draws: list[int] = field(default_factory=list)
    frontier: list[int] = field(default_factory=lambda: [-1])
    rows: dict[int, Array] = field(default_factory=dict)
    ids: np.ndarray | None = None  # of the tokens that the law rows are of, where they are not 0, 1, ..
    places: dict[int, int] = field(default_factory=lambda: {-1: -1})  # of nodes among the tokens the drafter has read

    def prefix(self, node: int) -> list[int]:
        path = []
        while node >= 0:
            path.append(self.tokens[node])
            node = self.parents[node]
        return [*self.text, *path[::-1]]

    def named(self, tokens: list[int]) -> list[int]:
        """Token ids of places in a law row; an empty slot stays -1."""
        return tokens if self.ids is None else [int(self.ids[token]) if token >= 0 else -1 for token in tokens]

    def add(self, parent: int, tokens: list[int], chances: list[float]) -> list[int]:
        """Draw these children; the distinct nodes among them."""
        here: dict[int, int] = {}
        for token, chance in zip(tokens, chances, strict=True):
            if token < 0:
                continue
            if token not in here:
                here[token] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(parent)
                self.chances.append(chance)
            self.draws.append(here[token])
        return list(here.values())


LawOf = Callable[[Sequence[int], torch.Tensor], torch.Tensor]
"""(ids of a prefix, logits (V,)) -> processed scores (V,)."""


def grow(
    policy: TreePolicy,
    session: DraftSession,
    texts: Sequence[Sequence[int]],
    depths: Sequence[int],
    coins: Sequence[Coins],
    law: Callable[[torch.Tensor], Array],
    processed: Sequence[LawOf] | None,
    vocab: int,
) -> list[Draft]:
    """A draft for each text, at most depths[row] deep; level by level, all rows and branches in one pass a level.

    law: scores (n, V') -> laws (n, V'), the very arrays that the rule is given. processed: each row's logits
    processors; a node that they leave no token for gets no children. vocab:
    the target's V; laws of fewer tokens are zero on the rest, scores past it are never drawn.
    """
    rows = [_Growing(*given) for given in zip(texts, depths, coins, strict=True)]
    if not any(depths):
        return [_finished(row, policy, vocab) for row in rows]
    scores = session.begin(texts)
    for level in range(max(depths)):
        _lay_out_laws(rows, scores, level, law, processed, vocab)
        _grow_level(policy, rows, level)
        if level + 1 == max(depths):
            break
        blocks = []
        for row in rows:
            reading = row.frontier if level + 1 < row.depth else []
            blocks.append(Block([row.tokens[n] for n in reading], [row.places[row.parents[n]] for n in reading]))
            row.places |= {node: len(row.places) - 1 + i for i, node in enumerate(reading)}
            row.frontier = reading
        if not any(block.tokens for block in blocks):
            break
        scores = session.extend(blocks)
    session.end()
    return [_finished(row, policy, vocab) for row in rows]


def _lay_out_laws(
    rows: list[_Growing],
    scores: list[Scores],
    level: int,
    law: Callable[[torch.Tensor], Array],
    processed: Sequence[LawOf] | None,
    vocab: int,
) -> None:
    """The laws after the frontier's nodes; a node where the drafter proposes nothing leaves the frontier."""
    given: list[torch.Tensor] = []
    ids = next((found.ids for found in scores if found.ids is not None), None)
    for row, found in zip(rows, scores, strict=True):
        if level >= row.depth:
            row.frontier = []
        if found.proposes is not None:
            kept = [place for place, node in enumerate(row.frontier) if found.proposes[place]]
            given.append(found.logits[kept])
            row.frontier = [row.frontier[place] for place in kept]
        else:
            given.append(found.logits[: len(row.frontier)])
    if not any(len(part) for part in given):
        return
    logits = torch.cat([part if ids is not None else part[..., :vocab] for part in given if len(part)])
    if processed is not None:
        if ids is not None:
            logits, ids = widened(logits, ids, vocab), None
        logits = torch.nn.functional.pad(logits, (0, vocab - logits.shape[-1]), value=-torch.inf)
        asked = [(of, row.prefix(node)) for of, row in zip(processed, rows, strict=True) for node in row.frontier]
        logits = torch.stack([of(ids, one) for (of, ids), one in zip(asked, logits, strict=True)])
        possible = (logits > -torch.inf).any(-1)
        left = iter(possible.tolist())
        for row in rows:
            row.frontier = [node for node in row.frontier if next(left)]
        logits = logits[possible]
        if not len(logits):
            return
    if ids is not None and may_wait(ids) and not bool((ids[1:] > ids[:-1]).all()):  # ties fall to the lowest id
        ids, order = ids.sort()
        logits = logits[:, order]
    laws, place = law(logits), 0
    if not is_numpy(laws):  # a device reads all of them
        laws, ids = _widened(laws, ids, vocab), None
    names = None if ids is None else to_numpy(ids)
    for row in rows:
        row.ids = names
        for node in row.frontier:
            row.rows[node] = laws[place]
            place += 1


def _widened(laws: Array, ids: torch.Tensor | np.ndarray | None, vocab: int) -> Array:
    """Laws of the tokens `ids`, or of the first ones, over V tokens."""
    if ids is None and laws.shape[-1] == vocab:
        return laws
    xp = namespace(laws)
    if is_exact(laws):
        wide = np.full((len(laws), vocab), laws[0, 0] * 0)
    else:
        wide = xp.zeros((len(laws), vocab), dtype=laws.dtype, device=laws.device)
    wide[:, slice(laws.shape[-1]) if ids is None else ids] = laws
    return wide


def _grow_level(policy: TreePolicy, rows: list[_Growing], level: int) -> None:
    """Children of every frontier, which become the next ones."""
    asked = [(row, node) for row in rows for node in row.frontier]
    laws = [row.rows[node] for row, node in asked]
    if isinstance(policy, BestFirst):
        tops = iter(_most_probable(laws, policy.nodes))
        for row in rows:
            row.frontier = _best(policy, row, [next(tops) for _ in row.frontier])
        return
    drawn = {id(row): np.bincount(row.draws, minlength=len(row.tokens)) for row in rows if row.draws}
    of = [policy.law_at(level, int(drawn[id(row)][node]) if node >= 0 else 1) for row, node in asked]
    coins = [row.coins.random(law.k) for (row, _), law in zip(asked, of, strict=True)]
    found = _samples(laws, of, coins)
    for row in rows:
        row.frontier = []
    for (row, node), tokens in zip(asked, found, strict=True):
        row.frontier += row.add(node, row.named(tokens), [1.0] * len(tokens))


def _samples(laws: list[Array], of: list[DraftLaw], coins: list[np.ndarray]) -> list[list[int]]:
    """What each law draws, those of one kind together; from a device it comes in one copy."""
    groups: dict[tuple[str, int], list[int]] = {}
    for place, law in enumerate(of):
        groups.setdefault((law.name, law.k), []).append(place)
    found: list[list[int]] = [[]] * len(laws)
    parts = []
    for places in groups.values():
        xp = namespace(laws[0])
        masses = xp.stack([laws[place] for place in places])
        tokens = of[places[0]].sample(masses, like(np.stack([coins[place] for place in places]), masses)).tokens
        if is_numpy(masses):
            for place, row in zip(places, tokens.tolist(), strict=True):
                # where the support is short, all of it is drawn, as by the same law with fewer slots
                found[place] = [t for t in row if t >= 0 and laws[place][t] > 0] if -1 in row else row
            continue
        nothing = xp.full_like(tokens, -1)
        held = gather(xp, masses, xp.where(tokens < 0, xp.zeros_like(tokens), tokens)) > 0
        tokens = xp.where(held | ~xp.any(tokens < 0, axis=-1, keepdims=True), tokens, nothing)
        parts.append(xp.where(xp.isfinite(total(xp, masses, keepdims=True)), tokens, 2 * nothing).reshape(-1))
    if not parts:
        return found
    host = to_numpy(namespace(*parts).concat(parts)).tolist()
    for places in groups.values():
        for place in places:
            found[place], host = host[: of[place].k], host[of[place].k :]
            if -2 in found[place]:
                raise LawError("logits are NaN or infinite, or all are -inf")
    return found


def _most_probable(laws: list[Array], nodes: int) -> list[list[tuple[float, int]]]:
    """The most probable tokens of each law with their masses; of laws on a device, in two copies to the host."""
    if not laws:
        return []
    many = min(nodes, laws[0].shape[-1])
    if is_numpy(laws[0]):
        ids = [np.argsort(-law, kind="stable")[:many] for law in laws]
        top = [law[chosen] for law, chosen in zip(laws, ids, strict=True)]
    else:
        tops = [law.topk(many) for law in laws]
        top, ids = (to_numpy(torch.stack(column)) for column in zip(*tops, strict=True))
    return [
        list(zip(map(float, masses), chosen.tolist(), strict=True)) for masses, chosen in zip(top, ids, strict=True)
    ]


def _best(policy: BestFirst, row: _Growing, tops: list[list[tuple[float, int]]]) -> list[int]:
    """Children that may be among the most probable prefixes once the tree is whole."""
    offers: list[tuple[float, int, int]] = []
    for node, pairs in zip(row.frontier, tops, strict=True):
        chance = row.chances[node] if node >= 0 else 1.0
        offers += [(-chance * mass, node, token) for mass, token in pairs if mass > 0]
    least = sorted(-c for c in row.chances)[: policy.nodes]
    bar = least[-1] if len(least) == policy.nodes else 0.0
    found: list[int] = []
    for minus, node, token in sorted(offers)[: policy.nodes]:
        if minus < bar:
            found += row.add(node, row.named([token]), [-minus])
    return found


def _finished(row: _Growing, policy: TreePolicy, vocab: int) -> Draft:
    if not policy.sampled:
        return Draft(_pruned(row, policy), None)
    if not row.tokens:
        return Draft(DraftTree([], []), None)
    tree = DraftTree(row.tokens, row.parents, row.draws)
    inner = max(row.parents, default=-1) + 2  # rows of leaves at the end are left out

    def law(place: int) -> Array:
        # a node without children: nothing reads its law
        law = row.rows[place - 1] if place - 1 in row.rows else next(iter(row.rows.values()))
        return _widened(law[None], row.ids, vocab)[0]

    return Draft(tree, LawsByNode(inner, vocab, law))


def _pruned(row: _Growing, policy: TreePolicy) -> DraftTree:
    """The tree of the most probable nodes; a node is no more probable than the one before it."""
    assert isinstance(policy, BestFirst)
    order = sorted(range(len(row.tokens)), key=lambda node: (-row.chances[node], node))[: policy.nodes]
    kept: dict[int, int] = {-1: -1} | {node: place for place, node in enumerate(sorted(order))}
    nodes = [node for node in kept if node >= 0]
    return DraftTree([row.tokens[n] for n in nodes], [kept[row.parents[n]] for n in nodes])
