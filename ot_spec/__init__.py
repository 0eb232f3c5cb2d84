"""The transport problem behind multi-draft speculative decoding: laws, draft laws, problem, plan, selector protocol."""

from ot_spec.arrays import fractions
from ot_spec.draft_law import (
    IID,
    Candidates,
    DraftLaw,
    Fixed,
    HubPair,
    Independent,
    Size,
    TopThenSample,
    WithoutReplacement,
)
from ot_spec.law import align, as_exact, filtered, from_logits, from_probs, reheated
from ot_spec.plan import Cut, LazyPlan, Plan, TransportPlan
from ot_spec.problem import MembershipTransport, marginal_bound
from ot_spec.selector import Coupling, Registry, Selection, Selector, output_law
from ot_spec.tree import Commit, DraftTree, SequenceRule, commit_law, expected_accepted, sequence_law

__version__ = "0.1.0"

__all__ = [
    "IID",
    "Candidates",
    "Commit",
    "Coupling",
    "Cut",
    "DraftLaw",
    "DraftTree",
    "Fixed",
    "HubPair",
    "Independent",
    "LazyPlan",
    "MembershipTransport",
    "Plan",
    "Registry",
    "Selection",
    "Selector",
    "SequenceRule",
    "Size",
    "TopThenSample",
    "TransportPlan",
    "WithoutReplacement",
    "align",
    "as_exact",
    "commit_law",
    "expected_accepted",
    "filtered",
    "fractions",
    "from_logits",
    "from_probs",
    "marginal_bound",
    "output_law",
    "reheated",
    "sequence_law",
]
