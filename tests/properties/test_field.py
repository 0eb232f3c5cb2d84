"""The field study: every method in its table, with a number or a reason, under the budget."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ot_spec import IID, WithoutReplacement, filtered
from ot_spec.captured import CapturedWriter
from ot_spec.cli import main
from ot_spec.errors import CaptureFileError, OptionError, SolverError
from ot_spec.families import draw
from solvers import get_selector, optimal_acceptance
from solvers.gap import (
    FIELD_COLUMNS,
    METHODS,
    OPTIMUM,
    draw_field,
    field_study,
    field_summary,
    share_picture,
    time_picture,
)
from solvers.gap import field as field_module

SMALL: dict[str, Any] = {
    "families": ["softmax_normal"],
    "vocab": (9, 30),
    "k": (2, 8),
    "filters": ("none", "top_k=5"),
    "runs": 2,
    "seed": 4,
}
KEY = ["source", "row", "vocab", "filter", "k", "law", "method"]


def study(**arguments: Any) -> Any:
    """`field_study`; pandas' declared types are unions too wide to check a test against."""
    return field_study(**{**SMALL, **arguments})


@pytest.fixture(scope="module")
def table() -> Any:
    return study()


def laws(vocab: int, text: str = "none") -> tuple[np.ndarray, np.ndarray]:
    [target], [draft] = draw("softmax_normal", 4, vocab, 1)
    return (target, draft) if text == "none" else (filtered(target, top_k=5), filtered(draft, top_k=5))


def test_every_method_has_a_line_everywhere(table):
    assert {name: str(kind) for name, kind in table.dtypes.items()} == FIELD_COLUMNS
    assert not table.duplicated(KEY).any()
    lines = sum(len(methods) for methods in METHODS.values())
    assert len(table) == 3 * 2 * lines  # 9 tokens, 30 tokens, 30 tokens filtered; two k
    assert {"optimal", "luce", "importance", "lp", "max_flow", "pot"} < set(METHODS)
    cells = table.groupby(["vocab", "filter", "k"])["method"].agg(lambda names: set(names))
    assert all(names == set(METHODS) for names in cells)
    assert set(table[table["filter"] == "top_k=5"]["vocab"]) == {30}
    assert set(table[table["filter"] == "top_k=5"]["support"]) == {5}


def test_a_line_has_its_numbers_or_a_reason(table):
    done = table["status"] == "done"
    assert table[done]["seconds"].gt(0).all() and (table[done]["runs"] == SMALL["runs"]).all()
    assert table[done]["acceptance"].notna().all() and (table[done]["note"] == "").all()
    rest = table[~done]
    assert set(rest["status"]) == {"too large"} and set(rest["kind"]) == {"plan"}
    assert (rest["note"].str.contains("the limit is")).all() and rest[["seconds", "acceptance"]].isna().all(axis=None)
    size = IID(8).size(laws(30)[1]).edges
    lost = rest[(rest["vocab"] == 30) & (rest["filter"] == "none") & (rest["method"] == "lp") & (rest["law"] == "iid")]
    assert list(lost["note"]) == [f"{size:,} membership edges, the limit is 500,000"]


def test_acceptance_is_the_selectors_and_never_above_the_optimum(table):
    assert (table["acceptance"].fillna(0) <= table["optimum"] + 1e-11 + 6 * table["acceptance_error"].fillna(0)).all()
    np.testing.assert_allclose(table["share"], table["acceptance"] / table["optimum"])
    for vocab, text in ((9, "none"), (30, "none"), (30, "top_k=5")):
        target, draft = laws(vocab, text)
        lines = table[(table["vocab"] == vocab) & (table["filter"] == text)].set_index(["k", "law", "method"])
        for k in SMALL["k"]:
            for name, law in (("k_seq", IID(k)), ("rrs_without_replacement", WithoutReplacement(k))):
                line = lines.loc[(k, law.name, name)]
                expected = get_selector(name).acceptance(target, draft, law)
                assert line["acceptance"] == pytest.approx(expected, abs=1e-12)
                assert line["optimum"] == pytest.approx(optimal_acceptance(target, draft, law), abs=1e-12)
    plans = table[(table["kind"] == "plan") & (table["status"] == "done")]
    assert set(plans["method"]) == {"lp", "max_flow", "pot"}
    np.testing.assert_allclose(plans["share"], 1, atol=1e-10)
    best = table[table["method"].isin(["optimal", "optimal_without_replacement", "top_then_sample"])]
    np.testing.assert_allclose(best["share"], 1, atol=1e-9)
    assert (table[(table["method"] == "k_seq") & (table["k"] == 2)]["share"] < 0.99).any()


