"""Is this verifier lossless, and how do you know? The exact law of a rule on small cases, and its smallest failure."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ot_spec.draft_law import DraftLaw
from ot_spec.errors import OptionError, OtSpecError
from proofs_check.branching import BudgetSpent, CannotFollow
from proofs_check.cases import Case, shrink
from proofs_check.law_of import RUNS
from proofs_check.report import CounterExample, Report, Verdict
from proofs_check.subjects import (
    DecoderSubject,
    FunctionSubject,
    SelectorSubject,
    SequenceSubject,
    Subject,
    VerifierSubject,
)
from proofs_check.tiers import EdgeJudge, ExactJudge, Judge, StatisticalJudge, StratifiedJudge
from proofs_check.tiers.edge import edge_cases

KINDS = ("selector", "function", "chain", "tree", "sequence", "decoder")
TIERS = ("auto", "exact", "edge", "stratified", "statistical")
_SHRINK_SECONDS = 20.0


def audit(
    rule: Any,
    *,
    kind: str = "auto",
    k: int = 2,
    length: int = 2,
    vocab_max: int | None = None,
    law: DraftLaw | None = None,
    draft_sampler: DraftLaw | Callable[..., Any] | None = None,
    declared: Callable[[np.ndarray, np.ndarray], Any] | None = None,
    tier: str = "auto",
    arrays: str = "float64",
    coins: int | None = None,
    cases: int | Sequence[Case] | None = None,
    seed: int = 0,
    budget: int = RUNS,
    batch: bool = False,
    tv: float = 0.01,
    error: float = 1e-6,
    draws: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Judge a rule by the exact law of its output on small cases, and shrink the first failure.

    rule and kind:
      "selector"  an `ot_spec.Selector`; both its readings, `conditional` and `select`, are measured and compared
      "function"  fn(target, draft, candidates, rng) -> token. rng branches like a numpy Generator; a function without
                  that argument may use random, numpy.random or torch. With coins=m the last argument is an array of m
                  coins in [0, 1) instead
      "chain"     fn(targets, drafts, tokens, rng) -> committed tokens, targets (L + 1, V), drafts (L, V), tokens (L,)
      "tree"      the same for k sequences, (k, L + 1, V), (k, L, V), (k, L)
      "sequence"  an `ot_spec.SequenceRule`, by `commit` and `conditional`, over k independent sequences or, with `law`,
                  over trees whose nodes draw their children by that law; exact tier only
      "decoder"   fn(target, draft, prompt, length, rng) -> tokens, where target and draft map a prefix to a law
      "auto"      a selector or a sequence rule where the object is one, else a function

    k: candidates at a position (sequences of a tree). length: drafted tokens. vocab_max: largest vocabulary, 4 or, for
    sequences, 3. law: the draft law that the candidates are said to come from (default IID(k)). draft_sampler: what
    really draws them, a law or a function fn(draft, rng) -> candidates (for chains and trees fn(drafts, length, rng) ->
    tokens, drafts mapping a prefix to its law); a rule that assumes another law is then seen to be biased. declared:
    fn(target, draft) -> law (V,), what a lossy rule promises instead of the target. arrays: what the rule is given,
    "float64", "float32", "torch64", "torch32" or "fractions"; float laws count as equal up to 1e-9 (1e-5) of TV.
    cases: how many, or which. budget: most runs for one case. batch: a function that takes candidates (N, k) and coins
    (N, m) and returns (N,), for the tiers that make many calls; the exact tier gives it one row.

    tier:
      "exact"        the law by branching over all random choices
      "edge"         coins at the ends of [0, 1), laws whose sums round: nothing impossible may come out. Never lossless
      "stratified"   a kernel that takes coins, its law from a grid and the thresholds on it, to within a stated bound
      "statistical"  draws of a rule whose randomness is out of reach: a sequential test at a family-wise false-alarm
                     rate `error` for a run, with power 0.99 to find a bias of `tv` on a case; draws caps the draws for
                     a case, and with it the power
      "auto"         exact; where that cannot follow the rule, stratified for one that takes coins, then statistical,
                     with a note; and edge beside it for one that takes coins
    A rule is "undecided" where the tier cannot tell at that tv. The verdict depends on the arguments alone.

    Returns a Report; OptionError for options that do not fit, CannotFollow or BudgetSpent where the tier is "exact" and
    the rule's randomness cannot be followed.

    >>> from solvers import get_selector
    >>> audit(get_selector("rrs"), k=2, cases=20).verdict
    'lossless'
    >>> def greedy(target, draft, candidates, rng):
    ...     return max(candidates, key=lambda y: target[y])
    >>> audit(greedy, k=1).counterexample.case
    Case(target=(1, 0), draft=(0, 1), k=1, length=0)
    """
    started = time.monotonic()
    if tier not in TIERS:
        raise OptionError(f"tier must be one of {', '.join(TIERS)}, got {tier!r}")
    if kind == "auto":
        kind = "function"
        if hasattr(rule, "conditional"):
            kind = "selector" if hasattr(rule, "select") else "sequence" if hasattr(rule, "commit") else kind
    if kind == "sequence":
        if tier not in ("auto", "exact"):
            raise OptionError(f"a sequence rule is judged in the exact tier; there is no {tier} tier for it")
        tier = "exact"
    if batch and kind != "function":
        raise OptionError(f"batch is for functions, got a {kind}")
    subject = _subject(rule, kind, k, length, vocab_max, law, draft_sampler, arrays, coins)
    subject.declared, subject.batch = declared, batch
    chosen = list(cases) if isinstance(cases, Sequence) else subject.cases(cases or _COUNT[kind], seed)
    if not chosen:
        raise OptionError("there is no case to judge the rule on")
    options = {
        name: value
        for name, value, default in (
            ("arrays", arrays, "float64"), ("coins", coins, None), ("law", law, None),
            ("draft_sampler", draft_sampler, None), ("declared", declared, None), ("tier", tier, "auto"),
            ("batch", batch, False), ("tv", tv, 0.01), ("error", error, 1e-6), ("draws", draws, None),
            ("seed", seed, 0),
        )
        if value != default
    }  # fmt: skip
    # selectors are exact on fractions, and are played in the arrays that they will be used with
    played = subject.playing(arrays) if isinstance(subject, SelectorSubject) else subject
    takes_coins = kind == "selector" or coins is not None
    # in "auto" a later tier answers where an earlier one cannot
    plan = ("exact", *(("stratified",) if takes_coins else ()), "statistical") if tier == "auto" else (tier,)
    runs, notes = 0, ()

    def report(verdict: Verdict, by: Judge, done: int, found: CounterExample | None = None) -> Report:
        law, far = (by.last, by.tv) if found is None else (found.law, found.tv)
        return Report(
            _name(rule), kind, verdict, by.tier, done, runs, time.monotonic() - started,
            law, far, found, by.acceptance if found is None else None, options, notes,
        )  # fmt: skip

    def through(judge: Judge, cases: Sequence[Case]) -> Report | None:
        """The report on the first case that fails, None if all pass."""
        nonlocal runs, notes
        try:
            for done, case in enumerate(cases):
                found = judge(case)
                if found is not None:
                    judge = judge.shrinking()
                    found = _smallest(judge, case) or found
                    runs += judge.runs
                    return report("biased", judge, done + 1, found)
                if progress is not None:
                    progress(done + 1, len(cases))
        except (CannotFollow, BudgetSpent):
            runs += judge.runs
            raise
        runs += judge.runs
        notes = (*notes, *judge.notes())
        return None

    with_edges = chosen if isinstance(cases, Sequence) else [*edge_cases(k, vocab_max or 4), *chosen]
    few = chosen if isinstance(cases, Sequence) else _spread(chosen, cases or _FEW[kind])
    for each in plan:
        judged = {"statistical": few, "edge": with_edges}.get(each, chosen)
        if each == "statistical":
            judge = StatisticalJudge(played, len(judged), tv=tv, error=error, draws=draws, seed=seed)
        elif each == "stratified":
            judge = StratifiedJudge(played, tv)
        else:
            judge = EdgeJudge(played) if each == "edge" else ExactJudge(subject, budget)
        try:
            failed = through(judge, judged)
        except (CannotFollow, BudgetSpent) as reason:
            if each == plan[-1]:
                raise
            notes = (*notes, str(reason))
            continue
        if failed is not None:
            return failed
        if judge.verdict() != "undecided" or each == plan[-1]:
            break
    if tier == "auto" and takes_coins:
        failed = through(EdgeJudge(played), with_edges)
    return failed or report(judge.verdict(), judge, len(judged))


