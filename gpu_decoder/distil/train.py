"""Training a student: a loop that a kill does not change the outcome of."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch

from gpu_decoder.distil.corpus import Batch, Corpus, Piece
from gpu_decoder.distil.losses import Cells, cells, kl, optimal_loss, total_variation
from gpu_decoder.distil.muon import PreciseMuon
from gpu_decoder.distil.students import Student
from gpu_decoder.distil.whole import write_whole
from gpu_decoder.models import has_bfloat16
from ot_spec.errors import RecordFileError

_CHECKPOINT = "checkpoint.pt"
_LOGITS = 2**22  # made at a time: what is larger comes as fresh pages each time, which took half of a step


@dataclass(frozen=True)
class TrainSettings:
    """What decides the training, given the text.

    loss: "kl", "tv" (1 - sum min(t, d)) or "alpha" (1 - α*_k); the last two after `warm` of the steps with "kl".
    steps: of the optimiser (Muon for matrices, AdamW for the rest and the head), with batches of about `tokens`
    tokens; rate, matrix_rate: their peaks, reached in 2 % of the steps and falling along a cosine. unroll: steps that
    the drafter goes on by itself in training, weighed 1, decay, decay², ..
    """

    seed: int = 0
    loss: str = "kl"
    k: int = 4
    warm: float = 0.6
    steps: int = 1200
    tokens: int = 4096
    rate: float = 1e-3
    matrix_rate: float = 0.02
    unroll: int = 2
    decay: float = 0.8


@dataclass(frozen=True)
class Progress:
    """Training after `step` of `steps`: the loss of the last batch, sum min(t, d) at each step of its own, seconds of
    this call."""

    step: int
    steps: int
    loss: float
    overlap: tuple[float, ...]
    seconds: float


def train(
    student: Student,
    corpus: Corpus,
    places: torch.Tensor,
    settings: TrainSettings,
    folder: Path,
    *,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    save_every: float = 60.0,
) -> list[Progress]:
    """Train to the end, from the checkpoint in `folder` where there is one; the history.

    places (V,): where each token stands in the draft vocabulary, -1 outside. On one machine, and with one number of
    threads, the weights are the same however often the training was killed: a checkpoint, written every `save_every`
    seconds, is all of its state.
    """
    device, drafted = next(student.net.parameters()).device, int((places >= 0).sum())
    optimisers = _optimisers(student.net, settings)
    history: list[Progress] = []
    checkpoint = folder / _CHECKPOINT
    if checkpoint.is_file():
        _restore(checkpoint, student.net, optimisers, history)
    started = saved = time.monotonic()
    step = history[-1].step if history else 0
    batches: list[list[Piece]] = []
    epoch = epoch_start = 0
    student.net.train()
    while step < settings.steps:
        while step >= epoch_start + len(batches):
            epoch_start += len(batches)
            batches = corpus.batches(settings.seed, epoch, settings.tokens)
            epoch += 1
        batch = _moved(corpus.batch(batches[step - epoch_start], places), device)
        for optimiser in optimisers:
            for group in optimiser.param_groups:
                group["lr"] = group["peak"] * rate_at(step, settings.steps)
        student.net.zero_grad(set_to_none=True)
        loss, overlaps = _backward(student, batch, settings, step, drafted)
        torch.nn.utils.clip_grad_norm_(student.net.parameters(), 1.0)
        for optimiser in optimisers:
            optimiser.step()
        step += 1
        now = time.monotonic()
        history.append(Progress(step, settings.steps, loss, tuple(overlaps), now - started))
        if step == settings.steps or now - saved > save_every:
            _save(checkpoint, student.net, optimisers, history)
            saved = now
        on_progress(history[-1])
    student.net.eval()
    return history


def _backward(
    student: Student, batch: Batch, settings: TrainSettings, step: int, drafted: int
) -> tuple[float, list[float]]:
    """The loss of a batch, its gradients left in the net; sum min(t, d) at each step of its own."""
    asked = _LOSSES[settings.loss if step >= settings.warm * settings.steps else "kl"]
    device = batch.tokens.device.type
    narrow = torch.autocast(device, torch.bfloat16, enabled=has_bfloat16(device))
    with narrow:
        # no text of the batch may be long enough for all steps
        made = list(takewhile(lambda found: len(found[0]), student.states(batch, settings.unroll)))
    total, overlaps, gradients = torch.zeros(()), [], []
    for number, (states, where) in enumerate(made):
        ids, probs, missed = batch.ids[where], batch.probs[where], torch.zeros(())
        parts, size = [], max(1, _LOGITS // drafted)
        for start in range(0, len(states), size):
            here = slice(start, start + size)
            part = states[here].detach().requires_grad_()
            with narrow:
                here_cells = cells(student.head(part), ids[here], probs[here])
                loss = settings.decay**number * asked(here_cells, settings.k).sum() / len(states)
            loss.backward()
            parts.append(part.grad)
            total = total.to(loss) + loss.detach()
            missed = missed.to(loss) + total_variation(here_cells).detach().sum()
        gradients.append(torch.cat(parts))
        overlaps.append(1 - float(missed) / len(states))
    torch.autograd.backward([states for states, _ in made], gradients)
    return float(total), overlaps


_LOSSES: dict[str, Callable[[Cells, int], torch.Tensor]] = {
    "kl": lambda made, k: kl(made),
    "tv": lambda made, k: total_variation(made),
    "alpha": optimal_loss,
}
LOSSES = tuple(_LOSSES)


def rate_at(step: int, steps: int) -> float:
    """Share of the peak rate: rising over 2 % of the steps, then half a cosine down to 0."""
    return min(1.0, (step + 1) / max(1, 0.02 * steps)) * 0.5 * (1 + math.cos(math.pi * step / steps))


def _optimisers(net: torch.nn.Module, settings: TrainSettings) -> list[torch.optim.Optimizer]:
    named = list(net.named_parameters())
    inner = [
        p for name, p in named if (p.ndim == 2 and ".layers." in f".{name}") or name in ("fuse.weight", "join.weight")
    ]
    outer = [p for _, p in named if all(p is not other for other in inner)]
    muon = torch.optim.Muon if has_bfloat16(inner[0].device.type) else PreciseMuon
    return [
        muon([{"params": inner, "peak": settings.matrix_rate}], weight_decay=0.01),
        torch.optim.AdamW([{"params": outer, "peak": settings.rate}], betas=(0.9, 0.95), weight_decay=0.01),
    ]


def _moved(batch: Batch, device: torch.device) -> Batch:
    return Batch(*(getattr(batch, name).to(device) for name in ("tokens", "features", "ids", "probs", "counts")))


def _save(
    file: Path, net: torch.nn.Module, optimisers: Sequence[torch.optim.Optimizer], history: Sequence[Progress]
) -> None:
    state: dict[str, Any] = {
        "net": net.state_dict(),
        "optimisers": [optimiser.state_dict() for optimiser in optimisers],
        "history": [vars(progress) for progress in history],
    }
    write_whole(file, lambda unfinished: torch.save(state, unfinished))


def _restore(
    file: Path, net: torch.nn.Module, optimisers: Sequence[torch.optim.Optimizer], history: list[Progress]
) -> None:
    try:
        state = torch.load(file, map_location=next(net.parameters()).device, weights_only=True)
        net.load_state_dict(state["net"])
        for optimiser, saved in zip(optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        history += [Progress(**{**line, "overlap": tuple(line["overlap"])}) for line in state["history"]]
    except Exception as reason:
        said = " ".join(str(reason).split()) or type(reason).__name__
        raise RecordFileError(f"{file} is no checkpoint of this training: {said}") from reason
