"""Random priority lists: any reachable pick law as a mixture of fixed priorities.

A list ranks the tokens; the pick is the candidate highest on it. With Q(H) = P(all candidates lie in H) the pick law of
a list that ascends y_1, y_2, .. is v_y = Q(y_1, .., y) - Q(those before y): a vertex of the base polytope of Q, which
is the set of all reachable pick laws. A reachable x is taken apart so:

Order a block of tokens by x/d, with vertex v. Let mu be the largest weight for which (x - mu v)/(1 - mu) is still
reachable: from mu = 1, while a prefix H of the order by (x - mu v)/d has (x - mu v)(H) < (1 - mu) Q(H), put
mu = (x(H) - Q(H))/(v(H) - Q(H)) (Newton's method on a concave function; prefixes suffice for drafts i.i.d. and without
replacement). Then x = mu v + (1 - mu) x' with x'(H) = Q(H): from there on H comes before the rest of the block, and
the two parts are taken apart each by itself. What comes before a block is a fixed set, so blocks share a coin without
knowing of each other.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numba
import numpy as np

from ot_spec import kernels
from ot_spec.draft_law import DraftLaw
from ot_spec.errors import UnsupportedLawError
from solvers.exact import compiled_lists
from solvers.exact.optimal_flow import Flow, flow_along

DONE = 1e-13  # of pick mass that floats leave where the last list put it, in each block


class PriorityLists(NamedTuple):
    """Step functions of one coin in [0, 1), one a group of tokens: from edge[j] up to edge[j + 1] (1 after the last)
    the group has rank rank[j], higher is better, j = start[g] .. start[g + 1] - 1. group (V,): of each token, -1 where
    it is never drafted. inner (V,): decides inside a group, higher is better. law (V,): that of the pick, recomputed
    from what is stored."""

    group: np.ndarray
    inner: np.ndarray
    start: np.ndarray
    edge: np.ndarray
    rank: np.ndarray
    law: np.ndarray

    def lists(self) -> tuple[np.ndarray, np.ndarray]:
        """Each list once: the drafted tokens ascending (L, n), and weights (L,) > 0 of sum 1."""
        edges = np.array(sorted(set(self.edge)), dtype=self.edge.dtype)
        drafted = np.flatnonzero(self.group >= 0)
        orders = np.empty((edges.size, drafted.size), dtype=np.int64)
        for number, coin in enumerate(edges):
            rank = np.array([self._rank(group, coin) for group in range(self.start.size - 1)], dtype=np.int64)
            orders[number] = drafted[np.lexsort((self.inner[drafted], rank[self.group[drafted]]))]
        return orders, np.diff(np.append(edges, edges[0] * 0 + 1))

    def _rank(self, group: int, coin: Any) -> int:
        own = slice(self.start[group], self.start[group + 1])
        return int(self.rank[own][(self.edge[own] <= coin).sum() - 1])

    def shares(self, tokens: np.ndarray, filled: np.ndarray) -> np.ndarray:
        """P(slot holds the candidate that is highest), (N, k), for candidates (N, k); 0 in slots that are not filled
        with a drafted token."""
        out = np.zeros(tokens.shape, dtype=self.law.dtype) + self.law[:1] * 0
        groups = np.where(filled, self.group[tokens], -1)
        walk = getattr(_walk, "py_func", _walk) if out.dtype == object else _walk
        walk(groups, self.inner[tokens], self.start, self.edge, self.rank, out)
        return out


@numba.njit(cache=True, error_model="numpy")
def _walk(
    groups: np.ndarray, inner: np.ndarray, start: np.ndarray, edge: np.ndarray, rank: np.ndarray, out: np.ndarray
):
    """Adds to out (N, k) the length of the coins for which each slot is highest."""
    at = np.zeros(groups.shape[1], dtype=np.int64)
    for row in range(groups.shape[0]):
        for slot in range(groups.shape[1]):
            at[slot] = start[max(groups[row, slot], 0)]
        now = edge[0]  # every group begins at coin 0
        while True:
            best = -1
            following = -1  # the slot whose rank changes next
            for slot in range(groups.shape[1]):
                if groups[row, slot] < 0:
                    continue
                here = rank[at[slot]]
                if (
                    best < 0
                    or here > rank[at[best]]
                    or (here == rank[at[best]] and inner[row, slot] > inner[row, best])
                ):
                    best = slot
                if at[slot] + 1 < start[groups[row, slot] + 1] and (
                    following < 0 or edge[at[slot] + 1] < edge[at[following] + 1]
                ):
                    following = slot
            if following < 0:
                if best >= 0:
                    out[row, best] += 1 - now
                break
            out[row, best] += edge[at[following] + 1] - now
            now = edge[at[following] + 1]
            at[following] += 1


class Increments(Protocol):
    """Q along lists of the groups 0..n-1, block by block; a state stands for the set of groups that come before."""

    masses: np.ndarray

    def begin(self) -> Any: ...

    def steps(self, state: Any, groups: np.ndarray, beyond: Any) -> tuple[np.ndarray, Any]:
        """Q(before and the first i of groups) - Q(before and the first i - 1), i = 1.., and the state after them all.
        beyond: the draft mass after the block."""
        ...

    def record(self, state: Any, groups: np.ndarray, beyond: Any, weight: Any) -> None:
        """A block has these groups in this order with this weight."""
        ...


class ByEnumeration:
    """From the law's sets of candidates, in the arithmetic of the draft; any law, each token a group."""

    def __init__(self, draft: np.ndarray, law: DraftLaw):
        self.masses = draft
        self.members, self.probs = law.sets(draft)

    def begin(self) -> np.ndarray:
        return np.empty(0, dtype=np.int64)

    def steps(self, state: np.ndarray, groups: np.ndarray, beyond: Any) -> tuple[np.ndarray, np.ndarray]:
        after = np.concatenate([state, groups])
        place = np.full(self.masses.size + 1, after.size)
        place[-1] = -1
        place[after] = np.arange(after.size)
        steps = np.full(after.size + 1, self.probs[0] * 0, dtype=self.probs.dtype)
        np.add.at(steps, place[self.members].max(axis=1), self.probs)
        return steps[state.size : -1], after

    def record(self, state: np.ndarray, groups: np.ndarray, beyond: Any, weight: Any) -> None:
        pass