def test_nothing_larger_is_tried_once_the_budget_is_spent(monkeypatch):
    """With a clock of its own: a method that takes a second for every token, and a bit more the first time."""
    now = [0.0]
    calls: list[tuple[int, int]] = []

    class Slow:
        def coins(self, k):
            return 0

        def acceptance(self, target, draft, law):
            return 0.25

        def select(self, target, draft, candidates, coins):
            size = target.size, candidates.size
            now[0] += target.size + (0 if size in calls else 0.5)
            calls.append(size)

    rule: Any = Slow()
    slow = field_module.Method("slow", "iid", "select", field_module._selecting(rule), rule)
    monkeypatch.setitem(field_module.METHODS, "slow", (slow,))
    monkeypatch.setattr(field_module, "_warm_up", lambda methods: None)
    monkeypatch.setattr(field_module.time, "process_time", lambda: now[0])
    lines = study(methods=["slow"], vocab=(4, 10, 20, 100), k=(1, 2), filters=("none",), budget=15, runs=3)
    lines = lines[lines["method"] == "slow"]
    # 4: three runs; 10: two use the budget up; 20: one goes over, and nothing of as many tokens and candidates follows
    assert calls == [(4, 1)] * 3 + [(4, 2)] * 3 + [(10, 1)] * 2 + [(10, 2)] * 2 + [(20, 1)]
    assert list(lines["seconds"].dropna()) == [4, 4, 10, 10, 20.5]
    assert list(lines["runs"]) == [3, 3, 2, 2, 1, 0, 0, 0]
    assert list(lines["status"]) == ["done"] * 4 + ["over budget"] + ["not tried"] * 3
    assert set(lines["note"][lines["status"] == "not tried"]) == {
        "over the budget before: 20.5 s with a support of 20, k = 1"
    }
    assert list(lines["acceptance"].dropna()) == [0.25] * 5


def test_runs_see_other_bytes_each_time():
    seen = []

    class Keeping:
        def coins(self, k):
            return 0

        def select(self, target, draft, candidates, coins):
            seen.append((target, draft))

    rule: Any = Keeping()
    method = field_module.Method("keeping", "iid", "select", field_module._selecting(rule), rule)
    problem = field_module.Problem("here", 0, "none", *laws(9))
    _, runs, _ = field_module._Race(1.0, 3)._timed(problem, IID(2), method)
    assert runs == 3 == len({target.tobytes() for target, _ in seen})
    for target, draft in seen:
        pairs = set(zip(target.tolist(), draft.tolist(), strict=True))
        assert pairs == set(zip(problem.target.tolist(), problem.draft.tolist(), strict=True))


def test_what_is_not_installed_or_fails_says_so(monkeypatch):
    def broken(problem):
        raise SolverError("time limit")

    plan = field_module.Method("broken", "iid", "plan", field_module._planning(broken))
    monkeypatch.setitem(field_module.METHODS, "broken", (plan,))
    monkeypatch.setattr(field_module, "_warm_up", lambda methods: None)
    found = field_module.find_spec
    monkeypatch.setattr(field_module, "find_spec", lambda name: None if name == "ot" else found(name))
    lines = study(methods=["pot", "broken"], vocab=(9,), k=(2,), filters=("none",))
    told = dict(zip(lines["method"], zip(lines["status"], lines["note"], strict=True), strict=True))
    assert told["pot"] == ("not installed", "the package ot is not installed")
    assert told["broken"] == ("failed", "time limit")
    assert told[OPTIMUM] == ("done", "")


def capture(folder, target, draft, compact=None):
    writer = CapturedWriter(folder, vocab=target.shape[-1], compact=compact)
    with writer.part(0, "p0") as part:
        for row in range(len(target)):
            part.append(range(row), 0, target[row], draft[row])
    return folder


def test_captured_laws_and_compact_ones(tmp_path):
    target, draft = draw("softmax_normal", 8, 30, 5)
    asked: dict[str, Any] = {"vocab": (), "methods": ["k_seq"], "k": (2,), "limit": 2, "runs": 1}
    full = study(captured=[capture(tmp_path / "full", target, draft)], **asked)
    assert set(full["row"]) == {0, 4} and set(full["filter"]) == set(SMALL["filters"])
    some = study(captured=[capture(tmp_path / "some", target, draft, 3)], **asked)
    assert some["vocab"].max() < 30
    plain = full[(full["filter"] == "none") & (full["method"] == "k_seq")]
    expected = get_selector("k_seq").acceptance(target[[0, 4]], draft[[0, 4]], IID(2))
    np.testing.assert_allclose(plain["acceptance"], expected, atol=1e-6)
    with pytest.raises(CaptureFileError, match="does not exist"):
        study(captured=[tmp_path / "nowhere"])


