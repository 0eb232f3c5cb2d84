"""Faults of decoders: positions, lengths, ends, counts, states, vocabularies, caches and batches.

F51 and F52 are among the rules that `tests/faults/test_verifiers.py` audits, as is F120's threshold itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaModel,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from gpu_decoder import Decoder, LanguageModel, decode, draft_tree, verify
from gpu_decoder.drafters import ModelDrafter
from gpu_decoder.drafters import model as model_drafter
from gpu_decoder.metrics import Meter, Step, Summary, Tally
from gpu_decoder.processing import Processing
from gpu_decoder.tree_slots import Block
from gpu_decoder.verify import TreeReader
from ot_spec.errors import LawError, UnsupportedLawError, VocabularyError
from ot_spec.tree import Commit
from solvers.selectors import Luce
from solvers.sequence import SpecTr
from solvers.sequence import rule as sequence_rule
from tests.decoder import mutants as broken
from tests.decoder.toys import Plain, Scripted, Watch, bigram, clock, counting, random_model, step_law, toy
from tests.faults.kind import Kind, mutants, ours, refused

Break = Callable[[], AbstractContextManager[Any]]
OURS: dict[str, Any] = {"decoder": nullcontext}


def kind(fault: str, check: Callable[[dict], None], what: str = "", **wrong: Break) -> Kind:
    """A kind whose subjects are ways to break the decoder, nothing for ours."""

    def under(subject: Break, case: dict) -> None:
        if subject is nullcontext:
            check(case)
            return
        # the decoder's own check of a model would refuse some breaks before the claim is put to the test
        with subject(), patch.object(verify, "check_tree_attention", lambda model: None):
            check(case)

    return Kind(fault, under, lambda case: case, OURS, dict(wrong), what=what)


def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Break:
    """The attribute `name` of `owner` made from what it was."""
    return lambda: patch.object(owner, name, make(getattr(owner, name)))


def both(*breaks: Break) -> Break:
    @contextmanager
    def all_of_them() -> Iterator[None]:
        with ExitStack() as stack:
            for one in breaks:
                stack.enter_context(one())
            yield

    return all_of_them


class Trees(Meter):
    """Keeps the trees of one row."""

    def __init__(self):
        super().__init__(())
        self.trees: list[Any] = []

    def step(self, rule: Any, tree: Any, target: Any, draft: Any, commit: Any) -> None:
        self.trees.append(tree)


def follow(chain: Sequence[int]) -> Callable[[list[int]], int]:
    """Propose chain[i] after i drafted tokens more than a prompt of one."""
    return lambda ids: chain[len(ids) - 1] if len(ids) <= len(chain) else 0


def scripted(chain: Sequence[int], vocab: int, target: LanguageModel, **options: Any) -> Decoder:
    options = {"selector": "k_seq", "candidates": 1, "length": len(chain), "draft_temperature": 1.0} | options
    return Decoder(target, Scripted(follow(chain), vocab), **options)


# ---- F47: positions


def positions_are_depths(case: dict) -> None:
    parents, start = case["parents"], case["start"]
    model, text = toy(5, 8), [1, 2, 3, 4, 5, 6, 7, 0][: case["start"]]
    tokens, seen = [1, 2, 3, 4, 5, 6][: len(parents)], []
    reader = TreeReader(model, 1)
    reader.prefill([text])

    def spied(forward: Any) -> Any:
        def call(self: Any, *args: Any, **inputs: Any) -> Any:
            seen.append(inputs["position_ids"][0].tolist())
            return forward(self, *args, **inputs)

        return call

    with torch.inference_mode(), replaced(LlamaModel, "forward", spied)():
        [found] = reader.read([Block(tokens, parents)])
    assert seen[-1] == [start + depth for depth in case["right"]]
    for node in range(len(tokens)):
        path, at = [], node
        while at >= 0:
            path.append(tokens[at])
            at = parents[at]
        alone = Plain(model, Processing()).scores([*text, *path[::-1]])
        torch.testing.assert_close(found[node], alone, rtol=0, atol=1e-9)


# ---- F54, F56, F64: rows, bonus, counts


def first_draft_can_be_refused(case: dict) -> None:
    target = bigram(case["target"])
    for rule in ("k_seq", "block", "traversal", "point_mass"):
        decoder = scripted(case["draft"], len(case["target"]), target, selector=rule)
        [out] = decoder.generate([[0]], len(case["right"]), seed=1)
        assert out.tokens == case["right"]
        assert out.tally.steps[0].accepted == 0


def bonus_is_kept(case: dict) -> None:
    vocab, length = case["vocab"], case["length"]
    target = counting(vocab)
    for rule in ("k_seq", "block", "traversal", "point_mass"):
        decoder = Decoder(target, target, selector=rule, candidates=1, length=length)
        [out] = decoder.generate([[0]], 2 * (length + 1), temperature=1.0)
        assert out.tokens == [(i + 1) % vocab for i in range(2 * (length + 1))]
        assert out.tally.steps == [Step(length, length, length, length + 1)] * 2


def accepted_up_to_the_first_refusal(case: dict) -> None:
    wanted = counting(8)
    chain, token = [], 0
    for right in case["mask"]:
        token = (token + (1 if right else 2)) % 8
        chain.append(token)
    for rule in ("k_seq", "block", "traversal", "point_mass"):
        [out] = scripted(chain, 8, wanted, selector=rule, length=len(chain)).generate([[0]], 32)
        assert out.tally.steps[0] == Step(len(chain), len(chain), case["right"], case["right"] + 1)


def counted_by_the_raw_mask(append: Any) -> Any:
    """Of a chain that is held against the counting model."""

    def counted(self: Decoder, row: Any, draft: Any, commit: Any, wanted: Any) -> None:
        append(self, row, draft, commit, wanted)
        tokens = [0, *draft.tree.tokens.tolist()]
        raw = sum(after == (before + 1) % 8 for before, after in pairwise(tokens))
        row.out.tally.steps[-1] = replace(row.out.tally.steps[-1], accepted=raw)

    return counted


def without_bonus(append: Any) -> Any:
    def dropped(self: Decoder, row: Any, draft: Any, commit: Any, wanted: Any) -> None:
        if commit.accepted == len(draft.tree) > 0:
            commit = Commit(commit.tokens[:-1], commit.path, commit.accepted)
        append(self, row, draft, commit, wanted)

    return dropped


# ---- F58, F59, F60, F62, F66, F67: ends and lengths


def end_inside_a_block(case: dict) -> None:
    end, drafts = case["end"], case["draft"]
    target = counting(8)
    for rule in ("k_seq", "block", "traversal", "point_mass"):
        told: dict[int, list[int]] = {0: [], 1: []}
        decoder = Decoder(
            target, Scripted(lambda ids: (ids[-1] + 1) % 8, 8), selector=rule, candidates=1, length=len(drafts)
        )
        ends = frozenset([end])
        first, other = decoder.generate(
            [[drafts[0] - 1], [end]], 16, ends=ends, stream=lambda row, new, told=told: told[row].extend(new)
        )
        assert first.tokens == told[0] == case["right"] and first.finish == "eos"
        assert len(first.logprobs) == len(first.tokens)
        assert [step.committed for step in first.tally.steps] == [len(case["right"])]
        assert other.tokens == told[1] == [(end + 1 + i) % 8 for i in range(8)]
        assert other == decoder.generate([[end]], 16, ends=ends)[0]


def everything_kept(append: Any) -> Any:
    """The whole block and its bonus are committed; the end is looked for afterwards."""

    def kept(self: Decoder, row: Any, draft: Any, commit: Any, wanted: Any) -> None:
        new = commit.tokens.tolist()
        row.out.tokens += new
        row.out.finish = "eos" if set(new) & wanted.ends else "length" if len(row.out.tokens) >= wanted.room else None
        row.out.tally.add(Step(draft.tree.height, len(draft.tree), commit.accepted, len(new)), new)
        row.step += 1

    return kept


def unlimited_depth(grow: Any) -> Any:
    """Trees are as deep as ever, whatever room there is."""
    return lambda policy, session, texts, depths, *rest: grow(
        policy, session, texts, [policy.length for _ in depths], *rest
    )


def room_is_kept(case: dict) -> None:
    length, target = case["length"], toy(0, layers=2)
    for rule, candidates in (("k_seq", 2), ("block", 1), ("traversal", 2), ("point_mass", 2)):
        decoder = Decoder(target, "exit:1", selector=rule, candidates=candidates, length=length)
        for room in case["rooms"]:
            [out] = decoder.generate([[1, 2, 3]], room, seed=room)
            assert (len(out.tokens), out.finish, len(out.logprobs)) == (room, "length", room)
            assert sum(step.committed for step in out.tally.steps) == room
            assert bool(out.tally.steps) == (room > 0)
    options = {"selector": "rrs", "candidates": 2, "length": length, "draft_temperature": 1.5, "draft_support": 2}
    law = step_law(target, "exit:1", [1, 2, 3], options, room=1)[1]
    assert law == Plain(target, Processing()).of([1, 2, 3], 1)


def drafted_ends_do_not_end(case: dict) -> None:
    end, table = case["end"], case["target"]
    target, vocab = bigram(table), len(table)
    for rule in ("k_seq", "block", "traversal", "point_mass"):
        decoder = Decoder(target, Scripted(lambda ids: end, vocab), selector=rule, candidates=1, length=3)
        [out] = decoder.generate([[0]], case["room"], ends=frozenset([end]), seed=2)
        assert out.finish == "length" and len(out.tokens) == case["room"] and end not in out.tokens
    options = {"selector": "k_seq", "candidates": 1, "length": 2, "draft_temperature": 1.5}
    law = step_law(target, Scripted(lambda ids: end, vocab), [0], options, ends=frozenset([end]))[1]
    plain = Plain(target, Processing())
    assert plain.continued([0], law, 2) == plain.of([0], 2)


def ended_by_a_draft(append: Any) -> Any:
    def ended(self: Decoder, row: Any, draft: Any, commit: Any, wanted: Any) -> None:
        append(self, row, draft, commit, wanted)
        if set(draft.tree.tokens.tolist()) & wanted.ends:
            row.out.finish = "eos"

    return ended


def no_stale_drafts(case: dict) -> None:
    target, room = toy(0, layers=2), case["room"]
    for rule, candidates in (("k_seq", 2), ("block", 1), ("traversal", 2), ("point_mass", 2)):
        trees = Trees()
        decoder = Decoder(target, "exit:1", selector=rule, candidates=candidates, length=case["length"], meter=trees)
        [out] = decoder.generate([[4, 2]], room, seed=case["seed"])
        left = room
        for tree, step in zip(trees.trees, out.tally.steps, strict=True):
            assert tree.height <= min(case["length"], left - 1)
            assert bool(len(tree)) == (left > 1)
            left -= step.committed
        assert left == 0
    # the last step's law, where there is room for less than a block
    options = {"selector": "block", "candidates": 1, "length": 3, "draft_temperature": 1.5, "draft_support": 3}
    before, law = step_law(target, "exit:1", [4, 2], options, step=1, room=case["tight"], seed=case["seed"])
    assert 0 < case["tight"] - len(before) < 3
    plain, left = Plain(target, Processing()), case["tight"] - len(before)
    assert plain.continued([4, 2, *before], law, left) == plain.of([4, 2, *before], left)


def counts_stop_at_the_end(case: dict) -> None:
    target, end = counting(8), case["end"]
    decoder = Decoder(target, target, selector="k_seq", candidates=1, length=case["length"])
    [out] = decoder.generate([[0]], 32, ends=frozenset([end]))
    made = Summary.of([out.tally])
    assert (made.tokens, made.block_efficiency, made.target_calls) == (case["committed"], case["committed"], 1)
    assert sum(made.accepted_at) == case["committed"] == out.tally.steps[0].accepted


def counted_past_the_end(append: Any) -> Any:
    def counted(self: Decoder, row: Any, draft: Any, commit: Any, wanted: Any) -> None:
        append(self, row, draft, commit, wanted)
        last = row.out.tally.steps[-1]
        row.out.tally.steps[-1] = replace(last, accepted=commit.accepted, committed=commit.accepted + 1)

    return counted


def rates_have_their_names(case: dict) -> None:
    made = Summary.of([Tally([Step(*step) for step in case["steps"]])])
    assert made.accept_rate == (None if case["rate"] is None else pytest.approx(case["rate"], abs=1e-15))
    assert made.block_efficiency == (None if case["efficiency"] is None else pytest.approx(case["efficiency"]))
    assert made.accepted_at == case["accepted_at"]


def committed_over_drafted(of: Any) -> Any:
    def wrong(tallies: Any, clock: Any = None) -> Summary:
        made = of(tallies, clock)
        return replace(made, accept_rate=made.tokens / sum(s.depth for tally in tallies for s in tally.steps))

    return staticmethod(wrong)


# ---- F82: processors with a state


class Grammar:
    """Words of a small language: 1, then any number of 2, then 3, then the end, 0; a matcher that keeps its place."""

    NEXT = {None: (1,), 1: (2, 3), 2: (2, 3), 3: (0,)}  # noqa: RUF012

    def __init__(self, start: int):
        self.start, self.read, self.last = start, start, None

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        text = ids[0].tolist()
        assert len(text) - self.read <= 1, "asked for a place that is not the next"
        for token in text[self.read :]:
            assert token in self.NEXT[self.last], f"{token} follows {self.last}"
            self.last = token
        self.read = len(text)
        assert self.last != 0, "asked after the end"
        masked = torch.full_like(scores, -torch.inf)
        allowed = list(self.NEXT[self.last])
        masked[:, allowed] = scores[:, allowed]
        return masked


def grammars_are_followed(case: dict) -> None:
    target, prompt, ends = toy(case["seed"], layers=2), case["prompt"], frozenset([0])
    for rule, candidates in (("k_seq", 2), ("rrs", 3), ("block", 1), ("traversal", 2), ("point_mass", 2)):
        for drafter in ("exit:1", Scripted(lambda ids: {1: 2, 2: 3, 3: 0}.get(ids[-1], 1), 8)):
            scripts = isinstance(drafter, Scripted) and rule in ("rrs", "traversal")
            decoder = Decoder(
                target, drafter, selector=rule, candidates=1 if scripts else candidates, length=3,
                draft_temperature=case["heat"],
            )  # fmt: skip
            for seed in range(case["seeds"]):
                [out] = decoder.generate(
                    [prompt], 8, seed=seed, ends=ends, logits_processors=lambda row: [Grammar(len(prompt))]
                )
                last = None
                for token in out.tokens:
                    assert token in Grammar.NEXT[last]
                    last = token
                assert out.finish == ("eos" if last == 0 else "length")
    options = {"selector": "rrs", "candidates": 2, "length": 2, "draft_temperature": 1.5, "draft_support": 3}
    before, law = step_law(
        target, "exit:1", prompt, options, step=1, seed=case["law_seed"], ends=ends,
        logits_processors=lambda row: [Grammar(len(prompt))],
    )  # fmt: skip
    plain = Plain(target, Processing(), lambda: [Grammar(len(prompt))], len(prompt))
    first: dict[int, Fraction] = {}
    for tokens, mass in law.items():
        first[tokens[0]] = first.get(tokens[0], Fraction(0)) + mass
    assert {(token,): mass for token, mass in first.items()} == plain.of([*prompt, *before], 1)


# ---- F83, F84, F86: vocabularies


def named(words: Sequence[str]) -> Any:
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=words[0])


def tokens_mean_the_same(case: dict) -> None:
    target = replace(toy(0, len(case["target"])), tokenizer=named(case["target"]))
    draft = replace(toy(1, len(case["draft"])), tokenizer=named(case["draft"]))
    asked: list[int] = []

    def counted(forward: Any) -> Any:
        def call(self: Any, *args: Any, **inputs: Any) -> Any:
            asked.append(1)
            return forward(self, *args, **inputs)

        return call

    with refused(VocabularyError, *case["words"]), replaced(type(draft.model), "forward", counted)():
        Decoder(target, ModelDrafter(draft), candidates=1, length=1).generate([[0, 1]], 2)
        assert asked  # nothing was refused


def padded_vocabularies(case: dict) -> None:
    target, draft = toy(0, case["vocab"]), toy(3, case["draft_vocab"])
    for rule, candidates in (("rrs", 2), ("block", 1)):
        options = {
            "selector": rule, "candidates": candidates, "length": 2, "draft_temperature": 1.5, "draft_support": 2,
        }  # fmt: skip
        asked = {"temperature": 1.2, "top_k": 4}
        before, law = step_law(target, draft, [1, 2, 0], options, step=1, **asked)
        plain = Plain(target, Processing(**asked))
        assert plain.continued([1, 2, 0, *before], law, 3) == plain.of([1, 2, 0, *before], 3)
    [out] = Decoder(target, draft, candidates=4, length=3).generate([[1, 2, 0]], 24, temperature=3.0)
    assert any(token >= case["draft_vocab"] for token in out.tokens) or case["draft_vocab"] >= case["vocab"]
    assert max(out.tokens) < case["vocab"]


def unpadded(widened: Any) -> Any:
    return lambda laws, ids, vocab: laws


def sharded(logits: torch.Tensor) -> np.ndarray:
    return torch.cat([part.softmax(-1) for part in logits.double().chunk(2, dim=-1)], dim=-1).numpy()


def shards_are_no_law(case: dict) -> None:
    class Sharded(Decoder):
        def _law(self, processing: Processing, scores: torch.Tensor) -> np.ndarray:
            return sharded(scores)

    target = toy(0, 8)
    assert sharded(torch.tensor(case["logits"])).sum() == pytest.approx(case["total"])
    for drafter in (target, "none"):
        decoder = Sharded(target, drafter, selector="k_seq", candidates=1, length=2)
        with refused(LawError, "row 0, after 3 tokens", "sum to"):
            decoder.generate([[1, 2, 3]], 4)


def rescaled(checked: Any) -> Any:
    return lambda target, draft: (target / target.sum(-1, keepdims=True), draft / draft.sum(-1, keepdims=True))


# ---- F89, F90, F91: caches and batches


def windowed(name: str, window: int) -> LanguageModel:
    sizes: dict[str, Any] = {
        "vocab_size": 8, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 8, "num_hidden_layers": 2, "initializer_range": 0.7,
        "sliding_window": window, "tie_word_embeddings": False, "max_position_embeddings": 256,
        "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip
    mixed: dict[str, Any] = {"layer_types": ["sliding_attention", "full_attention"]}
    if name == "mistral":
        return random_model(MistralForCausalLM, MistralConfig(**sizes), 1)
    if name == "gemma2":
        return random_model(Gemma2ForCausalLM, Gemma2Config(**sizes, **mixed), 1)
    if name == "gemma3":
        return random_model(Gemma3ForCausalLM, Gemma3TextConfig(**sizes, **mixed), 1)
    assert name == "qwen2"
    settings = {key: value for key, value in sizes.items() if key != "head_dim"} | mixed
    return random_model(Qwen2ForCausalLM, Qwen2Config(**settings, use_sliding_window=True, max_window_layers=0), 1)


def windows_are_crossed(case: dict) -> None:
    target = windowed(case["model"], case["window"])
    prompt = [int(i) for i in np.random.default_rng(0).integers(8, size=case["prompt"])]
    for rule, candidates in (("k_seq", 2), ("block", 1)):
        watch = Watch(target, prompt, Processing())
        decoder = Decoder(target, toy(4), selector=rule, candidates=candidates, length=case["length"], meter=watch)
        [out] = decoder.generate([prompt], case["tokens"], seed=1)
        assert watch.off[0] < case["off"], watch.off
        ends = np.cumsum([len(prompt), *(step.committed for step in out.tally.steps)])
        assert any(
            end <= case["window"] < end + step.depth and step.accepted < step.depth
            for end, step in zip(ends, out.tally.steps, strict=False)
        )
    decoder = Decoder(target, toy(4), candidates=2, length=case["length"])
    greedy = [decoder.generate([prompt], case["tokens"], temperature=0)[0].tokens]
    greedy.append(Decoder(target, "none").generate([prompt], case["tokens"], temperature=0)[0].tokens)
    ids = torch.tensor([prompt])
    plain = target.model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=case["tokens"], do_sample=False
    )
    assert greedy == [plain[0, len(prompt) :].tolist()] * 2


def clocks_go_on(case: dict) -> None:
    target, vocab = clock(case["vocab"]), case["vocab"]
    prompt = [0] * case["prompt"]
    due = [(case["prompt"] + i) % vocab for i in range(case["tokens"])]
    for drafter in (target, toy(2, vocab), "lookup", "none"):
        for candidates, length in case["sizes"]:
            decoder = Decoder(target, drafter, selector="k_seq", candidates=candidates, length=length)
            [out] = decoder.generate([prompt], case["tokens"], temperature=0)
            assert out.tokens == due


def rows_go_their_own_way(case: dict) -> None:
    vocab = 16
    target, prompts = toy(6, vocab, layers=2), [[1, 2], [3], [4, 5, 6]]
    decoder = Decoder(target, "none")
    alone = [out.tokens for out in decoder.generate(prompts, case["tokens"], temperature=0)]
    due = {tuple(prompt): accepted for prompt, accepted in zip(prompts, case["accepted"], strict=True)}

    def propose(ids: list[int]) -> int:
        row = next(row for row, prompt in enumerate(prompts) if ids[: len(prompt)] == prompt)
        text, done = alone[row], len(ids) - len(prompts[row])
        block = due[tuple(prompts[row])] + 1
        right = text[done] if done < len(text) else 0
        return right if done % block < block - 1 else (right + 1) % vocab

    decoder = Decoder(target, Scripted(propose, vocab), selector="k_seq", candidates=1, length=case["length"])
    told: list[list[int]] = [[], [], []]
    batch = decoder.generate(prompts, case["tokens"], temperature=0, stream=lambda row, new: told[row].extend(new))
    for row, (prompt, out) in enumerate(zip(prompts, batch, strict=True)):
        assert out.tokens == told[row] == alone[row]
        assert out == decoder.generate([prompt], case["tokens"], temperature=0)[0]
        assert out.tally.steps[0].accepted == case["accepted"][row]
    assert len({len(out.tally.steps) for out in batch}) == 3  # they finish at different times


# ---- F119, F120, F121


def strings_differ_and_laws_do_not(case: dict) -> None:
    target, prompt, asked = toy(0, layers=2), [1, 2, 3], {"temperature": case["temperature"], "top_k": 4}
    drafted, plain = (
        Decoder(target, drafter, selector="rrs", candidates=2, length=2) for drafter in ("exit:1", "none")
    )
    same = 0
    for seed in range(case["seeds"]):
        tokens = [d.generate([prompt], 12, seed=seed, **asked)[0].tokens for d in (drafted, plain)]
        same += tokens[0] == tokens[1]
    assert same < case["seeds"]
    options = {"selector": "rrs", "candidates": 2, "length": 2, "draft_temperature": 1.5, "draft_support": 2}
    law, alone = step_law(target, "exit:1", prompt, options, **asked)[1], Plain(target, Processing(**asked))
    assert alone.continued(prompt, law, 3) == alone.of(prompt, 3)


def lossy_rules_are_refused(case: dict) -> None:
    target = toy(0)
    with refused(UnsupportedLawError, "luce", "there are", "k_seq", "rrs"):
        Decoder(target, toy(1), selector=SpecTr(Luce(top=1, recompute=False)), candidates=case["k"], length=2)
    Decoder(target, toy(1), selector=Luce(top=1), candidates=case["k"], length=2)


def logprobs_are_the_targets(case: dict) -> None:
    target, asked = bigram(case["target"]), {"temperature": case.get("temperature", 1.0), "top_k": case.get("top_k")}
    plain, vocab = Plain(target, Processing(**asked), convert=lambda law: law), len(case["target"])
    for rule, drafter in (
        ("k_seq", target),
        ("block", Scripted(lambda ids: 0, vocab)),
        ("traversal", toy(1, vocab)),
        ("point_mass", target),
    ):
        decoder = Decoder(target, drafter, selector=rule, candidates=1, length=3)
        for seed in range(6):
            [out] = decoder.generate([[0]], case["room"], seed=seed, **asked)
            due = [math.log(plain.law([0, *out.tokens[:i]])[token]) for i, token in enumerate(out.tokens)]
            assert out.logprobs == pytest.approx(due, abs=1e-12)
            assert out.tokens[0] != 0 or out.logprobs[0] == pytest.approx(case["right"], abs=1e-4)


def of_the_residual(log: Any) -> Any:
    return lambda mass: log(mass) - log(max(1e-3, 1 - float(mass)))


KINDS = [
    kind("F47", positions_are_depths, flattened=broken.flattened_positions, siblings=broken.seen_siblings),
    kind("F54", first_draft_can_be_refused, too_far=broken.rows_one_too_far),
    kind(
        "F56", bonus_is_kept,
        dropped=replaced(Decoder, "_append", without_bonus), wrong_row=broken.last_row_is_the_one_before,
    ),
    kind("F58", end_inside_a_block, kept=replaced(Decoder, "_append", everything_kept)),
    kind(
        "F59", room_is_kept,
        kept=both(replaced(Decoder, "_append", everything_kept), replaced(decode, "grow", unlimited_depth)),
    ),
    kind("F60", drafted_ends_do_not_end, ended=replaced(Decoder, "_append", ended_by_a_draft)),
    kind("F62", no_stale_drafts, stale=replaced(decode, "grow", unlimited_depth)),
    kind("F64", accepted_up_to_the_first_refusal, raw_mask=replaced(Decoder, "_append", counted_by_the_raw_mask)),
    kind("F66", counts_stop_at_the_end, past=replaced(Decoder, "_append", counted_past_the_end)),
    kind("F67", rates_have_their_names, committed=replaced(Summary, "of", committed_over_drafted)),
    kind("F82", grammars_are_followed, one_state=broken.one_state_for_all_branches),
    kind(
        "F83", tokens_mean_the_same,
        unchecked=lambda: patch.object(model_drafter, "check_one_tokenizer", lambda *models: None),
    ),
    kind("F84", padded_vocabularies, unpadded=replaced(draft_tree, "_widened", unpadded)),
    kind("F86", shards_are_no_law, rescaled=replaced(sequence_rule, "as_laws", rescaled)),
    kind("F89", windows_are_crossed, forgotten=broken.windows_forgotten),
    kind(
        "F90", clocks_go_on,
        left_behind=broken.positions_left_behind, flattened=broken.flattened_positions,
    ),
    kind("F91", rows_go_their_own_way, longest=broken.advanced_by_the_longest),
    kind("F119", strings_differ_and_laws_do_not, wrong_row=broken.last_row_is_the_one_before),
    kind("F120", lossy_rules_are_refused, let_in=lambda: patch.object(decode, "_fits", lambda rule, tree: True)),
    kind(
        "F121", logprobs_are_the_targets,
        zero=lambda: patch.object(decode, "_log", lambda mass: 0.0),
        residual=replaced(decode, "_log", of_the_residual),
    ),
]  # fmt: skip


@ours(KINDS)
def test_the_decoder_does_the_right_thing(kind: Kind, subject: Break):
    kind.holds(subject)


@mutants(KINDS)
def test_a_break_is_seen(kind: Kind, mutant: Break):
    kind.caught(mutant)
