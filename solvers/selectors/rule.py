"""What all rules share, and the form "test the candidates one by one, else draw from a residual"."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ot_spec.arrays import (
    Array,
    check_coins,
    coins_like,
    constant,
    fractions,
    gather,
    is_exact,
    is_numpy,
    like,
    may_wait,
    namespace,
    or_else,
    pick,
    positions,
    positive_part,
    ratio,
    total,
)
from ot_spec.draft_law import DraftLaw
from ot_spec.errors import CandidateError, ShapeError
from ot_spec.law import as_exact, from_probs
from ot_spec.selector import Selection, first_match, require_support

BLOCK = 1 << 18  # entries of a block of rows on a CPU


class Tests(NamedTuple):
    """Candidate i is kept iff coin_i * bottom_i < top_i (strict), coin_i in [0, 1); if none is, y ~ residual.

    top, bottom (..., k); residual (..., V) non-negative weights of any total, exactly zero outside their support. A
    row of zeros means that no test can fail, or fails by rounding only: it falls back to the target.
    valid (...): False where the rule is not exact (a divisor that is too small).
    """

    top: Array
    bottom: Array
    residual: Array
    valid: Array | None = None


class Rule(ABC):
    """A selector of candidates that are checked first; subclasses say what happens to valid ones.

    Subclasses set `name` and `laws` (names of the draft laws for which the output law is the target). Candidates of
    one draw are the same under every law, so k = 1 is supported by all.
    """

    name: str
    exact: bool = True
    laws: tuple[str, ...] = ("iid",)
    distinct: bool = False  # whether candidates must differ from each other
    host: bool = False  # whether something is solved for each law pair, away from the device the laws are on

    def supports(self, law: DraftLaw) -> bool:
        single = law.k == 1 and law.name in ("iid", "without_replacement", "top_then_sample")
        return law.name in self.laws or single

    @abstractmethod
    def coins(self, k: int) -> int: ...

    @abstractmethod
    def _acceptance(self, target: Array, draft: Array, law: DraftLaw) -> Array: ...

    @abstractmethod
    def _conditional(
        self, target: Array, draft: Array, tokens: Array, filled: Array, valid: Array
    ) -> tuple[Array, Array]:
        """P(Y = y | candidates) and which rows are valid; ids in slots that are not `filled` are 0 and mean nothing."""

    @abstractmethod
    def _chosen(
        self, target: Array, draft: Array, tokens: Array, filled: Array, valid: Array, coins: Array
    ) -> tuple[Array, Array]:
        """The token of each row, and which rows are valid."""

    def acceptance(self, target: Array, draft: Array, law: DraftLaw) -> Array:
        """P(Y in candidates) for candidates of `law`, (...). Raises UnsupportedLawError where the rule is not exact."""
        target, draft = as_laws(target, draft)
        require_support(self, law)
        if is_exact(target) and target.ndim == draft.ndim == 1:  # sums of rows stay arrays
            return self._acceptance(target[None], draft[None], law)[0]
        return self._acceptance(target, draft, law)

    def conditional(self, target: Array, draft: Array, candidates: Array) -> Array:
        """P(Y = y | candidates), (..., V); rows that `select` would flag raise on numpy and are NaN elsewhere."""
        target, draft = as_laws(target, draft)
        candidates = like(candidates, target)
        if is_exact(target) and target.ndim == draft.ndim == candidates.ndim == 1:
            return self.conditional(target[None], draft[None], candidates[None])[0]
        tokens, filled, valid = self._read(draft, candidates)
        out, valid = self._conditional(target, draft, tokens, filled, valid)
        if is_numpy(target):
            Selection(tokens[..., 0], filled[..., 0], tokens[..., 0], valid).checked()
            return out
        xp = namespace(target)
        return xp.where(valid[..., None], out, xp.full_like(out, float("nan")))

    def select(self, target: Array, draft: Array, candidates: Array, coins: Array) -> Selection:
        """One output a row for coins (..., coins(k)) in [0, 1)."""
        target, draft = as_laws(target, draft)
        candidates, coins = like(candidates, target), like(coins, target)
        if is_exact(target) and target.ndim == draft.ndim == candidates.ndim == coins.ndim == 1:
            return Selection(*(a[0] for a in self.select(target[None], draft[None], candidates[None], coins[None])))
        if may_wait(target) and target.ndim == draft.ndim == candidates.ndim == coins.ndim == 2:
            step = max(1, BLOCK // target.shape[-1])
            if len(target) == len(draft) == len(candidates) == len(coins) > step:
                return self._by_blocks(step, target, draft, candidates, coins)
        return self._select(target, draft, candidates, coins)

    def _by_blocks(self, step: int, *arrays: Array) -> Selection:
        """`select` in blocks of rows whose temporaries stay in a CPU's cache."""
        xp = namespace(arrays[0])
        if is_numpy(arrays[0]):  # names the row of the whole batch, before any work
            self._read(arrays[1], arrays[2])
        parts = [self._select(*(a[start : start + step] for a in arrays)) for start in range(0, len(arrays[0]), step)]
        return Selection(*(xp.concat(fields, axis=0) for fields in zip(*parts, strict=True)))

    def _select(self, target: Array, draft: Array, candidates: Array, coins: Array) -> Selection:
        tokens, filled, valid = self._read(draft, candidates)
        xp = namespace(target)
        k = tokens.shape[-1]
        need = self.coins(k)
        if coins.shape[-1:] != (need,):
            raise ShapeError(f"{self.name} with k = {k} takes {need} coins a row, got shape {tuple(coins.shape)}")
        valid = valid & _coins_valid(xp, coins, target)
        coins = coins_like(coins, target)
        token, valid = self._chosen(target, draft, tokens, filled, valid, coins)
        lead = token.shape
        tokens, filled = xp.broadcast_to(tokens, (*lead, k)), xp.broadcast_to(filled, (*lead, k))
        valid = xp.broadcast_to(valid, lead)
        token = xp.where(valid, token, xp.full_like(token, -1))
        index = first_match(xp.where(filled, tokens, xp.full_like(tokens, -1)), token)
        index = xp.where(valid, index, xp.full_like(index, -1))
        selection = Selection(token, index >= 0, index, valid)
        return selection.checked() if is_numpy(target) else selection

    def _read(self, draft: Array, candidates: Array) -> tuple[Array, Array, Array]:
        """Candidate ids fit for indexing, which slots are filled, and which rows the draft law can produce."""
        xp = namespace(draft)
        if candidates.ndim == 0 or candidates.shape[-1] == 0:
            raise ShapeError(f"candidates need a last axis of at least one slot, got {tuple(candidates.shape)}")
        if not xp.isdtype(candidates.dtype, "integral"):
            raise CandidateError(f"candidates are token ids, got dtype {candidates.dtype}")
        candidates = xp.astype(candidates, xp.int64, copy=False)
        size, k = draft.shape[-1], candidates.shape[-1]
        filled = (candidates >= 0) & (candidates < size)
        tokens = xp.where(filled, candidates, xp.zeros_like(candidates))
        try:
            np.broadcast_shapes(tuple(draft.shape[:-1]), tuple(candidates.shape[:-1]))
        except ValueError:
            raise ShapeError(
                f"candidates of shape {tuple(candidates.shape)} do not fit laws of shape {tuple(draft.shape)}"
            ) from None
        good = self._possible(draft, xp.where(candidates == -1, candidates, tokens)) & (filled | (candidates == -1))
        if k > 1:
            gap = filled[..., 1:] & ~filled[..., :-1]
            good = xp.concat([good[..., :1], good[..., 1:] & ~gap], axis=-1)
        if self.distinct:
            for slot in range(1, k):
                again = xp.any(tokens[..., :slot] == tokens[..., slot : slot + 1], axis=-1) & filled[..., slot]
                good = good & ~(again[..., None] & (xp.arange(k, device=getattr(good, "device", None)) == slot))
        if is_numpy(draft):
            _refuse(candidates, good, draft, self._reason)
        return tokens, filled, xp.all(good, axis=-1)

    def _possible(self, draft: Array, candidates: Array) -> Array:
        """Whether the draft law can have put each candidate into its slot, (..., k); -1 is an empty slot."""
        xp = namespace(draft)
        empty = candidates == -1
        return (gather(xp, draft, xp.where(empty, xp.zeros_like(candidates), candidates)) > 0) | empty

    def _reason(self, token: int, mass: Any) -> str:
        """Why a token of the vocabulary is no candidate of the draft law."""
        return f"is a duplicate, which {self.name} cannot meet" if mass > 0 else "has probability 0 under the draft law"


