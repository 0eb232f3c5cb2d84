"""The short way through a model gives the model's own logits, to the last bit or with matrices laid out beforehand up
to rounding, or is not taken."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM

from gpu_decoder import matrix
from gpu_decoder import shortcut as ways
from gpu_decoder.matrix import can_pack
from gpu_decoder.models import LanguageModel
from gpu_decoder.tree_slots import Block
from gpu_decoder.verify import TreeReader

WIDTHS = [1, 2, 3, 4, 5, 6, 8, 17, 33]
SIZES = {
    "vocab_size": 40,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "initializer_range": 0.5,
}
KINDS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True)),
    "llama, tied": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "mistral, window": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=4)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
}


def made(kind: str, dtype: torch.dtype) -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return KINDS[kind]().to(dtype).eval().requires_grad_(False)  # pyright: ignore[reportArgumentType]


def read_twice(module: torch.nn.Module, width: int = 4) -> list[torch.Tensor]:
    """Logits of a tree of `width` tokens after uneven texts, and after one path of it is kept."""
    reader = TreeReader(LanguageModel("toy", module, None, 40, None, frozenset()), 2)
    with torch.inference_mode():
        reader.prefill([[1, 2, 3, 4, 5, 6, 7], [9, 8]])
        tree = Block([10 + i % 30 for i in range(width)], [-1, *(i // 2 for i in range(width - 1))])
        first = reader.read([tree, Block([20, 21], [-1, 0])])
        reader.keep([[0], [0]])
        return [*first, *reader.read([Block([14], [-1]), Block([22, 23], [-1, -1])])]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_the_short_way_gives_the_same_bits(kind, dtype, monkeypatch):
    module = made(kind, dtype)
    monkeypatch.setattr(ways, "_PACKED", 0)
    way = ways.shortcut(module)
    assert way is not None
    assert not way.packed
    short = [read_twice(module, width) for width in WIDTHS]
    monkeypatch.setattr("gpu_decoder.verify.shortcut", lambda module: None)
    for width, got in zip(WIDTHS, short, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(got, read_twice(module, width), strict=True)), width


packing = pytest.mark.skipif(not can_pack(torch.empty(0)), reason="this build of torch lays no matrices out")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_with_packed_matrices_it_gives_the_same_up_to_rounding(kind, dtype, monkeypatch):
    if not can_pack(torch.empty(0, dtype=dtype)):
        pytest.skip(f"{dtype} matrices are not laid out here")
    module = made(kind, dtype)
    way = ways.shortcut(module)
    assert way is not None
    assert way.packed
    short = [read_twice(module, width) for width in WIDTHS]
    monkeypatch.setattr("gpu_decoder.verify.shortcut", lambda module: None)
    for width, got in zip(WIDTHS, short, strict=True):
        for a, b in zip(got, read_twice(module, width), strict=True):
            # in bfloat16 the same bits in all that was seen; at most a few of its steps of 2^-8 could part them
            rtol = 1e-4 if dtype == torch.float32 else 2e-2
            torch.testing.assert_close(a, b, rtol=rtol, atol=rtol * float(b.std()), msg=str(width))


@packing
def test_a_weight_changed_in_place_is_packed_anew(monkeypatch):
    module = made("llama", torch.float32)
    before = read_twice(module)
    module.model.layers[1].mlp.up_proj.bias.add_(1)  # pyright: ignore
    module.model.layers[0].self_attn.k_proj.weight.mul_(2)  # pyright: ignore
    after = read_twice(module)
    monkeypatch.setattr("gpu_decoder.verify.shortcut", lambda module: None)
    for old, got, wanted in zip(before, after, read_twice(module), strict=True):
        assert (old - got).abs().max() > 0.1 * got.std()
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4 * float(wanted.std()))


@packing
def test_a_model_converted_since_is_read_as_it_is(monkeypatch):
    module = made("llama", torch.float32)
    read_twice(module)
    module.to(torch.float64)
    after = read_twice(module)
    monkeypatch.setattr("gpu_decoder.verify.shortcut", lambda module: None)
    for got, wanted in zip(after, read_twice(module), strict=True):
        assert got.dtype == torch.float64
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4 * float(wanted.std()))


def written_over(module):
    module.model.layers[1].mlp.up_proj.weight.data.mul_(2)


def merged(module):
    module.lm_head.weight.data += 0.5 * module.lm_head.weight.data.flip(0)


def replaced_head(module):
    module.lm_head.weight = torch.nn.Parameter(2 * module.lm_head.weight.flip(0), requires_grad=False)


def replaced_norms(module):
    module.model.layers[0].input_layernorm.weight = torch.nn.Parameter(torch.full((48,), 3.0))
    module.model.norm.weight = torch.nn.Parameter(torch.linspace(1, 2, 48))


def other_state(module):
    module.load_state_dict({name: w.flip(0) for name, w in module.state_dict().items()}, assign=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("change", [written_over, merged, replaced_head, replaced_norms, other_state])
def test_weights_are_read_as_they_are_now(change, dtype, monkeypatch):
    module = made("llama", dtype)
    before = read_twice(module)
    with torch.no_grad():
        change(module)
    module.to(dtype)
    after = read_twice(module)
    monkeypatch.setattr("gpu_decoder.verify.shortcut", lambda module: None)
    rtol = 1e-4 if dtype == torch.float32 else 2e-2
    for old, got, wanted in zip(before, after, read_twice(module), strict=True):
        assert (old - got).abs().max() > 0.1 * got.std()
        torch.testing.assert_close(got, wanted, rtol=rtol, atol=rtol * float(wanted.std()))


@packing
def test_under_autocast_it_reads_as_the_model_does(monkeypatch):
    module = made("llama", torch.float32)
    read_twice(module)
    with torch.autocast("cpu", torch.bfloat16):
        after = read_twice(module)
        monkeypatch.setattr("gpu_decoder.verify.shortcut", lambda module: None)
        for got, wanted in zip(after, read_twice(module), strict=True):
            torch.testing.assert_close(got, wanted, rtol=5e-2, atol=5e-2 * float(wanted.std()))


def test_a_copy_is_packed_by_itself():
    module = made("llama", torch.float32)
    x, part = torch.ones(2, 48), module.get_submodule("model.layers.0.mlp.gate_proj")
    with torch.no_grad():
        product = matrix.matrix([part], packed=can_pack(torch.empty(0)))
        first = product(x)[0]
        other = copy.deepcopy(product)
        assert torch.equal(other(x)[0], first)


def _off(self, x):
    return [1.01 * part for part in matrix.Matrix.__call__(self, x)]


def test_packing_that_gives_other_logits_is_not_used(monkeypatch):
    monkeypatch.setattr(matrix.PackedMatrix, "__call__", _off)
    way = ways.shortcut(made("llama", torch.float32))
    assert way is not None
    assert not way.packed


def test_it_is_taken(monkeypatch):
    module = made("llama", torch.float32)
    read_twice(module)  # the check of the tree is made once
    taken = []
    way = ways.shortcut(module)
    assert way is not None
    counted = replace(way, forward=lambda *given: taken.append(1) or way.forward(*given))
    monkeypatch.setattr("gpu_decoder.verify.shortcut", lambda module: counted)
    read_twice(module)
    assert taken == [1, 1, 1]


def hooked(module):
    module.model.layers[1].register_forward_hook(lambda *_: None)


def replaced(module):
    layer = module.model.layers[0].mlp
    layer.forward = lambda x: x


def capped(module):
    module.config.hidden_act = "gelu"


def other_norm(module):
    module.model.layers[2].input_layernorm.variance_epsilon = 0.5


@pytest.mark.parametrize("change", [hooked, replaced, capped, other_norm])
def test_a_changed_model_goes_its_own_way(change):
    module = made("llama", torch.float32)
    change(module)
    assert ways.shortcut(module) is None
