"""Laws of the candidates X = (x_1, .., x_k), given the draft's next-token law d.

Each class answers four questions about one law of candidates: how to sample it, which tuples and sets of tokens it
produces with which probability (small vocabularies), with which probability all candidates lie inside a prefix of
an order (`inside`, any vocabulary), and with which probability a token is among them (`contains`).

A slot that holds no candidate, because the law has fewer than k tokens to offer, is -1 and comes last.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain, combinations, permutations
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from ot_spec import kernels
from ot_spec.arrays import (
    Array,
    check_coins,
    coins_like,
    constant,
    cumulative,
    gather,
    is_exact,
    like,
    namespace,
    order_by_ratio,
    pick,
    positions,
    to_numpy,
    total,
)
from ot_spec.errors import CandidateError, OptionError, ShapeError, VocabularyError
from ot_spec.law import from_probs


class Candidates(NamedTuple):
    """tokens (..., k), -1 past `count`; count (...)."""

    tokens: Array
    count: Array


class Size(NamedTuple):
    """How many tuples, sets and membership edges an enumeration would build; upper bounds, found without building."""

    tuples: int
    sets: int
    edges: int


@runtime_checkable
class DraftLaw(Protocol):
    """What every law of candidates answers; `draft` is the next-token law (..., V) it is made from."""

    @property
    def name(self) -> str: ...

    @property
    def k(self) -> int: ...

    def sample(self, draft: Array, coins: Array) -> Candidates:
        """Candidates from coins (..., k) in [0, 1), one coin a slot."""
        ...

    def tuples(self, draft: Array) -> tuple[np.ndarray, np.ndarray]:
        """Every tuple (N, k) of positive probability, with its probability (N,), for one law (V,)."""
        ...

    def sets(self, draft: Array) -> tuple[np.ndarray, np.ndarray]:
        """Every set of candidates as ascending ids padded with -1 (N, k), with its probability (N,)."""
        ...

    def inside(self, draft: Array, order: Array) -> Array:
        """P(all candidates are among the first i tokens of `order`), i = 0..V: (..., V + 1)."""
        ...

    def contains(self, draft: Array) -> Array:
        """P(y is among the candidates): (..., V)."""
        ...

    def size(self, draft: Array) -> Size: ...

    def prefix_order(self, target: Array, draft: Array) -> Array | None:
        """An order (..., V) in which some optimal cut is a prefix, or None where no such order is known."""
        ...


def _check_k(k: Any) -> None:
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise OptionError(f"k must be an integer of at least 1, got {k!r}")


def _one_law(draft: Array) -> np.ndarray:
    law = to_numpy(draft)
    if law.ndim != 1:
        raise ShapeError(f"enumeration takes one law of shape (V,), got {law.shape}")
    return law


def _slots(coins: Array, k: int) -> None:
    if coins.ndim == 0 or coins.shape[-1] != k:
        raise ShapeError(f"need {k} coins along the last axis, one a candidate, got shape {tuple(coins.shape)}")
    check_coins(coins)


def collapse(tuples: np.ndarray, probs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tuples (N, k) to sets: ascending distinct ids padded with -1, probabilities summed."""
    width = tuples.shape[1]
    ordered = np.sort(tuples, axis=1)
    ordered[:, 1:][ordered[:, 1:] == ordered[:, :-1]] = -1
    last = np.iinfo(ordered.dtype).max
    ordered = np.sort(np.where(ordered < 0, last, ordered), axis=1)
    members, which = np.unique(np.where(ordered == last, -1, ordered), axis=0, return_inverse=True)
    sums = np.zeros(len(members), dtype=probs.dtype)
    np.add.at(sums, which.reshape(-1), probs)
    return members.reshape(-1, width), sums


def inside_by_sets(law: DraftLaw, draft: Array, order: Array) -> np.ndarray:
    """`inside` for one law by enumerating its sets: the reference for every closed form."""
    members, probs = law.sets(draft)
    order = to_numpy(order)
    place = np.empty(order.size + 1, dtype=np.int64)
    place[order] = np.arange(1, order.size + 1)
    place[-1] = 0
    inside = np.zeros(order.size + 1, dtype=probs.dtype)
    np.add.at(inside, place[members].max(axis=1), probs)
    return np.cumsum(inside)