class SequentialRule(Rule):
    """A rule given by its tests; `conditional` and `select` are two readings of the same numbers."""

    def coins(self, k: int) -> int:
        """k + 1: one for each test and one for the residual."""
        return k + 1

    @abstractmethod
    def tests(self, target: Array, draft: Array, tokens: Array, filled: Array) -> Tests:
        """The tests for candidates `tokens` (..., k); ids in slots that are not `filled` are 0 and mean nothing."""

    def _conditional(
        self, target: Array, draft: Array, tokens: Array, filled: Array, valid: Array
    ) -> tuple[Array, Array]:
        tests, valid = self._tests(target, draft, tokens, filled, valid)
        xp = namespace(target)
        one, zero = constant(1, target), constant(0, target)
        share = ratio(xp, tests.top, tests.bottom, 1)
        keep = xp.where(filled, xp.minimum(share, one), zero)
        out = zero
        left = one + 0 * keep[..., 0]
        for slot in range(tokens.shape[-1]):
            here = left * keep[..., slot]
            out = out + xp.where(positions(xp, target) == tokens[..., slot : slot + 1], here[..., None], zero)
            left = left * (1 - keep[..., slot])
        return out + left[..., None] * residual_or_target(xp, tests.residual, target), valid

    def _chosen(
        self, target: Array, draft: Array, tokens: Array, filled: Array, valid: Array, coins: Array
    ) -> tuple[Array, Array]:
        tests, valid = self._tests(target, draft, tokens, filled, valid)
        xp = namespace(target)
        k = tokens.shape[-1]
        kept = (coins[..., :k] * tests.bottom < tests.top) & filled & (tests.bottom > 0)
        slot = xp.argmax(xp.astype(kept, xp.int64), axis=-1)
        fallen = pick(or_else(xp, tests.residual, target), coins[..., k:])[..., 0]
        lead = np.broadcast_shapes(tuple(kept.shape[:-1]), tuple(fallen.shape))
        chosen = gather(xp, xp.broadcast_to(tokens, (*lead, k)), xp.broadcast_to(slot, lead)[..., None])[..., 0]
        return xp.where(xp.any(kept, axis=-1), chosen, fallen), valid

    def _tests(self, target: Array, draft: Array, tokens: Array, filled: Array, valid: Array) -> tuple[Tests, Array]:
        if is_exact(target):  # sums of rows stay arrays
            target, draft = np.atleast_2d(target), np.atleast_2d(draft)
        tests = self.tests(target, draft, tokens, filled)
        if tests.valid is not None:
            valid = valid & tests.valid
        return tests, valid & laws_valid(target, draft)