def test_a_summary_keeps_the_reason_of_the_row_that_has_one(table):
    short: Any = field_summary(table)
    assert len(short) == len(table)  # one row each
    two = pd.concat([table, table.assign(row=1, status="over budget", note="slow", seconds=3.0)])
    both: Any = field_summary(two)
    assert (both["rows"] == 2).all() and len(both) == len(short)
    assert set(both["status"]) == {"over budget", "too large"}
    known = short["seconds"].notna()
    np.testing.assert_allclose(both["seconds"][known], (short["seconds"][known] + 3) / 2)
    some: Any = field_summary(pd.concat([table, table.assign(row=1, acceptance=np.nan)]))
    assert some["acceptance"].isna().all() and some["seconds"].notna().any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": (0,)}, "k must be an integer of at least 1, got 0"),
        ({"k": ()}, "nothing to study"),
        ({"methods": ["best"]}, "no method 'best'; there are optimum, optimal"),
        ({"families": ["best"]}, "no family 'best'"),
        ({"vocab": ()}, "nothing to study"),
        ({"vocab": (1,)}, "at least 2 tokens, got 1"),
        ({"filters": ()}, "nothing to study"),
        ({"filters": ("top=3",)}, "filter 'top=3': 'top=3' is not of the form top_k, top_p, min_p=number"),
        ({"filters": ("top_p=2",)}, r"top_p must lie in \[0, 1\], got 2"),
        ({"rows": 0}, "rows must be at least 1, got 0"),
        ({"limit": 0}, "limit must be at least 1, got 0"),
        ({"runs": 0}, "runs must be at least 1, got 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"budget": 0.0}, "budget must be a positive number of seconds, got 0"),
        ({"budget": float("nan")}, "budget must be a positive number of seconds, got nan"),
    ],
)
def test_bad_options_are_named(arguments, message):
    with pytest.raises(OptionError, match=message):
        study(**arguments)


def test_pictures_show_the_table(table, tmp_path):
    files = draw_field(table, tmp_path)
    assert {file.name for file in files} == {"share.png", "share.svg", "time.png", "time.svg"}
    assert all(file.stat().st_size > 5000 for file in files)
    panel = time_picture(table).axes[0]
    assert panel.get_title() == "k = 2"
    rows = table[(table["k"] == 2) & (table["filter"] == "none") & (table["method"] == "k_seq")]
    drawn = {tuple(np.asarray(line.get_ydata(), float)) for line in panel.lines}
    assert tuple(rows["seconds"]) in drawn
    panel = share_picture(table).axes[0]
    rows = table[(table["vocab"] == 30) & (table["filter"] == "none") & (table["method"] == "k_seq")]
    drawn = {tuple(np.asarray(line.get_ydata(), float)) for line in panel.lines}
    assert tuple(rows["acceptance"]) in drawn


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["field", *argv])
    return int(ended.value.code or 0)


TINY = ["--family", "softmax_normal", "--vocab", "9", "--k", "2", "--filter", "none", "--runs", "1"]
TINY += ["--methods", "optimal,k_seq,lp"]


def test_json_is_one_object_with_the_stated_keys(capfd):
    assert run(*TINY, "--json", "--seed", "3") == 0
    found = json.loads(capfd.readouterr().out)
    assert set(found) == {"rows", "seed", "seconds", "summary", "files"}
    assert found["seed"] == 3 and found["files"] == [] and found["rows"] == len(found["summary"]) == 6
    wanted = {"source", "vocab", "filter", "k", "law", "method", "kind", "rows", "support", "seconds", "acceptance"}
    wanted |= {"acceptance_error", "optimum", "share", "status", "note"}
    assert all(set(line) == wanted for line in found["summary"])
    assert run("--help") == 0
    text = " ".join(capfd.readouterr().out.split())
    assert all(f'"{key}"' in text for key in (set(found) | wanted))


def test_the_command_writes_its_tables_and_prints_them(tmp_path, capfd):
    assert run(*TINY, "--out", str(tmp_path / "new" / "out")) == 0
    shown = capfd.readouterr()
    assert "softmax_normal, V = 9, filter none" in shown.out and "k_seq" in shown.out and shown.err == ""
    folder = tmp_path / "new" / "out"
    names = {"field.csv", "field.parquet", "summary.csv", "share.png", "share.svg", "time.png", "time.svg"}
    assert {file.name for file in folder.iterdir()} == names
    assert list(pd.read_parquet(folder / "field.parquet").columns) == list(FIELD_COLUMNS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--k", "two"], "--k takes numbers separated by commas, got 'two'"),
        (["--vocab", "many"], "--vocab takes numbers separated by commas, got 'many'"),
        (["--filter", "best"], "filter 'best'"),
        (["--methods", "best"], "no method 'best'"),
        (["--captured", "nowhere"], "nowhere does not exist"),
        (["--budget", "-1"], "budget must be a positive number of seconds, got -1"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(options, message, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(*options, "--json") == 2
    shown = capfd.readouterr()
    assert shown.out == "" and message in shown.err
    assert len(shown.err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
