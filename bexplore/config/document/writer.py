"""Edits of a YAML, JSON or TOML text: one value replaced or added, and every other character kept."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from bexplore.config.document import toml
from bexplore.config.document.reader import (
    LINE_BREAK,
    WORD,
    KeyPath,
    Position,
    find_line_break,
    read_yaml,
    show,
)
from bexplore.config.document.values import as_comparable, has_reference, is_edit_of
from bexplore.errors import UserInputError

_ANCHOR = re.compile(r"&\S+\s*")
# What may stand above the first value: blanks, comments of YAML and of JSON, the mark of a document.
_LEAD = re.compile(r"(?:[\ufeff \t\r\n]|#[^\r\n]*|//[^\r\n]*|/\*.*?\*/|---(?=[\r\n]))*", re.DOTALL)
_REST_OF_LINE = re.compile(r"[ \t]*(#[^\r\n]*)?")

# Texts that need no quotes, and words that would then be truth values or null for some reader of YAML.
_PLAIN_WORD = re.compile(r"[a-z][a-z0-9_-]*")
_NO_TEXTS = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")
Scalar: TypeAlias = int | float | str | bool | Mapping[str, Any] | Sequence[Any] | None


def with_value(text: str, path: KeyPath, value: Scalar, *, beside: KeyPath = (), source: str) -> str:
    """Return the text with a value at a path; comments, order, quoting and line breaks stay.

    The result is read again: where keys share a value (an anchor, a merged mapping), the change is refused, because it
    would change the other keys too.

    Args:
        path: Keys and list indices from the top.
        beside: A key of the same mapping, before which an absent path is added in the style of what is around it.
        source: The file, for messages; its ending decides between TOML and YAML, of which JSON is a part.
    """
    if source.endswith(".toml"):
        return toml.with_value(text, path, value, source=source)
    before, positions, _ = read_yaml(text, source)
    place = positions.get(path)
    if place is not None and place.span is not None:
        old = _value_at(before, path)
        _refuse_cut(path, old, value, source)
        changed = _replaced(text, place, value, is_block=isinstance(old, dict | list))
    else:
        changed = _grown(text, _depth_present(before, path), positions, path, value, beside)
    _check(before, changed, path, value, source)
    return changed


def _refuse_cut(path: KeyPath, old: Any, value: Scalar, source: str) -> None:
    """Refuse a number or the word in place of a reference: the keys that share the value would no longer agree."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if has_reference(old) and (is_number or value == WORD):
        raise UserInputError(
            f"{source}: {path[-1]} is {show(old)}, and {value} in its place would cut that link",
            hint="write it where the reference leads",
        )


def without_section(text: str, name: str, *, source: str) -> str:
    """Return the text without a section of its top level; every other character stays."""
    before = read_values(text, source=source)
    if name not in before:
        return text
    try:
        after = _cut(text, name, source)
        is_same = as_comparable(read_values(after, source=source) or {}) == as_comparable(
            {key: value for key, value in before.items() if key != name}
        )
    except UserInputError:
        is_same = False
    if not is_same:
        raise UserInputError(f"{source}: the section {name} cannot be removed alone", hint="remove it yourself")
    return after


def read_values(text: str, *, source: str) -> Any:
    """Return the values of a text, which are shared: nobody changes them."""
    return toml.read(text, source)[0] if source.endswith(".toml") else read_yaml(text, source)[0]


def _cut(text: str, name: str, source: str) -> str:
    if source.endswith(".toml"):
        return toml.without_section(text, name, source=source)
    place = read_yaml(text, source)[1][name,]
    if place.span is None or place.key_span is None:
        return text
    if not _is_json(text):
        end_of_line = LINE_BREAK.search(text, max(place.span[1], place.key_span[1]))
        return text[: _start_of_line(text, place.key_span[0])] + text[end_of_line.end() if end_of_line else len(text) :]
    before, after = text[: place.key_span[0]], text[place.span[1] :]
    if (comma := re.match(r"\s*,\s*", after)) is not None:
        return before + after[comma.end() :]
    return before.rstrip().removesuffix(",").rstrip() + after


def make_fragment(text: str, path: KeyPath, value: Scalar, *, source: str) -> tuple[list[str], KeyPath]:
    """Return the YAML lines to write for a value at a path, and the path of what they belong under."""
    values, positions, _ = read_yaml(text, source)
    depth = min(_depth_present(values, path), len(path) - 1)
    parent, rest = path[:depth], path[depth:]
    start = (positions.get(parent, Position()).span or (_start_of_top(text), 0))[0]
    return [_entry(text, rest, value)] if text.startswith(("{", "["), start) else _block(text, rest, value), parent


def _depth_present(values: Any, path: KeyPath) -> int:
    """Count the keys of a path that lead through mappings and lists that hold something."""
    value = values
    for depth, key in enumerate(path):
        is_there = (isinstance(value, dict) and key in value) or (isinstance(value, list) and key in range(len(value)))
        if not is_there or not value[key]:
            return depth
        value = value[key]
    return len(path)


