"""What is decoded has the target's law: every rule and drafter in fractions, every step of long runs bit by bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from gpu_decoder import Decoder
from gpu_decoder.coins import DRAFT, VERIFY, coins_of, row_keys
from gpu_decoder.decode import as_rule, default_tree, rules_that_fit
from gpu_decoder.draft_tree import Branches, Sequences
from gpu_decoder.drafters import FeatureDrafter, LookupDrafter, ModelDrafter
from gpu_decoder.models import without_last_layers
from gpu_decoder.processing import Processing
from gpu_decoder.verify import check_tree_attention
from ot_spec.errors import ModelError
from ot_spec.tree import SequenceRule
from solvers.selectors import SELECTORS, get_selector
from solvers.sequence import SEQUENCE_RULES
from tests.decoder import mutants
from tests.decoder.toys import Plain, Watch, decoded_law, drafting, feature_net, step_law, toy

PROMPT = tuple(np.random.default_rng(5).integers(8, size=24).tolist())
TARGET, SMALL = toy(0, layers=2), toy(4)
DRAFTERS: dict[str, Any] = {
    "model": ModelDrafter(SMALL),
    "exit": "exit:1",
    "lookup": LookupDrafter(1),
    "feature": FeatureDrafter(feature_net(TARGET, (0, 1, 3, 4, 6, 7), seed=3), "feature"),
    "reduced": ModelDrafter(drafting(toy(4), (0, 1, 2, 4, 5, 7))),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "filtered": {"temperature": 0.7, "top_k": 3},
    "nucleus": {"temperature": 1.2, "top_p": 0.9, "min_p": 0.08},
    "plain": {"temperature": 1.0},
}
RULES = [name for name in [*SELECTORS, *SEQUENCE_RULES] if as_rule(name).exact]


def rule_named(name: str) -> SequenceRule:
    """The rule with a selector's own defaults, which are cheap on fractions."""
    return as_rule(get_selector(name) if name in SELECTORS else name)


@dataclass(frozen=True)
class Case:
    """A rule with its default tree, whose draft laws keep `support` tokens, at a step after others."""

    rule: str
    drafter: str
    setting: str = "filtered"
    candidates: int = 2
    length: int = 2
    step: int = 1
    support: int = 2
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.rule}-{self.drafter}-{self.setting}-K{self.candidates}-L{self.length}-step{self.step}"

    def check(self, law: Processing | None = None, tokens: int = 3, **changes: Any) -> tuple[int, ...]:
        """One step and then the target have the target's law over the next tokens; the lengths committed."""
        asked = SETTINGS[self.setting]
        options = {
            "selector": rule_named(self.rule), "candidates": self.candidates, "length": self.length,
            "draft_temperature": 1.5, "draft_support": self.support, **self.options,
        }  # fmt: skip
        before, committed = step_law(
            TARGET, DRAFTERS[self.drafter], PROMPT, options, step=self.step, seed=2, **asked, **changes
        )
        plain, text = Plain(TARGET, Processing(**asked)), (*PROMPT, *before)
        assert sum(committed.values()) == 1
        assert plain.continued(text, committed, tokens) == plain.of(text, tokens)
        return tuple(sorted({len(path) for path in committed}))


def size(rule: str, length: int = 2) -> dict[str, Any]:
    """Two candidates where the rule takes as many; a draft support that leaves it something to draw."""
    candidates = 2 if rule in rules_that_fit(2, length) else 1
    laws = default_tree(as_rule(rule), candidates, length).laws()
    drawn = any(law.name in ("without_replacement", "top_then_sample") for law in laws)
    return {"candidates": candidates, "length": length, "support": 3 if candidates == 1 or drawn else 2}


def ids(case: Any) -> str:
    return str(case)


COVERING = [
    *[Case(rule, drafter, "filtered", **size(rule)) for rule in RULES for drafter in DRAFTERS if rule != "spectr"],
    Case("spectr", "lookup"),  # k_seq under its own name
    *[Case(rule, list(DRAFTERS)[i % 3], "nucleus", **size(rule, 1)) for i, rule in enumerate(RULES)],
    *[Case("block", drafter, "plain", 1, 2, support=3) for drafter in DRAFTERS],
    *[Case(rule, drafter, "plain", 2, 1) for rule, drafter in (("rrs", "model"), ("membership", "exit"))],
]
WIDE: list[dict[str, Any]] = [
    {"options": {"tree": Branches((2, 2))}, "support": 2},
    {"options": {"tree": Branches((3, 1))}, "support": 3},
    {"options": {"tree": Sequences(3, 1)}, "length": 1},
]


def every_pair(rule: str) -> Iterator[Case]:
    settings = (("filtered", 2), ("nucleus", 2), ("plain", 1))
    for drafter, (setting, length), step in product(DRAFTERS, settings, (0, 1, 3)):
        yield Case(rule, drafter, setting, step=step, **size(rule, length))
    for drafter, wide in product(DRAFTERS, WIDE):
        fits = all(rule_named(rule).supports(law) for law in wide["options"]["tree"].laws())
        if fits and getattr(rule_named(rule), "reads_draft_laws", True) and rule != "block":
            yield Case(rule, drafter, **wide)


