"""The optimum as a cut over token sets (Hu et al. 2025), and when drafts are i.i.d. a scan over prefixes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import combinations, product
from typing import Any

import numpy as np
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from ot_spec import IID, DraftLaw, HubPair, TopThenSample, WithoutReplacement
from ot_spec.draft_law import Independent
from ot_spec.problem import MembershipTransport
from proofs_check import strategies as laws
from proofs_check.theorems.algebra import equal, least, nonnegative, powers_are_convex
from proofs_check.theorems.instances import Instance, pairs
from proofs_check.theorems.theorem import Refuted, Theorem, Verdict, counter_example
from solvers import get_selector, optimal_acceptance, solve

__all__ = ["THEOREMS"]

HU = "Hu et al. 2025, arXiv 2502.18779"
quick = settings(max_examples=30, deadline=None, derandomize=True, database=None)


def subsets(vocab: int) -> list[list[int]]:
    return [list(chosen) for size in range(vocab + 1) for chosen in combinations(range(vocab), size)]


def inside(problem: MembershipTransport, tokens: Iterable[int]) -> Any:
    """Q(H) by going through the candidate sets."""
    held = {-1, *tokens}
    return sum(
        (p for p, s in zip(problem.probs, problem.members.tolist(), strict=True) if held.issuperset(s)), Fraction(0)
    )


def least_cut(problem: MembershipTransport, sets: Iterable[Sequence[int]] | None = None) -> Any:
    """min over token sets H (default: all) of 1 + t(H) - Q(H)."""
    chosen = subsets(problem.vocab) if sets is None else sets
    return min(1 + sum((problem.target[y] for y in s), Fraction(0)) - inside(problem, s) for s in chosen)


# --- weak duality ------------------------------------------------------------------------------------------------


def accepted_outside_the_cut(possible: Callable[[bool, bool, bool], bool] | None = None) -> None:
    """P(accepted) <= P(Y in H) + P(X not inside H), atom by atom of (accepted, X inside H, Y in H).

    possible(accepted, inside, in_set): which atoms can have mass. Accepted means Y in X; with X inside H that puts Y
    into H.
    """
    possible = possible or (lambda accepted, inside, in_set: in_set or not (accepted and inside))
    accepted = output = outside = sp.Integer(0)
    for atom in product((True, False), repeat=3):
        if possible(*atom):
            mass = sp.Symbol("p" + "".join("01"[event] for event in atom), nonnegative=True)
            accepted += mass * int(atom[0])
            outside += mass * int(not atom[1])
            output += mass * int(atom[2])
    nonnegative(output + outside - accepted, "weak duality")


def _weak(full: bool) -> Verdict:
    """If Y in X and X inside H then Y in H. So acceptance has no part outside {Y in H} and {X not inside H}, of
    probabilities t(H) and 1 - Q(H). A coupling of acceptance a and an H with 1 + t(H) - Q(H) = a bound each other."""
    accepted_outside_the_cut()
    return Verdict("proved", "symbolically, all laws, all draft laws, all V, all k ≥ 1")


@quick
@given(laws.pairs(smallest=2, largest=4, most_k=3), st.integers(0, 15))
def _weak_falsifier(pair: Any, chosen: int) -> None:
    """Rules that are exact for i.i.d. drafts, by their own acceptance, against every kind of set."""
    target, draft, k = pair
    held = [y for y in range(len(target)) if chosen >> y & 1]
    bound = 1 + target[held].sum() - draft[held].sum() ** k
    for name in ("k_seq", "rrs", "membership", "optimal"):
        assert get_selector(name).acceptance(target, draft, IID(k)) <= bound


# --- strong duality ----------------------------------------------------------------------------------------------


def draft_laws(instance: Instance) -> list[DraftLaw]:
    _, draft, k = instance
    other = np.roll(draft, 1)
    found: list[DraftLaw] = [IID(k), WithoutReplacement(k), TopThenSample(k)]
    if k > 1:
        found.append(Independent(np.stack([draft, *[other] * (k - 1)])))
    if k == 2 and max(draft) < 1:
        found.append(HubPair())
    return found


def network_cuts() -> None:
    """Network: source to each candidate set S with capacity D(S), S to its tokens without limit, y to the sink, t(y).

    A finite cut keeps sets A and tokens B on the source's side, every S in A inside B, and costs D(not in A) + t(B).
    That is least if A holds all sets inside B, where it is 1 - Q(B) + t(B).
    """
    kept, dropped, crossing, target = sp.symbols("kept dropped crossing target", nonnegative=True)
    # masses of sets in A, of sets inside B but not in A, of sets not inside B; t(B)
    cost, least_cost = dropped + crossing + target, crossing + target
    nonnegative(cost - least_cost, "all sets inside B are kept")
    whole, inside_b = kept + dropped + crossing, kept + dropped
    equal(least_cost, whole - inside_b + target, "1 - Q(B) + t(B)")


def any_flow_is_a_plan(rest: Callable[[Any, Any, Any], Any] = lambda row, column, left: row * column / left) -> None:
    """What a flow leaves of D and of t has the same total `left`, both having total 1, so coupling the rest
    independently gives both marginals and accepts at least the flow; and a coupling's accepted mass is a flow: its
    rows and columns are at most D and t. With nothing left the flow is a plan itself.

    rest: (what is left of D(S), of t(y), in all) -> what the pair (S, y) is given beside the flow.
    """
    row, column, other = sp.symbols("row column other", nonnegative=True)
    left = sp.Symbol("left", positive=True)
    equal(rest(row, column + other, left), rest(row, column, left) + rest(row, other, left), "sums over tokens")
    equal(rest(row + other, column, left), rest(row, column, left) + rest(other, column, left), "sums over sets")
    equal(rest(row, left, left), row, "over all tokens: the row sums to D(S)")
    equal(rest(left, column, left), column, "over all sets: the column sums to t(y)")
    nonnegative(rest(row, column, left), "a coupling, which accepts the flow and perhaps more")


def _strong(full: bool) -> Verdict:
    """α* is the largest flow of the network (any_flow_is_a_plan), that is its least cut, and the cuts are those of
    token sets (network_cuts). Beside it the linear program is solved in fractions on instances and compared with the
    least cut over all 2^V sets, Q by enumeration."""
    any_flow_is_a_plan()
    network_cuts()
    done = 0
    for instance in pairs(160 if full else 48, 5 if full else 4, (1, 2, 3), room=130):
        for law in draft_laws(instance):
            problem = MembershipTransport(instance.target, instance.draft, law)
            best, cut = solve(problem, method="rational").acceptance, least_cut(problem)
            if best != cut:
                raise Refuted(f"{law.name}, {instance}: α* = {best}, least cut {cut}")
            done += 1
    checked = f"{done} rational instances under five draft laws, V ≤ {5 if full else 4}, k ≤ 3"
    return Verdict(
        "proved", f"all laws, all draft laws, all V, all k; uses the max-flow min-cut theorem; and {checked}"
    )


@quick
@given(laws.pairs(smallest=2, largest=5, most_k=3))
def _strong_falsifier(pair: Any) -> None:
    """An exact maximum flow instead of the linear program."""
    target, draft, k = pair
    for law in (IID(k), WithoutReplacement(k)):
        problem = MembershipTransport(target, draft, law)
        assert solve(problem, method="max_flow").acceptance == least_cut(problem)


# --- prefixes suffice --------------------------------------------------------------------------------------------


def prefixes_hold_least(slope: Callable[[Any], Any] = lambda s: s) -> None:
    """t(H) >= T + s (d(H) - D) for the prefix P of masses (T, D) before a token of ratio s, in order of t/d.

    t(H) - T = t(H \\ P) - t(P \\ H) and the same for d; each token outside P has t >= s d, each inside t <= s d.
    """
    s, gained_d, over, lost_d, under, kept_t, kept_d = sp.symbols(
        "s gained_d over lost_d under kept_t kept_d", nonnegative=True
    )  # sums over H \ P, over P \ H, over both
    gained_t, lost_t = s * gained_d + over, s * lost_d - under
    t, d = kept_t + gained_t, kept_d + gained_d
    prefix_t, prefix_d = kept_t + lost_t, kept_d + lost_d
    nonnegative(t - (prefix_t + slope(s) * (d - prefix_d)), "Neyman-Pearson")


def concave_on_a_segment(power: Callable[[Any, Any], Any] = lambda x, k: x**k) -> None:
    """On the segment from (D, T) to (D', T') the cut T(x) - x^k is at least the smaller of its ends.

    With x = w D + (1 - w) D', T linear in x and x^k <= w D^k + (1 - w) D'^k, so the cut is at least the mean of its
    ends with weights w and 1 - w.
    """
    powers_are_convex()
    w, rest, first, second, saved, lower = sp.symbols("w rest first second saved lower", nonnegative=True)
    t0, t1, d0, d1 = sp.symbols("t0 t1 d0 d1", nonnegative=True)
    k = sp.Symbol("k", integer=True, positive=True)
    # x^k = w D^k + (1 - w) D'^k - saved, saved >= 0
    ends = [t0 - power(d0, k), t1 - power(d1, k)]
    here = w * t0 + (1 - w) * t1 - (w * d0**k + (1 - w) * d1**k - saved)
    equal(here, w * ends[0] + (1 - w) * ends[1] + saved, "concavity")
    # a mean of lower + first and lower + second is at least lower
    equal(w * (lower + first) + (1 - w) * (lower + second) - lower, w * first + (1 - w) * second, "a mean")
    nonnegative(w * first + rest * second + saved, "a mean")


def _prefixes(full: bool) -> Verdict:
    """Take any H. In order of t/d, d(H) lies between the draft masses of two neighbouring prefixes, and t(H) is at
    least the linear interpolation of their target masses there (Neyman-Pearson). The cut value 1 + t(H) - d(H)^k is
    then at least 1 + T(x) - x^k at x = d(H), concave in x on that segment since x^k is convex, hence at least one of
    its ends, which is the cut of a prefix. Tokens with d = 0 come last and only add to t(H)."""
    prefixes_hold_least()
    concave_on_a_segment()
    return Verdict("proved", "symbolically, all laws, all V, all k ≥ 1")


def ascending(target: Any, draft: Any) -> list[int]:
    """Tokens by t/d, those without draft mass last."""
    return sorted(range(len(target)), key=lambda y: (draft[y] == 0, target[y] / draft[y] if draft[y] else 0))


@quick
@given(laws.pairs(smallest=3, largest=7, most_k=5))
def _prefixes_falsifier(pair: Any) -> None:
    """All 2^V sets against the V + 1 prefixes."""
    target, draft, k = pair
    order = ascending(target, draft)
    sets = [order[:size] for size in range(len(order) + 1)]
    every, prefix = (
        min(target[held].sum() - draft[held].sum() ** k if held else Fraction(0) for held in some)
        for some in (subsets(len(target)), sets)
    )
    assert prefix == every == optimal_acceptance(target, draft, IID(k)) - 1


# --- two tokens --------------------------------------------------------------------------------------------------


def flow_on_two_tokens(both: Callable[[Any, Any], Any] = least) -> None:
    """The flow that serves (0, .., 0) and (1, .., 1) first and gives what is left of both tokens to mixed tuples.

    A = P(all are 0), B = P(all are 1), mixed = 1 - A - B >= 0. In each order of t(0) and A, t(1) and B (not A > t(0)
    and B > t(1), since A + B <= 1) its total is the least of the three cuts 1, 1 + t(0) - A, 1 + t(1) - B.
    """
    a, b, mixed, h, g = sp.symbols("a b mixed h g", nonnegative=True)

    def total(t0: Any, t1: Any, a: Any, b: Any, mixed: Any) -> Any:
        zero, one = both(a, t0), both(b, t1)
        return zero + one + both(mixed, (t0 - zero) + (t1 - one))

    # A <= t(0), B <= t(1): t(0) = A + h, t(1) = B + g, mixed = h + g
    flow = total(a + h, b + g, a, b, h + g)
    equal(flow, a + b + h + g, "everything is served")
    nonnegative((a + h) - a, "the cut at 0")
    nonnegative((b + g) - b, "the cut at 1")
    # A = t(0) + h, so t(1) = 1 - t(0) = B + mixed + h
    t0 = sp.Symbol("t0", nonnegative=True)
    flow = total(t0, b + mixed + h, t0 + h, b, mixed)
    whole = (t0 + h) + b + mixed  # = 1
    equal(flow, whole + t0 - (t0 + h), "the cut at 0 is met")
    nonnegative(whole - flow, "it is below 1")
    nonnegative(whole + (b + mixed + h) - b - flow, "it is below the cut at 1")


def _two(full: bool) -> Verdict:
    """For each order of masses the flow written down attains a cut, so it is optimal by weak duality. The case
    B > t(1) is that of A > t(0) with the tokens exchanged. k enters through A = d(0)^k and B = d(1)^k only."""
    accepted_outside_the_cut()
    flow_on_two_tokens()
    return Verdict("proved", "symbolically, all laws, V = 2, all k ≥ 1, any draft law with A = P(all 0), B = P(all 1)")


@quick
@given(laws.pairs(smallest=2, largest=2, most_k=5))
def _two_falsifier(pair: Any) -> None:
    """The linear program in fractions."""
    target, draft, k = pair
    cuts = [Fraction(1), *(1 + t - d**k for t, d in zip(target, draft, strict=True))]
    assert solve(MembershipTransport(target, draft, IID(k)), method="rational").acceptance == min(cuts)


# --- everything accepted -----------------------------------------------------------------------------------------


def everything_or_a_cut() -> None:
    """The least cut 1 + min_H [t(H) - d(H)^k] is 1 iff no H has t(H) < d(H)^k: at H = {} it is 1 already."""
    k = sp.Symbol("k", integer=True, positive=True)
    t, d = sp.symbols("t d", nonnegative=True)
    cut = 1 + t - d**k
    equal(cut.subs({t: 0, d: 0}), 1, "the empty set")
    equal(cut - 1, t - d**k, "below 1")


def _one(full: bool) -> Verdict:
    """α* is the least cut (max-flow min-cut, optimal_cut.2), and a cut is below 1 iff t(H) < d(H)^k. Only prefixes need
    be asked (optimal_cut.3)."""
    everything_or_a_cut()
    network_cuts()
    prefixes_hold_least()
    concave_on_a_segment()
    return Verdict("proved", "symbolically, all laws, all V, all k ≥ 1; uses the max-flow min-cut theorem")


@quick
@given(laws.pairs(smallest=2, largest=4, most_k=4), st.booleans())
def _one_falsifier(pair: Any, towards: bool) -> None:
    """The exact linear program; half of the drafts are moved towards the target, so that both answers occur."""
    target, draft, k = pair
    draft = (draft + 3 * target) / 4 if towards else draft
    within = all(target[held].sum() >= draft[held].sum() ** k for held in subsets(len(target)) if held)
    best = solve(MembershipTransport(target, draft, IID(k)), method="rational").acceptance
    assert (best == 1) == within


# --- candidates that are taken and one that is drawn -------------------------------------------------------------


def value_of_top_then_sample(fixed: Callable[[Any], Any] = lambda held: held) -> None:
    """Upper bound: acceptance inside T is at most P(Y in T), and at y outside T at most P(Y = y) and at most
    P(y is drawn) = d~(y). The rule: the step with (d~, t) keeps min(t, d~) of each token outside T; d~ = 0 on T, so the
    residual there is t, all of it candidates; and a residual draw outside T is at t > d~, where nothing is refused."""
    held, both, only_x, only_y = sp.symbols("held both only_x only_y", nonnegative=True)  # held = t(T)
    nonnegative((both + only_y) - both, "at most t(y)")
    nonnegative((both + only_x) - both, "at most d~(y)")
    t = sp.Symbol("t", nonnegative=True)
    equal(sp.Max(t - 0, 0), t, "the residual on T")
    kept = sp.Symbol("kept", nonnegative=True)  # Σ_{y not in T} min(t, d~)
    refused = sp.Symbol("refused", positive=True)  # 1 - kept, the residual's total
    equal(kept + refused * (fixed(held) / refused), held + kept, "what the rule accepts")
    from_one = sp.symbols("x h", nonnegative=True)
    for target, drafted in ((from_one[0] + from_one[1], from_one[0]), (from_one[0], from_one[0] + from_one[1])):
        equal(sp.Max(drafted - target, 0) * sp.Max(target - drafted, 0), 0, "refused and drawn again")


def _top(full: bool) -> Verdict:
    """Bound and rule meet at t(T) + Σ_{y not in T} min(t, d~). If d(T) = 1 nothing is drawn, and X = T gives t(T)."""
    value_of_top_then_sample()
    return Verdict("proved", "symbolically, all laws, all V, all k ≥ 1, any set T of k − 1 tokens")


@quick
@given(laws.pairs(smallest=3, largest=5, most_k=3))
def _top_falsifier(pair: Any) -> None:
    """The linear program in fractions, T and d~ found anew."""
    target, draft, k = pair
    order = sorted(range(len(draft)), key=lambda y: (-draft[y], y))
    held, others = order[: k - 1], order[k - 1 :]
    left = draft[others].sum()
    value = sum(target[held]) + (np.minimum(target[others], draft[others] / left).sum() if left else 0)
    assert solve(MembershipTransport(target, draft, TopThenSample(k)), method="rational").acceptance == value


FLAT = ([Fraction(1), Fraction(0), Fraction(0)], [Fraction(1, 3)] * 3)


def value_for(held: Sequence[int], target: Sequence[Fraction], draft: Sequence[Fraction]) -> Fraction:
    """Top-then-sample's value with T = held: t(T) + Σ_{y not in T} min(t, d~)."""
    others = [y for y in range(len(draft)) if y not in held]
    left = sum((draft[y] for y in others), Fraction(0))
    sampled = (min(target[y], draft[y] / left) for y in others if left)
    return sum((target[y] for y in held), Fraction(0)) + sum(sampled, Fraction(0))


