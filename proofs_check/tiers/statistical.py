"""The statistical tier: draws of a rule whose randomness is out of reach, tested as they come."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from scipy.special import gammaln, logsumexp

from ot_spec.errors import OptionError
from proofs_check.cases import Case
from proofs_check.law_of import Law
from proofs_check.report import CounterExample, Verdict
from proofs_check.subjects import Subject
from proofs_check.tiers.judge import Judge
from proofs_check.tiers.play import play

POWER = 0.99
_FIRST, _MOST = 256, 1 << 16


class SequentialTest:
    """Whether draws come from the law `expected`; counts are fed in, and it may be asked at any time.

    Three ways to refuse, at a chance of `error` in all that a sampler of the expected law is ever refused:

    1. An outcome of expected probability zero refuses at once. (No false alarm is possible.)
    2. Half of `error`: the likelihood ratio of Dirichlet mixtures around the expected law p,
       E = sum_c w_c Gamma(c)/Gamma(c + n) prod_y Gamma(c p_y + n_y)/Gamma(c p_y) p_y^(-n_y), is a martingale of mean 1
       under p whatever the batches, so P(E >= 2/error at any time) <= error/2 (Ville). Concentrations c reach from
       large, for deviations of size `tv`, down to 1.
    3. Half of `error`: at the end, after `draws`, the empirical TV over the m possible outcomes is held against
       t = sqrt(log(2^m / (error/2)) / (2 n)); by Hoeffding over all 2^m sets of outcomes P(TV >= t) <= error/2 under p.

    Power. If the true law q is at least `tv` from p, the set where q > p has q - p >= tv, and the empirical TV is below
    t only if the share of that set is short of q by tv - t: by Hoeffding the chance is at most exp(-2 n (tv - t)^2).
    `power`, 1 minus that, holds for every such law; `draws_for` inverts it. Early refusals only add to it.

    >>> test = SequentialTest({0: 0.5, 1: 0.5, 2: 0}, tv=0.1, error=1e-6)
    >>> test.draws, round(test.power, 3)
    (1881, 0.99)
    >>> test.add({0: 7, 2: 1})
    >>> test.refused
    'outcome 2 has probability 0 and came out'
    """

    def __init__(self, expected: Mapping[Any, Any], tv: float, error: float, draws: int | None = None):
        if not 0 < tv < 1:
            raise OptionError(f"tv must lie in (0, 1), got {tv}")
        if not 0 < error < 1:
            raise OptionError(f"error must lie in (0, 1), got {error}")
        self.tv, self.error = tv, error
        self.outcomes = {y: i for i, y in enumerate(y for y, mass in expected.items() if mass > 0)}
        law = np.array([float(expected[y]) for y in self.outcomes])
        self.law = law / law.sum()
        size = len(law)
        self.draws = draws_for(size, tv, error) if draws is None else draws
        self.power = _power(size, tv, error, self.draws)
        top = max(1.0, size / (2 * math.pi * tv**2))
        self._scales = top / 8.0 ** np.arange(max(1, math.ceil(math.log(top, 8))))
        self.counts = np.zeros(size, dtype=np.int64)
        self.impossible: Counter[Any] = Counter()
        self.refused = ""

    @property
    def seen(self) -> int:
        return int(self.counts.sum()) + self.impossible.total()

    @property
    def done(self) -> bool:
        """Whether more draws are of no use."""
        return bool(self.refused) or self.seen >= self.draws

    @property
    def empirical_tv(self) -> float:
        return float(abs(self.counts / max(1, self.seen) - self.law).sum() / 2)

    @property
    def log_evidence(self) -> float:
        """log E: at least log(2 / error) refutes the expected law."""
        n, prior = self.seen, self._scales[:, None] * self.law
        terms = gammaln(self._scales) - gammaln(self._scales + n)
        terms = terms + (gammaln(prior + self.counts) - gammaln(prior)).sum(axis=1)
        return np.asarray(logsumexp(terms)).item() - math.log(len(self._scales)) - float(self.counts @ np.log(self.law))

    def add(self, counts: Mapping[Any, int]) -> None:
        """Count more draws, and judge."""
        for outcome, many in counts.items():
            if outcome not in self.outcomes:
                self.impossible[outcome] += many
                continue
            self.counts[self.outcomes[outcome]] += many
        if self.impossible.total():
            self.refused = f"outcome {max(self.impossible)!r} has probability 0 and came out"
            return
        if self.log_evidence >= math.log(2 / self.error):
            self.refused = f"the draws are exp({self.log_evidence:.1f}) times as likely under another law"
        elif self.seen >= self.draws and self.empirical_tv >= _threshold(len(self.law), self.error, self.seen):
            self.refused = f"the empirical law is {self.empirical_tv:.4g} away in TV"


def _threshold(size: int, error: float, draws: int) -> float:
    return math.sqrt((size * math.log(2) + math.log(2 / error)) / (2 * draws))


def _power(size: int, tv: float, error: float, draws: int) -> float:
    room = tv - _threshold(size, error, draws)
    return -math.expm1(-2 * draws * room**2) if room > 0 else 0.0


def draws_for(size: int, tv: float, error: float, power: float = POWER) -> int:
    """Draws after which a law of `size` outcomes at distance `tv` is refused with at least this power.

    n = (sqrt(log(2^size / (error/2))) + sqrt(log(1/(1 - power))))^2 / (2 tv^2).

    >>> draws_for(10, tv=0.003, error=0.05)
    1622914
    """
    parts = size * math.log(2) + math.log(2 / error), -math.log1p(-power)
    return math.ceil((math.sqrt(parts[0]) + math.sqrt(parts[1])) ** 2 / (2 * tv**2) * (1 + 1e-12))


class StatisticalJudge(Judge):
    """A `SequentialTest` for each case; the false-alarm rate `error` is shared among all cases of a run.

    A run is "lossless" (or lossy as declared) if no case was refused and each had power 0.99 at `tv`, else "undecided".
    The search for a smaller counter-example has as much error again, shared among its attempts, and so many draws as
    the first refusal took four times over.
    """

    tier = "statistical"
    attempts = 60

    def __init__(
        self,
        subject: Subject,
        cases: int,
        *,
        tv: float = 0.01,
        error: float = 1e-6,
        draws: int | None = None,
        seed: int = 0,
    ):
        super().__init__(subject)
        if not 0 < error < 1:
            raise OptionError(f"error must lie in (0, 1), got {error}")
        if draws is not None and draws < 1:
            raise OptionError(f"draws must be at least 1, got {draws}")
        self.wanted, self.error, self.seed = tv, error, seed
        self.level, self.limit = error / cases, draws
        self.power, self.most = 1.0, 0
        self._spent = 0

    def judge(self, case: Case) -> CounterExample | None:
        expected = self.expected(case)
        test = SequentialTest(expected, self.wanted, self.level, self.limit)
        draw = play(self.subject, case, self.seed)
        size = _FIRST
        while not test.done:
            many = min(size, test.draws - test.seen)
            test.add(Counter(map(_key, draw(many))))
            self.runs += many
            size = min(2 * size, _MOST)
        counted = {**dict(zip(test.outcomes, test.counts.tolist(), strict=True)), **test.impossible}
        law = Law({y: Fraction(n, test.seen) for y, n in counted.items()})
        self._spent = test.seen
        if test.refused:
            message = (
                f"the output law is not the {self.what}: after {test.seen:,} draws {test.refused} "
                f"(false-alarm rate {self.error:g} a run)"
            )
            return CounterExample(case, message, law, expected, law.tv(expected))
        self.power, self.most = min(self.power, test.power), max(self.most, test.seen)
        self.last, self.tv = law, law.tv(expected)
        return None

    def shrinking(self) -> StatisticalJudge:
        judge = copy.copy(self)
        judge.level, judge.limit = self.error / self.attempts, max(4 * self._spent, 4 * _FIRST)
        return judge

    def verdict(self) -> Verdict:
        return super().verdict() if self.power >= POWER - 1e-9 else "undecided"

    def notes(self) -> tuple[str, ...]:
        return (
            f"statistical: false-alarm rate {self.error:g} a run; a bias of TV {self.wanted:g} on a case is found with "
            f"power {self.power:.4g} at least; up to {self.most:,} draws a case",
        )


def _key(outcome: Any) -> Any:
    return tuple(outcome) if isinstance(outcome, Iterable) else outcome
