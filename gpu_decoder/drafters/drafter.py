"""The interface of drafters, and how one is named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from transformers import PreTrainedModel

from gpu_decoder.models import LanguageModel, as_language_model, check_one_tokenizer, load
from gpu_decoder.verify import Block, TreeReader
from ot_spec.errors import OptionError


class Scores(NamedTuple):
    """Logits (n, V') after n tokens, and where the drafter has something to propose (None: everywhere).

    The draft law is softmax(logits / draft temperature), filtered; -inf for a token that is never drafted. A drafter
    that counts gives the logarithms of its law.
    """

    logits: torch.Tensor
    proposes: np.ndarray | None = None


class DraftSession(Protocol):
    """One batch of texts being drafted for.

    A step is `begin`, any number of `extend`, `end`. What became of the last step's tree need not be told: the texts
    say it.
    """

    def begin(self, texts: Sequence[Sequence[int]]) -> list[Scores]:
        """Scores (1, V') after each text; each has grown since the last step by one token at least."""
        ...

    def extend(self, blocks: Sequence[Block]) -> list[Scores]:
        """Scores after each of these further tokens of each row, which follow the text or earlier blocks."""
        ...

    def end(self) -> None:
        """The trees are grown."""
        ...

    def select(self, rows: list[int]) -> None:
        """Go on with these texts only, in this order."""
        ...


@runtime_checkable
class Drafter(Protocol):
    """name: as it is shown and given on the command line."""

    name: str

    def start(self, target: TreeReader, rows: int) -> DraftSession:
        """A session for `rows` texts that `target` reads; VocabularyError where ids mean other tokens."""
        ...


class NoDrafter:
    """Drafts nothing: every target call commits one token, as plain generation does."""

    name = "none"

    def start(self, target: TreeReader, rows: int) -> DraftSession:
        return _Silent(rows)


class _Silent:
    def __init__(self, rows: int):
        self._rows = rows

    def begin(self, texts: Sequence[Sequence[int]]) -> list[Scores]:
        return [Scores(torch.empty(0, 1), np.zeros(1, dtype=bool)) for _ in texts]

    def extend(self, blocks: Sequence[Block]) -> list[Scores]:
        raise AssertionError("there is nothing to extend")

    def end(self) -> None: ...

    def select(self, rows: list[int]) -> None: ...


def get_drafter(name: str | Path | LanguageModel | PreTrainedModel | Drafter, target: LanguageModel) -> Drafter:
    """A drafter for `target` by its name.

    "none"; "exit:N", the target leaving its last N layers out; "lookup" or "lookup:N", what followed the last N tokens
    where they stood before; a folder with a model, a `LanguageModel` or a model of transformers, of the target's
    tokenizer.
    """
    from gpu_decoder.drafters.early_exit import EarlyExitDrafter
    from gpu_decoder.drafters.lookup import LookupDrafter
    from gpu_decoder.drafters.model import ModelDrafter

    if isinstance(name, PreTrainedModel):
        name = as_language_model(name)
    if isinstance(name, LanguageModel):
        return ModelDrafter(name)
    if not isinstance(name, str | Path):
        if not isinstance(name, Drafter):
            raise OptionError(f"a drafter is a name, a folder, a model or a Drafter, not {type(name).__name__}")
        return name
    kind, _, rest = str(name).partition(":")
    if kind == "none":
        return NoDrafter()
    if kind in ("exit", "lookup"):
        if rest and not rest.isdecimal():
            raise OptionError(f"a drafter is written {kind}:N with a number, got {str(name)!r}")
        if kind == "lookup":
            return LookupDrafter(int(rest)) if rest else LookupDrafter()
        if not rest:
            raise OptionError("an early exit is written exit:N with the number of layers left out")
        return EarlyExitDrafter(int(rest))
    dtype = str(target.model.dtype).removeprefix("torch.")
    draft = load(name, dtype, str(target.model.device))
    if target.tokenizer is not None:
        check_one_tokenizer(target, draft)
    return ModelDrafter(draft)
