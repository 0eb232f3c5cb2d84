"""Exact optimal rules: which pick laws can be reached, which is best, and how to pick with it.

A canonical rule picks one candidate, with law f over all draws, and makes the one-draft step with (f, t). A pick law is
*reachable* if some way of picking a candidate has it. In an order of the tokens, "first i" is the set of its first i.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise, product
from typing import Any

import numpy as np
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from ot_spec import IID, MembershipTransport, TopThenSample, WithoutReplacement, output_law
from ot_spec.draft_law import DraftLaw
from proofs_check import strategies
from proofs_check.theorems import algebra, instances, smt
from proofs_check.theorems.theorem import Refuted, Theorem, Verdict, counter_example
from proofs_check.theorems.without_replacement import enumerated_inside, subsets
from solvers import get_selector, solve
from solvers.exact.optimal_flow import optimal_flow
from solvers.exact.priority_lists import priority_lists
from solvers.selectors import Luce
from solvers.selectors.optimal import Optimal

__all__ = ["THEOREMS"]

OURS = "this project"
Inside = Callable[[Any], Any]
ZERO, ONE = Fraction(0), Fraction(1)
quick = settings(max_examples=25, deadline=None, derandomize=True, database=None)


# --- shared pieces -----------------------------------------------------------------------------------------------


def of(masses: Any, tokens: Any) -> Fraction:
    """The mass of a set of tokens."""
    return sum((masses[y] for y in tokens), ZERO)


def shown(masses: Any) -> str:
    return f"({', '.join(map(str, masses))})"


def must(holds: bool, *about: Any) -> None:
    """Raise Refuted, with what it is about, unless it holds."""
    if not holds:
        raise Refuted(", ".join(map(str, about)))


def must_be_reachable(pick: Any, inside: Inside, about: Any) -> None:
    """f >= 0, total 1, f(H) >= Q(H) for every H."""
    must(min(pick) >= 0 and sum(pick) == 1, about, "f =", shown(pick))
    for tokens in subsets(range(len(pick))):
        must(of(pick, tokens) >= inside(tokens), about, "f =", shown(pick), "H =", tokens)


def ascending(top: Any, bottom: Any) -> list[int]:
    """Tokens in ascending top/bottom, those with bottom = 0 last."""
    return sorted(range(len(top)), key=lambda y: (bottom[y] == 0, top[y] / bottom[y] if bottom[y] else 0))


def of_list(order: Any, inside: Inside, vocab: int) -> list[Fraction]:
    """The pick law of a list of tokens in ascending priority: the increments of Q along it."""
    pick = [ZERO] * vocab
    for place, token in enumerate(order):
        pick[token] = inside(order[: place + 1]) - inside(order[:place])
    return pick


def some_reachable(generator: np.random.Generator, draft: Any, inside: Inside) -> list[Fraction]:
    """A mixture of up to three random lists."""
    support = [y for y, mass in enumerate(draft) if mass > 0]
    weights = generator.integers(1, 6, 3).tolist()
    pick = [ZERO] * len(draft)
    for weight in weights:
        law = of_list(generator.permutation(support).tolist(), inside, len(draft))
        pick = [p + Fraction(weight, sum(weights)) * v for p, v in zip(pick, law, strict=True)]
    return pick


def both(count: int, vocab_max: int) -> list[tuple[instances.Instance, DraftLaw]]:
    """The instances, once with candidates i.i.d. and once without replacement."""
    return [(i, law(i.k)) for i in instances.pairs(count, vocab_max) for law in (IID, WithoutReplacement)]


def best_value(target: Any, inside: Inside) -> Fraction:
    """min over all H of 1 + t(H) - Q(H)."""
    return 1 + min(of(target, tokens) - inside(tokens) for tokens in subsets(range(len(target))))


# --- which pick laws are reachable -------------------------------------------------------------------------------


def summed_by_parts(sign: int = 1) -> None:
    """Σ_{i <= n} c_i (ΔQ_i - Δf_i) = c_n (Q_n - f_n) + Σ_{i < n} (c_{i+1} - c_i) (f_i - Q_i), by induction on n; here
    Q_i, f_i are those of the first i tokens and Q_0 = f_0 = 0."""
    n = sp.Symbol("n", integer=True, positive=True)
    c, held, pick = (sp.Function(name) for name in ("c", "Q", "f"))

    def last(i: Any) -> Any:
        return c(i) * (held(i) - pick(i))

    term = c(n + 1) * (held(n + 1) - held(n) - pick(n + 1) + pick(n))
    algebra.equal(last(n + 1) - last(n) + sign * (c(n + 1) - c(n)) * (pick(n) - held(n)), term, "one more token")
    algebra.equal(last(1), c(1) * ((held(1) - 0) - (pick(1) - 0)), "the first token")


def parts_are_nonnegative() -> None:
    """At n = V the first part is 0, since Q_V = f_V = 1; the others are products of an ascent of c and a slack of f."""
    climb, slack = sp.symbols("climb slack", nonnegative=True)
    algebra.nonnegative(climb * slack, "an ascent of c times f(first i) - Q(first i)")


def reachable(full: bool) -> Verdict:
    """Necessary: a pick is a candidate, so X ⊆ H puts it in H. Sufficient: pick laws form a compact convex set. Its
    largest value in a direction c is E[max over X of c] (pick where c is largest): with tokens in ascending c, the last
    of X is i with probability Q_i - Q_{i-1}, so it is Σ c_i (Q_i - Q_{i-1}). Summed by parts, it exceeds Σ c_i f_i by
    Σ (c_{i+1} - c_i)(f(first i) - Q(first i)) >= 0. No direction separates f from the set, so f belongs to it."""
    summed_by_parts()
    parts_are_nonnegative()
    return Verdict("proved", "symbolically, every law of the candidates, all V (uses: separating hyperplanes)")


@quick
@given(strategies.pairs(smallest=3, largest=4, most_k=3), st.sampled_from([IID, WithoutReplacement, TopThenSample]))
def reachable_falsifier(pair: strategies.Pair, kind: Any) -> None:
    """By the linear program: f is the law of a pick iff a target f could be met with acceptance 1."""
    law = kind(pair.k)
    inside = enumerated_inside(pair.draft, law)
    slack = min(of(pair.target, tokens) - inside(tokens) for tokens in subsets(range(len(pair.target))))
    best = solve(MembershipTransport(pair.target, pair.draft, law), method="rational").acceptance
    assert (best == 1) == (slack >= 0), (pair, kind, best, slack)


# --- what is kept ------------------------------------------------------------------------------------------------


def kept_is_an_overlap() -> None:
    """f min(1, t/f) = min(t, f), whichever is larger."""
    f, t, more = sp.symbols("f t more", positive=True)
    algebra.equal(f * sp.Integer(1), sp.Min(f + more, f), "t = f + more: all of f")
    algebra.equal((t + more) * (t / (t + more)), sp.Min(t, t + more), "f = t + more: all of t")


def overlap_below_a_cut(slack_sign: int = 1) -> None:
    """Σ min(t, f) <= t(H) + f(Hᶜ) = 1 + t(H) - f(H) <= 1 + t(H) - Q(H)."""
    t, over, held, slack = sp.symbols("t over Q slack", nonnegative=True)
    inside = held + slack_sign * slack  # f(H) = Q(H) + slack
    algebra.nonnegative(t - sp.Min(t, t + over), "f = t + over: the overlap is at most t")
    algebra.nonnegative((t + over) - sp.Min(t + over, t), "t = f + over: the overlap is at most f")
    algebra.nonnegative((1 + t - held) - (t + (1 - inside)), "f(H) >= Q(H)")


def kept(full: bool) -> Verdict:
    """The pick y is kept with probability min(1, t/f), so P(kept) = Σ f min(1, t/f) = Σ min(t, f). For any H the
    overlap is at most t(H) + f(Hᶜ) <= 1 + t(H) - Q(H), by reachability. Equality for some f: pick what an optimal plan
    accepts, and anything where it accepts nothing; then min(t, f) is at least what the plan accepts at each token."""
    kept_is_an_overlap()
    overlap_below_a_cut()
    return Verdict("proved", "symbolically, every law of the candidates, all V")


@quick
@given(strategies.pairs(smallest=3, largest=4, most_k=2), strategies.generators())
def kept_falsifier(pair: strategies.Pair, generator: np.random.Generator) -> None:
    """Random pick rules, as a table of weights, with the rule run by its definition."""
    for law in (IID(pair.k), WithoutReplacement(pair.k)):
        tokens, probs = law.tuples(pair.draft)
        pick = [ZERO] * pair.draft.size
        shares = []
        for row, mass in zip(tokens, probs, strict=True):
            weights = generator.integers(0, 4, row.size) * (row >= 0) + (row >= 0)
            shares.append([Fraction(int(w), int(weights.sum())) for w in weights])
            for token, share in zip(row, shares[-1], strict=True):
                if token >= 0:
                    pick[token] += mass * share
        stays = ZERO
        for row, mass, share in zip(tokens, probs, shares, strict=True):
            stays += sum(
                (mass * s * min(ONE, pair.target[y] / pick[y]) for y, s in zip(row, share, strict=True) if s), ZERO
            )
        assert stays == sum(map(min, pair.target, pick))
        assert stays <= solve(MembershipTransport(pair.target, pair.draft, law), method="rational").acceptance


# --- the flow from two cumulative maxima -------------------------------------------------------------------------


def from_maxima(
    target: Any, order: list[int], inside: Inside, last: bool = False
) -> tuple[list[Fraction], list[Fraction], list[Fraction]]:
    """f by token, ψ and E along the order, from the first or the last argmax of ψ."""
    psi = [inside(order[:size]) - of(target, order[:size]) for size in range(len(order) + 1)]
    best = max((i for i, value in enumerate(psi) if value == max(psi)), key=lambda i: i if last else -i)
    envelope = [max(psi[: i + 1]) if i <= best else max(psi[i:]) for i in range(len(psi))]
    pick = [ZERO] * len(target)
    for place, token in enumerate(order):
        pick[token] = target[token] + envelope[place + 1] - envelope[place]
    return pick, psi, envelope


def telescopes() -> None:
    """E_0 = 0 = E_V. Up to the argmax b, E climbs and min(t, f) = t; after it, E falls and min(t, f) = f. Total 1, and
    overlap T_b + (1 - T_b) + E_V - E_b = 1 - max ψ."""
    before, climb, fall = sp.symbols("T_b climb fall", nonnegative=True)
    t = sp.Symbol("t", nonnegative=True)
    peak, end = sp.symbols("E_b E_V", real=True)
    algebra.equal(sp.Min(t, t + climb), t, "f >= t where E climbs")
    algebra.equal(sp.Min(t, t - fall), t - fall, "f <= t where E falls")
    algebra.equal((before + peak - 0) + (1 - before) + (end - peak), 1 + end, "the total of f, with E_V = 0")
    algebra.equal(before + (1 - before) + (end - peak), 1 - peak + end, "the overlap, with E_V = 0")


def neighbours(stage: str, exchange: bool = True, sorted_: bool = True) -> None:
    """Two neighbours in the order, masses t, d, increments q of Q: f >= 0 and f/d ascends, where E climbs ("rising"),
    where it falls ("falling"), and across the argmax ("peak"). exchange: q/d ascends; sorted_: so does t/d."""
    z3 = smt.solver()
    t1, t2, d1, d2, q1, q2, psi0, free = z3.Reals("t1 t2 d1 d2 q1 q2 psi0 free")
    known = [d1 > 0, d2 > 0, t1 >= 0, t2 >= 0, q1 >= 0, q2 >= 0]
    known += [t1 * d2 <= t2 * d1] if sorted_ else []
    known += [q1 * d2 <= q2 * d1] if exchange else []
    psi1 = psi0 + q1 - t1
    psi2 = psi1 + q2 - t2
    if stage == "rising":
        e0, e1 = free, smt.maximum(free, psi1)
        e2, known = smt.maximum(e1, psi2), [*known, free >= psi0]
    elif stage == "falling":
        e2, e1 = free, smt.maximum(free, psi1)
        e0, known = smt.maximum(e1, psi0), [*known, free >= psi2]
    else:
        e0, e1, e2 = free, psi1, z3.Real("after")
        known += [e0 >= psi0, e0 <= psi1, e2 >= psi2, e2 <= psi1]
    f1, f2 = t1 + e1 - e0, t2 + e2 - e1
    smt.prove([f1 < 0, f2 < 0, f1 * d2 > f2 * d1], known)


def never_drafted_never_picked() -> None:
    """Where d = 0 Q is 1 to the end, so ψ is the target mass still to come: it falls by t, E = ψ, and f = 0."""
    t, rest = sp.symbols("t rest", nonnegative=True)
    psi_before, psi_after = t + rest, rest
    algebra.nonnegative(psi_before - psi_after, "ψ falls: it is its own maximum from the right")
    algebra.equal(t + psi_after - psi_before, 0, "f")


def flow_is_right(target: Any, draft: Any, inside: Inside, about: Any, order: list[int] | None = None) -> None:
    """Everything the statement says, over all sets."""
    order = ascending(target, draft) if order is None else order
    for last in (False, True):
        pick, psi, envelope = from_maxima(target, order, inside, last)
        must_be_reachable(pick, inside, about)
        must(sum(map(min, target, pick)) == best_value(target, inside), about, "Σ min(t, f) is not α*", shown(pick))
        shares = [pick[y] / draft[y] for y in order if draft[y] > 0]
        must(shares == sorted(shares), about, "f/d does not ascend, f =", shown(pick))
        must(all(f == 0 for f, d in zip(pick, draft, strict=True) if d == 0), about, "f > 0 where d = 0")
        must(all(e >= p for e, p in zip(envelope, psi, strict=True)), about, "E is below ψ")


def flow(full: bool) -> Verdict:
    """ψ_0 = ψ_V = 0. Overlap: E telescopes, and 1 - max ψ = α* since prefixes suffice. Ascent: with n = q/d ascending
    (the exchange inequality for a prefix), f/d is t/d where E stands still; where E climbs it lies between t/d and n,
    and is at least n if E touched ψ just before; mirrored where E falls. Reachable: f(first i) - Q(first i) = E_i - ψ_i
    >= 0; and f/d ascends along the order, so the least f(H) - Q(H) over *all* H is that of one of its prefixes."""
    telescopes()
    for stage in ("rising", "falling", "peak"):
        neighbours(stage)
    never_drafted_never_picked()
    count = 400 if full else 132
    for instance, law in both(count, 6 if full else 5):
        flow_is_right(
            instance.target, instance.draft, enumerated_inside(instance.draft, law), f"{instance}, {law.name}"
        )
    return Verdict(
        "proved",
        "symbolically and by SMT over all reals, all V, k, t, d, both draft laws (uses: exchange inequality and "
        f"prefixes, without_replacement.2, .3 and optimal_cut); besides {2 * count} rational instances, every H",
    )


@quick
@given(strategies.pairs(smallest=3, largest=5, most_k=3))
def flow_falsifier(pair: strategies.Pair) -> None:
    """The library's vectorised flow against the linear program."""
    for law in (IID(pair.k), WithoutReplacement(pair.k)):
        pick = optimal_flow(pair.target, pair.draft, law).law()
        best = solve(MembershipTransport(pair.target, pair.draft, law), method="rational").acceptance
        assert np.minimum(pick, pair.target).sum() == best, (pair, law.name)
        must_be_reachable(pick.tolist(), enumerated_inside(pair.draft, law), (pair, law.name))


