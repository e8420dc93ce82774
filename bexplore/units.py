"""Bytes, seconds, shares and counts: how people write them, and how they are shown to people.

Elsewhere in the package a size in memory is an `int` of bytes and a duration a `float` of seconds.
"""

from __future__ import annotations

import math
import re

from bexplore.errors import UserInputError

# Not pydantic's: its ByteSize takes "512M" for 512 * 10^6 bytes, and its timedelta refuses "10min", "1h30m" and "90s".
_BYTES_PER_UNIT = {
    **{"": 1, "b": 1},
    **{"k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4},
    **{"kib": 1024, "mib": 1024**2, "gib": 1024**3, "tib": 1024**4},
    **{"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12},
}
_SECONDS_PER_UNIT = {
    "ms": 1e-3,
    **dict.fromkeys(("", "s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
_PER_COUNT_UNIT = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_FLOPS_PREFIXES = {"Z": 1e21, "E": 1e18, "P": 1e15, "T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([A-Za-z]*)\s*")
_COUNT = re.compile(r"(\d+(?:\.\d+)?(?:[eE]\+?\d{1,2})?|\.\d+)\s*([A-Za-z]?)")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([A-Za-z]*)\s*")
_BANDWIDTH = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([kmgtKMGT]?)(i?)([bB]its?|[bB]ytes?|[bB])\s*(/\s*s(?:ec)?|ps)\s*")
_PREFIXES = ("", "k", "m", "g", "t")
_NEXT_UNIT = 1023.5 / 1024  # what would be 1024 of the smaller unit is 1 of the larger one
_FEWEST_BYTES = 1024**2  # of a device's memory; a smaller number lacks its unit
_MOST_THINGS = 10**18
_LONGEST_TEXT = 40  # characters; no sensible quantity is longer, and a message stays a line


def parse_bytes(value: str | int | float) -> int:
    """Read a size in memory.

    `KiB`, `MiB`, `GiB`, `TiB` and the bare letters `K`, `M`, `G`, `T` are powers of 1024; `KB`, `MB`, `GB`, `TB` are
    powers of 1000, as the standards have it. A bare number is bytes.

    Args:
        value: Such as `"80GiB"`, `"1.5 GB"`, `"512M"` or `1073741824`.

    Returns:
        Bytes, above 0.
    """
    hint = 'write a number and a unit, such as "12GiB" or "1.5 GB"'
    match = _QUANTITY.fullmatch(_as_text(value, "a size in memory", hint))
    if match is None or match[2].lower() not in _BYTES_PER_UNIT:
        raise UserInputError(f"{_show(value)} is not a size in memory", hint=hint)
    num_bytes = round(float(match[1]) * _BYTES_PER_UNIT[match[2].lower()])
    if num_bytes <= 0:
        raise UserInputError(f"a size in memory must be above 0, not {_show(value)}", hint=hint)
    return num_bytes


def parse_device_memory(value: str | int | float) -> int:
    """Read a size in the memory of a device as `parse_bytes` does; it is at least 1 MiB."""
    num_bytes = parse_bytes(value)
    if num_bytes < _FEWEST_BYTES:
        number = str(value).strip().rstrip("bB").strip()
        raise UserInputError(
            f"{_show(value)} is {num_bytes} bytes, which hold nothing",
            hint=f'did you mean "{number}{"GiB" if num_bytes < 1024 else "MiB"}"?',
        )
    return num_bytes


def format_bytes(num_bytes: int | float | None) -> str:
    """Show a size in powers of 1024 with three significant digits: `1.50 GiB`; `unknown` for None."""
    if num_bytes is None:
        return "unknown"
    magnitude = abs(num_bytes)
    for unit, scale in (("TiB", 1024**4), ("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if magnitude >= scale * _NEXT_UNIT:
            return f"{_three_digits(num_bytes / scale)} {unit}"
    return f"{num_bytes:.0f} B"


def parse_seconds(value: str | int | float) -> float:
    """Read a duration.

    Args:
        value: Such as `"10min"`, `"90 s"`, `"1h30m"`, `"250ms"` or a bare number of seconds.

    Returns:
        Seconds, above 0.
    """
    hint = 'write a number and a unit, such as "10min", "90s" or "1h30m"'
    text = _as_text(value, "a duration", hint).strip()
    parts = _DURATION_PART.findall(text)
    is_whole = bool(parts) and _DURATION_PART.sub("", text) == ""
    is_known = all(unit.lower() in _SECONDS_PER_UNIT for _, unit in parts)
    if not is_whole or not is_known or (len(parts) > 1 and not all(unit for _, unit in parts)):
        raise UserInputError(f"{_show(value)} is not a duration", hint=hint)
    seconds = sum(float(number) * _SECONDS_PER_UNIT[unit.lower()] for number, unit in parts)
    if seconds <= 0:
        raise UserInputError(f"a duration must be above 0, not {_show(value)}", hint=hint)
    return seconds


def parse_bandwidth(value: str | int | float) -> float:
    """Read a bandwidth, in bits (`b`) or bytes (`B`) a second: `400Gbit/s`, `50Gbps`, `50GB/s`, `25GiB/s`.

    Returns:
        Bytes a second, above 0.
    """
    hint = "type 50GB/s (bytes), 25GiB/s (bytes, powers of 1024) or 400Gbit/s (bits)"
    match = _BANDWIDTH.fullmatch(str(value))
    if match is None:
        raise UserInputError(f"{_show(value)} is no number of bits or bytes a second", hint=hint)
    number, prefix, is_binary, unit, per_second = match.groups()
    if unit == "b" and prefix in ("m", "g", "t") and per_second != "ps":
        raise UserInputError(f"{_show(value)} is ambiguous: write Gbit/s or GB/s", hint=hint)
    scale = (1024 if is_binary else 1000) ** _PREFIXES.index(prefix.lower())
    is_bits = unit == "b" or unit.lower().startswith("bit")
    bytes_per_s = float(number) * scale / (8 if is_bits else 1)
    if bytes_per_s <= 0:
        raise UserInputError(f"a bandwidth must be above 0, not {_show(value)}", hint=hint)
    return bytes_per_s


def format_seconds(seconds: float | None) -> str:
    """Show a duration: `250 ms`, `8.31 s`, `2 min 5 s`, `1 h 4 min`; `unknown` for None or NaN."""
    if seconds is None or math.isnan(seconds):
        return "unknown"
    if seconds < 0:
        return f"-{format_seconds(-seconds)}"
    if math.isinf(seconds):
        return "without end"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 0.9995:
        return f"{_three_digits(seconds * 1e3)} ms"
    if seconds < 59.95:
        return f"{_three_digits(seconds)} s"
    minutes, rest_s = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest_s} s" if rest_s else f"{minutes} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def parse_count(value: str | int | float) -> int:
    """Read a number of things, such as tokens: `K`, `M`, `B` and `T` are powers of 1000, as papers write them.

    Args:
        value: Such as `"300B"`, `"1.4T"`, `"4_000_000"`, `"4,000,000"`, `"3e11"` or `4096`.

    Returns:
        A whole number above 0.
    """
    hint = 'write a number, with K, M, B or T behind it for powers of 1000, such as "300B"'
    text = _as_text(value, "a number of things", hint).strip()
    match = _COUNT.fullmatch(re.sub(r"(?<=\d)[_,](?=\d{3})", "", text))
    if match is None or match[2].lower() not in _PER_COUNT_UNIT:
        raise UserInputError(f"{_show(value)} is not a number of things", hint=hint)
    number = float(match[1]) * _PER_COUNT_UNIT[match[2].lower()]
    if not 1 <= number <= _MOST_THINGS:
        raise UserInputError(f"a number of things must be from 1 to 1e18, not {_show(value)}", hint=hint)
    return round(number)


def format_count(number: int | float | None) -> str:
    """Show a number of things with three significant digits: `300B`, `1.40T`, `4,096`; `unknown` for None."""
    if number is None:
        return "unknown"
    for unit, scale in (("T", 10**12), ("B", 10**9), ("M", 10**6)):
        if abs(number) >= 0.9995 * scale:
            return f"{_three_digits(number / scale)}{unit}"
    return f"{number:,.0f}"


def format_rate(number: float) -> str:
    """Show a rate with four significant digits, and all before the point: `0.2125`, `97.34`, `11,310`."""
    return f"{number:,.0f}" if abs(number) >= 999.95 else f"{number:.4g}"


def format_flops(flops: float) -> str:
    """Show a number of floating-point operations: `2.72 GFLOP`, `82.9 TFLOP`, `512 FLOP`."""
    for prefix, scale in _FLOPS_PREFIXES.items():
        if flops >= 0.9995 * scale:
            return f"{_three_digits(flops / scale)} {prefix}FLOP"
    return f"{flops:.0f} FLOP"


def counted(number: int | str, noun: str) -> str:
    """Write a number of things: `1 probe`, `2 probes`, `2 passes`."""
    return f"{number} {noun}{'' if number == 1 else 'es' if noun.endswith('s') else 's'}"


def format_share(share: float) -> str:
    """Show a share in whole percent; what is neither nothing nor all is `<1%` or `>99%` at the ends."""
    if 0.0 < share < 0.005:
        return "<1%"
    return ">99%" if 0.995 <= share < 1.0 else f"{share:.0%}"


def _three_digits(number: float) -> str:
    magnitude = abs(number)
    return f"{number:.0f}" if magnitude >= 99.95 else f"{number:.1f}" if magnitude >= 9.995 else f"{number:.2f}"


def _as_text(value: str | int | float, kind: str, hint: str) -> str:
    """Return the text of a quantity; refuse what is neither text nor a finite number."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UserInputError(f"{_show(value)} is not {kind}", hint=hint)
    is_finite = isinstance(value, str | int) or math.isfinite(value)
    text = f"{value:f}" if isinstance(value, float) else str(value)
    if not is_finite or len(text) > _LONGEST_TEXT:
        raise UserInputError(f"{_show(value)} is not {kind}", hint=hint)
    return text


def _show(value: object) -> str:
    """Return a value as the user wrote it, cut to a sensible length."""
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."
