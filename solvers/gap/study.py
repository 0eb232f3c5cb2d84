"""The gap study: selectors x draft laws x k x draft temperature over families and captured laws, in one table."""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import joblib
import numpy as np
import pandas as pd

import ot_spec
from ot_spec import IID, Selector, TopThenSample, WithoutReplacement, marginal_bound, reheated
from ot_spec.captured import Batch, Captured, entropy, overlap, read
from ot_spec.draft_law import DraftLaw
from ot_spec.errors import CaptureFileError, OptionError
from ot_spec.families import FAMILIES, draw
from solvers import SELECTORS, get_selector, optimal_acceptance

__all__ = ["COLUMNS", "DRAFT_LAWS", "OPTIMUM", "gap_study", "guarantee", "summary"]

DRAFT_LAWS: dict[str, Callable[[int], DraftLaw]] = {
    "iid": IID,
    "without_replacement": WithoutReplacement,
    "top_then_sample": TopThenSample,
}
"""The draft laws of the study: those that are given by k alone."""

OPTIMUM = "optimum"
"""What the column `selector` says on the lines of alpha* itself."""

COLUMNS = {
    "source": "str",
    "row": "int64",
    "vocab": "int64",
    "selector": "str",
    "law": "str",
    "k": "int64",
    "target_temperature": "float64",
    "draft_temperature": "float64",
    "acceptance": "float64",
    "acceptance_error": "float64",
    "optimum": "float64",
    "optimum_error": "float64",
    "ratio": "float64",
    "gap": "float64",
    "marginal_bound": "float64",
    "tv": "float64",
    "target_entropy": "float64",
    "draft_entropy": "float64",
    "guarantee": "float64",
    "kind": "str",
    "note": "str",
}

SLOW_SELECTORS = ("luce", "importance")
FORMAT = 2  # of a chunk: raised whenever the same parameters would give other numbers
TEMPERATURES = ["target_temperature", "draft_temperature"]
DEAR_VOCAB = 4096
_ROWS_PER_CHUNK = 64
_ENTRIES_PER_CHUNK = 1 << 18
_ROWS_PER_BATCH = 16
_NOTHING = 1e-12  # an optimum of rounding errors only
_ROUNDING = 1e-6  # of an overlap, next to masses that are kept as float32
_BRACKETED = (OPTIMUM, "optimal", "k_seq")
# what accepts one candidate with probability sum min(target, draft), which compact laws keep
_OVERLAP_AT_ONE = (
    OPTIMUM,
    "optimal",
    "k_seq",
    "rrs",
    "rrs_without_replacement",
    "maximal_coupling",
    "top_then_sample",
    "hub",
)
_NEEDS_FULL_LAWS = "compact laws cannot be reheated: the tail's masses are not kept"
_NOT_BRACKETED = "no proven bracket for compact laws"


def guarantee(k: int) -> float:
    """1 - (1 - 1/k)^k, the share of alpha* that K-SEQ reaches at least for i.i.d. drafts (SpecTr 2023,
    theorem 3).

    >>> guarantee(1), guarantee(2)
    (1.0, 0.75)
    """
    return 1 - (1 - 1 / k) ** k


class Laws(NamedTuple):
    """Some rows of a source. Compact ones bracket: target, draft are the lower pair then, `upper` the other one,
    `tails` the masses (n, 2) of the tails, `full` what is known of the full laws (n, 3): overlap, entropies."""

    numbers: np.ndarray
    vocab: int
    target: np.ndarray
    draft: np.ndarray
    upper: tuple[np.ndarray, np.ndarray] | None = None
    tails: np.ndarray | None = None
    full: np.ndarray | None = None


