"""Capturing laws: those recorded are the models' own, processed as asked, along the text that was drawn."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpu_decoder.capture import Stage, capture
from gpu_decoder.models import early_exit, encode, encode_chat, load
from gpu_decoder.processing import Processing
from gpu_decoder.prompt_file import DEMO_PROMPTS, Prompt, read_prompts
from ot_spec.arrays import pick
from ot_spec.captured import overlap, read
from ot_spec.cli import main
from ot_spec.errors import (
    CaptureFileError,
    LawError,
    ModelError,
    OptionError,
    OtSpecError,
    PromptError,
    VocabularyError,
)
from ot_spec.law import from_logits

PROMPTS = ["w0 w1 w2", "w5", "w9 w9 w20 w3"]


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def logits_at(model, context, vocab: int = 32) -> np.ndarray:
    """The model's logits after the context, read at once and in float64."""
    with torch.no_grad():
        return model.model(torch.tensor(np.asarray(context)[None])).logits[0, -1].double().numpy()


def shortened(folder: Path, left_out: int):
    """The model in the folder without its last layers."""
    short = load(folder, dtype="float64")
    layers = short.model.model.layers
    short.model.model.layers = layers[: len(layers) - left_out]
    short.model.config.num_hidden_layers = len(layers) - left_out
    return short


def rows(folder: Path):
    return [
        (batch.prompt_id, batch.context[i], int(batch.token[i]), batch.target[i], batch.draft[i])
        for batch in read(folder).batches()
        for i in range(len(batch))
    ]


@pytest.fixture(scope="module")
def other(make_model):
    return make_model(seed=1)


def endless(folder: Path, dtype: str = "float32"):
    """The model in the folder, with no token that ends its text."""
    return replace(load(folder, dtype=dtype), stops=frozenset())


PROCESSINGS = [
    (Processing(), Processing()),
    (Processing(0.7, top_k=9), Processing(1.5, top_p=0.8)),
    (Processing(min_p=0.1, top_p=0.9), Processing(0)),
]


@pytest.mark.parametrize(("target_law", "draft_law"), PROCESSINGS)
@pytest.mark.parametrize("positions", ["generated", "prompt"])
@pytest.mark.parametrize("draft", ["exit:2", "folder"])
def test_the_laws_recorded_are_those_of_the_models(tmp_path, tiny, other, draft, positions, target_law, draft_law):
    summary = capture(
        PROMPTS, tmp_path, target=endless(tiny, "float64"), draft={"folder": other}.get(draft, draft), dtype="float64",
        tokens=6, target_law=target_law, draft_law=draft_law, positions=positions, seed=5,
    )  # fmt: skip
    target = load(tiny, dtype="float64")
    drafts = load(other, dtype="float64") if draft == "folder" else shortened(tiny, 2)
    found = rows(tmp_path)
    assert len(found) == summary.rows == (18 if positions == "generated" else 5 + 3 + 6)
    for _, context, _, target_row, draft_row in found:
        expected = from_logits(logits_at(target, context), **vars(target_law))
        np.testing.assert_allclose(target_row, expected, rtol=1e-6, atol=1e-12)
        expected = from_logits(logits_at(drafts, context), **vars(draft_law))
        np.testing.assert_allclose(draft_row, expected, rtol=1e-6, atol=1e-12)
    overlaps = [overlap(row[3], row[4]) for row in found]
    np.testing.assert_allclose(summary.overlap, np.mean(overlaps), rtol=1e-12)


@pytest.mark.parametrize(("target_law", "draft_law"), PROCESSINGS)
def test_each_token_is_drawn_from_the_law_recorded(tmp_path, tiny, target_law, draft_law):
    capture(PROMPTS, tmp_path, target=endless(tiny), draft="exit:1", tokens=40, seed=3,
            target_law=target_law, draft_law=draft_law)  # fmt: skip
    model = load(tiny)
    for number, prompt in enumerate(PROMPTS):
        coins = np.random.default_rng([3, number])
        text = encode_chat(model, [prompt])
        found = [row for row in rows(tmp_path) if row[0] == str(number + 1)]
        for _, context, token, target_row, _ in found:
            np.testing.assert_array_equal(context, text)
            assert token == pick(target_row, coins.random(1))[0] and target_row[token] > 0
            text.append(token)
        assert len(found) == 40


