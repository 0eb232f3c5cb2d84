"""Is it true? Exact laws of other people's code, and the audit that reports the smallest counter-example."""

from proofs_check.audit import audit
from proofs_check.branching import BudgetSpent, CannotFollow
from proofs_check.cases import Case
from proofs_check.law_of import Law, law_of, memoised
from proofs_check.report import CounterExample, Report

__all__ = ["BudgetSpent", "CannotFollow", "Case", "CounterExample", "Law", "Report", "audit", "law_of", "memoised"]
