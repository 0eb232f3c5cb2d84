"""`ot-spec judge`: a drafter's worth by itself is what `distil` says of the drafter it makes."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from gpu_decoder.distil.card import worth
from ot_spec.cli import main
from tests.distil import commands
from tests.distil.commands import PROMPTS, SMALL

FEW = ["--tokens", "5", "--rows", "6", "--dear-rows", "2"]


def judge(*arguments: Any) -> tuple[int, str]:
    said = StringIO()
    with redirect_stdout(said), pytest.raises(SystemExit) as left:
        main(["judge", *map(str, arguments)])
    return int(left.value.code or 0), said.getvalue()


@pytest.fixture(scope="module")
def prompts(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    file.write_text("\n".join(PROMPTS) + "\n")
    return file


def test_it_says_what_the_card_says(tmp_path, tiny, prompts):
    """The same prompts, held out by the same seed; text and drafts of the same dtype."""
    status, said = commands.run("--out", tmp_path / "made", "--target", tiny, "--prompts", prompts, "--json", *SMALL)
    assert status == 0
    written = json.loads(said)["evaluation"]
    folder = tmp_path / "judged"
    status, said = judge(
        "--out", folder, "--draft", tmp_path / "made" / "drafter", "--target", tiny, "--prompts", prompts,
        "--hold-out", "3", "--seed", "5", "--dtype", "bfloat16", "--json",
    )  # fmt: skip
    found = json.loads(said)
    assert status == 0 and said.count("\n") == 1
    lines = (folder / "evaluation.md").read_text()
    assert lines == "\n".join(worth(found)).strip() + "\n" and "## What it is worth" in lines
    del found["cost"], written["cost"]
    assert found == written


def test_again_it_says_the_same_and_does_nothing(tmp_path, tiny, prompts, monkeypatch):
    asked = ["--out", tmp_path, "--draft", "exit:1", "--target", tiny, "--prompts", prompts, *FEW]
    status, said = judge(*asked, "--json")
    assert status == 0 and len(json.loads(said)["prompts"]) == len(PROMPTS)
    monkeypatch.setattr("gpu_decoder.distil.evaluate.evaluate", lambda *given, **options: pytest.fail("judged again"))
    assert judge(*asked, "--json") == (0, said)
    status, shown = judge(*asked)
    one = json.loads(said)["temperatures"]["1"]
    assert status == 0 and f"{one['overlap']:.3f}" in shown and "A draft takes" in shown


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (["--draft", "exit:2"], "drafter = 'exit:1', and not 'exit:2'"),
        (["--hold-out", "4"], "evaluation = "),
        (["--tokens", "4"], "tokens = 5, and not 4"),
        (["--rows", "5"], "rows = 6, and not 5"),
        (["--seed", "1"], "seed = 0, and not 1"),
        (["--dtype", "float64"], "dtype = 'float32', and not 'float64'"),
    ],
)
def test_a_folder_of_something_else_is_refused(tmp_path, tiny, prompts, capsys, changed, named):
    asked = ["--out", tmp_path, "--draft", "exit:1", "--target", tiny, "--prompts", prompts, "--json", *FEW]
    nothing = {"prompts": [], "tokens": 5, "temperatures": {}, "cost": {"target": 1.0, "draft": 0.5, "ratio": 0.5}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpu_decoder.distil.evaluate.evaluate", lambda *given, **options: nothing)
        assert judge(*asked) == (0, json.dumps(nothing) + "\n")
    before = commands.contents(tmp_path)
    capsys.readouterr()
    status, said = judge(*asked, *changed)
    shown = capsys.readouterr().err
    assert (status, said) == (2, "") and f"evaluation.json was made with {named}" in shown
    assert commands.contents(tmp_path) == before


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', "3"])
def test_a_damaged_evaluation_is_refused(tmp_path, tiny, prompts, capsys, text):
    (tmp_path / "evaluation.json").write_text(text)
    status, said = judge(
        "--out", tmp_path, "--draft", "exit:1", "--target", tiny, "--prompts", prompts, "--json", *FEW
    )  # fmt: skip
    shown = capsys.readouterr().err
    assert (status, said) == (2, "") and "is no evaluation" in shown and "delete it" in shown


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--hold-out", "8"], "8 prompts cannot be held out of 7"),
        (["--hold-out", "-1"], "-1 prompts cannot be held out of 7"),
        (["--hold-out", "0"], "there are no prompts to judge by"),
        (["--draft", "exit:9"], "of its 4 layers out, not 9"),
        (["--draft", "no/such"], "no/such"),
        (["--tokens", "0"], "tokens must be at least 1, got 0"),
        (["--rows", "0"], "rows must be at least 1, got 0"),
        (["--dear-rows", "-1"], "dear_rows must be at least 0, got -1"),
        (["--dtype", "int8"], "dtype must be one of"),
    ],
)
def test_what_cannot_be_is_one_sentence(tmp_path, tiny, prompts, capsys, options, sentence):
    status, said = judge("--out", tmp_path / "out", "--target", tiny, "--prompts", prompts, *options)
    shown = capsys.readouterr().err
    assert (status, said) == (2, "") and shown.count("\n") == 1 and shown.startswith("ot-spec: ")
    assert sentence in shown
    assert not (tmp_path / "out").exists()


def test_a_second_process_at_once_is_refused(tmp_path, tiny, prompts, capsys):
    with FileLock(tmp_path / ".lock"):
        status, said = judge("--out", tmp_path, "--draft", "exit:1", "--target", tiny, "--prompts", prompts)
    shown = capsys.readouterr().err
    assert (status, said) == (2, "") and shown == f"ot-spec: another process judges a drafter in {tmp_path}\n"
