"""Gumbel-max list coupling: shared exponential races draw the candidates and the output together."""

from __future__ import annotations

from typing import Any

import numpy as np

from ot_spec.arrays import (
    Array,
    coins_like,
    constant,
    is_exact,
    is_numpy,
    like,
    namespace,
    order_by_ratio,
    to_numpy,
)
from ot_spec.errors import OptionError, ShapeError
from ot_spec.kernels import STEP
from ot_spec.selector import Selection, first_match
from solvers.selectors.canonical import host_rows
from solvers.selectors.rule import as_laws, laws_valid

_BLOCK = 1 << 21  # entries of a block of times x tokens


class GumbelList:
    """Noise S_i^(j) ~ Exp(1), independent over lists j = 1..k and tokens i: x_j = argmin_i S_i^(j)/draft_i and
    y = argmin_i min_j S_i^(j)/target_i.

    A race of exponential clocks is won with the probabilities of its rates, so the x_j are independent draws of the
    draft and y, whose clocks min_j S_i^(j) are Exp(k), is one of the target. Verifying reads the target, the candidates
    and the noise, not the draft: changing the draft alone never changes y. List coupling, 2025; k = 1 is the Gumbel
    coupling.

    Acceptance. Sort the tokens of draft mass by target/draft and let A(a) = sum_l (a draft_l - target_l)+,
    A_i = A(target_i/draft_i), D_m the draft mass of the first m tokens. The winning clock rings at a time s ~ Exp(k),
    independent of y. Given s and y = i, its own list has x = i with probability e^(-A_i s) (the list matching lemma
    stops here: P(Y in X) >= sum_i target_i k/(k + A_i), see `matched`), each other list with
    r_i(s) = draft_i sum_(m >= i) (e^(-A_m s) - e^(-A_(m+1) s))/D_m, independently, the last A being infinite. So
    P(Y in X) = 1 - sum_i target_i int k e^(-k s) (1 - e^(-A_i s)) (1 - r_i(s))^(k-1) ds.

    >>> target, draft = np.array([0.5, 0.5]), np.array([0.75, 0.25])
    >>> float(GumbelList().acceptance(target, draft, 1).round(12))
    0.7
    """

    name = "gumbel_list"
    exact = True

    def candidates(self, draft: Array, noise: Array) -> Array:
        """x (..., k) for draft (..., V) and noise (..., k, V)."""
        xp = namespace(draft)
        return _first(xp, coins_like(noise, draft), draft[..., None, :])

    def output(self, target: Array, candidates: Array, noise: Array) -> Selection:
        """y, and where it stands among the candidates (..., k); the draft is not needed."""
        xp = namespace(target)
        valid = _noise_valid(xp, like(noise, target), target)
        token = _first(xp, xp.min(coins_like(noise, target), axis=-2), target)
        valid = xp.broadcast_to(valid & laws_valid(target, target), token.shape)
        token = xp.where(valid, token, xp.full_like(token, -1))
        index = first_match(candidates, token)
        index = xp.where(valid, index, xp.full_like(index, -1))
        return Selection(token, index >= 0, index, valid)

    def couple(self, target: Array, draft: Array, noise: Array) -> tuple[Array, Selection]:
        """Candidates (..., k) and the output, for noise (..., k, V) of Exp(1) variables, >= 0 and finite.

        Zeros are met: a token of probability 0 is never drawn, among several clocks at 0 the lowest id is. Negative
        or non-finite noise raises OptionError naming its index on numpy, and flags the row elsewhere.
        """
        target, draft = as_laws(target, draft)
        noise = like(noise, target)
        if noise.ndim < 2 or noise.shape[-1] != target.shape[-1] or noise.shape[-2] < 1:
            raise ShapeError(f"noise has shape (..., k, {target.shape[-1]}), got {tuple(noise.shape)}")
        candidates = self.candidates(draft, noise)
        selection = self.output(target, candidates, noise)
        valid = selection.valid & laws_valid(target, draft)
        return candidates, selection._replace(valid=valid)

    def acceptance(self, target: Array, draft: Array, k: int) -> Array:
        """P(Y in X), (...): exact laws by expanding the integral, of (V + 1)^k terms; floats by the trapezoid rule in
        ln s, to 1e-13."""
        return self._by_rows(target, draft, k, _expanded, _integrated)

    def matched(self, target: Array, draft: Array, k: int) -> Array:
        """P(the list whose clock wins for the target proposes y) = sum_i target_i k/(k + A_i) <= acceptance, (...)."""
        return self._by_rows(target, draft, k, _matched, _matched)

    def _by_rows(self, target: Array, draft: Array, k: int, exact: Any, floats: Any) -> Array:
        if k < 1:
            raise OptionError(f"k must be at least 1, got {k}")
        target, draft = as_laws(target, draft)
        lead, rows = host_rows(target, draft)
        function = exact if is_exact(target) else floats
        values = np.array([function(*_sorted(t, d), k) for t, d in rows], dtype=to_numpy(target).dtype)
        values = values.reshape(lead)
        return values[()] if is_numpy(target) else like(values, target)


