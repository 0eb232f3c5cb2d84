"""Whatever a caller asks of a text, the decoder does as plain generation would: the same tokens, or the same law."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel
from transformers import (
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    PreTrainedTokenizerFast,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SynthIDTextWatermarkLogitsProcessor,
    WatermarkLogitsProcessor,
)

from gpu_decoder import Decoder, LanguageModel
from gpu_decoder.decode import rules_that_fit
from gpu_decoder.drafters import LookupDrafter
from gpu_decoder.processing import Processing, Processors
from ot_spec.errors import OptionError, ShapeError

spec = importlib.util.spec_from_file_location("toys", Path(__file__).parent / "toys.py")
assert spec is not None and spec.loader is not None
toys = importlib.util.module_from_spec(spec)
spec.loader.exec_module(toys)

PROMPT = [1, 5, 2, 7, 5, 2]
RULES = [(name, k, length) for k, length in ((3, 3), (1, 4), (2, 2)) for name in rules_that_fit(k, length)]


def plain(target: LanguageModel, prompt: list[int], many: int, processors: Any = (), **asked: Any) -> list[int]:
    """New tokens of transformers' own greedy generate."""
    ids = torch.tensor([prompt])
    asked = {"eos_token_id": None} | asked
    found = target.model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=many,
        logits_processor=LogitsProcessorList(processors), pad_token_id=0, **asked,
    )  # fmt: skip
    return found[0, len(prompt) :].tolist()


def biased(tokens: dict[tuple[int, ...], float]) -> Any:
    return SequenceBiasLogitsProcessor(tokens)  # pyright: ignore[reportArgumentType], a form it takes and does not declare


def drafter_of(kind: int, seed: int, vocab: int) -> Any:
    return ["exit:1", "lookup", toys.toy(seed + 100, vocab), "none"][kind % 4]


@pytest.mark.parametrize("seed", range(max(30, len(RULES))))
def test_greedy_is_plain_greedy(seed):
    rng = np.random.default_rng(seed)
    vocab = int(rng.integers(8, 30))
    target = toys.toy(seed, vocab, layers=2)
    name, k, length = RULES[seed % len(RULES)]
    prompts = [[int(i) for i in rng.integers(vocab, size=size)] for size in (1, 4, 9)]
    ends = [int(i) for i in rng.choice(vocab, size=2, replace=False)]
    decoder = Decoder(target, drafter_of(seed, seed, vocab), selector=name, candidates=k, length=length)
    found = decoder.generate(prompts, 25, temperature=0, ends=frozenset(ends))
    expected = [plain(target, prompt, 25, eos_token_id=ends) for prompt in prompts]
    assert [row.tokens for row in found] == expected
    assert [row.finish for row in found] == ["eos" if row[-1] in ends else "length" for row in expected]
    np.testing.assert_array_equal(np.concatenate([row.logprobs for row in found]), 0.0)


# ---- logits processors

ENDS = frozenset({3, 6})
STATELESS: dict[str, Any] = {
    "repetition penalty": lambda: [RepetitionPenaltyLogitsProcessor(1.7)],
    "no repeated 2-gram": lambda: [NoRepeatNGramLogitsProcessor(2)],
    "bad words": lambda: [NoBadWordsLogitsProcessor([[4], [5, 2], [1, 1]], torch.tensor([3]))],
    "sequence bias": lambda: [biased({(4,): 2.0, (5, 1): 4.0, (2, 6, 1): -9.0})],
    "minimum length": lambda: [MinLengthLogitsProcessor(len(PROMPT) + 7, torch.tensor(sorted(ENDS)))],
    "allowed tokens": lambda: [PrefixConstrainedLogitsProcessor(lambda _, ids: [int(ids[-1] + 1) % 9, 4], 1)],
    "watermark": lambda: [WatermarkLogitsProcessor(9, "cpu", greenlist_ratio=0.4, bias=3.0)],
    "all at once": lambda: [
        RepetitionPenaltyLogitsProcessor(1.2), biased({(7,): 1.0}),
        NoRepeatNGramLogitsProcessor(3),
    ],
}  # fmt: skip
SOME_RULES = [
    ("k_seq", 3, 3),
    ("rrs_without_replacement", 2, 3),
    ("block", 1, 4),
    ("traversal", 2, 3),
    ("point_mass", 3, 3),
]


