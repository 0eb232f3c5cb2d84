"""`solve`: one door to every exact solver."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Literal, NamedTuple, overload

import numpy as np

from ot_spec.draft_law import DraftLaw
from ot_spec.errors import OptionError, UnsupportedLawError
from ot_spec.plan import Plan, TransportPlan
from ot_spec.problem import MembershipTransport
from solvers.exact.arithmetic import in_floats
from solvers.exact.certificate import certified


class Backend(NamedTuple):
    """module, function: where it is, loaded when first used. exact: whether it works in the problem's own arithmetic.

    limit: membership edges it takes unless told otherwise, some seconds on a 2-core machine. laws: names of the draft
    laws it covers, None for all. lazy: whether it takes problems over its limit too, which it is given.
    """

    module: str
    function: str
    exact: bool
    limit: int
    laws: tuple[str, ...] | None = None
    lazy: bool = False

    def covers(self, law: DraftLaw) -> bool:
        """Whether it solves problems with candidates of this law."""
        return self.laws is None or law.name in self.laws


#: method -> backend -> where it is; the first backend is the default.
METHODS: dict[str, dict[str, Backend]] = {
    "lp": {"highs": Backend("linear_program", "solve", False, 500_000)},
    "cvxpy": {
        "HIGHS": Backend("modelled", "solve_highs", False, 300_000),
        "CLARABEL": Backend("modelled", "solve_clarabel", False, 100_000),
    },
    "rational": {"highspy": Backend("rational", "solve", True, 50_000)},
    "max_flow": {
        "networkx": Backend("max_flow", "solve_networkx", True, 30_000),
        "igraph": Backend("max_flow", "solve_igraph", False, 2_000_000),
    },
    "lifting": {"selector": Backend("lifting", "solve", True, 500_000, ("iid", "without_replacement"), True)},
}


@overload
def solve(
    problem: MembershipTransport,
    method: Literal["lp", "cvxpy", "rational", "max_flow"] = "lp",
    backend: str | None = None,
    *,
    limit: int | None = None,
) -> TransportPlan: ...


@overload
def solve(
    problem: MembershipTransport, method: str, backend: str | None = None, *, limit: int | None = None
) -> Plan: ...


def solve(
    problem: MembershipTransport, method: str = "lp", backend: str | None = None, *, limit: int | None = None
) -> Plan:
    """A plan of optimal acceptance, with its certificate in ``info["cut"]``.

    method, backend (the first is the default):

    - "lp": HiGHS through scipy ("highs"). Gap to the certificate about 1e-15.
    - "cvxpy": the modelled statement, by "HIGHS" or by "CLARABEL" (an interior point: 1e-9).
    - "rational": the optimum as a fraction ("highspy"); a problem of floats is taken at its exact value.
    - "max_flow": "networkx" on integers, exact for exact problems; "igraph", fast, in floats.
    - "lifting": the optimal selectors as a plan, nothing solved ("selector"); i.i.d. and without replacement, at any
      size: a `LazyPlan` where the others would raise TooLargeError. See `solvers.exact.lifting`.

    Exact problems given to a float solver are rounded first; ``plan.problem`` says what was solved. limit: the most
    membership edges to build, by default what the backend solves in seconds, never more than
    `ot_spec.problem.EDGE_LIMIT`.

    Raises OptionError for a method or backend that does not exist, UnsupportedLawError for a draft law that the method
    does not cover, TooLargeError before anything is built, with the size, the limit and what to use instead, and
    SolverError, with the status, for an answer that is not proved optimal.

    >>> from ot_spec import IID
    >>> plan = solve(MembershipTransport([0.3, 0.4, 0.3], [0.6, 0.3, 0.1], IID(2)))
    >>> round(float(plan.acceptance), 12), plan.info["cut"].tokens
    (0.89, array([0, 1]))
    """
    chosen = _chosen(method, backend)
    if limit is not None and limit < 1:
        raise OptionError(f"limit must be at least 1 edge, got {limit}")
    if not chosen.covers(problem.law):
        others = (m for m, backends in METHODS.items() if any(b.covers(problem.law) for b in backends.values()))
        raise UnsupportedLawError(
            f"method {method!r} has no rule for candidates of {problem.law.name}; use one of {', '.join(others)}"
        )
    limit = chosen.limit if limit is None else limit
    if chosen.lazy:
        return _function(chosen)(problem, limit)
    problem.require(limit, _instead(backend))
    if not chosen.exact:
        problem = in_floats(problem)
    if not problem.edge_set.size:  # no candidate is ever wanted: nothing to solve
        empty = TransportPlan(problem, problem.probs[:0], method)
        return certified(empty, np.zeros(problem.vocab), 0)
    return _function(chosen)(problem)


def _function(backend: Backend) -> Callable[..., Plan]:
    return getattr(import_module(f"solvers.exact.{backend.module}"), backend.function)


def _chosen(method: str, backend: str | None) -> Backend:
    if method not in METHODS:
        raise OptionError(f"no method {method!r}; there are {', '.join(METHODS)}")
    backends = METHODS[method]
    if backend is None:
        return next(iter(backends.values()))
    if backend not in backends:
        raise OptionError(f"method {method!r} has no backend {backend!r}; there are {', '.join(backends)}")
    return backends[backend]


def _instead(backend: str | None) -> str:
    scalable = "optimal_acceptance and optimal_cut, which need no edges,"
    return scalable if backend == "igraph" else f"{scalable} or method='max_flow' with backend='igraph'"
