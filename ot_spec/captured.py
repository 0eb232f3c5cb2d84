"""Captured laws: the parquet files in which next-token laws of real models are kept.

A capture is a folder of files ``part-00000.parquet``, one a prompt, or any one of these files. A row is a
position:

======================= =================== ===================================================
``prompt_id``           string              the prompt it belongs to
``position``            int32               index of the token in its text
``context``             list of int32       the token ids before it, ``position`` of them
``token``               int32               the token that was taken there
``target``, ``draft``   V float32           both laws as processed, over the full vocabulary
``overlap``             float64             sum min(target, draft)
``target_entropy``      float64             in nats; likewise ``draft_entropy``
======================= =================== ===================================================

The compact form of order m keeps the masses of ``ids`` (list of int32, ascending), the union of the m largest
of both laws, in ``target`` and ``draft`` (lists of float32), and the mass of all other tokens in
``target_tail`` and ``draft_tail`` (float32); ``overlap`` and the entropies are still those of the full laws.

The float32 masses are the record: a reader divides a row by its float64 sum once (`ot_spec.from_probs`). What
the capture was made with stands as JSON in the file's metadata, under ``ot_spec.captured``.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ot_spec.errors import CaptureFileError, LawError, OptionError, ShapeError
from ot_spec.law import from_probs

__all__ = ["Batch", "Captured", "CapturedWriter", "entropy", "overlap", "read"]

FORMAT = 1

_META, _PROMPT = b"ot_spec.captured", b"ot_spec.prompt"
_NOT_COMPARED = ("about",)
_ROWS_PER_GROUP = 32
_UNREADABLE = (pa.ArrowException, OSError, ValueError, KeyError)


def overlap(target: np.ndarray, draft: np.ndarray) -> np.ndarray:
    """sum min(target, draft), the acceptance of one draft token under maximal coupling; (..., V) -> (...).

    >>> overlap(np.array([0.5, 0.5]), np.array([1.0, 0.0]))
    np.float64(0.5)
    """
    return np.minimum(target, draft).sum(axis=-1)


def entropy(law: np.ndarray) -> np.ndarray:
    """- sum law log law in nats, 0 log 0 = 0; (..., V) -> (...).

    >>> entropy(np.array([0.5, 0.5, 0.0])) / np.log(2)
    np.float64(1.0)
    """
    return -(law * np.log(np.where(law > 0, law, 1.0))).sum(axis=-1) + 0.0


def _schema(vocab: int, compact: int | None) -> pa.Schema:
    masses = pa.list_(pa.float32()) if compact else pa.list_(pa.float32(), vocab)
    fields = [
        ("prompt_id", pa.string()),
        ("position", pa.int32()),
        ("context", pa.list_(pa.int32())),
        ("token", pa.int32()),
        *([("ids", pa.list_(pa.int32()))] if compact else []),
        ("target", masses),
        ("draft", masses),
        *([("target_tail", pa.float32()), ("draft_tail", pa.float32())] if compact else []),
        ("overlap", pa.float64()),
        ("target_entropy", pa.float64()),
        ("draft_entropy", pa.float64()),
    ]
    return pa.schema(fields)


# ---- writing


class CapturedWriter:
    """Writes a capture, a prompt at a time, and continues one that was interrupted.

    A part appears under its name when it is complete and not before, so whatever kills the writer, each
    prompt is either `done` or not there. Opening a folder that was made with other settings is refused,
    naming the setting; ``about`` (where it ran, versions) may differ. Two writers in one folder write the
    same parts.

    Parameters
    ----------
    folder: made when the first part is written
    vocab: V, the number of tokens of both laws
    compact: m of the compact form, >= 1, or None for full laws
    settings: what the laws depend on; JSON values
    about: what is worth knowing besides; JSON values
    """

    def __init__(
        self,
        folder: str | Path,
        vocab: int,
        compact: int | None = None,
        settings: Mapping[str, Any] | None = None,
        about: Mapping[str, Any] | None = None,
    ):
        if compact is not None and compact < 1:
            raise OptionError(f"compact keeps at least 1 token of each law, got {compact}")
        self.folder = Path(folder)
        self.vocab, self.compact = vocab, compact
        meta = {
            "format": FORMAT,
            "vocab": vocab,
            "compact": compact,
            **(settings or {}),
            "about": about or {},
        }
        self.meta: dict[str, Any] = json.loads(json.dumps(meta))
        if self.folder.exists() and not self.folder.is_dir():
            raise CaptureFileError(f"{self.folder} is a file, not a folder to capture into")
        self._done = {}
        for file in _parts(self.folder):
            meta, prompt = _read_meta(file)
            _refuse_other_settings(meta, self.meta, f"{file} was captured with")
            self._done[file.name] = prompt["id"]

    def done(self) -> set[str]:
        """Ids of the prompts that are captured."""
        return set(self._done.values())

    @contextlib.contextmanager
    def part(self, number: int, prompt_id: str) -> Iterator[_Part]:
        """The part of prompt `number` (its place among the prompts, >= 0), filled inside the ``with`` block.

        It is kept when the block ends, and dropped when the block raises.
        """
        name = f"part-{number:05d}.parquet"
        prompt = json.dumps({"id": prompt_id, "number": number})
        schema = _schema(self.vocab, self.compact)
        schema = schema.with_metadata({_META: json.dumps(self.meta, sort_keys=True), _PROMPT: prompt})
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = self.folder / f".{name}.{os.getpid()}"
        laws = ["target.list.element", "draft.list.element"]
        plain = [column for column in schema.names if column not in ("target", "draft")]
        try:
            with pq.ParquetWriter(
                unfinished,
                schema,
                compression="zstd",
                use_dictionary=plain,  # pyright: ignore[reportArgumentType]
                use_byte_stream_split=laws,  # pyright: ignore[reportArgumentType]
                write_page_checksum=True,
            ) as file:
                part = _Part(self, file, schema, prompt_id)
                yield part
                part.flush()
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        try:
            unfinished.replace(self.folder / name)
        except FileNotFoundError:  # a second writer was faster with the same part, and cleared up
            if not (self.folder / name).exists():
                raise
        self._done[name] = prompt_id
        for leftover in self.folder.glob(f".{name}.*"):  # of writers that were killed
            leftover.unlink(missing_ok=True)


class _Part:
    def __init__(self, writer: CapturedWriter, file: pq.ParquetWriter, schema: pa.Schema, prompt_id: str):
        self._writer, self._file, self._schema, self._prompt_id = writer, file, schema, prompt_id
        self._rows: list[dict[str, Any]] = []

    def append(self, context: Iterable[int], token: int, target: np.ndarray, draft: np.ndarray) -> None:
        """One position: the ids before it, the id taken there, and both laws (V,), kept as float32.

        Raises LawError for what is not a law, ShapeError for another number of tokens than the capture's.
        """
        vocab, compact = self._writer.vocab, self._writer.compact
        context = np.fromiter(context, np.int32)
        row: dict[str, Any] = {
            "prompt_id": self._prompt_id,
            "position": len(context),
            "context": context,
            "token": token,
        }
        stored, laws = {}, {}
        for name, law in (("target", target), ("draft", draft)):
            stored[name] = np.asarray(law, dtype=np.float32)
            if stored[name].shape != (vocab,):
                raise ShapeError(f"{name}: a law of shape {stored[name].shape} in a capture of {vocab} tokens")
            laws[name] = from_probs(stored[name], name=name)
        if compact:
            ids = np.union1d(*(np.argsort(-law, kind="stable")[:compact] for law in stored.values()))
            row["ids"] = ids.astype(np.int32)
            for name, law in stored.items():
                row[name] = law[ids]
                rest = law.astype(np.float64)
                rest[ids] = 0
                row[f"{name}_tail"] = rest.sum()
        else:
            row |= stored
        row["overlap"] = overlap(laws["target"], laws["draft"])
        row |= {f"{name}_entropy": entropy(law) for name, law in laws.items()}
        self._rows.append(row)
        if len(self._rows) == _ROWS_PER_GROUP:
            self.flush()

    def flush(self) -> None:
        """Hand the rows so far to the file."""
        if not self._rows:
            return
        columns = [self._column(field) for field in self._schema]
        self._file.write_table(pa.table(columns, schema=self._schema))
        self._rows.clear()

    def _column(self, field: pa.Field) -> pa.Array:
        values = [row[field.name] for row in self._rows]
        if pa.types.is_fixed_size_list(field.type):
            return pa.FixedSizeListArray.from_arrays(pa.array(np.concatenate(values)), type=field.type)
        if pa.types.is_list(field.type):
            ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
            return pa.ListArray.from_arrays(ends, pa.array(np.concatenate(values)), type=field.type)
        return pa.array(values, type=field.type)


def _refuse_other_settings(found: Mapping[str, Any], wanted: Mapping[str, Any], where: str) -> None:
    found, wanted = _flat(found), _flat(wanted)
    for name in sorted(found.keys() | wanted.keys()):
        if name.split(".")[0] not in _NOT_COMPARED and found.get(name) != wanted.get(name):
            raise CaptureFileError(f"{where} {name} = {found.get(name)!r}, and not {wanted.get(name)!r} as asked for")


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


# ---- reading


@dataclass(frozen=True)
class Batch:
    """Some rows of a capture, of one prompt.

    ``target, draft``: float64 (n, V). In the compact form they are (n, w), the masses of the tokens ``ids``
    (n, w), -1 and mass 0 past a row's own, beside ``target_tail`` and ``draft_tail`` (n,), the masses of all
    other tokens.
    """

    prompt_id: str
    position: np.ndarray
    context: list[np.ndarray]
    token: np.ndarray
    target: np.ndarray
    draft: np.ndarray
    overlap: np.ndarray
    target_entropy: np.ndarray
    draft_entropy: np.ndarray
    ids: np.ndarray | None = None
    target_tail: np.ndarray | None = None
    draft_tail: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.position)

    def closed(self, tails: str) -> tuple[np.ndarray, np.ndarray]:
        """Compact laws closed to laws (n, w + 2) by putting the tails on two tokens of their own.

        "together" puts both on the first: the laws of the tokens with the tail seen as one token. "apart"
        puts the target's on the first and the draft's on the second: nothing drafted from the tail is ever
        accepted. For drafts drawn independently, the optimal acceptance of the full laws lies between that of
        "apart" and that of "together", since a coupling of the full laws is one of the merged laws, and a
        coupling of the laws apart is one of the full laws. Full laws are returned as they are.
        """
        if tails not in ("together", "apart"):
            raise OptionError(f'tails must be "together" or "apart", got {tails!r}')
        if self.target_tail is None or self.draft_tail is None:
            return self.target, self.draft
        zero = np.zeros_like(self.target_tail)
        target = np.column_stack([self.target, self.target_tail, zero])
        second = (self.draft_tail, zero) if tails == "together" else (zero, self.draft_tail)
        return target, np.column_stack([self.draft, *second])


class Captured:
    """A capture, read lazily. Made by `read`.

    ``path`` what was read; ``rows`` the number of positions; ``prompts`` the ids of its prompts in their
    order; ``vocab`` V; ``compact`` m of the compact form or None; ``meta`` the settings it was made with.
    """

    def __init__(self, path: Path, files: list[Path]):
        self.path, self._files = path, files
        self.prompts: list[str] = []
        self.rows = 0
        self.meta: dict[str, Any] = {}
        for file in files:
            meta, prompt = _read_meta(file)
            if self.meta:
                _refuse_other_settings(meta, self.meta, f"{file} does not belong to the parts before it: it has")
            self.meta = self.meta or meta
            self.prompts.append(prompt["id"])
            self.rows += prompt["rows"]
        self.vocab: int = self.meta["vocab"]
        self.compact: int | None = self.meta["compact"]

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        form = f", compact {self.compact}" if self.compact else ""
        return f"<Captured {self.path}: {self.rows} rows of {len(self.prompts)} prompts, V = {self.vocab}{form}>"

    def batches(self, size: int = 64) -> Iterator[Batch]:
        """All rows in order, at most `size` at a time; a batch is of one prompt.

        Raises CaptureFileError naming file, row and amount for rows that are no laws, and for damaged files.
        """
        if size < 1:
            raise OptionError(f"a batch has at least 1 row, got size {size}")
        for file, prompt in zip(self._files, self.prompts, strict=True):
            first = 0
            for table in _tables(file, size):
                yield self._batch(table, prompt, _Rows(file, first))
                first += table.num_rows

    def laws(self, limit: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Both laws of the first `limit` rows (default: all) at once, (n, V) each; full laws only."""
        if self.compact:
            raise CaptureFileError(f"{self.path} holds compact laws of order {self.compact}: use batches()")
        target, draft = [np.empty((0, self.vocab))], [np.empty((0, self.vocab))]
        left = self.rows if limit is None else limit
        for batch in self.batches() if left > 0 else ():
            target.append(batch.target[:left])
            draft.append(batch.draft[:left])
            left -= len(target[-1])
            if left <= 0:
                break
        return np.concatenate(target), np.concatenate(draft)

    def column(self, name: str) -> np.ndarray:
        """A column of one number a row: position, token, overlap, target_entropy or draft_entropy."""
        if name not in ("position", "token", "overlap", "target_entropy", "draft_entropy"):
            raise OptionError(f"{name!r} is no column of one number a row")
        pieces = [table[name].to_numpy() for file in self._files for table in _tables(file, 65536, [name])]
        return np.concatenate(pieces) if pieces else np.empty(0)

    def _batch(self, table: pa.RecordBatch, prompt: str, rows: _Rows) -> Batch:
        for field, column in zip(table.schema, table.columns, strict=True):
            if column.null_count:
                row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
                raise CaptureFileError(f"{rows.name(row)}: {field.name} is null")
        plain = {name: table[name].to_numpy() for name in ("position", "token", "overlap")}
        plain |= {name: table[name].to_numpy() for name in ("target_entropy", "draft_entropy")}
        wrong = (plain["token"] < 0) | (plain["token"] >= self.vocab)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise CaptureFileError(f"{rows.name(row)}: token {plain['token'][row]} is none of the {self.vocab} tokens")
        context = [ids.values.to_numpy() for ids in table["context"]]
        if not self.compact:
            shape = (table.num_rows, self.vocab)
            laws = {n: _flat_values(table[n]).reshape(shape) for n in ("target", "draft")}
            laws = {n: _checked(law, n, rows) for n, law in laws.items()}
            return Batch(prompt_id=prompt, context=context, **plain, **laws)
        lengths = table["ids"].value_lengths().to_numpy()
        held = np.arange(lengths.max(initial=0)) < lengths[:, None]
        ids = np.full(held.shape, -1, dtype=np.int32)
        ids[held] = _flat_values(table["ids"])
        steps_down = (np.diff(ids, axis=-1) <= 0) & held[:, 1:]
        outside = (held & ((ids < 0) | (ids >= self.vocab))).any(axis=-1)
        if (wrong := steps_down.any(axis=-1) | outside).any():
            row = int(np.argmax(wrong))
            raise CaptureFileError(f"{rows.name(row)}: ids are not ascending within 0 .. {self.vocab - 1}")
        laws = {}
        for name in ("target", "draft"):
            if (wrong := table[name].value_lengths().to_numpy() != lengths).any():
                row = int(np.argmax(wrong))
                count = table[name].value_lengths()[row]
                raise CaptureFileError(f"{rows.name(row)}: {name} has {count} masses for {lengths[row]} ids")
            closed = np.zeros((table.num_rows, held.shape[1] + 1), dtype=np.float32)
            closed[:, :-1][held] = _flat_values(table[name])
            closed[:, -1] = table[f"{name}_tail"].to_numpy()
            law = _checked(closed, name, rows)
            laws |= {name: law[:, :-1], f"{name}_tail": law[:, -1]}
        return Batch(prompt_id=prompt, context=context, ids=ids, **plain, **laws)


