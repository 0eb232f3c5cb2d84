"""`ot-spec decode`: texts, tables and records; killed runs go on; what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_decoder import Decoder, decode
from gpu_decoder.models import load
from gpu_decoder.processing import Processing
from gpu_decoder.records import FILE, Records, read_records
from gpu_decoder.run import Speaker, decode_prompts, measured, summary_of
from gpu_decoder.verify import TreeReader
from ot_spec import IID
from ot_spec.cli import main
from ot_spec.errors import OptionError, OutOfMemoryError, PromptError, RecordFileError
from solvers import get_selector, optimal_acceptance

PROMPTS = ["w1 w2", "w3 w4 w5", "w1 w2", "w6", "w7 w8 w9 w10"]
SMALL: dict[str, Any] = {
    "draft": "exit:1",
    "candidates": 2,
    "length": 3,
    "max_new_tokens": 8,
    "min_new_tokens": 8,
    "dtype": "float64",
}


def small(**changed: Any) -> dict[str, Any]:
    return SMALL | changed


def run(*arguments: Any) -> int:
    with pytest.raises(SystemExit) as left:
        main(["decode", *map(str, arguments)])
    return int(left.value.code or 0)


def lasting(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records without what differs from run to run."""
    return [{name: row[name] for name in row if name not in ("seconds", "environment")} for row in records]


# ---- a run


def test_a_run_is_what_the_decoder_makes(tmp_path, tiny):
    law = Processing(0.8, top_k=9)
    found = decode_prompts(PROMPTS, tmp_path, target=tiny, law=law, seed=3, stop=["w2"], **SMALL)
    model = load(tiny, "float64")
    decoder = Decoder(model, "exit:1", candidates=2, length=3)
    made = decoder.generate(PROMPTS, 8, temperature=0.8, top_k=9, min_new_tokens=8, stop=["w2"], seed=3)
    assert [row["tokens"] for row in found.records] == [one.tokens for one in made]
    assert [row["text"] for row in found.records] == [one.text for one in made]
    assert [row["finish"] for row in found.records] == [one.finish for one in made]
    assert [row["logprob"]["sum"] for row in found.records] == pytest.approx([sum(one.logprobs) for one in made])
    assert [row["prompt_tokens"] for row in found.records] == [len(one.prompt) for one in made]
    assert found.summary.tokens == sum(len(one.tokens) for one in made) and found.new == len(PROMPTS)
    assert found.summary.target_calls == sum(len(one.tally.steps) for one in made)
    assert read_records(tmp_path) == found.records
    assert summary_of(read_records(tmp_path)) == found.summary
    assert found.records[0]["settings"]["temperature"] == 0.8
    assert found.records[0]["environment"]["threads"] == torch.get_num_threads()
    assert found.records[0]["tokens"] != found.records[2]["tokens"]  # the same prompt twice is drawn twice


@pytest.mark.parametrize("batch", [2, 3, 8])
def test_tokens_do_not_depend_on_the_batch(tmp_path, tiny, batch):
    alone = decode_prompts(PROMPTS, target=tiny, **SMALL)
    together = decode_prompts(PROMPTS, target=tiny, batch=batch, **SMALL)
    assert [row["tokens"] for row in together.records] == [row["tokens"] for row in alone.records]


def test_seconds_are_shared_and_add_up(tiny):
    model = load(tiny, "float64")
    decode_prompts(PROMPTS[:1], target=model, **SMALL)
    started = time.perf_counter()
    found = decode_prompts(PROMPTS, target=model, batch=len(PROMPTS), **SMALL)
    spent = time.perf_counter() - started
    each = [sum(row["seconds"].values()) for row in found.records]
    assert each == pytest.approx([each[0]] * len(PROMPTS)) and 0 < sum(each) < spent
    assert found.summary.tokens_per_second == pytest.approx(found.summary.tokens / sum(each))


