"""The field: CPU time a law and acceptance of every method, over vocabularies, numbers of candidates and filters."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ot_spec import MembershipTransport, Selector, filtered
from ot_spec.draft_law import DraftLaw, Size
from ot_spec.errors import OptionError, SolverError, counted
from ot_spec.families import draw
from solvers import optimal_acceptance, solve
from solvers.exact.solve import METHODS as SOLVERS
from solvers.gap.study import DRAFT_LAWS, OPTIMUM, CapturedSource, FamilySource, Laws, Source, label, merged
from solvers.selectors import Optimal, get_selector

__all__ = ["FIELD_COLUMNS", "FILTERS", "METHODS", "VOCABULARIES", "Method", "field_study", "field_summary"]

FIELD_COLUMNS = {
    "source": "str",
    "row": "int64",
    "vocab": "int64",
    "support": "int64",
    "filter": "str",
    "k": "int64",
    "law": "str",
    "method": "str",
    "kind": "str",
    "seconds": "float64",
    "runs": "int64",
    "acceptance": "float64",
    "acceptance_error": "float64",
    "optimum": "float64",
    "share": "float64",
    "status": "str",
    "note": "str",
}

VOCABULARIES = (50, 200, 1000, 10_000, 50_000, 151_936)
FILTERS = ("none", "top_k=50", "top_p=0.9")
SOFTMAX_NORMAL = "softmax_normal:scale=3.0,disagreement=0.2"
_MATRIX_LIMIT = 20_000_000  # entries of the dense cost matrix
_WARM_UP = (8, 2500)  # tokens; the larger one is past what rules treat token by token
_FLOW = "igraph" if find_spec("igraph") else "networkx"
_ACCEPTANCE = 5  # budgets
_ENUMERATED = 20_000
_NOTHING = 1e-12

Effort = tuple[int, ...]


@dataclass(frozen=True)
class Method:
    """One method for one draft law.

    kind says what its seconds are: "select", one `select` of a single row from nothing prepared; "value", the optimum
    as a number; "plan", stating the transport problem and solving it, tokens that are never drafted seen as one. `make`
    gives the timed call, which returns the acceptance where the kind is not "select". size: what a problem of so many
    sets, edges and tokens takes, the limit, and of what.
    """

    name: str
    law: str
    kind: str
    make: Callable[[np.ndarray, np.ndarray, DraftLaw], Callable[[], Any]]
    rule: Selector | None = None
    needs: str | None = None
    size: Callable[[Size, int], tuple[int, int, str]] | None = None


class Problem(NamedTuple):
    """One law pair (V,), filtered, and where it is from."""

    source: str
    row: int
    filter: str
    target: np.ndarray
    draft: np.ndarray

    @property
    def support(self) -> int:
        return int((self.draft > 0).sum())


def _selecting(rule: Selector) -> Callable[[np.ndarray, np.ndarray, DraftLaw], Callable[[], Any]]:
    def make(target: np.ndarray, draft: np.ndarray, law: DraftLaw) -> Callable[[], Any]:
        rng = np.random.default_rng(0)
        candidates = law.sample(draft, rng.random(law.k)).tokens
        coins = rng.random(rule.coins(law.k))
        return lambda: rule.select(target, draft, candidates, coins)

    return make


def _planning(solver: Callable[[MembershipTransport], float]) -> Callable[..., Callable[[], float]]:
    def make(target: np.ndarray, draft: np.ndarray, law: DraftLaw) -> Callable[[], float]:
        return lambda: solver(MembershipTransport(*merged(target, draft, law.k), law))

    return make


def _linear_program(problem: MembershipTransport) -> float:
    return float(solve(problem, "lp").acceptance)


def _max_flow(problem: MembershipTransport) -> float:
    return float(solve(problem, "max_flow", _FLOW).acceptance)


def _peer(problem: MembershipTransport) -> float:
    """POT's network simplex on the dense 0/1 cost matrix."""
    cost = np.ones((problem.probs.size, problem.vocab + 1))
    np.put_along_axis(cost, np.where(problem.members < 0, problem.vocab, problem.members), 0.0, axis=1)
    with warnings.catch_warnings(action="ignore"):  # told by the log
        mass, log = import_module("ot").emd2(
            problem.probs, problem.target, np.ascontiguousarray(cost[:, :-1]), numItermax=1_000_000, log=True
        )
    if log["warning"]:
        raise SolverError(f"POT: {log['warning']}")
    return 1 - float(mass)


def _value(target: np.ndarray, draft: np.ndarray, law: DraftLaw) -> Callable[[], Any]:
    return lambda: optimal_acceptance(target, draft, law)


def _edges(limit: int) -> Callable[[Size, int], tuple[int, int, str]]:
    return lambda size, vocab: (size.edges, limit, "membership edges")


