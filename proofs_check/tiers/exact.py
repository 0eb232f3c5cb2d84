"""The exact tier: the law of the output by branching over all random choices, compared as rationals."""

from __future__ import annotations

from proofs_check.branching import BudgetSpent, CannotFollow
from proofs_check.cases import Case
from proofs_check.law_of import RUNS, Law
from proofs_check.report import CounterExample
from proofs_check.subjects import Fault, Subject
from proofs_check.tiers.judge import Judge
from proofs_check.tiers.play import play

_SYMBOLIC = (TypeError, AttributeError, NotImplementedError)
_TRIES, _AGAIN = 64, 8


class ExactJudge(Judge):
    """TV between the exact law of the output and the expected law, up to the rounding of the rule's inputs."""

    tier = "exact"

    def __init__(self, subject: Subject, budget: int = RUNS):
        super().__init__(subject)
        self.budget = budget

    def judge(self, case: Case) -> CounterExample | None:
        subject = self.subject
        expected = self.expected(case)
        try:
            law = subject.law(case, self.budget)
        except (CannotFollow, BudgetSpent, Fault):
            raise
        except Exception as error:
            if self._only_symbolic(case, error):
                raise CannotFollow(f"a rule that raises {type(error).__name__} for symbolic coins only") from error
            return CounterExample(case, f"the rule raises {type(error).__name__}: {error}")
        self.runs += law.runs
        self.last, self.tv = law, law.tv(expected)
        if self.tv > self.slack:
            self._confirm(case, law)
            message = f"the output law is {float(self.tv):.6g} away from the {self.what} in TV"
            return CounterExample(case, message, law, expected, self.tv)
        self.acceptance = subject.acceptance(case, self.budget) if subject.declared is None else None
        if self.acceptance is not None and self.acceptance[0] > self.acceptance[1] + self.slack:
            kept, best = (float(a) for a in self.acceptance)
            message = (
                f"acceptance {kept:.9g} is above the optimum {best:.9g}: candidates are not what they are said to be"
            )
            return CounterExample(case, message, law, expected, self.tv)
        return None

    def _confirm(self, case: Case, law: Law) -> None:
        """That the law is the same again, before anybody is accused on the strength of it."""
        for _ in range(_AGAIN if law.runs <= 1000 else 1):
            if self.subject.law(case, self.budget) != law:
                raise CannotFollow("a function whose law changes from run to run (a generator of its own, or state)")

    def _only_symbolic(self, case: Case, error: Exception) -> bool:
        """Whether compiled code, say, refuses symbols where it takes real random numbers."""
        if not isinstance(error, _SYMBOLIC) and not type(error).__module__.startswith("numba"):
            return False
        try:
            play(self.subject, case, seed=0)(_TRIES)
        except Fault:
            return False
        return True