def test_nothing_asked_for(tmp_path, tiny):
    found = decode_prompts(PROMPTS, tmp_path, target=tiny, **small(max_new_tokens=0, min_new_tokens=0))
    assert {(row["text"], row["finish"], row["logprob"]) for row in found.records} == {("", "length", None)}
    assert found.summary.block_efficiency is None


# ---- interrupted runs


def test_a_killed_run_goes_on(tmp_path, tiny):
    """SIGKILL within 200 prompts: nothing lost, nothing twice, and the same tokens as without."""
    prompts = [f"w{i % 9} w{i % 7}" for i in range(200)]
    (tmp_path / "p.txt").write_text("\n".join(prompts))
    options = ["--prompts", tmp_path / "p.txt", "--target", tiny, "--draft", "exit:1", "--candidates", 2, "--length", 3]
    options += ["--max-new-tokens", 8, "--min-new-tokens", 8, "--dtype", "float64", "--batch", 8]
    program = "from ot_spec.cli import main; main()"
    command = [sys.executable, "-c", program, "decode", *map(str, options), "--out", str(tmp_path / "killed"), "--json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    file = tmp_path / "killed" / FILE
    while process.poll() is None and (not file.exists() or file.read_bytes().count(b"\n") < 16):
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    _, said = process.communicate()
    kept = read_records(tmp_path / "killed")
    assert 16 <= len(kept) < 200, said
    with file.open("ab") as torn:
        torn.write(b'{"id": "' + str(len(kept) + 1).encode() + b'", "tokens": [1, 2')

    asked: dict[str, Any] = {"target": tiny, "batch": 8, **SMALL}
    found = decode_prompts(tmp_path / "p.txt", tmp_path / "killed", **asked)
    assert found.new == 200 - len(kept)
    after = read_records(tmp_path / "killed")
    assert after[: len(kept)] == kept and [row["id"] for row in after] == [str(i + 1) for i in range(200)]
    whole = decode_prompts(tmp_path / "p.txt", tmp_path / "whole", **asked)
    assert lasting(whole.records) == lasting(after) == lasting(found.records)
    assert whole.summary.target_calls == found.summary.target_calls


@pytest.mark.parametrize("cut", [1, 2, 100, -1])
def test_a_torn_last_line_is_made_again(tmp_path, tiny, cut):
    first = decode_prompts(PROMPTS, tmp_path, target=tiny, **SMALL)
    file = tmp_path / FILE
    whole = file.read_bytes()
    last = whole[:-1].rfind(b"\n") + 1
    file.write_bytes(whole[: last + cut] if cut > 0 else whole[:cut])
    assert len(read_records(tmp_path)) == 4
    again = decode_prompts(PROMPTS, tmp_path, target=tiny, **SMALL)
    assert again.new == 1 and lasting(again.records) == lasting(first.records)
    assert len(read_records(tmp_path)) == 5


def test_a_longer_run_continues_a_shorter_one(tmp_path, tiny):
    assert decode_prompts(PROMPTS, tmp_path, target=tiny, limit=2, **SMALL).new == 2
    longer = decode_prompts(PROMPTS, tmp_path, target=tiny, **SMALL)
    assert longer.new == 3
    assert lasting(longer.records) == lasting(decode_prompts(PROMPTS, target=tiny, **SMALL).records)
    assert decode_prompts(PROMPTS, tmp_path, target=tiny, **SMALL).new == 0
    assert [row["id"] for row in decode_prompts(PROMPTS, tmp_path, target=tiny, limit=2, **SMALL).records] == ["1", "2"]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"seed": 1}, "seed = 0, and not 1"),
        ({"law": Processing(0.5)}, "temperature = 1.0, and not 0.5"),
        ({"max_new_tokens": 9}, "max_new_tokens = 8, and not 9"),
        ({"selector": "rrs"}, "selector = 'k_seq', and not 'rrs'"),
        ({"draft": "exit:2"}, "draft = 'exit:1', and not 'exit:2'"),
        ({"stop": ["w1"]}, r"stop = \[\], and not \['w1'\]"),
        ({"dtype": "float32"}, "dtype = 'float64', and not 'float32'"),
        ({"prompts": [*PROMPTS[:4], "w1"]}, "prompts = "),
    ],
)
def test_other_settings_are_refused(tmp_path, tiny, changed, named):
    asked: dict[str, Any] = {"prompts": PROMPTS, "out": tmp_path, "target": tiny, "limit": 1, **SMALL}
    decode_prompts(**asked)
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(RecordFileError, match=named):
        decode_prompts(**asked | changed)
    assert (tmp_path / FILE).read_bytes() == before


