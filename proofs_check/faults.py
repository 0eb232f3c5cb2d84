"""Known-wrong rules that every audit must reject, and known-odd rules that it must accept.

Each is a kind of mistake seen in real verifiers, in a few lines, under its fault number, beside the rule as it should
be. They are written for being read: plain loops, no speed, on float64, float32 or exact laws alike.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from ot_spec.draft_law import WithoutReplacement
from ot_spec.tree import DraftTree
from proofs_check.audit import audit
from proofs_check.cases import Case
from proofs_check.report import Report, Verdict

# ---- what every rule is made of


def draw(weights: Any, rng: Any) -> int:
    """A token with probability weights / sum(weights)."""
    return int(rng.choice(len(weights), p=weights / weights.sum()))


def excess(target: Any, draft: Any) -> Any:
    """(target - draft)+, and the target itself where that is zero everywhere."""
    over = np.maximum(target - draft, 0)
    return over if over.sum() > 0 else target


def kept(token: int, target: Any, draft: Any, rng: Any) -> bool:
    """Accept with probability min(1, target/draft) of the token."""
    return bool(rng.random() * draft[token] < target[token])


def without(law: Any, token: int) -> Any:
    """The law without a token; all zero if it had no other."""
    rest = np.where(np.arange(len(law)) == token, law * 0, law)
    return rest / rest.sum() if rest.sum() > 0 else rest


def most_probable(draft: Any, rng: Any) -> tuple[int, ...]:
    return (int(np.argmax(draft)),)


def two_most_probable(draft: Any, rng: Any) -> tuple[int, ...]:
    return tuple(int(y) for y in np.argsort(-draft, kind="stable")[:2])


def drawn_from_top_two(draft: Any, rng: Any) -> tuple[int, ...]:
    return (draw(_top_two(draft), rng),)


def _top_two(draft: Any) -> Any:
    rank = np.argsort(np.argsort(-draft, kind="stable"), kind="stable")
    return np.where(rank < 2, draft, draft * 0) / draft[rank < 2].sum()


# ---- one position, one candidate


def single_draft(target: Any, draft: Any, candidates: Any, rng: Any) -> int:
    """The rule as it should be: min(1, target/draft), then the residual (target - draft)+."""
    (token,) = candidates
    return int(token) if kept(token, target, draft, rng) else draw(excess(target, draft), rng)


def raw_law_for_filtered(target: Any, draft: Any, candidates: Any, rng: Any) -> int:
    """Right, for the law that the draft had before it was filtered."""
    return single_draft(target, draft, candidates, rng)


def filtered_law(target: Any, draft: Any, candidates: Any, rng: Any) -> int:
    return single_draft(target, _top_two(draft), candidates, rng)


def one_coordinate_removed(target: Any, draft: Any, candidates: Any, rng: Any) -> int:
    """After a refusal takes away the draft's mass at the drafted token alone."""
    (token,) = candidates
    if kept(token, target, draft, rng):
        return int(token)
    here = np.arange(len(target)) == token
    return draw(np.where(here, excess(target, draft), target), rng)


def point_mass(target: Any, draft: Any, candidates: Any, rng: Any) -> int:
    """Accepts with the target's probability, sets a refused token to zero; never looks at the draft's law."""
    left = target
    for token in candidates:
        if rng.random() < left[token]:
            return int(token)
        left = without(left, token)
    return draw(left, rng)


def target_draw_compared(target: Any, draft: Any, candidates: Any, rng: Any) -> int:
    """Draws from the target and publishes that; the candidate counts as accepted where it is the same token."""
    return draw(target, rng)


def low_confidence_dropped(target: Any, draft: Any, candidates: Any, rng: Any) -> int:
    """Drops the candidate after it was drawn, if the draft gave it less than 1/2."""
    (token,) = candidates
    if draft[token] * 2 < 1:
        return draw(target, rng)
    return single_draft(target, draft, candidates, rng)


def low_confidence_accounted(target: Any, draft: Any, candidates: Any, rng: Any) -> int:
    """The same drop, with the mass that is left as the draft's law: a proposal dropped is a proposal refused."""
    (token,) = candidates
    left = np.where(draft * 2 < 1, draft * 0, draft)
    if left[token] > 0 and kept(token, target, left, rng):
        return int(token)
    return draw(excess(target, left), rng)


