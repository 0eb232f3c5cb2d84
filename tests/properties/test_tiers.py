"""The tiers beside the exact one: edge coins, located thresholds, and statistics with the error rates they state."""

from __future__ import annotations

import itertools
import math
import random

import numba
import numpy as np
import pytest
import torch
from numpy.random import mtrand
from scipy.stats import binom, chisquare

from ot_spec import IID, WithoutReplacement
from ot_spec.errors import OptionError
from proofs_check import BudgetSpent, CannotFollow, Case, CounterExample, Report, audit, law_of
from proofs_check.cases import one_step
from proofs_check.subjects import FunctionSubject
from proofs_check.tiers.edge import COINS64, corners, edge_cases
from proofs_check.tiers.play import Kernel, play
from proofs_check.tiers.statistical import POWER, SequentialTest, draws_for
from proofs_check.tiers.stratified import coin_law
from solvers import SELECTORS, get_selector
from solvers.selectors.rrs import RRS

SURE = 1e-6  # chance at which a check of a rate may fail by itself


def fault(report: Report) -> CounterExample:
    """The counter-example of a report that must have one."""
    assert report.counterexample is not None, report
    return report.counterexample


# --- kernels that take coins -----------------------------------------------------------------------------------------


def residual_of(target, draft):
    over = np.maximum(target - draft, 0)
    return over if over.sum() > 0 else target


def by_inverse(weights, coin):
    """The first token whose running sum exceeds the coin's share, never one without weight."""
    sums = np.cumsum(weights)
    return min(int(np.searchsorted(sums, coin * sums[-1], side="right")), int(np.flatnonzero(weights)[-1]))


def right(target, draft, candidates, coins):
    token = int(candidates[0])
    if coins[0] * draft[token] < target[token]:
        return token
    return by_inverse(residual_of(target, draft), coins[1])


def rows(target, draft, candidates, coins):
    """`right` for rows."""
    tokens = candidates[:, 0]
    weights = residual_of(target, draft)
    sums = np.cumsum(weights)
    fallen = np.searchsorted(sums, coins[:, 1] * sums[-1], side="right")
    return np.where(
        coins[:, 0] * draft[tokens] < target[tokens], tokens, np.minimum(fallen, np.flatnonzero(weights)[-1])
    )


def not_strict(target, draft, candidates, coins):
    token = int(candidates[0])
    return token if coins[0] * draft[token] <= target[token] else right(target, draft, candidates, coins)


def unguarded(target, draft, candidates, coins):
    token = int(candidates[0])
    if coins[0] * draft[token] < target[token]:
        return token
    return int(np.searchsorted(np.cumsum(residual_of(target, draft)), coins[1], side="right"))


def last_index(target, draft, candidates, coins):
    return min(unguarded(target, draft, candidates, coins), len(target) - 1)


def rounded(target, draft, candidates, coins):
    """Computes in float32 what it is given in float64."""
    sums = np.cumsum(target.astype(np.float32))
    return int(np.searchsorted(sums / sums[-1], np.float32(coins[0]), side="right"))


def no_fallback(target, draft, candidates, coins):
    token = int(candidates[0])
    if coins[0] * draft[token] < target[token]:
        return token
    over = np.maximum(target - draft, 0)
    assert over.sum() > 0
    return by_inverse(over, coins[1])


def one_coin(target, draft, candidates, coins):
    token = int(candidates[0])
    if coins[0] * draft[token] < target[token]:
        return token
    return by_inverse(residual_of(target, draft), coins[0])


def from_target(target, draft, candidates, coins):
    token = int(candidates[0])
    return token if coins[0] * draft[token] < target[token] else by_inverse(target, coins[1])


@numba.njit
def compiled(target, draft, candidates, coins):
    token = candidates[0]
    if coins[0] * draft[token] < target[token]:
        return token
    over = np.maximum(target - draft, 0)
    if not over.sum() > 0:
        over = target
    mass, reached, last = over.sum(), 0.0, 0
    for y in range(len(over)):
        if over[y] > 0:
            last, reached = y, reached + over[y]
            if coins[1] * mass < reached:
                return y
    return last


