"""One number of a YAML text replaced, or added, and every other character kept."""

from __future__ import annotations

import copy
import re
from typing import Any

from bexplore.document.reader import KeyPath, Position, YamlReader
from bexplore.errors import UserInputError

_ANCHOR = re.compile(r"&\S+\s*")
_REST_OF_LINE = re.compile(r"[ \t]*(#[^\r\n]*)?")
_LINE_BREAK = re.compile(r"\r\n|\r|\n")


def with_number(text: str, path: KeyPath, number: int, *, beside: KeyPath = (), source: str) -> str:
    """The text with a number at a path, and nothing else changed: neither a comment nor the order nor the quoting.

    The result is read again before it is believed: where a value is shared (an anchor, a merged mapping), changing it
    would change other keys too, and that is refused.

    Args:
        text: A YAML document.
        path: Keys and list indices from the top.
        number: What to write.
        beside: A key of the same mapping, before which a path that is absent is added.
        source: The file, for messages.

    Raises:
        UserInputError: The number cannot be written without changing something else.
    """
    reader = YamlReader(source)
    before = reader.read(text)
    place, neighbour = reader.positions.get(path), reader.positions.get(beside)
    if place is not None and place.span is not None:
        changed = _replaced(text, place, number)
    elif neighbour is not None and neighbour.key_span is not None and beside[:-1] == path[:-1]:
        flow = text.startswith("{", (reader.positions[path[:-1]].span or (0, 0))[0])
        changed = _added(text, neighbour.key_span[0], f"{path[-1]}: {number}", flow=flow)
    else:
        raise UserInputError(
            f"{source}: {path[-1]} stands nowhere in the file", hint=f"write {path[-1]}: {number} there yourself"
        )
    _check(before, changed, path, number, source)
    return changed


def _replaced(text: str, place: Position, number: int) -> str:
    """A value on its key's own line is replaced alone; a block below its key leaves with its lines."""
    assert place.span is not None  # the caller has looked
    start, end = place.span
    anchor = _ANCHOR.match(text, start, end)
    start = anchor.end() if anchor else start
    end_of_line = _REST_OF_LINE.match(text, end)
    if place.key_span is not None and anchor is None and end_of_line is not None:
        header = text[place.key_span[1] : start]
        line = _LINE_BREAK.search(header)
        is_whole = _LINE_BREAK.match(text, end_of_line.end()) or end_of_line.end() == len(text)
        if line is not None and is_whole and header.lstrip().startswith(":"):
            colon = place.key_span[1] + header.index(":") + 1
            comment = text[colon : place.key_span[1] + line.start()]
            return f"{text[:colon]} {number}{comment}{text[end_of_line.end() :]}"
    return f"{text[:start]}{number}{text[end:]}"


def _added(text: str, index: int, entry: str, *, flow: bool) -> str:
    """A new entry before the key that begins at a character."""
    if flow:
        return f"{text[:index]}{entry}, {text[index:]}"
    line_break = _LINE_BREAK.search(text)
    column = index - max(text.rfind("\n", 0, index), text.rfind("\r", 0, index)) - 1
    return f"{text[:index]}{entry}{line_break[0] if line_break else chr(10)}{' ' * column}{text[index:]}"


def _check(before: Any, changed: str, path: KeyPath, number: int, source: str) -> None:
    """Read the new text: it must say the same as the old one, but for the number."""
    expected = copy.deepcopy(before)
    container = expected
    for key in path[:-1]:
        container = container[key]
    container[path[-1]] = number
    try:
        is_same = _plain(YamlReader(source).read(changed)) == _plain(expected)
    except UserInputError:
        is_same = False
    if not is_same:
        raise UserInputError(
            f"{source}: {path[-1]} shares its value with other keys, which would change with it",
            hint=f"write {path[-1]}: {number} yourself, without the anchor or the merge",
        )


def _plain(value: Any) -> Any:
    """The value with mappings as sets of pairs, since a new key may stand before others, and NaN equal to itself."""
    if isinstance(value, dict):
        return frozenset((key, _plain(inner)) for key, inner in value.items())
    return tuple(_plain(inner) for inner in value) if isinstance(value, list) else repr(value)
