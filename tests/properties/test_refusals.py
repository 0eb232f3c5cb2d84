"""What is no law, no candidate or no pair is refused with an error of ours, wherever it is handed in."""

from __future__ import annotations

import threading
from fractions import Fraction

import flint
import numpy as np
import pytest
import torch

from ot_spec import (
    IID,
    Fixed,
    Independent,
    MembershipTransport,
    WithoutReplacement,
    align,
    as_exact,
    filtered,
    from_logits,
    from_probs,
    marginal_bound,
    output_law,
    reheated,
)
from ot_spec.errors import (
    CandidateError,
    LawError,
    OptionError,
    ShapeError,
    TooLargeError,
    VocabularyError,
    counted,
)
from solvers import get_selector, optimal_acceptance, solve

TARGET, DRAFT = np.array([0.25, 0.25, 0.5]), np.array([0.5, 0.25, 0.25])


def test_rows_of_different_lengths_and_words_are_refused():
    with pytest.raises(ShapeError, match="every row needs the same number"):
        from_probs([[1.0, 0.0], [1.0]])
    with pytest.raises(LawError, match="dtype <U1"):
        from_logits(["a", "b"])
    with pytest.raises(OptionError, match="temperature must be a finite number"):
        from_logits([1.0, 2.0], temperature="warm")


@pytest.mark.parametrize("value", ("x", None, np.ones(2)))
def test_options_that_are_no_number_are_refused(value):
    with pytest.raises(OptionError, match="temperature must be a finite number"):
        reheated(TARGET, value)
    if value is not None:
        with pytest.raises(OptionError, match="top_p must lie in"):
            filtered(TARGET, top_p=value)


def test_lists_are_laws_too():
    assert filtered([0.25, 0.25, 0.5], top_k=1).tolist() == [0, 0, 1]
    assert reheated([0.25, 0.75], 0).tolist() == [0, 1]
    assert align([0.5, 0.5, 0.0], [0.25, 0.75], pad=True)[1].tolist() == [0.25, 0.75, 0]
    assert marginal_bound([0.5, 0.5], [1.0, 0.0], IID(2)) == 0.5
    assert output_law(get_selector("rrs"), [0.25, 0.75], [0.5, 0.5], IID(2)).tolist() == [0.25, 0.75]


def test_a_tensor_that_asks_for_gradients_is_a_law():
    assert from_probs(torch.tensor([0.5, 0.5], requires_grad=True)).tolist() == [0.5, 0.5]


def test_numpy_beside_torch_is_refused():
    for ask in (optimal_acceptance, marginal_bound, get_selector("k_seq").acceptance):
        with pytest.raises(ShapeError, match="do not mix"):
            ask(torch.tensor(TARGET), DRAFT, IID(2))


def test_rationals_of_two_kinds_mix():
    mixed = from_probs([flint.fmpq(1, 4), Fraction(3, 4)])
    other = np.array([flint.fmpq(1, 2), flint.fmpq(1, 2)])
    assert optimal_acceptance(mixed, other, IID(2)) == Fraction(1)
    assert solve(MembershipTransport(mixed, other, IID(2)), "rational").acceptance == Fraction(1)
    assert get_selector("rrs").acceptance(mixed, other, IID(2)) == Fraction(7, 8)


def test_an_exact_law_beside_floats_makes_an_exact_output_law():
    law = output_law(get_selector("rrs"), as_exact(TARGET), DRAFT, IID(2))
    assert (law == as_exact(TARGET)).all() and all(isinstance(mass, Fraction) for mass in law)


def test_batches_that_do_not_broadcast_are_refused_and_empty_ones_are_not():
    with pytest.raises(ShapeError, match="do not broadcast"):
        get_selector("rrs").acceptance(np.tile(TARGET, (2, 1)), np.tile(DRAFT, (3, 1)), IID(2))
    nothing = np.empty((0, 3))
    assert optimal_acceptance(nothing, nothing, WithoutReplacement(2)).shape == (0,)


@pytest.mark.parametrize("candidates", ([0.5, 1.0], [True, False], [float("nan")]))
def test_fixed_candidates_are_integers(candidates):
    with pytest.raises(CandidateError, match="token ids, got dtype"):
        Fixed(candidates)


def test_independent_drafts_of_another_vocabulary_are_refused():
    law = Independent([[0.5, 0.5], [0.25, 0.75]])
    with pytest.raises(VocabularyError, match="2 tokens, the laws beside them 3"):
        optimal_acceptance(TARGET, None, law)
    with pytest.raises(VocabularyError, match="2 tokens, the laws beside them 3"):
        solve(MembershipTransport(TARGET, None, law))
    with pytest.raises(ShapeError, match="one law pair"):
        optimal_acceptance(TARGET, None, Independent(np.full((2, 2, 3), 1 / 3)))
    assert optimal_acceptance(TARGET, None, Independent(torch.tensor(DRAFT)[None])) == 0.75


def test_what_is_too_large_is_said_in_a_line():
    uniform = np.full(50_000, 1 / 50_000)
    with pytest.raises(TooLargeError, match=r"some 10\^\d+ is over the limit of"):
        solve(MembershipTransport(uniform, None, IID(2000)))
    assert counted(10**15 - 1) == "999,999,999,999,999"
    with pytest.raises(TooLargeError, match=r"candidate tuples of iid\(k=4\), times 200 tokens"):
        output_law(get_selector("rrs"), uniform[:200] * 250, uniform[:200] * 250, IID(4))


def test_solvers_in_threads_leave_standard_output_alone(capfd):
    problem = MembershipTransport(TARGET, DRAFT, IID(2))
    threads = [threading.Thread(target=solve, args=(problem, "rational")) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("still here")
    assert capfd.readouterr().out == "still here\n"
