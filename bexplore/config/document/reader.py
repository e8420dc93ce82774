"""YAML (or JSON) text to plain values, with the line of every key: ruamel.yaml's only door.

ruamel parses and composes the nodes; its constructors are not used, because they would give up promises of this file:
plain words have their YAML 1.2 core type (ruamel adds dates and binary numbers), tags that name a type of a program are
refused, a repeated key is an error only if its values differ, and the characters of each value are kept for the writer.
Depth and number of events are bounded, before and after aliases are followed: a hostile text costs a bounded time and
ends in one message.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import AliasEvent, Event, ScalarEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.tag import Tag

from bexplore.errors import UserInputError

MAX_EVENTS = 4_000  # parser events, a sixth of a second on a slow core; the largest public file has 1,850
MAX_DEPTH = 64  # nested mappings and lists
MAX_VALUES = 10_000  # after aliases have been followed
LINE_BREAK = re.compile(r"\r\n|\r|\n")
_SHOWN_CHARACTERS = 60

KeyPath = tuple[str | int, ...]

_INTEGER = re.compile(r"[-+]?[0-9][0-9_]*")
_OTHER_INTEGER = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL_FLOATS = {".inf": math.inf, "+.inf": math.inf, "-.inf": -math.inf, ".nan": math.nan}
_WORDS: dict[str, Any] = {"": None, "~": None, "null": None, "true": True, "false": False}
_BRACKETS = re.compile(r"[\[\]{}]")
_TEXT, _PLAIN = "tag:yaml.org,2002:str", "tag:yaml.org,2002:null"
_PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq"))
_LONGEST_NUMBER = 400  # characters; no float has more digits before it is infinite


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Place of a value in the file or on the command line.

    Attributes:
        line: Line of the key, or of the value of a list element, from 1; None for a value of the command line.
        span: Characters of the text from the first of the value to just behind its last; None without a line.
        key_span: Characters of the key in the same way; None without a line and for a list element.
        override: The `--set` text that gave the value; empty for the file.
    """

    line: int | None = None
    span: tuple[int, int] | None = None
    key_span: tuple[int, int] | None = None
    override: str = ""


def kind_of(value: Any) -> str:
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


def shown(value: Any) -> str:
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


def quoted(value: Any) -> str:
    """Return `shown(value)`, with quotation marks around a text."""
    return f'"{shown(value)}"' if isinstance(value, str) else shown(value)


def line_break(text: str) -> str:
    """Return the line break of a text: its first."""
    found = LINE_BREAK.search(text)
    return found[0] if found else "\n"


class _Alias(Node):
    """A node in place of an alias; `value` is the node that it repeats."""


class _Resolver(VersionedResolver):
    """Give untagged plain words, and only them, the tag `null`: `resolve_plain` finds their types."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Tag:
        """Return the tag of a node without one."""
        return Tag(suffix=_PLAIN if kind is ScalarNode and implicit[0] else _TEXT)


class _Composer(Composer):
    """Compose one document, with bounded depth and number of events, and keep the place of each alias."""

    def __init__(self, loader: Any, error: Callable[[Event | Node, str], UserInputError]) -> None:
        super().__init__(loader=loader)
        self.warn_double_anchors = False
        self._error = error
        self._num_documents = self._num_events = self._open = 0
        self._end: Any = None  # mark behind the last visible character of a node

    def compose_document(self) -> Any:
        """Compose the only document."""
        self._num_documents += 1
        if self._num_documents > 1:
            raise self._error(self.parser.peek_event(), "a second document starts here; one file holds one job")
        return super().compose_document()

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node, whose end mark is behind its own last character."""
        event = self.parser.peek_event()
        self._check(event)
        if isinstance(event, AliasEvent):
            node = self._alias(self.parser.get_event())
        else:
            self._open += 1
            node = super().compose_node(parent, index)
            self._open -= 1
        if isinstance(node, MappingNode | SequenceNode) and not node.flow_style:
            node.end_mark = self._end or node.start_mark  # a block's own end mark lies at the next token
        elif node.end_mark.index > node.start_mark.index:
            self._end = node.end_mark
        return node

    def _check(self, event: Any) -> None:
        self._num_events += 1 if isinstance(event, AliasEvent | ScalarEvent) else 2  # a collection ends, too
        if self._num_events > MAX_EVENTS:
            raise self._error(event, f"more than {MAX_EVENTS} keys and values; no configuration has so many")
        if self._open > MAX_DEPTH:
            raise self._error(event, f"nested more than {MAX_DEPTH} deep")
        tag = str(getattr(event, "tag", None) or "!")
        if tag != "!" and tag not in _PLAIN_TAGS:
            raise self._error(event, f"the tag {shown(tag)} is refused: a configuration holds plain values only")

    def _alias(self, event: AliasEvent) -> _Alias:
        if event.anchor not in self.anchors:
            raise self._error(event, f"the alias *{shown(event.anchor)} repeats a value that is not there")
        return _Alias(None, self.anchors[event.anchor], event.start_mark, event.end_mark, anchor=event.anchor)


