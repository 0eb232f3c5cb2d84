"""`solve(problem, "lifting")`: the coupling of the optimal rules, built on the edges or asked lazily."""

from __future__ import annotations

import pickle
from collections import Counter
from fractions import Fraction
from math import comb

import numpy as np
import pytest

from ot_spec import (
    IID,
    LazyPlan,
    MembershipTransport,
    TransportPlan,
    WithoutReplacement,
    as_exact,
    filtered,
    fractions,
    from_logits,
)
from ot_spec.draft_law import DraftLaw
from ot_spec.errors import CandidateError, ShapeError, SolverError, TooLargeError
from ot_spec.selector import as_float
from solvers import get_selector, optimal_acceptance
from solvers.exact import lifting
from solvers.exact.lifting import drawn
from solvers.exact.solve import solve
from solvers.selectors.optimal import Optimal
from tests.exact.cases import generated
from tests.exact.test_optimal import pairs

CASES = generated()
LAWS = (IID, WithoutReplacement)
RULES = {"iid": "optimal", "without_replacement": "optimal_without_replacement"}


def rows_of(problem: MembershipTransport) -> dict[tuple[int, ...], int]:
    return {tuple(y for y in members if y >= 0): row for row, members in enumerate(problem.members.tolist())}


def joint(problem: MembershipTransport, conditional) -> np.ndarray:
    """P(set, output), (N, V), by every ordered tuple of the draft law."""
    tuples, probs = problem.law.tuples(problem.draft)
    rows, out = rows_of(problem), np.full((problem.probs.size, problem.vocab), problem.probs[0] * 0)
    for tokens, mass, output in zip(tuples, probs, conditional(tuples), strict=True):
        out[rows[tuple(sorted({int(y) for y in tokens if y >= 0}))]] += mass * output
    return out


def made(target: np.ndarray, draft: np.ndarray, law: DraftLaw, **options) -> TransportPlan | LazyPlan:
    plan = solve(MembershipTransport(target, draft, law), "lifting", **options)
    assert isinstance(plan, TransportPlan | LazyPlan)
    return plan


# --- built -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", range(0, 160, 40))
def test_the_plan_is_the_coupling_of_the_rule(start):
    """As fractions, off the membership edges too, against the rule on all ordered tuples."""
    for target, draft, k in CASES[start : start + 40]:
        for law in (IID(min(k, 3)), WithoutReplacement(k)):
            plan = made(target, draft, law)
            problem, rule = plan.problem, get_selector(RULES[law.name])
            assert isinstance(plan, TransportPlan) and problem.exact
            stated = joint(problem, lambda x, r=rule, t=target, d=draft: r.conditional(t, d, x))
            assert (stated.sum(axis=0) == target).all() and (stated.sum(axis=1) == problem.probs).all()
            assert (plan.matrix() == stated).all()
            assert (plan.flow == stated[problem.edge_set, problem.edge_token]).all()
            best = optimal_acceptance(target, draft, law)
            assert plan.acceptance == plan.flow.sum() == best == plan.info["cut"].check()
            assert plan.gap(plan.info["cut"]) == 0


@pytest.mark.parametrize("start", range(0, 60, 20))
def test_fractions_are_those_of_the_rational_solver(start):
    for target, draft, k in CASES[start : start + 20]:
        for law in (IID(k), WithoutReplacement(k)):
            plan = made(target, draft, law)
            assert plan.acceptance == solve(plan.problem, "rational").acceptance
            assert type(plan.acceptance) is type(target[0])


@pytest.mark.parametrize("law", [IID(1), IID(2), IID(3), WithoutReplacement(2), WithoutReplacement(3)])
@pytest.mark.parametrize("concentration", [0.05, 1.0, 50.0])
def test_beside_the_linear_program(law, concentration):
    """Sums of each row and column, acceptance, and complementary slackness with the certificate of the other."""
    rng = np.random.default_rng(law.k)
    for vocab in (12, 24):
        target, draft = rng.dirichlet(np.full(vocab, concentration), 2)
        plan = made(target, draft, law)
        problem, peer = plan.problem, solve(plan.problem, "lp")
        assert isinstance(plan, TransportPlan)
        assert plan.acceptance == pytest.approx(peer.acceptance, abs=1e-12)
        for axis in (0, 1):
            np.testing.assert_allclose(plan.matrix().sum(axis=axis), peer.matrix().sum(axis=axis), rtol=0, atol=1e-14)
        for one, other in ((plan, peer), (peer, plan)):
            sets, tokens = other.info["cut"].duals()
            assert one.flow[sets[problem.edge_set] + tokens[problem.edge_token] > 1].sum() < 1e-12
            refused = one.matrix()
            refused[problem.edge_set, problem.edge_token] -= one.flow
            assert refused[:, tokens > 0].sum() < 1e-12 and refused[sets > 0].sum() < 1e-12