def _first(xp: Any, times: Array, rates: Array) -> Array:
    """The first clock to ring, (...): the least time/rate over positive rates, the lowest id among equals."""
    running = rates > 0
    if is_exact(rates):
        times = times / np.where(running, rates, constant(1, rates))
        never = 1 + np.max(times, axis=-1, keepdims=True)
        return np.argmin(np.where(running, times, never), axis=-1)
    with np.errstate(over="ignore"):
        times = times / xp.where(running, rates, constant(1, rates))
    late = constant(float(np.finfo(np.float64).max), times)
    return xp.argmin(xp.where(running, xp.minimum(times, late), constant(float("inf"), times)), axis=-1)


def _noise_valid(xp: Any, noise: Array, model: Array) -> Array:
    if is_numpy(model):
        host = to_numpy(noise)
        if host.dtype != object:
            bad = ~((host >= 0) & np.isfinite(host))
            if bad.any():
                index = tuple(int(i) for i in np.argwhere(bad)[0])
                raise OptionError(f"noise is non-negative and finite; entry {index} is {host[index]!r}")
        return np.bool_(True)
    return xp.all(xp.all((noise >= 0) & xp.isfinite(noise), axis=-1), axis=-1)


def _sorted(target: np.ndarray, draft: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Target and draft masses of the drafted tokens in ascending order of their ratio, A_m and D_m."""
    order = order_by_ratio(target, draft)
    order = order[draft[order] > 0]
    target, draft = target[order], draft[order]
    mass = np.cumsum(draft)
    ratios = target / draft
    steps = mass[:-1] * (ratios[1:] - ratios[:-1])
    return target, draft, np.cumsum(np.concatenate([ratios[:1] * 0, steps])), mass


def _matched(target: np.ndarray, draft: np.ndarray, late: np.ndarray, mass: np.ndarray, k: int) -> Any:
    return (target * k / (k + late)).sum()


def _integrated(target: np.ndarray, draft: np.ndarray, late: np.ndarray, mass: np.ndarray, k: int) -> float:
    times = np.exp(np.arange(-38.0, 4.0, STEP)) / k
    weights = STEP * k * times * np.exp(-k * times)
    missed = max(1 - target.sum(), 0.0)
    for start in range(0, times.size, max(1, _BLOCK // late.size)):
        part = slice(start, start + max(1, _BLOCK // late.size))
        passed = np.exp(-late * times[part, None])
        gone = passed.copy()
        gone[:, :-1] -= passed[:, 1:]
        gone /= mass
        elsewhere = draft * np.cumsum(gone[:, ::-1], axis=1)[:, ::-1]
        others = np.maximum(1 - elsewhere, 0) ** (k - 1)
        missed += weights[part] @ (-np.expm1(-late * times[part, None]) * others @ target)
    return min(max(1 - missed, 0.0), 1.0)


def _expanded(target: np.ndarray, draft: np.ndarray, late: np.ndarray, mass: np.ndarray, k: int) -> Any:
    """The same integral, by multiplying out sums of exponentials {rate: coefficient}."""
    one = draft[0] * 0 + 1
    hit = one * 0
    for i in range(target.size):
        if not target[i] > 0:
            continue
        own = {late[i] * 0: one}
        _add(own, late[i], -one)
        other = {late[i] * 0: one}
        for m in range(i, late.size):
            _add(other, late[m], -draft[i] / mass[m])
            if m + 1 < late.size:
                _add(other, late[m + 1], draft[i] / mass[m])
        missed = own
        for _ in range(k - 1):
            product: dict[Any, Any] = {}
            for a, x in missed.items():
                for b, y in other.items():
                    _add(product, a + b, x * y)
            missed = product
        hit = hit + target[i] * (1 - sum(c * k / (k + rate) for rate, c in missed.items()))
    return hit


def _add(terms: dict[Any, Any], rate: Any, coefficient: Any) -> None:
    terms[rate] = terms.get(rate, coefficient * 0) + coefficient
