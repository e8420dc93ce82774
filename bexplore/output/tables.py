"""Tables for people: a trace, and replayed curves."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bexplore.batching import MAX_SAMPLES
from bexplore.units import counted, format_bytes, format_seconds


def trace_table(record: Mapping[str, Any]) -> str:
    """Return the table of a `trace` event."""
    lines = [
        f"{record['num_parameters']:,} parameters, {record['flops_per_sample']:.4g} flops a sample, "
        f"{_when(record)} (fingerprint {record['fingerprint']})",
        f"memory of the program for {record['device_name'] or 'the CPU'}, to within "
        f"{2 * record['relative_sd']:.0%} (two standard deviations)",
        f"memory budget {format_bytes(record['memory_budget_bytes'])}: {record['why_budget']}",
        "",
        f"  {'micro_batch_size':>16}  {'peak memory':>12}  fits",
    ]
    for size, peak in record["peak_memory_bytes"].items():
        fits = "yes" if peak * record["reserved_over_peak"] <= record["memory_budget_bytes"] else "no"
        lines.append(f"  {size:>16}  {format_bytes(peak):>12}  {fits}")
    largest = record["max_micro_batch_size"]
    bound = " (the largest that may be tried)" if largest in (record["bounds"][1], MAX_SAMPLES) else ""
    lines += ["", f"Largest size that fits: {largest}{bound}" if largest else "Not even the smallest size fits."]
    if record["reserved_over_peak"] > 1.0:
        ratio = record["reserved_over_peak"]
        lines.append(f"note: the device's allocator is expected to reserve {ratio:.3f} times the peak, which must fit")
    lines += [f"note: {note}" for note in record["notes"]]
    return "\n".join(lines)


def _when(record: Mapping[str, Any]) -> str:
    if record["remembered_from"] is None:
        return f"traced in {format_seconds(record['trace_s'])}"
    return f"remembered from {record['remembered_from']}, nothing has changed since; --fresh traces anew"


def replay_line(record: Mapping[str, Any]) -> str:
    """Return the line of a replay's `result` event."""
    if record["micro_batch_size"] is None:
        return f"{record['curve_id']}: no recommendation ({record['stop_reason']})"
    share = record["cost_s"] / record["exhaustive_cost_s"]
    return (
        f"{record['curve_id']}: micro_batch_size {record['micro_batch_size']}, "
        f"{record['relative_performance']:.2f}x base, confidence {record['confidence']}, "
        f"{counted(record['num_probes'], 'probe')}, {format_seconds(record['cost_s'])} ({share:.0%} of exhaustive)"
    )


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
