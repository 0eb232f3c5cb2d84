"""What a stranger does to the decoder: devices, broken drafters, inputs of any kind."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

from gpu_decoder import Decoder
from gpu_decoder.drafters import FeatureDrafter, get_drafter
from gpu_decoder.drafters.feature_net import FeatureConfig
from gpu_decoder.drafters.model import VOCABULARY
from gpu_decoder.tree_slots import Block
from gpu_decoder.verify import TreeReader
from ot_spec.errors import LawError, ModelError, OptionError, PromptError
from tests.decoder import toys

WIDTH = 16
SHAPE = [field.name for field in fields(FeatureConfig)]


@pytest.fixture(scope="module")
def target() -> Any:
    return toys.toy(0, 8, layers=3, dtype=torch.float32)


# ---- devices


def test_on_a_device_that_is_none():
    """In a process of its own: a device, once there, is there for all of it."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(Path(__file__).with_name("pretended.py")),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


# ---- what a call is given


@pytest.mark.parametrize("prompts", [[["a"]], [1, 2, 3], [None], None, [[1.7]], [[1, None]]])
def test_prompts_that_are_none(target, prompts):
    with pytest.raises(PromptError, match="prompts are texts or lists of token ids"):
        Decoder(target, "none").generate(prompts, 3)


def test_prompts_are_arrays_and_tensors_too(target):
    kinds: tuple[Any, ...] = [[1, 2]], np.array([[1, 2]]), torch.tensor([[1, 2]])
    made = [Decoder(target, "none").generate(given, 3)[0].tokens for given in kinds]
    assert made[0] == made[1] == made[2]


@pytest.mark.parametrize("key", [-1, 2**128, "a", 1.5, True, None])
def test_keys_that_are_none(target, key):
    with pytest.raises(OptionError, match="a key is an integer of 0 to"):
        Decoder(target, "none").generate([[1]], 3, keys=[key])


def test_a_key_of_numpy_is_a_key(target):
    keys: tuple[Any, ...] = 5, np.int64(5)
    made = [Decoder(target, "none").generate([[1]], 9, keys=[key])[0].tokens for key in keys]
    assert made[0] == made[1]


def test_a_seed_past_any_key(target):
    with pytest.raises(OptionError, match="seed must be below"):
        Decoder(target, "none").generate([[1]], 3, seed=10**70)


def test_a_temperature_for_each_row_is_refused(target):
    with pytest.raises(ValueError, match="temperature of shape"):
        Decoder(target, "none").generate([[1]], 3, temperature=np.array([1.0, 2.0]))  # pyright: ignore


# ---- models


def test_a_target_that_finds_all_tokens_alike():
    uniform = toys.toy(0, 8, dtype=torch.float32)
    uniform.model.lm_head.weight.zero_()
    assert len(Decoder(uniform, "none").generate([[1, 2]], 4)[0].tokens) == 4


def test_a_target_of_nan():
    broken = toys.toy(0, 8, dtype=torch.float32)
    broken.model.lm_head.weight[3] = float("nan")
    with pytest.raises(ModelError, match="logits that are NaN or infinite"):
        Decoder(broken, "none").generate([[1, 2]], 4)


def test_a_draft_of_fewer_positions_than_the_text():
    config = GPT2Config(
        vocab_size=8, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=None, eos_token_id=None
    )
    decoder = Decoder(toys.toy(0, 8), toys.random_model(GPT2LMHeadModel, config, name="short"))
    assert len(decoder.generate([[1, 2, 3]], 6)[0].tokens) == 6
    with pytest.raises(PromptError, match="the drafter 'short' reads 8"):
        decoder.generate([[1, 2, 3]], 7)


@pytest.mark.parametrize("ids", [[1, 1], [1.5], "abc", {"a": 1}, [[1]], [[1], [2, 3]], [], [-1], [8], [True], 3, ["a"]])
def test_a_draft_vocabulary_that_is_none(target, ids):
    draft = toys.toy(1, 8, dtype=torch.float32)
    setattr(draft.model.config, VOCABULARY, ids)
    with pytest.raises(ModelError, match="should be a list of different ids 0 to 7"):
        Decoder(target, draft)


@pytest.mark.parametrize("seed", range(6))
def test_a_draft_vocabulary_of_one_token_in_half_precision(target, seed):
    """Its few logits have no spread to measure a difference by."""
    draft = toys.drafting(toys.toy(43, 8, dtype=torch.bfloat16), [seed])
    assert len(Decoder(target, draft, candidates=1).generate([[1, 2]], 4)[0].tokens) == 4


class Shuffled:
    """A drafter whose logits come in another order of tokens: in tenths, so that some are alike."""

    name = "shuffled"

    def __init__(self, drafter, order):
        self.drafter, self.order = drafter, order

    def start(self, target, rows):
        session = self.drafter.start(target, rows)
        begin, extend = session.begin, session.extend
        session.begin = lambda texts: [self._moved(scores) for scores in begin(texts)]
        session.extend = lambda blocks: [self._moved(scores) for scores in extend(blocks)]
        return session

    def _moved(self, scores):
        logits = (scores.logits * 10).round() / 10
        return scores._replace(logits=logits[:, self.order], ids=scores.ids[self.order])


