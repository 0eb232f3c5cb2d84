"""The door, and what passes it: F21, F97, F98, F99."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from ot_spec import IID, MembershipTransport, as_exact, from_logits, from_probs
from ot_spec.errors import CandidateError, LawError
from proofs_check.strategies import LAST_COIN, weights
from proofs_check.strategies import laws as exact_laws
from solvers import optimal_acceptance, optimal_cut
from tests.faults import mutants as wrong
from tests.faults.kind import Kind, mutants, ours, recorded, refused
from tests.faults.test_residuals import EVERY, RULES, each

# --- F21 -------------------------------------------------------------------------------------------------------


class Bad(NamedTuple):
    """Rows that are no laws, and the words of a message that says so."""

    rows: np.ndarray
    words: tuple[str, ...]


def numbers(rows: list) -> np.ndarray:
    """JSON has no NaN; null stands for it."""
    return np.array(rows, dtype=np.float64)


def check_refused(door, case: Bad) -> None:
    for convert in (np.asarray, torch.as_tensor)[: 2 if door is from_probs else 1]:
        with refused(LawError, *case.words):
            door(convert(case.rows))


def _broken(rows: list, row: int, token: int, value: float) -> Bad:
    laws = np.stack([law.astype(float) for law in rows])
    token %= laws.shape[1]
    laws[row % len(rows), token] = value
    kind = "negative" if value == -0.25 else str(value)
    return Bad(laws, (f"law, row {row % len(rows)}", f"token {token}", kind))


BROKEN = st.builds(
    _broken,
    st.lists(exact_laws(4, 4), min_size=1, max_size=3),
    st.integers(0, 5),
    st.integers(0, 3),
    st.sampled_from([float("nan"), float("inf"), float("-inf"), -0.25]),
)

# --- F97, F98 --------------------------------------------------------------------------------------------------


def check_accepted(door, law: np.ndarray) -> None:
    """Taken, and normalised in float64: the entries keep their ratios and add up to 1."""
    for convert in (np.asarray, torch.as_tensor)[: 2 if door is from_probs else 1]:
        found = np.asarray(door(convert(law)))
        assert found.dtype == np.float64 and abs(found.sum(axis=-1) - 1).max() < 1e-13
        sums = law.astype(np.float64).sum(axis=-1, keepdims=True)
        assert np.array_equal(found > 0, law > 0) and np.allclose(found * sums, law, rtol=1e-14, atol=0)


def softmaxed(case: dict) -> np.ndarray:
    """A row of float32 softmax, as torch makes it."""
    logits = np.random.default_rng(case["seed"]).normal(0, case["scale"], case["vocab"]).astype(np.float32)
    return torch.softmax(torch.as_tensor(logits), -1).numpy()


class Sum(NamedTuple):
    """Weights that become a law of `dtype` by division, and a factor that spoils it."""

    weights: list[int]
    dtype: str
    factor: float


def check_sum(door, case: Sum) -> None:
    law = (np.array(case.weights) / sum(case.weights)).astype(case.dtype)
    check_accepted(door, law)
    spoiled = (law * case.factor).astype(case.dtype)
    off = spoiled.astype(np.float64).sum() - 1
    with refused(LawError, "law", f"sum to 1 {off:+.6g}"):
        door(spoiled)


SUMS = st.builds(
    Sum,
    st.integers(2, 300).flatmap(weights),
    st.sampled_from(["float32", "float64"]),
    st.sampled_from([0.9, 1.01, 0.9999, 2.0]),
)

# --- F99 -------------------------------------------------------------------------------------------------------


class Lost(NamedTuple):
    """A pair of float laws of which the target is NaN."""

    target: np.ndarray
    draft: np.ndarray


def check_lost_row(rule, case: Lost) -> None:
    """Refused with the row on numpy; on torch flagged, with -1 for a token, and the rows beside it are decided."""
    good = np.full(case.target.size, 1 / case.target.size)
    targets, drafts = np.stack([good, case.target]), np.stack([good, case.draft])
    candidates = np.array([[0], [int(np.argmax(case.draft))]])
    for coin in (LAST_COIN, 0.5, 0.0):
        thrown = np.full((2, rule.coins(1)), coin)
        with refused(LawError, "target, row 1", "nan"):
            rule.select(targets, drafts, candidates, thrown)
        flagged = rule.select(*map(torch.as_tensor, (targets, drafts, candidates, thrown)))
        assert flagged.valid.tolist() == [True, False] and int(flagged.token[1]) == int(flagged.index[1]) == -1
        assert 0 <= int(flagged.token[0]) < good.size and not bool(flagged.accepted[1])
        with refused(CandidateError, "row 1"):
            flagged.checked()


def _lost(law: np.ndarray, token: int, every: bool) -> Lost:
    target = np.full(law.size, np.nan) if every else np.where(np.arange(law.size) == token, np.nan, 1 / law.size)
    return Lost(target, law.astype(float))


DOOR = {"from_probs": from_probs}
KINDS = [
    Kind(
        "F21",
        check_refused,
        lambda case: Bad(numbers(case["rows"]), tuple(case["words"])),
        DOOR,
        {"nan_passes": wrong.nan_passes},
        BROKEN,
    ),
    Kind(
        "F97",
        check_accepted,
        softmaxed,
        DOOR,
        {"summed_in_its_own_dtype": wrong.summed_in_its_own_dtype, "tight_tolerance": wrong.tight_tolerance},
    ),
    Kind(
        "F98",
        check_sum,
        lambda case: Sum(case["weights"] * case["repeat"], "float32", case["factor"]),
        DOOR,
        {"tight_tolerance": wrong.tight_tolerance, "rescaled_silently": wrong.rescaled_silently},
        SUMS,
    ),
    Kind(
        "F99",
        check_lost_row,
        lambda case: Lost(numbers(case["target"]), numbers(case["draft"])),
        EVERY,
        each(wrong.Unchecked),
        st.builds(_lost, exact_laws(4, 6), st.integers(0, 3), st.booleans()),
    ),
]


@ours(KINDS)
def test_ours(kind, subject):
    kind.holds(subject)


@mutants(KINDS)
def test_mutant_is_caught(kind, mutant):
    kind.caught(mutant)


@pytest.mark.parametrize("rule", EVERY.values(), ids=list(EVERY))
def test_F21_every_entrance_refuses_nan(rule):
    nan, good = np.array([[0.5, 0.5], [np.nan, 0.5]]), np.array([[0.5, 0.5], [0.5, 0.5]])
    candidates, thrown = np.zeros((2, 1), dtype=int), np.zeros((2, rule.coins(1)))
    calls: list[tuple[str, Any]] = [
        ("target", lambda: rule.select(nan, good, candidates, thrown)),
        ("draft", lambda: rule.select(good, nan, candidates, thrown)),
        ("target", lambda: rule.conditional(nan, good, candidates)),
        ("draft", lambda: rule.acceptance(good, nan, IID(1))),
        ("target", lambda: optimal_acceptance(nan, good, IID(2))),
        ("draft", lambda: optimal_cut(good, nan, IID(2))),
        ("target", lambda: MembershipTransport(nan, good, IID(2))),
        ("logits", lambda: from_logits(np.log(nan))),
        ("law", lambda: as_exact(nan)),
    ]
    for name, call in calls:
        with refused(LawError, f"{name}, row 1", "token 0", "nan"):
            call()


def test_F99_an_unchecked_rule_would_leave_the_vocabulary():
    (case,) = recorded("F99")
    target, draft = numbers(case["target"]), numbers(case["draft"])
    rule = wrong.mixed(wrong.Unchecked, RULES["maximal_coupling"])
    assert int(rule.select(target, draft, np.array([0]), np.array([0.5, 0.5])).token) == target.size


def test_F99_logits_without_any_token_are_refused():
    for rows, words in (
        ([[0.0, 1.0], [np.nan, np.nan]], ("row 1", "token 0", "nan")),
        ([[0.0, np.inf], [0.0, 0.0]], ("row 0", "token 1", "inf")),
        ([[0.0, 0.0], [-np.inf, -np.inf]], ("row 1", "all 2 logits are -inf")),
    ):
        for convert in (np.asarray, torch.as_tensor):
            with refused(LawError, "logits", *words):
                from_logits(convert(np.array(rows)))


@pytest.mark.parametrize("rule", EVERY.values(), ids=list(EVERY))
def test_F99_an_unchecked_law_is_flagged_downstream(rule):
    logits = torch.tensor([[0.0, 1.0, 2.0], [np.nan, np.nan, np.nan], [-np.inf, -np.inf, -np.inf]])
    law = from_logits(logits, check=False)
    draft = torch.full_like(law, 1 / 3)
    chosen = rule.select(law, draft, torch.zeros((3, 1), dtype=torch.int64), torch.full((3, rule.coins(1)), 0.9))
    assert chosen.valid.tolist() == [True, False, False] and chosen.token.tolist()[1:] == [-1, -1]


def test_F97_a_batch_of_float32_rows_and_their_tolerance():
    (case, other) = recorded("F97")
    rows = np.stack([softmaxed(case), softmaxed(other)])
    check_accepted(from_probs, rows)
    spoiled = rows.copy()
    spoiled[1, 0] += 1e-4
    with refused(LawError, "row 1", "sum to 1 +", "allowed is 4.62e-05"):
        from_probs(spoiled)


def test_F97_the_tolerance_grows_with_the_vocabulary_and_no_faster_than_its_root():
    """Sums as far off as the slowest float32 softmax met, on any processor; a row of few tokens gets no more."""
    large = np.full(150_000, (1 + 1.4e-5) / 150_000, dtype=np.float32)
    check_accepted(from_probs, large)
    for vocab, off, allowed in ((150_000, 1e-4, "4.62e-05"), (100, 1.4e-5, "7.63e-06")):
        law = np.full(vocab, (1 + off) / vocab, dtype=np.float32)
        with refused(LawError, "sum to 1 +", f"allowed is {allowed}"):
            from_probs(law)
