"""Rules that commit a path of drafted tokens and one more, and their registry in order of preference."""

from ot_spec.selector import Registry
from ot_spec.tree import SequenceRule
from solvers.sequence.block import Block
from solvers.sequence.point_mass import PointMass
from solvers.sequence.spectr import SpecTr
from solvers.sequence.traversal import Traversal

SEQUENCE_RULES = Registry("sequence rule")
SEQUENCE_RULES.register("traversal", Traversal)
SEQUENCE_RULES.register("spectr", SpecTr)
SEQUENCE_RULES.register("block", Block)
SEQUENCE_RULES.register("point_mass", PointMass)


def get_sequence_rule(name: str, **options: object) -> SequenceRule:
    """The sequence rule of that name with its options; OptionError lists the names there are.

    >>> get_sequence_rule("spectr", selector="rrs")
    SpecTr('rrs')
    """
    return SEQUENCE_RULES.get(name, **options)


__all__ = ["SEQUENCE_RULES", "Block", "PointMass", "SpecTr", "Traversal", "get_sequence_rule"]
