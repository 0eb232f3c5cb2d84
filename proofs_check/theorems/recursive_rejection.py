"""Recursive rejection sampling (SpecInfer 2023; MCSD, Sequoia, RSD 2024).

RRS: r₁ = t; for i = 1..k the candidate x_i is kept with probability min(1, r_i(x_i)/d_i(x_i)); if it is refused,
r_(i+1) = (r_i - d_i)+ divided by its sum. After k refusals the output is drawn from r_(k+1). For independent candidates
d_i = d; without replacement d_i is d without x_1..x_(i-1), divided by its sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from ot_spec import IID, WithoutReplacement, output_law
from proofs_check import strategies as laws
from proofs_check.theorems import smt
from proofs_check.theorems.algebra import either_order, equal, nonnegative, sums_to
from proofs_check.theorems.instances import found, instance
from proofs_check.theorems.theorem import Theorem, Verdict, counter_example
from solvers import get_selector, optimal_acceptance

__all__ = ["THEOREMS"]

SPECINFER = "Miao et al. 2023 (SpecInfer), arXiv 2305.09781; Yang et al. 2024 (MCSD), arXiv 2401.06706"
SEQUOIA = "Chen et al. 2024 (Sequoia), arXiv 2402.12374; Jeon et al. 2024 (RSD), arXiv 2402.14160"
quick = settings(max_examples=40, deadline=None, derandomize=True, database=None)

Excess = Callable[[Any, Any], Any]


def excess(r: Any, d: Any) -> Any:
    """(r - d)+ of two masses."""
    return sp.Max(r - d, 0)


# --- exactness, in general ----------------------------------------------------------------------------------------


def one_more_candidate(residual: Excess = excess) -> None:
    """If the rule with k - 1 candidates turns r' into r', the rule with k candidates turns r into r.

    residual: the masses (r, d) of a token -> what goes on after a refusal, before it is divided by its sum.
    """
    refused = sp.Symbol("refused", positive=True)
    for r, d in either_order("r", "d"):
        kept = sp.Min(r, d)  # d min(1, r/d)
        equal(residual(r, d), r - kept, "summed over the tokens, the residual weighs 1 - Σ min(r, d) = P(refused)")
        equal(kept + refused * (residual(r, d) / refused), r, "kept, or refused and then r' = residual/P(refused)")


def _exact(full: bool) -> Verdict:
    """Induction on k, for every law r in the place of t. k = 0: the output is drawn from r. k candidates: x_1 = y is
    drafted and kept with probability d(y) min(1, r(y)/d(y)) = min(r(y), d(y)); x_1 is refused with probability
    1 - Σ min(r, d), and then the other candidates are independent of it, so that by induction the output has law
    r' = (r - d)+/Σ (r - d)+. As Σ (r - d)+ = 1 - Σ min(r, d), the sum is min(r, d) + (r - d)+ = r. Where nothing is
    refused r = d, and r' is not used."""
    one_more_candidate()
    return Verdict("proved", "symbolically, all laws, all V and k, by induction on k")


@quick
@given(laws.pairs(smallest=2, largest=4, most_k=3))
def _exact_falsifier(pair: Any) -> None:
    target, draft, k = pair
    assert (output_law(get_selector("rrs"), target, draft, IID(k)) == target).all()


def _exact_without_replacement(full: bool) -> Verdict:
    """As for independent candidates: r' does not depend on which token x_1 was refused, and the induction hypothesis is
    for every law of the next candidates, here d without x_1. So after every refused x_1 the output has the same law r',
    and the masses over x_1 add up to P(refused). A refused token has r < d_i, so that it leaves the residual, and 0
    stays 0: after k refusals no candidate is drawn."""
    one_more_candidate()
    refused_tokens_never_return()
    refused, share = sp.symbols("refused share", positive=True)  # P(refused), P(x_1 = x | refused)
    after = sp.Symbol("after", nonnegative=True)  # r'(y)
    equal(refused * share * after + refused * (1 - share) * after, refused * after, "the same law after every x_1")
    return Verdict(
        "proved", "symbolically, all laws with at least k tokens in the draft, all V and k, by induction on k"
    )


