"""The decoder on a device that is none; `test_attack` runs this in a process of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from gpu_decoder import Decoder
from gpu_decoder.drafters import FeatureDrafter
from gpu_decoder.models import Reading, early_exit
from gpu_decoder.verify import check_tree_attention
from ot_spec.errors import LawError
from solvers.selectors import SELECTORS
from solvers.sequence import SEQUENCE_RULES
from tests.decoder import pretend_device, toys
from tests.decoder.pretend_device import MixedDevices, moved, pretending

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 1, 2, 3, 4]]


def pair(kind: str, dtype: torch.dtype, there: bool, **config: Any) -> tuple[Any, Any]:
    target = toys.toy(0, 8, layers=2, dtype=dtype, **config)
    if there:
        moved(target.model)
    if kind in ("feature", "headless"):
        host = toys.toy(0, 8, layers=2, dtype=dtype)
        shape = {"heads": 2, "groups": 1, "size": 8, "mlp": 24, "window": 3, "head": kind == "feature"}
        net = toys.feature_net(host, [0, 2, 3, 5, 7], **shape)
        return target, FeatureDrafter((moved(net) if there else net).attach(target), "f")
    if kind in ("model", "short"):
        draft = toys.toy(1, 11, dtype=dtype)
        if there:
            moved(draft.model)
        return target, toys.drafting(draft, [0, 2, 9]) if kind == "short" else draft
    return target, kind


def decoded(kind: str, there: bool, dtype: torch.dtype = torch.float32, config: Any = None, **asked: Any) -> Any:
    options = {name: asked.pop(name) for name in ("selector", "candidates", "length") if name in asked}
    target, draft = pair(kind, dtype, there, **(config or {}))
    return Decoder(target, draft, **{"candidates": 2, "length": 2, **options}).generate(PROMPTS, 5, **asked)


def check(kind: str, **asked: Any) -> None:
    here = decoded(kind, False, **asked)
    with pretending():
        there = decoded(kind, True, **asked)
    assert [one.tokens for one in here] == [one.tokens for one in there]
    for one, other in zip(here, there, strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["none", "exit:1", "lookup", "model", "short", "feature", "headless"])
def test_every_drafter_stays_on_the_device(kind, dtype):
    check(kind, dtype=dtype)


@pytest.mark.parametrize("name", [*SELECTORS, *SEQUENCE_RULES])
def test_every_rule_stays_on_the_device(name):
    check("exit:1", selector=name, candidates=1 if name in ("maximal_coupling", "block") else 2)


@pytest.mark.parametrize(
    "asked",
    [
        {"temperature": 0.0},
        {"temperature": 0.7, "top_k": 3, "top_p": 0.9, "min_p": 0.01},
        {"min_new_tokens": 3, "ends": frozenset([2])},
        {"logits_processors": [RepetitionPenaltyLogitsProcessor(1.3)]},
        {"config": {"attn_implementation": "eager"}},
        {"selector": "point_mass", "temperature": 0.0},
    ],
    ids=["greedy", "filtered", "not before 3", "processed", "eager", "best prefixes"],
)
def test_every_option_stays_on_the_device(asked):
    check("feature", **asked)


def test_a_step_comes_to_the_host_once_a_level_and_twice_a_row():
    with pretending():
        target, draft = pair("feature", torch.float32, True)
        decoder = Decoder(target, draft, candidates=3, length=3)
        decoder.generate(PROMPTS, 1)  # the models are tried
        pretend_device.waits.clear()
        made = decoder.generate(PROMPTS, 12)
    steps = [len(one.tally.steps) for one in made]
    assert sum(pretend_device.waits.values()) <= 3 * max(steps) + 2 * sum(steps)


@pytest.mark.parametrize("there", [(True, False), (False, True)])
def test_a_draft_on_another_device_than_the_target(there):
    here = Decoder(*(toys.toy(seed, 8, dtype=torch.float32) for seed in (0, 1))).generate(PROMPTS, 6)
    with pretending():
        target, draft = (toys.toy(seed, 8, dtype=torch.float32) for seed in (0, 1))
        for model, move in zip((target, draft), there, strict=True):
            if move:
                moved(model.model)
        made = Decoder(target, draft).generate(PROMPTS, 6)
    assert [one.tokens for one in made] == [one.tokens for one in here]


@pytest.mark.parametrize("rule", ["k_seq", "rrs_without_replacement", "traversal"])
def test_a_draft_that_is_no_law_is_named(rule):
    with pretending():
        target, draft = (moved_toy(seed) for seed in (0, 1))
        check_tree_attention(draft)
        draft.model.lm_head.weight.raw[3] = float("nan")
        with pytest.raises(LawError, match="the drafter 'toy-1': logits are NaN"):
            Decoder(target, draft, selector=rule, candidates=2).generate(PROMPTS, 4)


def moved_toy(seed: int) -> Any:
    model = toys.toy(seed, 8, layers=2, dtype=torch.float32)
    moved(model.model)
    return model


@pytest.mark.parametrize("kind", ["feature", "exit"])
def test_followers_stay_on_the_device(kind):
    found = []
    for there in (False, True):
        with pretending():
            target, draft = pair("feature", torch.float32, there)
            reading: Any = Reading(target, early_exit(target, 1) if kind == "exit" else draft.follower(target))
            found.append([(one.cpu(), other.cpu()) for one, other in map(reading.read, ([1], [2, 3, 4], [5]))])
    for one, other in zip(*found, strict=True):
        assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    "mixed",
    [
        lambda x: x + torch.ones(3),
        lambda x: torch.cat([x, torch.ones(3)]),
        lambda x: torch.where(torch.ones(3, dtype=torch.bool), x, x),
        lambda x: torch.ones(3)[x.long()],
        lambda x: x.gather(0, torch.tensor([0])),
    ],
)
def test_mixed_devices_are_seen(mixed):
    with pretending():
        x = torch.zeros(3, device=pretend_device.NAME)
        with pytest.raises((MixedDevices, RuntimeError)):
            mixed(x)
