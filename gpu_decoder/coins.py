"""Coins from a counter: the same for a row whatever else is decoded beside it, and never used twice."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from operator import index
from typing import Protocol

import numpy as np

from ot_spec.errors import OptionError

DRAFT, VERIFY = 0, 1
_KEYS = 2**128


class Coins(Protocol):
    def random(self, size: int) -> np.ndarray: ...


def row_keys(seed: int, texts: Sequence[Sequence[int]], told: Counter[bytes] | None = None) -> list[int]:
    """A key of 128 bits for each text: of the seed, its tokens, and how many equal ones came before it.

    A prompt has the same key alone and in any batch; repeated prompts have different ones. told: texts of earlier
    calls to count as well, updated.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise OptionError(f"seed must be an integer of at least 0, got {seed!r}")
    if seed >= _KEYS:
        raise OptionError(f"seed must be below 2^128, got {seed}")
    told = Counter() if told is None else told
    keys = []
    for text in texts:
        name = np.asarray(text, dtype=np.int64).tobytes()
        digest = hashlib.blake2b(name, digest_size=16, key=f"{seed}/{told[name]}".encode())
        told[name] += 1
        keys.append(int.from_bytes(digest.digest(), "little"))
    return keys


def as_keys(keys: Sequence[int]) -> list[int]:
    """Keys that are integers of 0 to 2^128 - 1; OptionError for others."""
    found = []
    for key in keys:
        if isinstance(key, bool) or not hasattr(key, "__index__") or not 0 <= index(key) < _KEYS:
            raise OptionError(f"a key is an integer of 0 to 2^128 - 1, got {key!r}")
        found.append(index(key))
    return found


def coins_of(key: int, step: int, purpose: int) -> np.random.Generator:
    """The coins of one row at one step for drafting or verifying: a Philox window of its own, 2^128 numbers long."""
    counter = np.array([0, 0, purpose, step], dtype=np.uint64)
    words = np.array([key & (2**64 - 1), key >> 64], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=words, counter=counter))
