"""Law pairs in fractions on which statements are certified: the hand-picked ones first, then seeded ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

import numpy as np
from hypothesis import find, settings
from hypothesis.errors import NoSuchExample
from hypothesis.strategies import SearchStrategy

from ot_spec.errors import OptionError
from ot_spec.tree import Model
from proofs_check.cases import Case, one_step, prefixes, sequences

__all__ = ["Instance", "found", "generator", "instance", "models", "models_of", "pairs", "seeded", "uneven"]

_SEED: ContextVar[int] = ContextVar("seed", default=0)
T = TypeVar("T")


class Instance(NamedTuple):
    """target, draft: laws (V,) of fractions; k candidates."""

    target: np.ndarray
    draft: np.ndarray
    k: int

    def __str__(self) -> str:
        laws = (f"({', '.join(str(mass) for mass in law)})" for law in (self.target, self.draft))
        return f"t = {next(laws)}, d = {next(laws)}, k = {self.k}"


def instance(laws: Sequence[Any], k: int = 1, dtype: Any = object) -> Instance:
    """The laws (target, draft), given as lists.

    >>> print(instance(([1, 0], [0, 1]), k=2))
    t = (1, 0), d = (0, 1), k = 2
    """
    target, draft = (np.array(law, dtype=dtype) for law in laws)
    return Instance(target, draft, k)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Instances are drawn from this seed inside the block (0 elsewhere)."""
    if seed < 0:
        raise OptionError(f"seed must be at least 0, got {seed}")
    token = _SEED.set(seed)
    try:
        yield
    finally:
        _SEED.reset(token)


def generator(*salt: int) -> np.random.Generator:
    """A numpy generator of the seed of the block, another one for each salt."""
    return np.random.default_rng([_SEED.get(), *salt])


def pairs(count: int, vocab_max: int = 6, ks: tuple[int, ...] = (1, 2, 3, 4), room: int = 0) -> Iterator[Instance]:
    """`count` pairs of up to vocab_max tokens, each with one of the `ks` in turn.

    The hand-picked ones come first (zeros, ties, equal, disjoint, one-hot, small supports), the others have small
    integer weights. room: if positive, vocabularies are cut so that all V^k tuples can be enumerated: V^k <= room.

    >>> for instance in pairs(2, vocab_max=2, ks=(3,)): print(instance)
    t = (1/2, 1/2), d = (3/4, 1/4), k = 3
    t = (1/4, 3/4), d = (3/4, 1/4), k = 3
    """
    if count < 1 or vocab_max < 2 or not ks:
        raise OptionError(f"give count >= 1, vocab_max >= 2 and some ks, got {count}, {vocab_max}, {ks}")
    share = [count // len(ks) + (place < count % len(ks)) for place in range(len(ks))]
    for place, k in enumerate(ks):
        largest = vocab_max
        while room and largest > 2 and largest**k > room:
            largest -= 1
        if share[place]:
            for case in one_step(k, largest, share[place], _SEED.get() + 1000 * place):
                yield Instance(*case.laws(), k)


def uneven(count: int, vocab_max: int = 6, k: int = 1) -> Iterator[list[Instance]]:
    """`count` lists of k pairs that share the target: drafts of different laws, one for each candidate."""
    rng = np.random.default_rng([_SEED.get(), k, vocab_max])
    for first in pairs(count, vocab_max, (k,)):
        vocab = len(first.target)
        rows = rng.integers(0, 6, (k, vocab))
        rows[~rows.any(axis=1)] = 1
        one = first.target.sum()
        others = [np.array([one * int(w) / int(row.sum()) for w in row], dtype=object) for row in rows]
        yield [Instance(first.target, draft, k) for draft in (first.draft, *others[1:])]


def models(count: int, length: int, vocab_max: int = 3, k: int = 1) -> Iterator[tuple[Model, Model]]:
    """`count` pairs (target, draft) of models, laws that depend on the prefix, for `length` drafted tokens."""
    return map(models_of, sequences(k, length, vocab_max, count, _SEED.get()))


def models_of(case: Case) -> tuple[Model, Model]:
    """The tables of a case as functions of the prefix; after the last drafted token, where nothing is drafted any more,
    the draft is the target.

    >>> target, draft = models_of(Case(((1, 1), (1, 0), (1, 2)), ((0, 1),), length=1))
    >>> target((1,)), draft(())
    (array([Fraction(1, 3), Fraction(2, 3)], dtype=object), array([Fraction(0, 1), Fraction(1, 1)], dtype=object))
    """
    target, draft = (
        dict(zip(prefixes(case.vocab, reach), laws, strict=True))
        for laws, reach in zip(case.laws(), (case.length, case.length - 1), strict=True)
    )
    return target.__getitem__, {**target, **draft}.__getitem__


def found(strategy: SearchStrategy[T], breaks: Callable[[T], bool], most: int = 400) -> T:
    """An example of a Hypothesis strategy that breaks a claim, shrunk; the same one on every run.

    Raises AssertionError where none of `most` examples does.

    >>> from hypothesis import strategies as st
    >>> found(st.integers(0, 100), lambda n: n > 7)
    8
    """
    once = settings(max_examples=most, deadline=None, derandomize=True, database=None)
    try:
        return find(strategy, breaks, settings=once)
    except NoSuchExample as none:
        raise AssertionError(f"no counter-example in {most} examples") from none
