"""The net of a feature drafter: what it computes, how it is unrolled for training, how it is stored.

In the manner of EAGLE (Li et al. 2024, 2025): from the target's hidden states after token i and the embedding of token
i + 1, one layer makes a state whose head gives the law of token i + 2; the state stands in for the target's where the
drafter goes on by itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

from gpu_decoder.drafters.drafter import widened
from gpu_decoder.kv_cache import TreeCache
from gpu_decoder.matrix import Matrix, PackedMatrix, can_pack, matrix
from gpu_decoder.models import LanguageModel, fingerprint
from gpu_decoder.shortcut import Layers, layer_of
from ot_spec.errors import ModelError, VocabularyError

KIND = "feature_drafter"


@dataclass(frozen=True)
class FeatureConfig:
    """Shape of a net. width: of the target's hidden states; tap: the layers they come from, 1 the first; vocab: the
    target's V; drafted: tokens of the draft vocabulary; window: pairs that a pair sees, itself included; head: whether
    the net has output rows of its own (else the target's); rank: where it is not 0, only the first `full` tokens have
    rows of the whole width, the others' have `rank` entries, by a map that they share."""

    width: int
    tap: tuple[int, ...]
    vocab: int
    drafted: int
    layers: int = 1
    heads: int = 9
    groups: int = 3
    size: int = 64
    mlp: int = 1536
    window: int = 384
    eps: float = 1e-5
    theta: float = 10_000.0
    head: bool = True
    full: int = 0
    rank: int = 0

    @property
    def rows(self) -> int:
        """Tokens with a row of the whole width."""
        return self.full if self.rank else self.drafted


def _even(x: torch.Tensor, eps: float) -> torch.Tensor:
    """x over the root mean square of its last dimension, in float32 at least."""
    precise = x.to(torch.promote_types(x.dtype, torch.float32))
    return F.rms_norm(precise, x.shape[-1:], None, eps).to(x.dtype)


class _Attention(nn.Module):
    def __init__(self, config: FeatureConfig):
        super().__init__()
        inner, shared = config.heads * config.size, config.groups * config.size
        self.q_proj = nn.Linear(config.width, inner, bias=False)
        self.k_proj = nn.Linear(config.width, shared, bias=False)
        self.v_proj = nn.Linear(config.width, shared, bias=False)
        self.o_proj = nn.Linear(inner, config.width, bias=False)


class _MLP(nn.Module):
    def __init__(self, config: FeatureConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.width, config.mlp, bias=False)
        self.up_proj = nn.Linear(config.width, config.mlp, bias=False)
        self.down_proj = nn.Linear(config.mlp, config.width, bias=False)


class _Norm(nn.Module):
    """x over its root mean square, times a weight; in float32 inside, as Llama's."""

    def __init__(self, config: FeatureConfig):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(config.width)), config.eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _even(x, self.eps) * self.weight


class _Layer(nn.Module):
    def __init__(self, config: FeatureConfig):
        super().__init__()
        self.self_attn, self.mlp = _Attention(config), _MLP(config)
        self.input_layernorm, self.post_attention_layernorm = _Norm(config), _Norm(config)


class _Products(NamedTuple):
    """The net's matrices as they are multiplied by. head: rows of the whole width, and the way to the others."""

    fuse: Matrix
    join: Matrix
    layers: Layers
    head: Matrix
    tail: Matrix | None


