"""YAML (or JSON) text to plain values, with the line of every key: ruamel.yaml's only door.

Only ruamel's event parser is used, and no object of its own is ever constructed: tags that name a type of a program
are refused, aliases are counted before they are followed, and depth and number of events are bounded, so a hostile text
costs a bounded time and ends in one message.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from bexplore.errors import UserInputError

MAX_EVENTS = 8_000  # parser events, a third of a second on a slow core; the largest public file has 1,850
MAX_DEPTH = 64  # nested mappings and lists
MAX_VALUES = 50_000  # after aliases have been followed
_SHOWN_CHARACTERS = 60

KeyPath = tuple[str | int, ...]

_INTEGER = re.compile(r"[-+]?[0-9][0-9_]*")
_OTHER_INTEGER = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL_FLOATS = {".inf": math.inf, "+.inf": math.inf, "-.inf": -math.inf, ".nan": math.nan}
_WORDS: dict[str, Any] = {"": None, "~": None, "null": None, "true": True, "false": False}
_BRACKETS = re.compile(r"[\[\]{}]")
_PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq"))
_VISIBLE = (ScalarEvent, AliasEvent, MappingEndEvent, SequenceEndEvent)
_LONGEST_NUMBER = 400  # characters; no float has more digits before it is infinite


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a value stands: in the file, or on the command line.

    Attributes:
        line: Of the key (of the value, for an element of a list), from 1; None for a value of the command line.
        span: Characters of the text from the first of the value to just behind its last; None as above.
        key_span: The same of its key; None as above, and for an element of a list.
        override: The `--set` text that gave the value; empty for the file.
    """

    line: int | None = None
    span: tuple[int, int] | None = None
    key_span: tuple[int, int] | None = None
    override: str = ""


def kind_of(value: Any) -> str:
    """The kind of a value, in the words of YAML."""
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


def shown(value: Any) -> str:
    """A value as it is shown in a message: on one line, and not too long."""
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


def quoted(value: Any) -> str:
    """As `shown`, with quotation marks around a text."""
    return f'"{shown(value)}"' if isinstance(value, str) else shown(value)


@dataclass(slots=True)
class _Anchor:
    """A value that an alias may repeat, and how many values it holds."""

    value: Any
    size: int
    positions: dict[KeyPath, Position]


