"""A YAML (or JSON) file as plain values, with the line of every key: ruamel.yaml's only door.

Only ruamel's event parser is used, and no object of its own is ever constructed: tags that name a type of a program
are refused, aliases are counted before they are followed, and depth and number of events are bounded, so a hostile file
costs a bounded time and ends in one message.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
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

MAX_FILE_BYTES = 128 * 1024  # the largest public parameter file has 23 KiB
MAX_EVENTS = 10_000  # half a second of the parser on a slow core; the largest public file has 1,100
MAX_DEPTH = 64  # nested mappings and lists
MAX_VALUES = 50_000  # after aliases have been followed
_SHOWN_CHARACTERS = 60

Path_ = tuple[str | int, ...]

_INTEGER = re.compile(r"[-+]?[0-9][0-9_]*")
_OTHER_INTEGER = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL_FLOATS = {".inf": math.inf, "+.inf": math.inf, "-.inf": -math.inf, ".nan": math.nan}
_WORDS: dict[str, Any] = {"": None, "~": None, "null": None, "true": True, "false": False}
_PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a value stands: in the file, or on the command line.

    Attributes:
        line: Of the key (of the value, for an element of a list), from 1; None for a value of the command line.
        value_start: (line, column) where the value begins, both from 1; None as above.
        value_end: (line, column) just behind the value.
        override: The `--set` text that gave the value; empty for the file.
    """

    line: int | None = None
    value_start: tuple[int, int] | None = None
    value_end: tuple[int, int] | None = None
    override: str = ""


