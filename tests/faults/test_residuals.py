"""What is drawn after a refusal, and with which law: F13, F14, F15, F17, F19, F20."""

from __future__ import annotations

import copy
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from ot_spec import IID, TopThenSample, WithoutReplacement, fractions, from_logits, from_probs, output_law, reheated
from ot_spec.draft_law import DraftLaw
from ot_spec.law import align, filtered
from proofs_check.strategies import LAST_COIN, Pair, coins, normalised, pairs, weights
from solvers import SELECTORS, get_selector, optimal_acceptance, optimal_cut
from solvers.selectors.rule import SequentialRule
from tests.faults import mutants as wrong
from tests.faults.kind import Kind, mutants, ours, recorded
from tests.faults.mutants import mixed

EVERY = {name: get_selector(name) for name in SELECTORS}
#: The rules that are stated by their tests and a residual: the mutants are made of these.
RULES = {name: rule for name, rule in EVERY.items() if isinstance(rule, SequentialRule)}


def law_for(rule, k: int) -> DraftLaw:
    """Candidates for which the rule is exact: k of them if it can, else one."""
    if rule.name == "maximal_coupling":
        return IID(1)
    return next(law for law in (IID(k), WithoutReplacement(k), TopThenSample(k), IID(1)) if rule.supports(law))


def read_pair(case: dict) -> Pair:
    return Pair(fractions(case["target"]), fractions(case["draft"]), case["k"])


def check_output_law(rule, case: Pair) -> None:
    law = law_for(rule, case.k)
    for by in ("conditional", "select"):
        assert (output_law(rule, case.target, case.draft, law, by=by) == case.target).all(), (by, case)


def each(mixin: type, **options) -> dict:
    """The mixin in front of every rule."""
    return {f"{mixin.__name__}-{name}": mixed(mixin, rule, **options) for name, rule in RULES.items()}


# --- F15 -------------------------------------------------------------------------------------------------------


class Tall(NamedTuple):
    """Float laws that are equal but for a mass moved from token `source` to token `sink`."""

    target: np.ndarray
    draft: np.ndarray
    source: int
    sink: int


def tall(vocab: int, mass: float, sink: int = 0) -> Tall:
    unit = 2.0**-40  # every sum is exact
    source = vocab - 1
    moved = round(mass / unit)
    rest = (2**40 - 2 * moved) // vocab
    draft = np.full(vocab, rest * unit)
    draft[source] += (2**40 - rest * vocab) * unit
    target = draft.copy()
    target[source] -= moved * unit
    target[sink] += moved * unit
    return Tall(target, draft, source, sink)


def check_exact_zeros(rule, case: Tall) -> None:
    refused = mixed(wrong.Refusing, rule)
    candidates = np.array([case.source])
    after = refused.conditional(case.target, case.draft, candidates)
    share = after[case.sink] / after.sum()
    assert share == 1 and np.flatnonzero(after).tolist() == [case.sink], f"share of the residual token is {share}"
    ends = np.array([[LAST_COIN, 0.0], [LAST_COIN, 0.5], [LAST_COIN, LAST_COIN]])
    for convert in (np.asarray, torch.as_tensor):
        laws = [convert(np.tile(law, (3, 1))) for law in case[:2]]
        chosen = rule.select(*laws, convert(np.tile(candidates, (3, 1))), convert(ends))
        assert chosen.token.tolist() == [case.sink] * 3


TALL = st.builds(
    tall, vocab=st.integers(4, 3000), mass=st.sampled_from([1e-3, 1e-6, 1e-9, 0.1]), sink=st.integers(0, 2)
)


# --- F17 -------------------------------------------------------------------------------------------------------


class Chain(NamedTuple):
    """Two positions: laws of the first, and of the second after each first token (V, V)."""

    target: np.ndarray
    draft: np.ndarray
    next: np.ndarray
    next_draft: np.ndarray
    k: int


def chain_law(rule, case: Chain) -> np.ndarray:
    """P(first, second) of one selector object used for both positions."""
    rule, law = copy.copy(rule), law_for(rule, case.k)
    first = output_law(rule, case.target, case.draft, law)
    return np.stack(
        [mass * output_law(rule, row, case.next_draft, law) for mass, row in zip(first, case.next, strict=True)]
    )


