"""The gap study: what its table must hold, however it was computed, interrupted or stored."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest

from ot_spec import IID, WithoutReplacement, reheated
from ot_spec.captured import CapturedWriter
from ot_spec.cli import main
from ot_spec.errors import CaptureFileError, OptionError, OtSpecError, UnsupportedLawError
from ot_spec.families import draw
from solvers import get_selector, optimal_acceptance
from solvers.gap import (
    COLUMNS,
    OPTIMUM,
    acceptance_picture,
    draw_pictures,
    gap_study,
    guarantee,
    sharp_guarantee,
    summary,
    tuned,
    two_token_pair,
    worst_case,
)
from solvers.gap.study import DEAR_VOCAB, merged

RULES = ("rrs_without_replacement", "k_seq", "rrs", "maximal_coupling")
SMALL: dict[str, Any] = {"selectors": RULES, "vocab": 9, "rows": 6, "k": (1, 2, 4), "seed": 5}


def study(**arguments: Any) -> Any:
    """`gap_study`; pandas' declared types are unions too wide to check a test against."""
    return gap_study(**arguments)


def capture(folder: Path, target, draft, compact=None) -> Path:
    """Laws (n, V) as a capture of two prompts."""
    writer = CapturedWriter(folder, vocab=target.shape[-1], compact=compact)
    half = len(target) // 2
    for number, rows in enumerate((range(half), range(half, len(target)))):
        with writer.part(number, f"p{number}") as part:
            for row in rows:
                part.append(range(row), 0, target[row], draft[row])
    return folder


@pytest.fixture(scope="module")
def table() -> Any:
    return study(draft_temperatures=(1.0, 1.5), **SMALL)


