"""Optimal selection by strict priorities and Luce weights (Global Resolution, Thomas and Pal 2025)."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ot_spec.arrays import Array, constant, gather, is_exact, is_numpy, like, namespace, ratio, total
from ot_spec.draft_law import IID, DraftLaw
from ot_spec.errors import OptionError, TooLargeError
from ot_spec.selector import acceptance_by_enumeration, as_float
from solvers.selectors.canonical import CanonicalRule, Picking, host_rows, rational
from solvers.selectors.rule import all_filled, as_laws, excess, residual_or_target

STEP = 0.1875  # of the trapezoid rule in ln s; the integrands are products of e^(-ws), bounded in |Im ln s| < pi/2
_BLOCK = 1 << 21
_TUPLES = 200_000
_DONE = 1e-14


class Plan(NamedTuple):
    """segment (V,): 0 is picked first. weight (V,): within a segment a slot is picked in proportion to it. aim (V,):
    the pick law that the weights were solved for. weight and aim are floats, segment is ids."""

    segment: np.ndarray
    weight: np.ndarray
    aim: np.ndarray


class Luce(CanonicalRule):
    """Pick within the first segment that holds a candidate, slot j with probability proportional to w_(x_j); then
    the one-draft step.

    Segments are the edges of the lower convex hull of the points (target, 1 - (1 - draft)^k) of the prefixes in
    descending target/draft; the aim is f = lambda target on each, lambda its slope: the reachable pick law with
    sum_y min(target, f) = alpha*. w = e^a makes that law inside a segment, a minimising the convex function
    E[ln sum_j e^(a_(x_j))] - sum_y f_y a_y over the draws that reach the segment, by damped Newton steps. With L the
    draft mass of later segments and phi(s) = L + sum_z draft_z e^(-s w_z), slot clocks of rates w being raced, the law
    is f_y = k draft_y w_y int e^(-s w_y) phi(s)^(k-1) ds; it is enumerated for exact laws.

    top: how many tokens of a segment, the largest in f, are solved for; the others keep w = aim/draft. None: all.
    recompute: True: the one-draft step uses the law that the stored weights really have, so the rule is exact
    whatever was solved, and only acceptance suffers. False is the published form, named "luce_truncated": the step
    uses the aim, the output is not the target, and `bias` says by how much; `exact` is False, and `supports` tells for
    which candidates it is meant.

    For i.i.d. candidates. Solved on the host: some ten milliseconds a law pair with 64 tokens, seconds with 50,000.

    >>> target, draft = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.4, 0.3, 0.2, 0.1])
    >>> float(Luce().acceptance(target, draft, IID(2)).round(12))
    0.79
    >>> Luce(top=1, recompute=False).exact
    False
    """

    host = True

    def __init__(self, top: int | None = None, recompute: bool = True):
        if top is not None and top < 0:
            raise OptionError(f"top must be at least 0 or None, got {top}")
        self.top, self.recompute = top, recompute
        self.exact = recompute
        self.name = "luce" if recompute else "luce_truncated"

    def picking(self, target: Array, draft: Array, tokens: Array, filled: Array) -> Picking:
        xp = namespace(target, draft)
        k = tokens.shape[-1]
        lead, rows = host_rows(target, draft)
        plans = [self._plan(t, d, k) for t, d in rows]
        one, zero = constant(1, target), constant(0, target)

        def stacked(values: list[np.ndarray]) -> Array:
            return like(np.stack(values).reshape(*lead, -1), target)

        segment = gather(xp, stacked([plan.segment for plan in plans]), tokens)
        weight = gather(xp, stacked([plan.weight for plan in plans]), tokens)
        segment = xp.where(filled, segment, xp.full_like(segment, target.shape[-1]))
        first = filled & (segment == xp.min(segment, axis=-1, keepdims=True))
        weight = xp.where(first, weight, zero)
        mass = total(xp, weight, keepdims=True)
        share = weight / xp.where(mass > 0, mass, one)
        counts = [k] if all_filled(filled) else range(1, k + 1)
        law = zero + 0 * target
        for m in counts:
            here = stacked([self._assumed(d, plan, m) for (_, d), plan in zip(rows, plans, strict=True)])
            law = here if len(counts) == 1 else xp.where(filled[..., m - 1 : m], here, law)
        return Picking(share, law)

    def bias(self, target: Array, draft: Array, k: int) -> Array:
        """TV between output law and target for k i.i.d. candidates, (...): 0 in exact arithmetic if `exact`.

        The picked token has law f and is kept as if it had law a: P(Y = y) = f_y min(1, target_y/a_y) +
        (1 - kept) residual_y. Exact for exact laws, to 1e-13 for floats; never more than TV(f, a).
        """
        target, draft = as_laws(target, draft)
        lead, rows = host_rows(target, draft)
        values = np.array([self._bias(t, d, k) for t, d in rows], dtype=rows[0][0].dtype).reshape(lead)
        return values[()] if is_numpy(target) else like(values, target)

    def _bias(self, target: np.ndarray, draft: np.ndarray, k: int) -> Any:
        plan = self._plan(target, draft, k)
        law, assumed = self._law(draft, plan, k), self._assumed(draft, plan, k)
        kept = law * np.minimum(ratio(np, target, assumed, 1), target[0] * 0 + 1)
        left = residual_or_target(np, excess(np, target, assumed)[None], target[None])[0]
        out = kept + (1 - kept.sum()) * left
        return abs(out - target).sum() / 2

    def _plan(self, target: np.ndarray, draft: np.ndarray, k: int) -> Plan:
        floats = [np.ascontiguousarray(as_float(a), dtype=np.float64) for a in (target, draft)]
        plan = _solved(floats[0].tobytes(), floats[1].tobytes(), k, self.top)
        if is_exact(draft):
            return Plan(plan.segment, rational(plan.weight, draft), rational(plan.aim, draft))
        return plan

    def _assumed(self, draft: np.ndarray, plan: Plan, k: int) -> np.ndarray:
        return self._law(draft, plan, k) if self.recompute else plan.aim

    def _law(self, draft: np.ndarray, plan: Plan, k: int) -> np.ndarray:
        """The law of the picked token, from the stored weights."""
        if not is_exact(draft):
            return pick_law(draft, plan, k)
        _require_few(draft, k)
        tuples, probs = IID(k).tuples(draft)
        segment = plan.segment[tuples]
        weight = np.where(segment == segment.min(axis=1, keepdims=True), plan.weight[tuples], draft[0] * 0)
        picked = np.zeros(draft.size, dtype=object) + draft[0] * 0
        np.add.at(picked, tuples, weight * (probs / weight.sum(axis=1))[:, None])
        return picked

    def _acceptance(self, target: Array, draft: Array, law: DraftLaw) -> Array:
        lead, rows = host_rows(target, draft)
        if is_exact(target):
            for _, d in rows:
                _require_few(d, law.k)
            values = [acceptance_by_enumeration(self, t, d, law) for t, d in rows]
            return np.array(values, dtype=object).reshape(lead)[()]
        values = np.array([self._row(t, d, law.k) for t, d in rows]).reshape(lead)
        return values[()] if is_numpy(target) else like(values, target)

    def _row(self, target: np.ndarray, draft: np.ndarray, k: int) -> float:
        """P(the pick is kept) + P(it is not, and the token drawn instead is another candidate)."""
        plan = self._plan(target, draft, k)
        law, assumed = self._law(draft, plan, k), self._assumed(draft, plan, k)
        keep = np.where(target > 0, np.minimum(ratio(np, target, assumed, 1), 1.0), 0.0)
        over = excess(np, target, assumed)
        if not over.sum() > 0:
            over = target
        refused = law * (1 - keep)
        drawn = over / over.sum()
        missed = _missed(draft, plan, k, 1 - keep, drawn > _DONE / drawn.size)
        return float(min(1 - refused.sum() + drawn @ np.maximum(refused.sum() - missed, 0.0), 1.0))


def _require_few(draft: np.ndarray, k: int) -> None:
    size = IID(k).size(draft).tuples
    if size > _TUPLES:
        raise TooLargeError(f"tuples of {k} candidates", size, _TUPLES, "float laws")


def pick_law(draft: np.ndarray, plan: Plan, k: int) -> np.ndarray:
    """f_y = k draft_y w_y int e^(-s w_y) phi(s)^(k-1) ds in each segment, by the trapezoid rule in ln s; (V,)."""
    law = np.zeros(draft.size)
    for tokens, later in _segments(draft, plan.segment):
        law[tokens] = _race(draft[tokens], plan.weight[tokens], later, k)
    return law


def _segments(draft: np.ndarray, segment: np.ndarray) -> list[tuple[np.ndarray, float]]:
    """The drafted tokens of each segment, and the draft mass of later ones."""
    order = np.argsort(segment, kind="stable")
    order = order[draft[order] > 0]
    parts = np.split(order, np.flatnonzero(np.diff(segment[order])) + 1)
    later = np.cumsum([draft[part].sum() for part in parts[::-1]])[::-1]
    return list(zip(parts, [*later[1:].tolist(), 0.0], strict=True))


def _times(weight: np.ndarray) -> np.ndarray:
    """Nodes s, from where the fastest clock has not moved to where the slowest has surely rung."""
    return np.exp(np.arange(-38.0 - np.log(weight.max()), np.log(40.0 / weight.min()) + STEP, STEP))


def _reach(mass: float, later: float, k: int) -> float:
    """(later + mass)^k - later^k."""
    return mass * sum((later + mass) ** (k - 1 - i) * later**i for i in range(k))


def _race(draft: np.ndarray, weight: np.ndarray, later: float, k: int) -> np.ndarray:
    if k == 1:
        return draft.copy()
    if draft.size == 1:
        return np.array([_reach(float(draft[0]), later, k)])
    times, law = _times(weight), np.zeros(draft.size)
    for part in np.array_split(times, -(-times.size * draft.size // _BLOCK)):
        silent = np.exp(-part[:, None] * weight)
        phi = later + silent @ draft
        law += (STEP * k * part * phi ** (k - 1)) @ silent
    return law * draft * weight


def _missed(draft: np.ndarray, plan: Plan, k: int, fail: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """E[fail(pick) 1{y is no candidate}] for each y asked for, 0 for others; (V,)."""
    missed = np.zeros(draft.size)
    for tokens, later in _segments(draft, plan.segment):
        if not (fail[tokens] > 0).any():
            continue
        d, w = draft[tokens], plan.weight[tokens]
        here = asked[tokens]
        beyond = np.flatnonzero(asked & (draft > 0) & (plan.segment > plan.segment[tokens[0]]))
        before = asked & ((plan.segment < plan.segment[tokens[0]]) | (draft <= 0))
        times = _times(w)
        entries = times.size * max(tokens.size, beyond.size)
        inside, outside = np.zeros(tokens.size), np.zeros(beyond.size)
        every = 0.0
        for part in np.array_split(times, -(-entries // _BLOCK)):
            silent = np.exp(-part[:, None] * w)
            phi = later + silent @ d
            rate = k * STEP * part * (silent @ (d * w * fail[tokens]))
            every += rate @ phi ** (k - 1)
            # a token that can be drawn instead is never refused itself: `rate` needs no correction
            inside[here] += rate @ np.maximum(phi[:, None] - (d * silent)[:, here], 0.0) ** (k - 1)
            outside += rate @ np.maximum(phi[:, None] - draft[beyond], 0.0) ** (k - 1)
        missed[tokens] += inside
        missed[beyond] += outside
        missed[before] += every
    return missed


@lru_cache(maxsize=256)
def _solved(target: bytes, draft: bytes, k: int, top: int | None) -> Plan:
    """Segments and weights from the laws' floats; a pure function, remembered for candidates of the same laws."""
    t, d = np.frombuffer(target), np.frombuffer(draft)
    segment, aim = hull(t, d, k)
    weight = np.ones(t.size)
    for tokens, later in _segments(d, segment):
        if k > 1 and tokens.size > 1 and (t[tokens] > 0).all():
            weight[tokens] = _weights(d[tokens], aim[tokens], later, k, top)
    for array in (segment, weight, aim):
        array.flags.writeable = False
    return Plan(segment, weight, aim)