def _ties(full: bool) -> Verdict:
    """One pair under two choices of the top token."""
    first, second = (value_for([top], *FLAT) for top in (0, 1))
    example = (
        "t = (1, 0, 0), d = (1/3, 1/3, 1/3), k = 2. With T = {0} token 0 is always a candidate: "
        f"α* = {first}. With T = {{1}} it is one with probability (1/3)/(2/3): α* = {second}"
    )
    return counter_example((first, second) == (1, Fraction(1, 2)), "one law pair, V = 3, k = 2", example)


@quick
@given(laws.pairs(smallest=2, largest=4, most_k=2))
def _ties_falsifier(pair: Any) -> None:
    """The linear program on the example with the tokens in two orders; without a tie the order does not matter."""
    target, draft = (np.array(law, dtype=object) for law in FLAT)
    values = [
        solve(MembershipTransport(law, draft, TopThenSample(2)), method="rational").acceptance
        for law in (target, target[::-1])
    ]
    assert values == [1, Fraction(1, 2)]
    target, draft, k = pair
    if len(set(draft)) == len(draft):
        rule, law = get_selector("top_then_sample"), TopThenSample(k)
        assert rule.acceptance(target, draft, law) == rule.acceptance(target[::-1], draft[::-1], law)


# --- tuples and sets ---------------------------------------------------------------------------------------------


