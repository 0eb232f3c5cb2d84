"""Hypothesis strategies for laws, pairs, candidates, trees and coins, and profiles to run them under.

Everything is built from small integers, so nothing is filtered away and failures shrink to small fractions. Zeros,
ties, one-hot, disjoint and equal laws, and supports smaller than k are made on purpose. Randomness is drawn, never
global: an example that is replayed gives the same verdict.

Profiles "ot-spec-fast", "ot-spec-ci" (the same examples on every run) and "ot-spec-deep" (new ones); none has a
deadline, so that a first call that compiles something fails no test.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from ot_spec.draft_law import IID, DraftLaw
from ot_spec.errors import OptionError
from ot_spec.law import fractions
from ot_spec.tree import DraftTree
from proofs_check.subjects import ARRAYS, maker

LAST_COIN = 1 - 2.0**-53
"""The last float64 below 1."""
SHAPES = ("free", "free", "free", "tied", "permuted", "narrow", "equal", "disjoint", "point target", "point draft")

_COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
PROFILES = {
    "ot-spec-fast": settings(_COMMON, derandomize=True, max_examples=40),
    "ot-spec-ci": settings(_COMMON, derandomize=True, max_examples=150),
    "ot-spec-deep": settings(_COMMON, derandomize=False, max_examples=3000, print_blob=True),
}
for _name, _profile in PROFILES.items():
    settings.register_profile(_name, _profile)


class Pair(NamedTuple):
    """target, draft: laws (V,); k candidates."""

    target: Any
    draft: Any
    k: int


def normalised(weights: Any) -> np.ndarray:
    """Integer weights divided by their sum, as fractions.

    >>> normalised([1, 3])
    array([Fraction(1, 4), Fraction(3, 4)], dtype=object)
    """
    return fractions(weights) / sum(weights)


@st.composite
def weights(draw: st.DrawFn, size: int, most: int = 9) -> list[int]:
    """`size` integers in 0..most, not all zero."""
    drawn = draw(st.lists(st.integers(0, most), min_size=size, max_size=size))
    drawn[draw(st.integers(0, size - 1))] += 0 if any(drawn) else 1
    return drawn


def laws(smallest: int = 1, largest: int = 8, most: int = 9, arrays: str = "fractions") -> st.SearchStrategy[Any]:
    """Laws (V,) of V in smallest..largest tokens, weights 0..most.

    arrays: "fractions", "float64", "float32", "torch64" or "torch32". OptionError for other names.

    >>> from hypothesis import find
    >>> find(laws(), lambda law: law.max() < 1)
    array([Fraction(1, 2), Fraction(1, 2)], dtype=object)
    """
    sizes = st.integers(smallest, largest)
    return sizes.flatmap(lambda size: weights(size, most)).map(normalised).map(_maker(arrays))


@st.composite
def pairs(draw: st.DrawFn, smallest: int = 4, largest: int = 5, most_k: int = 2, arrays: str = "fractions") -> Pair:
    """A target and a draft over the same smallest..largest tokens, of one of the SHAPES, and k in 1..most_k."""
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
    elif shape == "disjoint" and size > 1:
        half = size // 2
        target, draft = target[:half] + [0] * (size - half), [0] * half + draft[half:]
        target[0] += 1
        draft[-1] += 1
    elif shape == "point target":
        target = point
    elif shape == "point draft":
        draft = point
    make = _maker(arrays)
    return Pair(make(normalised(target)), make(normalised(draft)), k)


def candidates(draft: Any, law: DraftLaw | int = 1) -> st.SearchStrategy[np.ndarray]:
    """Candidates (k,) that the law (k: IID(k)) can draw from one draft (V,), -1 in empty slots.

    >>> from hypothesis import find
    >>> find(candidates(normalised([0, 1, 1]), 2), lambda tokens: True)
    array([1, 1])
    """
    law = IID(law) if isinstance(law, int) else law
    tuples, _ = law.tuples(draft)
    return st.integers(0, len(tuples) - 1).map(tuples.__getitem__)


@st.composite
def trees(draw: st.DrawFn, vocab: int, most: int = 6) -> DraftTree:
    """A `DraftTree` of up to `most` draws over `vocab` tokens; a token drawn twice after a node is one node."""
    known: dict[tuple[int, int], int] = {}
    draws = []
    for _ in range(draw(st.integers(0, most))):
        key = draw(st.integers(-1, len(known) - 1)), draw(st.integers(0, vocab - 1))
        draws.append(known.setdefault(key, len(known)))
    return DraftTree([token for _, token in known], [parent for parent, _ in known], draws)


@st.composite
def laws_along(
    draw: st.DrawFn, tree: DraftTree, vocab: int, most: int = 9, arrays: str = "fractions"
) -> tuple[Any, Any]:
    """target_laws, draft_laws (N + 1, V) along a tree, row 0 at the root; the draft can draw every node."""
    rows = []
    for node in range(-1, len(tree)):
        target, draft = draw(weights(vocab, most)), draw(weights(vocab, most))
        for token in tree.tokens[tree.drawn(node)].tolist():
            draft[token] += 1
        rows.append((normalised(target), normalised(draft)))
    make = _maker(arrays)
    return make(np.stack([target for target, _ in rows])), make(np.stack([draft for _, draft in rows]))


def coins(shape: int | tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
    """Coins in [0, 1) of that shape, float64, both ends among them.

    >>> from hypothesis import find
    >>> find(coins(2), lambda thrown: thrown[1] > 0.5)
    array([0., 1.])
    """
    size = math.prod(shape) if isinstance(shape, tuple) else shape
    one = st.one_of(
        st.sampled_from([0.0, 5e-324, 0.5, LAST_COIN]), st.integers(0, 2**53 - 1).map(lambda i: i * 2.0**-53)
    )
    return st.lists(one, min_size=size, max_size=size).map(lambda drawn: np.array(drawn).reshape(shape))


def generators() -> st.SearchStrategy[np.random.Generator]:
    """numpy generators of a drawn seed: a test that samples is replayed with the same numbers."""
    return st.integers(0, 2**32 - 1).map(np.random.default_rng)


def _maker(arrays: str) -> Any:
    if arrays not in ARRAYS:
        raise OptionError(f"arrays must be one of {', '.join(ARRAYS)}, got {arrays!r}")
    return maker(arrays)
