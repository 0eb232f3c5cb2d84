"""Wrong rules that more than one paper's checks must refuse."""

from __future__ import annotations

from typing import Any


class Timid:
    """Before a rule of chains or trees: halves every rate but the root's."""

    def tests(self, tree: Any, target_laws: Any, draft_laws: Any) -> Any:
        rule: Any = super()
        for test in rule.tests(tree, target_laws, draft_laws):
            yield test._replace(rate=test.rate / 2 if test.row else test.rate)