def test_files_that_are_no_records_are_refused(tmp_path):
    (tmp_path / FILE).write_text('{"id": "1", "settings": {}}\nnonsense\n')
    with pytest.raises(RecordFileError, match="line 2, is no record"), Records(tmp_path, {}):
        pass
    (tmp_path / FILE).write_text('{"id": "1", "settings": {}}\n' * 2)
    with pytest.raises(RecordFileError, match="line 2: prompt '1' is recorded twice"), Records(tmp_path, {}):
        pass
    with pytest.raises(RecordFileError, match="is a file"):
        Records(tmp_path / FILE, {})
    with pytest.raises(RecordFileError, match="cannot read records from"):
        read_records(tmp_path / "absent")


def test_two_runs_do_not_write_the_same_file(tmp_path):
    with Records(tmp_path, {}), pytest.raises(RecordFileError, match="another process writes to"):
        Records(tmp_path, {}).__enter__()
    with Records(tmp_path, {}) as records:
        records.write([{"id": "1"}])
    assert read_records(tmp_path) == [{"id": "1", "settings": {}}]


def test_a_full_disk_leaves_whole_lines(tmp_path, monkeypatch):
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with Records(tmp_path, {}) as records:
        records.write([{"id": "1"}])
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(RecordFileError, match=r"cannot write to .*: No space left"):
            records.write([{"id": "2"}, {"id": "3"}])
        assert list(records.rows) == ["1"]
    assert (tmp_path / FILE).read_text() == '{"id": "1", "settings": {}}\n'


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()])
def test_out_of_memory_says_what_to_lower_and_keeps_what_is_done(tmp_path, tiny, monkeypatch, error):
    whole = decode_prompts(PROMPTS, target=tiny, batch=2, **SMALL)
    read, readers, calls = TreeReader.read, [], 0

    def failing(self: TreeReader, *given: Any, **asked: Any) -> Any:
        nonlocal calls
        if len(self.lengths) == 2 and self not in readers:
            readers.append(self)
        calls += len(readers) == 2
        if calls > 5:  # within the second batch
            raise error
        return read(self, *given, **asked)

    with monkeypatch.context() as patch:
        patch.setattr(TreeReader, "read", failing)
        with pytest.raises(
            OutOfMemoryError, match=r"2 candidates of length 3.*lower candidates, length.*2 of 5 prompts"
        ):
            decode_prompts(PROMPTS, tmp_path, target=tiny, batch=2, **SMALL)
    assert [row["id"] for row in read_records(tmp_path)] == ["1", "2"]
    smaller = decode_prompts(PROMPTS, tmp_path, target=tiny, batch=1, **SMALL)
    assert smaller.new == 3 and lasting(smaller.records) == lasting(whole.records)


# ---- what the laws met would have given


