"""Values of a document by dotted key, with references such as `${model.seq_len}` followed; the check of an edit.

References have the grammar of OmegaConf, which is not used: a chain of thirty keys, each of which repeats the one
before twice, costs it minutes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bexplore.config.document.reader import KeyPath

_INNERMOST = re.compile(r"\$\{(?P<key>[^${}]*)\}|!ref <(?P<ref>[^<>]*)>")  # of OmegaConf; of HyperPyYAML
_PARTS = re.compile(r"\[([^\[\]]*)\]|([^.\[\]]+)")
MAX_REFERENCES = 100  # followed for one value; the most of a public file is 4
MAX_CHARACTERS = 10_000  # of a text with its references replaced


class _Unresolved(Exception):
    """A reference leads nowhere, round in a circle, or to a text that grows without end."""


def has_reference(value: Any) -> bool:
    """Return whether a value is a text with a reference."""
    return isinstance(value, str) and ("${" in value or value.startswith("!ref "))


def follow_references(text: str, values: Mapping[str, Any], path: KeyPath) -> Any:
    """Return what a text means; the text itself where a reference leads nowhere.

    A text that is one reference has the value's own type. Inner references are replaced before outer ones, and one that
    begins with dots starts at the mapping around it. Of the resolvers, `oc.env` and `oc.select` are followed.
    """
    value: Any = text
    try:
        for _ in range(MAX_REFERENCES):
            if not has_reference(value):
                return value
            found = _INNERMOST.search(value)
            if found is None:
                return text
            target = _target((found["key"] or found["ref"] or "").strip(), values, path)
            value = target if found[0] == value else f"{value[: found.start()]}{target}{value[found.end() :]}"
            if isinstance(value, str) and len(value) > MAX_CHARACTERS:
                return text
    except _Unresolved:
        pass
    return text


def _target(reference: str, values: Mapping[str, Any], path: KeyPath) -> Any:
    resolver, colon, arguments = reference.partition(":")
    if not colon:
        return _at(reference, values, path)
    name, comma, default = (word.strip() for word in arguments.partition(","))
    if resolver == "oc.env" and (name in os.environ or comma):
        return os.environ.get(name, default)
    if resolver == "oc.select":
        try:
            return _at(name, values, path)
        except _Unresolved:
            if comma:
                return default
    raise _Unresolved


def _at(dotted: str, values: Mapping[str, Any], path: KeyPath) -> Any:
    value: Any = values
    for key in _find(dotted, values, path):
        value = value[key]
    return value


def _find(dotted: str, values: Mapping[str, Any], path: KeyPath) -> KeyPath:
    """Return the path of what a reference names that stands at a path."""
    rest = dotted.lstrip(".")
    up = len(dotted) - len(rest)
    if up > len(path):
        raise _Unresolved
    keys = [bracketed or plain for bracketed, plain in _PARTS.findall(rest)]
    value: Any = values
    found: list[str | int] = []
    for key in (*path[: len(path) - up], *keys) if up else keys:
        if isinstance(value, list) and str(key).isdecimal() and int(key) < len(value):
            found.append(int(key))
        elif isinstance(value, Mapping) and key in value:
            found.append(key)
        else:
            raise _Unresolved
        value = value[found[-1]]
    return tuple(found)


class Values:
    """The values of a file, and the comments above them."""

    def __init__(self, values: Mapping[str, Any], header: str = "") -> None:
        self.values, self.header = values, header

    def path(self, dotted: str) -> KeyPath | None:
        """Return the path of a dotted key as the file spells it; None where it is absent.

        A key of the file may itself contain dots, and hyphens where the family writes underscores.
        """
        return _path(self.values, tuple(dotted.split(".")))

    def has(self, dotted: str) -> bool:
        """Return whether a key is present; null counts."""
        return self.path(dotted) is not None

    def stands_at(self, path: KeyPath) -> bool:
        """Return whether something stands at a path of keys and indices; null counts."""
        try:
            self.at(path)
        except (KeyError, IndexError, TypeError):
            return False
        return True

    def first(self, keys: Iterable[str]) -> KeyPath | None:
        """Return the path of the first key that is present; one that is not null goes before."""
        present = [path for key in keys if (path := self.path(key)) is not None]
        return next((path for path in present if self.at(path) is not None), present[0] if present else None)

    def get(self, dotted: str, default: Any = None) -> Any:
        """Return the value of a dotted key, references followed; the default where it is absent."""
        path = self.path(dotted)
        return default if path is None else self.at(path)

    def follow(self, path: KeyPath) -> KeyPath:
        """Return the path at which the value of a path is written: that of `${data.batch_size}` is the key it names."""
        place, seen = path, set[KeyPath]()
        while place not in seen:
            seen.add(place)
            value: Any = self.values
            for key in place:
                value = value[key]
            reference = _INNERMOST.fullmatch(value) if isinstance(value, str) else None
            if reference is None:
                return place
            try:
                place = _find((reference["key"] or reference["ref"] or "").strip(), self.values, place)
            except _Unresolved:
                return path
        return path

    def is_made_of_others(self, path: KeyPath) -> bool:
        """Return whether the value at a path is a reference, or has one in it."""
        value: Any = self.values
        for key in path:
            value = value[key]
        return has_reference(value)

    def at(self, path: KeyPath) -> Any:
        """Return the value at a path, references followed; the written text where a reference leads nowhere."""
        value: Any = self.values
        for key in path:
            value = value[key]
        return follow_references(value, self.values, path) if has_reference(value) else value


def paths_below(value: Any, path: KeyPath) -> Iterator[KeyPath]:
    """Yield the path of each plain value below a path, through mappings."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from paths_below(inner, (*path, key))
    else:
        yield path


def _path(values: Any, parts: tuple[str, ...]) -> KeyPath | None:
    if not parts:
        return ()
    if not isinstance(values, Mapping):
        return None
    for length in range(len(parts), 0, -1):
        joined = ".".join(parts[:length])
        for spelt in (joined, joined.replace("_", "-")):
            if spelt in values:
                rest = _path(values[spelt], parts[length:])
                if rest is not None:
                    return (spelt, *rest)
    return None


def is_edit_of(before: Any, after: Any, path: KeyPath, value: Any) -> bool:
    """Return whether two files' values differ by the value at a path alone, whatever the order of their keys."""
    try:
        return bool(as_comparable(after) == as_comparable(_with(before, path, value)))
    except (TypeError, AttributeError):  # the path leads through a value that holds no others
        return False


def _with(values: Any, path: KeyPath, value: Any) -> Any:
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(key, int):
        listed = list(values or [])
        return [*listed[:key], _with(listed[key] if key < len(listed) else None, rest, value), *listed[key + 1 :]]
    return {**(values or {}), key: _with((values or {}).get(key), rest, value)}


def as_comparable(value: Any) -> Any:
    """Return the value with mappings as sets of pairs, numbers of another type unequal, and NaN equal to itself."""
    if isinstance(value, dict):
        return frozenset((key, as_comparable(inner)) for key, inner in value.items())
    return tuple(as_comparable(inner) for inner in value) if isinstance(value, list) else repr(value)