def same(one: pd.DataFrame, other: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(one, other, check_exact=True)
    assert one.to_csv(index=False) == other.to_csv(index=False)


# ---- the table


def test_columns_and_lines(table):
    assert {name: str(kind) for name, kind in table.dtypes.items()} == COLUMNS
    key = ["source", "row", "selector", "law", "k", "draft_temperature"]
    assert not table.duplicated(key).any()
    # 8 sources, 6 rows, 2 temperatures; at k = 1 all selectors of every law, beyond that those that are exact for it
    cells = table.groupby(["law", "k"])["selector"].agg(lambda names: sorted(set(names)))
    assert cells["iid", 4] == ["k_seq", "optimum", "rrs"]
    assert cells["without_replacement", 4] == ["optimum", "rrs_without_replacement"]
    assert "maximal_coupling" in cells["top_then_sample", 1]
    lines = len(cells.explode())
    assert len(table) == 8 * 6 * 2 * lines
    assert table[["acceptance", "optimum", "marginal_bound", "tv"]].notna().all(axis=None)


def test_no_selector_beats_the_optimum_nor_the_optimum_its_bound(table):
    room = 1e-12 + 6 * table["acceptance_error"]
    assert (table["acceptance"] <= table["optimum"] + room).all()
    assert (table["optimum"] <= table["marginal_bound"] + 1e-12).all()
    assert (table["acceptance"] >= -1e-15).all() and (table["optimum"] <= 1 + 1e-12).all()
    np.testing.assert_array_equal(table["gap"], table["optimum"] - table["acceptance"])
    alone = table[table["selector"] == OPTIMUM]
    assert (alone["ratio"] == 1).all() and (alone["gap"] == 0).all()


def test_k_seq_keeps_its_guarantees(table):
    rows = table[(table["selector"] == "k_seq") & (table["law"] == "iid")]
    assert (rows["ratio"] >= rows["guarantee"] - 1e-12).all()
    assert (rows["ratio"] >= rows["k"].map(sharp_guarantee) - 1e-9).all()
    assert (rows["ratio"][rows["k"] > 1] < 0.97).any()  # it is no trivial comparison


def test_one_candidate_leaves_no_choice(table):
    rows = table[table["k"] == 1]
    np.testing.assert_allclose(rows["acceptance"], 1 - rows["tv"], atol=1e-12)


def test_numbers_are_those_of_the_laws(table):
    target, draft = draw("dirichlet", SMALL["seed"], SMALL["vocab"], SMALL["rows"])
    hot = reheated(draft, 1.5)
    lines = table[(table["source"] == "dirichlet") & (table["draft_temperature"] == 1.5) & (table["k"] == 4)]
    for selector, law in (("k_seq", IID(4)), ("rrs", IID(4)), ("rrs_without_replacement", WithoutReplacement(4))):
        chosen = lines[(lines["selector"] == selector) & (lines["law"] == law.name)].set_index("row").sort_index()
        np.testing.assert_allclose(chosen["optimum"], optimal_acceptance(target, hot, law), atol=1e-14)
        np.testing.assert_allclose(
            chosen["acceptance"], get_selector(selector).acceptance(target, hot, law), atol=1e-14
        )
    np.testing.assert_allclose(chosen["target_entropy"], -(target * np.log(target)).sum(axis=-1))
    np.testing.assert_allclose(chosen["draft_entropy"], -(hot * np.log(hot)).sum(axis=-1))
    np.testing.assert_allclose(chosen["tv"], abs(target - hot).sum(axis=-1) / 2)


def test_the_target_is_reheated_too():
    hot = study(families=["dirichlet"], target_temperatures=(1.0, 0.5), draft_temperatures=(2.0,), **SMALL)
    target, draft = draw("dirichlet", SMALL["seed"], SMALL["vocab"], SMALL["rows"])
    for temperature in (1.0, 0.5):
        lines = hot[(hot["target_temperature"] == temperature) & (hot["k"] == 4) & (hot["law"] == "iid")]
        expected = optimal_acceptance(reheated(target, temperature), reheated(draft, 2.0), IID(4))
        np.testing.assert_allclose(lines[lines["selector"] == OPTIMUM]["acceptance"], expected, atol=1e-14)
    titles = {panel.get_title() for panel in acceptance_picture(hot, "iid").axes}
    assert titles == {"dirichlet, target T = 1 (6 rows)", "dirichlet, target T = 0.5 (6 rows)"}


def test_without_the_bound_nothing_else_changes(table):
    rest = study(draft_temperatures=(1.0, 1.5), bound=False, **SMALL)
    assert rest["marginal_bound"].isna().all()
    same(rest.drop(columns="marginal_bound"), table.drop(columns="marginal_bound"))
    assert "marginal bound" not in {line.get_label() for line in acceptance_picture(rest, "iid").axes[0].lines}


def test_tuned_rules_are_judged_at_their_best_temperature(table):
    best: Any = tuned(table).set_index(["source", "k", "law", "selector"])
    assert not best.index.duplicated().any()
    line = best.loc[("dirichlet", 4, "iid", "k_seq")]
    rows = table[(table["source"] == "dirichlet") & (table["k"] == 4)]
    mine = rows[(rows["law"] == "iid") & (rows["selector"] == "k_seq")]
    means = mine.groupby("draft_temperature")["acceptance"].mean()
    assert line["acceptance"] == pytest.approx(means.max()) and line["draft_temperature"] == means.idxmax()
    assert line["rows"] == 6 and line["edge"]  # of two temperatures each is an end
    values = mine[mine["draft_temperature"] == means.idxmax()].set_index("row")["acceptance"]
    assert line["standard_error"] == pytest.approx(values.sem())
    other = rows[(rows["law"] == "without_replacement") & (rows["selector"] == OPTIMUM)]
    other = other[other["draft_temperature"] == other.groupby("draft_temperature")["acceptance"].mean().idxmax()]
    won = other.set_index("row")["acceptance"] - values
    assert line["won_by_without_replacement"] == pytest.approx(won.mean())
    assert line["won_by_without_replacement_error"] == pytest.approx(won.sem())
    assert best.loc[("dirichlet", 4, "iid", OPTIMUM), "won_by_iid"] == 0
    assert (best["won_by_iid"][best.index.get_level_values("law") == "iid"] >= -1e-12).all()
    alone: Any = tuned(table[table["law"] == "iid"])
    assert alone["won_by_without_replacement"].isna().all() and alone["won_by_iid"].notna().all()


def test_tuned_rules_are_compared_on_the_rows_they_share(table):
    some = table[(table["law"] != "without_replacement") | table["row"].isin([1, 4])]
    best: Any = tuned(some)
    dear = best["law"] == "without_replacement"
    assert (best["rows"][dear] == 2).all() and (best["rows"][~dear] == 6).all()
    assert dear.any() and not dear.all()
    whole: Any = tuned(table)
    kept = ["draft_temperature", "acceptance", "standard_error", "won_by_iid"]
    same(best[~dear][kept], whole[~dear][kept])
    line = best[(best["source"] == "dirichlet") & (best["k"] == 4) & (best["selector"] == "k_seq")].iloc[0]
    mine = some[(some["source"] == "dirichlet") & (some["k"] == 4) & some["row"].isin([1, 4])]

    def values(law: str, selector: str, heat: float) -> Any:
        where = (mine["law"] == law) & (mine["selector"] == selector) & (mine["draft_temperature"] == heat)
        return mine[where].set_index("row")["acceptance"]

    reference = best[(best["source"] == "dirichlet") & (best["k"] == 4) & dear & (best["selector"] == OPTIMUM)].iloc[0]
    won = values("without_replacement", OPTIMUM, reference["draft_temperature"])
    won = won - values("iid", "k_seq", line["draft_temperature"])
    assert len(won) == 2 and line["won_by_without_replacement"] == pytest.approx(won.mean())


def test_nothing_shared_nothing_lost(table):
    rows = table[table["source"] == "disjoint"]
    assert (rows[["acceptance", "optimum"]] < 1e-15).all(axis=None)
    assert (rows["ratio"] == 1).all()


def test_summary_means_and_worst_rows(table):
    short = summary(table).set_index(["source", "law", "k", "draft_temperature", "selector"])
    line = short.loc["zipf", "iid", 2, 1.0, "rrs"]
    rows = table.query("source == 'zipf' and law == 'iid' and k == 2 and draft_temperature == 1 and selector == 'rrs'")
    assert line["rows"] == len(rows) == 6
    assert line["acceptance"] == pytest.approx(rows["acceptance"].mean())
    assert line["mean_ratio"] == pytest.approx(rows["ratio"].mean())
    assert line["worst_ratio"] == rows["ratio"].min() < line["mean_ratio"]


def test_family_parameters_and_own_selectors():
    class Half:
        """Accepts half of what the optimum does: not exact, but a selector the study has never seen."""

        name, exact = "half", False

        def supports(self, law):
            return law.name == "iid"

        def acceptance(self, target, draft, law):
            return optimal_acceptance(target, draft, law) / 2

        def conditional(self, target, draft, candidates):
            raise NotImplementedError

        def coins(self, k):
            return k

        def select(self, target, draft, candidates, coins):
            raise NotImplementedError

    rows = study(families=["dirichlet:concentration=5.0", "dirichlet"], selectors=[Half()], k=(2,), rows=3)
    assert list(rows["source"].unique()) == ["dirichlet:concentration=5.0", "dirichlet"]
    np.testing.assert_allclose(rows[rows["selector"] == "half"]["ratio"], 0.5)
    flat, peaked = (rows[rows["source"] == source]["optimum"].mean() for source in rows["source"].unique())
    assert flat > peaked + 0.1


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_tokens_that_are_never_drafted_count_as_one(k):
    target, draft = draw("ties", 2, 10, 60)
    for law in (IID(k), WithoutReplacement(k)):
        for t, d in zip(target, draft, strict=True):
            fewer = merged(t, d, k)
            assert optimal_acceptance(*fewer, law) == pytest.approx(optimal_acceptance(t, d, law), abs=1e-13)
            for name in ("k_seq", "rrs", "rrs_without_replacement"):
                rule = get_selector(name)
                if rule.supports(law):
                    assert rule.acceptance(*fewer, law) == pytest.approx(rule.acceptance(t, d, law), abs=1e-12)
    assert any(len(merged(t, d, k)[0]) < 10 for t, d in zip(target, draft, strict=True))


def test_large_vocabularies_give_the_same_numbers_by_another_path():
    vocab = DEAR_VOCAB + 50
    few = study(
        families=["softmax_normal"], vocab=vocab, rows=5, k=(2,), dear_rows=2, draft_laws=("iid", "without_replacement")
    )
    target, draft = draw("softmax_normal", 0, vocab, 5)
    for law, rows in ((IID(2), [0, 1, 2, 3, 4]), (WithoutReplacement(2), [0, 4])):
        lines = few[(few["law"] == law.name) & (few["selector"] == OPTIMUM)]
        assert list(lines["row"]) == rows
        np.testing.assert_allclose(lines["optimum"], optimal_acceptance(target[rows], draft[rows], law), atol=1e-13)


# ---- the same table whatever carries it


def test_processes_and_parallel_config_change_nothing(table):
    arguments = {"draft_temperatures": (1.0, 1.5), **SMALL}
    same(study(jobs=2, **arguments), table)
    with joblib.parallel_config(backend="threading", n_jobs=2):
        same(study(**arguments), table)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_dask_cluster_gives_the_identical_table(table):
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
        distributed.Client(cluster),
        joblib.parallel_config(backend="dask"),
    ):
        same(study(draft_temperatures=(1.0, 1.5), **SMALL), table)


