"""TOML text to plain values, with the place of each, and one value replaced or added with every other character kept.

tomllib reads the values. A scan finds their places in a time that grows with the length of the text, and refuses what
would cost tomllib a time that grows faster. No library does both: tomlkit 0.15 needs minutes for 250 keys of 63 parts.
"""

from __future__ import annotations

import bisect
import json
import re
import tomllib
from typing import Any

from bexplore.config.document.reader import LINE_BREAK, MAX_DEPTH, MAX_EVENTS, KeyPath, Position, line_break, shown
from bexplore.config.document.values import is_edit_of
from bexplore.errors import UserInputError

_BLANK = re.compile(r"(?:[ \t\r\n]+|#[^\r\n]*)*+")
_SPACE = re.compile(r"[ \t]*")
_END_OF_LINE = re.compile(r"[ \t]*(?:#[^\r\n]*)?(?=[\r\n]|\Z)")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_KEY = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\\r\n]|\\.)*+"|'[^'\r\n]*'""")
_SCALAR = re.compile(
    r'''"""(?:[^"\\]|\\.|""?(?!"))*+"{3,5}'''
    r"""|'''(?:[^']|''?(?!'))*+'{3,5}"""
    r'''|"(?:[^"\\\r\n]|\\.)*+"'''
    r"""|'[^'\r\n]*'"""
    r"""|[^\s,\[\]{}#="']+(?:[ ]\d\d:[^\s,\[\]{}#="']+)?""",  # a date and a time have a space between them
    re.DOTALL,
)
_PLACE = re.compile(r"\(at line (\d+), column \d+\)|\(at end of document\)")


def read(text: str, source: str) -> tuple[dict[str, Any], dict[KeyPath, Position]]:
    """Return the values of a text, and the position of each.

    Raises:
        UserInputError: Not TOML, or deeper or larger than any configuration.
    """
    places = _Scan(text, source)
    try:
        return tomllib.loads(text), places.positions
    except (ValueError, RecursionError) as error:  # ValueError: a number of thousands of digits, an impossible date
        place = _PLACE.search(str(error))
        where = f"{source}:{place[1]}" if place is not None and place[1] else source
        raise UserInputError(f"{where}: not TOML: {shown(_PLACE.sub('', str(error)).strip())}") from None


def with_value(text: str, path: KeyPath, value: Any, *, source: str) -> str:
    """Return the text with a value at a path; a table that is missing is added behind the others.

    Raises:
        UserInputError: The value cannot be written without changing something else.
    """
    changed = _written(text, _Scan(text, source), path, _scalar(value))
    try:
        is_same = is_edit_of(tomllib.loads(text), tomllib.loads(changed), path, value)
    except (ValueError, RecursionError):
        is_same = False
    if not is_same:
        raise UserInputError(f"{source}: {path[-1]} cannot be written", hint=f"write {path[-1]} = {value!r} yourself")
    return changed


def without_section(text: str, name: str, *, source: str) -> str:
    """Return the text without the tables and keys below a name of the top level."""
    for path, (start, end) in reversed(_Scan(text, source).parts):
        if path[0] == name:
            found = LINE_BREAK.match(text, end)
            text = text[:start] + text[found.end() if found else end :]
    return text