@pytest.mark.parametrize("law", [IID(2), WithoutReplacement(2)])
def test_masses_down_to_1e_300_zeros_ties_and_one_hot(law):
    laws = [
        [1 - 1e-300, 1e-300, 0, 0],
        [0, 0.5, 0.5, 0],
        [1e-300, 0, 0.5, 0.5],
        [0.25] * 4,
        [0, 0, 1, 0],
        [1e-300, 1e-300, 1e-160, 1 - 1e-160],
    ]
    for target in laws:
        for draft in laws:
            target, draft = np.array(target, float), np.array(draft, float)
            best = optimal_acceptance(as_exact(target), as_exact(draft), law)
            for limit in (None, 1):
                plan = made(target, draft, law, limit=limit)
                assert plan.acceptance == pytest.approx(float(best), rel=0, abs=1e-13)
                assert plan.gap(plan.info["cut"]) == pytest.approx(0, abs=1e-13)
                np.testing.assert_allclose(plan.column_marginal(), target, rtol=0, atol=1e-13)
                assert isinstance(plan, TransportPlan) == (limit is None or plan.problem.size.edges <= limit)


def test_k_beyond_the_support():
    target, draft = np.array([0.5, 0.25, 0.25, 0]), np.array([0.9, 0.1, 0, 0])
    for k in (3, 8, 64):
        plan = made(target, draft, IID(k))
        assert isinstance(plan, TransportPlan) and plan.problem.probs.size == 3
        assert plan.info["draws"] == k + 1
        assert plan.acceptance == pytest.approx(optimal_acceptance(target, draft, IID(k)), abs=1e-14)
        plan = made(target, draft, WithoutReplacement(k))
        assert plan.acceptance == pytest.approx(0.75) and plan.info["draws"] == 1


@pytest.mark.parametrize("start", range(0, 60, 20))
def test_draws_are_the_tuples_whatever_their_order(start):
    for target, draft, k in CASES[start : start + 20]:
        for law in (IID(k), WithoutReplacement(k)):
            problem = MembershipTransport(target, draft, law)
            tuples, masses = law.tuples(draft)
            expected: Counter[tuple[int, ...]] = Counter()
            for tokens, mass in zip(tuples.tolist(), masses, strict=True):
                expected[tuple(sorted(tokens))] += mass
            tokens, probs, row = drawn(problem)
            found = {tuple(sorted(x)): mass for x, mass in zip(tokens.tolist(), probs, strict=True)}
            assert found == expected and len(found) == len(tokens)
            assert [rows_of(problem)[tuple(sorted({y for y in x if y >= 0}))] for x in tokens.tolist()] == row.tolist()


def test_draws_of_many_candidates_keep_their_probabilities():
    problem = MembershipTransport([0.5, 0.5], [0.25, 0.75], IID(150))
    tokens, probs, _ = drawn(problem)
    stated = [comb(150, int(n)) * Fraction(1, 4) ** int(150 - n) * Fraction(3, 4) ** int(n) for n in tokens.sum(axis=1)]
    np.testing.assert_allclose(probs, [float(p) for p in stated], rtol=1e-13)


# --- lazy --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", range(0, 80, 40))
def test_the_lazy_plan_of_a_small_problem(start):
    """Over the draws of each set it is the built one, and its two marginals are those of its conditional laws."""
    for target, draft, k in CASES[start : start + 40]:
        for kind in LAWS:
            law = kind(min(k, 3))
            if law.name != "iid":  # priority lists without enumeration are floats
                target, draft = as_float(target), as_float(draft)
            plan, built = made(target, draft, law, limit=1), made(target, draft, law)
            if isinstance(plan, TransportPlan):
                assert plan.problem.size.edges == 1
                continue
            assert isinstance(built, TransportPlan)
            close = 0 if plan.problem.exact else 1e-13
            assert abs(plan.acceptance - built.acceptance) <= close
            assert abs(plan.gap(plan.info["cut"])) <= close
            assert (abs(plan.column_marginal() - target) <= close).all()
            stated = joint(built.problem, lambda tuples, p=plan: [p.conditional(x) for x in tuples])
            assert (abs(stated.sum(axis=0) - plan.column_marginal()) <= close).all()
            assert (abs(stated - built.matrix()) <= close).all()
            likely = np.flatnonzero(built.problem.probs)
            for row in likely:
                candidates = built.problem.members[row]
                mean = stated[row] / built.problem.probs[row]
                assert (abs(built.conditional(candidates) - mean) <= close * 10).all()


