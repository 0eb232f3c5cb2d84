"""What a kind of fault is: one statement of what is right, held against our code and against deliberate mutants."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis.strategies import SearchStrategy

RECORDED = json.loads(Path(__file__).parents[1].joinpath("data", "faults.json").read_text(encoding="utf-8"))
CAUGHT = (AssertionError, ArithmeticError, IndexError, RuntimeError, RuntimeWarning, ValueError)


@dataclass(frozen=True)
class Kind:
    """check(subject, case) raises unless the subject is right on the case.

    read: from the data of a recorded case to a case. cases: generated cases of the same kind, None where the recorded
    ones are too large to generate. ours: subjects that must pass. mutants: subjects that must fail, on a
    recorded case and among the generated ones. examples: how many are generated.
    """

    fault: str
    check: Callable[[Any, Any], None]
    read: Callable[[dict], Any]
    ours: dict[str, Any]
    mutants: dict[str, Any]
    cases: SearchStrategy | None = None
    examples: int = 25
    what: str = field(default="")

    @property
    def recorded(self) -> list[Any]:
        found = [self.read(case) for case in recorded(self.fault, self.what)]
        assert found, f"no recorded case of {self.fault} {self.what}"
        return found

    def _generated(self, subject: Any, examples: int, **options: Any) -> None:
        if self.cases is None:
            return

        @settings(max_examples=examples, **options)
        @given(case=self.cases)
        def run(case: Any) -> None:
            self.check(subject, case)

        run()

    def holds(self, subject: Any) -> None:
        for case in self.recorded:
            self.check(subject, case)
        # in proportion to the profile: as many as stated where it takes 40
        self._generated(subject, self.examples * max(1, settings().max_examples // 40))

    def caught(self, subject: Any) -> None:
        red = 0
        for case in self.recorded:
            try:
                self.check(subject, case)
            except CAUGHT:
                red += 1
        assert red, f"no recorded case of {self.fault} turns the mutant red"
        if self.cases is not None:
            once = {"phases": [Phase.generate], "report_multiple_bugs": False, "derandomize": True, "database": None}
            with pytest.raises(CAUGHT):  # stops at the first
                self._generated(subject, 500, **once)


def recorded(fault: str, what: str = "") -> list[dict]:
    """The data of the recorded cases of a fault."""
    return [case for case in RECORDED if case["fault"] == fault and case.get("what", "") == what]


def ours(kinds: list[Kind]) -> Any:
    """Parametrise over every subject of ours, with ids such as F13-rrs."""
    rows = [pytest.param(kind, subject, id=_id(kind, name)) for kind in kinds for name, subject in kind.ours.items()]
    return pytest.mark.parametrize(("kind", "subject"), rows)


def mutants(kinds: list[Kind]) -> Any:
    """Parametrise over every mutant."""
    rows = [pytest.param(kind, wrong, id=_id(kind, name)) for kind in kinds for name, wrong in kind.mutants.items()]
    return pytest.mark.parametrize(("kind", "mutant"), rows)


def _id(kind: Kind, name: str) -> str:
    return "-".join(filter(None, (kind.fault, kind.what, name)))


@contextlib.contextmanager
def refused(error: type[Exception], *words: str) -> Iterator[None]:
    """The block must raise `error` with these words in its message."""
    try:
        yield
    except error as reason:
        assert all(word in str(reason) for word in words), f"{words} not in {str(reason)!r}"
        return
    raise AssertionError(f"accepted what should raise {error.__name__}")
