"""Solving the transport problem: exact solvers, selection rules, and the study of the gap between them."""

from solvers.exact.solve import solve
from solvers.exact.subset_selection import optimal_acceptance, optimal_cut
from solvers.selectors import SELECTORS, get_selector

__all__ = ["SELECTORS", "get_selector", "optimal_acceptance", "optimal_cut", "solve"]