@pytest.mark.parametrize("what", STATELESS)
@pytest.mark.parametrize("rule", SOME_RULES, ids=lambda rule: rule[0])
def test_greedy_with_processors(what, rule):
    name, k, length = rule
    for seed in range(3):
        target = toys.toy(seed, 9, layers=2)
        decoder = Decoder(target, drafter_of(seed, 0, 9), selector=name, candidates=k, length=length)
        found = decoder.generate([PROMPT], 16, temperature=0, ends=ENDS, logits_processors=STATELESS[what]())
        assert found[0].tokens == plain(target, PROMPT, 16, STATELESS[what](), eos_token_id=sorted(ENDS))


class Matcher:
    """A grammar of a kind: it counts its calls, follows the text token by token, and is not asked after its end."""

    def __init__(self, prompt: int, vocab: int, ends: frozenset[int] = ENDS):
        self.prompt, self.vocab, self.ends = prompt, vocab, ends
        self.calls, self.state, self.text = 0, 1, []

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        new = ids[0, self.prompt :].tolist()
        assert new[:-1] == self.text and len(new) == self.calls, f"called after {self.text}, then after {new}"
        assert not self.ends & set(new), "asked after the end"
        for token in new[-1:]:
            self.state = (31 * self.state + token) % 1009
        self.text, self.calls = new, self.calls + 1
        banned = [
            i
            for i in range(self.vocab)
            if (self.state * (i + 3) + self.calls) % 3 == 0 and i != self.state % self.vocab
        ]
        scores[:, banned] = -torch.inf
        return scores


class Recording(Decoder):
    """Keeps what the processors of each row have seen when a step is done."""

    def _append(self, row: Any, *rest: Any) -> None:
        super()._append(row, *rest)
        self.seen = {**getattr(self, "seen", {}), row.place: (row.processors.processors[-1], list(row.out.tokens))}
        if not row.out.finish:
            matcher = row.processors.processors[-1]
            assert matcher.calls == len(row.out.tokens) and matcher.text == row.out.tokens[:-1]


@pytest.mark.parametrize("rule", SOME_RULES, ids=lambda rule: rule[0])
@pytest.mark.parametrize("ends", [ENDS, frozenset()], ids=["with an end", "without"])
def test_a_stateful_processor_sees_the_calls_of_plain_generation(rule, ends):
    name, k, length = rule
    longer = 0
    for seed in range(3):
        target = toys.toy(seed, 9, layers=2)
        prompts = [PROMPT, [8], [4, 4, 1, 2]]
        drafter = [target, "exit:1", "lookup"][seed]
        decoder = Recording(target, drafter, selector=name, candidates=k, length=length)
        made = [Matcher(len(prompt), 9, ends) for prompt in prompts]
        found = decoder.generate(
            prompts, 20, temperature=0, ends=ends, logits_processors=lambda row, made=made: [made[row]]
        )
        for prompt, row in zip(prompts, found, strict=True):
            own = [Matcher(len(prompt), 9, ends)]
            assert row.tokens == plain(target, prompt, 20, own, eos_token_id=sorted(ends) or None)
            longer += sum(step.accepted > 1 for step in row.tally.steps)
        assert all(matcher.calls == 0 for matcher in made)  # copies go on, the caller's own stay as they were
    assert longer > 0 or name == "rrs_without_replacement"


class Shifting:
    """Bans tokens by how often it was called, and by the tokens before."""

    def __init__(self, vocab: int):
        self.vocab, self.calls = vocab, 0

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        banned = [i for i in range(self.vocab) if (i + self.calls + int(ids[0, -1])) % 2]
        scores[:, banned] = -torch.inf
        return scores


@pytest.mark.parametrize(
    ("rule", "k", "length"), [("k_seq", 2, 1), ("rrs_without_replacement", 2, 1), ("block", 1, 2), ("traversal", 2, 1)]
)
def test_the_law_with_a_state_penalties_and_ends(rule, k, length):
    target, draft, prompt, ends = toys.toy(0, 4), toys.toy(1, 4), [1, 2], frozenset({1})

    def processors(row: int = 0) -> list[Any]:
        return [RepetitionPenaltyLogitsProcessor(1.3), Shifting(4)]

    asked: dict[str, Any] = {"temperature": 1.5}
    reference = toys.Plain(target, Processing(**asked), processors, start=len(prompt))
    expected: dict[tuple[int, ...], Any] = {}
    for text, mass in reference.of(prompt, 3).items():
        kept = text[: text.index(1) + 1] if 1 in text else text
        expected[kept] = expected.get(kept, 0) + mass
    options = {"selector": rule, "candidates": k, "length": length, "draft_temperature": 0.9, "draft_support": 2}
    with toys.remembering():
        found = toys.decoded_law(target, draft, prompt, 3, options, logits_processors=processors, ends=ends, **asked)
    assert found == expected
    assert len(found) >= 4 and any(text[-1] == 1 and len(text) < 3 for text in found)