# --- the hull ----------------------------------------------------------------------------------------------------


def from_hull(target: Any, draft: Any, inside: Inside) -> list[Fraction]:
    """f = λ t on each edge of the lower convex hull of (t(last i), 1 - Q(the others)), λ its slope; tokens with t = 0
    take the increments of Q."""
    order = ascending(target, draft)
    drafted = [y for y in order if target[y] > 0]
    blank = [y for y in order if target[y] == 0]
    pick = of_list(blank, inside, len(target))
    descending = drafted[::-1]
    points = [(ZERO, ZERO)]
    for size in range(1, len(descending) + 1):
        rest = blank + drafted[: len(drafted) - size]
        points.append((of(target, descending[:size]), 1 - inside(rest)))
    corners: list[int] = []
    for place, (x, height) in enumerate(points):
        while len(corners) > 1:
            (x0, y0), (x1, y1) = points[corners[-2]], points[corners[-1]]
            if (y1 - y0) * (x - x0) < (height - y0) * (x1 - x0):
                break
            corners.pop()
        corners.append(place)
    for first, last in pairwise(corners):
        slope = (points[last][1] - points[first][1]) / (points[last][0] - points[first][0])
        for token in descending[first:last]:
            pick[token] = slope * target[token]
    return pick


def hull_is_right(target: Any, draft: Any, inside: Inside, about: Any) -> None:
    pick = from_hull(target, draft, inside)
    must_be_reachable(pick, inside, about)
    must(sum(map(min, target, pick)) == best_value(target, inside), about, "Σ min(t, f) is not α*, f =", shown(pick))


