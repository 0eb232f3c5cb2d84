"""Decoding: draft a tree, read it in one call of the target, commit a path and one token more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import MinNewTokensLengthLogitsProcessor, PreTrainedModel

from gpu_decoder.coins import DRAFT, VERIFY, Coins, as_keys, coins_of, row_keys
from gpu_decoder.draft_tree import POLICIES, Draft, TreePolicy, check_size, grow
from gpu_decoder.drafters import Drafter, get_drafter
from gpu_decoder.metrics import Clock, Meter, Step, Tally
from gpu_decoder.models import DEFAULT, LanguageModel, encode_prompt, load
from gpu_decoder.processing import LogitsProcessor, Processing, Processors
from gpu_decoder.tree_slots import Block
from gpu_decoder.verify import TreeReader, check_readable
from ot_spec.arrays import Array, like, may_wait
from ot_spec.errors import (
    CandidateError,
    LawError,
    OptionError,
    OutOfMemoryError,
    PromptError,
    UnsupportedLawError,
)
from ot_spec.selector import Selector
from ot_spec.tree import Commit, LawsByNode, SequenceRule
from solvers.selectors import SELECTORS, get_selector
from solvers.sequence import SEQUENCE_RULES, SpecTr, get_sequence_rule


@dataclass
class Generation:
    """What was made of one prompt.

    tokens: new ids, a token that ends the text included. text: they decoded, without special tokens (None where there
    is no tokenizer). finish: "eos", "stop" (a stop string) or "length". logprobs: ln of each token's probability
    under the target's processed law, the law that plain generation would have drawn it from. tally: counts of steps.
    """

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    text: str | None = None
    finish: str | None = None
    logprobs: list[float] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)


@dataclass
class _Row:
    """A text being continued."""

    place: int
    out: Generation
    key: int
    processors: Processors
    step: int = 0

    @property
    def ids(self) -> list[int]:
        return self.out.prompt + self.out.tokens


@dataclass(frozen=True)
class _Wanted:
    """What a call of `generate` asks for."""

    room: int
    law: Processing
    draft_law: Processing
    ends: frozenset[int]
    stop: tuple[str, ...]
    until: Callable[[int, list[int]], bool] | None


class Decoder:
    """Speculative decoding that leaves the target's distribution as it is.

    target: a `LanguageModel`, its folder, or "smollm2". drafter: a `Drafter` or its name (`get_drafter`).
    selector: a selector or sequence rule, or its name: a selector verifies level by level (`spectr`); "block",
    "traversal" and "point_mass" verify whole trees. candidates, length: K and L of the default tree for the rule's
    draft law (`POLICIES`); tree: another policy in its place. draft_temperature: the draft's own, by default the
    target's, or 1 where the target is greedy and there is more than one candidate. coins: where coins come from, for
    audits. meter: told every law pair met.

    Raises UnsupportedLawError where the rule is not exact for the tree's draft law, with the names of those that are;
    ModelError for a target whose state cannot be rewound; OptionError for sizes below 1.
    """

    def __init__(
        self,
        target: LanguageModel | str | Path = DEFAULT,
        drafter: Drafter | LanguageModel | PreTrainedModel | str | Path | None = None,
        *,
        selector: str | Selector | SequenceRule = "k_seq",
        candidates: int = 4,
        length: int = 4,
        draft_temperature: float | None = None,
        tree: TreePolicy | None = None,
        coins: Callable[[int, int, int], Coins] = coins_of,
        meter: Meter | None = None,
    ):
        check_size(candidates, length)
        self.target = target if isinstance(target, LanguageModel) else load(target)
        self.drafter = get_drafter(drafter, self.target)
        self.rule = as_rule(selector)
        self.tree = tree or default_tree(self.rule, candidates, length)
        check_fit(self.rule, self.tree)
        self.candidates, self.length, self.draft_temperature = candidates, self.tree.length, draft_temperature
        self._coins, self._meter = coins, meter

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[Sequence[int]],
        max_new_tokens: int = 128,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        logits_processors: Sequence[LogitsProcessor] | Callable[[int], Sequence[LogitsProcessor] | Processors] = (),
        stop: Sequence[str] = (),
        until: Callable[[int, list[int]], bool] | None = None,
        min_new_tokens: int = 0,
        ends: frozenset[int] | None = None,
        chat: bool | None = None,
        seed: int = 0,
        keys: Sequence[int] | None = None,
        stream: Callable[[int, list[int]], None] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        clock: Clock | None = None,
    ) -> list[Generation]:
        """Continue prompts (texts or token ids), together in one batch; what is returned is in their order.

        max_new_tokens >= 0. temperature, filters: those of `from_logits`, after logits_processors (functions of ids
        (1, T) and scores (1, V); or a function of the row that makes them, where they keep a state). stop: texts that
        end a row with the token that completes one. until(row, ids): whether a text ends with its last token, asked
        after each token. ends: ids that end a text, by default the model's; not before min_new_tokens. chat: put texts
        into the chat template, by default where there is one. seed: >= 0; a row's tokens depend on its prompt, its
        seed and nothing else in the batch. keys: a row's own in place of the seed, integers of 0 to 2^128 - 1.
        stream(row, tokens): called as tokens are committed. on_progress(new tokens, rows done): after each step. clock:
        adds up where the time goes.
        """
        rows, wanted = self._begun(prompts, locals())
        clock = clock or Clock()
        try:
            with torch.inference_mode():
                for _ in self._steps(rows, wanted, clock):
                    done = [row.out for row in rows if row.out.finish]
                    for row in rows:
                        if stream is not None and row.out.tally.new:
                            stream(row.place, row.out.tally.new)
                        row.out.tally.new = []
                    if on_progress is not None:
                        on_progress(sum(len(row.out.tokens) for row in rows), len(done))
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as reason:
            if _out_of_memory(reason):
                raise OutOfMemoryError(
                    f"out of memory with {len(rows)} rows, {self.candidates} candidates of length {self.length}, up to "
                    f"{max(len(row.out.prompt) for row in rows) + wanted.room} tokens: lower candidates, length, "
                    "the number of prompts in a batch, or max_new_tokens"
                ) from reason
            raise
        for row in rows:
            row.out.text = self._text(row.out.tokens)
        return [row.out for row in rows]

    # ---- the loop

    def _steps(self, rows: list[_Row], wanted: _Wanted, clock: Clock) -> Iterator[None]:
        active = [row for row in rows if not row.out.finish]
        if not active:
            return
        with clock("target"):
            reader = TreeReader(self.target, len(active), getattr(self.drafter, "tap", ()))
            reader.prefill([row.ids[:-1] for row in active])
        session = self.drafter.start(reader, len(active))
        while active:
            with clock("draft"):
                drafts = self._draft(session, active, wanted)
            with clock("target"):
                logits = reader.read([_block(row.ids[-1], draft) for row, draft in zip(active, drafts, strict=True)])
                clock.settle(logits)
            with clock("selection"):
                made = [self._commit(*each, wanted) for each in zip(active, drafts, logits, strict=True)]
                commits = [commit for commit, _ in made]
            if self._meter is not None:  # on no clock: it is no part of decoding
                for draft, (commit, laws) in zip(drafts, made, strict=True):
                    self._meter.step(self.rule, draft.tree, laws, draft.laws, commit)
            with clock("cache"):
                reader.keep([[0, *(int(node) + 1 for node in commit.path)] for commit in commits])
            with clock("rest"):
                for row, draft, commit in zip(active, drafts, commits, strict=True):
                    self._append(row, draft, commit, wanted)
                left = [place for place, row in enumerate(active) if not row.out.finish]
                if left and len(left) < len(active):
                    reader.select(left)
                    session.select(left)
                active = [active[place] for place in left]
            yield

    def _draft(self, session: Any, active: list[_Row], wanted: _Wanted) -> list[Draft]:
        depths = [min(self.length, wanted.room - len(row.out.tokens) - 1) for row in active]
        coins = [self._coins(row.key, row.step, DRAFT) for row in active]
        # the draft's laws are asked for in any order, so it does without processors that keep a state
        plain = [row.processors.stateless() for row in active]
        try:
            return grow(
                self.tree, session, [row.ids for row in active], depths, coins,
                lambda scores: self._law(wanted.draft_law, scores), plain if any(plain) else None, self.target.vocab,
            )  # fmt: skip
        except LawError as reason:
            raise LawError(f"the drafter {self.drafter.name!r}: {reason}") from reason

    def _commit(self, row: _Row, draft: Draft, logits: torch.Tensor, wanted: _Wanted) -> tuple[Commit, LawsByNode]:
        """What the rule makes of the draft, and the laws it was told; processors go on with the path taken."""
        tree, ids = draft.tree, row.ids
        before: dict[int, Processors] = {-1: row.processors}
        ended: set[int] = set()
        whole = None if row.processors or may_wait(logits) else self._law(wanted.law, logits)

        def law(place: int) -> Array:
            node = place - 1
            if whole is not None:  # on a device a rule reads all of them
                return whole[place]
            if not row.processors:
                return self._law(wanted.law, logits[place])
            if node >= 0:
                parent, token = int(tree.parents[node]), int(tree.tokens[node])
                reached = laws.row(parent + 1)[token] > 0  # plain generation has asked for it before
                if parent in ended or token in wanted.ends or not reached:
                    ended.add(node)  # never asked: any law does, as no token of it is kept
                    before[node] = before[parent]
                    return self._law(wanted.law, logits[place])
                before[node] = before[parent].fork()
            return self._law(wanted.law, before[node]([*ids, *tree.prefix(node)], logits[place]))

        laws = LawsByNode(len(tree) + 1, self.target.vocab, law)
        if row.processors:
            row.processors = before[-1] = row.processors.fork()
        try:
            coins = self._coins(row.key, row.step, VERIFY).random(self.rule.coins(tree))
            commit = self.rule.commit(tree, laws, draft.laws, like(coins, laws.row(0)))
        except (LawError, CandidateError) as reason:
            raise type(reason)(f"row {row.place}, after {len(ids)} tokens: {reason}") from reason
        end = int(commit.path[-1]) if commit.accepted else -1
        places = [0, *(commit.path + 1).tolist()]
        masses = [laws.row(p)[int(t)] for p, t in zip(places, commit.tokens, strict=True)]
        if torch.is_tensor(masses[0]):  # one copy to the host
            masses = torch.stack(masses).tolist()
        row.out.logprobs += map(_log, masses)
        if row.processors:
            laws.row(end + 1)
            row.processors = before[end]
        return commit, laws

    def _append(self, row: _Row, draft: Draft, commit: Commit, wanted: _Wanted) -> None:
        """Commit tokens up to the first that ends the text."""
        out = row.out
        new: list[int] = []
        for token in commit.tokens.tolist():
            new.append(token)
            out.tokens.append(token)
            out.finish = self._finish(row, wanted)
            if out.finish:
                break
        del out.logprobs[len(out.tokens) :]
        accepted = min(commit.accepted, len(new))
        out.tally.add(Step(draft.tree.height, len(draft.tree), accepted, len(new)), new)
        row.step += 1

    def _finish(self, row: _Row, wanted: _Wanted) -> str | None:
        out = row.out
        stopped = wanted.until is not None and wanted.until(row.place, row.ids)
        if out.tokens and out.tokens[-1] in wanted.ends:
            return "eos"
        if wanted.stop and self._stopped(out.tokens, wanted.stop):
            stopped = True
        if stopped:
            return "stop"
        return "length" if len(out.tokens) >= wanted.room else None

    def _stopped(self, tokens: list[int], stop: tuple[str, ...]) -> bool:
        # a token may hold no character of its own, so more of them are decoded than a stop has characters
        tail = self._text(tokens[-(max(map(len, stop)) + 8) :]) or ""
        last = self._text(tokens[-(max(map(len, stop)) + 8) : -1]) or ""
        return any(tail.count(s) > last.count(s) for s in stop)

    # ---- what a call needs

    def _law(self, processing: Processing, scores: torch.Tensor) -> Array:
        """The law of scores; audits put another arithmetic in its place."""
        return processing.law(scores)

    def _text(self, tokens: list[int]) -> str | None:
        tokenizer = self.target.tokenizer
        return None if tokenizer is None else tokenizer.decode(tokens, skip_special_tokens=True)

    def _begun(self, prompts: Any, asked: dict[str, Any]) -> tuple[list[_Row], _Wanted]:
        for name in ("max_new_tokens", "min_new_tokens"):
            if isinstance(asked[name], bool) or not isinstance(asked[name], int) or asked[name] < 0:
                raise OptionError(f"{name} must be an integer of at least 0, got {asked[name]!r}")
        room, heat, filters = asked["max_new_tokens"], asked["temperature"], ("top_k", "top_p", "min_p")
        law = Processing(heat, *(asked[name] for name in filters))
        law.law(torch.zeros(2))
        cold = 1.0 if heat == 0 and self.candidates > 1 else heat
        draft_law = Processing(
            cold if self.draft_temperature is None else self.draft_temperature, *(asked[name] for name in filters)
        )
        draft_law.law(torch.zeros(2))
        stop = (asked["stop"],) if isinstance(asked["stop"], str) else tuple(asked["stop"])
        if stop and self.target.tokenizer is None:
            raise OptionError("stop strings need a tokenizer")
        if "" in stop:
            raise OptionError("a stop string is empty")
        try:
            texts = [prompts] if isinstance(prompts, str) else list(prompts)
            ids = [
                encode_prompt(self.target, t, asked["chat"]) if isinstance(t, str) else [index(i) for i in t]
                for t in texts
            ]
        except TypeError as reason:
            raise PromptError(f"prompts are texts or lists of token ids: {reason}") from reason
        check_readable(self.target, ids, room)
        reads = getattr(self.drafter, "context", None)
        for place, text in enumerate(ids if reads is not None else []):
            if len(text) + room - 1 > reads:  # the last token is never drafted after
                raise PromptError(
                    f"prompt {place} has {len(text)} tokens, and {room} more are asked for; the drafter "
                    f"{self.drafter.name!r} reads {reads}"
                )
        ends = self.target.stops if asked["ends"] is None else frozenset(asked["ends"])
        keys = row_keys(asked["seed"], ids) if asked["keys"] is None else as_keys(asked["keys"])
        if len(keys) != len(ids):
            raise OptionError(f"{len(keys)} keys for {len(ids)} prompts")
        given: Any = asked["logits_processors"]
        rows: list[_Row] = []
        for place, text in enumerate(ids):
            # a list of transformers' is callable too
            own: Any = given(place) if callable(given) and not isinstance(given, list) else given
            own = own if isinstance(own, Processors) else Processors(own)
            if asked["min_new_tokens"] and ends:
                own = own.after(MinNewTokensLengthLogitsProcessor(
                    len(own.before) + len(text), asked["min_new_tokens"], sorted(ends),
                    device=str(self.target.model.device),
                ))  # fmt: skip
            rows.append(_Row(place, Generation(text, finish=None if room else "length"), keys[place], own))
        return rows, _Wanted(room, law, draft_law, ends, stop, asked["until"])


def _block(last: int, draft: Draft) -> Block:
    """The text's last token, whose logits are the root's, and the tree after it."""
    return Block([last, *draft.tree.tokens.tolist()], [-1, *(draft.tree.parents + 1).tolist()])


def _log(mass: Any) -> float:
    return float(np.log(float(mass)))


def _out_of_memory(reason: BaseException) -> bool:
    words = str(reason).lower()
    return isinstance(reason, torch.OutOfMemoryError | MemoryError) or any(
        sign in words for sign in ("out of memory", "can't allocate memory", "not enough memory")
    )


# ---- rules and trees that fit


FAST: dict[str, dict[str, object]] = {"optimal": {"classes": 32}}
"""Options of selectors called by name here: the histogram form is as exact, and sorts nothing."""


def as_rule(selector: str | Selector | SequenceRule) -> SequenceRule:
    """A sequence rule from its name or a selector's; selectors are put to work level by level."""
    if isinstance(selector, str):
        if selector in SEQUENCE_RULES:
            return get_sequence_rule(selector)
        if selector not in SELECTORS:
            raise OptionError(
                f"no selector or sequence rule {selector!r}; there are {', '.join([*SELECTORS, *SEQUENCE_RULES])}"
            )
        selector = get_selector(selector, **FAST.get(selector, {}))
    return selector if isinstance(selector, SequenceRule) else SpecTr(selector)