class YamlReader:
    """Events to values: one pass, with every bound checked before anything is built."""

    def __init__(self, source: str) -> None:
        """Read for a source, which is named in messages: a file, or a `--set` text."""
        self.source = source
        self.positions: dict[KeyPath, Position] = {}
        self.warnings: list[str] = []
        self._order: list[KeyPath] = []  # paths as they were met: what an anchored value holds is a tail of it
        self._anchors: dict[str, _Anchor | None] = {}
        self._num_events = 0
        self._num_values = 0
        self._depth = 0
        self._end = 0  # character behind the last thing that was read; a block's own end mark lies far behind it
        self._events: Iterator[Any] = iter(())

    def read(self, text: str) -> Any:
        """The value of the only document of a text; None for an empty text."""
        self._check_brackets(text)
        parser = YAML(typ="safe", pure=True)
        try:
            self._events = self._bounded(parser.parse(text))
            value, num_documents = None, 0
            for event in self._events:
                if isinstance(event, DocumentStartEvent):
                    num_documents += 1
                    if num_documents > 1:
                        raise self._error(event, "a second document starts here; one file holds one job")
                elif isinstance(event, NodeEvent):
                    value = self._node(event, ())
            return value
        except YAMLError as error:
            raise self._syntax_error(error) from None
        except (ValueError, RecursionError, AttributeError, AssertionError, IndexError) as error:
            # The parser's own slips on malformed input; the file is at fault, whatever the parser stumbled on.
            raise UserInputError(f"{self.source} is not YAML: {shown(str(error))}") from None

    def _check_brackets(self, text: str) -> None:
        """Refuse towers of open brackets unparsed: the parser's time grows with the square of their height."""
        depth = 0
        for bracket in _BRACKETS.finditer(text):
            depth += 1 if bracket[0] in "[{" else -1
            if depth > 2 * MAX_DEPTH:
                line = text.count("\n", 0, bracket.start()) + 1
                where = self.source if self.source.startswith("--set") else f"{self.source}:{line}"
                raise UserInputError(f"{where}: more than {2 * MAX_DEPTH} brackets are open")

    def _bounded(self, events: Iterator[Any]) -> Iterator[Any]:
        for event in events:
            self._num_events += 1
            if self._num_events > MAX_EVENTS:
                raise self._error(event, f"more than {MAX_EVENTS} keys and values; no configuration has so many")
            if event.end_mark.index > event.start_mark.index and isinstance(event, _VISIBLE):
                self._end = event.end_mark.index
            yield event

    def _node(self, event: NodeEvent, path: KeyPath) -> Any:
        if isinstance(event, AliasEvent):
            return self._alias(event, path)
        self._count(event, 1)
        size_before, num_known = self._num_values, len(self._order)
        if event.anchor is not None:
            self._anchors[event.anchor] = None  # known, not finished: an alias inside it would never end
        if isinstance(event, ScalarEvent):
            value = self._scalar(event)
        else:
            value = self._collection(event, path)
        if event.anchor is not None:
            inside = {known[len(path) :]: self.positions[known] for known in self._order[num_known:]}
            self._anchors[event.anchor] = _Anchor(value, self._num_values - size_before + 1, inside)
        return value

    def _collection(self, event: NodeEvent, path: KeyPath) -> Any:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(event, f"nested more than {MAX_DEPTH} deep")
        if not isinstance(event, MappingStartEvent | SequenceStartEvent):
            raise self._error(event, "not a value")
        self._check_tag(event)
        value = self._mapping(path) if isinstance(event, MappingStartEvent) else self._sequence(path)
        self._depth -= 1
        return value

    def _sequence(self, path: KeyPath) -> list[Any]:
        values: list[Any] = []
        for event in self._events:
            if isinstance(event, SequenceEndEvent):
                break
            here = (*path, len(values))
            values.append(self._node(event, here))
            self._remember(here, _position(event, event, self._end))
        return values

    def _mapping(self, path: KeyPath) -> dict[Any, Any]:
        values: dict[Any, Any] = {}
        merged: list[tuple[Any, Any, range]] = []
        for key_event in self._events:
            if isinstance(key_event, MappingEndEvent):
                break
            if not isinstance(key_event, ScalarEvent):
                raise self._error(key_event, "a key must be a plain word, not a list, a mapping or an alias")
            self._count(key_event, 1)
            key = key_event.value  # the text of the key, whatever type it looks like
            here = (*path, key)
            value_event = next(self._events)
            if key == "<<" and key_event.style is None:
                num_known = len(self._order)
                value = self._node(value_event, here)
                merged.append((value_event, value, range(num_known, len(self._order))))
                continue
            earlier = self.positions.get(here)
            value = self._node(value_event, here)
            if key in values:
                self._duplicate(key_event, key, values[key], value, earlier)
            values[key] = value
            self._remember(here, _position(key_event, value_event, self._end))
        for value_event, value, inside in merged:
            self._merge(value_event, path, values, value, inside)
        return values

    def _merge(self, event: Any, path: KeyPath, values: dict[Any, Any], merged: Any, inside: range) -> None:
        """`<<: *defaults`: keys of another mapping, where they are not given, with the lines that they have there."""
        for mapping in merged if isinstance(merged, list) else [merged]:
            if not isinstance(mapping, dict):
                raise self._error(event, f"<< merges mappings, not {kind_of(mapping)}")
            for key, inherited in mapping.items():
                values.setdefault(key, inherited)
        depth = len(path) + (2 if isinstance(merged, list) else 1)
        for known in [self._order[index] for index in inside if len(self._order[index]) > depth]:
            here = (*path, *known[depth:])
            if here not in self.positions:
                self._remember(here, self.positions[known])

    def _duplicate(self, event: Any, key: str, first: Any, second: Any, earlier: Position | None) -> None:
        line = earlier.line if earlier is not None else None
        if repr(first) != repr(second):
            raise self._error(
                event, f"the key {quoted(key)} stands twice, with {quoted(first)} (line {line}) and {quoted(second)}"
            )
        self.warnings.append(f"{self._where(event)}: the key {quoted(key)} stands twice, with the same value")

    def _alias(self, event: AliasEvent, path: KeyPath) -> Any:
        anchor = self._anchors.get(event.anchor)
        if anchor is None:
            is_inside = event.anchor in self._anchors
            reason = "stands inside the value that it repeats" if is_inside else "repeats a value that is not there"
            raise self._error(event, f"the alias *{shown(event.anchor)} {reason}")
        self._count(event, anchor.size)
        for inner, position in anchor.positions.items():
            self._remember((*path, *inner), position)
        return copy.deepcopy(anchor.value)  # an override of one place must not change the other

    def _remember(self, path: KeyPath, position: Position) -> None:
        self.positions[path] = position
        self._order.append(path)

    def _scalar(self, event: ScalarEvent) -> Any:
        self._check_tag(event)
        tag = str(event.tag or "")
        if tag == "tag:yaml.org,2002:str" or (event.style is not None and not tag) or tag == "!":
            return event.value
        try:
            return resolve_plain(event.value)
        except OverflowError:
            raise self._error(event, f"the number {shown(event.value)} is too large") from None

    def _check_tag(self, event: Any) -> None:
        tag = str(event.tag) if event.tag else ""
        if tag and tag != "!" and tag not in _PLAIN_TAGS:
            raise self._error(event, f"the tag {shown(tag)} is refused: a configuration holds plain values only")

    def _count(self, event: Any, num_values: int) -> None:
        self._num_values += num_values
        if self._num_values > MAX_VALUES:
            raise self._error(event, f"more than {MAX_VALUES} values once aliases are followed")

    def _where(self, event: Any) -> str:
        if self.source.startswith("--set"):
            return self.source
        return f"{self.source}:{event.start_mark.line + 1}"

    def _error(self, event: Any, rule: str) -> UserInputError:
        return UserInputError(f"{self._where(event)}: {rule}")

    def _syntax_error(self, error: YAMLError) -> UserInputError:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "context", None) or str(error).partition("\n")[0]
        where = self.source if mark is None or self.source.startswith("--set") else f"{self.source}:{mark.line + 1}"
        hint = "indent with spaces, not with tabs" if "\\t" in str(problem) or "\t" in str(problem) else ""
        return UserInputError(f"{where}: not YAML: {shown(str(problem))}", hint=hint)


def resolve_plain(text: str) -> Any:
    """The value of a plain word under the core schema of YAML 1.2.

    Raises:
        OverflowError: A number of hundreds of digits.
    """
    lowered = text.lower()
    if lowered in _WORDS and text in (lowered, lowered.capitalize(), lowered.upper()):
        return _WORDS[lowered]
    if lowered in _SPECIAL_FLOATS:
        return _SPECIAL_FLOATS[lowered]
    is_integer = _INTEGER.fullmatch(text) is not None
    if not is_integer and _FLOAT.fullmatch(text) is None:
        return int(text, 0) if len(text) <= _LONGEST_NUMBER and _OTHER_INTEGER.fullmatch(text) else text
    if len(text) > _LONGEST_NUMBER:
        raise OverflowError
    return int(text.replace("_", "")) if is_integer else float(text)


def _position(key_event: Any, value_event: Any, end: int) -> Position:
    key_span = (key_event.start_mark.index, key_event.end_mark.index)
    return Position(
        line=key_event.start_mark.line + 1,
        span=(value_event.start_mark.index, max(end, value_event.start_mark.index)),
        key_span=None if key_event is value_event else key_span,
    )
