"""One value of a TOML text replaced or added, with every other character kept: tomlkit's only door."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from bexplore.config.document.reader import KeyPath
from bexplore.errors import UserInputError


def with_value(text: str, path: KeyPath, value: int | str | bool, *, source: str) -> str:
    """Return the text with a value at a path; tables that are missing are added behind the others.

    Raises:
        UserInputError: The value cannot be written without changing something else.
    """
    try:
        changed = _written(text, path, value)
        is_same = tomllib.loads(changed) == _with(tomllib.loads(text), path, value)
    except (TOMLKitError, tomllib.TOMLDecodeError, TypeError, KeyError, ValueError, RecursionError):
        is_same = False
    if not is_same:
        raise UserInputError(f"{source}: {path[-1]} cannot be written", hint=f"write {path[-1]} = {value!r} yourself")
    return changed


def _written(text: str, path: KeyPath, value: Any) -> str:
    document = tomlkit.parse(text)
    container: Any = document
    for key in path[:-1]:
        if not isinstance(key, int) and key not in container:
            container[key] = tomlkit.table()
        container = container[key]
    container[path[-1]] = value
    changed = tomlkit.dumps(document)
    # tomlkit ends an added line as Unix does.
    return re.sub(r"(?<!\r)\n", "\r\n", changed) if "\r\n" in text and not re.search(r"(?<!\r)\n", text) else changed


def _with(values: Any, path: KeyPath, value: Any) -> Any:
    """Return the values with another at a path; tables that are missing are made."""
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(key, int):
        return [*values[:key], _with(values[key], rest, value), *values[key + 1 :]]
    return {**values, key: _with(values.get(key, {}), rest, value)}