@quick
@given(laws.pairs(smallest=3, largest=4, most_k=3))
def _exact_without_replacement_falsifier(pair: Any) -> None:
    target, draft, k = pair
    k = min(k, int((draft > 0).sum()))
    rule, law = get_selector("rrs_without_replacement"), WithoutReplacement(k)
    assert (output_law(rule, target, draft, law) == target).all()
    if k == 2:
        among = sum(
            weight * rule.conditional(target, draft, tokens)[tokens].sum()
            for tokens, weight in zip(*law.tuples(draft), strict=True)
        )
        assert among == accepted_without_replacement(target, draft)


# --- exactness for three tokens and two candidates, over all pairs --------------------------------------------------


def positive_difference(r: Any, d: Any) -> Any:
    """(r - d)+ for z3."""
    return smt.positive_part(r - d)


def two_independent_by_smt(residual: Excess = positive_difference, vocab: int = 3, timeout: float = 60.0) -> None:
    """The output law, summed over all pairs (x_1, x_2), is t: no laws t, d, r₂, r₃ break it.

    Every test is multiplied out: of a candidate's mass d, d min(1, r/d) = min(r, d) is kept and the rest refused.
    """
    (t, d, r2, r3), assumed = _laws("t", "d", "r", "s", vocab=vocab)
    assumed += _residual(r2, t, d, residual) + _residual(r3, r2, d, residual)
    first, second = _kept(t, d), _kept(r2, d)
    for y in range(vocab):
        out = first[y]
        for x1, x2 in product(range(vocab), repeat=2):
            refused = d[x1] - first[x1]
            out += refused * ((second[y] if x2 == y else 0) + (d[x2] - second[x2]) * r3[y])
        smt.prove(out != t[y], assumed, timeout)


def two_without_replacement_by_smt(
    residual: Excess = positive_difference, vocab: int = 3, timeout: float = 60.0
) -> None:
    """The same without replacement, in two parts. For each first token x the second stage, whose candidate has the law
    e with e(y) (1 - d(x)) = d(y), e(x) = 0, turns r₂ into r₂; with that the first stage turns t into t."""
    (t, d, r2), assumed = _laws("t", "d", "r", vocab=vocab)
    assumed += [*(mass < 1 for mass in d), *_residual(r2, t, d, residual)]
    first = _kept(t, d)
    for x1 in range(vocab):
        (e, r3), inner = _laws("e", "s", vocab=vocab)
        inner += [e[y] * (1 - d[x1]) == (0 if y == x1 else d[y]) for y in range(vocab)]
        inner += _residual(r3, r2, e, residual)
        second = _kept(r2, e)
        for y in range(vocab):
            out = second[y] + sum((e[x2] - second[x2]) * r3[y] for x2 in range(vocab))
            smt.prove(out != r2[y], [*assumed, *inner], timeout)
    for y in range(vocab):
        out = first[y] + sum((d[x1] - first[x1]) * r2[y] for x1 in range(vocab))
        smt.prove(out != t[y], assumed, timeout)


def _laws(*names: str, vocab: int) -> tuple[list[list[Any]], list[Any]]:
    made = [smt.law(name, vocab) for name in names]
    return [masses for masses, _ in made], [fact for _, facts in made for fact in facts]


def _residual(after: Sequence[Any], r: Sequence[Any], d: Sequence[Any], residual: Excess) -> list[Any]:
    """The law `after` is the residual divided by its sum; any law where that sum is 0."""
    weights = [residual(*masses) for masses in zip(r, d, strict=True)]
    return [sum(weights) * mass == weight for mass, weight in zip(after, weights, strict=True)]


def _kept(r: Sequence[Any], d: Sequence[Any]) -> list[Any]:
    return [smt.minimum(*masses) for masses in zip(r, d, strict=True)]


def _by_smt(full: bool) -> Verdict:
    """`two_independent_by_smt`: the whole rule, all 9 pairs of candidates."""
    two_independent_by_smt()
    return Verdict("proved", "all laws, V = 3, k = 2 (z3)")


def _without_replacement_by_smt(full: bool) -> Verdict:
    """`two_without_replacement_by_smt`: all 6 pairs of candidates, first token by first token."""
    two_without_replacement_by_smt()
    return Verdict("proved", "all laws with d(y) < 1 for all y, V = 3, k = 2 (z3)")


@settings(quick, max_examples=200)
@given(laws.pairs(smallest=3, largest=3))
def _by_smt_falsifier(pair: Any) -> None:
    """The law of the tokens that the code selects, its coins measured."""
    target, draft, _ = pair
    assert (output_law(get_selector("rrs"), target, draft, IID(2), by="select") == target).all()