def hull(target: np.ndarray, draft: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The segment of each token, and the optimal pick law f that is a multiple of target on each, (V,) both."""
    wanted = np.flatnonzero(target > 0)
    with np.errstate(divide="ignore", over="ignore"):
        order = wanted[np.argsort(-np.where(draft[wanted] > 0, target[wanted] / draft[wanted], np.inf), kind="stable")]
    x = np.concatenate([[0.0], np.cumsum(target[order])])
    held = np.minimum(np.cumsum(draft[order]), 1.0)
    with np.errstate(divide="ignore"):
        y = np.concatenate([[0.0], -np.expm1(k * np.log1p(-held))])
    corners = [0]
    for i in range(1, x.size):
        while len(corners) > 1:
            a, b = corners[-2], corners[-1]
            same = x[i] == x[b] and y[i] == y[b]  # masses below the rounding of the sums
            if not same and (y[b] - y[a]) * (x[i] - x[b]) <= (y[i] - y[b]) * (x[b] - x[a]):
                break
            corners.pop()
        corners.append(i)
    segment = np.full(target.size, len(corners))
    aim = np.zeros(target.size)
    for number, (a, b) in enumerate(pairwise(corners)):
        tokens = order[a:b]
        segment[tokens] = number
        aim[tokens] = (y[b] - y[a]) * (target[tokens] / target[tokens].sum())
    rest = (target <= 0) & (draft > 0)
    if rest.any():
        aim[rest] = _reach(float(draft[rest].sum()), 0.0, k) * (draft[rest] / draft[rest].sum())
    aim[draft <= 0] = 0.0
    return segment, aim


def _weights(draft: np.ndarray, aim: np.ndarray, later: float, k: int, top: int | None) -> np.ndarray:
    """w with pick law `aim`, which has the total that the segment reaches."""
    aim = aim * (_reach(float(draft.sum()), later, k) / aim.sum())
    free = np.argsort(-aim, kind="stable")[:top]
    log = _shifted(np.log(aim) - np.log(draft))
    law = _race(draft, np.exp(log), later, k)
    off = abs(law - aim)[free].sum()
    for _ in range(40):
        if off <= _DONE:
            break
        step = np.zeros(draft.size)
        step[free] = _newton(draft, np.exp(log), later, k, free, (aim - law)[free])
        step *= min(1.0, 2.0 / max(np.ptp(step), 1e-300))
        for _ in range(8):
            trial = _shifted(log + step)
            after = _race(draft, np.exp(trial), later, k)
            if abs(after - aim)[free].sum() < off:
                break
            step /= 4
        else:
            break
        log, law, off = trial, after, abs(after - aim)[free].sum()
    return np.exp(log)


def _shifted(log: np.ndarray) -> np.ndarray:
    """Weights matter up to a factor; e^-300 is as good as never."""
    return np.maximum(log - log.max(), -300.0)


def _newton(
    draft: np.ndarray, weight: np.ndarray, later: float, k: int, free: np.ndarray, gap: np.ndarray
) -> np.ndarray:
    """The step of a for the free tokens: H step = gap, H = diag(R'R 1) - R'R restricted to them, with
    R_sy = sqrt(k (k - 1) phi(s)^(k-2) ds s) draft_y w_y e^(-s w_y).

    H is diagonal but for a rank of at most the number of nodes s, so the system solved has one unknown a node. A
    common factor of the weights changes nothing; a relative 1e-10 on the diagonal settles it.
    """
    times = _times(weight)
    blocks = np.array_split(np.arange(draft.size), -(-times.size * draft.size // _BLOCK))

    def rates(tokens: np.ndarray) -> np.ndarray:
        return np.exp(-times[:, None] * weight[tokens]) * (draft * weight)[tokens]

    phi = later + sum(np.exp(-times[:, None] * weight[tokens]) @ draft[tokens] for tokens in blocks)
    every = sum(rates(tokens).sum(axis=1) for tokens in blocks)
    root = times * np.sqrt(STEP * k * (k - 1) * phi ** (k - 2))
    system, right = np.eye(times.size), np.zeros(times.size)
    diagonal = np.zeros(free.size)
    parts = np.array_split(np.arange(free.size), len(blocks))
    for part in parts:
        factor = root[:, None] * rates(free[part])
        diagonal[part] = np.maximum((root * every) @ factor, 1e-300) * (1 + 1e-10)
        scaled = factor / diagonal[part]
        system -= scaled @ factor.T
        right += scaled @ gap[part]
    through = np.linalg.solve(system, right)
    step = np.empty(free.size)
    for part in parts:
        step[part] = (gap[part] + (root * through) @ rates(free[part])) / diagonal[part]
    return step
