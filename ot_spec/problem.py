"""The transport problem with membership cost, stated over candidate sets."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from ot_spec.arrays import Array, constant, fractions, is_exact, minimum, namespace, to_numpy
from ot_spec.draft_law import DraftLaw, Size
from ot_spec.errors import ShapeError, TooLargeError, counted
from ot_spec.law import from_probs

EDGE_LIMIT = 2_000_000


class MembershipTransport:
    """Couple candidates X ~ D and output Y ~ target so that P(Y in X) is largest.

    Cost c(x, y) = 1{y not in S(x)} depends on a tuple through its set S(x) of tokens only, so the supply side has one
    node per candidate set, D(S), and the demand side one per token, target(y). Optimal acceptance alpha* is one minus
    the transport cost (SpecTr 2023, arXiv 2310.15141, section 4); only edges with y in S carry value.

    target, draft: one law (V,) each, numpy, torch or exact; converted to the host. `draft` may be left out for a law
    that does not look at it (`Fixed`, `Independent`). Nothing is enumerated before it is asked for; what would not
    fit is refused first, with its size (TooLargeError).

    Glossary: members (N, k) the candidate sets, ascending ids padded with -1; probs (N,) their probabilities;
    edge_set, edge_token (E,) the pairs with y in S and target(y) > 0.

    >>> from ot_spec import IID
    >>> problem = MembershipTransport([0.5, 0.5], [0.75, 0.25], IID(2))
    >>> problem.members.tolist(), problem.probs.tolist()
    ([[0, -1], [1, -1], [0, 1]], [0.5625, 0.0625, 0.375])
    """

    def __init__(self, target: Any, draft: Any, law: DraftLaw):
        self.law = law
        self.target = to_numpy(from_probs(target, name="target"))
        self.draft = self.target if draft is None else to_numpy(from_probs(draft, name="draft"))
        if self.target.ndim != 1 or self.target.shape != self.draft.shape:
            raise ShapeError(
                f"a transport problem takes one law pair of shape (V,), got target {self.target.shape} "
                f"and draft {self.draft.shape}"
            )
        if is_exact(self.target) != is_exact(self.draft):
            raise ShapeError("target and draft must both be exact or both be floats; see as_exact")
        if self.exact and type(self.target[0]) is not type(self.draft[0]):
            self.target, self.draft = fractions(self.target), fractions(self.draft)

    def __repr__(self) -> str:
        edges = counted(self.size.edges)
        return f"MembershipTransport(V={self.vocab}, law={self.law.name}, k={self.law.k}, {edges} edges)"

    @property
    def vocab(self) -> int:
        return self.target.size

    @property
    def exact(self) -> bool:
        """True where every mass is an exact rational."""
        return is_exact(self.target)

    @property
    def size(self) -> Size:
        """Tuples, sets and edges that enumeration would build (upper bounds), without building."""
        return self.law.size(self.draft)

    def require(self, limit: int = EDGE_LIMIT, instead: str = "optimal_acceptance and optimal_cut") -> None:
        """Raise TooLargeError if the edges to build could be more than `limit`."""
        if self.size.edges > limit:
            raise TooLargeError(
                f"the membership edges of {self.law.name}(k={self.law.k}) over {self.vocab:,} tokens",
                self.size.edges,
                limit,
                instead,
            )

    @cached_property
    def _sets(self) -> tuple[np.ndarray, np.ndarray]:
        self.require()
        members, probs = self.law.sets(self.draft)
        if is_exact(probs) != self.exact:
            raise ShapeError("the draft law must be exact where target is, and floats where target is")
        return members, probs

    @property
    def members(self) -> np.ndarray:
        return self._sets[0]

    @property
    def probs(self) -> np.ndarray:
        return self._sets[1]

    @cached_property
    def _edges(self) -> tuple[np.ndarray, np.ndarray]:
        sets, slots = np.nonzero((self.members >= 0) & (self.target[self.members] > 0))
        return sets, self.members[sets, slots]

    @property
    def edge_set(self) -> np.ndarray:
        return self._edges[0]

    @property
    def edge_token(self) -> np.ndarray:
        return self._edges[1]

    def set_index(self, candidates: Any) -> int:
        """The row of `members` holding the distinct tokens of `candidates`, or -1 if the law never produces them."""
        tokens = sorted({int(i) for i in np.asarray(candidates).reshape(-1) if i >= 0})
        wanted = np.full(self.members.shape[1], -1)
        if len(tokens) > wanted.size:
            return -1
        wanted[: len(tokens)] = tokens
        found = np.flatnonzero((self.members == wanted).all(axis=1))
        return int(found[0]) if found.size else -1

    def inside(self, tokens: Any) -> Any:
        """Q(H) = P(all candidates lie in H), for H given as ids, by enumeration."""
        held = np.zeros(self.vocab + 1, dtype=bool)
        held[np.asarray(tokens, dtype=np.int64)] = True
        held[-1] = True
        return self.probs[held[self.members].all(axis=1)].sum()

    def marginal_bound(self) -> Any:
        """sum_y min(target(y), P(y in X)) >= alpha* (SpecTr 2023)."""
        return marginal_bound(self.target, self.draft, self.law)

    def is_perfect(self) -> bool:
        """True iff alpha* = 1, i.e. target(H) >= Q(H) for every H that is a union of candidate sets, by enumeration
        of all token sets of the support (up to 20 tokens)."""
        support = np.flatnonzero(self.law.contains(self.draft) > 0)
        if support.size > 20:
            raise TooLargeError("subsets to compare", 2**support.size, 2**20, "optimal_acceptance")
        bits = 1 << np.arange(support.size)
        place = np.zeros(self.vocab + 1, dtype=np.int64)
        place[support] = bits
        set_bits = place[self.members].sum(axis=1)  # members are distinct
        for subset in range(1 << support.size):
            mass = self.probs[(set_bits & ~subset) == 0].sum()
            slack = self.target[support[(bits & subset) > 0]].sum() - mass
            if slack < (0 if self.exact else -1e-12):
                return False
        return True


def marginal_bound(target: Array, draft: Array, law: DraftLaw) -> Array:
    """sum_y min(target(y), P(y in X)), an upper bound of alpha* for every draft law (SpecTr 2023); (..., V) -> (...).

    >>> from ot_spec import IID
    >>> float(marginal_bound(np.array([0.5, 0.5]), np.array([1.0, 0.0]), IID(3)))
    0.5
    """
    target, draft = (a if hasattr(a, "shape") else from_probs(a) for a in (target, draft))
    xp = namespace(target, draft)
    if not is_exact(target):
        target, draft = (xp.astype(a, xp.float64, copy=False) for a in (target, draft))
    elif is_exact(draft) and target.size and draft.size and type(target.flat[0]) is not type(draft.flat[0]):
        target, draft = fractions(target), fractions(draft)
    if target.shape[-1:] != draft.shape[-1:]:
        raise ShapeError(f"target has shape {tuple(target.shape)} and draft {tuple(draft.shape)}")
    return xp.sum(minimum(xp, target, law.contains(draft)) + constant(0, target), axis=-1)