def replaced_from_target(target: Any, draft: Any, candidates: Any, rng: Any) -> int:
    """After a refusal draws from the target."""
    (token,) = candidates
    return int(token) if kept(token, target, draft, rng) else draw(target, rng)


def replaced_from_target_law(target: Any, draft: Any) -> Any:
    both = np.minimum(target, draft)
    return both + (1 - both.sum()) * target


def threshold(target: Any, draft: Any, candidates: Any, rng: Any) -> int:
    """Accepts whatever the target gives at least 3/10, else draws from the target."""
    (token,) = candidates
    return int(token) if target[token] * 10 >= 3 else draw(target, rng)


def threshold_law(target: Any, draft: Any) -> Any:
    passes = target * 10 >= 3
    return np.where(passes, draft, draft * 0) + np.where(passes, draft * 0, draft).sum() * target


def ensemble(target: Any, draft: Any, candidates: Any, rng: Any) -> int:
    """Verifies against half the target and half the draft."""
    return single_draft((target + draft) / 2, draft, candidates, rng)


def ensemble_law(target: Any, draft: Any) -> Any:
    return (target + draft) / 2


def race_for_residual(target: Any, draft: Any, candidates: Any, rng: Any) -> int:
    """Draws from the residual as argmax of residual / exponential noise."""
    (token,) = candidates
    if kept(token, target, draft, rng):
        return int(token)
    return int(np.argmax(excess(target, draft) / rng.exponential(size=len(target))))


# ---- randomness that is not where it should be


def _recovered(target: Any, draft: Any, prompt: Any, length: int, rng: Any, fresh: bool) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < length:
        law, guess = target(tokens), draft(tokens)
        noise = rng.exponential(size=len(law))
        token = int(np.argmax(guess / noise))
        if not kept(token, law, guess, rng):
            token = int(np.argmax(excess(law, guess) / (rng.exponential(size=len(law)) if fresh else noise)))
        tokens.append(token)
    return tokens


def shared_noise(target: Any, draft: Any, prompt: Any, length: int, rng: Any) -> list[int]:
    """Draft and recovery race on the same exponential noise, as one (seed, position) for both makes it."""
    return _recovered(target, draft, prompt, length, rng, fresh=False)


def fresh_noise(target: Any, draft: Any, prompt: Any, length: int, rng: Any) -> list[int]:
    return _recovered(target, draft, prompt, length, rng, fresh=True)


def _by_coins(target: Any, draft: Any, candidates: Any, coins: Any) -> int:
    (token,) = candidates
    if coins[0] * draft[token] < target[token]:
        return int(token)
    weights = excess(target, draft)
    total, last = weights.sum(), 0
    for y, below in enumerate(np.cumsum(weights)):
        if weights[y] > 0:
            last = y
            if coins[1] * total < below:
                break
    return last


def two_coins(target: Any, draft: Any, candidates: Any, coins: Any) -> int:
    """The rule as it should be, with its coins given: one to accept, one to draw from the residual."""
    return _by_coins(target, draft, candidates, coins)


def accepts_at_equality(target: Any, draft: Any, candidates: Any, coins: Any) -> int:
    """A coin of 0 accepts a token that the target does not have."""
    (token,) = candidates
    return int(token) if coins[0] * draft[token] <= target[token] else _by_coins(target, draft, candidates, coins)


def total_of_one_assumed(target: Any, draft: Any, candidates: Any, coins: Any) -> int:
    """Looks the last coin up in running sums that are said to end at 1, and clamps to the last id."""
    (token,) = candidates
    if coins[0] * draft[token] < target[token]:
        return int(token)
    weights = excess(target, draft)
    below = np.cumsum(weights / weights.sum())
    return min(int(np.searchsorted(below, coins[1:2], side="right")[0]), len(weights) - 1)


def one_coin_twice(target: Any, draft: Any, candidates: Any, coins: Any) -> int:
    """The coin that refused the candidate also draws from the residual."""
    return _by_coins(target, draft, candidates, [coins[0], coins[0]])


class CoinsByStep:
    """Takes the noise slot of the engine's step counter, so a request's output depends on what ran before it."""

    def __init__(self) -> None:
        self.step = 0

    def __call__(self, target: Any, draft: Any, candidates: Any, coins: Any) -> int:
        self.step += 1
        return _by_coins(target, draft, candidates, [coins[self.step % 2], coins[1 - self.step % 2]])


