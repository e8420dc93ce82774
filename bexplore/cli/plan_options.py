"""Options of `bexplore plan`: how their texts are read, and their names in place of fields of a plan request."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal

from bexplore.errors import UserInputError
from bexplore.job.batching import MAX_SAMPLES
from bexplore.planning.request import MOST_DEVICES, Amount, Devices
from bexplore.units import parse_bandwidth, parse_count, parse_seconds

_BATCH = re.compile(r"\s*(.*?)\s*(?:(tok|token|tokens)|(samples?))?\s*", re.IGNORECASE)
_RATE = re.compile(r"\s*(.+?)\s*(?:(samples?)|(tok|token|tokens))?\s*/\s*s(?:ec|econd)?\s*", re.IGNORECASE)
_DEVICES = re.compile(r"\s*(?:(\d{1,7})\s*[xX]\s*)?(\d{1,7})\s*")
_WHOLE = re.compile(r"\s*([\d.,_]+(?:[eE]\+?\d+)?)\s*([A-Za-z]?)\s*")


# Field of a plan request, or parameter of `bexplore.plan` -> its option.
OPTIONS = {
    "batch_sizes": "--batch-size",
    "until_s": "--until",
    "tensor_parallel_degree": "--tensor-parallel",
    "rate": "--throughput",
    "network": "--bandwidth or --network",
} | {
    name: f"--{name.replace('_', '-')}"
    for name in (
        *("tokens", "samples", "steps", "epochs", "dataset_size", "devices", "price_per_device_hour"),
        *("pipeline_stages", "effective_time", "overlap", "mfu", "hfu", "device_name"),
    )
}
_FIELD = re.compile(r"`(\w+)(?:=([^`]*))?`")


def name_options(text: str) -> str:
    """Name the options in a text that names fields of a plan request in backquotes, such as `until_s=86400`."""
    return _FIELD.sub(_name_option, text)


def _name_option(match: re.Match[str]) -> str:
    field, value = match.groups()
    if field not in OPTIONS:
        return match[0]
    if value is None:
        return OPTIONS[field]
    typed = _write_days(float(value)) if field == "until_s" else value
    is_quoted = " " in typed and " or " not in typed
    return f"{OPTIONS[field]} '{typed}'" if is_quoted else f"{OPTIONS[field]} {typed}"


def _write_days(seconds: float) -> str:
    """Write a duration in days with four digits, none of which is less, and without an exponent."""
    days = seconds / 86400
    digits = max(0, 3 - math.floor(math.log10(days))) if days else 0
    return f"{math.ceil(days * 10**digits) / 10**digits:.{digits}f}d"


@contextmanager
def options_in_errors() -> Iterator[None]:
    """Name options in the errors of a plan request."""
    try:
        yield
    except UserInputError as error:
        raise UserInputError(name_options(error.message), hint=name_options(error.hint)) from error


def parse_number(text: str, option: str, example: str) -> float:
    """Read a number of an option; that it is possible is checked where it is wanted."""
    try:
        return float(text)
    except ValueError:
        raise UserInputError(f'{option} must be a number, not "{text}"', hint=f"type {option} {example}") from None


def parse_device_names(text: str | None) -> list[str]:
    """Read names of devices with commas between them, each once."""
    return list(dict.fromkeys(filter(None, (part.strip() for part in (text or "").split(",")))))


def parse_prices(text: str | None, names: Sequence[str]) -> dict[str, float]:
    """Return the price of an hour of each device that is named; one device takes a number alone."""
    prices: dict[str, float] = {}
    for part in filter(None, (text or "").split(",")):
        name, _, amount = (piece.strip() for piece in part.rpartition("="))
        name = name or (names[0] if len(names) == 1 else "")
        if name not in names:
            raise UserInputError(
                f'--price-per-device-hour: "{part}" is of no device of --device-name',
                hint=f"type {','.join(f'{one}=2.5' for one in names) or '--device-name h100 too'}",
            )
        prices[name] = parse_number(amount, "--price-per-device-hour", f"{name}=2.5")
        if not (math.isfinite(prices[name]) and prices[name] > 0):
            raise UserInputError(
                f"--price-per-device-hour must be above 0, not {amount}",
                hint=f"type --price-per-device-hour {name}=2.5",
            )
    return prices


def parse_whole(text: str, option: str, example: str) -> int:
    """Read a whole number of an option, such as `300B`."""
    try:
        number = parse_count(text)
    except UserInputError as error:
        raise UserInputError(f"{option}: {error.message}", hint=f"type {option} {example}") from None
    match = _WHOLE.fullmatch(text)
    exact = Decimal(number) if match is None else Decimal(re.sub("[,_]", "", match[1])) * parse_count(f"1{match[2]}")
    if exact != int(exact):
        near = " or ".join(str(one) for one in (math.floor(exact), math.ceil(exact)) if one)
        raise UserInputError(f'{option} must be a whole number, not "{text}"', hint=f"type {option} {near}")
    return number


def parse_until(text: str) -> float:
    """Read the time that there is: a duration with its unit."""
    if re.fullmatch(r"\s*[\d.]+\s*", text):
        raise UserInputError(
            f'--until "{text}" lacks its unit',
            hint=f"type --until {text.strip()}d for days, or {text.strip()}h for hours",
        )
    try:
        return parse_seconds(text)
    except UserInputError as error:
        raise UserInputError(f"--until: {error.message}", hint="type --until 30d, 12h or 1h30m") from None


def parse_bandwidth_option(text: str) -> float:
    """Read `--bandwidth`, bytes a second."""
    try:
        return parse_bandwidth(text)
    except UserInputError as error:
        hint = error.hint.replace("type ", "type --bandwidth ")
        raise UserInputError(f"--bandwidth: {error.message}", hint=hint) from None


def parse_batch_sizes(text: str) -> tuple[Amount, ...]:
    """Read global batch sizes, samples or tokens: `512`, `512,1024`, `4M tokens`."""
    parts = _split(text, "--batch-size", "512,1024 or '4M tokens'")
    if any(re.match(r"0\d", part) for part in parts):
        whole = re.sub(r"[,\s]", "", text)
        raise UserInputError(
            f'--batch-size "{text}" has a part that begins with 0: a comma separates batch sizes',
            hint=f"type --batch-size {whole} for one batch",
        )
    return tuple(_batch(part) for part in parts)


def parse_devices(text: str) -> tuple[Devices, ...]:
    """Read numbers of devices, or nodes times devices: `8,64`, `4x8`."""
    return tuple(_devices(part) for part in _split(text, "--devices", "8,64 or 4x8"))


def parse_rate(text: str) -> Amount:
    """Read samples or tokens per second: `31.5 samples/s`, `24k tokens/s`."""
    hint = "type --throughput '24000 tokens/s' or '31.5 samples/s', of one device"
    match = _RATE.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        raise UserInputError(f'"{text}" is not a number of samples or tokens per second', hint=hint)
    return Amount(number=_rate_number(match[1], hint), is_tokens=match[3] is not None)


def _rate_number(text: str, hint: str) -> float:
    """Return a rate, which unlike a count may be a fraction."""
    try:
        number = float(text)
    except ValueError:
        return float(parse_count(text))
    if not (math.isfinite(number) and number > 0):
        raise UserInputError(f'a rate must be above 0, not "{text}"', hint=hint)
    return number


def _batch(text: str) -> Amount:
    match = _BATCH.fullmatch(text)
    assert match is not None  # every text matches; the number is checked below
    number = parse_whole(match[1], "--batch-size", "512 or '4M tokens'")
    if match[2] is None and number > MAX_SAMPLES:
        raise UserInputError(
            f'--batch-size "{text}" is more than {MAX_SAMPLES:,} samples',
            hint="type 'tokens' behind it if it counts them",
        )
    return Amount(number=number, is_tokens=match[2] is not None)


def _devices(text: str) -> Devices:
    match = _DEVICES.fullmatch(text)
    nodes, each = (int(match[1] or 1), int(match[2])) if match else (0, 0)
    if match is None or not 1 <= nodes * each <= MOST_DEVICES:
        raise UserInputError(
            f'--devices must be numbers of devices from 1 to {MOST_DEVICES:,}, or nodes x devices, not "{text}"',
            hint="type --devices 8,64 or --devices 4x8",
        )
    return Devices(number=nodes * each, num_nodes=nodes if match[1] else None)


def _split(text: str, option: str, example: str) -> Sequence[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UserInputError(f"{option} is empty", hint=f"type {option} {example}")
    return parts
