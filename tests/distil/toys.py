"""Written text without a target, and small drafters to train on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from gpu_decoder.distil.corpus import Batch, Corpus
from gpu_decoder.distil.students import FeatureStudent, LlamaStudent, Student
from gpu_decoder.drafters import Scores, widened
from gpu_decoder.models import LanguageModel, layers_numbered, leaving


def shard_of(
    file: Path, lengths: Sequence[int], vocab: int = 12, top: int = 5, width: int = 3, seed: int = 0
) -> dict[str, torch.Tensor]:
    """A shard of random texts of these lengths."""
    generator = np.random.default_rng(seed)
    count = sum(lengths)
    laws = torch.from_numpy(generator.normal(size=(count, vocab))).log_softmax(-1)
    logs, ids = laws.topk(top)
    made = {
        "tokens": torch.from_numpy(generator.integers(vocab, size=count)).int(),
        "first": torch.from_numpy(np.cumsum([0, *lengths])),
        "answer": torch.zeros(len(lengths), dtype=torch.int64),
        "ids": ids.int(),
        "logs": logs.half(),
        "features": torch.from_numpy(generator.normal(size=(count, width))).float(),
    }
    save_file(made, file)
    return made


def read_shard(file: Path, target: LanguageModel, tap: Sequence[int], texts: int, length: int, seed: int = 0) -> None:
    """A shard of texts of random tokens, with the laws and features of the target along them."""
    generator = np.random.default_rng(seed)
    tokens = torch.from_numpy(generator.integers(target.vocab, size=(texts, length)))
    with torch.no_grad(), leaving(*layers_numbered(target, tap)) as hidden:
        logits = target.model(tokens, use_cache=False).logits
    logs, ids = logits.log_softmax(-1).topk(min(6, target.vocab))
    save_file(
        {
            "tokens": tokens.flatten().int(),
            "first": torch.arange(0, texts * length + 1, length),
            "answer": torch.zeros(texts, dtype=torch.int64),
            "ids": ids.flatten(0, 1).int(),
            "logs": logs.flatten(0, 1).half(),
            "features": torch.cat(hidden, -1).flatten(0, 1).float(),
        },
        file,
    )


def places_of(vocabulary: Sequence[int], vocab: int) -> torch.Tensor:
    places = torch.full((vocab,), -1)
    places[list(vocabulary)] = torch.arange(len(vocabulary))
    return places


class Words:
    """A tokenizer as far as a drafter asks for one."""

    bos_token_id = eos_token_id = None

    def get_vocab(self) -> dict[str, int]:
        return {}

    def save_pretrained(self, folder: Path) -> None: ...


def student_of(shape: str, target: LanguageModel, vocabulary: Sequence[int], tap: Sequence[int] = (1, 2)) -> Student:
    """A fresh drafter, the same on every call."""
    torch.manual_seed(0)
    target = replace(target, tokenizer=target.tokenizer or Words())
    if shape == "feature":
        return FeatureStudent(target, vocabulary, tap)
    return LlamaStudent(target, vocabulary, 32, 1)


def wide(scores: Scores, vocab: int) -> torch.Tensor:
    """Logits (n, V) of scores, -inf for tokens that they are not of."""
    return scores.logits if scores.ids is None else widened(scores.logits, scores.ids, vocab)


def whole_batch(corpus: Corpus, places: torch.Tensor) -> Batch:
    return corpus.batch(corpus.pieces, places)
