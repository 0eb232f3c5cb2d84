"""`--compare`, `--fit` and the device benchmark: the same work for everyone, counted right."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_decoder import Decoder
from gpu_decoder import compare as comparing
from gpu_decoder import fit as fitting
from gpu_decoder.compare import Choice, MethodRun, _Own, choices_of, compare
from gpu_decoder.fit import fit
from gpu_decoder.models import load
from gpu_decoder.processing import Processing
from ot_spec.cli import main
from ot_spec.errors import OptionError, UnsupportedLawError, VocabularyError

PROMPTS = ["w1 w2", "w3 w4 w5 w3 w4"]
SMALL: dict[str, Any] = {"candidates": 2, "length": 3, "new_tokens": 12, "dtype": "float64"}


@pytest.fixture
def few_settings(monkeypatch):
    monkeypatch.setattr(comparing, "_ASSISTED", ((2, "constant", 0.0), (20, "heuristic", 0.4)))
    monkeypatch.setattr(comparing, "_LOOKUP", ((2, 2), (4, 3)))


def of(runs: list[MethodRun]) -> dict[str, MethodRun]:
    return {run.method: run for run in runs}


def test_everyone_makes_the_same_number_of_tokens(tiny, few_settings):
    found = compare(PROMPTS, target=tiny, draft="exit:1", selectors=["block:1", "k_seq"], rounds=2, **SMALL)
    runs = of(found.runs)
    assert list(runs) == ["generate", "plain", "block", "k_seq", "assisted", "prompt_lookup"]
    assert {run.tokens for run in found.runs} == {2 * 2 * 12} and not found.left_out
    assert runs["generate"].target_calls == runs["plain"].target_calls == 48
    assert runs["generate"].block_efficiency == runs["plain"].block_efficiency == 1
    assert all(run.block_efficiency == run.tokens / run.target_calls for run in found.runs)
    assert runs["assisted"].block_efficiency > 1 and (runs["assisted"].draft_calls or 0) > 0
    assert (runs["block"].candidates, runs["k_seq"].candidates, runs["plain"].candidates) == (1, 2, None)
    for run in found.runs:
        assert len(run.seconds) == 2 and run.ratio_range[0] <= run.ratio <= run.ratio_range[1]
        assert run.tokens_per_second == pytest.approx(24 / (sum(run.seconds) / 2))
    assert runs["generate"].ratio == 1
    assert (runs["assisted"].settings["num_assistant_tokens"] in (2, 20)) and found.settings["new_tokens"] == 12


def test_ratios_are_of_the_same_round():
    generate, ours = MethodRun("generate", None, None, None, {}), MethodRun("k_seq", "exit:1", 4, 4, {})
    generate.tokens = ours.tokens = generate.target_calls = 30
    generate.seconds, ours.seconds, ours.target_calls = [2.0, 4.0, 3.0], [1.0, 1.0, 6.0], 12
    comparing._settle(ours, generate, 3)
    assert (ours.ratio, ours.ratio_range) == (2.0, (0.5, 4.0))
    assert ours.block_efficiency == 2.5 and ours.tokens_per_second == 10.0


def test_methods_take_turns(tiny, few_settings):
    order: list[str] = []

    def note(what: str, done: int, of: int) -> None:
        if what.startswith("round"):
            order.append(what)

    compare(PROMPTS, target=tiny, draft="none", selectors=["k_seq"], rounds=2, progress=note, **SMALL)
    names = [what.partition(": ")[2] for what in order]
    assert names[:3] == ["generate", "plain", "k_seq"] and names[3:6] == ["plain", "k_seq", "generate"]
    assert len(names) == 2 * 2 * 3


def test_a_draft_that_is_the_target_is_always_accepted(tiny, few_settings):
    """Greedy, so that every call of the target is known beforehand."""
    found = compare(
        PROMPTS, target=tiny, draft=tiny, selectors=["block:1"], rounds=1, law=Processing(0.0), **SMALL
    )  # fmt: skip
    runs = of(found.runs)
    assert runs["block"].target_calls == 2 * 3  # 12 tokens by fours
    settings = runs["assisted"].settings
    if settings["num_assistant_tokens_schedule"] == "constant":
        assert runs["assisted"].target_calls == 2 * 4 and runs["assisted"].draft_calls == 2 * (12 - 4)


@pytest.mark.parametrize("asked", [{}, {"assistant_early_exit": 3}, {"prompt_lookup_num_tokens": 3}])
def test_target_calls_are_counted_apart_from_draft_calls(tiny, asked):
    model = load(tiny, "float64")
    calls: list[int] = []
    hook = model.model.register_forward_pre_hook(lambda *_: calls.append(model.model.config.num_hidden_layers))
    counts = _Own(model, Processing(), asked, {"num_assistant_tokens": 2})([[3, 4, 5, 3, 4]], 12, 0)
    hook.remove()
    assert counts.tokens == 12 and counts.target_calls == calls.count(4)
    assert counts.draft_calls == (None if not asked else calls.count(3))


def test_transformers_generates_as_we_do(tiny):
    """Greedy tokens of a batch, and the filters of the law it draws from; ends of texts are passed over."""
    model = load(tiny, "float64")
    model.model.generation_config.repetition_penalty = 5.0  # the model's own wishes are set aside, and come back
    own, texts, made = model.model.generation_config, [[3, 4], [5, 6, 7, 8]], {}
    real = model.model.generate

    def keeping(*given: Any, **asked: Any) -> Any:
        made["ids"], made["asked"] = real(*given, **asked), asked
        return made["ids"]

    model.model.generate = keeping
    counts = _Own(model, Processing(0.0))(texts, 10, 0)
    assert counts.tokens == 20 and counts.target_calls == 20
    expected = Decoder(model, "none", selector="maximal_coupling", candidates=1).generate(
        texts, 10, temperature=0.0, ends=frozenset()
    )
    assert made["ids"][:, 4:].tolist() == [one.tokens for one in expected]
    _Own(model, Processing(0.7, 5, 0.9, 0.1))(texts, 2, 0)
    assert {name: made["asked"][name] for name in ("temperature", "top_k", "top_p", "min_p", "do_sample")} == {
        "temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "do_sample": True,
    }  # fmt: skip
    assert model.model.generation_config is own and own.repetition_penalty == 5.0


def test_no_end_stops_anyone(make_model, few_settings):
    def ends(model: Any) -> None:
        model.lm_head.weight[2] *= 8

    target = make_model(change=ends)
    found = compare(PROMPTS, target=target, draft="exit:1", selectors=["k_seq"], rounds=1, **SMALL)
    assert {run.tokens for run in found.runs} == {24}
    model = load(target)
    assert any(2 in one.tokens for one in Decoder(model, "none").generate(PROMPTS, 12))


def test_batches_leave_assisted_generation_out(tiny, few_settings):
    found = compare(PROMPTS, target=tiny, draft="exit:1", selectors=["k_seq"], rounds=1, batch=2, **SMALL)
    assert [run.method for run in found.runs] == ["generate", "plain", "k_seq"]
    assert found.left_out == [
        {"method": name, "reason": "takes one text at a time"} for name in ("assisted", "prompt_lookup")
    ]
    assert {(run.tokens, run.block_efficiency == 1) for run in found.runs[:2]} == {(24, True)}


def test_a_way_that_fails_is_left_out_with_its_reason(tiny, few_settings, monkeypatch):
    def failing(self: Any, *_: Any) -> Any:
        if "assistant_early_exit" in self._asked:
            raise ValueError("not for this model\nand more")
        return call(self, *_)

    call = _Own.__call__
    monkeypatch.setattr(_Own, "__call__", failing)
    found = compare(PROMPTS, target=tiny, draft="exit:1", selectors=["k_seq"], rounds=1, **SMALL)
    assert found.left_out == [{"method": "assisted", "reason": "ValueError: not for this model"}]


def test_the_fastest_of_the_warm_up_is_taken():
    clock = {"2": [9.0], "4": [1.0, 3.0], "8": [2.0, 0.5], "16": [3.0, 3.0]}

    class Timed:
        run = None

        def __init__(self, name: str):
            self.name = name

        def call(self, *_: Any) -> Any:
            return None

    def timed(method: Any, *_: Any) -> tuple[float, None]:
        return clock[method.name].pop(0), None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparing, "_timed", timed)
        tried: list[Any] = [Timed(name) for name in clock]
        best: Any = comparing._fastest("assisted", tried, [[[1]]], 4, 0, lambda *_: None)
    assert best.name == "8" and clock == {"2": [], "4": [], "8": [], "16": []}


def test_selectors_are_written_with_their_sizes():
    assert choices_of(["k_seq", "rrs:2", "block:1:6", "k_seq"], 4, 5) == [
        Choice("k_seq", 4, 5),
        Choice("rrs", 2, 5),
        Choice("block", 1, 6),
    ]
    every = choices_of(["all:2:3"], 4, 4)
    assert {"optimal", "k_seq", "rrs", "hub", "traversal", "point_mass"} <= {choice.selector for choice in every}
    assert {(choice.candidates, choice.length) for choice in every} == {(2, 3)}
    assert not {"luce", "importance", "block"} & {choice.selector for choice in every}
    with pytest.raises(OptionError, match=r"NAME, NAME:K or NAME:K:L, got 'k_seq:x'"):
        choices_of(["k_seq:x"], 4, 4)


def test_all_selectors_run(tiny):
    found = compare(PROMPTS[:1], target=tiny, draft="exit:1", selectors=["all"], rounds=1, batch=2, **SMALL)
    assert {"optimal", "rrs_without_replacement", "hub", "traversal", "spectr", "point_mass"} <= set(of(found.runs))
    assert {run.tokens for run in found.runs} == {12}


def test_bad_input(tiny):
    for name in ("rounds", "batch", "limit", "new_tokens"):
        with pytest.raises(OptionError, match=f"{name.replace('_', ' ')} must be at least 1"):
            compare(PROMPTS, **{"target": tiny, **SMALL, name: 0})
    with pytest.raises(UnsupportedLawError, match="exact for no tree of 2 candidates"):
        compare(PROMPTS, target=tiny, draft="exit:1", selectors=["block"], **SMALL)


# ---- what fits


def test_a_fit_tries_what_there_is_and_says_what_is_refused(make_model, tiny):
    draft, words = make_model(seed=2, layers=1), ["<unk>", "<s>", "</s>", *(f"v{i}" for i in range(21))]
    other = make_model(seed=3, words=words)
    found = fit(tiny, [draft, other], prompts=PROMPTS, new_tokens=8, candidates=2, lengths=(2, 3))
    assert {pair.drafter for pair in found.pairs} == {"exit:1", "exit:2", "lookup:3", str(draft)}
    assert {pair.selector for pair in found.pairs} == {"block", "traversal", "k_seq", "optimal", "point_mass"}
    assert {pair.length for pair in found.pairs} == {2, 3}
    [refused] = found.refused
    assert refused["drafter"] == str(other) and "different tokenizers" in refused["reason"]
    speeds = [pair.tokens_per_second for pair in found.pairs]
    assert speeds == sorted(speeds, reverse=True) and found.reason is None
    for pair in found.pairs:
        assert 1 <= pair.block_efficiency <= pair.length + 1
        assert pair.ratio == pytest.approx(pair.tokens_per_second / (found.plain_tokens_per_second or 0))
    assert "k_seq" in found.rules and "block" not in found.rules
    with pytest.raises(VocabularyError):
        compare(PROMPTS, target=tiny, draft=other, **SMALL)


def test_a_fit_recommends_the_fastest_pair_and_none_that_is_slower(tiny, monkeypatch):
    def steps(decoder: Decoder, *_: Any) -> tuple[list[int], list[float]]:
        costs = {"none": 1.0, "exit:1": 1.5, "exit:2": 1.25}
        cost = costs.get(decoder.drafter.name, 9.0) + (decoder.candidates > 1)
        return ([1] * 4 if decoder.drafter.name == "none" else [2, 4, 2, 4]), [cost, cost, cost, 99.0]

    monkeypatch.setattr(fitting, "_steps", steps)
    found = fit(tiny, prompts=PROMPTS, lengths=(2,))
    assert found.recommended is not None and found.recommended == found.pairs[0]
    best = found.recommended
    assert (best.drafter, best.selector, best.ratio) == ("exit:2", "block", pytest.approx(3 / 1.25))
    assert best.error == pytest.approx((4 / 3) ** 0.5 / 2)
    assert "--draft exit:2 --selector block --candidates 1 --length 2" in found.advice
    for committed, cost in (([2, 2], 3.0), ([1, 1], 0.5), ([1, 2], 0.5)):  # slow; no gain; a gain within its error
        drafted = committed, [cost, cost]
        monkeypatch.setattr(
            fitting,
            "_steps",
            lambda decoder, *_, made=drafted: ([1], [1.0]) if decoder.drafter.name == "none" else made,
        )
        found = fit(tiny, prompts=PROMPTS, lengths=(2,))
        assert found.recommended is None and "--draft none" in found.advice


def test_a_target_that_cannot_be_rewound_is_told_so(tiny):
    model = load(tiny)
    model.model.config.layer_types = ["linear_attention"] * 4
    found = fit(model, prompts=PROMPTS)
    assert not found.pairs and found.recommended is None
    assert "keeps a state that cannot be rewound" in (found.reason or "") and found.advice == found.reason


def test_a_target_of_one_layer_has_no_early_exit(make_model):
    found = fit(make_model(layers=1), prompts=PROMPTS, new_tokens=4, lengths=(2,), candidates=1)
    assert [row["drafter"] for row in found.refused] == ["exit:1"] and "exit" in found.refused[0]["reason"]
    assert {pair.drafter for pair in found.pairs} == {"lookup:3"}
    with pytest.raises(OptionError, match="at least 2 new tokens"):
        fit(make_model(layers=1), prompts=PROMPTS, new_tokens=1)


# ---- the command


def run(*arguments: Any) -> int:
    with pytest.raises(SystemExit) as left:
        main(["decode", *map(str, arguments)])
    return int(left.value.code or 0)


def test_the_comparison_on_the_command_line(tmp_path, tiny, few_settings, capsys):
    options = ["w1 w2 w3", "--compare", "--target", tiny, "--draft", "exit:1", "--max-new-tokens", 6, "--rounds", 2]
    options += ["--selector", "block:1:3", "--selector", "k_seq:2"]
    assert run(*options, "--json", "--out", tmp_path) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [r["method"] for r in printed["runs"]] == [
        "generate",
        "plain",
        "block",
        "k_seq",
        "assisted",
        "prompt_lookup",
    ]
    needed = {"method", "tokens_per_second", "block_efficiency", "target_calls", "tokens"}
    assert all(needed <= set(r) and r["tokens"] == 12 for r in printed["runs"])
    assert json.loads((tmp_path / "compare.json").read_text()) == printed
    assert run(*options) == 0
    printed = capsys.readouterr().out
    assert "of generate" in printed and "the fastest on the warm-up: num_assistant_tokens = " in printed


def test_the_fit_on_the_command_line(tmp_path, tiny, capsys):
    options = ["w1 w2 w3", "--fit", "--target", tiny, "--max-new-tokens", 4, "--candidates", 2, "--length", 2]
    assert run(*options, "--json", "--out", tmp_path) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["pairs"] and printed["advice"] and json.loads((tmp_path / "fit.json").read_text()) == printed
    assert run(*options, "--draft", "absent") == 0
    printed = capsys.readouterr().out
    assert "does not fit: absent (no model in 'absent'" in printed and "rules that fit: optimal, " in printed


# ---- the device benchmark


@pytest.fixture
def bench():
    file = Path(__file__).parents[1] / "benchmarks" / "gpu_bench.py"
    spec = importlib.util.spec_from_file_location("gpu_bench", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_benchmark_says_so_where_there_is_no_device(bench, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench.main([]) == 0
    assert "no CUDA device" in (printed := capsys.readouterr().out) and len(printed.splitlines()) == 1


def test_the_benchmark_runs_small_on_the_cpu(bench, tiny, few_settings, capsys):
    options = ["--device", "cpu", "--vocab", "40", "--batches", "1,3", "--seconds", "0", "--target", str(tiny)]
    options += ["--draft", "exit:1", "--tokens", "6", "--rounds", "1", "--limit", "1", "--dtypes", "float32"]
    assert bench.main([*options, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {(row["selector"], row["batch"]) for row in printed["selection"]} >= {("optimal", 3), ("k_seq", 1)}
    assert all(row["seconds"] > 0 for row in printed["selection"])
    assert {"generate", "plain", "k_seq", "optimal"} <= {run["method"] for run in printed["decodes"][0]["runs"]}
    assert bench.main(options) == 0
    assert "milliseconds of a selection" in capsys.readouterr().out


def test_the_benchmark_goes_on_when_memory_is_short(bench, monkeypatch):
    def call(rule: Any, law: Any, device: Any, vocab: int, batch: int) -> Any:
        if batch > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return lambda: None

    monkeypatch.setattr(bench, "call", call)
    rows = bench.selection_times(torch.device("cpu"), 8, [1, 4, 8], 2, 0.0)
    assert [(row["seconds"] is None, row["note"]) for row in rows[:3]] == [
        (False, ""),
        (True, "out of memory"),
        (True, "out of memory"),
    ]
