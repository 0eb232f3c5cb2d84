"""The exact law of what a function returns, by running it over all outcomes of its random choices."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from fractions import Fraction
from typing import Any

import numpy as np
from flint import fmpq

from ot_spec.arrays import as_fraction
from ot_spec.coin import CannotMeasure, Coin
from proofs_check import numpy_source
from proofs_check.branching import BudgetSpent, CannotFollow, Clock, LogCoin, Source

RUNS = 200_000
_REPLAYED, _REPLAYS = 4, 7  # runs that are repeated once; repetitions where no choice is made at all


class Law(Mapping[Any, Fraction]):
    """Outcomes and their probabilities, which add up to exactly one. `runs`: how many runs it took."""

    def __init__(self, masses: Mapping[Any, Any], runs: int = 0):
        self._masses = {outcome: as_fraction(mass) for outcome, mass in masses.items() if mass}
        self.runs = runs

    def __getitem__(self, outcome: Any) -> Fraction:
        return self._masses[outcome]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._masses)

    def __len__(self) -> int:
        return len(self._masses)

    def __repr__(self) -> str:
        shown = ", ".join(f"{outcome!r}: {mass}" for outcome, mass in sorted(self.items(), key=repr)[:12])
        return f"Law({{{shown}{', ...' if len(self) > 12 else ''}}})"

    def of(self, function: Callable[[Any], Any]) -> Law:
        """The law of function(outcome)."""
        masses: dict[Any, Fraction] = {}
        for outcome, mass in self.items():
            image = function(outcome)
            masses[image] = masses.get(image, Fraction(0)) + mass
        return Law(masses, self.runs)

    def tv(self, other: Mapping[Any, Any]) -> Fraction:
        """Total variation distance, half the sum of |difference| over all outcomes of either."""
        outcomes = set(self) | set(other)
        zero = Fraction(0)
        return sum((abs(self.get(o, zero) - as_fraction(other.get(o, 0))) for o in outcomes), start=zero) / 2

    def vector(self, size: int) -> np.ndarray:
        """The law over outcomes 0..size-1 as an array of fractions; KeyError for any other outcome."""
        law = np.full(size, Fraction(0), dtype=object)
        for outcome, mass in self.items():
            if not (isinstance(outcome, int) and 0 <= outcome < size):
                raise KeyError(f"{outcome!r} is not one of {size} tokens")
            law[outcome] = mass
        return law


def law_of(
    function: Callable[..., Any],
    *args: Any,
    budget: int = RUNS,
    progress: Callable[[int, float], None] | None = None,
    **kwargs: Any,
) -> Law:
    """The exact law of function(*args, **kwargs), by replaying it over all outcomes of its random choices.

    A parameter named `rng` that is not given receives a branching stand-in for `numpy.random.Generator` (random,
    uniform, integers, choice, multinomial, binomial, permutation, shuffle, exponential, gumbel). While it runs, the
    functions of the `random` module, of `numpy.random` and, where torch is loaded, torch.rand, rand_like, randint,
    multinomial, bernoulli, Tensor.uniform_, exponential_, bernoulli_ and what is built on them (Categorical) branch.
    Coins branch where they are compared (`coin * b < c`, searchsorted, floor), exponential and Gumbel noise where a
    race is decided (argmax of p/E, of logits + noise). Weights are exact rationals; floats count at their exact value.

    Outcomes are made hashable: arrays and tensors become (nested) tuples. budget: most runs; progress(runs, mass done)
    is called every 1,000 runs. The first runs are made twice, so that randomness out of reach is noticed.

    Raises CannotFollow naming an operation that cannot be followed and the tier to use instead, BudgetSpent if the
    budget does not cover all outcomes; whatever the function itself raises.

    >>> law_of(lambda rng: int(rng.random() < 0.25) + rng.integers(2))
    Law({0: 3/8, 1: 1/2, 2: 1/8})
    """
    source = Source()
    wants_rng = "rng" in _parameters(function) and "rng" not in kwargs
    masses: dict[Any, fmpq] = {}
    runs, done = 0, fmpq(0)

    def run() -> Any:
        source.restart()
        with ExitStack() as stack:
            generator = stack.enter_context(numpy_source.patched(source))
            if "torch" in sys.modules:
                from proofs_check import torch_source

                stack.enter_context(torch_source.patched(source))
            try:
                outcome = function(*args, **kwargs, **({"rng": generator} if wants_rng else {}))
            except CannotMeasure as reason:
                raise CannotFollow(reason.operation) from reason
        return _hashable(outcome)

    while True:
        key = run()
        runs += 1
        for _ in range(_REPLAYS if not source.branched else runs <= _REPLAYED):
            if run() != key:
                raise CannotFollow(
                    "a function whose outcome changes from run to run (a generator of its own, or state)"
                )
        done += source.weight
        masses[key] = masses.get(key, fmpq(0)) + source.weight
        if progress is not None and runs % 1000 == 0:
            progress(runs, float(as_fraction(done)))
        if not source.advance():
            break
        if runs >= budget:
            raise BudgetSpent(
                f"{budget:,} runs cover {float(as_fraction(done)):.3g} of the outcomes; raise budget, use a smaller "
                "case, or the statistical tier"
            )
    if done != 1:
        raise CannotFollow(f"a function whose outcomes weigh {done} in all (state kept between calls)")
    return Law(masses, runs)


def _parameters(function: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def _hashable(outcome: Any) -> Any:
    if isinstance(outcome, Coin | Clock | LogCoin):
        raise CannotFollow("a function that returns a random number")
    if isinstance(outcome, np.generic):
        return outcome.item()
    if isinstance(outcome, np.ndarray) or type(outcome).__module__.startswith("torch"):
        return _hashable(outcome.tolist())
    if isinstance(outcome, list | tuple):
        return tuple(_hashable(part) for part in outcome)
    if isinstance(outcome, dict):
        return tuple(sorted((key, _hashable(value)) for key, value in outcome.items()))
    hash(outcome)
    return outcome


def memoised(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` remembering its answers by the value of its arguments: for model calls inside a decoder, which the
    replay asks for again and again. Only for functions without side effects (no cache that grows)."""
    known: dict[Any, Any] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        key = _hashable([list(args), sorted(kwargs.items())])
        if key not in known:
            known[key] = function(*args, **kwargs)
        return known[key]

    return call
