"""The optimum as a fraction: a basis from HiGHS, its flow solved and proved in rational arithmetic."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import highspy
import numpy as np
from flint import fmpq, fmpq_mat
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from ot_spec.arrays import as_fraction
from ot_spec.errors import SolverError
from ot_spec.plan import TransportPlan
from ot_spec.problem import MembershipTransport
from ot_spec.selector import as_float
from solvers.exact.arithmetic import in_fractions
from solvers.exact.certificate import certified
from solvers.exact.linear_program import FEASIBILITY, SCALE, incidence
from solvers.exact.max_flow import integer_flow, like_masses
from solvers.exact.quiet import output_to_stderr


class Basis(NamedTuple):
    """edges (E,): which flows are basic. tight (N + V,): the constraints, of sets then of tokens, that hold with
    equality. duals (V,): of the token constraints."""

    edges: np.ndarray
    tight: np.ndarray
    duals: np.ndarray


def solve(problem: MembershipTransport) -> TransportPlan:
    """The exact optimum of the problem; floats are taken at their exact value and normalised exactly.

    HiGHS names the basis; its flow is solved in `fmpq`, then sign, marginals, dual feasibility on all pairs
    and equality of the two objectives are checked as rationals. A basis that is optimal in floats only is
    given up for an exact maximum flow, checked in the same way; ``info["basis"]`` says which it was and why.
    Nothing unproved is returned: SolverError instead.

    >>> from ot_spec import IID
    >>> plan = solve(MembershipTransport(["1/4", "3/4"], ["1/2", "1/2"], IID(2)))
    >>> plan.acceptance, plan.info["cut"].value
    (Fraction(1, 1), Fraction(1, 1))
    """
    problem = in_fractions(problem)
    basis = float_basis(problem)
    try:
        flow = like_masses(problem, basic_flow(problem, basis))
        plan = TransportPlan(problem, flow, "rational", {"backend": "highspy", "basis": "optimal"})
        return certified(plan, basis.duals, 0)
    except SolverError as reason:
        flow, reached = integer_flow(problem)
        info = {"backend": "highspy", "basis": f"given up for an exact maximum flow: {reason}"}
        return certified(TransportPlan(problem, like_masses(problem, flow), "rational", info), reached, 0)


def float_basis(problem: MembershipTransport) -> Basis:
    """An optimal basis of the rounded problem. Raises SolverError with HiGHS's status unless it is optimal."""
    matrix: Any = sparse.csc_array(sparse.vstack(incidence(problem)))
    program = highspy.HighsLp()
    program.num_row_, program.num_col_ = matrix.shape
    program.sense_ = highspy.ObjSense.kMaximize
    program.col_cost_ = np.ones(matrix.shape[1])
    program.col_lower_ = np.zeros(matrix.shape[1])
    program.col_upper_ = np.full(matrix.shape[1], highspy.kHighsInf)
    program.row_lower_ = np.full(matrix.shape[0], -highspy.kHighsInf)
    program.row_upper_ = as_float(np.concatenate([problem.probs, problem.target])) * SCALE
    program.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    program.a_matrix_.start_, program.a_matrix_.index_ = matrix.indptr, matrix.indices
    program.a_matrix_.value_ = matrix.data
    with output_to_stderr():
        highs = highspy.Highs()
        highs.setOptionValue("output_flag", False)
        for option in ("primal_feasibility_tolerance", "dual_feasibility_tolerance"):
            highs.setOptionValue(option, FEASIBILITY)
        highs.passModel(program)
        highs.run()
    status = highs.getModelStatus()
    if status != highspy.HighsModelStatus.kOptimal:
        message = f"rational: HiGHS stopped with status {highs.modelStatusToString(status)}"
        raise SolverError(message, status=status.name)
    found, duals = highs.getBasis(), np.asarray(highs.getSolution().row_dual)
    return Basis(_basic(found.col_status), ~_basic(found.row_status), duals[problem.probs.size :])


def _basic(statuses: Any) -> np.ndarray:
    return np.array([status == highspy.HighsBasisStatus.kBasic for status in statuses], dtype=bool)


def basic_flow(problem: MembershipTransport, basis: Basis) -> list[Fraction]:
    """The one flow (E,) that is zero off the basis and meets its tight constraints with equality.

    A tight set with a single basic edge sends all it has along it. What is left, at most three edges a token, is one
    linear system for each connected component. Raises SolverError if the basis does not determine a flow.
    """
    sets = problem.probs.size
    left = [_as_fmpq(mass) for mass in (*problem.probs, *problem.target)]
    flow = [Fraction(0)] * problem.edge_set.size
    basic = np.flatnonzero(basis.edges)
    degree = np.bincount(problem.edge_set[basic], minlength=sets)
    single = basis.tight[problem.edge_set[basic]] & (degree[problem.edge_set[basic]] == 1)
    for edge in basic[single]:
        mass = left[problem.edge_set[edge]]
        flow[edge] = as_fraction(mass)
        left[sets + problem.edge_token[edge]] -= mass
    rows = np.flatnonzero(basis.tight & np.concatenate([degree != 1, np.ones(problem.vocab, dtype=bool)]))
    core = basic[~single]
    both: Any = sparse.csr_array(sparse.vstack(incidence(problem)))
    system = both[rows][:, core]
    for some, columns in _components(system):
        block = system[some][:, columns].toarray().astype(int)
        values = _solved(block, [left[i] for i in rows[some]])
        for edge, value in zip(core[columns], values, strict=True):
            flow[edge] = as_fraction(value)
    return flow


def _components(system: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows and columns of each connected component of the bipartite graph of a matrix."""
    height = system.shape[0]
    graph = sparse.block_array([[None, system], [system.T, None]], format="csr")
    count, label = connected_components(graph, directed=False)
    return [(np.flatnonzero(label[:height] == i), np.flatnonzero(label[height:] == i)) for i in range(count)]


def _solved(block: np.ndarray, right: list[fmpq]) -> list[fmpq]:
    rows, columns = block.shape
    if rows != columns:
        message = f"rational: a basis block of {rows} rows and {columns} columns is not square"
        raise SolverError(message, status="singular basis")
    try:
        matrix = fmpq_mat(rows, columns, block.reshape(-1).tolist())
        return matrix.solve(fmpq_mat(rows, 1, right)).entries()
    except ZeroDivisionError:
        raise SolverError(f"rational: a basis block of {rows} rows is singular", status="singular basis") from None


def _as_fmpq(value: Any) -> fmpq:
    exact = as_fraction(value)
    return fmpq(exact.numerator, exact.denominator)
