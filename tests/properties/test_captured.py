"""The parquet files of captured laws: what is written is read, and what is damaged is named."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ot_spec import captured
from ot_spec.captured import CapturedWriter, entropy, overlap, read
from ot_spec.draft_law import IID
from ot_spec.errors import CaptureFileError, LawError, OptionError, ShapeError
from ot_spec.law import from_probs

V = 6


def some_laws(rng: np.random.Generator, rows: int, vocab: int = V) -> np.ndarray:
    laws = rng.dirichlet(np.full(vocab, 0.5), size=rows)
    laws[:, 1] = 0
    return laws / laws.sum(axis=-1, keepdims=True)


def write(folder, prompts=3, rows=4, vocab=V, compact=None, seed=0, **settings) -> None:
    writer = CapturedWriter(folder, vocab, compact, {"temperature": 1.0, **settings})
    for number in range(prompts):
        rng = np.random.default_rng([seed, number])
        with writer.part(number, f"prompt {number}") as part:
            for row in range(rows):
                target, draft = some_laws(rng, 2, vocab)
                part.append(range(row + 1), row % vocab, target, draft)


def contents(folder) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


weights = st.lists(st.integers(0, 1000), min_size=V, max_size=V).filter(any)


@given(
    st.lists(st.lists(st.tuples(weights, weights, st.integers(0, V - 1)), max_size=5), min_size=1, max_size=3),
    st.integers(1, 7),
)
def test_laws_read_back_are_the_laws_recorded(tmp_path_factory, prompts, size):
    folder = tmp_path_factory.mktemp("captured")
    writer = CapturedWriter(folder, V)
    rows = []
    for number, positions in enumerate(prompts):
        with writer.part(number, str(number)) as part:
            for row, (target, draft, token) in enumerate(positions):
                laws = [np.divide(law, sum(law)) for law in (target, draft)]
                part.append(range(row + 2), token, *laws)
                recorded = [from_probs(law.astype(np.float32)) for law in laws]
                rows.append((str(number), row + 2, token, *recorded))
    found = read(folder)
    assert len(found) == len(rows) and found.prompts == [str(number) for number in range(len(prompts))]
    again = [
        (batch.prompt_id, batch.position[i], batch.token[i], batch.target[i], batch.draft[i], batch, i)
        for batch in found.batches(size)
        for i in range(len(batch))
    ]
    assert all(len(batch) <= size for *_, batch, _ in again)
    for (prompt, position, token, target, draft), row in zip(rows, again, strict=True):
        assert row[:3] == (prompt, position, token)
        np.testing.assert_array_equal(row[3], target)
        np.testing.assert_array_equal(row[4], draft)
        batch, i = row[5:]
        np.testing.assert_array_equal(batch.context[i], np.arange(position))
        assert batch.overlap[i] == overlap(target, draft)
    if rows:
        np.testing.assert_array_equal(found.laws()[0], np.array([row[3] for row in rows]))
        np.testing.assert_array_equal(found.laws(2)[1], np.array([row[4] for row in rows[:2]]))
        np.testing.assert_allclose(found.column("overlap"), [overlap(*row[3:]) for row in rows], rtol=1e-15)
        np.testing.assert_allclose(found.column("draft_entropy"), [entropy(row[4]) for row in rows], rtol=1e-15)


@given(weights, weights, st.integers(1, V))
def test_compact_laws_keep_the_largest_masses_and_the_rest(tmp_path_factory, target, draft, order):
    target, draft = (np.divide(law, sum(law)) for law in (target, draft))
    folder = tmp_path_factory.mktemp("captured")
    with CapturedWriter(folder, V, compact=order).part(0, "a") as part:
        part.append([3], 2, target, draft)
        part.append([3, 2], 1, draft, draft)
    [batch] = read(folder).batches()
    assert batch.ids is not None and batch.target_tail is not None and batch.draft_tail is not None

    def largest(law):
        return sorted(range(V), key=lambda i: (-np.float32(law[i]), i))[:order]

    for row, laws in enumerate([(target, draft), (draft, draft)]):
        ids = sorted({*largest(laws[0]), *largest(laws[1])})
        assert [i for i in batch.ids[row] if i >= 0] == ids
        for law, held, tail in zip(
            laws, (batch.target, batch.draft), (batch.target_tail, batch.draft_tail), strict=True
        ):
            np.testing.assert_allclose(held[row, : len(ids)], law[ids], atol=1e-7)
            np.testing.assert_allclose(tail[row], 1 - law[ids].sum(), atol=3e-7)
            assert (held[row, len(ids) :] == 0).all()
    np.testing.assert_allclose(batch.overlap, np.array([overlap(target, draft), 1.0]), atol=3e-7)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_closed_laws_bracket_the_optimal_acceptance(tmp_path, k):
    from solvers import optimal_acceptance

    write(tmp_path, prompts=1, rows=40, vocab=12, compact=2)
    write(tmp_path / "full", prompts=1, rows=40, vocab=12)
    [batch], full = read(tmp_path).batches(40), read(tmp_path / "full").laws()
    exact = optimal_acceptance(*full, IID(k))
    low = optimal_acceptance(*batch.closed("apart"), IID(k))
    high = optimal_acceptance(*batch.closed("together"), IID(k))
    assert (low <= exact + 1e-6).all() and (exact <= high + 1e-6).all()
    assert (high - low).max() > 0.01
    with pytest.raises(OptionError, match="tails"):
        batch.closed("besides")


def test_one_file_of_a_capture_is_a_capture(tmp_path):
    write(tmp_path)
    found = read(tmp_path / "part-00001.parquet")
    assert (found.prompts, found.rows, found.vocab) == (["prompt 1"], 4, V)
    assert found.meta["temperature"] == 1.0


def test_other_readers_find_plain_columns(tmp_path):
    write(tmp_path, prompts=1)
    table = pq.read_table(tmp_path / "part-00000.parquet").to_pandas()
    assert table["target"][0].dtype == np.float32 and table["target"][0].shape == (V,)
    assert list(table["position"]) == [1, 2, 3, 4]


def test_a_capture_continues_and_ends_up_the_same(tmp_path):
    write(tmp_path / "whole")
    write(tmp_path / "killed", prompts=2)
    (tmp_path / "killed" / ".part-00002.parquet.99999").write_bytes(b"PAR1")  # what a killed writer leaves
    writer = CapturedWriter(tmp_path / "killed", V, None, {"temperature": 1.0})
    assert writer.done() == {"prompt 0", "prompt 1"}
    assert read(tmp_path / "killed").rows == 8
    write(tmp_path / "killed")
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_a_failed_part_leaves_nothing(tmp_path):
    writer = CapturedWriter(tmp_path, V)
    with pytest.raises(LawError, match=r"draft: probabilities sum to 1 -0\.5"), writer.part(0, "a") as part:
        part.append([0], 1, np.full(V, 1 / V), np.full(V, 1 / V))
        part.append([0], 1, np.full(V, 1 / V), np.full(V, 0.5 / V))
    assert contents(tmp_path) == {} and writer.done() == set()


def test_a_killed_writer_leaves_whole_parts_only(tmp_path):
    program = f"""
        import os, signal
        import numpy as np
        from ot_spec.captured import CapturedWriter
        writer = CapturedWriter({str(tmp_path)!r}, 6)
        for number in range(3):
            with writer.part(number, str(number)) as part:
                for row in range(70):
                    part.append([1], 1, np.full(6, 1 / 6), np.full(6, 1 / 6))
                    if (number, row) == (1, 65):
                        os.kill(os.getpid(), signal.SIGKILL)
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(contents(tmp_path)) == 2  # one part, and what became of the second
    assert CapturedWriter(tmp_path, 6).done() == {"0"}
    found = read(tmp_path)
    assert found.rows == 70 and sum(map(len, found.batches())) == 70


