"""Tables for people: a trace, and replayed curves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bexplore.job import Parallelism
from bexplore.job.batching import MAX_SAMPLES
from bexplore.output.table import Table
from bexplore.run.parts.estimate import EstimatedCommunication
from bexplore.trace.cost_model import describe_source
from bexplore.units import counted, format_bytes, format_flops, format_rate, format_seconds

MAX_SIZES = 5  # columns of the table of sizes by settings


def trace_table(record: Mapping[str, Any], *, width: int | None = None) -> str:
    """Return the table of a `trace` event, in lines of at most `width` characters."""
    shorter = _shorter(record)
    speeds = _estimated_speeds(record)
    base = next(iter(speeds.values()), 1.0)
    table = Table(
        headings=(
            "micro_batch_size",
            "peak memory",
            "fits",
            *(f"{length} tokens" for length in shorter),
            *(("estimated samples/s", "relative") if speeds else ()),
        ),
        # the peak before "fits" is that of the longest samples
        rows=tuple(
            (
                size,
                format_bytes(peak),
                "yes" if _fits(record, size) else "no",
                *(format_bytes(peaks[size]) for peaks in shorter.values()),
                *((format_rate(speeds[size]), f"{speeds[size] / base:.2f}x") if speeds else ()),
            )
            for size, peak in record["peak_memory_bytes"].items()
        ),
        is_number=(True, True, False, *(True for _ in shorter), *(True for _ in speeds and (0, 1))),
    )
    largest = record["max_micro_batch_size"]
    bound = " (the largest that may be tried)" if largest in (record["bounds"][1], MAX_SAMPLES) else ""
    lines = [
        f"{record['num_parameters']:,} parameters, {_operations(record)}, {_when(record)} "
        f"(fingerprint {record['fingerprint']})",
        *_of_rank(record),
        *_not_traced([record]),
        f"memory of the program for {record['device_name'] or 'the CPU'}, to within "
        f"{2 * record['relative_sd']:.0%} (two standard deviations)",
        f"memory budget {format_bytes(record['memory_budget_bytes'])}: {record['why_budget']}",
        "",
        *table.as_lines(width),
        "",
        f"Largest size that fits: {largest}{bound}" if largest else "Not even the smallest size fits.",
        *_estimated_best(record),
    ]
    return "\n".join([*lines, *_notes([record])])


def _estimated_speeds(record: Mapping[str, Any]) -> dict[str, float]:
    estimate = record.get("estimate")
    return {size: int(size) / seconds for size, seconds in estimate["pass_s"].items()} if estimate else {}


def _estimated_best(record: Mapping[str, Any]) -> list[str]:
    estimate = record.get("estimate")
    if not estimate:
        return []
    return [
        f"Estimated for {estimate['device_name']}, not run: the fastest size that fits is "
        f"{estimate['micro_batch_size']}. Samples of its passes, to within "
        f"{2 * estimate['relative_sd']:.0%} (two standard deviations){_update_words(estimate['update_s'])}; "
        "see docs/estimates.md.",
        *_communication_words({"": estimate}),
    ]


def _communication_words(estimates: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield what ranks exchange at the fastest size, by the words that tell estimates apart."""
    for words, estimate in estimates.items():
        if estimate.get("communication"):
            yield f"Communication{words}: {EstimatedCommunication(**estimate['communication']).words}."


def _update_words(update_s: float | None) -> str:
    return "" if update_s is None else f", beside an update of {format_seconds(update_s)}"