@quick
@given(laws.pairs(smallest=3, largest=3))
def _without_replacement_by_smt_falsifier(pair: Any) -> None:
    target, draft, _ = pair
    law = WithoutReplacement(min(2, int((draft > 0).sum())))
    assert (output_law(get_selector("rrs_without_replacement"), target, draft, law, by="select") == target).all()


# --- acceptance -----------------------------------------------------------------------------------------------------


def refusals_add_up(merged: Callable[[Any, Any, Any], Any] = lambda t, w, c: sp.Max(t - w - c, 0)) -> None:
    """((t - w)+ - c)+ = (t - w - c)+ for c >= 0: refusing twice takes off both."""
    c = sp.Symbol("c", nonnegative=True)
    for t, w in either_order("t", "w"):
        equal(sp.Max(sp.Max(t - w, 0) - c, 0), merged(t, w, c), "two refusals")


def refused_tokens_never_return() -> None:
    """A token is refused only where r < d; then (r - d)+ = 0, and 0 stays 0."""
    for r, d in either_order("r", "d"):
        equal((d - sp.Min(r, d)) * excess(r, d), 0, "refused and in the residual")
    equal(excess(0, sp.Symbol("d", nonnegative=True)), 0, "later residuals")


def _acceptance(full: bool) -> Verdict:
    """Let R_i = P(x_1..x_i refused) and e_i = R_i r_(i+1), so that e_0 = t and Σ e_i = R_i. One step is e_(i+1) = R_i
    (r_(i+1) - d)+ = (e_i - R_i d)+. By induction e_i = (t - N_i d)+ with N_i = R_0 + .. + R_(i-1), which is the mean
    number of candidates looked at. So 1 - R_k = Σ (t - (t - N_k d)+) = Σ min(t, N_k d), and N_(i+1) = N_i + R_i = N_i
    + 1 - Σ min(t, N_i d). The product: R_(i+1) = Σ (e_i - R_i d)+ = R_i (1 - Σ min(r, d)). No token drawn from the
    last residual is among the candidates, since they were all refused."""
    refusals_add_up()
    refused_tokens_never_return()
    left = sp.Symbol("R", positive=True)
    for r, d in either_order("r", "d"):
        equal(excess(left * r, left * d), left * excess(r, d), "a step with e = R r")
        equal(excess(r, d), r - sp.Min(r, d), "its sum is R (1 - Σ min(r, d))")
    for t, w in either_order("t", "w"):  # w = N d
        equal(t - excess(t, w), sp.Min(t, w), "what is accepted")
    return Verdict("proved", "symbolically, all laws, all V and k, by induction on k")


def looked_at(target: Any, draft: Any, k: int) -> Any:
    """N_k, the mean number of candidates looked at."""
    number = target[0] * 0
    for _ in range(k):
        number = number + 1 - np.minimum(target, number * draft).sum()
    return number


@quick
@given(laws.pairs(smallest=2, largest=4, most_k=4))
def _acceptance_falsifier(pair: Any) -> None:
    """Against P(Y ∈ X), by enumeration of the candidates."""
    target, draft, k = pair
    rule = get_selector("rrs")
    tuples, probs = IID(k).tuples(draft)
    among = sum(
        weight * rule.conditional(target, draft, tokens)[np.unique(tokens)].sum()
        for tokens, weight in zip(tuples, probs, strict=True)
    )
    assert among == rule.acceptance(target, draft, IID(k))
    assert among == np.minimum(target, looked_at(target, draft, k) * draft).sum()


# --- comparisons ----------------------------------------------------------------------------------------------------


def excess_is_less_likely() -> None:
    """(r - d)+ <= r (1 - d) for 0 <= r <= 1, 0 <= d."""
    d, less = sp.symbols("d less", nonnegative=True)  # r = 1 - less = d + more, or d = r + more
    nonnegative((1 - less) * (1 - d) - ((1 - less) - d), "r >= d")
    r, more = sp.symbols("r more", nonnegative=True)
    other = sp.Symbol("other", nonnegative=True)  # 1 - d
    equal(excess(r, r + more), 0, "r <= d: no excess")
    nonnegative(r * other, "r <= d")


