"""Every error that bexplore raises on purpose.

An error has a message (what is wrong, with the value and where), a hint (what to type next) and an exit code.
Whatever is not a `BexploreError` is a bug, of bexplore or of the user's own code, and keeps its traceback.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process says to the shell; other people's scripts depend on the numbers."""

    DONE = 0
    REGRESSION = 1
    USER_INPUT = 2
    NOTHING_FITS = 3
    ENGINE_BROKE = 4
    INCONCLUSIVE = 5
    INTERRUPTED = 130


class BexploreError(Exception):
    """The base of all errors raised on purpose.

    Attributes:
        message: What is wrong, with the offending value and where it stands.
        hint: What to type next; empty where there is nothing better than the message.
    """

    exit_code = ExitCode.ENGINE_BROKE

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UserInputError(BexploreError):
    """The configuration, the command line or a file that the user named is wrong."""

    exit_code = ExitCode.USER_INPUT


class UnusableSizeError(Exception):
    """A micro-batch size that was not run, for a reason that needs no traceback; other sizes may be."""


class NothingFitsError(BexploreError):
    """No micro-batch size fits the memory budget, not even the smallest."""

    exit_code = ExitCode.NOTHING_FITS


class EngineError(BexploreError):
    """The engine itself broke: a worker that cannot start, a storage that cannot be written."""

    exit_code = ExitCode.ENGINE_BROKE


class TraceError(BexploreError):
    """A job that cannot be traced; an exploration reports it once and goes on without a cost model."""


class UserProgramError(BexploreError):
    """The user's own program is broken in a way that would show at every size.

    Attributes:
        traceback_text: The user's own traceback, shown once and whole.
    """

    exit_code = ExitCode.USER_INPUT

    def __init__(self, message: str, *, hint: str = "", traceback_text: str = "") -> None:
        super().__init__(message, hint=hint)
        self.traceback_text = traceback_text