def coins_of_its_own(target: Any, draft: Any, candidates: Any, coins: Any) -> int:
    """Ignores the coins it is given: every process that runs it decides for itself."""
    return _by_coins(target, draft, candidates, [random.random(), random.random()])


# ---- one position, several candidates


def rejection(target: Any, draft: Any, candidates: Any, rng: Any) -> int:
    """The rule as it should be for independent draws: each refusal leaves (residual - draft)+ for the next."""
    left = target
    for token in candidates:
        if kept(token, left, draft, rng):
            return int(token)
        left = excess(left, draft)
        left = left / left.sum()
    return draw(left, rng)


def rejection_without_replacement(target: Any, draft: Any, candidates: Any, rng: Any) -> int:
    """The rule as it should be where each draw excludes those before it: so does its law."""
    left = target
    for token in candidates:
        if token < 0:
            break
        if kept(token, left, draft, rng):
            return int(token)
        left = excess(left, draft)
        left, draft = left / left.sum(), without(draft, token)
    return draw(left, rng)


def raw_law_for_second(target: Any, draft: Any, candidates: Any, rng: Any) -> int:
    """Draws without replacement, judged as if each came from the whole law."""
    return rejection(target, draft, [y for y in candidates if y >= 0], rng)


def softmax_for_most_probable(target: Any, draft: Any, candidates: Any, rng: Any) -> int:
    """The draft's most probable tokens, judged as if they had been drawn."""
    return rejection_without_replacement(target, draft, candidates, rng)


def duplicates_dropped(target: Any, draft: Any, candidates: Any, rng: Any) -> int:
    """A token that was drawn twice is tried once."""
    return rejection(target, draft, list(dict.fromkeys(candidates)), rng)


def sorted_by_id(target: Any, draft: Any, candidates: Any, rng: Any) -> int:
    return rejection(target, draft, sorted(candidates), rng)


def sorted_by_target(target: Any, draft: Any, candidates: Any, rng: Any) -> int:
    """Tries first what the target likes best."""
    return rejection(target, draft, sorted(candidates, key=lambda y: -target[y]), rng)


def shuffled(target: Any, draft: Any, candidates: Any, rng: Any) -> int:
    """Tries the candidates in an order that does not depend on which tokens they are."""
    return rejection(target, draft, candidates[rng.permutation(len(candidates))], rng)


@dataclass(frozen=True)
class KSeqDistinct:
    """K-SEQ on the distinct candidates of k draws, with divisor and residual for k. rho: the divisor, None for k."""

    rho: Any = None
    distinct: bool = True

    def __call__(self, target: Any, draft: Any, candidates: Any, rng: Any) -> int:
        many = len(candidates)
        rho = many if self.rho is None else self.rho
        share = np.minimum(draft, target / rho)
        for token in dict.fromkeys(candidates) if self.distinct else candidates:
            if rng.random() * draft[token] < share[token]:
                return int(token)
        beta = share.sum()
        left = np.maximum(target - share * sum((1 - beta) ** i for i in range(many)), 0)
        return draw(left if left.sum() > 0 else target, rng)


def k_seq_duplicates_merged(target: Any, draft: Any, candidates: Any, rng: Any) -> int:
    """K-SEQ after a tree builder has merged equal candidates."""
    return KSeqDistinct()(target, draft, candidates, rng)


def k_seq(target: Any, draft: Any, candidates: Any, rng: Any) -> int:
    return KSeqDistinct(distinct=False)(target, draft, candidates, rng)


def multinomial_by_default(draft: Any, rng: Any) -> tuple[int, ...]:
    """torch.multinomial(draft, 2): without replacement, unless asked otherwise."""
    import torch

    return tuple(torch.multinomial(torch.as_tensor(np.asarray(draft, dtype=np.float64)), 2).tolist())


def multinomial_with_replacement(draft: Any, rng: Any) -> tuple[int, ...]:
    import torch

    law = torch.as_tensor(np.asarray(draft, dtype=np.float64))
    return tuple(torch.multinomial(law, 2, replacement=True).tolist())


# ---- temperature zero


def greedy_law(target: Any, draft: Any) -> Any:
    return np.where(np.arange(len(target)) == np.argmax(target), target * 0 + 1, target * 0)