@dataclass(frozen=True)
class Chunk:
    """A block of rows of one source at one pair of temperatures: the unit that is computed, kept and resumed."""

    source: str
    what: dict[str, Any]
    numbers: tuple[int, ...]
    dear: tuple[int, ...]
    target_temperature: float
    draft_temperature: float
    laws: tuple[tuple[str, int], ...]
    selectors: tuple[Selector, ...]
    bound: bool

    @property
    def key(self) -> str:
        """A hash of everything the numbers depend on."""
        parameters = {
            "format": FORMAT,
            "version": ot_spec.__version__,
            "source": self.source,
            "what": self.what,
            "numbers": self.numbers,
            "dear": self.dear,
            "target_temperature": self.target_temperature,
            "draft_temperature": self.draft_temperature,
            "laws": self.laws,
            "bound": self.bound,
            "selectors": [[s.name, joblib.hash(s)] for s in self.selectors],
        }
        return hashlib.sha256(json.dumps(parameters, sort_keys=True).encode()).hexdigest()[:32]


def gap_study(
    *,
    selectors: Sequence[str | Selector] | None = None,
    draft_laws: Sequence[str] = tuple(DRAFT_LAWS),
    k: Sequence[int] = (1, 2, 4, 8),
    target_temperatures: Sequence[float] = (1.0,),
    draft_temperatures: Sequence[float] = (1.0,),
    families: Sequence[str] | None = None,
    captured: Sequence[str | os.PathLike[str]] = (),
    vocab: int = 64,
    rows: int = 32,
    limit: int | None = None,
    dear_rows: int = 6,
    bound: bool = True,
    seed: int = 0,
    jobs: int | None = None,
    resume_dir: str | os.PathLike[str] | None = None,
    callback: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """How far selectors are from the optimum: one line per source, row, draft law, k, temperatures and selector.

    Parameters
    ----------
    selectors: names of `solvers.SELECTORS` or objects of the `Selector` protocol; default all that are registered
        except "luce" and "importance", which take seconds a row at the vocabulary of a language model. A selector
        appears beside the draft laws that it `supports`. Where it has a method `estimate`, with the arguments of
        `acceptance`, that gives the acceptance and its standard error.
    draft_laws: names among "iid", "without_replacement", "top_then_sample".
    k: numbers of candidates, >= 1.
    target_temperatures, draft_temperatures: target and draft are reheated by each (`ot_spec.reheated`), > 0.
    families: names of `ot_spec.families.FAMILIES`, with parameters as in "dirichlet:concentration=0.1"; default all
        of them, or none if `captured` is given.
    captured: folders or files of captured laws (`ot_spec.captured`).
    vocab, rows: size and number of the random laws of each family.
    limit: rows taken of each captured source, evenly spread; default all.
    dear_rows: "without_replacement" costs up to seconds a row where the draft gives mass to more than 4,096 tokens:
        so many such rows of a source, evenly spread, get it; the others have no such lines.
    bound: whether the marginal bound is wanted, which without replacement costs more than alpha* does; else NaN.
    seed: >= 0; the table depends on it and on the parameters, and on nothing else.
    jobs: processes, as in joblib. Default: what `joblib.parallel_config` says, so that its backend (loky, dask, ray)
        carries the sweep; one process without it.
    resume_dir: finished chunks are kept in its folder ``chunks``, each complete or not there, and found again by a
        hash of all that they depend on. Selectors given as objects are known by their name and pickled state.
    callback: called with (chunks done, chunks in all).

    Returns
    -------
    A frame with the columns of `COLUMNS`. acceptance = P(Y in candidates); the lines of selector "optimum" are alpha*
    itself. ratio = acceptance/optimum, 1 where nothing can be accepted; gap = optimum - acceptance; guarantee =
    1 - (1 - 1/k)^k. tv, entropies (in nats) and everything else are those of the reheated laws. `kind` says
    what `acceptance_error` and `optimum_error` are: "exact" (0), "estimate" (the standard error of a fixed
    low-discrepancy sample), "bracket" (half the width of an interval that holds the truth, the value being its
    middle) or "left out" (NaN, with the reason in `note`).

    Compact captured laws are bracketed for i.i.d. drafts. Above, all tail tokens are seen as one. Below, the
    tails are three tokens: w in both laws, the rest of the target, the rest of the draft, w the tail's share
    of the overlap, which is kept: each tail token is split into what both laws have of it and what one has
    more, and tokens of equal ratio count as one. Merging tokens can only raise, splitting them only lower
    alpha* (a coupling of the finer laws is one of the coarser laws) and the acceptance of K-SEQ (it lies
    where sum min(rho draft, target), increasing in rho, meets 1 - (1 - beta)^k, decreasing, and merging
    raises both). Merging can lower the acceptance of RRS, and drafts without replacement of merged tokens are
    other drafts: these are left out.

    Raises OptionError for parameters out of range, CaptureFileError for what cannot be read.
    """
    rules = _selectors(selectors)
    laws = _draft_laws(draft_laws, k)
    temperatures = [
        (hot_target, hot_draft)
        for hot_target in _temperatures("target", target_temperatures)
        for hot_draft in _temperatures("draft", draft_temperatures)
    ]
    for name, value, least in (("rows", rows, 1), ("seed", seed, 0), ("dear_rows", dear_rows, 0)):
        if value < least:
            raise OptionError(f"{name} must be at least {least}, got {value}")
    if jobs == 0:
        raise OptionError("jobs must be a number of processes, or -1 for all cores, got 0")
    if limit is not None and limit < 1:
        raise OptionError(f"limit must be at least 1, got {limit}")
    if families is None:
        families = () if captured else tuple(FAMILIES)
    sources: list[Source] = [FamilySource(name, vocab, rows, seed) for name in families]
    sources += [CapturedSource(path, limit) for path in captured]
    label(sources)
    if not sources:
        raise OptionError("there is nothing to study: give a family or captured laws")

    def pieces() -> Iterator[tuple[Chunk, Callable[[], Laws]]]:
        for source in sources:
            dear = set(_spread(source.numbers, dear_rows))
            for what, numbers, load in source.blocks():
                for hot_target, hot_draft in temperatures:
                    here = tuple(n for n in numbers if n in dear)
                    yield Chunk(source.label, what, numbers, here, hot_target, hot_draft, laws, rules, bound), load

    chunks = [chunk for chunk, _ in pieces()]
    store = None if resume_dir is None else _Store(Path(resume_dir) / "chunks")
    keys = [chunk.key for chunk in chunks] if store is not None else []
    found = store.found(keys) if store is not None else {}
    frames: list[pd.DataFrame | None] = [found.get(key) for key in keys] or [None] * len(chunks)
    done = sum(frame is not None for frame in frames)
    if callback is not None:
        callback(done, len(chunks))

    def calls() -> Iterator[Any]:
        last: Any = None
        for index, (chunk, load) in enumerate(pieces()):
            if frames[index] is None:
                if last is None or last[0] is not load:
                    last = load, load()
                yield joblib.delayed(_numbered)(index, chunk, last[1])

    parallel: Any = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")
    for index, frame in parallel(calls()):
        if store is not None:
            store.keep(keys[index], frame)
        frames[index] = frame
        done += 1
        if callback is not None:
            callback(done, len(chunks))
    return pd.concat([frame for frame in frames if frame is not None], ignore_index=True)


def default_selectors() -> list[str]:
    """All registered selectors, without those that solve something for each law pair."""
    return [name for name in SELECTORS if name not in SLOW_SELECTORS]


def _selectors(selectors: Sequence[str | Selector] | None) -> tuple[Selector, ...]:
    chosen = default_selectors() if selectors is None else selectors
    rules = tuple(get_selector(s) if isinstance(s, str) else s for s in chosen)
    names = [rule.name for rule in rules]
    if len(set(names)) < len(names) or OPTIMUM in names:
        raise OptionError(f"selectors must have different names, other than {OPTIMUM!r}, got {', '.join(names)}")
    return rules


def _draft_laws(names: Sequence[str], counts: Sequence[int]) -> tuple[tuple[str, int], ...]:
    for name in names:
        if name not in DRAFT_LAWS:
            raise OptionError(f"no draft law {name!r} given by k alone; there are {', '.join(DRAFT_LAWS)}")
    laws = tuple(
        (name, int(DRAFT_LAWS[name](count).k)) for name in dict.fromkeys(names) for count in dict.fromkeys(counts)
    )
    if not laws:
        raise OptionError("there is nothing to study: give a draft law and a k")
    return laws


def _temperatures(whose: str, temperatures: Sequence[float]) -> tuple[float, ...]:
    if not temperatures:
        raise OptionError(f"there is nothing to study: give a {whose} temperature")
    for temperature in temperatures:
        if not (temperature > 0 and np.isfinite(temperature)):
            raise OptionError(f"a {whose} temperature must be a positive number, got {temperature}")
    return tuple(float(temperature) for temperature in dict.fromkeys(temperatures))


# ---- sources

Block = tuple[dict[str, Any], tuple[int, ...], Callable[[], Laws]]


class Source(ABC):
    label: str
    numbers: np.ndarray

    @abstractmethod
    def blocks(self) -> Iterator[Block]:
        """What identifies a block's laws, its row numbers, and how to load them."""


class FamilySource(Source):
    def __init__(self, text: str, vocab: int, rows: int, seed: int):
        self.label = text
        self.name, self.parameters = _parse_family(text)
        self.vocab, self.seed, self.numbers = int(vocab), int(seed), np.arange(rows)
        draw(self.name, seed, vocab, 1, **self.parameters)  # refuses bad names and parameters at once

    def blocks(self) -> Iterator[Block]:
        # the grid of two tokens is one whatever the block, so families are drawn as a whole
        what = {
            "family": self.name,
            "parameters": self.parameters,
            "vocab": self.vocab,
            "rows": len(self.numbers),
            "seed": self.seed,
        }
        for numbers in _split(self.numbers, self.vocab):
            yield what, tuple(numbers.tolist()), lambda numbers=numbers: self._load(numbers)

    def _load(self, numbers: np.ndarray) -> Laws:
        target, draft = draw(self.name, self.seed, self.vocab, len(self.numbers), **self.parameters)
        return Laws(numbers, target.shape[-1], target[numbers], draft[numbers])


class CapturedSource(Source):
    def __init__(self, path: str | os.PathLike[str], limit: int | None):
        self.capture: Captured = read(Path(path))
        if self.capture.rows == 0:
            raise CaptureFileError(f"{path} holds no rows")
        self.label = self.capture.path.resolve().name
        every = np.arange(self.capture.rows)
        self.numbers = every if limit is None else np.array(_spread(every, limit))
        path = self.capture.path
        files = sorted(path.glob("part-*.parquet")) if path.is_dir() else [path]
        self.digest = hashlib.sha256(b"".join(hashlib.sha256(f.read_bytes()).digest() for f in files)).hexdigest()

    def blocks(self) -> Iterator[Block]:
        rows = _Rows(self.capture)
        width = self.capture.vocab if self.capture.compact is None else 2 * self.capture.compact
        for numbers in _split(self.numbers, width):
            yield (
                {"capture": self.digest},
                tuple(numbers.tolist()),
                lambda numbers=numbers: rows.take(numbers),
            )


class _Rows:
    """The rows of a capture in ascending order, each file read once."""

    def __init__(self, capture: Captured):
        self.vocab = capture.vocab
        self._batches = capture.batches(_ROWS_PER_BATCH)
        self._batch: Batch | None = None
        self._first = self._end = 0

    def take(self, numbers: np.ndarray) -> Laws:
        parts, left = [], numbers
        while left.size:
            while self._end <= left[0]:
                self._batch = next(self._batches)
                self._first, self._end = self._end, self._end + len(self._batch)
            assert self._batch is not None
            here = left[left < self._end]
            parts.append(_laws(self._batch, here - self._first, here, self.vocab))
            left = left[here.size :]
        return _joined(parts)


def _laws(batch: Batch, index: np.ndarray, numbers: np.ndarray, vocab: int) -> Laws:
    target, draft = batch.target[index], batch.draft[index]
    if batch.target_tail is None or batch.draft_tail is None:
        return Laws(numbers, vocab, target, draft)
    together = [law[index] for law in batch.closed("together")]
    tails = np.stack([batch.target_tail, batch.draft_tail], axis=-1)[index]
    full = np.stack([batch.overlap, batch.target_entropy, batch.draft_entropy], axis=-1)[index]
    shared = np.clip(full[:, 0] - overlap(target, draft) - _ROUNDING, 0, tails.min(axis=-1))
    none = np.zeros_like(shared)
    lower_target = np.column_stack([target, shared, tails[:, 0] - shared, none])
    lower_draft = np.column_stack([draft, shared, none, tails[:, 1] - shared])
    return Laws(numbers, vocab, lower_target, lower_draft, (together[0], together[1]), tails, full)


def _joined(parts: list[Laws]) -> Laws:
    width = max(part.target.shape[-1] for part in parts)

    def stacked(laws: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([np.pad(law, ((0, 0), (0, width - law.shape[-1]))) for law in laws])

    first = parts[0]
    numbers = np.concatenate([part.numbers for part in parts])
    target, draft = (stacked([getattr(part, name) for part in parts]) for name in ("target", "draft"))
    if first.upper is None:
        return Laws(numbers, first.vocab, target, draft)
    upper = [stacked([part.upper[side] for part in parts if part.upper]) for side in (0, 1)]
    tails, full = (np.concatenate([getattr(part, name) for part in parts]) for name in ("tails", "full"))
    return Laws(numbers, first.vocab, target, draft, (upper[0], upper[1]), tails, full)


def _parse_family(text: str) -> tuple[str, dict[str, float]]:
    name, _, rest = text.partition(":")
    parameters: dict[str, float] = {}
    for item in filter(None, rest.split(",")):
        key, _, value = item.partition("=")
        try:
            parameters[key.strip()] = float(value) if set(".eE") & set(value) else int(value)
        except ValueError:
            raise OptionError(f"family {text!r}: {item!r} is not of the form parameter=number") from None
    return name, parameters


def label(sources: list[Source]) -> None:
    seen: dict[str, int] = {}
    for source in sources:
        seen[source.label] = seen.get(source.label, 0) + 1
        if seen[source.label] > 1:
            source.label = f"{source.label} ({seen[source.label]})"


def _split(numbers: np.ndarray, vocab: int) -> list[np.ndarray]:
    size = max(1, min(_ROWS_PER_CHUNK, _ENTRIES_PER_CHUNK // vocab))
    return [numbers[start : start + size] for start in range(0, len(numbers), size)]


def _spread(numbers: np.ndarray, many: int) -> list[int]:
    """`many` of the numbers, evenly spread, all of them if there are fewer."""
    if many <= 0:
        return []
    chosen = np.unique(np.linspace(0, len(numbers) - 1, min(many, len(numbers))).round().astype(int))
    return numbers[chosen].tolist()


# ---- the numbers of one chunk


def _numbered(index: int, chunk: Chunk, laws: Laws) -> tuple[int, pd.DataFrame]:
    return index, _table(chunk, laws)


class Answer(NamedTuple):
    """Acceptance (n,), its error, and what the error is."""

    value: np.ndarray
    error: np.ndarray
    kind: str = "exact"
    note: str = ""


def _table(chunk: Chunk, laws: Laws) -> pd.DataFrame:
    many = len(laws.numbers)
    compact = laws.upper is not None
    as_they_are = chunk.target_temperature == chunk.draft_temperature == 1
    target, draft = reheated(laws.target, chunk.target_temperature), reheated(laws.draft, chunk.draft_temperature)
    if laws.full is None:
        tv, target_entropy, draft_entropy = 1 - overlap(target, draft), entropy(target), entropy(draft)
    else:
        unknown = np.full(many, np.nan)
        tv = 1 - laws.full[:, 0] if as_they_are else unknown
        target_entropy = laws.full[:, 1] if chunk.target_temperature == 1 else unknown
        draft_entropy = laws.full[:, 2] if chunk.draft_temperature == 1 else unknown
    lines: dict[str, list[Any]] = {column: [] for column in COLUMNS}
    for name, k in chunk.laws:
        law = DRAFT_LAWS[name](k)
        rules = [rule for rule in chunk.selectors if rule.supports(law)]
        if compact and not as_they_are:
            nothing = _left_out(many, _NEEDS_FULL_LAWS)
            answers, bound = dict.fromkeys((OPTIMUM, *(rule.name for rule in rules)), nothing), nothing.value
        elif compact:
            answers, bound = _bracketed(laws, law, rules)
            bound = bound if chunk.bound else np.full(many, np.nan)
        else:
            answers, bound = _exact(target, draft, law, rules, np.isin(laws.numbers, chunk.dear), chunk.bound)
        best = answers[OPTIMUM]
        for selector, answer in answers.items():
            line = {
                "source": chunk.source,
                "row": laws.numbers,
                "vocab": laws.vocab,
                "selector": selector,
                "law": name,
                "k": k,
                "target_temperature": chunk.target_temperature,
                "draft_temperature": chunk.draft_temperature,
                "acceptance": answer.value,
                "acceptance_error": answer.error,
                "optimum": best.value,
                "optimum_error": best.error,
                "ratio": np.divide(answer.value, best.value, out=np.ones(many), where=best.value > _NOTHING),
                "gap": best.value - answer.value,
                "marginal_bound": bound,
                "tv": tv,
                "target_entropy": target_entropy,
                "draft_entropy": draft_entropy,
                "guarantee": guarantee(k),
                "kind": np.where((answer.error == 0) & (answer.kind == "estimate"), "exact", answer.kind),
                "note": answer.note,
            }
            for column, values in line.items():
                lines[column].append(np.broadcast_to(values, many))
    table: Any = pd.DataFrame({column: np.concatenate(values) for column, values in lines.items()}).astype(COLUMNS)
    return table[table["optimum"].notna() | (table["kind"] == "left out")].reset_index(drop=True)


def _left_out(many: int, note: str) -> Answer:
    return Answer(np.full(many, np.nan), np.full(many, np.nan), "left out", note)


def _exact(
    target: np.ndarray,
    draft: np.ndarray,
    law: DraftLaw,
    rules: Sequence[Selector],
    dear: np.ndarray,
    bound: bool,
) -> tuple[dict[str, Answer], np.ndarray]:
    """Answers for full laws and the marginal bound; rows that are left aside as too dear are NaN."""
    if target.shape[-1] <= DEAR_VOCAB:
        return _batch(target, draft, law, rules, bound)
    rows: list[tuple[dict[str, Answer], np.ndarray] | None] = []
    for t, d, pay in zip(target, draft, dear, strict=True):
        costly = law.name == "without_replacement" and (d > 0).sum() > DEAR_VOCAB
        t, d = merged(t, d, law.k)
        rows.append(None if costly and not pay else _batch(t[None], d[None], law, rules, bound))
    nothing = np.full(1, np.nan)

    def column(pick: Callable[[tuple[dict[str, Answer], np.ndarray]], np.ndarray]) -> np.ndarray:
        return np.concatenate([nothing if row is None else pick(row) for row in rows])

    answers = {}
    for name in (OPTIMUM, *(rule.name for rule in rules)):
        kinds = {row[0][name].kind for row in rows if row is not None}
        answers[name] = Answer(
            column(lambda row, name=name: row[0][name].value),
            column(lambda row, name=name: row[0][name].error),
            "estimate" if "estimate" in kinds else "exact",
        )
    return answers, column(lambda row: row[1])


def merged(target: np.ndarray, draft: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """One pair (V,) with all tokens that are never drafted seen as one: no number of the study changes.

    Where the draft has fewer than k tokens the pair is returned as it is: fixed candidates may then hold others.

    >>> merged(np.array([0.2, 0.3, 0.5]), np.array([0.0, 0.0, 1.0]), 1)
    (array([0.5, 0.5]), array([1., 0.]))
    """
    drafted = draft > 0
    if drafted.sum() < k or drafted.all():
        return target, draft
    return np.append(target[drafted], target[~drafted].sum()), np.append(draft[drafted], 0.0)


@dataclass(frozen=True)
class _Remembering(WithoutReplacement):
    """Drafts without replacement that answer `contains` for the same draft once only: it is the dearest question."""

    answers: dict[bytes, Any] = field(default_factory=dict, compare=False, repr=False)

    def contains(self, draft: Any) -> Any:
        key = draft.tobytes()
        if key not in self.answers:
            self.answers[key] = super().contains(draft)
        return self.answers[key]


def _batch(
    target: np.ndarray, draft: np.ndarray, law: DraftLaw, rules: Sequence[Selector], bound: bool
) -> tuple[dict[str, Answer], np.ndarray]:
    if isinstance(law, WithoutReplacement):
        law = _Remembering(law.k)
    zero = np.zeros(len(target))
    answers = {OPTIMUM: Answer(optimal_acceptance(target, draft, law), zero)}
    for rule in rules:
        if hasattr(rule, "estimate"):
            value, error = rule.estimate(target, draft, law)  # pyright: ignore[reportAttributeAccessIssue]
        else:
            value, error = rule.acceptance(target, draft, law), zero
        answers[rule.name] = Answer(value, error, "estimate" if (error > 0).any() else "exact")
    return answers, marginal_bound(target, draft, law) if bound else np.full(len(target), np.nan)


def _bracketed(laws: Laws, law: DraftLaw, rules: Sequence[Selector]) -> tuple[dict[str, Answer], np.ndarray]:
    """Answers for compact laws and an upper bound of the marginal bound."""
    assert laws.upper is not None and laws.tails is not None and laws.full is not None
    answers = {}
    for rule in (None, *rules):
        name = OPTIMUM if rule is None else rule.name
        if law.k == 1 and name in _OVERLAP_AT_ONE:
            known = laws.full[:, 0]
            answers[name] = Answer(known, np.zeros_like(known))
        elif law.name == "iid" and name in _BRACKETED and getattr(rule, "rho", None) is None:
            function: Any = optimal_acceptance if rule is None else rule.acceptance
            low, high = function(laws.target, laws.draft, law), function(*laws.upper, law)
            answers[name] = Answer((low + high) / 2, (high - low) / 2, "bracket")
        else:
            answers[name] = _left_out(len(laws.numbers), _NOT_BRACKETED)
    if law.k == 1:
        return answers, laws.full[:, 0]
    if law.name != "iid":
        return answers, np.full(len(laws.numbers), np.nan)
    # outside the tails the bound is a sum over tokens; the tails add at most the target's mass there, and at
    # most k times the draft's
    tail = np.minimum(laws.tails[:, 0], law.k * laws.tails[:, 1])
    return answers, np.minimum(marginal_bound(laws.target, laws.draft, law) + tail, 1)


# ---- finished chunks on disk


class _Store:
    def __init__(self, folder: Path):
        self.folder = folder

    def found(self, keys: Collection[str]) -> dict[str, pd.DataFrame]:
        """The finished chunks among `keys`; one that cannot be read is as good as none."""
        frames = {}
        for file in self.folder.glob("*.parquet"):
            if file.stem in keys:
                try:
                    frames[file.stem] = pd.read_parquet(file)[list(COLUMNS)].astype(COLUMNS)
                except (OSError, ValueError, KeyError):  # pyarrow's errors are among these
                    continue
        return frames

    def keep(self, key: str, frame: pd.DataFrame) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write(self.folder / f"{key}.parquet", lambda file: frame.to_parquet(file, index=False))


def write(path: Path, how: Callable[[Path], Any]) -> Path:
    """Let `how` write a file that appears at `path` when it is complete, and not before."""
    unfinished = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        how(unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


# ---- a summary


def labelled(table: pd.DataFrame) -> pd.DataFrame:
    """The table with the target temperature in the source's name, where there are several: a panel, a title each."""
    temperatures: Any = table["target_temperature"]
    if temperatures.nunique() < 2:
        return table
    return table.assign(source=table["source"] + ", target T = " + temperatures.map("{:g}".format))


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """One line per source, draft law, k, temperatures and selector: rows, means, and the worst ratio.

    Means are over rows; `acceptance_error` is the largest of them; lines that were left out are left out.
    """
    known = table[table["kind"] != "left out"]
    groups = known.groupby(["source", "law", "k", *TEMPERATURES, "selector"], sort=False)
    return groups.agg(
        rows=("row", "size"),
        acceptance=("acceptance", "mean"),
        acceptance_error=("acceptance_error", "max"),
        optimum=("optimum", "mean"),
        marginal_bound=("marginal_bound", "mean"),
        mean_ratio=("ratio", "mean"),
        worst_ratio=("ratio", "min"),
        guarantee=("guarantee", "first"),
    ).reset_index()