def test_positions_of_a_prompt(tmp_path, tiny):
    capture(PROMPTS, tmp_path / "all", target=tiny, positions="prompt", draft="exit:1", chat=False)
    model = load(tiny)
    texts = [encode(model, prompt) for prompt in PROMPTS]
    expected = [(str(n), text[:i], text[i]) for n, text in enumerate(texts, 1) for i in range(1, len(text))]
    assert [(name, list(context), token) for name, context, token, *_ in rows(tmp_path / "all")] == expected
    assert read(tmp_path / "all").prompts == ["1", "2", "3"]  # the second has one token, and no row

    capture(PROMPTS, tmp_path / "last", target=tiny, positions="prompt", draft="exit:1", chat=False, tokens=2)
    assert [list(row[1]) for row in rows(tmp_path / "last")] == [[3], [3, 4], [12, 12], [12, 12, 23]]


def test_a_long_prompt_is_read_in_pieces(tmp_path, make_model):
    folder = make_model(context=700)
    prompt = " ".join(f"w{i % 21}" for i in np.random.default_rng(0).integers(21, size=600))
    capture([prompt], tmp_path, target=folder, draft="exit:1", positions="prompt", tokens=400, chat=False)
    model = load(folder, dtype="float64")
    found = rows(tmp_path)
    assert [len(row[1]) for row in found] == list(range(200, 600))
    for row in (found[0], found[55], found[56], found[57], found[-1]):
        np.testing.assert_allclose(row[3], from_logits(logits_at(model, row[1])), rtol=1e-2, atol=1e-5)


def test_text_ends_at_a_stop_and_at_the_end_of_the_context(tmp_path, tiny, make_model):
    capture(
        ["w1"] * 1 + [f"w{i}" for i in range(2, 12)],
        tmp_path / "stops",
        target=tiny,
        draft="exit:1",
        tokens=50,
    )
    texts: dict[str, list[int]] = {}
    for name, _, token, *_ in rows(tmp_path / "stops"):
        texts.setdefault(name, []).append(token)
    assert all(2 not in text[:-1] for text in texts.values())
    assert any(text[-1] == 2 for text in texts.values())

    small = endless(make_model(context=12))
    capture(["w1 w2"], tmp_path / "full", target=small, draft="exit:1", tokens=50)
    assert [len(row[1]) for row in rows(tmp_path / "full")] == [7, 8, 9, 10, 11]


def test_all_turns_hold_the_targets_own_answers(tmp_path, tiny):
    prompts = [Prompt("two", ("w1", "w2 w3")), Prompt("one", ("w4",))]
    capture(prompts, tmp_path, target=tiny, draft="exit:1", tokens=3, all_turns=True, seed=1)
    model = load(tiny)
    two = [row for row in rows(tmp_path) if row[0] == "two"]
    first = [row for row in two if len(row[1]) < len(two[0][1]) + 3][:3]
    answer = model.tokenizer.decode([row[2] for row in first], skip_special_tokens=True)
    second = two[len(first)]
    np.testing.assert_array_equal(second[1], encode_chat(model, ["w1", answer, "w2 w3"]))
    capture(prompts, tmp_path / "first", target=tiny, draft="exit:1", tokens=3, seed=1)
    assert [row[2] for row in rows(tmp_path / "first") if row[0] == "two"] == [row[2] for row in first]


# ---- vocabularies


def test_a_narrower_draft_is_padded(tmp_path, make_model, tiny):
    wide = make_model(seed=4, vocab=40)
    capture(PROMPTS, tmp_path, target=wide, draft=tiny, tokens=5)
    found = rows(tmp_path)
    assert found[0][3].shape == found[0][4].shape == (40,)
    assert all((row[4][32:] == 0).all() for row in found) and any((row[3][32:] > 0).any() for row in found)


