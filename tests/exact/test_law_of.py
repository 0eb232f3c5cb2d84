"""The exact law of callables: every function it answers, with a law known by hand, and what it refuses to follow."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction as F

import numpy as np
import pytest
import torch

from ot_spec import as_exact
from proofs_check import BudgetSpent, CannotFollow, Law, law_of, memoised

QUARTERS = (F(1, 4), F(1, 4), F(1, 2))


def law(*masses) -> dict[int, F]:
    """Outcomes 0, 1, ... with these masses."""
    return {y: F(mass) for y, mass in enumerate(masses) if mass}


def pairs(masses) -> dict[tuple[int, int], F]:
    """Two independent draws."""
    return {(a, b): F(masses[a]) * F(masses[b]) for a, b in itertools.product(range(len(masses)), repeat=2)}


NUMPY = {
    "random": (lambda rng: int(rng.random() < 0.25), law(F(3, 4), F(1, 4))),
    "random rows": (lambda rng: (rng.random((2, 1)) < 0.25).astype(int).ravel(), pairs((F(3, 4), F(1, 4)))),
    "uniform": (lambda rng: int(rng.uniform(-1, 3) < 0), law(F(3, 4), F(1, 4))),
    "integers": (lambda rng: rng.integers(3), law(F(1, 3), F(1, 3), F(1, 3))),
    "integers from": (lambda rng: rng.integers(1, 2, endpoint=True), {1: F(1, 2), 2: F(1, 2)}),
    "integers rows": (lambda rng: rng.integers(2, size=2), pairs((F(1, 2), F(1, 2)))),
    "choice": (lambda rng: rng.choice(3, p=[0.25, 0.25, 0.5]), law(*QUARTERS)),
    "choice of items": (lambda rng: rng.choice(["a", "b"]), {"a": F(1, 2), "b": F(1, 2)}),
    "choice rows": (lambda rng: rng.choice(3, size=2, p=[0.25, 0.25, 0.5]), pairs(QUARTERS)),
    "choice without replacement": (
        lambda rng: rng.choice(3, size=2, replace=False, p=[0.25, 0.25, 0.5]),
        {(0, 1): F(1, 12), (1, 0): F(1, 12), (0, 2): F(1, 6), (1, 2): F(1, 6), (2, 0): F(1, 4), (2, 1): F(1, 4)},
    ),
    "multinomial": (
        lambda rng: rng.multinomial(2, [0.25, 0.75]),
        {(2, 0): F(1, 16), (1, 1): F(6, 16), (0, 2): F(9, 16)},
    ),
    "multinomial rows": (
        lambda rng: rng.multinomial(1, [[0.25, 0.75], [1, 0]]).argmax(axis=1),
        {(0, 0): F(1, 4), (1, 0): F(3, 4)},
    ),
    "binomial": (lambda rng: rng.binomial(2, 0.25), law(F(9, 16), F(6, 16), F(1, 16))),
    "permutation": (lambda rng: rng.permutation(2), {(0, 1): F(1, 2), (1, 0): F(1, 2)}),
    "exponential": (lambda rng: np.argmin(rng.exponential(size=3) / [1, 1, 2]), law(*QUARTERS)),
    "exponential scale": (lambda rng: np.argmin(rng.exponential(0.5, size=2) / [1, 3]), law(F(1, 4), F(3, 4))),
    "standard exponential": (
        lambda rng: (np.array([1, 3]) / rng.standard_exponential(2)).argmax(),
        law(F(1, 4), F(3, 4)),
    ),
    "gumbel": (lambda rng: np.argmax(np.zeros(3) + rng.gumbel(size=3)), law(F(1, 3), F(1, 3), F(1, 3))),
}


@pytest.mark.parametrize("name", NUMPY)
def test_a_numpy_generator(name):
    function, expected = NUMPY[name]
    assert dict(law_of(function)) == expected


def test_shuffle_acts_in_place():
    def shuffled(rng):
        items = [0, 1]
        rng.shuffle(items)
        return items

    assert dict(law_of(shuffled)) == {(0, 1): F(1, 2), (1, 0): F(1, 2)}


RANDOM = {
    "random": (lambda: int(random.random() < 0.25), law(F(3, 4), F(1, 4))),
    "uniform": (lambda: int(random.uniform(0, 4) < 1), law(F(3, 4), F(1, 4))),
    "choices": (lambda: random.choices([0, 1, 2], [1, 1, 2], k=2), pairs(QUARTERS)),
    "choices by sums": (lambda: random.choices([0, 1, 2], cum_weights=[1, 2, 4])[0], law(*QUARTERS)),
    "choice": (lambda: random.choice("ab"), {"a": F(1, 2), "b": F(1, 2)}),
    "sample": (lambda: random.sample([0, 1], 2), {(0, 1): F(1, 2), (1, 0): F(1, 2)}),
    "randrange": (lambda: random.randrange(1, 7, 3), {1: F(1, 2), 4: F(1, 2)}),
    "randint": (lambda: random.randint(0, 1), law(F(1, 2), F(1, 2))),
}


@pytest.mark.parametrize("name", RANDOM)
def test_the_random_module(name):
    function, expected = RANDOM[name]
    before = random.getstate()
    assert dict(law_of(function)) == expected
    assert random.getstate() == before


# the functions that old code calls
# ruff: noqa: NPY002
LEGACY = {
    "rand": (lambda: int(np.random.rand() < 0.25), law(F(3, 4), F(1, 4))),
    "rand rows": (lambda: (np.random.rand(2) < 0.25).astype(int), pairs((F(3, 4), F(1, 4)))),
    "random_sample": (lambda: int(np.random.random_sample() < 0.25), law(F(3, 4), F(1, 4))),
    "uniform": (lambda: int(np.random.uniform(0, 4) < 1), law(F(3, 4), F(1, 4))),
    "choice": (lambda: np.random.choice(3, p=[0.25, 0.25, 0.5]), law(*QUARTERS)),
    "multinomial": (lambda: np.random.multinomial(1, [0.25, 0.75]).argmax(), law(F(1, 4), F(3, 4))),
    "randint": (lambda: np.random.randint(0, 2), law(F(1, 2), F(1, 2))),
    "permutation": (lambda: np.random.permutation(2), {(0, 1): F(1, 2), (1, 0): F(1, 2)}),
    "exponential": (lambda: np.argmin(np.random.exponential(size=2) / [1, 3]), law(F(1, 4), F(3, 4))),
    "gumbel": (lambda: np.argmax(np.random.gumbel(size=2)), law(F(1, 2), F(1, 2))),
    "default_rng": (lambda: np.random.default_rng(7).integers(2), law(F(1, 2), F(1, 2))),
}


@pytest.mark.parametrize("name", LEGACY)
def test_numpy_functions_with_global_state(name):
    function, expected = LEGACY[name]
    assert dict(law_of(function)) == expected


def weights(dtype=torch.float64) -> torch.Tensor:
    return torch.tensor([0.25, 0.25, 0.5], dtype=dtype)


TORCH = {
    "rand": (lambda: int(torch.rand(()) < 0.25), law(F(3, 4), F(1, 4))),
    "rand rows": (lambda: (torch.rand(2, 1) < 0.25).long().flatten(), pairs((F(3, 4), F(1, 4)))),
    "rand_like": (lambda: int((torch.rand_like(weights()) < 0.5).sum()), law(F(1, 8), F(3, 8), F(3, 8), F(1, 8))),
    "multinomial": (lambda: torch.multinomial(weights(), 1), {(0,): F(1, 4), (1,): F(1, 4), (2,): F(1, 2)}),
    "multinomial with replacement": (lambda: torch.multinomial(weights(), 2, replacement=True), pairs(QUARTERS)),
    "multinomial without": (
        lambda: torch.multinomial(weights(), 2),
        {(0, 1): F(1, 12), (1, 0): F(1, 12), (0, 2): F(1, 6), (1, 2): F(1, 6), (2, 0): F(1, 4), (2, 1): F(1, 4)},
    ),
    "multinomial rows": (lambda: weights().repeat(2, 1).multinomial(1).flatten(), pairs(QUARTERS)),
    "bernoulli": (lambda: int(torch.bernoulli(torch.tensor(0.25))), law(F(3, 4), F(1, 4))),
    "bernoulli_": (lambda: int(torch.empty(()).bernoulli_(0.25)), law(F(3, 4), F(1, 4))),
    "randint": (lambda: int(torch.randint(0, 2, ())), law(F(1, 2), F(1, 2))),
    "exponential_": (lambda: int((weights() / torch.empty(3).exponential_()).argmax()), law(*QUARTERS)),
    "exponential_ in place": (lambda: int(torch.empty(3).exponential_().div_(weights()).argmin()), law(*QUARTERS)),
    "uniform_": (lambda: int(torch.empty(()).uniform_(0, 4) < 1), law(F(3, 4), F(1, 4))),
    "gumbel from uniform": (lambda: int((-torch.log(-torch.log(torch.rand(2)))).argmax()), law(F(1, 2), F(1, 2))),
    "categorical": (lambda: int(torch.distributions.Categorical(probs=weights()).sample()), law(*QUARTERS)),
    "categorical rows": (
        lambda: torch.distributions.Categorical(probs=weights().repeat(2, 1)).sample(),
        pairs(QUARTERS),
    ),
    "searchsorted": (
        lambda: int(torch.searchsorted(weights().cumsum(0), torch.rand(1, dtype=torch.float64), right=True)),
        law(*QUARTERS),
    ),
    "searchsorted rows": (
        lambda: torch.searchsorted(weights().cumsum(0).repeat(2, 1), torch.rand(2, 1), right=True).flatten(),
        pairs(QUARTERS),
    ),
    "where": (
        lambda: int(torch.where(torch.tensor([True, False]), torch.rand(2), 1.0)[0] < 0.25),
        law(F(3, 4), F(1, 4)),
    ),
}


@pytest.mark.parametrize("name", TORCH)
def test_torch(name):
    function, expected = TORCH[name]
    before = torch.get_rng_state()
    assert dict(law_of(function)) == expected
    assert torch.equal(torch.get_rng_state(), before)


COINS = {
    "<": (lambda u: int(u < 0.25), law(F(3, 4), F(1, 4))),
    "<=": (lambda u: int(u <= 0.25), law(F(3, 4), F(1, 4))),
    "from the right": (lambda u: int(np.float64(0.25) > u), law(F(3, 4), F(1, 4))),
    "times": (lambda u: int(u * 0.5 < 0.25 / 2), law(F(3, 4), F(1, 4))),
    "divided": (lambda u: int(u / 2 + 1 >= 1.125), law(F(1, 4), F(3, 4))),
    "one minus": (lambda u: int(1 - u < 0.25), law(F(3, 4), F(1, 4))),
    "twice": (lambda u: int(u < 0.5) + int(u < 0.25), law(F(1, 2), F(1, 4), F(1, 4))),
    "fractions": (lambda u: int(u * F(1, 3) < F(1, 9)), law(F(2, 3), F(1, 3))),
    "never": (lambda u: int(u < 0) + 2 * int(u >= 1), law(1)),
    "floor": (lambda u: int(u * 3), law(F(1, 3), F(1, 3), F(1, 3))),
    "searchsorted": (lambda u: np.searchsorted([0.25, 0.5, 1.0], u, side="right"), law(*QUARTERS)),
    "digitize": (lambda u: np.digitize(u, [0.25, 0.5]), law(*QUARTERS)),
    "cumulative": (lambda u: int((np.array([0.25, 0.5, 1.0]) <= u).sum()), law(*QUARTERS)),
}


@pytest.mark.parametrize("name", COINS)
def test_coins_branch_where_they_are_compared(name):
    function, expected = COINS[name]
    assert dict(law_of(lambda rng: function(rng.random()))) == expected


def test_two_coins_are_independent_and_one_coin_is_itself():
    assert law_of(lambda rng: int(rng.random() < 0.5) + int(rng.random() < 0.5)) == law(F(1, 4), F(1, 2), F(1, 4))

    def reused(rng):
        coin = rng.random()
        return int(coin < 0.5) + int(coin < 0.5)

    assert law_of(reused) == law(F(1, 2), 0, F(1, 2))


def test_logarithms_of_coins_are_thresholds_and_clocks():
    assert float(law_of(lambda rng: int(np.log(rng.random(1))[0] < np.log(0.25)))[1]) == pytest.approx(0.25)
    assert law_of(lambda rng: np.argmin(-np.log(rng.random(2)) / [1, 3])) == law(F(1, 4), F(3, 4))


def test_exponential_noise_against_a_number():
    found = law_of(lambda: int(random.expovariate(2) < np.log(4) / 2))
    assert float(found[1]) == pytest.approx(3 / 4) and sum(found.values()) == 1


def test_weights_are_exact():
    third = as_exact(np.array(["1/3", "2/3"], dtype=object))
    assert law_of(lambda rng: int(rng.choice(2, p=third))) == law(F(1, 3), F(2, 3))
    assert law_of(lambda rng: int(rng.random() < 0.1))[1] == F(0.1)  # a float counts at its exact value
    assert sum(law_of(lambda rng: rng.choice(3, p=[0.1, 0.2, 0.7])).values()) == 1


def test_laws_compare_push_forward_and_fill_vectors():
    found = law_of(lambda rng: rng.integers(4))
    assert found.of(lambda y: y % 2) == law(F(1, 2), F(1, 2))
    assert found.tv(law(F(1, 2), F(1, 2))) == F(1, 2) == found.tv({0: 0.5, 1: 0.5})
    assert found.vector(5).tolist() == [F(1, 4)] * 4 + [0]
    with pytest.raises(KeyError, match="3 is not one of 3 tokens"):
        found.vector(3)
    assert repr(Law({0: F(1, 2), 1: F(1, 2)})) == "Law({0: 1/2, 1: 1/2})"


def test_outcomes_are_made_hashable():
    outcome = law_of(lambda: {"a": [np.int64(1), np.array([2.0])], "b": torch.tensor([[3]])})
    assert list(outcome) == [(("a", (1, (2.0,))), ("b", ((3,),)))]


def test_a_generator_that_is_given_is_used_as_it_is():
    counts = law_of(lambda rng: rng.bit_generator.state["bit_generator"], rng=np.random.default_rng(1))
    assert dict(counts) == {"PCG64": 1}


# --- what it cannot follow --------------------------------------------------------------------------------------


def sum_of_coins(rng):
    return int(rng.random() + rng.random() < 1)


def noise_used_twice(rng):
    noise = rng.exponential(size=2)
    return int(np.argmin(noise)), int(np.argmin(noise / [1, 2]))


REFUSED = {
    "Generator.standard_normal": lambda rng: rng.standard_normal(),
    "Generator.dirichlet": lambda rng: rng.dirichlet([1, 1]),
    "numpy.sqrt": lambda rng: int(np.sqrt(rng.random(2))[0] < 0.5),
    "random.gauss": lambda: random.gauss(0, 1),
    "numpy.random.randn": lambda: np.random.randn(),
    "torch.randn": lambda: torch.randn(2),
    "Tensor.normal_": lambda: torch.empty(2).normal_(),
    "torch.exp": lambda: torch.exp(torch.rand(2)),
    "different coins": sum_of_coins,
    "a product of two coins": lambda rng: int(rng.random() * rng.random() < 0.5),
    "turned into a number": lambda rng: float(rng.random()),
    "returns a random number": lambda rng: rng.random(),
    "argmax or argmin over coins": lambda rng: np.argmax(rng.random(2)),
    "used in two decisions": noise_used_twice,
}


@pytest.mark.parametrize("operation", REFUSED)
def test_it_names_the_operation_and_the_tier_to_use_instead(operation):
    with pytest.raises(CannotFollow, match="use the statistical tier") as caught:
        law_of(REFUSED[operation])
    assert operation in str(caught.value)
    assert caught.value.tier == "statistical"


def hidden_generator():
    own = np.random.default_rng(3)
    return lambda: int(own.random() < 0.5)


def hidden_generator_behind_a_coin():
    own = np.random.default_rng(3)
    return lambda rng: int(rng.random() < 0.5) and int(own.integers(100))


def counter():
    calls = itertools.count()
    return lambda rng: int(rng.random() < 0.5) + next(calls)


def counting_threshold():
    calls = itertools.count(1)
    return lambda rng: int(rng.random() < 1 / (1 + next(calls)))


def sometimes_no_coin():
    calls = itertools.count()
    return lambda rng: int(next(calls) % 3 == 1 or rng.random() < 0.5)


@pytest.mark.parametrize(
    "make", [hidden_generator, hidden_generator_behind_a_coin, counter, counting_threshold, sometimes_no_coin]
)
def test_randomness_out_of_reach_and_state_are_noticed(make):
    with pytest.raises(CannotFollow, match=r"from run to run|state|fewer choices"):
        law_of(make())


def test_what_a_function_raises_comes_through():
    with pytest.raises(ZeroDivisionError):
        law_of(lambda rng: 1 // int(rng.integers(2)))
    with pytest.raises(ValueError, match="probabilities do not sum to 1"):
        law_of(lambda rng: rng.choice(2, p=[0.5, 0.4]))
    with pytest.raises(RuntimeError, match="without replacement"):
        law_of(lambda: torch.multinomial(torch.tensor([1.0, 0.0]), 2))


def test_the_functions_are_given_back_afterwards():
    names = (random, "random"), (np.random, "rand"), (torch, "rand"), (torch.Tensor, "exponential_")
    before = [getattr(*name) for name in names]
    with pytest.raises(ZeroDivisionError):
        law_of(lambda: 1 // 0)
    assert [getattr(*name) for name in names] == before


# --- budget, progress, memory -----------------------------------------------------------------------------------


def test_a_budget_says_how_much_it_covers():
    with pytest.raises(BudgetSpent, match=r"^10 runs cover 0\.156 of the outcomes"):
        law_of(lambda rng: tuple(rng.integers(2, size=6)), budget=10)
    assert law_of(lambda rng: tuple(rng.integers(2, size=6)), budget=64).runs == 64


def test_progress_counts_runs_and_mass():
    seen = []
    law_of(lambda rng: (rng.integers(40), rng.integers(100)), progress=lambda runs, done: seen.append((runs, done)))
    assert seen == [(1000, 0.25), (2000, 0.5), (3000, 0.75), (4000, 1.0)]


def test_a_memoised_model_is_asked_once_for_each_prefix():
    asked = []

    @memoised
    def model(prefix, *, scale=1):
        asked.append(tuple(prefix))
        return np.array([0.5, 0.5]) * scale

    def decode(rng):
        tokens: list[int] = []
        while len(tokens) < 3:
            tokens.append(int(rng.choice(2, p=model(tokens))))
        return tokens

    assert law_of(decode) == dict.fromkeys(itertools.product((0, 1), repeat=3), F(1, 8))
    assert sorted(asked) == sorted({tuple(p) for n in range(3) for p in itertools.product((0, 1), repeat=n)})
    assert model(np.array([1]), scale=2).tolist() == [1, 1] == model([1], scale=2).tolist()