@numba.njit
def compiled_from_target(target, draft, candidates, coins):
    token = candidates[0]
    if coins[0] * draft[token] < target[token]:
        return token
    reached, last = 0.0, 0
    for y in range(len(target)):
        if target[y] > 0:
            last, reached = y, reached + target[y]
            if coins[1] < reached:
                return y
    return last


# --- the edge tier -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arrays", ["float64", "float32", "torch64", "torch32", "fractions"])
@pytest.mark.parametrize("name", SELECTORS)
def test_no_selector_gives_way_at_edge_coins(name, arrays):
    rule = get_selector(name)
    for law in (IID(2), WithoutReplacement(2), IID(1)):
        if rule.supports(law) and not (name == "maximal_coupling" and law.k > 1):
            cases = edge_cases(law.k, 4)[: None if arrays != "fractions" else 4]
            report = audit(rule, k=law.k, law=law, tier="edge", arrays=arrays, cases=cases)
            assert report.verdict == "undecided" and report.counterexample is None, report
            assert report.notes == (f"edge coins: no fault in {report.runs:,} calls",) and report.runs > 50


@pytest.mark.parametrize(
    ("rule", "arrays", "words"),
    [
        (not_strict, "float64", "returns 1, which the target never gives (candidates (1,), coins (0.0, 0.0)"),
        (unguarded, "float32", "tokens (candidates"),
        (last_index, "float64", "which the target never gives"),
        (last_index, "float32", "which the target never gives"),
        (rounded, "float64", "returns 2, which is not one of 2 tokens"),
        (no_fallback, "float64", "sums to 1 - 2 eps"),
        (no_fallback, "float32", "sums to 1 - 2 eps"),
    ],
)
def test_what_edge_coins_find(rule, arrays, words):
    report = audit(rule, k=1, coins=2, tier="edge", arrays=arrays)
    assert (report.verdict, report.tier) == ("biased", "edge")
    assert words in fault(report).message and fault(report).case.vocab <= 3


@pytest.mark.parametrize("rule", [right, compiled])
@pytest.mark.parametrize("arrays", ["float64", "float32"])
def test_what_edge_coins_leave_alone(rule, arrays):
    assert audit(rule, k=1, coins=2, tier="edge", arrays=arrays).counterexample is None
    assert audit(rows, k=1, coins=2, tier="edge", arrays=arrays, batch=True).counterexample is None


def test_edge_coins_are_part_of_auto_for_rules_that_take_coins():
    assert audit(not_strict, k=1, coins=2, tier="exact").verdict == "lossless"  # one coin in a continuum
    report = audit(not_strict, k=1, coins=2)
    assert (report.verdict, report.tier) == ("biased", "edge")
    report = audit(not_strict, k=1, coins=2, cases=[fault(report).case])
    assert report.verdict == "biased"
    report = audit(right, k=1, coins=2)
    assert (report.verdict, report.tier) == ("lossless", "exact") and "edge coins: no fault" in report.notes[0]


def test_a_coin_of_one_may_be_refused_but_not_answered_wrongly():
    def refusing(target, draft, candidates, coins):
        if (coins >= 1).any():
            raise ValueError("coins lie in [0, 1)")
        return right(target, draft, candidates, coins)

    def broken(target, draft, candidates, coins):
        if (coins >= 1).any():
            raise IndexError("out of range")
        return right(target, draft, candidates, coins)

    assert audit(refusing, k=1, coins=2, tier="edge", arrays="float32").counterexample is None
    assert "IndexError" in fault(audit(broken, k=1, coins=2, tier="edge", arrays="float32")).message
    assert audit(broken, k=1, coins=2, tier="edge", arrays="float64").counterexample is None


class Flags(RRS):
    """Reports one field wrongly."""

    def __init__(self, field, change):
        self.field, self.change = field, change

    def select(self, target, draft, candidates, coins):
        found = super().select(target, draft, candidates, coins)
        return found._replace(**{self.field: self.change(getattr(found, self.field))})


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("accepted", lambda accepted: ~accepted),
        ("accepted", lambda accepted: accepted | True),
        ("index", lambda index: np.maximum(index, 0)),
        ("valid", lambda valid: valid & False),
    ],
)
def test_flags_are_checked(field, change):
    report = audit(Flags(field, change), k=2, tier="edge")
    assert report.verdict == "biased" and "accept" in fault(report).message
    assert audit(Flags(field, lambda same: same), k=2, tier="edge", cases=edge_cases(2, 3)).counterexample is None