def hull(full: bool) -> Verdict:
    """In fractions, over all sets."""
    count = 600 if full else 132
    for instance, law in both(count, 6 if full else 5):
        hull_is_right(
            instance.target, instance.draft, enumerated_inside(instance.draft, law), f"{instance}, {law.name}"
        )
    return Verdict(
        "certified", f"{2 * count} rational instances, both draft laws, V <= {6 if full else 5}, k <= 4, every H"
    )


@quick
@given(strategies.pairs(smallest=3, largest=5, most_k=3))
def hull_falsifier(pair: strategies.Pair) -> None:
    """By the linear program: reachable iff a target f could be met with acceptance 1."""
    for law in (IID(pair.k), WithoutReplacement(pair.k)):
        pick = np.array([*from_hull(pair.target, pair.draft, enumerated_inside(pair.draft, law)), None])[:-1]
        values = [
            solve(MembershipTransport(f, pair.draft, law), method="rational").acceptance for f in (pick, pair.target)
        ]
        assert values == [1, np.minimum(pick, pair.target).sum()], (pair, law.name)


# --- lifting to levels -------------------------------------------------------------------------------------------


def highest_of_many(power: Callable[[Any], Any] = lambda k: k - 1) -> None:
    """k F^(k-1) F' is the derivative of F^k, so the winner's laws have total F(1)^k - F(0)^k = 1; at F = u it is φ."""
    u, k = sp.Symbol("u", positive=True), sp.Symbol("k", positive=True, integer=True)
    function = sp.Function("F", positive=True)(u)
    wins = k * function ** power(k)
    algebra.equal(sp.diff(function**k, u), wins * sp.diff(function, u), "the winner's level")
    algebra.equal(wins.subs(function, u), k * u ** (k - 1), "uniform levels")


def by_cells(draft: Any, levels: list[list[Fraction]], k: int) -> list[Fraction]:
    """The winner's law when token y's level lies in cell j with probability levels[y][j], uniform inside it: all draws
    and all cells; of several in the highest cell each wins equally often."""
    pick = [ZERO] * len(draft)
    places = [(y, j) for y in range(len(draft)) for j in range(len(levels[y])) if draft[y] * levels[y][j] > 0]
    for row in product(places, repeat=k):
        mass = math.prod((draft[y] * levels[y][j] for y, j in row), start=ONE)
        top = max(j for _, j in row)
        first = [y for y, j in row if j == top]
        for token in first:
            pick[token] += mass / len(first)
    return pick


def by_formula(draft: Any, levels: list[list[Fraction]], k: int) -> list[Fraction]:
    """d_y Σ_j levels[y][j] times the mean of k F^(k-1) over cell j, F linear there from F_(j-1) to F_j."""
    cells = len(levels[0])
    mix = [sum((d * h[j] for d, h in zip(draft, levels, strict=True)), ZERO) for j in range(cells)]
    reach = [sum(mix[:j], ZERO) for j in range(cells + 1)]
    wins = [(reach[j + 1] ** k - reach[j] ** k) / mix[j] if mix[j] else ZERO for j in range(cells)]
    return [d * sum((a * b for a, b in zip(h, wins, strict=True)), ZERO) for d, h in zip(draft, levels, strict=True)]


def some_levels(generator: np.random.Generator, vocab: int, cells: int = 3) -> list[list[Fraction]]:
    rows = generator.integers(0, 4, (vocab, cells)) + np.eye(cells, dtype=int)[generator.integers(cells, size=vocab)]
    return [[Fraction(int(w), int(row.sum())) for w in row] for row in rows]


def lifting(full: bool) -> Verdict:
    """The k levels are independent with distribution function F, F' = Σ d_y h_y. A slot holds y, has its level in du
    and is highest with probability d_y h_y(u) F(u)^(k-1) du (ties have probability 0); k slots. The total is
    ∫ (F^k)' = 1, and a rule that knows the law of its pick is exact (canonical form); with F(u) = u, k F^(k-1) is φ."""
    highest_of_many()
    rng, count = instances.generator(3), 120 if full else 99
    for instance in instances.pairs(count, 4, (1, 2, 3)):
        levels = some_levels(rng, len(instance.draft))
        laws = by_cells(instance.draft, levels, instance.k), by_formula(instance.draft, levels, instance.k)
        must(laws[0] == laws[1], instance, levels, *laws)
    return Verdict("proved", f"symbolically, all V, k, d, h; besides {count} rational instances with levels in cells")


@quick
@given(strategies.pairs(smallest=2, largest=3, most_k=2), strategies.generators())
def lifting_falsifier(pair: strategies.Pair, generator: np.random.Generator) -> None:
    """The whole rule with levels in cells, draw by draw: its output is the target."""
    levels = some_levels(generator, pair.draft.size)
    pick = by_cells(pair.draft, levels, pair.k)
    residual = [max(t - f, ZERO) for t, f in zip(pair.target, pick, strict=True)]
    output = [ZERO] * len(pick)
    for y, mass in enumerate(by_formula(pair.draft, levels, pair.k)):
        keep = min(ONE, pair.target[y] / pick[y]) if pick[y] else ONE
        output[y] += mass * keep
        for z, left in enumerate(residual):
            output[z] += mass * (1 - keep) * left / sum(residual) if keep < 1 else 0
    assert output == pair.target.tolist(), (pair, levels)


def top_levels(wins: Callable[[Any, Any], Any] = lambda u, k: k * u ** (k - 1)) -> None:
    """∫_{1-x}^1 (φ - s) = 1 - (1 - x)^k - s x, the bound on f(S) - s d(S) at x = d(S); the mean at x = 1, s = 0."""
    u, x, s = sp.symbols("u x s", positive=True)
    k = sp.Symbol("k", positive=True, integer=True)
    primitive = u**k - s * u
    algebra.equal(sp.diff(primitive, u), wins(u, k) - s, "a primitive of φ - s")
    algebra.equal(primitive.subs(u, 1) - primitive.subs(u, 1 - x), 1 - (1 - x) ** k - s * x, "the top levels")


def largest_part(part: Callable[[Any], Any] = lambda a: sp.Max(a, 0)) -> None:
    """∫_0^1 (φ - s)+ >= ∫_{1-x}^1 (φ - s) for every x: (a)+ >= 0 below 1 - x, (a)+ >= a above, for a of any sign."""
    size = sp.Symbol("size", nonnegative=True)
    for a in (size, -size):
        algebra.nonnegative(part(a), "(a)+ >= 0")
        algebra.nonnegative(part(a) - a, "(a)+ >= a")


