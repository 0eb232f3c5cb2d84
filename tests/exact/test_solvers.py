"""Every exact solver against every other, its certificate, and solvers that answer wrongly."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from types import SimpleNamespace

import cvxpy as cp
import highspy
import numpy as np
import pytest
from flint import fmpq
from hypothesis import given
from hypothesis import strategies as st

from ot_spec import (
    IID,
    Cut,
    DraftLaw,
    Fixed,
    Independent,
    MembershipTransport,
    Plan,
    TopThenSample,
    TransportPlan,
    WithoutReplacement,
    as_exact,
    fractions,
    from_probs,
)
from ot_spec.errors import LawError, OptionError, SolverError, TooLargeError, UnsupportedLawError
from solvers import optimal_acceptance
from solvers.exact import linear_program, max_flow, rational
from solvers.exact.arithmetic import in_floats
from solvers.exact.certificate import best_cut, certified, dual_slack
from solvers.exact.solve import METHODS, solve

BACKENDS = [(method, backend) for method, backends in METHODS.items() for backend in backends]
FLOATS = [pair for pair in BACKENDS if pair[0] != "rational"]
EXACT = [("rational", "highspy"), ("max_flow", "networkx"), ("lifting", "selector")]
every = pytest.mark.parametrize(("method", "backend"), BACKENDS)


def covering(pairs: list[tuple[str, str]], law: DraftLaw) -> list[tuple[str, str]]:
    return [(method, backend) for method, backend in pairs if METHODS[method][backend].covers(law)]


def tolerance(backend: str | None) -> float:
    return 1e-9 if backend == "CLARABEL" else 1e-12


@st.composite
def problems(draw) -> MembershipTransport:
    """Exact problems from small integer weights: zeros, ties, one-hot, equal and disjoint laws among them."""
    vocab, k = draw(st.integers(4, 6)), draw(st.integers(1, 4))
    weights = st.lists(st.integers(0, 6), min_size=vocab, max_size=vocab).filter(any)
    target = draw(weights)
    draft = draw(
        st.one_of(
            weights,
            st.just(target),
            st.just([w == 0 for w in target]).filter(any),
            st.integers(0, vocab - 1).map(lambda y: [y == i for i in range(vocab)]),
        )
    )
    law = draw(st.sampled_from(["iid", "without_replacement", "top_then_sample", "fixed", "independent"]))
    if law == "fixed":
        made = Fixed(draw(st.lists(st.integers(0, vocab - 1), min_size=k, max_size=k)))
    elif law == "independent":
        drafts = [draft, *(draw(weights) for _ in range(min(k, 3) - 1))]
        made = Independent(np.stack([normalised(row) for row in drafts]))
    else:
        made = next(kind for kind in (IID, WithoutReplacement, TopThenSample) if kind.name == law)(k)
    return MembershipTransport(normalised(target), normalised(draft), made)


def normalised(weights) -> np.ndarray:
    return fractions([Fraction(int(w), int(sum(weights))) for w in weights])


def example(law=None) -> MembershipTransport:
    return MembershipTransport([0.3, 0.4, 0.3, 0.0], [0.5, 0.2, 0.1, 0.2], law or IID(2))


def assert_complementary(plan: Plan, slack: float) -> None:
    """Mass only where the certificate is tight, and nothing left where it has a price."""
    problem, (sets, tokens) = plan.problem, plan.info["cut"].duals()
    loose = sets[problem.edge_set] + tokens[problem.edge_token] > 1
    assert abs(plan.flow[loose]).sum() <= slack
    rows, columns = problem.probs.copy(), problem.target.copy()
    np.subtract.at(rows, problem.edge_set, plan.flow)
    np.subtract.at(columns, problem.edge_token, plan.flow)
    assert abs(rows[sets > 0]).sum() <= slack
    assert abs(columns[tokens > 0]).sum() <= slack


# --- agreement ---------------------------------------------------------------------------------------------


@given(problems())
def test_exact_solvers_and_subset_selection_agree_as_fractions(problem):
    values = [solve(problem, method, backend) for method, backend in covering(EXACT, problem.law)]
    for plan in values:
        cut = plan.info["cut"]
        assert plan.acceptance == cut.value == cut.check()
        assert (plan.row_marginal() == problem.probs).all()
        assert (plan.column_marginal() == problem.target).all()
        assert dual_slack(problem, *cut.duals()) >= 0
        assert_complementary(plan, 0)
    assert len({plan.acceptance for plan in values}) == 1
    if problem.law.prefix_order(problem.target, problem.draft) is not None:
        assert optimal_acceptance(problem.target, problem.draft, problem.law) == values[0].acceptance
    assert problem.is_perfect() == (values[0].acceptance == 1)
    assert values[0].acceptance <= problem.marginal_bound()


@given(problems())
def test_float_solvers_agree_with_the_fraction(problem):
    exact = float(solve(problem, "rational").acceptance)
    rounded = in_floats(problem)
    for method, backend in covering(FLOATS, problem.law):
        plan = solve(rounded, method, backend)
        cut, close = plan.info["cut"], tolerance(backend)
        assert plan.acceptance == pytest.approx(exact, rel=0, abs=close)
        assert cut.value == pytest.approx(exact, rel=0, abs=1e-12)
        assert abs(plan.gap(cut)) <= close
        assert dual_slack(rounded, *cut.duals()) >= 0
        np.testing.assert_allclose(plan.row_marginal(), rounded.probs, rtol=0, atol=1e-12)
        np.testing.assert_allclose(plan.column_marginal(), rounded.target, rtol=0, atol=1e-12)
        assert plan.flow.min(initial=0) >= 0
    value = optimal_acceptance(rounded.target, rounded.draft, rounded.law)
    assert float(value) == pytest.approx(exact, rel=0, abs=1e-12)


@given(problems(), st.data())
def test_weak_duality_holds_for_every_token_set(problem, data):
    tokens = data.draw(st.lists(st.integers(0, problem.vocab - 1), unique=True))
    cut = Cut.of(problem, tokens)
    assert cut.value >= solve(problem, "max_flow").acceptance
    sets, prices = cut.duals()
    assert dual_slack(problem, sets, prices) >= 0
    assert (problem.probs * sets).sum() + (problem.target * prices).sum() == cut.value


@given(problems())
def test_the_best_cut_is_found_from_duals_in_between(problem):
    plan = solve(problem, "max_flow")
    prices = plan.info["cut"].duals()[1]
    noisy = 0.8 * prices + 0.1 + 0.05 * np.cos(np.arange(problem.vocab))
    assert best_cut(problem, noisy).value == plan.acceptance


def test_the_best_cut_tells_values_far_below_rounding_apart():
    problem = MembershipTransport(np.array([1, 1e-17, 1e-19]), np.array([1e-20, 1, 1e-17]), IID(1))
    cut = best_cut(problem, [0, 1, 1])
    assert cut.tokens.tolist() == [1, 2]
    assert cut.value == pytest.approx(1e-17 + 1e-19 + 1e-20, rel=1e-12)


def test_dual_slack_looks_at_pairs_outside_the_membership_too():
    problem = MembershipTransport([0.5, 0.5], [0.5, 0.5], IID(1))  # sets {0} and {1}
    assert dual_slack(problem, np.array([0.5, 0.5]), np.array([0.5, 0.5])) == 0
    assert dual_slack(problem, np.array([1.5, 0.5]), np.array([-0.5, 0.5])) == 0
    assert dual_slack(problem, np.array([2.0, 0.0]), np.array([-1.0, 1.0])) == -1  # set {1}, token 0
    assert dual_slack(problem, np.array([0.5, 0.5]), np.array([0.5, 0.25])) == -0.25


@every
@pytest.mark.parametrize(
    ("target", "draft", "law", "value"),
    [
        ([1.0], [1.0], IID(3), 1.0),
        ([1.0], [1.0], WithoutReplacement(2), 1.0),
        ([0, 1, 0, 0], [0, 1, 0, 0], IID(2), 1.0),
        ([0, 1, 0, 0], [1, 0, 0, 0], IID(2), 0.0),
        ([0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5], TopThenSample(3), 0.0),
        ([0.25] * 4, [0.25] * 4, IID(4), 1.0),
        ([0.25] * 4, [0.5, 0.5, 0, 0], WithoutReplacement(4), 0.5),
        ([0.5, 0.25, 0.25, 0], [0, 0, 0, 1], Fixed([-1, -1]), 0.0),
        ([1 - 1e-300, 1e-300, 0, 0], [0, 0.5, 0.5, 0], IID(2), 1e-300),
        ([0.5, 0.5, 1e-300, 0], [1e-300, 0, 0.5, 0.5], IID(2), 1e-300 + 1e-300),
        ([1.0 - 2**-40, 2.0**-40, 0, 0], [2.0**-40, 1.0 - 2**-40, 0, 0], IID(1), 2.0**-39),
    ],
)
def test_borders_one_hot_disjoint_short_support_and_tiny_masses(method, backend, target, draft, law, value):
    problem = MembershipTransport(np.array(target, float), np.array(draft, float), law)
    if not covering([(method, backend)], law):
        with pytest.raises(UnsupportedLawError, match=law.name):
            solve(problem, method, backend)
        return
    plan = solve(problem, method, backend)
    assert float(plan.acceptance) == pytest.approx(value, rel=0, abs=tolerance(backend))
    if backend != "CLARABEL" and value:
        # a tiny optimum keeps its digits
        assert float(plan.info["cut"].value) == pytest.approx(value, rel=1e-12)


def test_masses_over_sixteen_decades_do_not_hide_from_the_tolerances():
    rng = np.random.default_rng(7)
    for _ in range(30):
        target, draft = rng.dirichlet(np.ones(5), size=2) * 10.0 ** rng.uniform(-16, 0, size=(2, 5))
        problem = MembershipTransport(target / target.sum(), draft / draft.sum(), IID(3))
        exact = float(solve(problem, "rational").acceptance)
        for method, backend in FLOATS:
            found = solve(problem, method, backend).acceptance
            assert found == pytest.approx(exact, rel=0, abs=tolerance(backend)), (method, backend)


# --- arithmetic --------------------------------------------------------------------------------------------


def test_rational_takes_floats_at_their_exact_value():
    problem = example()
    plan = solve(problem, "rational")
    assert plan.problem.exact
    assert (plan.problem.target == as_exact(problem.target)).all()
    assert isinstance(plan.acceptance, Fraction)
    assert plan.info["basis"] == "optimal"
    assert float(plan.acceptance) == pytest.approx(solve(problem).acceptance, rel=0, abs=1e-15)


@pytest.mark.parametrize(
    ("method", "backend", "law"),
    [
        (*pair, law)
        for law in (IID(3), WithoutReplacement(2), TopThenSample(2), Fixed([2, 0]))
        for pair in covering(EXACT, law)
    ],
)
def test_flint_rationals_stay_flint_rationals(method, backend, law):
    target, draft = fractions(["1/7", "2/7", "4/7", "0"]), fractions(["1/2", "1/3", "0", "1/6"])

    def flint(row):
        return np.array([fmpq(m.numerator, m.denominator) for m in row], dtype=object)

    plan = solve(MembershipTransport(flint(target), flint(draft), law), method, backend)
    assert isinstance(plan.acceptance, fmpq)
    expected = solve(MembershipTransport(target, draft, law), method, backend).acceptance
    assert plan.acceptance == fmpq(expected.numerator, expected.denominator)


@pytest.mark.parametrize(("method", "backend"), [pair for pair in FLOATS if pair not in EXACT])
def test_float_solvers_round_an_exact_problem_and_say_so(method, backend):
    drafts = fractions([["1/2", "1/2", "0"], ["0", "1/3", "2/3"]])
    problem = MembershipTransport(["1/3", "1/3", "1/3"], None, Independent(drafts))
    plan = solve(problem, method, backend)
    assert not plan.problem.exact
    exact = solve(problem, "rational").acceptance
    assert plan.acceptance == pytest.approx(float(exact), rel=0, abs=tolerance(backend))


def test_the_flint_system_solves_a_basis_of_several_components():
    rng = np.random.default_rng(3)
    for _ in range(10):
        target, draft = as_exact(rng.dirichlet(np.full(9, 0.6), size=2))
        problem = MembershipTransport(target, draft, IID(3))
        basis = rational.float_basis(problem)
        flow = rational.basic_flow(problem, basis)
        assert min(flow) >= 0
        assert sum(flow) == solve(problem, "max_flow").acceptance
        assert all(flow[i] == 0 for i in np.flatnonzero(~basis.edges))


# --- answers that are none ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("basis", "why"),
    [
        (lambda edges, rows: (np.zeros(edges, bool), np.zeros(rows, bool)), "differ by"),
        (lambda edges, rows: (np.ones(edges, bool), np.zeros(rows, bool)), "not square"),
        (lambda edges, rows: (np.ones(edges, bool), np.arange(rows) < edges), "singular"),
    ],
    ids=["all slack", "no constraint tight", "too many edges"],
)
def test_a_basis_that_is_not_optimal_is_given_up_for_an_exact_flow(monkeypatch, basis, why):
    problem = MembershipTransport(["1/3", "1/3", "1/3"], ["1/2", "1/4", "1/4"], IID(2))
    expected = solve(problem, "rational").acceptance
    edges, rows = problem.edge_set.size, problem.probs.size + problem.vocab
    basic, tight = basis(edges, rows)
    monkeypatch.setattr(rational, "float_basis", lambda p: rational.Basis(basic, tight, np.zeros(p.vocab)))
    plan = solve(problem, "rational")
    assert plan.acceptance == expected == plan.info["cut"].value
    assert plan.info["basis"].startswith("given up")
    assert why in plan.info["basis"]


def test_an_exact_answer_without_proof_is_not_returned(monkeypatch):
    problem = MembershipTransport(["1/3", "2/3"], ["1/2", "1/2"], IID(2))
    no_flow = [Fraction(0)] * problem.edge_set.size
    monkeypatch.setattr(rational, "integer_flow", lambda p: (no_flow, np.zeros(p.vocab)))
    monkeypatch.setattr(rational, "basic_flow", lambda p, basis: no_flow)
    with pytest.raises(SolverError, match="differ by"):
        solve(problem, "rational")
    monkeypatch.setattr(max_flow, "integer_flow", lambda p: (no_flow, np.zeros(p.vocab)))
    with pytest.raises(SolverError, match="differ by"):
        solve(problem, "max_flow")


def stubbed_linprog(monkeypatch, change, status=0):
    """scipy's answer, tampered with."""
    real = linear_program.linprog

    def tampered(*args, **options):
        result = real(*args, **options)
        result.x, result.status = change(result.x), status
        return result

    monkeypatch.setattr(linear_program, "linprog", tampered)