def _refuse(candidates: Array, good: Array, draft: Array, reason_of: Callable[[int, Any], str]) -> None:
    if good.all():
        return
    *lead, slot = np.argwhere(~good)[0].tolist()
    row = np.broadcast_to(candidates, good.shape)[tuple(lead)]
    masses = np.broadcast_to(draft, (*good.shape[:-1], draft.shape[-1]))[tuple(lead)]
    token = row[slot]
    if token >= masses.size or token < -1:
        reason = f"is not one of {masses.size} tokens"
    elif slot and row[slot - 1] < 0:
        reason = "follows an empty slot"
    else:
        reason = reason_of(int(token), masses[token])
    where = f"row {lead[0] if len(lead) == 1 else tuple(lead)}, " if lead else ""
    raise CandidateError(f"{where}slot {slot}: candidate {token} {reason} ({int((~good).sum())} such in all)")


def _coins_valid(xp: Any, coins: Array, model: Array) -> Array:
    if is_numpy(model):
        check_coins(coins)
        return np.bool_(True)
    return xp.all((coins >= 0) & (coins < 1), axis=-1)


def laws_valid(target: Array, draft: Array) -> Array:
    """Which rows of both laws hold no NaN, (...): it reaches every sum."""
    if is_numpy(target):  # checked where they come in
        return np.bool_(True)
    xp = namespace(target)
    return xp.isfinite(total(xp, target)) & xp.isfinite(total(xp, draft))


