"""On a device nothing waits: no value is looked at, nothing is compacted, nothing comes to the host.

CPU tensors take the device path here, under a dispatcher that refuses every operation which would wait.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ot_spec import IID, TopThenSample, WithoutReplacement, arrays, filtered, from_logits, from_probs
from solvers import SELECTORS, get_selector, optimal_acceptance

ROWS, VOCAB = 6, 40
WAITING = (
    "local_scalar_dense",
    "equal",
    "is_nonzero",
    "item",
    "masked_select",
    "nonzero",
    "repeat_interleave",
    "unique",
    "unique2",
    "unique_consecutive",
    "unique_dim",
)
HOST_METHODS = ("__array__", "__bool__", "__float__", "__index__", "__int__", "cpu", "numpy", "tolist")


class Waited(AssertionError):
    """An operation that stalls a device."""


class NoWait(TorchDispatchMode):
    """Refuses operations whose result, or whose shape, the host must know."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__.strip("_")
        if name in WAITING:
            raise Waited(name)
        if name in ("index", "index_put", "index_put_impl") and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        ):
            raise Waited(f"{name} with a mask")
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def device_path() -> Iterator[None]:
    """Every `may_wait` says no to tensors, and no tensor may come to the host."""

    def refuse(name: str) -> Any:
        def method(self: torch.Tensor, *args: Any, **options: Any) -> Any:
            raise Waited(name)

        return method

    real = arrays.may_wait
    with pytest.MonkeyPatch.context() as patch:
        for module in list(sys.modules.values()):
            if vars(module).get("may_wait") is real:
                patch.setattr(module, "may_wait", arrays.is_numpy)
        for name in HOST_METHODS:
            patch.setattr(torch.Tensor, name, refuse(name))
        with NoWait():
            yield


def logits(seed: int) -> torch.Tensor:
    """Rows of every kind: random, with tokens excluded, one-hot, with ties."""
    drawn = np.random.default_rng(seed).normal(0, 2, (ROWS, VOCAB))
    drawn[1, ::3] = -np.inf
    drawn[2, 1:] = -np.inf
    drawn[3] = drawn[3].round()
    drawn[4, 5:] = -np.inf
    return torch.as_tensor(drawn)


TARGET, DRAFT = from_logits(logits(1)), from_logits(logits(2))
DRAFT[5] = TARGET[5]
COINS = torch.as_tensor(np.random.default_rng(3).random((ROWS, 9)))
COINS[0, :4] = 0.0
COINS[1, :4] = 1 - 2.0**-53
LAWS = {"iid": IID(3), "without_replacement": WithoutReplacement(3), "top_then_sample": TopThenSample(3)}


def same(waiting: Any, device: Any) -> None:
    """Ids and flags equal, masses to rounding."""
    for one, other in zip(*(x if isinstance(x, tuple) else (x,) for x in (waiting, device)), strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        if one.dtype.is_floating_point:
            assert torch.allclose(one, other, rtol=1e-13, atol=1e-14, equal_nan=True)
        else:
            assert one.tolist() == other.tolist()


def check(call: Any) -> None:
    waiting = call()
    with device_path():
        device = call()
    same(waiting, device)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.0},
        {"temperature": np.array([0.0, 0.5, 1.0, 2.0, 1e-9, 1.0])},
        {"top_k": 5, "top_p": 0.9, "min_p": 0.05, "temperature": 0.7},
    ],
    ids=["plain", "greedy", "by row", "filtered"],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_laws_from_logits(options, dtype):
    rows = logits(4).to(dtype)
    check(lambda: from_logits(rows, check=False, **options))


def test_laws_from_probabilities():
    check(lambda: from_probs(TARGET.float(), check=False))
    check(lambda: filtered(TARGET, top_k=3, top_p=0.5, min_p=0.1))


@pytest.mark.parametrize("law", LAWS.values(), ids=list(LAWS))
def test_samples(law):
    check(lambda: tuple(law.sample(DRAFT, COINS[:, :3])))


@pytest.mark.parametrize("law", [IID(3), TopThenSample(3)], ids=lambda law: law.name)
def test_optimal_acceptance(law):
    check(lambda: optimal_acceptance(TARGET, DRAFT, law))


def candidates_for(rule: Any, k: int) -> torch.Tensor:
    law = next(law for law in (IID(k), WithoutReplacement(k), TopThenSample(k)) if rule.supports(law))
    return law.sample(DRAFT, COINS[:, :k]).tokens


LAWS_OF_3 = (IID(3), WithoutReplacement(3), TopThenSample(3))
# those with `host` solve something away from the device
RULES = [(rule, 1) for rule in map(get_selector, SELECTORS) if not getattr(rule, "host", False)]
RULES += [(rule, 3) for rule, _ in RULES if any(map(rule.supports, LAWS_OF_3))]
FLAGGED = list(RULES)
RULES += [(get_selector("k_seq", rho=3.0), 3), (get_selector("k_seq", rho=1.0), 3)]


@pytest.mark.parametrize(("rule", "k"), RULES, ids=lambda value: getattr(value, "name", value))
def test_selections(rule, k):
    candidates = candidates_for(rule, k)
    thrown = COINS[:, : rule.coins(k)]
    check(lambda: tuple(rule.select(TARGET, DRAFT, candidates, thrown)))
    check(lambda: rule.conditional(TARGET, DRAFT, candidates))


@pytest.mark.parametrize(("rule", "k"), FLAGGED, ids=lambda value: getattr(value, "name", value))
def test_invalid_rows_are_flagged_without_waiting(rule, k):
    candidates = candidates_for(rule, k).clone()
    target, thrown = TARGET.clone(), COINS[:, : rule.coins(k)].clone()
    candidates[1, 0] = VOCAB
    candidates[4, 0] = -2
    target[0, 0] = float("nan")
    thrown[3, -1] = 1.0
    check(lambda: tuple(rule.select(target, DRAFT, candidates, thrown)))
    with device_path():
        chosen = rule.select(target, DRAFT, candidates, thrown)
    assert chosen.valid.tolist() == [False, False, True, False, False, True]
    assert [token == -1 for token in chosen.token.tolist()] == [not ok for ok in chosen.valid.tolist()]


@pytest.mark.parametrize(
    "waits",
    [
        lambda x: x.sum().item(),
        lambda x: x[x > 0],
        lambda x: torch.nonzero(x),
        lambda x: torch.equal(x, x),
        lambda x: torch.unique(x),
        lambda x: x.masked_select(x > 0),
        lambda x: bool((x > 0).all()),
        lambda x: float(x.sum()),
        lambda x: range(int(x.argmax())),
        lambda x: x.cpu(),
        lambda x: x.numpy(),
        lambda x: np.asarray(x),
        lambda x: x.tolist(),
        lambda x: arrays.to_numpy(x),
        lambda x: x.index_put((x > 0,), torch.zeros((), dtype=x.dtype)),
        lambda x: get_selector("rrs").select(x, x, torch.zeros(1, dtype=torch.int64), x[:2]).checked(),
        lambda x: from_probs(x),
    ],
)
def test_what_waits_is_caught(waits):
    law = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    waits(law)
    with device_path(), pytest.raises(Waited):
        waits(law)