class ByQuadrature:
    """For k >= 2 drafts without replacement, as integrals of positive terms: nothing cancels.

    In clocks of rates d let A be what comes before y and R what comes after, N the number of A's clocks that have rung
    at time u, and G_j = sum over sets T of j tokens of A of sum_(a in T) d_a e^(-d_a u) P(T - a has rung, A - T not).
    Then v_y = int e^(-d(R) u) [d_y e^(-d_y u) P(N = k - 1) + (1 - e^(-d_y u)) G_(k-1)] du: y is the k-th to ring, or
    rang before it. One token more makes P(N = j) <- e^(-d_y u) P(N = j) + (1 - e^(-d_y u)) P(N = j - 1) and
    G_j <- e^(-d_y u) G_j + (1 - e^(-d_y u)) G_(j-1) + d_y e^(-d_y u) P(N = j - 1).

    A state holds P(N = 0..k-1) and G_0..G_(k-1) at the nodes u, (2 k, nodes): linear in both, so what a random set
    comes to is the mean state. Groups of several tokens, `group` (n,) ascending, keep a fixed order inside: P and G of
    the group alone up to degree k multiply a state as power series, and the increments of its tokens come in the end
    from the mean of the recorded states.
    """

    def __init__(self, draft: np.ndarray, k: int, group: np.ndarray | None = None):
        rates = kernels.measurable(draft)
        self.k, self.rates, self.unit = k, rates, rates[0] / draft[0]
        step = 0.25 if k <= 4 else 0.2 if k <= 8 else kernels.STEP
        # below, u^k is nothing; above, the k fastest clocks have rung, whichever of them come before or after y
        lowest, highest = -38.0 / k - math.log(rates.sum()), math.log(50.0) - math.log(np.partition(rates, -k)[-k])
        self.times = np.exp(np.arange(lowest, highest + step, step))
        self.step = step
        self.group = np.arange(draft.size) if group is None else group
        self.first = np.searchsorted(self.group, np.arange(self.group[-1] + 2))
        self.masses = np.add.reduceat(draft, self.first[:-1])
        single = np.diff(self.first) == 1
        several = np.flatnonzero(~single)
        self.series = np.full(single.size, -1)
        self.series[several] = np.arange(several.size)
        self.powers = np.zeros((max(1, several.size), 2 * k + 2, self.times.size))
        self.mean = np.zeros((several.size, 2 * k, self.times.size))
        for number, wide in enumerate(several):
            _power_series(rates[self.first[wide] : self.first[wide + 1]], k, self.times, self.powers[number])
        self.silent, self.rung = self._clocks(np.where(single, rates[self.first[:-1]], 0.0))

    def _clocks(self, rates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """P(a clock has not rung) and P(it has) at the nodes, (n, nodes)."""
        with np.errstate(over="ignore"):
            waits = -rates[:, None] * self.times
        return np.exp(waits), -np.expm1(waits)

    def begin(self) -> np.ndarray:
        state = np.zeros((2 * self.k, self.times.size))
        state[0] = 1.0
        return state

    def steps(self, state: np.ndarray, groups: np.ndarray, beyond: float) -> tuple[np.ndarray, np.ndarray]:
        state = state.copy()
        return self._run(state, groups, beyond, 0.0), state

    def record(self, state: np.ndarray, groups: np.ndarray, beyond: float, weight: float) -> None:
        if self.mean.size:
            self._run(state.copy(), groups, beyond, weight)

    def _run(self, state: np.ndarray, groups: np.ndarray, beyond: float, weight: float) -> np.ndarray:
        rates = self.masses[groups] * self.unit
        after = beyond * self.unit + np.concatenate([np.cumsum(rates[:0:-1])[::-1], [0.0]])
        return _run(
            state, groups, rates, after, self.silent, self.rung, self.series, self.powers, self.mean, self.times,
            self.step, weight,
        )  # fmt: skip

    def by_token(self, law: np.ndarray) -> np.ndarray:
        """The law of the pick by token, from that by group and the recorded states."""
        out = law[self.group]
        for wide in np.flatnonzero(self.series >= 0):
            own = slice(self.first[wide], self.first[wide + 1])
            rates = self.rates[own]
            after = np.concatenate([np.cumsum(rates[:0:-1])[::-1], [0.0]])
            out[own] = _run(
                self.mean[self.series[wide]].copy(), np.arange(rates.size), rates, after, *self._clocks(rates),
                np.full(rates.size, -1), self.powers[:1], self.mean[:1], self.times, self.step, 0.0,
            )  # fmt: skip
        return out


@numba.njit(cache=True, error_model="numpy")
def _power_series(rates: np.ndarray, k: int, times: np.ndarray, out: np.ndarray) -> None:
    """P(N = 0..k) and G_0..G_k of a group at the nodes, into out (2 k + 2, nodes)."""
    out[0] = 1.0
    for rate in rates:
        for n in range(times.size):
            silent = math.exp(-rate * times[n])
            rung = -math.expm1(-rate * times[n])
            for j in range(k, 0, -1):
                out[k + 1 + j, n] = silent * out[k + 1 + j, n] + rung * out[k + j, n] + rate * silent * out[j - 1, n]
                out[j, n] = silent * out[j, n] + rung * out[j - 1, n]
            out[0, n] *= silent


@numba.njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
def _run(state, groups, rates, after, silent, rung, series, powers, mean, times, step, weight):
    """Increments of Q over the groups in order; `state` moves on; a weight > 0 is recorded in `mean`."""
    k = state.shape[0] // 2
    top = times.size  # nodes beyond which k clocks have surely rung
    out = np.empty(groups.size)
    spread = np.empty(times.size)  # e^(-after u) du
    known = 0  # nodes at which it is
    old = np.empty((2 * k, times.size))
    for i in range(groups.size):
        which, rate, rest = groups[i], rates[i], after[i]
        heard = silent[which]
        if series[which] < 0:
            for n in range(known):
                spread[n] /= heard[n]
        else:
            known = 0
        while known < times.size and rest * times[known] < 45.0:
            spread[known] = step * times[known] * math.exp(-rest * times[known])
            known += 1
        end = min(known, top)
        mass = 0.0
        if series[which] < 0:
            told = rung[which]
            few, dense = state[k - 1], state[2 * k - 1]
            for n in range(end):
                mass += spread[n] * (rate * heard[n] * few[n] + told[n] * dense[n])
            for j in range(k - 1, 0, -1):
                many, fewer, dense, denser = state[j], state[j - 1], state[k + j], state[k + j - 1]
                for n in range(top):
                    dense[n] = heard[n] * (dense[n] + rate * fewer[n]) + told[n] * denser[n]
                    many[n] = heard[n] * many[n] + told[n] * fewer[n]
            few = state[0]
            for n in range(top):
                few[n] *= heard[n]
        else:
            power = powers[series[which]]
            if weight > 0.0:
                for n in range(end):
                    for j in range(2 * k):
                        mean[series[which], j, n] += weight * spread[n] / (step * times[n]) * state[j, n]
            for n in range(end):
                for j in range(k):
                    mass += spread[n] * (state[j, n] * power[2 * k + 1 - j, n] + state[k + j, n] * power[k - j, n])
            old[:] = state
            for j in range(k):
                for n in range(top):
                    state[j, n] = 0.0
                    state[k + j, n] = 0.0
                for a in range(j + 1):
                    for n in range(top):
                        state[j, n] += old[a, n] * power[j - a, n]
                        state[k + j, n] += old[k + a, n] * power[j - a, n] + old[a, n] * power[k + 1 + j - a, n]
        out[i] = mass
        if i % 16 == 15:
            while top > 0:
                left = 0.0
                for j in range(2 * k):
                    left = max(left, state[j, top - 1])
                if left > 1e-30:
                    break
                top -= 1
                for j in range(2 * k):
                    state[j, top] = 0.0
    return out


class _Block(NamedTuple):
    groups: np.ndarray  # ascending in the list that is tried next
    wanted: np.ndarray
    vertex: np.ndarray | None  # the pick law of that list, if it is known
    begins: Any  # the coin from which the block is one
    first: int  # rank of its lowest group
    state: Any
    beyond: Any


class _Piece(NamedTuple):
    groups: np.ndarray  # ascending
    begins: Any
    first: int


class _Split(NamedTuple):
    weight: Any  # of the vertex
    low: np.ndarray  # places in the block that come first from then on, ascending
    high: np.ndarray
    lower: np.ndarray  # increments of Q over `low`
    upper: np.ndarray | None  # over `high`, if they are known


def mixture(
    wanted: np.ndarray, cuts: np.ndarray, increments: Increments, done: float
) -> tuple[list[_Piece], np.ndarray]:
    """The pieces of the lists, and the law of the pick by group.

    wanted (n,): a reachable law, wanted/mass ascending. cuts: lengths of prefixes H with wanted(H) = Q(H), the last n.
    done: pick mass that a block may leave where its list put it; 0 for exact laws.
    """
    law = wanted * 0
    pieces: list[_Piece] = []
    todo: list[_Block] = []
    state, masses, zero = increments.begin(), increments.masses, wanted[0] * 0
    for low, high in pairwise([0, *cuts.tolist()]):
        groups = np.arange(low, high)
        beyond = masses[high:].sum() + zero
        vertex, after = increments.steps(state, groups, beyond)
        todo.append(_Block(groups, wanted[low:high], vertex, zero, low, state, beyond))
        state = after
    while todo:
        block = todo.pop()
        vertex = block.vertex
        if vertex is None:
            vertex = increments.steps(block.state, block.groups, block.beyond)[0]
        split = _split(block, vertex, increments, done)
        ends = 1 + zero if split is None else block.begins + (1 - block.begins) * split.weight
        weight = ends - block.begins
        if weight > 0:
            pieces.append(_Piece(block.groups, block.begins, block.first))
            increments.record(block.state, block.groups, block.beyond, weight)
            law[block.groups] += weight * vertex
        if split is None:
            continue
        low, high = split.low, split.high
        left = np.maximum((block.wanted - split.weight * vertex) / (1 - split.weight), block.wanted * 0)
        part, every = split.lower.sum(), vertex.sum()
        upper = block.groups[high], _of_mass(left[high], every - part), split.upper
        lower = block.groups[low], _of_mass(left[low], part), split.lower
        between = block.beyond + masses[upper[0]].sum()
        state = increments.steps(block.state, lower[0], between)[1]
        todo.append(_Block(*upper, ends, block.first + low.size, state, block.beyond))
        todo.append(_Block(*lower, ends, block.first, block.state, between))
    return pieces, law


def _split(block: _Block, vertex: np.ndarray, increments: Increments, done: float) -> _Split | None:
    """The largest weight of the vertex, and what comes first beside it; None where the vertex is all that is wanted."""
    wanted, masses = block.wanted, increments.masses[block.groups]
    off = wanted - vertex
    open_ = 1 - block.begins
    if wanted.size == 1 or not -off.sum(where=off < 0, initial=0) * open_ > done:
        return None
    order = _ascending(off, masses)
    many = int((off < 0).sum())
    low, high = order[:many], order[many:]
    beyond = block.beyond + masses[high].sum()
    split = _Split(1 + wanted[0] * 0, low, high, increments.steps(block.state, block.groups[low], beyond)[0], None)
    while True:
        held = split.lower.sum()
        top, bottom = wanted[split.low].sum() - held, vertex[split.low].sum() - held
        weight = max(top, top * 0) / bottom if bottom > 0 else split.weight
        if not weight < split.weight:
            return None if split.upper is None else split
        split = split._replace(weight=weight)
        if not weight > 0:
            return split
        left = wanted - weight * vertex
        order = _ascending(left, masses)
        steps = increments.steps(block.state, block.groups[order], block.beyond)[0]
        over = np.cumsum(left[order] - (1 - weight) * steps)[:-1]
        worst = int(np.argmin(over))
        if not -over[worst] * open_ > done:
            return split
        split = _Split(weight, order[: worst + 1], order[worst + 1 :], steps[: worst + 1], steps[worst + 1 :])


def _ascending(law: np.ndarray, masses: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # a subnormal mass
        return np.argsort(law / masses, kind="stable")


def _of_mass(law: np.ndarray, mass: Any) -> np.ndarray:
    """The law scaled to a mass; exact laws have it already."""
    total = law.sum()
    return law * (mass / total) if law.dtype != object and total > 0 else law


def priority_lists(target: np.ndarray, draft: np.ndarray, law: DraftLaw, groups: int | None = None) -> PriorityLists:
    """Lists whose mixture is the optimal pick law, sum_y min(target, law) = alpha*, for one law pair (V,).

    Exact laws: candidates i.i.d. or without replacement, by enumeration, without any loss. Floats: without
    replacement; what is given up is at most 1e-13 a block, and `law` is that of the lists as stored.

    groups: None for each token by itself. Else about so many groups of neighbours in target/draft, of equal draft mass
    or one token, which keep their order inside: fewer lists, at a loss of acceptance.

    Raises UnsupportedLawError for other draft laws.

    >>> from ot_spec import WithoutReplacement, as_exact
    >>> made = priority_lists(as_exact([0.5, 0.5]), as_exact([0.75, 0.25]), WithoutReplacement(1))
    >>> made.lists()
    (array([[0, 1]]), array([Fraction(1, 1)], dtype=object))
    >>> made.law
    array([Fraction(3, 4), Fraction(1, 4)], dtype=object)
    """
    exact = draft.dtype == object
    if law.name not in (("iid", "without_replacement") if exact else ("without_replacement",)):
        raise UnsupportedLawError(
            f"no priority lists in {'fractions' if exact else 'floats'} for {law.name} candidates"
        )
    order = law.prefix_order(target, draft)
    assert order is not None
    order = order[: int((draft > 0).sum())]
    wanted, drafted, which = target[order], draft[order], np.arange(order.size)
    k = law.k if law.name == "iid" else min(law.k, order.size)
    if k == 1:  # the pick is the one candidate, whatever the list
        steps, made = _steps_of([_Piece(which, draft[0] * 0, 0)], draft.dtype), drafted
    elif groups is None and not exact:
        clocks = compiled_lists.clocks(drafted, k)
        flow = _flow(wanted, drafted, compiled_lists.increments(clocks), law)
        start, edge, rank, made = compiled_lists.decompose(flow.pick, _cuts(flow.ahead[1:]), clocks, DONE)
        steps = start, edge, rank
        made = made / made.sum()
    else:
        which = which if groups is None or exact else _grouped(drafted, groups)
        increments = ByEnumeration(drafted, law) if exact else ByQuadrature(drafted, k, which)
        every = np.arange(increments.masses.size)
        if every.size < which.size:
            wanted = np.bincount(which, wanted)
        along = increments.steps(increments.begin(), every, draft[0] * 0)[0]
        flow = _flow(wanted, increments.masses, along, law)
        pieces, made = mixture(flow.pick, _cuts(flow.ahead[1:]), increments, 0 if exact else DONE)
        steps = _steps_of(pieces, draft.dtype)
        if isinstance(increments, ByQuadrature):
            made = increments.by_token(made)
            made = made / made.sum()
    group, inner = np.full(draft.size, -1), np.zeros(draft.size, dtype=np.int64)
    group[order], inner[order] = which, np.arange(order.size)
    picked = draft * 0
    picked[order] = made
    return PriorityLists(group, inner, *steps, picked)


def _flow(wanted: np.ndarray, drafted: np.ndarray, along: np.ndarray, law: DraftLaw) -> Flow:
    inside = np.cumsum(np.concatenate([along[:1] * 0, along]))
    return flow_along(wanted, drafted, np.arange(wanted.size), inside, law)


def _cuts(ahead: np.ndarray) -> np.ndarray:
    """Where blocks end: prefixes of wanted(H) = Q(H), but for those between two groups that are blocks alone."""
    ends = np.append(np.flatnonzero(ahead[:-1] <= 0) + 1, ahead.size)
    alone = np.diff(ends, prepend=0) == 1
    return ends[np.append(~(alone[:-1] & alone[1:]), True)]


def _grouped(drafted: np.ndarray, groups: int) -> np.ndarray:
    """Neighbours of about 1/groups of the draft mass, ids ascending; a token that large is alone."""
    large = drafted >= drafted.sum() / groups
    middle = np.cumsum(drafted) - drafted / 2
    share = np.minimum((middle * (groups / drafted.sum())).astype(np.int64), groups - 1)
    new = np.ones(drafted.size, dtype=bool)
    new[1:] = large[1:] | large[:-1] | (share[1:] != share[:-1])
    return np.cumsum(new) - 1


def _steps_of(pieces: list[_Piece], dtype: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """start, edge and rank of `PriorityLists`; the pieces of a group come in the order of their coins."""
    groups = np.concatenate([piece.groups for piece in pieces])
    edge = np.concatenate([np.full(piece.groups.size, piece.begins, dtype=dtype) for piece in pieces])
    rank = np.concatenate([piece.first + np.arange(piece.groups.size) for piece in pieces])
    order = np.argsort(groups, kind="stable")
    start = np.concatenate([[0], np.cumsum(np.bincount(groups))])
    return start, edge[order], rank[order]