def test_a_function_may_say_what_it_accepted():
    def told(accept):
        def rule(target, draft, candidates, coins):
            token = right(target, draft, candidates, coins)
            return token, np.bool_(accept(token, candidates))

        return rule

    assert audit(told(lambda token, x: token == x[0]), k=1, coins=2, tier="edge").counterexample is None
    wrong = audit(told(lambda token, x: True), k=1, coins=2, tier="edge")
    assert "accepted a token which is no candidate" in fault(wrong).message


def test_the_row_of_a_batch_is_named():
    def one_bad_row(target, draft, candidates, coins):
        tokens = rows(target, draft, candidates, coins)
        return np.where((candidates[:, 0] == 1) & (coins[:, 1] == 0.5), 99, tokens)

    report = audit(one_bad_row, k=1, coins=2, batch=True, tier="edge")
    assert "returns 99" in fault(report).message and "candidates (1,), coins (" in fault(report).message
    short = audit(lambda *given: rows(*given)[1:], k=1, coins=2, batch=True, tier="edge")
    assert "token ids are due" in fault(short).message


def test_corners():
    assert len(corners(COINS64, 2)) == 36 and len(corners(COINS64, 4)) == 6**4
    many = corners(COINS64, 6)
    assert len(np.unique(many, axis=0)) == len(many) == 6 + 6 * 6 * 5
    assert corners(COINS64, 0).shape == (1, 0)


# --- the stratified tier -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", one_step(1, 5, 40, seed=8)[12:], ids=str)
def test_the_measured_law_is_within_its_bound(case):
    for rule, batch in ((right, False), (rows, True), (one_coin, False), (from_target, False)):
        subject = FunctionSubject(rule, 1, 5, None, None, "float64", 2)
        subject.batch = batch
        kernel = Kernel(subject)
        laws = kernel.laws(case)
        for token in np.flatnonzero(laws[1]).tolist():
            found, bound = coin_law(kernel, laws, (token,), case.vocab, error=1e-4)
            exact = subject.given(case, (token,), 10_000).vector(case.vocab).astype(float)
            assert bound <= 1e-4 + 1e-12
            assert abs(found - exact).sum() / 2 <= bound + 1e-12


def test_thresholds_far_below_the_grid_are_found_where_neighbours_differ():
    edges = np.array([0.3, 0.3 + 1e-3, 0.3 + 1.5e-3, 1.0])
    kernel = Kernel(
        FunctionSubject(
            lambda t, d, x, u: int(np.searchsorted(edges, u[0], side="right")), 1, 4, None, None, "float64", 1
        )
    )
    laws = np.full(4, 0.25), np.full(4, 0.25)
    found, bound = coin_law(kernel, laws, (0,), 4, error=1e-6)
    assert bound <= 1e-6 and found == pytest.approx([0.3, 1e-3, 5e-4, 0.6985], abs=1e-6)


def test_a_region_that_no_line_of_the_grid_meets_is_reached_from_its_neighbour():
    """The second coin matters only where the first lies in a strip that is found by its ends alone."""

    def strip(target, draft, candidates, coins):
        if 0.41 < coins[0] < 0.43:
            return int(coins[1] < 0.3)
        return 2 if coins[0] <= 0.41 else 3

    kernel = Kernel(FunctionSubject(strip, 1, 4, None, None, "float64", 2))
    laws = np.full(4, 0.25), np.full(4, 0.25)
    found, bound = coin_law(kernel, laws, (0,), 4, error=1e-5)
    assert bound <= 1e-5 and found == pytest.approx([0.014, 0.006, 0.41, 0.57], abs=1e-5)


def test_a_kernel_without_thresholds_is_undecided():
    def hashed(target, draft, candidates, coins):
        return by_inverse(target, (coins[0] * 1e6 + coins[1]) % 1.0)

    report = audit(hashed, k=1, coins=2, tier="stratified", cases=20)
    assert report.verdict == "undecided" and "to within 1 in TV" in report.notes[0]