def greedy(target: Any, draft: Any, candidates: Any, rng: Any) -> int:
    """Temperature 0: the target's first largest token, accepted where it is a candidate."""
    return point_mass(greedy_law(target, draft), draft, candidates, rng)


def any_plausible_branch(target: Any, draft: Any, candidates: Any, rng: Any) -> int:
    """Temperature 0, taking the first candidate that the target gives at least half of its largest probability."""
    for token in candidates:
        if target[token] * 2 >= target.max():
            return int(token)
    return int(np.argmax(target))


# ---- chains


def token_rule(targets: Any, drafts: Any, tokens: Any, rng: Any) -> list[int]:
    """The rule as it should be: one token after the other until the first refusal, else one more from the target."""
    done: list[int] = []
    for target, draft, token in zip(targets[:-1], drafts, tokens, strict=True):
        if not kept(token, target, draft, rng):
            return [*done, draw(excess(target, draft), rng)]
        done.append(int(token))
    return [*done, draw(targets[-1], rng)]


def beam_search(drafts: Mapping[tuple[int, ...], Any], length: int, rng: Any) -> tuple[int, ...]:
    """The most probable sequence."""
    paths: dict[tuple[int, ...], Any] = {(): 1}
    for _ in range(length):
        paths = {(*p, y): m * w for p, m in paths.items() for y, w in enumerate(drafts[p])}
    return max(paths, key=lambda path: paths[path])


def beam_as_sampled(targets: Any, drafts: Any, tokens: Any, rng: Any) -> list[int]:
    """Drafts from beam search, judged with the probability the model gives them."""
    return token_rule(targets, drafts, tokens, rng)


def beam_as_given(targets: Any, drafts: Any, tokens: Any, rng: Any) -> list[int]:
    """Drafts from beam search, judged as what they are: certain."""
    return token_rule(targets, (np.arange(drafts.shape[1]) == np.asarray(tokens)[:, None]) * 1, tokens, rng)


def stops_by_prefix(targets: Any, drafts: Any, tokens: Any, rng: Any) -> list[int]:
    """Drafts no further where the draft's law, before its token is drawn, has no clear favourite."""
    unsure = [i for i, draft in enumerate(drafts) if draft.max() * 2 < 1]
    stop = unsure[0] if unsure else len(drafts)
    return token_rule(targets[: stop + 1], drafts[:stop], tokens[:stop], rng)


def _block(targets: Any, drafts: Any, tokens: Any, rng: Any, contiguous: bool, scaled: bool) -> list[int]:
    rates = [targets[0].sum()]
    for target, draft, token in zip(targets[:-1], drafts, tokens, strict=True):
        rates.append(min(rates[0], rates[-1] * target[token] / draft[token]))
    end = 0
    for i in range(1, len(rates)):
        passes = rates[i]
        if i < len(drafts):
            over = np.maximum(rates[i] * targets[i] - drafts[i], 0).sum()
            left = over + rates[0] - rates[i]
            passes = over / left if left > 0 else rates[0]
        if rng.random() < passes:
            end = i
        elif contiguous:
            break
    weights = targets[end] if end == len(drafts) else excess(targets[end] * (rates[end] if scaled else 1), drafts[end])
    return [*(int(y) for y in tokens[:end]), draw(weights, rng)]


def block(targets: Any, drafts: Any, tokens: Any, rng: Any) -> list[int]:
    """Block verification: the last position that passes counts, whatever failed before it."""
    return _block(targets, drafts, tokens, rng, contiguous=False, scaled=True)


def block_with_token_residual(targets: Any, drafts: Any, tokens: Any, rng: Any) -> list[int]:
    """Block verification that draws from (target - draft)+, not scaled by the block's rate."""
    return _block(targets, drafts, tokens, rng, contiguous=False, scaled=False)


def block_stopped_early(targets: Any, drafts: Any, tokens: Any, rng: Any) -> list[int]:
    """Block verification that ends at the first position that fails."""
    return _block(targets, drafts, tokens, rng, contiguous=True, scaled=True)


# ---- trees


