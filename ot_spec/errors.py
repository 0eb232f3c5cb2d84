"""One class per rule a caller can break; every message names the row and the amount."""

from __future__ import annotations

import math


def counted(size: int) -> str:
    """A count for a message: past 10^15 its order of magnitude.

    >>> counted(2_000_000), counted(3**200)
    ('2,000,000', 'some 10^95')
    """
    return f"{size:,}" if size < 10**15 else f"some 10^{int(math.log10(size))}"


class OtSpecError(ValueError):
    """Base of every error about an argument; the command line turns it into exit status 2."""


class LawError(OtSpecError):
    """A next-token law is not one: NaN, infinite, negative, or its sum is off."""


class ShapeError(OtSpecError):
    """Shapes that do not fit each other."""


class CandidateError(OtSpecError):
    """A candidate is no token, or one that the draft law cannot produce."""


class SupportError(OtSpecError):
    """The support of a law is too small for what is asked of it."""


class VocabularyError(OtSpecError):
    """Target and draft do not speak about the same tokens."""


class OptionError(OtSpecError):
    """A parameter outside its range."""


class UnsupportedLawError(OtSpecError):
    """A selector or solver that is not valid for this draft law."""


class CaptureFileError(OtSpecError):
    """A file of captured laws that cannot be read, or that contradicts what it is asked to continue."""


class RecordFileError(OtSpecError):
    """Records of a decode that cannot be read or written, or that were made with other settings."""


class ModelError(OtSpecError):
    """A model or tokenizer that cannot be loaded, or not used as asked."""


class OutOfMemoryError(OtSpecError):
    """A decode that does not fit into memory; the message says what to lower."""


class PromptError(OtSpecError):
    """A prompts file, or a prompt of it, that cannot be used."""


class TooLargeError(OtSpecError):
    """A problem that would not fit, refused before anything is built.

    ``size`` is what it would take, ``limit`` what is allowed, ``instead`` what to use.
    """

    def __init__(self, what: str, size: int, limit: int, instead: str):
        super().__init__(f"{what}: {counted(size)} is over the limit of {limit:,}; use {instead} instead")
        self.size, self.limit, self.instead = size, limit, instead

    def __reduce__(self):
        return _rebuild_too_large, (str(self), self.size, self.limit, self.instead)


def _rebuild_too_large(message: str, size: int, limit: int, instead: str) -> TooLargeError:
    error = TooLargeError.__new__(TooLargeError)
    error.args = (message,)
    error.size, error.limit, error.instead = size, limit, instead
    return error


class SolverError(RuntimeError):
    """A solver stopped with anything but an optimal, verified answer; carries its ``status``."""

    def __init__(self, message: str, status: object = None):
        super().__init__(message)
        self.status = status
