"""Selection rules: their protocol, their registry, and their exact output law."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from ot_spec.arrays import Array, as_fraction, is_exact, namespace, to_numpy
from ot_spec.coin import exact_measure
from ot_spec.draft_law import DraftLaw
from ot_spec.errors import CandidateError, OptionError, TooLargeError, UnsupportedLawError
from ot_spec.law import as_exact, from_probs

ENTRY_LIMIT = 1 << 26


class Selection(NamedTuple):
    """The outcome of a selector, one entry per row.

    token: the output. accepted: whether it is one of the candidates. index: the first slot holding it, -1 if none.
    valid: False where the input was none (NaN in a law, a candidate that cannot occur, a coin outside [0, 1)); such
    rows hold token -1. numpy selectors raise instead; on other backends nothing waits for the device, and `checked`
    raises once the caller wants to know.
    """

    token: Array
    accepted: Array
    index: Array
    valid: Array

    def checked(self) -> Selection:
        """Itself, or CandidateError naming the first invalid row."""
        valid = np.atleast_1d(to_numpy(self.valid))
        if not valid.all():
            row = np.unravel_index(int(np.argmin(valid)), valid.shape)
            where = f"row {int(row[0]) if len(row) == 1 else tuple(int(i) for i in row)}"
            raise CandidateError(
                f"{where} ({int((~valid).sum())} in all): a candidate the draft law cannot produce, "
                "a coin outside [0, 1) or a law that is none"
            )
        return self


@runtime_checkable
class Selector(Protocol):
    """A rule that turns candidates into one token of the target's law.

    target, draft: laws (..., V). candidates: ids (..., k), -1 in empty slots at the end. Leading axes broadcast.
    All methods are pure: same bytes in, same bytes out, nothing mutated.
    """

    name: str
    exact: bool

    def supports(self, law: DraftLaw) -> bool:
        """Whether the output law is the target for candidates of this law."""
        ...

    def acceptance(self, target: Array, draft: Array, law: DraftLaw) -> Array:
        """P(Y in candidates), (...)."""
        ...

    def conditional(self, target: Array, draft: Array, candidates: Array) -> Array:
        """P(Y = y | candidates), (..., V)."""
        ...

    def coins(self, k: int) -> int:
        """How many coins `select` takes for k candidates."""
        ...

    def select(self, target: Array, draft: Array, candidates: Array, coins: Array) -> Selection:
        """The output for coins (..., coins(k)) in [0, 1)."""
        ...


@runtime_checkable
class Coupling(Protocol):
    """A rule whose noise makes candidates and output together (Gumbel lists)."""

    name: str
    exact: bool

    def couple(self, target: Array, draft: Array, noise: Array) -> tuple[Array, Selection]: ...


class Registry:
    """Named factories in order of preference.

    >>> registry = Registry("toy")
    >>> registry.register("a", lambda size=1: size)
    >>> registry.get("a", size=3), list(registry)
    (3, ['a'])
    """

    def __init__(self, kind: str):
        self.kind = kind
        self._makers: dict[str, Callable[..., Any]] = {}

    def register(self, name: str, maker: Callable[..., Any]) -> None:
        if name in self._makers:
            raise OptionError(f"{self.kind} {name!r} is registered already")
        self._makers[name] = maker

    def get(self, name: str, **options: Any) -> Any:
        if name not in self._makers:
            raise OptionError(f"no {self.kind} {name!r}; there are {', '.join(self._makers)}")
        try:
            return self._makers[name](**options)
        except TypeError as reason:
            raise OptionError(f"{self.kind} {name!r}: {reason}") from reason

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def __contains__(self, name: object) -> bool:
        return name in self._makers


def require_support(selector: Selector, law: DraftLaw) -> None:
    """Raise UnsupportedLawError if the selector is not valid for candidates of this law."""
    if not selector.supports(law):
        raise UnsupportedLawError(f"{selector.name} is not exact for candidates of {law.name} with k = {law.k}")


def output_law(
    selector: Selector,
    target: Any,
    draft: Any,
    law: DraftLaw,
    by: Literal["conditional", "select"] = "conditional",
) -> np.ndarray:
    """The exact law of the output, by enumerating every candidate tuple: P(Y = y) = sum_x D(x) P(Y = y | x).

    target, draft: one law (V,) each. by="conditional" weighs the selector's conditional law, in the arithmetic of
    the laws; by="select" measures the coins for which `select` returns y, as fractions (floats are taken at their
    exact value). Never asked of the selector as a whole, so that it can be held against the target. Raises
    TooLargeError, with the size, for more than 2^26 tuples times tokens.

    >>> from ot_spec import IID, as_exact
    >>> from solvers import get_selector
    >>> target, draft = as_exact([0.25, 0.75]), as_exact([0.5, 0.5])
    >>> output_law(get_selector("rrs"), target, draft, IID(2), by="select")
    array([Fraction(1, 4), Fraction(3, 4)], dtype=object)
    """
    if by not in ("conditional", "select"):
        raise OptionError(f"by must be 'conditional' or 'select', got {by!r}")
    target, draft = (a if hasattr(a, "shape") else from_probs(a) for a in (target, draft))
    if by == "select" or is_exact(target) != is_exact(draft):
        target, draft = (a if is_exact(a) else as_exact(a) for a in (target, draft))
    _require_few(draft, law)
    tuples, probs = law.tuples(draft)
    target, draft = to_numpy(target), to_numpy(draft)
    if by == "conditional":
        rows = selector.conditional(target, draft, tuples)
    else:
        rows = select_law(selector, target, draft, tuples)
    return (probs[:, None] * rows).sum(axis=0)


def _require_few(draft: Array, law: DraftLaw) -> None:
    tuples, vocab = law.size(draft).tuples, draft.shape[-1]
    if tuples * vocab > ENTRY_LIMIT:
        what = f"the candidate tuples of {law.name}(k={law.k}), times {vocab:,} tokens"
        raise TooLargeError(what, tuples * vocab, ENTRY_LIMIT, "fewer tokens or candidates")


def acceptance_by_enumeration(selector: Selector, target: np.ndarray, draft: np.ndarray, law: DraftLaw) -> Any:
    """P(Y in X) = sum_x D(x) sum_(y in S(x)) P(Y = y | x) for one law pair (V,): the reference for `acceptance`."""
    tuples, probs = law.tuples(draft)
    rows = selector.conditional(target, draft, tuples)
    member = np.zeros((len(tuples), target.shape[-1] + 1), dtype=bool)
    np.put_along_axis(member, tuples, True, axis=1)
    return (probs[:, None] * np.where(member[:, :-1], rows, rows * 0)).sum()


def select_law(selector: Selector, target: np.ndarray, draft: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """P(Y = y | candidates) as `select` does it: the exact measure of the coins that give y, (N, V).

    target, draft: exact laws (V,); candidates (N, k). Coins are followed through their comparisons; see `coin`.
    """
    return exact_measure(
        lambda rows, coins: selector.select(target, draft, candidates[rows], coins).token,
        rows=len(candidates),
        coins=selector.coins(candidates.shape[-1]),
        outcomes=target.shape[-1],
        one=target.reshape(-1)[0] * 0 + 1,
    )


def first_match(candidates: Array, token: Array) -> Array:
    """The first slot of candidates (..., k) that holds token (...), -1 if none."""
    xp = namespace(candidates)
    hit = candidates == token[..., None]
    slot = xp.argmax(xp.astype(hit, xp.int64), axis=-1)
    return xp.where(xp.any(hit, axis=-1), slot, xp.full_like(slot, -1))


def as_float(law: Array) -> Array:
    """A law as float64 where it is exact, itself otherwise."""
    if not is_exact(law):
        return law
    return np.vectorize(lambda value: float(as_fraction(value)), otypes=[np.float64])(law)