def check_chain(rule, case: Chain) -> None:
    assert (chain_law(rule, case) == case.target[:, None] * case.next).all(), case


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    target, draft, k = draw(pairs())
    size = target.size
    rows = [normalised(draw(weights(size))) for _ in range(size)]
    return Chain(target, draft, np.stack(rows), normalised(draw(weights(size))), k)


def read_chain(case: dict) -> Chain:
    target, draft, after, next_draft = (fractions(case[name]) for name in ("target", "draft", "next", "next_draft"))
    return Chain(target, draft, after, next_draft, case["k"])


# --- F19 -------------------------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """Float laws (n, V), coins (n, 7): enough for any rule with k = 2."""

    target: np.ndarray
    draft: np.ndarray
    coins: np.ndarray


def _candidates(law: DraftLaw, draft, thrown):
    return law.sample(draft, thrown[..., : law.k]).tokens


def _select(rule, target, draft, thrown):
    law = law_for(rule, 2)
    many = rule.coins(law.k)
    return rule.select(target, draft, _candidates(law, draft, thrown), thrown[..., :many])


def _conditional(rule, target, draft, thrown):
    return rule.conditional(target, draft, _candidates(law_for(rule, 2), draft, thrown))


def _acceptance(rule, target, draft, thrown):
    return rule.acceptance(target, draft, law_for(rule, 2))


def _sample(law, target, draft, thrown):
    return law.sample(draft, thrown[..., : law.k])


def _contains(law, target, draft, thrown):
    return law.contains(draft)


def _optimum(law, target, draft, thrown):
    return optimal_acceptance(target, draft, law)


def _inside(law, target, draft, thrown):
    return law.inside(draft, law.prefix_order(target, draft))


LAWS = (IID(2), WithoutReplacement(2), TopThenSample(2))

CALLS = {
    "from_probs": lambda target, draft, thrown: (from_probs(target), from_probs(draft, check=False)),
    "from_logits": lambda target, draft, thrown: from_logits(target, temperature=0.5, top_k=2, top_p=0.9, min_p=0.1),
    "filtered": lambda target, draft, thrown: (filtered(target, top_k=1), filtered(draft, top_p=0.5, min_p=0.2)),
    "reheated": lambda target, draft, thrown: (reheated(target, 0.5), reheated(draft, 0)),
    "align": lambda target, draft, thrown: align(target, draft[..., :1] * 0 + 1, pad=True),
    "cut": lambda target, draft, thrown: optimal_cut(target, draft, IID(2)).inside,
    **{f"select-{name}": partial(_select, rule) for name, rule in EVERY.items()},
    **{f"conditional-{name}": partial(_conditional, rule) for name, rule in EVERY.items()},
    **{f"acceptance-{name}": partial(_acceptance, rule) for name, rule in EVERY.items()},
    **{f"sample-{law.name}": partial(_sample, law) for law in LAWS},
    **{f"inside-{law.name}": partial(_inside, law) for law in LAWS},
    **{f"contains-{law.name}": partial(_contains, law) for law in LAWS},
    **{f"optimum-{law.name}": partial(_optimum, law) for law in LAWS},
}


def check_pure(call, case: Batch) -> None:
    """Read-only numpy arrays and tensors: the same bytes come out of the same bytes, and no argument changes."""
    for convert in (_read_only, lambda array: torch.tensor(array)):
        arguments = [convert(array) for array in case]
        before = [_bytes(a) for a in arguments]
        results = [_flat(call(*arguments)) for _ in range(3)]
        assert [_bytes(a) for a in arguments] == before, "an argument was changed"
        assert results[0] == results[1] == results[2], "the same bytes gave another answer"


def _read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


def _bytes(array) -> bytes:
    return np.asarray(array).tobytes()


