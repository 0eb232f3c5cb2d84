"""Standard output belongs to the program that calls, not to a compiled library."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

_ONE_AT_A_TIME = RLock()  # file descriptor 1 belongs to all threads


@contextmanager
def output_to_stderr() -> Iterator[None]:
    """Meanwhile, send file descriptor 1 to standard error: highspy greets before it can be told not to."""
    with _ONE_AT_A_TIME:
        try:
            saved = os.dup(1)
        except OSError:  # closed: nothing can be written to it
            yield
            return
        try:
            os.dup2(2, 1)
            yield
        finally:
            os.dup2(saved, 1)
            os.close(saved)
