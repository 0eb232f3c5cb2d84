"""The ledger: all theorems, collected from one module a paper, and how a run of one came out."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ot_spec.errors import OptionError
from proofs_check.theorems.instances import seeded
from proofs_check.theorems.theorem import Refuted, Status, Theorem, Undecided, Verdict, worse

__all__ = ["PAPERS", "Outcome", "run", "run_one", "theorems", "title"]

PAPERS = (
    "speculative_sampling",
    "spectr",
    "optimal_cut",
    "canonical",
    "recursive_rejection",
    "spechub",
    "block",
    "traversal",
    "gumbel",
    "rejections",
    "point_mass",
    "gaussian",
    "without_replacement",
    "flows",
    "speed_of_light",
)
"""Modules of this package, each with a tuple THEOREMS."""


@dataclass(frozen=True)
class Outcome:
    """How a run of a theorem came out.

    status: None where the check gave no verdict (a package is missing, the prover gave up); then `scope` says why.
    falsified: what the falsifier found, None where it found nothing or was not run.
    """

    theorem: Theorem
    status: Status | None
    scope: str
    example: str | None
    seconds: float
    full: bool
    falsified: str | None = None

    @property
    def passed(self) -> bool:
        """Whether the run kept what the theorem promises."""
        held = self.status is not None and not worse(self.status, self.theorem.allowed(self.full))
        return held and self.falsified is None

    def sentence(self) -> str:
        """What went wrong, for a run that has not passed."""
        if self.falsified is not None:
            return f"{self.theorem.id}: its falsifier fails: {self.falsified}"
        came = "came to no verdict" if self.status is None else f"came out {self.status}"
        why = self.example or self.scope
        return f"{self.theorem.id} is promised {self.theorem.promised} and {came}: {why}"

    def as_dict(self) -> dict[str, object]:
        theorem = self.theorem
        return {
            "id": theorem.id,
            "statement": theorem.statement,
            "source": theorem.source,
            "status": self.status,
            "scope": self.scope,
            "seconds": round(self.seconds, 3),
            "promised": theorem.promised,
            "example": self.example,
            "passed": self.passed,
        }


def theorems(only: Iterable[str] = ()) -> list[Theorem]:
    """The theorems of all papers in order, or those named: by id ("spectr.3") or by paper ("spectr").

    Only the papers needed are imported. Raises OptionError for a name that is neither.
    """
    wanted = list(dict.fromkeys(only))
    found: list[Theorem] = []
    for paper in dict.fromkeys(name.partition(".")[0] for name in wanted) if wanted else PAPERS:
        if paper not in PAPERS:
            raise OptionError(f"no paper {paper!r} in the ledger; there are {', '.join(PAPERS)}")
        found += importlib.import_module(f"proofs_check.theorems.{paper}").THEOREMS
    known = {theorem.id for theorem in found}
    for name in wanted:
        if "." in name and name not in known:
            there = ", ".join(t.id for t in found if t.id.partition(".")[0] == name.partition(".")[0])
            raise OptionError(f"no theorem {name!r} in the ledger; there are {there}")
    return [t for t in found if not wanted or t.id in wanted or t.id.partition(".")[0] in wanted]


def title(paper: str) -> str:
    """The first line of a paper's module, without its full stop."""
    module = importlib.import_module(f"proofs_check.theorems.{paper}")
    return (module.__doc__ or paper).partition("\n")[0].rstrip(".")


def run_one(theorem: Theorem, full: bool = False, seed: int = 0, falsify: bool = False) -> Outcome:
    """Check one theorem, in the fast or the full form, and let its falsifier try if asked. An error that is neither a
    counter-example nor a missing package nor a prover's giving up is a fault of the check, and passes through."""
    start = time.process_time()
    try:
        with seeded(seed):
            verdict = theorem.check(full)
    except Refuted as found:
        verdict = Verdict("refuted", "a counter-example was found", str(found))
    except Undecided as gave_up:
        return Outcome(theorem, None, str(gave_up), None, time.process_time() - start, full)
    except ModuleNotFoundError as missing:
        if missing.name != "z3":
            raise
        return Outcome(theorem, None, str(missing), None, time.process_time() - start, full)
    falsified = None
    if falsify:
        try:
            theorem.falsifier()
        except (AssertionError, ExceptionGroup) as found:
            falsified = str(found) or "a statement of it does not hold"
    seconds = time.process_time() - start
    return Outcome(theorem, verdict.status, verdict.scope, verdict.example, seconds, full, falsified)


def run(
    only: Iterable[str] = (),
    full: bool = False,
    seed: int = 0,
    falsify: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Outcome]:
    """Outcomes of the theorems named (default: all), one by one as they come."""
    chosen = theorems(only)
    for done, theorem in enumerate(chosen):
        if progress is not None:
            progress(done, len(chosen))
        yield run_one(theorem, full, seed, falsify)
