"""Random families of law pairs, on which selectors are compared and searches start.

A family is a function ``f(rng, vocab, rows, **parameters) -> (target, draft)``, both float64 (rows, V), from a numpy
generator: same generator state and arguments, same bytes. `draw` finds it by name and checks the arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from ot_spec.errors import OptionError
from ot_spec.law import from_logits, from_probs

__all__ = ["FAMILIES", "STARTS", "draw"]

Pair = tuple[np.ndarray, np.ndarray]


def draw(name: str, seed: int | np.random.Generator, vocab: int, rows: int, **parameters: Any) -> Pair:
    """`rows` pairs of the family `name` over `vocab` tokens: (target, draft), float64 (rows, V) each.

    seed: an integer >= 0, with which the family's name is mixed, or a generator. Two-token families return
    V = 2 whatever `vocab` says. Raises OptionError for an unknown family or parameter, vocab < 2, rows < 1,
    seed < 0.

    >>> target, draft = draw("disjoint", seed=0, vocab=6, rows=2)
    >>> target.shape, float(np.minimum(target, draft).sum())
    ((2, 6), 0.0)
    """
    known = {**FAMILIES, **STARTS}
    if name not in known:
        raise OptionError(f"no family {name!r}; there are {', '.join(known)}")
    if vocab < 2:
        raise OptionError(f"a family needs a vocabulary of at least 2 tokens, got {vocab}")
    if rows < 1:
        raise OptionError(f"a family gives at least 1 row, got {rows}")
    accepted = list(inspect.signature(known[name]).parameters)[3:]
    for parameter in parameters:
        if parameter not in accepted:
            has = f"it has {', '.join(accepted)}" if accepted else "it has none"
            raise OptionError(f"family {name!r} has no parameter {parameter!r}; {has}")
    if not isinstance(seed, np.random.Generator):
        if seed < 0:
            raise OptionError(f"seed must be at least 0, got {seed}")
        seed = np.random.default_rng([seed, *name.encode()])
    target, draft = known[name](seed, vocab, rows, **parameters)
    return from_probs(target, name="target"), from_probs(draft, name="draft")


def _positive(name: str, value: float) -> None:
    if not (value > 0 and np.isfinite(value)):
        raise OptionError(f"{name} must be a positive number, got {value}")


def _normalised(weights: np.ndarray) -> np.ndarray:
    return weights / weights.sum(axis=-1, keepdims=True)


def dirichlet(rng: np.random.Generator, vocab: int, rows: int, concentration: float = 0.3) -> Pair:
    """Target and draft independent, both symmetric Dirichlet; a small concentration gives peaked laws."""
    _positive("concentration", concentration)
    # gamma(a) = gamma(a + 1) u^(1/a), in logarithms: for small a whole rows would underflow to zero
    logs = np.log(rng.standard_gamma(concentration + 1, size=(2, rows, vocab)))
    logs += np.log1p(-rng.random((2, rows, vocab))) / concentration
    target, draft = from_logits(logs)
    return target, draft


def zipf(rng: np.random.Generator, vocab: int, rows: int, exponent: float = 1.1, swaps: float = 0.3) -> Pair:
    """Masses proportional to rank^-exponent; the draft's ranks are those of the target, disturbed.

    Each rank's logarithm is moved by a normal of standard deviation `swaps` times log V: 0 gives equal laws,
    a large value unrelated ranks.
    """
    _positive("exponent", exponent)
    if not swaps >= 0:
        raise OptionError(f"swaps must be at least 0, got {swaps}")
    masses = np.arange(1, vocab + 1) ** -float(exponent)
    ranks = rng.permuted(np.tile(np.arange(vocab), (rows, 1)), axis=-1)
    moved = np.log1p(ranks) + swaps * np.log(vocab) * rng.standard_normal((rows, vocab))
    disturbed = np.argsort(np.argsort(moved, axis=-1, kind="stable"), axis=-1, kind="stable")
    return _normalised(masses[ranks]), _normalised(masses[disturbed])


def softmax_normal(
    rng: np.random.Generator, vocab: int, rows: int, scale: float = 2.0, disagreement: float = 0.3
) -> Pair:
    """softmax(scale a) and softmax(scale (a cos phi + b sin phi)), a and b independent standard normal
    vectors.

    disagreement in [0, 1] is phi in units of pi/2: 0 gives equal laws, 1 unrelated ones. Both laws have the
    same distribution, whatever the disagreement.
    """
    _positive("scale", scale)
    if not 0 <= disagreement <= 1:
        raise OptionError(f"disagreement must lie in [0, 1], got {disagreement}")
    logits, fresh = rng.standard_normal((2, rows, vocab))
    angle = disagreement * np.pi / 2
    mixed = logits if disagreement == 0 else logits * np.cos(angle) + fresh * np.sin(angle)
    return from_logits(scale * logits), from_logits(scale * mixed)


def bernoulli(rng: np.random.Generator, vocab: int, rows: int) -> Pair:
    """Two tokens: the first `rows` points of the smallest square grid (a, b) in (0, 1)^2 that has so many.

    target = (a, 1 - a), draft = (b, 1 - b), a and b at the middles of equal cells. Nothing is random.
    """
    side = int(np.ceil(np.sqrt(rows)))
    middles = (np.arange(side) + 0.5) / side
    a, b = (grid.reshape(-1)[:rows] for grid in np.meshgrid(middles, middles, indexing="ij"))
    return np.stack([a, 1 - a], axis=-1), np.stack([b, 1 - b], axis=-1)


def disjoint(rng: np.random.Generator, vocab: int, rows: int) -> Pair:
    """No token in common: a random half of the vocabulary each. Nothing can be accepted."""
    mine = rng.permuted(np.tile(np.arange(vocab), (rows, 1)), axis=-1) < vocab // 2
    weights = rng.standard_exponential((2, rows, vocab))
    return _normalised(weights[0] * mine), _normalised(weights[1] * ~mine)


def one_hot(rng: np.random.Generator, vocab: int, rows: int) -> Pair:
    """One token each, the same one in every other row."""
    tokens = rng.integers(vocab, size=(2, rows))
    tokens[1, ::2] = tokens[0, ::2]
    eye = np.eye(vocab)
    return eye[tokens[0]], eye[tokens[1]]


def ties(rng: np.random.Generator, vocab: int, rows: int, largest: int = 3) -> Pair:
    """Integer weights 0..largest, normalised: zeros, and many tokens of equal mass and equal ratio."""
    if largest < 1:
        raise OptionError(f"largest must be at least 1, got {largest}")
    weights = rng.integers(largest + 1, size=(2, rows, vocab))
    weights[..., 0] += weights.sum(axis=-1) == 0
    return _normalised(weights[0]), _normalised(weights[1])


def equal(rng: np.random.Generator, vocab: int, rows: int) -> Pair:
    """Target and draft are the same uniform Dirichlet law. Everything can be accepted."""
    law = _normalised(rng.standard_exponential((rows, vocab)))
    return law, law.copy()


def sparse(rng: np.random.Generator, vocab: int, rows: int) -> Pair:
    """Peaked laws on random supports: Dirichlet weights raised to powers of 1 to 8, most of them set to
    zero."""
    weights = rng.standard_exponential((2, rows, vocab)) ** rng.uniform(1, 8, size=(2, rows, 1))
    weights *= rng.random((2, rows, vocab)) < rng.uniform(0.2, 1, size=(2, rows, 1))
    weights[..., 0] += weights.sum(axis=-1) == 0
    return _normalised(weights[0]), _normalised(weights[1])


def steps(rng: np.random.Generator, vocab: int, rows: int) -> Pair:
    """Uniform drafts; targets of two or three levels, the shape in which sequential rules lose most."""
    levels = np.sort(rng.integers(vocab + 1, size=(rows, 2)), axis=-1)
    heights = np.concatenate([np.zeros((rows, 1)), rng.standard_exponential((rows, 2))], axis=-1)
    place = (np.arange(vocab) >= levels[:, :1]).astype(int) + (np.arange(vocab) >= levels[:, 1:])
    target = np.take_along_axis(heights, place, axis=-1)
    target[:, -1] += target.sum(axis=-1) == 0
    return _normalised(target), np.full((rows, vocab), 1 / vocab)


FAMILIES: dict[str, Callable[..., Pair]] = {
    f.__name__: f for f in (dirichlet, zipf, softmax_normal, bernoulli, disjoint, one_hot, ties, equal)
}
"""The families of the gap study, in the order in which it shows them."""

STARTS: dict[str, Callable[..., Pair]] = {f.__name__: f for f in (sparse, steps)}
"""Where, besides, a search for the worst pair starts."""