def contains_by_sets(law: DraftLaw, draft: Array) -> np.ndarray:
    """`contains` for one law by enumerating its sets."""
    members, probs = law.sets(draft)
    mass = np.zeros(_one_law(draft).size + 1, dtype=probs.dtype)
    np.add.at(mass, members, np.broadcast_to(probs[:, None], members.shape))
    return mass[:-1]


def _by_rows(function: Any, width: int, draft: Array, *others: Array) -> Array:
    """Apply `function` of host rows, giving (width,), to each leading index; back in the namespace of `draft`."""
    lead = np.broadcast_shapes(tuple(draft.shape[:-1]), *(tuple(o.shape[:-1]) for o in others))
    arrays = [to_numpy(a) for a in (draft, *others)]
    arrays = [np.broadcast_to(a, (*lead, a.shape[-1])).reshape(-1, a.shape[-1]) for a in arrays]
    rows = [function(*parts) for parts in zip(*arrays, strict=True)]
    return like(np.array(rows, dtype=arrays[0].dtype).reshape(*lead, width), draft)


def _counted(tokens: Array) -> Candidates:
    xp = namespace(tokens)
    return Candidates(tokens, xp.sum(xp.astype(tokens >= 0, xp.int64), axis=-1))


def _normalised(xp: Any, weights: Array) -> Array:
    """Each row divided by its total; rows of zeros stay."""
    mass = total(xp, weights, keepdims=True)
    return xp.where(mass > 0, weights / xp.where(mass > 0, mass, constant(1, mass)), constant(0, weights))


def _with_zero(xp: Any, sums: Array) -> Array:
    return xp.concat([sums[..., :1] * 0, sums], axis=-1)


@dataclass(frozen=True)
class IID:
    """k independent draws of d. P(X inside H) = d(H)^k; an optimal cut is a prefix of t/d ascending (Hu 2025).

    >>> IID(2).inside(from_probs([0.5, 0.5]), np.array([0, 1]))
    array([0.  , 0.25, 1.  ])
    """

    k: int
    name = "iid"

    def __post_init__(self) -> None:
        _check_k(self.k)

    def sample(self, draft: Array, coins: Array) -> Candidates:
        _slots(coins, self.k)
        return _counted(pick(draft, coins))

    def tuples(self, draft: Array) -> tuple[np.ndarray, np.ndarray]:
        law = _one_law(draft)
        tokens = _product([np.flatnonzero(law > 0)] * self.k)
        return tokens, np.multiply.reduce(law[tokens], axis=1)

    def sets(self, draft: Array) -> tuple[np.ndarray, np.ndarray]:
        law = _one_law(draft)
        support = np.flatnonzero(law > 0)
        members, probs = [], []
        for size in range(1, min(self.k, support.size) + 1):
            chosen = _subsets(support, size)
            # k! times the coefficient of x^k in prod (e^(d_y x) - 1), a sum of positive terms
            series = np.zeros((len(chosen), self.k + 1), dtype=law.dtype)
            series[:, 0] = 1
            for slot in range(size):
                mass, old = law[chosen[:, slot]], series
                series = np.zeros_like(old)
                for power in range(1, self.k + 1):
                    term = mass**power / constant(math.factorial(power), law)
                    series[:, power:] += old[:, : self.k + 1 - power] * term[:, None]
            members.append(np.pad(chosen, ((0, 0), (0, self.k - size)), constant_values=-1))
            probs.append(series[:, self.k] * math.factorial(self.k))
        return np.concatenate(members), np.concatenate(probs)

    def inside(self, draft: Array, order: Array) -> Array:
        xp = namespace(draft)
        sums = cumulative(xp, gather(xp, draft, like(order, draft)))
        if not is_exact(draft):  # the whole vocabulary is certain, whatever the rounding
            sums = xp.minimum(sums / sums[..., -1:], constant(1, sums))
        return _with_zero(xp, sums**self.k)

    def contains(self, draft: Array) -> Array:
        if is_exact(draft):
            return 1 - (1 - draft) ** self.k
        xp = namespace(draft)
        sure = draft >= 1
        zero = constant(0, draft)
        return xp.where(sure, constant(1, draft), -xp.expm1(self.k * xp.log1p(-xp.where(sure, zero, draft))))

    def size(self, draft: Array) -> Size:
        support = int((_one_law(draft) > 0).sum())
        counts = [math.comb(support, j) for j in range(1, min(self.k, support) + 1)]
        return Size(support**self.k, sum(counts), sum(j * c for j, c in enumerate(counts, 1)))

    def prefix_order(self, target: Array, draft: Array) -> Array:
        return order_by_ratio(target, draft)


