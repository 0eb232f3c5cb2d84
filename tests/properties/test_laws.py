"""Laws across dtypes, rationals, numpy and torch, alone and in batches."""

from __future__ import annotations

from fractions import Fraction

import flint
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ot_spec import align, as_exact, filtered, from_logits, from_probs, reheated
from ot_spec.arrays import as_fraction, is_exact, to_numpy
from ot_spec.errors import LawError, OptionError, ShapeError, VocabularyError
from proofs_check.strategies import laws as exact_laws
from proofs_check.strategies import normalised, weights

FLOATS = ("float16", "float32", "float64")
CONVERT = {"numpy": np.asarray, "torch": torch.as_tensor}
EXACT = {"Fraction": Fraction, "fmpq": lambda f: flint.fmpq(f.numerator, f.denominator)}
ANY_CONVERT = st.sampled_from(sorted(CONVERT)).map(CONVERT.get)
DTYPES = st.sampled_from(FLOATS)


def batches(rows: int = 3, smallest: int = 1, largest: int = 8) -> st.SearchStrategy[np.ndarray]:
    """Exact laws (rows, V)."""
    return st.integers(smallest, largest).flatmap(
        lambda size: st.lists(weights(size).map(normalised), min_size=rows, max_size=rows).map(np.stack)
    )


def rationals(law: np.ndarray, kind: str) -> np.ndarray:
    return np.vectorize(EXACT[kind], otypes=[object])(law)


def is_law(law) -> bool:
    host = to_numpy(law)
    return host.dtype == np.float64 and bool((host >= 0).all() and (abs(host.sum(axis=-1) - 1) <= 1e-15 * 8).all())


# --- from_probs ------------------------------------------------------------------------------------------------


@given(batches(), DTYPES, ANY_CONVERT)
def test_from_probs_divides_by_the_float64_sum_once(laws, dtype, convert):
    given_ = laws.astype(dtype)
    wide = given_.astype(np.float64)
    law = from_probs(convert(given_))
    assert is_law(law) and type(law) is type(convert(given_))
    assert to_numpy(law) == pytest.approx(wide / wide.sum(axis=-1, keepdims=True), rel=1e-15)
    assert np.array_equal(to_numpy(law) > 0, wide > 0)
    for row, alone in zip(to_numpy(law), given_, strict=True):
        assert row == pytest.approx(to_numpy(from_probs(convert(alone))), rel=1e-15)


@given(batches(), DTYPES)
def test_checking_changes_no_value(laws, dtype):
    given_ = laws.astype(dtype)
    assert from_probs(given_).tobytes() == from_probs(given_, check=False).tobytes()


@given(batches(rows=2), st.sampled_from(sorted(EXACT)))
def test_from_probs_leaves_rationals_as_they_are(laws, kind):
    exact = rationals(laws, kind)
    law = from_probs(exact)
    assert is_exact(law) and all(type(a) is type(b) and a == b for a, b in zip(law.flat, exact.flat, strict=True))
    assert from_probs([[str(m) for m in row] for row in laws]).tolist() == laws.tolist()


@pytest.mark.parametrize("entries", [[1, 0], [Fraction(1, 2), 0.5], [0, flint.fmpq(1)], ["1/4", "3/4"]])
def test_mixed_entries_become_fractions(entries):
    law = from_probs(np.array(entries, dtype=object))
    assert is_exact(law) and all(isinstance(m, Fraction) for m in law)
    assert all(isinstance(m, Fraction) for m in filtered(law, top_k=1))


@given(exact_laws(2), st.sampled_from(sorted(EXACT)), st.data())
def test_rationals_must_sum_to_exactly_one(law, kind, data):
    token = data.draw(st.integers(0, law.size - 1))
    off = law.copy()
    off[token] += Fraction(1, 10**30)
    with pytest.raises(LawError, match="exact probabilities sum to"):
        from_probs(rationals(off, kind))
    off[token] = -law[token] - 1
    with pytest.raises(LawError, match=f"token {token} is negative"):
        from_probs(rationals(off, kind))


