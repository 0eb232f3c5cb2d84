"""Two serial loops over the vocabulary, compiled: order statistics of exponential clocks.

Drafts without replacement are the first k of independent exponential clocks of rates d_y to ring. For a time u let
N_H(u) be the number of clocks of H that have rung. Both quantities below are integrals over u of Poisson-binomial
probabilities, taken by the trapezoid rule in ln u, where it converges geometrically.
"""

from __future__ import annotations

import math

import numba
import numpy as np

STEP = 0.125


def nodes(smallest_rate: float, lowest: float) -> np.ndarray:
    """Times u on a grid of step 0.125 in ln u, from e^lowest to where a clock of the smallest rate has surely rung."""
    return np.exp(np.arange(lowest, math.log(40.0) - math.log(smallest_rate) + STEP, STEP))


def measurable(rates: np.ndarray) -> np.ndarray:
    """The rates in a unit of time in which even the slowest clock rings at a finite one: a subnormal mass needs it."""
    slowest = rates.min(initial=1.0, where=rates > 0)
    return rates if slowest > 1e-290 else rates * 2.0**80


@numba.njit(cache=True, error_model="numpy")
def _rung(rate_time: float) -> float:  # 1 - e^-x without cancellation
    if rate_time < 1e-3:
        return rate_time * (1.0 - rate_time * (0.5 - rate_time * (1.0 / 6.0 - rate_time / 24.0)))
    return 1.0 - math.exp(-rate_time)


@numba.njit(cache=True, error_model="numpy")
def prefix_inside(rates: np.ndarray, beyond: np.ndarray, k: int, times: np.ndarray, step: float) -> np.ndarray:
    """P(the first k clocks to ring all lie in the first i), i = 0..V: int lambda e^(-lambda u) P(N_i(u) >= k) du.

    rates (V,): in the order of the prefixes. beyond (V + 1,): lambda_i, the rate outside the first i, summed from
    the far end. The result is 1 where lambda is 0.
    """
    size = rates.size
    inside = np.zeros(size + 1)
    width = 8
    few = np.zeros((k, width))  # few[j]: P(N = j) at each of `width` times
    enough = np.zeros(width)  # P(N >= k), built of positive terms
    silent = np.zeros(width)
    rung = np.zeros(width)
    for first in range(0, times.size, width):
        many = min(width, times.size - first)
        few[:] = 0.0
        few[0, :] = 1.0
        enough[:] = 0.0
        settled = False  # k have rung for sure, whoever comes
        for y in range(size):
            rate = rates[y]
            if rate > 0.0 and not settled:
                for n in range(many):
                    rung[n] = _rung(rate * times[first + n])
                    silent[n] = 1.0 - rung[n] if rung[n] < 0.5 else math.exp(-rate * times[first + n])
                for n in range(many):
                    enough[n] += few[k - 1, n] * rung[n]
                for j in range(k - 1, 0, -1):
                    for n in range(many):
                        few[j, n] = few[j, n] * silent[n] + few[j - 1, n] * rung[n]
                for n in range(many):
                    few[0, n] *= silent[n]
                if y % 16 == 0:
                    settled = few[:, :many].max() < 1e-40
            rest = beyond[y + 1]
            if rest > 0.0:
                mass = 0.0
                for n in range(many):
                    wait = rest * times[first + n]
                    if wait < 45.0:
                        mass += wait * math.exp(-wait) * enough[n]
                inside[y + 1] += step * mass
    for i in range(size + 1):
        if beyond[i] <= 0.0 or inside[i] > 1.0:
            inside[i] = 1.0
    return inside


@numba.njit(cache=True, error_model="numpy")
def inclusion(rates: np.ndarray, k: int, times: np.ndarray, step: float) -> np.ndarray:
    """P(clock y is among the first k to ring) = int d_y e^(-d_y u) P(N_(all but y)(u) <= k - 1) du, for each y.

    Forward and backward counts at each time are combined, so that no token is divided out.
    """
    size = rates.size
    included = np.zeros(size)
    ahead = np.zeros((size + 1, k + 1))
    behind = np.zeros(k)
    for n in range(times.size):
        u = times[n]
        ahead[0, :] = 0.0
        ahead[0, 0] = 1.0
        for y in range(size):
            rung = _rung(rates[y] * u)
            silent = math.exp(-rates[y] * u)
            ahead[y + 1, 0] = ahead[y, 0] * silent
            for j in range(1, k + 1):
                ahead[y + 1, j] = ahead[y, j] * silent + ahead[y, j - 1] * rung
        if ahead[size].sum() < 1e-20:  # more than k have rung: nobody is still waiting for a place
            break
        behind[:] = 0.0
        behind[0] = 1.0
        for y in range(size - 1, -1, -1):
            wait = rates[y] * u
            rung = _rung(wait)
            silent = math.exp(-wait)
            if 0.0 < wait < 45.0:
                fewer = 0.0
                reach = 0.0
                for j in range(k):  # reach = P(at most j behind), paired with k - 1 - j ahead
                    reach += behind[j]
                    fewer += ahead[y, k - 1 - j] * reach
                included[y] += step * wait * silent * fewer
            for j in range(k - 1, 0, -1):
                behind[j] = behind[j] * silent + behind[j - 1] * rung
            behind[0] *= silent
    for y in range(size):
        if included[y] > 1.0:
            included[y] = 1.0
    return included