def lifted(full: bool) -> Verdict:
    """For s >= 0 let S = {f > s d}. Σ_y d_y (f_y/d_y - s)+ = f(S) - s d(S) <= 1 - (1 - d(S))^k - s d(S) =
    ∫_{1-d(S)}^1 (φ - s) <= ∫ (φ - s)+, and both means are 1: f/d under d is below φ(U), U uniform, in convex order. By
    Strassen there are Y ~ d and U uniform with E[φ(U) | Y = y] = f_y/d_y; h_y is the density of U given y (bounded by
    1/d_y since Σ d_y h_y = 1). Where d_y = 0, f_y <= 1 - (1 - 0)^k = 0. The converse is flows.5 with F(u) = u."""
    top_levels()
    largest_part()
    rng, count = instances.generator(4), 300 if full else 132
    for instance in instances.pairs(count, 5):
        inside = enumerated_inside(instance.draft, IID(instance.k))
        pick = some_reachable(rng, instance.draft, inside)
        exchanged(instance.draft, pick, inside, instance)
    return Verdict(
        "proved",
        "symbolically, all V, k, d, f (uses: Strassen's theorem); besides level laws made by window exchange for "
        f"{count} random reachable laws in fractions",
    )


@quick
@given(
    strategies.pairs(smallest=2, largest=4, most_k=4), strategies.generators(), st.fractions(0, 4, max_denominator=8)
)
def lifted_falsifier(pair: strategies.Pair, generator: np.random.Generator, s: Fraction) -> None:
    """The convex order at any s, with ∫ (φ - s)+ in closed form."""
    inside = enumerated_inside(pair.draft, IID(pair.k))
    pick = some_reachable(generator, pair.draft, inside)
    left = float(sum((max(f - s * d, ZERO) for f, d in zip(pick, pair.draft, strict=True)), ZERO))
    height, k = float(s), pair.k
    start = float(height > 1) if k == 1 else min(1.0, (height / k) ** (1 / (k - 1)))  # φ exceeds s from there
    assert left <= 1 - start**k - height * (1 - start) + 1e-12, (pair, pick, s)


# --- window exchange ---------------------------------------------------------------------------------------------


def swaps(draft: Any, pick: Any, inside: Inside, order: list[int]) -> dict[tuple[int, int], Fraction]:
    """(i, j) -> P(a candidate of token i plays in the window of j). Windows lie in `order`; lacks (f - q)+ and
    surpluses (q - f)+ are matched by their running sums."""
    wins = [inside(order[: p + 1]) - inside(order[:p]) for p in range(len(order))]
    lack = [max(pick[y] - q, ZERO) for y, q in zip(order, wins, strict=True)]
    spare = [max(q - pick[y], ZERO) for y, q in zip(order, wins, strict=True)]
    moved: dict[tuple[int, int], Fraction] = {}
    for a, i in enumerate(order):
        for b, j in enumerate(order):
            end = min(sum(lack[: a + 1], ZERO), sum(spare[: b + 1], ZERO))
            matched = end - max(sum(lack[:a], ZERO), sum(spare[:b], ZERO))
            if lack[a] > 0 and spare[b] > 0 and matched > 0:
                apart = wins[b] / draft[j] - wins[a] / draft[i]
                must(apart > 0, "a partner wins no more than the token itself")
                moved[i, j], moved[j, i] = matched / apart / draft[i], matched / apart / draft[j]
    return moved


def exchanged(draft: Any, pick: Any, inside: Inside, about: Any, order: list[int] | None = None) -> None:
    """The swaps are probabilities, every window stays as full as it was, and the winner has law f."""
    order = [y for y in ascending(pick, draft) if draft[y] > 0] if order is None else order
    moved = swaps(draft, pick, inside, order)
    wins = dict(zip(order, (inside(order[: p + 1]) - inside(order[:p]) for p in range(len(order))), strict=True))
    for y in order:
        away = sum((chance for (i, _), chance in moved.items() if i == y), ZERO)
        must(0 <= away <= 1, about, f"token {y} swaps with probability {away}")
        held = draft[y] * (1 - away) + sum((draft[i] * c for (i, j), c in moved.items() if j == y), ZERO)
        must(held == draft[y], about, f"window {y} holds {held}")
        won = draft[y] * ((1 - away) * wins[y] / draft[y] + sum(
            (c * wins[j] / draft[j] for (i, j), c in moved.items() if i == y), ZERO))  # fmt: skip
        must(won == pick[y], about, f"token {y} wins {won}, not {pick[y]}")


def partners_lie_right(ahead: bool = True) -> None:
    """Running sums L of lacks, S of surpluses, S <= L after every token (f(first i) >= Q(first i)): no surplus of a
    token j before i overlaps the lack of i."""
    z3 = smt.solver()
    lack_j, lack_from, lack_to, spare_from, spare_to = z3.Reals("lack_j lack_from lack_to spare_from spare_to")
    known = [spare_to <= lack_j] if ahead else []
    known += [lack_j <= lack_from, lack_from <= lack_to, spare_from <= spare_to]
    smt.prove(smt.minimum(lack_to, spare_to) > smt.maximum(lack_from, spare_from), known)


def chances(right: bool = True) -> None:
    """i lacks (n_i < m_i), j spares (m_j < n_j), j to the right (m_i <= m_j): the swaps (m_i - n_i)/(n_j - n_i) and
    (n_j - m_j)/(n_j - n_i) are probabilities."""
    z3 = smt.solver()
    ni, mi, nj, mj = z3.Reals("n_i m_i n_j m_j")
    known = [ni < mi, mj < nj, *([mi <= mj] if right else [])]
    smt.prove([nj - ni <= 0, mi - ni > nj - ni, nj - mj > nj - ni], known)


def swapped_masses_agree(share: Callable[[Any, Any], Any] = lambda matched, whole: matched / whole) -> None:
    """A matched amount a of i's lack d_i (m_i - n_i) and j's surplus d_j (n_j - m_j): both sides move the mass
    a/(n_j - n_i), and i wins a more by it, j a less."""
    a, di, dj, ni, up, down, rest = sp.symbols("a d_i d_j n_i up down rest", positive=True)
    mi = ni + up
    nj = mi + rest + down
    mj = nj - down
    from_i = di * share(a, di * up) * up / (nj - ni)
    from_j = dj * share(a, dj * down) * down / (nj - ni)
    algebra.equal(mi - ni, up, "i's lack a unit of mass")
    algebra.equal(nj - mj, down, "j's surplus a unit of mass")
    algebra.equal(from_i, a / (nj - ni), "the mass that i moves")
    algebra.equal(from_i, from_j, "windows stay as full as they were")
    algebra.equal(from_i * nj - from_i * ni, a, "what i wins by it, and j loses")


def window_wins(height: Callable[[Any, Any], Any] = lambda u, k: k * u ** (k - 1)) -> None:
    """A window from D to D + w of uniform levels wins (D + w)^k - D^k = ∫ φ over it."""
    u, k = sp.Symbol("u", positive=True), sp.Symbol("k", positive=True, integer=True)
    algebra.equal(sp.diff(u**k, u), height(u, k), "a primitive of φ")


def windows(full: bool) -> Verdict:
    """Without swaps window i wins q_i = D_i^k - D_{i-1}^k: n_i = q_i/d_i a unit of mass, wherever in it the level is.
    Lacks and surpluses have equal totals (f and q both have total 1) and are matched in order; since f(first i) >=
    Q(first i), a partner j of i lies to its right, so n_i < m_i <= m_j < n_j and the swaps are probabilities. Matched
    amounts move equal masses both ways: windows stay full, levels uniform, n as it was, and the amounts add up to f."""
    window_wins()
    partners_lie_right()
    chances()
    swapped_masses_agree()
    count = 400 if full else 132
    for instance in instances.pairs(count, 6):
        inside = enumerated_inside(instance.draft, IID(instance.k))
        pick, *_ = from_maxima(instance.target, ascending(instance.target, instance.draft), inside)
        exchanged(instance.draft, pick, inside, instance)
    return Verdict(
        "proved", f"symbolically and by SMT over all reals, all V, k, d, f; besides {count} rational instances"
    )


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(strategies.pairs(smallest=3, largest=4, most_k=2))
def windows_falsifier(pair: strategies.Pair) -> None:
    """The library's selector, measured coin by coin: output law t, acceptance that of the linear program."""
    selector, law = get_selector("optimal"), IID(pair.k)
    for by in ("conditional", "select"):
        assert (output_law(selector, pair.target, pair.draft, law, by=by) == pair.target).all(), (pair, by)
    best = solve(MembershipTransport(pair.target, pair.draft, law), method="rational").acceptance
    assert selector.acceptance(pair.target, pair.draft, law) == best, pair


