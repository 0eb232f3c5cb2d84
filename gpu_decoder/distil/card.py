"""The card of a drafter: what it is, what it learned from, what it is worth, how to make it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from gpu_decoder.distil.train import Progress
from gpu_decoder.prompt_file import Prompt

_SHAPES = {
    "feature": "a net over the target's hidden states after layers {tap} (in the manner of EAGLE), {layers} deep",
    "llama": "a small causal model of the Llama kind, {layers} layers of width {width}",
}


def card(
    settings: Mapping[str, Any],
    found: Mapping[str, Any],
    history: Sequence[Progress],
    learned: Sequence[Prompt],
    tokens: int,
) -> str:
    """Markdown. found: as `evaluate` gives it, or empty."""
    text, training, machine = settings["text"], settings["train"], settings["environment"]
    tap = ", ".join(map(str, settings["tap"] or ()))
    loss = {"kl": "KL", "tv": "total variation", "alpha": f"1 - α*_{training['k']}"}[training["loss"]]
    warm = "" if training["loss"] == "kl" else f", after KL for the first {100 * training['warm']:g} % of the steps"
    clock = pairwise([0.0, *(progress.seconds for progress in history)])  # it starts anew where a run goes on
    minutes = sum(now - before if now > before else now for before, now in clock) / 60
    lines = [
        f"# A drafter for {settings['target']}",
        "",
        f"Shape: {_SHAPES[settings['shape']].format(**{**settings, 'tap': tap})}; it drafts "
        f"{settings['vocabulary']:,} of the target's tokens. The text that is decoded follows the target's law, "
        "whatever is drafted.",
        "",
        "## Made from",
        "",
        f"- Text: {tokens:,} tokens that the target wrote: {text['conversations']:,} conversations of its own, user's "
        f"turn and answer (turns at temperature {text['turn_temperature']:g}, answers at "
        f"{' and '.join(f'{t:g}' for t in text['temperatures'])}), {text['answers'] if learned else 0} answers to "
        f"each of {len(learned)} given prompts, and {text['begun'] if learned else 0} conversations that begin as each "
        f"of them does. Seed {text['seed']}.",
        f"- Training: {training['steps']:,} steps of about {training['tokens']:,} tokens, loss {loss}{warm}, unrolled "
        f"{training['unroll']} steps; {minutes:.0f} minutes on {machine['gpu'] or 'a CPU'} with {machine['threads']} "
        f"threads. Seed {training['seed']}.",
        f"- Last loss {history[-1].loss:.3f}; sum min(t, d) on the last batch "
        f"{', '.join(f'{value:.3f}' for value in history[-1].overlap)} by steps the drafter goes on by itself.",
    ]
    if settings["command"]:
        lines += ["", "## To make it again", "", "```", settings["command"], "```"]
    if found:
        lines += worth(found)
    return "\n".join(lines) + "\n"


def worth(found: Mapping[str, Any]) -> list[str]:
    """The lines of a card that an evaluation fills."""
    lines = [
        "",
        "## What it is worth",
        "",
        f"On {len(found['prompts'])} prompts that are in no training text, up to {found['tokens']} positions of the "
        f"target's own answer to each. A draft costs {1e3 * found['cost']['draft']:.1f} ms, a call of the target "
        f"{1e3 * found['cost']['target']:.1f} ms: {found['cost']['ratio']:.3f} (one token, batch 1, caches warm).",
    ]
    for heat, one in found["temperatures"].items():
        heats, means = zip(*one["overlaps"].items(), strict=True)
        lines += [
            "",
            f"Target temperature {heat}: mean sum min(t, d) = **{one['overlap']:.3f}** ± {one['overlap_error']:.3f} "
            f"over {one['positions']:,} positions at draft temperature 1; entropy of the target "
            f"{one['target_entropy']:.2f} nats. By draft temperature:",
            "",
            f"| {' | '.join(heats)} |",
            "|---" * len(heats) + "|",
            f"| {' | '.join(f'{mean:.3f}' for mean in means)} |",
            "",
            "Each selector at its best draft temperature:",
            "",
            "| drafts | selector | k | acceptance | draft temperature | positions |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {line['law'].replace('_', ' ')} | {line['selector']} | {line['k']} | {line['acceptance']:.3f} ± "
            f"{line['standard_error']:.3f} | {line['draft_temperature']:g} | {line['rows']} |"
            for line in sorted(one["selectors"], key=lambda line: (line["k"], -line["acceptance"]))
        ]
    lines += ["", "Prompts: " + ", ".join(found["prompts"]) + "."]
    return lines