def test_a_text_ends_where_the_draft_cannot_read_it(tmp_path, make_model, tiny):
    def prefer_padding(model):
        model.lm_head.weight[:32] *= 0.01

    wide = make_model(seed=4, vocab=40, change=prefer_padding)
    capture(PROMPTS, tmp_path, target=wide, draft=tiny, tokens=9, target_law=Processing(0))
    found = rows(tmp_path)
    assert any(row[2] >= 32 for row in found) and all(max(row[1]) < 32 for row in found)


@pytest.mark.parametrize("top_k", [None, 7])
def test_a_wider_draft_drafts_no_padding(tmp_path, make_model, tiny, top_k):
    wide = make_model(seed=4, vocab=40)
    capture(PROMPTS, tmp_path, target=tiny, draft=wide, tokens=5, draft_law=Processing(top_k=top_k))
    model = load(wide)
    for _, context, _, _, draft_row in rows(tmp_path):
        logits = logits_at(model, context)[:32]
        np.testing.assert_allclose(draft_row, from_logits(logits, top_k=top_k), rtol=1e-3, atol=1e-6)


def test_another_tokenizer_is_refused_before_anything_is_written(tmp_path, make_model, tiny):
    words = ["<unk>", "<s>", "</s>", *(f"v{i}" for i in range(21))]
    with pytest.raises(VocabularyError, match="token 3 is 'w0' in the target and 'v0' in the draft"):
        capture(PROMPTS, tmp_path / "out", target=tiny, draft=make_model(words=words))
    assert not (tmp_path / "out").exists()


def test_a_prompt_with_tokens_that_the_model_cannot_read(tmp_path, make_model):
    with pytest.raises(VocabularyError, match="prompt '1' has token 25; one of the models reads tokens below 25"):
        capture(PROMPTS, tmp_path, target=make_model(vocab=25), draft="exit:1")


# ---- continuing


def test_the_same_seed_gives_the_same_bytes(tmp_path, tiny):
    for name, seed in [("a", 1), ("b", 1), ("c", 2)]:
        capture(PROMPTS, tmp_path / name, target=tiny, draft="exit:1", tokens=8, seed=seed)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    tokens = [[row[2] for row in rows(tmp_path / name)] for name in "ac"]
    assert tokens[0] != tokens[1]


