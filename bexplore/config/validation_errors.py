"""Errors of pydantic as problems of the document, with the words and hints of this package."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from bexplore.config.document.document import Problems, dotted_path
from bexplore.config.document.reader import quoted
from bexplore.errors import close_match

Path = tuple[str | int, ...]

_NUMBER_RULES = {
    "greater_than": "above",
    "greater_than_equal": "at least",
    "less_than": "below",
    "less_than_equal": "at most",
}
_KIND_RULES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a text",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "tuple_type": "a list",
    "list_type": "a list",
}


def translate(detail: Any, problems: Problems, known_keys: Callable[[Path], Sequence[str]]) -> None:
    """Add one error of pydantic to the problems.

    Args:
        detail: One of `ValidationError.errors()`.
        problems: Receives the error.
        known_keys: The keys of the section at a path below `explore`.
    """
    path = ("explore", *(part for part in detail["loc"]))
    name, value, context = dotted_path(path), detail["input"], detail.get("ctx", {})
    kind = detail["type"]
    if kind == "extra_forbidden":
        known = known_keys(path[1:-1])
        near = close_match(str(path[-1]), known)
        hint = f'did you mean "{near}"?' if near else f"known here: {', '.join(known)}"
        problems.error(path, f'unknown key "{path[-1]}" in {dotted_path(path[:-1])}', hint)
    elif kind == "missing":
        problems.error(path, f"{name} is missing")
    elif kind == "literal_error":
        near = close_match(str(value), [word.strip("' ") for word in re.split(", | or ", context["expected"])])
        hint = f"did you mean {near}?" if near else ""
        problems.error(path, f"{name} must be {context['expected'].replace(chr(39), '')}, not {quoted(value)}", hint)
    elif kind in _NUMBER_RULES:
        bound = next(context[key] for key in ("gt", "ge", "lt", "le") if key in context)
        problems.error(path, f"{name} must be {_NUMBER_RULES[kind]} {bound:g}, not {quoted(value)}")
    elif kind in _KIND_RULES:
        problems.error(path, f"{name} must be {_KIND_RULES[kind]}, not {quoted(value)}")
    elif kind == "value_error":
        text = str(context["error"])
        joined = f"{name} {text}" if text.startswith("must ") else f"{name}: {text}"
        problems.error(path, joined, getattr(context["error"], "hint", ""))
    else:
        problems.error(path, f"{name}: {detail['msg']}, not {quoted(value)}")