STUDY = f"""
import sys, time
SMALL = {SMALL!r}
from solvers.gap import gap_study
def slowly(done, many):
    print(done, flush=True)
    time.sleep(0.2 if done else 0)
gap_study(draft_temperatures=(1.0, 1.5), resume_dir=sys.argv[1], callback=slowly, **SMALL)
"""


def test_a_killed_study_continues_and_nothing_is_lost_or_done_twice(table, tmp_path):
    process = subprocess.Popen([sys.executable, "-c", STUDY, tmp_path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= 3:
            process.send_signal(signal.SIGKILL)
            break
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL
    kept = {file: file.stat().st_mtime_ns for file in (tmp_path / "chunks").glob("[!.]*.parquet")}
    assert 3 <= len(kept) < 16
    # what a kill in the middle of a write leaves behind, and a chunk that something damaged
    (tmp_path / "chunks" / ".4711.half.parquet").write_bytes(b"PAR1")
    damaged, *others = kept
    damaged.write_bytes(damaged.read_bytes()[:100])
    calls = []
    again = study(draft_temperatures=(1.0, 1.5), resume_dir=tmp_path, callback=lambda *c: calls.append(c), **SMALL)
    same(again, table)
    assert calls[0] == (len(kept) - 1, 16) and calls[-1] == (16, 16)
    assert len(calls) == 1 + 16 - (len(kept) - 1)
    assert all(file.stat().st_mtime_ns == kept[file] for file in others)


def test_other_parameters_are_other_chunks(tmp_path):
    arguments = {"families": ["zipf"], "vocab": 9, "rows": 3, "k": (2,), "resume_dir": tmp_path}
    first = study(**arguments)
    files = set((tmp_path / "chunks").iterdir())
    same(study(**arguments), first)
    assert set((tmp_path / "chunks").iterdir()) == files
    others = [
        {"seed": 1},
        {"rows": 4},
        {"vocab": 10},
        {"k": (3,)},
        {"families": ["zipf:exponent=1.2"]},
        {"draft_temperatures": (2.0,)},
        {"target_temperatures": (2.0,)},
        {"bound": False},
        {"draft_laws": ("iid",)},
        {"selectors": ["rrs"]},
        {"selectors": [get_selector("k_seq", rho=2.0), "rrs"]},
        {"selectors": [get_selector("k_seq", rho=1.9), "rrs"]},
    ]
    for number, changed in enumerate(others, 2):
        study(**{**arguments, **changed})
        assert len(set((tmp_path / "chunks").iterdir())) == number


# ---- captured laws


def float32(law):
    return law.astype(np.float32).astype(np.float64) / law.astype(np.float32).astype(np.float64).sum(-1, keepdims=True)


def test_captured_laws_give_the_numbers_of_the_laws(tmp_path):
    target, draft = draw("softmax_normal", 8, 40, 9)
    rows = study(captured=[capture(tmp_path / "laws", target, draft)], k=(2,))
    assert set(rows["source"]) == {"laws"} and list(rows["row"].unique()) == list(range(9))
    lines = rows[(rows["selector"] == "k_seq") & (rows["law"] == "iid")]
    expected = get_selector("k_seq").acceptance(float32(target), float32(draft), IID(2))
    np.testing.assert_allclose(lines["acceptance"], expected, atol=1e-12)
    some = study(captured=[tmp_path / "laws"], k=(2,), limit=3)
    assert list(some["row"].unique()) == [0, 4, 8]
    assert some["acceptance"].isin(rows["acceptance"]).all()


def test_one_part_and_a_second_capture_of_the_same_name(tmp_path):
    target, draft = draw("zipf", 8, 12, 8)
    one = capture(tmp_path / "a" / "laws", target, draft)
    two = capture(tmp_path / "b" / "laws", draft, target)
    rows = study(captured=[one, two, one / "part-00001.parquet"], k=(2,), draft_laws=("iid",))
    assert list(rows["source"].unique()) == ["laws", "laws (2)", "part-00001.parquet"]
    values = [
        rows[(rows["source"] == s) & (rows["selector"] == OPTIMUM)]["optimum"].to_numpy()
        for s in rows["source"].unique()
    ]
    np.testing.assert_array_equal(values[0][4:], values[2])
    assert not np.array_equal(values[0], values[1])


@pytest.mark.parametrize("family", ["softmax_normal", "dirichlet", "zipf", "sparse", "ties", "disjoint", "equal"])
@pytest.mark.parametrize("compact", [1, 3, 8])
def test_brackets_of_compact_laws_hold_the_truth(tmp_path, family, compact):
    target, draft = draw(family, 8, 24, 30)
    asked = {"selectors": RULES, "k": (1, 2, 8), "draft_laws": ("iid",)}
    full = study(captured=[capture(tmp_path / "full", target, draft)], **asked)
    some = study(captured=[capture(tmp_path / "some", target, draft, compact)], **asked)
    key = ["row", "selector", "k"]
    both = some.merge(full, on=key, suffixes=("", "_full"))
    assert len(both) == len(some) == len(full)
    known = both[both["kind"] != "left out"]
    assert set(known["selector"][known["k"] > 1]) == {"k_seq", OPTIMUM}
    inside = abs(known["acceptance"] - known["acceptance_full"]) <= known["acceptance_error"] + 1e-7
    assert inside.all(), known[~inside]
    assert (known["optimum_full"] <= known["marginal_bound"] + 1e-7).all()
    assert (known["marginal_bound_full"] <= known["marginal_bound"] + 1e-7).all()
    np.testing.assert_allclose(known["tv"], known["tv_full"], atol=1e-6)
    np.testing.assert_allclose(known["target_entropy"], known["target_entropy_full"], atol=1e-6)
    if compact == 8 and family == "softmax_normal":
        assert known["acceptance_error"].mean() < 0.05


def test_the_bracket_is_no_bracket_for_rrs():
    """Why RRS is left out: seeing two tokens as one lowers its acceptance here."""
    target, draft = draw("ties", 1, 8, 2000)
    seen, drafted = (np.column_stack([law[:, :4], law[:, 4:].sum(axis=-1)]) for law in (target, draft))
    rule = get_selector("rrs")
    assert (rule.acceptance(seen, drafted, IID(2)) < rule.acceptance(target, draft, IID(2)) - 0.01).any()


def test_compact_laws_say_why_something_is_left_out(tmp_path):
    target, draft = draw("softmax_normal", 8, 24, 4)
    folder = capture(tmp_path / "some", target, draft, 3)
    rows = study(selectors=RULES, captured=[folder], k=(2,), draft_temperatures=(1, 2))
    out = rows[rows["kind"] == "left out"]
    assert out["acceptance"].isna().all() and (out["note"] != "").all()
    assert out[out["draft_temperature"] == 2]["note"].str.contains("cannot be reheated").all()
    assert (out[out["draft_temperature"] == 1]["note"] == "no proven bracket for compact laws").all()
    assert (rows[rows["kind"] != "left out"]["note"] == "").all()
    assert set(summary(rows)["selector"]) == {"k_seq", OPTIMUM}


# ---- bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": (0,)}, "k must be an integer of at least 1, got 0"),
        ({"k": ()}, "give a draft law and a k"),
        ({"draft_laws": ("fixed",)}, "no draft law 'fixed'"),
        ({"selectors": ["best"]}, "no selector 'best'"),
        ({"selectors": ["rrs", "rrs"]}, "different names"),
        ({"families": ["best"]}, "no family 'best'"),
        ({"families": ["dirichlet:concentration=x"]}, "'concentration=x' is not of the form parameter=number"),
        ({"families": ["dirichlet:concentration"]}, "not of the form parameter=number"),
        ({"families": []}, "nothing to study"),
        ({"draft_temperatures": ()}, "give a draft temperature"),
        ({"target_temperatures": ()}, "give a target temperature"),
        ({"target_temperatures": (-1.0,)}, "a target temperature must be a positive number, got -1"),
        ({"draft_temperatures": (0.0,)}, "positive number, got 0"),
        ({"draft_temperatures": (float("nan"),)}, "positive number, got nan"),
        ({"rows": 0}, "rows must be at least 1, got 0"),
        ({"vocab": 1}, "at least 2 tokens, got 1"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"limit": 0}, "limit must be at least 1, got 0"),
        ({"dear_rows": -1}, "dear_rows must be at least 0, got -1"),
    ],
)
def test_bad_options_are_named(arguments, message):
    with pytest.raises(OptionError, match=message):
        study(**arguments)