def _beats_membership(full: bool) -> Verdict:
    """Let R_k(r) be the probability that all k candidates are refused, from the law r. Claim: R_k(r) <= Σ r (1 - d)^k.
    k = 0: both are 1. R_k(r) = P(refused) R_(k-1)(r') <= P(refused) Σ r' (1 - d)^(k-1) = Σ (r - d)+ (1 - d)^(k-1), and
    (r - d)+ <= r (1 - d) token by token."""
    excess_is_less_likely()
    refused, mass = sp.symbols("refused mass", positive=True)
    equal(refused * (mass / refused), mass, "P(refused) r' = (r - d)+")
    return Verdict("proved", "symbolically, all laws, all V and k, by induction on k")


@quick
@given(laws.pairs(smallest=2, largest=6, most_k=4))
def _beats_membership_falsifier(pair: Any) -> None:
    target, draft, k = pair
    naive = get_selector("membership").acceptance(target, draft, IID(k))
    assert get_selector("rrs").acceptance(target, draft, IID(k)) >= naive


def refusals_get_likelier() -> None:
    """Σ min(r', d) <= Σ min(r, d) for r' = (r - d)+/q, q > 0, token by token."""
    for r, d in either_order("r", "d"):
        nonnegative(sp.Min(r, d), "where r <= d, r' = 0")
    for after, d in either_order("after", "d"):
        nonnegative(d - sp.Min(after, d), "where r >= d, min(r, d) = d, whatever r' is")


def early_products_are_smaller(left: Callable[[Any, Any], Any] = lambda i, k: i * (k - i)) -> None:
    """b_1 <= .. <= b_k: (b_1 .. b_i)^(k-i) <= b_i^(i(k-i)) <= (b_(i+1) .. b_k)^i, so (b_1 .. b_i)^k <= (b_1 .. b_k)^i.

    left: the exponent of b_i on the left, i factors of it to the power k - i.
    """
    b = sp.Symbol("b", positive=True)
    i, k = sp.symbols("i k", integer=True, positive=True)
    equal(b ** left(i, k), (b ** (k - i)) ** i, "both sides meet in a power of b_i")
    early, late = sp.symbols("early late", positive=True)
    equal(early**k, early**i * early ** (k - i), "k = i + (k - i)")
    equal(early**i * late**i, (early * late) ** i, "times (b_1 .. b_i)^i")


def geometric_sum() -> None:
    """β Σ_(i<k) (1 - β)^i = 1 - (1 - β)^k."""
    beta, k = sp.Symbol("beta", positive=True), sp.Symbol("k", integer=True, nonnegative=True)
    sums_to(beta * (1 - beta) ** k, 1 - (1 - beta) ** k, k, 0, "looked at by K-SEQ")


def more_looks_accept_more() -> None:
    """min(t, N d) does not decrease in N: it is at most t, and at most (N + further) d."""
    gain = sp.Symbol("gain", nonnegative=True)  # further d
    for t, w in either_order("t", "w"):  # w = N d
        nonnegative(t - sp.Min(t, w), "at most t")
        nonnegative(w + gain - sp.Min(t, w), "at most (N + further) d")


def _below_k_seq(full: bool) -> Verdict:
    """Write β_i = Σ min(r_i, d), R_i = Π_(j<=i) (1 - β_j) and β for K-SEQ's share at ρ*; then α(K-SEQ) = 1 - (1 - β)^k
    = Σ min(ρ* d, t), and ρ* = Σ_(i<k) (1 - β)^i if β > 0 (else t and d are disjoint and both accept nothing).
    β_(i+1) <= β_i, so the factors of R_i grow and R_i^k <= R_k^i. Suppose α(RRS) = 1 - R_k > α(K-SEQ). Then
    R_k < (1 - β)^k, so R_i <= (1 - β)^i for all i < k, and N_k = Σ_(i<k) R_i <= ρ*. But then
    α(RRS) = Σ min(t, N_k d) <= Σ min(t, ρ* d) = α(K-SEQ), against the supposition."""
    refusals_get_likelier()
    early_products_are_smaller()
    geometric_sum()
    more_looks_accept_more()
    scope = "symbolically, all laws, all V and k; uses recursive_rejection.5, spectr.4, spectr.5"
    return Verdict("proved", scope)


