"""Reading trees of drafted tokens in one forward pass, for a batch of texts of any lengths."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gpu_decoder.models import LanguageModel, layers_numbered, leaving
from gpu_decoder.shortcut import shortcut
from gpu_decoder.tree_slots import Block, TreeSlots
from ot_spec.errors import ModelError, PromptError

CHUNK = 512  # tokens a row of a prompt read in one pass: bounds the mask and the hidden states

_FEW = 5  # rows of a float32 product on a CPU: 2 to 4 take up to half as long again as 5, so they are padded
_RECURRENT = ("linear_attention", "mamba", "recurrent", "conv", "hybrid")


class TreeReader:
    """A model reading a batch of texts: `read` goes on in trees, `keep` makes one path a row part of the text.

    A token attends to its text and to its own path, by a mask (rows, 1, tokens, slots), at the position its depth
    says (`TreeSlots`). Windows of sliding attention are part of the mask, and no key is dropped for them, so that
    reading on after a rejected path is exact.

    tap: numbers of layers, 1 the first, whose outputs are handed on: `taken` has those of the tokens kept.
    """

    def __init__(self, model: LanguageModel, rows: int, tap: Sequence[int] = ()):
        check_tree_attention(model)
        self.model = model
        self._tap = tuple(tap)
        self._order = sorted(set(self._tap))  # as the layers run
        self._tapped = layers_numbered(model, self._order)
        self._hidden: list[torch.Tensor] = []  # (rows, tokens, taps * width) of each reading since the last `keep`
        self._hidden_from = 0  # the slot of the first of them
        self._kept: list[list[torch.Tensor]] = [[] for _ in range(rows)]
        self._slots = TreeSlots(_attention_of(model.model).layers, rows)
        short = shortcut(model.model)
        if short is not None:
            short.look()
            self._slots.cache.lay_out(short.groups, short.size, model.model.get_input_embeddings().weight)

    @property
    def lengths(self) -> list[int]:
        """Tokens kept of each text."""
        return self._slots.lengths

    def prefill(self, texts: Sequence[Sequence[int]]) -> None:
        """Read and keep the rest of each text, whose first `lengths` tokens are kept already."""
        while any(len(text) > length for text, length in zip(texts, self.lengths, strict=True)):
            parts = [text[length : length + CHUNK] for text, length in zip(texts, self.lengths, strict=True)]
            self.read([Block.chain(part) for part in parts], logits=False)
            self.keep([list(range(len(part))) for part in parts])

    def read(
        self, blocks: Sequence[Block], *, through: LanguageModel | None = None, logits: bool = True
    ) -> list[torch.Tensor]:
        """The logits after every token of each block, (tokens, V) in the model's dtype.

        through: the model's first layers under a head, which use the same cache; the text must be read again by the
        model itself. logits: False to leave them out where only the text is wanted.
        """
        model = through or self.model
        width = max((len(block.tokens) for block in blocks), default=0)
        if width == 0:
            return [torch.empty(0, model.vocab) for _ in blocks]
        module = model.model
        device = module.get_input_embeddings().weight.device
        short = shortcut(module)
        slow = device.type == "cpu" and module.dtype == torch.float32 and not (short and short.packed)
        if slow and 1 < width * len(blocks) < _FEW:
            width = -(-_FEW // len(blocks))
        cache, first = self._slots.cache, self._slots.take(width)
        mask, positions, tokens = self._slots.laid_out(blocks, first, width)
        ids, places = (torch.from_numpy(a).to(device) for a in (tokens, positions[:, first:]))
        masks = self._masks(mask, positions, first, module, device)
        tap = self._tap if through is None else ()
        if short is not None and cache.in_one and torch.is_tensor(masks):
            hidden = [] if tap else None
            out = short.forward(ids, masks, places, cache, hidden, logits)
            self._note(first, [hidden[layer - 1] for layer in tap] if hidden else [])
        else:
            with leaving(*(self._tapped if tap else ())) as hidden:
                out = module(
                    input_ids=ids, attention_mask=masks, position_ids=places, cache=cache, use_cache=True,
                    logits_to_keep=0 if logits else 1,
                ).logits  # fmt: skip
            left = dict(zip(self._order, hidden, strict=False))
            self._note(first, [left[layer] for layer in tap])
        return [row[: len(block.tokens)] for row, block in zip(out, blocks, strict=True)]

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Keep the tokens at these places, from the text's end down one path, of each row; drop the others."""
        hidden = torch.cat(self._hidden, dim=1) if self._hidden else None
        if hidden is not None:
            for row, path in enumerate(paths):
                if path:
                    places = [slot - self._hidden_from for slot in self._slots.slots(row, path)]
                    self._kept[row].append(hidden[row, places])
        self._hidden = []
        self._slots.keep(paths)

    def leave_out(self, slots: int) -> None:
        """Leave slots free before what is read next."""
        self._slots.leave_out(slots)

    def drop(self) -> None:
        """Forget what was read since the last `keep`."""
        self._hidden = []
        self._slots.drop()

    def taken(self) -> list[torch.Tensor]:
        """What left the tapped layers, side by side (tokens, taps * width), at each row's tokens kept since the last
        call."""
        width = len(self._tap) * self.model.model.config.get_text_config().hidden_size
        like = self.model.model.get_input_embeddings().weight
        found = [torch.cat(parts) if parts else like.new_empty(0, width) for parts in self._kept]
        self._kept = [[] for _ in self._kept]
        return found

    def _note(self, first: int, hidden: list[torch.Tensor]) -> None:
        if hidden:
            if not self._hidden:
                self._hidden_from = first
            self._hidden.append(torch.cat([part.to(hidden[0].device) for part in hidden], dim=-1))

    def select(self, rows: list[int]) -> None:
        """Go on with these texts only, in this order."""
        self._kept = [self._kept[row] for row in rows]
        self._slots.select(rows)

    def _masks(self, mask: np.ndarray, positions: np.ndarray, first: int, module: Any, device: Any) -> Any:
        attention = _attention_of(module)

        def placed(seen: np.ndarray) -> torch.Tensor:
            bits = torch.from_numpy(seen[:, None]).to(device)
            if not attention.additive:
                return bits
            low = torch.finfo(module.dtype).min
            return torch.zeros(bits.shape, dtype=module.dtype, device=device).masked_fill(~bits, low)

        seen, here, there = {"full_attention": mask}, positions[:, first:, None], positions[:, None, :]
        if attention.window is not None:
            seen["sliding_attention"] = mask & (here - there < attention.window)
        if attention.chunk is not None:
            seen["chunked_attention"] = mask & (here // attention.chunk == there // attention.chunk)
        if attention.mixed:
            return {kind: placed(bits) for kind, bits in seen.items()}
        return placed([*seen.values()][-1])


@dataclass(frozen=True)
class _Attention:
    layers: int
    window: int | None
    chunk: int | None
    mixed: bool  # the model takes a mask for each kind of layer
    additive: bool


def _attention_of(module: Any) -> _Attention:
    config = module.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or [])
    window = getattr(config, "sliding_window", None)
    if kinds and "sliding_attention" not in kinds:
        window = None
    chunk = config.attention_chunk_size if "chunked_attention" in kinds else None
    return _Attention(
        layers=config.num_hidden_layers,
        window=window,
        chunk=chunk,
        mixed=chunk is not None or (window is not None and {"full_attention", "sliding_attention"} <= kinds),
        additive=config._attn_implementation == "eager",
    )