def test_unreadable_captures_are_named(tmp_path):
    with pytest.raises(CaptureFileError, match="does not exist"):
        study(captured=[tmp_path / "nowhere"])
    broken = tmp_path / "part-00000.parquet"
    broken.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(CaptureFileError, match=r"part-00000\.parquet cannot be read as parquet"):
        study(captured=[tmp_path])


def test_an_error_in_a_worker_is_the_callers_error(tmp_path):
    target, draft = draw("zipf", 8, 12, 8)
    folder = capture(tmp_path / "laws", target, draft)
    with pytest.raises(OptionError, match="a residual would be negative"):
        study(captured=[folder], selectors=[get_selector("k_seq", rho=0.1)], k=(2,), draft_laws=("iid",), jobs=2)


# ---- the worst case


@pytest.mark.parametrize("k", [2, 4])
def test_the_worst_case_of_k_seq_meets_its_sharp_guarantee(k):
    found = worst_case("k_seq", k=k, vocab=5, budget=20_000)
    assert guarantee(k) <= sharp_guarantee(k) - 1e-12 <= found.ratio < sharp_guarantee(k) + 1e-3 < 1
    law = IID(k)
    assert found.target.shape == found.draft.shape == (5,)
    assert get_selector("k_seq").acceptance(found.target, found.draft, law) == found.acceptance
    assert found.acceptance / optimal_acceptance(found.target, found.draft, law) == pytest.approx(found.ratio)
    assert found.evaluated <= 20_000
    assert worst_case("k_seq", k=k, vocab=5, budget=20_000).target.tobytes() == found.target.tobytes()


