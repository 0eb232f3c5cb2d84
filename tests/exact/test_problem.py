"""Problem, plan and cut: each computes its numbers from the laws, by code of its own."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from ot_spec import (
    IID,
    Cut,
    Fixed,
    Independent,
    MembershipTransport,
    TopThenSample,
    TransportPlan,
    WithoutReplacement,
    as_exact,
    fractions,
)
from ot_spec.errors import CandidateError, LawError, ShapeError, SolverError, TooLargeError

TARGET = fractions(["1/8", "0", "3/8", "1/4", "1/4"])
DRAFT = fractions(["1/2", "1/8", "1/8", "0", "1/4"])
OTHER = fractions(["0", "1/2", "1/4", "1/4", "0"])
LAWS = [
    IID(3),
    WithoutReplacement(2),
    WithoutReplacement(7),
    TopThenSample(2),
    Fixed([3, 0]),
    Fixed([4, -1]),
    Independent(np.stack([DRAFT, OTHER])),
]
names = pytest.mark.parametrize("law", LAWS, ids=lambda law: f"{law.name}-{law.k}")


def floats(law):
    return Independent(law.drafts.astype(float)) if isinstance(law, Independent) else law


@names
def test_the_sets_are_the_tuples_collapsed(law):
    problem = MembershipTransport(TARGET, DRAFT, law)
    expected: dict[frozenset[int], Fraction] = {}
    for row, mass in zip(*law.tuples(DRAFT), strict=True):
        held = frozenset(int(token) for token in row if token >= 0)
        expected[held] = expected.get(held, Fraction(0)) + mass
    found = {
        frozenset(int(token) for token in row if token >= 0): mass
        for row, mass in zip(problem.members, problem.probs, strict=True)
    }
    assert found == expected
    assert problem.probs.sum() == 1


@names
def test_edges_are_the_members_the_target_can_produce_and_the_size_bounds_them(law):
    problem = MembershipTransport(TARGET, DRAFT, law)
    edges = {(i, int(y)) for i, row in enumerate(problem.members) for y in row if y >= 0 and TARGET[y] > 0}
    assert set(zip(problem.edge_set.tolist(), problem.edge_token.tolist(), strict=True)) == edges
    assert problem.edge_set.size == len(edges) <= problem.size.edges
    assert problem.probs.size <= problem.size.sets
    assert len(law.tuples(DRAFT)[1]) <= problem.size.tuples


@names
def test_inside_agrees_with_the_draft_law_on_prefixes(law):
    problem = MembershipTransport(TARGET, DRAFT, law)
    order = np.array([2, 0, 4, 1, 3])
    assert [problem.inside(order[:i]) for i in range(6)] == list(law.inside(DRAFT, order))


@names
def test_a_set_is_found_in_any_order_and_only_if_it_can_occur(law):
    problem = MembershipTransport(TARGET, DRAFT, law)
    for row, members in enumerate(problem.members):
        held = members[members >= 0]
        assert problem.set_index(held[::-1]) == row
        assert problem.set_index([*held, *held]) == row
    assert problem.set_index([0, 1, 2, 3, 4]) == -1


@names
def test_perfect_means_that_no_token_set_is_overfull(law):
    for target in (TARGET, DRAFT, MembershipTransport(TARGET, DRAFT, law).law.contains(DRAFT)):
        if target.sum() != 1:
            continue
        problem = MembershipTransport(target, DRAFT, law)
        subsets = ([y for y in range(5) if bits[y]] for bits in product([0, 1], repeat=5))
        assert problem.is_perfect() == all(problem.inside(H) <= target[H].sum() for H in subsets)


@names
def test_the_empty_plan_is_the_independent_coupling(law):
    for problem, close in (
        (MembershipTransport(TARGET, DRAFT, law), 0),
        (MembershipTransport(TARGET.astype(float), DRAFT.astype(float), floats(law)), 1e-15),
    ):
        none = np.zeros(problem.edge_set.size, dtype=problem.probs.dtype)
        plan = TransportPlan(problem, none, "independent")
        hit = (problem.target * problem.law.contains(problem.draft)).sum()
        assert abs(plan.acceptance - hit) <= close
        assert abs(plan.row_marginal() - problem.probs).max() <= close
        assert abs(plan.column_marginal() - problem.target).max() <= close
        for row in problem.members:
            assert abs(plan.conditional(row) - problem.target).max() <= close


def test_plan_acceptance_is_the_mass_of_its_matrix_on_membership_pairs():
    problem = MembershipTransport(TARGET, DRAFT, IID(2))
    plan = TransportPlan(problem, problem.probs[problem.edge_set] * TARGET[problem.edge_token] / 2, "half")
    matrix = plan.matrix()
    on_pairs = sum(matrix[i, y] for i, row in enumerate(problem.members) for y in row if y >= 0)
    assert plan.acceptance == on_pairs
    assert (plan.row_marginal() == problem.probs).all()
    assert (plan.column_marginal() == TARGET).all()
    row = problem.set_index([0, 4])
    assert (plan.conditional([4, 0]) == matrix[row] / problem.probs[row]).all()


def test_a_plan_refuses_what_does_not_fit():
    problem = MembershipTransport([0.5, 0.5], [0.75, 0.25], IID(2))
    size = problem.edge_set.size
    with pytest.raises(ShapeError, match=r"flow has shape \(5,\), the problem has 4 edges"):
        TransportPlan(problem, np.zeros(size + 1), "hand")
    with pytest.raises(SolverError, match=r"flow 0 is -0\.1"):
        TransportPlan(problem, np.array([-0.1, *np.zeros(size - 1)]), "hand")
    with pytest.raises(SolverError, match="row 0"):
        TransportPlan(problem, np.array([0.9, *np.zeros(size - 1)]), "hand")
    with pytest.raises(SolverError, match="infeasible"):
        TransportPlan(problem, np.array([np.nan, *np.zeros(size - 1)]), "hand")
    with pytest.raises(CandidateError, match="probability 0"):
        TransportPlan(problem, np.zeros(size), "hand").conditional([7])
    exact = MembershipTransport(["1/2", "1/2"], ["3/4", "1/4"], IID(2))
    with pytest.raises(SolverError, match="flow 0"):  # an exact plan has no tolerance at all
        TransportPlan(exact, fractions([Fraction(-1, 10**30), 0, 0, 0]), "hand")


def test_a_cut_bounds_every_plan_and_the_least_one_is_the_optimum():
    problem = MembershipTransport(TARGET, DRAFT, WithoutReplacement(2))
    cuts = [Cut.of(problem, np.flatnonzero(bits)) for bits in product([0, 1], repeat=5)]
    independent = TransportPlan(problem, np.zeros(problem.edge_set.size, dtype=object), "independent")
    for cut in cuts:
        sets, tokens = cut.duals()
        assert (problem.probs * sets).sum() + (TARGET * tokens).sum() == cut.value == cut.check()
        for i, row in enumerate(problem.members):
            assert all(sets[i] + tokens[y] >= (y in row) for y in range(5))
        assert independent.gap(cut) >= 0
    assert min(cut.value for cut in cuts) <= problem.marginal_bound()


def test_the_marginal_bound_can_be_loose_and_a_cut_says_why():
    problem = MembershipTransport(["1/2", "1/2", "0"], ["1/4", "1/4", "1/2"], IID(2))
    # both tokens are among the candidates often enough, one by one; too often they come together
    assert problem.marginal_bound() == Fraction(7, 8)
    assert Cut.of(problem, [2]).value == Fraction(3, 4)


def test_laws_that_do_not_fit_are_refused():
    with pytest.raises(ShapeError, match="one law pair"):
        MembershipTransport(np.full((2, 2), 0.5), np.full((2, 2), 0.5), IID(2))
    with pytest.raises(ShapeError, match="one law pair"):
        MembershipTransport([0.5, 0.5], [1.0], IID(2))
    with pytest.raises(ShapeError, match="both be exact"):
        MembershipTransport(["1/2", "1/2"], [0.5, 0.5], IID(2))
    with pytest.raises(ShapeError, match="must be exact where"):
        _ = MembershipTransport([0.5, 0.5], None, Independent(as_exact([[0.5, 0.5]]))).probs
    with pytest.raises(LawError, match=r"target.*sum to 1 \+0.1"):
        MembershipTransport([0.6, 0.5], [0.5, 0.5], IID(2))
    with pytest.raises(LawError, match=r"draft.*token 1 is nan"):
        MembershipTransport([0.5, 0.5], [0.5, np.nan], IID(2))


def test_a_problem_that_would_not_fit_is_refused_before_it_is_built():
    law = np.full(50_000, 1 / 50_000)
    problem = MembershipTransport(law, law, IID(3))
    with pytest.raises(TooLargeError, match="optimal_acceptance") as refused:
        _ = problem.members
    assert refused.value.size == problem.size.edges > refused.value.limit
    assert "optimal_acceptance" in refused.value.instead
    with pytest.raises(TooLargeError):
        MembershipTransport(np.full(21, 1 / 21), np.full(21, 1 / 21), IID(2)).is_perfect()