def test_two_writers_of_one_part(tmp_path):
    first, second = CapturedWriter(tmp_path, V), CapturedWriter(tmp_path, V)
    law = np.full(V, 1 / V)
    with first.part(0, "a") as part:
        part.append([0], 1, law, law)
        (tmp_path / ".part-00000.parquet.other").touch()
    assert list(contents(tmp_path)) == ["part-00000.parquet"]
    with second.part(0, "a") as part:
        part.append([0], 1, law, law)
        for unfinished in tmp_path.glob(".part*"):  # as the first would on finishing now
            unfinished.unlink()
    assert read(tmp_path).rows == 1


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"temperature": 0.5}, r"temperature = 1\.0, and not 0\.5"),
        ({"law": {"top_k": 3}}, r"law\.top_k = None, and not 3"),
        ({"vocab": 7}, "vocab = 6, and not 7"),
        ({"compact": 2}, "compact = None, and not 2"),
    ],
)
def test_other_settings_are_refused_by_name(tmp_path, change, named):
    write(tmp_path)
    with pytest.raises(CaptureFileError, match=rf"part-00000\.parquet was captured with {named}"):
        write(tmp_path, **change)


def test_other_surroundings_are_not_refused(tmp_path):
    with CapturedWriter(tmp_path, V, about={"numpy": "1"}).part(0, "a"):
        pass
    writer = CapturedWriter(tmp_path, V, about={"numpy": "2"})
    assert writer.done() == {"a"} and read(tmp_path).rows == 0 and read(tmp_path).laws()[0].shape == (0, V)