def _grown(
    text: str, depth: int, positions: Mapping[KeyPath, Position], path: KeyPath, value: Scalar, beside: KeyPath
) -> str:
    parent, rest = path[:depth], path[depth:]
    empty = positions.get(path[: depth + 1])
    if empty is not None and empty.span is not None and empty.key_span is not None:  # `callbacks:`, `[]`, `{}`, `null`
        start, end = _place_in(text, empty)
        gap = "" if text[start - 1].isspace() else " "
        return f"{text[:start]}{gap}{_flow(text, rest[1:], value)}{text[end:]}"
    own = positions.get(parent, Position()).span or (_start_of_top(text), len(text))
    inside = [
        known
        for known, place in positions.items()
        if known[:-1] == parent and place.span is not None and own[0] <= place.span[0] <= own[1]
    ]
    if not inside:
        return text  # inherited from another mapping: the check refuses it
    if isinstance(rest[0], int):
        return _appended(text, positions[inside[-1]], rest, value, flow=text.startswith("[", own[0]))
    starts = {known: place.key_span[0] for known in inside if (place := positions[known]).key_span is not None}
    index = starts.get(beside, min(starts.values()))
    if text.startswith("{", own[0]):
        return f"{text[:index]}{_entry(text, rest, value)}, {text[index:]}"
    indented = find_line_break(text) + " " * (index - _start_of_line(text, index))
    return text[:index] + "".join(line + indented for line in _block(text, rest, value)) + text[index:]


def _appended(text: str, last: Position, rest: KeyPath, value: Scalar, *, flow: bool) -> str:
    assert last.span is not None  # the caller has checked
    start, end = last.span
    if flow:
        return f"{text[:end]}, {_flow(text, rest[1:], value)}{text[end:]}"
    dash = text.rfind("-", 0, start)
    rest_of_line = LINE_BREAK.search(text, end)
    index = rest_of_line.start() if rest_of_line else len(text)
    indented = find_line_break(text) + " " * (dash - _start_of_line(text, dash))
    return text[:index] + "".join(indented + line for line in _block(text, rest, value)) + text[index:]


def _block(text: str, rest: KeyPath, value: Scalar) -> list[str]:
    head, *tail = rest
    inner = _block(text, tuple(tail), value) if tail else []
    if isinstance(head, int):
        return [("- " if index == 0 else "  ") + line for index, line in enumerate(inner)]
    return [f"{head}:", *(f"  {line}" for line in inner)] if inner else [f"{head}: {_scalar(value, text)}"]


def _entry(text: str, rest: KeyPath, value: Scalar) -> str:
    return _flow(text, rest, value)[1:-1]


def _flow(text: str, rest: KeyPath, value: Scalar) -> str:
    """Return the value of a path in flow style; keys are quoted where the whole text is, as JSON is."""
    if not rest:
        return _scalar(value, text)
    quote = '"' if _is_json(text) else ""
    inner = _flow(text, rest[1:], value)
    return f"[{inner}]" if isinstance(rest[0], int) else f"{{{quote}{rest[0]}{quote}: {inner}}}"


def _scalar(value: Scalar, text: str) -> str:
    """Return a value as YAML and JSON write it; a text is quoted, but for a plain word in a text that is not JSON."""
    is_word = isinstance(value, str) and _PLAIN_WORD.fullmatch(value) and value not in _NO_TEXTS
    if isinstance(value, str) and is_word and not _is_json(text):
        return value
    return json.dumps(value, ensure_ascii=False)


def _is_json(text: str) -> bool:
    """Return whether a text is JSON, or YAML in the style of JSON; comments may stand above it."""
    return text.startswith("{", _start_of_top(text))


def _start_of_top(text: str) -> int:
    """Return the index of the first character that is neither a blank nor a part of a comment."""
    found = _LEAD.match(text)
    return found.end() if found else 0


def _start_of_line(text: str, index: int) -> int:
    return max(text.rfind("\n", 0, index), text.rfind("\r", 0, index)) + 1


def _value_at(values: Any, path: KeyPath) -> Any:
    for key in path:
        values = values[key]
    return values


def _replaced(text: str, place: Position, value: Scalar, *, is_block: bool) -> str:
    """Replace a value on its key's own line alone, and a block below its key with its lines."""
    start, end = _place_in(text, place)
    if start == end:
        return f"{text[:start]}{'' if text[start - 1].isspace() else ' '}{_scalar(value, text)}{text[end:]}"
    anchor = _ANCHOR.match(text, start, end)
    start = anchor.end() if anchor else start
    end_of_line = _REST_OF_LINE.match(text, end)
    if is_block and place.key_span is not None and anchor is None and end_of_line is not None:
        header = text[place.key_span[1] : start]
        line = LINE_BREAK.search(header)
        is_whole = LINE_BREAK.match(text, end_of_line.end()) or end_of_line.end() == len(text)
        if line is not None and is_whole and header.lstrip().startswith(":"):
            colon = place.key_span[1] + header.index(":") + 1
            comment = text[colon : place.key_span[1] + line.start()]
            return f"{text[:colon]} {_scalar(value, text)}{comment}{text[end_of_line.end() :]}"
    return f"{text[:start]}{_scalar(value, text)}{text[end:]}"


def _place_in(text: str, place: Position) -> tuple[int, int]:
    """Return the characters of a value; the place just behind the colon where nothing stands behind the key."""
    assert place.span is not None  # the caller has checked
    start, end = place.span
    if place.key_span is not None and not text[start:end].strip(" :"):
        start = end = text.index(":", place.key_span[1]) + 1
    return start, end


def _check(before: Any, changed: str, path: KeyPath, value: Scalar, source: str) -> None:
    """Read the new text: it must hold the same values as the old one, but for the one at the path."""
    try:
        is_same = is_edit_of(before, read_yaml(changed, source)[0], path, value)
    except UserInputError:
        is_same = False
    if not is_same:
        raise UserInputError(
            f"{source}: {path[-1]} shares its value with other keys, which would change with it",
            hint=f"write {path[-1]}: {value} yourself, without the anchor or the merge",
        )