def test_measured_means_are_those_of_the_laws_met(tmp_path, tiny, monkeypatch):
    met: list[tuple[Any, Any, int]] = []
    acceptances = decode.Meter._acceptances

    def noting(self: Any, target: Any, draft: Any, k: int) -> dict[str, float]:
        met.append((target, draft, k))
        return acceptances(self, target, draft, k)

    asked: dict[str, Any] = {"target": tiny, "measure": True, **SMALL}
    decode_prompts(PROMPTS[:2], tmp_path, **asked)
    (tmp_path / FILE).rename(tmp_path / "before")
    monkeypatch.setattr(decode.Meter, "_acceptances", noting)
    found = decode_prompts(PROMPTS[:2], tmp_path, **asked).measured
    assert found is not None
    met = met[-found["nodes"] :]  # the first are of the warm-up
    optimum = [float(optimal_acceptance(target, draft, IID(k))) for target, draft, k in met]
    rrs = [float(get_selector("rrs").acceptance(target, draft, IID(k))) for target, draft, k in met]
    assert found["acceptance"]["optimum"]["mean"] == pytest.approx(sum(optimum) / len(optimum))
    assert found["acceptance"]["rrs"]["mean"] == pytest.approx(sum(rrs) / len(rrs))
    assert found["acceptance"]["rrs"]["of_optimum"] == pytest.approx(sum(rrs) / sum(optimum))
    single = [(t, d) for t, d, k in met if k == 1]
    assert found["acceptance"]["maximal_coupling"]["nodes"] == len(single) < len(met)
    assert found == measured(read_records(tmp_path))


def test_predicted_tokens_are_those_made_up_to_chance(tiny):
    found = decode_prompts(
        [f"w{i}" for i in range(21)], **small(target=tiny, measure=True, max_new_tokens=24, min_new_tokens=24)
    )
    assert found.measured is not None
    assert abs(found.measured["tokens"] - found.measured["predicted"]) < 4 * found.measured["deviation"]
    assert found.measured["deviation"] < 0.2


# ---- text as it comes


class Bytes:
    """A tokenizer whose tokens are the bytes of UTF-8; 0 is special."""

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return bytes(i for i in ids if i or not skip_special_tokens).decode("utf-8", "replace")


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_characters_are_said_whole(size):
    text = "naïve 東京 🎈 end"
    ids = [*text.encode(), 0]
    speaker, said = Speaker(Bytes()), []
    for start in range(0, len(ids), size):
        said.append(speaker.add(ids[start : start + size]))
    assert "".join([*said, speaker.rest()]) == text and not any("\ufffd" in piece for piece in said)
    assert sum(map(bool, said)) > 3


def test_a_text_that_ends_within_a_character_is_said_to_its_end():
    speaker = Speaker(Bytes())
    assert speaker.add(list("é".encode())[:1]) == "" and speaker.rest() == "\ufffd" and speaker.rest() == ""


# ---- the command


OPTIONS = ["--draft", "exit:1", "--candidates", 2, "--length", 3, "--max-new-tokens", 8, "--dtype", "float64"]


def test_one_prompt_is_streamed(tiny, capsys):
    assert run("w1 w2 w3", "--target", tiny, *OPTIONS, "--min-new-tokens", 8, "--seed", 5) == 0
    printed = capsys.readouterr().out
    found = decode_prompts(["w1 w2 w3"], target=tiny, seed=5, **SMALL)
    text = found.records[0]["text"]
    assert printed.startswith(f"{text}\n") and len(text.split()) > 3
    assert f"{found.summary.block_efficiency:.2f}  ({found.summary.target_calls} call" in printed
    assert "8 tokens" in printed and "time in target calls" in printed and "accepted by position" in printed