def _flat(result) -> list[bytes]:
    return [_bytes(part) for part in (result if isinstance(result, tuple) else (result,))]


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    size, rows = draw(st.integers(3, 5)), draw(st.integers(1, 3))
    target, draft = (from_probs([draw(weights(size)) for _ in range(rows)], check=False) for _ in range(2))
    return Batch(target, draft, draw(coins((rows, 7))))


# --- F20 -------------------------------------------------------------------------------------------------------


def check_fallback(rule, case: Pair) -> None:
    """Every candidate refused where target and draft agree: the output is the target's, not anything."""
    forced, target = mixed(wrong.Refusing, rule), case.target
    candidates = np.array([int(np.argmax(target))])
    assert (forced.conditional(target, target, candidates) == target).all()
    law = from_probs(target.astype(float))
    for convert in (np.asarray, torch.as_tensor):
        for last in (0.0, 0.5, LAST_COIN):
            chosen = forced.select(*map(convert, (law, law, candidates, np.array([LAST_COIN, last]))))
            assert law[int(chosen.token)] > 0, f"token {int(chosen.token)} has no mass"


KINDS = [
    Kind("F13", check_output_law, read_pair, RULES, each(wrong.FromTarget), pairs()),
    Kind("F14", check_output_law, read_pair, RULES, each(wrong.Softmaxed), pairs()),
    Kind(
        "F15",
        check_exact_zeros,
        lambda case: tall(case["vocab"], case["mass"]),
        RULES,
        {f"{name}-{f}": rule for f in (1e-5, 1e-8, 2.3e-308) for name, rule in each(wrong.Floored, floor=f).items()},
        TALL,
    ),
    Kind("F17", check_chain, read_chain, RULES, each(wrong.Stale), chains()),
    Kind(
        "F19",
        check_pure,
        lambda case: Batch(np.array(case["target"]), np.array(case["draft"]), np.array(case["coins"])),
        CALLS,
        {
            "divided_in_place": wrong.divided_in_place,
            "zeroed_before_the_copy": wrong.zeroed_before_the_copy,
            "hidden_generator": wrong.HiddenGenerator(),
        },
        batches(),
        examples=15,
    ),
    Kind("F20", check_fallback, read_pair, RULES, each(wrong.UniformFallback), pairs(most_k=1)),
]


@ours(KINDS)
def test_ours(kind, subject):
    kind.holds(subject)


@mutants(KINDS)
def test_mutant_is_caught(kind, mutant):
    kind.caught(mutant)


MIXINS = {"from_target": wrong.FromTarget, "softmaxed": wrong.Softmaxed}


@pytest.mark.parametrize("case", [*recorded("F13"), *recorded("F14")], ids=lambda case: case["fault"])
def test_mutant_has_the_recorded_law(case):
    pair = read_pair(case)
    for name, law in case["wrong"].items():
        rule = mixed(MIXINS[name], RULES["maximal_coupling"])
        for by in ("conditional", "select"):
            found = output_law(rule, pair.target, pair.draft, IID(1), by=by)
            assert found.astype(float).tolist() == pytest.approx(fractions(law).astype(float).tolist(), abs=1e-6)


def test_mutants_have_the_recorded_shares():
    (case,) = recorded("F15")
    made = tall(case["vocab"], case["mass"])
    for name, share in case["wrong"].items():
        rule = mixed(wrong.Floored, mixed(wrong.Refusing, RULES["maximal_coupling"]), floor=float(name.split()[1]))
        after = rule.conditional(made.target, made.draft, np.array([made.source]))
        assert after[0] / after.sum() == pytest.approx(share, rel=2e-3)


def test_stale_law_has_the_recorded_mass():
    (case,) = recorded("F17")
    assert chain_law(RULES["maximal_coupling"], read_chain(case))[0, 1] == Fraction(case["right"])
    stale = mixed(wrong.Stale, RULES["maximal_coupling"])
    assert chain_law(stale, read_chain(case))[0, 1] == Fraction(case["wrong"]["stale"])


def test_the_wrong_rules_are_right_but_for_their_fault():
    (case,) = recorded("F15")
    made = tall(case["vocab"], case["mass"])
    for rule in RULES.values():
        check_exact_zeros(mixed(wrong.Floored, rule, floor=0.0), made)