def compared_devices_table(records: Sequence[Mapping[str, Any]], *, width: int | None = None) -> str:
    """Return the table of `trace` events of one job for several devices, and which of them is the cheapest."""
    estimates = [record["estimate"] or {} for record in records]
    has_prices = any(one.get("cost_per_million_samples") for one in estimates)
    table = Table(
        headings=(
            *("device", "largest that fits", "recommended", "estimated samples/s"),
            *(("price per device-hour", "cost per million samples") if has_prices else ()),
        ),
        rows=tuple(
            (
                record["named_device"],
                str(record["max_micro_batch_size"] or "none"),
                str(one.get("micro_batch_size") or "unknown"),
                format_rate(one["samples_per_s"]) if one else "unknown",
                *((_money(one.get(key)) for key in _PRICES) if has_prices else ()),
            )
            for record, one in zip(records, estimates, strict=True)
        ),
        is_number=(False, True, True, True, *((True, True) if has_prices else ())),
    )
    unknown = [record["named_device"] for record in records if not record["estimate"]]
    why = "not even one sample fits, no peak is published, or Triton, which makes a device's program, is not installed"
    lines = [
        *table.as_lines(width),
        "",
        *_cheapest(records),
        *_communication_words(
            {f" on {record['named_device']}": one for record, one in zip(records, estimates, strict=True)}
        ),
        *_error_of_estimates(estimates),
        *((f"No estimate for {', '.join(unknown)}: {why}.",) if unknown else ()),
    ]
    return "\n".join([*lines, *_notes(records)])


_PRICES = ("price_per_device_hour", "cost_per_million_samples")


def _money(amount: float | None) -> str:
    return "unknown" if amount is None else f"{amount:,.0f}" if amount >= 1000 else f"{amount:.3g}"


def _cheapest(records: Sequence[Mapping[str, Any]]) -> list[str]:
    priced = [one for one in records if (one["estimate"] or {}).get(_PRICES[1]) is not None]
    if len(priced) < 2:
        return []
    first, second, *_ = sorted(priced, key=lambda one: float(one["estimate"][_PRICES[1]]))
    own, other = first["estimate"], second["estimate"]
    ratio, sd = other[_PRICES[1]] / own[_PRICES[1]], math.hypot(own["relative_sd"], other["relative_sd"])
    sure = "" if ratio > math.exp(2 * sd) else ", which the error of the estimates may undo"
    return [
        f"Cheapest by these prices: {first['named_device']} at size {own['micro_batch_size']}; "
        f"{second['named_device']} costs {ratio:.2f}x as much{sure}."
    ]


def _shorter(record: Mapping[str, Any]) -> dict[str, Mapping[str, int]]:
    by_length = record.get("peak_memory_bytes_by_length") or {}
    longest = max(map(int, by_length), default=0)
    return {length: peaks for length, peaks in by_length.items() if int(length) < longest}


def devices_table(records: Sequence[Mapping[str, Any]], *, width: int | None = None) -> str:
    """Return the table of `trace` events of one job on several numbers of devices: a row a size, a column a number.

    Args:
        records: Events with the same sizes, by their number of devices.
    """
    first = records[0]
    heads = [counted(record["num_devices"], "device") for record in records]
    largest = [f"{record['max_micro_batch_size'] or 'none'}  " for record in records]
    blank = ("",) * (len(records) + 2)
    table = Table(
        headings=("micro_batch_size", *(f"{head}  " for head in heads), "fits"),
        rows=(
            *(
                (size, *(_marked(record, size) for record in records), _fits_from(records, size))
                for size in first["peak_memory_bytes"]
            ),
            blank,
            ("largest that fits", *largest, ""),
        ),
        is_number=(True, *(True for _ in records), False),
    )
    lines = [
        *_not_traced(records),
        f"{first['num_parameters']:,} parameters, memory of one rank, to within {2 * first['relative_sd']:.0%} (two "
        f"standard deviations) of the program for {first['device_name'] or 'the CPU'}",
        *_by_devices(records, lambda record: str(_parallelism(record))),
        *_by_devices(
            records,
            lambda record: f"memory budget {format_bytes(record['memory_budget_bytes'])}: {record['why_budget']}",
        ),
        "",
        *table.as_lines(width),
        "",
        "* is more than the memory budget",
    ]
    return "\n".join([*lines, *_notes(records)])


