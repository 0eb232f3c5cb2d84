"""Hypothesis strategies for laws, built from integer weights, so that nothing is filtered away.

Zeros, ties, one-hot, disjoint and equal laws, and supports smaller than k are made on purpose.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

LAST_COIN = 1 - 2.0**-53
SHAPES = ("free", "free", "free", "tied", "permuted", "narrow", "equal", "disjoint", "point target", "point draft")


class Pair(NamedTuple):
    """target, draft: exact laws (V,); k candidates."""

    target: np.ndarray
    draft: np.ndarray
    k: int


def normalised(weights: list[int]) -> np.ndarray:
    """Weights divided by their sum, as fractions."""
    total = sum(weights)
    return np.array([Fraction(w, total) for w in weights], dtype=object)


@st.composite
def weights(draw: st.DrawFn, size: int, most: int = 9) -> list[int]:
    """`size` integers in 0..most, not all zero."""
    drawn = draw(st.lists(st.integers(0, most), min_size=size, max_size=size))
    drawn[draw(st.integers(0, size - 1))] += 0 if any(drawn) else 1
    return drawn


def exact_laws(smallest: int = 1, largest: int = 8, most: int = 9) -> st.SearchStrategy[np.ndarray]:
    """Exact laws (V,), V in smallest..largest."""
    return st.integers(smallest, largest).flatmap(lambda size: weights(size, most)).map(normalised)


@st.composite
def pairs(draw: st.DrawFn, smallest: int = 4, largest: int = 5, most_k: int = 2) -> Pair:
    """A pair of laws of one of the SHAPES, and k."""
    size = draw(st.integers(smallest, largest))
    shape = draw(st.sampled_from(SHAPES))
    most = 2 if shape == "tied" else 9
    target, draft = draw(weights(size, most)), draw(weights(size, most))
    k = draw(st.integers(1, most_k))
    token = draw(st.integers(0, size - 1))
    point = [int(y == token) for y in range(size)]
    if shape == "permuted":
        draft = draw(st.permutations(target))
    elif shape == "narrow":
        draft = [int(y == token or (k > 2 and y == (token + 1) % size)) for y in range(size)]
    elif shape == "equal":
        draft = target
    elif shape == "disjoint":
        half = size // 2
        target, draft = target[:half] + [0] * (size - half), [0] * half + draft[half:]
        target[0] += 1
        draft[-1] += 1
    elif shape == "point target":
        target = point
    elif shape == "point draft":
        draft = point
    return Pair(normalised(target), normalised(draft), k)


def coins(shape: int | tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
    """Coins in [0, 1), both ends among them."""
    size = int(np.prod(shape))
    one = st.one_of(
        st.sampled_from([0.0, 5e-324, 0.5, LAST_COIN]), st.integers(0, 2**53 - 1).map(lambda i: i * 2.0**-53)
    )
    return st.lists(one, min_size=size, max_size=size).map(lambda drawn: np.array(drawn).reshape(shape))
