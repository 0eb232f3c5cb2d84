"""The whole shelf under audit: exact selectors and sequence rules are lossless, the truncated one biased as it says."""

from __future__ import annotations

import numpy as np
import pytest

from ot_spec import IID, Fixed, HubPair, TopThenSample, WithoutReplacement
from ot_spec.errors import OptionError
from ot_spec.tree import Commit
from proofs_check import Case, audit
from proofs_check.cases import one_step, sequences
from solvers import SELECTORS, get_selector, get_sequence_rule
from solvers.selectors import Luce
from solvers.sequence import Block

LAWS = {
    "iid": IID,
    "without_replacement": WithoutReplacement,
    "top_then_sample": TopThenSample,
    "hub": lambda k: HubPair() if k == 2 else None,
    "fixed": lambda k: Fixed(list(range(k))) if k == 3 else None,
}


def shelf():
    for name in SELECTORS:
        for k in (1, 2, 3):
            for law_name, make in LAWS.items():
                law = make(k)
                if law is not None and get_selector(name).supports(law) and (k > 1 or law_name == "iid"):
                    yield pytest.param(name, law, k, id=f"{name}-{law_name}-{k}")


@pytest.mark.parametrize(("name", "law", "k"), list(shelf()))
def test_selectors(name, law, k):
    """V 4 to 6, fewer cases where a case is dear; the law of `select` is measured, and `conditional` compared."""
    drawn = [case for case in one_step(k, 6, 80, seed=k) if case.vocab >= 4]
    wide = [case for case in drawn if case.vocab == 6 and min(case.draft) > 0][:1]
    chosen = [*[case for case in drawn if case.vocab < 6][: {1: 24, 2: 10, 3: 2}[k]], *wide]
    report = audit(get_selector(name), k=k, law=law, tier="exact", cases=chosen)
    assert report.verdict == "lossless", report
    assert {case.vocab for case in chosen} >= {4, 6}


@pytest.mark.parametrize("vocab", [3, 4])
@pytest.mark.parametrize(
    ("name", "options", "k", "length", "law"),
    [
        ("block", {}, 1, 2, None),
        ("block", {}, 1, 3, None),
        ("traversal", {}, 1, 3, None),
        ("traversal", {}, 2, 2, WithoutReplacement(2)),
        ("point_mass", {}, 2, 2, None),
        ("point_mass", {}, 1, 3, None),
        ("spectr", {"selector": "rrs"}, 1, 3, None),
        ("spectr", {"selector": "rrs"}, 2, 2, None),
        ("spectr", {"selector": "k_seq"}, 2, 2, None),
        ("spectr", {"selector": "rrs_without_replacement"}, 2, 2, WithoutReplacement(2)),
    ],
)
def test_sequence_rules(name, options, k, length, law, vocab):
    rule = get_sequence_rule(name, **options)
    case = sequences(k, length, vocab, 12, seed=vocab)[-1]
    assert case.vocab == vocab
    report = audit(rule, k=k, length=length, law=law, cases=[case])
    assert (report.verdict, report.kind) == ("lossless", "sequence"), report


def test_the_truncated_rule_is_biased_by_what_it_reports():
    rule = Luce(top=1, recompute=False)
    assert not rule.exact
    case = Case(target=(5, 3, 2, 2), draft=(1, 3, 6, 2), k=2)
    report = audit(rule, cases=[case], tier="exact")
    assert report.verdict == "biased"
    target, draft = case.laws()
    assert report.counterexample is not None
    found = audit(rule, cases=[report.counterexample.case], tier="exact")
    small = report.counterexample.case
    assert found.tv == rule.bias(*small.laws(), small.k)
    assert rule.bias(target, draft, 2) > 0


class Longest(Block):
    """Publishes as many drafted tokens as were ever acceptable, and the target's law after them."""

    def commit(self, tree, target_laws, draft_laws, coins):
        node = len(tree) - 1
        return Commit.at(tree, node, int(np.argmax(target_laws[node + 1] > 0)))


def test_a_wrong_sequence_rule_is_refuted():
    report = audit(Longest(), k=1, length=2, cases=2)
    assert report.verdict == "biased"
    with pytest.raises(OptionError, match="exact tier"):
        audit(Block(), tier="statistical")
