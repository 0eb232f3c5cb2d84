"""`generate(custom_generate=ot_spec_generate(...))` gives back what `generate` gives."""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
import transformers as hf
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from tokenizers import Regex, Tokenizer, decoders
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers.generation.streamers import BaseStreamer

import gpu_decoder.drafters.drafter
import gpu_decoder.verify
from gpu_decoder import load, ot_spec_generate
from gpu_decoder.drafters import LookupDrafter
from ot_spec.errors import ModelError, OptionError, PromptError, UnsupportedLawError, VocabularyError

spec = importlib.util.spec_from_file_location("toys", Path(__file__).parent / "toys.py")
assert spec is not None and spec.loader is not None
toys = importlib.util.module_from_spec(spec)
spec.loader.exec_module(toys)

VOCAB = 24
IDS = torch.tensor([[0, 0, 1, 5, 7], [1, 4, 8, 3, 2], [0, 0, 0, 1, 9]])
MASK = (torch.arange(5) >= torch.tensor([[2], [0], [3]])).long()
SPECIAL: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def model(seed: int = 0, layers: int = 3, **config: Any) -> Any:
    return toys.toy(seed, VOCAB, layers, **SPECIAL | config).model


@pytest.fixture(scope="module")
def target() -> Any:
    return model(1)


def both(target: Any, ids: torch.Tensor, door: Any = None, **asked: Any) -> tuple[Any, Any]:
    """What generate gives, and what it gives through the door."""
    door = door or ot_spec_generate("exit:1", candidates=3, length=3)
    asked = {"do_sample": False, "max_new_tokens": 20, "attention_mask": torch.ones_like(ids)} | asked
    return target.generate(ids, **asked), target.generate(ids, custom_generate=door, **asked)


OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "max_length": {"max_new_tokens": None, "max_length": 14},
    "several ends": {"eos_token_id": [3, 7, 2]},
    "no end": {"eos_token_id": None},
    "another padding": {"pad_token_id": 23},
    "min_new_tokens": {"min_new_tokens": 6, "eos_token_id": list(range(3, 14))},
    "min_length": {"min_length": 12, "eos_token_id": list(range(3, 14))},
    "repetition penalty": {"repetition_penalty": 1.4},
    "no repeated n-grams": {"no_repeat_ngram_size": 2},
    "bad words": {"bad_words_ids": [[5], [7, 8], [4, 4]]},
    "sequence bias": {"sequence_bias": {(4,): 3.0, (5, 6): 2.0}},
    "prompt penalty": {"encoder_repetition_penalty": 1.5},
    "no n-grams of the prompt": {"encoder_no_repeat_ngram_size": 2},
    "guidance": {"guidance_scale": 1.5},
    "guidance without a cache": {"guidance_scale": 0.5, "use_cache": False},
    "forced end": {"forced_eos_token_id": 2},
    "suppressed": {"suppress_tokens": [3, 4], "begin_suppress_tokens": [11, 5]},
    "length penalty": {"exponential_decay_length_penalty": (2, 1.2)},
    "allowed tokens": {"prefix_allowed_tokens_fn": lambda row, ids: [row + 3, row + 5, (int(ids[-1]) + row + 1) % 24]},
    "watermark": {"watermarking_config": hf.WatermarkingConfig(bias=4.0)},
    "cache of fixed size": {"cache_implementation": "static"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_padded_batch_greedily(target, name):
    expected, found = both(target, IDS, attention_mask=MASK, **OPTIONS[name])
    assert found.dtype == expected.dtype and found.device == expected.device and not found.is_inference()
    assert torch.equal(found, expected)


def test_the_options_do_something(target):
    plain, usual = [], {"attention_mask": MASK, "do_sample": False, "max_new_tokens": 20}
    for name in OPTIONS:
        found = target.generate(IDS, **usual | OPTIONS[name])
        if torch.equal(found, target.generate(IDS, **usual)):
            plain.append(name)
    assert plain == ["nothing", "cache of fixed size"]


DRAFTERS = {
    "exit": "exit:2", "lookup": "lookup:2", "none": "none", "Drafter": LookupDrafter(1), "model": model(5, 1),
    "LanguageModel": toys.toy(5, VOCAB),
}  # fmt: skip


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("selector", ["k_seq", "block", "traversal", "point_mass"])
def test_any_drafter_and_rule(target, drafter, selector):
    door = ot_spec_generate(DRAFTERS[drafter], selector=selector, candidates=1 if selector == "block" else 3, length=3)
    expected, found = both(target, IDS, door, attention_mask=MASK)
    assert torch.equal(found, expected)
    assert all(made.tally.steps for made in door.generations)


def test_without_a_mask_padding_is_what_generate_takes_for_it(target):
    expected, found = both(target, IDS, attention_mask=None)
    assert torch.equal(found, expected)


def test_learned_positions_and_padding():
    config = hf.GPT2Config(
        vocab_size=VOCAB, n_positions=64, n_embd=16, n_layer=2, n_head=2, initializer_range=0.7, **SPECIAL
    )
    target = toys.random_model(hf.GPT2LMHeadModel, config).model
    expected, found = both(target, IDS, attention_mask=MASK)
    assert torch.equal(found, expected)
    with pytest.raises(PromptError, match=r"60 more are asked for.* reads 64"):
        target.generate(IDS, attention_mask=MASK, custom_generate=ot_spec_generate("none"), max_new_tokens=60)


# ---- the law of what is sampled

WARPERS = {
    "temperature": {"temperature": 0.7},
    "top-k with ties": {"top_k": 3},
    "all filters": {"temperature": 1.5, "top_k": 9, "top_p": 0.8, "min_p": 0.05},
    "typical": {"typical_p": 0.5, "top_k": 0},
    "cutoffs": {"epsilon_cutoff": 0.05, "eta_cutoff": 0.1},
    "penalty and temperature": {"repetition_penalty": 1.6, "temperature": 1.3, "top_k": 0},
}


@pytest.mark.parametrize("name", WARPERS)
def test_sampling_uses_the_laws_of_generate(name):
    """Scores along the text are those that generate computes there, and the law met is their float64 softmax."""
    target = model(1)
    with torch.no_grad():
        if name == "top-k with ties":
            target.lm_head.weight[4:12] = target.lm_head.weight[4]
    door = ot_spec_generate("exit:1", candidates=3, length=3, seed=3)
    asked = {"do_sample": True, "return_dict_in_generate": True, "output_scores": True, "eos_token_id": None}
    found = target.generate(IDS[1:2], custom_generate=door, max_new_tokens=12, **asked, **WARPERS[name])
    [made] = door.generations
    assert len(found.scores) == len(made.tokens) == 12
    for place, (scores, token, logprob) in enumerate(zip(found.scores, made.tokens, made.logprobs, strict=True)):
        text = torch.tensor([[*IDS[1].tolist(), *made.tokens[:place]]])
        once = target.generate(
            text, attention_mask=torch.ones_like(text), max_new_tokens=1, **asked, **WARPERS[name]
        ).scores[0]
        assert torch.equal(scores == -torch.inf, once == -torch.inf)
        torch.testing.assert_close(scores, once, rtol=1e-5, atol=1e-5)
        assert logprob == pytest.approx(float(torch.log_softmax(scores[0].double(), -1)[token]), abs=1e-12)


@pytest.mark.parametrize(("selector", "candidates"), [("k_seq", 3), ("block", 1), ("traversal", 2)])
def test_what_is_sampled_has_the_law_of_generate(selector, candidates):
    """2,000 pairs of tokens against their exact law: a chi-square test at 1e-4, the same draws on every run."""
    many, prompt, asked = 2000, [1, 4], {"temperature": 1.3, "top_k": 3, "do_sample": True, "repetition_penalty": 1.2}
    target = model(2, 2)
    expected: dict[tuple[int, int], float] = {}
    once = {"max_new_tokens": 1, "return_dict_in_generate": True, "output_scores": True, "eos_token_id": None}
    first = torch.softmax(target.generate(torch.tensor([prompt]), **asked, **once).scores[0][0].double(), -1)
    for token in first.nonzero().flatten().tolist():
        scores = target.generate(torch.tensor([[*prompt, token]]), **asked, **once).scores[0][0]
        for after, mass in enumerate(torch.softmax(scores.double(), -1).tolist()):
            if mass:
                expected[token, after] = float(first[token]) * mass
    door = ot_spec_generate("exit:1", selector=selector, candidates=candidates, length=2, seed=11)
    found = target.generate(
        torch.tensor([prompt]),
        custom_generate=door,
        max_new_tokens=2,
        num_return_sequences=many,
        eos_token_id=None,
        **asked,
    )
    counts = dict.fromkeys(expected, 0)
    for pair in found[:, 2:].tolist():
        counts[tuple(pair)] += 1  # KeyError: a token that cannot be
    observed = np.array([*counts.values()])
    means = many * np.array([*expected.values()])
    common = means >= 5
    groups = [(observed[common], means[common]), ([observed[~common].sum()], [means[~common].sum()])]
    observed, means = (np.concatenate(parts) for parts in zip(*groups, strict=True))
    statistic = ((observed - means) ** 2 / np.maximum(means, 1e-9)).sum()
    assert scipy.stats.chi2.sf(statistic, len(means) - 1) > 1e-4


def test_the_seed_of_torch_governs(target):
    def sampled(**asked: Any) -> list[list[int]]:
        door = ot_spec_generate("exit:1", candidates=2, length=3)
        found = target.generate(
            IDS, attention_mask=MASK, do_sample=True, max_new_tokens=8, custom_generate=door, **asked
        )
        return found.tolist()

    torch.manual_seed(3)
    first, second = sampled(), sampled()
    torch.manual_seed(3)
    assert (sampled(), sampled()) == (first, second) and first != second
    state = torch.get_rng_state()
    assert sampled(seed=5) == sampled(seed=5) != sampled(seed=6)
    assert torch.equal(state, torch.get_rng_state())
    both(target, IDS, attention_mask=MASK)  # greedy search leaves the generator alone
    assert torch.equal(state, torch.get_rng_state())


def test_rows_of_one_prompt_differ(target):
    door = ot_spec_generate("exit:1", candidates=2, length=3, seed=0)
    asked = {"do_sample": True, "temperature": 3.0, "num_return_sequences": 4, "max_new_tokens": 8}
    found = target.generate(IDS[:2], attention_mask=MASK[:2], custom_generate=door, **asked)
    assert torch.equal(found[:, :5], IDS[:2].repeat_interleave(4, 0))
    assert len({tuple(row) for row in found[:4].tolist()}) == 4


@pytest.mark.parametrize("many", [2, 3])
def test_processors_know_their_prompt_among_several_of_each(target, many):
    asked = {"prefix_allowed_tokens_fn": lambda row, ids: [3 + row, 8 + row], "num_return_sequences": many}
    door = ot_spec_generate("exit:1", candidates=2, length=3, seed=0)
    found = target.generate(IDS, attention_mask=MASK, do_sample=True, max_new_tokens=6, eos_token_id=None,
                            custom_generate=door, **asked)  # fmt: skip
    for place, row in enumerate(found[:, 5:].tolist()):
        assert set(row) <= {3 + place // many, 8 + place // many}


# ---- processors and criteria of the caller's


class Counting:
    """Bans tokens by the text and by how often it was called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        banned = (torch.arange(VOCAB) + 3 * self.calls + ids[:, -1:]) % 4 == 1
        return scores.masked_fill(banned, -torch.inf)


@pytest.mark.parametrize("selector", ["k_seq", "traversal", "block"])
def test_a_stateful_processor_in_a_padded_batch(target, selector):
    door = ot_spec_generate(target, selector=selector, candidates=1 if selector == "block" else 3, length=3)
    for _ in range(2):
        expected = target.generate(
            IDS,
            attention_mask=MASK,
            do_sample=False,
            max_new_tokens=20,
            logits_processor=hf.LogitsProcessorList([Counting()]),
        )
        counting = Counting()
        found = target.generate(
            IDS, attention_mask=MASK, do_sample=False, max_new_tokens=20, custom_generate=door,
            logits_processor=hf.LogitsProcessorList([counting]),
        )  # fmt: skip
        assert torch.equal(found, expected) and counting.calls == 0
        assert any(step.accepted for made in door.generations for step in made.tally.steps)


def test_a_processor_that_goes_by_the_place_of_a_row(target):
    bias = torch.zeros(3, VOCAB)
    bias[1, 5] = 9.0

    def per_row(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores + bias[: len(ids)]

    for processor in (per_row, lambda ids, scores: scores + bias):
        with pytest.raises(OptionError, match="treats the rows of a batch by their place"):
            both(target, IDS, attention_mask=MASK, logits_processor=hf.LogitsProcessorList([processor]))
    expected, found = both(target, IDS[:1], attention_mask=MASK[:1], logits_processor=hf.LogitsProcessorList([per_row]))
    assert torch.equal(found, expected)


class After(hf.StoppingCriteria):
    def __init__(self, token: int):
        self.token, self.texts = token, []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.texts.append(input_ids.tolist())
        return input_ids[:, -1] % 7 == self.token


@pytest.mark.parametrize("end", [2, None])
def test_criteria_of_the_callers(target, end):
    """With a token that ends texts, rows that stop are padded; without one, all go on until the last one stops."""
    stopped = 0
    for token in range(7):
        asked = {"attention_mask": MASK, "eos_token_id": end, "max_new_tokens": 14}
        expected, found = (
            both(target, IDS, **asked, stopping_criteria=hf.StoppingCriteriaList([After(token)]))[which]
            for which in (0, 1)
        )
        assert torch.equal(found, expected)
        stopped += expected.shape[1] < 19
    assert stopped


@pytest.mark.parametrize("end", [None, 23])
def test_criteria_are_asked_after_every_token(target, end):
    plain, ours = After(-1), After(-1)
    for criterion, door in ((plain, None), (ours, ot_spec_generate(target, candidates=2, length=3))):
        target.generate(
            IDS[1:2], do_sample=False, max_new_tokens=12, custom_generate=door, eos_token_id=end,
            stopping_criteria=hf.StoppingCriteriaList([criterion]),
        )  # fmt: skip
    assert ours.texts == plain.texts and len(plain.texts) == (12 if end is None else 4)


def test_a_criterion_replaces_the_length(target):
    criteria = hf.StoppingCriteriaList([hf.MaxLengthCriteria(9)])
    expected, found = both(target, IDS[1:2], eos_token_id=None, stopping_criteria=criteria)
    assert torch.equal(found, expected) and found.shape[1] == 9


def test_time_runs_out(target):
    asked = {"attention_mask": MASK, "eos_token_id": None, "max_time": 0.0}
    expected, found = both(target, IDS, **asked)
    assert torch.equal(found, expected) and found.shape == (3, 6)


def worded() -> Any:
    words = [
        "</s>",
        *"abcdefgh",
        "ab",
        "bc",
        "cd",
        "abc",
        "de",
        "ef",
        "ha",
        "gb",
        "ff",
        "ad",
        "ca",
        "be",
        "cc",
        "dd",
        "ee",
    ]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words[:VOCAB])}, unk_token="a"))
    tokenizer.pre_tokenizer = Split(Regex("."), "isolated")  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.Fuse()  # pyright: ignore[reportAttributeAccessIssue]
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


def test_stop_strings(target):
    tokenizer, stopped = worded(), 0
    asked = {"attention_mask": MASK, "do_sample": False, "max_new_tokens": 20}
    texts = [tokenizer.decode(row[5:]) for row in target.generate(IDS, **asked)]
    for strings in (texts[0][2:4], [texts[1][6:9], texts[0][3:5]], [texts[2][3:7], "qq"], texts[1][4:9]):
        expected = target.generate(IDS, stop_strings=strings, tokenizer=tokenizer, **asked)
        door = ot_spec_generate("exit:1", candidates=2, length=3, stop_strings=strings, tokenizer=tokenizer)
        assert torch.equal(target.generate(IDS, custom_generate=door, **asked), expected)
        criteria = hf.StoppingCriteriaList([hf.StopStringCriteria(tokenizer, strings)])
        found = target.generate(IDS, custom_generate=ot_spec_generate("exit:1"), stopping_criteria=criteria, **asked)
        assert torch.equal(found, expected)
        stopped += not torch.equal(expected, target.generate(IDS, **asked))
    assert stopped > 1
    with pytest.raises(OptionError, match="stop_strings need a tokenizer"):
        ot_spec_generate("exit:1", stop_strings="ab")


# ---- streamers and what is returned


class Heard(BaseStreamer):
    def __init__(self) -> None:
        self.parts: list[list[int]] = []
        self.ended = 0

    def put(self, value: torch.Tensor) -> None:
        self.parts.append(value.flatten().tolist())

    def end(self) -> None:
        self.ended += 1


def test_a_streamer_hears_what_generate_tells_it(target):
    for seed in range(3):
        told = []
        for door in (None, ot_spec_generate(target, selector="block", candidates=1, length=4)):
            heard = Heard()
            model(seed + 1).generate(
                IDS[1:2],
                do_sample=False,
                max_new_tokens=15,
                eos_token_id=[2, 5, 9],
                custom_generate=door,
                streamer=heard,
            )
            told.append((heard.parts, heard.ended))
        assert told[0] == told[1]


def test_a_text_iterator_ends(target):
    streamer = hf.TextIteratorStreamer(worded(), skip_prompt=True, timeout=20)
    door = ot_spec_generate("exit:1", candidates=2, length=2)
    asked = {
        "inputs": IDS[1:2],
        "do_sample": False,
        "max_new_tokens": 10,
        "custom_generate": door,
        "streamer": streamer,
    }
    thread = threading.Thread(target=target.generate, kwargs=asked)
    thread.start()
    text = "".join(streamer)
    thread.join()
    assert text == worded().decode(door.generations[0].tokens)


def test_a_dictionary_is_returned(target):
    kinds = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    expected, found = both(target, IDS[1:2], repetition_penalty=1.3, bad_words_ids=[[5]], **kinds)
    assert type(found) is type(expected) and torch.equal(found.sequences, expected.sequences)
    for name in ("scores", "logits"):
        ours, theirs = getattr(found, name), getattr(expected, name)
        assert len(ours) == len(theirs) == found.sequences.shape[1] - 5
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
        assert not any(row.is_inference() for row in ours)
    assert found.attentions is found.hidden_states is found.cache is None
    _, batch = both(target, IDS, attention_mask=MASK, return_dict_in_generate=True)
    assert batch.scores is None and batch.sequences.shape[0] == 3


# ---- what is done once


def test_set_up_is_done_once(make_model, monkeypatch):
    folder = make_model(seed=3, vocab=32)
    target, loads, checks = load(make_model(), "float64").model, [], []
    right = gpu_decoder.drafters.drafter.load
    monkeypatch.setattr(gpu_decoder.drafters.drafter, "load", lambda *given: loads.append(given) or right(*given))
    check = gpu_decoder.verify._difference_on_a_tree
    monkeypatch.setattr(gpu_decoder.verify, "_difference_on_a_tree", lambda lm: checks.append(lm.name) or check(lm))
    for drafter, once in ((folder, 1), ("exit:1", 0)):
        door = ot_spec_generate(drafter, candidates=2, length=2)
        for _ in range(3):
            expected, found = both(target, IDS, door, attention_mask=MASK)
            assert torch.equal(found, expected)
        assert len(loads) == once
        loads.clear()
    assert len(checks) == 2 == len(set(checks))
    other = model(4)
    expected, found = both(other, IDS, door, attention_mask=MASK)
    assert torch.equal(found, expected)


def test_a_draft_of_another_tokenizer(make_model):
    target = load(make_model())
    other = make_model(words=["<unk>", "<s>", "</s>", *(f"v{i}" for i in range(21))])
    door = ot_spec_generate(other, tokenizer=target.tokenizer)
    with pytest.raises(VocabularyError, match="token 3 is 'w0' in the target and 'v0' in the draft"):
        target.model.generate(IDS[1:2], custom_generate=door, max_new_tokens=4)


def test_models_spread_over_devices(target):
    """Hooks that move tensors, as device_map sets them, are called on the way through whole and shortened models."""
    hooked = model(1)
    for part in (hooked, *hooked.model.layers):
        add_hook_to_module(part, AlignDevicesHook(execution_device="cpu", io_same_device=True))
    door = ot_spec_generate("exit:2", candidates=3, length=3)
    found = hooked.generate(IDS, attention_mask=MASK, do_sample=False, max_new_tokens=20, custom_generate=door)
    assert torch.equal(found, both(target, IDS, attention_mask=MASK)[0])
    plain = ot_spec_generate("exit:2", candidates=3, length=3)
    both(target, IDS, plain, attention_mask=MASK)
    assert [made.tally for made in door.generations] == [made.tally for made in plain.generations]


# ---- refusals

REFUSED = [
    ({"num_beams": 2}, OptionError, "and not beam_search"),
    ({"num_beams": 2, "do_sample": True}, OptionError, "and not beam_sample"),
    ({"penalty_alpha": 0.6, "top_k": 4}, OptionError, "and not contrastive_search"),
    ({"prompt_lookup_num_tokens": 3}, OptionError, "and not assisted_generation"),
    ({"assistant_model": model(1, 1)}, OptionError, r"give the assistant as drafter"),
    ({"cache_implementation": "offloaded"}, OptionError, "cache_implementation='offloaded'"),
    ({"return_dict_in_generate": True, "output_attentions": True}, OptionError, "output_attentions"),
    ({"return_dict_in_generate": True, "output_hidden_states": True}, OptionError, "output_hidden_states"),
    ({"return_dict_in_generate": True, "output_scores": True}, OptionError, "for one row, and these are 3"),
    ({"streamer": Heard()}, OptionError, "a streamer takes one row, and these are 3"),
    ({"synced_gpus": True}, OptionError, "synced_gpus"),
    ({"cache": hf.DynamicCache()}, OptionError, "cache: the decoder keeps a cache of its own"),
    ({"position_ids": torch.arange(5).repeat(3, 1)}, OptionError, "position_ids: a text is read at"),
    ({"attention_mask": torch.tensor([[1, 1, 1, 0, 0]] * 3)}, PromptError, "row 0 of attention_mask hides tokens"),
    ({"attention_mask": torch.tensor([[1] * 5, [0, 1, 0, 1, 1], [1] * 5])}, PromptError, "row 1 .* pad on the left"),
    ({"attention_mask": torch.tensor([[1] * 5, [0] * 5, [1] * 5])}, PromptError, "prompt 1 is empty"),
    ({"seed": -1}, OptionError, "seed must be an integer of at least 0"),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "error", "words"), REFUSED, ids=lambda value: str(value)[:30])
def test_refusals(target, asked, error, words):
    asked = {"attention_mask": MASK, "max_new_tokens": 4, "do_sample": False} | asked
    with pytest.raises(error, match=words):
        target.generate(IDS, custom_generate=ot_spec_generate("exit:1"), **asked)


def test_other_inputs_and_states_are_refused(target):
    embedded = target.get_input_embeddings()(IDS)
    with pytest.raises(OptionError, match="inputs_embeds: a model is decoded from ids"):
        target.generate(inputs_embeds=embedded, custom_generate=ot_spec_generate("exit:1"), max_new_tokens=4)
    config = hf.T5Config(vocab_size=VOCAB, d_model=16, d_ff=24, d_kv=8, num_layers=1, num_heads=2)
    encoder: Any = hf.T5ForConditionalGeneration(config).eval()
    with pytest.raises(ModelError, match="T5ForConditionalGeneration has an encoder"):
        encoder.generate(IDS, custom_generate=ot_spec_generate("none"), max_new_tokens=4, decoder_start_token_id=0)
    learning = model(1).train()
    with pytest.raises(ModelError, match=r"in training mode: call model\.eval\(\)"):
        learning.generate(IDS, attention_mask=MASK, custom_generate=ot_spec_generate("none"), max_new_tokens=4)
    refused: list[tuple[Any, dict[str, Any], Any]] = [
        ("exit:9", {}, OptionError), ("exit", {}, OptionError), (3, {}, OptionError), ("lookup:0", {}, OptionError),
        ("exit:1", {"selector": "nothing"}, OptionError), ("exit:1", {"candidates": 0}, OptionError),
        ("exit:1", {"selector": "hub", "candidates": 3}, UnsupportedLawError), ("/no/such/folder", {}, ModelError),
    ]  # fmt: skip
    for drafter, options, error in refused:
        with pytest.raises(error):
            both(target, IDS, ot_spec_generate(drafter, **options), attention_mask=MASK)


def test_the_callers_arguments_are_found_only_in_generate(target):
    """Called by other code, streamers come as an argument."""
    door, heard = ot_spec_generate("none"), Heard()
    config = hf.GenerationConfig(max_length=9, do_sample=False)
    found: Any = door(
        target,
        IDS[1:2],
        hf.LogitsProcessorList(),
        hf.StoppingCriteriaList([hf.MaxLengthCriteria(9)]),
        config,
        streamer=heard,
    )
    assert torch.equal(found, target.generate(IDS[1:2], do_sample=False, max_length=9, eos_token_id=None))
    assert heard.parts == [[token] for token in found[0, 5:].tolist()] and heard.ended == 1
