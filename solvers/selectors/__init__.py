"""Selection rules, one file each, and their registries in order of preference."""

from ot_spec.selector import Coupling, Registry, Selector
from solvers.selectors.gumbel_list import GumbelList
from solvers.selectors.hub import Hub
from solvers.selectors.importance import Importance
from solvers.selectors.k_seq import KSeq
from solvers.selectors.luce import Luce
from solvers.selectors.maximal_coupling import MaximalCoupling
from solvers.selectors.membership import Membership
from solvers.selectors.optimal import Optimal
from solvers.selectors.optimal_without_replacement import OptimalWithoutReplacement
from solvers.selectors.rrs import RRS
from solvers.selectors.rrs_without_replacement import RRSWithoutReplacement
from solvers.selectors.top_then_sample import TopThenSampleRule

SELECTORS = Registry("selector")
SELECTORS.register("optimal", Optimal)
SELECTORS.register("optimal_without_replacement", OptimalWithoutReplacement)
SELECTORS.register("rrs_without_replacement", RRSWithoutReplacement)
SELECTORS.register("k_seq", KSeq)
SELECTORS.register("rrs", RRS)
SELECTORS.register("top_then_sample", TopThenSampleRule)
SELECTORS.register("hub", Hub)
SELECTORS.register("luce", Luce)
SELECTORS.register("importance", Importance)
SELECTORS.register("maximal_coupling", MaximalCoupling)
SELECTORS.register("membership", Membership)

COUPLINGS = Registry("coupling")
COUPLINGS.register("gumbel_list", GumbelList)


def get_selector(name: str, **options: object) -> Selector:
    """The selector of that name with its options; OptionError lists the names there are.

    >>> get_selector("k_seq", rho=2.0).name
    'k_seq'
    """
    return SELECTORS.get(name, **options)


def get_coupling(name: str, **options: object) -> Coupling:
    """The coupling of that name with its options; OptionError lists the names there are.

    >>> get_coupling("gumbel_list").name
    'gumbel_list'
    """
    return COUPLINGS.get(name, **options)


__all__ = [
    "COUPLINGS",
    "RRS",
    "SELECTORS",
    "GumbelList",
    "Hub",
    "Importance",
    "KSeq",
    "Luce",
    "MaximalCoupling",
    "Membership",
    "Optimal",
    "OptimalWithoutReplacement",
    "RRSWithoutReplacement",
    "TopThenSampleRule",
    "get_coupling",
    "get_selector",
]