class FeatureNet(nn.Module):
    """The weights. `embedding` (V, width) and, without a head of its own, the rows of the head are the target's: they
    are handed over by `attach` and not stored."""

    vocabulary: torch.Tensor

    def __init__(self, config: FeatureConfig, vocabulary: torch.Tensor):
        super().__init__()
        self.config = config
        width, taps = config.width, len(config.tap)
        self.tap_norms = nn.Parameter(torch.ones(taps, width))
        self.fuse = nn.Linear(taps * width, width, bias=False)
        self.token_norm = _Norm(config)
        self.feature_norm = _Norm(config)
        self.join = nn.Linear(2 * width, width, bias=False)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.layers))
        self.norm = _Norm(config)
        self.head = nn.Linear(width, config.rows, bias=False) if config.head else None
        self.tail = None
        if config.rank:
            down = nn.Linear(width, config.rank, bias=False)
            self.tail = nn.Sequential(down, nn.Linear(config.rank, config.drafted - config.rows, bias=False))
        self.register_buffer("vocabulary", vocabulary)
        self._embedding = torch.empty(0)
        self._rows = torch.empty(0)

    def attach(self, target: LanguageModel) -> FeatureNet:
        """Use this target's embedding and head, in its dtype and on its device; VocabularyError, ModelError where the
        shapes differ."""
        weight = target.model.get_input_embeddings().weight
        width, layers = weight.shape[1], target.model.config.get_text_config().num_hidden_layers
        if target.vocab != self.config.vocab:
            raise VocabularyError(
                f"the drafter drafts for {self.config.vocab} tokens; {target.name!r} has {target.vocab}"
            )
        if width != self.config.width or max(self.config.tap) > layers:
            raise ModelError(
                f"the drafter reads layers {list(self.config.tap)} of width {self.config.width}; {target.name!r} has "
                f"{layers} layers of width {width}"
            )
        self._embedding = weight.detach()
        if self.head is None:
            head = target.model.get_output_embeddings().weight.detach()
            self._rows = head[self.vocabulary[: self.config.rows].to(head.device)].to(weight.device)
        for made in ("_products", "ascending"):
            vars(self).pop(made, None)
        return self.to(weight.device)

    @cached_property
    def _products(self) -> _Products:
        config, packed = self.config, can_pack(self.join.weight)
        whole: Any = self.head or SimpleNamespace(weight=self._rows, bias=None)
        weights = [layer_of(layer, packed) for layer in self.layers]
        parts: Any = self.tail or ()
        return _Products(
            matrix([self.fuse], packed=packed),
            matrix([self.join], packed=packed),
            Layers(weights, config.heads, config.groups, config.size, config.size**-0.5, config.eps),
            matrix([whole], *([part] for part in parts[:1]), packed=packed),
            matrix([parts[1]], packed=packed) if self.tail else None,
        )

    def look(self) -> None:
        """Notice weights that were changed in ways torch does not count, such as through `.data`."""
        products = self._products
        for each in (*products, *(each for layer in products.layers.weights for each in layer)):
            if isinstance(each, PackedMatrix):
                each.look()

    @property
    def rows(self) -> torch.Tensor:
        """The rows of the whole width."""
        return self._rows if self.head is None else self.head.weight

    @cached_property
    def ascending(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The draft vocabulary in ascending order, and the places of these tokens among the logits."""
        ids, places = self.vocabulary.sort()
        return ids, places

    # ---- what it computes

    def fused(self, features: torch.Tensor) -> torch.Tensor:
        """(..., taps * width) hidden states of the target -> (..., width)."""
        parts = features.unflatten(-1, (len(self.config.tap), self.config.width)).to(self.fuse.weight.dtype)
        return self._products.fuse((_even(parts, self.config.eps) * self.tap_norms).flatten(-2))[0]

    def joined(self, tokens: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Tokens (..., ) and the states before them (..., width) -> (..., width)."""
        given = self._embedding[tokens].to(states.dtype)
        return self._products.join(torch.cat((self.token_norm(given), self.feature_norm(states)), dim=-1))[0]

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """(..., width) -> (..., drafted)."""
        made, *narrow = self._products.head(self.norm(states))
        tail = self._products.tail
        return torch.cat((made, *tail(narrow[0])), dim=-1) if tail else made

    def wide(self, logits: torch.Tensor) -> torch.Tensor:
        """(n, drafted) -> (n, V), -inf outside the draft vocabulary."""
        return widened(logits, self.vocabulary, self.config.vocab)

    def turns(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin (..., size) of rotary positions."""
        half = self.config.size // 2
        rates = self.config.theta ** (-torch.arange(half, device=positions.device, dtype=torch.float32) / half)
        angles = positions[..., None].float() * rates
        angles = torch.cat((angles, angles), dim=-1)
        dtype = self.join.weight.dtype
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def read(
        self, tokens: torch.Tensor, states: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, cache: TreeCache
    ) -> torch.Tensor:
        """States (rows, n, width) after pairs of tokens (rows, n) and states, over a cache."""
        cos, sin = self.turns(positions)
        return self._products.layers.run(self.joined(tokens, states), cos, sin, mask, cache)

    # ---- training

    def unrolled(self, tokens: torch.Tensor, features: torch.Tensor, steps: int) -> Iterator[torch.Tensor]:
        """States (B, C - 1, width) after each pair of the texts tokens (B, C), features (B, C, taps * width): first
        from the target's states, then with the last 1, 2, .. of them its own.

        In step s, state m has the target's states before m - s + 1 and the drafter's after. The first s - 1 states of
        step s have none of their own to go on from, and mean nothing.
        """
        config, n = self.config, tokens.shape[1] - 1
        places = torch.arange(n, device=tokens.device)
        cos, sin = self.turns(places)
        back = places[:, None] - places[None, :]
        states, seen = self.fused(features[:, :-1]), [[] for _ in self.layers]
        for step in range(1, steps + 1):
            mask = (back >= step - 1) & (back < config.window)
            x = self.joined(tokens[:, 1:], states)
            layer: Any
            for layer, past in zip(self.layers, seen, strict=True):
                x = x + self._attended(layer, layer.input_layernorm(x), cos, sin, mask, past, step)
                y = layer.post_attention_layernorm(x)
                x = x + layer.mlp.down_proj(F.silu(layer.mlp.gate_proj(y)) * layer.mlp.up_proj(y))
            yield x
            states = _later(x, 1)

    def _attended(
        self,
        layer: Any,
        y: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        mask: torch.Tensor,
        past: list[tuple[torch.Tensor, torch.Tensor]],
        step: int,
    ) -> torch.Tensor:
        config, attention = self.config, layer.self_attn

        def split(made: torch.Tensor) -> torch.Tensor:
            return made.unflatten(-1, (-1, config.size)).transpose(1, 2)

        def turned(x: torch.Tensor) -> torch.Tensor:
            first, second = x.chunk(2, dim=-1)
            return x * cos + torch.cat((-second, first), dim=-1) * sin

        shared = config.heads // config.groups
        query = turned(split(attention.q_proj(y)))
        key = turned(split(attention.k_proj(y))).repeat_interleave(shared, dim=1)
        value = split(attention.v_proj(y)).repeat_interleave(shared, dim=1)
        past.append((key, value))
        if step == 1:
            out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        else:
            # of the drafter's own states, a pair sees one of each earlier step: on its own way, not on another's
            own = [
                (_later(k, step - r, 2), _later(v, step - r, 2))
                for r, (k, v) in enumerate(past[1:], start=2)
                if step - r < config.window
            ]
            keys, values = past[0]
            scores = [(query @ keys.transpose(-1, -2)).masked_fill(~mask, -torch.inf)]
            scores += [(query * k).sum(-1, keepdim=True) for k, _ in own]
            both = torch.cat(scores, dim=-1)
            precise = both.to(torch.promote_types(both.dtype, torch.float32))
            weights = (precise * config.size**-0.5).softmax(-1).to(values.dtype)
            out = weights[..., : keys.shape[-2]] @ values
            for i, (_, v) in enumerate(own):
                out = out + weights[..., keys.shape[-2] + i, None] * v
        return attention.o_proj(out.transpose(1, 2).flatten(-2))

    # ---- storing

    def save(self, folder: Path, **about: str) -> None:
        """Write config.json, with `about` the target, and model.safetensors (bfloat16) into the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: w.to(torch.bfloat16) for name, w in self.named_parameters()}
        weights["vocabulary"] = self.vocabulary.to(torch.int32)
        save_file({name: w.contiguous().cpu() for name, w in weights.items()}, folder / "model.safetensors")
        said = {"model_type": KIND, **about, **asdict(self.config)}
        (folder / "config.json").write_text(json.dumps(said, indent=1) + "\n")
        (folder / "model.safetensors").chmod(0o644)


def load_feature_net(folder: Path, target: LanguageModel) -> FeatureNet:
    """The net in a folder, attached to its target; ModelError for a folder that holds none."""
    try:
        about = json.loads((folder / "config.json").read_text())
        weights = load_file(folder / "model.safetensors")
        about = {"full": 0, "rank": 0, **about}  # a net made before there were two kinds of rows
        shape = {field.name: about[field.name] for field in fields(FeatureConfig)}
        config = FeatureConfig(**{**shape, "tap": tuple(shape["tap"])})
        vocabulary = weights.pop("vocabulary")
        _check_shape(config, vocabulary)
        with torch.device("meta"):  # sizes are compared before memory is taken for them
            net = FeatureNet(config, vocabulary.long())
        net.load_state_dict(weights, strict=False, assign=True)
        missing = {name for name, _ in net.named_parameters()} ^ set(weights)
    except Exception as reason:  # whatever a broken folder makes the libraries raise
        said = " ".join(str(reason).split())
        raise ModelError(f"cannot load the drafter in {str(folder)!r}: {said}") from reason
    if about.get("tokenizer") and target.tokenizer and about["tokenizer"] != fingerprint(target.tokenizer):
        raise VocabularyError(
            f"the drafter in {str(folder)!r} is for {about.get('target')!r}; {target.name!r} has another tokenizer"
        )
    if missing:
        raise ModelError(f"the drafter in {str(folder)!r} has other weights than its shape says: {min(missing)}")
    net = net.to(target.model.dtype).requires_grad_(False).eval()
    return net.attach(target)


def _check_shape(config: FeatureConfig, vocabulary: torch.Tensor) -> None:
    """Raise ValueError for a shape that is none, and for a vocabulary that does not fit it."""
    for name, value in asdict(config).items():
        if name in ("eps", "theta"):
            if type(value) not in (int, float) or not 0 < value < float("inf"):
                raise ValueError(f"{name} is {value!r}, not a positive number")
        elif name == "head":
            if type(value) is not bool:
                raise ValueError(f"{name} is {value!r}, not true or false")
        elif name == "tap":
            if not value or not all(type(i) is int and i > 0 for i in value) or sorted({*value}) != [*value]:
                raise ValueError(f"tap is {list(value)!r}, not layers in ascending order, 1 the first")
        elif name in ("full", "rank"):
            if type(value) is not int or value < 0:
                raise ValueError(f"{name} is {value!r}, not an integer from 0")
        elif type(value) is not int or value < 1:
            raise ValueError(f"{name} is {value!r}, not a positive integer")
    if config.rank and not 0 < config.full < config.drafted:
        raise ValueError(
            f"full is {config.full} of {config.drafted} tokens: no others are left for rows of {config.rank}"
        )
    if config.heads % config.groups or config.size % 2:
        raise ValueError(f"{config.heads} heads of size {config.size} make no {config.groups} groups of even size")
    ids = vocabulary.tolist()
    if vocabulary.ndim != 1 or vocabulary.is_floating_point() or len(ids) != config.drafted:
        raise ValueError(f"its vocabulary is no list of {config.drafted} ids")
    if len({*ids}) < len(ids) or not 0 <= min(ids) <= max(ids) < config.vocab:
        raise ValueError(f"its vocabulary is not of different ids 0 to {config.vocab - 1}")


def is_feature_net(folder: Path) -> bool:
    """Whether the folder says that it holds a feature drafter."""
    try:
        return json.loads((folder / "config.json").read_text()).get("model_type") == KIND
    except (OSError, ValueError, AttributeError):
        return False


def _later(x: torch.Tensor, by: int, dim: int = 1) -> torch.Tensor:
    """x moved `by` places later along a dimension, zeros before."""
    if by == 0:
        return x
    shape = [*x.shape]
    shape[dim] = by
    return torch.cat((x.new_zeros(shape), x.narrow(dim, 0, x.shape[dim] - by)), dim=dim)


def new_net(target: LanguageModel, vocabulary: Sequence[int], tap: Sequence[int], **shape: Any) -> FeatureNet:
    """A net for a target, before training: matrices normal with deviation 0.02, the head the target's rows, those of
    fewer entries as near to them as they can be."""
    config = target.model.config.get_text_config()
    shape = {
        "heads": config.num_attention_heads,
        "groups": getattr(config, "num_key_value_heads", config.num_attention_heads),
        "size": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        "mlp": getattr(config, "intermediate_size", 4 * config.hidden_size),
        **shape,
    }
    width = config.hidden_size
    net = FeatureNet(
        FeatureConfig(width=width, tap=tuple(tap), vocab=target.vocab, drafted=len(vocabulary), **shape),
        torch.tensor(list(vocabulary)),
    )
    with torch.no_grad():
        for part in net.modules():
            if isinstance(part, nn.Linear):
                part.weight.normal_(0, 0.02)
        rows = target.model.get_output_embeddings().weight[net.vocabulary].float()
        if net.head is not None:
            net.head.weight.copy_(rows[: net.config.rows])
        if net.tail is not None:
            left, sizes, right = torch.linalg.svd(rows[net.config.rows :], full_matrices=False)
            down, up = net.tail.parameters()
            up.zero_()
            down[: len(right)], up[:, : len(sizes)] = right[: net.config.rank], (left * sizes)[:, : net.config.rank]
        norm = getattr(target.model.get_decoder(), "norm", None)
        if norm is not None and norm.weight.shape == net.norm.weight.shape:
            net.norm.weight.copy_(norm.weight)
    return net.attach(target)
