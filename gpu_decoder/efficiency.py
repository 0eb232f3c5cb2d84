"""Tokens per target call, measured beside what the laws met predict, over numbers of drafts, lengths and heats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product

import numpy as np
import pandas as pd

from gpu_decoder.decode import Decoder
from gpu_decoder.drafters import Drafter, get_drafter
from gpu_decoder.metrics import Meter, Summary
from gpu_decoder.models import LanguageModel

WATCHED = ("optimal", "k_seq", "rrs", "maximal_coupling")


def efficiency_table(
    target: LanguageModel,
    drafter: Drafter | str | None,
    prompts: Sequence[str] | Sequence[Sequence[int]],
    *,
    selectors: Sequence[str] = ("k_seq",),
    candidates: Iterable[int] = (1, 2, 4, 8),
    lengths: Iterable[int] = (2, 4, 8),
    temperatures: Iterable[float] = (0.0, 0.5, 1.0),
    tokens: int = 32,
    seed: int = 0,
    progress: Callable[[dict[str, object]], None] | None = None,
) -> pd.DataFrame:
    """One row for each selector, K, L and temperature.

    measured: tokens per target call, predicted: the mean of E[accepted | tree] + 1 over the very trees and laws met,
    sd: the standard deviation of their difference, in tokens. Each step's difference has mean zero given what came
    before, so that (measured - predicted)/sd is close to standard normal. Texts are not ended before `tokens`.
    For each watched selector that is exact at the draws met: its mean acceptance at the nodes on the way, and the
    least of `optimum` minus it over all those nodes.
    """
    drafter = get_drafter(drafter, target)
    rows = []
    for name, k, length, heat in product(selectors, candidates, lengths, temperatures):
        meter = Meter(WATCHED, predict=True)
        decoder = Decoder(target, drafter, selector=name, candidates=k, length=length, meter=meter)
        made = decoder.generate(prompts, tokens, temperature=heat, seed=seed, ends=frozenset())
        summary = Summary.of([one.tally for one in made])
        off, sd, mean = meter.interval()
        met = pd.DataFrame(meter.rows)
        row = {"selector": name, "K": k, "L": length, "temperature": heat, "tokens": summary.tokens,
               "target_calls": summary.target_calls, "measured": mean + off, "predicted": mean, "sd": sd}  # fmt: skip
        for watched in ("optimum", *WATCHED):
            if watched in met:
                known = np.array(met[watched], dtype=float)
                row[watched] = float(np.nanmean(known))
                row[f"least_gap_{watched}"] = float(np.nanmin(np.array(met["optimum"]) - known))
        rows.append(row)
        if progress is not None:
            progress(row)
    return pd.DataFrame(rows)
