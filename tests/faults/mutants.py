"""Rules that are wrong on purpose, each in one place. The checks must turn red on every one of them."""

from __future__ import annotations

import copy
import math
from fractions import Fraction
from typing import Any

import numpy as np

from ot_spec import TransportPlan, from_logits
from ot_spec.arrays import coins_like, constant, is_exact, namespace, one_hot, pick, total
from ot_spec.errors import OptionError
from ot_spec.law import filtered
from ot_spec.plan import Cut
from ot_spec.selector import Selection
from solvers.selectors.rule import SequentialRule, Tests, as_laws, excess


def mixed(mixin: type, rule: Any, **options: Any) -> Any:
    """The rule with the methods of `mixin` in front of its own."""
    wrong = copy.copy(rule)
    wrong.__class__ = type(mixin.__name__, (mixin, type(rule)), {})
    vars(wrong).update(options)
    return wrong


# --- residuals ---------------------------------------------------------------------------------------------------


class FromTarget(SequentialRule):
    """After a refusal, draws from the target."""

    def tests(self, *args: Any) -> Tests:
        return super().tests(*args)._replace(residual=args[0])  # pyright: ignore[reportAbstractUsage]


class Softmaxed(SequentialRule):
    """Turns the residual into a law by softmax."""

    def tests(self, *args: Any) -> Tests:
        tests = super().tests(*args)  # pyright: ignore[reportAbstractUsage]
        return tests._replace(residual=np.vectorize(lambda w: Fraction(math.exp(w)), otypes=[object])(tests.residual))


class Floored(SequentialRule):
    """Keeps the residual above a floor, against 0/0."""

    floor = 1e-5

    def tests(self, *args: Any) -> Tests:
        tests = super().tests(*args)  # pyright: ignore[reportAbstractUsage]
        xp = namespace(tests.residual)
        return tests._replace(residual=xp.maximum(tests.residual, constant(0, tests.residual) + self.floor))


class Refusing(SequentialRule):
    """No fault of its own: refuses every candidate, so that what follows a refusal is seen."""

    def tests(self, *args: Any) -> Tests:
        tests = super().tests(*args)  # pyright: ignore[reportAbstractUsage]
        return tests._replace(top=tests.top * 0)


class UniformFallback(SequentialRule):
    """Draws uniformly where the target exceeds the draft nowhere."""

    def tests(self, *args: Any) -> Tests:
        tests = super().tests(*args)  # pyright: ignore[reportAbstractUsage]
        xp = namespace(tests.residual)
        empty = ~(total(xp, excess(xp, args[0], args[1]), keepdims=True) > 0)
        return tests._replace(residual=xp.where(empty, constant(1, tests.residual), tests.residual))


class Stale(SequentialRule):
    """Goes on with the first target it has seen."""

    _first: Any = None

    def tests(self, *args: Any) -> Tests:
        if self._first is None:
            self._first = args[0]
        return super().tests(self._first, *args[1:])  # pyright: ignore[reportAbstractUsage]


# --- coins -------------------------------------------------------------------------------------------------------


