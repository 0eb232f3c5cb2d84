"""The feature net: what it is trained as is what it drafts with, alone or in a batch, along texts and in trees."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from gpu_decoder.drafters import FeatureDrafter, get_drafter
from gpu_decoder.drafters.feature_net import FeatureNet, is_feature_net, load_feature_net, new_net
from gpu_decoder.models import Reading, fingerprint, layers_numbered, leaving, load
from gpu_decoder.tree_slots import Block
from gpu_decoder.verify import TreeReader
from ot_spec.errors import ModelError, OptionError, OtSpecError, VocabularyError
from tests.decoder.toys import feature_net, toy
from tests.distil.toys import wide

VOCAB, KNOWN = 11, (9, 2, 0, 5, 6, 3)
TARGET = toy(3, VOCAB, layers=3)
SHAPES = [(1, 384), (2, 384), (1, 4), (2, 4), (3, 3)]
CLOSE: Any = {"rtol": 1e-9, "atol": 1e-10}


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def net_of(layers: int = 1, window: int = 384, **shape: Any) -> FeatureNet:
    """A net whose rotary angles are of float64, so that a pair's place in the cache shows in the last bits only."""
    net: Any = feature_net(TARGET, KNOWN, seed=8, layers=layers, window=window, **shape)
    net.turns = lambda positions: turns(net, positions)
    return net