def test_f105_float32_marginals_are_normalised_in_float64_and_a_false_plan_is_refused(monkeypatch):
    target, draft = np.full(5, np.float32(1) / np.float32(5)), np.full(5, 0.2)
    assert float(target.astype(np.float64).sum()) != 1
    for method, backend in BACKENDS:
        plan = solve(MembershipTransport(target, draft, IID(2)), method, backend)
        assert float(plan.acceptance) == pytest.approx(1, rel=0, abs=tolerance(backend))
        np.testing.assert_allclose(plan.column_marginal().astype(float), 0.2, rtol=0, atol=1e-12)
    with pytest.raises(LawError, match="sum to"):
        MembershipTransport(target * np.float32(0.999), draft, IID(2))
    stubbed_linprog(monkeypatch, np.zeros_like)  # "optimal", with nothing in it
    with pytest.raises(SolverError, match="differ by"):
        solve(example())


def assert_costs_are_plain(cost, matrix) -> None:
    values = np.unique(np.abs(np.concatenate([np.ravel(cost), np.ravel(matrix.toarray())])))
    assert set(values.tolist()) <= {0.0, 1.0}


def test_f107_pairs_off_the_membership_have_no_variable_instead_of_a_large_cost(monkeypatch):
    seen = []
    real = linear_program.linprog
    monkeypatch.setattr(linear_program, "linprog", lambda c, **o: seen.append((c, o["A_ub"])) or real(c, **o))
    plan = solve(example())
    (cost, matrix), *_ = seen
    assert cost.size == plan.problem.edge_set.size
    assert_costs_are_plain(cost, matrix)
    for method, backend in FLOATS:
        assert_complementary(solve(example(), method, backend), tolerance(backend))
    penalty = np.where(np.arange(cost.size) % 2, cost, 1e32)
    with pytest.raises(AssertionError):
        assert_costs_are_plain(penalty, matrix)
    # what such a cost does: the linear program ends off the optimum, and the certificate tells
    monkeypatch.setattr(linear_program, "linprog", lambda c, **o: real(penalty, **o))
    with pytest.raises(SolverError):
        solve(example())


