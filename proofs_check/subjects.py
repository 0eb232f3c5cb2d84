"""What is audited: a rule of any of the supported interfaces, seen as an exact law for each case."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from ot_spec.arrays import as_fraction, is_exact, to_numpy
from ot_spec.draft_law import (
    IID,
    DraftLaw,
    Size,
    TopThenSample,
    WithoutReplacement,
    collapse,
    contains_by_sets,
    inside_by_sets,
)
from ot_spec.errors import OptionError
from ot_spec.selector import Selector, as_float, select_law
from ot_spec.tree import SequenceRule, drafted_sequences, drafted_trees, sequence_law
from proofs_check.branching import BudgetSpent, CannotFollow
from proofs_check.cases import Case, one_step, prefixes, sequences
from proofs_check.law_of import RUNS, Law, law_of
from solvers import optimal_acceptance

ARRAYS = ("float64", "float32", "torch64", "torch32", "fractions")


class Fault(Exception):
    """A rule did something no law can excuse: an id that is no token, a changed input, an exception."""


def maker(arrays: str) -> Callable[[np.ndarray], Any]:
    """The conversion of exact laws to what the rule is given."""
    if arrays == "fractions":
        return lambda law: law
    if arrays in ("float64", "float32"):
        return lambda law: as_float(law).astype(arrays)
    if arrays in ("torch64", "torch32"):
        import torch

        dtype = torch.float64 if arrays == "torch64" else torch.float32
        return lambda law: torch.tensor(as_float(law), dtype=dtype)
    raise OptionError(f"arrays must be one of {', '.join(ARRAYS)}, got {arrays!r}")


def tolerance(arrays: str) -> Fraction:
    """TV that rounding of the inputs can cause: nothing for fractions."""
    return {"fractions": Fraction(0)}.get(arrays, Fraction(1, 10**5) if arrays.endswith("32") else Fraction(1, 10**9))


class Subject(ABC):
    """One rule behind one interface."""

    kind: str
    k: int
    arrays: str = "fractions"
    declared: Callable[[np.ndarray, np.ndarray], Any] | None = None
    """What a lossy rule promises instead of the target."""
    sampler: Any = None
    batch: bool = False
    """Whether a function takes and returns rows."""

    @property
    def slack(self) -> Fraction:
        """TV that rounding can cause: of the inputs, or in a draft sampler of its own."""
        own = self.sampler is not None and not isinstance(self.sampler, DraftLaw)
        return max(tolerance(self.arrays), tolerance("float64") if own else Fraction(0))

    def fits(self, case: Case) -> bool:
        """Whether the rule can be judged on a case: a sampler of its own fixes k."""
        return self.sampler is None or case.k == self.k

    @abstractmethod
    def cases(self, count: int, seed: int) -> list[Case]:
        """Cases to judge it on, small ones first."""

    @abstractmethod
    def law(self, case: Case, budget: int = RUNS) -> Law:
        """The exact law of the output."""

    @abstractmethod
    def target(self, case: Case) -> Law:
        """The law a lossless rule has."""

    @abstractmethod
    def expected(self, case: Case) -> Law:
        """The declared law where there is one, else the target."""

    def acceptance(self, case: Case, budget: int = RUNS) -> tuple[Fraction, Fraction] | None:
        """(probability that the output is a candidate, the optimum), where that makes sense."""
        return None


class OneStep(Subject):
    """A rule at one position: output y for candidates x ~ draft law."""

    def __init__(self, rule: Any, k: int, vocab_max: int, law: DraftLaw | None, sampler: Any, arrays: str):
        self.rule, self.k, self.vocab_max = rule, k, vocab_max
        self.draft_law, self.sampler, self.arrays = law, sampler, arrays
        self.make = maker(arrays)

    def fits(self, case: Case) -> bool:
        any_k = self.draft_law is None or type(self.draft_law) in (IID, WithoutReplacement, TopThenSample)
        return case.k == self.k or (any_k and super().fits(case))

    def declared_law(self, case: Case) -> DraftLaw:
        return self.draft_law if self.draft_law is not None and self.draft_law.k == case.k else self._of_k(case.k)

    def _of_k(self, k: int) -> DraftLaw:
        return IID(k) if self.draft_law is None else type(self.draft_law)(k)  # type: ignore[call-arg]

    def cases(self, count: int, seed: int) -> list[Case]:
        return one_step(self.k, self.vocab_max, count, seed)

    def candidates(self, case: Case) -> Iterator[tuple[tuple[int, ...], Fraction]]:
        """Candidate tuples with the probabilities of what really samples them."""
        _, draft = case.laws()
        if self.sampler is None or isinstance(self.sampler, DraftLaw):
            law = self.declared_law(case) if self.sampler is None else self.sampler
            for tokens, mass in zip(*law.tuples(draft), strict=True):
                yield tuple(tokens.tolist()), mass
            return
        drawn = _sampled(self.sampler, self.make(draft))
        for tokens, mass in drawn.items():
            yield (tokens if isinstance(tokens, tuple) else (tokens,)), mass

    @abstractmethod
    def given(self, case: Case, tokens: tuple[int, ...], budget: int) -> Law:
        """The law of the output for these candidates."""

    def law(self, case: Case, budget: int = RUNS) -> Law:
        masses: dict[Any, Fraction] = {}
        runs = 0
        for tokens, mass in self.candidates(case):
            given = self.given(case, tokens, budget - runs)
            runs += given.runs
            for token, share in given.items():
                masses[token] = masses.get(token, Fraction(0)) + mass * share
        return Law(masses, runs)

    def target(self, case: Case) -> Law:
        return Law(dict(enumerate(case.laws()[0])))

    def expected(self, case: Case) -> Law:
        if self.declared is None:
            return self.target(case)
        return Law(dict(enumerate(np.asarray(self.declared(*case.laws()), dtype=object))))

    def acceptance(self, case: Case, budget: int = RUNS) -> tuple[Fraction, Fraction]:
        accepted = Fraction(0)
        for tokens, mass in self.candidates(case):
            given = self.given(case, tokens, budget)
            accepted += mass * sum((given.get(t, Fraction(0)) for t in set(tokens) if t >= 0), start=Fraction(0))
        target, draft = case.laws()
        law = self.sampler if isinstance(self.sampler, DraftLaw) else self.declared_law(case)
        if self.draft_law is None and self.sampler is not None and law is not self.sampler:
            law = Sampled(list(self.candidates(case)))
        return accepted, as_fraction(optimal_acceptance(target, draft, law))


class Sampled:
    """The law of candidates as they were drawn: tuples with their probabilities, whatever the draft."""

    name = "sampled"

    def __init__(self, drawn: list[tuple[tuple[int, ...], Fraction]]):
        self.k = max(len(tokens) for tokens, _ in drawn)
        self._tokens = np.array([(*tokens, *[-1] * (self.k - len(tokens))) for tokens, _ in drawn])
        self._probs = np.array([mass for _, mass in drawn], dtype=object)

    def sample(self, draft: Any, coins: Any) -> Any:
        raise OptionError("a law known by its tuples alone does not sample")

    def tuples(self, draft: Any) -> tuple[np.ndarray, np.ndarray]:
        return self._tokens, self._probs

    def sets(self, draft: Any) -> tuple[np.ndarray, np.ndarray]:
        return collapse(*self.tuples(draft))

    def inside(self, draft: Any, order: Any) -> np.ndarray:
        return inside_by_sets(self, draft, order)

    def contains(self, draft: Any) -> np.ndarray:
        return contains_by_sets(self, draft)

    def size(self, draft: Any) -> Size:
        return Size(len(self._probs), len(self._probs), self._tokens.size)

    def prefix_order(self, target: Any, draft: Any) -> None:
        return None


class SelectorSubject(OneStep):
    """A `Selector`: `conditional` and `select` must both have the law of the target, and agree."""

    kind = "selector"

    def __init__(self, rule: Selector, k: int, vocab_max: int, law: DraftLaw | None, sampler: Any, arrays: str):
        super().__init__(rule, k, vocab_max, law, sampler, "fractions")

    def playing(self, arrays: str) -> SelectorSubject:
        """The same rule on laws of other arrays, for tiers that call it with real coins."""
        other = copy.copy(self)
        other.arrays, other.make = arrays, maker(arrays)
        return other

    def given(self, case: Case, tokens: tuple[int, ...], budget: int) -> Law:
        target, draft = case.laws()
        rows = np.array([tokens])
        stated = self.rule.conditional(target, draft, rows)[0]
        done = select_law(self.rule, target, draft, rows)[0]
        if not (stated == done).all():
            raise Fault(
                f"conditional and select disagree on candidates {tokens}: {_shown(stated)} against {_shown(done)}"
            )
        return Law(dict(enumerate(done)), 1)


class FunctionSubject(OneStep):
    """fn(target, draft, candidates, rng) -> token, or fn(target, draft, candidates, coins) -> token."""

    kind = "function"

    def __init__(
        self,
        rule: Any,
        k: int,
        vocab_max: int,
        law: DraftLaw | None,
        sampler: Any,
        arrays: str,
        coins: int | None = None,
    ):
        super().__init__(rule, k, vocab_max, law, sampler, arrays)
        self.coins = coins

    def given(self, case: Case, tokens: tuple[int, ...], budget: int) -> Law:
        target, draft = (self.make(law) for law in case.laws())
        candidates = as_ids((tokens,) if self.batch else tokens, target)
        before = [contents(a) for a in (target, draft, candidates)]
        arguments = target, draft, candidates

        def run(rng: Any) -> Any:
            try:
                if self.coins is not None:
                    return self._pure(arguments, self._coins(rng, target), tokens)
                return as_token(self.rule(*arguments, *(() if self.takes_nothing() else (rng,))))
            finally:
                if [contents(a) for a in arguments] != before:
                    raise Fault(f"the rule changes its inputs (candidates {tokens})")

        law = law_of(run, budget=budget)
        for token in law:
            if not (isinstance(token, int) and 0 <= token < case.vocab):
                raise Fault(
                    f"the rule returns {token!r} for candidates {tokens}, which is not one of {case.vocab} tokens"
                )
        return law

    def _pure(self, arguments: tuple[Any, ...], coins: Any, tokens: tuple[int, ...]) -> Any:
        """The output for coins, asked for twice: the coins are all the randomness such a rule has."""
        fresh = coins.copy if isinstance(coins, np.ndarray) else coins.clone
        first, second = (as_token(self.rule(*arguments, fresh())) for _ in range(2))
        if first != second:
            raise Fault(f"the rule returns {first} and then {second} for the same coins (candidates {tokens})")
        return first

    def _coins(self, rng: Any, model: Any) -> Any:
        """The coins of one call: of numpy, or of torch beside laws of torch."""
        shape = (1, self.coins or 0) if self.batch else (self.coins or 0,)
        if isinstance(model, np.ndarray):
            return rng.random(shape)
        import torch

        return torch.rand(shape, dtype=model.dtype)

    def takes_nothing(self) -> bool:
        """Whether the rule takes no randomness as an argument (it draws its own)."""
        try:
            parameters = inspect.signature(self.rule).parameters.values()
        except (TypeError, ValueError):
            return False
        if any(p.kind is p.VAR_POSITIONAL for p in parameters):
            return False
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        return len([p for p in positional if p.default is p.empty]) == 3 and not any(
            p.name == "rng" for p in positional
        )


class Sequences(Subject):
    """Verifiers and decoders: laws are tables over prefixes, the outcome is a token sequence."""

    def __init__(self, rule: Any, k: int, length: int, vocab_max: int, sampler: Any, arrays: str):
        self.rule, self.k, self.length, self.vocab_max = rule, k, length, vocab_max
        self.sampler, self.arrays = sampler, arrays
        self.make = maker(arrays)

    def cases(self, count: int, seed: int) -> list[Case]:
        return sequences(self.k, self.length, self.vocab_max, count, seed)

    def tables(self, case: Case) -> tuple[dict[tuple[int, ...], Any], dict[tuple[int, ...], Any]]:
        target, draft = case.laws()
        return (
            dict(zip(prefixes(case.vocab, case.length), target, strict=True)),
            dict(zip(prefixes(case.vocab, case.length - 1), draft, strict=True)),
        )

    def outcome_length(self, case: Case) -> int:
        """Tokens of an outcome after completion by the target."""
        return case.length + 1

    def target(self, case: Case) -> Law:
        table, _ = self.tables(case)
        return Law(self.completed(table, (), self.outcome_length(case)))

    def promised(self, case: Case) -> dict[tuple[int, ...], Any]:
        """The next-token laws by prefix that the rule promises: where nothing is drafted any more, the target's."""
        target, draft = self.tables(case)
        if self.declared is None:
            return target
        stated = {p: np.asarray(self.declared(target[p], law), dtype=object) for p, law in draft.items()}
        return {**target, **stated}

    def expected(self, case: Case) -> Law:
        return Law(self.completed(self.promised(case), (), self.outcome_length(case)))

    def completed(self, table: dict[Any, Any], start: tuple[int, ...], length: int) -> dict[tuple[int, ...], Fraction]:
        done = {start: Fraction(1)}
        while len(next(iter(done))) < length:
            done = {
                (*path, token): mass * share
                for path, mass in done.items()
                for token, share in enumerate(table[path])
                if share
            }
        return done


