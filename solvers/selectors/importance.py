"""Importance-weighted selection (Khisti et al. 2025): a pick by a truncated linear program, then the one-draft step."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from ot_spec.arrays import Array, constant, gather, is_exact, is_numpy, like, namespace
from ot_spec.draft_law import DraftLaw
from ot_spec.errors import OptionError, SolverError
from ot_spec.selector import as_float
from solvers.selectors.canonical import CanonicalRule, Picking, host_rows, rational


class Importance(CanonicalRule):
    """A tournament: the champion of x_1, .., x_m meets x_(m+1) and stays with probability W_m(champion, newcomer).

    W_m comes from a linear program over groups of tokens: the `top` tokens of largest draft mass are one group each,
    the others fall into `classes` groups of neighbours in target/draft, inside which the champion stays. With g the
    law of the champion and B the draft mass of the groups, the program is max sum_i min(target_i, f_i) over
    f_i = g_i B_i + sum_j (g_i B_j + g_j B_i) w_ij, w_ij + w_ji = 1, w >= 0. (The published truncation puts the other
    tokens in a strict order instead; groups cost as much and lose less.) For k = 2 and as many groups as tokens this
    is the optimum; for larger k each program is the best next step.

    Whatever the program returns, the picked token has law f_y = rho(group of y) draft_y, with
    rho_1 = 1, rho_(m+1)(i) = rho_m(i) sum_j B_j W(i, j) + sum_j rho_m(j) B_j W'(i, j), W'(i, j) = 1 - W(j, i),
    computed from the weights that are stored; so the rule is exact. For i.i.d. candidates.

    The programs are solved on the host, some milliseconds for each law pair and candidate.

    top, classes: >= 0, at least one group in all.

    >>> from ot_spec import IID
    >>> target, draft = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.4, 0.3, 0.2, 0.1])
    >>> float(Importance().acceptance(target, draft, IID(2)).round(12))
    0.79
    """

    name = "importance"
    host = True

    def __init__(self, top: int = 12, classes: int = 12):
        if top < 0 or classes < 0 or top + classes < 1:
            raise OptionError(f"top and classes are at least 0 and 1 in all, got {top} and {classes}")
        self.top, self.classes = top, classes

    def picking(self, target: Array, draft: Array, tokens: Array, filled: Array) -> Picking:
        xp = namespace(target, draft)
        k = tokens.shape[-1]
        lead, rows = host_rows(target, draft)
        plans = [self._plan(t, d, k) for t, d in rows]
        size = max(stay.shape[-1] for _, stay in plans)
        groups = like(np.stack([group for group, _ in plans]).reshape(*lead, -1), target)
        stays = np.stack([np.pad(stay, ((0, 0), *[(0, size - stay.shape[-1])] * 2)) for _, stay in plans])
        stays = like(stays.reshape(*lead, -1), target)
        ratios = [_ratios(d, *plan) for (_, d), plan in zip(rows, plans, strict=True)]
        laws = np.stack([np.stack(r) * d for (_, d), r in zip(rows, ratios, strict=True)])
        laws = like(laws.reshape(*lead, k, -1), target)

        one, zero = constant(1, target), constant(0, target)
        here = gather(xp, groups, tokens)
        shares = [xp.where(filled[..., :1], one, zero)]
        law = xp.where(filled[..., :1], laws[..., 0, :], zero)
        for m in range(1, k):
            newcomer = filled[..., m : m + 1]
            stay = [
                gather(xp, stays, ((m - 1) * size + here[..., j : j + 1]) * size + here[..., m : m + 1])
                for j in range(m)
            ]
            stay = [xp.where(newcomer, s, one) for s in stay]
            shares.append(sum(share * (1 - s) for share, s in zip(shares, stay, strict=True)))
            shares[:m] = [share * s for share, s in zip(shares[:m], stay, strict=True)]
            law = xp.where(newcomer, laws[..., m, :], law)
        return Picking(xp.concat(shares, axis=-1), law)

    def _plan(self, target: np.ndarray, draft: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The group of each token (V,), and W_m (k - 1, n, n) in the arithmetic of the laws."""
        floats = [np.ascontiguousarray(as_float(a), dtype=np.float64) for a in (target, draft)]
        group, stay = _programs(floats[0].tobytes(), floats[1].tobytes(), k, self.top, self.classes)
        return group, rational(stay, draft) if is_exact(draft) else stay

    def _acceptance(self, target: Array, draft: Array, law: DraftLaw) -> Array:
        lead, rows = host_rows(target, draft)
        values = np.array([self._row(t, d, law.k) for t, d in rows], dtype=rows[0][0].dtype).reshape(lead)
        return values[()] if is_numpy(target) else like(values, target)

    def _row(self, target: np.ndarray, draft: np.ndarray, k: int) -> Any:
        """P(the pick is kept) + P(it is not, and the token drawn instead is another candidate)."""
        group, stay = self._plan(target, draft, k)
        law = _ratios(draft, group, stay)[-1] * draft
        kept, over = np.minimum(target, law), np.maximum(target - law, target[0] * 0)
        refused = law - kept
        if not over.sum() > 0:
            return kept.sum()
        # the champion when no candidate is y: the same tournament without y's mass
        open_ = np.flatnonzero(over > 0)
        masses = np.broadcast_to(_masses(draft, group, stay), (open_.size, stay.shape[-1])).copy()
        at = np.arange(open_.size), group[open_]
        masses[at] = np.maximum(masses[at] - draft[open_], draft[0] * 0)
        lost = np.where(draft > 0, refused / np.where(draft > 0, law + (law <= 0), 1) * draft, draft * 0)
        weight = _masses(lost, group, stay)
        missed = _tournament(masses, stay)[-1] @ weight
        drawn = over[open_] / over.sum()
        return kept.sum() + (drawn * np.maximum(refused.sum() - missed, draft[0] * 0)).sum()


