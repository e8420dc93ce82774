"""TOML text to plain values with the line of each, and edits of one value: tomlkit's only door.

tomllib reads the values. tomlkit keeps every character of the rest where a value is replaced or added.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

import tomlkit
from tomlkit.container import Container
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AbstractTable, AoT, Item

from bexplore.config.document.reader import KeyPath, Position, show
from bexplore.config.document.values import is_edit_of
from bexplore.errors import UserInputError

_PLACE = re.compile(r"\(at line (\d+), column \d+\)|\(at end of document\)")
_MARK = re.compile(r"\0(\d+)\0|\n")  # a text of TOML has no null character
_COMMENTS_AT_END = re.compile(r"(?:^[ \t]*(?:#[^\r\n]*)?\r?\n)+\Z", re.MULTILINE)
_ERRORS = (TOMLKitError, ValueError, TypeError, KeyError, IndexError, RecursionError)  # tomlkit raises plain ones, too


def read(text: str, source: str) -> tuple[dict[str, Any], dict[KeyPath, Position]]:
    """Return the values of a text, and the line of each table and key."""
    try:
        return tomllib.loads(text), _positions(text)
    except (ValueError, RecursionError) as error:  # ValueError: a number of thousands of digits, an impossible date
        place = _PLACE.search(str(error))
        where = f"{source}:{place[1]}" if place is not None and place[1] else source
        raise UserInputError(f"{where}: not TOML: {show(_PLACE.sub('', str(error)).strip())}") from None


def with_value(text: str, path: KeyPath, value: Any, *, source: str) -> str:
    """Return the text with a value at a path; a table that is missing is added behind the others."""
    try:
        document = tomlkit.parse(text)
        is_kept = tomlkit.dumps(document) == text
        _put(document, path, value)
        changed = tomlkit.dumps(document)
        if not re.search(r"(?<!\r)\n", text) and "\r\n" in text:  # tomlkit ends the lines that it adds with \n alone
            changed = re.sub(r"(?<!\r)\n", "\r\n", changed)
        is_same = is_kept and is_edit_of(tomllib.loads(text), tomllib.loads(changed), path, value)
    except _ERRORS:
        is_same = False
    if not is_same:
        raise UserInputError(f"{source}: {path[-1]} cannot be written", hint=f"write {path[-1]} = {value!r} yourself")
    return changed


def write_pair(key: str, value: Any) -> str:
    """Return the line of a key and its value."""
    return tomlkit.dumps({key: value}).strip()


def without_section(text: str, name: str, *, source: str) -> str:
    """Return the text without the tables and keys below a name of the top level."""
    try:
        document = tomlkit.parse(text)
        document.remove(name)
        shorter = tomlkit.dumps(document)
    except _ERRORS:
        raise UserInputError(f"{source}: the section {name} cannot be removed", hint="remove it yourself") from None
    # tomlkit counts the comments before the next table as the section's, and they go with it: put them back.
    pairs = enumerate(zip(text, shorter, strict=False))
    first = next((index for index, (one, other) in pairs if one != other), len(shorter))
    start = text.rfind("\n", 0, first) + 1
    end = start + len(text) - len(shorter)
    comments = _COMMENTS_AT_END.search(text, start, end)
    is_one_part = text[:start] + text[end:] == shorter
    return f"{text[:start]}{comments[0]}{text[end:]}" if is_one_part and comments is not None else shorter


def _positions(text: str) -> dict[KeyPath, Position]:
    """Return the line of each table and key; nothing where tomlkit cannot read what tomllib can.

    tomlkit tells no lines, so each item gets a mark in front of it, and the marks are found in what is written.
    """
    positions: dict[KeyPath, Position] = {}
    try:
        document = tomlkit.parse(text)
        places = list(_items(document, ()))
        for number, (_, item) in enumerate(places):
            item.trivia.indent = f"\0{number}\0{item.trivia.indent}"
        line = 1
        for mark in _MARK.finditer(tomlkit.dumps(document)):
            if mark[1] is None:
                line += 1
                continue
            path = places[int(mark[1])][0]
            for length in range(1, len(path) + 1):  # a dotted key makes the tables around it
                positions.setdefault(path[:length], Position(line=line))
    except _ERRORS:
        pass
    return positions


def _items(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Item]]:
    for key, item in enumerate(value.body) if isinstance(value, AoT) else _entries(value):
        if not isinstance(item, AoT):
            yield (*path, key), item
        if isinstance(item, AoT | AbstractTable):
            yield from _items(item, (*path, key))


def _entries(table: Container | AbstractTable) -> Iterator[tuple[str, Item]]:
    """Yield the entries of a table as items: its own `items()` has plain truth values among them."""
    body = table.body if isinstance(table, Container) else table.value.body
    return ((key.key, item) for key, item in body if key is not None)


def _put(document: Container, path: KeyPath, value: Any) -> None:
    """Set the value at a path, indented as the keys before it are, and make the tables that are missing."""
    container: Any = document
    for depth, key in enumerate(path[:-1]):
        if isinstance(key, str) and key not in container:
            container[key] = tomlkit.table(is_super_table=depth < len(path) - 2)
        container = container[key]
    is_new = isinstance(container, Container | AbstractTable) and path[-1] not in container
    indents = [item.trivia.indent for _, item in _entries(container)] if is_new else []
    container[path[-1]] = item = tomlkit.item(value)
    item.trivia.indent = indents[-1] if indents else item.trivia.indent