@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_half_of_fifty_thousand_tokens(k):
    """Both laws uniform, the target on half of the draft's tokens: it accepts iff one of the candidates is there."""
    vocab = 50_000
    wanted = np.arange(vocab) % 2 == 0
    target, draft = wanted / wanted.sum(), np.full(vocab, 1 / vocab)
    plan = made(target, draft, IID(k))
    assert isinstance(plan, LazyPlan)
    assert plan.acceptance == pytest.approx(1 - 0.5**k, abs=1e-13)
    assert abs(plan.gap(plan.info["cut"])) < 1e-13
    np.testing.assert_allclose(plan.column_marginal(), target, rtol=0, atol=1e-15)
    hits = plan.conditional([0, *(2 * i + 1 for i in range(k - 1))])
    np.testing.assert_allclose(hits, np.eye(1, vocab, 0)[0], rtol=0, atol=1e-13)
    misses = plan.conditional([2 * i + 1 for i in range(k)])
    assert misses.sum() == pytest.approx(1) and misses[~wanted].sum() == 0
    if k > 2:  # beyond 2,000 tokens, groups of them are listed: the gap says what that costs
        return
    plan = made(target, draft, WithoutReplacement(k))
    assert plan.acceptance == pytest.approx(1 - comb(vocab // 2, k) / comb(vocab, k), abs=1e-12)
    np.testing.assert_allclose(plan.column_marginal(), target, rtol=0, atol=1e-15)


@pytest.mark.parametrize("k", [2, 8, 64])
def test_full_vocabulary(k):
    rng = np.random.default_rng(k)
    for name, target, draft in pairs(151_936):
        plan = made(target, draft, IID(k))
        if isinstance(plan, TransportPlan):
            assert name == "one-hot draft"
            continue
        best = optimal_acceptance(target, draft, IID(k))
        assert plan.acceptance == pytest.approx(best, abs=1e-12), name
        assert abs(plan.gap(plan.info["cut"])) < 1e-12, name
        assert abs(plan.column_marginal() - target).sum() / 2 < 1e-12, name
        if k < 64:
            output = plan.conditional(IID(k).sample(draft, rng.random(k)).tokens)
            assert output.shape == target.shape and output.sum() == pytest.approx(1, abs=1e-12)
            assert (output[target == 0] == 0).all()


def test_full_vocabulary_without_replacement():
    rng = np.random.default_rng(3)
    logits = 3 * rng.normal(size=151_936)
    whole = from_logits(logits), from_logits(logits + rng.normal(size=151_936))
    top = filtered(whole[0], top_k=1000), filtered(whole[1], top_k=1000)
    for k in (2, 4):
        law = WithoutReplacement(k)
        plan = made(*top, law)
        assert isinstance(plan, LazyPlan) and "groups" not in plan.info
        assert abs(plan.gap(plan.info["cut"])) < 1e-10
        assert plan.acceptance == pytest.approx(optimal_acceptance(*top, law), abs=1e-10)
        assert abs(plan.column_marginal() - top[0]).sum() / 2 < 1e-12
        plan = made(*whole, law)
        assert plan.info["groups"] == 512
        assert 0 < plan.gap(plan.info["cut"]) < 1e-3  # still exact, no longer optimal
        assert abs(plan.column_marginal() - whole[0]).sum() / 2 < 1e-12
        output = plan.conditional(law.sample(whole[1], rng.random(k)).tokens)
        assert output.sum() == pytest.approx(1, abs=1e-12)


def test_what_is_not_built_says_why():
    uniform = np.full(2000, 1 / 2000)
    plan = made(uniform, uniform, IID(4))
    for ask in (lambda: plan.flow, plan.matrix, plan.row_marginal):
        with pytest.raises(
            TooLargeError, match=r"membership edges of iid\(k=4\) .* use acceptance, .* instead"
        ) as error:
            ask()
        assert (error.value.size, error.value.limit) == (plan.problem.size.edges, 500_000)
    assert "_sets" not in vars(plan.problem)
    many = made(uniform[:9] * 2000 / 9, uniform[:9] * 2000 / 9, IID(40))  # few sets, but too many draws
    with pytest.raises(TooLargeError, match=r"the draws of iid\(k=40\), times 9 tokens and k\^2: .* over the limit"):
        many.matrix()
    assert many.acceptance == pytest.approx(1)


def test_many_draws_of_fractions_are_not_built_either():
    rng = np.random.default_rng(0)
    target, draft = (fractions([Fraction(int(w), int(row.sum())) for w in row]) for row in rng.integers(1, 9, (2, 64)))
    plan = made(target, draft, IID(2))
    assert isinstance(plan, LazyPlan) and plan.problem.size.edges < 5000
    assert plan.gap(plan.info["cut"]) == 0 and isinstance(plan.acceptance, Fraction)
    assert (plan.column_marginal() == plan.problem.target).all()


def test_a_lazy_plan_is_sent_to_another_process():
    plan = made(np.array([0.5, 0.5]), np.array([0.75, 0.25]), IID(2), limit=1)
    again = pickle.loads(pickle.dumps(plan))
    assert again.acceptance == plan.acceptance == 0.9375
    with pytest.raises(TooLargeError, match="over the limit of 1"):
        again.matrix()


# --- faults ------------------------------------------------------------------------------------------------


def test_a_rule_that_is_not_optimal_is_no_answer(monkeypatch):
    target, draft = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.2, 0.3, 0.4])
    real = Optimal.windows
    monkeypatch.setattr(Optimal, "windows", lambda self, t, d, k: real(self, t, d, 1))
    with pytest.raises(SolverError, match="below its cut") as error:
        made(target, draft, IID(3), limit=1)
    assert error.value.status == "not optimal"
    with pytest.raises(SolverError):
        made(target, draft, IID(3))


