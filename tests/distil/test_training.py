"""Training: a kill changes nothing, every loss goes down, and a drafter learns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpu_decoder.distil import train as train_module
from gpu_decoder.distil.corpus import Batch, Corpus, Piece
from gpu_decoder.distil.losses import cells, kl, optimal_loss, total_variation
from gpu_decoder.distil.students import Student
from gpu_decoder.distil.train import LOSSES, Progress, TrainSettings, rate_at, train
from gpu_decoder.models import LanguageModel
from ot_spec.errors import RecordFileError
from tests.decoder.toys import bigram, toy
from tests.distil.toys import places_of, read_shard, student_of, whole_batch

VOCAB, KNOWN, TAP = 12, (0, 1, 2, 3, 5, 6, 7, 8, 9, 11), (1, 2)
TARGET = toy(0, VOCAB, layers=2, dtype=torch.float32)
PLACES = places_of(KNOWN, VOCAB)
SHORT = TrainSettings(seed=2, steps=7, tokens=64, unroll=2)
SHAPES = ["feature", "llama"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    """Two shards: 24 texts of 10 tokens, and 8 of 17."""
    folder = tmp_path_factory.mktemp("text")
    read_shard(folder / "0.safetensors", TARGET, TAP, 24, 10)
    read_shard(folder / "1.safetensors", TARGET, TAP, 8, 17, seed=1)
    return Corpus([folder / "0.safetensors", folder / "1.safetensors"])


def weights(student: Student) -> dict[str, torch.Tensor]:
    return {name: w.clone() for name, w in student.net.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def trained(
    shape: str, corpus: Corpus, settings: TrainSettings, folder: Path, **options: Any
) -> tuple[dict[str, torch.Tensor], list[Progress]]:
    folder.mkdir(exist_ok=True)
    student = student_of(shape, TARGET, KNOWN, TAP)
    history = train(student, corpus, PLACES, settings, folder, **options)
    assert not student.net.training
    return weights(student), history


def lasting(history: Sequence[Progress]) -> list[tuple[int, int, float, tuple[float, ...]]]:
    """A history without its times."""
    return [(one.step, one.steps, one.loss, one.overlap) for one in history]


class Killed(BaseException):
    pass


# ---- kills


@pytest.mark.parametrize("save_every", [0.0, 1e9], ids=["often", "at the end"])
@pytest.mark.parametrize("shape", SHAPES)
def test_killed_after_any_step_it_ends_with_the_same_bits(tmp_path, corpus, shape, save_every):
    whole, history = trained(shape, corpus, SHORT, tmp_path / "whole")
    assert [one.step for one in history] == list(range(1, 8))
    reached: list[int] = []

    def die(at: int) -> Any:
        def told(progress: Progress) -> None:
            reached.append(progress.step)
            if progress.step == at:
                raise Killed

        return told

    for at in (1, 3, 4, 6):
        with pytest.raises(Killed):
            trained(shape, corpus, SHORT, tmp_path / "killed", on_progress=die(at), save_every=save_every)
    found, again = trained(shape, corpus, SHORT, tmp_path / "killed", on_progress=die(0), save_every=save_every)
    if save_every:
        assert reached == [1, *range(1, 4), *range(1, 5), *range(1, 7), *range(1, 8)]
    else:
        assert reached == list(range(1, 8))  # no step was taken twice
    assert same(found, whole) and lasting(again) == lasting(history)


@pytest.mark.parametrize("when", ["half a checkpoint", "a whole one, unnamed"])
def test_killed_while_saving(tmp_path, monkeypatch, corpus, when):
    whole, _ = trained("feature", corpus, SHORT, tmp_path / "whole")
    saved, left = torch.save, [3]

    def save(state: Any, file: Path) -> None:
        left[0] -= 1
        if left[0]:
            return saved(state, file)
        if when == "half a checkpoint":
            saved(state, file)
            file.write_bytes(file.read_bytes()[:1000])
        else:
            saved(state, file)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", save)
        with pytest.raises(Killed):
            trained("feature", corpus, SHORT, tmp_path / "killed", save_every=0)
    steps: list[int] = []
    found, _ = trained(
        "feature", corpus, SHORT, tmp_path / "killed", on_progress=lambda progress: steps.append(progress.step)
    )
    assert same(found, whole) and steps == [3, 4, 5, 6, 7]


@pytest.mark.parametrize("loss", ["tv", "alpha"])
def test_a_kill_about_the_end_of_the_warm_up_changes_nothing(tmp_path, corpus, loss):
    settings = replace(SHORT, loss=loss, warm=0.5)
    whole, history = trained("feature", corpus, settings, tmp_path / "whole")

    def die(progress: Progress) -> None:
        if progress.step in (3, 4) and progress.step not in died:
            died.append(progress.step)
            raise Killed

    died: list[int] = []
    for _ in range(2):
        with pytest.raises(Killed):
            trained("feature", corpus, settings, tmp_path / "killed", on_progress=die, save_every=0)
    found, again = trained("feature", corpus, settings, tmp_path / "killed", on_progress=die, save_every=0)
    assert same(found, whole) and lasting(again) == lasting(history) and died == [3, 4]


def test_a_finished_training_is_not_gone_on_with(tmp_path, corpus):
    whole, history = trained("feature", corpus, SHORT, tmp_path)
    before = (tmp_path / "checkpoint.pt").read_bytes()
    found, again = trained("feature", corpus, SHORT, tmp_path, on_progress=lambda progress: pytest.fail("a step"))
    assert same(found, whole) and again == history
    assert (tmp_path / "checkpoint.pt").read_bytes() == before


@pytest.mark.parametrize("damage", ["cut", "empty", "other", "of another shape", "of another width"])
def test_a_damaged_checkpoint_is_one_sentence(tmp_path, corpus, damage):
    trained("llama" if damage == "of another shape" else "feature", corpus, replace(SHORT, steps=1), tmp_path)
    file = tmp_path / "checkpoint.pt"
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-500])
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "other":
        torch.save([1, 2], file)
    elif damage == "of another width":
        state = torch.load(file, weights_only=True)
        state["net"]["norm.weight"] = torch.ones(3)
        torch.save(state, file)
    with pytest.raises(RecordFileError, match=r"checkpoint\.pt is no checkpoint of this training: .") as caught:
        trained("feature", corpus, SHORT, tmp_path)
    assert "\n" not in str(caught.value)


# ---- what decides the weights


@pytest.mark.parametrize(
    "changed", [{"seed": 3}, {"rate": 2e-3}, {"matrix_rate": 0.01}, {"tokens": 100}, {"unroll": 1}, {"decay": 0.5}]
)
def test_every_setting_decides(tmp_path, corpus, changed):
    whole, _ = trained("feature", corpus, SHORT, tmp_path / "a")
    again, _ = trained("feature", corpus, SHORT, tmp_path / "b")
    other, _ = trained("feature", corpus, replace(SHORT, **changed), tmp_path / "c")
    assert same(whole, again) and not same(whole, other)


def test_the_batches_of_each_epoch_are_read_in_order(tmp_path, monkeypatch, corpus):
    """Over three epochs, and where a killed training goes on in the midst of one."""
    read: list[list[Piece]] = []
    batch = Corpus.batch

    def noted(self: Corpus, pieces: list[Piece], places: torch.Tensor) -> Batch:
        read.append(pieces)
        return batch(self, pieces, places)

    def die(progress: Progress) -> None:
        if progress.step == 11 and len(read) == 11:
            raise Killed

    monkeypatch.setattr(Corpus, "batch", noted)
    settings = replace(SHORT, steps=20)
    with pytest.raises(Killed):
        trained("feature", corpus, settings, tmp_path, on_progress=die, save_every=0)
    trained("feature", corpus, settings, tmp_path, on_progress=die, save_every=0)
    epochs = [corpus.batches(settings.seed, epoch, settings.tokens) for epoch in range(3)]
    assert len(epochs[0]) < 11 and read == [one for epoch in epochs for one in epoch][:20]


def test_losses_part_after_the_warm_up(tmp_path, corpus):
    made = {
        name: trained("feature", corpus, replace(SHORT, loss=name, warm=0.5), tmp_path / name)[1] for name in LOSSES
    }
    assert made["kl"][:4] != [] and lasting(made["kl"])[:4] == lasting(made["tv"])[:4] == lasting(made["alpha"])[:4]
    fifth = {round(history[4].loss, 6) for history in made.values()}
    assert len(fifth) == 3 and made["alpha"][4].loss < made["tv"][4].loss < 1.8  # of two steps, weighed 1 and 0.8


def test_steps_of_their_own_are_weighed(tmp_path, corpus):
    """The loss of a batch is the sum over steps of decay^i times the mean of the step."""
    student, batch = student_of("feature", TARGET, KNOWN, TAP), whole_batch(corpus, PLACES)
    asked = {"kl": kl, "tv": total_variation, "alpha": lambda made: optimal_loss(made, 3)}
    for name, loss in asked.items():
        settings = replace(SHORT, loss=name, k=3, warm=0.0, unroll=3, decay=0.5, steps=1, tokens=10**6)
        found = trained("feature", corpus, settings, tmp_path / name)[1][0]
        with torch.no_grad():
            means, overlaps = [], []
            for states, where in student.states(batch, 3):
                made = cells(student.head(states), batch.ids[where], batch.probs[where])
                means.append(float(loss(made).mean()))
                overlaps.append(1 - float(total_variation(made).mean()))
        near = 0.02 if train_module.has_bfloat16("cpu") else 1e-5
        assert found.loss == pytest.approx(sum(0.5**i * mean for i, mean in enumerate(means)), rel=near)
        assert found.overlap == pytest.approx(overlaps, rel=near)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_do_not_depend_on_how_many_logits_are_made_at_a_time(monkeypatch, corpus, shape, loss):
    """They are those of the weighed means, taken whole."""
    monkeypatch.setattr(train_module, "has_bfloat16", lambda device: False)
    batch = whole_batch(corpus, PLACES)
    settings = replace(SHORT, loss=loss, k=3, warm=0.0, unroll=3, decay=0.5)
    student = student_of(shape, TARGET, KNOWN, TAP)
    asked = {"kl": kl, "tv": total_variation, "alpha": lambda made: optimal_loss(made, 3)}[loss]
    whole = sum(
        0.5**i * asked(cells(student.head(states), batch.ids[where], batch.probs[where])).mean()
        for i, (states, where) in enumerate(student.states(batch, 3))
    )
    assert isinstance(whole, torch.Tensor)
    whole.backward()
    expected = {name: weight.grad for name, weight in student.net.named_parameters()}
    for most in (1, 7 * len(KNOWN), 10**9):
        monkeypatch.setattr(train_module, "_LOGITS", most)
        student.net.zero_grad(set_to_none=True)
        found, _ = train_module._backward(student, batch, settings, 0, len(KNOWN))
        assert found == pytest.approx(float(whole.detach()), rel=1e-5)
        for name, weight in student.net.named_parameters():
            wanted = expected[name]
            assert wanted is not None
            torch.testing.assert_close(weight.grad, wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()))


def test_texts_shorter_than_the_steps_are_trained_on(tmp_path):
    read_shard(tmp_path / "0.safetensors", TARGET, TAP, 6, 4)
    corpus = Corpus([tmp_path / "0.safetensors"])
    settings = replace(SHORT, unroll=6, tokens=8)
    made, history = trained("feature", corpus, settings, tmp_path)
    assert all(torch.isfinite(weight).all() for weight in made.values())
    assert {len(one.overlap) for one in history} == {3}


@pytest.mark.parametrize("steps", [1, 10, 100, 1200])
def test_the_rate_rises_and_falls(steps):
    rates = [rate_at(step, steps) for step in range(steps)]
    rise = max(1, round(0.02 * steps))
    assert all(0 < rate <= 1 for rate in rates)
    assert rates[: rise - 1] == sorted(rates[: rise - 1]) and rates[rise:] == sorted(rates[rise:], reverse=True)
    assert rates[0] == pytest.approx(1 / rise, rel=0.01)
    assert max(rates) > 0.99 and rate_at(steps, steps) == pytest.approx(0, abs=1e-12)
    for step in range(rise, steps):
        assert rates[step] == pytest.approx(math.cos(math.pi * step / steps / 2) ** 2)


# ---- what is learned


def bigrams() -> LanguageModel:
    """A target whose law is that of the last token alone, so that a little training finds it."""
    model = bigram(np.random.default_rng(0).dirichlet(np.full(VOCAB, 0.3), size=VOCAB))
    model.model.float()
    return model


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_loss_goes_down_and_the_drafter_learns(tmp_path, shape, loss):
    """sum min(t, d) after training, on texts it has not seen, is well above that of a fresh drafter."""
    target, places = bigrams(), torch.arange(VOCAB)  # all can be drafted: the least loss is 0, but for kl
    read_shard(tmp_path / "seen.safetensors", target, (1,), 40, 12)
    read_shard(tmp_path / "unseen.safetensors", target, (1,), 16, 12, seed=9)
    settings = TrainSettings(steps=60, tokens=512, loss=loss, k=2, warm=0.05, rate=2e-2)
    batch = whole_batch(Corpus([tmp_path / "unseen.safetensors"]), places)
    student = student_of(shape, target, range(VOCAB), (1,))

    def worth() -> list[float]:
        with torch.no_grad():
            return [
                1 - float(total_variation(cells(student.head(states), batch.ids[where], batch.probs[where])).mean())
                for states, where in student.states(batch, 2)
            ]

    before = worth()
    history = train(student, Corpus([tmp_path / "seen.safetensors"]), places, settings, tmp_path)
    after = worth()
    own = history if loss == "kl" else history[4:]  # a loss is measured from where it is asked for
    assert sum(one.loss for one in own[-8:]) < 0.9 * sum(one.loss for one in own[:8])
    assert len(after) == (2 if shape == "feature" else 1)
    for early, late in zip(before, after, strict=True):
        assert early < 0.6 and late > early + 0.2
