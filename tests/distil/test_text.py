"""The text the target writes: laws and features are those of its own forward pass, tokens are drawn from its laws."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from gpu_decoder.distil import text as text_module
from gpu_decoder.distil.text import Shard, TextSettings, _draw, around_turn, plan, write_shard
from gpu_decoder.models import LanguageModel, encode_chat, load
from gpu_decoder.prompt_file import Prompt
from gpu_decoder.verify import TreeReader
from ot_spec.errors import OptionError

SMALL = TextSettings(
    seed=3, conversations=8, answers=1, begun=0, turn=12, answer=14, rows=8, top=9, tap=(1, 2, 4), lead=7
)
PROMPTS = [
    Prompt(str(i), (" ".join(f"w{(3 * i + j) % 21}" for j in range(n)), "w1")) for i, n in enumerate((1, 2, 9, 4, 20))
]
TURN_ENDS_WITH_ONE_TOKEN = "<s> user {{ messages[0]['content'] }} assistant"
TURN_ENDS_AS_NO_TEXT = "<s> {{ messages[0]['content'] }} w0 assistant </s>"


@pytest.fixture(scope="module")
def model(make_model) -> LanguageModel:
    """One whose texts end now and then."""
    return load(make_model(seed=4), "float64")


def written(model: LanguageModel, settings: TextSettings, shard: Shard, folder: Any) -> dict[str, torch.Tensor]:
    write_shard(model, settings, shard, folder / "shard.safetensors")
    return load_file(folder / "shard.safetensors")


def texts_of(shard: Shard, made: dict[str, torch.Tensor], settings: TextSettings) -> list[tuple[list[int], int, int]]:
    """Each whole text, where what is recorded of it begins, and where its answer does."""
    found = []
    for opening, (a, b), answer in zip(
        shard.openings, pairwise(made["first"].tolist()), made["answer"].tolist(), strict=True
    ):
        begin = max(0, len(opening) - settings.lead)
        found.append((list(opening[:begin]) + made["tokens"][a:b].tolist(), begin, begin + answer))
    return found


def plain(model: LanguageModel, tokens: list[int]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Logits (n, V) and hidden states after the embedding and each layer, in float64, of one forward pass."""
    with torch.no_grad():
        out = model.model(torch.tensor([tokens]), use_cache=False, output_hidden_states=True)
    return out.logits[0], [hidden[0] for hidden in out.hidden_states]


