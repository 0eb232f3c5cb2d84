"""What all tiers share: one question for each case, and what can be said once all cases are through."""

from __future__ import annotations

from abc import ABC, abstractmethod
from fractions import Fraction

from proofs_check.branching import BudgetSpent, CannotFollow
from proofs_check.cases import Case
from proofs_check.law_of import Law
from proofs_check.report import CounterExample, Verdict
from proofs_check.subjects import Fault, Subject


class Judge(ABC):
    """Whether a rule is what it should be on a case: None, or a counter-example.

    runs: calls of the rule so far. differs: whether the expected law is not the target on some case. last, tv,
    acceptance: of the last case that passed.
    """

    tier: str
    attempts = 400
    """How many smaller cases are tried."""

    def __init__(self, subject: Subject):
        self.subject = subject
        self.slack = subject.slack
        self.runs, self.differs = 0, False
        self.last: Law | None = None
        self.tv: Fraction | None = None
        self.acceptance: tuple[Fraction, Fraction] | None = None

    def __call__(self, case: Case) -> CounterExample | None:
        try:
            return self.judge(case)
        except (CannotFollow, BudgetSpent):
            raise
        except Fault as fault:
            return CounterExample(case, str(fault))

    @abstractmethod
    def judge(self, case: Case) -> CounterExample | None:
        """The counter-example if the rule fails on the case; Fault for what no law can excuse."""

    def expected(self, case: Case) -> Law:
        """The law the rule should have, noting whether it is the target."""
        expected = self.subject.expected(case)
        self.differs |= expected.tv(self.subject.target(case)) > self.slack
        return expected

    def shrinking(self) -> Judge:
        """The judge that looks for a smaller counter-example."""
        return self

    def verdict(self) -> Verdict:
        """What is known after every case has passed."""
        return "lossy as declared" if self.differs else "lossless"

    def notes(self) -> tuple[str, ...]:
        """Bounds and error rates of that verdict, or of a refusal."""
        return ()

    @property
    def what(self) -> str:
        return "declared law" if self.subject.declared is not None else "target"