@every
def test_f108_duals_cover_the_tokens_that_have_no_mass(method, backend):
    problem = MembershipTransport([0.5, 0.5, 0.0], [0.25, 0.25, 0.5], IID(2))
    plan = solve(problem, method, backend)
    sets, tokens = plan.info["cut"].duals()
    assert tokens[2] == 1
    assert dual_slack(plan.problem, sets, tokens) >= 0
    dual_value = (plan.problem.probs * sets).sum() + (plan.problem.target * tokens).sum()
    assert float(dual_value) == pytest.approx(float(plan.acceptance), rel=0, abs=tolerance(backend))
    dropped = tokens.copy()
    dropped[2] = 0  # a zero for the token that was left out
    assert dual_slack(plan.problem, sets, dropped) < 0


def test_f110_rounding_debris_is_repaired_and_more_than_that_refused(monkeypatch):
    problem, clean = example(), solve(example())

    def debris(flow):
        flow = flow + linear_program.SCALE * 1e-15
        flow[np.argmin(flow)] = -3e-20
        return flow

    with monkeypatch.context() as patch:
        stubbed_linprog(patch, debris)
        plan = solve(problem)
    assert plan.flow.min() >= 0
    matrix = plan.matrix()
    np.testing.assert_allclose(matrix.sum(axis=1), problem.probs, rtol=0, atol=1e-12)
    np.testing.assert_allclose(matrix.sum(axis=0), problem.target, rtol=0, atol=1e-12)
    assert plan.acceptance == pytest.approx(clean.acceptance, rel=0, abs=1e-12)
    np.random.default_rng(0).multinomial(100, matrix.reshape(-1) / matrix.sum())
    for change, why in (
        (lambda x: np.where(np.arange(x.size) == 0, np.nan, x), "returned nan"),
        (lambda x: x + linear_program.SCALE * 1e-3, "would move"),
        (lambda x: x - linear_program.SCALE * 1e-3, "would move"),
        (lambda x: x * 0.999, "differ by"),
    ):
        with monkeypatch.context() as patch:
            stubbed_linprog(patch, change)
            with pytest.raises(SolverError, match=why):
                solve(problem)


