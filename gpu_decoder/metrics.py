"""Counts and times of a decode, and what its laws would have given other rules."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ot_spec.arrays import to_numpy
from ot_spec.draft_law import IID, DraftLaw
from ot_spec.tree import Commit, DraftTree, LawsByNode, SequenceRule, laws_array
from solvers import optimal_acceptance
from solvers.selectors import get_selector


@dataclass(frozen=True)
class Step:
    """One target call of one row: tokens on the longest drafted path, drafted nodes, accepted, committed.

    committed is accepted + 1 unless the text ended before.
    """

    depth: int
    drafted: int
    accepted: int
    committed: int


@dataclass
class Tally:
    """Steps of one row. new: tokens of the last step, before they are streamed."""

    steps: list[Step] = field(default_factory=list)
    new: list[int] = field(default_factory=list)

    def add(self, step: Step, new: list[int]) -> None:
        self.steps.append(step)
        self.new = new


@dataclass(frozen=True)
class Summary:
    """What a decode did.

    block_efficiency: tokens per target call, prompts not counted, None without a call. accept_rate: accepted tokens
    per token on the longest drafted path, in [0, 1], None where nothing was drafted. accepted_at[i]: steps that
    accepted i + 1 tokens at least, offered_at[i]: steps that drafted as many. seconds: where the time went.
    """

    tokens: int
    target_calls: int
    block_efficiency: float | None
    accept_rate: float | None
    accepted_at: list[int]
    offered_at: list[int]
    seconds: dict[str, float]
    tokens_per_second: float | None

    @classmethod
    def of(cls, tallies: Sequence[Tally], clock: Clock | None = None) -> Summary:
        steps = [step for tally in tallies for step in tally.steps]
        tokens, depth = sum(s.committed for s in steps), sum(s.depth for s in steps)
        accepted = sum(s.accepted for s in steps)
        longest = max((s.depth for s in steps), default=0)
        seconds = clock.seconds if clock else {}
        spent = sum(seconds.values())
        return cls(
            tokens=tokens,
            target_calls=len(steps),
            block_efficiency=tokens / len(steps) if steps else None,
            accept_rate=accepted / depth if depth else None,
            accepted_at=[sum(s.accepted > i for s in steps) for i in range(longest)],
            offered_at=[sum(s.depth > i for s in steps) for i in range(longest)],
            seconds=dict(seconds),
            tokens_per_second=tokens / spent if spent else None,
        )


class Clock:
    """Wall seconds by what they were spent on: target, draft, selection, cache, rest.

    exact: wait for a device before each reading, so that its work is put where it belongs; it costs some speed.
    """

    def __init__(self, exact: bool = False):
        self.seconds: dict[str, float] = dict.fromkeys(("target", "draft", "selection", "cache", "rest"), 0.0)
        self._exact = exact

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        started = self._now()
        try:
            yield
        finally:
            self.seconds[part] += self._now() - started

    def settle(self, logits: Any) -> None:
        """Wait for the target's logits where times are exact."""
        self._now()

    def _now(self) -> float:
        if self._exact and torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()


class Meter:
    """What the laws met would have given: the acceptance of several selectors at each node, and the optimum there.

    selectors: names, each exact for the draft law of the nodes it is asked about (others are left out). predict: work
    out the mean number of tokens of each step's tree, E[accepted | tree] + 1, from all its laws.
    """

    def __init__(
        self, selectors: Sequence[str] = ("optimal", "k_seq", "rrs", "maximal_coupling"), predict: bool = False
    ):
        self.selectors = {name: get_selector(name) for name in selectors}
        self.rows: list[dict[str, Any]] = []
        self.predicted: list[tuple[float, float, int]] = []
        self._predict = predict

    def step(
        self, rule: SequenceRule, tree: DraftTree, target: LawsByNode, draft: LawsByNode | None, commit: Commit
    ) -> None:
        """Take note of a step: the nodes on the way, down to where it ended."""
        if self._predict:
            stops = to_numpy(rule.conditional(tree, laws_array(target), draft if draft is None else laws_array(draft)))
            stops, counts = stops.sum(axis=1), np.append(0, tree.depth + 1) + 1
            mean = float((stops * counts).sum())
            self.predicted.append((mean, float((stops * counts**2).sum()) - mean**2, commit.accepted + 1))
        if draft is None:
            return
        for depth, node in enumerate([-1, *commit.path.tolist()]):
            many = tree.drawn(node).size
            if many:
                laws = to_numpy(target.row(node + 1)), to_numpy(draft.row(node + 1))
                self.rows.append({"depth": depth, "k": many, **self._acceptances(*laws, many)})

    def _acceptances(self, target: np.ndarray, draft: np.ndarray, k: int) -> dict[str, float]:
        law: DraftLaw = IID(k)
        found = {"optimum": float(optimal_acceptance(target, draft, law))}
        for name, selector in self.selectors.items():
            if selector.supports(law):
                found[name] = float(selector.acceptance(target, draft, law))
        return found

    def interval(self) -> tuple[float, float, float]:
        """Measured tokens a call minus predicted, and the standard deviation of that difference; and the prediction."""
        mean, variance, measured = (np.array(column) for column in zip(*self.predicted, strict=True))
        return (
            float((measured - mean).mean()),
            float(np.sqrt(variance.sum()) / len(mean)),
            float(mean.mean()),
        )

    def counts(self) -> Counter[int]:
        """How often each number of candidates was met."""
        return Counter(row["k"] for row in self.rows)