def turns(net: FeatureNet, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    half = net.config.size // 2
    angles = positions[..., None].double() * net.config.theta ** (-torch.arange(half).double() / half)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def text_of(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(VOCAB, size=n).tolist()


def features(text: Sequence[int], tap: Sequence[int]) -> torch.Tensor:
    """(n, taps * width) outputs of the layers in the model's own forward pass."""
    with leaving(*layers_numbered(TARGET, tap)) as hidden:
        TARGET.model(torch.tensor([text]), use_cache=False)
    return torch.cat(hidden, -1)[0]


def unrolled(net: FeatureNet, text: Sequence[int], steps: int) -> list[torch.Tensor]:
    """Logits (n - 1, V) of each step, the law after token m + 1 in row m."""
    given = torch.tensor([text]), features(text, net.config.tap)[None]
    return [net.wide(net.logits(states[0])) for states in net.unrolled(*given, steps)]


class Drafting:
    """A target and a session of a net, as a decoder drives them."""

    def __init__(self, net: FeatureNet, texts: Sequence[Sequence[int]]):
        self.net, self.texts = net, [list(text) for text in texts]
        self.reader = TreeReader(TARGET, len(texts), net.config.tap)
        self.reader.prefill([text[:-1] for text in texts])
        self.session = FeatureDrafter(net, "net").start(self.reader, len(texts))

    def begin(self) -> list[torch.Tensor]:
        return [wide(scores, VOCAB) for scores in self.session.begin(self.texts)]

    def extend(self, blocks: Sequence[Block]) -> list[torch.Tensor]:
        return [wide(scores, VOCAB) for scores in self.session.extend(blocks)]

    def accept(self, blocks: Sequence[Block], paths: Sequence[Sequence[int]], then: Sequence[int]) -> None:
        """The target reads each text's last token with the tree after it, keeps a path of it and adds a token."""
        self.session.end()
        whole = [
            Block([text[-1], *block.tokens], [-1, *(parent + 1 for parent in block.parents)])
            for text, block in zip(self.texts, blocks, strict=True)
        ]
        self.reader.read(whole)
        self.reader.keep([[0, *(place + 1 for place in path)] for path in paths])
        for text, block, path, token in zip(self.texts, blocks, paths, then, strict=True):
            text += [*(block.tokens[place] for place in path), token]

    def select(self, rows: list[int]) -> None:
        self.reader.select(rows)
        self.session.select(rows)
        self.texts = [self.texts[row] for row in rows]


def after(net: FeatureNet, text: Sequence[int], path: Sequence[int] = ()) -> torch.Tensor:
    """The law's logits (V,) after a text and tokens of the drafter's own, drafted one by one afresh."""
    drafting = Drafting(net, [text])
    [found] = drafting.begin()
    for place, token in enumerate(path):
        [found] = drafting.extend([Block([token], [place - 1])])
    return found[-1]


# ---- training and drafting are the same


@pytest.mark.parametrize(("layers", "window"), SHAPES)
def test_the_first_step_of_training_is_the_follower_and_the_session(layers, window):
    net, text = net_of(layers, window), text_of(14)
    [first] = unrolled(net, text, 1)
    assert torch.isinf(first).sum() == len(first) * (VOCAB - len(KNOWN))
    for cut in range(2, len(text) + 1):
        torch.testing.assert_close(after(net, text[:cut]), first[cut - 2], **CLOSE)
    follower = FeatureDrafter(net, "net").follower(TARGET)
    _, followed = Reading(TARGET, follower).read(text)
    assert followed is not None and followed.shape == (14, VOCAB)
    torch.testing.assert_close(followed[1:], first, **CLOSE)


@pytest.mark.parametrize(("layers", "window"), SHAPES)
def test_later_steps_of_training_are_chains_of_the_session(layers, window):
    net, text = net_of(layers, window), text_of(12, seed=1)
    for step, states in enumerate(unrolled(net, text, 4)[1:], start=2):
        for m in range(step - 1, len(text) - 1):
            cut = m - step + 3
            found = after(net, text[:cut], text[cut : m + 2])
            torch.testing.assert_close(found, states[m], **CLOSE)


def test_a_window_shorter_than_the_steps():
    net, text = net_of(1, 2), text_of(9)
    last = unrolled(net, text, 4)[3]
    torch.testing.assert_close(after(net, text[:5], text[5:8]), last[6], **CLOSE)


@pytest.mark.parametrize("layers", [1, 2])
def test_what_a_window_hides_changes_nothing_and_what_it_shows_does(layers):
    net, text = net_of(layers, 4), text_of(14)
    changed = [features(text, net.config.tap)[None].clone() for _ in range(2)]
    reach = layers * 3 + 1  # pairs behind the last state, itself included
    changed[1][:, 13 - reach - 1] += 1
    tokens = torch.tensor([text])
    first, other = (next(iter(net.unrolled(tokens, given, 1)))[0] for given in changed)
    torch.testing.assert_close(first[-1], other[-1], rtol=0, atol=0)
    assert (first[-2] - other[-2]).abs().max() > 1e-6


def test_rotary_angles():
    net, places = net_of(), torch.arange(40).reshape(2, 20)
    for ours, expected in zip(FeatureNet.turns(net, places), turns(net, places), strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=5e-6)
        assert ours.shape == (2, 20, net.config.size)


def test_positions_matter_by_their_differences_alone():
    net: Any = net_of(2)
    text = torch.tensor([text_of(10)])
    given = features(text[0].tolist(), net.config.tap)[None]
    here = [*net.unrolled(text, given, 3)]
    net.turns = lambda positions: turns(net, positions + 1000)
    for states, moved in zip(here, net.unrolled(text, given, 3), strict=True):
        torch.testing.assert_close(moved, states, **CLOSE)
    net.turns = lambda positions: turns(net, 2 * positions)
    assert (next(net.unrolled(text, given, 1)) - here[0]).abs().max() > 1e-3


@pytest.mark.parametrize("sizes", [(14,), (1, 13), (1, 1, 12), (5, 1, 8), (13, 1)])
def test_a_follower_may_be_told_its_text_piece_by_piece(sizes):
    net, text = net_of(2, 5), text_of(14)
    follower = FeatureDrafter(net, "net").follower(TARGET)
    _, whole = Reading(TARGET, follower).read(text)
    assert whole is not None
    reading, start = Reading(TARGET, follower), 0
    for size in sizes:
        _, piece = reading.read(text[start : start + size])
        torch.testing.assert_close(piece, whole[start : start + size], **CLOSE)
        start += size
    [first] = (Reading(TARGET, follower).read([text[0]])[1],)
    assert first is not None
    law = first.softmax(-1)[0]  # nothing precedes it: what can be drafted is equally likely
    assert law.tolist() == [pytest.approx(1 / len(KNOWN)) if i in KNOWN else 0 for i in range(VOCAB)]
    _, last = Reading(TARGET, follower).read(text, 3)
    torch.testing.assert_close(last, whole[-3:], **CLOSE)


# ---- trees, rows, steps


def random_levels(generator: np.random.Generator) -> list[Block]:
    """A tree of two levels, of 1 to 3 nodes each; those of the second follow any before them."""
    sizes = generator.integers(1, 4, size=2)
    tokens = [generator.integers(VOCAB, size=size).tolist() for size in sizes]
    return [
        Block(tokens[0], [-1] * sizes[0]),
        Block(tokens[1], generator.integers(-1, sizes[0], size=sizes[1]).tolist()),
    ]


def path_to(block: Block, place: int) -> list[int]:
    path = []
    while place >= 0:
        path.append(place)
        place = block.parents[place]
    return path[::-1]


@pytest.mark.parametrize(("layers", "window"), SHAPES)
def test_branches_of_a_tree_do_not_see_each_other(layers, window):
    net, text = net_of(layers, window), text_of(9)
    block = Block([2, 4, 2, 7, 7, 0, 5, 5], [-1, -1, 0, 0, 1, 2, 4, 5])
    drafting = Drafting(net, [text])
    drafting.begin()
    levels = [slice(*ends) for ends in pairwise((0, 2, 5, 7, 8))]
    found = torch.cat([drafting.extend([Block(block.tokens[part], block.parents[part])])[0] for part in levels])
    for place in range(len(block.tokens)):
        path = [block.tokens[i] for i in path_to(block, place)]
        torch.testing.assert_close(found[place], after(net, text, path), **CLOSE)


@pytest.mark.parametrize(("layers", "window"), SHAPES)
def test_rows_of_a_batch_over_many_steps_are_each_as_if_alone_and_new(layers, window):
    """Drafts rejected at once, in part and not at all, texts of one token, texts leaving the batch."""
    generator = np.random.default_rng(layers * 100 + window)
    net = net_of(layers, window)
    drafting = Drafting(net, [text_of(n, seed=n) for n in (7, 1, 3, 12)])
    kept: set[int] = set()
    for step in range(6):
        found = drafting.begin()
        for text, one in zip(drafting.texts, found, strict=True):
            if len(text) > 1:
                torch.testing.assert_close(one[0], after(net, text), **CLOSE)
        levels = [random_levels(generator) for _ in drafting.texts]
        if step == 0:
            levels[1] = [Block([], []), Block([], [])]  # nothing is proposed after a text of one token
        read = [drafting.extend([row[level] for row in levels]) for level in (0, 1)]
        blocks = [Block([*a.tokens, *b.tokens], [*a.parents, *b.parents]) for a, b in levels]
        for text, block, one in zip(drafting.texts, blocks, zip(*read, strict=True), strict=True):
            scores = torch.cat(one) if block.tokens else []
            assert len(scores) == len(block.tokens)
            for place in range(len(block.tokens)):
                path = [block.tokens[i] for i in path_to(block, place)]
                torch.testing.assert_close(scores[place], after(net, text, path), **CLOSE)
        paths = [path_to(block, int(generator.integers(-1, len(block.tokens)))) for block in blocks]
        kept |= {len(path) for path in paths}
        drafting.accept(blocks, paths, generator.integers(VOCAB, size=len(blocks)).tolist())
        if step in (1, 3):
            drafting.select([2, 0, 1] if step == 1 else [1, 2])
    assert {0, 1, 2} <= kept and len(drafting.texts) == 2


def test_a_text_of_one_token_proposes_nothing_and_goes_on():
    net = net_of()
    drafting = Drafting(net, [[4], [1, 2, 3]])
    alone, other = drafting.session.begin(drafting.texts)
    assert alone.proposes is not None and not alone.proposes.any() and other.proposes is None
    drafting.accept([Block([], []), Block([], [])], [[], []], [5, 6])
    found = drafting.begin()
    torch.testing.assert_close(found[0][0], after(net, [4, 5]), **CLOSE)
    torch.testing.assert_close(found[0][0], unrolled(net, [4, 5], 1)[0][0], **CLOSE)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_of_a_long_prompt_only_what_the_windows_reach_is_read(layers):
    net, text = net_of(layers, 5), text_of(600)
    drafting = Drafting(net, [text, text_of(4)])
    [first] = unrolled(net, text, 1)
    session: Any = drafting.session
    torch.testing.assert_close(drafting.begin()[0][0], first[-1], **CLOSE)
    assert session._pairs.slots.lengths[0] == layers * 4 + 1
    for token in text_of(8, seed=3):  # and where it goes on
        drafting.accept([Block([], []), Block([], [])], [[], []], [token, token])
        found = drafting.begin()[0][0]
        torch.testing.assert_close(found, unrolled(net, drafting.texts[0], 1)[0][-1], **CLOSE)


def test_tokens_outside_the_vocabulary_have_law_0():
    net = net_of()
    for found in (after(net, text_of(5)), after(net, text_of(5), [1, 4])):
        law = found.softmax(-1)
        assert [i for i in range(VOCAB) if law[i] > 0] == sorted(KNOWN)


def test_a_net_without_a_head_has_rows_of_the_targets():
    net = net_of(head=False)
    assert not any("head" in name for name, _ in net.named_parameters())
    torch.testing.assert_close(net.rows, TARGET.model.lm_head.weight[list(KNOWN)])


def test_rows_of_fewer_entries():
    """The first tokens have whole rows, the others rows by a shared map; trained as drafted, stored and loaded."""
    net, text = net_of(full=2, rank=3), text_of(9)
    assert net.tail is not None and net.rows.shape == (2, 16)
    states = torch.randn(5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    down, up = net.tail.parameters()
    y = net.norm(states)
    expected = torch.cat((y @ net.rows.T, y @ down.T @ up.T), -1)
    torch.testing.assert_close(net.logits(states), expected, **CLOSE)
    torch.testing.assert_close(net.wide(expected)[:, list(KNOWN)], expected, rtol=0, atol=0)
    first, second = unrolled(net, text, 2)
    torch.testing.assert_close(after(net, text), first[-1], **CLOSE)
    torch.testing.assert_close(after(net, text[:-1], text[-1:]), second[-1], **CLOSE)
    net = net_of(full=2, rank=3, head=False)
    torch.testing.assert_close(net.rows, TARGET.model.lm_head.weight[[9, 2]])


def test_rows_of_fewer_entries_begin_nearest_to_the_targets():
    whole = TARGET.model.lm_head.weight[list(KNOWN[2:])].float()
    for rank, least in ((2, torch.linalg.svdvals(whole)[2:].square().sum()), (4, 0.0), (7, 0.0)):
        net = new_net(TARGET, KNOWN, (1, 3), full=2, rank=rank)
        assert net.tail is not None
        down, up = net.tail.parameters()
        off = (up @ down - whole).square().sum()
        torch.testing.assert_close(off, torch.as_tensor(least).to(off), rtol=1e-4, atol=1e-6)


def test_a_net_made_before_there_were_two_kinds_of_rows_is_loaded(tiny, folder):
    change_config(folder, full="drop", rank="drop")
    assert load_feature_net(folder, load(tiny)).config.rank == 0


def test_a_new_net_begins_with_the_targets_head_and_norm():
    net = new_net(TARGET, KNOWN, (1, 3))
    torch.testing.assert_close(net.rows.double(), TARGET.model.lm_head.weight[list(KNOWN)], rtol=1e-6, atol=1e-6)
    assert net.config.tap == (1, 3) and net.config.width == 16 and net.fuse.weight.shape == (16, 32)


# ---- folders


@pytest.fixture
def folder(tmp_path, tiny) -> Path:
    target = load(tiny)
    torch.manual_seed(0)
    net = new_net(target, (1, 2, 4, 8, 16), (1, 4), layers=2)
    net.save(tmp_path / "net", target="tiny", tokenizer=fingerprint(target.tokenizer))
    return tmp_path / "net"


def test_a_net_is_loaded_as_it_was_saved(tiny, folder):
    target = load(tiny, "float64")
    torch.manual_seed(0)
    made = new_net(target, (1, 2, 4, 8, 16), (1, 4), layers=2)
    found = load_feature_net(folder, target)
    assert is_feature_net(folder) and not is_feature_net(tiny) and not is_feature_net(folder / "no")
    assert found.config == made.config and found.vocabulary.tolist() == [1, 2, 4, 8, 16]
    ours, theirs = dict(made.named_parameters()), dict(found.named_parameters())
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        assert weight.dtype == torch.float64 and not weight.requires_grad
        torch.testing.assert_close(weight, ours[name].to(torch.bfloat16).double(), rtol=0, atol=0)
    found.save(folder.parent / "again", target="tiny", tokenizer=fingerprint(target.tokenizer))
    for name in ("config.json", "model.safetensors"):
        assert (folder.parent / "again" / name).read_bytes() == (folder / name).read_bytes()
    drafter = get_drafter(folder, target)
    assert isinstance(drafter, FeatureDrafter) and drafter.tap == (1, 4) and drafter.name == str(folder)


def change_config(folder: Path, **changed: Any) -> None:
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({k: v for k, v in {**about, **changed}.items() if v != "drop"}))


def change_weights(folder: Path, **changed: Any) -> None:
    weights = load_file(folder / "model.safetensors") | changed
    save_file({k: v for k, v in weights.items() if v is not None}, folder / "model.safetensors")


FAULTS: dict[str, tuple[Any, type[OtSpecError], str]] = {
    "missing weight": (lambda f: change_weights(f, **{"norm.weight": None}), ModelError, "norm.weight"),
    "extra weight": (lambda f: change_weights(f, extra=torch.zeros(1)), ModelError, "extra"),
    "no vocabulary": (lambda f: change_weights(f, vocabulary=None), ModelError, "vocabulary"),
    "other shape": (lambda f: change_weights(f, **{"norm.weight": torch.ones(3)}), ModelError, "norm.weight"),
    "broken json": (lambda f: (f / "config.json").write_text("{"), ModelError, "cannot load the drafter"),
    "no object": (lambda f: (f / "config.json").write_text("[]"), ModelError, "cannot load the drafter"),
    "missing field": (lambda f: change_config(f, heads="drop"), ModelError, "heads"),
    "no whole rows": (lambda f: change_config(f, rank=2), ModelError, "full is 0 of 5 tokens"),
    "whole rows alone": (lambda f: change_config(f, full=5, rank=2), ModelError, "full is 5 of 5 tokens"),
    "rank below 0": (lambda f: change_config(f, rank=-1), ModelError, "rank is -1, not an integer from 0"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), ModelError, "model.safetensors"),
    "cut weights": (lambda f: (f / "model.safetensors").write_bytes(b"x" * 40), ModelError, "cannot load the drafter"),
    "other tokenizer": (lambda f: change_config(f, tokenizer="0"), VocabularyError, "another tokenizer"),
    "other vocabulary": (lambda f: change_config(f, vocab=33), VocabularyError, "33 tokens; .* has 32"),
    "too few layers": (lambda f: change_config(f, tap=[1, 5]), ModelError, r"layers \[1, 5\] .* has 4 layers"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_folder_that_is_no_drafter_of_this_target_is_refused(tiny, folder, fault):
    spoil, kind, said = FAULTS[fault]
    spoil(folder)
    with pytest.raises(kind, match=said) as caught:
        FeatureDrafter.load(folder, load(tiny))
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value) or fault in ("other vocabulary", "too few layers")


def test_a_target_of_another_width_is_refused(tmp_path, tiny):
    target, wide = load(tiny), toy(0, 32, layers=4, hidden_size=32, dtype=torch.float32)
    new_net(wide, (1, 2, 3), (1, 4)).save(tmp_path / "net")
    with pytest.raises(ModelError, match=r"width 32; .* has 4 layers of width 16") as caught:
        FeatureDrafter.load(tmp_path / "net", target)
    assert "\n" not in str(caught.value)


def test_a_layer_the_target_does_not_have_is_refused(tiny):
    with pytest.raises(OptionError, match="layers 1 to 4, no layer 5"):
        layers_numbered(load(tiny), (1, 5))


def test_a_damaged_folder_is_refused_by_its_name_too(tiny, folder):
    change_weights(folder, **{"norm.weight": None})
    with pytest.raises(ModelError, match=r"norm\.weight"):
        get_drafter(str(folder), load(tiny))
