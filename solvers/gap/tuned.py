"""Each rule at the draft temperature that suits it, and what the optimum wins over it there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from solvers.gap.study import OPTIMUM

__all__ = ["REFERENCES", "tuned"]

REFERENCES = ("iid", "without_replacement")
"""The draft laws whose optimum is compared with every rule."""

COLUMNS = (
    *("source", "target_temperature", "k", "law", "selector", "draft_temperature", "edge", "rows"),
    *("acceptance", "standard_error"),
    *(f"won_by_{law}{error}" for law in REFERENCES for error in ("", "_error")),
)

Frame = Any  # a DataFrame; its declared return types are unions too wide to check against


def tuned(table: pd.DataFrame) -> pd.DataFrame:
    """Each rule of a gap study at its best draft temperature, and the acceptance that the optima win over it.

    One line per source, target temperature, k, draft law and selector (alpha* itself is selector "optimum"), over
    the rows that all selectors of that draft law share: `rows` of them, fewer for a law that is dear. draft_temperature
    is the one of the largest mean acceptance, acceptance that mean, standard_error its standard error over rows; `edge`
    says that it is the hottest or coldest of several. won_by_LAW = mean, over the rows of both, of alpha*(LAW) at its
    own best temperature minus the acceptance of the line; won_by_LAW_error is the standard error of that paired
    difference; NaN where the study does not hold LAW. A temperature is chosen on the rows it is judged on. Rows that
    follow one another in a text are not independent: standard errors are then too small.
    """
    known: Frame = table[table["kind"] != "left out"]
    lines: list[dict[str, Any]] = []
    for (source, temperature, k), group in known.groupby(["source", "target_temperature", "k"], sort=False):
        wide: Frame = group.pivot(index="row", columns=["law", "selector", "draft_temperature"], values="acceptance")
        wide = wide.sort_index(axis=1)
        rules = list(dict.fromkeys(zip(group["law"], group["selector"], strict=True)))
        of_law = {law: wide[law].dropna() for law, _ in rules}
        best = {(law, selector): _best(of_law[law][selector]) for law, selector in rules}
        for (law, selector), (chosen, edge, values) in best.items():
            line = {
                "source": source,
                "target_temperature": temperature,
                "k": k,
                "law": law,
                "selector": selector,
                "draft_temperature": chosen,
                "edge": edge,
                "rows": len(values),
                "acceptance": values.mean(),
                "standard_error": _standard_error(values),
            }
            for reference in REFERENCES:
                _, _, most = best.get((reference, OPTIMUM), (None, None, values * np.nan))
                won = (most - values).dropna()  # by row
                line[f"won_by_{reference}"] = won.mean()
                line[f"won_by_{reference}_error"] = _standard_error(won)
            lines.append(line)
    return pd.DataFrame(lines, columns=list(COLUMNS))


def _best(values: Frame) -> tuple[float, bool, Frame]:
    """The draft temperature of the largest mean, whether it is an end of the grid, and the values there, by row."""
    means = values.mean()
    chosen = means.idxmax()
    edge = len(means) > 1 and chosen in (means.index.min(), means.index.max())
    return float(chosen), bool(edge), values[chosen]


def _standard_error(values: Frame) -> float:
    return float(values.std(ddof=1) / np.sqrt(values.size)) if values.size > 1 else float("nan")
