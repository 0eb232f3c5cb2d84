"""Deliberate breaks of the decoder: with one of them on, a test of its claim must turn red."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from transformers import GPT2LMHeadModel, LlamaForCausalLM

from gpu_decoder import coins, decode, verify
from gpu_decoder.processing import Processors
from gpu_decoder.verify import TreeReader
from ot_spec.tree import LawsByNode
from solvers.sequence import SpecTr

Mutant = Callable[[], AbstractContextManager[Any]]


@contextmanager
def _inputs_changed(change: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """What models are called with, changed on the way to them."""

    def changed(forward: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **inputs: Any) -> Any:
            if inputs.get("position_ids") is not None:
                change(inputs)
            return forward(self, *args, **inputs)

        return call

    with (
        patch.object(LlamaForCausalLM, "forward", changed(LlamaForCausalLM.forward)),
        patch.object(GPT2LMHeadModel, "forward", changed(GPT2LMHeadModel.forward)),
    ):
        yield


def flattened_positions() -> AbstractContextManager[Any]:
    """A node's position is its place in the block, not its depth."""

    def change(inputs: dict[str, Any]) -> None:
        ids = inputs["position_ids"]
        inputs["position_ids"] = ids[:, :1] + torch.arange(ids.shape[1])

    return _inputs_changed(change)


def seen_siblings() -> AbstractContextManager[Any]:
    """A node sees every node before it in the block."""

    def change(inputs: dict[str, Any]) -> None:
        mask = inputs["attention_mask"].clone()
        new = mask.shape[-2]
        mask[..., -new:] |= torch.ones(new, new).tril().bool()
        inputs["attention_mask"] = mask

    return _inputs_changed(change)


def positions_left_behind() -> AbstractContextManager[Any]:
    """Positions go on by one for each block, not by what was accepted of it."""
    calls: Counter[int] = Counter()

    def change(inputs: dict[str, Any]) -> None:
        ids = inputs["position_ids"]
        calls[0] += ids.shape[1] > 1
        inputs["position_ids"] = ids - (ids[:, :1] - 5 - calls[0]).clamp(min=0)

    return _inputs_changed(change)


def first_slots_kept() -> AbstractContextManager[Any]:
    """The first slots of the block are kept, whatever path was accepted."""
    keep = TreeReader.keep

    def kept(self: TreeReader, paths: Sequence[Sequence[int]]) -> None:
        keep(self, [list(range(len(path))) for path in paths])

    return patch.object(TreeReader, "keep", kept)


@contextmanager
def advanced_by_the_longest() -> Iterator[None]:
    """Every row of a batch goes on behind the row that accepted most."""
    keep = TreeReader.keep

    def kept(self: TreeReader, paths: Sequence[Sequence[int]]) -> None:
        start, most = list(self.lengths), max(map(len, paths))
        keep(self, paths)
        self._slots.lengths = [length + most for length in start]

    with patch.object(TreeReader, "keep", kept):
        yield


def last_row_is_the_one_before() -> AbstractContextManager[Any]:
    """The token after the last node is drawn from the law before it."""
    read = TreeReader.read

    def shifted(self: TreeReader, *args: Any, **options: Any) -> list[torch.Tensor]:
        return [
            torch.cat([logits[:-1], logits[-2:-1]]) if len(logits) > 1 else logits
            for logits in read(self, *args, **options)
        ]

    return patch.object(TreeReader, "read", shifted)


def rows_one_too_far() -> AbstractContextManager[Any]:
    """Each row of logits is held against the draft after the next: the first draft is never tested."""
    read = TreeReader.read

    def shifted(self: TreeReader, *args: Any, **options: Any) -> list[torch.Tensor]:
        found = read(self, *args, **options)
        return [torch.cat([logits[1:], logits[-1:]]) if len(logits) > 1 else logits for logits in found]

    return patch.object(TreeReader, "read", shifted)


def declared_at_another_temperature() -> AbstractContextManager[Any]:
    """The rule is told the draft law at half the temperature that the tokens were drawn at."""
    commit = SpecTr.commit

    def declared(self: SpecTr, tree: Any, target: Any, draft: Any, coins: Any) -> Any:
        def colder(row: int) -> Any:
            squared = draft.row(row) ** 2
            return squared / squared.sum()

        return commit(self, tree, target, LawsByNode(draft.shape[0], draft.shape[1], colder), coins)

    return patch.object(SpecTr, "commit", declared)


def one_state_for_all_branches() -> AbstractContextManager[Any]:
    """Processors are not copied for a branch."""
    return patch.object(Processors, "fork", lambda self: self)


def keyed_by_place() -> AbstractContextManager[Any]:
    """A row's coins depend on where it stands in the batch."""

    def keys(seed: int, texts: Any, told: Any = None) -> list[int]:
        return [key + place for place, key in enumerate(coins.row_keys(seed, texts, told))]

    return patch.object(decode, "row_keys", keys)


def windows_forgotten() -> AbstractContextManager[Any]:
    """The mask shows a token all that was before it."""
    attention = verify._attention_of

    def whole(module: Any) -> Any:
        return replace(attention(module), window=None, mixed=False)

    return patch.object(verify, "_attention_of", whole)
