"""Records of decodes: JSON Lines, a line a prompt, from which a killed run goes on.

A line of ``decode.jsonl`` is an object:

================== ===========================================================================================
``id``             the prompt's
``prompt_tokens``  how many ids the model read
``text, tokens``   what was made, the ids with the token that ended it
``finish``         "eos", "stop" or "length"
``steps``          lists ``depth``, ``drafted``, ``accepted``, ``committed``: `gpu_decoder.metrics.Step` by step
``logprob``        ``sum``, ``mean`` and ``least`` of ln target(token), null without a token
``seconds``        by part (`gpu_decoder.metrics.Clock`), the prompt's equal share of its batch
``measured``       where asked for: what the laws met would have given other selectors
``settings``       what the tokens depend on
``environment``    versions, machine, dtype, threads, batch
================== ===========================================================================================
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from gpu_decoder.models import LanguageModel
from ot_spec.errors import RecordFileError

FILE = "decode.jsonl"


class Records:
    """The records in a folder, open for more; to be used in a ``with``.

    rows: what is recorded, by prompt id. A last line that was cut short is dropped, for its prompt to be decoded
    again. Raises RecordFileError for a file that holds anything else, was made with other settings (naming the first
    that differs), or that another process writes to.
    """

    def __init__(self, folder: str | Path, settings: Mapping[str, Any]):
        self.path = Path(folder) / FILE
        self.rows: dict[str, dict[str, Any]] = {}
        self._settings = json.loads(json.dumps(settings))
        if self.path.parent.exists() and not self.path.parent.is_dir():
            raise RecordFileError(f"{self.path.parent} is a file, not a folder to write records into")
        self._lock = FileLock(f"{self.path}.lock")

    def __enter__(self) -> Records:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise RecordFileError(f"another process writes to {self.path}") from None
        try:
            self._take_up()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _take_up(self) -> None:
        if not self.path.exists():
            return
        whole = self.path.read_bytes()
        size = whole.rfind(b"\n") + 1
        self.rows = {row["id"]: row for row in _parsed(whole[:size], self.path)}
        for number, row in enumerate(self.rows.values(), start=1):
            refuse_other_settings(row["settings"], self._settings, f"{self.path}, line {number},")
        if size < len(whole):
            os.truncate(self.path, size)

    def write(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Add these records, all or none, and wait until they are on the disk."""
        made = [{**record, "settings": self._settings} for record in records]
        lines = "".join(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in made)
        before = self.path.stat().st_size if self.path.exists() else 0
        try:
            with self.path.open("ab") as file:
                file.write(lines.encode("utf-8", "surrogatepass"))
                file.flush()
                os.fsync(file.fileno())
        except OSError as reason:
            if self.path.exists():
                os.truncate(self.path, before)
            raise RecordFileError(f"cannot write to {self.path}: {reason.strerror}") from reason
        self.rows |= {record["id"]: record for record in made}


def read_records(path: str | Path) -> list[dict[str, Any]]:
    """The records of a folder or file, in the order written; a last line that was cut short is passed over.

    Raises RecordFileError for what is not there or holds anything else.
    """
    path = Path(path)
    path = path / FILE if path.is_dir() else path
    try:
        whole = path.read_bytes()
    except OSError as reason:
        raise RecordFileError(f"cannot read records from {path}: {reason.strerror}") from reason
    return _parsed(whole[: whole.rfind(b"\n") + 1], path)


def _parsed(lines: bytes, path: Path) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(lines.splitlines(), start=1):
        try:
            row = json.loads(line)
            name, _ = row["id"], row["settings"]
        except (ValueError, TypeError, KeyError) as reason:
            raise RecordFileError(f"{path}, line {number}, is no record of a decode") from reason
        if name in rows:
            raise RecordFileError(f"{path}, line {number}: prompt {name!r} is recorded twice")
        rows[name] = row
    return list(rows.values())


def refuse_other_settings(found: Mapping[str, Any], wanted: Mapping[str, Any], where: str) -> None:
    """RecordFileError, naming the first setting in which what was found differs from what is asked for."""
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name) != wanted.get(name):
            raise RecordFileError(
                f"{where} was made with {name} = {found.get(name)!r}, and not {wanted.get(name)!r} as asked for"
            )


def environment(model: LanguageModel) -> dict[str, Any]:
    """Versions, and the machine a model runs on."""
    device = model.model.device
    return {
        **{name: metadata.version(name) for name in ("ot-spec", "torch", "transformers", "numpy")},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "device": str(device),
        "dtype": dtype_of(model),
        "threads": torch.get_num_threads(),
    }


def dtype_of(model: LanguageModel) -> str:
    return str(model.model.dtype).removeprefix("torch.")


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(named, platform.processor() or platform.machine())}, {os.cpu_count()} cores"