class RowByRow(SequentialRule):
    """`select` written out, with a method for every decision. As it stands it is the rule's own."""

    def laws_of(self, target: Any, draft: Any) -> tuple[Any, Any]:
        return as_laws(target, draft)

    def refuse_coins(self, coins: np.ndarray) -> None:
        if coins.dtype != object and not ((coins >= 0) & (coins < 1)).all():
            raise OptionError("a coin is outside [0, 1)")

    def keeps(self, coin: Any, top: Any, bottom: Any) -> bool:
        return bool(coin * bottom < top)

    def last_coin(self, coins: np.ndarray) -> Any:
        return coins[-1]

    def draw(self, weights: np.ndarray, coin: Any) -> int:
        return int(pick(weights, np.array([coin], dtype=object if is_exact(weights) else float))[0])

    def select(self, target: Any, draft: Any, candidates: Any, coins: Any) -> Selection:
        target, draft = self.laws_of(np.asarray(target), np.asarray(draft))
        candidates, coins = np.asarray(candidates), np.asarray(coins)
        tokens, filled, valid = self._read(draft, candidates)
        tests = self.tests(np.atleast_2d(target), np.atleast_2d(draft), np.atleast_2d(tokens), np.atleast_2d(filled))
        self.refuse_coins(coins)
        coins = coins_like(coins, target)
        lead = np.broadcast_shapes(candidates.shape[:-1], coins.shape[:-1], target.shape[:-1])

        def spread(array: Any) -> np.ndarray:
            array = np.asarray(array)
            if array.ndim == 2 and not lead:
                array = array[0]
            return np.broadcast_to(array, (*lead, array.shape[-1]))

        parts = [spread(a) for a in (tests.top, tests.bottom, tests.residual, target, tokens, filled, coins)]
        out = np.empty(lead, dtype=np.int64)
        slots = np.empty(lead, dtype=np.int64)
        for index in np.ndindex(lead):
            out[index], slots[index] = self._row(*(part[index] for part in parts))
        return Selection(out, slots >= 0, slots, np.broadcast_to(valid, lead))

    def _row(self, top: Any, bottom: Any, residual: Any, target: Any, tokens: Any, filled: Any, coins: Any) -> Any:
        for slot, token in enumerate(tokens):
            if filled[slot] and self.keeps(coins[slot], top[slot], bottom[slot]):
                return int(token), slot
        token = self.draw(residual if residual.sum() > 0 else target, self.last_coin(coins))
        return token, next((i for i, x in enumerate(tokens) if filled[i] and x == token), -1)


class OneCoin(RowByRow):
    """The coin that refused the last candidate also draws from the residual."""

    def last_coin(self, coins: np.ndarray) -> Any:
        return coins[-2]


class Weak(RowByRow):
    """Accepts at equality, so a coin of 0 lets through what the target excludes."""

    def keeps(self, coin: Any, top: Any, bottom: Any) -> bool:
        return bool(coin * bottom <= top)


class AnyCoin(RowByRow):
    """Takes coins as they come, 1.0 too."""

    def refuse_coins(self, coins: np.ndarray) -> None:
        pass

    def draw(self, weights: np.ndarray, coin: Any) -> int:
        cdf = np.cumsum(weights)
        return int(np.searchsorted(cdf, coin * cdf[-1], side="right"))


class Unchecked(AnyCoin):
    """Takes laws as they come, NaN too."""

    def laws_of(self, target: Any, draft: Any) -> tuple[Any, Any]:
        return target, draft


def pick_left(weights: np.ndarray, coins: np.ndarray) -> np.ndarray:
    """At a breakpoint takes the token before it, of whatever weight."""
    cdf = np.cumsum(weights)
    return np.minimum(np.searchsorted(cdf, coins * cdf[-1], side="left"), weights.size - 1)


def pick_last_index(weights: np.ndarray, coins: np.ndarray) -> np.ndarray:
    """Trusts the total to be 1, and clamps to the last id."""
    return np.minimum(np.searchsorted(np.cumsum(weights), coins, side="right"), weights.size - 1)


def pick_past_the_end(weights: np.ndarray, coins: np.ndarray) -> np.ndarray:
    """Does not clamp."""
    cdf = np.cumsum(weights)
    return np.searchsorted(cdf, coins * cdf[-1], side="right")


def pick_by_raw_scan(weights: Any, coins: Any) -> Any:
    """Searches running sums that may step down, as they are."""
    xp = namespace(weights)
    cdf = xp.cumulative_sum(weights, axis=-1)
    found = xp.searchsorted(cdf, coins * cdf[..., -1:], right=True)
    return xp.clip(found, max=weights.shape[-1] - 1)


def pick_by_race(weights: np.ndarray, coins: np.ndarray) -> np.ndarray:
    """The largest w/E with E = -log(1 - coin): 0/0 where E is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.array([np.argmax(weights / -np.log1p(-np.full(weights.size, coin))) for coin in coins])


def always_the_largest(rates: np.ndarray) -> np.ndarray:
    """The law of a race, misread as its favourite."""
    return np.eye(rates.size)[np.argmax(rates)]


def divided_in_place(target: Any, draft: Any, coins: Any) -> Any:
    draft /= draft.sum(-1)[..., None] * 2
    return target / draft.clip(1e-3)


def zeroed_before_the_copy(target: Any, draft: Any, coins: Any) -> Any:
    target[..., 0] = 0
    return target + 0


class HiddenGenerator:
    """Throws coins of its own."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def __call__(self, target: Any, draft: Any, coins: Any) -> Any:
        return target * self._rng.random()


