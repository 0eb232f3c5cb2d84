"""Rules known to be wrong and rules known to be odd, F01 to F52 and F120, under every tier that can tell."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ot_spec import WithoutReplacement
from proofs_check import CannotFollow, Case, audit, faults, law_of
from proofs_check.cases import prefixes
from proofs_check.faults import Known, known, table
from proofs_check.subjects import FunctionSubject, VerifierSubject

RECORDED = json.loads(Path(__file__).parents[1].joinpath("data", "verifier_faults.json").read_text(encoding="utf-8"))
KNOWN = known()


def identity(one: Known) -> str:
    return f"{one.fault}-{one.name}-{one.verdict.replace(' ', '_')}" + ("-k1" if one.options.get("k") == 1 else "")


# ---- the numbers


def zero_and_two(draft: Any, rng: Any) -> tuple[int, ...]:
    return 0, 2


def two_and_one(draft: Any, rng: Any) -> tuple[int, ...]:
    return 2, 1


def three_of_four(drafts: Any, length: int, rng: Any) -> tuple[tuple[int, ...], ...]:
    """Three of four paths share their first token."""
    return (0,), (0,), (0,), (1,)


def named(name: str | None) -> Any:
    return None if name is None else globals()[name] if name in globals() else getattr(faults, name)


@pytest.mark.parametrize("record", RECORDED, ids=lambda record: f"{record['fault']}-{record['rule']}")
def test_recorded_numbers_are_exact(record: dict[str, Any]) -> None:
    rule, k, length = named(record["rule"]), record.get("k", 1), record.get("length", 0)
    if "rho" in record:
        rule = rule(Fraction(record["rho"]))
    sampler, laws = named(record.get("sampler")), [tuple(record[name]) for name in ("target", "draft")]
    accepted = None
    if length:
        vocab = len(laws[0])
        target, draft = (laws[0],) * len(prefixes(vocab, length)), (laws[1],) * len(prefixes(vocab, length - 1))
        case = Case(target, draft, k, length)
        subject = VerifierSubject(rule, k, length, vocab, sampler, "fractions", tree=k > 1)
        accepted = subject.expected_tokens(case) - 1
    else:
        case = Case(laws[0], laws[1], k)
        law = WithoutReplacement(k) if record.get("distinct") else None
        subject = FunctionSubject(rule, k, case.vocab, law, sampler, "fractions", record.get("coins"))
        accepted, optimum = subject.acceptance(case)
        assert optimum == Fraction(record.get("optimum", optimum))
    subject.declared = named(record.get("declared"))
    law = subject.law(case)
    assert law.tv(subject.expected(case)) == Fraction(record["tv"])
    assert accepted == Fraction(record.get("accepted", accepted))
    if "law" in record:
        assert law.vector(case.vocab).tolist() == [Fraction(mass) for mass in record["law"]]
    if "first" in record:
        first = law.of(lambda tokens: tokens[0])
        assert first.vector(case.vocab).tolist() == [Fraction(mass) for mass in record["first"]]


def test_equal_siblings_come_with_the_right_frequency() -> None:
    draft = np.array([0.5, 0.5])
    for sampler, equal in ((faults.multinomial_by_default, 0), (faults.multinomial_with_replacement, Fraction(1, 2))):
        drawn = law_of(sampler, draft)
        assert sum(mass for tokens, mass in drawn.items() if len(set(tokens)) == 1) == equal
    with pytest.raises(RuntimeError):
        law_of(faults.multinomial_by_default, np.array([1.0, 0.0]))
    assert law_of(faults.multinomial_with_replacement, np.array([1.0, 0.0, 0.0])) == {(0, 0): 1}


# ---- the table

PAIRS = [(one, tier) for one in KNOWN for tier in one.seen_by]
pairs = pytest.mark.parametrize(("one", "tier"), PAIRS, ids=[f"{identity(one)}-{tier}" for one, tier in PAIRS])


def extent(one: Known, tier: str) -> dict[str, Any]:
    """How many cases sampling can afford."""
    named = "cases" in one.options or "cases" in one.sampled
    return {} if tier != "statistical" or named else {"cases": 30 if one.verdict == "biased" else 6}


def due(one: Known, tier: str) -> str:
    """Edge coins can refute a rule and never clear it."""
    return "undecided" if tier == "edge" and one.verdict == "lossless" else one.verdict


@pairs
def test_audit_knows_the_rule(one: Known, tier: str, record_property: Callable[[str, object], None]) -> None:
    report = one.audit(tier=tier, **extent(one, tier))
    record_property("audited", table([(one, report)])[0])
    assert report.verdict == due(one, tier), report
    if one.verdict == "biased":
        found = report.counterexample
        assert found is not None
        assert found.case.vocab <= 4
        assert found.tv is None or found.tv > 0


def test_tiers_see_what_the_others_cannot() -> None:
    """Coins of measure zero change no law; noise used twice cannot be followed."""
    for rule in (faults.accepts_at_equality, faults.total_of_one_assumed):
        assert audit(rule, k=1, coins=2, tier="exact").verdict == "lossless"
        assert audit(rule, k=1, coins=2, tier="edge").verdict == "biased"
    assert audit(faults.shared_noise, kind="decoder", length=1, cases=6, tv=0.1).tier == "statistical"


def test_dropped_duplicates_are_refuted_by_three_tokens() -> None:
    started = time.process_time()
    report = audit(faults.duplicates_dropped, k=2, arrays="fractions")
    assert time.process_time() - started < 5
    assert report.counterexample is not None
    assert report.counterexample.case == Case(target=(1, 0, 1), draft=(0, 2, 1), k=2)
    assert report.counterexample.law == {0: Fraction(7, 18), 2: Fraction(11, 18)}


def test_noise_used_twice_is_named_and_not_guessed() -> None:
    with pytest.raises(CannotFollow, match="exponential noise that is used in two decisions; use the statistical tier"):
        audit(faults.shared_noise, kind="decoder", length=1, tier="exact")


def test_draft_sampler_that_raises_is_named() -> None:
    report = audit(faults.rejection, draft_sampler=faults.multinomial_by_default, cases=[Case((1, 1), (1, 0), 2)])
    assert report.counterexample is not None
    assert "sampler raises RuntimeError" in report.counterexample.message


def test_every_fault_has_its_rules() -> None:
    wrong = {one.fault for one in KNOWN if one.verdict == "biased"}
    right = {one.fault for one in KNOWN if one.verdict != "biased"}
    assert wrong >= {"F01", "F02", "F04", "F06", "F11", "F13", "F33", "F38", "F40", "F41", "F42", "F43", "F44", "F47",
                     "F51", "F120"}  # fmt: skip
    assert right >= {"F08", "F09", "F24", "F39", "F46", "F52"}
    assert {record["fault"] for record in RECORDED} <= wrong | right


# ---- twenty seeds, twenty identical verdicts


def verdicts(one: Known, seeds: int, **options: Any) -> set[str]:
    return {one.audit(seed=seed, tier="exact", **options).verdict for seed in range(seeds)}


SEEDED = ("single_draft", "one_coordinate_removed", "low_confidence_accounted", "rejection_without_replacement",
          "duplicates_dropped", "block", "fresh_noise")  # fmt: skip


@pytest.mark.parametrize("one", [one for one in KNOWN if one.name in SEEDED], ids=identity)
def test_twenty_seeds_twenty_identical_verdicts(one: Known) -> None:
    assert verdicts(one, 20, cases=12) == {one.verdict}


@pytest.mark.deep
@pytest.mark.parametrize("one", [one for one in KNOWN if "exact" in one.seen_by], ids=identity)
def test_twenty_seeds_at_full_extent(one: Known) -> None:
    assert verdicts(one, 20) == {one.verdict}
