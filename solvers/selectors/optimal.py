"""The optimal selector for independent drafts, exact at full vocabulary.

Lay the tokens side by side on [0, 1] in the order of target/draft, each with a window as long as its draft mass. If
every candidate takes a uniform level in its own window and the highest level wins, token i wins with probability
q_i = Q(first i) - Q(first i - 1), where Q(first i) = D_i^k. The optimum needs f_i instead (`optimal_flow`): more for
some tokens, less for others further right. *Window exchange* moves it: a token i that lacks f_i - q_i sometimes plays
in the window of a token j with a surplus, and j in the window of i as often, so that every window stays as full as it
was.

With n_i = q_i/d_i (wins a unit of mass in window i) and m_i = f_i/d_i, match the lacks and the surpluses in order
(north-west corner: two running sums, a matched pair where their intervals overlap) and let i swap with its partner j
with probability (m_i - n_i)/(n_j - n_i), j with (n_j - m_j)/(n_j - n_i). Matched amounts are the same on both sides,
hence so are the exchanged masses; since f(prefix) >= Q(prefix), partners lie to the right, and n_i <= m_i <= m_j <= n_j
makes both numbers probabilities. Everything is rational in target and draft: no root is solved, nothing is iterated,
and the law of the winner rests on running sums alone.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import numba
import numpy as np

from ot_spec.arrays import (
    Array,
    constant,
    cumulative,
    gather,
    is_exact,
    is_numpy,
    like,
    may_wait,
    namespace,
    one_hot,
    or_else,
    pick,
    positions,
    positive_part,
    ratio,
    search,
    total,
)
from ot_spec.draft_law import IID, DraftLaw
from ot_spec.errors import OptionError
from ot_spec.selector import Selection, acceptance_by_enumeration
from solvers.exact.histogram import PER_DOUBLING, class_edges, histogram, residual_pick, spread
from solvers.exact.optimal_flow import flow_along, optimal_flow, running_maximum
from solvers.selectors.canonical import CanonicalRule, Picking
from solvers.selectors.rule import excess, laws_valid, overlap

_ENUMERATED = 20_000


class Windows(NamedTuple):
    """A prepared law pair; arrays along the order of target/draft, (..., V), unless said otherwise.

    place: window of each token id. natural: n, wins a unit of mass in a window. shift: |m - n|. lack, surplus:
    running sums (..., V + 1) of (f - q)+ and (q - f)+, in fixed point of 2^-62 beside floats. law: f by token id.
    For windows that several tokens share: a token's own shift is the window's plus (minus, where it gives)
    tilt * (target/draft - mean), `most` at most, and f is tilt * target + rest * draft instead of `law`.
    """

    place: Array
    natural: Array
    shift: Array
    lack: Array
    surplus: Array
    law: Array | None
    tilt: Array | None = None
    mean: Array | None = None
    most: Array | None = None
    rest: Array | None = None

    def whole_law(self, target: Array, draft: Array) -> Array:
        """f by token id, (..., V)."""
        return self.law if self.law is not None else spread(self.tilt, self.rest, self.place, target, draft)

    def law_at(self, tokens: Array, target: Array, draft: Array) -> Array:
        """f of some tokens (..., m)."""
        xp = namespace(target)
        if self.law is not None:
            return gather(xp, self.law, tokens)
        own = gather(xp, self.place, tokens)
        wanted, drafted = gather(xp, target, tokens), gather(xp, draft, tokens)
        return positive_part(xp, gather(xp, self.tilt, own) * wanted + gather(xp, self.rest, own) * drafted)


class Optimal(CanonicalRule):
    """Window exchange for k i.i.d. candidates, then the one-draft step: acceptance alpha*, output exactly the target.

    Coins: for each candidate the partner and the swap, then one among those that tie in the highest window, the test
    and the residual. `conditional` integrates the level laws: polynomials of degree k - 1 in each window, by a
    quadrature that is exact for them. Fractions stay fractions.

    classes: None for a window a token. A power of two c puts tokens whose target/draft agree to a factor of about
    2^(1/c) into one window, without sorting: still exact, at a small loss of acceptance, since tokens that share a
    window may still swap out of it each at its own rate. `acceptance` then is that of the kept picks where there are
    too many tuples to enumerate; a residual draw that happens to be a candidate comes on top.

    >>> from ot_spec import as_exact
    >>> Optimal().acceptance(as_exact([0.5, 0.5]), as_exact([0.75, 0.25]), IID(2))
    Fraction(15, 16)
    """

    name = "optimal"

    def __init__(self, classes: int | None = None):
        if classes is not None and classes not in PER_DOUBLING:
            raise OptionError(f"classes must be None or one of {', '.join(map(str, PER_DOUBLING))}, got {classes}")
        self.classes = classes

    def coins(self, k: int) -> int:
        """2 k + 3: a partner and a swap for each candidate, the tie, the test and the residual."""
        return 2 * k + 3

    def _acceptance(self, target: Array, draft: Array, law: DraftLaw) -> Array:
        single = is_numpy(target) and target.size == draft.size == target.shape[-1]
        if self.classes is not None and single and law.size(draft.reshape(-1)).tuples <= _ENUMERATED:
            value = acceptance_by_enumeration(self, target.reshape(-1), draft.reshape(-1), law)
            return np.full(target.shape[:-1], value, dtype=target.dtype)[()]
        return overlap(namespace(target), target, self.windows(target, draft, law.k).whole_law(target, draft))

    def _by_blocks(self, step: int, *arrays: Array) -> Selection:
        # classes are few and V-sized work is compiled: all rows at once
        return super()._by_blocks(step, *arrays) if self.classes is None else self._select(*arrays)

    def _fallen(self, xp: Any, windows: Windows, target: Array, draft: Array, coins: Array, kept: Array) -> Array:
        """A token of the residual (target - f)+ for each row; of no meaning where the pick was kept."""
        if windows.law is None and may_wait(target) and not is_exact(target):
            return residual_pick(windows.tilt, windows.rest, windows.place, target, draft, coins, kept)
        residual = excess(xp, target, windows.whole_law(target, draft))
        return pick(or_else(xp, residual, target), coins)[..., 0]

    def windows(self, target: Array, draft: Array, k: int) -> Windows:
        """The preparation: one sort, or one histogram, then running sums."""
        xp = namespace(target)
        if self.classes is None:
            flow = optimal_flow(target, draft, IID(k))
            place, drafted = xp.argsort(flow.order, axis=-1, stable=True), gather(xp, draft, flow.order)
        else:
            place, wanted, drafted = histogram(target, draft, self.classes)
            order = positions(xp, drafted)
            flow = flow_along(wanted, drafted, order, IID(k).inside(drafted, order), IID(k))
        natural = ratio(xp, flow.steps, drafted, 0)
        off = flow.pick - flow.steps if k > 1 else flow.pick * 0  # one candidate leaves no choice
        lack, surplus = _matched(xp, off, flow.ahead[..., 1:])
        # the law of the winner, from the very numbers that select compares
        more, less = (_amount(xp, a[..., 1:] - a[..., :-1]) for a in (lack, surplus))
        law = positive_part(xp, flow.steps + more - less)
        shift = ratio(xp, more + less, drafted, 0)
        if self.classes is None:
            return Windows(place, natural, shift, lack, surplus, gather(xp, law, place))
        mean = ratio(xp, wanted, drafted, 0)
        tilt, most = _tilt(xp, natural, shift, mean, lack, surplus, class_edges(target, draft, place, self.classes))
        rest = ratio(xp, law, drafted, 0) - tilt * mean
        return Windows(place, natural, shift, lack, surplus, None, tilt, mean, most, rest)

    def _chosen(
        self, target: Array, draft: Array, tokens: Array, filled: Array, valid: Array, coins: Array
    ) -> tuple[Array, Array]:
        xp = namespace(target)
        k = tokens.shape[-1]
        if is_exact(target):  # sums of rows stay arrays
            target, draft = np.atleast_2d(target), np.atleast_2d(draft)
        valid = valid & laws_valid(target, draft)
        windows = self._windows(target, draft, filled)
        own = gather(xp, windows.place, tokens)
        share = ratio(xp, gather(xp, target, tokens), gather(xp, draft, tokens), 0)
        level = self._swapped(xp, windows, own, share, coins[..., :k], coins[..., k : 2 * k])
        level = xp.where(filled, level, xp.full_like(level, -1))
        top = xp.max(level, axis=-1, keepdims=True)
        tied = level == top
        rank = xp.cumulative_sum(xp.astype(tied, xp.int64), axis=-1)
        # of `many` that tie the one with rank r wins where r - 1 <= coin * many < r
        below = coins[..., 2 * k : 2 * k + 1] * _number(rank[..., -1:], target) < _number(rank, target)
        slot = xp.argmax(xp.astype(tied & below, xp.int64), axis=-1)[..., None]
        winner = gather(xp, tokens, slot)
        law = windows.law_at(winner, target, draft)
        kept = coins[..., 2 * k + 1 : 2 * k + 2] * law < gather(xp, target, winner)
        kept = kept[..., 0] & (top[..., 0] >= 0)
        fallen = self._fallen(xp, windows, target, draft, coins[..., 2 * k + 2 :], kept)
        return xp.where(kept, winner[..., 0], fallen), valid

    def _swapped(self, xp: Any, windows: Windows, own: Array, share: Array, partner: Array, swap: Array) -> Array:
        """The window that each candidate plays in; share: its target/draft."""
        low, high = gather(xp, windows.lack, own), gather(xp, windows.lack, own + 1)
        down, up = gather(xp, windows.surplus, own), gather(xp, windows.surplus, own + 1)
        lacks = high > low
        last = windows.natural.shape[-1] - 1
        # the place of a coin in the token's own interval, looked up among the intervals of the other side
        other = xp.where(
            lacks,
            search(windows.surplus[..., 1:], low + _part(xp, partner, high - low)),
            search(windows.lack[..., 1:], down + _part(xp, partner, up - down)),
        )
        other = xp.where(other > last, xp.full_like(other, last), other)
        here, there = gather(xp, windows.natural, own), gather(xp, windows.natural, other)
        shift = _own_shift(xp, windows, own, share, lacks)
        # rounding could make a shift larger than the distance; the larger of the three keeps both sides of a swap equal
        most = windows.shift if windows.most is None else windows.most
        apart = xp.maximum(abs(there - here), xp.maximum(gather(xp, most, own), gather(xp, most, other)))
        return xp.where(swap * apart < shift, other, own)

    def picking(self, target: Array, draft: Array, tokens: Array, filled: Array) -> Picking:
        xp = namespace(target)
        windows = self._windows(target, draft, filled)
        k = tokens.shape[-1]
        own = gather(xp, windows.place, tokens)
        share = ratio(xp, gather(xp, target, tokens), gather(xp, draft, tokens), 0)
        levels = [
            self._level_law(xp, windows, own[..., slot], share[..., slot], filled[..., slot]) for slot in range(k)
        ]
        before = [_from_zero(xp, level)[..., :-1] for level in levels]
        empty = [xp.where(filled[..., slot : slot + 1], constant(0, target), constant(1, target)) for slot in range(k)]
        shares = [constant(0, target)] * k
        for node, weight in _quadrature(k, target):
            # P(another candidate is below a level at `node` of each window); one that is not there always is
            beaten = [b + level * node + e for b, level, e in zip(before, levels, empty, strict=True)]
            after = [constant(1, target)] * (k + 1)
            for slot in range(k - 1, -1, -1):
                after[slot] = after[slot + 1] * beaten[slot]
            ahead = constant(1, target)
            for slot in range(k):
                shares[slot] = shares[slot] + weight * total(xp, levels[slot] * ahead * after[slot + 1])
                ahead = ahead * beaten[slot]
        return Picking(xp.stack(shares, axis=-1), windows.whole_law(target, draft))

    def _level_law(self, xp: Any, windows: Windows, own: Array, share: Array, there: Array) -> Array:
        """P(a candidate at place `own` (...) plays in each window), (..., V); zeros for a slot that is not filled."""
        own, share = own[..., None], share[..., None]
        low, high = gather(xp, windows.lack, own), gather(xp, windows.lack, own + 1)
        down, up = gather(xp, windows.surplus, own), gather(xp, windows.surplus, own + 1)
        zero = constant(0, windows.natural)
        shared = xp.where(
            high > low,
            xp.minimum(high, windows.surplus[..., 1:]) - xp.maximum(low, windows.surplus[..., :-1]),
            xp.minimum(up, windows.lack[..., 1:]) - xp.maximum(down, windows.lack[..., :-1]),
        )
        shared = positive_part(xp, _amount(xp, shared))
        shift = _own_shift(xp, windows, own, share, high > low)
        most = windows.shift if windows.most is None else windows.most
        apart = xp.maximum(
            abs(windows.natural - gather(xp, windows.natural, own)), xp.maximum(most, gather(xp, most, own))
        )
        # a share of the token's interval, times the chance to swap with that partner
        away = ratio(xp, shared * shift, apart * _amount(xp, (high - low) + (up - down)), 0)
        stays = positive_part(xp, 1 - total(xp, away, keepdims=True))
        law = away + stays * one_hot(xp, own[..., 0], windows.natural)
        return xp.where(there[..., None], law, zero)

    def _windows(self, target: Array, draft: Array, filled: Array) -> Windows:
        """The windows for as many candidates as there are; rows may differ in that."""
        xp = namespace(target)
        counts = xp.sum(xp.astype(filled, xp.int64), axis=-1)
        several = np.unique(np.asarray(counts)) if may_wait(filled) else np.arange(filled.shape[-1] + 1)
        if len(several) == 1:
            return self.windows(target, draft, max(1, int(several[0])))
        made = [self.windows(target, draft, max(1, int(k))) for k in several]
        which = search(like(several, counts), counts[..., None]) - 1
        fields = []
        for parts in zip(*made, strict=True):
            if parts[0] is None:
                fields.append(None)
                continue
            chosen = parts[0]
            for i, part in enumerate(parts[1:], 1):
                chosen = xp.where(which == i, part, chosen)
            fields.append(chosen)
        return Windows(*fields)


def _own_shift(xp: Any, windows: Windows, own: Array, share: Array, lacks: Array) -> Array:
    shift = gather(xp, windows.shift, own)
    if windows.tilt is None or windows.mean is None:
        return shift
    lean = gather(xp, windows.tilt, own) * (share - gather(xp, windows.mean, own))
    return positive_part(xp, shift + xp.where(lacks, lean, -lean))


def _tilt(
    xp: Any, natural: Array, shift: Array, mean: Array, lack: Array, surplus: Array, edges: tuple[Array, Array]
) -> tuple[Array, Array]:
    """How far the tokens of a window may have shifts of their own, 0 to 1, so that none is negative or longer than the
    way to the nearest partner; and the longest shift there."""
    lacks, last = lack[..., 1:] > lack[..., :-1], natural.shape[-1] - 1
    one = 0 * lack[..., :1] + 1 if not is_exact(lack) else 0 * lack[..., :1]
    nearest = xp.where(lacks, search(surplus[..., 1:], lack[..., :-1]), search(lack[..., 1:], surplus[..., 1:] - one))
    nearest = xp.where(nearest > last, xp.full_like(nearest, last), nearest)
    room = positive_part(xp, abs(gather(xp, natural, nearest) - natural) - shift)
    below, above = positive_part(xp, mean - edges[0]), positive_part(xp, edges[1] - mean)
    longer, shorter = xp.where(lacks, above, below), xp.where(lacks, below, above)
    tilt = xp.minimum(ratio(xp, shift, shorter, 1), ratio(xp, room, longer, 1))
    tilt = xp.where(shift > 0, xp.minimum(tilt, constant(1, tilt)), constant(0, tilt))
    # a window without an upper edge does not tilt
    return tilt, shift + xp.where(tilt > 0, tilt * xp.where(tilt > 0, longer, constant(0, tilt)), constant(0, tilt))


_UNITS = 2.0**62  # floats are matched in fixed point: integer sums lose nothing, on any backend and in any order


def _matched(xp: Any, off: Array, ahead: Array) -> tuple[Array, Array]:
    """Running sums (..., V + 1) of off+ and off-, equal wherever `ahead` is zero, the second never above the first."""
    if is_exact(off):
        lack = _from_zero(xp, positive_part(xp, off))
        agreed = lack[..., 1:] - ahead
    elif is_numpy(off):
        return _matched_on_host(off, ahead)
    else:
        # between two touching points both sums grow by the same, but for rounding: the second is stretched to fit
        place, last = positions(xp, off), off.shape[-1] - 1
        touching = (ahead == 0) | (place == last)
        behind = running_maximum(xp, xp.where(touching, place + 1, xp.zeros_like(place)))
        behind = xp.concat([behind[..., :1] * 0, behind[..., :-1]], axis=-1)
        after = xp.where(touching, place, xp.full_like(place, last))
        after = xp.flip(-running_maximum(xp, -xp.flip(after, axis=-1)), axis=-1) + 1
        units = xp.astype(xp.round(off * _UNITS), xp.int64)
        lack, given = _whole_sums(xp, units, units > 0), _whole_sums(xp, units, units < 0)
        grown = [xp.astype(gather(xp, a, after) - gather(xp, a, behind), xp.float64) for a in (lack, given)]
        stretched = xp.astype(xp.round(off * _UNITS * ratio(xp, grown[0], grown[1], 1)), xp.int64)
        given = _whole_sums(xp, stretched, units < 0)
        agreed = xp.minimum(given[..., 1:] + gather(xp, lack - given, after), lack[..., 1:])
        off = units
    surplus = running_maximum(xp, xp.concat([lack[..., :1], xp.where(off < 0, agreed, constant(0, off))], axis=-1))
    return lack, surplus


def _matched_on_host(off: np.ndarray, ahead: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    size = off.shape[-1]
    rows = _matched_rows(*(np.ascontiguousarray(a).reshape(-1, size) for a in (off, ahead)))
    lack, surplus = (sums.reshape(*off.shape[:-1], size + 1) for sums in rows)
    return lack, surplus


@numba.njit(cache=True, error_model="numpy")
def _matched_rows(off: np.ndarray, ahead: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`_matched` of floats in one pass over rows, to the same integers."""
    rows, size = off.shape
    lack = np.zeros((rows, size + 1), dtype=np.int64)
    surplus = np.zeros((rows, size + 1), dtype=np.int64)
    for row in range(rows):
        begin = given = reached = 0  # given: the second running sum; reached: its maximum
        while begin < size:  # from one touching point to the next
            end, more, less = begin, 0, 0
            while True:
                units = np.int64(np.rint(off[row, end] * _UNITS))
                more, less = more + max(units, 0), less - min(units, 0)
                end += 1
                lack[row, end] = lack[row, begin] + more
                if end == size or ahead[row, end - 1] == 0.0:
                    break
            stretch = np.float64(more) / np.float64(less) if less > 0 else 1.0
            stretched = 0
            for i in range(begin, end):
                if np.rint(off[row, i] * _UNITS) < 0.0:
                    stretched -= np.int64(np.rint(off[row, i] * _UNITS * stretch))
            missing = lack[row, end] - given - stretched
            for i in range(begin, end):
                if np.rint(off[row, i] * _UNITS) < 0.0:
                    given -= np.int64(np.rint(off[row, i] * _UNITS * stretch))
                    reached = max(reached, min(given + missing, lack[row, i + 1]))
                surplus[row, i + 1] = reached
            begin = end
    return lack, surplus