def check_records(model: LanguageModel, settings: TextSettings, shard: Shard, made: dict[str, torch.Tensor]) -> None:
    """Laws and features of every token are those of a plain reading of its text."""
    assert len(made["first"]) == len(shard.openings) + 1
    assert len(made["tokens"]) == len(made["ids"]) == len(made["logs"]) == len(made["features"]) == made["first"][-1]
    layers = model.model.config.num_hidden_layers
    for (text, begin, _), (a, b) in zip(texts_of(shard, made, settings), pairwise(made["first"].tolist()), strict=True):
        logits, hidden = plain(model, text)
        laws = logits[begin:].log_softmax(-1)
        top = min(settings.top, model.vocab)
        ids, logs = made["ids"][a:b].long(), made["logs"][a:b].double()
        assert ids.shape == (len(laws), top)
        torch.testing.assert_close(logs, laws.gather(-1, ids), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(logs, laws.topk(top).values, rtol=1e-3, atol=1e-4)
        assert all(len(set(row)) == top for row in ids.tolist())
        features = made["features"][a:b]
        for place, layer in enumerate(settings.tap):
            one = features.chunk(len(settings.tap), -1)[place]
            if layer == layers:  # the library gives the last layer's output after the final norm
                one = model.model.model.norm(one)
            torch.testing.assert_close(one, hidden[layer][begin:], rtol=1e-8, atol=1e-9)


def check_tokens(model: LanguageModel, settings: TextSettings, shard: Shard, made: dict[str, torch.Tensor]) -> None:
    """Every token that the template does not put there is the one that the shard's next coin of its row draws, at the
    temperature of its part; turns and answers end at an end token or at the most tokens."""
    before, after = around_turn(model)
    ends = {*model.stops, *after[:1]}
    coins = np.random.default_rng([settings.seed, shard.number]).random(
        (settings.turn + len(after) + settings.answer + 1, len(shard.openings))
    )
    for place, (text, _, answer) in enumerate(texts_of(shard, made, settings)):
        opening = len(shard.openings[place])

        def drawn(
            position: int, heat: float, place: int = place, text: list[int] = text, opening: int = opening
        ) -> int:
            law = (plain(model, text[:position])[0][-1] / heat).softmax(-1)
            order = law.argsort(descending=True)
            found = (law[order].cumsum(0) <= coins[position - opening, place]).sum()
            return int(order[found])

        if shard.writes_turn:
            assert text[:opening] == before
            turn_end = answer - len(after)
            assert text[turn_end:answer] == after
            turn = text[opening:turn_end]
            assert len(turn) < settings.turn and not set(turn) & ends
            assert turn == [drawn(opening + i, settings.turn_temperature) for i in range(len(turn))]
            if len(turn) < settings.turn - 1:
                assert drawn(turn_end, settings.turn_temperature) in ends
        else:
            assert answer == opening
        said = text[answer:]
        assert len(said) < settings.answer and not set(said) & ends
        assert said == [drawn(answer + i, shard.temperature) for i in range(len(said))]
        if len(said) < settings.answer - 1:
            assert drawn(len(text), shard.temperature) in ends


@pytest.fixture
def selections(monkeypatch) -> list[list[int]]:
    """What rows were gone on with."""
    told: list[list[int]] = []
    select = TreeReader.select
    monkeypatch.setattr(TreeReader, "select", lambda self, rows: (told.append(rows), select(self, rows))[1])
    return told


@pytest.mark.parametrize("chunk", [2048, 24])
@pytest.mark.parametrize("own", [True, False], ids=["own", "given"])
def test_records_are_those_of_a_fresh_reading(tmp_path, monkeypatch, model, selections, own, chunk):
    monkeypatch.setattr(text_module, "CHUNK", chunk)
    settings = replace(SMALL, temperatures=(1.1,), turn_temperature=0.9)
    if own:
        [shard] = plan(model, settings)
    else:
        settings = replace(settings, conversations=0, answer=40)
        shards = plan(model, settings, PROMPTS)
        openings = 2 * tuple(opening for shard in shards for opening in shard.openings)
        assert len({len(opening) for opening in openings}) == len(PROMPTS)
        shard = Shard(2, openings, False, 1.1)
        assert any(len(opening) > settings.lead for opening in openings)
    made = written(model, settings, shard, tmp_path)
    lengths = made["first"].diff().tolist()
    assert len(set(lengths)) > 2 and len(selections) >= 2  # texts end at different places, and rows were dropped
    check_records(model, settings, shard, made)
    check_tokens(model, settings, shard, made)


def test_temperatures_of_turn_and_answer_are_not_mixed_up(tmp_path, model):
    settings = replace(SMALL, temperatures=(0.05,), turn_temperature=3.0)
    [shard] = plan(model, settings)
    made = written(model, settings, shard, tmp_path)
    check_tokens(model, settings, shard, made)
    greedy = drawn_freely = 0
    for text, _, answer in texts_of(shard, made, settings):
        best = plain(model, text)[0].argmax(-1)[:-1].tolist()
        turn = slice(len(shard.openings[0]), answer - len(around_turn(model)[1]))
        greedy += sum(a == b for a, b in zip(text[answer:], best[answer - 1 :], strict=True))
        drawn_freely += sum(a != b for a, b in zip(text[turn], best[turn.start - 1 : turn.stop - 1], strict=True))
    assert greedy >= 10 and drawn_freely >= 10


@pytest.mark.parametrize("template", [TURN_ENDS_WITH_ONE_TOKEN, TURN_ENDS_AS_NO_TEXT, None])
def test_other_templates_and_none(tmp_path, make_model, template):
    model = load(make_model(seed=4, template=template), "float64")
    before, after = around_turn(model)
    if template is None:
        assert (before, after) == ([1], [])
    else:
        assert len(after) == (1 if template == TURN_ENDS_WITH_ONE_TOKEN else 3)
    settings = replace(SMALL, tap=(2,))
    [shard] = plan(model, settings)
    assert shard.writes_turn == (template is not None)
    made = written(model, settings, shard, tmp_path)
    check_records(model, settings, shard, made)
    check_tokens(model, settings, shard, made)
    assert sum(len(text) - answer for text, _, answer in texts_of(shard, made, settings)) > 8  # it answers


def test_given_prompts_without_a_template_are_read_as_they_stand(make_model):
    model = load(make_model(seed=4, template=None))
    shards = plan(model, replace(SMALL, conversations=0), [Prompt("1", ("w3 w4",))])
    assert [shard.openings for shard in shards] == [((6, 7),)]


def test_a_template_that_changes_the_turn_is_refused(make_model):
    model = load(make_model(template="<s> user {{ messages[0]['content'] | upper | replace('\u241e', 'w1') }} w2"))
    with pytest.raises(OptionError, match="does not put a turn into the text as it stands"):
        around_turn(model)


def test_a_text_without_features_and_laws_of_few_tokens(tmp_path, model):
    settings = replace(SMALL, tap=(), top=256)
    [shard] = plan(model, settings)
    made = written(model, settings, shard, tmp_path)
    assert made["features"].shape == (len(made["tokens"]), 0)
    assert made["ids"].shape[1] == model.vocab
    check_records(model, settings, shard, made)


# ---- the plan


def test_the_plan_holds_every_conversation_and_every_answer_once(model):
    settings = replace(SMALL, conversations=19, answers=3, temperatures=(1.0, 0.6))
    shards = plan(model, settings, PROMPTS)
    assert [shard.number for shard in shards] == list(range(len(shards)))
    assert [shard.temperature for shard in shards] == [(1.0, 0.6)[i % 2] for i in range(len(shards))]
    own = [opening for shard in shards if shard.writes_turn for opening in shard.openings]
    assert own == [tuple(around_turn(model)[0])] * 19
    given = sorted(opening for shard in shards if not shard.writes_turn for opening in shard.openings)
    assert given == sorted([tuple(encode_chat(model, [prompt.turns[0]])) for prompt in PROMPTS] * 3)
    assert all(1 <= len(shard.openings) <= settings.rows for shard in shards)


def test_conversations_begin_as_the_prompts_do_and_are_cut_anew_each_time(model, monkeypatch):
    monkeypatch.setattr(text_module, "BEGUN", 5)
    before, after = around_turn(model)
    prompts = [Prompt(str(i), (" ".join(f"w{(i + j) % 21}" for j in range(3 + i)),)) for i in range(12)]
    prompts.append(Prompt("one", ("w1",)))  # nothing is left of it to be written
    settings = replace(SMALL, conversations=2, answers=1, begun=30)
    shards = plan(model, settings, prompts)
    shorter = plan(model, replace(settings, begun=29), prompts)
    assert shards[: len(shorter)] == shorter  # more rounds leave the text that is there alone
    begun = [o for shard in shards[2:] if shard.writes_turn for o in shard.openings]
    turns = [encode_chat(model, list(prompt.turns))[len(before) : -len(after)] for prompt in prompts[:-1]]
    found = {tuple(turn): set() for turn in turns}
    for opening in begun:
        assert opening[: len(before)] == tuple(before)
        part = opening[len(before) :]
        [whole] = [turn for turn in found if turn[: len(part)] == part and len(part) < len(turn)] or [None]
        assert whole is not None
        found[whole].add(len(part))
    assert len(begun) == 30 * len(turns)
    assert all(cuts == set(range(1, min(5, len(turn) - 1) + 1)) for turn, cuts in found.items())


def test_without_a_template_no_prompt_is_begun(make_model):
    model = load(make_model(seed=4, template=None))
    assert not plan(model, replace(SMALL, conversations=0, answers=0, begun=3), [Prompt("1", ("w3 w4 w5",))])


def test_shards_are_bounded_in_memory(model, monkeypatch):
    monkeypatch.setattr(text_module, "SLOTS", 150)
    settings = replace(SMALL, conversations=9, answers=1, begun=2)
    _, after = around_turn(model)
    written = settings.turn + len(after) + settings.answer
    shards = plan(model, settings, [Prompt(str(i), (" ".join(["w1"] * n),)) for i, n in enumerate((1, 1, 9, 9, 30))])
    for shard in shards:
        longest = max(map(len, shard.openings))
        each = longest + (written if shard.writes_turn else settings.answer)
        assert len(shard.openings) * each <= 150 or len(shard.openings) == 1
    assert max(len(shard.openings) for shard in shards) > 1


# ---- what a shard depends on, and kills


def test_a_shard_depends_on_settings_and_number_alone(tmp_path, model):
    short = replace(SMALL, conversations=4, rows=2)
    shards = plan(model, short)
    assert len(shards) == 2 and shards[0].openings == shards[1].openings
    for shard in shards:
        write_shard(model, short, shard, tmp_path / f"both-{shard.number}")
    write_shard(model, short, shards[1], tmp_path / "alone")
    same, other = (tmp_path / "both-1").read_bytes(), (tmp_path / "both-0").read_bytes()
    assert (tmp_path / "alone").read_bytes() == same
    one_heat = replace(shards[0], temperature=shards[1].temperature)
    write_shard(model, short, one_heat, tmp_path / "first-as-hot")
    assert load_file(tmp_path / "first-as-hot")["tokens"].tolist() != load_file(tmp_path / "alone")["tokens"].tolist()
    more = replace(short, conversations=9)
    write_shard(model, more, plan(model, more)[0], tmp_path / "of-more")
    assert (tmp_path / "of-more").read_bytes() == other
    write_shard(model, replace(short, seed=4), shards[0], tmp_path / "seed")
    assert load_file(tmp_path / "seed")["tokens"].tolist() != load_file(tmp_path / "both-0")["tokens"].tolist()


@pytest.mark.parametrize("killed", ["at once", "while drawing", "while saving"])
def test_a_killed_writer_leaves_no_half_shard(tmp_path, monkeypatch, model, killed):
    [shard] = plan(model, replace(SMALL, conversations=3))
    write_shard(model, SMALL, shard, tmp_path / "whole.safetensors")
    left = {"at once": 0, "while drawing": 5, "while saving": 10**6}[killed]

    def count(tokens: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt

    def half(tensors: Any, file: Any) -> None:
        file.write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if killed == "while saving":
            patch.setattr(text_module, "save_file", half)
        with pytest.raises(KeyboardInterrupt):
            write_shard(model, SMALL, shard, tmp_path / "shard.safetensors", count)
    assert not (tmp_path / "shard.safetensors").exists()
    write_shard(model, SMALL, shard, tmp_path / "shard.safetensors")
    assert (tmp_path / "shard.safetensors").read_bytes() == (tmp_path / "whole.safetensors").read_bytes()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["shard.safetensors", "whole.safetensors"]


# ---- drawing


@pytest.mark.parametrize("vocab", [7, 64, 150])
def test_the_coins_of_a_token_are_as_many_as_its_law_says(vocab):
    """Over an even grid of coins, each token is drawn for the share of it that its law gives."""
    generator = np.random.default_rng(vocab)
    grid = 20_000
    coins = (np.arange(grid) + 0.5) / grid
    rows = torch.from_numpy(generator.normal(size=(3, vocab)))
    heats = torch.tensor([[0.3], [1.0], [4.0]], dtype=torch.float64)  # at 4 much lies past the likeliest 64
    for row, heat in zip(rows, heats, strict=True):
        drawn = _draw(row.expand(grid, -1), coins, heat.expand(grid, 1))
        shares = np.bincount(drawn, minlength=vocab) / grid
        np.testing.assert_allclose(shares, (row / heat).softmax(-1).numpy(), atol=1.01 / grid, rtol=0)
    together = _draw(rows[[0, 1, 2] * 100], coins[:300], heats[[0, 1, 2] * 100])
    alone = [_draw(rows[i % 3][None], coins[i : i + 1], heats[i % 3][None])[0] for i in range(300)]
    assert together == alone


def test_a_coin_past_the_rounded_total_draws_a_token_that_has_a_law():
    logits = torch.full((1, 40), -torch.inf)
    logits[0, [5, 9]] = torch.tensor([0.3, 0.1])
    coin = np.array([np.nextafter(1.0, 0.0)])
    assert _draw(logits, coin, torch.ones(1, 1))[0] in (5, 9)
    assert _draw(torch.nn.functional.pad(logits, (0, 100), value=-torch.inf), coin, torch.ones(1, 1))[0] in (5, 9)
