"""`ot-spec distil`: the whole way to a drafter, what its numbers are, what is refused, kills at any point."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock
from safetensors import safe_open

from gpu_decoder import distil_command as command_module
from gpu_decoder.distil import distil as distil_module
from gpu_decoder.distil import evaluate as evaluate_module
from gpu_decoder.distil.corpus import Corpus
from gpu_decoder.distil.distil import distil
from gpu_decoder.distil.evaluate import DRAFT_TEMPERATURES, cost, evaluate
from gpu_decoder.drafters import FeatureDrafter, ModelDrafter, get_drafter
from gpu_decoder.models import load
from gpu_decoder.prompt_file import Prompt
from gpu_decoder.tree_slots import Block
from gpu_decoder.verify import TreeReader
from ot_spec import IID, WithoutReplacement, reheated
from ot_spec.captured import read
from ot_spec.errors import OptionError, PromptError, RecordFileError
from solvers import get_selector, optimal_acceptance
from solvers.gap import study
from tests.distil.commands import PROMPTS, RECIPE, SMALL, contents, run

SHAPES = ["feature", "llama"]


@pytest.fixture(scope="module")
def prompts(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    file.write_text("\n".join(PROMPTS) + "\n")
    return file


@pytest.fixture(scope="module")
def made(tmp_path_factory, tiny, prompts) -> dict[str, tuple[Path, str]]:
    """Of each shape, the folder and what --json printed."""
    found = {}
    for shape in SHAPES:
        out = tmp_path_factory.mktemp(shape) / "out"
        status, said = run("--out", out, "--target", tiny, "--prompts", prompts, "--shape", shape, "--json", *SMALL)
        assert status == 0
        found[shape] = out, said
    return found


# ---- the whole way


@pytest.mark.parametrize("shape", SHAPES)
def test_json_is_as_the_help_says(made, shape):
    out, said = made[shape]
    found = json.loads(said)
    assert said.count("\n") == 1 and found.keys() == {"drafter", "bytes", "evaluation"}
    assert found["drafter"] == str(out / "drafter")
    assert found["bytes"] == (out / "drafter" / "model.safetensors").stat().st_size > 1000
    worth = found["evaluation"]
    assert worth.keys() == {"prompts", "tokens", "temperatures", "cost"}
    assert len(worth["prompts"]) == 3 and worth["temperatures"].keys() == {"1", "0.6"}
    assert worth["cost"].keys() == {"target", "draft", "ratio"} and min(worth["cost"].values()) > 0
    assert worth["cost"]["ratio"] == pytest.approx(worth["cost"]["draft"] / worth["cost"]["target"])
    for one in worth["temperatures"].values():
        assert {"positions", "overlap", "overlap_error", "overlaps", "target_entropy", "selectors"} == one.keys()
        assert 0 < one["overlap"] < 1 and one["positions"] <= 3 * worth["tokens"]
        lines = {(line["law"], line["selector"], line["k"]): line for line in one["selectors"]}
        assert len(lines) == len(one["selectors"]) and {k for *_, k in lines} == {1, 2, 4, 8}
        for key, line in lines.items():
            assert {"draft_temperature", "edge", "rows", "acceptance", "standard_error"} <= line.keys()
            assert line["draft_temperature"] in DRAFT_TEMPERATURES
            best = lines[(key[0], "optimum", key[2])]["acceptance"]
            assert 0 <= line["acceptance"] <= best + 1e-9


@pytest.mark.parametrize("shape", SHAPES)
def test_the_folder_holds_a_drafter_of_the_shape_with_its_vocabulary(made, tiny, shape):
    out, _ = made[shape]
    target = load(tiny, "bfloat16")
    drafter = get_drafter(out / "drafter", target)
    if shape == "feature":
        assert isinstance(drafter, FeatureDrafter) and drafter.tap == (1, 3, 4)
        assert len(drafter.net.vocabulary) == 20
        assert (drafter.net.config.full, drafter.net.config.rank) == (12, 3)
    else:
        assert isinstance(drafter, ModelDrafter)
        assert len(drafter.model.model.config.draft_vocabulary) == 20
    assert not list(out.rglob("*unfinished*"))
    assert json.loads((out / "settings.json").read_text())["shape"] == shape


def test_the_text_is_of_the_target_in_bfloat16_and_holds_no_prompt_held_out(made, tiny):
    out, said = made["feature"]
    held = {PROMPTS[int(name) - 1] for name in json.loads(said)["evaluation"]["prompts"]}
    tokenizer, texts = load(tiny).tokenizer, []
    for file in sorted((out / "text").iterdir()):
        with safe_open(file, "pt") as shard:
            assert shard.get_tensor("features").dtype == torch.bfloat16
            tokens, first = shard.get_tensor("tokens").tolist(), shard.get_tensor("first").tolist()
            texts += [tokenizer.decode(tokens[a:b]) for a, b in itertools.pairwise(first)]
    assert len(texts) == 4 + 2 * 4 + 4
    for prompt in PROMPTS:
        expected = 0 if prompt in held else 2
        assert sum(text.startswith(f"<s> user {prompt} </s> <s> assistant") for text in texts) >= expected
        assert prompt not in held or not any(f"user {prompt} </s>" in text for text in texts)


def test_the_card_says_what_was_done(made, tiny, prompts):
    out, said = made["feature"]
    worth, history = json.loads(said)["evaluation"], torch.load(out / "checkpoint.pt", weights_only=True)["history"]
    card = (out / "drafter" / "README.md").read_text()
    tokens = Corpus(sorted((out / "text").iterdir())).tokens()
    for words in (
        f"# A drafter for {tiny}", "after layers 1, 3, 4", "1 deep", "drafts 20 of the target's tokens",
        f"Text: {tokens:,} tokens", "4 conversations of its own", "turns at temperature 0.8",
        "answers at 1 and 0.6", "2 answers to each of 4 given prompts, and 1 conversations that begin as each of them",
        "5 steps of about 128 tokens, loss KL,", "unrolled 2 steps", f"on a CPU with {torch.get_num_threads()} threads",
        f"Last loss {history[-1]['loss']:.3f}; sum min(t, d) on the last batch {history[-1]['overlap'][0]:.3f}, ",
        "On 3 prompts that are in no training text, up to 24 positions",
        f"Prompts: {', '.join(worth['prompts'])}.",
        *(f"= **{one['overlap']:.3f}** ± {one['overlap_error']:.3f}" for one in worth["temperatures"].values()),
    ):  # fmt: skip
        assert words in card, words
    rows = [line for line in card.splitlines() if re.match(r"\| (iid|without|top)", line)]
    assert len(rows) == sum(len(one["selectors"]) for one in worth["temperatures"].values())
    other = (made["llama"][0] / "drafter" / "README.md").read_text()
    assert "a small causal model of the Llama kind, 1 layers of width 32; it drafts 20" in other


def test_the_card_says_the_command_without_folders_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(
        sys, "argv",
        ["/bin/ot-spec", "distil", "--out", f"{tmp_path}/o", "--prompts", f"{tmp_path}/a b.txt", "--steps", "5",
         f"--evaluation={tmp_path}/judge.txt", "--target", str(tmp_path)],
    )  # fmt: skip
    said = command_module._said()
    assert (
        said
        == f"ot-spec distil --out DIR --prompts 'a b.txt' --steps 5 --evaluation=judge.txt --target {tmp_path.name}"
    )
    monkeypatch.setattr(sys, "argv", ["ot-spec", "distil", f"--out={tmp_path}"])
    assert command_module._said() == "ot-spec distil --out=DIR"
    monkeypatch.setattr(sys, "argv", ["pytest"])
    assert command_module._said() == ""


@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_command_again_does_nothing_and_says_the_same(made, tiny, prompts, monkeypatch, shape):
    out, said = made[shape]
    before = contents(out)
    monkeypatch.setattr(distil_module, "write_shard", lambda *args: pytest.fail("text is written again"))
    monkeypatch.setattr(evaluate_module, "evaluate", lambda *args, **options: pytest.fail("it is judged again"))
    status, again = run("--out", out, "--target", tiny, "--prompts", prompts, "--shape", shape, "--json", *SMALL)
    assert (status, again) == (0, said)
    assert contents(out) == before


def test_without_json_the_tables_are_shown(made, tiny, prompts):
    out, said = made["feature"]
    status, shown = run("--out", out, "--target", tiny, "--prompts", prompts, *SMALL)
    worth = json.loads(said)["evaluation"]
    assert status == 0 and f"{worth['temperatures']['0.6']['overlap']:.3f}" in shown
    assert "A draft takes" in shown and re.sub(r"\s", "", f"--draft {out / 'drafter'}") in re.sub(r"\s", "", shown)


# ---- what is refused


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (["--conversations", "5"], "text.conversations = 4, and not 5"),
        (["--answers", "1"], "text.answers = 2, and not 1"),
        (["--seed", "6"], "prompts = "),
        (["--steps", "6"], "train.steps = 5, and not 6"),
        (["--loss", "tv"], "train.loss = 'kl', and not 'tv'"),
        (["--k", "2"], "train.k = 4, and not 2"),
        (["--warm", "0.5"], "train.warm = 0.6, and not 0.5"),
        (["--unroll", "3"], "train.unroll = 2, and not 3"),
        (["--batch-tokens", "64"], "train.tokens = 128, and not 64"),
        (["--vocabulary", "21"], "vocabulary = 20, and not 21"),
        (["--layers", "2"], "layers = 1, and not 2"),
        (["--width", "64"], "width = 32, and not 64"),
        (["--shape", "llama"], "shape = 'feature', and not 'llama'"),
        (["--hold-out", "2"], "hold_out = 3, and not 2"),
        (["--dtype", "float32"], "dtype = 'bfloat16', and not 'float32'"),
    ],
)  # fmt: skip
def test_other_settings_are_refused_by_name(made, tiny, prompts, capsys, changed, named):
    out, _ = made["feature"]
    before = contents(out)
    status, said = run("--out", out, "--target", tiny, "--prompts", prompts, "--json", *SMALL, *changed)
    shown = capsys.readouterr().err
    assert (status, said) == (2, "") and shown.count("\n") == 1
    assert f"{out} was made with {named}" in shown or (changed[0] == "--hold-out" and f"{out} was made with" in shown)
    assert contents(out) == before


def test_another_target_and_other_prompts_are_refused(made, tiny, make_model, prompts, capsys, tmp_path):
    out, _ = made["feature"]
    status, _ = run("--out", out, "--target", make_model(seed=9), "--prompts", prompts, *SMALL)
    assert status == 2 and "was made with target = " in capsys.readouterr().err
    other = tmp_path / "other.txt"
    other.write_text("\n".join([*PROMPTS[:-1], "w20 w20 w20"]))
    status, _ = run("--out", out, "--target", tiny, "--prompts", other, *SMALL)
    assert status == 2 and "was made with" in capsys.readouterr().err


def test_other_prompts_to_judge_by_are_refused(made, tiny, prompts, capsys, tmp_path):
    """And not answered with what others gave."""
    out, _ = made["feature"]
    other = tmp_path / "judge.txt"
    other.write_text("w20 w19\nw18\nw17\n")
    status, said = run("--out", out, "--target", tiny, "--prompts", prompts, "--evaluation", other, "--json", *SMALL)
    shown = capsys.readouterr().err
    assert (status, said) == (2, "") and "evaluation.json was made with evaluation = " in shown


def test_a_second_process_at_once_is_refused(made, tiny, prompts, capsys):
    out, _ = made["feature"]
    with FileLock(out / ".lock"):
        status, said = run("--out", out, "--target", tiny, "--prompts", prompts, "--json", *SMALL)
    shown = capsys.readouterr().err
    assert (status, said) == (2, "") and shown == f"ot-spec: another process makes a drafter in {out}\n"


@pytest.mark.parametrize("text", ["{", "[]", "3"])
def test_damaged_settings_are_refused(tmp_path, tiny, text):
    (tmp_path / "settings.json").write_text(text)
    with pytest.raises(RecordFileError, match=r"settings\.json holds no settings"):
        distil(tmp_path, RECIPE, target=tiny, prompts=PROMPTS)


def test_a_damaged_checkpoint_is_one_sentence(tmp_path, tiny, capsys):
    recipe = ["--conversations", "3", "--steps", "2", "--batch-tokens", "64", "--target", tiny, "--out", tmp_path]
    assert run(*recipe)[0] == 0
    (tmp_path / "checkpoint.pt").write_bytes(b"0" * 100)
    capsys.readouterr()
    status, _ = run(*recipe)
    shown = capsys.readouterr().err
    assert status == 2 and shown.count("ot-spec: ") == 1 == shown.splitlines()[-1].count("ot-spec: ")
    assert "checkpoint.pt is no checkpoint of this training: " in shown.splitlines()[-1]


REFUSED: list[tuple[list[str], str]] = [
    (["--shape", "tree"], "shape must be one of feature, llama, got 'tree'"),
    (["--loss", "mse"], "loss must be one of kl, tv, alpha, got 'mse'"),
    (["--vocabulary", "1"], "vocabulary must be at least 2, got 1"),
    (["--layers", "0"], "layers must be at least 1, got 0"),
    (["--width", "16"], "width must be at least 32, got 16"),
    (["--width", "40"], "width must be a multiple of 32, got 40"),
    (["--hold-out", "-1"], "hold_out must be at least 0, got -1"),
    (["--hold-out", "8"], "8 prompts cannot be held out of 7"),
    (["--conversations", "-1"], "conversations must be at least 0, got -1"),
    (["--answers", "-1"], "answers must be at least 0, got -1"),
    (["--begun", "-1"], "begun must be at least 0, got -1"),
    (["--full", "0"], "full must be at least 1, got 0"),
    (["--rank", "-1"], "rank must be at least 0, got -1"),
    (["--steps", "0"], "steps must be at least 1, got 0"),
    (["--k", "0"], "k must be at least 1, got 0"),
    (["--unroll", "0"], "unroll must be at least 1, got 0"),
    (["--batch-tokens", "8"], "tokens must be at least 16, got 8"),
    (["--seed", "-1"], "seed must be at least 0, got -1"),
    (["--warm", "1.5"], "warm is a share of the steps, 0 to 1, got 1.5"),
    (["--warm", "nan"], "warm is a share of the steps, 0 to 1, got nan"),
    (["--dtype", "int8"], "dtype must be one of"),
    (["--device", "abacus"], "device 'abacus' cannot be used"),
    (["--target", "no/such/model"], "no model in 'no/such/model'"),
    (["--evaluation", "no-such-file.txt"], "cannot read prompts from no-such-file.txt"),
    (["--prompts", "no-such-file.txt"], "cannot read prompts from no-such-file.txt"),
    (["--conversations", "0", "--answers", "0", "--begun", "0"], "there is nothing to learn from"),
    (["--conversations", "0", "--hold-out", "7"], "there is nothing to learn from"),
    (["--steps", "many"], "'--steps'"),
]


@pytest.mark.parametrize(("options", "sentence"), REFUSED, ids=[" ".join(options) for options, _ in REFUSED])
def test_what_cannot_be_is_one_sentence(tmp_path, tiny, prompts, capsys, options, sentence):
    status, said = run("--out", tmp_path / "out", "--target", tiny, "--prompts", prompts, *SMALL, *options)
    shown = capsys.readouterr().err
    assert (status, said) == (2, "") and shown.count("\n") == 1 and shown.startswith("ot-spec: ")
    assert sentence in shown
    assert not (tmp_path / "out").exists()


def test_out_that_is_a_file_is_one_sentence(tmp_path, tiny, capsys):
    (tmp_path / "out").write_text("")
    assert run("--out", tmp_path / "out", "--target", tiny)[0] == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("turn", [0, 1])
def test_a_prompt_both_learned_from_and_judged_by_is_refused(tmp_path, tiny, turn):
    given = [Prompt("a", ("w1 w2", "w3 w4")), Prompt("b", ("w5",))]
    judge = [Prompt("z", ("w9", given[0].turns[turn]))]
    with pytest.raises(OptionError, match=f"the prompt '{given[0].turns[turn]}' would be learned from and judged by"):
        distil(tmp_path / "out", replace(RECIPE, hold_out=0), target=tiny, prompts=given, evaluation=judge)
    assert not (tmp_path / "out").exists()


def test_prompts_with_nothing_in_them_are_refused(tmp_path, tiny):
    with pytest.raises(PromptError, match="no prompts given"):
        distil(tmp_path / "out", replace(RECIPE, hold_out=0), target=tiny, evaluation=[])


@pytest.mark.parametrize(("has", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_the_target_writes_in_bfloat16_where_the_processor_has_it(tmp_path, tiny, monkeypatch, has, dtype):
    monkeypatch.setattr(distil_module, "has_bfloat16", lambda device: has)
    distil(tmp_path, replace(RECIPE, hold_out=0), target=tiny)
    assert json.loads((tmp_path / "settings.json").read_text())["dtype"] == dtype


def test_a_layer_that_the_target_does_not_have_is_refused(tmp_path, tiny):
    with pytest.raises(OptionError, match="layers 1 to 4, no layer 9"):
        distil(tmp_path, replace(RECIPE, tap=(1, 9), hold_out=0), target=tiny)


# ---- the numbers of the evaluation


@pytest.fixture(scope="module", params=SHAPES)
def judged(request, tmp_path_factory, tiny, made) -> tuple[Path, dict[str, Any]]:
    """An evaluation of every position there is."""
    target = load(tiny, "float32")
    drafter = get_drafter(made[request.param][0] / "drafter", target)
    folder = tmp_path_factory.mktemp("judged")
    prompts = [Prompt(str(i), (f"w{i} w3",)) for i in range(4)]
    options: dict[str, Any] = {"k": (1, 3), "tokens": 6, "seed": 4, "temperatures": (1.0, 0.6)}
    found = evaluate(target, drafter, prompts, folder, rows=1000, dear_rows=1000, **options)
    return folder, found


def positions(folder: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    for batch in read(folder).batches():
        for place in range(len(batch)):
            target, draft = (law[place].astype(np.float64) for law in (batch.target, batch.draft))
            yield str(batch.prompt_id), target / target.sum(), draft / draft.sum()


@pytest.mark.parametrize("heat", ["1", "0.6"])
def test_the_numbers_are_those_of_the_laws(judged, heat):
    """Overlap with its error over prompts, and acceptances at the best draft temperature, from the whole laws."""
    folder, found = judged
    one = found["temperatures"][heat]
    rows = list(positions(folder / f"laws_T{heat}"))
    assert one["positions"] == len(rows) > 8 and found["prompts"] == ["0", "1", "2", "3"]
    overlaps = [(name, float(np.minimum(target, draft).sum())) for name, target, draft in rows]
    mean = np.mean([value for _, value in overlaps])
    assert one["overlap"] == pytest.approx(mean, abs=1e-6) == pytest.approx(one["overlaps"]["1"], abs=1e-6)
    cold = [float(np.minimum(target, reheated(draft, 0.6)).sum()) for _, target, draft in rows]
    assert one["overlaps"]["0.6"] == pytest.approx(np.mean(cold), abs=1e-5)
    assert one["overlaps"].keys() == {f"{heat:g}" for heat in DRAFT_TEMPERATURES}
    residuals = [sum(value - mean for name, value in overlaps if name == prompt) for prompt in found["prompts"]]
    error = np.sqrt(4 / 3 * np.square(np.array(residuals)).sum()) / len(rows)
    assert one["overlap_error"] == pytest.approx(error, rel=1e-4)
    entropy = np.mean([-(t[t > 0] * np.log(t[t > 0])).sum() for _, t, _ in rows])
    assert one["target_entropy"] == pytest.approx(entropy, rel=1e-5)

    lines = {(line["law"], line["selector"], line["k"]): line for line in one["selectors"]}
    for law, selector, k in (
        ("iid", "optimum", 1), ("iid", "optimum", 3), ("iid", "k_seq", 3), ("iid", "rrs", 3),
        ("without_replacement", "optimum", 3), ("without_replacement", "rrs_without_replacement", 3),
    ):  # fmt: skip
        asked = (IID if law == "iid" else WithoutReplacement)(k)
        means = {}
        for heat_of_draft in DRAFT_TEMPERATURES:
            values = []
            for _, target, draft in rows:
                hot = reheated(draft, heat_of_draft)
                if selector == "optimum":
                    values.append(float(np.asarray(optimal_acceptance(target, hot, asked))))
                else:
                    values.append(float(np.asarray(get_selector(selector).acceptance(target, hot, asked))))
            means[heat_of_draft] = np.mean(values)
        line = lines[law, selector, k]
        assert line["rows"] == len(rows)
        assert line["acceptance"] == pytest.approx(max(means.values()), abs=1e-5)
        assert means[line["draft_temperature"]] == pytest.approx(max(means.values()), abs=1e-5)


def test_drafts_without_replacement_are_judged_on_rows_of_their_own(made, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(study, "DEAR_VOCAB", 4)
    target = load(tiny, "float32")
    drafter = get_drafter(made["feature"][0] / "drafter", target)
    options: dict[str, Any] = {"k": (1, 2), "tokens": 4, "temperatures": (1.0,)}
    found = evaluate(target, drafter, [Prompt(i, (f"w{i}",)) for i in "34"], tmp_path, rows=5, dear_rows=2, **options)
    rows = {(line["law"], line["rows"]) for line in found["temperatures"]["1"]["selectors"]}
    assert rows == {("iid", 5), ("top_then_sample", 5), ("without_replacement", 2)}


@pytest.mark.parametrize("shape", SHAPES)
def test_an_interrupted_evaluation_goes_on(made, tiny, tmp_path, shape):
    class Killed(BaseException):
        pass

    target = load(tiny, "float32")
    prompts = [Prompt(str(i), (f"w{i} w3",)) for i in range(4)]
    drafter = get_drafter(made[shape][0] / "drafter", target)
    options: dict[str, Any] = {"k": (2,), "tokens": 4, "rows": 5, "temperatures": (1.0,)}
    whole = evaluate(target, drafter, prompts, tmp_path / "whole", **options)
    for what in ("capturing", "judging selectors"):

        def die(doing: str, done: int, of: int, what: str = what) -> None:
            if doing.startswith(what) and done >= 1:
                raise Killed

        with pytest.raises(Killed):
            evaluate(target, drafter, prompts, tmp_path / "killed", on_progress=die, **options)
    found = evaluate(target, drafter, prompts, tmp_path / "killed", **options)
    del whole["cost"], found["cost"]
    assert found == whole


def test_the_cost_is_of_one_token_at_batch_1_after_one_text(made, tiny, monkeypatch):
    target = load(tiny, "float32")
    drafts: list[int] = []
    targets: list[tuple[int, int]] = []
    drafter = get_drafter(made["feature"][0] / "drafter", target)
    assert isinstance(drafter, FeatureDrafter)
    read_pairs, read_tree = drafter.net.read, TreeReader.read

    def drafted(tokens: torch.Tensor, *rest: Any) -> torch.Tensor:
        drafts.append(tokens.numel())
        return read_pairs(tokens, *rest)

    def verified(self: TreeReader, blocks: list[Block], **options: Any) -> list[torch.Tensor]:
        found = read_tree(self, blocks, **options)
        targets.append((sum(len(block.tokens) for block in blocks), self._slots.cache.end))
        return found

    monkeypatch.setattr(drafter.net, "read", drafted)
    monkeypatch.setattr(TreeReader, "read", verified)
    found = cost(target, drafter, Prompt("1", ("w1 w2",)), rounds=8)
    assert drafts[1:] == [1] * 8
    assert targets[-8:] == [(1, targets[-1][1])] * 8  # and nothing of the call before is read over
    assert found["ratio"] == pytest.approx(found["draft"] / found["target"])


def test_without_prompts_to_judge_by_there_is_no_evaluation(tmp_path, tiny):
    recipe = ["--conversations", "3", "--steps", "2", "--batch-tokens", "64", "--target", tiny, "--out", tmp_path]
    status, said = run(*recipe, "--json")
    assert status == 0 and json.loads(said)["evaluation"] is None
    card = (tmp_path / "drafter" / "README.md").read_text()
    assert "What it is worth" not in card and "0 answers to each of 0 given prompts" in card
    assert "drafts 32 of the target's tokens" in card  # of 32, however many are asked for


def test_a_target_without_a_chat_template(tmp_path, make_model):
    target = make_model(seed=4, template=None)
    found = distil(tmp_path, RECIPE, target=target, prompts=PROMPTS)
    assert found["temperatures"]["1"]["positions"] > 0
