"""A causal model that drafts some tokens only: the same logits from fewer rows, and never another token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaForCausalLM

from gpu_decoder import Decoder
from gpu_decoder.distil.students import LlamaStudent
from gpu_decoder.draft_tree import grow
from gpu_decoder.drafters import ModelDrafter, get_drafter
from gpu_decoder.drafters import model as model_drafter
from gpu_decoder.drafters.model import VOCABULARY, draft_vocabulary, with_short_head
from gpu_decoder.models import LanguageModel, load
from gpu_decoder.tree_slots import Block
from gpu_decoder.verify import TreeReader
from ot_spec.errors import ModelError
from tests.decoder.toys import drafting, random_model, toy
from tests.distil.toys import wide

KNOWN = [2, 5, 6, 7, 11, 12, 30]
PROMPTS = ["w1 w2", "w3", "w4 w5 w6"]


def reduced(kind: str) -> LanguageModel:
    """A model with a head of its own, tied to its embeddings, or with a bias; its vocabulary in another order."""
    order = [KNOWN[i] for i in (3, 0, 1, 6, 2, 4, 5)]
    if kind == "gpt2":
        config = GPT2Config(vocab_size=32, n_positions=64, n_embd=16, n_layer=2, n_head=2, initializer_range=0.7)
        return drafting(random_model(GPT2LMHeadModel, config), order)
    model = toy(1, 32, layers=2, tie_word_embeddings=kind == "tied")
    if kind == "bias":
        head = torch.nn.Linear(16, 32, dtype=torch.float64).requires_grad_(False)
        head.weight.copy_(model.model.lm_head.weight)
        model.model.lm_head = head
    return drafting(model, order)


@pytest.mark.parametrize("kind", ["plain", "tied", "bias", "gpt2"])
def test_a_short_head_gives_the_logits_of_the_full_one(kind):
    model = reduced(kind)
    found = with_short_head(model)
    text = torch.tensor([[3, 9, 27, 1]])
    with torch.no_grad():
        whole, short = (m.model(text, use_cache=False).logits[0] for m in (model, found))
    ids = draft_vocabulary(model)
    assert ids is not None and short.shape == (4, len(KNOWN))
    torch.testing.assert_close(short, whole[:, ids], rtol=1e-12, atol=1e-12)
    assert model.model.get_output_embeddings().weight.shape[0] == 32  # the model itself has the whole head still
    shared = {p.data_ptr() for p in model.model.parameters()}
    assert sum(p.data_ptr() not in shared for p in found.model.parameters()) == 1 + (kind == "bias")


def test_a_model_without_a_draft_vocabulary_is_itself():
    model = toy(1, 32)
    assert with_short_head(model) is model and draft_vocabulary(model) is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_sessions_score_as_with_the_full_head(dtype):
    model, texts = toy(1, 32, layers=2, dtype=dtype), [[1, 2, 3], [4]]
    block = Block([2, 5, 7, 5], [-1, -1, 0, 1])
    target = TreeReader(toy(0, 32), 2)

    def scores(drafter: ModelDrafter) -> torch.Tensor:
        session = drafter.start(target, 2)
        begun = [wide(one, 32) for one in session.begin(texts)]
        return torch.cat([*begun, *(wide(one, 32) for one in session.extend([block, Block([30], [-1])]))])

    whole = scores(ModelDrafter(model))
    found = scores(ModelDrafter(drafting(model, KNOWN)))
    assert found.shape == (7, 32)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(found[:, KNOWN], whole[:, KNOWN], rtol=tolerance, atol=tolerance)
    others = [i for i in range(32) if i not in KNOWN]
    assert torch.isneginf(found[:, others]).all()


@pytest.mark.parametrize("shape", [[], [[1]], [32], [-1], 3])
def test_a_draft_vocabulary_that_is_none_is_refused(shape):
    model = toy(1, 32)
    setattr(model.model.config, VOCABULARY, shape)
    with pytest.raises(ModelError, match="ids 0 to 31"):
        ModelDrafter(model)


# ---- a folder that the llama shape writes


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny) -> Path:
    torch.manual_seed(1)
    student = LlamaStudent(load(tiny), KNOWN, 32, 2)
    for weight in student.net.parameters():
        if weight.ndim == 2:
            weight.data *= 8
    made = tmp_path_factory.mktemp("llama") / "drafter"
    student.save(made)
    return made


def drafted(monkeypatch) -> list[int]:
    """All tokens that are drafted from here on."""
    from gpu_decoder import decode

    told: list[int] = []

    def watched(*args: Any) -> Any:
        made = grow(*args)
        for draft in made:
            told.extend(int(token) for token in draft.tree.tokens)
        return made

    monkeypatch.setattr(decode, "grow", watched)
    return told


@pytest.mark.parametrize("selector", ["rrs", "k_seq"])
def test_nothing_else_is_drafted(monkeypatch, tiny, folder, selector):
    target, told = load(tiny), drafted(monkeypatch)
    Decoder(target, folder, candidates=3, length=3, selector=selector, draft_temperature=2.0).generate(
        PROMPTS, 16, seed=1, min_new_tokens=16
    )
    assert len(told) > 100 and set(told) <= set(KNOWN) and len(set(told)) >= len(KNOWN) - 1
    told.clear()
    hidden = get_drafter(folder, target)
    assert isinstance(hidden, ModelDrafter)
    monkeypatch.setattr(model_drafter, "draft_vocabulary", lambda model: None)
    Decoder(target, folder, candidates=3, length=3, selector=selector, draft_temperature=2.0).generate(
        PROMPTS, 16, seed=1, min_new_tokens=16
    )
    assert not set(told) <= set(KNOWN)  # it is the configuration that keeps them out


def test_greedy_text_is_that_without_a_drafter(tiny, folder):
    target = load(tiny, "float64")
    plain = Decoder(target, "none").generate(PROMPTS, 20, temperature=0, min_new_tokens=20)
    found = Decoder(target, folder, candidates=2, length=3).generate(PROMPTS, 20, temperature=0, min_new_tokens=20)
    assert [one.tokens for one in found] == [one.tokens for one in plain]


def test_transformers_assisted_generation_takes_the_folder(tiny, folder):
    target: Any = LlamaForCausalLM.from_pretrained(tiny)
    assistant: Any = AutoModelForCausalLM.from_pretrained(folder)
    assert type(assistant) is LlamaForCausalLM and assistant.lm_head.weight.shape == (32, 32)
    assert assistant.lm_head.weight is assistant.model.embed_tokens.weight
    prompt, calls = torch.tensor([[1, 5, 9]]), 0
    options = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    plain = target.generate(prompt, **options)
    forward = assistant.forward

    def counted(*args: Any, **inputs: Any) -> Any:
        nonlocal calls
        calls += 1
        return forward(*args, **inputs)

    assistant.forward = counted
    helped = target.generate(prompt, assistant_model=assistant, **options)
    assert calls > 0
    np.testing.assert_array_equal(helped, plain)


def test_the_folder_says_what_it_is(tiny, folder):
    found = load(folder)
    assert draft_vocabulary(found).tolist() == KNOWN  # pyright: ignore[reportOptionalMemberAccess]
    assert found.stops == load(tiny).stops and found.vocab == 32
    assert found.model.config.num_hidden_layers == 2 and found.model.config.hidden_size == 32
    assert {file.name for file in folder.iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}


@pytest.mark.parametrize("width", [32, 64])
def test_embeddings_begin_as_the_targets_seen_along_their_main_directions(width):
    """A narrow model has the directions of largest spread; in a wide one all of the target's products are kept."""
    target = toy(2, 40, hidden_size=48, dtype=torch.float32)
    target.model.model.embed_tokens.weight[:, 0] *= 20
    student = LlamaStudent(target, [0, 1], width, 1)
    given, made = target.model.model.embed_tokens.weight, student.net.get_input_embeddings().weight.detach()
    kept = made[:, : min(width, 40)]
    centred = given - given.mean(0)
    _, sizes, _ = torch.linalg.svd(centred, full_matrices=False)
    spread = torch.linalg.svdvals(kept - kept.mean(0))
    torch.testing.assert_close(spread / spread[0], sizes[: kept.shape[1]] / sizes[0], rtol=1e-3, atol=1e-4)
    assert float(kept.std()) == pytest.approx(0.02, rel=1e-4)
    assert made.shape == (40, width)
    if width > 40:
        assert 0.01 < float(made[:, 40:].std()) < 0.03
