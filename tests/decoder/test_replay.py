"""A finished text read afresh, and two runs of one seed beside each other."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

from gpu_decoder import Decoder, load
from gpu_decoder.drafters import ModelDrafter
from gpu_decoder.metrics import Clock, Meter
from gpu_decoder.prompt_file import DEMO_PROMPTS, read_prompts
from gpu_decoder.replay import near_ties, parting
from tests.decoder.toys import toy

PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 1, 2], [3]]


def test_greedy_text_of_a_toy_is_the_argmax_of_a_fresh_reading():
    decoder = Decoder(toy(0), ModelDrafter(toy(1)), selector="optimal", candidates=3, length=3)
    for made in decoder.generate(PROMPTS, 40, temperature=0):
        assert near_ties(decoder.target, made) == []


def test_a_token_that_is_no_argmax_is_found_with_its_margin():
    target = toy(0)
    made = Decoder(target, "none").generate(PROMPTS[:1], 6, temperature=0)[0]
    with torch.inference_mode():
        logits = target.model(torch.tensor([made.prompt + made.tokens[:3]])).logits[0, -1]
    best, second = logits.topk(2).indices.tolist()
    made.tokens[3:] = [second]
    [tie] = near_ties(target, made)
    assert (tie.place, tie.token, tie.best) == (3, second, best)
    assert tie.margin == pytest.approx(float(logits[best] - logits[second]))


def test_runs_of_one_seed_part_nowhere_in_float64_and_where_a_token_differs():
    decoder = Decoder(toy(0), ModelDrafter(toy(1)), candidates=2, length=3)
    batch = decoder.generate(PROMPTS, 30, seed=4)
    alone = [decoder.generate([prompt], 30, seed=4)[0] for prompt in PROMPTS]
    assert [parting(a, b) for a, b in zip(alone, batch, strict=True)] == [None] * 4
    batch[0].tokens[7] = alone[0].tokens[7] ^ 1
    batch[0].logprobs[2] += 0.25
    found = parting(alone[0], batch[0])
    assert found is not None and found.place == 7
    assert found.tokens == (alone[0].tokens[7], batch[0].tokens[7])
    assert found.shift == pytest.approx(0.25)
    del batch[1].tokens[20:]
    shorter = parting(alone[1], batch[1])
    assert shorter is not None and (shorter.place, shorter.tokens[1]) == (20, -1)


@pytest.mark.deep
def test_greedy_text_of_the_default_model_departs_at_near_ties_only(default_model):
    decoder = Decoder(load(), "exit:3", selector="optimal", candidates=4, length=4)
    for prompt in read_prompts(DEMO_PROMPTS):
        made = decoder.generate(prompt.turns[0], 48, temperature=0)[0]
        assert all(tie.margin < 1e-3 for tie in near_ties(decoder.target, made))


def test_what_a_meter_works_out_is_on_no_clock():
    running = []

    class Watched(Clock):
        @contextmanager
        def __call__(self, part):
            running.append(part)
            yield
            running.remove(part)

    class Told(Meter):
        def step(self, *given):
            assert running == []
            super().step(*given)

    meter = Told(("k_seq",))
    decoder = Decoder(toy(0), ModelDrafter(toy(1)), candidates=2, length=2, meter=meter)
    decoder.generate(PROMPTS[:1], 8, clock=Watched())
    assert meter.rows
