"""Selection rules, one file each, and their registry in order of preference."""

from ot_spec.selector import Registry, Selector
from solvers.selectors.k_seq import KSeq
from solvers.selectors.maximal_coupling import MaximalCoupling
from solvers.selectors.rrs import RRS
from solvers.selectors.rrs_without_replacement import RRSWithoutReplacement

SELECTORS = Registry("selector")
SELECTORS.register("rrs_without_replacement", RRSWithoutReplacement)
SELECTORS.register("k_seq", KSeq)
SELECTORS.register("rrs", RRS)
SELECTORS.register("maximal_coupling", MaximalCoupling)


def get_selector(name: str, **options: object) -> Selector:
    """The selector of that name with its options; OptionError lists the names there are.

    >>> get_selector("k_seq", rho=2.0).name
    'k_seq'
    """
    return SELECTORS.get(name, **options)


__all__ = ["RRS", "SELECTORS", "KSeq", "MaximalCoupling", "RRSWithoutReplacement", "get_selector"]
