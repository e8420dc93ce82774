"""What a trace tells of every size, as a table for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bexplore.batching import MAX_SAMPLES
from bexplore.units import format_bytes, format_seconds


def trace_table(record: Mapping[str, Any]) -> str:
    """The text of a `trace` event."""
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