def _descend(tree: DraftTree, targets: Any, drafts: Any, rng: Any) -> list[int]:
    done: list[int] = []
    node = -1
    while True:
        candidates = tree.tokens[tree.drawn(node)]
        token = rejection(targets[node + 1], drafts[min(node + 1, len(drafts) - 1)], candidates, rng)
        done.append(token)
        node = tree.child(node, token)
        if node < 0:
            return done


def tree_rule(targets: Any, drafts: Any, tokens: Any, rng: Any) -> list[int]:
    """The rule as it should be: rejection among the children of a node, then on from the one that is accepted."""
    tree = DraftTree.from_sequences(tokens)
    return _descend(tree, tree.rows(targets), tree.rows(drafts), rng)


def positions_from_index(targets: Any, drafts: Any, tokens: Any, rng: Any) -> list[int]:
    """The model's row of a node is looked up at its place in the flattened tree, not at its depth."""
    tree = DraftTree.from_sequences(tokens)
    rows = [targets[0, 0]]
    for node in range(len(tree)):
        sequence = int(np.argmax((tree.sequences == node).any(axis=1)))  # pyright: ignore[reportOptionalOperand]
        rows.append(targets[sequence, min(node + 1, targets.shape[1] - 1)])
    return _descend(tree, np.stack(rows), tree.rows(drafts), rng)


def paths_on_their_own(targets: Any, drafts: Any, tokens: Any, rng: Any) -> list[int]:
    """Each path is followed by target draws of its own; the longest match wins, the first among equals."""
    return max((_matched(*each, rng) for each in zip(targets, tokens, strict=True)), key=len)


def paths_on_their_own_random_ties(targets: Any, drafts: Any, tokens: Any, rng: Any) -> list[int]:
    """The same, with a random one among equal matches."""
    done = [_matched(*each, rng) for each in zip(targets, tokens, strict=True)]
    longest = [path for path in done if len(path) == max(map(len, done))]
    return longest[int(rng.integers(len(longest)))] if len(longest[0]) > 1 else done[0]


def paths_with_shared_draws(targets: Any, drafts: Any, tokens: Any, rng: Any) -> list[int]:
    """One target draw a node: equal prefixes see the same draw, and the path goes on while it is drafted."""
    tree = DraftTree.from_sequences(tokens)
    rows, done, node = tree.rows(targets), [], -1
    while True:
        done.append(draw(rows[node + 1], rng))
        node = tree.child(node, done[-1])
        if node < 0:
            return done


def _matched(target: Any, tokens: Any, rng: Any) -> list[int]:
    done: list[int] = []
    for law, token in zip(target, [*tokens, -1], strict=True):
        done.append(draw(law, rng))
        if done[-1] != token:
            break
    return done


# ---- the list


@dataclass(frozen=True)
class Known:
    """One rule whose verdict is known.

    fault: its number. kind: the interface, as `audit` names it. verdict: what every audit must say. story: what
    happened, in one line. rule and options: what `audit` is given. seen_by: the tiers that can tell; a rule that must
    be accepted is accepted by each of them.
    """

    fault: str
    kind: str
    verdict: Verdict
    rule: Callable[..., Any]
    story: str
    options: Mapping[str, Any] = field(default_factory=dict)
    seen_by: tuple[str, ...] = ("exact", "statistical")
    sampled: Mapping[str, Any] = field(default_factory=lambda: {"tv": 0.1})

    @property
    def name(self) -> str:
        return getattr(self.rule, "__name__", type(self.rule).__name__)

    def audit(self, **options: Any) -> Report:
        """The audit of the rule, with its own options and those given."""
        sampled = self.sampled if options.get("tier") == "statistical" else {}
        return audit(self.rule, kind=self.kind, **{**self.options, **sampled, **options})


