"""Drafters from a folder of `distil`, in the decoder and in captures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpu_decoder import Decoder
from gpu_decoder.capture import capture
from gpu_decoder.distil.corpus import Corpus
from gpu_decoder.distil.students import FeatureStudent, LlamaStudent, Student
from gpu_decoder.distil.train import TrainSettings, train
from gpu_decoder.draft_tree import BestFirst, Branches
from gpu_decoder.drafters import get_drafter
from gpu_decoder.models import load
from gpu_decoder.processing import Processing
from gpu_decoder.run import decode_prompts
from gpu_decoder.verify import TreeReader
from ot_spec.arrays import to_numpy
from ot_spec.captured import read
from tests.distil.toys import places_of, read_shard, wide

KNOWN = tuple(i for i in range(32) if i % 7)
PROMPTS = ["w1 w2", "w3", "w4 w5 w6 w7", "w1 w2"]
OPTIONS: list[dict[str, Any]] = [
    {"candidates": 4, "length": 3},
    {"candidates": 1, "length": 5},
    {"tree": Branches((3, 2, 1)), "selector": "rrs_without_replacement"},
    {"tree": BestFirst(9, 4), "selector": "point_mass"},
]
SHAPES = ["feature", "deep", "llama"]


@pytest.fixture(scope="module", params=SHAPES)
def folder(request, tmp_path_factory, tiny) -> Path:
    """A drafter with a little training, so that some of what it drafts is right."""
    torch.manual_seed(3)
    target, text = load(tiny), tmp_path_factory.mktemp("text")
    read_shard(text / "0.safetensors", target, (2, 4), 40, 16)
    student: Student
    if request.param == "llama":
        student = LlamaStudent(target, KNOWN, 32, 1)
    else:
        student = FeatureStudent(target, KNOWN, (2, 4), layers=1 + (request.param == "deep"), window=9)
    settings = TrainSettings(steps=40, tokens=512, rate=1e-2)
    train(student, Corpus([text / "0.safetensors"]), places_of(KNOWN, 32), settings, text)
    made = tmp_path_factory.mktemp(request.param) / "drafter"
    student.save(made)
    return made


@pytest.mark.parametrize("options", OPTIONS, ids=["wide", "long", "tree", "best first"])
def test_greedy_text_is_that_without_a_drafter(tiny, folder, options):
    target = load(tiny, "float64")
    asked: dict[str, Any] = {"temperature": 0, "min_new_tokens": 24}
    plain = Decoder(target, "none").generate(PROMPTS, 24, **asked)
    found = Decoder(target, folder, **options).generate(PROMPTS, 24, **asked)
    assert [one.tokens for one in found] == [one.tokens for one in plain]
    accepted = sum(step.accepted for one in found for step in one.tally.steps)
    assert accepted > 0 and sum(step.drafted for one in found for step in one.tally.steps) > accepted


def test_text_does_not_depend_on_the_batch(tiny, folder):
    options: dict[str, Any] = {
        "target": tiny, "draft": str(folder), "candidates": 2, "length": 3, "draft_temperature": 1.3,
        "max_new_tokens": 16, "dtype": "float64", "seed": 1, "law": Processing(1.3),
    }  # fmt: skip
    prompts = [*PROMPTS, "w8", "w9 w10"]
    alone, together = (decode_prompts(prompts, batch=batch, **options) for batch in (1, 6))
    assert [row["tokens"] for row in alone.records] == [row["tokens"] for row in together.records]
    assert len({len(row["tokens"]) for row in alone.records}) > 1  # some leave the batch before others


@pytest.mark.parametrize("positions", ["generated", "prompt"])
@pytest.mark.parametrize("law", [Processing(), Processing(1.6, top_k=4)], ids=["plain", "hot"])
def test_captured_draft_laws_are_those_of_the_session(tmp_path, tiny, folder, positions, law):
    target = load(tiny, "float64")
    drafter = get_drafter(folder, target)
    capture(PROMPTS[:3], tmp_path, target=target, draft=drafter, positions=positions, tokens=12, draft_law=law, seed=2)
    count = 0
    for batch in read(tmp_path).batches():
        for place in range(len(batch)):
            text = [int(i) for i in batch.context[place]]
            if len(text) == 1 and hasattr(drafter, "tap"):
                continue  # no state precedes it
            reader = TreeReader(target, 1, getattr(drafter, "tap", ()))
            reader.prefill([text[:-1]])
            with torch.inference_mode():
                [scores] = drafter.start(reader, 1).begin([text])
            expected = to_numpy(law.law(wide(scores, 32)[-1]))
            np.testing.assert_allclose(batch.draft[place], expected, rtol=2e-5, atol=1e-7)
            assert set(np.flatnonzero(batch.draft[place])) <= set(KNOWN)
            count += 1
    assert count > 8


def test_tokens_that_the_target_has_not_are_in_no_captured_law(tmp_path, make_model):
    """A draft vocabulary with an id past the target's V."""
    draft = make_model(vocab=40, seed=1, change=lambda model: setattr(model.config, "draft_vocabulary", [3, 5, 35]))
    capture(["w1 w2"], tmp_path, target=make_model(vocab=32), draft=draft, tokens=3)
    for batch in read(tmp_path).batches():
        assert {int(i) for i in batch.draft.nonzero()[1]} == {3, 5}
