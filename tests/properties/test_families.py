"""The random families have the properties they are named for, and the same seed gives the same bytes."""

from itertools import pairwise

import numpy as np
import pytest

from ot_spec.errors import OptionError
from ot_spec.families import FAMILIES, STARTS, draw

EVERY = [*FAMILIES, *STARTS]


def overlap(target, draft):
    return np.minimum(target, draft).sum(axis=-1)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("vocab", [2, 5, 300])
def test_rows_are_laws(name, vocab):
    target, draft = draw(name, seed=1, vocab=vocab, rows=7)
    size = 2 if name == "bernoulli" else vocab
    for law in (target, draft):
        assert law.shape == (7, size) and law.dtype == np.float64
        assert (law >= 0).all()
        np.testing.assert_allclose(law.sum(axis=-1), 1, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", EVERY)
def test_the_seed_decides_and_the_name_is_mixed_in(name):
    first, again = draw(name, 3, 6, 5), draw(name, 3, 6, 5)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first, again, strict=True))
    if name != "bernoulli":
        other = draw(name, 4, 6, 5)
        assert any(a.tobytes() != b.tobytes() for a, b in zip(first, other, strict=True))


def test_disjoint_laws_share_nothing():
    assert (overlap(*draw("disjoint", 0, 9, 50)) == 0).all()


def test_equal_laws_are_equal_and_apart_in_memory():
    target, draft = draw("equal", 0, 9, 50)
    assert target.tobytes() == draft.tobytes()
    assert not np.shares_memory(target, draft)


def test_one_hot_laws_have_one_token_the_same_in_every_other_row():
    target, draft = draw("one_hot", 0, 9, 50)
    assert ((target == 1).sum(axis=-1) == 1).all() and ((draft == 1).sum(axis=-1) == 1).all()
    same = overlap(target, draft) == 1
    assert same[::2].all() and not same[1::2].all()


def test_ties_have_zeros_and_equal_ratios():
    target, draft = draw("ties", 0, 8, 40)
    assert (target == 0).any() and (draft == 0).any()
    both = (target > 0) & (draft > 0)
    repeated = [len(np.unique((t[b] / d[b]).round(12))) < b.sum() for t, d, b in zip(target, draft, both, strict=True)]
    assert np.mean(repeated) > 0.6


def test_bernoulli_is_a_grid_without_edges():
    target, draft = draw("bernoulli", 0, 64, 9)
    assert sorted(set(target[:, 0].round(12))) == sorted(set(draft[:, 0].round(12)))
    np.testing.assert_allclose(np.unique(target[:, 0]), [1 / 6, 1 / 2, 5 / 6])
    assert len({tuple(pair) for pair in np.column_stack([target[:, 0], draft[:, 0]])}) == 9


def test_disagreement_runs_from_equal_laws_to_unrelated_ones():
    means = [overlap(*draw("softmax_normal", 0, 50, 200, disagreement=x)).mean() for x in (0, 0.1, 0.3, 0.6, 1)]
    assert means[0] == pytest.approx(1, abs=1e-12)
    assert all(a > b for a, b in pairwise(means))
    target, draft = draw("softmax_normal", 0, 50, 4000, disagreement=1)
    correlation = np.corrcoef(np.log(target).reshape(-1), np.log(draft).reshape(-1))[0, 1]
    assert abs(correlation) < 0.03


def test_zipf_permutes_the_same_masses_and_swaps_decide_how_far():
    target, draft = draw("zipf", 0, 40, 100, exponent=1.5)
    expected = np.arange(1, 41) ** -1.5
    for law in (target, draft):
        np.testing.assert_allclose(-np.sort(-law, axis=-1), np.tile(expected / expected.sum(), (100, 1)))
    near, far = (overlap(*draw("zipf", 0, 40, 100, swaps=s)).mean() for s in (0.05, 1.0))
    assert near > far + 0.2
    assert overlap(*draw("zipf", 0, 40, 10, swaps=0.0)) == pytest.approx(1)


def test_a_small_concentration_gives_peaked_laws_without_nan():
    target, draft = draw("dirichlet", 0, 1000, 20, concentration=1e-4)
    assert np.isfinite(target).all() and np.isfinite(draft).all()
    assert np.median(target.max(axis=-1)) > 0.9
    flat, _ = draw("dirichlet", 0, 1000, 20, concentration=50.0)
    assert flat.max() < 0.01


def test_dirichlet_has_the_right_second_moment():
    concentration, vocab = 0.3, 8
    target, _ = draw("dirichlet", 0, vocab, 40_000, concentration=concentration)
    expected = (concentration + 1) / (vocab * concentration + 1)  # E sum target^2
    found = (target**2).sum(axis=-1)
    assert abs(found.mean() - expected) < 5 * found.std() / 200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nonsense", 0, 4, 4), "no family 'nonsense'; there are dirichlet"),
        (("dirichlet", 0, 1, 4), "at least 2 tokens, got 1"),
        (("dirichlet", 0, 4, 0), "at least 1 row, got 0"),
        (("dirichlet", -1, 4, 4), "seed must be at least 0, got -1"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(OptionError, match=message):
        draw(*arguments)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("dirichlet", {"concentration": 0.0}, "concentration must be a positive number, got 0"),
        ("dirichlet", {"concentration": float("inf")}, "concentration must be a positive number, got inf"),
        ("softmax_normal", {"disagreement": 1.5}, r"disagreement must lie in \[0, 1\], got 1.5"),
        ("softmax_normal", {"scale": -1.0}, "scale must be a positive number"),
        ("zipf", {"swaps": -0.1}, "swaps must be at least 0, got -0.1"),
        ("zipf", {"swaps": float("nan")}, "swaps must be at least 0, got nan"),
        ("ties", {"largest": 0}, "largest must be at least 1, got 0"),
        ("equal", {"scale": 1.0}, "family 'equal' has no parameter 'scale'; it has none"),
        ("zipf", {"scale": 1.0}, "no parameter 'scale'; it has exponent, swaps"),
    ],
)
def test_bad_parameters_are_named(name, parameters, message):
    with pytest.raises(OptionError, match=message):
        draw(name, 0, 4, 4, **parameters)