@given(batches(), DTYPES, ANY_CONVERT, st.data())
def test_a_sum_that_is_off_is_refused_with_row_and_amount(laws, dtype, convert, data):
    eps = float(np.finfo(dtype).eps)
    row = data.draw(st.integers(0, len(laws) - 1))
    off = data.draw(st.sampled_from([2.0, 1.5])) * 64 * eps
    spoiled = laws.astype(np.float64)
    spoiled[row, int(np.argmax(spoiled[row]))] += off
    spoiled = spoiled.astype(dtype)
    amount = spoiled[row].astype(np.float64).sum() - 1
    with pytest.raises(LawError) as caught:
        from_probs(convert(spoiled), name="draft")
    words, _, rest = str(caught.value).partition("sum to 1 ")
    assert words == f"draft, row {row}: probabilities "
    assert float(rest.partition(",")[0]) == pytest.approx(amount, rel=1e-5, abs=1e-15)


@given(batches(), DTYPES, st.floats(-0.4, 0.4))
def test_a_sum_within_the_tolerance_of_its_dtype_is_normalised(laws, dtype, share):
    near = laws.astype(np.float64) * (1 + share * 64 * float(np.finfo(dtype).eps))
    assert is_law(from_probs(near.astype(dtype)))


@given(batches(rows=2), ANY_CONVERT, st.sampled_from([np.nan, np.inf, -np.inf, -1e-3]), st.data())
def test_an_impossible_entry_is_refused_with_row_token_and_value(laws, convert, value, data):
    row, token = data.draw(st.integers(0, 1)), data.draw(st.integers(0, laws.shape[1] - 1))
    spoiled = laws.astype(np.float64)
    spoiled[row, token] = value
    with pytest.raises(LawError, match=rf"^target, row {row}: probability of token {token} is") as caught:
        from_probs(convert(spoiled), name="target")
    assert str(value) in str(caught.value)
    with pytest.raises(LawError, match=rf"^law, row \({row}, 0\): probability of token {token} is"):
        from_probs(convert(spoiled[:, None, :]))


@pytest.mark.parametrize("convert", CONVERT.values(), ids=list(CONVERT))
def test_integers_are_probabilities_and_other_things_are_not(convert):
    assert to_numpy(from_probs(convert(np.array([0, 1, 0])))).tolist() == [0, 1, 0]
    with pytest.raises(LawError, match="sum to 1 \\+1"):
        from_probs(convert(np.array([1, 1])))
    for values in (np.array([True, False]), np.array([1.0 + 0j, 0])):
        with pytest.raises(LawError, match="cannot read probabilities of dtype"):
            from_probs(convert(values))
    for empty in (np.array(1.0), np.zeros((2, 0))):
        with pytest.raises(ShapeError, match="at least one token"):
            from_probs(convert(empty))


@given(exact_laws(), DTYPES, ANY_CONVERT)
def test_as_exact_keeps_the_ratios_of_the_floats(law, dtype, convert):
    floats = law.astype(dtype)
    total = sum(Fraction(m) for m in floats.tolist())
    exact = as_exact(convert(floats))
    assert exact.tolist() == [Fraction(m) / total for m in floats.tolist()] and exact.sum() == 1
    assert as_exact(law).tolist() == law.tolist()


# --- from_logits -----------------------------------------------------------------------------------------------


@st.composite
def logits(draw: st.DrawFn, rows: int = 3) -> np.ndarray:
    """Logits on a grid that half precision holds, some of them -inf, at least one in a row finite."""
    size = draw(st.integers(1, 7))
    values = draw(st.lists(st.integers(-80, 80), min_size=rows * size, max_size=rows * size))
    made = np.array(values, dtype=np.float64).reshape(rows, size) / 8
    for row in range(rows):
        out = draw(st.sets(st.integers(0, size - 1), max_size=size - 1))
        made[row, list(out)] = -np.inf
    return made


@given(logits(), DTYPES, ANY_CONVERT, st.sampled_from([0.0, 0.5, 1.0, 2.0]))
def test_the_dtype_of_the_logits_does_not_matter(rows, dtype, convert, temperature):
    law = from_logits(convert(rows.astype(dtype)), temperature=temperature)
    assert is_law(law)
    wide = to_numpy(from_logits(convert(rows), temperature=temperature))
    assert np.array_equal(to_numpy(law), wide)
    assert not wide[rows == -np.inf].any()
    alone = np.stack([to_numpy(from_logits(convert(row), temperature=temperature)) for row in rows])
    assert wide == pytest.approx(alone, rel=1e-15)


