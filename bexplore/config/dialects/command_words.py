"""What a training is given from outside: options in the words of its command, keys of its file, variables."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bexplore.config.command import is_script
from bexplore.config.document.document import dotted_path
from bexplore.config.document.reader import KeyPath
from bexplore.host.secret_values import MASK, hidden

# `key=value`, as `--key=value`, as an override of Hydra (`+key=value`) and as a variable. A path or a URL is none.
_ASSIGNMENT = re.compile(r"[-+]*(?P<key>[A-Za-z_][\w.-]*)=(?P<value>.*)", re.DOTALL)
_OPTION = re.compile(r"--?(?P<key>[A-Za-z][\w.-]*)")
_NEXT_OPTION = re.compile(r"-(?!\d)")  # `-1` is a value


class Source(StrEnum):
    """Where a value stands."""

    WORD = "word"
    KEY = "key"
    VARIABLE = "variable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """One value that a training is given.

    Attributes:
        names: Parts of its dotted key in lower case, with `_` for `-`.
        value: The value; None for an option without one.
        source: Where it stands.
        shown: The option and the value as they were written.
        path: Where it stands in the file; empty for a word of the command.
    """

    names: tuple[str, ...]
    value: Any
    source: Source
    shown: str
    path: KeyPath = ()

    @property
    def name(self) -> str:
        """The last part of its key."""
        return self.names[-1]


def given_by_words(words: Sequence[str]) -> Iterator[Given]:
    """Yield the options of a command: `--key value`, `--key=value`, `key=value`, and flags.

    A word behind an option is its value unless it is an option itself. Lists of assignments (`--export=ALL,A=1`) and
    the script of a shell (`bash -c`) are read as well.
    """
    for index, word in enumerate(words):
        option, after = _OPTION.fullmatch(word), words[index + 1 : index + 2]
        if is_script(words, index):
            yield from given_by_words(_split(word))
        elif option is not None and after and not _NEXT_OPTION.match(after[0]):
            yield _word(option["key"], after[0], f"{word} {after[0]}")
        elif option is not None:
            yield _word(option["key"], None, word)
        else:
            yield from _assignments(word, ())


def given_by_file(leaves: Iterable[tuple[KeyPath, Any]]) -> Iterator[Given]:
    """Yield the plain values of a file; those of a list belong to the key of the list."""
    for path, value in leaves:
        names = tuple(name for part in path if isinstance(part, str) for name in _names(part.lstrip("-")))
        if names:
            shown = hidden(f"{dotted_path(path)}: {value}")
            yield Given(names=names, value=value, source=Source.KEY, shown=shown, path=path)


def given_by_variables(variables: Mapping[str, str]) -> Iterator[Given]:
    """Yield the variables of `explore.env`."""
    for name, value in variables.items():
        path = ("explore", "env", name)
        yield Given(names=_names(name), value=value, source=Source.VARIABLE, shown=f"{name}={MASK}", path=path)


def _word(key: str, value: str | None, shown: str) -> Given:
    return Given(names=_names(key), value=value, source=Source.WORD, shown=hidden(shown))


def _names(key: str) -> tuple[str, ...]:
    return tuple(key.lower().replace("-", "_").split("."))


def _assignments(text: str, parents: tuple[str, ...]) -> Iterator[Given]:
    """Yield the assignment that a text is, those in its value, and otherwise those of a list with commas.

    A name in capitals is that of a variable, as in `env NAME=1 python train.py`.
    """
    found = _ASSIGNMENT.fullmatch(text)
    if found is not None:
        names = (*parents, *_names(found["key"]))
        source = Source.VARIABLE if found["key"].isupper() and text.startswith(found["key"]) else Source.WORD
        yield Given(names=names, value=found["value"], source=source, shown=text)
        if "=" in found["value"]:
            yield from _assignments(found["value"], names)
    elif "," in text:
        for part in text.split(","):
            yield from _assignments(part, parents)


def _split(script: str) -> list[str]:
    try:
        return shlex.split(script)
    except ValueError:  # an open quote, which is the shell's to refuse
        return []