def test_f110_a_raw_answer_would_not_have_passed():
    problem = example()
    raw = np.array(solve(problem).flow)
    raw[np.argmin(raw)] = -1e-10
    with pytest.raises(SolverError, match="infeasible"):
        TransportPlan(problem, raw, "raw")
    assert TransportPlan.repaired(problem, raw, "raw").flow.min() >= 0


@pytest.mark.parametrize("status", [1, 2, 3, 4])
def test_f111_a_status_other_than_optimal_is_an_error_with_that_status(monkeypatch, status):
    stubbed_linprog(monkeypatch, lambda x: x, status)
    with pytest.raises(SolverError, match=f"status {status}") as error:
        solve(example())
    assert error.value.status == status


@pytest.mark.parametrize("backend", ["HIGHS", "CLARABEL"])
@pytest.mark.parametrize("status", ["unbounded", "infeasible", "optimal_inaccurate"])
def test_f111_a_modelled_statement_that_did_not_end_well_is_an_error(monkeypatch, backend, status):
    monkeypatch.setattr(cp.Problem, "status", property(lambda self: status))
    with pytest.raises(SolverError, match=status) as error:
        solve(example(), "cvxpy", backend)
    assert error.value.status == status


def test_f111_a_solver_that_breaks_down_is_an_error(monkeypatch):
    def broken(self, **options):
        raise cp.SolverError("numerical trouble")

    monkeypatch.setattr(cp.Problem, "solve", broken)
    with pytest.raises(SolverError, match="numerical trouble"):
        solve(example(), "cvxpy")