_ONE: dict[str, Any] = {"k": 1}
_COINS: dict[str, Any] = {"k": 1, "coins": 2}
_TOP_TWO: dict[str, Any] = {"k": 2, "draft_sampler": two_most_probable}
_DISTINCT: dict[str, Any] = {"k": 2, "law": WithoutReplacement(2)}
_GREEDY: tuple[Case, ...] = tuple(
    Case(target, draft, k)
    for k in (1, 2)
    for target, draft in (((0, 1, 0), (1, 1, 1)), ((0, 1, 0), (1, 0, 1)), ((1, 0, 0, 0), (1, 2, 3, 4)))
)
_CLASH = {"tv": 0.2, "cases": (Case((2, 1, 1), (1, 0, 0)),)}
_NOISE = {"tv": 0.08, "cases": (Case(((0, 1, 1),) * 4, ((3, 1, 0),), 1, 1),)}
_PLACE = {"tv": 0.2, "cases": (
    Case(((1, 0), (0, 1), (0, 1), (1, 0), (1, 0), (1, 0), (0, 1)), ((1, 1), (1, 0), (0, 1)), 2, 2),
)}  # fmt: skip
_BLOCK = {"tv": 0.04, "cases": (Case(((0, 1, 1),) + ((3, 2, 0),) * 12, ((1, 1, 5),) + ((7, 1, 7),) * 3, 1, 2),)}
_EVERY = ("exact", "edge", "stratified", "statistical")
_EXACT, _EDGE, _STATISTICAL, _BOTH = ("exact",), ("edge",), ("statistical",), ("exact", "statistical")