@quick
@given(laws.pairs(smallest=2, largest=6, most_k=5, arrays="float64"))
def _below_k_seq_falsifier(pair: Any) -> None:
    """In floats, by the selectors' own acceptance; ρ* is rounded up, which costs less than 1e-12."""
    target, draft, k = pair
    rrs, k_seq = (float(get_selector(name).acceptance(target, draft, IID(k))) for name in ("rrs", "k_seq"))
    assert rrs <= k_seq + 1e-12


def slow_falls(bound: Callable[[Any, Any], Any] = lambda a, gain: gain) -> None:
    """g(S) = Σ (t - S w)+ with w >= 0, Σ w <= 1: g does not increase, and S + g(S) does not decrease.

    For S <= S' put a = t - S w and gain = (S' - S) w. Token by token 0 <= a+ - (a - gain)+ <= gain; summed over the
    tokens, 0 <= g(S) - g(S') <= (S' - S) Σ w <= S' - S.
    """
    for a, gain in either_order("a", "gain"):  # a >= 0
        fall = a - excess(a, gain)
        nonnegative(fall, "g does not increase")
        nonnegative(bound(a, gain) - fall, "it falls by gain at most")
    below, gain = sp.symbols("below gain", nonnegative=True)  # a = -below
    equal(excess(-below, 0) - excess(-below, gain), 0, "no fall where t <= S w")


def larger_drafts_refuse_less() -> None:
    """The draft c w with c >= 1: T_i = c N_i obeys T_(i+1) = T_i + c g(T_i), and T_i >= S_i of the draft w.

    T_(i+1) - S_(i+1) = (T + g(T) - S - g(S)) + (c - 1) g(T), both >= 0.
    """
    n, g, grown, more = sp.symbols("n g grown more", nonnegative=True)
    c = 1 + more
    equal(c * (n + g), c * n + c * g, "the recursion in T = c N")
    s, gs = sp.symbols("s gs", nonnegative=True)
    t_next = s + gs + grown + more * g  # T + g(T) = S + g(S) + grown, plus (c - 1) g(T)
    nonnegative(t_next - (s + gs), "T stays ahead")


def renormalised_drafts_are_larger() -> None:
    """Without x the draft is d/(1 - d(x)) elsewhere: c = 1/(1 - d(x)) >= 1."""
    here, rest = sp.Symbol("here", nonnegative=True), sp.Symbol("rest", positive=True)  # d(x), 1 - d(x) = rest
    nonnegative(((rest + here) / rest) - 1, "1/(1 - d(x)) with 1 = rest + d(x)")


def _without_replacement_refuses_less(full: bool) -> Verdict:
    """Let R_k(r, d) and W_k(r, d) be the probabilities that all k candidates are refused, independent and without
    replacement. Claim W_k <= R_k, by induction; k = 1: equal. W_k(r, d) = Σ_x (d - r)+(x) W_(k-1)(r', d without x) <=
    Σ_x (d - r)+(x) R_(k-1)(r', d without x). A refused x has left r', and where r' > 0 the draft without x is c d, c =
    1/(1 - d(x)) >= 1. By recursive_rejection.5 R_(k-1)(r', .) depends on the draft where r' > 0 only, and is
    g(T_(k-1)) for the draft c d and g(S_(k-1)) for d, with g(S) = Σ (r' - S d)+; T >= S and g does not increase, so
    R_(k-1)(r', d without x) <= R_(k-1)(r', d), and Σ_x (d - r)+(x) R_(k-1)(r', d) = R_k."""
    refusals_add_up()
    refused_tokens_never_return()
    slow_falls()
    larger_drafts_refuse_less()
    renormalised_drafts_are_larger()
    return Verdict(
        "proved", "symbolically, all laws with at least k tokens in the draft, all V and k, by induction on k"
    )


@quick
@given(laws.pairs(smallest=3, largest=5, most_k=3))
def _without_replacement_refuses_less_falsifier(pair: Any) -> None:
    target, draft, k = pair
    k = min(k, int((draft > 0).sum()))
    without = get_selector("rrs_without_replacement").acceptance(target, draft, WithoutReplacement(k))
    assert without >= get_selector("rrs").acceptance(target, draft, IID(k))


# --- the cover ------------------------------------------------------------------------------------------------------


def residuals_stay_inside() -> None:
    """(r - d)+ <= r: a residual has no token that r has not."""
    for r, d in either_order("r", "d"):
        nonnegative(r - excess(r, d), "inside r")


