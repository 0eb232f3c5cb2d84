"""The plan of the optimal rules on generated laws, and input that it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ot_spec import (
    IID,
    Fixed,
    HubPair,
    Independent,
    LazyPlan,
    MembershipTransport,
    TopThenSample,
    TransportPlan,
    WithoutReplacement,
)
from ot_spec.errors import OptionError, UnsupportedLawError
from ot_spec.selector import as_float
from proofs_check.strategies import pairs
from solvers import optimal_acceptance, solve

TARGET, DRAFT = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.2, 0.3, 0.4])


@given(pairs(), st.sampled_from([IID, WithoutReplacement]))
def test_fractions_built(pair, kind):
    law = kind(pair.k)
    plan = solve(MembershipTransport(pair.target, pair.draft, law), "lifting")
    assert isinstance(plan, TransportPlan)
    assert plan.acceptance == optimal_acceptance(pair.target, pair.draft, law) == plan.info["cut"].value
    assert (plan.column_marginal() == plan.problem.target).all()
    assert (plan.row_marginal() == plan.problem.probs).all()


@given(pairs(), st.sampled_from([IID, WithoutReplacement]), st.randoms(use_true_random=False))
def test_lazy_reads_like_built(pair, kind, generator):
    law = kind(pair.k)
    target, draft = (pair.target, pair.draft) if kind is IID else (as_float(pair.target), as_float(pair.draft))
    problem = MembershipTransport(target, draft, law)
    plan, built = solve(problem, "lifting", limit=1), solve(problem, "lifting")
    assert isinstance(plan, LazyPlan) or problem.size.edges == 1
    close = 0 if problem.exact else 1e-13
    assert abs(plan.acceptance - built.acceptance) <= close
    assert abs(plan.gap(built.info["cut"])) <= close
    assert (abs(plan.column_marginal() - target) <= close).all()
    coins = np.array([generator.random() for _ in range(pair.k)])
    candidates = law.sample(problem.draft, coins).tokens
    output = plan.conditional(candidates)
    assert abs(output.sum() - 1) <= close and (output >= 0).all() and (output[target == 0] == 0).all()
    if len(set(candidates.tolist())) == pair.k:  # one draw makes this set, but for its order
        assert (abs(output - built.conditional(candidates)) <= close * 100).all()


@pytest.mark.parametrize(
    "law",
    [TopThenSample(2), HubPair(), Fixed([0, 1]), Independent(np.stack([DRAFT, TARGET])), TopThenSample(1)],
)
def test_draft_laws_without_a_rule_are_refused_with_the_methods_that_solve_them(law):
    problem = MembershipTransport(TARGET, DRAFT, law)
    with pytest.raises(UnsupportedLawError, match=f"'lifting' .* {law.name}; use one of lp, .* max_flow$"):
        solve(problem, "lifting")
    with pytest.raises(UnsupportedLawError):
        solve(problem, "lifting", limit=1)
    assert solve(problem).acceptance > 0


def test_limits_and_backends_are_checked():
    problem = MembershipTransport(TARGET, DRAFT, IID(2))
    with pytest.raises(OptionError, match="at least 1 edge, got -1"):
        solve(problem, "lifting", limit=-1)
    with pytest.raises(OptionError, match="'lifting' has no backend 'highs'; there are selector"):
        solve(problem, "lifting", "highs")
