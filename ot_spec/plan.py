"""What a solver returns: a coupling, and a token set that proves it best. Both compute their value themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from ot_spec.arrays import as_fraction, spelled, to_numpy
from ot_spec.draft_law import DraftLaw
from ot_spec.errors import CandidateError, ShapeError, SolverError, TooLargeError
from ot_spec.problem import MembershipTransport
from ot_spec.selector import Selector


class Plan(ABC):
    """A coupling of candidates and output, as it is read: `TransportPlan` where it is built, `LazyPlan` where it would
    be too large."""

    problem: MembershipTransport
    flow: np.ndarray
    method: str
    info: dict[str, Any]

    @property
    @abstractmethod
    def acceptance(self) -> Any:
        """P(Y in X)."""

    @abstractmethod
    def conditional(self, candidates: Any) -> np.ndarray:
        """P(Y = y | candidates), (V,)."""

    @abstractmethod
    def matrix(self) -> np.ndarray:
        """The whole coupling, (N, V)."""

    @abstractmethod
    def row_marginal(self) -> np.ndarray:
        """(N,) law of the candidate sets."""

    @abstractmethod
    def column_marginal(self) -> np.ndarray:
        """(V,) law of the output."""

    def gap(self, cut: Cut) -> Any:
        """cut value - acceptance >= 0; zero proves that plan and cut are both optimal (weak duality)."""
        return cut.value - self.acceptance


@dataclass(frozen=True)
class TransportPlan(Plan):
    """A coupling of candidate sets and output, sparse: `flow` (E,) on the problem's membership edges.

    What the flow leaves of each marginal, rows D(S) - flow(S, .) and columns target(y) - flow(., y), is coupled
    independently, so both marginals are right for every feasible flow. Acceptance, marginals and conditionals are
    computed from the flow and the problem, never taken from a solver.

    Raises SolverError if the flow is negative or exceeds a marginal by more than rounding; see `repaired`.
    """

    problem: MembershipTransport
    flow: np.ndarray
    method: str
    info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.flow.shape != self.problem.edge_set.shape:
            raise ShapeError(f"flow has shape {self.flow.shape}, the problem has {self.problem.edge_set.size} edges")
        slack = 0 if self.problem.exact else 1e-12
        for name, values in (("flow", self.flow), ("row", self._rows()), ("column", self._columns())):
            worst = min(values, default=0)
            if not worst >= -slack:
                raise SolverError(
                    f"{self.method}: infeasible plan, {name} {int(np.argmin(values))} is {spelled(worst)}"
                )

    @classmethod
    def repaired(cls, problem: MembershipTransport, flow: np.ndarray, method: str, **info: Any) -> TransportPlan:
        """A feasible plan from a solver's raw flow: negatives clipped, rows then columns scaled down to fit.

        Raises SolverError if that moves more than 1e-6 of mass: then the solver did not solve this problem.
        """
        flow = np.asarray(flow, dtype=np.float64)
        if not np.isfinite(flow).all():
            raise SolverError(f"{method}: the solver returned {flow[~np.isfinite(flow)][0]} on an edge")
        fitted = np.maximum(flow, 0.0)
        for index, limit in ((problem.edge_set, problem.probs), (problem.edge_token, problem.target)):
            sums = np.bincount(index, weights=fitted, minlength=limit.size)
            scale = np.where(sums > limit, limit / np.where(sums > limit, sums, 1.0), 1.0)
            fitted = fitted * scale[index]
        moved = float(np.abs(fitted - flow).sum())
        if moved > 1e-6:
            raise SolverError(f"{method}: repairing the marginals would move {moved:.3g} of mass")
        return cls(problem, fitted, method, {"repaired": moved, **info})

    def _sum(self, index: np.ndarray, size: int) -> np.ndarray:
        sums = np.zeros(size, dtype=self.flow.dtype)
        np.add.at(sums, index, self.flow)
        return sums

    def _rows(self) -> np.ndarray:
        return self.problem.probs - self._sum(self.problem.edge_set, self.problem.probs.size)

    def _columns(self) -> np.ndarray:
        return self.problem.target - self._sum(self.problem.edge_token, self.problem.vocab)

    def _rest(self) -> tuple[np.ndarray, np.ndarray, Any]:
        """Rows and columns left by the flow, and the mass they share (equal but for rounding; the smaller)."""
        rows, columns = np.maximum(self._rows(), 0), np.maximum(self._columns(), 0)
        return rows, columns, min(rows.sum(), columns.sum())

    def matrix(self) -> np.ndarray:
        """The whole coupling, (N, V): entry (S, y) = P(X = S, Y = y)."""
        rows, columns, left = self._rest()
        joint = np.zeros((rows.size, columns.size), dtype=self.flow.dtype)
        if left > 0:
            joint = joint + rows[:, None] * (columns / columns.sum())
        np.add.at(joint, (self.problem.edge_set, self.problem.edge_token), self.flow)
        return joint

    @property
    def acceptance(self) -> Any:
        """P(Y in X) of this coupling: the flow, and what the independent rest happens to put on edges."""
        rows, columns, left = self._rest()
        accepted = self.flow.sum() if self.flow.size else self.problem.probs[0] * 0
        if left > 0:
            edges = rows[self.problem.edge_set] * columns[self.problem.edge_token]
            if edges.size:
                accepted = accepted + edges.sum() / columns.sum()
        return accepted

    def row_marginal(self) -> np.ndarray:
        """(N,) law of the candidate sets under the coupling."""
        return self.matrix().sum(axis=1)

    def column_marginal(self) -> np.ndarray:
        """(V,) law of the output under the coupling."""
        return self.matrix().sum(axis=0)

    def conditional(self, candidates: Any) -> np.ndarray:
        """P(Y = y | candidates), (V,). Raises CandidateError for candidates the law never produces."""
        row = self.problem.set_index(candidates)
        if row < 0:
            raise CandidateError(
                f"candidates {np.asarray(candidates).tolist()} have probability 0 under {self.problem.law.name}"
            )
        rows, columns, left = self._rest()
        out = np.zeros(columns.size, dtype=self.flow.dtype)
        if left > 0:
            out = out + columns * (rows[row] / columns.sum())
        here = self.problem.edge_set == row
        np.add.at(out, self.problem.edge_token[here], self.flow[here])
        return out / out.sum()


@dataclass(frozen=True, eq=False)
class LazyPlan(Plan):
    """The coupling by a rule of canonical form (Khisti et al. 2025), for problems too large to enumerate.

    The rule picks one candidate; its token y, of law `pick` (V,) over all draws, is kept with min(1, target/pick), else
    the output comes from (target - pick)+. Acceptance and output law are read off `pick`; `conditional` asks the rule.

    `flow`, `matrix` and `row_marginal` need every candidate set and raise TooLargeError with what `why` says.

    Raises ShapeError for a `pick` of another vocabulary, SolverError for one that is no law.
    """

    problem: MembershipTransport
    selector: Selector
    pick: np.ndarray
    why: TooLargeError
    method: str
    info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.pick.shape != self.problem.target.shape:
            raise ShapeError(f"pick has shape {self.pick.shape}, the problem has {self.problem.vocab} tokens")
        off, slack = abs(self.pick.sum() - 1), 0 if self.problem.exact else 1e-12 * self.problem.law.k  # powers of k
        if not (off <= slack and min(self.pick) >= 0):
            raise SolverError(
                f"{self.method}: the law of the pick is none: its sum is off by {spelled(off)}, "
                f"its least entry is {spelled(min(self.pick))}"
            )

    def _kept(self) -> np.ndarray:
        return np.minimum(self.problem.target, self.pick)

    @property
    def acceptance(self) -> Any:
        """P(the pick is kept): P(Y in X) of an optimal rule, a lower bound of it where `gap` is not zero."""
        return self._kept().sum()

    def column_marginal(self) -> np.ndarray:
        """(V,) law of the output: what is kept, and what is drawn for the rest."""
        kept, target = self._kept(), self.problem.target
        residual = target - kept
        if not residual.sum() > 0:
            residual = target
        return kept + (self.pick - kept).sum() * (residual / residual.sum())

    def conditional(self, candidates: Any) -> np.ndarray:
        """P(Y = y | candidates), (V,), of the candidates *as drawn*: all of them, also those that are equal.

        The mean over the draws that make a set is what `TransportPlan.conditional` gives for the set. Raises
        CandidateError for candidates the law never produces.
        """
        tokens = np.asarray(candidates).reshape(-1)
        tokens = tokens[tokens != -1]
        law, draft = self.problem.law, self.problem.draft
        many = int(law.sample(draft, np.zeros(law.k)).count)
        if tokens.size != many:
            raise CandidateError(f"{law.name} draws {many} candidates here, got {tokens.size}: {tokens.tolist()}")
        slots = np.full(law.k, -1)
        slots[:many] = tokens
        return self.selector.conditional(self.problem.target, draft, slots)

    @property
    def flow(self) -> np.ndarray:
        raise copy(self.why)

    def matrix(self) -> np.ndarray:
        raise copy(self.why)

    def row_marginal(self) -> np.ndarray:
        raise copy(self.why)


@dataclass(frozen=True, eq=False)
class Cut:
    """A token set H: every coupling accepts at most 1 + target(H) - Q(H), Q(H) = P(X inside H).

    The least value over all H is alpha* (Hu 2025), and the H that attains it is the "why": candidates that fall
    inside H as a whole bring more mass there than the target has, and the surplus must be refused.

    inside: H as a mask (..., V); value: (...). One cut for each leading index; `cut[i]` is that of one row, `of`
    builds one from a problem and token ids. `tokens`, `check` and `duals` are for a single law pair.
    """

    target: Any
    draft: Any
    law: DraftLaw
    inside: Any
    value: Any

    @classmethod
    def of(cls, problem: MembershipTransport, tokens: Any, value: Any = None) -> Cut:
        """The cut H = `tokens` of a problem; its value is computed by enumeration unless given."""
        inside = np.zeros(problem.vocab, dtype=bool)
        inside[np.asarray(tokens, dtype=np.int64)] = True
        cut = cls(problem.target, problem.draft, problem.law, inside, value)
        cut.__dict__["problem"] = problem
        return cut if value is not None else replace(cut, value=cut.check())

    def __getitem__(self, row: Any) -> Cut:
        lead = tuple(self.inside.shape[:-1])
        if not lead:
            raise ShapeError("this is the cut of one law pair; there is no row to take")
        target, draft = (np.broadcast_to(to_numpy(a), tuple(self.inside.shape))[row] for a in (self.target, self.draft))
        return Cut(target, draft, self.law, self.inside[row], self.value[row])

    @cached_property
    def problem(self) -> MembershipTransport:
        return MembershipTransport(self.target, self.draft, self.law)

    @property
    def tokens(self) -> np.ndarray:
        """The ids in H, ascending."""
        if self.inside.ndim != 1:
            raise ShapeError(f"cuts of {tuple(self.inside.shape[:-1])} law pairs; take one with cut[i]")
        return np.flatnonzero(to_numpy(self.inside))

    def check(self) -> Any:
        """The value recomputed by enumerating candidate sets (small vocabularies)."""
        problem, tokens = self.problem, self.tokens
        held = problem.target[tokens].sum() if tokens.size else problem.target[0] * 0
        return 1 + held - problem.inside(tokens)

    def duals(self) -> tuple[np.ndarray, np.ndarray]:
        """Potentials (set, token), feasible on *every* pair: set + token >= 1{y in S}; sum D set + sum target token
        is the value."""
        held = np.append(to_numpy(self.inside), True)  # -1, the padding of a set, is always inside
        return (~held[self.problem.members].all(axis=1)).astype(int), held[:-1].astype(int)

    def __repr__(self) -> str:
        if self.inside.ndim > 1:
            return f"Cut({tuple(self.inside.shape[:-1])} law pairs of {self.inside.shape[-1]} tokens)"
        return f"Cut({self.tokens.size} of {self.inside.size} tokens, value={float(as_fraction(self.value)):.12g})"