@pytest.mark.parametrize("rule", [one_coin, from_target, compiled_from_target])
def test_what_located_thresholds_find(rule):
    report = audit(rule, k=1, coins=2, tier="stratified")
    assert (report.verdict, report.tier) == ("biased", "stratified")
    assert "measured to within" in fault(report).message
    assert fault(report).case.vocab <= 3 and float(fault(report).tv or 0) > 0.001


@pytest.mark.parametrize("arrays", ["float64", "float32", "torch64"])
@pytest.mark.parametrize("name", ["maximal_coupling", "rrs", "k_seq"])
def test_selectors_by_located_thresholds(name, arrays):
    k = 1 if name == "maximal_coupling" else 2
    report = audit(get_selector(name), k=k, tier="stratified", arrays=arrays, cases=26)
    assert report.verdict == "lossless" and "asked for 0.01" in report.notes[0]
    assert (
        audit(get_selector("rrs"), k=2, law=WithoutReplacement(2), tier="stratified", arrays=arrays).verdict == "biased"
    )


def test_a_finer_bound_on_request():
    report = audit(rows, k=1, coins=2, batch=True, tier="stratified", tv=1e-7, cases=26)
    assert report.verdict == "lossless" and "(asked for 1e-07)" in report.notes[0]
    with pytest.raises(OptionError, match="tv must lie in"):
        audit(rows, k=1, coins=2, batch=True, tier="stratified", tv=0)


def test_compiled_kernels_are_measured_where_they_cannot_be_followed():
    report = audit(compiled, k=1, coins=2, cases=26)
    assert (report.verdict, report.tier) == ("lossless", "stratified")
    assert "exact branching cannot follow" in report.notes[0] and "edge coins" in report.notes[-1]
    assert audit(compiled_from_target, k=1, coins=2).verdict == "biased"
    with pytest.raises(CannotFollow):
        audit(compiled, k=1, coins=2, tier="exact")


# --- the sequential test -------------------------------------------------------------------------------------------

TEN = np.array([0.3, 0.2, 0.15, 0.1, 0.08, 0.07, 0.05, 0.03, 0.02, 0.0])


def as_law(masses):
    return dict(enumerate(masses.tolist()))


def run(expected, true, *, tv, error, seed, first=1000):
    """A test of `expected` on draws of `true`, looked at after batches that grow."""
    test = SequentialTest(as_law(expected), tv, error)
    rng = np.random.default_rng([seed, 17])
    while not test.done:
        many = min(first, test.draws - test.seen)
        test.add(dict(enumerate(rng.multinomial(many, true).tolist())))
        first = min(2 * first, 1 << 17)
    return test


def shifted(law, tv, seed):
    """A law at distance `tv`, in a random direction over its support."""
    rng = np.random.default_rng([seed, 5])
    support = np.flatnonzero(law)
    up = rng.permutation(support)[: rng.integers(1, len(support))]
    weights = np.zeros_like(law)
    weights[up] = law[up] * rng.random(len(up))
    down = np.setdiff1d(support, up)
    share = law[down] / law[down].sum()
    out = law + tv * weights / weights.sum()
    out[down] -= tv * share
    assert out.min() >= 0 and abs(out - law).sum() / 2 == pytest.approx(tv)
    return out


@pytest.mark.parametrize("tv", [0.003, 0.05])
def test_false_alarms_stay_below_the_nominal_rate(tv):
    alarms = sum(bool(run(TEN, TEN, tv=tv, error=0.05, seed=s, first=10).refused) for s in range(500))
    assert alarms <= binom.isf(SURE, 500, 0.05)


def test_a_test_of_fixed_size_that_is_looked_at_often_would_not_pass():
    """The check above can fail: chi-square at 5 % at each look has too many false alarms."""
    law, alarms = TEN[:-1] / TEN[:-1].sum(), 0
    for seed in range(500):
        rng = np.random.default_rng([seed, 17])
        counts = np.cumsum([rng.multinomial(1000, law) for _ in range(20)], axis=0)
        alarms += any(chisquare(c, c.sum() * law).pvalue < 0.05 for c in counts)
    assert alarms > binom.isf(SURE, 500, 0.05)


def sampler(target, draft, candidates, rng):
    """`right` for rows, with a generator in place of coins."""
    return rows(target, draft, candidates, rng.random((len(candidates), 2)))