# --- the door ----------------------------------------------------------------------------------------------------


def nan_passes(probs: Any, **_: Any) -> Any:
    """A guard that NaN passes."""
    law = np.asarray(probs, dtype=np.float64)
    sums = law.sum(axis=-1, keepdims=True)
    if (sums <= 0).any():
        raise ValueError("no mass")
    return law / sums


def tight_tolerance(probs: Any, **_: Any) -> Any:
    """Wants sums within 1e-8 of 1, whatever the dtype."""
    law = np.asarray(probs, dtype=np.float64)
    if (abs(law.sum(axis=-1) - 1) > 1e-8).any():
        raise ValueError("probabilities do not sum to 1")
    return law / law.sum(axis=-1, keepdims=True)


def summed_in_its_own_dtype(probs: Any, **_: Any) -> Any:
    """Adds up one by one in the dtype of the input, and wants 1e-6."""
    law = np.asarray(probs)
    if (abs(np.cumsum(law, axis=-1, dtype=law.dtype)[..., -1] - 1) > 1e-6).any():
        raise ValueError("probabilities do not sum to 1")
    return law.astype(np.float64) / law.sum(axis=-1, keepdims=True, dtype=np.float64)


def rescaled_silently(probs: Any, **_: Any) -> Any:
    law = np.asarray(probs, dtype=np.float64)
    return law / law.sum(axis=-1, keepdims=True)


# --- logits and filters ------------------------------------------------------------------------------------------


def temperature_ignored(logits: Any, *, temperature: Any = 1.0) -> Any:
    return from_logits(logits)


def divided_by_zero(logits: Any, *, temperature: Any = 1.0) -> Any:
    """Greedy is -1 here and 0 elsewhere."""
    weights = np.exp(np.asarray(logits, dtype=np.float64) / np.asarray(temperature)[..., None])
    return weights / weights.sum(axis=-1, keepdims=True)


def divided_before_the_maximum(logits: Any, *, temperature: Any = 1.0) -> Any:
    """Divides in the dtype of the logits, then subtracts the largest."""
    logits = np.asarray(logits)
    heat = np.asarray(temperature, dtype=logits.dtype)[..., None]
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        heated = logits / heat
        weights = np.exp((heated - heated.max(axis=-1, keepdims=True)).astype(np.float64))
        return weights / weights.sum(axis=-1, keepdims=True)


def half_precision(logits: Any, *, temperature: Any = 1.0) -> Any:
    """Softmax in float16, where small masses are 0."""
    weights = np.exp(np.asarray(logits, dtype=np.float16) - np.max(logits).astype(np.float16))
    return (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float64)


def half_argmax(logits: Any, *, temperature: Any = 1.0) -> Any:
    """Greedy on rounded logits."""
    return from_logits(np.asarray(logits).astype(np.float16), temperature=temperature)


def last_argmax(law: Any) -> Any:
    """The last of equal largest entries."""
    xp = namespace(law)
    return one_hot(xp, law.shape[-1] - 1 - xp.argmax(xp.flip(law, axis=-1), axis=-1), law)