def settings_table(records: Sequence[Mapping[str, Any]], *, width: int | None = None) -> str:
    """Return the table of `trace` events of a job's variants: a row for each, the file's own settings first."""
    first = records[0]
    sizes = _spread(list(first["peak_memory_bytes"]))
    estimates = [record.get("estimate") for record in records]
    speeds = ("fastest at", "estimated samples/s") if any(estimates) else ()
    table = Table(
        headings=("settings", "largest that fits", *speeds, "operations", *(f"peak at {size}  " for size in sizes)),
        rows=tuple((record["name"], *_cells_of_variant(record, sizes, has_speeds=bool(speeds))) for record in records),
        is_number=(False, True, *(True for _ in speeds), True, *(True for _ in sizes)),
    )
    lines = [
        *_not_traced(records),
        f"{first['num_parameters']:,} parameters, memory to within {2 * first['relative_sd']:.0%} (two standard "
        f"deviations) of the program for {first['device_name'] or 'the CPU'}",
        f"memory budget {format_bytes(first['memory_budget_bytes'])}: {first['why_budget']}",
        "",
        *table.as_lines(width),
        "",
        "operations of a pass are those over the file's own settings; * is more than the memory budget",
        *_error_of_estimates(estimates),
    ]
    return "\n".join([*lines, *_notes(records)])


def _error_of_estimates(estimates: Sequence[Mapping[str, Any] | None]) -> tuple[str, ...]:
    sd = max((one["relative_sd"] for one in estimates if one), default=None)
    return () if sd is None else (f"Estimated, not run: each speed to within {2 * sd:.0%} (two standard deviations).",)


def _cells_of_variant(record: Mapping[str, Any], sizes: Sequence[str], *, has_speeds: bool) -> tuple[str, ...]:
    if record["peak_memory_bytes"] is None:
        return (f"cannot be traced: {record['reason']}",)
    operations = record["operations_over_file"]
    over = "unknown" if operations is None else f"{operations:.2f}x"
    estimate = record.get("estimate") or {"micro_batch_size": "unknown", "samples_per_s": None}
    speed = "unknown" if estimate["samples_per_s"] is None else f"{estimate['samples_per_s']:.4g}"
    speeds = (str(estimate["micro_batch_size"]), speed) if has_speeds else ()
    return str(record["max_micro_batch_size"] or "none"), *speeds, over, *(_marked(record, size) for size in sizes)


def _spread(sizes: Sequence[str]) -> list[str]:
    """Return at most so many sizes as the table has columns for, the first and the last among them."""
    if len(sizes) <= MAX_SIZES:
        return list(sizes)
    step = (len(sizes) - 1) / (MAX_SIZES - 1)
    return [sizes[round(number * step)] for number in range(MAX_SIZES)]


def _marked(record: Mapping[str, Any], size: str) -> str:
    return f"{format_bytes(record['peak_memory_bytes'][size])}{'  ' if _fits(record, size) else ' *'}"


def _fits(record: Mapping[str, Any], size: str) -> bool:
    needed: float = record["peak_memory_bytes"][size] * record["reserved_over_peak"]
    return needed <= record["memory_budget_bytes"]


def _fits_from(records: Sequence[Mapping[str, Any]], size: str) -> str:
    """Return the number of devices from which on a size fits, among those that were traced."""
    number = None
    for record in reversed(records):
        if not _fits(record, size):
            break
        number = record["num_devices"]
    return "on none" if number is None else f"from {counted(number, 'device')} on"


def _by_devices(records: Sequence[Mapping[str, Any]], describe: Callable[[Mapping[str, Any]], str]) -> list[str]:
    """Return a line for each description, with the numbers of devices that share it."""
    numbers: dict[str, list[str]] = {}
    for record in records:
        numbers.setdefault(describe(record), []).append(str(record["num_devices"]))
    if len(numbers) == 1:
        return list(numbers)
    return [f"{', '.join(each)}: {description}" for description, each in numbers.items()]