def test_false_alarms_of_a_rule_that_is_called():
    case = [Case((5, 3, 2, 0), (1, 3, 6, 2), k=1)]
    verdicts = [
        audit(sampler, k=1, batch=True, tier="statistical", tv=0.05, error=0.05, cases=case, seed=seed).verdict
        for seed in range(500)
    ]
    assert set(verdicts) <= {"lossless", "biased"}
    assert verdicts.count("biased") <= binom.isf(SURE, 500, 0.05)


@pytest.mark.parametrize("error", [0.05, 1e-6])
def test_the_power_is_what_is_stated(error):
    """V = 10, TV 0.003: the draws that are said to give power 0.99 do, in random directions."""
    need = draws_for(9, 0.003, error)  # nine of the ten tokens are possible
    tests = [run(TEN, shifted(TEN, 0.003, s), tv=0.003, error=error, seed=s) for s in range(40)]
    assert all(test.draws == need and test.seen <= need for test in tests)
    assert sum(bool(test.refused) for test in tests) >= binom.ppf(SURE, 40, POWER)
    print(f"error {error:g}: up to {need:,} draws, {np.mean([test.seen for test in tests]):,.0f} used on average")


def test_half_of_the_draws_have_less_power():
    need = draws_for(10, 0.003, 0.05)
    uniform = np.full(10, 0.1)
    powers = [SequentialTest(as_law(uniform), 0.003, 0.05, draws=n).power for n in (need, need - 1, need // 2, 1000)]
    assert powers[0] >= POWER - 1e-9 and powers == sorted(powers, reverse=True)
    assert powers[1] < POWER and powers[2] < 0.9 and powers[3] == 0


@pytest.mark.parametrize("law", [(0.5, 0.5), (0.9, 0.1), (0.2, 0.3, 0.5)])
def test_the_evidence_is_a_martingale(law):
    """The mean of exp(log_evidence) over all draws of n tokens is 1 under the expected law, for every n."""
    for n in (1, 3, 7):
        mean = 0.0
        for counts in itertools.product(range(n + 1), repeat=len(law)):
            if sum(counts) == n:
                test = SequentialTest(dict(enumerate(law)), tv=0.1, error=1e-300)
                test.add(dict(enumerate(counts)))
                ways = math.factorial(n) / math.prod(map(math.factorial, counts))
                mean += ways * math.prod(p**c for p, c in zip(law, counts, strict=True)) * math.exp(test.log_evidence)
        assert mean == pytest.approx(1, abs=1e-12)


def test_impossible_outcomes_refute_at_once_and_empty_cells_do_not():
    """Where a chi-square test has no value (cells that expect nothing), the support decides."""
    test = SequentialTest({0: 1.0, 1: 0.0}, tv=0.01, error=1e-6)
    test.add({0: 10, 1: 0})
    assert not test.refused and math.isfinite(test.log_evidence) and test.empirical_tv == 0
    test.add({1: 1})
    assert test.refused == "outcome 1 has probability 0 and came out" and test.done and test.seen == 11
    test = SequentialTest(as_law(np.array([0.25, 0.75])), tv=0.2, error=1e-6)
    test.add({0: 0, 1: 0})
    assert (test.seen, test.log_evidence, test.done) == (0, pytest.approx(0), False)


def test_gross_faults_end_early():
    test = run(TEN, shifted(TEN, 0.1, 3), tv=0.003, error=1e-6, seed=3, first=256)
    assert test.refused and test.seen < 0.01 * test.draws


# --- the statistical tier ------------------------------------------------------------------------------------------


def rejecting(target, draft, candidates, rng):
    token = int(candidates[0])
    if rng.standard_normal() < 0 and rng.standard_normal() < 0:  # a detour that branching does not follow
        rng.standard_normal()
    return (
        token if rng.random() * draft[token] < target[token] else by_inverse(residual_of(target, draft), rng.random())
    )


def rejecting_wrongly(target, draft, candidates, rng):
    rng.standard_normal()
    return from_target(target, draft, candidates, rng.random(2))


def impossible(target, draft, candidates, rng):
    return int(candidates[0]) if rng.standard_normal() < 2 else by_inverse(target, rng.random())


def test_auto_falls_back_and_says_so():
    report = audit(rejecting, k=1, tv=0.03)
    assert (report.verdict, report.tier, report.cases) == ("lossless", "statistical", 8)
    assert "cannot follow Generator.standard_normal; use the statistical tier" in report.notes[0]
    assert (
        "false-alarm rate 1e-06 a run; a bias of TV 0.03 on a case is found with power 0.99 at least" in report.notes[1]
    )
    report = audit(rejecting_wrongly, k=1, tv=0.03)
    assert (report.verdict, report.tier) == ("biased", "statistical") and fault(report).case.vocab <= 3
    with pytest.raises(CannotFollow):
        audit(rejecting, k=1, tier="exact")


def test_a_budget_that_is_spent_is_no_verdict():
    def wasteful(target, draft, candidates, rng):
        rng.integers(2, size=12)
        return by_inverse(target, rng.random())

    report = audit(wasteful, k=1, budget=100, tv=0.05)
    assert (report.verdict, report.tier) == ("lossless", "statistical") and "100 runs cover" in report.notes[0]
    with pytest.raises(BudgetSpent):
        audit(wasteful, k=1, budget=100, tier="exact")


def test_impossible_tokens_are_found_in_few_draws():
    report = audit(impossible, k=1, tier="statistical", cases=[Case((1, 0), (0, 1), k=1)])
    assert "has probability 0 and came out" in fault(report).message
    law = fault(report).law
    assert law is not None and law[1] > 0.9 and report.runs <= 60 * 1024


def test_too_few_draws_are_undecided():
    report = audit(sampler, k=1, batch=True, tier="statistical", draws=2000)
    assert (
        report.verdict == "undecided" and not report.passed and "power 0 at least; up to 2,000 draws" in report.notes[0]
    )


def own_generator(wrong):
    own = np.random.default_rng(11)

    def rule(target, draft, candidates):
        return (from_target if wrong else right)(target, draft, candidates, own.random(2))

    return rule


def global_generators(target, draft, candidates):
    coins = 1 / (1 + np.exp(-np.random.logistic(size=2)))  # noqa: NPY002  # the old interface is the point
    assert 0 < random.lognormvariate(0, 1) < float("inf") and torch.randn(1).isfinite()
    return right(target, draft, candidates, coins)


def test_rules_with_randomness_of_their_own():
    report = audit(own_generator(wrong=False), k=1, tv=0.05)
    assert (report.verdict, report.tier) == ("lossless", "statistical") and "a generator of its own" in report.notes[0]
    assert audit(own_generator(wrong=True), k=1, tv=0.05).verdict == "biased"


def legacy_state() -> str:
    return repr(mtrand.get_bit_generator().state)


def test_global_generators_are_seeded_and_put_back():
    random.seed(1)
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    before = random.getstate(), torch.get_rng_state(), legacy_state()
    reports = [audit(global_generators, k=1, tier="statistical", tv=0.1, seed=5) for _ in range(2)]
    assert reports[0].verdict == "lossless" and reports[0].law == reports[1].law
    assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1])
    assert legacy_state() == before[2]
    other = audit(global_generators, k=1, tier="statistical", tv=0.1, seed=6)
    assert other.law != reports[0].law


