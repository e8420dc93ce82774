"""Values of the `explore:` section that have more than one way to be written, and their JSON Schema."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from bexplore.document.reader import quoted
from bexplore.errors import BexploreError
from bexplore.units import parse_bytes, parse_seconds

MAX_SAMPLES = 10**9  # of a batch or a micro-batch; beyond, the number is a slip
_SMALLEST_BUDGET_BYTES = 1024**2  # below, a unit was forgotten
_IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def _memory(value: Any) -> Any:
    """`auto`, a fraction of the device's memory, or a size."""
    if value == "auto":
        return value
    if isinstance(value, float | int) and not isinstance(value, bool) and 0 < value <= 1:
        return float(value)
    if isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?\s*%", value):
        share = float(value.rstrip("% ")) / 100
        if 0 < share <= 1:
            return share
    num_bytes = _told_as_value_error(parse_bytes, value)
    if num_bytes < _SMALLEST_BUDGET_BYTES:
        raise ValueError(f"{num_bytes} bytes hold no training; write a unit, such as 12GiB, or a fraction up to 1")
    return num_bytes


def _size(value: Any) -> Any:
    """`auto`, 0, or a size."""
    return value if value == "auto" or (value == 0 and value is not False) else _told_as_value_error(parse_bytes, value)


def _duration(value: Any) -> Any:
    """Null, or seconds."""
    return None if value is None else _told_as_value_error(parse_seconds, value)


def _candidates(value: Any) -> Any:
    """A rule by name, or the sizes themselves."""
    words = ("all", "powers_of_two", "divisors", "even")
    if value in words:
        return value
    is_size = [isinstance(v, int) and not isinstance(v, bool) and 1 <= v <= MAX_SAMPLES for v in _as_list(value)]
    if not is_size or not all(is_size):
        raise ValueError(f"must be one of {', '.join(words)}, or a list of positive integers, not {quoted(value)}")
    return tuple(sorted(set(value)))


def _enabled(value: Any) -> Any:
    if not isinstance(value, bool) and value != "both":
        raise ValueError(f"must be true, false or both, not {quoted(value)}")
    return value


def _import_path(value: Any) -> Any:
    if not isinstance(value, str) or not _IMPORT_PATH.fullmatch(value):
        raise ValueError(f'must be an import path such as "my_model:build", not {quoted(value)}')
    return value


def _told_as_value_error(parse: Callable[[Any], Any], value: Any) -> Any:
    """Call a parser of ours; its message in the form that pydantic collects."""
    try:
        return parse(value)
    except BexploreError as error:
        raise ValueError(f"{error.message}; {error.hint}") from None


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else []


_SIZE_SCHEMA = {"type": ["string", "number"], "examples": ["auto", "12GiB", "1.5 GB"]}
_SECONDS_SCHEMA = {"type": ["string", "number"], "examples": ["10min", "90s", 600]}
_DURATION_SCHEMA = {**_SECONDS_SCHEMA, "type": ["string", "number", "null"]}
_ENABLED_SCHEMA = {"enum": [True, False, "both"]}
_IMPORT_SCHEMA = {"type": "string", "pattern": f"^{_IMPORT_PATH.pattern}$"}
_CANDIDATES_SCHEMA = {
    "anyOf": [
        {"enum": ["all", "powers_of_two", "divisors", "even"]},
        {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1},
    ]
}
Memory = Annotated[str | float | int, BeforeValidator(_memory), WithJsonSchema(_SIZE_SCHEMA)]
Size = Annotated[str | int, BeforeValidator(_size), WithJsonSchema(_SIZE_SCHEMA)]
Seconds = Annotated[float, BeforeValidator(_duration), WithJsonSchema(_SECONDS_SCHEMA)]
Duration = Annotated[float | None, BeforeValidator(_duration), WithJsonSchema(_DURATION_SCHEMA)]
Candidates = Annotated[str | tuple[int, ...], BeforeValidator(_candidates), WithJsonSchema(_CANDIDATES_SCHEMA)]
Enabled = Annotated[bool | str, BeforeValidator(_enabled), WithJsonSchema(_ENABLED_SCHEMA)]
ImportPath = Annotated[str, BeforeValidator(_import_path), WithJsonSchema(_IMPORT_SCHEMA)]
Samples = Annotated[int, Field(ge=1, le=MAX_SAMPLES)]
Tokens = Annotated[int, Field(ge=1, le=10**8)]
