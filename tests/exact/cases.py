"""Generated law pairs with small integer weights: zeros, ties, one-hot, disjoint and equal laws among them."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import numpy as np
from flint import fmpq

from ot_spec.arrays import as_fraction


def weights(rng: np.random.Generator, vocab: int) -> np.ndarray:
    drawn = rng.integers(0, rng.choice([2, 4, 12]), vocab)
    if not drawn.any():
        drawn[rng.integers(vocab)] = 1
    return drawn


def to_law(drawn: np.ndarray, number=fmpq) -> np.ndarray:
    return np.array([number(int(w), int(drawn.sum())) for w in drawn], dtype=object)


def residual_after(target: np.ndarray, draft: np.ndarray, refusals: int) -> np.ndarray:
    """The residual of recursive rejection sampling after i.i.d. refusals, zeros if there is none."""
    left = np.array([as_fraction(v) for v in target])
    law = np.array([as_fraction(v) for v in draft])
    for _ in range(refusals):
        left = np.array([max(v, Fraction(0)) for v in left - law])
        if not left.sum():
            break
        left = left / left.sum()
    return left


@cache
def generated(count: int = 520, seed: int = 20231) -> tuple[tuple[np.ndarray, np.ndarray, int], ...]:
    """`count` triples (target, draft, k), V in 4..6, k in 1..4; every second one leaves a residual of at least two
    tokens after two refusals."""
    rng = np.random.default_rng(seed)
    made = []
    while len(made) < count:
        hard = len(made) % 2 == 0
        vocab, k = int(rng.integers(4, 7)), int(rng.integers(2 if hard else 1, 5))
        shape = rng.integers(8) if not hard else 0
        target, draft = weights(rng, vocab), weights(rng, vocab)
        if shape == 1:
            draft = target.copy()
        elif shape == 2:
            target[: vocab // 2], draft[vocab // 2 :] = 0, 0
            target[-1] += 1
            draft[0] += 1
        elif shape == 3:
            target = np.eye(vocab, dtype=np.int64)[rng.integers(vocab)]
        elif shape == 4:
            draft = np.eye(vocab, dtype=np.int64)[rng.integers(vocab)]
        pair = to_law(target), to_law(draft)
        if hard and (residual_after(*pair, 2) > 0).sum() < 2:
            continue
        made.append((*pair, k))
    return tuple(made)
