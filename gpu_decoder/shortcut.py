"""A shorter way through decoders of the Llama kind: the same operations on the same weights, with less Python around
them. A call over a few tokens reads every weight once, and a small model spends a quarter of it between operations."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from gpu_decoder.kv_cache import TreeCache

_KINDS = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")

Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, TreeCache, list[torch.Tensor] | None], torch.Tensor]
"""(ids (rows, n), mask (rows, 1, n, slots), positions (rows, n), cache, hidden) -> logits (rows, n, V); what leaves
each layer is appended to `hidden`, where it is given."""


class Layer(NamedTuple):
    """Weights of one layer; matrices with their bias or None."""

    before_attention: Any
    query: Any
    key: Any
    value: Any
    out: Any
    before_mlp: Any
    gate: Any
    up: Any
    down: Any


@dataclass(frozen=True)
class Layers:
    """Layers of the Llama kind, as they run over a `TreeCache`.

    heads of `size`, `groups` of them with keys and values of their own; scale: of the scores; eps: of the norms.
    """

    weights: Sequence[Layer]
    heads: int
    groups: int
    size: int
    scale: float
    eps: float

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if x.dtype in (torch.float32, torch.float64):
            return F.rms_norm(x, weight.shape, weight, self.eps)
        return weight * F.rms_norm(x.float(), weight.shape, None, self.eps).to(x.dtype)

    def run(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        mask: torch.Tensor,
        cache: TreeCache,
        hidden: list[torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """x (rows, n, width) through all layers, cos and sin (rows, n, size) of the tokens' positions; what leaves each
        layer is appended to `hidden`, where it is given."""
        rows, n, _ = x.shape
        heads, groups, size, half, shared = (
            self.heads,
            self.groups,
            self.size,
            self.size // 2,
            self.heads // self.groups,
        )
        cos, sin = cos[:, None], sin[:, None]
        sin = torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)
        written, seen = cache.views(len(self.weights), n)
        for layer, (new_keys, new_values), (keys, values) in zip(self.weights, written, seen, strict=True):
            y = self.norm(x, layer.before_attention)
            query, key = F.linear(y, *layer.query), F.linear(y, *layer.key)
            both = torch.cat((query, key), dim=-1).view(rows, n, heads + groups, size).transpose(1, 2)
            both = both * cos + torch.cat((both[..., half:], both[..., :half]), dim=-1) * sin
            new_keys.copy_(both[:, heads:])
            new_values.copy_(F.linear(y, *layer.value).view(rows, n, groups, size).transpose(1, 2))
            query = both[:, :heads]
            if n == 1:  # queries of one group side by side
                query = query.reshape(rows, groups, shared, size)
            elif shared > 1:
                keys, values = (
                    part[:, :, None].expand(-1, -1, shared, -1, -1).reshape(rows, heads, -1, size)
                    for part in (keys, values)
                )
            y = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=self.scale)
            y = y.reshape(rows, heads, n, size).transpose(1, 2).reshape(rows, n, heads * size)
            x = x + F.linear(y, *layer.out)
            y = self.norm(x, layer.before_mlp)
            x = x + F.linear(F.silu(F.linear(y, *layer.gate)) * F.linear(y, *layer.up), *layer.down)
            if hidden is not None:
                hidden.append(x)
        return x


_known: weakref.WeakKeyDictionary[torch.nn.Module, Forward | None] = weakref.WeakKeyDictionary()


def shortcut(module: torch.nn.Module) -> Forward | None:
    """The short way through a model, or None where there is none that gives the same logits to the last bit.

    A model is tried once, on a tree of four tokens.
    """
    if module not in _known:
        _known[module] = None
        if _is_plain(module):
            forward = _forward(module)
            if _agrees(module, forward):
                _known[module] = forward
    return _known[module]


def _is_plain(module: Any) -> bool:
    """Whether every part is what its class says: nothing quantised, hooked, spread over devices, or replaced."""
    if type(module).__name__ not in _KINDS or not type(module).__module__.startswith("transformers."):
        return False
    config, parts = module.config, list(module.modules())
    return (
        config._attn_implementation == "sdpa"
        and config.hidden_act == "silu"
        and module.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and len({p.device for p in module.parameters()} | {p.dtype for p in module.parameters()}) == 2
        and not any(part._forward_hooks or part._forward_pre_hooks for part in parts)
        and all(type(part) is torch.nn.Linear for part in parts if isinstance(part, torch.nn.Linear))
        and not any("forward" in vars(part) for part in parts)
    )


def _forward(module: Any) -> Forward:
    decoder = module.get_decoder()
    config = module.config

    layers = Layers(
        [layer_of(layer) for layer in decoder.layers],
        heads=config.num_attention_heads,
        groups=config.num_key_value_heads,
        size=decoder.layers[0].self_attn.head_dim,
        scale=decoder.layers[0].self_attn.scaling,
        eps=config.rms_norm_eps,
    )
    embedding, last, head = decoder.embed_tokens, decoder.norm.weight, module.lm_head

    def forward(
        ids: torch.Tensor,
        mask: torch.Tensor,
        positions: torch.Tensor,
        cache: TreeCache,
        hidden: list[torch.Tensor] | None,
    ) -> torch.Tensor:
        x = embedding(ids)
        cos, sin = decoder.rotary_emb(x, position_ids=positions)
        x = layers.run(x, cos, sin, mask, cache, hidden)
        return F.linear(layers.norm(x, last), head.weight, head.bias)

    return forward


def layer_of(layer: Any) -> Layer:
    """The weights of a module with the parts of a Llama layer."""

    def matrix(linear: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        return linear.weight, linear.bias

    query, key, value, out = (matrix(getattr(layer.self_attn, f"{name}_proj")) for name in "qkvo")
    gate, up, down = (matrix(getattr(layer.mlp, f"{name}_proj")) for name in ("gate", "up", "down"))
    before = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
    return Layer(before[0], query, key, value, out, before[1], gate, up, down)


@torch.inference_mode()
def _agrees(module: Any, forward: Forward) -> bool:
    device = module.get_input_embeddings().weight.device
    width = module.get_input_embeddings().weight.shape[0]
    start, tree = (torch.tensor([[(7 * i + 3) % width for i in ids]], device=device) for ids in ((0, 1), (2, 3, 4, 5)))
    text = torch.ones(1, 1, 2, 2, dtype=torch.bool, device=device).tril()
    mask = torch.tensor([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 1, 0], [1, 1, 1, 1, 0, 1]], device=device)
    positions = torch.tensor([[2, 3, 3, 4]], device=device)
    found = []
    for short in (False, True):
        cache = TreeCache(module.config.num_hidden_layers, 1)
        cache.end = 2
        module(input_ids=start, attention_mask=text, position_ids=positions[:, :2] - 2, cache=cache, use_cache=True)
        both = []
        for block in (slice(0, 4), slice(0, 1)):
            cache.end = 2 + block.stop
            given = tree[:, block], mask[None, None, block, : cache.end].bool(), positions[:, block]
            if short:
                both.append(forward(given[0], given[1], given[2], cache, None))
            else:
                out = module(
                    input_ids=given[0], attention_mask=given[1], position_ids=given[2], cache=cache, use_cache=True
                )
                both.append(out.logits)
        found.append(both)
    return all(torch.equal(a, b) for a, b in zip(*found, strict=True))