def test_f111_the_basis_of_an_unbounded_program_is_not_used(monkeypatch):
    unbounded = highspy.HighsModelStatus.kUnbounded
    monkeypatch.setattr(highspy.Highs, "getModelStatus", lambda self: unbounded)
    with pytest.raises(SolverError, match="Unbounded") as error:
        solve(example(), "rational")
    assert error.value.status == "kUnbounded"


def test_duals_that_prove_nothing_are_refused():
    plan = solve(example())
    prices = plan.info["cut"].duals()[1]
    assert 0 < prices.sum() < plan.problem.vocab
    with pytest.raises(SolverError, match=r"cut value .* differ by") as error:
        certified(plan, -prices, 1e-10)
    assert error.value.status == "not optimal"


# --- the door ----------------------------------------------------------------------------------------------


def test_methods_and_backends_that_do_not_exist_are_named_with_those_that_do():
    with pytest.raises(OptionError, match=r"'simplex'; there are lp, cvxpy, rational, max_flow, lifting"):
        solve(example(), "simplex")
    with pytest.raises(OptionError, match=r"'cvxpy' has no backend 'SCS'; there are HIGHS, CLARABEL"):
        solve(example(), "cvxpy", "SCS")
    with pytest.raises(OptionError, match="at least 1 edge, got 0"):
        solve(example(), limit=0)


