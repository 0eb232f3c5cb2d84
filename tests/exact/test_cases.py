"""The recorded exact values, by every method that applies."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from ot_spec import IID, MembershipTransport, TopThenSample, WithoutReplacement, fractions, from_probs
from solvers import optimal_acceptance
from solvers.exact.solve import METHODS, solve

CASES = json.loads(Path(__file__).parents[1].joinpath("data", "exact.json").read_text())
LAWS = {
    "optimal_iid": IID,
    "optimal_without_replacement": WithoutReplacement,
    "top_then_sample": TopThenSample,
}
COVERED = [
    (method, backend, key)
    for method, backends in METHODS.items()
    for backend, found in backends.items()
    for key, law in LAWS.items()
    if found.covers(law(2))
]
EXACT = [
    row for row in COVERED if row[:2] in (("rational", "highspy"), ("max_flow", "networkx"), ("lifting", "selector"))
]
TOLERANCE = {("cvxpy", "CLARABEL"): 1e-9}


def recorded(key: str) -> list[dict]:
    """The cases that have a value for `key`; without replacement only supports of at least k have one."""
    found = [case for case in CASES if key in case]
    assert len(found) >= 35
    return found


def laws(case: dict, exact: bool) -> tuple[np.ndarray, np.ndarray]:
    target, draft = fractions(case["target"]), fractions(case["draft"])
    return (target, draft) if exact else (from_probs(target.astype(float)), from_probs(draft.astype(float)))


@pytest.mark.parametrize(("method", "backend", "key"), COVERED)
def test_recorded_optimum_in_floats(method, backend, key):
    for case in recorded(key):
        plan = solve(MembershipTransport(*laws(case, exact=False), LAWS[key](case["k"])), method, backend)
        tolerance = TOLERANCE.get((method, backend), 1e-12)
        assert float(plan.acceptance) == pytest.approx(float(Fraction(case[key])), rel=0, abs=tolerance), case
        assert abs(float(plan.gap(plan.info["cut"]))) <= tolerance, case


@pytest.mark.parametrize(("method", "backend", "key"), EXACT)
def test_recorded_optimum_is_returned_as_the_fraction_itself(method, backend, key):
    for case in recorded(key):
        plan = solve(MembershipTransport(*laws(case, exact=True), LAWS[key](case["k"])), method, backend)
        assert plan.acceptance == Fraction(case[key]), case
        assert plan.info["cut"].value == plan.info["cut"].check() == Fraction(case[key]), case
        assert all(isinstance(flow, Fraction) for flow in plan.flow)


@pytest.mark.parametrize("key", LAWS)
def test_recorded_optimum_by_subset_selection(key):
    for case in recorded(key):
        law = LAWS[key](case["k"])
        assert optimal_acceptance(*laws(case, exact=True), law) == Fraction(case[key]), case
        value = optimal_acceptance(*laws(case, exact=False), law)
        assert float(value) == pytest.approx(float(Fraction(case[key])), rel=0, abs=1e-12), case
