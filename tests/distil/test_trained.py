"""The drafter that comes with the project."""

from __future__ import annotations

import functools

import pytest

from gpu_decoder import Decoder, load
from gpu_decoder.capture import capture
from gpu_decoder.drafters import EarlyExitDrafter, FeatureDrafter, NoDrafter, get_drafter
from gpu_decoder.drafters.drafter import TRAINED
from gpu_decoder.metrics import Summary
from gpu_decoder.prompt_file import DEMO_PROMPTS
from ot_spec.captured import read
from tests.decoder.toys import toy

_loaded = functools.cache(load)


@pytest.fixture
def target(default_model):
    return _loaded()


def test_it_is_small_and_has_a_card():
    assert sum(file.stat().st_size for file in TRAINED.glob("*.safetensors")) <= 25e6
    card = (TRAINED / "README.md").read_text()
    assert "ot-spec distil" in card
    assert "mean sum min(t, d)" in card


def test_it_is_the_default_of_the_default_model(target):
    drafter = get_drafter(None, target)
    assert isinstance(drafter, FeatureDrafter)
    assert drafter.name == "trained"


def test_another_target_gets_an_early_exit_or_nothing():
    exit_ = get_drafter(None, toy(layers=12))
    assert isinstance(exit_, EarlyExitDrafter)
    assert exit_.layers_left_out == 1
    assert isinstance(get_drafter(None, toy(layers=1)), NoDrafter)


def test_it_meets_the_target_on_prompts_of_the_project(target, tmp_path):
    """More of its mass than the early exit that has most of the target's layers."""
    overlaps = {}
    for draft in (None, "exit:3"):
        capture(DEMO_PROMPTS, tmp_path / str(draft), target=target, draft=draft, tokens=4, limit=8)
        overlaps[draft] = read(tmp_path / str(draft)).column("overlap").mean()
    assert overlaps[None] > 0.35
    assert overlaps[None] > overlaps["exit:3"]
    drafter = get_drafter(None, target)
    assert isinstance(drafter, FeatureDrafter)
    drafted = drafter.net.config.drafted
    for batch in read(tmp_path / "None").batches():
        assert ((batch.draft > 0).sum(axis=-1) <= drafted).all()


def test_greedy_text_is_the_targets_own(target):
    prompts = ["Name three rivers.", "What is a prime number?"]
    drafted, plain = (Decoder(target, name).generate(prompts, 24, temperature=0.0) for name in (None, "none"))
    assert [out.tokens for out in drafted] == [out.tokens for out in plain]
    made = Summary.of([out.tally for out in drafted])
    assert made.tokens > 1.3 * made.target_calls
