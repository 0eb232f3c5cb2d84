"""One problem in another arithmetic: floats for the float solvers, fractions for the exact ones."""

from __future__ import annotations

from dataclasses import replace

from ot_spec.draft_law import DraftLaw, Independent
from ot_spec.law import as_exact
from ot_spec.problem import MembershipTransport
from ot_spec.selector import as_float


def in_fractions(problem: MembershipTransport) -> MembershipTransport:
    """The problem of the laws' exact values, normalised exactly; itself where it is exact already.

    >>> from ot_spec import IID
    >>> in_fractions(MembershipTransport([0.5, 0.5], [1.0, 0.0], IID(2))).target
    array([Fraction(1, 2), Fraction(1, 2)], dtype=object)
    """
    return problem if problem.exact else _restated(problem, as_exact)


def in_floats(problem: MembershipTransport) -> MembershipTransport:
    """The problem of the rounded laws; itself where it holds floats already."""
    return _restated(problem, as_float) if problem.exact else problem


def _restated(problem: MembershipTransport, convert) -> MembershipTransport:
    law: DraftLaw = problem.law
    if isinstance(law, Independent):
        law = replace(law, drafts=convert(law.drafts))
    return MembershipTransport(convert(problem.target), convert(problem.draft), law)
