"""Precision and ties: F102, F103, F104, and a vocabulary of 50,000 with a closed form."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from ot_spec import IID, TopThenSample, WithoutReplacement, filtered, from_logits, from_probs, reheated
from ot_spec.arrays import to_numpy
from ot_spec.errors import CandidateError
from proofs_check.strategies import LAST_COIN, weights
from solvers import optimal_acceptance, optimal_cut
from tests.faults import mutants as wrong
from tests.faults.kind import Kind, mutants, ours, recorded, refused
from tests.faults.test_residuals import RULES

# --- F102 ------------------------------------------------------------------------------------------------------


class Faint(NamedTuple):
    """Half-precision logits of a target and a draft (2,), of which token 1 is unlikely."""

    target: np.ndarray
    draft: np.ndarray


def faint(target: float, draft: float) -> Faint:
    logits = [np.array([0.0, math.log(mass)], dtype=np.float16) for mass in (target, draft)]
    return Faint(logits[0], logits[1])


def check_small_ratio(convert, case: Faint) -> None:
    """An unlikely candidate is kept with min(1, target/draft), not surely."""
    target, draft = (convert(logits) for logits in case)
    heights = [math.exp(float(logits[1])) for logits in case]
    ratio = heights[0] / (1 + heights[0]) * (1 + heights[1]) / heights[1]
    for rule in RULES.values():
        kept = rule.conditional(np.asarray(target), np.asarray(draft), np.array([1]))[1]
        assert kept == pytest.approx(min(1.0, ratio), rel=1e-9)
        # just under and over the ratio
        for coin, accepted in ((kept * (1 - 1e-9), True), (min(kept * (1 + 1e-9), LAST_COIN), kept == 1)):
            chosen = rule.select(target, draft, np.array([1]), np.array([coin, 0.0]))
            assert bool(chosen.accepted) == accepted


# --- F103, F104 ------------------------------------------------------------------------------------------------


def check_greedy(convert, logits: np.ndarray) -> None:
    """The greedy token has the largest logit there is, in the precision the logits came in; the first of equals."""
    for dtype in ("float64", "float32"):
        row = logits.astype(dtype)
        token = int(np.argmax(np.asarray(convert(row, temperature=0))))
        assert row[token] == row.max(), f"logit {row[token]} where the largest is {row.max()}"
        assert token == row.tolist().index(row.max())


def _near(weights_: list[int], gap: float) -> np.ndarray:
    return 10 + np.array(weights_) * gap


def greedy_from_logits(law: Any) -> Any:
    return from_logits(law, temperature=0)


def greedy_by_reheating(law: Any) -> Any:
    return reheated(law, 0)


def greedy_by_top_k(law: Any) -> Any:
    return filtered(law, top_k=1)


def greedy_by_top_p(law: Any) -> Any:
    return filtered(law, top_p=0)


def greedy_by_top_then_sample(law: Any) -> Any:
    top, _ = TopThenSample(2).split(law)
    return np.eye(law.shape[-1])[to_numpy(top)[..., 0]]


def check_first_of_ties(greedy, drawn: list[int]) -> None:
    """One at the first of the largest entries, on numpy and torch, alone and in a batch."""
    expected = [float(y == drawn.index(max(drawn))) for y in range(len(drawn))]
    law = from_probs(np.array(drawn) / sum(drawn))
    for convert in (np.asarray, torch.as_tensor):
        assert to_numpy(greedy(convert(law))).tolist() == expected
        assert to_numpy(greedy(convert(np.stack([law[::-1], law]))))[1].tolist() == expected


KINDS = [
    Kind(
        "F102",
        check_small_ratio,
        lambda case: faint(case["target"], case["draft"]),
        {"from_logits": from_logits},
        {"half_precision": wrong.half_precision},
        st.builds(faint, st.sampled_from([1e-12, 1e-9, 1e-3]), st.sampled_from([1e-8, 3e-10, 1e-14])),
    ),
    Kind(
        "F103",
        check_greedy,
        lambda case: np.array(case["logits"]),
        {"from_logits": from_logits},
        {"half_argmax": wrong.half_argmax},
        st.builds(_near, st.integers(2, 6).flatmap(weights), st.sampled_from([1e-3, 1e-4])),
    ),
    Kind(
        "F104",
        check_first_of_ties,
        lambda case: case["weights"],
        {
            f.__name__: f
            for f in (
                greedy_from_logits,
                greedy_by_reheating,
                greedy_by_top_k,
                greedy_by_top_p,
                greedy_by_top_then_sample,
            )
        },
        {"last_argmax": wrong.last_argmax},
        st.integers(2, 9).flatmap(lambda size: weights(size, 2)),
        examples=40,
    ),
]


@ours(KINDS)
def test_ours(kind, subject):
    kind.holds(subject)


@mutants(KINDS)
def test_mutant_is_caught(kind, mutant):
    kind.caught(mutant)


def test_F102_recorded_ratio():
    (case,) = recorded("F102")
    target, draft = (np.array([1 - case[name], case[name]]) for name in ("target", "draft"))
    for rule in RULES.values():
        assert rule.conditional(target, draft, np.array([1]))[1] == pytest.approx(case["right"], rel=1e-7)


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_F102_a_mass_lost_to_half_precision_is_refused_not_accepted(rule):
    draft = np.array([1.0, 1e-8], dtype=np.float16)
    assert draft[1] == 0
    with refused(CandidateError, "candidate 1", "probability 0"):
        rule.select(np.array([1 - 1e-12, 1e-12]), draft, np.array([1]), np.array([0.0, 0.0]))
    laws = [torch.tensor([1 - 1e-12, 1e-12], dtype=torch.float64), torch.as_tensor(draft)]
    flagged = rule.select(*laws, torch.tensor([1]), torch.zeros(2))
    assert not bool(flagged.valid) and int(flagged.token) == -1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_F102_laws_from_logits_of_any_dtype_are_float64(dtype):
    logits = torch.tensor([0.0, -18.5, -40.0], dtype=dtype)
    law = from_logits(logits)
    wide = logits.double()
    assert law.dtype == torch.float64 and torch.allclose(law, torch.softmax(wide, -1), rtol=1e-14, atol=0)


HALF_LAWS = {"k_seq": IID, "rrs": IID, "rrs_without_replacement": WithoutReplacement, "maximal_coupling": IID}


@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("name", HALF_LAWS)
def test_a_vocabulary_of_50_000_with_a_closed_form(name, convert):
    """Draft uniform on V tokens, target uniform on the first half: k i.i.d. candidates all miss it with 2^-k, and so
    does every rule here. The optimal cut is the other half."""
    vocab, half = 50_000, 25_000
    rule, k = RULES[name], 1 if name == "maximal_coupling" else 3
    law = HALF_LAWS[name](k)
    target = convert(np.repeat([1 / half, 0.0], half))
    draft = convert(np.full(vocab, 1 / vocab))
    if name != "rrs_without_replacement":
        cut = optimal_cut(target, draft, law)
        assert float(cut.value) == pytest.approx(1 - 0.5**k, rel=1e-12)
        assert not to_numpy(cut.inside)[:half].any() and to_numpy(cut.inside)[half:].all()
        assert float(rule.acceptance(target, draft, law)) == pytest.approx(1 - 0.5**k, rel=1e-12)
    else:
        missed = math.prod((half - i) / (vocab - i) for i in range(k))
        assert float(optimal_acceptance(target, draft, law)) == pytest.approx(1 - missed, rel=1e-12)
    # all candidates in the other half: refused, and the residual is uniform on the first
    candidates = np.tile(np.arange(vocab - k, vocab), (5, 1))
    thrown = np.zeros((5, k + 1))
    thrown[:, -1] = [0.0, 1 / half - 1e-12, 1 / half + 1e-12, 0.5 + 1e-9, LAST_COIN]
    chosen = rule.select(target[None], draft[None], convert(candidates), convert(thrown))
    assert to_numpy(chosen.token).tolist() == [0, 0, 1, half // 2, half - 1]
    after = to_numpy(rule.conditional(target, draft, convert(candidates[0])))
    assert np.allclose(after[:half], 1 / half, rtol=1e-9) and not after[half:].any()
    # a candidate in the first half is kept
    candidates[:, 0] = 7
    kept = rule.select(target, draft, convert(candidates[0]), convert(np.full(k + 1, LAST_COIN)))
    assert (int(kept.token), int(kept.index)) == (7, 0)