_checked: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


def check_tree_attention(model: LanguageModel) -> None:
    """Raise ModelError unless the model reads a small tree as it reads each of its paths by itself.

    Refused at once: states that cannot be rewound (recurrent layers), biases by the place in the cache (ALiBi),
    attention kernels that take no mask of their own. A model is checked once.
    """
    module = model.model
    if module in _checked:
        return
    config = module.config.get_text_config()
    kinds = [kind for kind in getattr(config, "layer_types", None) or [] if any(word in kind for word in _RECURRENT)]
    if kinds or getattr(module, "_is_stateful", False):
        raise ModelError(
            f"{model.name!r} keeps a state that cannot be rewound ({kinds[0] if kinds else 'recurrent'} layers), so "
            "rejected tokens cannot be taken back: decode it with its own generate"
        )
    if _has_alibi(config):
        raise ModelError(
            f"{model.name!r} weighs keys by their place in the cache (ALiBi), and drafted tokens of one depth lie in "
            "different places: decode it with its own generate"
        )
    if config._attn_implementation not in ("sdpa", "eager"):
        raise ModelError(
            f"{model.name!r} uses the attention kernel {config._attn_implementation!r}, which takes no mask of a tree: "
            'load it with attn_implementation="sdpa"'
        )
    _checked.add(module)
    try:
        with _short_windows(config):
            off = _difference_on_a_tree(model)
    except Exception as reason:
        _checked.discard(module)
        raise ModelError(
            f"{model.name!r} cannot read a tree of tokens ({type(reason).__name__}: {reason}): decode it with its own "
            "generate"
        ) from reason
    if off != off:
        _checked.discard(module)
        raise ModelError(f"{model.name!r} makes logits that are NaN or infinite")
    if not off <= {torch.float64: 1e-4, torch.float32: 1e-2}.get(module.dtype, 0.2):
        _checked.discard(module)
        raise ModelError(
            f"{model.name!r} reads a token in a tree otherwise than in a text (logits differ by {off:.3g} of their "
            "spread), so its attention does not follow masks and positions: decode it with its own generate"
        )


