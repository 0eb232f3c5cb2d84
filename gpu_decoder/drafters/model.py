"""A smaller language model as drafter."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_decoder.drafters.drafter import DraftSession, Scores
from gpu_decoder.models import LanguageModel, check_one_tokenizer
from gpu_decoder.verify import Block, TreeReader


class ModelDrafter:
    """A model of the target's tokenizer, with a cache of its own. All branches of all rows in one pass a level.

    Ids past its vocabulary are read as id 0: a draft after them is a guess like any other.
    """

    def __init__(self, model: LanguageModel):
        self.model = model
        self.name = model.name

    def start(self, target: TreeReader, rows: int) -> DraftSession:
        if self.model.tokenizer is not None and target.model.tokenizer is not None:
            check_one_tokenizer(target.model, self.model)
        return _ModelSession(TreeReader(self.model, rows), rows)


class _ModelSession:
    def __init__(self, reader: TreeReader, rows: int):
        self._reader = reader
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
        return [Scores(logits) for logits in self._reader.read(known)]

    def _known(self, tokens: Sequence[int]) -> Sequence[int]:
        return tokens if max(tokens, default=0) < self._width else [i if i < self._width else 0 for i in tokens]

    def end(self) -> None: ...

    def select(self, rows: list[int]) -> None:
        self._reader.select(rows)
        self._trees = [self._trees[row] for row in rows]