def sets_and_tuples(share: Callable[[Any, Any], Any] = lambda mass, whole: mass / whole) -> None:
    """A plan π(S, y) over sets gives D(x) π(S(x), y)/D(S(x)) over tuples: the rows sum to D(x), the tuples of a set to
    π(S, y). The sums of a plan over tuples are one over sets. Both ways y in S(x) keeps its mass."""
    first, others = sp.symbols("first others", positive=True)  # D(x), and the rest of D(S(x))
    flow = sp.Symbol("flow", nonnegative=True)  # π(S, y)
    whole = first + others
    equal(share(first, whole) * flow + share(others, whole) * flow, flow, "the tuples of a set")
    equal(share(first, whole) * whole, first, "a row: Σ_y π(S, y) = D(S)")


def _sets(full: bool) -> Verdict:
    """A plan over either is made into one over the other, with the same acceptance: membership depends on the set."""
    sets_and_tuples()
    return Verdict("proved", "symbolically, all laws, all draft laws, all V, all k ≥ 1")


@quick
@given(laws.pairs(smallest=2, largest=3, most_k=3))
def _sets_falsifier(pair: Any) -> None:
    """An optimal plan over sets as one over tuples, from its conditionals; no cut over tuples lies below it."""
    target, draft, k = pair
    plan = solve(MembershipTransport(target, draft, IID(k)), method="rational")
    tuples, probs = IID(k).tuples(draft)
    rows = [plan.conditional(row) for row in tuples]
    assert (sum(p * row for p, row in zip(probs, rows, strict=True)) == target).all()
    accepted = sum(p * row[sorted(set(x))].sum() for p, row, x in zip(probs, rows, tuples.tolist(), strict=True))
    assert accepted == plan.acceptance
    within = [[set(x) <= set(held) for x in tuples.tolist()] for held in subsets(len(target))]
    cuts = [1 + sum(target[held]) - sum(probs[mask]) for held, mask in zip(subsets(len(target)), within, strict=True)]
    assert accepted == min(cuts)