def check_instead(model: LanguageModel, whole: LanguageModel) -> None:
    """`check_tree_attention` of a model in place of one that is it but for rows of its head."""
    check_tree_attention(whole)
    _checked.add(model.model)


def _has_alibi(config: Any) -> bool:
    nested = getattr(config, "attn_config", None)
    return config.model_type == "bloom" or bool(getattr(config, "alibi", False) or getattr(nested, "alibi", False))


@contextmanager
def _short_windows(config: Any) -> Iterator[None]:
    """Windows of 3 tokens while inside, so that a few tokens reach past them: masks are made from the configuration."""
    windows = {name: getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")}
    windows = {name: value for name, value in windows.items() if value}
    try:
        for name in windows:
            setattr(config, name, 3)
        yield
    finally:
        for name, value in windows.items():
            setattr(config, name, value)


@torch.inference_mode()
def _difference_on_a_tree(model: LanguageModel) -> float:
    """The largest difference of logits between a tree, far from its text in the cache, and the model's own forward
    passes over its paths, in units of the logits' standard deviation."""
    ids = [(7 * i + 3) % model.vocab for i in range(7)]
    reader = TreeReader(model, 1)
    reader.prefill([ids[:3]])
    reader.leave_out(_within(model.model.config.get_text_config()))
    [found] = reader.read([Block(ids[3:], [-1, -1, 1, 0])])
    off, device = [], model.model.get_input_embeddings().weight.device
    for nodes in ([0, 3], [1, 2]):
        path = torch.tensor([[*ids[:3], *(ids[3 + node] for node in nodes)]], device=device)
        plain = model.model(input_ids=path, use_cache=False).logits[0, 3:].double()
        error = (found[nodes].double() - plain).abs().max()
        off.append(torch.where(error == 0, error, error / plain.std()))  # all logits may be equal
    return float(torch.stack(off).max())


def _within(config: Any) -> int:
    """Slots after which an attention that goes by the place in the cache shows, windows of its own included."""
    known = ("sliding_window", "attention_chunk_size")
    others = [value for name, value in vars(config).items() if "window" in name and name not in known]
    return min(64 + max((value for value in others if type(value) is int), default=0), 4096)


def check_readable(
    model: LanguageModel, texts: Sequence[Sequence[int]], room: int, names: Sequence[str] | None = None
) -> None:
    """Raise PromptError for a text that is empty, holds an id the model does not read, or leaves no room."""
    width = model.model.get_input_embeddings().weight.shape[0]
    for row, text in zip(names or range(len(texts)), texts, strict=True):
        if not len(text):
            raise PromptError(f"prompt {row} is empty: there is nothing to read before its first token")
        if not 0 <= min(text) <= max(text) < width:
            wrong = next(i for i in text if not 0 <= i < width)
            raise PromptError(f"prompt {row} holds token {wrong}; {model.name!r} reads tokens 0 to {width - 1}")
        if model.context is not None and len(text) + room > model.context:
            raise PromptError(
                f"prompt {row} has {len(text)} tokens, and {room} more are asked for; {model.name!r} reads "
                f"{model.context}"
            )
