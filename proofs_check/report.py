"""What an audit says, for people, for CI and for the next bug report."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal
from xml.etree import ElementTree

from proofs_check.cases import Case
from proofs_check.law_of import Law

Verdict = Literal["lossless", "biased", "lossy as declared", "undecided"]


@dataclass(frozen=True)
class CounterExample:
    """The smallest case found on which the rule is not what it should be.

    law, expected: exact laws of the output (None where the rule did not produce one). tv: their distance. message:
    the fault in one sentence.
    """

    case: Case
    message: str
    law: Law | None = None
    expected: Law | None = None
    tv: Fraction | None = None

    def __str__(self) -> str:
        case = self.case
        lines = [f"target {_law_text(case, 'target')}", f"draft  {_law_text(case, 'draft')}"]
        lines.append(f"k = {case.k}" + (f", length = {case.length}" if case.length else ""))
        if self.law is not None and self.expected is not None:
            for outcome in sorted(set(self.law) | set(self.expected), key=repr)[:12]:
                got, due = self.law.get(outcome, Fraction(0)), self.expected.get(outcome, Fraction(0))
                lines.append(
                    f"  {outcome!r}: {_number(got)}, should be {_number(due)}" + ("  <--" if got != due else "")
                )
        return "\n".join([self.message, *lines])


@dataclass(frozen=True)
class Report:
    """The outcome of `audit`.

    verdict: "lossless" the output law is the target on every case; "biased" it is not, see counterexample; "lossy as
    declared" it is the declared law, which is not the target; "undecided" the tier could not tell. tier: which tier
    said so. law, tv: of the counter-example, else of the last case. acceptance: on the last case, (rule, optimum).
    notes: what a reader should know, error rates and bounds among it.
    """

    rule: str
    kind: str
    verdict: Verdict
    tier: str
    cases: int
    runs: int
    seconds: float
    law: Law | None = None
    tv: Fraction | None = None
    counterexample: CounterExample | None = None
    acceptance: tuple[Fraction, Fraction] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the rule is what it should be: lossless, or lossy exactly as declared."""
        return self.verdict in ("lossless", "lossy as declared")

    def __str__(self) -> str:
        lines = [
            f"{self.rule}: {self.verdict} ({self.kind}, {self.tier} tier, {self.cases} cases, "
            f"{self.runs:,} runs, {self.seconds:.1f} s)"
        ]
        if self.acceptance is not None:
            kept, best = (float(a) for a in self.acceptance)
            lines.append(f"acceptance {kept:.6g}, the optimum is {best:.6g} (last case)")
        lines += [f"note: {note}" for note in self.notes]
        if self.counterexample is not None:
            lines += ["smallest counter-example:", str(self.counterexample), "", self.as_test()]
        return "\n".join(lines)

    def as_test(self) -> str:
        """A test that fails as long as the counter-example stands; paste it into a test file."""
        if self.counterexample is None:
            return ""
        case = self.counterexample.case
        module, _, name = self.rule.rpartition(".")
        words = {
            "target": case.target,
            "draft": case.draft,
            "k": case.k,
            **({"length": case.length} if case.length else {}),
        }
        arguments = ", ".join(f"{word}={value}" for word, value in words.items())
        written = {word: _source(value) for word, value in self.options.items()}
        options = "".join(f", {word}={text}" for word, (text, _) in written.items())
        lines = {line for _, line in written.values() if line}
        if module and "<" not in self.rule:
            lines.add(f"from {module} import {name}")
        rule = name if "<" not in name else "rule"
        call = f"{rule}()" if self.kind == "selector" else rule
        return "\n".join(
            [
                *sorted({*lines, "from proofs_check import Case, audit"}),
                "",
                "",
                f"def test_{''.join(c if c.isalnum() else '_' for c in rule).lower()}_keeps_its_law():",
                f"    case = Case({arguments})",
                f"    report = audit({call}, kind={self.kind!r}, cases=[case]{options})",
                "    assert report.passed, report",
            ]
        )

    def as_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        found = self.counterexample
        return {
            "rule": self.rule,
            "kind": self.kind,
            "verdict": self.verdict,
            "tier": self.tier,
            "cases": self.cases,
            "runs": self.runs,
            "seconds": self.seconds,
            "tv": None if self.tv is None else float(self.tv),
            "acceptance": None if self.acceptance is None else [float(a) for a in self.acceptance],
            "notes": list(self.notes),
            "counterexample": None
            if found is None
            else {
                "message": found.message,
                "target": found.case.target,
                "draft": found.case.draft,
                "k": found.case.k,
                "length": found.case.length,
                "tv": None if found.tv is None else float(found.tv),
                "law": None if found.law is None else {repr(o): str(m) for o, m in found.law.items()},
                "expected": None if found.expected is None else {repr(o): str(m) for o, m in found.expected.items()},
                "test": self.as_test(),
            },
        }

    def as_junit(self) -> str:
        """One JUnit test suite with one test case, which fails unless the report passes."""
        suite = ElementTree.Element(
            "testsuite", name="ot-spec audit", tests="1", failures=str(int(not self.passed)), time=f"{self.seconds:.3f}"
        )
        test = ElementTree.SubElement(
            suite, "testcase", classname=self.kind, name=self.rule, time=f"{self.seconds:.3f}"
        )
        if not self.passed:
            failure = ElementTree.SubElement(test, "failure", message=f"{self.rule}: {self.verdict}")
            failure.text = _UNPRINTABLE.sub("?", str(self))
        return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


_UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # what XML cannot hold


def _source(value: Any) -> tuple[str, str]:
    """Source text for an option of `audit`, and the import that it needs."""
    if type(value).__module__ == "ot_spec.draft_law":
        return repr(value), f"from ot_spec import {type(value).__name__}"
    name = getattr(value, "__qualname__", None)
    if name is None:
        return repr(value), ""
    module = value.__module__
    return name.rpartition(".")[2], "" if "<" in name or module == "__main__" else f"from {module} import {name}"


def _number(value: Fraction) -> str:
    return str(value) if value.denominator < 10**6 else f"{float(value):.9g}"


def _law_text(case: Case, name: str) -> str:
    rows = getattr(case, name) if case.length else (getattr(case, name),)
    shown = ["(" + ", ".join(str(Fraction(w, sum(row))) for w in row) + ")" for row in rows]
    return (
        shown[0] if len(set(shown)) == 1 else "by prefix: " + ", ".join(shown[:8]) + (", ..." if len(shown) > 8 else "")
    )
