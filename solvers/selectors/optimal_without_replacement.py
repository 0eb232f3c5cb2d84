"""The optimal selector for drafts without replacement: a random priority list, then the one-draft step."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ot_spec.arrays import Array, is_exact, is_numpy, like, namespace, to_numpy
from ot_spec.draft_law import DraftLaw, WithoutReplacement
from ot_spec.errors import OptionError
from ot_spec.selector import acceptance_by_enumeration
from solvers.exact.priority_lists import PriorityLists, priority_lists
from solvers.selectors.canonical import CanonicalRule, Picking, host_rows
from solvers.selectors.rule import overlap

_ENUMERATED = 20_000


class OptimalWithoutReplacement(CanonicalRule):
    """Draw one of the stored lists, whatever the candidates; pick the candidate highest on it; then the one-draft step
    with f, the law of that pick: acceptance alpha*, output exactly the target.

    f is recomputed from the lists that are stored, so the output law does not rest on how well they were found: floats
    give up below 1e-10 of acceptance, exact laws nothing. Candidates fewer than k are those of min(k, support) draws.

    limit: supports up to it have lists of tokens. Beyond, about `groups` groups of neighbours in target/draft are
    listed, with a fixed order inside each: still exact, at a loss of acceptance; `acceptance` then is that of the kept
    picks where there are too many tuples to enumerate, and a residual draw that happens to be a candidate comes on
    top. Exact laws have lists of tokens always.

    Solved on the host: 0.3 to 20 milliseconds a law pair with 1,000 tokens of support (k = 2 to 8), up to 60 where one
    token holds nearly all mass, below a second with 50,000 tokens; the last 64 law pairs are remembered.

    >>> from ot_spec import as_exact
    >>> target, draft = as_exact([0.5, 0.25, 0.25]), as_exact([0.25, 0.25, 0.5])
    >>> OptimalWithoutReplacement().acceptance(target, draft, WithoutReplacement(2))
    Fraction(1, 1)
    """

    name = "optimal_without_replacement"
    laws = ("without_replacement",)
    distinct = True
    host = True

    def __init__(self, limit: int = 2000, groups: int = 512):
        if limit < 1 or groups < 1:
            raise OptionError(f"limit and groups must be at least 1, got {limit} and {groups}")
        self.limit, self.groups = limit, groups

    def lists(self, target: np.ndarray, draft: np.ndarray, k: int) -> PriorityLists:
        """The stored lists for k candidates of one law pair (V,), and the law of their pick."""
        if is_exact(draft):
            return _of_fractions(type(draft[0]), tuple(target), tuple(draft), k)
        wanted, drafted = (np.ascontiguousarray(law, dtype=np.float64).tobytes() for law in (target, draft))
        return _of_floats(wanted, drafted, k, self.groups if int((draft > 0).sum()) > self.limit else None)

    def picking(self, target: Array, draft: Array, tokens: Array, filled: Array) -> Picking:
        lead, laws = host_rows(target, draft)
        ids, there = to_numpy(tokens), to_numpy(filled)
        shape = np.broadcast_shapes(lead, ids.shape[:-1])
        size, k = target.shape[-1], ids.shape[-1]
        # a law pair serves many rows of candidates, and a row's law is that of as many draws as it holds
        which = np.broadcast_to(np.arange(len(laws)).reshape(lead), shape).reshape(-1)
        ids, there = (np.broadcast_to(a, (*shape, k)).reshape(-1, k) for a in (ids, there))
        counts = there.sum(axis=-1)
        share = np.zeros(ids.shape, dtype=laws[0][0].dtype) + laws[0][0][:1] * 0
        single = len(laws) == 1 and np.unique(counts).size == 1
        law = np.zeros((1 if single else len(ids), size), dtype=share.dtype) + share[0, 0] * 0
        for pair, count in {*zip(which.tolist(), counts.tolist(), strict=True)}:
            if not count:
                continue
            rows = (which == pair) & (counts == count)
            made = self.lists(laws[pair][0], laws[pair][1], count)
            share[rows] = made.shares(ids[rows], there[rows])
            law[slice(None) if single else rows] = made.law
        law = law.reshape(*((1,) * len(shape) if single else shape), size)
        return Picking(like(share.reshape(*shape, k), target), like(law, target))

    def _acceptance(self, target: Array, draft: Array, law: DraftLaw) -> Array:
        lead, rows = host_rows(target, draft)
        values = np.array([self._row(t, d, law.k) for t, d in rows], dtype=rows[0][0].dtype).reshape(lead)
        return values[()] if is_numpy(target) else like(values, target)

    def _row(self, target: np.ndarray, draft: np.ndarray, k: int) -> Any:
        law = WithoutReplacement(k)
        if k == 1:
            return overlap(namespace(target), target, draft)
        if not is_exact(draft) and (draft > 0).sum() > self.limit and law.size(draft).tuples <= _ENUMERATED:
            return acceptance_by_enumeration(self, target, draft, law)
        return overlap(namespace(target), target, self.lists(target, draft, k).law)


@lru_cache(maxsize=64)
def _of_floats(target: bytes, draft: bytes, k: int, groups: int | None) -> PriorityLists:
    return _kept(priority_lists(np.frombuffer(target), np.frombuffer(draft), WithoutReplacement(k), groups))


@lru_cache(maxsize=64)
def _of_fractions(number: type, target: tuple[Any, ...], draft: tuple[Any, ...], k: int) -> PriorityLists:
    wanted, drafted = (np.array([*law, None], dtype=object)[:-1] for law in (target, draft))
    return _kept(priority_lists(wanted, drafted, WithoutReplacement(k)))


def _kept(lists: PriorityLists) -> PriorityLists:
    for field in lists:
        field.flags.writeable = False
    return lists
