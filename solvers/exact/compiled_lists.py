"""`priority_lists.mixture` for floats and drafts without replacement, token by token, compiled in one piece.

The decomposition is that of the rule, which it is tested against. A block is a stretch of one array, blocks wait on a
stack, and Newton's method starts where the first single token is used up. Increments of Q are the integrals of
`ByQuadrature`, in fewer products: with e_j and g_j for P(N = j) and G_j over P(no clock has rung), w = e^(d_y u) - 1,

    v_y = int e^(-d u) [d_y e_(k-1) + w g_(k-1)] du,   g_j <- g_j + w g_(j-1) + d_y e_(j-1),   e_j <- e_j + w e_(j-1)

where d is the rate of all tokens, before, in and after the block. The k - 1 fastest clocks could overflow in this form;
they are taken out of d and multiplied in as they are.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numba
import numpy as np

from ot_spec import kernels

_SIZES = (16, 24, 32)  # of Gauss rules


class Clocks(NamedTuple):
    """The clocks of n tokens at m nodes u, for k drafts without replacement.

    rates (n,). rung (n, (k - 1) m): e^(d_y u) - 1, k - 1 times over; 1 - e^(-d_y u) for the k - 1 fastest tokens.
    fast (n,): which of those a token is, or -1. silent (k - 1, m): their e^(-d_y u). spread (m,): e^(-d u) du.
    """

    rates: np.ndarray
    rung: np.ndarray
    fast: np.ndarray
    silent: np.ndarray
    spread: np.ndarray


def clocks(draft: np.ndarray, k: int) -> Clocks:
    """Of k >= 2 draws from positive masses (n,), n >= k."""
    rates = np.ascontiguousarray(kernels.measurable(draft))
    which = np.argpartition(rates, 1 - k)[1 - k :]
    slow = rates.copy()
    slow[which] = 0.0
    times, weights = quadrature(rates.sum(), slow.sum(), k)
    rung = np.expm1(slow[:, None] * times)
    with np.errstate(over="ignore"):
        waits = -rates[which, None] * times
    rung[which] = -np.expm1(waits)
    fast = np.full(rates.size, -1)
    fast[which] = np.arange(k - 1)
    return Clocks(rates, np.tile(rung, (1, k - 1)), fast, np.exp(waits), weights * np.exp(-slow.sum() * times))


def increments(clocks: Clocks) -> np.ndarray:
    """Q(first i tokens) - Q(first i - 1), i = 1..n."""
    out = np.empty(clocks.rates.size)
    _scan(np.arange(out.size), _nothing(clocks), clocks, out)
    return out


def quadrature(every: float, slow: float, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights du for integrals of e^(-c u) times a polynomial of degree below k, slow <= c <= every.

    Gauss-Laguerre at the geometric mean of both rates gains a factor ((1 + r)/(1 - r))^2 a node, r^2 = slow/every;
    where that is too slow, the trapezoid rule in ln u.
    """
    root = math.sqrt(slow / every)
    for size in _SIZES:
        if ((1 - root) / (1 + root)) ** (2 * (size - k)) < 1e-16 and size >= 2 * k:
            nodes, weights = _gauss(size)
            scale = math.sqrt(slow * every)
            return nodes / scale, weights / scale
    step = 0.25 if k <= 4 else 0.2 if k <= 8 else kernels.STEP
    # below, u^k is nothing; above, at least k - 1 slow clocks have rung, whichever of the fast ones have
    lowest, highest = -38.0 / k - math.log(every), math.log(45.0 + 2.5 * k) - math.log(slow)
    times = np.exp(np.arange(lowest, highest + step, step))
    return times, step * times


