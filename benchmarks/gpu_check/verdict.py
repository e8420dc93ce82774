"""How a step ended: one word and one line."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Word(StrEnum):
    """A closed set."""

    OK = "ok"  # as expected
    DIFFERS = "differs"  # measured, and not as expected
    FAILED = "failed"  # raised, died or took too long
    NOT_RUN = "not run"  # no time was left, or it needs another device or an earlier step


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A word, and in one line what was found."""

    word: Word
    found: str


def judged(is_as_expected: bool, found: str) -> Verdict:
    """The verdict of a step that measured what it wanted."""
    return Verdict(word=Word.OK if is_as_expected else Word.DIFFERS, found=found)


def not_run(why: str) -> Verdict:
    """The verdict of a step that does not apply here."""
    return Verdict(word=Word.NOT_RUN, found=why)
