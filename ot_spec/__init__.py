"""The transport problem behind multi-draft speculative decoding: laws, draft laws, problem, plan, selector protocol."""

from ot_spec.arrays import fractions
from ot_spec.draft_law import (
    IID,
    Candidates,
    DraftLaw,
    Fixed,
    Independent,
    Size,
    TopThenSample,
    WithoutReplacement,
)
from ot_spec.law import align, as_exact, filtered, from_logits, from_probs, reheated
from ot_spec.plan import Cut, TransportPlan
from ot_spec.problem import MembershipTransport, marginal_bound
from ot_spec.selector import Coupling, Registry, Selection, Selector, output_law

__version__ = "0.1.0"

__all__ = [
    "IID",
    "Candidates",
    "Coupling",
    "Cut",
    "DraftLaw",
    "Fixed",
    "Independent",
    "MembershipTransport",
    "Registry",
    "Selection",
    "Selector",
    "Size",
    "TopThenSample",
    "TransportPlan",
    "WithoutReplacement",
    "align",
    "as_exact",
    "filtered",
    "fractions",
    "from_logits",
    "from_probs",
    "marginal_bound",
    "output_law",
    "reheated",
]
