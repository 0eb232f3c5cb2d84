"""Rules played with real random numbers: what a tier needs that does not follow them symbolically."""

from __future__ import annotations

import inspect
import random
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.random import mtrand

from ot_spec.arrays import is_exact, to_numpy
from ot_spec.errors import OptionError
from proofs_check.branching import BudgetSpent, CannotFollow
from proofs_check.cases import Case
from proofs_check.subjects import (
    DecoderSubject,
    Fault,
    FunctionSubject,
    OneStep,
    SelectorSubject,
    Sequences,
    Subject,
    VerifierSubject,
    as_ids,
    as_token,
    contents,
)

Draw = Callable[[int], list[Any]]


class Kernel:
    """A rule at one position that takes coins: laws, candidates (N, k) and coins (N, m) in, tokens (N,) out.

    A selector and a function of a subject with `batch` get all rows at once, other functions one row a call.
    """

    def __init__(self, subject: Subject):
        if not isinstance(subject, SelectorSubject) and getattr(subject, "coins", None) is None:
            raise OptionError(f"a {subject.kind} without coins cannot be given any; say how many with coins=")
        assert isinstance(subject, OneStep)
        self.subject = subject
        self.batch = subject.batch or isinstance(subject, SelectorSubject)
        self.calls = 0

    def coins(self, k: int) -> int:
        """Coins for one row."""
        return self.subject.rule.coins(k) if isinstance(self.subject, SelectorSubject) else self.subject.coins  # type: ignore[attr-defined]

    def laws(self, case: Case) -> tuple[Any, Any]:
        """target and draft as the rule takes them."""
        target, draft = case.laws()
        return self.subject.make(target), self.subject.make(draft)

    def __call__(
        self, laws: tuple[Any, Any], candidates: np.ndarray, coins: np.ndarray, may_refuse: bool = False
    ) -> np.ndarray:
        """Tokens (N,), each one of the vocabulary; -1 where the rule flags or refuses a row and may do so.

        Raises Fault for exceptions, ids outside the vocabulary, changed inputs, and flags that are not consistent.
        """
        if not len(candidates):
            return np.empty(0, dtype=np.int64)
        self.calls += len(candidates)
        if not self.batch:
            rows = [self._row(laws, c, u, may_refuse) for c, u in zip(candidates, coins, strict=True)]
            return np.array(rows, dtype=np.int64)
        try:
            return self._checked(laws, candidates, coins, may_refuse)
        except Fault:
            if len(candidates) == 1:
                raise
        # names the row
        parts = [self._checked(laws, candidates[[i]], coins[[i]], may_refuse) for i in range(len(candidates))]
        return np.concatenate(parts)

    def _row(self, laws: tuple[Any, Any], candidates: np.ndarray, coins: np.ndarray, may_refuse: bool) -> int:
        return int(self._checked(laws, candidates, coins, may_refuse)[0])

    def _checked(
        self, laws: tuple[Any, Any], candidates: np.ndarray, coins: np.ndarray, may_refuse: bool
    ) -> np.ndarray:
        vocab = laws[0].shape[-1]
        arguments = *laws, as_ids(candidates, laws[0]), as_given(coins, laws[0])
        before = [contents(a) for a in arguments]
        first = candidates.reshape(-1, candidates.shape[-1])[0].tolist()
        where = f"candidates {tuple(first)}, coins {tuple(np.ravel(coins)[: coins.shape[-1]].tolist())}"
        try:
            rule = self.subject.rule
            result = rule.select(*arguments) if isinstance(self.subject, SelectorSubject) else rule(*arguments)
        except Exception as error:
            if may_refuse and isinstance(error, ValueError | AssertionError):
                return np.full(candidates.size // candidates.shape[-1], -1)
            raise Fault(f"the rule raises {type(error).__name__}: {error} ({where})") from error
        if [contents(a) for a in arguments] != before:
            raise Fault(f"the rule changes its inputs ({where})")
        found = result[0] if isinstance(result, tuple) else result
        tokens = np.atleast_1d(to_numpy(found) if hasattr(found, "shape") else np.asarray(found))
        many = candidates.size // candidates.shape[-1]
        if tokens.shape != (many,) or tokens.dtype.kind not in "iu":
            raise Fault(f"the rule returns {found!r} where {many} token ids are due ({where})")
        refused = (tokens == -1) & may_refuse
        bad = ~refused & ((tokens < 0) | (tokens >= vocab))
        if bad.any():
            raise Fault(f"the rule returns {tokens[bad][0]}, which is not one of {vocab} tokens ({where})")
        self._flags(result, tokens, candidates.reshape(many, -1), refused, where)
        return tokens

    def _flags(self, result: Any, tokens: np.ndarray, candidates: np.ndarray, refused: np.ndarray, where: str) -> None:
        if not isinstance(result, tuple) or len(result) < 2:
            return
        accepted = np.atleast_1d(to_numpy(result[1]) if hasattr(result[1], "shape") else np.asarray(result[1]))
        member = (candidates == tokens[:, None]).any(axis=1)
        if accepted.shape == tokens.shape and accepted.dtype == bool and (accepted & ~member & ~refused).any():
            raise Fault(f"the rule says that it accepted a token which is no candidate ({where})")
        if isinstance(self.subject, SelectorSubject):
            index, valid = (np.atleast_1d(to_numpy(part)) for part in result[2:4])
            first = np.where(member, np.argmax(candidates == tokens[:, None], axis=1), -1)
            wrong = ~refused & ((accepted != member) | (index != first) | ~valid)
            if wrong.any() or (refused & valid).any():
                raise Fault(f"token {tokens[0]} is selected with wrong accepted, index or valid flags ({where})")


def as_given(coins: np.ndarray, model: Any) -> Any:
    """Coins beside a law: of its library and, where it is of floats, of its dtype."""
    if is_exact(model):
        return coins.copy()
    if isinstance(model, np.ndarray):
        return coins.astype(model.dtype)
    import torch

    return torch.as_tensor(coins, dtype=model.dtype)


def play(subject: Subject, case: Case, seed: int) -> Draw:
    """A function that gives n independent outcomes of the rule on the case, candidates drawn anew each time.

    The seed and the case fix all draws, whatever else was drawn before. Rules that draw from the global generators of
    random, numpy or torch find these seeded, and afterwards as they were. Raises Fault where the rule cannot be run.
    """
    key = seed, zlib.crc32(repr(case).encode())
    rng = np.random.default_rng(key)
    draw = _drawing(subject, case, rng)
    its_own = _Globals(zlib.crc32(repr(key).encode()))

    def outcomes(n: int) -> list[Any]:
        with its_own.used():
            return draw(n)

    return outcomes


def _drawing(subject: Subject, case: Case, rng: np.random.Generator) -> Draw:
    if isinstance(subject, OneStep):
        return _one_step(subject, case, rng)
    assert isinstance(subject, Sequences)
    if isinstance(subject, DecoderSubject):
        run = subject.decode(case)
        return lambda n: [_guarded(run, rng) for _ in range(n)]
    assert isinstance(subject, VerifierSubject)
    return _verifier(subject, case, rng)


def _one_step(subject: OneStep, case: Case, rng: np.random.Generator) -> Draw:
    laws = tuple(subject.make(law) for law in case.laws())
    pool = _pool(lambda: subject.candidates(case), subject.sampler, (laws[1],), rng)
    if isinstance(subject, SelectorSubject) or getattr(subject, "coins", None) is not None:
        kernel = Kernel(subject)
        real = np.float32 if subject.arrays.endswith("32") else np.float64
        many = kernel.coins(case.k)
        return lambda n: kernel(laws, np.array(pool(n)), rng.random((n, many), dtype=real)).tolist()
    assert isinstance(subject, FunctionSubject)
    rule, batch, noise = subject.rule, subject.batch, () if subject.takes_nothing() else (rng,)

    def call(candidates: Any, many: int) -> list[Any]:
        arguments = *laws, as_ids(candidates, laws[0])
        before = [contents(a) for a in arguments]
        found = _guarded(rule, *arguments, *noise)
        if [contents(a) for a in arguments] != before:
            raise Fault(f"the rule changes its inputs (candidates {candidates})")
        tokens = as_token(found) if not batch else (found[0] if isinstance(found, tuple) else found).tolist()
        tokens = tokens if batch else [tokens]
        bad = [t for t in tokens if not (isinstance(t, int) and 0 <= t < case.vocab)]
        if bad or len(tokens) != many:
            raise Fault(f"the rule returns {bad[0] if bad else tokens!r}, which is not one of {case.vocab} tokens")
        return tokens

    if batch:
        return lambda n: call(np.array(pool(n)), n)
    return lambda n: [call(candidates, 1)[0] for candidates in pool(n)]


def _verifier(subject: VerifierSubject, case: Case, rng: np.random.Generator) -> Draw:
    target, draft = subject.tables(case)
    pool = _pool(
        lambda: subject.drafted(case),
        subject.sampler,
        ({p: subject.make(w) for p, w in draft.items()}, case.length),
        rng,
    )
    edges = {p: np.cumsum([float(w) for w in law]) for p, law in subject.promised(case).items()}
    calls: dict[Any, Callable[[Any], Any]] = {}
    full = subject.outcome_length(case)

    def one(drawn: Any) -> tuple[int, ...]:
        tokens = drawn if subject.tree else (drawn[0] if isinstance(drawn[0], tuple) else drawn,)
        if tokens not in calls:
            calls[tokens] = subject.verify(case, target, draft, tokens)
        path = _guarded(calls[tokens], rng)
        while len(path) < full:
            steps = edges[path]
            path = (*path, int(np.searchsorted(steps, rng.random() * steps[-1], side="right")))
        return path

    return lambda n: [one(drawn) for drawn in pool(n)]


def _pool(
    enumerated: Callable[[], Iterator[tuple[Any, Any]]],
    sampler: Any,
    arguments: Sequence[Any],
    rng: np.random.Generator,
) -> Callable[[int], list[Any]]:
    """n independent draws: from the exact law where it is known, else from the sampler itself."""
    try:
        items, masses = zip(*enumerated(), strict=True)
    except (CannotFollow, BudgetSpent):
        noise = {"rng": rng} if "rng" in inspect.signature(sampler).parameters else {}
        return lambda n: [_plain(sampler(*arguments, **noise)) for _ in range(n)]
    probs = np.array([float(m) for m in masses])
    edges = np.cumsum(probs / probs.sum())
    last = np.flatnonzero(probs)[-1]

    def draw(n: int) -> list[Any]:
        found = np.minimum(np.searchsorted(edges, rng.random(n), side="right"), last)
        return [items[i] for i in found]

    return draw


def _plain(drawn: Any) -> Any:
    drawn = drawn.tolist() if hasattr(drawn, "tolist") else drawn
    return tuple(_plain(part) for part in drawn) if isinstance(drawn, list | tuple) else int(drawn)


def _guarded(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Fault:
        raise
    except Exception as error:
        raise Fault(f"the rule raises {type(error).__name__}: {error}") from error


class _Globals:
    """Generators of its own for `random`, numpy and (where loaded) torch, in place of the global ones for a time."""

    def __init__(self, seed: int):
        self.seed, self.bits = seed, np.random.MT19937(seed)
        self.states: tuple[Any, Any] | None = None

    @contextmanager
    def used(self) -> Iterator[None]:
        torch = sys.modules.get("torch")
        kept = random.getstate(), mtrand.get_bit_generator(), torch.get_rng_state() if torch else None
        mtrand.set_bit_generator(self.bits)
        if self.states is None:
            random.seed(self.seed)
        else:
            random.setstate(self.states[0])
        if torch:
            if self.states is None or self.states[1] is None:
                torch.random.default_generator.manual_seed(self.seed)
            else:
                torch.set_rng_state(self.states[1])
        try:
            yield
        finally:
            self.states = random.getstate(), torch.get_rng_state() if torch else None
            random.setstate(kept[0])
            mtrand.set_bit_generator(kept[1])
            if torch and kept[2] is not None:
                torch.set_rng_state(kept[2])