def as_laws(target: Any, draft: Any) -> tuple[Array, Array]:
    """Both laws in float64 (or both exact), with one vocabulary.

    numpy laws are checked row by row. Those of other backends are taken as they are, since a check would wait for the
    device: make them with `from_logits` or `from_probs`, which check unless told not to; NaN is flagged by `select`.
    """
    if is_numpy(target) or not hasattr(target, "shape"):
        target, draft = _checked(target, "target"), _checked(draft, "draft")
        if is_exact(target) != is_exact(draft):
            target, draft = (a if is_exact(a) else as_exact(a) for a in (target, draft))
        elif is_exact(target) and target.size and draft.size and type(target.flat[0]) is not type(draft.flat[0]):
            target, draft = fractions(target), fractions(draft)
    else:
        xp = namespace(target, draft)
        target, draft = (xp.astype(a, xp.float64, copy=False) for a in (target, draft))
    if target.shape[-1] != draft.shape[-1]:
        raise ShapeError(f"target has {target.shape[-1]} tokens and draft has {draft.shape[-1]}; see align")
    if target.ndim > 1 and draft.ndim > 1 and target.shape != draft.shape:
        try:
            np.broadcast_shapes(tuple(target.shape), tuple(draft.shape))
        except ValueError:
            raise ShapeError(f"target {tuple(target.shape)} and draft {tuple(draft.shape)} do not broadcast") from None
    return target, draft


def _checked(law: Any, name: str) -> Array:
    if is_numpy(law) and law.dtype == np.float64 and law.ndim:
        # laws from the door pass unchanged, to the last bit
        sums = law.sum(axis=-1)
        if (abs(sums - 1) <= 1e-13).all() and law.min(initial=0.0) >= 0:
            return law
    elif is_exact(law) and law.size and not isinstance(law.flat[0], int) and _is_exact_law(law):
        return law
    return from_probs(law, name=name)


def _is_exact_law(law: np.ndarray) -> bool:
    return bool(np.all(law.sum(axis=-1) == 1) and np.all(law >= 0))


def residual_or_target(xp: Any, residual: Array, target: Array) -> Array:
    """The residual normalised, with the target in rows without any mass."""
    weights = or_else(xp, residual, target)
    mass = total(xp, weights, keepdims=True)
    return weights / xp.where(mass > 0, mass, constant(1, mass))


def overlap(xp: Any, a: Array, b: Array) -> Array:
    """sum_y min(a, b) along the last axis."""
    return total(xp, xp.minimum(a, b))


def excess(xp: Any, a: Array, b: Array) -> Array:
    """(a - b)+."""
    return positive_part(xp, a - b)


def all_filled(filled: Array) -> bool:
    """Whether no slot is empty, where that can be known without waiting for a device."""
    return may_wait(filled) and bool(filled.all())