def test_the_search_finds_more_than_its_starts():
    few, many = (worst_case("rrs", k=4, vocab=4, budget=budget).ratio for budget in (1000, 20_000))
    assert many < few < 1


@pytest.mark.parametrize("family", ["dirichlet", "zipf", "ties", "sparse", "steps"])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_two_tokens_suffice_for_k_seq(family, k):
    rule, law = get_selector("k_seq"), IID(k)
    for target, draft in zip(*draw(family, 11, 7, 100), strict=True):
        pair = two_token_pair(target, draft, k)
        assert rule.acceptance(*pair, law) == pytest.approx(rule.acceptance(target, draft, law), abs=1e-9)
        assert optimal_acceptance(*pair, law) >= optimal_acceptance(target, draft, law) - 1e-12


def test_the_sharp_guarantee_is_a_value_that_is_attained():
    assert sharp_guarantee(2) == pytest.approx(8 / 9, abs=1e-9)
    target, draft = np.array([5, 4]) / 9, np.array([1, 2]) / 3
    assert optimal_acceptance(target, draft, IID(2)) == pytest.approx(1)
    assert get_selector("k_seq").acceptance(target, draft, IID(2)) == pytest.approx(8 / 9)
    values = [sharp_guarantee(k) for k in (1, 2, 3, 4, 8, 100, 10_000)]
    assert all(a > b for a, b in pairwise(values)) and values[-1] > 0.826
    side = (np.arange(300) + 0.5) / 300  # no pair of a fine grid lies below
    a, b = (grid.reshape(-1) for grid in np.meshgrid(side, side))
    target, draft = np.stack([a, 1 - a], axis=-1), np.stack([b, 1 - b], axis=-1)
    for k in (2, 3, 8):
        ratios = get_selector("k_seq").acceptance(target, draft, IID(k)) / optimal_acceptance(target, draft, IID(k))
        assert sharp_guarantee(k) - 1e-9 <= ratios.min() < sharp_guarantee(k) + 2e-3