def test_a_processor_that_bans_all_that_is_drafted():
    target = toys.toy(0, 9)
    bans: Any = [NoBadWordsLogitsProcessor([[i] for i in range(8)])]
    decoder = Decoder(target, "lookup", selector="k_seq", candidates=2, length=3)
    [found] = decoder.generate([PROMPT], 6, temperature=0, logits_processors=bans)
    assert found.tokens == [8] * 6


def test_a_draft_of_fewer_tokens_than_a_processor_knows():
    target, draft = toys.toy(0, 12), toys.toy(1, 7)
    bias = [biased({(9,): 5.0, (10, 9): -20.0}), RepetitionPenaltyLogitsProcessor(1.3)]
    for name, k in (("k_seq", 3), ("traversal", 2), ("block", 1)):
        decoder = Decoder(target, draft, selector=name, candidates=k, length=3)
        [found] = decoder.generate([PROMPT], 20, temperature=0, logits_processors=bias)
        assert found.tokens == plain(target, PROMPT, 20, bias)
        assert max(found.tokens) > 6


def test_transformers_list_of_processors_is_a_list():
    target = toys.toy(3, 9)
    bias = LogitsProcessorList([biased({(4,): 3.0})])
    [found] = Decoder(target, "none", candidates=1, length=1).generate(
        [PROMPT], 9, temperature=0, logits_processors=bias
    )
    assert found.tokens == plain(target, PROMPT, 9, bias)


def test_watermarks_with_a_state():
    def synthid() -> list[Any]:
        return [SynthIDTextWatermarkLogitsProcessor(3, [11, 5, 7], 64, 0, 8, torch.device("cpu"))]

    target = toys.toy(2, 9, layers=2)
    decoder = Decoder(target, "exit:1", selector="k_seq", candidates=2, length=3)
    [found] = decoder.generate([PROMPT], 20, temperature=0, logits_processors=synthid())
    assert found.tokens == plain(target, PROMPT, 20, synthid())
    assert found.tokens != plain(target, PROMPT, 20)


def test_a_processor_says_whether_it_keeps_a_state():
    calls = []

    class Free:
        keeps_state = False

        def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            calls.append(ids.shape[1])
            scores[:, 0] = -torch.inf
            return scores

        def __deepcopy__(self, memo: Any) -> Any:
            raise AssertionError("copied")

    target = toys.toy(0, 9)
    [found] = Decoder(target, target, candidates=2, length=2).generate([PROMPT], 12, logits_processors=[Free()])
    assert 0 not in found.tokens and sum(step.drafted for step in found.tally.steps) > 0
    assert len(calls) > 2 * len(found.tally.steps)  # it is asked about the draft as well


def test_what_processors_may_not_do():
    class Locked:
        def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            return scores

        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("it holds a lock")

    decoder = Decoder(toys.toy(0, 9), "none", candidates=1, length=1)
    with pytest.raises(OptionError, match=r"Locked keeps a state and cannot be copied .* it holds a lock"):
        decoder.generate([PROMPT], 3, logits_processors=[Locked()])
    with pytest.raises(ShapeError, match=r"wide makes scores of shape \(3, 9\) of \(1, 9\)"):

        def wide(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            return scores + torch.zeros(3, 1)

        decoder.generate([PROMPT], 3, logits_processors=[wide])


def test_models_that_a_processor_holds_are_not_copied():
    class Guided:
        def __init__(self) -> None:
            self.model, self.calls = torch.nn.Linear(2, 2), []

        def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            self.calls.append(len(ids))
            return scores

    guided = Guided()
    [copied] = Processors([guided]).fork().processors
    assert copied is not guided and copied.model is guided.model and copied.calls is not guided.calls


# ---- where texts end


def letters(target: LanguageModel) -> LanguageModel:
    """The model with a tokenizer whose tokens are a few letters each, put together without spaces."""
    words = ["</s>", "a", "b", "ab", "ba", "bca", "c", "aa", "cab"]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="a"))
    tokenizer.decoder = decoders.Fuse()  # pyright: ignore[reportAttributeAccessIssue]
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")
    return LanguageModel(target.name, target.model, fast, target.vocab, None, frozenset({0}))