def _parallelism(record: Mapping[str, Any]) -> Parallelism:
    return Parallelism(**record["parallelism"])


def _of_rank(record: Mapping[str, Any]) -> list[str]:
    """Return what of the job one rank has; empty where there is one device."""
    number = record.get("num_devices", 1)
    return [] if number == 1 else [f"one rank of {number}: {_parallelism(record)}"]


def _notes(records: Sequence[Mapping[str, Any]]) -> list[str]:
    ratio = max(record["reserved_over_peak"] or 1.0 for record in records)
    of_allocator = (
        [f"the device's allocator is expected to reserve {ratio:.3f} times the peak, which must fit"]
        if ratio > 1.0
        else []
    )
    notes = dict.fromkeys([*of_allocator, *(note for record in records for note in record["notes"])])
    return [f"note: {note}" for note in notes]


def _operations(record: Mapping[str, Any]) -> str:
    flops = record["flops_per_sample"]
    return "operations unknown" if flops is None else f"{format_flops(flops)} a sample"


def _not_traced(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each measurement that stands for a trace, with the sizes and the reason."""
    measured = [one for one in records if one.get("measured_at")]
    return list(dict.fromkeys(describe_source(one["measured_at"], one["why_untraced"]) for one in measured))


def _when(record: Mapping[str, Any]) -> str:
    if record.get("measured_at"):
        if record["remembered_from"] is None:
            return f"measured in {format_seconds(record['trace_s'])}"
        return f"measured at {record['remembered_from']}, nothing has changed since; `fresh=True` measures anew"
    if record["remembered_from"] is None:
        return f"traced in {format_seconds(record['trace_s'])}"
    return f"remembered from {record['remembered_from']}, nothing has changed since; `fresh=True` traces anew"


def replay_line(record: Mapping[str, Any]) -> str:
    """Return the line of a replay's `result` event."""
    if record["micro_batch_size"] is None:
        return f"{record['curve_id']}: no recommendation ({record['stop_reason']})"
    share = record["cost_s"] / record["exhaustive_cost_s"]
    return (
        f"{record['curve_id']}: {_setting(record)}micro_batch_size {record['micro_batch_size']}, "
        f"{record['relative_performance']:.2f}x base, confidence {record['confidence']}{_recorded_best(record)}, "
        f"{counted(record['num_probes'], 'probe')}, {format_seconds(record['cost_s'])} ({share:.0%} of exhaustive)"
    )


def _recorded_best(record: Mapping[str, Any]) -> str:
    """Return how the answer compares with the fastest size of the table."""
    size, share = record.get("recorded_best_micro_batch_size"), record.get("share_of_recorded_best")
    if size is None or share is None:
        return ""
    setting = record.get("recorded_best_setting")
    is_same = size == record["micro_batch_size"] and setting == record.get("setting")
    if is_same:
        return ", the fastest recorded"
    return f", {share:.1%} of the speed of {f'{setting}, ' if setting else ''}size {size}, the fastest recorded"


def _setting(record: Mapping[str, Any]) -> str:
    return f"{record['setting']}, " if record.get("setting") else ""


def replay_cost_line(records: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the cost of the search over all curves and at the median curve; None for fewer than two replayed curves.

    A few slow curves can dominate the sum; the median is that of the curves' own shares.

    Args:
        records: The `result` events of a replay.
    """
    ran = [record for record in records if record.get("cost_s") is not None]
    if len(ran) < 2:
        return None
    cost_s, exhaustive_s = (sum(record[name] for record in ran) for name in ("cost_s", "exhaustive_cost_s"))
    shares = [record["cost_s"] / record["exhaustive_cost_s"] for record in ran]
    median_s = statistics.median(record["cost_s"] for record in ran)
    return (
        f"{counted(len(ran), 'curve')}: {format_seconds(cost_s)} in all ({cost_s / exhaustive_s:.0%} of exhaustive); "
        f"the median curve {format_seconds(median_s)} ({statistics.median(shares):.0%} of exhaustive)"
    )
