"""The written text as training reads it: every piece once an epoch, padding never counted."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from gpu_decoder.distil.corpus import Corpus, Piece, draft_vocabulary
from gpu_decoder.distil.losses import cells, kl
from ot_spec.errors import OptionError
from tests.decoder.toys import toy
from tests.distil.toys import places_of, shard_of, student_of, whole_batch

VOCAB = 12
LENGTHS = ([4, 9, 3, 17, 6], [5, 1, 8, 8, 30])


@pytest.fixture
def shards(tmp_path) -> list[dict[str, torch.Tensor]]:
    return [shard_of(tmp_path / f"{i}.safetensors", lengths, seed=i) for i, lengths in enumerate(LENGTHS)]


@pytest.fixture
def corpus(tmp_path, shards) -> Corpus:
    return Corpus([tmp_path / f"{i}.safetensors" for i in range(len(shards))])


def test_pieces_are_the_conversations_that_are_long_enough(corpus):
    expected = [
        Piece(number, start, end)
        for number, lengths in enumerate(LENGTHS)
        for start, end in pairwise(np.cumsum([0, *lengths]).tolist())
        if end - start >= 4
    ]
    assert corpus.pieces == expected and len(expected) == 8
    assert corpus.tokens() == sum(n for lengths in LENGTHS for n in lengths if n >= 4)


def test_nothing_to_learn_from(tmp_path):
    shard_of(tmp_path / "short.safetensors", [3, 2])
    with pytest.raises(OptionError, match="the written text holds nothing to learn from"):
        Corpus([tmp_path / "short.safetensors"])


@pytest.mark.parametrize("tokens", [16, 30, 1000])
def test_an_epoch_visits_every_piece_once(corpus, tokens):
    for epoch in range(3):
        batches = corpus.batches(5, epoch, tokens)
        assert Counter(piece for batch in batches for piece in batch) == Counter(corpus.pieces)
        for batch in batches:
            assert batch and (len(batch) == 1 or len(batch) * max(p.end - p.start for p in batch) <= tokens)


def test_many_pieces_are_visited_once_too(tmp_path):
    shard_of(tmp_path / "many.safetensors", [4 + i % 5 for i in range(2600)], width=1)
    corpus = Corpus([tmp_path / "many.safetensors"])
    batches = corpus.batches(0, 0, 64)
    assert Counter(piece for batch in batches for piece in batch) == Counter(corpus.pieces)
    spread = [max(p.end - p.start for p in batch) - min(p.end - p.start for p in batch) for batch in batches]
    assert np.mean(spread) < 0.2  # those of one length together, while the order of batches is mixed
    assert len({batch[0].end - batch[0].start for batch in batches[:20]}) > 1


def test_batches_depend_on_seed_and_epoch_alone(corpus, tmp_path):
    first = corpus.batches(1, 0, 30)
    corpus.batches(1, 1, 30)
    np.random.default_rng(0).random(5)
    assert (
        corpus.batches(1, 0, 30)
        == first
        == Corpus([tmp_path / "0.safetensors", tmp_path / "1.safetensors"]).batches(1, 0, 30)
    )
    assert corpus.batches(1, 1, 30) != first and corpus.batches(2, 0, 30) != first


def test_a_batch_is_what_the_shards_hold(corpus, shards):
    places = places_of([0, 2, 3, 7, 11], VOCAB)
    batch = whole_batch(corpus, places)
    assert batch.tokens.shape == (8, 30) and batch.features.shape == (8, 30, 3) and batch.ids.shape == (8, 30, 5)
    for row, piece in enumerate(corpus.pieces):
        here, n = slice(piece.start, piece.end), piece.end - piece.start
        shard = shards[piece.shard]
        assert batch.counts[row].tolist() == [True] * n + [False] * (30 - n)
        torch.testing.assert_close(batch.tokens[row, :n], shard["tokens"][here].long())
        torch.testing.assert_close(batch.features[row, :n], shard["features"][here])
        torch.testing.assert_close(batch.probs[row, :n], shard["logs"][here].float().exp())
        known = [
            [[0, 2, 3, 7, 11].index(i) if i in (0, 2, 3, 7, 11) else -1 for i in ids] for ids in shard["ids"][here]
        ]
        assert batch.ids[row, :n].tolist() == known


@pytest.mark.parametrize("shape", ["feature", "llama"])
def test_padding_is_not_counted(tmp_path, shape):
    """A loss over a padded batch is the sum over its texts, each alone."""
    target = toy(0, VOCAB, layers=2, dtype=torch.float32)
    shard_of(tmp_path / "0.safetensors", [4, 9, 17], width=32)
    corpus, vocabulary = Corpus([tmp_path / "0.safetensors"]), [0, 2, 3, 7, 11]
    places, student = places_of(vocabulary, VOCAB), student_of(shape, target, vocabulary)

    def sums(pieces: Any) -> list[tuple[int, float]]:
        batch = corpus.batch(pieces, places)
        made = [
            kl(cells(student.head(states), batch.ids[where], batch.probs[where]))
            for states, where in student.states(batch, 3)
        ]
        return [(len(losses), float(losses.detach().sum())) for losses in made]

    together, alone = sums(corpus.pieces), [sums([piece]) for piece in corpus.pieces]
    first = 1 if shape == "feature" else 0  # a feature net says nothing before its first pair
    assert [count for count, _ in together] == [30 - 3 * (first + i) for i in range(3 if shape == "feature" else 1)]
    for step, (count, total) in enumerate(together):
        assert count == sum(one[step][0] for one in alone)
        assert total == pytest.approx(sum(one[step][1] for one in alone), rel=1e-5)


def test_masses_are_the_mean_law_over_the_pieces(corpus, shards):
    expected, count = np.zeros(VOCAB), 0
    for piece in corpus.pieces:
        for place in range(piece.start, piece.end):
            for i, log in zip(shards[piece.shard]["ids"][place], shards[piece.shard]["logs"][place], strict=True):
                expected[int(i)] += np.exp(float(log))
            count += 1
    np.testing.assert_allclose(corpus.masses(VOCAB), expected / count, rtol=1e-5)


@given(
    st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.5]), min_size=2, max_size=9).flatmap(
        lambda masses: st.tuples(
            st.just(masses),
            st.integers(2, len(masses)),
            st.lists(st.integers(0, len(masses) - 1), max_size=2, unique=True),
        )
    )
)
def test_the_draft_vocabulary_holds_the_likeliest_and_what_it_always_must(case):
    masses, size, always = case
    found = draft_vocabulary(np.array(masses), size, always)
    assert len(found) == size == len(set(found)) and found[: len(always)] == always[:size]
    rest = [masses[i] for i in found[len(always) :]]
    assert rest == sorted(rest, reverse=True)
    out = set(range(len(masses))) - set(found)
    free = set(found) - set(always)
    assert not out or not free or min(masses[i] for i in free) >= max(masses[i] for i in out)


def test_the_files_are_read_as_saved(tmp_path):
    """A text that lies between others keeps its own tokens."""
    made = shard_of(tmp_path / "a.safetensors", [6, 5, 7])
    made["tokens"] = torch.arange(18, dtype=torch.int32) % VOCAB
    save_file(made, tmp_path / "b.safetensors")
    corpus = Corpus([tmp_path / "b.safetensors"])
    batch = corpus.batch([corpus.pieces[1]], torch.arange(VOCAB))
    assert batch.tokens.tolist() == [[6, 7, 8, 9, 10]]