def test_a_killed_capture_continues_and_ends_up_the_same(tmp_path, tiny):
    capture(PROMPTS, tmp_path / "whole", target=endless(tiny), draft="exit:1", tokens=6)
    program = f"""
        import os, signal
        from dataclasses import replace
        from gpu_decoder.capture import capture
        from gpu_decoder.models import load
        def kill(stage):
            if stage.rows == 9:
                os.kill(os.getpid(), signal.SIGKILL)
        capture({PROMPTS!r}, {str(tmp_path / "killed")!r},
                target=replace(load({str(tiny)!r}), stops=frozenset()), draft="exit:1", tokens=6,
                progress=kill)
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [path.name for path in (tmp_path / "killed").glob("part-*")] == ["part-00000.parquet"]
    summary = capture(PROMPTS, tmp_path / "killed", target=endless(tiny), draft="exit:1", tokens=6)
    assert (summary.rows, summary.prompts, summary.new_rows, summary.new_prompts) == (18, 3, 12, 2)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    again = capture(PROMPTS, tmp_path / "killed", target=endless(tiny), draft="exit:1", tokens=6)
    assert (again.rows, again.new_rows, again.new_prompts) == (18, 0, 0)


def test_a_limit_can_be_raised(tmp_path, tiny):
    capture(PROMPTS, tmp_path / "whole", target=tiny, draft="exit:1", tokens=4)
    first = capture(PROMPTS, tmp_path / "steps", target=tiny, draft="exit:1", tokens=4, limit=1)
    assert (first.prompts, first.new_prompts) == (1, 1)
    capture(PROMPTS, tmp_path / "steps", target=tiny, draft="exit:1", tokens=4)
    assert contents(tmp_path / "steps") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"target_law": Processing(0.5)}, r"target_law\.temperature = 1\.0, and not 0\.5"),
        ({"draft_law": Processing(top_k=2)}, r"draft_law\.top_k = None, and not 2"),
        ({"draft": "exit:2"}, "draft = 'exit:1', and not 'exit:2'"),
        ({"tokens": 5}, "tokens = 4, and not 5"),
        ({"seed": 1}, "seed = 0, and not 1"),
        ({"compact": 3}, "compact = None, and not 3"),
        ({"prompts": ["w0", *PROMPTS[1:]]}, "prompts = '"),
        ({"dtype": "float64"}, "dtype = 'float32', and not 'float64'"),
        ({"chat": False}, "chat = True, and not False"),
    ],
)
def test_a_folder_captured_otherwise_is_refused(tmp_path, tiny, change, named):
    options: dict[str, Any] = {"prompts": PROMPTS, "target": tiny, "draft": "exit:1", "tokens": 4}
    capture(out=tmp_path, **options)
    before = contents(tmp_path)
    with pytest.raises(CaptureFileError, match=named):
        capture(out=tmp_path, **(options | change))
    assert contents(tmp_path) == before


def test_logits_that_make_no_law(tmp_path, make_model):
    def spoil(model):
        model.model.embed_tokens.weight[7] = torch.nan

    folder = make_model(change=spoil)
    options: dict[str, Any] = {
        "target": folder,
        "draft": make_model(seed=1),
        "positions": "prompt",
        "chat": False,
    }
    with pytest.raises(LawError, match=r"prompt '2', position 1, target: .*logit of token 0 is nan"):
        capture(["w1 w2", "w3 w4 w5"], tmp_path, **options)
    assert list(contents(tmp_path)) == ["part-00000.parquet"]


def test_compact_laws_are_those_of_the_full_capture(tmp_path, tiny):
    full = capture(PROMPTS, tmp_path / "full", target=tiny, draft="exit:1", tokens=6)
    compact = capture(PROMPTS, tmp_path / "compact", target=tiny, draft="exit:1", tokens=6, compact=3)
    assert compact.overlap == full.overlap and compact.target_entropy == full.target_entropy
    for whole, batch in zip(read(tmp_path / "full").batches(), read(tmp_path / "compact").batches(), strict=True):
        np.testing.assert_array_equal(whole.token, batch.token)
        assert batch.ids is not None and batch.target_tail is not None
        for row, ids in enumerate(batch.ids):
            ids = ids[ids >= 0]
            assert set(ids) >= {*np.argsort(-whole.target[row])[:3], *np.argsort(-whole.draft[row])[:3]}
            np.testing.assert_allclose(batch.target[row, : len(ids)], whole.target[row, ids], atol=1e-7)
        np.testing.assert_allclose(batch.target_tail, 1 - batch.target.sum(axis=-1), atol=1e-12)


def test_progress_is_told_in_order(tmp_path, tiny):
    stages: list[Stage] = []
    summary = capture(PROMPTS, tmp_path, target=tiny, draft="exit:1", tokens=3, progress=stages.append)
    assert stages[0] == Stage(False, 0, 3, 0) and stages[-1] == Stage(True, 3, 3, summary.rows)
    assert [s.rows for s in stages] == sorted(s.rows for s in stages)
    assert [s.done for s in stages] == sorted(s.done for s in stages)


def test_models_already_loaded(tmp_path, tiny):
    capture(PROMPTS, tmp_path, target=str(tiny), draft="exit:1", tokens=3)
    capture(PROMPTS, tmp_path, target=load(str(tiny)), draft="exit:1", tokens=3)
    assert early_exit(load(tiny), 1).layer is not None


# ---- prompts and options


def test_prompts_of_a_text_file(tmp_path):
    (tmp_path / "p.txt").write_bytes("\ufefffirst\r\n\r\n  second\u2028line \n".encode())
    assert read_prompts(tmp_path / "p.txt") == [Prompt("1", ("first",)), Prompt("3", ("second\u2028line",))]
    demo = read_prompts(DEMO_PROMPTS)
    assert len(demo) == 12 and len({prompt.turns for prompt in demo}) == 12


def test_prompts_of_json_lines(tmp_path):
    lines = [
        {"question_id": 81, "category": "writing", "turns": ["a", "b"]},
        {"prompt": "c"},
        {"id": "x", "prompt": "d"},
    ]
    (tmp_path / "p.jsonl").write_text("\n\n".join(map(json.dumps, lines)))
    expected = [Prompt("81", ("a", "b")), Prompt("3", ("c",)), Prompt("x", ("d",))]
    assert read_prompts(tmp_path / "p.jsonl") == expected


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("p.txt", b"", "holds no prompts"),
        ("p.txt", b" \n\n", "holds no prompts"),
        ("p.txt", b"caf\xe9", "not UTF-8 text: byte 3"),
        ("p.jsonl", b'{"turns": ["a"]}\n{"turns": [', "line 2: not JSON"),
        ("p.jsonl", b'\n["a"]', "line 2: expected an object, got list"),
        ("p.jsonl", b'{"turn": ["a"]}', 'line 1: expected a list "turns"'),
        ("p.jsonl", b'{"turns": []}', 'line 1: expected a list "turns"'),
        ("p.jsonl", b'{"turns": ["a", " "]}', 'line 1: expected a list "turns"'),
        ("p.jsonl", b'{"turns": "a"}', 'line 1: expected a list "turns"'),
        ("p.jsonl", b'{"turns": ["\\ud800"]}', 'line 1: expected a list "turns"'),
        ("p.jsonl", b'{"id": [1], "prompt": "a"}', "line 1: the prompt's id"),
        ("p.jsonl", b'{"id": 1, "prompt": "a"}\n' * 2, "line 2: prompt '1' already stands in line 1"),
    ],
)  # fmt: skip
def test_prompts_files_that_cannot_be_used(tmp_path, name, content, named):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(PromptError, match=named) as caught:
        read_prompts(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


BAD = [
    ({"tokens": 0}, OptionError, "tokens must be at least 1, got 0"),
    ({"limit": 0}, OptionError, "limit must be at least 1, got 0"),
    ({"compact": 0}, OptionError, "compact must be at least 1, got 0"),
    ({"seed": -1}, OptionError, "seed must be at least 0, got -1"),
    ({"positions": "everywhere"}, OptionError, "got 'everywhere'"),
    ({"target_law": Processing(-1.0)}, OptionError, "temperature"),
    ({"draft_law": Processing(top_p=1.5)}, OptionError, "top_p"),
    ({"draft_law": Processing(top_k=-2)}, OptionError, "top_k"),
    ({"draft": "exit:four"}, OptionError, "exit:N .*'exit:four'"),
    ({"draft": "exit:4"}, OptionError, "leaves 1 to 3 of its 4 layers out, not 4"),
    ({"draft": "absent"}, ModelError, "no model in 'absent'"),
    ({"all_turns": True, "chat": False}, OptionError, "all turns need the chat template"),
    ({"all_turns": True, "positions": "prompt"}, OptionError, "all turns need the chat template"),
    ({"prompts": []}, PromptError, "no prompts"),
    ({"prompts": [Prompt("a", ("w1",)), Prompt("a", ("w2",))]}, PromptError, "the same id"),
    ({"prompts": [Prompt("a", ("",))], "chat": False}, PromptError, "prompt 'a' is empty"),
    (
        {"prompts": ["w1", "w1 " * 65]},
        PromptError,
        "prompt '2' has 70 tokens and needs room for one more; .* 64",
    ),
    (
        {"prompts": ["w1 " * 65], "chat": False, "positions": "prompt"},
        PromptError,
        "prompt '1' has 65 tokens; .* 64",
    ),
]


@pytest.mark.parametrize(("change", "error", "named"), BAD)
def test_bad_requests_are_named_before_anything_is_written(tmp_path, tiny, change, error, named):
    options: dict[str, Any] = {"prompts": PROMPTS, "target": tiny, "draft": "exit:1"} | change
    with pytest.raises(error, match=named):
        capture(out=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists() and issubclass(error, OtSpecError)


# ---- the command


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as status:
        main(["capture", *map(str, arguments)])
    return int(status.value.code or 0)


def test_the_command_prints_one_object(tmp_path, tiny, capsys):
    (tmp_path / "p.txt").write_text("\n".join(PROMPTS))
    options = [
        "--prompts",
        tmp_path / "p.txt",
        "--target",
        tiny,
        "--draft",
        "exit:1",
        "--tokens",
        5,
        "--seed",
        4,
    ]
    options += ["--temperature", 0.8, "--top-k", 7, "--draft-temperature", 1.2, "--draft-min-p", 0.05]
    assert run(*options, "--out", tmp_path / "a", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    found = read(tmp_path / "a")
    assert printed["rows"] == printed["new_rows"] == found.rows and printed["vocab"] == 32
    assert printed["overlap"] == found.column("overlap").mean()
    capture(tmp_path / "p.txt", tmp_path / "b", target=tiny, draft="exit:1", tokens=5, seed=4,
            target_law=Processing(0.8, top_k=7), draft_law=Processing(1.2, min_p=0.05))  # fmt: skip
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert run(*options, "--out", tmp_path / "a") == 0
    printed = capsys.readouterr().out
    assert "0 new" in printed and f"{found.column('overlap').mean():.4f}" in printed


def test_the_command_without_rows_prints_null(tmp_path, tiny, capsys):
    (tmp_path / "p.txt").write_text("w1")
    options = [
        "--prompts",
        tmp_path / "p.txt",
        "--out",
        tmp_path / "out",
        "--target",
        tiny,
        "--draft",
        "exit:1",
    ]
    assert run(*options, "--positions", "prompt", "--no-chat", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["rows"], printed["prompts"], printed["overlap"]) == (0, 1, None)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--tokens", "0"], "tokens must be at least 1"),
        (["--tokens", "many"], "--tokens"),
        (["--prompts", "absent.txt"], "cannot read prompts from absent.txt: No such file"),
        (["--positions", "all"], "got 'all'"),
        (["--target", "absent"], "no model in 'absent'"),
        (["--dtype", "int8"], "dtype must be one of float32"),
        (["--temperature", "nan"], "temperature"),
    ],
)
def test_the_command_on_bad_input_says_one_sentence(tmp_path, tiny, capsys, arguments, named):
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    options: dict[str, Any] = {
        "--prompts": DEMO_PROMPTS,
        "--target": tiny,
        "--draft": "exit:1",
        "--out": tmp_path / "out",
    } | given
    assert run(*(item for pair in options.items() for item in pair), "--json") == 2
    printed = capsys.readouterr()
    assert printed.out == "" and named in printed.err and len(printed.err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_the_default_pair(tmp_path, default_model):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    program = "from ot_spec.cli import main; main()"
    command = [sys.executable, "-W", "error", "-c", program, "capture", "--out", str(tmp_path), "--json"]
    done = subprocess.run(
        [*command, "--draft", "exit:3", "--tokens", "6", "--limit", "2"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    found = read(tmp_path)
    assert (printed["rows"], printed["vocab"], found.rows) == (12, 49_152, 12)
    short = load()
    short.model.model.layers = short.model.model.layers[:27]
    short.model.config.num_hidden_layers = 27
    whole = load()
    for _, context, _, target_row, draft_row in rows(tmp_path)[::5]:
        np.testing.assert_allclose(target_row, from_logits(logits_at(whole, context)), atol=1e-4)
        np.testing.assert_allclose(draft_row, from_logits(logits_at(short, context)), atol=1e-4)