@dataclass(slots=True, kw_only=True)
class Document:
    """The values of a file and the position of each.

    Attributes:
        path: The file.
        values: Its top-level mapping.
        positions: Position by path of keys and list indices.
        warnings: Lines on what was read but is dubious, such as a key that stands twice.
    """

    path: Path
    values: dict[str, Any]
    positions: dict[Path_, Position] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def get(self, path: Sequence[str | int], default: Any = None) -> Any:
        """The value at a path of keys and indices; `default` where there is none."""
        value: Any = self.values
        for key in path:
            if isinstance(value, dict) and key in value:
                value = value[key]
            elif isinstance(value, list) and isinstance(key, int) and -len(value) <= key < len(value):
                value = value[key]
            else:
                return default
        return value

    def has(self, path: Sequence[str | int]) -> bool:
        """Whether something stands at a path; null counts."""
        missing = object()
        return self.get(path, missing) is not missing

    def where(self, path: Sequence[str | int]) -> str:
        """`file:line` of a path, or of the nearest thing around it; `--set ...` for a value of the command line."""
        for length in range(len(path), -1, -1):
            position = self.positions.get(tuple(path[:length]))
            if position is not None:
                return f"--set {position.override}" if position.override else f"{self.path}:{position.line}"
        return f"{self.path}"

    def apply_override(self, text: str) -> None:
        """Set one value, as `--set a.b=c` does.

        The value is read as YAML. A path may go through list indices (`a.0.b`) and, in a list of single-key mappings,
        through the key (`callbacks.ScopedTrainFlags.x`). Keys that contain dots are found as they stand in the file.

        Raises:
            UserInputError: Not of the form key=value, not YAML, or a path through something that is not a mapping.
        """
        dotted, equals, written = text.partition("=")
        if not equals or not all(part.strip() for part in dotted.split(".")):
            raise UserInputError(f'--set needs key=value, not "{shown(text)}"', hint="type --set explore.seed=1")
        value = parse_value(written, f"--set {shown(text)}")
        path = self._resolve([part.strip() for part in dotted.split(".")], text)
        container = self.get(path[:-1])
        if isinstance(container, list):
            index = path[-1]
            if not isinstance(index, int) or index >= len(container):
                raise UserInputError(f'--set {shown(text)}: the list has no element "{index}"')
            container[index] = value
        elif isinstance(container, dict):
            container[path[-1]] = value
        else:
            raise UserInputError(f"--set {shown(text)}: {dotted_path(path[:-1])} is not a mapping")
        for known in [known for known in self.positions if known[: len(path)] == path]:
            del self.positions[known]
        self.positions[path] = Position(override=shown(text))

    def _resolve(self, parts: list[str], text: str) -> Path_:
        """Turn dotted parts into a path; make the mappings that are missing on the way."""
        path: list[str | int] = []
        value: Any = self.values
        while parts:
            if isinstance(value, list):
                index, is_named = _list_index(value, parts[0])
                path.append(index)
                value = value[index]
                parts = parts if is_named else parts[1:]
                continue
            if not isinstance(value, dict):
                raise UserInputError(f"--set {shown(text)}: {dotted_path(path)} is not a mapping")
            used = _longest_known_key(value, parts)
            key = ".".join(parts[:used])
            parts = parts[used:]
            path.append(key)
            if not parts:
                break
            if value.get(key) is None:
                value[key] = {}
            value = value[key]
        return tuple(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong: where, the rule with the value, and what to type."""

    where: str
    rule: str
    hint: str = ""


@dataclass(slots=True, kw_only=True)
class Problems:
    """Everything that is wrong with a document, so that it is said at once."""

    document: Document
    found: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def error(self, path: Sequence[str | int], rule: str, hint: str = "") -> None:
        """Note a mistake at a path."""
        problem = Problem(where=self.document.where(path), rule=rule, hint=hint)
        if problem not in self.found:
            self.found.append(problem)

    def warn(self, path: Sequence[str | int], text: str) -> None:
        """Note something dubious at a path."""
        line = f"{self.document.where(path)}: {text}"
        if line not in self.warnings:
            self.warnings.append(line)

    def raise_if_any(self) -> None:
        """Raise one UserInputError that lists all mistakes, in the order of the file."""
        if not self.found:
            return
        if len(self.found) == 1:
            only = self.found[0]
            raise UserInputError(f"{only.where}: {only.rule}", hint=only.hint)
        lines = [f"{len(self.found)} problems in {self.document.path}"]
        for problem in self.found:
            lines.append(f"  {problem.where}: {problem.rule}")
            lines.extend([f"      {problem.hint}"] if problem.hint else [])
        raise UserInputError("\n".join(lines))


def read(path: Path) -> Document:
    """Read a file whose top level is a mapping.

    Raises:
        UserInputError: Unreadable, too large, not text, not YAML, hostile, empty, or not a mapping.
    """
    text = _read_text(path)
    reader = _Reader(str(path))
    values = reader.read(text)
    if values is None:
        raise UserInputError(f"{path} is empty", hint="start from one of the files in configs/")
    if not isinstance(values, dict):
        raise UserInputError(f"{path}:1: the top level must be a mapping of sections, not {kind_of(values)}")
    return Document(path=path, values=values, positions=reader.positions, warnings=reader.warnings)


def parse_value(text: str, source: str) -> Any:
    """Read one YAML value from a short text, such as the right side of `--set`.

    Raises:
        UserInputError: Not YAML.
    """
    return _Reader(source).read(text)


def dotted_path(path: Sequence[str | int]) -> str:
    """A path as people write it."""
    return ".".join(str(key) for key in path)


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


def _read_text(path: Path) -> str:
    """The text of a file, never more than the limit."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except IsADirectoryError:
        raise UserInputError(f"{path} is a folder, not a file", hint="name the YAML file in it") from None
    except FileNotFoundError:
        raise UserInputError(f"there is no file {path}", hint="try configs/quickstart.yaml") from None
    except (OSError, ValueError) as error:
        raise UserInputError(f"{path} cannot be read: {error}") from None
    if len(content) > MAX_FILE_BYTES:
        raise UserInputError(
            f"{path} is larger than {MAX_FILE_BYTES // 1024} KiB; no configuration is",
            hint="name the YAML file of the training job",
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserInputError(f"{path} is not text: byte {error.start} is not UTF-8") from None


@dataclass(slots=True)
class _Anchor:
    """A value that an alias may repeat, and how many values it holds."""

    value: Any
    size: int
    positions: dict[Path_, Position]


class _Reader:
    """Events to values: one pass, with every bound checked before anything is built."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.positions: dict[Path_, Position] = {}
        self.warnings: list[str] = []
        self._order: list[Path_] = []  # paths as they were met: what an anchored value holds is a tail of it
        self._anchors: dict[str, _Anchor | None] = {}
        self._num_events = 0
        self._num_values = 0
        self._depth = 0
        self._events: Iterator[Any] = iter(())

    def read(self, text: str) -> Any:
        """The value of the only document of a text; None for an empty text."""
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

    def _bounded(self, events: Iterator[Any]) -> Iterator[Any]:
        for event in events:
            self._num_events += 1
            if self._num_events > MAX_EVENTS:
                raise self._error(event, f"more than {MAX_EVENTS} keys and values; no configuration has so many")
            yield event

    def _node(self, event: NodeEvent, path: Path_) -> Any:
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

    def _collection(self, event: NodeEvent, path: Path_) -> Any:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(event, f"nested more than {MAX_DEPTH} deep")
        if not isinstance(event, MappingStartEvent | SequenceStartEvent):
            raise self._error(event, "not a value")
        self._check_tag(event)
        value = self._mapping(path) if isinstance(event, MappingStartEvent) else self._sequence(path)
        self._depth -= 1
        return value

    def _sequence(self, path: Path_) -> list[Any]:
        values: list[Any] = []
        for event in self._events:
            if isinstance(event, SequenceEndEvent):
                break
            here = (*path, len(values))
            values.append(self._node(event, here))
            self._remember(here, _position(event, event))
        return values

    def _mapping(self, path: Path_) -> dict[Any, Any]:
        values: dict[Any, Any] = {}
        merged: list[tuple[Any, Any]] = []
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
                merged.append((value_event, self._node(value_event, here)))
                continue
            earlier = self.positions.get(here)
            value = self._node(value_event, here)
            if key in values:
                self._duplicate(key_event, key, values[key], value, earlier)
            values[key] = value
            self._remember(here, _position(key_event, value_event))
        for value_event, value in merged:
            self._merge(value_event, values, value)
        return values

    def _merge(self, event: Any, values: dict[Any, Any], value: Any) -> None:
        """`<<: *defaults`: keys of another mapping, where they are not given."""
        for mapping in value if isinstance(value, list) else [value]:
            if not isinstance(mapping, dict):
                raise self._error(event, f"<< merges mappings, not {kind_of(mapping)}")
            for key, inherited in mapping.items():
                values.setdefault(key, inherited)

    def _duplicate(self, event: Any, key: str, first: Any, second: Any, earlier: Position | None) -> None:
        line = earlier.line if earlier is not None else None
        if repr(first) != repr(second):
            raise self._error(
                event, f"the key {quoted(key)} stands twice, with {quoted(first)} (line {line}) and {quoted(second)}"
            )
        self.warnings.append(f"{self._where(event)}: the key {quoted(key)} stands twice, with the same value")

    def _alias(self, event: AliasEvent, path: Path_) -> Any:
        anchor = self._anchors.get(event.anchor)
        if anchor is None:
            is_inside = event.anchor in self._anchors
            reason = "stands inside the value that it repeats" if is_inside else "repeats a value that is not there"
            raise self._error(event, f"the alias *{shown(event.anchor)} {reason}")
        self._count(event, anchor.size)
        for inner, position in anchor.positions.items():
            self._remember((*path, *inner), position)
        return copy.deepcopy(anchor.value)  # an override of one place must not change the other

    def _remember(self, path: Path_, position: Position) -> None:
        self.positions[path] = position
        self._order.append(path)

    def _scalar(self, event: ScalarEvent) -> Any:
        self._check_tag(event)
        tag = str(event.tag or "")
        if tag == "tag:yaml.org,2002:str" or (event.style is not None and not tag) or tag == "!":
            return event.value
        value = resolve_plain(event.value)
        if isinstance(value, OverflowError):
            raise self._error(event, f"the number {shown(event.value)} is too large")
        return value

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
    """The value of a plain word under the core schema of YAML 1.2; an OverflowError for a number without end."""
    lowered = text.lower()
    if lowered in _WORDS and text in (lowered, lowered.capitalize(), lowered.upper()):
        return _WORDS[lowered]
    if lowered in _SPECIAL_FLOATS:
        return _SPECIAL_FLOATS[lowered]
    if len(text) > 400 and text[:1] in "+-.0123456789":
        return OverflowError() if _INTEGER.fullmatch(text) or _FLOAT.fullmatch(text) else text
    if _INTEGER.fullmatch(text):
        return int(text.replace("_", ""))
    if _OTHER_INTEGER.fullmatch(text):
        return int(text, 0)
    return float(text) if _FLOAT.fullmatch(text) else text


def _position(key_event: Any, value_event: Any) -> Position:
    start, end = value_event.start_mark, value_event.end_mark
    return Position(
        line=key_event.start_mark.line + 1,
        value_start=(start.line + 1, start.column + 1),
        value_end=(end.line + 1, end.column + 1),
    )


def _list_index(values: list[Any], part: str) -> tuple[int, bool]:
    """The index that a part of a path means in a list; a single-key mapping that is missing is appended.

    Returns:
        The index, and whether the part is a key of the element there (and not the index itself).
    """
    if part.isdecimal() and int(part) < len(values):
        return int(part), False
    for index, element in enumerate(values):
        if isinstance(element, dict) and part in element:
            return index, True
    values.append({part: {}})
    return len(values) - 1, True


def _longest_known_key(value: dict[str, Any], parts: list[str]) -> int:
    """How many parts make up a key of the mapping: the longest that stands there, else one.

    A flag such as `csx.performance.micro_batch_size` is one key of its callback.
    """
    for length in range(len(parts), 0, -1):
        if ".".join(parts[:length]) in value:
            return length
    return len(parts) if parts[0] == "csx" else 1