@pytest.mark.parametrize(
    "selector", ["optimal", "traversal", "rrs_without_replacement", "top_then_sample", "hub", "point_mass"]
)
def test_the_order_in_which_tokens_are_drafted_does_not_matter(target, selector):
    own = get_drafter(toys.drafting(toys.toy(1, 8, dtype=torch.float32), [0, 2, 3, 5, 7]), target)
    made = []
    for order in ([0, 1, 2, 3, 4], [3, 0, 4, 2, 1]):
        decoder = Decoder(target, Shuffled(own, order), selector=selector, candidates=2, length=3)
        made.append([row.tokens for row in decoder.generate([[1, 2], [3]], 30, temperature=1.5, ends=frozenset())])
    assert made[0] == made[1]


def test_a_head_inside_another_module_drafts_the_same(target):
    class Head(torch.nn.Linear):
        pass

    made = []
    for kind in (torch.nn.Linear, Head):
        draft = toys.drafting(toys.toy(1, 8, dtype=torch.float32), [0, 2, 5])
        draft.model.lm_head.__class__ = kind
        made.append(Decoder(target, draft).generate([[1, 2]], 9)[0].tokens)
    assert made[0] == made[1]


def test_hidden_states_come_in_the_order_that_is_asked_for(target):
    found = {}
    for tap in ((1, 3), (3, 1), (2, 2)):
        reader = TreeReader(target, 1, tap)
        with torch.inference_mode():
            reader.prefill([[1, 2, 3]])
            reader.read([Block.chain([4, 5])])
            reader.keep([[0, 1]])
            [found[tap]] = reader.taken()
    assert torch.equal(found[1, 3], torch.cat((found[3, 1][:, WIDTH:], found[3, 1][:, :WIDTH]), dim=1))
    assert torch.equal(found[2, 2][:, :WIDTH], found[2, 2][:, WIDTH:])


# ---- folders


@pytest.fixture
def folder(target, tmp_path):
    """folder(config, weights): a feature drafter's folder with entries changed, "gone" for one left out."""
    net = toys.feature_net(target, [0, 2, 3, 5, 7], heads=2, groups=1, size=8, mlp=24)
    net.save(tmp_path, target="toy")

    def change(config: dict[str, Any], weights: dict[str, Any]) -> Path:
        entries: tuple[Any, ...] = (
            ("config.json", json.loads((tmp_path / "config.json").read_text()), config, _write_config),
            ("model.safetensors", load_file(tmp_path / "model.safetensors"), weights, save_file),
        )
        for name, old, new, write in entries:
            write({k: v for k, v in (old | new).items() if not isinstance(v, str) or v != "gone"}, tmp_path / name)
        return tmp_path

    return change


def _write_config(entries: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(entries))


def test_a_good_folder(folder, target):
    assert len(Decoder(target, folder({}, {})).generate([[1, 2, 3], [4]], 5)[0].tokens) == 5


@pytest.mark.parametrize("value", ["x", None, 1.5, 0, -1, True, [], "gone"], ids=str)
@pytest.mark.parametrize(
    "name",
    ["layers", "heads", "groups", "size", "mlp", "window", "width", "vocab", "drafted", "tap", "head", "eps", "theta"],
)
def test_a_shape_that_is_none(folder, target, name, value):
    if (name, value) in (("head", True), ("eps", 1.5), ("theta", 1.5)):
        return
    with pytest.raises(ModelError, match="cannot load the drafter"):
        FeatureDrafter.load(folder({name: value}, {}), target)


@pytest.mark.parametrize(
    "change",
    [{"tap": [0, 1]}, {"tap": [3, 1]}, {"tap": [1, 1]}, {"tap": "13"}, {"tap": [1.0, 3.0]}, {"size": 7}, {"heads": 3},
     {"mlp": 10**12}, {"width": 10**9}, {"theta": float("inf")}, {"eps": float("nan")}],
    ids=str,
)  # fmt: skip
def test_a_shape_that_does_not_fit(folder, target, change):
    with pytest.raises(ModelError, match="cannot load the drafter"):
        FeatureDrafter.load(folder(change, {}), target)


@pytest.mark.parametrize(
    "ids",
    [[0, 0, 3, 5, 7], [-1, 2, 3, 5, 7], [0, 2, 3, 5, 8], [0.5, 2, 3, 5, 7], [[0, 2, 3, 5, 7]], [0, 2, 3], []],
    ids=str,
)
def test_a_vocabulary_that_is_none(folder, target, ids):
    with pytest.raises(ModelError, match="its vocabulary is no"):
        FeatureDrafter.load(folder({}, {"vocabulary": torch.tensor(ids)}), target)


def test_weights_of_nan_name_the_drafter(folder, target):
    there = folder({}, {"fuse.weight": torch.full((WIDTH, 2 * WIDTH), float("nan"))})
    with pytest.raises(LawError, match=r"the drafter .* logit of token 0 is nan"):
        Decoder(target, there).generate([[1, 2, 3]], 4)