class VerifierSubject(Sequences):
    """fn(targets, drafts, tokens, rng) -> committed tokens, 1 to length + 1 of them; -1 at the end is padding.

    kind "chain": targets (L + 1, V), drafts (L, V), tokens (L,), row i the laws after i drafted tokens.
    kind "tree": k sequences drawn independently, (k, L + 1, V), (k, L, V), (k, L).
    The law judged is that of the first L + 1 tokens, when the target (or what is declared) goes on after what was
    committed.
    """

    def __init__(self, rule: Any, k: int, length: int, vocab_max: int, sampler: Any, arrays: str, tree: bool):
        super().__init__(rule, k if tree else 1, length, vocab_max, sampler, arrays)
        self.tree, self.kind = tree, "tree" if tree else "chain"

    def drafted(self, case: Case) -> Iterator[tuple[tuple[tuple[int, ...], ...], Fraction]]:
        _, draft = self.tables(case)
        if self.sampler is not None:
            drawn = _sampled(self.sampler, {p: self.make(law) for p, law in draft.items()}, case.length)
            for tokens, mass in drawn.items():
                yield (tokens if self.tree else (tokens,)), mass
            return
        paths = [
            (path, mass) for path in product(range(case.vocab), repeat=case.length) if (mass := _chance(draft, path))
        ]
        for several in product(paths, repeat=case.k):
            mass = Fraction(1)
            for _, share in several:
                mass *= share
            yield tuple(path for path, _ in several), mass

    def committed(self, case: Case, budget: int = RUNS) -> Law:
        """The law of what is committed, before the target goes on."""
        masses: dict[Any, Fraction] = {}
        runs = 0
        target, draft = self.tables(case)
        for tokens, mass in self.drafted(case):
            given = self._given(case, target, draft, tokens, budget - runs)
            runs += given.runs
            for committed, share in given.items():
                masses[committed] = masses.get(committed, Fraction(0)) + mass * share
        return Law(masses, runs)

    def _given(self, case: Case, target: Any, draft: Any, tokens: tuple[tuple[int, ...], ...], budget: int) -> Law:
        return law_of(self.verify(case, target, draft, tokens), budget=budget)

    def verify(
        self, case: Case, target: Any, draft: Any, tokens: tuple[tuple[int, ...], ...]
    ) -> Callable[[Any], tuple[int, ...]]:
        """One call of the rule for these drafted sequences, as a function of rng."""
        rows = [
            np.stack([np.stack([table[path[:i]] for i in range(reach)]) for path in tokens])
            for table, reach in ((target, case.length + 1), (draft, case.length))
        ]
        laws = [self.make(r if self.tree else r[0]) for r in rows]
        arguments = *laws, as_ids(tokens if self.tree else tokens[0], laws[0])
        before = [contents(a) for a in arguments]

        def run(rng: Any) -> tuple[int, ...]:
            try:
                return as_committed(self.rule(*arguments, rng), case.length, case.vocab)
            finally:
                if [contents(a) for a in arguments] != before:
                    raise Fault(f"the rule changes its inputs (drafted {tokens})")

        return run

    def law(self, case: Case, budget: int = RUNS) -> Law:
        committed = self.committed(case, budget)
        table = self.promised(case)
        masses: dict[Any, Fraction] = {}
        for start, mass in committed.items():
            for path, share in self.completed(table, start, self.outcome_length(case)).items():
                masses[path] = masses.get(path, Fraction(0)) + mass * share
        return Law(masses, committed.runs)

    def expected_tokens(self, case: Case) -> Fraction:
        """Block efficiency: mean number of committed tokens."""
        return sum((len(path) * mass for path, mass in self.committed(case).items()), start=Fraction(0))