# --- priority lists ----------------------------------------------------------------------------------------------


def picked_by_list(draft: Any, law: DraftLaw, order: list[int]) -> list[Fraction]:
    """The law of the candidate that is last on the list, set by set."""
    pick = [ZERO] * len(draft)
    for row, mass in zip(*law.sets(draft), strict=True):
        pick[max((y for y in row.tolist() if y >= 0), key=order.index)] += mass
    return pick


def lists(full: bool) -> Verdict:
    """The last of X on the list is y iff X lies in the list up to y, but not before y. In a direction c the list in
    ascending c attains Σ c_i (Q_i - Q_{i-1}), the largest value over reachable laws (flows.1): both sets have the same
    values in every direction, so the reachable laws are the mixtures of lists. They lie in the hyperplane of total 1,
    of dimension V - 1: V lists suffice (Carathéodory). f is that of the lists in use, and exactness is canonical."""
    summed_by_parts()
    parts_are_nonnegative()
    rng, count = instances.generator(5), 300 if full else 132
    for instance, law in both(count, 5):
        order = rng.permutation(np.flatnonzero(instance.draft > 0)).tolist()
        inside = enumerated_inside(instance.draft, law)
        laws = of_list(order, inside, len(instance.draft)), picked_by_list(instance.draft, law, order)
        must(laws[0] == laws[1], instance, law.name, order, *laws)
    return Verdict(
        "proved",
        "symbolically, every law of the candidates, all V (uses: a closed convex set is known by its largest values, "
        f"Carathéodory); besides {2 * count} rational instances",
    )


@quick
@given(strategies.pairs(smallest=3, largest=4, most_k=3), st.data())
def lists_falsifier(pair: strategies.Pair, data: Any) -> None:
    """A list's law as that of a target which the linear program meets by it alone: no reachable law goes further."""
    law = data.draw(st.sampled_from([IID, WithoutReplacement]))(pair.k)
    order = data.draw(st.permutations(np.flatnonzero(pair.draft > 0).tolist()))
    pick = picked_by_list(pair.draft, law, order)
    inside = enumerated_inside(pair.draft, law)
    must_be_reachable(pick, inside, (pair, order))
    for size in range(len(order) + 1):
        assert of(pick, order[:size]) == inside(order[:size]), (pair, law.name, order)


def decomposed(target: Any, draft: Any, law: DraftLaw, about: Any) -> int:
    """The library's lists of a law pair: their number, after checking weights, mixture, overlap and output."""
    made = priority_lists(target, draft, law)
    orders, weights = made.lists()
    must(min(weights) > 0 and sum(weights) == 1, about, "weights", shown(weights))
    must(len(weights) <= max(1, int((draft > 0).sum())), about, f"{len(weights)} lists")
    laws = [picked_by_list(draft, law, order.tolist()) for order in orders]
    pick = [sum((w * v[y] for w, v in zip(weights, laws, strict=True)), ZERO) for y in range(len(draft))]
    must(pick == made.law.tolist(), about, "the lists pick with", shown(pick), "not", shown(made.law))
    best = best_value(target, enumerated_inside(draft, law))
    must(sum(map(min, target, pick)) == best, about, "Σ min(t, f) is not α*")
    return len(weights)


def decomposition(full: bool) -> Verdict:
    """The lists themselves pick with the stored law, and it overlaps the target by α*; the output is then t (canonical
    form), which is measured too for the selector that uses them."""
    count = 400 if full else 132
    most = 0
    for number, (instance, law) in enumerate(both(count, 6 if full else 5)):
        most = max(most, decomposed(instance.target, instance.draft, law, f"{instance}, {law.name}"))
        if isinstance(law, WithoutReplacement) and number % 4 == 1:
            selector = get_selector("optimal_without_replacement")
            output = output_law(selector, instance.target, instance.draft, law)
            must((output == instance.target).all(), instance, "output", shown(output))
    return Verdict(
        "certified",
        f"{2 * count} rational instances, both draft laws, V <= {6 if full else 5}, k <= 4; at most {most} lists",
    )


@quick
@given(strategies.pairs(smallest=3, largest=4, most_k=2))
def decomposition_falsifier(pair: strategies.Pair) -> None:
    """The selector's output measured coin by coin, and the linear program."""
    selector, law = get_selector("optimal_without_replacement"), WithoutReplacement(pair.k)
    assert (output_law(selector, pair.target, pair.draft, law, by="select") == pair.target).all(), pair
    best = solve(MembershipTransport(pair.target, pair.draft, law), method="rational").acceptance
    assert selector.acceptance(pair.target, pair.draft, law) == best, pair


# --- bins --------------------------------------------------------------------------------------------------------


def below_the_chord(slope: Callable[..., Any] = lambda a, b, c, l: (c - a) * (b - l)) -> None:
    """(c - l)+ (b - a) <= (c - a)(b - l) for a <= l <= b, a <= c <= b: a convex function of l and its chord."""
    z3 = smt.solver()
    a, b, c, l = z3.Reals("a b c l")
    smt.prove(smt.positive_part(c - l) * (b - a) > slope(a, b, c, l), [a <= l, l <= b, a <= c, c <= b])


def scaled_picks(right: bool = True) -> None:
    """c <= 1: c - a <= c (1 - a), so the bin loses at most c times the bound at c = 1. c >= 1: (τ - c δ)+ <= (τ - δ)+.
    right: c on that side of 1."""
    z3 = smt.solver()
    a, c, tau, delta = z3.Reals("a c tau delta")
    smt.prove(c - a > c * (1 - a), [a >= 0, c <= 1 if right else c >= 1])
    larger = smt.positive_part(tau - c * delta) > smt.positive_part(tau - delta)
    smt.prove(larger, [delta >= 0, c >= 1 if right else c <= 1])


def worst_bin(bound: Callable[[Any], Any] = lambda s: (s - 1) / (s + 1)) -> None:
    """(1 - a)(b - 1)/(b - a) <= (s - 1)/(s + 1) at b = a s², s > 1: the difference is (a s - 1)²/(a (s² - 1)). And
    (s - 1)/(s + 1) = tanh(w/4) at s² = e^w."""
    a, more, w = sp.symbols("a more w", positive=True)
    s = 1 + more
    b = a * s**2
    square = (a * s - 1) ** 2 / (a * (s**2 - 1))
    algebra.equal(bound(s) - (1 - a) * (b - 1) / (b - a), square, "the worst bin")
    algebra.positive(a * (s**2 - 1), "its denominator")
    algebra.equal(bound(sp.exp(w / 2)), sp.tanh(w / 4).rewrite(sp.exp), "tanh(w/4)")


def some_bins(generator: np.random.Generator, target: Any, draft: Any) -> list[list[int]]:
    """Neighbours in t/d, cut at random; tokens with t = 0 or d = 0 apart."""
    order = [y for y in ascending(target, draft) if target[y] > 0 and draft[y] > 0]
    bins = [[y for y in range(len(target)) if draft[y] > 0 and target[y] == 0], []]
    for token in order:
        if generator.integers(2):
            bins.append([])
        bins[-1].append(token)
    return [b for b in [*bins, [y for y in range(len(target)) if draft[y] == 0]] if b]


def binned(target: Any, draft: Any, k: int, bins: list[list[int]], about: Any) -> None:
    """The optimal flow of the bins, spread by d inside each, is reachable and loses at most tanh(w/4) of α*; without
    the root: x <= (s - 1)/(s + 1) iff ((1 + x)/(1 - x))² <= s² = e^w."""
    wanted, drafted = [of(target, b) for b in bins], [of(draft, b) for b in bins]
    coarse, *_ = from_maxima(wanted, ascending(wanted, drafted), lambda chosen: of(drafted, chosen) ** k)
    pick = [ZERO] * len(target)
    for members, mass, held in zip(bins, coarse, drafted, strict=True):
        for token in members:
            pick[token] = mass * draft[token] / held if held else ZERO
    inside = enumerated_inside(draft, IID(k))
    must_be_reachable(pick, inside, about)
    shares = [[target[y] / draft[y] for y in b] for b in bins if of(draft, b) > 0 and of(target, b) > 0]
    widest = max((max(s) / min(s) for s in shares), default=ONE)
    best = best_value(target, inside)
    lost = 1 - sum(map(min, target, pick), ZERO) / best if best else ZERO
    must(((1 + lost) / (1 - lost)) ** 2 <= widest, about, f"bins {bins} lose {lost} of α*, widest ratio {widest}")