@pytest.mark.parametrize("stop", [["abc"], ["bb"], ["cc", "aba"], ["bcab"], "caa"], ids=str)
def test_stop_strings_across_tokens(stop):
    ended = 0
    for seed in range(8):
        target = letters(toys.toy(seed, 9, layers=2))
        name, k, length = SOME_RULES[seed % 5]
        decoder = Decoder(target, ["exit:1", target][seed % 2], selector=name, candidates=k, length=length)
        found = decoder.generate([[1, 6], [8, 5, 2]], 24, temperature=0, stop=stop)
        strings = [stop] if isinstance(stop, str) else stop
        for row in found:
            expected = plain(target, row.prompt, 24, eos_token_id=0)
            texts = [target.tokenizer.decode(expected[:end], skip_special_tokens=True) for end in range(1, 25)]
            first = next((i + 1 for i, text in enumerate(texts) if any(s in text for s in strings)), len(expected))
            assert row.tokens == expected[:first]
            assert row.text == target.tokenizer.decode(expected[:first], skip_special_tokens=True)
            ended += row.finish == "stop"
    assert ended


def test_nothing_past_the_end_is_kept_or_streamed():
    """The draft is the target, so that blocks are accepted whole and texts end inside them."""
    inside = 0
    for seed in range(8):
        target = toys.toy(seed, 9)
        streamed: dict[int, list[int]] = {}
        decoder = Decoder(target, target, selector="block", candidates=1, length=6)
        found = decoder.generate(
            [PROMPT, [8], [1, 1, 1]], 17, ends=ENDS, seed=seed,
            stream=lambda row, tokens: streamed.setdefault(row, []).extend(tokens),  # noqa: B023, called at once
        )  # fmt: skip
        for place, row in enumerate(found):
            assert streamed[place] == row.tokens and len(row.tokens) <= 17
            assert not ENDS & set(row.tokens[:-1])
            assert row.finish == ("eos" if row.tokens[-1] in ENDS else "length")
            assert len(row.logprobs) == len(row.tokens) == sum(step.committed for step in row.tally.steps)
            last = row.tally.steps[-1]
            inside += row.finish == "eos" and last.committed < last.accepted + 1
    assert inside > 3


@pytest.mark.parametrize("many", range(1, 8))
def test_length_limits(many):
    target = toys.toy(1, 9)
    decoder = Decoder(target, target, selector="k_seq", candidates=2, length=4)
    [found] = decoder.generate([PROMPT], many, temperature=0)
    assert found.tokens == plain(target, PROMPT, many) and found.finish == "length"
    [found] = decoder.generate([PROMPT], 20, temperature=0, ends=frozenset(range(8)), min_new_tokens=many)
    assert found.tokens == plain(target, PROMPT, 20, eos_token_id=list(range(8)), min_new_tokens=many)
    assert len(found.tokens) > many


def test_minimum_of_new_tokens_as_plain():
    for seed in range(6):
        target, ends = toys.toy(seed, 9, layers=2), [2, 4, 5, 8]
        decoder = Decoder(target, "exit:1", selector="traversal", candidates=3, length=3)
        for least in (1, 4, 9):
            found = decoder.generate([PROMPT, [3]], 20, temperature=0, ends=frozenset(ends), min_new_tokens=least)
            for row in found:
                assert row.tokens == plain(target, row.prompt, 20, eos_token_id=ends, min_new_tokens=least)


def test_a_condition_of_the_callers():
    target = toys.toy(4, 9)
    decoder = Decoder(target, target, selector="k_seq", candidates=2, length=4)
    asked: list[tuple[int, list[int]]] = []

    def until(row: int, ids: list[int]) -> bool:
        asked.append((row, ids))
        return len(ids) >= 9 and row == 0

    first, second = decoder.generate([PROMPT, [2, 3]], 12, temperature=0, until=until)
    assert (first.tokens, first.finish) == (plain(target, PROMPT, 12)[:3], "stop")
    assert (second.tokens, second.finish) == (plain(target, [2, 3], 12), "length")
    for row, out in enumerate((first, second)):
        expected = [out.prompt + out.tokens[: i + 1] for i in range(len(out.tokens))]
        assert [ids for place, ids in asked if place == row] == expected


def test_a_lookup_that_knows_nothing_drafts_nothing():
    target = toys.toy(5, 30)
    found = Decoder(target, LookupDrafter(2), candidates=2, length=3).generate([list(range(20))], 3, temperature=0)
    assert found[0].tokens == plain(target, list(range(20)), 3)
