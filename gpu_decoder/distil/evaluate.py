"""What a drafter is worth: its acceptance on prompts it has not learned from, and what a draft costs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpu_decoder.capture import Stage, capture
from gpu_decoder.distil.progress import Tell
from gpu_decoder.distil.whole import write_json
from gpu_decoder.drafters import Drafter
from gpu_decoder.models import LanguageModel, encode_prompt
from gpu_decoder.processing import Processing
from gpu_decoder.prompt_file import Prompt, hash_of
from gpu_decoder.records import refuse_other_settings
from gpu_decoder.tree_slots import Block
from gpu_decoder.verify import TreeReader
from ot_spec import reheated
from ot_spec.captured import Captured, CapturedWriter, overlap, read
from ot_spec.errors import RecordFileError
from solvers.gap.study import gap_study
from solvers.gap.tuned import tuned

DRAFT_TEMPERATURES = (0.6, 0.8, 1.0, 1.25, 1.6)


def judge(
    target: LanguageModel,
    drafter: Drafter,
    prompts: Sequence[Prompt],
    folder: Path,
    *,
    settings: Mapping[str, Any],
    tell: Tell,
    **options: Any,
) -> dict[str, Any]:
    """`evaluate`, with as many processes as torch has threads, kept in the folder as ``evaluation.json``; what is there
    is given again, or refused with RecordFileError where it is of other prompts or settings."""
    file = folder / "evaluation.json"
    asked = {"evaluation": hash_of(prompts), **settings}
    if file.exists():
        try:
            found = json.loads(file.read_text())
            of = found.pop("of")
        except (ValueError, KeyError, AttributeError, TypeError) as reason:
            raise RecordFileError(f"{file} is no evaluation ({reason!r}): delete it to evaluate again") from reason
        refuse_other_settings(of, asked, str(file))
        return found
    found = evaluate(
        target, drafter, prompts, folder, jobs=torch.get_num_threads(),
        on_progress=lambda what, done, of: tell(what, done, of, ""), **options,
    )  # fmt: skip
    write_json(file, {"of": asked, **found})
    return found


def evaluate(
    target: LanguageModel,
    drafter: Drafter,
    prompts: Sequence[Prompt],
    folder: Path,
    *,
    temperatures: Sequence[float] = (1.0, 0.6),
    k: Sequence[int] = (1, 2, 4, 8),
    tokens: int = 24,
    rows: int = 96,
    dear_rows: int = 12,
    seed: int = 0,
    jobs: int | None = None,
    on_progress: Callable[[str, int, int], None] = lambda what, done, of: None,
) -> dict[str, Any]:
    """The drafter's laws along the target's own text on `prompts`, up to `tokens` positions each, at each target
    temperature: mean sum min(t, d) over all positions, at each of `DRAFT_TEMPERATURES`; on `rows` of them, evenly
    spread, the acceptance of each selector and of the optimum at the draft temperature that suits it best. Drafts
    without replacement of many tokens, which take seconds a row, are judged on `dear_rows`.

    The laws are kept in `folder`, the tokens that are never drafted as one: no rule tells them apart. An interrupted
    evaluation goes on where it was. jobs: as in `gap_study`.
    """
    found: dict[str, Any] = {"prompts": [prompt.id for prompt in prompts], "tokens": tokens, "temperatures": {}}
    for heat in temperatures:
        whole, short = folder / f"laws_T{heat:g}", folder / f"drafted_T{heat:g}"

        def told(stage: Stage, heat: float = heat) -> None:
            on_progress(f"capturing at temperature {heat:g}", stage.done, stage.prompts)

        capture(
            list(prompts), whole, target=target, draft=drafter, tokens=tokens, target_law=Processing(heat), seed=seed,
            chat=bool(target.tokenizer.chat_template), progress=told,
        )  # fmt: skip
        _drafted_only(whole, short)
        laws = read(short)
        by_prompt = [
            np.concatenate([batch.overlap for batch in batches])
            for _, batches in groupby(laws.batches(), lambda batch: batch.prompt_id)
        ]
        what = f"judging selectors at temperature {heat:g}"
        table = gap_study(
            captured=[short], k=list(k), draft_temperatures=DRAFT_TEMPERATURES, limit=rows, dear_rows=dear_rows,
            bound=False, seed=seed, jobs=jobs, resume_dir=folder,
            callback=lambda done, of, what=what: on_progress(what, done, of),
        )  # fmt: skip
        # one candidate is drawn by the same law whatever it is called
        best = tuned(table.query("k > 1 or law == 'iid'")).drop(columns=["source", "target_temperature"])
        found["temperatures"][f"{heat:g}"] = {
            "positions": laws.rows,
            "overlap": float(laws.column("overlap").mean()),
            # positions of one prompt are not independent, prompts are
            "overlap_error": _error_of_ratio([part.sum() for part in by_prompt], [len(part) for part in by_prompt]),
            "overlaps": _overlaps(laws),
            "target_entropy": float(read(whole).column("target_entropy").mean()),
            "selectors": best.to_dict("records"),
        }
    found["cost"] = cost(target, drafter, prompts[0])
    return found


def _overlaps(laws: Captured) -> dict[str, float]:
    """Mean sum min(t, d) by draft temperature."""
    sums = np.zeros(len(DRAFT_TEMPERATURES))
    for batch in laws.batches():
        sums += [overlap(batch.target, reheated(batch.draft, heat)).sum() for heat in DRAFT_TEMPERATURES]
    return {f"{heat:g}": float(value) / laws.rows for heat, value in zip(DRAFT_TEMPERATURES, sums, strict=True)}


def _error_of_ratio(sums: Sequence[float], counts: Sequence[int]) -> float:
    """Standard error of sum(sums) / sum(counts), the pairs being independent."""
    total, many, n = float(np.sum(sums)), float(np.sum(counts)), len(sums)
    off = np.asarray(sums) - total / many * np.asarray(counts)
    return float(np.sqrt(n / (n - 1) * (off**2).sum()) / many) if n > 1 else float("nan")


def _drafted_only(whole: Path, short: Path) -> None:
    """The laws of `whole` on the tokens that some row drafts, and one token for all others."""
    laws = read(whole)
    ever = np.zeros(laws.vocab, dtype=bool)
    for batch in laws.batches():
        ever |= (batch.draft > 0).any(axis=0)
    places = np.where(ever, np.cumsum(ever) - 1, ever.sum())  # of each token among those of the short laws
    writer = CapturedWriter(short, int(ever.sum()) + 1, settings={"whole": laws.meta})
    for number, (name, batches) in enumerate(groupby(laws.batches(), lambda batch: batch.prompt_id)):
        if name in writer.done():
            continue
        with writer.part(number, name) as part:
            for batch in batches:
                for row in range(len(batch)):
                    made = [np.append(law[row][ever], law[row][~ever].sum()) for law in (batch.target, batch.draft)]
                    part.append(places[batch.context[row]], int(places[batch.token[row]]), *made)


@torch.inference_mode()
def cost(target: LanguageModel, drafter: Drafter, prompt: Prompt, rounds: int = 30) -> dict[str, float]:
    """Seconds of a call of the target and of the drafter for one token at batch 1, caches warm: medians of `rounds`
    taken in turn, and their ratio draft / target."""
    ids = encode_prompt(target, prompt.turns[0])
    reader, followed = TreeReader(target, 1), TreeReader(target, 1, getattr(drafter, "tap", ()))
    for one in (reader, followed):  # an early exit drafts with the target's own cache
        one.prefill([ids[:-1]])
    session = drafter.start(followed, 1)
    token = ids[-1]
    session.begin([ids])
    times: dict[str, list[float]] = {"target": [], "draft": []}
    for place in range(rounds):
        for name, call in (
            ("target", lambda: reader.read([Block([token], [-1])])),
            ("draft", lambda place=place: session.extend([Block([token], [place - 1])])),
        ):
            began = time.perf_counter()
            settled = call()
            if target.model.device.type == "cuda":
                torch.cuda.synchronize()
            del settled
            times[name].append(time.perf_counter() - began)
            if name == "target":
                reader.drop()
    session.end()
    made = {name: float(np.median(seconds[3:])) for name, seconds in times.items()}
    return {**made, "ratio": made["draft"] / made["target"]}