@cache
def _gauss(size: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.laguerre.laggauss(size)
    weights = np.exp(np.log(weights) + nodes)
    return nodes, weights


@numba.njit(cache=True, error_model="numpy")
def _nothing(clocks):
    """The state of no tokens: e_0 .. e_(k-1) and g_0 .. g_(k-1) at the nodes, and which fast tokens are in it."""
    k, many = clocks.silent.shape[0] + 1, clocks.spread.size
    state = np.zeros(2 * k * many + k - 1)
    state[:many] = 1.0
    return state


@numba.njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
def _scan(tokens, state, clocks, out):
    """Increments of Q over the tokens in order, into out; the state moves on. An empty out asks for that alone."""
    many = clocks.spread.size
    k = clocks.silent.shape[0] + 1
    wide = (k - 1) * many
    few, dense, passed = state[: k * many], state[k * many : 2 * k * many], state[2 * k * many :]
    fewer, denser = few.copy(), dense.copy()  # the next ones; what has degree 0 is the same but for fast tokens
    weight = np.empty(many)
    _weigh(weight, passed, clocks)
    for i in range(tokens.size):
        token = tokens[i]
        rate, rung, fast = clocks.rates[token], clocks.rung[token], clocks.fast[token]
        if fast >= 0:
            passed[fast] = 1.0
            _weigh(weight, passed, clocks)
        if out.size:
            mass = 0.0
            last, close = few[wide:], dense[wide:]
            if fast < 0:
                for n in range(many):
                    mass += weight[n] * (rate * last[n] + rung[n] * close[n])
            else:
                heard = clocks.silent[fast]
                for n in range(many):
                    mass += weight[n] * (rate * heard[n] * last[n] + rung[n] * close[n])
            out[i] = mass
        if fast < 0:
            # all degrees in one long loop each
            above, over, onto, upon = few[many:], dense[many:], fewer[many:], denser[many:]
            for n in range(wide):
                upon[n] = over[n] + rung[n] * dense[n] + rate * few[n]
            for n in range(wide):
                onto[n] = above[n] + rung[n] * few[n]
            few, fewer = fewer, few
            dense, denser = denser, dense
        else:
            heard = clocks.silent[fast]
            for j in range(k - 1, -1, -1):
                for n in range(j * many, (j + 1) * many):
                    silent = heard[n - j * many]
                    if j:
                        dense[n] = silent * (dense[n] + rate * few[n - many]) + rung[n - many] * dense[n - many]
                        few[n] = silent * few[n] + rung[n - many] * few[n - many]
                    else:
                        few[n] *= silent
            fewer[:many] = few[:many]
    state[: k * many] = few
    state[k * many : 2 * k * many] = dense


@numba.njit(cache=True, error_model="numpy")
def _weigh(weight, passed, clocks):
    """du times the silence of all that come after, as far as the state does not divide by it."""
    for n in range(weight.size):
        weight[n] = clocks.spread[n]
    for fast in range(passed.size):
        if passed[fast] == 0.0:
            for n in range(weight.size):
                weight[n] *= clocks.silent[fast, n]


@numba.njit(cache=True, error_model="numpy")
def _ascending(keys, order, spare):
    """order (n,) <- places of the keys ascending: natural merge sort, quick on few runs."""
    size = keys.size
    bounds = np.empty(size + 1, dtype=np.int64)
    runs = 0
    bounds[0] = 0
    i = 0
    while i < size:
        j = i + 1
        if j < size and keys[j] < keys[i]:
            while j < size and keys[j] < keys[j - 1]:
                j += 1
            for a in range(i, j):
                order[a] = j - 1 - (a - i)
        else:
            while j < size and keys[j] >= keys[j - 1]:
                j += 1
            for a in range(i, j):
                order[a] = a
        runs += 1
        bounds[runs] = j
        i = j
    source, goal = order, spare
    while runs > 1:
        merged = 0
        for run in range(0, runs, 2):
            low = bounds[run]
            middle = bounds[run + 1]
            high = bounds[run + 2] if run + 1 < runs else middle
            a, b = low, middle
            for to in range(low, high):
                if b >= high or (a < middle and keys[source[a]] <= keys[source[b]]):
                    goal[to] = source[a]
                    a += 1
                else:
                    goal[to] = source[b]
                    b += 1
            merged += 1
            bounds[merged] = high
        runs = merged
        source, goal = goal, source
    if source is not order:
        order[:] = source


@numba.njit(cache=True, error_model="numpy")
def _split(goal, vertex, tokens, state, clocks, slack, chosen, known):
    """The largest weight of the vertex, and how many tokens of `chosen`, places in the block, come first beside it;
    `known` gets the increments along them. No tokens where the vertex is all that is wanted."""
    size = goal.size
    short, weight = 0.0, 1.0
    for i in range(size):
        short += max(vertex[i] - goal[i], 0.0)
        if vertex[i] > 0.0:
            weight = min(weight, goal[i] / vertex[i])  # single tokens bound it already
    if size == 1 or not short > slack or not weight < 1.0:
        return 1.0, 0
    first = 0
    left, keys, steps = np.empty(size), np.empty(size), np.empty(size)
    order, spare = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    while True:
        for i in range(size):
            left[i] = goal[i] - weight * vertex[i]
            keys[i] = left[i] / clocks.rates[tokens[i]]
        _ascending(keys, order, spare)
        _scan(tokens[order], state.copy(), clocks, steps)
        over, worst, place = 0.0, np.inf, 0
        for i in range(size - 1):
            over += left[order[i]] - (1.0 - weight) * steps[i]
            if over < worst:
                worst, place = over, i
        if first and not -worst > slack:
            return weight, first
        first = place + 1
        chosen[:], known[:] = order, steps
        top = bottom = 0.0
        for i in range(first):
            top += goal[order[i]] - steps[i]
            bottom += vertex[order[i]] - steps[i]
        lower = max(top, 0.0) / bottom if bottom > 0.0 else weight
        if not -worst > slack or not lower < weight:
            return weight, first
        weight = lower
        if weight == 0.0:
            return weight, first


@numba.njit(cache=True, error_model="numpy")
def _longer(array):
    longer = np.empty((2 * array.shape[0], array.shape[1]), dtype=array.dtype)
    longer[: array.shape[0]] = array
    return longer


@numba.njit(cache=True, error_model="numpy")
def decompose(wanted, cuts, clocks, done):
    """`mixture` of tokens 0..n-1: start, edge and rank of `PriorityLists`, and the law of the pick.

    wanted (n,): a reachable law, wanted/rate ascending. cuts: lengths of prefixes H with wanted(H) = Q(H), the last n.
    done: pick mass that a block may leave where its list put it.
    """
    size = wanted.size
    law = np.zeros(size)
    tokens, left, vertex = np.arange(size), wanted.copy(), np.empty(size)
    chosen, known = np.empty(size, dtype=np.int64), np.empty(size)
    ids, spare = np.empty(size, dtype=np.int64), np.empty(size)
    state = _nothing(clocks)
    # blocks that wait: where they lie, their coin, and the state before them; a block is a stretch of `tokens`
    waits, coins, states = np.empty((16, 2), dtype=np.int64), np.empty((16, 1)), np.empty((16, state.size))
    waiting = low = 0
    # pieces: how many tokens are listed before, and the rank of the lowest; their coin
    pieces, begins, listed = np.empty((64, 2), dtype=np.int64), np.empty((64, 1)), np.empty((8, size), dtype=np.int64)
    made = many = 0
    for high in cuts:
        if waiting == len(coins):
            waits, coins, states = _longer(waits), _longer(coins), _longer(states)
        waits[waiting, 0], waits[waiting, 1], coins[waiting, 0] = low, high, 0.0
        states[waiting] = state
        waiting += 1
        _scan(tokens[low:high], state, clocks, vertex[low:high])
        low = high
    while waiting:
        waiting -= 1
        low, high, coin = waits[waiting, 0], waits[waiting, 1], coins[waiting, 0]
        state[:] = states[waiting]
        count = high - low
        own, goal, tops = tokens[low:high], left[low:high], vertex[low:high]
        weight, first = _split(goal, tops, own, state, clocks, done / (1.0 - coin), chosen[:count], known[:count])
        ends = coin + (1.0 - coin) * weight if first else 1.0
        if ends > coin:
            if made == len(begins):
                pieces, begins = _longer(pieces), _longer(begins)
            if many + count > listed.size:
                listed = _longer(listed)
            pieces[made, 0], pieces[made, 1], begins[made, 0] = many, low, coin
            listed.reshape(-1)[many : many + count] = own
            made += 1
            many += count
            for i in range(count):
                law[own[i]] += (ends - coin) * tops[i]
        if not first or not ends < 1.0:
            continue
        # what is left, in two blocks, each scaled to the mass it must have
        part = rest = low_left = high_left = 0.0
        for i in range(count):
            place = chosen[i]
            spare[i], ids[i] = max(goal[place] - weight * tops[place], 0.0), own[place]
            if i < first:
                part, low_left = part + known[i], low_left + spare[i]
            else:
                rest, high_left = rest + known[i], high_left + spare[i]
        for i in range(count):
            mass, total = (part, low_left) if i < first else (rest, high_left)
            goal[i] = spare[i] * (mass / total) if total > 0.0 else 0.0
            own[i], tops[i] = ids[i], known[i]
        if waiting + 2 > len(coins):
            waits, coins, states = _longer(waits), _longer(coins), _longer(states)
        waits[waiting, 0], waits[waiting, 1], coins[waiting, 0] = low + first, high, ends
        waits[waiting + 1, 0], waits[waiting + 1, 1], coins[waiting + 1, 0] = low, low + first, ends
        states[waiting + 1] = state
        if count - first > 1:  # a block of one token has its law already
            _scan(own[:first], state, clocks, known[:0])
            states[waiting] = state
        waiting += 2
    # by token, the pieces of each in the order of their coins
    start = np.zeros(size + 1, dtype=np.int64)
    flat = listed.reshape(-1)
    for i in range(many):
        start[flat[i] + 1] += 1
    for token in range(size):
        start[token + 1] += start[token]
    following = start[:-1].copy()
    edge, rank = np.empty(many), np.empty(many, dtype=np.int64)
    for piece in range(made):
        end = pieces[piece + 1, 0] if piece + 1 < made else many
        for i in range(pieces[piece, 0], end):
            to = following[flat[i]]
            following[flat[i]] += 1
            edge[to], rank[to] = begins[piece, 0], pieces[piece, 1] + i - pieces[piece, 0]
    return start, edge, rank, law