def _cover(full: bool) -> Verdict:
    """If all k candidates were refused, the last residual would be a law on tokens of t (residuals stay inside r) that
    are no candidates (a refused token has left the residual and does not return). But the candidates are all tokens of
    d, which hold those of t: there is no such law, so the event has probability 0."""
    residuals_stay_inside()
    refused_tokens_never_return()
    return Verdict("proved", "symbolically, all laws, all V")


@quick
@given(laws.laws(2, 5), st.data())
def _cover_falsifier(draft: Any, data: Any) -> None:
    support = np.flatnonzero(draft)
    target = draft * 0
    target[support] = data.draw(laws.laws(len(support), len(support)))
    rule = get_selector("rrs_without_replacement")
    for tokens in WithoutReplacement(len(support)).tuples(draft)[0]:
        share, judged, left = Fraction(1), draft, target  # step by step, as the rule is written down
        for token in tokens:
            share *= max(0, 1 - left[token] / judged[token])
            after = np.maximum(left - judged, 0)
            left = after / after.sum() if after.any() else left
            judged = judged.copy()
            judged[token] = Fraction(0)
            judged = judged / judged.sum() if judged.any() else judged
        assert share == 0
        assert rule.conditional(target, draft, tokens)[tokens].sum() == 1


# --- refuted --------------------------------------------------------------------------------------------------------


def rejection_law(target: Any, draft: Any, k: int, skips: bool = False) -> tuple[list[Fraction], Fraction]:
    """The output law of RRS and the probability that a candidate is kept, over all tuples, by its definition.

    skips: a candidate that was refused before is passed over, and the residual stays as it is.
    """
    vocab = len(target)
    law, kept = [Fraction(0)] * vocab, Fraction(0)
    for tokens in product(range(vocab), repeat=k):
        left, reach = list(target), Fraction(1)
        for x in tokens:
            reach *= draft[x]
        for i, x in enumerate(tokens):
            if not reach or (skips and x in tokens[:i]):
                continue
            share = min(Fraction(1), left[x] / draft[x])
            law[x] += reach * share
            kept += reach * share
            reach *= 1 - share
            over = [max(r - d, Fraction(0)) for r, d in zip(left, draft, strict=True)]
            left = [mass / sum(over) for mass in over] if any(over) else left
        law = [mass + reach * r for mass, r in zip(law, left, strict=True)]
    return law, kept


DUPLICATES = ([Fraction(1, 2), Fraction(0), Fraction(1, 2)], [Fraction(0), Fraction(2, 3), Fraction(1, 3)])


def _skipping(full: bool) -> Verdict:
    """Both rules on the counter-example, over its pairs."""
    law, _ = rejection_law(*DUPLICATES, 2, skips=True)
    breaks = law != DUPLICATES[0] and rejection_law(*DUPLICATES, 2)[0] == DUPLICATES[0]
    example = (
        "t = (1/2, 0, 1/2), d = (0, 2/3, 1/3), k = 2. Token 1 is always refused, and r₂ = (3/4, 0, 1/4). The pair "
        "(1, 1) has probability 4/9; RRS refuses twice and gives token 0 with r₃ = (1, 0, 0), but with the duplicate "
        "skipped the output comes from r₂. The pair (1, 2), probability 2/9, gives 0 with probability 1/4. So P(Y = "
        f"0) = 4/9 · 3/4 + 2/9 · 1/4 = {law[0]} and not 1/2"
    )
    return counter_example(breaks, "one law pair, V = 3, k = 2", example)


def _skipping_falsifier() -> None:
    """It is found again, on another law pair, and the library's rule, which skips nothing, is exact there."""
    assert rejection_law(*DUPLICATES, 2, skips=True)[0] != DUPLICATES[0]
    pair = found(
        laws.pairs(smallest=3, largest=3), lambda p: rejection_law(p.target, p.draft, 2, True)[0] != list(p.target)
    )
    assert (output_law(get_selector("rrs"), pair.target, pair.draft, IID(2)) == pair.target).all()


EVEN = ([Fraction(1, 2), Fraction(1, 2)], [Fraction(3, 4), Fraction(1, 4)])


