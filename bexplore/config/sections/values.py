"""Readers of single values: tolerant of how a value is written, strict about what it means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeGuard

from bexplore.config.document.document import Problems
from bexplore.config.document.reader import KeyPath, name_kind, quote
from bexplore.errors import close_match
from bexplore.job.batching import MAX_SAMPLES

_NEAR_MISS = 0.85  # similarity from which a key is taken for a misspelt one; lower values catch real foreign keys

_NEAR_BOUND = 0.4  # similarity from which a key is taken for min or max; "minimum" has 0.6, "lower" none


def as_flag(value: Any) -> bool | None:
    """Return true and false, and what YAML 1.1 takes for them; None for anything else.

    Most training tools read YAML 1.1, where `yes` and `off` are truth values; in YAML 1.2 they are texts.
    """
    if isinstance(value, bool):
        return value
    words = {"yes": True, "on": True, "no": False, "off": False}
    return words.get(value.lower()) if isinstance(value, str) else None


def as_number(value: Any) -> Any:
    """Return the number in a quoted text; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return value


def is_integer(value: Any) -> TypeGuard[int]:
    """Return whether a value is a whole number; true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a finite number; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def read_flag(problems: Problems, path: KeyPath, default: bool) -> bool:
    """Read a truth value; the default where it is absent, null, or wrong, which is noted."""
    value = problems.document.get(path)
    if value is None:
        return default
    flag = as_flag(value)
    if flag is None:
        problems.error(path, f"{path[-1]} must be true or false, not {quote(value)}")
        return default
    return flag


def read_positive(problems: Problems, path: KeyPath, largest: int = MAX_SAMPLES) -> int | None:
    """Read a positive integer; None where it is absent, null, or wrong, which is noted."""
    value = problems.document.get(path)
    if value is None:
        return None
    if is_integer(value) and 1 <= value <= largest:
        return int(value)
    hint = f"no sensible value is above {largest}" if is_integer(value) and value > 0 else "type 1 or more"
    problems.error(path, f"{path[-1]} must be a positive integer, not {quote(value)}", hint)
    return None


def read_number(problems: Problems, path: KeyPath, default: float) -> float:
    """Read a finite number, quoted or not; the default where it is absent, null, or wrong, which is noted."""
    value = as_number(problems.document.get(path))
    if value is None:
        return default
    if not is_number(value):
        problems.error(path, f"{path[-1]} must be a number, not {quote(value)}")
        return default
    return float(value)


def read_bounds(problems: Problems, path: KeyPath) -> tuple[int | None, int | None]:
    """Read `{min: N, max: M}`, either of which may be missing."""
    bounds = problems.document.get(path)
    if bounds is None:
        return None, None
    if not isinstance(bounds, dict):
        problems.error(path, f"explore must be {{min: N, max: M}}, not {quote(bounds)}")
        return None, None
    for key in bounds:
        if key not in ("min", "max"):
            near = close_match(key, ["min", "max"], cutoff=_NEAR_BOUND)
            hint = f'did you mean "{near}"?' if near else "known here: min, max"
            problems.error((*path, key), f"unknown key {quote(key)} under explore", hint)
    minimum, maximum = read_positive(problems, (*path, "min")), read_positive(problems, (*path, "max"))
    if minimum is not None and maximum is not None and minimum > maximum:
        problems.error((*path, "min"), f"min {minimum} is above max {maximum}", f"type min: {maximum} or less")
        return None, None
    return minimum, maximum


def require_mapping(problems: Problems, path: KeyPath) -> None:
    """Note a section that is neither a mapping nor null nor absent."""
    value = problems.document.get(path)
    if value is not None and not isinstance(value, dict):
        problems.error(path, f"{path[-1]} must be a mapping, not {name_kind(value)}")


def notice_near_misses(problems: Problems, path: KeyPath, known: Sequence[str]) -> None:
    """Warn of unread keys that resemble a read key that is absent."""
    section = problems.document.get(path)
    if not isinstance(section, dict):
        return
    for key in section:
        near = close_match(key, known, cutoff=_NEAR_MISS)
        if key not in known and near is not None and near not in section:
            problems.warn((*path, key), f"{quote(key)} is not read; did you mean {quote(near)}?")
