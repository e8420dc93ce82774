"""Types of the `explore:` section whose values can be written in several ways, and pydantic's errors in our words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeGuard, get_args

from pydantic import BeforeValidator, Field, WithJsonSchema

from bexplore.config.document import Problems, as_flag, dotted_path
from bexplore.config.document.reader import KeyPath, quote
from bexplore.errors import BexploreError, close_match
from bexplore.host.secret_values import MASK
from bexplore.job.batching import MAX_SAMPLES
from bexplore.units import parse_bandwidth, parse_device_memory, parse_seconds

_PrecisionWord = Literal["float32", "bfloat16", "autocast_bfloat16", "autocast_float16"]
_CheckpointingWord = Literal["none", "selective", "full"]
_CANDIDATE_RULES = ("all", "powers_of_two", "divisors", "even")
_PRECISIONS = {  # names in other tools
    **dict.fromkeys(("float16", "fp16", "half", "16", "16-mixed", "fp16-mixed", "amp"), "autocast_float16"),
    **dict.fromkeys(("bf16-mixed", "amp_bfloat16", "amp_bf16"), "autocast_bfloat16"),
    **dict.fromkeys(("bf16", "bf16-true"), "bfloat16"),
    **dict.fromkeys(("fp32", "float", "32", "32-true"), "float32"),
}
MAX_TOKENS = 10**8  # of a sample; beyond, the number is a slip
_SHORTEST_S = 1.0  # of a limit; starting, compiling and timing a step takes longer
_IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_ADDRESS = re.compile(r"([^:\s/]+)(?::(\d{1,5}))?")
_LARGEST_PORT = 65535
# What pydantic requires, by the type of its error.
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


class SettingError(ValueError):
    """A wrong value with a hint; pydantic collects it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def _memory(value: Any) -> Any:
    if value == "auto":
        return value
    if isinstance(value, float | int) and not isinstance(value, bool) and 0 < value <= 1:
        return float(value)
    percent = _in_percent(value)
    if percent is not None and 0 < percent <= 100:
        return percent / 100
    if isinstance(value, str) and re.fullmatch(r"(0?\.\d+|1(\.0*)?)", value):
        raise SettingError(f"{quote(value)} is a text", f"type {value} without quotes for that fraction of the device")
    if _is_number(value) and 1 < value <= 100:
        fraction = f"or {value / 100:g}, that fraction of the device"
        raise SettingError(f"{value:g} has no unit", f'did you mean "{value:g}GiB", {fraction}?')
    return _as_setting_error(parse_device_memory, value)


def _size(value: Any) -> Any:
    if value == "auto" or (value == 0 and value is not False):
        return value
    if _is_number(value) and 0 < value < 1:
        raise SettingError(f"{value:g} is less than a byte", "a reserve is a size, such as 2GiB, not a fraction")
    return _as_setting_error(parse_device_memory, value)


def _bandwidth(value: Any) -> Any:
    return None if value is None else _as_setting_error(parse_bandwidth, value)


def _duration(value: Any) -> Any:
    if value is None:
        return None
    seconds: float = _as_setting_error(parse_seconds, value)
    if seconds < _SHORTEST_S:
        meant = (
            f'did you mean "{value:g}h" or "{value:g}min"?'
            if _is_number(value)
            else 'ms are milliseconds; type "10min"'
        )
        raise SettingError(f"{seconds:g} s is too short for any stage", meant)
    return seconds


def _percent(value: Any) -> Any:
    """Refuse a score below 1: it was meant as a fraction of 1."""
    if _in_percent(value) is not None:
        raise SettingError(f"must be a number, not {quote(value)}", f"type {value.rstrip('% ')}")
    if _is_number(value) and 0 < value < 1:
        raise SettingError(f"must be out of 100, not {value:g} out of 1", f"did you mean {100 * value:g}?")
    return value


def _fraction(value: Any) -> Any:
    """Refuse a fraction from 1 to below 100: it was meant in percent."""
    percent = _in_percent(value)
    if percent is not None:
        raise SettingError(f"must be a number, not {quote(value)}", f"did you mean {percent / 100:g}?")
    if _is_number(value) and 1 <= value < 100:
        raise SettingError(f"must be below 1, not {value:g}", f"did you mean {value / 100:g}, {value:g} %?")
    return value


def _precision(value: Any) -> Any:
    """Refuse short names that resemble the wrong format: the hint names the right one."""
    meant = _PRECISIONS.get(str(value).lower())
    if meant is not None:
        words = ", ".join(get_args(_PrecisionWord))
        raise SettingError(f"must be one of {words}, not {quote(value)}", f"did you mean {meant}?")
    return value


def _checkpointing(value: Any) -> Any:
    """Accept true and false for the words; null is none of them."""
    flag = as_flag(value)
    return value if flag is None else "full" if flag else "none"


def _candidates(value: Any) -> Any:
    if value in _CANDIDATE_RULES:
        return value
    is_size = [isinstance(v, int) and not isinstance(v, bool) and 1 <= v <= MAX_SAMPLES for v in _as_list(value)]
    if not is_size or not all(is_size):
        near = close_match(str(value), _CANDIDATE_RULES)
        rule = f"must be one of {', '.join(_CANDIDATE_RULES)}, or a list of positive integers, not {quote(value)}"
        raise SettingError(rule, f"did you mean {near}?" if near else "")
    return tuple(sorted(set(value)))


