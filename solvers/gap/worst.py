"""A search for the law pair on which a selector loses most."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from ot_spec import IID, Selector
from ot_spec.draft_law import DraftLaw
from ot_spec.errors import OptionError
from ot_spec.families import FAMILIES, STARTS, draw
from ot_spec.selector import require_support
from solvers import get_selector, optimal_acceptance
from solvers.gap.study import DRAFT_LAWS, guarantee
from solvers.selectors.k_seq import KSeq

__all__ = ["WorstCase", "sharp_guarantee", "two_token_pair", "worst_case"]

_LINES = 16  # searched side by side, so that one bad start does not decide
_CHILDREN = 16
_LEAST_OPTIMUM = 1e-6


@dataclass(frozen=True)
class WorstCase:
    """The pair (V,) of least ratio = acceptance/optimum that a search met; `guarantee` is 1 - (1 - 1/k)^k."""

    selector: str
    law: str
    k: int
    target: np.ndarray
    draft: np.ndarray
    acceptance: float
    optimum: float
    ratio: float
    guarantee: float
    evaluated: int


def worst_case(
    selector: str | Selector = "k_seq",
    k: int = 2,
    vocab: int = 4,
    law: str = "iid",
    seed: int = 0,
    budget: int = 20_000,
) -> WorstCase:
    """The law pair over `vocab` tokens on which the selector loses most against the optimum, as far as found.

    A quarter of the `budget` (pairs evaluated, at least 1,000) goes to the families and a fine grid of two
    tokens; the best start a random local search: masses are multiplied by log-normal noise, moved from token
    to token, or set to zero, with steps that shrink where nothing improves. Every pair found is a valid upper
    bound of the worst ratio; nothing says that there is none worse. Pairs with an optimum below 1e-6 are
    passed over.

    Raises OptionError for parameters out of range, UnsupportedLawError where the selector is not exact.

    >>> found = worst_case("k_seq", k=2, vocab=2, budget=2000)
    >>> found.guarantee <= found.ratio < 0.9
    True
    """
    rule = get_selector(selector) if isinstance(selector, str) else selector
    if law not in DRAFT_LAWS:
        raise OptionError(f"no draft law {law!r} given by k alone; there are {', '.join(DRAFT_LAWS)}")
    drafts = DRAFT_LAWS[law](k)
    require_support(rule, drafts)
    for name, value, least in (("vocab", vocab, 2), ("budget", budget, 1000), ("seed", seed, 0)):
        if value < least:
            raise OptionError(f"{name} must be at least {least}, got {value}")
    rng = np.random.default_rng([seed, k, vocab, *rule.name.encode()])
    pairs = _starts(rng, vocab, budget // 4)
    ratios = _ratio(rule, drafts, pairs)
    evaluated = len(ratios)
    best = np.argsort(ratios, kind="stable")[:_LINES]
    pairs, ratios, steps = pairs[best], ratios[best], np.full(len(best), 0.5)
    while evaluated + _CHILDREN * len(pairs) <= budget:
        children = _children(rng, np.repeat(pairs, _CHILDREN, axis=0), np.repeat(steps, _CHILDREN))
        found = _ratio(rule, drafts, children).reshape(len(pairs), _CHILDREN)
        evaluated += found.size
        first = found.argmin(axis=1)
        better = found[np.arange(len(pairs)), first] < ratios
        pairs[better] = children.reshape(len(pairs), _CHILDREN, 2, vocab)[better, first[better]]
        ratios = np.where(better, found.min(axis=1), ratios)
        steps = np.clip(np.where(better, steps * 1.3, steps * 0.8), 1e-5, 1.0)
    target, draft = pairs[ratios.argmin()]
    acceptance = float(rule.acceptance(target, draft, drafts))
    optimum = float(optimal_acceptance(target, draft, drafts))
    return WorstCase(
        rule.name, law, k, target, draft, acceptance, optimum, acceptance / optimum, guarantee(k), evaluated
    )


def _starts(rng: np.random.Generator, vocab: int, many: int) -> np.ndarray:
    """At least `many` pairs, (n, 2, V)."""
    names = [*FAMILIES, *STARTS]
    share = -(-many // (len(names) + 1))
    starts = []
    for name in names:
        pair = np.stack(draw(name, rng, vocab, 2 * share if name == "bernoulli" else share), axis=1)
        starts.append(np.pad(pair, ((0, 0), (0, 0), (0, vocab - pair.shape[-1]))))
    return np.concatenate(starts)


def _ratio(rule: Selector, law: DraftLaw, pairs: np.ndarray) -> np.ndarray:
    target, draft = pairs[:, 0], pairs[:, 1]
    best = optimal_acceptance(target, draft, law)
    reached = rule.acceptance(target, draft, law)
    return np.divide(reached, best, out=np.ones_like(best), where=best > _LEAST_OPTIMUM)


def _children(rng: np.random.Generator, pairs: np.ndarray, steps: np.ndarray) -> np.ndarray:
    many, _, vocab = pairs.shape
    children = pairs * np.exp(steps[:, None, None] * rng.standard_normal(pairs.shape))
    rows = np.arange(many)
    side = rng.integers(2, size=many)
    giver, taker = rng.integers(vocab, size=(2, many))
    share = np.minimum(steps * rng.random(many), 1.0)
    share = np.where(rng.random(many) < 0.1, 1.0, share)  # now and then a token is emptied
    moved = children[rows, side, giver] * share
    alone = rng.random(many) < 0.5  # half of the children only move mass
    children = np.where(alone[:, None, None], pairs, children)
    moved = np.where(alone, pairs[rows, side, giver] * share, moved)
    children[rows, side, giver] -= moved
    children[rows, side, taker] += moved
    return children / children.sum(axis=-1, keepdims=True)


def two_token_pair(target: np.ndarray, draft: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """A pair over two tokens on which K-SEQ loses at least as much: (V,) -> (2,), for k i.i.d. drafts.

    The tokens with target < rho* draft become one, the others the second. sum min(rho* draft, target) and
    beta = sum min(draft, target/rho*) stay what they are, so rho* and K-SEQ's acceptance do; and any coupling
    of the full laws is one of the merged laws, so alpha* can only rise. Hence the worst ratio over all
    vocabularies is attained with two tokens, and `worst_case` needs no more for "k_seq".
    """
    short = target < KSeq().divisor(target, draft, k) * draft
    laws = (np.array([law[short].sum(), law[~short].sum()]) for law in (target, draft))
    merged_target, merged_draft = (law / law.sum() for law in laws)
    return merged_target, merged_draft


def sharp_guarantee(k: int) -> float:
    """The least K-SEQ acceptance on a pair of optimum 1, over all vocabularies, for k i.i.d. drafts.

    Two tokens suffice (`two_token_pair`). target = (1 - (1 - b)^k, (1 - b)^k) and draft = (b, 1 - b) is the
    pair of optimum 1 in which the second token is scarcest: there acceptance a solves a = rho b + (1 - b)^k
    with a = 1 - (1 - beta)^k = rho beta, and the value is the least over b. `worst_case` finds no less at
    optima below 1 either. It lies well above 1 - (1 - 1/k)^k and falls to 0.82636 as k grows.

    >>> round(sharp_guarantee(2), 9) == round(8 / 9, 9)
    True
    """
    IID(k)  # refuses what is no number of candidates
    if k == 1:
        return 1.0

    def accepted(x: float) -> float:
        b = x / k
        scarce = (1 - b) ** k

        def surplus(a: float) -> float:
            beta = -math.expm1(math.log1p(-a) / k)
            return a - a / beta * b - scarce

        root: Any = brentq(surplus, 1e-12, 1 - 1e-15, xtol=1e-15)
        return root

    least: Any = minimize_scalar(accepted, bounds=(0.05, min(k - 0.05, 3.0)), method="bounded", options={"xatol": 1e-9})
    return float(least.fun)