@dataclass(frozen=True)
class WithoutReplacement(IID):
    """min(k, support) distinct draws: each from d with the tokens drawn before removed, renormalised.

    The order statistics of exponential clocks of rates d_y. P(X inside H) is taken by quadrature over the time at
    which the k-th clock rings, for all prefixes in one pass (error below 1e-15); an optimal cut is a prefix of t/d
    ascending here too. Exact laws are enumerated.
    """

    k: int
    name = "without_replacement"

    def sample(self, draft: Array, coins: Array) -> Candidates:
        _slots(coins, self.k)
        xp = namespace(draft)
        coins = coins_like(coins, draft)
        lead = np.broadcast_shapes(tuple(draft.shape[:-1]), tuple(coins.shape[:-1]))
        left = xp.broadcast_to(draft, (*lead, draft.shape[-1]))
        coins = xp.broadcast_to(coins, (*lead, self.k))
        slots = []
        for slot in range(self.k):
            token = pick(left, coins[..., slot : slot + 1])
            open_ = gather(xp, left, token) > 0
            slots.append(xp.where(open_, token, xp.full_like(token, -1)))
            left = xp.where(positions(xp, left) == token, constant(0, left), left)
        tokens = xp.concat(slots, axis=-1)
        return _counted(tokens)

    def tuples(self, draft: Array) -> tuple[np.ndarray, np.ndarray]:
        law = _one_law(draft)
        support = np.flatnonzero(law > 0)
        many = min(self.k, support.size)
        tokens = _rows_of(permutations(range(support.size), many), support, many)
        left = np.broadcast_to(law, (len(tokens), law.size)).copy()
        probs = np.ones(len(tokens), dtype=law.dtype)
        for slot in range(many):
            chosen = tokens[:, slot]
            probs = probs * (law[chosen] / left.sum(axis=1))  # in this order small masses keep their digits
            left[np.arange(len(tokens)), chosen] = constant(0, law)
        return np.pad(tokens, ((0, 0), (0, self.k - many)), constant_values=-1), probs

    def sets(self, draft: Array) -> tuple[np.ndarray, np.ndarray]:
        law = _one_law(draft)
        support = np.flatnonzero(law > 0)
        many = min(self.k, support.size)
        chosen = _subsets(support, many)
        members = np.pad(chosen, ((0, 0), (0, self.k - many)), constant_values=-1)
        if many == support.size:  # nothing is left behind
            return members, law[:1] * 0 + 1
        every = law.sum()
        masses = law[chosen]
        # P(T are the first |T|) = sum over the last y of P(T - y) d_y / (1 - d(T - y)), for T as bits
        first = np.zeros((len(chosen), 1 << many), dtype=law.dtype)
        first[:, 0] = 1
        for bits in range(1 << many):
            held = [slot for slot in range(many) if bits >> slot & 1]
            if len(held) == many:
                continue
            left = every - masses[:, held].sum(axis=1) if is_exact(law) else _complement(law, chosen[:, held])
            for slot in range(many):
                if not bits >> slot & 1:
                    first[:, bits | 1 << slot] += first[:, bits] * (masses[:, slot] / left)
        return members, first[:, -1].copy()

    def inside(self, draft: Array, order: Array) -> Array:
        if self.k == 1:
            return IID(1).inside(draft, order)
        if is_exact(draft):
            return _by_rows(
                lambda row, o: inside_by_sets(self, row, o.astype(np.int64)), order.shape[-1] + 1, draft, order
            )
        return _by_rows(self._inside_row, order.shape[-1] + 1, draft, order)

    def _inside_row(self, draft: np.ndarray, order: np.ndarray) -> np.ndarray:
        rates = kernels.measurable(draft)[order.astype(np.int64)]
        support = np.concatenate([[0], np.cumsum(rates > 0)])
        if support[-1] <= self.k:  # every token of the support is a candidate
            return (support == support[-1]).astype(np.float64)
        beyond = np.concatenate([np.cumsum(rates[::-1])[::-1], [0.0]])
        times = kernels.nodes(beyond[beyond > 0].min(), -12.0 - math.log(beyond[0]))
        inside = kernels.prefix_inside(rates, beyond, self.k, times, kernels.STEP)
        return np.maximum.accumulate(inside)

    def contains(self, draft: Array) -> Array:
        if self.k == 1:
            return draft
        if is_exact(draft):
            return _by_rows(lambda row: contains_by_sets(self, row), draft.shape[-1], draft)
        return _by_rows(self._contains_row, draft.shape[-1], draft)

    def _contains_row(self, draft: np.ndarray) -> np.ndarray:
        included = (draft > 0).astype(np.float64)
        rates = kernels.measurable(draft[draft > 0])
        if rates.size > self.k:
            times = kernels.nodes(rates.min(), -40.0 - math.log(rates.sum()))
            included[draft > 0] = kernels.inclusion(rates, self.k, times, kernels.STEP)
        return included

    def size(self, draft: Array) -> Size:
        support = int((_one_law(draft) > 0).sum())
        many = min(self.k, support)
        sets = math.comb(support, many)
        return Size(sets * math.factorial(many), sets, sets * many)


