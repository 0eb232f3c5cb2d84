"""The checks of the canonical form's statements refuse wrong pieces."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from ot_spec import IID
from proofs_check.theorems import canonical as paper


def test_a_step_with_another_law_than_that_of_the_pick_is_biased(monkeypatch, finds_a_fault):
    right = paper.canonical

    def with_first_draft(rule, probs, target):
        first = {x: [Fraction(int(y == x[0])) for y in range(len(target))] for x in rule}
        made = right(first, probs, target)
        return {x: made[x] if row == first[x] else row for x, row in rule.items()}

    monkeypatch.setattr(paper, "canonical", with_first_draft)
    finds_a_fault(paper._exact_falsifier)


def test_a_pick_that_gives_up_what_is_accepted_is_found(monkeypatch, finds_a_fault):
    monkeypatch.setattr(
        paper,
        "from_plan",
        lambda plan, probs: {x: [Fraction(int(y == x[0])) for y in range(plan.problem.vocab)] for x in probs},
    )
    finds_a_fault(paper._attained_falsifier)


def test_the_refuted_claim_is_judged_by_its_example(monkeypatch, finds_a_fault):
    assert paper._not_canonical(False).status == "refuted"
    probs = paper.table(np.array(paper.EVEN_DRAFT, dtype=object), IID(2))
    picks = {x: [Fraction(int(y == max(x))) for y in range(3)] for x in probs}
    made = paper.canonical(picks, probs, paper.MIXED_TARGET)
    monkeypatch.setattr(paper, "MIXED", made)
    assert paper._not_canonical(False).status == "tested"
    finds_a_fault(paper._not_canonical_falsifier)
