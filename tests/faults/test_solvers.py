"""Plans, duals and statuses of solvers as kinds: F105, F107, F108, F110, F111. Single solvers: tests/exact."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import strategies as st

from ot_spec import IID, MembershipTransport, TransportPlan, as_exact, fractions
from ot_spec.errors import LawError, SolverError
from proofs_check.strategies import Pair, pairs
from solvers import optimal_acceptance, optimal_cut
from solvers.exact import linear_program
from solvers.exact.solve import METHODS, solve
from tests.faults import mutants as wrong
from tests.faults.kind import Kind, mutants, ours, recorded, refused

SOLVERS = {
    f"{method}-{backend}": partial(solve, method=method, backend=backend)
    for method, backends in METHODS.items()
    for backend in backends
}


class Stated(NamedTuple):
    """A problem in floats, and its optimum by subset selection on the exact values."""

    problem: MembershipTransport

    @property
    def optimum(self) -> float:
        target, draft = as_exact(self.problem.target), as_exact(self.problem.draft)
        return float(optimal_acceptance(target, draft, self.problem.law))


def stated(pair: Pair, dtype: str = "float64") -> Stated:
    return Stated(MembershipTransport(pair.target.astype(dtype), pair.draft.astype(float), IID(pair.k)))


def read(case: dict) -> Stated:
    return stated(Pair(fractions(case["target"]), fractions(case["draft"]), case["k"]), case.get("dtype", "float64"))


def check_coupling(joint: np.ndarray, problem: MembershipTransport) -> None:
    """A coupling of candidates and output: no negative entry, both marginals to 1e-12, and fit to be drawn from."""
    assert joint.min() >= 0, f"entry {joint.min()}"
    assert abs(joint.sum(axis=1) - problem.probs).max() < 1e-12
    assert abs(joint.sum(axis=0) - problem.target).max() < 1e-12
    np.random.default_rng(0).multinomial(1, joint / joint.sum(axis=1, keepdims=True))


def check_plan(solver, case: Stated) -> None:
    """A coupling, optimal by the best cut and by subset selection on fractions."""
    plan = solver(case.problem)
    check_coupling(plan.matrix().astype(float), case.problem)
    tolerance = 1e-9 if plan.info.get("backend") == "CLARABEL" else 1e-12
    assert abs(float(plan.acceptance) - case.optimum) < tolerance, (float(plan.acceptance), case.optimum)
    cut = optimal_cut(case.problem.target, case.problem.draft, case.problem.law)
    assert abs(float(plan.gap(cut))) < tolerance


def check_duals(duals, case: Stated) -> None:
    """Feasible on every pair, tokens without mass included; the objective is the optimum."""
    problem = case.problem
    cut = optimal_cut(problem.target, problem.draft, problem.law)
    sets, tokens = duals(cut)
    member = (problem.members[:, :, None] == np.arange(problem.vocab)).any(axis=1)
    assert (sets[:, None] + tokens >= member).all(), "a dual constraint is violated"
    assert problem.probs @ sets + problem.target @ tokens == pytest.approx(case.optimum, abs=1e-12)


class Raw(NamedTuple):
    """A problem and the noise on a solver's flow, cyclic over the edges."""

    case: Stated
    noise: list[float]


def check_repaired(repair, raw: Raw) -> None:
    problem = raw.case.problem
    best = solve(problem, "max_flow").flow if problem.edge_set.size else np.zeros(0)
    flow = best + np.resize(raw.noise, best.size)
    joint = repair(problem, flow)
    check_coupling(joint, problem)
    kept = joint[problem.edge_set, problem.edge_token].sum()
    assert kept >= raw.case.optimum - 1e-8, f"{kept} of {raw.case.optimum} left"


def repaired(problem: MembershipTransport, flow: np.ndarray) -> np.ndarray:
    return TransportPlan.repaired(problem, flow, "raw").matrix()


def check_status(solver, case: Stated) -> None:
    """Whatever a solver reports that is not an optimum comes out as an error that carries it."""
    if not case.problem.edge_set.size:
        return
    real = linear_program.linprog
    for status in (1, 2, 3, 4):

        def stopped(*args, status=status, **options):
            result = real(*args, **options)
            result.status, result.message, result.x = status, "stopped", None
            return result

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(linear_program, "linprog", stopped)
            try:
                plan = solver(case.problem)
            except SolverError as reason:
                assert reason.status == status and str(status) in str(reason)
                continue
        raise AssertionError(f"status {status}, but a plan of acceptance {plan.acceptance} came back")


def status_ignored(problem: MembershipTransport) -> TransportPlan:
    try:
        return solve(problem, "lp")
    except SolverError:
        return wrong.all_zero_plan(problem)


STATED = st.builds(stated, pairs())
RAW = st.builds(
    Raw, STATED, st.lists(st.sampled_from([-3e-20, -1e-10, -1e-12, 0.0, 1e-12, 1e-10]), min_size=2, max_size=5)
)
KINDS = [
    Kind(
        "F105",
        check_plan,
        read,
        SOLVERS,
        {"all_zero_plan": wrong.all_zero_plan},
        st.builds(stated, pairs(), st.just("float32")),
        examples=8,
    ),
    Kind("F107", check_plan, read, SOLVERS, {"penalised": wrong.penalised}, STATED, examples=8),
    Kind(
        "F108",
        check_duals,
        read,
        {"cut": lambda cut: cut.duals()},
        {"zero_where_no_mass": wrong.zero_where_no_mass},
        STATED,
    ),
    Kind(
        "F110",
        check_repaired,
        lambda case: Raw(read(case), case["noise"]),
        {"repaired": repaired},
        {"unrepaired": wrong.unrepaired},
        RAW,
    ),
    Kind(
        "F111", check_status, read, {"lp": SOLVERS["lp-highs"]}, {"status_ignored": status_ignored}, STATED, examples=5
    ),
]


@ours(KINDS)
def test_ours(kind, subject):
    kind.holds(subject)


@mutants(KINDS)
def test_mutant_is_caught(kind, mutant):
    kind.caught(mutant)


def test_F105_sums_that_are_off_are_refused():
    (case,) = recorded("F105")
    target = np.array(case["target"], dtype=case["dtype"])
    for factor in (0.0, 0.999, 1.01):
        with refused(LawError, "target", "sum to 1"):
            MembershipTransport(target * np.float32(factor), target, IID(2))
