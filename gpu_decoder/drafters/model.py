"""A smaller language model as drafter."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch

from gpu_decoder.drafters.drafter import DraftSession, Scores
from gpu_decoder.models import LanguageModel, check_one_tokenizer, learned_positions
from gpu_decoder.tree_slots import Block
from gpu_decoder.verify import TreeReader, check_instead
from ot_spec.errors import ModelError

VOCABULARY = "draft_vocabulary"
"""What a model's configuration calls the ids that it drafts, where it drafts some only."""


def draft_vocabulary(model: LanguageModel) -> torch.Tensor | None:
    """The ids that a model drafts, ascending, where its configuration names them."""
    ids = getattr(model.model.config, VOCABULARY, None)
    if ids is None:
        return None
    listed = list(ids) if isinstance(ids, list | tuple) else []
    if not listed or not all(type(i) is int and 0 <= i < model.vocab for i in listed) or len({*listed}) < len(listed):
        raise ModelError(f"the {VOCABULARY} of {model.name!r} should be a list of different ids 0 to {model.vocab - 1}")
    return torch.tensor(sorted(listed), device=_device_of_logits(model))


def _device_of_logits(model: LanguageModel) -> torch.device:
    return (model.model.get_output_embeddings() or model.model.get_input_embeddings()).weight.device


def with_short_head(model: LanguageModel) -> LanguageModel:
    """The model with the rows of its head that it drafts with; all else is shared."""
    ids, head = draft_vocabulary(model), model.model.get_output_embeddings()
    if ids is None or type(head) is not torch.nn.Linear or head not in model.model._modules.values():
        return model
    short = torch.nn.Linear(head.in_features, len(ids), bias=head.bias is not None, device="meta")
    short.weight = torch.nn.Parameter(head.weight[ids], requires_grad=False)
    if head.bias is not None:
        short.bias = torch.nn.Parameter(head.bias[ids], requires_grad=False)
    outer = copy.copy(model.model)
    outer._modules = {name: short if part is head else part for name, part in outer._modules.items()}
    for name in ("forward", "_old_forward", "_hf_hook"):  # what places a model on devices is bound to the whole one
        vars(outer).pop(name, None)
    return replace(model, model=outer)


class ModelDrafter:
    """A model of the target's tokenizer, with a cache of its own. All branches of all rows in one pass a level.

    Ids past its vocabulary are read as id 0: a draft after them is a guess like any other. Where its configuration
    names a draft vocabulary, nothing else is drafted, and only those rows of its head are used.
    """

    def __init__(self, model: LanguageModel):
        self.model = model
        self.name = model.name
        self.context = learned_positions(model.model)
        self._ids, self._reads = draft_vocabulary(model), with_short_head(model)

    def start(self, target: TreeReader, rows: int) -> DraftSession:
        if self.model.tokenizer is not None and target.model.tokenizer is not None:
            check_one_tokenizer(target.model, self.model)
        check_instead(self._reads, self.model)
        ids, columns = self._ids, None
        if ids is not None:
            known = ids < target.model.vocab
            if self._reads is self.model:
                columns = ids[known]
            elif not bool(known.all()):
                columns = known.nonzero()[:, 0]
            ids = ids[known]
        return _ModelSession(TreeReader(self._reads, rows), rows, ids, columns, _device_of_logits(target.model))


class _ModelSession:
    """ids: the tokens drafted, None: all; columns: where they stand among the logits read, None: as they come."""

    def __init__(
        self,
        reader: TreeReader,
        rows: int,
        ids: torch.Tensor | None,
        columns: torch.Tensor | None,
        device: torch.device,
    ):
        self._reader, self._columns, self._device = reader, columns, device
        self._ids = None if ids is None else ids.to(device)
        self._width = reader.model.model.get_input_embeddings().weight.shape[0]
        self._trees: list[list[dict[int, int]]] = [[{}] for _ in range(rows)]  # by place + 1: token -> place

    def begin(self, texts: Sequence[Sequence[int]]) -> list[Scores]:
        paths = []
        for row, (text, tree) in enumerate(zip(texts, self._trees, strict=True)):
            path, place = [], -1
            for token in text[self._reader.lengths[row] : -1]:  # the last token is read again for its logits
                place = tree[place + 1].get(token, -1)
                if place < 0:
                    break
                path.append(place)
            paths.append(path)
        self._reader.keep(paths)
        self._reader.prefill([self._known(text[:-1]) for text in texts])
        self._trees = [[{}] for _ in texts]
        # the text's last token is the root of what is read from here on
        return self._read([Block([text[-1]], [-1]) for text in texts])

    def extend(self, blocks: Sequence[Block]) -> list[Scores]:
        return self._read([Block(block.tokens, [parent + 1 for parent in block.parents]) for block in blocks])

    def _read(self, blocks: Sequence[Block]) -> list[Scores]:
        for tree, block in zip(self._trees, blocks, strict=True):
            for token, parent in zip(block.tokens, block.parents, strict=True):
                tree[parent + 1][token] = len(tree) - 1
                tree.append({})
        known = [Block(self._known(block.tokens), block.parents) for block in blocks]
        return [Scores(self._drafted(logits).to(self._device), ids=self._ids) for logits in self._reader.read(known)]

    def _drafted(self, logits: torch.Tensor) -> torch.Tensor:
        return logits if self._columns is None else logits[:, self._columns]

    def _known(self, tokens: Sequence[int]) -> Sequence[int]:
        return tokens if max(tokens, default=0) < self._width else [i if i < self._width else 0 for i in tokens]

    def end(self) -> None: ...

    def select(self, rows: list[int]) -> None:
        self._reader.select(rows)
        self._trees = [self._trees[row] for row in rows]
