"""The linear program on membership edges, by HiGHS through scipy."""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from ot_spec.errors import SolverError
from ot_spec.plan import TransportPlan
from ot_spec.problem import MembershipTransport
from solvers.exact.certificate import certified

# HiGHS tolerances are absolute and end at 1e-10. Masses are handed over multiplied by a power of two, exactly,
# so that what it may overlook is 1e-16 of mass.
FEASIBILITY = 1e-10
SCALE = 2.0**20
TOLERANCE = 1e-10


def incidence(problem: MembershipTransport) -> tuple[sparse.csr_array, sparse.csr_array]:
    """0/1 matrices (N, E) and (V, E): at which set and at which token each membership edge ends."""
    edges = np.arange(problem.edge_set.size)
    ones = np.ones(edges.size)
    return (
        sparse.csr_array((ones, (problem.edge_set, edges)), shape=(problem.probs.size, edges.size)),
        sparse.csr_array((ones, (problem.edge_token, edges)), shape=(problem.vocab, edges.size)),
    )


def solve(problem: MembershipTransport) -> TransportPlan:
    """max sum_e flow_e, row sums <= D, column sums <= target, flow >= 0, one variable per membership edge.

    The matrix is totally unimodular: no penalty for the other pairs is needed, and the token duals of a
    vertex are the indicator of an optimal cut. Raises SolverError with HiGHS's status unless it is optimal.
    """
    rows, columns = incidence(problem)
    result = linprog(
        -np.ones(problem.edge_set.size),
        A_ub=sparse.vstack([rows, columns], format="csr"),
        b_ub=np.concatenate([problem.probs, problem.target]) * SCALE,
        bounds=(0, None),
        method="highs",
        options={"primal_feasibility_tolerance": FEASIBILITY, "dual_feasibility_tolerance": FEASIBILITY},
    )
    if result.status != 0 or result.x is None:
        message = f"lp: HiGHS stopped with status {result.status}: {result.message}"
        raise SolverError(message, status=result.status)
    info = {"backend": "highs", "iterations": int(result.nit)}
    plan = TransportPlan.repaired(problem, result.x / SCALE, "lp", **info)
    return certified(plan, -result.ineqlin.marginals[problem.probs.size :], TOLERANCE)
