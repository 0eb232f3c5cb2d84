"""Every kind of model is decoded as its own `generate` would, or refused at the start with the reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers as hf

from gpu_decoder import Decoder
from gpu_decoder.models import LanguageModel, as_language_model, early_exit
from gpu_decoder.tree_slots import Block, TreeSlots
from gpu_decoder.verify import TreeReader, _attention_of, check_tree_attention
from ot_spec.errors import ModelError, PromptError

VOCAB, WINDOW, CONTEXT = 24, 8, 128
MIXED = ["sliding_attention", "full_attention"]
PROMPTS = [[1, 5, 7, 3, 9, 4], [1, 2]]

USUAL = {
    "vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": CONTEXT, "initializer_range": 0.6,
    "tie_word_embeddings": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
GPT2 = {
    "vocab_size": VOCAB, "n_positions": CONTEXT, "n_embd": 16, "n_layer": 2, "n_head": 2, "initializer_range": 0.6,
    "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
FALCON = {
    "vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "initializer_range": 0.6,
    "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
LATENT = {
    "num_key_value_heads": 2, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
    "v_head_dim": 6, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "topk_group": 1,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


def usual(**others: Any) -> dict[str, Any]:
    return USUAL | others


WINDOWED = {"sliding_window": WINDOW, "layer_types": MIXED}
DECODED: dict[str, tuple[Any, dict[str, Any]]] = {
    "Llama": (hf.LlamaConfig, usual()),
    "Llama 4, chunks": (hf.Llama4TextConfig, usual(
        head_dim=8, intermediate_size_mlp=24, num_local_experts=2, attention_chunk_size=WINDOW,
        layer_types=["chunked_attention", "full_attention"], no_rope_layers=[1, 0],
    )),
    "Mistral, window": (hf.MistralConfig, usual(sliding_window=WINDOW)),
    "Qwen2, no window": (hf.Qwen2Config, usual(use_sliding_window=False, sliding_window=WINDOW)),
    "Qwen2, windows everywhere": (hf.Qwen2Config, usual(
        use_sliding_window=True, sliding_window=WINDOW, layer_types=["sliding_attention"] * 2,
    )),
    "Qwen2, mixed": (hf.Qwen2Config, usual(use_sliding_window=True, **WINDOWED)),
    "Qwen3, mixed": (hf.Qwen3Config, usual(head_dim=8, use_sliding_window=True, **WINDOWED)),
    "Gemma": (hf.GemmaConfig, usual(head_dim=8)),
    "Gemma 2, capped": (hf.Gemma2Config, usual(
        head_dim=8, final_logit_softcapping=5.0, attn_logit_softcapping=10.0, **WINDOWED,
    )),
    "Gemma 3": (hf.Gemma3TextConfig, usual(head_dim=8, **WINDOWED)),
    "Gemma 3n, shared caches": (hf.Gemma3nTextConfig, usual(
        head_dim=8, num_hidden_layers=4, sliding_window=WINDOW, layer_types=MIXED * 2, num_kv_shared_layers=2,
        vocab_size_per_layer_input=VOCAB, hidden_size_per_layer_input=8, laurel_rank=4,
        activation_sparsity_pattern=None,
    )),
    "Phi": (hf.PhiConfig, usual()),
    "Phi 3, window": (hf.Phi3Config, usual(sliding_window=WINDOW)),
    "GPT-2": (hf.GPT2Config, GPT2 | {"pad_token_id": 0}),
    "GPT-BigCode": (hf.GPTBigCodeConfig, GPT2),
    "GPT-J": (hf.GPTJConfig, GPT2 | {"rotary_dim": 4}),
    "GPT-NeoX": (hf.GPTNeoXConfig, usual()),
    "GPT-Neo, global": (hf.GPTNeoConfig, FALCON | {
        "attention_types": [[["global"], 2]], "num_layers": 2, "num_heads": 2, "max_position_embeddings": 512,
    }),
    "OPT": (hf.OPTConfig, {
        "vocab_size": VOCAB, "hidden_size": 16, "ffn_dim": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
        "max_position_embeddings": CONTEXT, "word_embed_proj_dim": 16, "init_std": 0.6, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": None,
    }),
    "Falcon, rotary": (hf.FalconConfig, FALCON | {"alibi": False}),
    "Mixtral": (hf.MixtralConfig, usual(num_local_experts=4, sliding_window=WINDOW)),
    "Qwen2 MoE": (hf.Qwen2MoeConfig, usual(**EXPERTS, shared_expert_intermediate_size=16, decoder_sparse_step=1)),
    "DeepSeek V2": (hf.DeepseekV2Config, usual(**LATENT, n_group=1)),
    "DeepSeek V3": (hf.DeepseekV3Config, usual(**LATENT, n_group=2)),
    "GPT-OSS, sinks": (hf.GptOssConfig, usual(head_dim=8, num_local_experts=4, num_experts_per_tok=2, **WINDOWED)),
    "StarCoder2, window": (hf.Starcoder2Config, usual(sliding_window=WINDOW)),
    "Cohere, scaled": (hf.CohereConfig, usual(logit_scale=0.5)),
    "Cohere 2, mixed": (hf.Cohere2Config, usual(**WINDOWED)),
    "OLMo": (hf.OlmoConfig, usual()),
    "OLMo 2": (hf.Olmo2Config, usual()),
    "OLMo 3, mixed": (hf.Olmo3Config, usual(**WINDOWED)),
    "SmolLM 3": (hf.SmolLM3Config, usual(no_rope_layers=[1, 0])),
    "Granite, scaled": (hf.GraniteConfig, usual(logits_scaling=2.0)),
    "EXAONE 4, mixed": (hf.Exaone4Config, usual(**WINDOWED)),
    "ModernBERT decoder": (hf.ModernBertDecoderConfig, usual(local_attention=2 * WINDOW, layer_types=MIXED)),
}  # fmt: skip
IN_SINGLE = {"Mixtral", "Qwen2 MoE", "DeepSeek V2", "DeepSeek V3", "GPT-OSS, sinks"}  # experts have no float64 kernel
EAGER_ONLY = {"Gemma 2, capped", "GPT-Neo, global", "GPT-OSS, sinks"}

CACHED = [(name, kind) for name in DECODED for kind in ("eager", "sdpa") if kind == "eager" or name not in EAGER_ONLY]

MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_n_groups": 1}
RECURRENT: dict[str, tuple[Any, dict[str, Any]]] = {
    "Mamba": (hf.MambaConfig, {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}),
    "RecurrentGemma": (hf.RecurrentGemmaConfig, usual(num_hidden_layers=3, attention_window_size=WINDOW, lru_width=16)),
    "Jamba": (hf.JambaConfig, usual(
        use_mamba_kernels=False, attn_layer_period=2, attn_layer_offset=1, mamba_d_state=4, num_experts=2,
    )),
    "Qwen3-Next": (hf.Qwen3NextConfig, usual(
        head_dim=8, layer_types=["linear_attention", "full_attention"], **EXPERTS, shared_expert_intermediate_size=16,
        linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=8,
    )),
    "LFM2": (hf.Lfm2Config, usual(layer_types=["conv", "full_attention"])),
    "RWKV": (hf.RwkvConfig, {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2}),
    "Bamba": (hf.BambaConfig, usual(attn_layer_indices=[1], **MAMBA)),
    "Falcon-H1": (hf.FalconH1Config, usual(**MAMBA, mamba_d_ssm=32)),
    "MiniMax": (hf.MiniMaxConfig, usual(
        layer_types=["full_attention", "linear_attention"], num_local_experts=2, head_dim=8, block_size=8,
    )),
    "Granite 4": (hf.GraniteMoeHybridConfig, usual(
        layer_types=["mamba", "attention"], **MAMBA, num_local_experts=2, shared_intermediate_size=16,
    )),
}  # fmt: skip
BY_PLACE: dict[str, tuple[Any, dict[str, Any]]] = {
    "Falcon": (hf.FalconConfig, FALCON | {"alibi": True}),
    "BLOOM": (hf.BloomConfig, {"vocab_size": VOCAB, "hidden_size": 16, "n_layer": 2, "n_head": 2}),
    "MPT": (hf.MptConfig, {"vocab_size": VOCAB, "d_model": 16, "n_heads": 2, "n_layers": 2}),
}


def made(kind: Any, settings: dict[str, Any], attention: str = "eager", dtype: Any = torch.float64) -> LanguageModel:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        module = hf.AutoModelForCausalLM.from_config(kind(**settings), attn_implementation=attention)
    return as_language_model(module.to(dtype).eval().requires_grad_(False))


def plain(target: LanguageModel, prompt: list[int], many: int) -> list[int]:
    ids = torch.tensor([prompt])
    found = target.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=many,
        eos_token_id=None,
        pad_token_id=0,
    )
    return found[0, len(prompt) :].tolist()


@pytest.mark.parametrize(("name", "attention"), CACHED, ids=lambda value: value)
def test_decoded_as_its_own_generate_does(name, attention):
    """20 tokens after prompts of 6 and 2: past windows and chunks of 8, with trees across their ends."""
    target = made(*DECODED[name], attention, torch.float32 if name in IN_SINGLE else torch.float64)
    expected = [plain(target, prompt, 20) for prompt in PROMPTS]
    decoder = Decoder(target, target, selector="k_seq", candidates=3, length=3)  # its own draft, at temperature 1
    found = decoder.generate(PROMPTS, 20, temperature=0, ends=frozenset())
    assert [row.tokens for row in found] == expected
    steps = [step for row in found for step in row.tally.steps]
    assert any(step.accepted for step in steps) and any(step.accepted < step.drafted for step in steps)


@pytest.mark.parametrize(
    "name", ["Llama", "Mistral, window", "Qwen2, mixed", "Gemma 3", "GPT-2", "OLMo", "DeepSeek V3"]
)
def test_with_its_own_first_layers_as_draft(name):
    target = made(*DECODED[name], "sdpa", torch.float32 if name in IN_SINGLE else torch.float64)
    found = Decoder(target, "exit:1", selector="traversal", candidates=3, length=3).generate(
        PROMPTS, 20, temperature=0, ends=frozenset()
    )
    assert [row.tokens for row in found] == [plain(target, prompt, 20) for prompt in PROMPTS]


@pytest.mark.parametrize("name", RECURRENT)
def test_states_that_cannot_be_rewound_are_refused(name):
    target = made(*RECURRENT[name], dtype=torch.float32)
    with pytest.raises(ModelError, match=r"keeps a state that cannot be rewound .* decode it with its own generate"):
        Decoder(target, "lookup").generate(PROMPTS, 4)


@pytest.mark.parametrize("name", BY_PLACE)
def test_biases_by_the_place_in_the_cache_are_refused(name):
    with pytest.raises(ModelError, match=r"place in the cache \(ALiBi\).* decode it with its own generate"):
        Decoder(made(*BY_PLACE[name]), "lookup").generate(PROMPTS, 4)


def test_a_window_that_goes_by_the_place_in_the_cache_is_refused():
    settings = DECODED["GPT-Neo, global"][1] | {
        "attention_types": [[["global", "local"], 1]], "window_size": WINDOW,
    }  # fmt: skip
    with pytest.raises(ModelError, match="does not follow masks and positions"):
        Decoder(made(hf.GPTNeoConfig, settings), "lookup").generate(PROMPTS, 4)


def test_attention_that_sees_the_wrong_tokens_is_refused(monkeypatch):
    """The check is told apart from what it checks: masks and positions are wrong in turn."""
    right = TreeSlots.laid_out
    breaks = {
        "a sibling is seen": lambda mask, positions, tokens: mask.__ior__(True),
        "the text is not seen": lambda mask, positions, tokens: mask[:, :, :2].__iand__(False),
        "positions by place": lambda mask, positions, tokens: positions.__setitem__(..., range(positions.shape[1])),
    }
    for change in breaks.values():

        def laid_out(self: TreeSlots, *args: Any, change: Any = change) -> Any:
            found = right(self, *args)
            change(*found)
            return found

        target = made(*DECODED["Llama"])
        with monkeypatch.context() as patch:
            patch.setattr(TreeSlots, "laid_out", laid_out)
            with pytest.raises(ModelError, match=r"reads a token in a tree otherwise than in a text|are NaN"):
                check_tree_attention(target)
        check_tree_attention(target)


@pytest.mark.parametrize("name", ["Mistral, window", "Gemma 3", "Llama 4, chunks"])
def test_windows_that_the_model_does_not_keep_are_refused(name, monkeypatch):
    target = made(*DECODED[name])
    config = target.model.config
    windows = {key: getattr(config, key, None) for key in ("sliding_window", "attention_chunk_size")}
    monkeypatch.setattr("gpu_decoder.verify._attention_of", _without_window)
    with pytest.raises(ModelError, match="reads a token in a tree otherwise than in a text"):
        check_tree_attention(target)
    monkeypatch.undo()
    check_tree_attention(target)
    assert windows == {key: getattr(config, key, None) for key in windows}


def _without_window(module: Any) -> Any:
    """As `_attention_of`, where layers of every kind see everything."""
    found, wide = _attention_of(module), 10**6
    return replace(found, window=wide if found.window else None, chunk=wide if found.chunk else None)


@pytest.mark.parametrize("kernel", ["flash_attention_2", "flex_attention"])
def test_kernels_without_a_mask_are_refused(kernel):
    target = made(*DECODED["Llama"])
    target.model.config._attn_implementation_internal = kernel
    with pytest.raises(ModelError, match=f"'{kernel}'.*attn_implementation=\"sdpa\""):
        TreeReader(target, 1)


@pytest.mark.parametrize("name", ["Gemma 2, capped", "Cohere, scaled", "Cohere 2, mixed", "Granite, scaled"])
def test_no_early_exit_where_logits_are_capped_or_scaled(name):
    target = made(*DECODED[name])
    with pytest.raises(ModelError, match=r"its logits are not head\(norm\(last layer's output\)\)"):
        early_exit(target, 1)
    with pytest.raises(ModelError, match="no early exit"):
        Decoder(target, "exit:1").generate(PROMPTS, 4)


@pytest.mark.parametrize("name", ["OPT", "Gemma 3n, shared caches", "ModernBERT decoder"])
def test_no_early_exit_where_the_model_cannot_be_cut(name):
    with pytest.raises(ModelError, match="no early exit"):
        Decoder(made(*DECODED[name]), "exit:1").generate(PROMPTS, 4)


@pytest.mark.parametrize("name", ["GPT-2", "OPT"])
def test_learned_positions_end_where_they_end(name):
    target = made(*DECODED[name])
    assert target.context == CONTEXT
    decoder = Decoder(target, "lookup", candidates=2, length=4)
    with pytest.raises(PromptError, match=f"has 6 tokens, and {CONTEXT - 5} more are asked for"):
        decoder.generate([PROMPTS[0]], CONTEXT - 5)
    [row] = decoder.generate([PROMPTS[0]], CONTEXT - 6, temperature=0, ends=frozenset())
    assert row.tokens == plain(target, PROMPTS[0], CONTEXT - 6)


def test_a_model_is_checked_once(monkeypatch):
    target, calls = made(*DECODED["Llama"]), []
    right = TreeReader.read
    monkeypatch.setattr(TreeReader, "read", lambda self, *args, **given: calls.append(1) or right(self, *args, **given))
    check_tree_attention(target)
    once = len(calls)
    check_tree_attention(target)
    assert once == len(calls) > 0


def test_free_slots_are_seen_by_nothing():
    target = made(*DECODED["Llama"], "sdpa")
    near, far = (TreeReader(target, 1) for _ in range(2))
    for reader, slots in ((near, 0), (far, 300)):
        reader.prefill([PROMPTS[0]])
        reader.leave_out(slots)
    block = [Block([3, 8, 2], [-1, 0, 0])]
    torch.testing.assert_close(near.read(block)[0], far.read(block)[0], rtol=1e-12, atol=1e-12)
    for reader in (near, far):
        reader.keep([[0, 2]])
    after = [reader.read([Block([4], [-1])])[0] for reader in (near, far)]
    torch.testing.assert_close(*after, rtol=1e-12, atol=1e-12)