def test_bad_searches_are_named():
    with pytest.raises(UnsupportedLawError, match="k_seq is not exact"):
        worst_case("k_seq", k=2, law="without_replacement")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"law": "fixed"}, "no draft law 'fixed'"),
        ({"vocab": 1}, "vocab must be at least 2, got 1"),
        ({"budget": 10}, "budget must be at least 1000, got 10"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"selector": "best"}, "no selector 'best'"),
        ({"k": 0}, "k must be an integer"),
    ]
    for arguments, message in cases:
        with pytest.raises(OptionError, match=message):
            worst_case(**arguments)
    with pytest.raises(OtSpecError):
        sharp_guarantee(0)


# ---- pictures and the command


def test_pictures_are_complete_and_the_same_twice(table, tmp_path):
    table = table[table["source"].isin(["zipf", "ties"])]
    files = draw_pictures(table, tmp_path / "a")
    names = {file.name for file in files}
    assert {"acceptance_iid.png", "acceptance_iid.svg", "temperature_without_replacement.png", "gap.png"} <= names
    assert names == {file.name for file in (tmp_path / "a").iterdir()}
    for file in files:
        start = file.read_bytes()[:200]
        assert start.startswith(b"\x89PNG") if file.suffix == ".png" else b"<?xml" in start
        assert file.stat().st_size > 5000
    again = draw_pictures(table, tmp_path / "b")
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(files, again, strict=True))