def _spread(cases: list[Case], few: int) -> list[Case]:
    """So many of the cases, small and large ones."""
    return [cases[i * (len(cases) - 1) // (few - 1)] for i in range(few)] if len(cases) > few else cases


# cases by default; of the statistical tier, whose every case takes many draws
_COUNT = {"selector": 60, "function": 60, "chain": 12, "tree": 4, "sequence": 4, "decoder": 8}
_FEW = {"selector": 8, "function": 8, "chain": 4, "tree": 3, "sequence": 1, "decoder": 4}


def _subject(
    rule: Any,
    kind: str,
    k: int,
    length: int,
    vocab_max: int | None,
    law: Any,
    sampler: Any,
    arrays: str,
    coins: Any,
) -> Subject:
    if kind == "selector":
        return SelectorSubject(rule, k, vocab_max or 4, law, sampler, arrays)
    if kind == "function":
        return FunctionSubject(rule, k, vocab_max or 4, law, sampler, arrays, coins)
    if kind in ("chain", "tree"):
        return VerifierSubject(rule, k, length, vocab_max or 3, sampler, arrays, tree=kind == "tree")
    if kind == "sequence":
        return SequenceSubject(rule, k, length, vocab_max or 3, law)
    if kind == "decoder":
        return DecoderSubject(rule, k, length, vocab_max or 3, sampler, arrays)
    raise OptionError(f"kind must be one of auto, {', '.join(KINDS)}, got {kind!r}")


def _smallest(judge: Judge, case: Case) -> CounterExample | None:
    """The counter-example on the smallest case that fails."""
    deadline = time.monotonic() + _SHRINK_SECONDS

    def fails(smaller: Case) -> bool:
        if time.monotonic() > deadline or not judge.subject.fits(smaller):
            return False
        try:
            return judge(smaller) is not None
        except (OtSpecError, TypeError):
            return False

    small = shrink(case, fails, judge.attempts)
    return None if small == case else judge(small)


def _name(rule: Any) -> str:
    target = rule if hasattr(rule, "__qualname__") else type(rule)
    module = getattr(target, "__module__", None) or ""
    return f"{module}.{target.__qualname__}".removeprefix("__main__.").removeprefix("builtins.")
