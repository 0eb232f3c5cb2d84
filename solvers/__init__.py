"""Solving the transport problem: exact solvers, selection rules, and the study of the gap between them."""

from solvers.exact.solve import solve
from solvers.exact.subset_selection import optimal_acceptance, optimal_cut
from solvers.selectors import COUPLINGS, SELECTORS, get_coupling, get_selector
from solvers.sequence import SEQUENCE_RULES, get_sequence_rule

__all__ = [
    "COUPLINGS",
    "SELECTORS",
    "SEQUENCE_RULES",
    "get_coupling",
    "get_selector",
    "get_sequence_rule",
    "optimal_acceptance",
    "optimal_cut",
    "solve",
]