def histogram(full: bool) -> Verdict:
    """α* <= the optimum of the bins (fewer sets H) = Σ_B min(T_B, f_B). In a bin, with τ = t/T_B, δ = d/D_B, l = τ/δ in
    [a, b] of mean 1 under δ, b <= a e^w, and c = f_B/T_B, the overlap is T_B Σ min(τ, c δ). For a < c <= 1 it lacks
    T_B E(c - l)+ <= T_B (c - a)(b - 1)/(b - a) <= c T_B (1 - a)(b - 1)/(b - a) <= c T_B tanh(w/4); for c <= a nothing;
    for c >= 1 at most what it lacks at c = 1, E(l - 1)+ = E(1 - l)+. So it is at least (1 - tanh(w/4)) min(T_B, f_B).
    Reachable: the rule of the bins, and the token of the slot it picks, which given its bin has law d/D_B."""
    below_the_chord()
    scaled_picks()
    worst_bin()
    rng, count = instances.generator(6), 400 if full else 132
    for instance in instances.pairs(count, 6):
        bins = some_bins(rng, instance.target, instance.draft)
        binned(instance.target, instance.draft, instance.k, bins, instance)
    return Verdict(
        "proved", f"symbolically and by SMT over all reals, all V, k, t, d, bins; besides {count} rational instances"
    )


@settings(max_examples=10, deadline=None, derandomize=True, database=None)
@given(strategies.pairs(smallest=3, largest=5, most_k=2), st.sampled_from([1, 2]))
def histogram_falsifier(pair: strategies.Pair, classes: int) -> None:
    """The library's selector with classes of ratio 1 + 1/classes, in fractions."""
    selector, law = Optimal(classes=classes), IID(pair.k)
    assert (output_law(selector, pair.target, pair.draft, law) == pair.target).all()
    best = solve(MembershipTransport(pair.target, pair.draft, law), method="rational").acceptance
    lost = math.tanh(math.log1p(1 / classes) / 4)
    assert float(selector.acceptance(pair.target, pair.draft, law)) >= (1 - lost) * float(best) - 1e-12, (pair, classes)


def tilted(sign: int = 1) -> None:
    """With ∫ h = 1, ∫ φ h = m, ∫ φ² h = v + m²: ∫ h_y = 1 and ∫ φ h_y = m_y; the d-weighted mean of m_y is m, so that
    of h_y is h."""
    m, own, v, h, phi = sp.symbols("m m_y v h phi", positive=True)
    tilt = sp.expand(1 + sign * (own - m) * (phi - m) / v)
    moments = {0: sp.Integer(1), 1: m, 2: v + m**2}

    def mean(expression: Any) -> Any:
        return sum(c * moments[power] for (power,), c in sp.Poly(sp.expand(expression), phi).terms())

    algebra.equal(mean(tilt), 1, "a density")
    algebra.equal(mean(phi * tilt), own, "the token's own mean of φ")
    spread, total = sp.Symbol("spread"), sp.Symbol("D", positive=True)  # Σ d_y m_y, Σ d_y
    weighted = total + (spread - total * m) * (phi - m) / v  # Σ d_y h_y / h
    algebra.equal(weighted.subs(spread, total * m) * h, total * h, "the bin stays as it was")


def tilt(full: bool) -> Verdict:
    """Moments of h, then linearity in m_y. A bin holds Σ d_y h_y = D h as before, so every other bin sees the same
    levels; token y then wins d_y ∫ φ h_y = d_y m_y (flows.5)."""
    tilted()
    return Verdict("proved", "symbolically, all V, k, d, h")


@settings(max_examples=10, deadline=None, derandomize=True, database=None)
@given(
    st.integers(2, 5), st.fractions(0, 1, max_denominator=6), st.fractions(0, 1, max_denominator=6),
    st.lists(st.tuples(st.integers(1, 5), st.integers(-3, 3)), min_size=2, max_size=4),
)  # fmt: skip
def tilt_falsifier(k: int, one: Fraction, other: Fraction, tokens: list[tuple[int, int]]) -> None:
    """Integrals of polynomials over a real bin, in fractions."""
    begin, end = min(one, other), max(one, other) + Fraction(1, 7)
    u = sp.Symbol("u")
    phi = k * u ** (k - 1)

    def mean(density: Any) -> Any:
        return sp.integrate(sp.expand(density), (u, begin, end)) / sp.Rational(end - begin)

    m = mean(phi)
    v = mean(phi**2) - m**2
    centre = sp.Rational(sum(d * x for d, x in tokens), sum(d for d, _ in tokens))
    own = [m + (x - centre) * v / 9 for _, x in tokens]
    densities = [1 + (each - m) * (phi - m) / v for each in own]
    assert [sp.expand(mean(phi * h) - each) for h, each in zip(densities, own, strict=True)] == [0] * len(own)
    assert sp.expand(sum(d * (h - 1) for (d, _), h in zip(tokens, densities, strict=True))) == 0


# --- the left curtain --------------------------------------------------------------------------------------------


def crossing(above: Callable[[float], bool], low: float, high: float) -> float:
    """Where `above` turns from false to true (to true at `high` if it never does), by bisection."""
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if above(middle) else (middle, high)
    return high


def left_curtain(draft: Any, pick: Any, k: int) -> list[list[tuple[float, float]]]:
    """The intervals of [0, 1] on which each token's level is uniform. Tokens come in ascending f/d; one that would win
    too little at the frontier slides right and leaves a gap; one that would win too much takes the right ends of the
    last gaps instead of a part of what it would have there."""
    frontier = 0.0
    gaps: list[tuple[float, float]] = []
    made: list[list[tuple[float, float]]] = [[] for _ in draft]

    def wins(begin: float, length: float) -> float:
        return (begin + length) ** k - begin**k

    for token in ascending(pick, draft):
        mass, aim = float(draft[token]), float(pick[token])
        if not mass:
            continue
        if wins(frontier, mass) <= aim:
            begin = crossing(lambda at, mass=mass, aim=aim: wins(at, mass) >= aim, frontier, max(1 - mass, frontier))
            gaps += [(frontier, begin)] if begin > frontier else []
            made[token].append((begin, begin + mass))
            frontier = begin + mass
            continue
        done = won = 0.0  # in gaps taken as a whole

        def small_enough(taken: float, end: float) -> bool:
            return won + wins(end - taken, taken) + wins(frontier, mass - done - taken) <= aim  # noqa: B023

        while gaps and done < mass:
            begin, end = gaps.pop()
            most = min(end - begin, mass - done)
            if small_enough(most, end) or most < end - begin:
                taken = crossing(lambda length, end=end: small_enough(length, end), 0.0, most)
                made[token].append((end - taken, end))
                gaps += [(begin, end - taken)] if end - taken > begin else []
                done += taken
                break
            made[token].append((begin, end))
            done, won = done + most, won + wins(begin, most)
        if done < mass:
            made[token].append((frontier, frontier + mass - done))
            frontier += mass - done
    return made


def curtain_is_right(draft: Any, pick: Any, k: int, about: Any, most: float = 1e-9) -> int:
    """The intervals fill [0, 1] once, each token has its mass and its wins. Returns their number."""
    made = left_curtain(draft, pick, k)
    pieces = sorted(piece for own in made for piece in own)
    ends = [0.0, *(end for _, end in pieces)]
    off = max(abs(begin - end) for (begin, _), end in zip(pieces, ends, strict=False))
    must(off < most and abs(ends[-1] - 1) < most, about, f"the intervals are {off:.1e} apart and end at {ends[-1]}")
    for token, own in enumerate(made):
        mass, won = sum(e - b for b, e in own), sum(e**k - b**k for b, e in own)
        exact = abs(mass - draft[token]) < most and abs(won - pick[token]) < most
        must(exact, about, f"token {token} has {mass} and wins {won} instead of {pick[token]}")
    must(len(pieces) <= 2 * len(draft), about, f"{len(pieces)} intervals")
    return len(pieces)


