"""Selection rules, one file each, and their registries in order of preference."""

from ot_spec.selector import Coupling, Registry, Selector
from solvers.selectors.hub import Hub
from solvers.selectors.k_seq import KSeq
from solvers.selectors.maximal_coupling import MaximalCoupling
from solvers.selectors.membership import Membership
from solvers.selectors.rrs import RRS
from solvers.selectors.rrs_without_replacement import RRSWithoutReplacement
from solvers.selectors.top_then_sample import TopThenSampleRule

SELECTORS = Registry("selector")
SELECTORS.register("rrs_without_replacement", RRSWithoutReplacement)
SELECTORS.register("k_seq", KSeq)
SELECTORS.register("rrs", RRS)
SELECTORS.register("top_then_sample", TopThenSampleRule)
SELECTORS.register("hub", Hub)
SELECTORS.register("maximal_coupling", MaximalCoupling)
SELECTORS.register("membership", Membership)

COUPLINGS = Registry("coupling")


def get_selector(name: str, **options: object) -> Selector:
    """The selector of that name with its options; OptionError lists the names there are.

    >>> get_selector("k_seq", rho=2.0).name
    'k_seq'
    """
    return SELECTORS.get(name, **options)


__all__ = [
    "COUPLINGS",
    "RRS",
    "SELECTORS",
    "Hub",
    "KSeq",
    "MaximalCoupling",
    "Membership",
    "RRSWithoutReplacement",
    "TopThenSampleRule",
    "get_coupling",
    "get_selector",
]
