"""The strategies others can import: what they make, what they make on purpose, and how it shrinks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st

from ot_spec import IID, TopThenSample, WithoutReplacement, as_exact, commit_law
from ot_spec.arrays import is_exact, to_numpy
from ot_spec.errors import OptionError
from proofs_check import strategies
from proofs_check.strategies import LAST_COIN, candidates, coins, generators, laws, laws_along, normalised, pairs, trees
from proofs_check.subjects import ARRAYS
from solvers.sequence import get_sequence_rule

# every health check on, filtering among them
strict = settings(suppress_health_check=[], deadline=None)


@strict
@given(laws(1, 6), pairs(1, 6, 3))
def test_laws_are_exact_and_sum_to_one(law, pair):
    for each in (law, pair.target, pair.draft):
        assert is_exact(each) and all(mass >= 0 for mass in each) and sum(each) == 1
    assert pair.target.shape == pair.draft.shape and 1 <= pair.k <= 3


def examples(strategy: st.SearchStrategy, many: int) -> list[Any]:
    """`many` draws, with every health check on."""
    seen: list[Any] = []

    @settings(suppress_health_check=[], deadline=None, max_examples=many, database=None, derandomize=True)
    @given(strategy)
    def run(value):
        seen.append(value)

    run()
    return seen


def test_nothing_is_filtered_away():
    tree = find(trees(3), lambda tree: len(tree) == 3)
    for strategy in (laws(), pairs(), coins((2, 3)), trees(4), generators(), candidates(normalised([1, 0, 2]), 2)):
        assert examples(strategy, 50)
    assert examples(laws_along(tree, 3), 50)
    source = inspect.getsource(strategies)
    assert not any(word in source for word in ("assume(", ".filter(", "reject("))


KINDS: dict[str, Callable[[Any], bool]] = {
    "zeros in the target": lambda p: (p.target == 0).any(),
    "zeros in the draft": lambda p: (p.draft == 0).any(),
    "disjoint": lambda p: not (np.minimum(p.target, p.draft) > 0).any(),
    "equal": lambda p: (p.target == p.draft).all(),
    "one-hot target": lambda p: p.target.max() == 1 and p.draft.max() < 1,
    "one-hot draft": lambda p: p.draft.max() == 1 and p.target.max() < 1,
    "ties": lambda p: len(set(p.target.tolist())) <= 2 and (p.target > 0).sum() > 2,
    "permuted": lambda p: sorted(p.target) == sorted(p.draft) and (p.target != p.draft).any(),
    "support smaller than k": lambda p: (p.draft > 0).sum() < p.k,
    "residual of two tokens": lambda p: (p.target > p.draft).sum() >= 2,
}


def test_kinds_of_pairs_are_common():
    """Each kind is at least 2 in 100 pairs."""
    seen = examples(pairs(most_k=3), 400)
    shares = {kind: sum(map(holds, seen)) / len(seen) for kind, holds in KINDS.items()}
    assert min(shares.values()) >= 0.02, shares


def test_failures_shrink_to_small_fractions():
    assert find(laws(3, 8), lambda law: (law > 0).sum() > 1).tolist() == [0, Fraction(1, 2), Fraction(1, 2)]
    target, draft, k = find(pairs(), lambda p: (p.target < p.draft).any())
    assert k == 1 and len(target) == 4
    assert {mass.denominator for law in (target, draft) for mass in law} <= {1, 2}
    assert find(coins(2), lambda thrown: thrown.max() > 0).max() in (1.0, 5e-324, LAST_COIN, 2.0**-53, 0.5)
    tree = find(trees(3), lambda tree: tree.height == 2)
    assert tree.tokens.tolist() == [0, 0] and tree.draws.size == 2


@given(st.sampled_from(ARRAYS), st.data())
def test_arrays_are_of_the_kind_asked_for(arrays, data):
    pair = data.draw(pairs(arrays=arrays))
    law = data.draw(laws(arrays=arrays))
    for each in (law, pair.target, pair.draft):
        kind = {"float64": np.float64, "torch64": np.float64, "fractions": object}.get(arrays, np.float32)
        assert type(each).__module__.partition(".")[0] == ("torch" if arrays.startswith("torch") else "numpy")
        assert to_numpy(each).dtype == kind
        assert abs(float(sum(as_exact(each))) - 1) < 1e-6


def test_unknown_arrays_are_refused():
    with pytest.raises(OptionError, match="'float16'"):
        laws(arrays="float16")


@given(pairs(most_k=3), st.data())
def test_candidates_can_be_drawn(pair, data):
    for law in (IID(pair.k), WithoutReplacement(pair.k), TopThenSample(pair.k)):
        drawn = data.draw(candidates(pair.draft, law))
        assert drawn.shape == (pair.k,)
        assert drawn.tolist() in law.tuples(pair.draft)[0].tolist()
    assert data.draw(candidates(pair.draft, pair.k)).min() >= 0


@given(st.data())
def test_laws_along_a_tree_can_draw_it(data):
    tree = data.draw(trees(3, most=4))
    targets, drafts = data.draw(laws_along(tree, 3))
    assert targets.shape == drafts.shape == (len(tree) + 1, 3)
    for node in range(-1, len(tree)):
        assert all(drafts[node + 1, tree.tokens[child]] > 0 for child in tree.drawn(node))
    law = commit_law(get_sequence_rule("spectr", selector="rrs"), tree, targets, drafts, by="conditional")
    assert law.sum() == 1


def test_trees_hold_repeats_branches_and_chains():
    assert find(trees(2), lambda tree: (tree.multiplicity > 1).any()).draws.tolist() == [0, 0]
    assert len(find(trees(2), lambda tree: len(tree.children(-1)) == 2)) == 2
    assert len(find(trees(2), lambda tree: len(tree) == 0)) == 0
    assert find(trees(1, most=4), lambda tree: tree.height == 4).depth.tolist() == [0, 1, 2, 3]


@given(coins((3, 2)))
def test_coins_lie_below_one(thrown):
    assert thrown.shape == (3, 2) and ((thrown >= 0) & (thrown < 1)).all()


@pytest.mark.parametrize("end", [0.0, 5e-324, LAST_COIN])
def test_ends_of_the_coin_are_thrown(end):
    assert find(coins(1), lambda thrown: thrown[0] == end) == [end]


@given(st.data())
def test_generators_are_replayed(data):
    """Two generators of one seed agree; the strategy holds nothing else."""
    rng = data.draw(generators())
    again = np.random.Generator(type(rng.bit_generator)())
    again.bit_generator.state = rng.bit_generator.state
    assert (rng.random(3) == again.random(3)).all()


@pytest.mark.parametrize("name", strategies.PROFILES)
def test_profiles_have_no_deadline(name):
    profile = settings.get_profile(name)
    assert name.startswith("ot-spec-")
    assert profile.deadline is None and HealthCheck.filter_too_much not in profile.suppress_health_check
    assert profile.derandomize == (name != "ot-spec-deep")
