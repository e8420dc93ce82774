"""How long the threads of this process were ready to run and did not get a processor: what neighbours cost a pass."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_TASKS = Path("/proc/self/task")


def scheduler_wait_s() -> dict[str, float]:
    """Seconds that each thread has waited for a processor so far; empty where the kernel does not tell.

    Source: the second number of /proc/PID/schedstat, nanoseconds on the run queue (Linux, Documentation/scheduler).
    """
    waits: dict[str, float] = {}
    try:
        for task in _TASKS.iterdir():
            waits[task.name] = int((task / "schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return {}  # not Linux, or a thread has just ended
    return waits


def longest_wait_s(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """The longest wait of a thread between two looks; threads meet at barriers, so the slowest delays all."""
    return max((after[task] - before.get(task, 0.0) for task in after), default=0.0) if before else 0.0