def curtain(full: bool) -> Verdict:
    """In floats, for the optimal flow and for random reachable laws."""
    rng, count, share = instances.generator(8), 300 if full else 105, 0.0
    for instance in instances.pairs(count, 6, (2, 3, 4)):
        inside = enumerated_inside(instance.draft, IID(instance.k))
        best, *_ = from_maxima(instance.target, ascending(instance.target, instance.draft), inside)
        for pick in (best, some_reachable(rng, instance.draft, inside)):
            floats = np.array(instance.draft, dtype=float), np.array(pick, dtype=float)
            share = max(share, curtain_is_right(*floats, instance.k, instance) / len(pick))
    return Verdict(
        "tested", f"{2 * count} laws in floats, to 1e-9, V <= 6, k <= 4; at most {share:.2g} intervals a token"
    )


@quick
@given(strategies.generators(), st.integers(2, 40), st.integers(2, 5))
def curtain_falsifier(generator: np.random.Generator, vocab: int, k: int) -> None:
    """Larger vocabularies, the library's flow."""
    target, draft = generator.dirichlet(np.full(vocab, 0.5), 2)
    curtain_is_right(draft, optimal_flow(target, draft, IID(k)).law(), k, (vocab, k))


# --- the best edge without a sort --------------------------------------------------------------------------------


def inside_a_bin(bound: Callable[[Any, Any, Any], Any] = lambda power, before, after: power - before) -> None:
    """D^k - T <= D_1^k - T_0 for D <= D_1 (powers are monotone) and T >= T_0.

    bound: D_1^k and the target masses before and after the bin -> what a bin promises at most.
    """
    algebra.powers_are_monotone()
    power, short, before, more, rest = sp.symbols("power short before more rest", nonnegative=True)
    # D^k = power, D_1^k = power + short; T_0 = before, T = before + more, T_1 = T + rest
    promised = bound(power + short, before, before + more + rest)
    algebra.nonnegative(promised - (power - (before + more)), "an edge inside the bin")


def edges(full: bool) -> Verdict:
    """A prefix that ends within a bin holds all that comes before the bin, so T >= T_0, and nothing that comes after
    it, so D <= D_1 and D^k <= D_1^k. A bin whose bound does not exceed a known edge cannot hold a better one."""
    inside_a_bin()
    return Verdict("proved", "symbolically, all V, k, t, d, bins")


@quick
@given(strategies.pairs(smallest=3, largest=6, most_k=4), strategies.generators())
def edges_falsifier(pair: strategies.Pair, generator: np.random.Generator) -> None:
    """The best of the edges and of the prefixes in bins that promise more, against the linear program's cut."""
    order = ascending(pair.target, pair.draft)
    psi = [of(pair.draft, order[:size]) ** pair.k - of(pair.target, order[:size]) for size in range(len(order) + 1)]
    ends = [0, *(np.flatnonzero(generator.integers(0, 2, len(order) - 1)) + 1).tolist(), len(order)]
    known = max(psi[end] for end in ends)
    best, looked = known, 0
    for begin, end in pairwise(ends):
        promise = of(pair.draft, order[:end]) ** pair.k - of(pair.target, order[:begin])
        assert promise >= max(psi[begin : end + 1])
        if promise > known:
            best, looked = max(best, *psi[begin : end + 1]), looked + 1
    problem = MembershipTransport(pair.target, pair.draft, IID(pair.k))
    assert 1 - best == solve(problem, method="rational").acceptance, (pair, ends, looked)


# --- Luce picks --------------------------------------------------------------------------------------------------


def luce_is_right(target: Any, draft: Any, k: int, about: Any, solved: bool = True) -> float:
    """Its distance from α*, in floats; the output law is that of the weights in use, so that it is t."""
    rule = Luce() if solved else Luce(top=0)
    floats = np.array(target, dtype=float), np.array(draft, dtype=float)
    best = float(best_value(target, enumerated_inside(draft, IID(k))))
    off = abs(best - float(rule.acceptance(*floats, IID(k))))
    must(off < 1e-9, about, f"α* - α = {off:.1e}")
    must(float(rule.bias(*floats, k)) < 1e-12, about, "the output is not t")
    return off


def luce(full: bool) -> Verdict:
    """In floats, with the weights that damped Newton steps find."""
    count = 200 if full else 60
    worst = max(luce_is_right(*instance, instance) for instance in instances.pairs(count, 5, (2, 3)))
    return Verdict("tested", f"{count} law pairs in floats, V <= 5, k = 2, 3; α within {max(worst, 1e-15):.0e} of α*")


@settings(quick, max_examples=10)
@given(strategies.pairs(smallest=2, largest=4, most_k=2), st.sampled_from([None, 0, 1]))
def luce_falsifier(pair: strategies.Pair, top: int | None) -> None:
    """The output law in fractions, also for weights that were not solved for."""
    rule = Luce(top=top)
    assert (output_law(rule, pair.target, pair.draft, IID(pair.k)) == pair.target).all(), (pair, top)


# --- what is not true --------------------------------------------------------------------------------------------


def canonical_acceptance(target: Any, draft: Any, k: int, choose: Callable[[Any], int]) -> tuple[Fraction, Fraction]:
    """P(kept) and α of the canonical rule for i.i.d. candidates that picks choose(the set of them), by definition."""
    tokens, probs = IID(k).tuples(draft)
    drawn = [(set(row.tolist()), mass) for row, mass in zip(tokens, probs, strict=True)]
    pick = [sum((m for s, m in drawn if choose(s) == y), ZERO) for y in range(len(draft))]
    residual = [max(t - f, ZERO) for t, f in zip(target, pick, strict=True)]
    stays = accepted = ZERO
    for held, mass in drawn:
        y = choose(held)
        keep = min(ONE, target[y] / pick[y])
        stays += mass * keep
        accepted += mass * (keep + ((1 - keep) * of(residual, held) / sum(residual) if keep < 1 else ZERO))
    return stays, accepted


def overlap_needed(full: bool) -> Verdict:
    """Two tokens, t = (0, 1), d = (1/2, 1/2), k = 2; pick token 0 whenever it is a candidate."""
    target, draft = strategies.normalised([0, 1]), strategies.normalised([1, 1])
    stays, accepted = canonical_acceptance(target, draft, 2, min)
    best = best_value(target, enumerated_inside(draft, IID(2)))
    return counter_example(
        stays < accepted == best,
        "one instance, V = 2, k = 2",
        "t = (0, 1), d = (1/2, 1/2), k = 2, pick token 0 whenever it is a candidate: f = (3/4, 1/4), Σ min(t, f) = "
        f"{stays}; but the output is always token 1, which is a candidate with probability {accepted} = α*",
    )


@quick
@given(strategies.pairs(smallest=2, largest=4, most_k=2))
def overlap_needed_falsifier(pair: strategies.Pair) -> None:
    """What is kept never exceeds α; and the example's α is that of the linear program."""
    for choose in (min, max):
        stays, accepted = canonical_acceptance(pair.target, pair.draft, pair.k, choose)
        assert stays <= accepted, (pair, choose)
    target, draft = strategies.normalised([0, 1]), strategies.normalised([1, 1])
    stays, accepted = canonical_acceptance(target, draft, 2, min)
    assert accepted == solve(MembershipTransport(target, draft, IID(2)), method="rational").acceptance > stays


def best_ratio(full: bool) -> Verdict:
    """Two tokens, t = d = (1/2, 1/2), k = 2; of two equal ratios the later token is taken."""
    law = strategies.normalised([1, 1])
    stays, accepted = canonical_acceptance(law, law, 2, max)
    best = best_value(law, enumerated_inside(law, IID(2)))
    return counter_example(
        stays <= accepted < best,
        "one instance, V = 2, k = 2",
        "t = d = (1/2, 1/2), k = 2: the pick is token 1 unless both candidates are token 0, f = (1/4, 3/4); it is kept "
        f"with probability {stays}, and α = {accepted}, while α* = {best}",
    )


