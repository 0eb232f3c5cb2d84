"""The same optimum from POT's network simplex, which sees the whole 0/1 cost matrix."""

from __future__ import annotations

import numpy as np
import ot
import pytest

from ot_spec import IID, Fixed, Independent, MembershipTransport, TopThenSample, WithoutReplacement, from_probs
from solvers import optimal_acceptance
from solvers.exact.solve import solve


def membership_cost(problem: MembershipTransport) -> np.ndarray:
    cost = np.ones((problem.probs.size, problem.vocab + 1))
    np.put_along_axis(cost, np.where(problem.members < 0, problem.vocab, problem.members), 0.0, axis=1)
    return np.ascontiguousarray(cost[:, :-1])


def peer_cost(problem: MembershipTransport, cost: np.ndarray) -> float:
    return np.asarray(ot.emd2(np.ascontiguousarray(problem.probs), problem.target, cost)).item()


def random_problems(count: int):
    """Pairs with zeros, ties, one-hot, equal and disjoint laws, under every draft law."""
    rng = np.random.default_rng(20231015)
    for trial in range(count):
        vocab, k = int(rng.integers(4, 7)), int(rng.integers(1, 5))
        weights = rng.integers(0, 6, size=(4, vocab)).astype(float)
        weights[:, rng.integers(vocab)] += 1
        if trial % 5 == 1:
            weights[1] = weights[0]
        if trial % 5 == 2:
            weights[0], weights[1] = np.arange(vocab) < 2, np.arange(vocab) >= 2
        if trial % 5 == 3:
            weights[trial % 2] = np.arange(vocab) == 1
        if trial % 5 == 4:
            weights = weights * rng.gamma(0.3, size=weights.shape) + 1e-9
        target, draft, *others = from_probs(weights / weights.sum(axis=1, keepdims=True))
        for law in (
            IID(k),
            WithoutReplacement(k),
            TopThenSample(k),
            Fixed(rng.integers(0, vocab, size=k)),
            Independent(np.stack([draft, *others][: min(k, 3)])),
        ):
            yield MembershipTransport(target, draft, law)


def test_linear_program_max_flow_certificate_subset_selection_and_pot_agree():
    for problem in random_problems(40):
        cost = membership_cost(problem)
        peer = 1 - peer_cost(problem, cost)
        values = {
            "lp": solve(problem, "lp").acceptance,
            "certificate": solve(problem, "lp").info["cut"].check(),
            "max_flow": solve(problem, "max_flow").acceptance,
            "igraph": solve(problem, "max_flow", "igraph").acceptance,
            "subset selection": optimal_acceptance(problem.target, problem.draft, problem.law),
        }
        for name, value in values.items():
            assert float(value) == pytest.approx(peer, rel=0, abs=1e-12), (name, problem.law, problem.target)


def test_the_plan_costs_what_pot_says_under_the_same_cost_matrix():
    for problem in random_problems(8):
        cost = membership_cost(problem)
        plan = solve(problem).matrix()
        assert (plan * cost).sum() == pytest.approx(peer_cost(problem, cost), rel=0, abs=1e-12)


def test_a_cost_on_the_wrong_pairs_would_be_seen():
    problem = MembershipTransport([0.8, 0.1, 0.1], [0.6, 0.3, 0.1], IID(2))
    shifted = np.roll(membership_cost(problem), 1, axis=1)
    assert abs(1 - peer_cost(problem, shifted) - solve(problem).acceptance) > 0.01
