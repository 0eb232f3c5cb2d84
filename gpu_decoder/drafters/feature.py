"""A net over the target's own hidden states, as drafter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from gpu_decoder.drafters.drafter import DraftSession, Scores
from gpu_decoder.drafters.feature_net import FeatureNet, load_feature_net
from gpu_decoder.models import LanguageModel, layers_numbered
from gpu_decoder.tree_slots import Block, TreeSlots
from gpu_decoder.verify import TreeReader


class FeatureDrafter:
    """A trained `FeatureNet`. The target hands it the hidden states of the tokens kept; in the tree it goes on from its
    own. Tokens outside its vocabulary are never drafted."""

    def __init__(self, net: FeatureNet, name: str):
        self.net, self.name, self.tap = net, name, net.config.tap

    @classmethod
    def load(cls, folder: str | Path, target: LanguageModel, name: str | None = None) -> FeatureDrafter:
        """The drafter in a folder; ModelError, VocabularyError where it is none for this target."""
        return cls(load_feature_net(Path(folder), target), name or str(folder))

    def start(self, target: TreeReader, rows: int) -> DraftSession:
        return _FeatureSession(self.net, target, rows)

    def follower(self, target: LanguageModel) -> FeatureFollower:
        """The drafter along a text that the target reads: its laws after every token, from the target's states."""
        return FeatureFollower(self.net, layers_numbered(target, self.tap))


@dataclass(frozen=True)
class FeatureFollower:
    """A `Follower`; after the first token of a text, which no state precedes, all that can be drafted is equally
    likely."""

    net: FeatureNet
    layers: Sequence[torch.nn.Module]

    def start(self) -> Callable[[Sequence[int], list[torch.Tensor], int], torch.Tensor]:
        pairs, before = _Pairs(self.net, 1), []

        def follow(ids: Sequence[int], hidden: list[torch.Tensor], keep: int) -> torch.Tensor:
            features = torch.cat([*before, torch.cat(hidden, dim=-1)[0]])
            before[:] = [features[-1:]]
            given = features[:-1]
            tokens = list(ids)[len(ids) - len(given) :]
            [states] = pairs.read([Block.chain(tokens)], [self.net.fused(given)])
            pairs.slots.keep([list(range(len(tokens)))])
            made = self.net.wide(self.net.logits(states[-keep:]))
            return torch.cat((self.net.wide(made.new_zeros(keep - len(made), self.net.config.drafted)), made))[None]

        return follow


class _Pairs:
    """Reads pairs (state after token i, token i + 1) of a batch of texts and the trees after them."""

    def __init__(self, net: FeatureNet, rows: int):
        self._net, config = net, net.config
        net.look()
        self.slots = TreeSlots(config.layers, rows)
        self.slots.cache.lay_out(config.groups, config.size, net.join.weight)

    def read(self, blocks: Sequence[Block], states: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The net's states after the tokens of each block, which are paired with these states."""
        width = max(len(block.tokens) for block in blocks)
        if width == 0:
            return list(states)
        first = self.slots.take(width)
        mask, positions, tokens = self.slots.laid_out(blocks, first, width)
        mask &= positions[:, first:, None] - positions[:, None, :] < self._net.config.window
        given = states[0].new_zeros(len(blocks), width, states[0].shape[-1])
        for row, part in enumerate(states):
            given[row, : len(part)] = part
        ids, places, seen = (
            torch.from_numpy(a).to(given.device) for a in (tokens, positions[:, first:], mask[:, None])
        )
        out = self._net.read(ids, given, places, seen, self.slots.cache)
        return [row[: len(block.tokens)] for row, block in zip(out, blocks, strict=True)]


class _FeatureSession:
    """Of a long text only those pairs are read that the windows of all layers reach, one through the other: positions
    matter by their differences alone."""

    def __init__(self, net: FeatureNet, target: TreeReader, rows: int):
        self._net, self._target, self._pairs = net, target, _Pairs(net, rows)
        self._states: list[torch.Tensor] = []  # of the tokens read in the tree, the root's first, by row

    def begin(self, texts: Sequence[Sequence[int]]) -> list[Scores]:
        reach = self._net.config.layers * (self._net.config.window - 1) + 1
        tokens, states = [], []
        for text, found in zip(texts, self._target.taken(), strict=True):
            states.append(found[-reach:])
            tokens.append(list(text[len(text) - len(states[-1]) :]))
        fused = [self._net.fused(part) for part in states]
        made = self._pairs.read([Block.chain(part) for part in tokens], fused)
        self._pairs.slots.keep([list(range(len(part))) for part in tokens])
        self._states = [part[-1:] for part in made]
        return [
            # a text of one token has no state before it
            self._scores(part) if len(part) else Scores(torch.zeros(1, 1), np.zeros(1, dtype=bool))
            for part in self._states
        ]

    def extend(self, blocks: Sequence[Block]) -> list[Scores]:
        states = [
            own[[parent + 1 for parent in block.parents]] for own, block in zip(self._states, blocks, strict=True)
        ]
        made = self._pairs.read(blocks, states)
        self._states = [torch.cat(both) for both in zip(self._states, made, strict=True)]
        return [self._scores(part) for part in made]

    def _scores(self, states: torch.Tensor) -> Scores:
        ids, places = self._net.ascending
        logits = self._net.logits(states)
        return Scores(logits.gather(-1, places.expand_as(logits)), ids=ids)

    def end(self) -> None:
        self._pairs.slots.drop()
        self._states = []

    def select(self, rows: list[int]) -> None:
        self._pairs.slots.select(rows)
