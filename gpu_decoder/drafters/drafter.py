"""The interface of drafters, and how one is named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from transformers import PreTrainedModel

from gpu_decoder.models import LanguageModel, as_language_model, check_one_tokenizer, load
from gpu_decoder.tree_slots import Block
from gpu_decoder.verify import TreeReader
from ot_spec.errors import ModelError, OptionError, VocabularyError


class Scores(NamedTuple):
    """Logits (n, m) after n tokens, and where the drafter has something to propose (None: everywhere).

    The draft law is softmax(logits / draft temperature), filtered; -inf for a token that is never drafted. A drafter
    that counts gives the logarithms of its law. ids (m,): the tokens that the logits are of, the same for all that a
    session gives; None: 0, 1, .. On a CPU ascending ids are faster: laws are drawn from before they are made V wide.
    """

    logits: torch.Tensor
    proposes: np.ndarray | None = None
    ids: torch.Tensor | None = None


def widened(logits: torch.Tensor, ids: torch.Tensor, vocab: int) -> torch.Tensor:
    """Logits (n, m) of the tokens `ids` (m,) as logits (n, V), -inf for all others."""
    wide = logits.new_full((len(logits), vocab), -torch.inf)
    wide[:, ids] = logits
    return wide


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
    """name: as it is shown and given on the command line. A drafter that reads the target's hidden states has `tap`,
    numbers of layers, besides: `TreeReader.taken` hands it what leaves them. One that reads no text longer than so many
    tokens has `context`."""

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


TRAINED = Path(__file__).parent / "smollm2"
"""The drafter that comes with the project, made for the default model."""


def get_drafter(name: str | Path | LanguageModel | PreTrainedModel | Drafter | None, target: LanguageModel) -> Drafter:
    """A drafter for `target` by its name.

    None: "trained" where that fits the target, else an early exit that leaves a tenth of the layers out. "trained", the
    drafter that comes with the project for the default model; "none"; "exit:N", the target leaving its last N layers
    out; "lookup" or "lookup:N", what followed the last N tokens where they stood before; a folder with a drafter or a
    model, a `LanguageModel` or a model of transformers, of the target's tokenizer.
    """
    from gpu_decoder.drafters.early_exit import EarlyExitDrafter
    from gpu_decoder.drafters.feature import FeatureDrafter
    from gpu_decoder.drafters.feature_net import is_feature_net
    from gpu_decoder.drafters.lookup import LookupDrafter
    from gpu_decoder.drafters.model import ModelDrafter

    if name is None:
        try:
            return FeatureDrafter.load(TRAINED, target, "trained")
        except (VocabularyError, ModelError):
            layers = target.model.config.get_text_config().num_hidden_layers
            return EarlyExitDrafter(max(1, round(layers / 10))) if layers > 1 else NoDrafter()
    if name == "trained":
        return FeatureDrafter.load(TRAINED, target, "trained")
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
    if is_feature_net(Path(name)):
        return FeatureDrafter.load(name, target)
    dtype = str(target.model.dtype).removeprefix("torch.")
    draft = load(name, dtype, str(target.model.device))
    if target.tokenizer is not None:
        check_one_tokenizer(target, draft)
    return ModelDrafter(draft)