def test_draws_depend_on_the_seed_and_the_case_alone():
    subject = FunctionSubject(rejecting, 1, 4, None, None, "float64")
    case = Case((1, 2, 3), (3, 2, 1), k=1)
    first, again, other = (play(subject, case, seed)(200) for seed in (1, 1, 2))
    assert first == again != other
    whole = play(subject, case, 1)
    assert whole(80) + whole(120) == first or len(first) == 200


@pytest.mark.parametrize("arrays", ["float64", "float32", "torch64", "torch32"])
def test_selectors_by_statistics(arrays):
    rule = get_selector("rrs")
    assert audit(rule, k=2, tier="statistical", arrays=arrays, tv=0.03).verdict == "lossless"
    report = audit(rule, k=2, law=WithoutReplacement(2), tier="statistical", arrays=arrays, tv=0.03)
    assert report.verdict == "biased" and fault(report).case.vocab <= 4


def test_candidates_of_a_sampler_that_cannot_be_followed():
    def drawn(draft, rng):
        rng.standard_normal()
        return rng.choice(len(draft), size=1, p=draft)

    def constant(draft, rng):
        rng.standard_normal()
        return [int(np.argmax(draft))]

    def rule(target, draft, candidates, rng):
        return right(target, draft, candidates, rng.random(2))

    report = audit(rule, k=1, draft_sampler=drawn, tv=0.05)
    assert (report.verdict, report.tier) == ("lossless", "statistical")
    assert audit(rule, k=1, draft_sampler=constant, tv=0.05).verdict == "biased"


