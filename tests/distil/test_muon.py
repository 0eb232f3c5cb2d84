"""Muon without bfloat16: torch's own, up to the rounding that torch's does."""

from __future__ import annotations

import pytest
import torch

from gpu_decoder.distil import train as train_module
from gpu_decoder.distil.muon import PreciseMuon, orthogonal
from gpu_decoder.distil.train import TrainSettings

COEFFICIENTS = (3.4445, -4.775, 2.0315)


@pytest.mark.parametrize("shape", [(12, 12), (6, 40), (40, 6)])
@pytest.mark.parametrize("nesterov", [True, False])
def test_its_steps_are_those_of_torch(shape, nesterov):
    torch.manual_seed(1)
    start, pull = torch.randn(shape), torch.randn(shape)
    ends = []
    for kind in (torch.optim.Muon, PreciseMuon):
        weight = torch.nn.Parameter(start.clone())
        optimiser = kind([weight], lr=0.05, weight_decay=0.1, nesterov=nesterov)
        for _ in range(5):
            optimiser.zero_grad()
            ((weight - pull) ** 2).sum().backward()
            optimiser.step()
        ends.append(weight.detach())
    moved = (ends[0] - start).norm()
    assert (ends[1] - ends[0]).norm() < 0.02 * moved  # bfloat16 keeps 8 bits
    assert moved > 0.2


@pytest.mark.parametrize("shape", [(9, 9), (4, 31), (31, 4)])
def test_singular_values_come_near_1(shape):
    torch.manual_seed(2)
    matrix = torch.randn(shape, dtype=torch.float64)
    made = orthogonal(matrix, COEFFICIENTS, 5, 1e-7)
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    values = torch.diagonal(left.T @ made @ right.T)
    assert ((values > 0.5) & (values < 1.5)).all()
    torch.testing.assert_close(left @ torch.diag(values) @ right, made)  # nothing else is changed


def test_a_weight_without_gradient_stays_and_nothing_is_nan():
    still, moved = torch.nn.Parameter(torch.ones(3, 3)), torch.nn.Parameter(torch.ones(3, 3))
    optimiser = PreciseMuon([still, moved], lr=0.1)
    moved.grad = torch.zeros(3, 3)
    assert optimiser.step(lambda: 7) == 7
    assert (still == 1).all() and moved.isfinite().all()


@pytest.mark.parametrize(("has", "kind"), [(True, torch.optim.Muon), (False, PreciseMuon)])
def test_it_is_used_where_there_is_no_bfloat16(monkeypatch, has, kind):
    monkeypatch.setattr(train_module, "has_bfloat16", lambda device: has)
    net = torch.nn.ModuleDict({"fuse": torch.nn.Linear(3, 3), "norm": torch.nn.LayerNorm(3)})
    found = train_module._optimisers(net, TrainSettings())
    assert type(found[0]) is kind