@pytest.mark.parametrize(("method", "backend"), [pair for pair in BACKENDS if pair[0] != "lifting"])
def test_what_would_not_fit_is_refused_before_it_is_built(method, backend):
    law = from_probs(np.full(2000, 1 / 2000))
    problem = MembershipTransport(law, law, IID(4))
    with pytest.raises(TooLargeError, match="optimal_acceptance") as error:
        solve(problem, method, backend)
    assert (error.value.size, error.value.limit) == (problem.size.edges, METHODS[method][backend].limit)
    assert ("igraph" in error.value.instead) == (backend != "igraph")
    assert "_sets" not in vars(problem)
    with pytest.raises(TooLargeError):
        solve(example(), method, backend, limit=3)


def test_igraph_is_optional(monkeypatch):
    monkeypatch.setitem(sys.modules, "igraph", None)
    with pytest.raises(OptionError, match=r"ot-spec\[fast\]"):
        solve(example(), "max_flow", "igraph")
    assert solve(example(), "max_flow").acceptance > 0


@pytest.mark.parametrize("method", METHODS)
def test_solvers_leave_standard_output_alone(method):
    program = f"""
from ot_spec import IID, MembershipTransport
from solvers.exact.solve import METHODS, solve
for backend in METHODS[{method!r}]:
    solve(MembershipTransport([0.3, 0.7], [0.6, 0.4], IID(2)), {method!r}, backend)
print("done")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "done\n"


def test_inputs_are_not_changed():
    target, draft = np.array([0.3, 0.4, 0.3]), np.array([0.6, 0.3, 0.1])
    before = SimpleNamespace(target=target.copy(), draft=draft.copy())
    for method, backend in BACKENDS:
        problem = MembershipTransport(target, draft, IID(2))
        members, probs = problem.members.copy(), problem.probs.copy()
        solve(problem, method, backend)
        assert (problem.members == members).all() and (problem.probs == probs).all()
    assert (target == before.target).all() and (draft == before.draft).all()
