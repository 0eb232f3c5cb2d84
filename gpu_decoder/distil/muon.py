"""Muon (Jordan et al. 2024) for processors without bfloat16."""

from __future__ import annotations

import math
from typing import Any

import torch


class PreciseMuon(torch.optim.Muon):
    """`torch.optim.Muon`, matrices being made orthogonal in their own precision: torch's does it in bfloat16 whatever
    the processor, which takes longer than the rest of a training step where bfloat16 is emulated."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(weight.grad)
                average = state["momentum_buffer"].lerp_(weight.grad, 1 - group["momentum"])
                update = weight.grad.lerp(average, group["momentum"]) if group["nesterov"] else average
                rows, columns = weight.shape
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                step = orthogonal(update, group["ns_coefficients"], group["ns_steps"], group["eps"])
                weight.add_(step, alpha=-group["lr"] * math.sqrt(max(1, rows / columns)))
        return loss


def orthogonal(matrix: torch.Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> torch.Tensor:
    """A matrix (n, m) with its singular values brought near 1 by Newton-Schulz steps
    X <- a X + (b G + c G²) X, G = X X'."""
    a, b, c = coefficients
    wide = matrix.shape[0] <= matrix.shape[1]
    x = matrix if wide else matrix.T
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x if wide else x.T