@quick
@given(strategies.pairs(smallest=2, largest=4, most_k=2))
def best_ratio_falsifier(pair: strategies.Pair) -> None:
    """It is never above the optimum, and below it on the example."""
    order = ascending(pair.target, pair.draft)
    best = solve(MembershipTransport(pair.target, pair.draft, IID(pair.k)), method="rational").acceptance
    assert canonical_acceptance(pair.target, pair.draft, pair.k, lambda held: max(held, key=order.index))[1] <= best
    law = strategies.normalised([1, 1])
    best = solve(MembershipTransport(law, law, IID(2)), method="rational").acceptance
    assert canonical_acceptance(law, law, 2, max)[1] < best


THEOREMS: tuple[Theorem, ...] = (
    Theorem(
        "flows.1",
        "Reachable pick laws, for any law of the candidates: f is the law of a rule that picks one of its candidates "
        "iff f has total 1 and f(H) ≥ Q(H) for every set H of tokens (i.i.d.: f(S) ≤ 1 − (1 − d(S))ᵏ for every S).",
        OURS,
        "proved",
        reachable,
        reachable_falsifier,
    ),
    Theorem(
        "flows.2",
        "A canonical rule (pick a candidate, keep it with min(1, t/f), else draw from (t − f)₊) with pick law f "
        "keeps its pick with probability Σ_y min(t(y), f(y)) ≤ α*; it is α* for some reachable f.",
        "Khisti et al. 2025; this project",
        "proved",
        kept,
        kept_falsifier,
    ),
    Theorem(
        "flows.3",
        "The best pick law from two cumulative maxima, i.i.d. and without replacement: tokens in ascending t/d (d = "
        "0 last), ψ_i = Q(first i) − t(first i), i = 0..V, E_i = max(ψ_0..ψ_i) up to an argmax of ψ (any) and "
        "max(ψ_i..ψ_V) after it, f_i = t_i + E_i − E_{i−1}. Then f ≥ 0 is reachable, Σ min(t, f) = α*, f/d ascends "
        "along the order, and f = 0 where d = 0.",
        OURS,
        "proved",
        flow,
        flow_falsifier,
    ),
    Theorem(
        "flows.4",
        "The hull form, i.i.d. and without replacement: f = λ t on each edge of the lower convex hull of the points "
        "(t(last i), 1 − Q(the others)), tokens in ascending t/d, λ the slope of the edge, and the increments of Q "
        "where t = 0: f is reachable and Σ min(t, f) = α*.",
        "Thomas and Pal 2025 (Global Resolution); this project",
        "certified",
        hull,
        hull_falsifier,
    ),
    Theorem(
        "flows.5",
        "Lifting, first direction: k i.i.d. candidates, each with a level drawn from a density h_y on [0, 1] that "
        "depends on its token y alone, the highest level is picked: f(y) = d(y) ∫ h_y k F^{k−1}, F' = Σ_y d(y) h_y. "
        "So every h gives an exact rule; if F(u) = u, f(y) = d(y) ∫ φ h_y with φ(u) = k u^{k−1}.",
        OURS,
        "proved",
        lifting,
        lifting_falsifier,
    ),
    Theorem(
        "flows.6",
        "Lifting, second direction: every pick law f that is reachable for k i.i.d. candidates comes from densities "
        "h_y with Σ_y d(y) h_y = 1, f(y) = d(y) ∫ φ h_y, φ(u) = k u^{k−1}.",
        OURS,
        "proved",
        lifted,
        lifted_falsifier,
    ),
    Theorem(
        "flows.7",
        "Window exchange, k ≥ 2 i.i.d. candidates, f reachable, tokens in ascending m = f/d, token i's window "
        "[D_{i−1}, D_i], D_i = d(first i), q_i = D_iᵏ − D_{i−1}ᵏ, n = q/d. Match the lacks (f − q)₊ and the "
        "surpluses (q − f)₊ in order; a candidate i draws a partner j in proportion to the matched amounts and takes "
        "a level in j's window with probability |m_i − n_i|/|n_j − n_i|, else in its own. Levels are uniform on [0, "
        "1], and the highest has law f.",
        OURS,
        "proved",
        windows,
        windows_falsifier,
    ),
    Theorem(
        "flows.8",
        "Priority lists, any law of the candidates: picking the last candidate on a fixed list of all tokens has the "
        "law v(y) = Q(list up to y) − Q(list before y); the reachable laws are the mixtures of these, of at most V "
        "lists. Any stored lists and weights give an exact rule.",
        OURS,
        "proved",
        lists,
        lists_falsifier,
    ),
    Theorem(
        "flows.9",
        "The decomposition of flows.3's f by prefix scans, i.i.d. and without replacement: at most V lists, weights "
        "> 0 of sum 1, whose mixture is f; with them the output law is t and α = α*.",
        OURS,
        "certified",
        decomposition,
        decomposition_falsifier,
    ),
    Theorem(
        "flows.10",
        "Histogram form, k i.i.d. candidates: tokens in bins, those with t = 0 or d = 0 apart, t/d within a factor "
        "e^w in each; f(y) = f_B d(y)/d(B), f_B the flow of flows.3 for the masses of the bins. Then f is reachable "
        "and Σ min(t, f) ≥ (1 − tanh(w/4)) α*: at most tanh(w/4) is lost.",
        OURS,
        "proved",
        histogram,
        histogram_falsifier,
    ),
    Theorem(
        "flows.11",
        "Tilting a bin of level density h: with m = ∫ φ h, v = ∫ (φ − m)² h > 0 and any m_y with Σ d(y) m_y = d(B) "
        "m, h_y = h (1 + (m_y − m)(φ − m)/v), where it is nonnegative, leaves Σ d(y) h_y = d(B) h and has ∫ φ h_y = "
        "m_y.",
        OURS,
        "proved",
        tilt,
        tilt_falsifier,
    ),
    Theorem(
        "flows.12",
        "Left curtain, k ≥ 2 i.i.d. candidates, f reachable: tokens in ascending f/d, placed from the left, in gaps "
        "left behind where their window would win too much: levels uniform on at most 2V intervals in all, which "
        "fill [0, 1] once and win f.",
        OURS,
        "tested",
        curtain,
        curtain_falsifier,
    ),
    Theorem(
        "flows.13",
        "A canonical rule is optimal only if Σ_y min(t(y), f(y)) = α*.",
        "common belief, and the first notes of this project (true of what is kept, not of α)",
        "refuted",
        overlap_needed,
        overlap_needed_falsifier,
    ),
    Theorem(
        "flows.14",
        "Picking the candidate of largest t/d, and then the one-draft step with the law of that pick, is optimal.",
        "common belief",
        "refuted",
        best_ratio,
        best_ratio_falsifier,
    ),
    Theorem(
        "flows.15",
        "The best edge needs no sort, k i.i.d. candidates: cut the tokens in ascending t/d into bins, D_0, T_0 the "
        "draft and target mass before a bin, D_1 the draft mass up to its end. Every prefix H that ends within the "
        "bin has d(H)^k − t(H) ≤ D_1^k − T_0, so only bins that exceed the best edge known so far have to be looked "
        "into.",
        OURS,
        "proved",
        edges,
        edges_falsifier,
    ),
    Theorem(
        "flows.16",
        "Luce picks, k i.i.d. candidates: the edges of flows.4's hull in strict priority, largest t/d first, and "
        "within the first that holds a candidate slot j with probability proportional to e^{a(x_j)}. With the a that "
        "minimises E[ln Σ_j e^{a(x_j)}] − Σ_y f(y) a(y) over the draws that reach the edge, the pick has flows.4's "
        "law f and α = α*; for any a the one-draft step with the law that a really gives is exact.",
        "Thomas and Pal 2025 (Global Resolution); the recomputed law: this project",
        "tested",
        luce,
        luce_falsifier,
    ),
)