def _whole_sums(xp: Any, units: Array, which: Array) -> Array:
    sums = xp.cumulative_sum(xp.where(which, abs(units), xp.zeros_like(units)), axis=-1)
    return xp.concat([sums[..., :1] * 0, sums], axis=-1)


def _amount(xp: Any, units: Array) -> Array:
    """Sums of `_matched` as masses."""
    return units if is_exact(units) else xp.astype(units, xp.float64) / _UNITS


def _part(xp: Any, coin: Array, length: Array) -> Array:
    """The place of a coin in an interval, as sums of `_matched` count."""
    if is_exact(length):
        return coin * length
    return xp.astype(xp.floor(coin * xp.astype(length, xp.float64)), xp.int64)


def _from_zero(xp: Any, weights: Array) -> Array:
    sums = cumulative(xp, weights)
    return xp.concat([sums[..., :1] * 0, sums], axis=-1)


def _number(counts: Array, model: Array) -> Array:
    return counts if is_exact(model) else namespace(model).astype(counts, model.dtype)


def _quadrature(k: int, model: Array) -> list[tuple[Any, Any]]:
    """Nodes and weights on [0, 1], exact up to degree k - 1: Gauss for floats, Newton-Cotes for fractions."""
    if not is_exact(model):
        nodes, weights = np.polynomial.legendre.leggauss(k // 2 + 1)
        return [(float(node + 1) / 2, float(weight) / 2) for node, weight in zip(nodes, weights, strict=True)]
    nodes = [Fraction(i, max(1, k - 1)) for i in range(k)]
    pairs = []
    for i, node in enumerate(nodes):
        basis = [Fraction(1)]  # coefficients of the Lagrange polynomial, lowest first
        for j, other in enumerate(nodes):
            if i != j:
                shifted = [Fraction(0), *basis]
                basis = [(a - other * b) / (node - other) for a, b in zip(shifted, [*basis, Fraction(0)], strict=True)]
        weight = sum((c / (power + 1) for power, c in enumerate(basis)), start=Fraction(0))
        pairs.append((_same(node, model), _same(weight, model)))
    return pairs


def _same(value: Fraction, model: np.ndarray) -> Any:
    one = model.reshape(-1)[0] * 0 + 1
    return one * value.numerator / value.denominator
