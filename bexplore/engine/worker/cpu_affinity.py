"""Which processors a worker's threads run on while its times are compared with another worker's."""

from __future__ import annotations

import os
from pathlib import Path


class Placement:
    """Processors that change from turn to turn.

    A worker that leaves processors free stays on the one where it was last, and its partner on another: what one
    processor is slower than the other, because of a neighbour on its core, would be taken for a difference of the
    programs. Workers that are given the same turn run on the same processors. Where the system cannot place threads,
    or a program uses all processors, nothing is done.
    """

    def __init__(self) -> None:
        can_place = hasattr(os, "sched_setaffinity") and Path("/proc/self/task").is_dir()
        self._allowed = sorted(os.sched_getaffinity(0)) if can_place else []

    def processors(self, turn: int, num_threads: int) -> frozenset[int]:
        """The processors of a turn for so many threads; empty where they have no choice."""
        count = len(self._allowed)
        if num_threads >= count:
            return frozenset()
        return frozenset(self._allowed[(turn * num_threads + index) % count] for index in range(num_threads))

    def take_slot(self, turn: int, num_threads: int) -> None:
        """Move all threads of this process to the processors of a turn."""
        processors = self.processors(turn, num_threads)
        if not processors:
            return
        for task in Path("/proc/self/task").iterdir():
            try:
                os.sched_setaffinity(int(task.name), processors)
            except OSError:
                pass  # the thread has ended, or the processor has been taken away
