"""A shorter way through decoders of the Llama kind: the same operations on the same weights, with less Python around
them and, on a CPU, products made for a few rows (`matrix`).

A call over a few tokens reads every weight once, and a small model spends a quarter of it between operations.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from gpu_decoder.kv_cache import TreeCache
from gpu_decoder.matrix import Matrix, PackedMatrix, can_pack, matrix

_KINDS = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")
_PACKED = 4 << 30  # bytes of a model whose matrices are copied to be laid out anew, at most

Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, TreeCache, list[torch.Tensor] | None, bool], torch.Tensor]
"""(ids (rows, n), mask (rows, 1, n, slots), positions (rows, n), cache, hidden, wanted) -> logits (rows, n, V), none
(rows, 0, V) where they are not wanted; what leaves each layer is appended to `hidden`, where it is given."""


class Layer(NamedTuple):
    """One layer: its norms, whose weights are read as they are, and its matrices. read: queries and keys side by side,
    values; open: gate, up."""

    before_attention: Any
    read: Matrix
    out: Matrix
    before_mlp: Any
    open: Matrix
    down: Matrix


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
        on_host = x.device.type == "cpu"
        seen_by = torch.zeros_like(mask, dtype=x.dtype).masked_fill_(~mask, -torch.inf)  # once, not in every layer
        for layer, (new_keys, new_values), (keys, values) in zip(self.weights, written, seen, strict=True):
            y = self.norm(x, layer.before_attention.weight)
            both, value = layer.read(y)
            both = both.view(rows, n, heads + groups, size).transpose(1, 2)
            both = both * cos + torch.cat((both[..., half:], both[..., :half]), dim=-1) * sin
            new_keys.copy_(both[:, heads:])
            new_values.copy_(value.view(rows, n, groups, size).transpose(1, 2))
            query = both[:, :heads]
            if n == 1:  # queries of one group side by side
                query = query.reshape(rows, groups, shared, size)
            elif not on_host and shared > 1:  # only a CPU's kernel reads shared keys where they are
                keys, values = (
                    part[:, :, None].expand(-1, -1, shared, -1, -1).reshape(rows, heads, -1, size)
                    for part in (keys, values)
                )
            y = F.scaled_dot_product_attention(
                query, keys, values, attn_mask=seen_by, scale=self.scale, enable_gqa=query.shape[1] != keys.shape[1]
            )
            y = y.reshape(rows, heads, n, size).transpose(1, 2).reshape(rows, n, heads * size)
            x = x + layer.out(y)[0]
            gate, up = layer.open(self.norm(x, layer.before_mlp.weight))
            x = x + layer.down(F.silu(gate) * up)[0]
            if hidden is not None:
                hidden.append(x)
        return x


@dataclass(frozen=True)
class Shortcut:
    """A short way through a model whose attention has `groups` of keys and values of `size`. packed: its matrices are
    laid out for a few rows; they are `matrices` then."""

    forward: Forward
    packed: bool
    groups: int
    size: int
    matrices: Sequence[Any] = ()

    def look(self) -> None:
        """Notice weights that were changed in ways torch does not count, such as through `.data`."""
        for each in self.matrices:
            each.look()


_known: weakref.WeakKeyDictionary[torch.nn.Module, Shortcut | None] = weakref.WeakKeyDictionary()


def shortcut(module: torch.nn.Module) -> Shortcut | None:
    """The short way through a model, or None where there is none that gives the same logits to the last bit; with
    packed matrices, of at most `_PACKED` bytes, the same up to rounding.

    A model is tried once, on a tree of four tokens.
    """
    if module not in _known:
        _known[module] = None
        if _is_plain(module):
            own, way = _tree_logits(module, None), _way(module, packed=False)
            if all(torch.equal(a, b) for a, b in zip(own, _tree_logits(module, way.forward), strict=True)):
                _known[module] = way
                if can_pack(next(module.parameters())) and _bytes(module) <= _PACKED:
                    way = _way(module, packed=True)
                    way.look()
                    if all(_close(a, b) for a, b in zip(own, _tree_logits(module, way.forward), strict=True)):
                        _known[module] = way
    return _known[module]


def _bytes(module: torch.nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a - b).abs().max() <= 1e-3 * a.std(correction=0))


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


def _way(module: Any, packed: bool) -> Shortcut:
    decoder = module.get_decoder()
    config = module.config

    layers = Layers(
        [layer_of(layer, packed) for layer in decoder.layers],
        heads=config.num_attention_heads,
        groups=config.num_key_value_heads,
        size=decoder.layers[0].self_attn.head_dim,
        scale=decoder.layers[0].self_attn.scaling,
        eps=config.rms_norm_eps,
    )
    embedding, last, head = decoder.embed_tokens, decoder.norm, matrix([module.lm_head], packed=packed)

    def forward(
        ids: torch.Tensor,
        mask: torch.Tensor,
        positions: torch.Tensor,
        cache: TreeCache,
        hidden: list[torch.Tensor] | None,
        wanted: bool,
    ) -> torch.Tensor:
        x = embedding(ids)
        cos, sin = decoder.rotary_emb(x, position_ids=positions)
        x = layers.run(x, cos, sin, mask, cache, hidden)
        return head(layers.norm(x if wanted else x[:, :0], last.weight))[0]

    own = [each for layer in layers.weights for each in layer if isinstance(each, PackedMatrix)]
    return Shortcut(forward, packed, layers.groups, layers.size, [*own, head] if packed else [])


def layer_of(layer: Any, packed: bool = False) -> Layer:
    """The weights of a module with the parts of a Llama layer."""
    attention, mlp = layer.self_attn, layer.mlp
    return Layer(
        layer.input_layernorm,
        matrix([attention.q_proj, attention.k_proj], [attention.v_proj], packed=packed),
        matrix([attention.o_proj], packed=packed),
        layer.post_attention_layernorm,
        matrix([mlp.gate_proj], [mlp.up_proj], packed=packed),
        matrix([mlp.down_proj], packed=packed),
    )


@torch.inference_mode()
def _tree_logits(module: Any, forward: Forward | None) -> list[torch.Tensor]:
    """Logits after a tree of four tokens and after one of them, by this way or the model's own."""
    device = module.get_input_embeddings().weight.device
    width = module.get_input_embeddings().weight.shape[0]
    start, tree = (torch.tensor([[(7 * i + 3) % width for i in ids]], device=device) for ids in ((0, 1), (2, 3, 4, 5)))
    text = torch.ones(1, 1, 2, 2, dtype=torch.bool, device=device).tril()
    mask = torch.tensor([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 1, 0], [1, 1, 1, 1, 0, 1]], device=device)
    positions = torch.tensor([[2, 3, 3, 4]], device=device)
    cache = TreeCache(module.config.num_hidden_layers, 1)
    cache.end = 2
    module(input_ids=start, attention_mask=text, position_ids=positions[:, :2] - 2, cache=cache, use_cache=True)
    found = []
    for block in (slice(0, 4), slice(0, 1)):
        cache.end = 2 + block.stop
        given = tree[:, block], mask[None, None, block, : cache.end].bool(), positions[:, block]
        if forward:
            found.append(forward(given[0], given[1], given[2], cache, None, True))
        else:
            out = module(
                input_ids=given[0], attention_mask=given[1], position_ids=given[2], cache=cache, use_cache=True
            )
            found.append(out.logits)
    return found