@given(logits(), st.integers(-64, 64))
def test_a_shift_of_the_logits_does_not_matter(rows, shift):
    assert from_logits(rows + shift).tobytes() == from_logits(rows).tobytes()


@given(logits(), st.sampled_from([0.0, 0.5, 2.0, 3.0]), ANY_CONVERT)
def test_heating_logits_is_heating_their_law(rows, temperature, convert):
    heated = to_numpy(reheated(from_logits(convert(rows)), temperature))
    assert heated == pytest.approx(to_numpy(from_logits(convert(rows), temperature=temperature)), rel=1e-10)
    assert np.array_equal(heated > 0, to_numpy(from_logits(rows, temperature=temperature)) > 0)


@given(logits(), ANY_CONVERT, st.sampled_from([None, 1, 2, 3]), st.sampled_from([None, 0.0, 0.5, 0.9]))
def test_filters_of_logits_are_filters_of_the_heated_law(rows, convert, top_k, top_p):
    options = {"top_k": top_k, "top_p": top_p, "min_p": 0.1}
    at_once = from_logits(convert(rows), temperature=0.5, **options)
    assert (
        to_numpy(at_once).tobytes()
        == to_numpy(filtered(from_logits(convert(rows), temperature=0.5), **options)).tobytes()
    )


def test_temperatures_must_fit_the_rows():
    with pytest.raises(ShapeError, match="temperature of shape"):
        from_logits(np.zeros((2, 3)), temperature=np.ones(3))
    with pytest.raises(LawError, match="logits are floats"):
        from_logits(as_exact([0.5, 0.5]))
    assert from_logits(np.array([0, 0])).tolist() == [0.5, 0.5]


# --- filtered, reheated ----------------------------------------------------------------------------------------

FILTERS = st.fixed_dictionaries(
    {
        "top_k": st.sampled_from([None, 1, 2, 3, 5]),
        "top_p": st.sampled_from([None, 0.0, 0.3, 0.5, 0.75, 1.0]),
        "min_p": st.sampled_from([None, 0.0, 0.2, 0.5, 1.0]),
    }
)


@given(exact_laws(), FILTERS, st.sampled_from(sorted(EXACT)))
def test_a_filtered_law_is_the_law_given_a_set_of_its_largest_tokens(law, options, kind):
    found = filtered(rationals(law, kind), **options)
    assert is_exact(found) and sum(as_fraction(m) for m in found) == 1
    kept = [y for y in range(law.size) if found[y]]
    mass = sum(law[y] for y in kept)
    assert kept and all(as_fraction(found[y]) == law[y] / mass for y in kept)
    left_out = [y for y in range(law.size) if y not in kept and law[y]]
    assert all((law[y], -y) > (law[z], -z) for y in kept for z in left_out)


@given(batches(), st.sampled_from([1, 2, 3, 5]), st.sampled_from([None, 0.2, 1.0]))
def test_filters_act_row_by_row_and_alike_on_numpy_torch_and_rationals(laws, top_k, min_p):
    floats = from_probs(laws.astype(np.float64))
    found = filtered(floats, top_k=top_k, min_p=min_p)
    rows = np.stack([filtered(row, top_k=top_k, min_p=min_p) for row in floats])
    assert found.tobytes() == rows.tobytes()
    tensors = to_numpy(filtered(torch.as_tensor(floats), top_k=top_k, min_p=min_p))
    exact = filtered(as_exact(floats), top_k=top_k, min_p=min_p).astype(float)
    for other in (tensors, exact):
        assert np.array_equal(found > 0, other > 0) and found == pytest.approx(other, rel=1e-14)


@given(batches(), st.sampled_from([0, 1, Fraction(1, 2), Fraction(1, 3), 0.5]), st.sampled_from(sorted(EXACT)))
def test_reheated_is_the_power_of_a_law_and_zeros_stay(laws, temperature, kind):
    exact = reheated(rationals(laws, kind), temperature)
    power = int(1 / as_fraction(temperature)) if temperature else None
    for row, law in zip(exact, laws, strict=True):
        found = [as_fraction(m) for m in row]
        if power is None:
            assert found == [Fraction(y == law.tolist().index(max(law))) for y in range(law.size)]
        else:
            assert found == [m**power / sum(law**power) for m in law]
    floats = reheated(from_probs(laws.astype(np.float64)), float(temperature))
    assert is_law(floats) and floats == pytest.approx(np.vectorize(lambda m: float(as_fraction(m)))(exact), rel=1e-12)


