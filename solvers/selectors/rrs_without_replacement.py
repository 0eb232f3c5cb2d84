"""Recursive rejection sampling over drafts without replacement (Sequoia 2024; RSD 2024; EAGLE-2 2024)."""

from __future__ import annotations

import numpy as np

from ot_spec.arrays import (
    Array,
    constant,
    gather,
    is_exact,
    like,
    namespace,
    positions,
    to_numpy,
)
from ot_spec.draft_law import DraftLaw
from ot_spec.errors import OptionError
from ot_spec.selector import acceptance_by_enumeration
from solvers.selectors.rule import SequentialRule, Tests, all_filled, excess, overlap, residual_or_target

_ENUMERATED = 20_000


class RRSWithoutReplacement(SequentialRule):
    """As `rrs`, with d_1 = draft and, after x_i is refused, d_(i+1) = d_i without x_i, renormalised.

    r_(i+1) = norm((r_i - d_i)+) uses the law that x_i was drawn from. Candidates are distinct; empty slots at the end
    mean that the draft has no more tokens.

    `acceptance` has no closed form for k >= 3: laws with few tuples are enumerated, k = 2 is exact by sorting, and
    otherwise the path of refused candidates is averaged over `samples` points of a fixed low-discrepancy grid, the
    last step being taken exactly. `acceptance_error` gives the standard error of that average, 0 where it is exact.

    >>> from ot_spec import WithoutReplacement, as_exact
    >>> target, draft = as_exact([0.5, 0.5]), as_exact([0.75, 0.25])
    >>> RRSWithoutReplacement().acceptance(target, draft, WithoutReplacement(2))
    Fraction(1, 1)
    """

    name = "rrs_without_replacement"
    laws = ("without_replacement",)
    distinct = True

    def __init__(self, samples: int = 64):
        if samples < 2:
            raise OptionError(f"samples must be at least 2, got {samples}")
        self.samples = samples

    def tests(self, target: Array, draft: Array, tokens: Array, filled: Array) -> Tests:
        xp = namespace(target, draft)
        residual, left, tops, bottoms = target, draft, [], []
        for slot in range(tokens.shape[-1]):
            here = tokens[..., slot : slot + 1]
            tops.append(gather(xp, residual, here))
            bottoms.append(gather(xp, left, here))
            after = residual_or_target(xp, excess(xp, residual, left), target)
            residual = after if all_filled(filled) else xp.where(filled[..., slot : slot + 1], after, residual)
            rest = xp.where(positions(xp, left) == here, constant(0, left), left)
            left = residual_or_target(xp, rest, rest)
        return Tests(xp.concat(tops, axis=-1), xp.concat(bottoms, axis=-1), residual)

    def _acceptance(self, target: Array, draft: Array, law: DraftLaw) -> Array:
        return self.estimate(target, draft, law)[0]

    def acceptance_error(self, target: Array, draft: Array, law: DraftLaw) -> Array:
        """Standard error of `acceptance`, (...); 0 where it is exact."""
        return self.estimate(target, draft, law)[1]

    def estimate(self, target: Array, draft: Array, law: DraftLaw) -> tuple[Array, Array]:
        """`acceptance` and `acceptance_error` from one pass."""
        lead = np.broadcast_shapes(tuple(target.shape[:-1]), tuple(draft.shape[:-1]))
        shape = (*lead, target.shape[-1])
        pairs = [np.broadcast_to(to_numpy(a), shape).reshape(-1, shape[-1]) for a in (target, draft)]
        rows = [self._row(t, d, law) for t, d in zip(*pairs, strict=True)]
        if not lead:
            value, error = rows[0]
            return (value, error) if is_exact(target) else (like(np.float64(value), target), like(error, target))
        values = np.array([value for value, _ in rows], dtype=pairs[0].dtype).reshape(lead)
        return like(values, target), like(np.array([error for _, error in rows]).reshape(lead), target)

    def _row(self, target: np.ndarray, draft: np.ndarray, law: DraftLaw) -> tuple[float, np.float64]:
        k = min(law.k, int((draft > 0).sum()))
        if k == 1:
            return overlap(np, target, draft), np.float64(0)
        if is_exact(target) or law.size(draft).tuples <= _ENUMERATED:
            return acceptance_by_enumeration(self, target, draft, law), np.float64(0)
        refused = _refused_after(target[None], draft[None], k, self.samples)
        error = refused.std(ddof=1) / np.sqrt(refused.size) if refused.size > 1 else 0.0
        return 1 - refused.mean(), np.float64(error)