def test_a_picture_shows_the_means_of_the_table(table):
    figure = acceptance_picture(table, "iid")
    panel = figure.axes[0]
    rows = table[(table["source"] == panel.get_title().split(" ")[0]) & (table["law"] == "iid")]
    best = rows[(rows["selector"] == OPTIMUM) & (rows["draft_temperature"] == 1)].groupby("k")
    lines = {tuple(np.round(np.asarray(line.get_ydata(), float), 12)) for line in panel.lines}
    assert tuple(best["acceptance"].mean().round(12)) in lines
    assert tuple(best["marginal_bound"].mean().round(12)) in lines
    with pytest.raises(OptionError, match="no lines of draft law 'fixed'"):
        acceptance_picture(table, "fixed")


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["gap", *arguments])
    assert isinstance(stop.value.code, int)
    return stop.value.code


def test_the_command_writes_tables_and_pictures_and_continues(tmp_path, capfd):
    options = [
        "--family",
        "zipf",
        "--family",
        "ties",
        "--vocab",
        "8",
        "--rows",
        "4",
        "--k",
        "1,2",
        "--out",
        str(tmp_path),
    ]
    assert run(*options) == 0
    shown = capfd.readouterr()
    assert "zipf: mean acceptance" in shown.out and "k_seq" in shown.out and shown.err == ""
    frame = pd.read_parquet(tmp_path / "gap.parquet")
    same(frame.astype(COLUMNS), study(families=["zipf", "ties"], vocab=8, rows=4, k=(1, 2)))
    csv = pd.read_csv(tmp_path / "gap.csv", keep_default_na=False)
    np.testing.assert_array_equal(csv["acceptance"].astype(float), frame["acceptance"])
    assert list(csv.columns) == list(COLUMNS) and len(csv) == len(frame)
    assert len(pd.read_csv(tmp_path / "summary.csv")) == len(summary(frame))
    assert (tmp_path / "gap.png").stat().st_size > 5000
    chunks = {file: file.stat().st_mtime_ns for file in (tmp_path / "chunks").iterdir()}
    assert run(*options) == 0
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "chunks").iterdir()} == chunks
    assert not [file for file in tmp_path.rglob(".*")]