THEOREMS = (
    Theorem(
        "optimal_cut.1",
        "Weak duality: for every coupling of candidates X and output Y ~ t and every token set H, "
        "P(Y ∈ X) ≤ 1 + t(H) − Q(H). A coupling and a set with equality prove each other optimal.",
        HU,
        "proved",
        _weak,
        _weak_falsifier,
    ),
    Theorem(
        "optimal_cut.2",
        "α* = 1 + min over all token sets H of t(H) − Q(H), for every draft law (i.i.d., without replacement, top then "
        "sample, hub pairs, independent drafts of different laws).",
        HU,
        "proved",
        _strong,
        _strong_falsifier,
    ),
    Theorem(
        "optimal_cut.3",
        "k i.i.d. drafts: Q(H) = d(H)^k, and some set that attains min over H of t(H) − d(H)^k is a prefix of the "
        "tokens in ascending order of t/d (d = 0 last), however ties are ordered.",
        HU,
        "proved",
        _prefixes,
        _prefixes_falsifier,
    ),
    Theorem(
        "optimal_cut.4",
        "Two tokens, k i.i.d. drafts: α* = min(1, 1 + t(0) − d(0)^k, 1 + t(1) − d(1)^k).",
        HU,
        "proved",
        _two,
        _two_falsifier,
    ),
    Theorem(
        "optimal_cut.5",
        "k i.i.d. drafts: α* = 1 iff t(S) ≥ d(S)^k for all token sets S; it is enough to ask the prefixes in "
        "ascending t/d.",
        "Khisti et al. 2025, arXiv 2410.18234 (k = 2); Hu et al. 2025",
        "proved",
        _one,
        _one_falsifier,
    ),
    Theorem(
        "optimal_cut.6",
        "Top then sample: X holds a fixed set T of k − 1 tokens and one draw from d~, the draft outside T "
        "renormalised. α* = t(T) + Σ_{y ∉ T} min(t(y), d~(y)), attained by the one-draft step with (d~, t) in which "
        "residual draws that land in T are accepted; α* = t(T) if d(T) = 1.",
        HU,
        "proved",
        _top,
        _top_falsifier,
    ),
    Theorem(
        "optimal_cut.7",
        "The optimum depends on the candidates through their set of distinct tokens only: the transport problem with "
        "one node for every set has the same α* as that with one for every tuple.",
        "Sun et al. 2023 (SpecTr), arXiv 2310.15141",
        "proved",
        _sets,
        _sets_falsifier,
    ),
    Theorem(
        "optimal_cut.8",
        "Which of equally likely tokens of d top-then-sample takes for sure does not matter: α* is the same.",
        "common belief",
        "refuted",
        _ties,
        _ties_falsifier,
    ),
)