def _masses(law: np.ndarray, group: np.ndarray, stay: np.ndarray) -> np.ndarray:
    masses = np.zeros(stay.shape[-1], dtype=law.dtype) + law[0] * 0
    np.add.at(masses, group, law)
    return masses


def _tournament(masses: np.ndarray, stay: np.ndarray) -> list[np.ndarray]:
    """rho_1, .., rho_k: P(champion is y after m candidates)/draft_y for y in each group; masses (..., n)."""
    rho = [masses * 0 + 1]
    for keep in stay:
        rho.append(rho[-1] * (masses @ keep.T) + (rho[-1] * masses) @ (1 - keep))
    return rho


def _ratios(draft: np.ndarray, group: np.ndarray, stay: np.ndarray) -> list[np.ndarray]:
    return [rho[group] for rho in _tournament(_masses(draft, group, stay), stay)]


@lru_cache(maxsize=256)
def _programs(target: bytes, draft: bytes, k: int, top: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Groups and weights from the laws' floats; a pure function, remembered for candidates of the same laws."""
    t, d = np.frombuffer(target), np.frombuffer(draft)
    group = _groups(t, d, top, classes)
    size = int(group.max()) + 1
    wanted, masses = np.bincount(group, t, size), np.bincount(group, d, size)
    stay = np.empty((k - 1, size, size))
    champion = masses
    for m in range(k - 1):
        stay[m] = _stage(wanted, champion, masses)
        champion = champion * (stay[m] @ masses) + masses * (champion @ (1 - stay[m]))
    group.flags.writeable = stay.flags.writeable = False
    return group, stay


def _groups(target: np.ndarray, draft: np.ndarray, top: int, classes: int) -> np.ndarray:
    """One group for each of the `top` tokens of largest draft mass, then up to `classes` of equal draft mass."""
    if not classes:
        top = max(1, top - 1)
    large = np.argsort(-draft, kind="stable")[:top]
    group = np.full(draft.size, -1)
    group[large] = np.arange(large.size)
    rest = np.flatnonzero(group < 0)
    if rest.size:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = np.where(draft[rest] > 0, target[rest] / draft[rest], np.inf)
        order = rest[np.argsort(ratio, kind="stable")]
        reached = np.cumsum(draft[order])
        middle = (reached - draft[order] / 2) / max(reached[-1], np.finfo(float).tiny)
        _, place = np.unique(
            (middle * max(1, classes)).astype(np.int64).clip(0, max(1, classes) - 1), return_inverse=True
        )
        group[order] = large.size + place
    return group


def _stage(target: np.ndarray, champion: np.ndarray, masses: np.ndarray) -> np.ndarray:
    """W (n, n), W(i, j) + W(j, i) = 1 off the diagonal of ones: the best next step of the tournament."""
    size = target.size
    i, j = np.triu_indices(size, 1)
    pair = champion[i] * masses[j] + champion[j] * masses[i]
    many, both = pair.size, np.arange(pair.size)
    # overlap_i <= g_i B_i + sum of pair mass won by i; w = share of the pair that i < j wins
    rows = np.concatenate([i, j, np.arange(size)])
    columns = np.concatenate([both, both, many + np.arange(size)])
    matrix = sparse.csr_array((np.concatenate([-pair, pair, np.ones(size)]), (rows, columns)), (size, many + size))
    bound = champion * masses
    np.add.at(bound, j, pair)
    result = linprog(
        np.concatenate([np.zeros(many), -np.ones(size)]),
        A_ub=matrix,
        b_ub=bound,
        bounds=np.stack([np.zeros(many + size), np.concatenate([np.ones(many), target])], axis=1),
        method="highs",
    )
    if result.x is None:
        raise SolverError(f"importance: HiGHS stopped with status {result.status}: {result.message}", result.status)
    won = np.clip(result.x[:many], 0.0, 1.0)
    stay = np.eye(size)
    stay[i, j], stay[j, i] = won, 1 - won
    return stay