def known() -> tuple[Known, ...]:
    """All known rules, by fault number; the ones about torch only where torch is installed.

    >>> [one.name for one in known() if one.fault == "F08"]
    ['point_mass']
    """
    wrong: Verdict = "biased"
    right: Verdict = "lossless"
    lossy: Verdict = "lossy as declared"
    rules = [
        Known("F01", "function", wrong, single_draft, "drafts are the draft's argmax, its softmax is declared",
              {"k": 1, "draft_sampler": most_probable}),
        Known("F02", "function", wrong, raw_law_for_filtered,
              "drafts are filtered to the top two, the raw law is declared",
              {"k": 1, "draft_sampler": drawn_from_top_two}),
        Known("F02", "function", right, filtered_law, "drafts are filtered, and so is their declared law",
              {"k": 1, "draft_sampler": drawn_from_top_two}),
        Known("F04", "chain", wrong, beam_as_sampled, "drafts come from beam search, the model's law is declared",
              {"draft_sampler": beam_search}),
        Known("F04", "chain", right, beam_as_given, "drafts come from beam search and are declared certain",
              {"draft_sampler": beam_search}),
        Known("F06", "function", wrong, one_coordinate_removed,
              "a refusal removes the drafted token's draft mass only", _ONE),
        Known("F08", "function", right, point_mass,
              "drafts are sampled, the rule takes them as given: not optimal, but exact"),
        Known("F09", "function", right, target_draw_compared, "a draw from the target is compared with the drafts"),
        Known("F11", "function", wrong, low_confidence_dropped,
              "the drafted token decides whether it is dropped", _ONE),
        Known("F11", "function", right, low_confidence_accounted, "a dropped token is a refused one", _ONE),
        Known("F11", "chain", right, stops_by_prefix, "the prefix decides whether drafting goes on"),
        Known("F13", "function", wrong, replaced_from_target, "a refused token is replaced from the target", _ONE),
        Known("F13", "function", lossy, replaced_from_target, "the same, and it says so",
              {"k": 1, "declared": replaced_from_target_law}),
        Known("F24", "function", right, race_for_residual,
              "argmax of law / exponential noise is a draw, not the mode", _ONE),
        Known("F25", "function", wrong, accepts_at_equality, "a coin of 0 passes where the target is 0", _COINS, _EDGE),
        Known("F27", "function", wrong, total_of_one_assumed, "running sums end below 1", _COINS, _EDGE),
        Known("F29", "function", wrong, one_coin_twice, "one coin accepts and draws from the residual", _COINS,
              ("exact", "stratified", "statistical"), _CLASH),
        Known("F33", "decoder", wrong, shared_noise,
              "draft and recovery use the same noise", {"length": 1}, _STATISTICAL, _NOISE),
        Known("F33", "decoder", right, fresh_noise, "draft and recovery use noise of their own"),
        Known("F35", "function", wrong, CoinsByStep(), "the noise slot depends on what ran before", _COINS, _EXACT),
        Known("F37", "function", wrong, coins_of_its_own, "each process throws its own coins", _COINS, _EXACT),
        Known("F37", "function", right, two_coins,
              "the output is a function of laws, candidates and coins", _COINS, _EVERY),
        Known("F38", "function", wrong, softmax_for_most_probable,
              "the top two are drafted, the softmax is declared", _TOP_TWO),
        Known("F39", "function", right, point_mass, "the top two are drafted and taken as given", _TOP_TWO),
        Known("F40", "function", wrong, raw_law_for_second,
              "siblings differ, the second is judged by the raw law", _DISTINCT),
        Known("F40", "function", right, rejection_without_replacement,
              "the second sibling's law excludes the first", _DISTINCT),
        Known("F41", "tree", wrong, paths_on_their_own,
              "every path draws its own target tokens, the longest match wins"),
        Known("F41", "tree", wrong, paths_on_their_own_random_ties, "the same, with ties broken at random"),
        Known("F41", "tree", right, paths_with_shared_draws, "equal prefixes share their target draw"),
        Known("F42", "function", wrong, sorted_by_id, "siblings are tried in the order of their ids"),
        Known("F42", "function", wrong, sorted_by_target, "siblings are tried in the order of the target"),
        Known("F42", "function", right, shuffled, "siblings are tried in an order that ignores which they are"),
        Known("F43", "function", wrong, duplicates_dropped, "a token drawn twice is tried once"),
        Known("F43", "function", wrong, k_seq_duplicates_merged, "a tree builder merges equal siblings before K-SEQ"),
        Known("F43", "function", right, rejection, "a token drawn twice is tried twice"),
        Known("F43", "function", right, k_seq, "K-SEQ sees every draw"),
        Known("F46", "function", right, greedy, "at temperature 0 the target's argmax",
              {"cases": _GREEDY}),
        Known("F46", "function", lossy, greedy, "the same on any laws, declared as greedy", {"declared": greedy_law}),
        Known("F46", "function", wrong, any_plausible_branch, "at temperature 0 any plausible sibling is accepted",
              {"declared": greedy_law}),
        Known("F47", "tree", wrong, positions_from_index, "positions are places in the flattened tree",
              {}, _BOTH, _PLACE),
        Known("F47", "tree", right, positions_from_index, "the same on chains, where nobody notices", _ONE),
        Known("F47", "tree", right, tree_rule, "positions are depths"),
        Known("F51", "chain", wrong, block_with_token_residual, "block acceptance with the residual of one token",
              {}, _BOTH, _BLOCK),
        Known("F52", "chain", right, block, "a later position makes up for one that failed"),
        Known("F52", "chain", wrong, block_stopped_early, "block acceptance is made to stop at the first failure"),
        Known("F120", "function", wrong, threshold, "tokens above a threshold are accepted", _ONE),
        Known("F120", "function", lossy, threshold, "the same, and it says so", {"k": 1, "declared": threshold_law}),
        Known("F120", "function", wrong, ensemble, "target and draft are mixed", _ONE),
        Known("F120", "function", lossy, ensemble, "the same, and it says so", {"k": 1, "declared": ensemble_law}),
    ]  # fmt: skip
    if importlib.util.find_spec("torch") is not None:
        importlib.import_module("torch")  # its random functions are followed where it is loaded
        rules += [
            Known("F44", "function", wrong, rejection, "torch.multinomial draws the siblings without replacement",
                  {"draft_sampler": multinomial_by_default}),
            Known("F44", "function", right, rejection, "torch.multinomial is told to replace",
                  {"draft_sampler": multinomial_with_replacement}),
        ]  # fmt: skip
    return tuple(sorted(rules, key=lambda one: int(one.fault[1:])))


def table(reports: Sequence[tuple[Known, Report]]) -> list[dict[str, Any]]:
    """One line for each audit: tier, fault, whether it was caught, seconds, the smallest counter-example."""
    return [
        {
            "tier": report.tier,
            "fault": one.fault,
            "rule": one.name,
            "due": one.verdict,
            "verdict": report.verdict,
            "seconds": round(report.seconds, 2),
            "counter-example": _case_text(report.counterexample.case) if report.counterexample else "",
        }
        for one, report in reports
    ]


def _case_text(case: Case) -> str:
    laws = []
    for rows in (case.target, case.draft) if case.length else ((case.target,), (case.draft,)):
        row = rows[0]
        same = len(set(rows)) == 1
        laws.append("(" + ", ".join(str(Fraction(w, sum(row))) for w in row) + ")" if same else "laws by prefix")
    text = f"{laws[0]} from {laws[1]}".replace("laws by prefix from laws", f"V = {case.vocab}, laws")
    return f"{text}, k = {case.k}" + (f", length {case.length}" if case.length else "")
