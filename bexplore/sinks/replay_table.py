"""How a replayed curve ended, in a line for people."""

from __future__ import annotations

from collections.abc import Mapping
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