def _not_optimal(full: bool) -> Verdict:
    """RRS by its definition; the optimum of two tokens between a plan and the cut
    α* <= 1 + t(H) - d(H)², H = {0} (optimal_cut)."""
    _, kept = rejection_law(*EVEN, 2)
    (t0, _), (d0, _) = EVEN
    best = 1 + t0 - d0**2  # the cut H = {0}
    attained = min(t0, d0**2) + min(1 - t0, 1 - d0**2)  # (0, 0) gives 0, every other pair holds 1 and gives it
    breaks = kept < attained == best
    example = (
        f"t = (1/2, 1/2), d = (3/4, 1/4), k = 2. RRS: Σ min(t, d) = 3/4, r₂ = (0, 1), so α = 1 - 1/4 · 3/4 = {kept}. "
        "Better: (0, 0) gives 0 where it can, with probability 1/2 of its 9/16, and every other pair holds 1 and "
        f"gives it: α = 1/2 + 7/16 = {best}"
    )
    return counter_example(breaks, "one law pair, V = 2, k = 2", example)


def _not_optimal_falsifier() -> None:
    """The gap on the example and on another pair, by the library's rule and its optimum."""

    def gap(pair: Any) -> bool:
        accepted = get_selector("rrs").acceptance(pair.target, pair.draft, IID(2))
        return optimal_acceptance(pair.target, pair.draft, IID(2)) - accepted > Fraction(1, 100)

    assert gap(instance(EVEN, 2))
    found(laws.pairs(smallest=2, largest=4), gap)


OVERTAKEN = (
    [Fraction(1, 2), Fraction(1, 2), Fraction(0)],
    [Fraction(1, 4), Fraction(1, 2), Fraction(1, 4)],
)


def accepted_without_replacement(target: Any, draft: Any) -> Fraction:
    """RRS without replacement, k = 2, by its definition."""
    kept, vocab = Fraction(0), range(len(target))
    over = [max(t - d, Fraction(0)) for t, d in zip(target, draft, strict=True)]
    after = [mass / sum(over) for mass in over] if any(over) else list(target)
    for x in vocab:
        first = min(draft[x], target[x])
        left = [Fraction(0) if y == x else d / (1 - draft[x]) for y, d in enumerate(draft)]
        kept += first + (draft[x] - first) * sum(min(after[y], left[y]) for y in vocab)
    return kept


def k_seq_at(target: Any, draft: Any, rho: Fraction) -> tuple[Fraction, Fraction]:
    """1 - (1 - β)² - ρ β, which is positive iff ρ < ρ* (k = 2), and Σ min(ρ d, t)."""
    share = sum((min(d, t / rho) for t, d in zip(target, draft, strict=True)), start=Fraction(0))
    return 1 - (1 - share) ** 2 - rho * share, rho * share


def _overtaken(full: bool) -> Verdict:
    """Both rules by their definitions. For K-SEQ ρ = 11/8 is below ρ*, and Σ min(ρ d, t) does not decrease in ρ."""
    without = accepted_without_replacement(*OVERTAKEN)
    above, least = k_seq_at(*OVERTAKEN, Fraction(11, 8))
    breaks = above > 0 and least > without
    example = (
        "t = (1/2, 1/2, 0), d = (1/4, 1/2, 1/4), k = 2. RRS without replacement: 3/4 is kept at once; only token 2 is "
        "refused, r₂ = (1, 0, 0), and the second candidate is 0 with probability 1/3: "
        f"α = 3/4 + 1/4 · 1/3 = {without}. K-SEQ on independent candidates: β(ρ) = 1/4 + 1/(2ρ), and "
        f"1 - (1 - β)² > ρβ at ρ = 11/8, so ρ* > 11/8 and α = ρ*/4 + 1/2 > {least}"
    )
    return counter_example(breaks, "one law pair, V = 3, k = 2", example)


def _overtaken_falsifier() -> None:
    """By the library's rules, in floats, on the example and on another pair."""

    def overtaken(pair: Any) -> bool:
        if (pair.draft > 0).sum() < 2:
            return False
        without = get_selector("rrs_without_replacement").acceptance(pair.target, pair.draft, WithoutReplacement(2))
        return get_selector("k_seq").acceptance(pair.target, pair.draft, IID(2)) > without + 1e-3

    assert overtaken(instance(OVERTAKEN, 2, np.float64))
    found(laws.pairs(smallest=3, largest=4, arrays="float64"), overtaken)