def chain(targets, drafts, tokens, rng):
    rng.standard_normal()
    for i, token in enumerate(tokens):
        committed = right(targets[i], drafts[i], [token], rng.random(2))
        if committed != token:
            return [*tokens[:i].tolist(), committed]
    return [*tokens.tolist(), by_inverse(targets[-1], rng.random())]


def wrong_chain(targets, drafts, tokens, rng):
    rng.standard_normal()
    for i, token in enumerate(tokens):
        if rng.random() * drafts[i][token] >= targets[i][token]:
            return [*tokens[:i].tolist(), by_inverse(targets[i], rng.random())]
    return [*tokens.tolist(), by_inverse(targets[-1], rng.random())]


def first_path(rule):
    return lambda targets, drafts, tokens, rng: rule(targets[0], drafts[0], tokens[0], rng)


def decode(target, draft, prompt, length, rng):
    rng.standard_normal()
    tokens = tuple(prompt)
    while len(tokens) < length:
        tokens += (by_inverse(np.asarray(target(tokens)), rng.random()),)
    return tokens


def wrong_decode(target, draft, prompt, length, rng):
    return decode(draft, draft, prompt, length, rng)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("chain", chain, wrong_chain),
        ("tree", first_path(chain), first_path(wrong_chain)),
        ("decoder", decode, wrong_decode),
    ],
)
def test_sequences_by_statistics(kind, good, bad):
    assert audit(good, kind=kind, length=1, tv=0.06).verdict == "lossless"
    report = audit(bad, kind=kind, length=1, tv=0.06)
    assert (report.verdict, report.tier) == ("biased", "statistical")
    assert "false-alarm rate" in fault(report).message or "probability 0" in fault(report).message


def test_lossy_rules_by_every_tier():
    def half(target, draft):
        return (target + draft) / 2

    def mixed(target, draft, candidates, coins):
        return int(candidates[0]) if coins[0] < 0.5 else by_inverse(target, coins[1])

    for tier in ("auto", "exact", "stratified", "statistical"):
        assert audit(mixed, k=1, coins=2, tier=tier, declared=half, tv=0.05, cases=20).verdict == "lossy as declared", (
            tier
        )
        assert audit(mixed, k=1, coins=2, tier=tier, tv=0.05).verdict == "biased", tier


# --- the same verdict for every seed -------------------------------------------------------------------------------

VERDICTS = {
    "right": (right, {"coins": 2, "cases": 30}, "lossless"),
    "from target": (from_target, {"coins": 2}, "biased"),
    "not strict": (not_strict, {"coins": 2, "cases": 30}, "biased"),
    "one coin": (one_coin, {"coins": 2}, "biased"),
    "located": (rows, {"coins": 2, "batch": True, "tier": "stratified", "cases": 30}, "lossless"),
    "statistics": (sampler, {"batch": True, "tier": "statistical", "tv": 0.02}, "lossless"),
    "wrong statistics": (rejecting_wrongly, {"tv": 0.05}, "biased"),
    "too few": (sampler, {"batch": True, "tier": "statistical", "draws": 1000}, "undecided"),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_twenty_seeds_give_one_verdict(name):
    rule, options, verdict = VERDICTS[name]
    assert {audit(rule, k=1, seed=seed, **options).verdict for seed in range(20)} == {verdict}


def test_the_exact_law_agrees_with_the_frequencies():
    """The two ways to look at one function: branching and drawing."""
    target, draft = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])

    def outcome(rng):
        token = int(rng.choice(3, p=draft))
        return right(target, draft, [token], rng.random(2))

    law, rng = law_of(outcome), np.random.default_rng(0)
    test = SequentialTest(law, tv=0.05, error=1e-6)
    drawn = [outcome(rng) for _ in range(test.draws)]
    test.add({y: drawn.count(y) for y in set(drawn)})
    assert not test.refused and float(law.tv(as_law(target))) < 1e-12