@pytest.mark.parametrize("case", COVERING, ids=ids)
def test_a_step_and_the_target_after_it_have_the_targets_law(case: Case):
    assert case.check() == tuple(range(1, case.length + 2))


@pytest.mark.deep
@pytest.mark.parametrize("rule", RULES)
def test_every_pair_has_the_targets_law_at_every_step(rule: str):
    for case in every_pair(rule):
        case.check()


def test_every_exact_rule_is_covered():
    assert {case.rule for case in COVERING} == {name for name in [*SELECTORS, *SEQUENCE_RULES] if as_rule(name).exact}
    assert len(RULES) >= 15


@pytest.mark.parametrize(
    ("rule", "candidates", "tokens"),
    [("block", 1, 3), ("rrs_without_replacement", 2, 3), pytest.param("k_seq", 2, 3, marks=pytest.mark.deep)],
)
def test_whole_calls_have_the_targets_law(rule: str, candidates: int, tokens: int):
    options = {
        "selector": rule, "candidates": candidates, "length": 2, "draft_temperature": 1.5, "draft_support": 2,
    }  # fmt: skip
    asked = SETTINGS["filtered"]
    law = decoded_law(TARGET, "exit:1", PROMPT, tokens, options, **asked)
    assert law == Plain(TARGET, Processing(**asked)).of(PROMPT, tokens)


# ---- processors that keep a state


class Rhythm:
    """Forbids a token that depends on how often it was asked, and favours what it was shown before."""

    def __init__(self):
        self.asked, self.seen = 0, 0

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        scores[:, (self.asked + self.seen) % 8] = -torch.inf
        scores[:, int(ids[0, -1])] += 1
        self.asked, self.seen = self.asked + 1, self.seen + int(ids[0, -1])
        return scores


def with_a_state(rule: str, drafter: str, candidates: int = 2) -> None:
    options = {
        "selector": rule, "candidates": candidates, "length": 2, "draft_temperature": 1.5, "draft_support": 2,
    }  # fmt: skip
    asked = {"temperature": 0.9, "top_k": 3}
    before, committed = step_law(
        TARGET, DRAFTERS[drafter], PROMPT, options, step=2, logits_processors=lambda row: [Rhythm()], **asked
    )
    plain = Plain(TARGET, Processing(**asked), lambda: [Rhythm()], len(PROMPT))
    assert max(map(len, committed)) >= 2
    assert plain.continued((*PROMPT, *before), committed, 3) == plain.of((*PROMPT, *before), 3)


@pytest.mark.parametrize(
    ("rule", "drafter", "candidates"),
    [("rrs", "exit", 2), ("traversal", "exit", 2), ("block", "exit", 1), ("point_mass", "lookup", 2)],
)
def test_processors_with_a_state_are_those_of_plain_generation(rule: str, drafter: str, candidates: int):
    with_a_state(rule, drafter, candidates)


# ---- breaks that must be seen


def one_stream(rng: Any, purpose: int, thrown: list[Any] = []) -> Any:  # noqa: B006, one list for both purposes
    """The coins of verification are those of drafting, thrown again."""
    if purpose == DRAFT:
        thrown.clear()

    class Coins:
        def random(self, size: int) -> np.ndarray:
            if purpose == DRAFT:
                thrown.extend(rng.random(size))
                return np.array(thrown[-size:], dtype=object)
            fresh = max(0, size - len(thrown))
            return np.array([*thrown[:size], *(rng.random(fresh) if fresh else [])], dtype=object)

    return Coins()