@dataclass(frozen=True)
class TopThenSample:
    """The k - 1 most likely tokens of d (among equals the lowest ids), then one draw of the rest renormalised.

    Where d has no mass outside those tokens the last slot is empty. Hu 2025 ("greedy" candidates).
    """

    k: int
    name = "top_then_sample"

    def __post_init__(self) -> None:
        _check_k(self.k)

    def split(self, draft: Array) -> tuple[Array, Array]:
        """The fixed tokens (..., min(k - 1, V)) and the law of the last one, all zeros where there is none."""
        xp = namespace(draft)
        top = xp.argsort(-draft, axis=-1, stable=True)[..., : self.k - 1]
        held = xp.zeros(draft.shape, dtype=xp.bool, device=getattr(draft, "device", None))
        for slot in range(top.shape[-1]):
            held = held | (positions(xp, draft) == top[..., slot : slot + 1])
        rest = xp.where(held, constant(0, draft), draft)
        return top, _normalised(xp, rest)

    def sample(self, draft: Array, coins: Array) -> Candidates:
        _slots(coins, self.k)
        xp = namespace(draft)
        top, rest = self.split(draft)
        last = pick(rest, coins[..., -1:])
        last = xp.where(total(xp, rest, keepdims=True) > 0, last, xp.full_like(last, -1))
        lead = np.broadcast_shapes(tuple(top.shape[:-1]), tuple(last.shape[:-1]))
        parts = [xp.broadcast_to(top, (*lead, top.shape[-1])), xp.broadcast_to(last, (*lead, 1))]
        short = self.k - 1 - top.shape[-1]
        if short:
            parts.append(xp.full((*lead, short), -1, dtype=last.dtype, device=getattr(last, "device", None)))
        tokens = xp.concat(parts, axis=-1)
        return _counted(tokens)

    def tuples(self, draft: Array) -> tuple[np.ndarray, np.ndarray]:
        law = _one_law(draft)
        top, rest = self.split(law)
        last = np.flatnonzero(rest > 0)
        probs = rest[last]
        if not last.size:
            last, probs = np.array([-1]), np.ones(1, dtype=law.dtype)
        tokens = np.concatenate([np.broadcast_to(top, (last.size, top.size)), last[:, None]], axis=1)
        return np.pad(tokens, ((0, 0), (0, self.k - tokens.shape[1])), constant_values=-1), probs

    def sets(self, draft: Array) -> tuple[np.ndarray, np.ndarray]:
        return collapse(*self.tuples(draft))

    def inside(self, draft: Array, order: Array) -> Array:
        xp = namespace(draft)
        top, rest = self.split(draft)
        order = like(order, draft)
        nothing = total(xp, rest, keepdims=True) <= 0
        sums = cumulative(xp, gather(xp, rest, order))
        sums = _with_zero(xp, xp.where(nothing, constant(1, sums), sums))
        reached = xp.zeros(order.shape, dtype=xp.int64, device=getattr(order, "device", None))
        for slot in range(top.shape[-1]):
            reached = reached + xp.astype(order == top[..., slot : slot + 1], xp.int64)
        reached = xp.cumulative_sum(reached, axis=-1) == top.shape[-1]
        always = xp.full(
            (*reached.shape[:-1], 1), top.shape[-1] == 0, dtype=xp.bool, device=getattr(order, "device", None)
        )
        return xp.where(xp.concat([always, reached], axis=-1), sums, constant(0, sums))

    def contains(self, draft: Array) -> Array:
        xp = namespace(draft)
        top, rest = self.split(draft)
        for slot in range(top.shape[-1]):
            rest = xp.where(positions(xp, draft) == top[..., slot : slot + 1], constant(1, rest), rest)
        return rest

    def size(self, draft: Array) -> Size:
        many = max(1, int((self.split(_one_law(draft))[1] > 0).sum()))
        return Size(many, many, many * self.k)

    def prefix_order(self, target: Array, draft: Array) -> Array:
        xp = namespace(target, draft)
        top, rest = self.split(draft)
        first = xp.zeros(rest.shape, dtype=xp.bool, device=getattr(rest, "device", None))
        for slot in range(top.shape[-1]):
            first = first | (positions(xp, rest) == top[..., slot : slot + 1])
        order = order_by_ratio(target, rest)
        return gather(xp, order, xp.argsort(xp.astype(~gather(xp, first, order), xp.int64), axis=-1, stable=True))