def test_multiplicities_that_are_dropped_are_found(monkeypatch):
    target, draft = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.2, 0.3, 0.4])

    def once(problem):
        tokens, _, row = drawn(problem)
        return tokens, np.prod(problem.draft[tokens], axis=1), row

    monkeypatch.setattr(lifting, "drawn", once)
    with pytest.raises(SolverError, match="differ by"):
        made(target, draft, IID(3))


def test_a_pick_that_is_no_law_is_refused():
    plan = made(np.array([0.5, 0.5]), np.array([0.75, 0.25]), IID(2), limit=1)
    assert isinstance(plan, LazyPlan)
    rest = plan.problem, plan.selector
    for pick, words in (([0.5, 0.6], "off by 0.1"), ([1.5, -0.5], "least entry is -0.5"), ([0.5, np.nan], "nan")):
        with pytest.raises(SolverError, match=words):
            LazyPlan(*rest, np.array(pick), plan.why, "hand")
    with pytest.raises(ShapeError, match=r"shape \(3,\), the problem has 2 tokens"):
        LazyPlan(*rest, np.full(3, 1 / 3), plan.why, "hand")


@pytest.mark.parametrize(
    ("law", "candidates", "words"),
    [
        (IID(3), [0, 1], "draws 3 candidates here, got 2"),
        (IID(3), [0, 1, -1], "draws 3 candidates here, got 2"),
        (IID(3), [0, 1, 2, 3], "draws 3 candidates here, got 4"),
        (IID(3), [0, 1, 4], "candidate 4 has probability 0"),
        (IID(3), [0, 1, 5], "candidate 5 is not one of 5 tokens"),
        (IID(3), [0, 1, -2], "candidate -2 is not one of 5 tokens"),
        (WithoutReplacement(3), [0, 1, 1], "candidate 1 is a duplicate"),
        (WithoutReplacement(6), [0, 1, 2, -1, -1, -1], "draws 4 candidates here, got 3"),
    ],
)
def test_candidates_that_cannot_be(law, candidates, words):
    plan = made(np.full(5, 0.2), np.array([0.25, 0.25, 0.25, 0.25, 0]), law, limit=1)
    with pytest.raises(CandidateError, match=words):
        plan.conditional(candidates)


def test_slots_past_the_support_may_be_left_out():
    plan = made(np.full(5, 0.2), np.array([0.25, 0.25, 0.25, 0.25, 0]), WithoutReplacement(6), limit=1)
    padded, short = plan.conditional([3, 1, 0, 2, -1, -1]), plan.conditional([0, 1, 2, 3])
    np.testing.assert_allclose(padded, short, rtol=0, atol=1e-15)
    assert short.sum() == pytest.approx(1)


def test_lists_in_fractions_need_all_sets():
    exact = as_exact(np.full(5, 0.2))
    with pytest.raises(TooLargeError, match=r"priority lists in fractions for without_replacement\(k=2\)"):
        made(exact, exact, WithoutReplacement(2), limit=3)
    assert made(exact, exact, WithoutReplacement(1), limit=3).acceptance == 1
