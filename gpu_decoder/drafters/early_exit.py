"""The target leaving its last layers out, as drafter."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch

from gpu_decoder.drafters.drafter import DraftSession, Scores
from gpu_decoder.models import LanguageModel, without_last_layers
from gpu_decoder.tree_slots import Block
from gpu_decoder.verify import TreeReader


class EarlyExitDrafter:
    """The target's norm and head on an earlier layer's output. It has no weights and no cache of its own: the keys and
    values of the layers it shares with the target are the same for both, so the text is never read for drafting."""

    def __init__(self, layers_left_out: int):
        self.layers_left_out = layers_left_out
        self.name = f"exit:{layers_left_out}"
        self._shorter: weakref.WeakKeyDictionary[torch.nn.Module, LanguageModel] = weakref.WeakKeyDictionary()

    def start(self, target: TreeReader, rows: int) -> DraftSession:
        module = target.model.model
        if module not in self._shorter:
            self._shorter[module] = without_last_layers(target.model, self.layers_left_out)
        return _SharedSession(target, self._shorter[module])


class _SharedSession:
    def __init__(self, target: TreeReader, through: LanguageModel):
        self._target, self._through = target, through

    def begin(self, texts: Sequence[Sequence[int]]) -> list[Scores]:
        unread = [Block.chain(text[kept:]) for text, kept in zip(texts, self._target.lengths, strict=True)]
        return [Scores(scores.logits[-1:]) for scores in self._read(unread)]

    def extend(self, blocks: Sequence[Block]) -> list[Scores]:
        return self._read([Block(block.tokens, [parent + 1 for parent in block.parents]) for block in blocks])

    def _read(self, blocks: Sequence[Block]) -> list[Scores]:
        return [Scores(logits) for logits in self._target.read(blocks, through=self._through)]

    def end(self) -> None:
        self._target.drop()

    def select(self, rows: list[int]) -> None: ...
