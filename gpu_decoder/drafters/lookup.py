"""Prompt lookup: what followed the last tokens where they stood before, with the law of its counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

from gpu_decoder.drafters.drafter import DraftSession, Scores
from gpu_decoder.tree_slots import Block
from gpu_decoder.verify import TreeReader
from ot_spec.errors import OptionError


class LookupDrafter:
    """n-grams of the text itself. The law after a prefix is the share of each token among those that followed the
    longest suffix (of `longest` tokens at most, 1 at least) that occurs earlier in the text; where none does, nothing
    is proposed. Drafted tokens are looked up as if they were text."""

    def __init__(self, longest: int = 3):
        if longest < 1:
            raise OptionError(f"lookup takes suffixes of at least 1 token, got {longest}")
        self.longest = longest
        self.name = f"lookup:{longest}"

    def start(self, target: TreeReader, rows: int) -> DraftSession:
        device = target.model.model.get_input_embeddings().weight.device
        return _LookupSession(self.longest, target.model.vocab, device, rows)


class _LookupSession:
    def __init__(self, longest: int, vocab: int, device: torch.device, rows: int):
        self._longest, self._vocab, self._device = longest, vocab, device
        self._counts: list[dict[tuple[int, ...], Counter[int]]] = [{} for _ in range(rows)]
        self._read = [0] * rows
        self._ends: list[list[tuple[int, ...]]] = []  # the suffix after the text and after each drafted token

    def begin(self, texts: Sequence[Sequence[int]]) -> list[Scores]:
        for row, text in enumerate(texts):
            for place in range(max(self._read[row], 1), len(text)):
                for length in range(1, min(self._longest, place) + 1):
                    suffix = tuple(text[place - length : place])
                    self._counts[row].setdefault(suffix, Counter())[text[place]] += 1
            self._read[row] = len(text)
        self._ends = [[tuple(text[-self._longest :])] for text in texts]
        return [self._scores(row, ends) for row, ends in enumerate(self._ends)]

    def extend(self, blocks: Sequence[Block]) -> list[Scores]:
        found = []
        for row, block in enumerate(blocks):
            ends = self._ends[row]
            new = []
            for token, parent in zip(block.tokens, block.parents, strict=True):
                new.append((*ends[parent + 1], token)[-self._longest :])
                ends.append(new[-1])
            found.append(self._scores(row, new))
        return found

    def _scores(self, row: int, ends: Sequence[tuple[int, ...]]) -> Scores:
        logits = torch.full((len(ends), self._vocab), -torch.inf, device=self._device)
        proposes = np.zeros(len(ends), dtype=bool)
        entries: list[tuple[int, int, int]] = []
        for place, end in enumerate(ends):
            longer = (self._counts[row].get(end[start:]) for start in range(len(end)))
            counts = next((counts for counts in longer if counts), None)
            if counts is not None:
                proposes[place] = True
                entries += [(place, token, count) for token, count in counts.items()]
        if entries:
            places, tokens, counted = torch.tensor(entries, device=self._device).T
            logits[places, tokens] = torch.log(counted.float())
        return Scores(logits, proposes)

    def end(self) -> None: ...

    def select(self, rows: list[int]) -> None:
        self._counts = [self._counts[row] for row in rows]
        self._read = [self._read[row] for row in rows]
