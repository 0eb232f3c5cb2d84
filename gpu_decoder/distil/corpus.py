"""The written text as training reads it: batches by seed and step, and the draft vocabulary it asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open

from ot_spec.errors import OptionError


@dataclass(frozen=True)
class Piece:
    """Tokens start .. end of a shard: a conversation, or its end."""

    shard: int
    start: int
    end: int


@dataclass(frozen=True)
class Batch:
    """Texts of a batch, padded: tokens (B, C), features (B, C, taps * width), the laws after each token as places of
    the draft vocabulary ids (B, C, M), -1 outside it, and probs (B, C, M); counts (B, C): whether a token is one."""

    tokens: torch.Tensor
    features: torch.Tensor
    ids: torch.Tensor
    probs: torch.Tensor
    counts: torch.Tensor


class Corpus:
    """Shards of `text`, a piece a conversation."""

    def __init__(self, files: Sequence[Path]):
        self._files = [safe_open(file, "pt") for file in files]
        self.pieces: list[Piece] = []
        for number, file in enumerate(self._files):
            first = file.get_tensor("first").tolist()
            self.pieces += [Piece(number, *ends) for ends in pairwise(first) if ends[1] - ends[0] >= 4]
        if not self.pieces:
            raise OptionError("the written text holds nothing to learn from")

    def tokens(self) -> int:
        return sum(piece.end - piece.start for piece in self.pieces)

    def masses(self, vocab: int) -> np.ndarray:
        """Mean over the text of the target's law, as far as its likeliest tokens go: (V,)."""
        total, count = np.zeros(vocab), 0
        for number, file in enumerate(self._files):
            ids, logs = file.get_tensor("ids").numpy(), file.get_tensor("logs").float().exp().numpy()
            for piece in (piece for piece in self.pieces if piece.shard == number):
                here = slice(piece.start, piece.end)
                total += np.bincount(ids[here].ravel(), logs[here].ravel(), minlength=vocab)
                count += piece.end - piece.start
        return total / count

    def batches(self, seed: int, epoch: int, tokens: int) -> list[list[Piece]]:
        """The pieces of an epoch in batches of about `tokens` tokens, those of one length together."""
        generator = np.random.default_rng([seed, epoch])
        order = generator.permutation(len(self.pieces))
        made: list[list[Piece]] = []
        for start in range(0, len(order), 1024):
            block = sorted((self.pieces[i] for i in order[start : start + 1024]), key=lambda p: p.end - p.start)
            batch: list[Piece] = []
            for piece in block:
                if batch and (len(batch) + 1) * (piece.end - piece.start) > tokens:
                    made.append(batch)
                    batch = []
                batch.append(piece)
            made.append(batch)
        return [made[i] for i in generator.permutation(len(made))]

    def batch(self, pieces: Sequence[Piece], places: torch.Tensor) -> Batch:
        """Read a batch; places (V,): where each token stands in the draft vocabulary, -1 outside it."""
        longest = max(piece.end - piece.start for piece in pieces)
        parts: dict[str, list[torch.Tensor]] = {name: [] for name in ("tokens", "features", "ids", "logs", "counts")}
        for piece in pieces:
            file, pad = self._files[piece.shard], longest - (piece.end - piece.start)
            for name in ("tokens", "features", "ids", "logs"):
                part = file.get_slice(name)[piece.start : piece.end]
                parts[name].append(torch.nn.functional.pad(part, (*[0] * (2 * part.dim() - 1), pad)))
            parts["counts"].append(torch.arange(longest) < longest - pad)
        made = {name: torch.stack(part) for name, part in parts.items()}
        return Batch(
            made["tokens"].long(),
            made["features"],
            places[made["ids"].long()],
            made["logs"].float().exp(),
            made["counts"],
        )


def draft_vocabulary(masses: np.ndarray, size: int, always: Sequence[int]) -> list[int]:
    """The `size` tokens of largest mass, the largest first, after those of `always`."""
    ranked = np.argsort(-masses, kind="stable")
    return list(dict.fromkeys([*always, *ranked.tolist()]))[:size]