def _methods() -> dict[str, tuple[Method, ...]]:
    rules: dict[str, tuple[str, Selector]] = {
        "optimal": ("iid", get_selector("optimal")),
        "optimal_histogram": ("iid", Optimal(classes=32)),
        "k_seq": ("iid", get_selector("k_seq")),
        "rrs": ("iid", get_selector("rrs")),
        "luce": ("iid", get_selector("luce")),
        "importance": ("iid", get_selector("importance")),
        "optimal_without_replacement": ("without_replacement", get_selector("optimal_without_replacement")),
        "rrs_without_replacement": ("without_replacement", get_selector("rrs_without_replacement")),
        "top_then_sample": ("top_then_sample", get_selector("top_then_sample")),
    }
    methods = {OPTIMUM: tuple(Method(OPTIMUM, law, "value", _value) for law in DRAFT_LAWS)}
    for name, (law, rule) in rules.items():
        methods[name] = (Method(name, law, "select", _selecting(rule), rule),)
    plans = (
        ("lp", _linear_program, None, _edges(SOLVERS["lp"]["highs"].limit)),
        ("max_flow", _max_flow, None, _edges(SOLVERS["max_flow"][_FLOW].limit)),
        ("pot", _peer, "ot", lambda size, vocab: (size.sets * vocab, _MATRIX_LIMIT, "entries of the cost matrix")),
    )
    for name, solver, needs, size in plans:
        laws = "iid", "without_replacement"
        methods[name] = tuple(Method(name, law, "plan", _planning(solver), needs=needs, size=size) for law in laws)
    return methods


METHODS = _methods()
"""name -> one `Method` for each draft law. "optimal_histogram" is `optimal` in 32 shared windows a doubling of
target/draft; "pot" needs POT."""