def test_exact_laws_take_integer_powers_only():
    with pytest.raises(OptionError, match="integer powers only"):
        reheated(as_exact([0.5, 0.5]), Fraction(2, 3))


# --- align -----------------------------------------------------------------------------------------------------


@given(batches(rows=2, smallest=2), st.integers(1, 3), ANY_CONVERT)
def test_a_shorter_draft_is_padded_with_zeros(laws, missing, convert):
    draft = from_probs(convert(laws.astype(np.float64)))
    size = laws.shape[1] + missing
    target = from_probs(convert(np.full((2, size), 1 / size)))
    with pytest.raises(VocabularyError, match=f"target has {size} tokens and draft has {size - missing}"):
        align(target, draft)
    same, padded = align(target, draft, pad=True)
    assert same is target and tuple(padded.shape) == (2, size)
    assert np.array_equal(to_numpy(padded)[:, :-missing], to_numpy(draft)) and not to_numpy(padded)[:, -missing:].any()
    assert all(a is b for a, b in zip(align(target, padded), (target, padded), strict=True))


@given(exact_laws(2), st.integers(1, 3), st.sampled_from(sorted(EXACT)))
def test_rational_drafts_are_padded_in_their_own_numbers(law, missing, kind):
    target = rationals(normalised([1] * (law.size + missing)), kind)
    _, padded = align(target, rationals(law, kind), pad=True)
    assert is_exact(padded) and [as_fraction(m) for m in padded] == [*law, *[0] * missing]
    assert sum(padded * 1) == 1


@given(batches(rows=2, smallest=3), ANY_CONVERT, st.data())
def test_a_longer_draft_is_cut_unless_mass_would_go(laws, convert, data):
    draft = laws.astype(np.float64)
    size = data.draw(st.integers(1, laws.shape[1] - 1))
    target = convert(np.full((2, size), 1 / size))
    lost = laws[:, size:].sum(axis=1)
    if any(lost):
        row = int(np.argmax(lost > 0))
        with pytest.raises(
            VocabularyError, match=rf"^draft, row {row}: mass {float(lost[row]):.6g} lies on tokens {size}"
        ):
            align(target, convert(draft), pad=True)
    else:
        _, cut = align(target, convert(draft), pad=True)
        assert np.array_equal(to_numpy(cut), draft[:, :size])


@pytest.mark.parametrize("vocab", [1025, 5000])
@pytest.mark.parametrize("heat", [0.01, 4.0], ids=["flat", "peaked with ties"])
@pytest.mark.parametrize(
    "options",
    [{"top_k": 50}, {"top_k": 1}, {"top_p": 0.9}, {"top_p": 0.0}, {"top_k": 1024, "top_p": 0.5}, {"top_p": 0.999}],
    ids=str,
)
def test_a_large_law_is_cut_as_its_whole_order_says(vocab, heat, options):
    """Only the largest masses are sorted; here all of them are, by (mass descending, id ascending)."""
    logits = np.round(np.random.default_rng(vocab).normal(size=(2, vocab)) * heat, 1 if heat > 1 else 9)
    found = from_logits(logits, **options)
    for row, got in zip(from_logits(logits), found, strict=True):
        order = sorted(range(vocab), key=lambda token: (-row[token], token))[: options.get("top_k") or vocab]
        before, mass, kept = 0.0, row[order].sum(), []
        for token in order:
            if kept and before >= options.get("top_p", 1.0) - 1e-12:
                break
            kept.append(token)
            before += row[token] / mass
        assert sorted(kept) == np.flatnonzero(got).tolist()
        assert np.abs(got[kept] - row[kept] / row[kept].sum()).max() < 1e-14


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_a_law_can_be_differentiated(temperature):
    logits = torch.tensor([[0.3, -1.0, 2.0], [0.0, 0.5, -0.5]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: from_logits(x, temperature=temperature), logits)
    assert torch.autograd.gradcheck(lambda x: from_logits(x, temperature=temperature, check=False), logits)


def test_logits_are_left_as_they_are():
    given = np.array([[0.3, -1.0, 2.0]])
    for logits in (given, torch.tensor(given)):
        from_logits(logits, temperature=0.5)
        assert logits.tolist() == [[0.3, -1.0, 2.0]]
