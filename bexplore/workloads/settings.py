"""Checks that the builders share: wrong keys and wrong values, in the user's own words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from bexplore.errors import UserInputError

_MOST_LISTED = 30  # names in a hint


def require(condition: bool, message: str, hint: str) -> None:
    """Raise UserInputError with the message and the hint unless the condition holds."""
    if not condition:
        raise UserInputError(message, hint=hint)


def suggestion(value: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown value: the nearest known one, or what there is."""
    known = list(known)
    by_lower_case = {name.lower(): name for name in known}
    near = difflib.get_close_matches(value.lower(), by_lower_case, n=1)
    if near:
        return f"Did you mean {by_lower_case[near[0]]}?"
    more = f" ({len(known)} in all)" if len(known) > _MOST_LISTED else ""
    return f"Choose one of {', '.join(known[:_MOST_LISTED])}{more}."


def check_keys(given: Mapping[str, Any], known: Iterable[str], owner: str) -> None:
    """Raise UserInputError at the first key that the owner does not know."""
    known = list(known)
    for key in given:
        require(key in known, f"{owner} has no setting {key!r}.", suggestion(key, known))


def positive_int(value: Any, name: str) -> int:
    """Return the value if it is a positive int, and raise UserInputError otherwise."""
    valid = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    require(valid, f"{name} is {value!r}.", f"Set {name} to an integer of 1 or more.")
    return int(value)
