"""A section of a ModelZoo file that is read by a table: target name -> reader of one key, with the family's default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bexplore.config.dialects.cerebras import known_keys
from bexplore.config.dialects.values import is_integer, read_flag, read_number, read_positive
from bexplore.config.document.document import Problems
from bexplore.config.document.reader import KeyPath, quoted, shown
from bexplore.errors import close_match

_LONGEST_SEQUENCE = 10**8  # tokens
_OFF: tuple[object, ...] = (None, False, 0, "", "none", {}, [])


class Section:
    """A mapping of the file, and the keys of it that have been read.

    Attributes:
        problems: Of the file; receives mistakes and warnings.
        path: Path of the section.
        values: The section; empty where it is no mapping.
    """

    def __init__(self, problems: Problems, path: KeyPath) -> None:
        values = problems.document.get(path)
        self.problems = problems
        self.path = path
        self.values: Mapping[str, Any] = values if isinstance(values, dict) else {}
        self._read: set[str] = {"name", "mixed_precision", "fp16_type", "use_bfloat16"}

    def at(self, key: str) -> KeyPath:
        """Return the path of a key, which counts as read."""
        self._read.add(key)
        return (*self.path, key)

    def sub(self, *keys: str | int) -> Section:
        """Return a section below this one."""
        if keys:
            self._read.add(str(keys[0]))
        return Section(self.problems, (*self.path, *keys))

    def table(self, readers: Mapping[str, Reader]) -> dict[str, Any]:
        """Return the values of a table; those that are None are left out."""
        found = {name: read(self) for name, read in readers.items()}
        return {name: value for name, value in found.items() if value is not None}

    def ignore(self, *keys: str) -> None:
        """Count keys as read that change neither time nor memory."""
        self._read.update(keys)

    def notice_the_rest(self) -> None:
        """Warn of every key that is switched on, may change the program and was not read."""
        ignored = known_keys.NO_EFFECT | known_keys.SCALES | self._read
        rest = [
            f"{shown(key)}: {shown(value)}"
            for key, value in self.values.items()
            if key not in ignored and value not in _OFF
        ]
        if rest:
            self.problems.warn(self.path, f"not built in, so the program that is measured lacks it: {', '.join(rest)}")


Reader = Callable[[Section], Any]


def size(key: str, default: int | None = None) -> Reader:
    """Return a reader of a positive integer; without a default the key is required."""

    def read(section: Section) -> int | None:
        path = section.at(key)
        if section.values.get(key) is None and default is None:
            section.problems.error(section.path, f"the section has no {key}", f"type {key}: and its number")
        return read_positive(section.problems, path, largest=_LONGEST_SEQUENCE) or default

    return read


def given(key: str) -> Reader:
    """Return a reader of a positive integer that may be absent."""
    return lambda section: read_positive(section.problems, section.at(key), largest=_LONGEST_SEQUENCE)


def number(key: str, default: float) -> Reader:
    """Return a reader of a number."""
    return lambda section: read_number(section.problems, section.at(key), default)


def share(key: str, default: float = 0.0, otherwise: str | None = None) -> Reader:
    """Return a reader of a probability below 1; where it is absent, that of another key is taken."""

    def read(section: Section) -> float:
        where = key if otherwise is None or section.values.get(key) is not None else otherwise
        section.ignore(key)
        value = read_number(section.problems, section.at(where), default)
        if not 0 <= value < 1:
            section.problems.error(section.at(where), f"{where} must be from 0 to below 1, not {value:g}")
        return value

    return read


def flag(key: str, default: bool) -> Reader:
    """Return a reader of a truth value."""
    return lambda section: read_flag(section.problems, section.at(key), default)


def word(key: str, default: str, known: Mapping[str, str]) -> Reader:
    """Return a reader of one of the family's words."""

    def read(section: Section) -> str:
        path, value = section.at(key), section.values.get(key)
        lowered = str(default if value is None else value).lower()
        if lowered in known:
            return known[lowered]
        near = close_match(lowered, list(known))
        choice = f"did you mean {near}?" if near else f"built in: {', '.join(known)}"
        section.problems.error(path, f"{key} {quoted(value)} is not built in", choice)
        return known[default]

    return read


def side(key: str, default: int | None = None) -> Reader:
    """Return a reader of the side of a square, written as one number or as two equal ones."""

    def read(section: Section) -> int | None:
        path, value = section.at(key), section.values.get(key)
        if isinstance(value, list) and len(value) == 2 and value[0] == value[1] and is_integer(value[0]):
            value = value[0]
        if value is None and default is not None:
            return default
        if is_integer(value) and value > 0:
            return int(value)
        rule = f"{key} must be a positive integer or two equal ones, not {quoted(value)}"
        section.problems.error(path if key in section.values else section.path, rule, f"type {key}: [224, 224]")
        return default

    return read


def sequence_length(model: Section, data: Section, *keys: str) -> int | None:
    """Read the tokens of a sample: by the data section, else by the first of the model's keys.

    Args:
        keys: Keys of both sections, in the order in which they are tried; noted as a mistake where none is given.
    """
    for section in (data, model):
        for key in keys:
            path = section.at(key)
            if section.values.get(key) is not None:
                return read_positive(section.problems, path, largest=_LONGEST_SEQUENCE)
    model.problems.error(model.path, "nothing gives the sequence length", f"type {keys[-1]}: 512, for example")
    return None
