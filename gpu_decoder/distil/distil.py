"""Making a drafter: text, training, evaluation and card, in one folder that a killed run goes on in.

========================= ==================================================================================
``settings.json``         all that the drafter depends on
``text/shard-N``          what the target wrote (`gpu_decoder.distil.text`)
``checkpoint.pt``         the whole state of the training
``drafter/``              the drafter, as `get_drafter` loads it, with its card README.md
``laws_T*, drafted_T*``   its laws along the target's text, on prompts it has not learned from
``evaluation.json``       what it is worth (`gpu_decoder.distil.evaluate`)
========================= ==================================================================================
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from gpu_decoder.distil.card import card
from gpu_decoder.distil.corpus import Corpus, draft_vocabulary
from gpu_decoder.distil.evaluate import judge
from gpu_decoder.distil.progress import Tell
from gpu_decoder.distil.students import FeatureStudent, LlamaStudent, Student
from gpu_decoder.distil.text import TextSettings, plan, write_shard
from gpu_decoder.distil.train import LOSSES, Progress, TrainSettings, train
from gpu_decoder.distil.whole import write_json
from gpu_decoder.drafters import get_drafter
from gpu_decoder.models import DEFAULT, LanguageModel, fingerprint, has_bfloat16, load
from gpu_decoder.prompt_file import Prompt, as_prompts, hash_of, held_out
from gpu_decoder.records import dtype_of, environment, refuse_other_settings
from ot_spec.errors import OptionError, RecordFileError

SHAPES = ("feature", "llama")


@dataclass(frozen=True)
class Recipe:
    """What is made. shape: "feature" (a net over the target's hidden states) or "llama" (a small causal model);
    vocabulary: tokens it can draft; full, rank: where a net can draft more than `full`, the rows of its head for the
    others have `rank` entries (None: a quarter of the width, 0: all have the whole width); layers; width: of a llama
    (a feature net has the target's); tap: layers of the target that a feature net reads, by default after a third, two
    thirds and all of them. hold_out: this many of the given prompts are left out of the text, for the evaluation."""

    shape: str = "feature"
    vocabulary: int = 16_384
    full: int = 4_096
    rank: int | None = None
    layers: int = 1
    width: int = 256
    tap: tuple[int, ...] | None = None
    hold_out: int = 0
    text: TextSettings = field(default_factory=TextSettings)
    train: TrainSettings = field(default_factory=TrainSettings)

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise OptionError(f"shape must be one of {', '.join(SHAPES)}, got {self.shape!r}")
        if self.train.loss not in LOSSES:
            raise OptionError(f"loss must be one of {', '.join(LOSSES)}, got {self.train.loss!r}")
        counts = {
            "vocabulary": (self.vocabulary, 2), "full": (self.full, 1), "rank": (self.rank or 0, 0),
            "layers": (self.layers, 1), "width": (self.width, 32), "begun": (self.text.begun, 0),
            "hold_out": (self.hold_out, 0), "conversations": (self.text.conversations, 0),
            "answers": (self.text.answers, 0), "answer": (self.text.answer, 1), "turn": (self.text.turn, 1),
            "steps": (self.train.steps, 1), "k": (self.train.k, 1), "unroll": (self.train.unroll, 1),
            "tokens": (self.train.tokens, 16), "seed": (self.text.seed, 0),
        }  # fmt: skip
        for name, (value, least) in counts.items():
            if value < least:
                raise OptionError(f"{name} must be at least {least}, got {value}")
        if self.width % 32:
            raise OptionError(f"width must be a multiple of 32, got {self.width}")
        if not 0 <= self.train.warm <= 1:
            raise OptionError(f"warm is a share of the steps, 0 to 1, got {self.train.warm}")


def distil(
    out: str | Path,
    recipe: Recipe | None = None,
    *,
    target: str | Path | LanguageModel = DEFAULT,
    prompts: str | Path | Sequence[str | Prompt] = (),
    evaluation: Sequence[str | Prompt] | str | Path | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    command: str = "",
    tell: Tell = lambda what, done, of, remark: None,
) -> dict[str, Any]:
    """Make a drafter for `target` in the folder `out`; what it is worth, as in ``evaluation.json``.

    prompts: besides those that the target writes for itself. evaluation: prompts to judge it by, by default those held
    out. dtype: of the target, in which text is written and features are kept, by default bfloat16 where the device
    multiplies in it and float32 elsewhere. command: said in the card. Killed at any point, the same call goes on; with
    the same number of threads on the same machine the weights are those of an uninterrupted one.

    Raises OptionError for a recipe without text, or prompts both learned from and judged by; RecordFileError for a
    folder made with other settings, or in use by another process.
    """
    recipe, out = recipe or Recipe(), Path(out)
    given = as_prompts(prompts) if isinstance(prompts, str | Path) or prompts else []
    learned, held = held_out(given, recipe.hold_out, recipe.text.seed)
    judged = held if evaluation is None else as_prompts(evaluation)
    both = {turn for prompt in learned for turn in prompt.turns} & {turn for prompt in judged for turn in prompt.turns}
    if both:
        raise OptionError(f"the prompt {min(both)[:60]!r} would be learned from and judged by")
    if not recipe.text.conversations and not (learned and recipe.text.answers + recipe.text.begun):
        raise OptionError("there is nothing to learn from: no conversations of the target's own and no prompts")

    dtype = dtype or ("bfloat16" if has_bfloat16(device) else "float32")
    model = target if isinstance(target, LanguageModel) else load(target, dtype, device)
    tap = recipe.tap
    if recipe.shape == "feature" and tap is None:
        count = model.model.config.get_text_config().num_hidden_layers
        tap = tuple(sorted({max(1, round(count / 3)), max(1, round(2 * count / 3)), count}))
    text = TextSettings(**{**vars(recipe.text), "tap": tap if recipe.shape == "feature" and tap else ()})
    settings = {
        "target": model.name,
        "tokenizer": fingerprint(model.tokenizer),
        "dtype": dtype_of(model),
        "prompts": hash_of(learned),
        **asdict(recipe),
        "tap": tap,
        "text": asdict(text),
    }
    out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(out / ".lock", timeout=0):
            _settle(out / "settings.json", settings)
            files = _write_text(model, text, learned, out / "text", tell)
            corpus = Corpus(files)
            folder, history = _train(model, recipe, tap, corpus, out, tell)
            drafter = get_drafter(folder, model)
            seed = recipe.text.seed
            found = judge(model, drafter, judged, out, settings={}, seed=seed, tell=tell) if judged else {}
            drafted = min(recipe.vocabulary, model.vocab)
            about = {**settings, "vocabulary": drafted, "environment": environment(model), "command": command}
            (folder / "README.md").write_text(card(about, found, history, learned, corpus.tokens()))
            return found
    except Timeout:
        raise RecordFileError(f"another process makes a drafter in {out}") from None


def _settle(file: Path, settings: dict[str, Any]) -> None:
    """Write the settings, or refuse others than those that are there."""
    settings = json.loads(json.dumps(settings))
    if file.exists():
        try:
            found = json.loads(file.read_text())
            refuse_other_settings(_flat(found), _flat(settings), str(file.parent))
        except RecordFileError:
            raise
        except (ValueError, AttributeError) as reason:
            raise RecordFileError(f"{file} holds no settings") from reason
        return
    write_json(file, settings)


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of the text and the training beside all others, under names of their own."""
    made: dict[str, Any] = {}
    for name, value in settings.items():
        made |= {f"{name}.{part}": one for part, one in value.items()} if isinstance(value, dict) else {name: value}
    return made


def _write_text(
    model: LanguageModel, settings: TextSettings, prompts: Sequence[Prompt], folder: Path, tell: Tell
) -> list[Path]:
    folder.mkdir(exist_ok=True)
    shards = plan(model, settings, prompts)
    files = [folder / f"shard-{shard.number:05d}.safetensors" for shard in shards]
    for done, (shard, file) in enumerate(zip(shards, files, strict=True)):
        if not file.exists():
            written = 0

            def count(tokens: int, done: int = done) -> None:
                nonlocal written
                written += tokens
                tell("writing text", done, len(shards), f"{written:,} tokens of shard {done + 1}")

            write_shard(model, settings, shard, file, count)
        tell("writing text", done + 1, len(shards), "")
    return files


def _train(
    model: LanguageModel, recipe: Recipe, tap: tuple[int, ...] | None, corpus: Corpus, out: Path, tell: Tell
) -> tuple[Path, list[Progress]]:
    vocabulary = draft_vocabulary(corpus.masses(model.vocab), min(recipe.vocabulary, model.vocab), sorted(model.stops))
    places = torch.full((model.vocab,), -1)
    places[vocabulary] = torch.arange(len(vocabulary))
    torch.manual_seed(recipe.train.seed)
    student: Student
    if recipe.shape == "feature":
        rows = _rows_of_head(model, recipe, len(vocabulary))
        student = FeatureStudent(model, vocabulary, tap or (), layers=recipe.layers, **rows)
    else:
        student = LlamaStudent(model, vocabulary, recipe.width, recipe.layers)

    def told(progress: Progress) -> None:
        overlaps = ", ".join(f"{value:.3f}" for value in progress.overlap)
        tell("training", progress.step, progress.steps, f"loss {progress.loss:.3f}, overlap {overlaps}")

    history = train(student, corpus, places, recipe.train, out, on_progress=told)
    folder, unfinished = out / "drafter", out / "drafter.unfinished"
    if not folder.is_dir():
        shutil.rmtree(unfinished, ignore_errors=True)
        student.save(unfinished)
        unfinished.rename(folder)
    return folder, history


def _rows_of_head(model: LanguageModel, recipe: Recipe, drafted: int) -> dict[str, int]:
    width = model.model.get_input_embeddings().weight.shape[1]
    rank = width // 4 if recipe.rank is None else recipe.rank
    return {"full": recipe.full, "rank": rank} if rank and drafted > recipe.full else {}
