"""Costs as ratios against a named rival in the same process: CPU seconds, one thread, minimum of several runs.

`make bench` prints the table; nothing here runs in `make test`. The limits are those the project promises.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
import torch

from ot_spec import IID, WithoutReplacement, from_logits
from solvers import get_selector, optimal_acceptance, optimal_cut
from solvers.exact.priority_lists import priority_lists
from solvers.selectors import Optimal

RUNS = 9


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def best(function: Callable[[], object], runs: int = RUNS) -> float:
    """Least CPU seconds of `runs` calls after a warm-up."""
    function()
    times = []
    for _ in range(runs):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def logits(vocab: int, rows: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Softmax-normal logits of spread 3, the draft's off by a normal of spread 1."""
    rng = np.random.default_rng(0)
    shape = (vocab,) if rows is None else (rows, vocab)
    target = 3 * rng.normal(size=shape)
    return target.astype(np.float32), (target + rng.normal(size=shape)).astype(np.float32)


@pytest.fixture
def report(capsys):
    def show(what: str, ours: float, rival: str, theirs: float, limit: float) -> None:
        with capsys.disabled():
            print(
                f"\n{what}: {1e3 * ours:.2f} ms, {rival}: {1e3 * theirs:.2f} ms, "
                f"ratio {ours / theirs:.2f} (limit {limit})"
            )
        assert ours <= limit * theirs

    return show


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("what", ["acceptance", "cut"])
def test_optimum_iid_against_a_sort(report, backend, what):
    target, draft = (from_logits(x) for x in logits(128_256))
    ratio = target / draft
    order = np.argsort(ratio, kind="stable")
    rival = best(lambda: (np.sort(ratio, kind="stable"), ratio[order]))
    if backend == "torch":
        target, draft = torch.tensor(target), torch.tensor(draft)
    solve = optimal_acceptance if what == "acceptance" else optimal_cut
    ours = best(lambda: solve(target, draft, IID(8)))
    report(f"optimal {what}, i.i.d., V = 128,256, k = 8, {backend}", ours, "stable np.sort + gather", rival, 4)


@pytest.mark.parametrize(("classes", "limit"), [(None, 5), (32, 1)], ids=["windows", "histogram"])
@pytest.mark.parametrize("k", [2, 4, 8, 32])
def test_optimal_selector_preparation_against_a_sort(report, k, classes, limit):
    target, draft = (from_logits(x) for x in logits(128_256))
    ratio = target / draft
    order = np.argsort(ratio, kind="stable")
    rival = best(lambda: (np.sort(ratio, kind="stable"), ratio[order]))
    ours = best(lambda: Optimal(classes).windows(target, draft, k))
    form = "a window a token" if classes is None else f"{classes} windows a doubling"
    report(f"optimal, preparation, V = 128,256, k = {k}, {form}", ours, "stable np.sort + gather", rival, limit)


def test_optimal_selector_preparation_on_a_thousand_tokens(report):
    target, draft = (from_logits(x) for x in logits(1_000))
    ours = best(lambda: [Optimal().windows(target, draft, 4) for _ in range(20)]) / 20
    report("optimal, preparation, V = 1,000, k = 4", ours, "0.3 CPU ms", 0.3e-3, 1)


def peaked(vocab: int) -> tuple[np.ndarray, np.ndarray]:
    """A token that holds most of both laws, in front of a softmax-normal."""
    target, draft = (from_logits(x) for x in logits(vocab))
    first = np.eye(1, vocab)[0]
    return 0.2 * target + 0.8 * first, 0.2 * draft + 0.8 * first


LAWS = {
    "softmax-normal, spread 3": lambda: [from_logits(x) for x in logits(1_000)],
    "softmax-normal, spread 1": lambda: [from_logits(x / 3) for x in logits(1_000)],
    "the 1,000 likeliest of 49,152": lambda: [from_logits(x) for x in likeliest(49_152, 1_000)],
    "one token with 0.8 of the mass": lambda: peaked(1_000),
}


def likeliest(vocab: int, many: int) -> tuple[np.ndarray, np.ndarray]:
    target, draft = logits(vocab)
    kept = np.argsort(-draft)[:many]
    return target[kept], draft[kept]


@pytest.mark.parametrize("kind", LAWS)
@pytest.mark.parametrize(("k", "limit"), [(2, 20), (4, 20), (8, 50)])
def test_lists_without_replacement_on_a_thousand_tokens(report, kind, k, limit):
    """Flow, lists and the law of their pick; the aim at k = 4 is 3 ms."""
    target, draft = LAWS[kind]()
    ours = best(lambda: priority_lists(target, draft, WithoutReplacement(k)), runs=5)
    report(f"lists without replacement, 1,000 tokens, k = {k}, {kind}", ours, "a CPU ms", 1e-3, limit)


def test_optimum_without_replacement_in_a_second(report):
    target, draft = (from_logits(x) for x in logits(49_152))
    ours = best(lambda: optimal_acceptance(target, draft, WithoutReplacement(8)), runs=5)
    report("optimal acceptance, without replacement, V = 49,152, k = 8", ours, "one CPU second", 1.0, 1)


def test_k_seq_select_against_one_draft_sampling(report):
    """64 rows from float32 logits: candidates of four drafts selected, against one draft checked by transformers."""
    from transformers.generation.utils import _speculative_sampling

    rows, vocab, k = 64, 49_152, 4
    target, draft = (torch.tensor(x) for x in logits(vocab, rows))
    generator = torch.Generator().manual_seed(0)
    law = IID(k)
    candidates = law.sample(from_logits(draft), torch.rand(rows, k, generator=generator, dtype=torch.float64)).tokens
    coins = torch.rand(rows, k + 1, generator=generator, dtype=torch.float64)
    prompts = [torch.tensor([[0, 0, int(c[0])]]) for c in candidates]
    both = [torch.stack([target[row], target[row]])[None] for row in range(rows)]

    def rival() -> None:
        for row in range(rows):
            _speculative_sampling(prompts[row], draft[row][None, None], 1, both[row])

    selector = get_selector("k_seq")
    ours = best(lambda: selector.select(from_logits(target), from_logits(draft), candidates, coins).checked())
    report(
        "k_seq select, 64 rows, V = 49,152, k = 4",
        ours,
        "64 x transformers _speculative_sampling",
        best(rival),
        1.5,
    )


def test_optimal_select_against_k_seq(report):
    """64 rows through select, preparation included, in shared windows."""
    rows, vocab, k = 64, 49_152, 4
    target, draft = (from_logits(torch.tensor(x)) for x in logits(vocab, rows))
    generator = torch.Generator().manual_seed(0)
    candidates = IID(k).sample(draft, torch.rand(rows, k, generator=generator, dtype=torch.float64)).tokens
    optimal, k_seq = Optimal(32), get_selector("k_seq")
    coins = torch.rand(rows, optimal.coins(k), generator=generator, dtype=torch.float64)
    rival = best(lambda: k_seq.select(target, draft, candidates, coins[:, : k_seq.coins(k)]))
    ours = best(lambda: optimal.select(target, draft, candidates, coins))
    report("optimal select, 64 rows, V = 49,152, k = 4, 32 windows a doubling", ours, "k_seq select", rival, 1.5)