THEOREMS = (
    Theorem(
        "recursive_rejection.1",
        "RRS: r_1 = t; the candidate x_i, i = 1..k, is kept with probability min(1, r_i(x_i)/d(x_i)); if it is "
        "refused, r_{i+1} = (r_i − d)₊ divided by its sum; after k refusals the output is drawn from r_{k+1}. With k "
        "independent candidates of law d the output has law t.",
        SPECINFER,
        "proved",
        _exact,
        _exact_falsifier,
    ),
    Theorem(
        "recursive_rejection.2",
        "V = 3, k = 2: the output law of RRS, summed over all pairs of independent candidates, is t.",
        SPECINFER,
        "proved",
        _by_smt,
        _by_smt_falsifier,
    ),
    Theorem(
        "recursive_rejection.3",
        "RRS without replacement, where d has at least k tokens (x_i ~ d_i = d without x_1..x_{i−1}, renormalised; "
        "a refusal of x_i takes off the d_i it was drawn from): the output has law t. None of the last residual's "
        "tokens is a candidate, so that α = P(a candidate is kept).",
        SEQUOIA,
        "proved",
        _exact_without_replacement,
        _exact_without_replacement_falsifier,
    ),
    Theorem(
        "recursive_rejection.4",
        "V = 3, k = 2: the output law of RRS without replacement, summed over all pairs of different candidates, is t.",
        SEQUOIA,
        "proved",
        _without_replacement_by_smt,
        _without_replacement_by_smt_falsifier,
    ),
    Theorem(
        "recursive_rejection.5",
        "RRS, independent candidates: α = 1 − Π_{i ≤ k} (1 − Σ_y min(r_i(y), d(y))) = Σ_y min(t(y), N_k d(y)), "
        "where N_k is the mean number of candidates looked at: N_0 = 0, N_{i+1} = N_i + 1 − Σ_y min(t(y), N_i "
        "d(y)). The last residual is (t − N_k d)₊ divided by its sum, and none of its tokens is a candidate.",
        "product: Yang et al. 2024 (MCSD), arXiv 2401.06706; closed form: this project",
        "proved",
        _acceptance,
        _acceptance_falsifier,
    ),
    Theorem(
        "recursive_rejection.6",
        "RRS on k independent candidates accepts at least as much as naive sampling (Y ~ t, accepted iff Y ∈ X): "
        "α ≥ Σ_y t(y) (1 − (1 − d(y))^k).",
        "Miao et al. 2023 (SpecInfer), arXiv 2305.09781",
        "proved",
        _beats_membership,
        _beats_membership_falsifier,
    ),
    Theorem(
        "recursive_rejection.7",
        "On k independent candidates K-SEQ at ρ* accepts at least as much as RRS, for all t, d and k.",
        "this project",
        "proved",
        _below_k_seq,
        _below_k_seq_falsifier,
    ),
    Theorem(
        "recursive_rejection.8",
        "RRS without replacement accepts at least as much as RRS on independent candidates, for all t, k and d with at "
        "least k tokens.",
        "this project",
        "proved",
        _without_replacement_refuses_less,
        _without_replacement_refuses_less_falsifier,
    ),
    Theorem(
        "recursive_rejection.9",
        "Cover: if d has exactly k tokens and every token of t is one of them, RRS without replacement with k "
        "candidates keeps one of them with probability 1.",
        "Chen et al. 2024 (Sequoia), arXiv 2402.12374",
        "proved",
        _cover,
        _cover_falsifier,
    ),
    Theorem(
        "recursive_rejection.10",
        "A candidate that repeats a refused one may be skipped, the residual staying as it is: RRS on independent "
        "candidates still has output law t.",
        "common belief",
        "refuted",
        _skipping,
        _skipping_falsifier,
    ),
    Theorem(
        "recursive_rejection.11",
        "RRS accepts the most that any exact rule can on independent candidates: α = α*.",
        "common belief (true for k = 1)",
        "refuted",
        _not_optimal,
        _not_optimal_falsifier,
    ),
    Theorem(
        "recursive_rejection.12",
        "Different candidates are always better: RRS without replacement accepts at least as much as K-SEQ at ρ* "
        "does on k independent candidates.",
        "common belief",
        "refuted",
        _overtaken,
        _overtaken_falsifier,
    ),
)