def field_study(
    *,
    methods: Sequence[str] | None = None,
    k: Sequence[int] = (2, 4, 8, 16, 32, 64),
    families: Sequence[str] | None = None,
    vocab: Sequence[int] = VOCABULARIES,
    captured: Sequence[str | os.PathLike[str]] = (),
    filters: Sequence[str] = FILTERS,
    rows: int = 1,
    limit: int = 4,
    budget: float = 2.0,
    runs: int = 3,
    seed: int = 0,
    callback: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """CPU time a law and acceptance of every method: one line per law pair, k, draft law and method, none left out.

    Parameters
    ----------
    methods: names of `METHODS`; default all. The line "optimum", alpha* itself, comes with every draft law.
    k: numbers of candidates, >= 1.
    families: as in `gap_study`; default softmax-normal laws of scale 3 and disagreement 0.2.
    vocab: vocabularies of the families; with none there are only captured laws.
    captured: folders or files of captured laws; compact ones as they are kept, all tail tokens seen as one.
    filters: such as "top_k=50", "top_p=0.9" or "top_k=50,top_p=0.9", applied to both laws (`ot_spec.filtered`), or
        "none". Families are filtered at the largest vocabulary only.
    rows: law pairs of each family and vocabulary.
    limit: rows taken of each capture, evenly spread.
    budget: CPU seconds, > 0. A method that took longer is not tried where the draft's support and k, or the size of
        its plan, are at least as large; no run is cut short. Acceptance, where it is not the answer of
        the run, may take five times as long.
    runs: most runs of one line, >= 1, in which the seconds are the least; fewer once they have used up the budget.
    seed: of the families, >= 0.
    callback: called with (lines done, lines in all).

    Returns
    -------
    A frame with the columns of `FIELD_COLUMNS`. seconds: CPU time of the process, all its threads added up, for what
    `kind` says (`Method`): a "select" starts from the laws alone, with the candidates drawn before. Every run has its
    tokens rolled by one more place, so that nothing remembered from an earlier run helps. acceptance = P(Y in
    candidates), acceptance_error its standard error where it is an estimate, share = acceptance/optimum. status:

    - "done";
    - "over budget": the seconds are those of the one run that went over;
    - "not tried", "too large", "not installed", "failed": NaN, and `note` says why.

    An acceptance that is not computed, because that alone would be over the budget, is NaN and has a note too.

    Raises OptionError for parameters out of range, CaptureFileError for what cannot be read.
    """
    chosen = _chosen(methods)
    counts = list(dict.fromkeys(k))
    for count in counts:
        DRAFT_LAWS["iid"](count)  # refuses what is no number of candidates
    settings = {text: _filter(text) for text in filters}
    for name, value, least in (("rows", rows, 1), ("limit", limit, 1), ("runs", runs, 1), ("seed", seed, 0)):
        if value < least:
            raise OptionError(f"{name} must be at least {least}, got {value}")
    if not (budget > 0 and np.isfinite(budget)):
        raise OptionError(f"budget must be a positive number of seconds, got {budget}")
    if families is None:
        families = (SOFTMAX_NORMAL,)
    families_at: list[tuple[int, Source]] = [
        (size, FamilySource(name, size, rows, seed)) for name in families for size in dict.fromkeys(vocab)
    ]
    captures: list[Source] = [CapturedSource(path, limit) for path in captured]
    label(captures)
    if not (families_at or captures) or not counts or not settings:
        raise OptionError(
            "there is nothing to study: give a family and a vocabulary or captured laws, a k and a filter"
        )
    largest = max(size for size, _ in families_at) if families_at else 0
    problems = [
        problem
        for size, source in families_at
        for problem in _problems(source, settings if size == largest else {"none": {}})
    ]
    problems += [problem for source in captures for problem in _problems(source, settings)]
    problems.sort(key=lambda problem: problem.support)

    _warm_up(chosen)
    race = _Race(budget, runs)
    lines: list[dict[str, Any]] = []
    many = len(problems) * len(counts) * len(chosen)
    for problem in problems:
        for count in counts:
            optima: dict[str, float] = {}
            for method in chosen:
                line = race.line(problem, count, method)
                if method.name == OPTIMUM:
                    optima[method.law] = line["acceptance"]
                best = optima[method.law]
                line["optimum"] = best
                share = 1.0 if best <= _NOTHING else line["acceptance"] / best
                line["share"] = share if np.isfinite(line["acceptance"]) else np.nan
                lines.append(line)
                if callback is not None:
                    callback(len(lines), many)
    table: Any = pd.DataFrame(lines, columns=list(FIELD_COLUMNS)).astype(FIELD_COLUMNS)
    return table.sort_values(["source", "vocab", "filter", "row"], kind="stable", ignore_index=True)


def field_summary(table: pd.DataFrame) -> pd.DataFrame:
    """One line per source, vocabulary, filter, k, draft law and method: means over rows, of seconds over those that
    were tried; `status` is the first row's that is not "done", and `note` goes with it."""
    keys = ["source", "vocab", "filter", "k", "law", "method", "kind"]
    worst: Any = table.assign(done=table["status"] == "done").sort_values("done", kind="stable")
    told = worst.groupby(keys)[["status", "note"]].first()
    means = table.groupby(keys, sort=False).agg(
        rows=("row", "size"),
        support=("support", "mean"),
        seconds=("seconds", "mean"),
        acceptance=("acceptance", mean_of_all),
        acceptance_error=("acceptance_error", "max"),
        optimum=("optimum", mean_of_all),
        share=("share", mean_of_all),
    )
    return means.join(told).reset_index()


def mean_of_all(values: pd.Series) -> Any:
    """The mean, NaN where one is: rows are not equally hard."""
    return values.mean(skipna=False)


def _chosen(names: Sequence[str] | None) -> list[Method]:
    if names is None:
        names = tuple(METHODS)
    for name in names:
        if name not in METHODS:
            raise OptionError(f"no method {name!r}; there are {', '.join(METHODS)}")
    rest = [method for name in dict.fromkeys(names) if name != OPTIMUM for method in METHODS[name]]
    laws = {method.law for method in rest} if rest else set(DRAFT_LAWS)
    return [method for method in METHODS[OPTIMUM] if method.law in laws] + rest


def _filter(text: str) -> dict[str, Any]:
    kinds = {"top_k": int, "top_p": float, "min_p": float}
    found: dict[str, Any] = {}
    for item in () if text == "none" else text.split(","):
        name, _, value = item.partition("=")
        try:
            found[name.strip()] = kinds[name.strip()](value)
        except (KeyError, ValueError):
            raise OptionError(
                f"filter {text!r}: {item!r} is not of the form {', '.join(kinds)}=number, nor is it 'none'"
            ) from None
    filtered(np.array([0.5, 0.5]), **found)  # refuses what is out of range at once
    return found


def _problems(source: Source, settings: dict[str, dict[str, Any]]) -> Iterator[Problem]:
    for _, _, load in source.blocks():
        laws: Laws = load()
        pair = (laws.target, laws.draft) if laws.upper is None else laws.upper
        for row, target, draft in zip(laws.numbers, *pair, strict=True):
            for text, options in settings.items():
                both = (filtered(law, **options) if options else law for law in (target, draft))
                yield Problem(source.label, int(row), text, *both)


def _warm_up(methods: Sequence[Method]) -> None:
    """Everything compiled and imported before anything is timed."""
    for size in _WARM_UP:
        [target], [draft] = draw("softmax_normal", 0, size, 1)
        for method in methods:
            if method.needs is None or find_spec(method.needs):
                law = DRAFT_LAWS[method.law](2)
                if method.kind != "plan" or size == min(_WARM_UP):
                    method.make(target, draft, law)()
                if method.rule is not None and size == min(_WARM_UP):
                    method.rule.acceptance(target, draft, law)


class _Race:
    """Runs methods under a budget and remembers where each went over."""

    def __init__(self, budget: float, runs: int):
        self.budget, self.runs = budget, runs
        self.over: dict[tuple[str, str, str], list[tuple[Effort, str]]] = {}

    def line(self, problem: Problem, k: int, method: Method) -> dict[str, Any]:
        line: dict[str, Any] = {
            "source": problem.source,
            "row": problem.row,
            "vocab": problem.target.size,
            "support": problem.support,
            "filter": problem.filter,
            "k": k,
            "law": method.law,
            "method": method.name,
            "kind": method.kind,
            "seconds": np.nan,
            "runs": 0,
            "acceptance": np.nan,
            "acceptance_error": np.nan,
            "status": "done",
            "note": "",
        }
        law = DRAFT_LAWS[method.law](k)
        if method.needs is not None and find_spec(method.needs) is None:
            return line | {"status": "not installed", "note": f"the package {method.needs} is not installed"}
        effort: Effort = (problem.support, k)
        if method.size is not None:
            target, draft = merged(problem.target, problem.draft, k)
            size, limit, what = method.size(law.size(draft), target.size)
            if size > limit:
                return line | {"status": "too large", "note": f"{counted(size)} {what}, the limit is {limit:,}"}
            effort = (size,)
        earlier = self._went_over("run", effort, method)
        if earlier is not None:
            return line | {"status": "not tried", "note": f"over the budget before: {earlier}"}
        try:
            seconds, runs, answer = self._timed(problem, law, method)
        except (SolverError, MemoryError) as error:
            return line | {"status": "failed", "note": str(error) or "out of memory"}
        line |= {"seconds": seconds, "runs": runs}
        if seconds > self.budget:
            self._note_over("run", effort, method, problem, k, seconds)
            line |= {"status": "over budget", "note": f"{seconds:.3g} s, the budget is {self.budget:g} s"}
        if method.rule is None:
            return line | {"acceptance": float(answer), "acceptance_error": 0.0}
        if seconds > _ACCEPTANCE * self.budget:
            return line | {"note": f"{line['note']}; acceptance not computed"}
        return line | self._acceptance(problem, law, method, method.rule, str(line["note"]))

    def _timed(self, problem: Problem, law: DraftLaw, method: Method) -> tuple[float, int, Any]:
        """Least CPU seconds of some runs, how many they were, and what the last one returned."""
        spent: list[float] = []
        answer: Any = None
        while len(spent) < self.runs and sum(spent) <= self.budget:
            shift = len(spent) + 1
            run = method.make(np.roll(problem.target, shift), np.roll(problem.draft, shift), law)
            start = time.process_time()
            answer = run()
            spent.append(time.process_time() - start)
        return min(spent), len(spent), answer

    def _acceptance(self, problem: Problem, law: DraftLaw, method: Method, rule: Selector, note: str) -> dict[str, Any]:
        target, draft = merged(problem.target, problem.draft, law.k)
        tuples = law.size(draft).tuples
        # many rules enumerate few tuples, which says nothing about what they do with more
        what, effort = (
            ("enumeration", (tuples, law.k)) if tuples <= _ENUMERATED else ("formula", (problem.support, law.k))
        )
        earlier = self._went_over(what, effort, method)
        if earlier is not None:
            why = f"acceptance not computed, over the budget before: {earlier}"
            return {"note": f"{note}; {why}" if note else why}
        start = time.process_time()
        if hasattr(rule, "estimate"):
            value, error = rule.estimate(target, draft, law)  # pyright: ignore[reportAttributeAccessIssue]
        else:
            value, error = rule.acceptance(target, draft, law), 0.0
        seconds = time.process_time() - start
        if seconds > _ACCEPTANCE * self.budget:
            self._note_over(what, effort, method, problem, law.k, seconds)
        return {"acceptance": float(value), "acceptance_error": float(error)}

    def _note_over(self, what: str, effort: Effort, method: Method, problem: Problem, k: int, seconds: float) -> None:
        told = f"{seconds:.3g} s with a support of {problem.support:,}, k = {k}"
        self.over.setdefault((what, method.name, method.law), []).append((effort, told))

    def _went_over(self, what: str, effort: Effort, method: Method) -> str | None:
        """What an earlier problem took that was no larger in anything, if it took too long."""
        for earlier, told in self.over.get((what, method.name, method.law), ()):
            if all(here >= there for here, there in zip(effort, earlier, strict=True)):
                return told
        return None