def read(path: str | Path) -> Captured:
    """A capture, from its folder or from one of its files; laws are read when asked for.

    Raises CaptureFileError, naming the file and what is wrong, for what is not there, cannot be read, is no
    capture, or does not belong together.
    """
    path = Path(path)
    if not path.exists():
        raise CaptureFileError(f"{path} does not exist")
    files = _parts(path) if path.is_dir() else [path]
    if not files:
        raise CaptureFileError(f"{path} holds no captured laws: no file named part-*.parquet")
    return Captured(path, files)


def _parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*.parquet"), key=lambda file: (len(file.name), file.name))


def _read_meta(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings and prompt of a part, its columns checked."""
    try:
        with pq.ParquetFile(file) as opened:
            schema, rows = opened.schema_arrow, opened.metadata.num_rows
    except _UNREADABLE as reason:
        raise CaptureFileError(f"{file} cannot be read as parquet: {_one_line(reason)}") from reason
    try:
        meta = json.loads(schema.metadata[_META])
        prompt = {"id": json.loads(schema.metadata[_PROMPT])["id"], "rows": rows}
        version, expected = meta["format"], _schema(meta["vocab"], meta["compact"])
    except (TypeError, ValueError, KeyError, pa.ArrowException) as reason:
        raise CaptureFileError(f"{file} is parquet without captured laws: no {_META.decode()} metadata") from reason
    if version != FORMAT:
        raise CaptureFileError(f"{file} has format {version}, this version reads {FORMAT}")
    for field in expected:
        index = schema.get_field_index(field.name)
        found = schema.field(index).type if index >= 0 else None
        if found is None or not found.equals(field.type):
            raise CaptureFileError(f"{file}: column {field.name} should be {field.type} and is {found or 'missing'}")
    return meta, prompt


def _tables(file: Path, size: int, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    try:
        with pq.ParquetFile(file, page_checksum_verification=True) as opened:
            yield from opened.iter_batches(batch_size=size, columns=columns)
    except _UNREADABLE as reason:
        raise CaptureFileError(f"{file} cannot be read to its end: {_one_line(reason)}") from reason


def _flat_values(lists: pa.Array) -> np.ndarray:
    return lists.flatten().to_numpy(zero_copy_only=False)


def _checked(laws: np.ndarray, name: str, rows: _Rows) -> np.ndarray:
    try:
        return from_probs(laws, name=name)
    except LawError:
        for row, law in enumerate(laws):
            try:
                from_probs(law, name=name)
            except LawError as reason:
                raise CaptureFileError(f"{rows.name(row)}: {reason}") from reason
        raise


@dataclass(frozen=True)
class _Rows:
    """Rows of a file from `first` on, to be named in errors."""

    file: Path
    first: int

    def name(self, row: int) -> str:
        return f"{self.file}, row {self.first + row}"


def _one_line(reason: BaseException) -> str:
    return " ".join(str(reason).split())
