"""The check of every edit: the new text holds the values of the old one, but for the one that was to change."""

from __future__ import annotations

from typing import Any

from bexplore.config.document.reader import KeyPath


def is_edit_of(before: Any, after: Any, path: KeyPath, value: Any) -> bool:
    """Return whether two files' values differ by the value at a path alone, whatever the order of their keys."""
    try:
        return bool(comparable(after) == comparable(_with(before, path, value)))
    except (TypeError, AttributeError):  # the path leads through a value that holds no others
        return False


def _with(values: Any, path: KeyPath, value: Any) -> Any:
    """Return the values with another at a path; make what is absent or empty on the way."""
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(key, int):
        listed = list(values or [])
        return [*listed[:key], _with(listed[key] if key < len(listed) else None, rest, value), *listed[key + 1 :]]
    return {**(values or {}), key: _with((values or {}).get(key), rest, value)}


def comparable(value: Any) -> Any:
    """Return the value with mappings as sets of pairs, numbers of another type unequal, and NaN equal to itself."""
    if isinstance(value, dict):
        return frozenset((key, comparable(inner)) for key, inner in value.items())
    return tuple(comparable(inner) for inner in value) if isinstance(value, list) else repr(value)
