"""The linear program written down in cvxpy, as a readable statement and a second opinion."""

from __future__ import annotations

import warnings
from typing import Any

import cvxpy as cp

from ot_spec.errors import SolverError
from ot_spec.plan import TransportPlan
from ot_spec.problem import MembershipTransport
from solvers.exact.certificate import certified
from solvers.exact.linear_program import FEASIBILITY, SCALE, TOLERANCE, incidence
from solvers.exact.quiet import output_to_stderr

# An interior point stops at its tolerance, which is relative to the masses it is given.
_CLARABEL_SCALE = 2.0**10
_CLARABEL_TOLERANCE = 1e-9


def statement(problem: MembershipTransport, scale: float = 1.0) -> tuple[cp.Problem, cp.Variable, Any]:
    """The problem, its variable and its token constraints; all masses multiplied by `scale`.

    joint(S, y) = P(X = S, Y = y) where y in S, the only pairs that count (SpecTr 2023, section 4): what is
    refused fills up the marginals and costs nothing more.
    """
    to_set, to_token = incidence(problem)
    joint = cp.Variable(problem.edge_set.size, nonneg=True, name="joint")
    candidates: Any = to_set @ joint <= scale * problem.probs
    output: Any = to_token @ joint <= scale * problem.target
    return cp.Problem(cp.Maximize(cp.sum(joint)), [candidates, output]), joint, output


def solve_highs(problem: MembershipTransport) -> TransportPlan:
    """A vertex, by the simplex method."""
    options = {"primal_feasibility_tolerance": FEASIBILITY, "dual_feasibility_tolerance": FEASIBILITY}
    return _solve(problem, "HIGHS", SCALE, TOLERANCE, options)


def solve_clarabel(problem: MembershipTransport) -> TransportPlan:
    """An interior point, to 1e-9."""
    options = {"tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10}
    return _solve(problem, "CLARABEL", _CLARABEL_SCALE, _CLARABEL_TOLERANCE, options)


def _solve(
    problem: MembershipTransport, solver: str, scale: float, tolerance: float, options: dict[str, float]
) -> TransportPlan:
    program, joint, output = statement(problem, scale)
    with warnings.catch_warnings(), output_to_stderr():
        warnings.simplefilter("ignore")  # what cvxpy warns of is a status here
        try:
            program.solve(solver=solver, **options)
        except cp.SolverError as reason:
            raise SolverError(f"cvxpy: {solver} failed: {reason}", status="solver_error") from reason
    if program.status != cp.OPTIMAL or joint.value is None:
        raise SolverError(f"cvxpy: {solver} stopped with status {program.status}", status=program.status)
    plan = TransportPlan.repaired(problem, joint.value / scale, "cvxpy", backend=solver)
    return certified(plan, output.dual_value, tolerance)