@dataclass(frozen=True)
class HubPair(TopThenSample):
    """Two candidates of which one is the hub a: x_1 from d; x_2 = a unless x_1 = a, then from d without a (SpecHub
    2024). P((i, a)) = d(i), P((a, i)) = d(a) d(i)/(1 - d(a)).

    As sets these are the hub and one draw of d without it, renormalised. Hence Q(H) = 0 unless a is in H, and is
    additive over the rest of H: some optimal cut is empty or holds a and the tokens with t/d~ < 1, a prefix of the
    order "a first, then t/d~ ascending". Where d(a) = 1 there is no second candidate: the slot is empty.

    hub: the id of a, which may have no mass in d; None for the most likely token (among equals the lowest id).

    >>> tokens, probs = HubPair().tuples(from_probs([0.5, 0.25, 0.25]))
    >>> tokens.tolist(), probs.tolist()
    ([[0, 1], [0, 2], [1, 0], [2, 0]], [0.25, 0.25, 0.25, 0.25])
    """

    k: int = field(default=2, init=False)
    hub: int | None = None
    name = "hub_pair"

    def __post_init__(self) -> None:
        if self.hub is None:
            return
        if isinstance(self.hub, bool) or not isinstance(self.hub, int | np.integer) or self.hub < 0:
            raise OptionError(f"hub must be a token id or None, got {self.hub!r}")
        object.__setattr__(self, "hub", int(self.hub))

    def split(self, draft: Array) -> tuple[Array, Array]:
        """The hub (..., 1) and the law of the other candidate, all zeros where there is none."""
        if self.hub is None:
            return TopThenSample(2).split(draft)
        if self.hub >= draft.shape[-1]:
            raise OptionError(f"hub {self.hub} is not one of {draft.shape[-1]} tokens")
        xp = namespace(draft)
        hub = xp.full((*draft.shape[:-1], 1), self.hub, dtype=xp.int64, device=getattr(draft, "device", None))
        rest = xp.where(positions(xp, draft) == hub, constant(0, draft), draft)
        return hub, _normalised(xp, rest)

    def sample(self, draft: Array, coins: Array) -> Candidates:
        _slots(coins, 2)
        xp = namespace(draft)
        hub, rest = self.split(draft)
        first, other = pick(draft, coins[..., :1]), pick(rest, coins[..., 1:])
        other = xp.where(total(xp, rest, keepdims=True) > 0, other, xp.full_like(other, -1))
        tokens = xp.concat([first, xp.where(first == hub, other, hub)], axis=-1)
        return _counted(tokens)

    def tuples(self, draft: Array) -> tuple[np.ndarray, np.ndarray]:
        law = _one_law(draft)
        (hub,), rest = self.split(law)
        others = np.flatnonzero(rest > 0)
        if not others.size:
            return np.array([[hub, -1]]), np.full(1, constant(1, law))
        hubs = np.full(others.size, hub)
        after = [np.stack([others, hubs], axis=1)]
        probs = [law[others]]
        if law[hub] > 0:
            after.insert(0, np.stack([hubs, others], axis=1))
            probs.insert(0, law[hub] * rest[others])
        return np.concatenate(after), np.concatenate(probs)

    def size(self, draft: Array) -> Size:
        many = max(1, int((self.split(_one_law(draft))[1] > 0).sum()))
        return Size(2 * many, many, 2 * many)


