"""Every error that bexplore raises on purpose, and checks of what the user wrote.

An error has a message (what is wrong, with the value and where), a hint (what to type next) and an exit code.
Any other exception is a bug, of bexplore or of the user's own code, and keeps its traceback.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any

WITHOUT_TRACE = "Steps at small sizes are measured instead of a trace."  # a hint

_MOST_LISTED = 30  # names in a hint
_MOST_OF_SOURCE = 200  # characters of a line of source. Source: above the usual limits of style guides
_FRAME = re.compile(r'  File ".*", line \d+')
_LONGEST_LINE = 1_000  # characters of a message; the longest of our own, with a list of names, have 700


class ExitCode(IntEnum):
    """Exit codes of the process, on which other people's scripts depend."""

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
        super().__init__(printable(message))
        self.message = printable(message)
        self.hint = printable(hint)


def printable(text: str) -> str:
    """Return a text with characters that a terminal would obey, or not show, escaped, and with long lines cut."""
    lines = (line if line.isprintable() else _escaped(line) for line in text.split("\n"))
    return "\n".join(line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}..." for line in lines)


def _escaped(line: str) -> str:
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in line)


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


class EmulationError(BexploreError):
    """No emulated device can be had here; the hint says what to install."""

    exit_code = ExitCode.USER_INPUT


class UserProgramError(BexploreError):
    """The user's own program is broken in a way that would show at every size.

    Attributes:
        traceback_text: The user's own traceback, shown once and whole.
    """

    exit_code = ExitCode.USER_INPUT

    def __init__(self, message: str, *, hint: str = "", traceback_text: str = "") -> None:
        super().__init__(message, hint=hint)
        self.traceback_text = traceback_text


def require(condition: bool, message: str, hint: str) -> None:
    """Raise UserInputError with the message and the hint unless the condition holds."""
    if not condition:
        raise UserInputError(message, hint=hint)


def first_line(message: BaseException | str | None) -> str:
    """Return the first line of a message that is not empty, at most 300 characters; the type of an empty exception."""
    name = type(message).__name__ if isinstance(message, BaseException) else ""
    return shorten(next((line.strip() for line in str(message or "").splitlines() if line.strip()), name), 300)


def find_failing_line(traceback_text: str) -> str:
    """Return the source of the last frame of a traceback, at most 200 characters; empty where it shows none."""
    lines = traceback_text.splitlines()
    frames = [number for number, line in enumerate(lines) if _FRAME.match(line)]
    below = lines[frames[-1] + 1 :][:1] if frames else []
    return next((line.strip()[:_MOST_OF_SOURCE] for line in below if line.startswith("    ")), "")


def close_match(word: object, known: Iterable[object], cutoff: float = 0.6) -> str | None:
    """Return the known word nearest to a misspelt one; None where none is near.

    Args:
        cutoff: Similarity from which a word is near, by `difflib.SequenceMatcher`; 1 is the same word.
    """
    return next(iter(difflib.get_close_matches(str(word), [str(one) for one in known], n=1, cutoff=cutoff)), None)


def shorten(text: str, most: int) -> str:
    """Return a text of at most so many characters, cut between words where that is near."""
    if len(text) <= most:
        return text
    cut = text[: most - 4]
    between = cut.rfind(" ")
    return f"{cut[: between if between > most // 2 else len(cut)]} ..."


def suggestion(value: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown value: the nearest known one, or all of them."""
    by_lower_case = {name.lower(): name for name in known}
    near = close_match(value.lower(), by_lower_case)
    if near:
        return f"Did you mean {by_lower_case[near]}?"
    names = list(by_lower_case.values())
    more = f" ({len(names)} in all)" if len(names) > _MOST_LISTED else ""
    return f"Choose one of {', '.join(names[:_MOST_LISTED])}{more}."


def check_keys(given: Mapping[str, Any], known: Iterable[str], owner: str) -> None:
    """Raise UserInputError at the first key that is no setting of the owner."""
    known = list(known)
    for key in given:
        require(key in known, f"{owner} has no setting {key!r}.", suggestion(key, known))


def positive_int(value: Any, name: str) -> int:
    """Return the value if it is a positive int, and raise UserInputError otherwise."""
    valid = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    require(valid, f"{name} is {value!r}.", f"Set {name} to an integer of 1 or more.")
    return int(value)