TREE = Case("rrs", "exit", support=2)
BROKEN: dict[str, tuple[mutants.Mutant, Case]] = {
    "positions from the flattened index": (mutants.flattened_positions, TREE),
    "a node sees its sibling": (mutants.seen_siblings, TREE),
    "cache rows kept from the wrong slots": (mutants.first_slots_kept, TREE),
    "bonus from the wrong row": (mutants.last_row_is_the_one_before, TREE),
    "rows one too far": (mutants.rows_one_too_far, TREE),
    "draft temperature not in the law handed over": (mutants.declared_at_another_temperature, TREE),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_break_is_seen_in_the_law(name: str):
    broken, case = BROKEN[name]
    check_tree_attention(TARGET)  # passed before the break, which it would refuse
    with broken(), pytest.raises(AssertionError):
        case.check()


def test_coins_shared_between_draft_and_verification_are_seen_in_the_law():
    with pytest.raises(AssertionError):
        Case("rrs", "exit").check(coins=one_stream)


def test_one_state_for_all_branches_is_seen_in_the_law():
    with mutants.one_state_for_all_branches(), pytest.raises(AssertionError):
        with_a_state("traversal", "exit")


@pytest.mark.parametrize("broken", [mutants.flattened_positions, mutants.seen_siblings])
def test_a_model_that_reads_trees_wrongly_is_refused(broken: mutants.Mutant):
    with broken(), pytest.raises(ModelError, match="reads a token in a tree otherwise"):
        check_tree_attention(toy(11))
    check_tree_attention(toy(11))


# ---- long runs


def long_run(
    prompt: Sequence[int], tokens: int, drafter: Any, asked: dict[str, Any], *, draft: Any = SMALL, **options: Any
) -> Watch:
    options = {"candidates": 2, "length": 3, "draft_temperature": 1.3} | options
    processing = Processing(**asked)
    watch = Watch(TARGET, prompt, processing, draft, replace(processing, temperature=options["draft_temperature"]))
    decoder = Decoder(TARGET, drafter, meter=watch, **options)
    [out] = decoder.generate([prompt], tokens, seed=4, **asked)
    assert out.prompt + out.tokens == watch.text[: len(prompt) + tokens]
    assert watch.nodes > tokens / 2 and (watch.accepted > 0 or tokens < 20)
    return watch


SHORTER = without_last_layers(TARGET, 1)


@pytest.mark.parametrize(
    ("length", "tokens"),
    [(2000, 40), (236, 40), (250, 20), (500, 30), *((n, 12) for n in (510, 511, 512, 513, 514, 1024, 1026))],
)
@pytest.mark.parametrize("drafter", ["model", "exit"])
def test_every_step_of_a_long_run_is_a_fresh_reading(drafter: str, length: int, tokens: int):
    prompt = np.random.default_rng(length).integers(8, size=length).tolist()
    draft = SMALL if drafter == "model" else SHORTER
    asked = {"temperature": 0.8, "top_p": 0.95}
    watch = long_run(prompt, tokens, DRAFTERS[drafter], asked, draft=draft, selector="rrs_without_replacement")
    assert max(watch.off) < 1e-12, watch.off


def test_a_wrong_slot_is_seen_in_a_long_run():
    prompt = np.random.default_rng(0).integers(8, size=240).tolist()
    with mutants.first_slots_kept():
        watch = long_run(prompt, 40, DRAFTERS["model"], {}, selector="k_seq")
    assert watch.off[0] > 1e-6


@pytest.mark.parametrize(("rule", "candidates"), [("k_seq", 4), ("block", 1), ("point_mass", 4), ("traversal", 4)])
def test_greedy_tokens_are_those_of_generate(rule: str, candidates: int):
    lengths = (3, 20, 251, 509)
    prompts = [np.random.default_rng(n).integers(8, size=n).tolist() for n in lengths]
    decoder = Decoder(TARGET, "exit:1", selector=rule, candidates=candidates, length=3)
    found = decoder.generate(prompts, 30, temperature=0)
    for prompt, out in zip(prompts, found, strict=True):
        ids = torch.tensor([prompt])
        plain = TARGET.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=30, do_sample=False, eos_token_id=None,
            pad_token_id=0,
        )  # fmt: skip
        assert out.tokens == plain[0, len(prompt) :].tolist()


# ---- one row, one seed, one text


def texts() -> list[list[int]]:
    rng = np.random.default_rng(1)
    made = [rng.integers(8, size=n).tolist() for n in (3, 17, 9, 40, 5, 9)]
    return [*made, made[2], made[2]]


@pytest.mark.parametrize(("rule", "drafter"), [("k_seq", "model"), ("traversal", "exit"), ("rrs", "lookup")])
def test_a_row_has_the_same_tokens_alone_and_in_any_batch(rule: str, drafter: str):
    alike(rule, drafter)


def alike(rule: str, drafter: str) -> None:
    decoder = Decoder(TARGET, DRAFTERS[drafter], selector=rule, candidates=3, length=3)
    prompts = texts()
    batch = [out.tokens for out in decoder.generate(prompts, 20, seed=3)]
    assert len({tuple(tokens) for tokens in batch[2:3] + batch[6:]}) == 3  # of one prompt three times
    for prompt, tokens in zip(prompts[:6], batch, strict=False):
        assert decoder.generate([prompt], 20, seed=3)[0].tokens == tokens
    order = [5, 2, 0, 6, 4, 1, 7, 3]
    again = [out.tokens for out in decoder.generate([prompts[place] for place in order], 20, seed=3)]
    assert again == [batch[place] for place in order]
    assert [out.tokens for out in decoder.generate(prompts, 20, seed=4)] != batch


def test_coins_that_depend_on_the_place_are_seen():
    with mutants.keyed_by_place(), pytest.raises(AssertionError):
        alike("k_seq", "model")


def test_rows_do_not_share_coins():
    keys = row_keys(0, [[1], [1], [1, 0], [2]]) + row_keys(1, [[1]])
    assert len(set(keys)) == 5
    drawn = [coins_of(key, step, purpose).random(4) for key in keys for step in (0, 1) for purpose in (DRAFT, VERIFY)]
    assert len({float(coin) for row in drawn for coin in row}) == len(drawn) * 4
