"""How each replayed curve ended, in a line for people, and what all of them cost."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bexplore.units import counted, format_seconds


def replay_line(record: Mapping[str, Any]) -> str:
    """The line of a `result` event of a replay."""
    if record["micro_batch_size"] is None:
        return f"{record['curve_id']}: no recommendation ({record['stop_reason']})"
    share = record["cost_s"] / record["exhaustive_cost_s"]
    return (
        f"{record['curve_id']}: micro_batch_size {record['micro_batch_size']}, "
        f"{record['relative_performance']:.2f}x base, confidence {record['confidence']}, "
        f"{counted(record['num_probes'], 'probe')}, {format_seconds(record['cost_s'])} ({share:.0%} of exhaustive)"
    )


def replay_cost_line(records: Sequence[Mapping[str, Any]]) -> str | None:
    """What the search cost over all curves, and at the median one; None for fewer than two that it ran on.

    A few slow curves can make up most of a sum; the median is that of the curves' own shares.

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
