"""Selection at a large vocabulary and whole decodes on a device: `make gpu-bench`.

Each exact selector on batches of 1 to 1,024 rows, then the default model beside transformers' own generation.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch

from gpu_decoder.compare import compare
from gpu_decoder.models import DEFAULT
from gpu_decoder.prompt_file import DEMO_PROMPTS
from gpu_decoder.report import show_comparison
from ot_spec import IID, HubPair, TopThenSample, WithoutReplacement, from_logits
from ot_spec.draft_law import DraftLaw
from solvers import SELECTORS, get_selector
from solvers.gap.screen import new_table, output

_MOST = 10.0  # seconds of one call: larger batches of that selector are left out
_LAWS: tuple[Callable[[int], DraftLaw], ...] = (IID, WithoutReplacement, TopThenSample)


def law_for(rule: Any, candidates: int) -> DraftLaw | None:
    """The first draft law the rule is exact for, of so many candidates if there is one."""
    laws = [make(candidates) for make in _LAWS] + [HubPair(), IID(1)]
    return next((law for law in laws if rule.supports(law)), None)


def selection_times(
    device: torch.device, vocab: int, batches: Sequence[int], candidates: int, seconds: float
) -> list[dict[str, Any]]:
    """Seconds of the fastest call of `select`, for each exact selector and batch."""
    rows = []
    for name in SELECTORS:
        rule = get_selector(name)
        law = law_for(rule, candidates)
        if not rule.exact or law is None:
            continue
        note = ""
        for batch in batches:
            row: dict[str, Any] = {"selector": name, "law": law.name, "k": law.k, "batch": batch}
            if not note:
                try:
                    row["seconds"] = fastest(call(rule, law, device, vocab, batch), device, seconds)
                    note = f"more than {_MOST:g} s a call" if row["seconds"] > _MOST else ""
                except torch.OutOfMemoryError:
                    note = "out of memory"
                    torch.cuda.empty_cache()
            rows.append({"seconds": None, **row, "note": note if "seconds" not in row else ""})
    return rows


def call(rule: Any, law: DraftLaw, device: torch.device, vocab: int, batch: int) -> Callable[[], Any]:
    """Softmax-normal laws of spread 3, the draft's off by a normal of spread 1."""
    made = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=made, device=device)

    def coins(many: int) -> torch.Tensor:
        return torch.rand(batch, many, generator=made, device=device, dtype=torch.float64)

    logits = 3 * normal(batch, vocab)
    target, draft = from_logits(logits), from_logits(logits + normal(batch, vocab))
    drawn = law.sample(draft, coins(law.k)).tokens
    thrown = coins(rule.coins(law.k))
    rule.select(target, draft, drawn, thrown).checked()
    return lambda: rule.select(target, draft, drawn, thrown)


def fastest(run: Callable[[], Any], device: torch.device, seconds: float) -> float:
    """Of calls for so many seconds, two at least."""
    times: list[float] = []
    while len(times) < 2 or sum(times) < seconds:
        synchronize(device)
        started = time.perf_counter()
        run()
        synchronize(device)
        times.append(time.perf_counter() - started)
        if times[0] > _MOST:
            break
    return min(times)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def show_selection(rows: list[dict[str, Any]], vocab: int) -> None:
    batches = list(dict.fromkeys(row["batch"] for row in rows))
    view = new_table(
        f"milliseconds of a selection, V = {vocab:,}",
        ("selector", "draft law", "k", *(f"{batch:,} row{'s' * (batch > 1)}" for batch in batches)),
    )
    for name in dict.fromkeys(row["selector"] for row in rows):
        mine = [row for row in rows if row["selector"] == name]
        cells = (row["note"] if row["seconds"] is None else f"{1e3 * row['seconds']:.3g}" for row in mine)
        view.add_row(name, mine[0]["law"], str(mine[0]["k"]), *cells)
    output().print(view)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda", help="a torch device")
    parser.add_argument("--vocab", type=int, default=128_256)
    parser.add_argument("--batches", default="1,4,16,64,256,1024", help="rows of a selection, separated by commas")
    parser.add_argument("--candidates", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each selection, at least two calls")
    parser.add_argument("--target", default=DEFAULT, help="folder of the model that decodes, or 'smollm2'")
    parser.add_argument("--draft", default=None, help="as of ot-spec decode")
    parser.add_argument("--dtypes", default="float32,bfloat16", help="of the decodes, separated by commas")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=int, default=4, help="prompts of a decode")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    asked = parser.parse_args(argv)
    device = torch.device(asked.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("there is no CUDA device here: nothing to measure (--device cpu runs it all the same)")
        return 0
    batches = [int(batch) for batch in asked.batches.split(",")]
    selection = selection_times(device, asked.vocab, batches, asked.candidates, asked.seconds)
    if not asked.json:
        show_selection(selection, asked.vocab)
    decodes = []
    for dtype in asked.dtypes.split(","):
        found = compare(
            DEMO_PROMPTS,
            target=asked.target,
            draft=asked.draft,
            selectors=("block:1", "k_seq", "optimal"),
            candidates=asked.candidates,
            new_tokens=asked.tokens,
            rounds=asked.rounds,
            limit=asked.limit,
            dtype=dtype,
            device=asked.device,
        )
        decodes.append(asdict(found))
        if not asked.json:
            output().print(f"{found.environment['gpu'] or found.environment['cpu']}, {dtype}", highlight=False)
            show_comparison(found)
    if asked.json:
        print(json.dumps({"vocab": asked.vocab, "selection": selection, "decodes": decodes}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
