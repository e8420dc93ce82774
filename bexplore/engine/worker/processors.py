"""The processors of a worker's threads: where they run, and how long they wait for one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_TASKS = Path("/proc/self/task")


class Placement:
    """Processors that change from round to round.

    A worker that leaves processors free would stay on the one where it was last, and its partner on another: what one
    processor is slower than the other, because of another process on its core, would be taken for a difference of the
    programs. Workers that are given the same number of a round run on the same processors. Where the system cannot
    place threads, or a program uses all processors, nothing is done.
    """

    def __init__(self) -> None:
        can_place = hasattr(os, "sched_setaffinity") and _TASKS.is_dir()
        self._allowed = sorted(os.sched_getaffinity(0)) if can_place else []

    def processors(self, round_number: int, num_threads: int) -> frozenset[int]:
        """Return the processors of a round for so many threads; empty where they have no choice."""
        count = len(self._allowed)
        if num_threads >= count:
            return frozenset()
        return frozenset(self._allowed[(round_number * num_threads + index) % count] for index in range(num_threads))

    def take_slot(self, round_number: int, num_threads: int) -> None:
        """Move all threads of this process to the processors of a round."""
        processors = self.processors(round_number, num_threads)
        for task in _TASKS.iterdir() if processors else ():
            try:
                os.sched_setaffinity(int(task.name), processors)
            except OSError:
                pass  # the thread has ended, or the processor has been taken away


def waits_s() -> dict[str, float]:
    """Return the seconds that each thread has waited for a processor so far; empty where the kernel keeps no account.

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
    """Return the longest wait of a thread between two readings; threads meet at barriers, so the slowest delays all."""
    return max((after[task] - before.get(task, 0.0) for task in after), default=0.0) if before else 0.0
