"""YAML (or JSON) text to plain values, with the line of every key: ruamel.yaml's only door.

ruamel parses the text to events. Its constructors are not used: here plain words have their YAML 1.2 core type (ruamel
adds dates and binary numbers), a tag is a part of a text and makes nothing, and the characters of each value are kept
for the writer. Depth and number of values are bounded.
"""

from __future__ import annotations

import copy
import functools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from bexplore.errors import UserInputError

MAX_DEPTH = 64  # nested mappings and lists
MAX_VALUES = 200_000  # aliases followed: a file of the largest size with a value on each line has fewer
LINE_BREAK = re.compile(r"\r\n|\r|\n")
_SHOWN_CHARACTERS = 60

KeyPath = tuple[str | int, ...]

_INTEGER = re.compile(r"[-+]?[0-9][0-9_]*")
_OTHER_INTEGER = re.compile(r"0o[0-7]{1,400}|0x[0-9a-fA-F]{1,400}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL_FLOATS = {".inf": math.inf, "+.inf": math.inf, "-.inf": -math.inf, ".nan": math.nan}
_WORDS: dict[str, Any] = {"": None, "~": None, "null": None, "true": True, "false": False}
_CORE_TAGS = tuple(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq"))
_MERGE = "<<"
WORD = "explore"
# Names of a batch size of the training, whatever the program; those of evaluation are other words.
SIZE_NAME = re.compile(
    r"(?:train_?|micro_?|global_?|mini_?|per_device_train_?|n_?)?(?:batch_?size|bs|bsz)", re.IGNORECASE
)
# What is open at the end is one match, too: to look for its end from every further sign would take hours.
_JSON_COMMENT = re.compile(r'"(?:\\.|[^"\\])*(?:"|\\?\Z)|//[^\r\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_JSON_LAST_COMMA = re.compile(r'"(?:\\.|[^"\\])*(?:"|\\?\Z)|,(?=\s*[}\]])', re.DOTALL)
_CHARACTER = re.compile(r"[^\r\n]")
_PARSER_BUGS = (ValueError, RecursionError, AttributeError, AssertionError, IndexError)  # on malformed input


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Place of a value in the file or on the command line."""

    line: int | None = None  # of the key, or of the value of a list element, from 1; None on the command line
    span: tuple[int, int] | None = None  # characters of the value, from its first to just behind its last
    key_span: tuple[int, int] | None = None  # characters of the key likewise; None for a list element
    override: str = ""  # the `--set` text that gave the value; empty for the file
    tag: str = ""  # the tag of a mapping or a list that its program makes something of; empty for none


def name_kind(value: Any) -> str:
    """Name the kind of a value in the words of YAML."""
    if value is None:
        return "null"
    names = {
        bool: "a truth value",
        int: "a number",
        float: "a number",
        str: "a text",
        list: "a list",
        dict: "a mapping",
    }
    return names.get(type(value), type(value).__name__)


def show(value: Any) -> str:
    """Return a value as messages show it: on one line, and not too long."""
    if isinstance(value, dict):
        text = "{...}" if value else "{}"
    elif isinstance(value, list):
        text = f"a list of {len(value)}" if len(str(value)) > _SHOWN_CHARACTERS else str(value)
    elif isinstance(value, bool):
        text = str(value).lower()
    else:
        text = "null" if value is None else str(value)
    text = text.encode("unicode_escape").decode("ascii") if not text.isprintable() else text
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def quote(value: Any) -> str:
    """Return `show(value)`, with quotation marks around a text."""
    return f'"{show(value)}"' if isinstance(value, str) else show(value)


def is_word(value: Any) -> bool:
    """Return whether a value is the word that asks for a search, in any case."""
    return isinstance(value, str) and value.casefold() == WORD


def find_line_break(text: str) -> str:
    """Return the line break of a text: its first."""
    found = LINE_BREAK.search(text)
    return found[0] if found else "\n"


class YamlReader:
    """A reader of text to values; dubious text becomes a warning, wrong text a UserInputError."""

    def __init__(self, source: str) -> None:
        """Read for a source, which messages name: a file, or a `--set` text."""
        self.source = source
        self.positions: dict[KeyPath, Position] = {}
        self.warnings: list[str] = []
        self._events: Iterator[Any] = iter(())
        self._anchors: dict[str, tuple[Any, dict[KeyPath, Position], KeyPath]] = {}
        self._num_values = self._end = 0  # _end: index behind the last visible character so far

    def read(self, text: str) -> Any:
        """Return the value of the only document of a text; None for an empty text."""
        if self.source.endswith((".json", ".jsonc", ".json5")):
            text = _blank_comments(text.replace("\t", " "))  # JSON is indented with tabs too, and its texts have none
        self._events = YAML(typ="safe", pure=True).parse(text)
        value, num_documents = None, 0
        try:
            for event in self._events:
                if isinstance(event, DocumentStartEvent):
                    num_documents += 1
                    if num_documents > 1:
                        raise self._error(event, "a second document starts here; one file holds one job")
                    value = self._read_value(next(self._events), ())[0]
        except YAMLError as error:
            raise self._syntax_error(error) from None
        except _PARSER_BUGS as error:
            raise UserInputError(f"{self.source} is not YAML: {show(str(error))}") from None
        return value

    def _read_value(self, event: Any, path: KeyPath) -> tuple[Any, tuple[int, int]]:
        self._count(event)
        start = event.start_mark.index
        if isinstance(event, AliasEvent):
            self._end = event.end_mark.index
            return self._repeat(event, path), (start, self._end)
        if isinstance(event, ScalarEvent):
            value, end = self._read_scalar(event), event.end_mark.index
        else:
            if len(path) >= MAX_DEPTH:
                raise self._error(event, f"nested more than {MAX_DEPTH} deep")
            value, last = self._read_mapping(path) if isinstance(event, MappingStartEvent) else self._read_list(path)
            # A block's own end lies at the next token: it ends with its last value.
            end = last.end_mark.index if event.flow_style else max(self._end, start)
        if end > start:
            self._end = end
        if event.anchor:
            self._anchors[event.anchor] = (value, self.positions, path)
        return value, (start, max(start, end))

    def _read_list(self, path: KeyPath) -> tuple[list[Any], Event]:
        values: list[Any] = []
        for event in self._events:
            if isinstance(event, SequenceEndEvent):
                break
            place = (*path, len(values))
            value, span = self._read_value(event, place)
            values.append(value)
            self.positions[place] = Position(line=event.start_mark.line + 1, span=span, tag=_find_tag(event))
        return values, event

    def _read_mapping(self, path: KeyPath) -> tuple[dict[str, Any], Event]:
        values: dict[str, Any] = {}
        merged: list[tuple[Any, dict[KeyPath, Position]]] = []
        for event in self._events:
            if isinstance(event, MappingEndEvent):
                break
            if not isinstance(event, ScalarEvent):
                raise self._error(event, "a key must be a plain word, not a list, a mapping or an alias")
            self._count(event)
            self._end = event.end_mark.index
            key = event.value  # the text of the key, also of one that looks like a number
            if key == _MERGE and event.implicit[0]:
                merged += self._read_merged(path)
                continue
            place, earlier = (*path, key), self.positions.get((*path, key))
            if earlier is not None:  # what stood below it is not read
                for known in [known for known in self.positions if known[: len(place)] == place]:
                    del self.positions[known]
            value_event = next(self._events)
            value, span = self._read_value(value_event, place)
            if key in values and earlier is not None:
                self._check_same(event, place, values[key], value, earlier)
            values[key] = value
            key_span = (event.start_mark.index, event.end_mark.index)
            self.positions[place] = Position(
                line=event.start_mark.line + 1, span=span, key_span=key_span, tag=_find_tag(value_event)
            )
        for inherited, positions in merged:
            values |= {key: value for key, value in inherited.items() if key not in values}
            self.positions |= {place: one for place, one in positions.items() if place not in self.positions}
        return values, event

    def _read_merged(self, path: KeyPath) -> Iterator[tuple[Any, dict[KeyPath, Position]]]:
        """Yield each mapping that `<<` adds, with the positions that its keys have there."""
        own, first = self.positions, next(self._events)
        is_list = isinstance(first, SequenceStartEvent)
        for event in self._events if is_list else (first,):
            if isinstance(event, SequenceEndEvent):
                self._end = event.end_mark.index if first.flow_style else self._end
                return
            self.positions = {}
            try:
                value, _ = self._read_value(event, path)
                positions = self.positions
            finally:
                self.positions = own
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, str) and one.startswith("!"):  # of a file that the program reads
                    continue
                if not isinstance(one, dict):
                    raise self._error(event, f"<< merges mappings, not {name_kind(one)}")
                yield one, positions

    def _repeat(self, event: AliasEvent, path: KeyPath) -> Any:
        """Return a copy of the value that an alias repeats: an override of one place must not change the other."""
        if event.anchor not in self._anchors:
            raise self._error(event, f"the alias *{show(event.anchor)} repeats a value that is not there")
        value, positions, place = self._anchors[event.anchor]
        inside = {one: position for one, position in positions.items() if one[: len(place)] == place and one != place}
        self._num_values += len(inside)
        self._count(event)
        self.positions |= {(*path, *one[len(place) :]): position for one, position in inside.items()}
        return copy.deepcopy(value)

    def _read_scalar(self, event: ScalarEvent) -> Any:
        tag = str(event.tag or "!")
        if _find_tag(event):
            if self.source.startswith("--set"):
                raise self._error(event, f"the tag {show(tag)} is refused: a value of the command line is plain")
            return f"{tag} {event.value}".rstrip()  # what it makes is the program's: here it is a text
        if not event.implicit[0] and tag not in _CORE_TAGS[1:]:
            return event.value
        try:
            return resolve_plain(event.value)
        except ValueError:  # thousands of digits, which Python refuses
            raise self._error(event, f"the number {show(event.value)} is too large") from None

    def _check_same(self, event: ScalarEvent, path: KeyPath, first: Any, second: Any, earlier: Position) -> None:
        """Refuse a key of ours with two values; of others, the last counts, as in the programs that read them."""
        twice = f"the key {quote(event.value)} stands twice, with"
        if repr(first) == repr(second):
            self.warnings.append(f"{self._where(event.start_mark.line + 1)}: {twice} the same value")
            return
        both = f"{twice} {quote(first)} (line {earlier.line}) and {quote(second)}"
        if WORD in path or is_word(first) or is_word(second) or SIZE_NAME.fullmatch(str(path[-1])):
            raise self._error(event, both)
        self.warnings.append(f"{self._where(event.start_mark.line + 1)}: {both}: the last one counts")

    def _count(self, event: Event) -> None:
        self._num_values += 1
        if self._num_values > MAX_VALUES:
            raise self._error(event, f"more than {MAX_VALUES} keys and values; no configuration has so many")

    def _where(self, line: int) -> str:
        return self.source if self.source.startswith("--set") else f"{self.source}:{line}"

    def _error(self, event: Event, rule: str) -> UserInputError:
        return UserInputError(f"{self._where(event.start_mark.line + 1)}: {rule}")

    def _syntax_error(self, error: YAMLError) -> UserInputError:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "context", None) or str(error).partition("\n")[0]
        where = self.source if mark is None else self._where(mark.line + 1)
        hint = "indent with spaces, not with tabs" if "\\t" in str(problem) or "\t" in str(problem) else ""
        return UserInputError(f"{where}: not YAML: {show(str(problem))}", hint=hint)


def _find_tag(event: Event) -> str:
    """Return the tag by which the program that reads a value makes something of its own of it; empty for none."""
    tag = str(getattr(event, "tag", None) or "!")
    return "" if tag == "!" or tag in _CORE_TAGS else tag


def _blank_comments(text: str) -> str:
    """Return JSON with spaces for its comments and the commas behind last elements: every other character stays."""
    text = _JSON_COMMENT.sub(lambda found: found[0] if found[0][0] == '"' else _CHARACTER.sub(" ", found[0]), text)
    return _JSON_LAST_COMMA.sub(lambda found: found[0] if found[0][0] == '"' else " ", text)


@functools.lru_cache(maxsize=4)  # a text is loaded, written to key by key, and checked: each is read once
def read_yaml(text: str, source: str) -> tuple[Any, Mapping[KeyPath, Position], tuple[str, ...]]:
    """Return the values of a text, their positions and warnings. They are shared: copy what you change."""
    reader = YamlReader(source)
    return reader.read(text), reader.positions, tuple(reader.warnings)


def resolve_plain(text: str) -> Any:
    """Return the value of a plain word under the core schema of YAML 1.2."""
    lowered = text.lower()
    if lowered in _WORDS and text in (lowered, lowered.capitalize(), lowered.upper()):
        return _WORDS[lowered]
    if lowered in _SPECIAL_FLOATS:
        return _SPECIAL_FLOATS[lowered]
    is_integer = _INTEGER.fullmatch(text) is not None
    if not is_integer and _FLOAT.fullmatch(text) is None:
        return int(text, 0) if _OTHER_INTEGER.fullmatch(text) else text
    return int(text.replace("_", "")) if is_integer else float(text)