class YamlReader:
    """A reader of text to nodes to values; dubious text becomes a warning, wrong text a UserInputError."""

    def __init__(self, source: str) -> None:
        """Read for a source, which messages name: a file, or a `--set` text."""
        self.source = source
        self.positions: dict[KeyPath, Position] = {}
        self.warnings: list[str] = []
        self._open: list[Node] = []  # collections around the current value
        self._num_values = 0

    def read(self, text: str) -> Any:
        """Return the value of the only document of a text; None for an empty text."""
        if self.source.endswith(".json"):
            text = text.replace("\t", " ")  # JSON is indented with tabs too, and has none inside its texts
        self._check_brackets(text)
        yaml = YAML(typ="safe", pure=True)
        yaml.Resolver = _Resolver
        yaml.Composer = functools.partial(_Composer, error=self._error)  # type: ignore[assignment]  # called, no more
        try:
            node = yaml.compose(text)
            return None if node is None else self._value(node, ())
        except YAMLError as error:
            raise self._syntax_error(error) from None
        except (ValueError, RecursionError, AttributeError, AssertionError, IndexError) as error:
            # Bugs of the parser on malformed input: the file is at fault all the same.
            raise UserInputError(f"{self.source} is not YAML: {shown(str(error))}") from None

    def _check_brackets(self, text: str) -> None:
        """Refuse towers of open brackets unparsed: the parser's time grows with the square of their height."""
        depth = 0
        for bracket in _BRACKETS.finditer(text):
            depth += 1 if bracket[0] in "[{" else -1
            if depth > 2 * MAX_DEPTH:
                where = self._where(text.count("\n", 0, bracket.start()) + 1)
                raise UserInputError(f"{where}: more than {2 * MAX_DEPTH} brackets are open")

    def _value(self, node: Node, path: KeyPath) -> Any:
        if isinstance(node, _Alias):
            if any(node.value is around for around in self._open):
                raise self._error(node, f"the alias *{shown(node.anchor)} stands inside the value that it repeats")
            return self._value(node.value, path)  # built anew: an override of one place must not change the other
        self._count(node)
        if isinstance(node, ScalarNode):
            return self._scalar(node)
        if len(self._open) >= MAX_DEPTH:
            raise self._error(node, f"nested more than {MAX_DEPTH} deep")
        self._open.append(node)
        value = self._mapping(node, path) if isinstance(node, MappingNode) else self._sequence(node, path)
        self._open.pop()
        return value

    def _sequence(self, node: Node, path: KeyPath) -> list[Any]:
        values = []
        for index, element in enumerate(node.value):
            values.append(self._value(element, (*path, index)))
            self.positions[*path, index] = _position(element, element)
        return values

    def _mapping(self, node: Node, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        merged = []
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                raise self._error(key_node, "a key must be a plain word, not a list, a mapping or an alias")
            self._count(key_node)
            key = key_node.value  # the text of the key, also of one that looks like a number
            if key == "<<" and key_node.style is None:
                merged.append(value_node)
                continue
            earlier = self.positions.get((*path, key))
            value = self._value(value_node, (*path, key))
            if key in values and earlier is not None:
                self._duplicate(key_node, values[key], value, earlier)
            values[key] = value
            self.positions[*path, key] = _position(key_node, value_node)
        for value_node in merged:
            self._merge(value_node, path, values)
        return values

    def _merge(self, node: Node, path: KeyPath, values: dict[str, Any]) -> None:
        """Add keys of other mappings, where they are not given, with the lines that they have there."""
        listed = node.value if isinstance(node, _Alias) else node
        own = self.positions
        for mapping in listed.value if isinstance(listed, SequenceNode) else [node]:
            self.positions = {}
            inherited = self._value(mapping, path)
            if not isinstance(inherited, dict):
                raise self._error(node, f"<< merges mappings, not {kind_of(inherited)}")
            for place, position in self.positions.items():
                own.setdefault(place, position)
            for key, value in inherited.items():
                values.setdefault(key, value)
        self.positions = own

    def _duplicate(self, node: Node, first: Any, second: Any, earlier: Position) -> None:
        twice = f"the key {quoted(node.value)} stands twice, with"
        if repr(first) != repr(second):
            raise self._error(node, f"{twice} {quoted(first)} (line {earlier.line}) and {quoted(second)}")
        self.warnings.append(f"{self._where(node.start_mark.line + 1)}: {twice} the same value")

    def _scalar(self, node: ScalarNode) -> Any:
        if node.tag == _TEXT:
            return node.value
        try:
            return resolve_plain(node.value)
        except OverflowError:
            raise self._error(node, f"the number {shown(node.value)} is too large") from None

    def _count(self, node: Node) -> None:
        self._num_values += 1
        if self._num_values > MAX_VALUES:
            raise self._error(node, f"more than {MAX_VALUES} values once aliases are followed")

    def _where(self, line: int) -> str:
        return self.source if self.source.startswith("--set") else f"{self.source}:{line}"

    def _error(self, place: Event | Node, rule: str) -> UserInputError:
        return UserInputError(f"{self._where(place.start_mark.line + 1)}: {rule}")

    def _syntax_error(self, error: YAMLError) -> UserInputError:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "context", None) or str(error).partition("\n")[0]
        where = self.source if mark is None else self._where(mark.line + 1)
        hint = "indent with spaces, not with tabs" if "\\t" in str(problem) or "\t" in str(problem) else ""
        return UserInputError(f"{where}: not YAML: {shown(str(problem))}", hint=hint)


@functools.lru_cache(maxsize=4)  # a text is loaded, written to key by key, and checked: each is read once
def read_yaml(text: str, source: str) -> tuple[Any, Mapping[KeyPath, Position], tuple[str, ...]]:
    """Return the values of a text, their positions and warnings. They are shared: copy what you change.

    Raises:
        UserInputError: Not YAML, hostile, or larger than any configuration.
    """
    reader = YamlReader(source)
    return reader.read(text), reader.positions, tuple(reader.warnings)


def resolve_plain(text: str) -> Any:
    """Return the value of a plain word under the core schema of YAML 1.2.

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


def _position(key: Node, value: Node) -> Position:
    start = value.start_mark.index
    return Position(
        line=key.start_mark.line + 1,
        span=(start, max(value.end_mark.index, start)),
        key_span=None if key is value else (key.start_mark.index, key.end_mark.index),
    )