class SequenceSubject(Sequences):
    """A `SequenceRule`: k independent sequences, or trees whose siblings are drawn by another law at every node.

    Both readings are taken: `commit` with its coins measured, and `conditional`, which must agree.
    """

    kind = "sequence"

    def __init__(self, rule: SequenceRule, k: int, length: int, vocab_max: int, law: DraftLaw | None):
        super().__init__(rule, k, length, vocab_max, None, "fractions")
        self.draft_law = law

    def fits(self, case: Case) -> bool:
        return self.draft_law is None or case.k == self.k

    def law(self, case: Case, budget: int = RUNS) -> Law:
        target, draft = self.tables(case)
        last = {prefix: law for prefix, law in target.items() if prefix not in draft}  # drafts end there
        models = target.__getitem__, {**draft, **last}.__getitem__
        trees = list(
            drafted_sequences(models[1], case.k, case.length)
            if self.draft_law is None
            else drafted_trees(models[1], [self.draft_law] * case.length)
        )
        done, stated = (
            sequence_law(self.rule, *models, trees, self.outcome_length(case), by=by)[0]
            for by in ("commit", "conditional")
        )
        if not (done == stated).all():
            raise Fault("commit and conditional disagree")
        return Law({path: done[path] for path in np.ndindex(done.shape)}, len(trees))


