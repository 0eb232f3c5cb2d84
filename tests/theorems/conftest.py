"""How a falsifier is seen to fail, without the time that shrinking takes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import Phase, settings


@pytest.fixture
def finds_a_fault(monkeypatch) -> Callable[[Callable[[], None]], None]:
    """Asserts that the falsifier finds something, and nothing but a broken assertion."""

    def check(falsifier: Callable[[], None]) -> None:
        own = falsifier._hypothesis_internal_use_settings  # pyright: ignore[reportFunctionMemberAccess]
        first = settings(own, phases=[Phase.explicit, Phase.generate], report_multiple_bugs=False, print_blob=False)
        with monkeypatch.context() as patch:
            patch.setattr(falsifier, "_hypothesis_internal_use_settings", first)
            with pytest.raises(AssertionError):
                falsifier()

    return check
