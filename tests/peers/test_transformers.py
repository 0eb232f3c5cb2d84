"""Speculative sampling of transformers under audit: its kernel, its ensemble mode, and `generate` as a whole."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation.utils import _speculative_sampling

from proofs_check import Law, audit, law_of
from proofs_check.faults import multinomial_by_default, multinomial_with_replacement
from solvers import get_selector

WEIGHT = 0.25
VOCAB = 8


def kernel(weight: float | None = None) -> Callable[..., Any]:
    """transformers' verification of one chain, as a chain verifier with randomness of its own."""

    def verify(targets: Any, drafts: Any, tokens: Any, rng: Any) -> Any:
        committed, _ = _speculative_sampling(
            tokens[None], drafts.log()[None], len(tokens), targets.log()[None], assistant_ensemble_weight=weight
        )
        return committed[0]

    return verify


def mixture(target: Any, draft: Any) -> Any:
    return Fraction(WEIGHT) * target + Fraction(1 - WEIGHT) * draft


@pytest.mark.parametrize("length", [1, 2])
def test_speculative_sampling_is_lossless(length: int) -> None:
    report = audit(kernel(), kind="chain", length=length, arrays="torch64", cases=8)
    assert report.verdict == "lossless", report


@pytest.mark.parametrize("length", [1, 2])
def test_ensemble_mode_is_the_declared_mixture(length: int) -> None:
    report = audit(kernel(WEIGHT), kind="chain", length=length, arrays="torch64", declared=mixture, cases=8)
    assert report.verdict == "lossy as declared", report


def test_ensemble_mode_is_nothing_else() -> None:
    options: dict[str, Any] = {"kind": "chain", "length": 1, "arrays": "torch64", "vocab_max": 2}
    undeclared = audit(kernel(WEIGHT), **options)
    assert undeclared.verdict == "biased"
    assert undeclared.counterexample is not None
    assert audit(kernel(), declared=mixture, **options).verdict == "biased"
    assert audit(kernel(WEIGHT / 2), declared=mixture, **options).verdict == "biased"


def test_siblings_drawn_without_replacement_by_mistake_are_seen() -> None:
    rrs = get_selector("rrs")
    report = audit(rrs, draft_sampler=multinomial_by_default)
    assert report.verdict == "biased"
    assert report.counterexample is not None and report.counterexample.case.vocab <= 4
    assert audit(rrs, draft_sampler=multinomial_with_replacement, cases=30).verdict == "lossless"


# ---- generate


def tiny(seed: int, hidden: int) -> LlamaForCausalLM:
    """A random one-layer Llama with a vocabulary of 8, in float64."""
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=hidden, intermediate_size=hidden, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=32, initializer_range=0.6, bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).double().eval()
    model.generation_config.num_assistant_tokens = 2
    model.generation_config.num_assistant_tokens_schedule = "constant"
    return model


@pytest.fixture(scope="module")
def models() -> tuple[LlamaForCausalLM, LlamaForCausalLM]:
    return tiny(1, 16), tiny(2, 8)


def next_law(model: LlamaForCausalLM, prefix: list[int], temperature: float, top_k: int) -> np.ndarray:
    """softmax of the top_k largest of logits / temperature, (V,)."""
    with torch.no_grad():
        logits = model(torch.tensor([prefix])).logits[0, -1].numpy() / temperature
    kept = np.where(logits >= np.sort(logits)[-top_k], np.exp(logits - logits.max()), 0)
    return kept / kept.sum()


def chained(law: Callable[[list[int]], np.ndarray], prompt: list[int], length: int) -> Law:
    """The joint law of the next `length` tokens, from one next-token law after another."""
    done = {(): 1.0}
    for _ in range(length):
        done = {
            (*path, token): mass * share
            for path, mass in done.items()
            for token, share in enumerate(law([*prompt, *path]).tolist())
            if share
        }
    return Law(done)


def generated(target: Any, prompt: list[int], length: int, **options: Any) -> Law:
    def run() -> list[int]:
        tokens = target.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt)),
            do_sample=True,
            max_new_tokens=length,
            **options,
        )
        return tokens[0, len(prompt) :].tolist()

    return law_of(run)


@pytest.mark.parametrize(("length", "temperature", "top_k"), [(2, 1.0, 3), (3, 0.7, 2)])
def test_generate_with_an_assistant_has_the_law_of_the_target(
    models, length: int, temperature: float, top_k: int
) -> None:
    target, draft = models
    prompt = [3, 1, 4]
    options = {"temperature": temperature, "top_k": top_k}
    due = chained(lambda prefix: next_law(target, prefix, **options), prompt, length)
    law = generated(target, prompt, length, assistant_model=draft, **options)
    assert law.runs > len(due)
    assert float(law.tv(due)) < 2e-6
    other = chained(lambda prefix: next_law(draft, prefix, **options), prompt, length)
    assert float(law.tv(other)) > 0.1


def test_generate_in_ensemble_mode_has_the_law_of_the_mixture(models) -> None:
    """Two tokens: the first is drafted, the second is only where the first was accepted."""
    target, draft = models
    prompt, options = [3, 1, 4], {"temperature": 1.0, "top_k": 3}
    first = generated(target, prompt, 2, assistant_model=draft, assistant_ensemble_weight=WEIGHT, **options).of(
        lambda tokens: tokens[0]
    )
    laws = [next_law(model, prompt, **options) for model in (target, draft)]
    assert float(first.tv(Law(dict(enumerate(WEIGHT * laws[0] + (1 - WEIGHT) * laws[1]))))) < 2e-6
    assert float(first.tv(Law(dict(enumerate(laws[0]))))) > 0.1