@dataclass(frozen=True, eq=False)
class Fixed:
    """Candidates that are known beforehand: (..., k) ids, -1 for an empty slot at the end. The draft is not read."""

    candidates: Any
    name = "fixed"

    def __post_init__(self) -> None:
        xp = namespace(self.candidates)
        try:
            tokens = xp.asarray(self.candidates)
        except ValueError as reason:
            raise ShapeError("fixed candidates need the same number of slots in every row") from reason
        if tokens.ndim == 0 or tokens.shape[-1] == 0:
            raise ShapeError(f"fixed candidates need a last axis of at least one slot, got {tuple(tokens.shape)}")
        if not xp.isdtype(tokens.dtype, "integral"):
            raise CandidateError(f"fixed candidates are token ids, got dtype {tokens.dtype}")
        object.__setattr__(self, "candidates", tokens)

    @property
    def k(self) -> int:
        return int(self.candidates.shape[-1])

    def _members(self, draft: Array) -> Array:
        tokens = like(self.candidates, draft)
        host = np.atleast_2d(to_numpy(tokens))
        bad = (host >= draft.shape[-1]) | (host < -1)
        if bad.any():
            row, slot = (int(i[0]) for i in np.nonzero(bad.reshape(-1, self.k)))
            raise CandidateError(
                f"row {row}, slot {slot}: candidate {host.reshape(-1, self.k)[row, slot]} "
                f"is not one of {draft.shape[-1]} tokens"
            )
        return tokens

    def sample(self, draft: Array, coins: Array) -> Candidates:
        tokens = self._members(draft)
        xp = namespace(tokens)
        lead = np.broadcast_shapes(tuple(tokens.shape[:-1]), tuple(coins.shape[:-1]), tuple(draft.shape[:-1]))
        tokens = xp.broadcast_to(tokens, (*lead, self.k))
        return _counted(tokens)

    def tuples(self, draft: Array) -> tuple[np.ndarray, np.ndarray]:
        law = _one_law(draft)
        return _one_law(self._members(law))[None, :], np.asarray([law[0] * 0 + 1], dtype=law.dtype)

    def sets(self, draft: Array) -> tuple[np.ndarray, np.ndarray]:
        return collapse(*self.tuples(draft))

    def contains(self, draft: Array) -> Array:
        xp = namespace(draft)
        tokens = self._members(draft)
        held = xp.any(tokens[..., :, None] == positions(xp, draft), axis=-2)
        held = xp.broadcast_to(held, np.broadcast_shapes(tuple(held.shape), tuple(draft.shape)))
        return xp.where(held, constant(1, draft), constant(0, draft))

    def inside(self, draft: Array, order: Array) -> Array:
        xp = namespace(draft)
        held = self.contains(draft)
        seen = _with_zero(xp, cumulative(xp, gather(xp, held, like(order, draft))))
        return xp.where(seen >= seen[..., -1:], constant(1, seen), constant(0, seen))

    def size(self, draft: Array) -> Size:
        return Size(1, 1, len({int(i) for i in to_numpy(self.candidates).reshape(-1) if i >= 0}))

    def prefix_order(self, target: Array, draft: Array) -> Array:
        held = self.contains(draft)
        xp = namespace(held)
        return xp.argsort(-held, axis=-1, stable=True)