def test_what_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CaptureFileError, match="file is a file"):
        CapturedWriter(tmp_path / "file", V)
    with pytest.raises(OptionError, match="at least 1 token of each law, got 0"):
        CapturedWriter(tmp_path, V, compact=0)
    law = np.full(V, 1 / V)
    with CapturedWriter(tmp_path / "out", V).part(0, "a") as part:
        with pytest.raises(ShapeError, match=r"target: a law of shape \(5,\) in a capture of 6 tokens"):
            part.append([0], 1, np.full(5, 0.2), law)
        with pytest.raises(LawError, match=r"target: probability of token 2 is nan"):
            part.append([0], 1, np.where(np.arange(V) == 2, np.nan, law), law)
        with pytest.raises(LawError, match=r"target: probabilities sum to 1 \+1, "):
            part.append([0], 1, 2 * law, law)  # a softmax of each of two shards


# ---- damaged files


def rewrite(file, change=lambda table: table, meta=lambda meta: meta, **options) -> None:
    """The file again with other content under the same description."""
    table = pq.read_table(file)
    described = dict(table.schema.metadata or {})
    table = change(table)
    pq.write_table(table.replace_schema_metadata(meta(described)), file, **options)


def with_row(name: str, row: int, value):
    def change(table: pa.Table) -> pa.Table:
        values = table[name].to_pylist()
        values[row] = value
        index = table.schema.get_field_index(name)
        return table.set_column(index, table.schema.field(name), pa.array(values, type=table.schema.field(name).type))

    return change


def test_rows_that_are_no_laws_are_named(tmp_path):
    even = [1 / V] * V
    for name, law, named in [
        ("target", [float("nan"), *even[1:]], "target: probability of token 0 is nan"),
        ("draft", [*even[:-1], float("inf")], "draft: probability of token 5 is inf"),
        ("draft", [*even[:4], 0.5, -1 / 6], "draft: probability of token 5 is negative, -0.16"),
        ("target", [2 / V] * V, r"target: probabilities sum to 1 \+1"),
        ("target", None, "target is null"),
    ]:
        write(tmp_path / "{0}", prompts=2, rows=40)  # braces in a path are only that
        rewrite(tmp_path / "{0}" / "part-00001.parquet", with_row(name, 37, law))
        with pytest.raises(CaptureFileError, match=rf"\{{0\}}.part-00001\.parquet, row 37: {named}"):
            list(read(tmp_path / "{0}").batches(16))
    rewrite(tmp_path / "{0}" / "part-00000.parquet", with_row("token", 3, V))
    with pytest.raises(CaptureFileError, match=r"part-00000\.parquet, row 3: token 6 is none of the 6 tokens"):
        read(tmp_path / "{0}").laws()


def test_compact_rows_that_do_not_fit_are_named(tmp_path):
    for name, value, named in [
        ("ids", [2, 2], "ids are not ascending within 0 .. 5"),
        ("ids", [3, 9], "ids are not ascending within 0 .. 5"),
        ("draft", [0.5], "draft has 1 masses for 2 ids"),
        ("target_tail", 0.9, r"target: probabilities sum to 1 \+0\.9"),
    ]:
        write(tmp_path, prompts=1, rows=0, compact=1)
        with CapturedWriter(tmp_path, V, 1, {"temperature": 1.0}).part(0, "prompt 0") as part:
            for _ in range(3):
                part.append([0], 0, np.eye(V)[2], np.eye(V)[4])
        rewrite(tmp_path / "part-00000.parquet", with_row(name, 2, value))
        with pytest.raises(CaptureFileError, match=rf"part-00000\.parquet, row 2: {named}"):
            list(read(tmp_path).batches())
    with pytest.raises(CaptureFileError, match=r"compact laws of order 1: use batches\(\)"):
        read(tmp_path).laws()