def _refused_after(target: np.ndarray, draft: np.ndarray, k: int, samples: int) -> np.ndarray:
    """P(k refusals | sampled start of the path of refused tokens), (samples,) or (1,) for k = 2."""
    grid = _lattice(samples, k - 2)
    refused = np.ones(1)
    residual, left = target, draft
    for step in range(k - 1):
        over = excess(np, residual, left)
        stop = over.sum(axis=-1)
        refused = refused * stop
        turned_down = excess(np, left, residual)
        after = residual_or_target(np, over, residual)
        if step == k - 2:
            return refused * _last_refusal(after, left, turned_down)
        sums = np.cumsum(turned_down, axis=-1)
        if len(sums) == 1:
            index = np.searchsorted(sums[0], grid[:, step] * sums[0, -1], side="right")
        else:
            index = np.array(
                [np.searchsorted(s, u * s[-1], side="right") for s, u in zip(sums, grid[:, step], strict=True)]
            )
        index = np.minimum(index, draft.shape[-1] - 1)
        refused = np.broadcast_to(refused, (samples,))
        left = np.broadcast_to(left, (samples, left.shape[-1])).copy()
        left[np.arange(samples), index] = 0.0
        left /= left.sum(axis=-1, keepdims=True)
        residual = np.broadcast_to(after, left.shape)
    raise AssertionError("unreachable: k >= 2")


def _last_refusal(residual: np.ndarray, left: np.ndarray, turned_down: np.ndarray) -> np.ndarray:
    """E over x ~ turned_down of sum_y (residual_y - c_x left_y)+, c_x = 1/(1 - left_x); residual_x is 0 there.

    Linear in c between the ratios residual/left: one sort gives it for every x.
    """
    out = np.empty(len(left))
    for row, (r, d, w) in enumerate(
        zip(np.broadcast_to(residual, left.shape), left, np.broadcast_to(turned_down, left.shape), strict=True)
    ):
        mass = w.sum()
        if mass <= 0:
            out[row] = 0.0
            continue
        active = r > 0
        with np.errstate(divide="ignore", over="ignore"):
            bend = r[active] / d[active]
        order = np.argsort(bend)
        from_here = np.cumsum(r[active][order][::-1])[::-1]
        drafted = np.cumsum(d[active][order][::-1])[::-1]
        which = np.flatnonzero(w > 0)
        rest = np.where(d[which] < 0.5, 1 - d[which], d.sum() - d[which])
        c = 1 / np.maximum(rest, 1e-300)
        first = np.searchsorted(bend[order], c, side="right")
        padded_r, padded_d = np.append(from_here, 0.0), np.append(drafted, 0.0)
        over = np.maximum(padded_r[first] - c * padded_d[first], 0.0)
        out[row] = (w[which] * over).sum() / mass
    return out


def _lattice(points: int, dimensions: int) -> np.ndarray:
    """A rank-1 lattice of the generalised golden ratio in [0, 1)^dimensions."""
    ratio = 2.0
    for _ in range(60):
        ratio = (1 + ratio) ** (1 / (dimensions + 1))
    steps = ratio ** -np.arange(1.0, dimensions + 1)
    return (0.5 + np.arange(1, points + 1)[:, None] * steps) % 1.0