class DecoderSubject(Sequences):
    """fn(target, draft, prompt, length, rng) -> `length` tokens; target and draft map a prefix (a tuple) to a law."""

    kind = "decoder"

    def outcome_length(self, case: Case) -> int:
        return case.length

    def law(self, case: Case, budget: int = RUNS) -> Law:
        return law_of(self.decode(case), budget=budget)

    def decode(self, case: Case) -> Callable[[Any], tuple[int, ...]]:
        """One run of the decoder, as a function of rng."""
        target, draft = ({p: self.make(law) for p, law in table.items()} for table in self.tables(case))
        last = {p: target[p] for p in target if len(p) == case.length}

        def run(rng: Any) -> tuple[int, ...]:
            def ask(table: dict[Any, Any]) -> Callable[[Any], Any]:
                return lambda prefix: table[tuple(int(t) for t in prefix)]

            tokens = self.rule(ask(target), ask({**last, **draft}), (), case.length, rng)
            tokens = tuple(int(t) for t in tokens)
            if len(tokens) != case.length:
                raise Fault(f"the decoder returns {len(tokens)} tokens where {case.length} were asked for")
            bad = [t for t in tokens if not 0 <= t < case.vocab]
            if bad:
                raise Fault(f"the decoder returns {bad[0]}, which is not one of {case.vocab} tokens")
            return tokens

        return run