def _ranked(law: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(-law, axis=-1, kind="stable")
    return order, np.take_along_axis(law, order, axis=-1)


def _kept(law: np.ndarray, order: np.ndarray, keep: np.ndarray) -> np.ndarray:
    mask = np.zeros(law.shape, dtype=bool)
    np.put_along_axis(mask, order, keep, axis=-1)
    weights = np.where(mask, law, law * 0)
    return weights / weights.sum(axis=-1, keepdims=True)


def joint_filters(law: Any, *, top_k: Any = None, top_p: Any = None, min_p: Any = None) -> Any:
    """Both cuts taken on the raw law."""
    order, down = _ranked(law)
    keep = np.ones(law.shape, dtype=bool)
    if top_k and top_k > 0:
        keep &= np.arange(law.shape[-1]) < top_k
    if top_p is not None and top_p < 1:
        keep &= (np.cumsum(down, axis=-1) - down < top_p) | (np.arange(law.shape[-1]) == 0)
    return filtered(_kept(law, order, keep), min_p=min_p)


def unnormalised_top_k(law: Any, *, top_k: Any = None, top_p: Any = None, min_p: Any = None) -> Any:
    """Top-k without renormalising, then drops the smallest masses that add up to 1 - top_p: possibly all."""
    order, down = _ranked(law)
    if top_k and top_k > 0:
        down = np.where(np.arange(law.shape[-1]) < top_k, down, down * 0)
    keep = down > 0
    if top_p is not None and top_p < 1:
        keep &= np.cumsum(down[..., ::-1], axis=-1)[..., ::-1] > 1 - top_p
    return filtered(_kept(law, order, keep), min_p=min_p)


def top_p_zero_is_off(law: Any, *, top_k: Any = None, top_p: Any = None, min_p: Any = None) -> Any:
    return filtered(law, top_k=top_k, top_p=top_p or None, min_p=min_p)


def ties_kept(law: Any, *, top_k: Any = None, top_p: Any = None, min_p: Any = None) -> Any:
    """Keeps every mass as large as the k-th."""
    if top_k and 0 < top_k < law.shape[-1]:
        order, down = _ranked(law)
        law = _kept(law, order, down >= down[..., top_k - 1 : top_k])
    return filtered(law, top_p=top_p, min_p=min_p)


def last_of_ties(law: Any, *, top_k: Any = None, top_p: Any = None, min_p: Any = None) -> Any:
    """Among equals keeps the highest ids."""
    return filtered(law[..., ::-1], top_k=top_k, top_p=top_p, min_p=min_p)[..., ::-1]


def k_th_by_index(law: Any, *, top_k: Any = None, top_p: Any = None, min_p: Any = None) -> Any:
    """Looks up the k-th mass, whatever k."""
    if top_k is not None:
        order, down = _ranked(law)
        down[..., top_k - 1]
        law = _kept(law, order, np.arange(law.shape[-1]) < top_k)
    return filtered(law, top_p=top_p, min_p=min_p)


# --- solvers -----------------------------------------------------------------------------------------------------


def all_zero_plan(problem: Any) -> TransportPlan:
    """What a solver leaves behind when it gives up quietly."""
    return TransportPlan(problem, problem.probs[problem.edge_set] * 0, "quiet")


def penalised(problem: Any) -> TransportPlan:
    """Forbids the pairs without an edge by a cost of 1e32, and believes what comes back."""
    from scipy.optimize import linprog

    sets, vocab = problem.probs.size, problem.vocab
    cost = np.ones((sets, vocab)) * 1e32
    cost[problem.edge_set, problem.edge_token] = 0.0
    rows = np.kron(np.eye(sets), np.ones(vocab))
    columns = np.kron(np.ones(sets), np.eye(vocab))
    found = linprog(
        cost.reshape(-1),
        A_eq=np.vstack([rows, columns])[:-1],
        b_eq=np.concatenate([problem.probs, problem.target])[:-1],
        method="highs",
    )
    flow = np.zeros((sets, vocab)) if found.x is None else found.x.reshape(sets, vocab)
    return TransportPlan.repaired(problem, flow[problem.edge_set, problem.edge_token], "penalised")


def zero_where_no_mass(cut: Cut) -> tuple[np.ndarray, np.ndarray]:
    """Duals with zeros for tokens that the target does not have."""
    sets, tokens = cut.duals()
    return sets, np.where(cut.target > 0, tokens, 0)


def unrepaired(problem: Any, flow: np.ndarray) -> np.ndarray:
    """A solver's raw flow as a coupling."""
    joint = np.outer(problem.probs, problem.target) * 0
    np.add.at(joint, (problem.edge_set, problem.edge_token), flow)
    rows, columns = problem.probs - joint.sum(axis=1), problem.target - joint.sum(axis=0)
    return joint + rows[:, None] * columns / max(columns.sum(), 1e-300)
