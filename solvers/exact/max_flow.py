"""Optimal acceptance as a maximum flow: source -> candidate sets -> tokens -> sink.

Capacities are D(S), unlimited, target(y). The tokens that the source still reaches are an optimal cut.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from networkx import DiGraph
from networkx.algorithms.flow import preflow_push

from ot_spec.arrays import as_fraction
from ot_spec.errors import OptionError
from ot_spec.plan import TransportPlan
from ot_spec.problem import MembershipTransport
from solvers.exact.certificate import certified
from solvers.exact.linear_program import TOLERANCE


def solve_networkx(problem: MembershipTransport) -> TransportPlan:
    """Preflow-push on integers: every mass at its exact value, times the common denominator.

    An exact problem gets an exact plan, in its own rationals; one of floats the exact flow, rounded once.
    """
    flow, reached = integer_flow(problem)
    if not problem.exact:
        plan = TransportPlan.repaired(problem, np.array(flow, dtype=np.float64), "max_flow", backend="networkx")
        return certified(plan, reached, TOLERANCE)
    plan = TransportPlan(problem, like_masses(problem, flow), "max_flow", {"backend": "networkx"})
    return certified(plan, reached, 0)


def integer_flow(problem: MembershipTransport) -> tuple[list[Fraction], np.ndarray]:
    """The exact flow on each edge, and a mask (V,) of the tokens that the source still reaches."""
    probs, target = [as_fraction(m) for m in problem.probs], [as_fraction(m) for m in problem.target]
    unit = math.lcm(*(m.denominator for m in probs + target))
    edges = list(zip(problem.edge_set.tolist(), problem.edge_token.tolist(), strict=True))
    network = DiGraph()
    network.add_nodes_from(["source", "sink"])
    network.add_edges_from(("source", ("set", i), {"capacity": int(m * unit)}) for i, m in enumerate(probs))
    network.add_edges_from((("set", i), ("token", y)) for i, y in edges)  # no capacity: unlimited
    network.add_edges_from((("token", y), "sink", {"capacity": int(m * unit)}) for y, m in enumerate(target))
    residual = preflow_push(network, "source", "sink")
    flow = [Fraction(residual["set", i]["token", y]["flow"], unit) for i, y in edges]
    return flow, _reached(residual, problem.vocab)


def _reached(residual: Any, vocab: int) -> np.ndarray:
    seen, todo = {"source"}, ["source"]
    while todo:
        for node, arc in residual[todo.pop()].items():
            if node not in seen and arc["flow"] < arc["capacity"]:
                seen.add(node)
                todo.append(node)
    return np.array([("token", y) in seen for y in range(vocab)], dtype=np.float64)


def like_masses(problem: MembershipTransport, flow: list[Fraction]) -> np.ndarray:
    """Fractions as an object array in the rationals of an exact problem (`Fraction` or `flint.fmpq`)."""
    foreign = {type(mass) for mass in (*problem.probs, *problem.target)} - {int, Fraction}
    kind = foreign.pop() if foreign else Fraction
    out = np.empty(len(flow), dtype=object)
    out[:] = [kind(f.numerator, f.denominator) for f in flow]
    return out


def solve_igraph(problem: MembershipTransport) -> TransportPlan:
    """Push-relabel in float64, in C. Raises OptionError where igraph is not installed."""
    try:
        import igraph
    except ImportError as reason:
        raise OptionError("backend 'igraph' is not installed; pip install 'ot-spec[fast]'") from reason
    sets, edges = problem.probs.size, problem.edge_set.size
    source, sink = sets + problem.vocab, sets + problem.vocab + 1
    ends = np.concatenate(
        [
            np.stack([np.full(sets, source), np.arange(sets)], axis=1),
            np.stack([problem.edge_set, sets + problem.edge_token], axis=1),
            np.stack([sets + np.arange(problem.vocab), np.full(problem.vocab, sink)], axis=1),
        ]
    )
    unlimited = np.full(edges, 1 + problem.probs.sum())  # more than all there is
    capacity = np.concatenate([problem.probs, unlimited, problem.target])
    network = igraph.Graph(n=sink + 1, edges=ends, directed=True)
    found = network.maxflow(source, sink, capacity=capacity.tolist())
    reached = np.zeros(sink + 1)
    reached[found.partition[0]] = 1
    flow = np.asarray(found.flow)[sets : sets + edges]
    plan = TransportPlan.repaired(problem, flow, "max_flow", backend="igraph")
    return certified(plan, reached[sets:source], TOLERANCE)