def test_paths_without_a_capture(tmp_path):
    with pytest.raises(CaptureFileError, match="absent does not exist"):
        read(tmp_path / "absent")
    with pytest.raises(CaptureFileError, match="holds no captured laws"):
        read(tmp_path)


def test_files_that_are_no_capture(tmp_path):
    file = tmp_path / "part-00000.parquet"
    for content, named in [
        (b"", "cannot be read as parquet"),
        (b"not parquet" * 9, "cannot be read as parquet"),
    ]:
        file.write_bytes(content)
        with pytest.raises(CaptureFileError, match=rf"part-00000\.parquet {named}"):
            read(tmp_path)
    pq.write_table(pa.table({"target": [1.0]}), file)
    with pytest.raises(CaptureFileError, match="parquet without captured laws"):
        read(file)
    file.unlink()
    write(tmp_path, prompts=1)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CaptureFileError, match="cannot be read as parquet"):
        read(tmp_path)
    with pytest.raises(CaptureFileError, match="cannot be read as parquet"):
        CapturedWriter(tmp_path, V, None, {"temperature": 1.0})


def test_files_of_another_format(tmp_path):
    file = tmp_path / "part-00000.parquet"
    write(tmp_path, prompts=1)
    key = b"ot_spec.captured"
    rewrite(file, meta=lambda meta: meta | {key: meta[key].replace(b'"format": 1', b'"format": 2')})
    with pytest.raises(CaptureFileError, match="has format 2, this version reads 1"):
        read(tmp_path)
    write(tmp_path / "b", prompts=1)
    rewrite(
        tmp_path / "b" / file.name,
        meta=lambda meta: meta | {key: meta[key].replace(b'"vocab": 6', b'"vocab": 7')},
    )
    with pytest.raises(CaptureFileError, match=r"column target should be .*\[7\] and is .*\[6\]"):
        read(tmp_path / "b")
    write(tmp_path / "c", prompts=1)
    rewrite(tmp_path / "c" / file.name, lambda table: table.drop_columns(["token"]))
    with pytest.raises(CaptureFileError, match="column token should be int32 and is missing"):
        read(tmp_path / "c")


def test_a_damaged_page_is_noticed(tmp_path):
    file = tmp_path / "part-00000.parquet"
    write(tmp_path, prompts=1, rows=32, vocab=64)
    metadata = pq.read_metadata(file).row_group(0)
    target = next(
        metadata.column(i) for i in range(metadata.num_columns) if "target." in metadata.column(i).path_in_schema
    )
    damaged = bytearray(file.read_bytes())
    damaged[target.data_page_offset + target.total_compressed_size // 2] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(CaptureFileError, match=r"part-00000\.parquet cannot be read to its end"):
        read(tmp_path).laws()


def test_parts_of_two_captures_do_not_mix(tmp_path):
    write(tmp_path, prompts=2)
    write(tmp_path / "other", prompts=2, temperature=0.5)
    (tmp_path / "other" / "part-00001.parquet").replace(tmp_path / "part-00001.parquet")
    with pytest.raises(CaptureFileError, match=r"part-00001.*it has temperature = 0\.5, and not 1\.0"):
        read(tmp_path)


def test_parts_are_read_in_the_order_of_their_numbers(tmp_path):
    writer = CapturedWriter(tmp_path, V)
    for number in (100_000, 3, 99_999):
        with writer.part(number, str(number)):
            pass
    assert read(tmp_path).prompts == ["3", "99999", "100000"]


def test_bad_requests(tmp_path):
    write(tmp_path)
    with pytest.raises(OptionError, match="got size 0"):
        next(read(tmp_path).batches(0))
    with pytest.raises(OptionError, match="'target' is no column"):
        read(tmp_path).column("target")
    assert read(tmp_path).meta["format"] == captured.FORMAT