class _Scan:
    """Places of a text, found once.

    Attributes:
        positions: Position of each table, key and list element.
        parts: Whole path of each header and each key outside of inline tables, and its lines without the last break.
        last: Lines of the last part of each table with a header, and of the top level.
        dotted: Table that a dotted key stands in, and its lines, by the path of each table that it makes.
    """

    def __init__(self, text: str, source: str) -> None:
        self.text = text
        self.positions: dict[KeyPath, Position] = {}
        self.parts: list[tuple[KeyPath, tuple[int, int]]] = []
        self.last: dict[KeyPath, tuple[int, int]] = {}
        self.dotted: dict[KeyPath, tuple[KeyPath, tuple[int, int]]] = {}
        self._source, self._index, self._num_elements = source, 0, dict[KeyPath, int]()
        self._lines = [found.end() for found in re.finditer("\n", text)]
        self._run()

    def _run(self) -> None:
        table: KeyPath = ()
        while self._take(_BLANK) and self._index < len(self.text):
            start = self.text.rfind("\n", 0, self._index) + 1
            if self.text.startswith("[", self._index):
                table = path = self._header()
            else:
                path = self._pair(table)
            if not self._take(_END_OF_LINE):
                raise self._error("a line break is missing behind the value")
            lines = (start, self._index)
            self.parts.append((path, lines))
            self.last[table] = lines
            for length in range(len(table) + 1, len(path)):
                self.dotted[path[:length]] = (table, lines)

    def _header(self) -> KeyPath:
        """Read `[a.b]` or `[[a.b]]`."""
        start, is_element = self._index, self.text.startswith("[[", self._index)
        brackets = 2 if is_element else 1
        self._index += brackets
        keys = self._key()
        if self.text[self._index : self._index + brackets] != "]" * brackets:
            raise self._error(f"{']' * brackets} is missing behind the name of a table")
        self._index += brackets
        path: KeyPath = ()
        for key in keys[:-1]:
            path = self._latest((*path, key))
        path = (*path, keys[-1])
        if is_element:
            self._num_elements[path] = self._num_elements.get(path, 0) + 1
            path = self._latest(path)
        self._note(path, start, None)
        return path

    def _latest(self, path: KeyPath) -> KeyPath:
        """Return the path of the last element where a path is a list of tables."""
        return (*path, self._num_elements[path] - 1) if path in self._num_elements else path

    def _pair(self, table: KeyPath) -> KeyPath:
        """Read `a.b = value`."""
        start = self._index
        path = (*table, *self._key())
        end = self._index
        if not self.text.startswith("=", self._index):
            raise self._error("= is missing behind a key")
        self._index += 1
        self._take(_SPACE)
        for length in range(len(table) + 1, len(path)):
            self.positions.setdefault(path[:length], Position(line=self._line(start)))
        self._value(path, start, (start, end))
        return path

    def _key(self) -> tuple[str, ...]:
        """Read the parts of a key and the spaces behind it."""
        parts: list[str] = []
        while not parts or self.text.startswith(".", self._index):
            self._index += 1 if parts else 0
            self._take(_SPACE)
            found = _KEY.match(self.text, self._index)
            if found is None:
                raise self._error("a key is missing")
            parts.append(self._unquoted(found[0]))
            self._index = found.end()
            self._take(_SPACE)
            if len(parts) > MAX_DEPTH:
                raise self._error(f"nested more than {MAX_DEPTH} deep", is_limit=True)
        return tuple(parts)

    def _unquoted(self, part: str) -> str:
        try:
            return tomllib.loads(f"key = {part}")["key"] if part[0] in "\"'" else part
        except ValueError:
            raise self._error("a key has a wrong escape") from None

    def _value(self, path: KeyPath, start: int, key_span: tuple[int, int] | None) -> None:
        """Read the value of a key or a list element."""
        if len(path) > MAX_DEPTH:
            raise self._error(f"nested more than {MAX_DEPTH} deep", is_limit=True)
        begin = self._index
        if self.text.startswith("[", begin):
            self._index += 1
            self._elements(path)
        elif self.text.startswith("{", begin):
            self._index += 1
            self._inline_table(path)
        elif not self._take(_SCALAR):
            raise self._error("a value is missing, or its quotes are not closed")
        self._note(path, start, (begin, self._index), key_span)

    def _elements(self, path: KeyPath) -> None:
        number = 0
        while self._take(_BLANK) and not self._closes("]"):
            self._value((*path, number), self._index, None)
            number += 1
            self._take(_BLANK)
            self._comma("]")

    def _inline_table(self, path: KeyPath) -> None:
        while self._take(_BLANK) and not self._closes("}"):
            self._pair(path)
            self._take(_BLANK)
            self._comma("}")

    def _closes(self, bracket: str) -> bool:
        is_closed = self.text.startswith(bracket, self._index)
        self._index += is_closed
        return is_closed

    def _comma(self, bracket: str) -> None:
        if self.text.startswith(",", self._index):
            self._index += 1
        elif not self.text.startswith(bracket, self._index):
            raise self._error(f", or {bracket} is missing")

    def _take(self, pattern: re.Pattern[str]) -> bool:
        """Go behind a pattern that stands here."""
        found = pattern.match(self.text, self._index)
        self._index = self._index if found is None else found.end()
        return found is not None

    def _note(
        self, path: KeyPath, start: int, span: tuple[int, int] | None, key_span: tuple[int, int] | None = None
    ) -> None:
        self.positions[path] = Position(line=self._line(start), span=span, key_span=key_span)
        if 2 * len(self.positions) > MAX_EVENTS:
            raise self._error(
                f"more than {MAX_EVENTS // 2} keys and values; no configuration has so many", is_limit=True
            )

    def _line(self, index: int) -> int:
        return bisect.bisect_right(self._lines, index) + 1

    def _error(self, problem: str, *, is_limit: bool = False) -> UserInputError:
        what = problem if is_limit else f"not TOML: {problem}"
        return UserInputError(f"{self._source}:{self._line(self._index)}: {what}")


def _written(text: str, scan: _Scan, path: KeyPath, value: str) -> str:
    """Return the text with a written value at a path."""
    place = scan.positions.get(path)
    if place is not None and place.span is not None:
        return text[: place.span[0]] + value + text[place.span[1] :]
    parent, key = path[:-1], _name(path[-1])
    table = scan.positions.get(parent)
    if table is not None and table.span is not None:  # an inline table
        return _with_entry(text, table.span, f"{key} = {value}")
    if parent in scan.dotted:
        around, lines = scan.dotted[parent]
        return _with_line(text, lines, f"{'.'.join(map(_name, path[len(around) :]))} = {value}")
    if parent in scan.last:
        return _with_line(text, scan.last[parent], f"{key} = {value}")
    end = line_break(text)
    if not parent:
        return f"{key} = {value}{end}{text}"
    gap = end * (2 if text and not text.endswith("\n") else 1 if text else 0)
    header = ".".join(_name(part) for part in parent if isinstance(part, str))
    return f"{text}{gap}[{header}]{end}{key} = {value}{end}"


def _with_line(text: str, behind: tuple[int, int], line: str) -> str:
    """Return the text with a line behind others, indented as they are."""
    start, end = behind
    indent = _SPACE.match(text, start)
    return f"{text[:end]}{line_break(text)}{indent[0] if indent else ''}{line}{text[end:]}"


def _with_entry(text: str, span: tuple[int, int], entry: str) -> str:
    """Return the text with an entry in front of those of an inline table."""
    space = _SPACE.match(text, span[0] + 1)
    index = space.end() if space else span[0] + 1
    return f"{text[:index]}{entry}{'' if index == span[1] - 1 else ', '}{text[index:]}"


def _name(key: str | int) -> str:
    return str(key) if _BARE.fullmatch(str(key)) else _scalar(str(key))


def _scalar(value: Any) -> str:
    """Return a value as TOML writes it: JSON's way, but for a character that JSON leaves bare."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