@dataclass(frozen=True, eq=False)
class Independent:
    """One independent draw from each of k laws, drafts (..., k, V); they need not be equal (Khisti 2025).

    The masses of the draft passed to the methods are not looked at: the drafts held here are the ones sampled from.
    P(X inside H) = prod_j d_j(H). No single order contains an optimal cut as a prefix in general.
    """

    drafts: Any
    name = "independent"

    def __post_init__(self) -> None:
        drafts = from_probs(self.drafts, name="drafts")
        if drafts.ndim < 2:
            raise ShapeError(f"independent drafts need shape (..., k, V), got {tuple(drafts.shape)}")
        object.__setattr__(self, "drafts", drafts)

    @property
    def k(self) -> int:
        return int(self.drafts.shape[-2])

    def _fit(self, law: Array) -> None:
        held, vocab = self.drafts.shape[-1], law.shape[-1]
        if held != vocab:
            raise VocabularyError(f"the independent drafts have {held} tokens, the laws beside them {vocab}")

    def _rows(self, slot: int) -> Array:
        return self.drafts[..., slot, :]

    def sample(self, draft: Array, coins: Array) -> Candidates:
        _slots(coins, self.k)
        xp = namespace(self.drafts)
        tokens = xp.concat([pick(self._rows(j), coins[..., j : j + 1]) for j in range(self.k)], axis=-1)
        return _counted(tokens)

    def tuples(self, draft: Array) -> tuple[np.ndarray, np.ndarray]:
        self._fit(draft)
        laws = [_one_law(self._rows(j)) for j in range(self.k)]
        tokens = _product([np.flatnonzero(law > 0) for law in laws])
        return tokens, reduce(np.multiply, (law[tokens[:, j]] for j, law in enumerate(laws)))

    def sets(self, draft: Array) -> tuple[np.ndarray, np.ndarray]:
        return collapse(*self.tuples(draft))

    def inside(self, draft: Array, order: Array) -> Array:
        return reduce(lambda a, b: a * b, (IID(1).inside(self._rows(j), order) for j in range(self.k)))

    def contains(self, draft: Array) -> Array:
        self._fit(draft)
        return reduce(lambda seen, law: seen + law * (1 - seen), (self._rows(j) for j in range(self.k)))

    def size(self, draft: Array) -> Size:
        self._fit(draft)
        tuples = math.prod(int((_one_law(self._rows(j)) > 0).sum()) for j in range(self.k))
        support = int((to_numpy(self.drafts) > 0).any(axis=0).sum())
        sets = min(tuples, sum(math.comb(support, j) for j in range(1, self.k + 1)))
        return Size(tuples, sets, sets * self.k)

    def prefix_order(self, target: Array, draft: Array) -> None:
        self._fit(target)


def _product(axes: list[np.ndarray]) -> np.ndarray:
    """The cartesian product of id arrays, (N, len(axes))."""
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes)).astype(np.int64)


def _subsets(tokens: np.ndarray, size: int) -> np.ndarray:
    return _rows_of(combinations(range(tokens.size), size), tokens, size)


def _rows_of(places: Iterable[tuple[int, ...]], tokens: np.ndarray, width: int) -> np.ndarray:
    return tokens[np.fromiter(chain.from_iterable(places), dtype=np.int64).reshape(-1, width)]


def _complement(law: np.ndarray, held: np.ndarray) -> np.ndarray:
    """d outside each row of `held`, added up directly rather than taken from 1."""
    left = np.broadcast_to(law, (len(held), law.size)).copy()
    np.put_along_axis(left, held, 0.0, axis=1)
    return left.sum(axis=1)