def test_json_is_one_object_with_the_stated_keys(tmp_path, capfd):
    target, draft = draw("zipf", 8, 12, 8)
    folder = capture(tmp_path / "laws", target, draft, 3)
    options = ["--captured", str(folder), "--k", "2", "--draft-temperature", "1,2", "--worst-case", "--laws", "iid"]
    options += ["--selectors", "k_seq,rrs"]
    assert run(*options, "--json", "--seed", "3") == 0
    shown = capfd.readouterr()
    found = json.loads(shown.out)
    assert set(found) == {"rows", "seed", "seconds", "summary", "tuned", "worst_cases", "files"}
    assert found["seed"] == 3 and found["files"] == [] and found["rows"] == 8 * 3 * 2
    assert {line["selector"] for line in found["summary"]} == {"k_seq", OPTIMUM}
    wanted = {"source", "law", "k", "target_temperature", "draft_temperature", "selector", "rows", "acceptance"}
    wanted |= {"acceptance_error", "optimum", "marginal_bound", "mean_ratio", "worst_ratio", "guarantee"}
    assert all(set(line) == wanted for line in found["summary"])
    best = {"source", "target_temperature", "k", "law", "selector", "draft_temperature", "edge", "rows", "acceptance"}
    best |= {"standard_error", "won_by_iid", "won_by_iid_error"}
    best |= {"won_by_without_replacement", "won_by_without_replacement_error"}
    assert [set(line) for line in found["tuned"]] == [best] * 2
    case = {"selector", "law", "k", "target", "draft", "acceptance", "optimum", "ratio", "guarantee", "evaluated"}
    assert [set(line) for line in found["worst_cases"]] == [case] * 2
    assert run("--help") == 0
    text = " ".join(capfd.readouterr().out.split())
    assert all(f'"{key}"' in text for key in (set(found) | wanted | best | case))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--k", "1,two"], "--k takes numbers separated by commas, got '1,two'"),
        (["--k", "0"], "k must be an integer of at least 1, got 0"),
        (["--draft-temperature", "hot"], "--draft-temperature takes numbers"),
        (["--target-temperature", "hot"], "--target-temperature takes numbers"),
        (["--family", "best"], "no family 'best'"),
        (["--selectors", "best"], "no selector 'best'"),
        (["--laws", "best"], "no draft law 'best'"),
        (["--captured", "nowhere"], "nowhere does not exist"),
        (["--rows", "many"], "--rows"),
        (["--jobs", "0"], "jobs must be a number of processes"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(options, message, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(*options, "--json") == 2
    shown = capfd.readouterr()
    assert shown.out == "" and message in shown.err
    assert len(shown.err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_command_exits_130_and_keeps_its_chunks(tmp_path):
    options = ["--family", "all", "--rows", "1024", "--vocab", "64", "--out", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-c", "from ot_spec.cli import main; main()", "gap", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not list((tmp_path / "chunks").glob("[!.]*.parquet")):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors.decode()
    assert output == b"" and b"Traceback" not in errors
    assert list((tmp_path / "chunks").glob("[!.]*.parquet"))
    assert not (tmp_path / "gap.csv").exists()


def test_the_command_shows_a_study_of_the_optimum_alone(capfd):
    with pytest.raises(SystemExit) as ended:
        main(["gap", "--family", "dirichlet:concentration=1E-1", "--rows", "2", "--k", "1,2", "--selectors", ""])
    assert ended.value.code == 0
    assert "none" in capfd.readouterr().out
