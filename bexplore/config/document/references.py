"""References such as `${model.seq_len}` in the values of a file, followed in the grammar of OmegaConf.

OmegaConf itself is not used: a chain of thirty keys, each of which repeats the one before twice, costs it minutes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from bexplore.config.document.reader import KeyPath

_INNERMOST = re.compile(r"\$\{([^${}]*)\}")
_PARTS = re.compile(r"\[([^\[\]]*)\]|([^.\[\]]+)")
MAX_REFERENCES = 100  # followed for one value; the most of a public file is 4
MAX_CHARACTERS = 10_000  # of a text with its references replaced


class _Unresolved(Exception):
    """A reference leads nowhere, round in a circle, or to a text that grows without end."""


def has_reference(value: Any) -> bool:
    """Return whether a value is a text with a reference."""
    return isinstance(value, str) and "${" in value


def followed(text: str, values: Mapping[str, Any], path: KeyPath) -> Any:
    """Return what a text means; the text itself where a reference leads nowhere.

    A text that is one reference has the value's own type. Inner references are replaced before outer ones, and one that
    begins with dots starts at the mapping around it. Of the resolvers, `oc.env` and `oc.select` are followed.

    Args:
        values: Top-level mapping.
        path: Where the text stands.
    """
    value: Any = text
    try:
        for _ in range(MAX_REFERENCES):
            if not has_reference(value):
                return value
            found = _INNERMOST.search(value)
            if found is None:
                return text
            target = _target(found[1].strip(), values, path)
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
    """Return the value of a dotted path with indices, from the top or, with leading dots, from the text's own place."""
    rest = dotted.lstrip(".")
    up = len(dotted) - len(rest)
    if up > len(path):
        raise _Unresolved
    keys = [bracketed or plain for bracketed, plain in _PARTS.findall(rest)]
    value: Any = values
    for key in (*path[: len(path) - up], *keys) if up else keys:
        if isinstance(value, list) and str(key).isdecimal() and int(key) < len(value):
            value = value[int(key)]
        elif isinstance(value, Mapping) and key in value:
            value = value[key]
        else:
            raise _Unresolved
    return value