def default_tree(rule: SequenceRule, candidates: int, length: int) -> TreePolicy:
    """The first policy whose draft laws the rule is exact for; the best prefixes where it reads no draft law."""
    tree = _tree_for(rule, candidates, length)
    if tree is None:
        raise UnsupportedLawError(
            f"{rule!r} is exact for no tree of {candidates} candidates and length {length}; "
            f"there are {', '.join(rules_that_fit(candidates, length))}"
        )
    return tree


def _tree_for(rule: SequenceRule, candidates: int, length: int) -> TreePolicy | None:
    for name in POLICIES if getattr(rule, "reads_draft_laws", True) else ["fixed"]:
        try:
            tree = POLICIES[name](candidates, length)
            if _fits(rule, tree):
                return tree
        except OptionError:  # a hub makes pairs only
            continue
    return None


def check_fit(rule: SequenceRule, tree: TreePolicy) -> None:
    """Raise UnsupportedLawError unless the rule is exact for every draft law of the tree."""
    if not _fits(rule, tree):
        fit = [name for name in [*SELECTORS, *SEQUENCE_RULES] if _fits(as_rule(name), tree)]
        laws = ", ".join(f"{law.name} with k = {law.k}" for law in tree.laws())
        raise UnsupportedLawError(
            f"{rule!r} is not exact for {tree!r}, whose candidates are drawn by {laws}; there are {', '.join(fit)}"
        )


def _fits(rule: SequenceRule, tree: TreePolicy) -> bool:
    if not tree.sampled and getattr(rule, "reads_draft_laws", True):
        return False
    return rule.exact and all(rule.supports(law) for law in tree.laws())


def rules_that_fit(candidates: int, length: int) -> list[str]:
    """Names of the exact rules that have a default tree of this size."""
    return [name for name in [*SELECTORS, *SEQUENCE_RULES] if _tree_for(as_rule(name), candidates, length)]