def _flag(value: Any) -> Any:
    flag = as_flag(value)
    return value if flag is None else flag


def _enabled(value: Any) -> Any:
    if value != "both" and as_flag(value) is None:
        raise ValueError(f"must be true, false or both, not {quote(value)}")
    return _flag(value)


def _import_path(value: Any) -> Any:
    if not isinstance(value, str) or not _IMPORT_PATH.fullmatch(value):
        raise ValueError(f'must be an import path such as "my_model:build", not {quote(value)}')
    return value


def _address(value: Any) -> Any:
    match = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if match is None or int(match[2] or 0) > _LARGEST_PORT:
        raise ValueError(f'must be an address such as "node1" or "node1:29400", not {quote(value)}')
    return value


def _as_setting_error(parse: Callable[[Any], Any], value: Any) -> Any:
    try:
        return parse(value)
    except BexploreError as error:
        raise SettingError(error.message, error.hint) from None


def _in_percent(value: Any) -> float | None:
    is_percent = isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?\s*%", value)
    return float(value.rstrip("% ")) if is_percent else None


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else []


_SIZE_SCHEMA = {"type": ["string", "number"], "examples": ["auto", "12GiB", "1.5 GB"]}
_SECONDS_SCHEMA = {"type": ["string", "number"], "examples": ["10min", "90s", 600]}
_DURATION_SCHEMA = {**_SECONDS_SCHEMA, "type": ["string", "number", "null"]}
_ENABLED_SCHEMA = {"enum": [True, False, "both"]}
_IMPORT_SCHEMA = {"type": "string", "pattern": f"^{_IMPORT_PATH.pattern}$"}
_ADDRESS_SCHEMA = {"type": "string", "pattern": f"^{_ADDRESS.pattern}$"}
_CANDIDATES_SCHEMA = {
    "anyOf": [
        {"enum": list(_CANDIDATE_RULES)},
        {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1},
    ]
}
Memory = Annotated[str | float | int, BeforeValidator(_memory), WithJsonSchema(_SIZE_SCHEMA)]
Size = Annotated[str | int, BeforeValidator(_size), WithJsonSchema(_SIZE_SCHEMA)]
Bandwidth = Annotated[float | None, BeforeValidator(_bandwidth), WithJsonSchema({"type": ["string", "null"]})]
Seconds = Annotated[float, BeforeValidator(_duration), WithJsonSchema(_SECONDS_SCHEMA)]
Duration = Annotated[float | None, BeforeValidator(_duration), WithJsonSchema(_DURATION_SCHEMA)]
Percent = Annotated[float, BeforeValidator(_percent)]
Fraction = Annotated[float, BeforeValidator(_fraction)]
PrecisionName = Annotated[_PrecisionWord, BeforeValidator(_precision)]
Checkpointing = Annotated[
    _CheckpointingWord,
    BeforeValidator(_checkpointing),
    WithJsonSchema({"enum": [*get_args(_CheckpointingWord), True, False]}),
]
Share = Annotated[float, Field(ge=0, le=1)]
Candidates = Annotated[str | tuple[int, ...], BeforeValidator(_candidates), WithJsonSchema(_CANDIDATES_SCHEMA)]
Flag = Annotated[bool, BeforeValidator(_flag)]
Enabled = Annotated[bool | str, BeforeValidator(_enabled), WithJsonSchema(_ENABLED_SCHEMA)]
ImportPath = Annotated[str, BeforeValidator(_import_path), WithJsonSchema(_IMPORT_SCHEMA)]
Address = Annotated[str, BeforeValidator(_address), WithJsonSchema(_ADDRESS_SCHEMA)]
Samples = Annotated[int, Field(ge=1, le=MAX_SAMPLES)]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]


# Keys whose values may hold secrets, so that no message repeats them.
MAY_BE_SECRET = (("env",), ("storage",), ("command",), ("launcher",))


def translate(detail: Any, problems: Problems, known_keys: Callable[[KeyPath], Sequence[str]]) -> None:
    """Add one error of pydantic to the problems."""
    path = ("explore", *(part for part in detail["loc"]))
    name, value, context = dotted_path(path), detail["input"], detail.get("ctx", {})
    if path[1:2] in MAY_BE_SECRET:
        value = MASK
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
        problems.error(path, f"{name} must be {context['expected'].replace(chr(39), '')}, not {quote(value)}", hint)
    elif kind in _NUMBER_RULES:
        bound = next(context[key] for key in ("gt", "ge", "lt", "le") if key in context)
        problems.error(path, f"{name} must be {_NUMBER_RULES[kind]} {bound:g}, not {quote(value)}")
    elif kind in _KIND_RULES:
        problems.error(path, f"{name} must be {_KIND_RULES[kind]}, not {quote(value)}")
    elif kind == "value_error":
        text = str(context["error"])
        joined = f"{name} {text}" if text.startswith("must ") else f"{name}: {text}"
        problems.error(path, joined, getattr(context["error"], "hint", ""))
    else:
        problems.error(path, f"{name}: {detail['msg']}, not {quote(value)}")