def _sampled(sampler: Any, *arguments: Any) -> Law:
    """The law of what a draft sampler returns; a sampler that raises is a fault of its own."""
    try:
        return law_of(sampler, *arguments)
    except (CannotFollow, BudgetSpent):
        raise
    except Exception as error:
        raise Fault(f"the draft sampler raises {type(error).__name__}: {error}") from error


def _chance(draft: dict[Any, Any], path: tuple[int, ...]) -> Fraction:
    mass = Fraction(1)
    for i, token in enumerate(path):
        mass *= draft[path[:i]][token]
    return mass


def as_ids(tokens: Any, model: Any) -> Any:
    ids = np.array(tokens, dtype=np.int64)
    if is_exact(model) or isinstance(model, np.ndarray):
        return ids
    import torch

    return torch.as_tensor(ids)


def contents(array: Any) -> Any:
    host = to_numpy(array)
    return tuple(host.reshape(-1)) if host.dtype == object else host.tobytes()


def as_token(result: Any) -> Any:
    token = result[0] if isinstance(result, tuple) else result
    if getattr(token, "shape", None) == (1,):
        token = token[0]
    return token.item() if hasattr(token, "item") else token


def as_committed(result: Any, length: int, vocab: int) -> tuple[int, ...]:
    if hasattr(result, "tolist"):
        result = result.tolist()
    tokens = tuple(int(t) for t in result)
    while tokens and tokens[-1] == -1:
        tokens = tokens[:-1]
    if not 1 <= len(tokens) <= length + 1:
        raise Fault(f"the verifier commits {len(tokens)} tokens of {length} drafted; 1 to {length + 1} are possible")
    bad = [t for t in tokens if not 0 <= t < vocab]
    if bad:
        raise Fault(f"the verifier commits {bad[0]}, which is not one of {vocab} tokens")
    return tokens


def _shown(law: np.ndarray) -> list[str]:
    return [str(v) for v in law]
