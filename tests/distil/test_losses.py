"""Losses against the laws they are of, the solver of the optimum, and finite differences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpu_decoder.distil.losses import LOSSES, Cells, cells, kl, optimal_loss, total_variation
from ot_spec import IID
from ot_spec.captured import overlap
from ot_spec.errors import OptionError
from solvers import optimal_acceptance

KS = (1, 2, 4, 8)
LEAST = 1e-6  # the draft's rest is never less


def case(seed: int, drafted: int = 9, top: int = 6, unknown: int = 2, tail: bool = True, rows: int = 5):
    """Draft logits (rows, drafted), and a target's likeliest tokens, `unknown` of them outside the vocabulary."""
    generator = np.random.default_rng(seed)
    logits = torch.from_numpy(2 * generator.normal(size=(rows, drafted)))
    ids = np.stack([generator.permutation(drafted)[:top] for _ in range(rows)])
    for row in ids:
        row[generator.permutation(top)[:unknown]] = -1
    weights = generator.dirichlet(np.full(top + tail, 0.7), size=rows)
    return logits, torch.from_numpy(ids), torch.from_numpy(weights[:, :top])


def laws_of(logits: torch.Tensor, ids: torch.Tensor, probs: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Target and draft on the target's tokens and the rest, by hand."""
    draft = logits.softmax(-1).numpy()
    made = np.zeros((len(ids), ids.shape[1] + 1))
    for row, places in enumerate(ids.tolist()):
        made[row, :-1] = [draft[row, place] if place >= 0 else 0.0 for place in places]
    made[:, -1] = 1 - made[:, :-1].sum(-1)
    target = np.concatenate([probs.numpy(), 1 - probs.numpy().sum(-1, keepdims=True)], -1)
    return np.clip(target, 0, None), np.clip(made, 0, None)


@given(st.integers(0, 10**6), st.integers(3, 12), st.booleans(), st.data())
def test_losses_are_those_of_the_laws_on_the_cells(seed, drafted, tail, data):
    top = data.draw(st.integers(1, drafted))
    unknown = data.draw(st.integers(0, top))
    logits, ids, probs = case(seed, drafted, top, unknown, tail)
    target, draft = laws_of(logits, ids, probs)
    made = cells(logits, ids, probs)
    np.testing.assert_allclose(made.target, target, atol=1e-12)
    np.testing.assert_allclose(made.draft, draft, atol=LEAST)
    np.testing.assert_allclose(total_variation(made), 1 - overlap(target, draft), atol=2 * LEAST)
    inside = np.concatenate([ids.numpy() >= 0, np.ones((len(ids), 1), dtype=bool)], -1)
    expected = -np.where(inside, target * np.log(np.clip(draft, LEAST, None)), 0).sum(-1)
    np.testing.assert_allclose(kl(made), expected, rtol=1e-6, atol=1e-5)
    draft /= draft.sum(-1, keepdims=True)
    target /= target.sum(-1, keepdims=True)
    for k in KS:
        np.testing.assert_allclose(
            optimal_loss(made, k), 1 - np.asarray(optimal_acceptance(target, draft, IID(k))), atol=2e-5
        )


def test_one_draft_is_refused_with_the_total_variation():
    made = cells(*case(1, rows=50))
    np.testing.assert_allclose(optimal_loss(made, 1), total_variation(made), atol=2 * LEAST)
    assert float(total_variation(made).min()) > 0.05


@pytest.mark.parametrize("k", KS)
def test_ties_zeros_and_laws_that_are_equal(k):
    """Equal ratios, tokens that one of the two never gives, and a draft that is the target."""
    target = np.array([[0.2, 0.1, 0.3, 0.4, 0.0], [0.0, 0.0, 0.5, 0.5, 0.0], [0.25, 0.25, 0.25, 0.25, 0.0]])
    draft = np.array([[0.4, 0.2, 0.15, 0.2, 0.05], [0.5, 0.5, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25, 0.0]])
    made = Cells(torch.from_numpy(target), torch.from_numpy(draft), torch.from_numpy(draft).log())
    expected = 1 - np.asarray(optimal_acceptance(target, draft, IID(k)))
    np.testing.assert_allclose(optimal_loss(made, k), expected, atol=1e-12)
    assert expected[1] == pytest.approx(1) and (k > 1 or expected[2] == pytest.approx(0))


def test_more_drafts_are_refused_less():
    made = cells(*case(2, rows=50))
    losses = torch.stack([optimal_loss(made, k) for k in KS])
    steps = losses.diff(dim=0)
    assert (steps < 1e-12).all() and (steps.mean(-1) < -0.01).all()


@pytest.mark.parametrize("k", [0, -1])
def test_fewer_than_one_draft_is_refused(k):
    with pytest.raises(OptionError, match=f"k must be at least 1, got {k}"):
        optimal_loss(cells(*case(0)), k)


def test_the_names_of_losses():
    made = cells(*case(3))
    for name, expected in (("kl", kl(made)), ("tv", total_variation(made)), ("alpha4", optimal_loss(made, 4))):
        torch.testing.assert_close(LOSSES[name](made), expected)


# ---- gradients

GRADIENTS: dict[str, Callable[[Cells], torch.Tensor]] = {
    "kl": kl,
    "tv": total_variation,
    **{f"alpha_{k}": (lambda made, k=k: optimal_loss(made, k)) for k in KS},
}


@pytest.mark.parametrize("shape", [(9, 6, 2, True), (9, 6, 0, False), (12, 4, 1, True)], ids=str)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_central_differences(name, shape):
    drafted, top, unknown, tail = shape
    logits, ids, probs = case(11, drafted, top, unknown, tail, rows=8)
    loss = GRADIENTS[name]

    def at(given: torch.Tensor) -> torch.Tensor:
        return loss(cells(given, ids, probs)).sum()

    free = logits.clone().requires_grad_()
    at(free).backward()
    step, found = 1e-6, torch.zeros_like(logits)
    for place in np.ndindex(*logits.shape):
        off = torch.zeros_like(logits)
        off[place] = step
        found[place] = (at(logits + off) - at(logits - off)) / (2 * step)
    assert free.grad is not None and free.grad.dtype == torch.float64
    torch.testing.assert_close(free.grad, found, rtol=1e-6, atol=1e-8)
    assert float(found.abs().max()) > 1e-2


def test_gradients_are_finite_where_the_draft_is_certain():
    logits, ids, probs = case(5)
    for scale in (0.0, 60.0, 400.0):
        for loss in GRADIENTS.values():
            free = (logits * scale).float().requires_grad_()
            loss(cells(free, ids, probs.float())).sum().backward()
            assert free.grad is not None and torch.isfinite(free.grad).all()


@pytest.mark.parametrize("name", GRADIENTS)
def test_going_down_the_gradient_makes_the_loss_small(name):
    """A draft vocabulary that holds all: every loss is least at the target itself."""
    generator = np.random.default_rng(0)
    target = torch.from_numpy(generator.dirichlet(np.ones(5), size=6))
    ids = torch.arange(5).expand(6, 5)
    logits = torch.from_numpy(4 * generator.normal(size=(6, 5))).requires_grad_()
    loss = GRADIENTS[name]
    before = loss(cells(logits.detach(), ids, target))
    optimiser = torch.optim.Adam([logits], lr=0.05)
    for _ in range(400):
        optimiser.zero_grad()
        loss(cells(logits, ids, target)).sum().backward()
        optimiser.step()
    after = loss(cells(logits.detach(), ids, target))
    if name == "kl":
        least = -(target * target.log()).sum(-1)
        torch.testing.assert_close(after, least, atol=0.01, rtol=0)
        assert (before > after).all()
    else:
        assert float(after.mean()) < 0.03 < 0.1 < float(before.mean())
