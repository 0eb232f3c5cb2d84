"""The shapes of drafter that can be trained, as training sees them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from gpu_decoder.distil.corpus import Batch
from gpu_decoder.drafters.feature_net import FeatureNet, new_net
from gpu_decoder.drafters.model import VOCABULARY
from gpu_decoder.models import LanguageModel, fingerprint


class Student(Protocol):
    """A drafter being trained."""

    @property
    def net(self) -> nn.Module: ...

    def states(self, batch: Batch, steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """For each step of drafting by itself, 1 the first: states (N, width) and the places (B, C) of the tokens whose
        next one they tell."""
        ...

    def head(self, states: torch.Tensor) -> torch.Tensor:
        """Logits (N, drafted)."""
        ...

    def save(self, folder: Path) -> None:
        """Write the drafter as `get_drafter` loads it."""
        ...


class FeatureStudent:
    """A `FeatureNet`."""

    def __init__(self, target: LanguageModel, vocabulary: Sequence[int], tap: Sequence[int], **shape: Any):
        self.net: FeatureNet = new_net(target, vocabulary, tap, **shape)
        self._about = {"target": target.name, "tokenizer": fingerprint(target.tokenizer)}

    def states(self, batch: Batch, steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for step, states in enumerate(self.net.unrolled(batch.tokens, batch.features, steps), start=1):
            where = batch.counts.clone()
            where[:, :step] = False
            yield states[where[:, 1:]], where

    def head(self, states: torch.Tensor) -> torch.Tensor:
        return self.net.logits(states)

    def save(self, folder: Path) -> None:
        self.net.save(folder, **self._about)


class LlamaStudent:
    """A small causal model of the Llama kind, input and output embeddings tied.

    Its embeddings start as the target's, seen along the directions in which they vary most. The draft vocabulary is
    kept in the configuration: whoever does not know of it has the whole head.
    """

    def __init__(self, target: LanguageModel, vocabulary: Sequence[int], width: int, layers: int):
        base = target.model.config.get_text_config()
        size = 32 if width % 64 else 64
        self._vocabulary, self._tokenizer = torch.tensor(list(vocabulary)), target.tokenizer
        config: Any = LlamaConfig(
            vocab_size=target.vocab,
            hidden_size=width,
            intermediate_size=-(-8 * width // 3 // 32) * 32,
            num_hidden_layers=layers,
            num_attention_heads=width // size,
            num_key_value_heads=width // size,
            head_dim=size,
            max_position_embeddings=getattr(base, "max_position_embeddings", 8192),
            tie_word_embeddings=True,
            bos_token_id=base.bos_token_id,
            eos_token_id=base.eos_token_id,
            pad_token_id=base.pad_token_id,
        )
        setattr(config, VOCABULARY, list(vocabulary))
        self.net: Any = LlamaForCausalLM(config)
        weight = target.model.get_input_embeddings().weight.detach().float()
        _, _, directions = torch.linalg.svd(
            (weight - weight.mean(0))[:: max(1, len(weight) // 8192)], full_matrices=False
        )
        with torch.no_grad():
            start = weight @ directions[:width].T
            self.net.get_input_embeddings().weight[:, : start.shape[1]] = 0.02 * start / start.std()
        self.net.to(weight.device)

    def states(self, batch: Batch, steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """One step: the model goes on by itself as it reads."""
        states = self.net.model(input_ids=batch.tokens, attention_mask=batch.counts).last_hidden_state
        yield states[batch.counts], batch.counts

    def head(self, states: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(states, self.net.lm_head.weight[self._vocabulary.to(states.device)])

    def save(self, folder: Path) -> None:
        self.net.to(torch.bfloat16).save_pretrained(folder)
        self.net.float()
        self._tokenizer.save_pretrained(folder)