def test_the_command_prints_one_object_and_goes_on(tmp_path, tiny, capsys):
    (tmp_path / "p.txt").write_text("\n".join(PROMPTS))
    options = ["--prompts", tmp_path / "p.txt", "--target", tiny, *OPTIONS, "--temperature", 0.8, "--top-k", 7]
    options += ["--stop", "w5", "--stop", "w6", "--selector", "rrs", "--draft-temperature", 1.3, "--no-chat"]
    assert run(*options, "--out", tmp_path / "a", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    found = decode_prompts(
        PROMPTS, target=tiny, law=Processing(0.8, top_k=7), stop=["w5", "w6"], selector="rrs", draft_temperature=1.3,
        chat=False, **small(min_new_tokens=0),
    )  # fmt: skip
    assert [row["tokens"] for row in printed["records"]] == [row["tokens"] for row in found.records]
    assert printed["accepted_at"] == found.summary.accepted_at and printed["target_calls"] == found.summary.target_calls
    assert (printed["prompts"], printed["new"], printed["measured"]) == (5, 5, None)
    assert printed["tokens"] == sum(len(row["tokens"]) for row in printed["records"])
    assert run(*options, "--out", tmp_path / "a") == 0
    assert "5 records in" in (said := capsys.readouterr().out) and "(0 new)" in said
    assert run(*options, "--out", tmp_path / "b", "--limit", 2) == 0
    said = capsys.readouterr().out
    for row in found.records[:2]:
        assert f"[{row['id']}] {row['text']}\n" in said


def test_measuring_is_shown(tiny, capsys):
    assert run("w1 w2", "--target", tiny, *OPTIONS, "--min-new-tokens", 8, "--measure") == 0
    printed = capsys.readouterr().out
    assert "optimum" in printed and "of optimum" in printed and "by these laws" in printed


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--max-new-tokens", "-1"], "max_new_tokens must be an integer of at least 0"),
        (["--batch", "0"], "batch must be at least 1"),
        (["--limit", "0"], "limit must be at least 1"),
        (["--seed", "-1"], "seed must be"),
        (["--temperature", "nan"], "temperature"),
        (["--selector", "nonsense"], "no selector or sequence rule 'nonsense'"),
        (["--selector", "luce:2:3:4"], "NAME:K:L"),
        (["--selector", "all"], "several need --compare"),
        (["--selector", "block", "--candidates", "2"], "is exact for no tree"),
        (["--draft", "exit:9"], "leaves 1 to 3 of its 4 layers"),
        (["--draft", "absent"], "no model in 'absent'"),
        (["--stop", ""], "a stop string is empty"),
        (["--max-new-tokens", "99"], "prompt '1' has"),
        (["--measure", "--batch", "2"], "one prompt at a time"),
        (["--compare", "--fit"], "one at a time"),
        (["--compare", "--stop", "w1"], "--stop has no meaning with --compare"),
        (["--fit", "--batch", "2"], "--batch has no meaning with --fit"),
        (["--prompts", "absent.txt"], "which of them?"),
    ],
)
def test_the_command_on_bad_input_says_one_sentence(tmp_path, tiny, capsys, arguments, named):
    out = tmp_path / "out"
    options = ["w1 w2", "--target", tiny, "--draft", "exit:1", "--max-new-tokens", 8, "--out", out, "--json"]
    assert run(*options, *arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and named in printed.err and len(printed.err.strip().splitlines()) == 1
    assert not out.exists()


def test_prompts_are_named_when_they_do_not_fit(tmp_path, tiny):
    file = tmp_path / "p.jsonl"
    file.write_text('{"id": "short", "prompt": "w1"}\n{"id": "long", "prompt": "' + "w1 " * 70 + '"}\n')
    with pytest.raises(PromptError, match="prompt 'long' has"):
        decode_prompts(file, target=tiny, **SMALL)
    with pytest.raises(OptionError, match="batch must be"):
        decode_prompts(file, target=tiny, batch=0, **SMALL)


def test_the_default_model(tmp_path: Path, default_model):
    program = "from ot_spec.cli import main; main()"
    command = [sys.executable, "-W", "error", "-c", program, "decode", "What is the capital of France?", "--json"]
    done = subprocess.run(
        [*command, "--temperature", "0", "--max-new-tokens", "12", "--length", "3", "--out", str(tmp_path)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert "Paris" in printed["records"][0]["text"] and printed["block_efficiency"] > 1
    assert read_records(tmp_path)[0]["tokens"] == printed["records"][0]["tokens"]
