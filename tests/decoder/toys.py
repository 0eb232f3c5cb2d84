"""Toy models whose laws are exact: a decoder that verifies in fractions, and its law by branching over its coins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from gpu_decoder import Decoder
from gpu_decoder.models import LanguageModel
from gpu_decoder.processing import Processing
from ot_spec import as_exact
from proofs_check import law_of


def toy(
    seed: int = 0, vocab: int = 8, layers: int = 1, dtype: torch.dtype = torch.float64, **config: Any
) -> LanguageModel:
    """A random Llama in float64 with a sharp next-token law and no tokenizer."""
    settings = {
        "vocab_size": vocab,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 4096,
        "initializer_range": 0.7,
        "tie_word_embeddings": False,
    } | config
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(LlamaConfig(**settings)).to(dtype).eval().requires_grad_(False)
    return LanguageModel(f"toy-{seed}", model, None, vocab, None, frozenset())


class ExactDecoder(Decoder):
    """Every law as fractions: the float64 law at its exact value, divided by its exact sum."""

    known: dict[Any, np.ndarray] = {}  # noqa: RUF012, shared by all: the same logits come again in every run

    def _law(self, processing: Processing, scores: torch.Tensor) -> np.ndarray:
        if scores.ndim > 1:
            return np.stack([self._law(processing, row) for row in scores]) if len(scores) else np.empty((0, 1), object)
        key = processing, scores.numpy().tobytes()
        if key not in self.known:
            self.known[key] = as_exact(processing.law(scores))
        return self.known[key]


def decoded_law(
    target: LanguageModel, drafter: Any, prompt: Sequence[int], tokens: int, options: dict[str, Any], **asked: Any
) -> dict[tuple[int, ...], Fraction]:
    """The exact law of the tokens that `generate` returns."""

    def run(rng: Any) -> tuple[int, ...]:
        decoder = ExactDecoder(target, drafter, coins=lambda key, step, purpose: rng, **options)
        return tuple(decoder.generate([prompt], tokens, **asked)[0].tokens)

    return dict(law_of(run))


def plain_law(
    target: LanguageModel, prompt: Sequence[int], tokens: int, law: Callable[[torch.Tensor], np.ndarray]
) -> dict[tuple[int, ...], Fraction]:
    """The law of as many tokens of the target itself, each prefix read afresh."""
    masses = {(): Fraction(1)}
    for _ in range(tokens):
        longer = {}
        for start, mass in masses.items():
            with torch.inference_mode():
                scores = target.model(torch.tensor([[*prompt, *start]])).logits[0, -1]
            for token, share in enumerate(law(scores)):
                if share:
                    longer[(*start, token)] = mass * share
        masses = longer
    return masses
