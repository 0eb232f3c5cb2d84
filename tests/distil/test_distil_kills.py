"""`ot-spec distil` killed: the same command goes on, and ends with the same weights."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_decoder.distil import distil as distil_module
from gpu_decoder.distil.distil import distil
from tests.distil.commands import PROMPTS, RECIPE, SMALL, contents, run

DYING = """
import os, signal, sys
import torch
from gpu_decoder.distil import text, train
from ot_spec.cli import main

when, left = sys.argv.pop(1), int(sys.argv.pop(1))

def dying(save):
    def call(state, file):
        global left
        left -= 1
        save(state, file)
        if left == 0:
            os.truncate(file, os.path.getsize(file) // 2)
            os.kill(os.getpid(), signal.SIGKILL)
    return call

if when == "text":
    text.save_file = dying(text.save_file)
else:
    torch.save = dying(torch.save)
    train.train.__kwdefaults__["save_every"] = 0.0
main(sys.argv[1:])
"""


def test_the_command_killed_in_earnest_ends_with_the_same_weights(tmp_path, tiny):
    out, prompts = tmp_path / "whole", tmp_path / "prompts.txt"
    prompts.write_text("\n".join(PROMPTS) + "\n")
    _, said = run("--out", out, "--target", tiny, "--prompts", prompts, "--json", *SMALL)
    options = ["--out", str(tmp_path / "out"), "--target", str(tiny), "--prompts", str(prompts), "--json", *SMALL]
    for when, left in (("text", 2), ("training", 3)):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", DYING, when, str(left), "distil", *options],
            capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
            timeout=120, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (-signal.SIGKILL, ""), done.stderr
        shards = sorted(file.name for file in (tmp_path / "out" / "text").glob("*.safetensors"))
        if when == "text":
            assert shards == ["shard-00000.safetensors"]
            assert not (tmp_path / "out" / "checkpoint.pt").exists()
    assert shards == sorted(file.name for file in (out / "text").iterdir()) and len(shards) >= 3
    assert len(torch.load(tmp_path / "out" / "checkpoint.pt", weights_only=True)["history"]) == 2
    status, again = run(*options)
    assert status == 0
    theirs, ours = contents(out), contents(tmp_path / "out")
    for name in theirs:
        if name.startswith("text/") or name == "drafter/model.safetensors":
            assert ours[name] == theirs[name], name
    for one in (found := json.loads(again), whole := json.loads(said)):
        del one["evaluation"]["cost"], one["drafter"]
    assert found == whole


def test_killed_while_the_drafter_is_written(tmp_path, tiny, monkeypatch):
    recipe = replace(RECIPE, hold_out=0, text=replace(RECIPE.text, conversations=3))
    distil(tmp_path / "whole", recipe, target=tiny)

    class Killed(BaseException):
        pass

    def half(self: Any, folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("{")
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(distil_module.FeatureStudent, "save", half)
        with pytest.raises(Killed):
            distil(tmp_path / "killed", recipe, target=tiny)
    assert not (tmp_path / "killed" / "drafter").exists()
    distil(tmp_path / "killed", recipe, target=tiny)
    found, whole = contents(tmp_path / "killed"), contents(tmp_path / "whole")
    assert found.keys() == whole.keys()
    assert found["drafter/model.safetensors"] == whole["drafter/model.safetensors"]
    assert found["drafter/config.json"] == whole["drafter/config.json"]
