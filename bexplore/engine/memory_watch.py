"""The second fence around a worker's memory, seen from outside; the worker's own limit is the first.

It catches what a process cannot refuse itself: children, shared mappings, the compiler at work, a host that other
programs fill. What it sees is resident memory, read from /proc; where there is none, it sees nothing.
"""

from __future__ import annotations

import time
from pathlib import Path

import psutil

from bexplore.engine.machine import available_memory_bytes

# Children come and go with compilations; looking for them costs a walk over all processes. Seconds.
CHILDREN_EVERY_S = 0.5
# Below this the kernel begins to reclaim in earnest, and then to kill. Bytes.
HOST_FLOOR_BYTES = 192 * 2**20
# What an idle page or two in swap is not. Bytes.
SWAP_BYTES = 64 * 2**20
# Growth beyond the room of the steps that is no sign of anything: the worker refuses itself before this one does.
SLACK_BYTES = 32 * 2**20


class MemoryWatch:
    """Watches one worker and its descendants.

    Args:
        pid: The worker.
        limit_bytes: Resident memory of all of them together beyond which they must end; None for no limit.
    """

    def __init__(self, pid: int, limit_bytes: int | None) -> None:
        self._pid = pid
        self._most_bytes = self._limit_bytes = limit_bytes
        self._swap_before = swapped_bytes(pid)
        self._children_bytes = 0
        self._children_at_s = 0.0

    def allow(self, room_bytes: int) -> None:
        """From now on the worker may grow by so much, within the limit that was given."""
        if self._most_bytes is not None:
            self._limit_bytes = min(self._most_bytes, resident_bytes(self._pid) + room_bytes + SLACK_BYTES)

    def violation(self) -> str:
        """Why the worker must end; empty where it need not."""
        if self._limit_bytes is None:
            return ""
        is_due = time.monotonic() - self._children_at_s > CHILDREN_EVERY_S
        if is_due:
            self._children_bytes, self._children_at_s = _descendants_bytes(self._pid), time.monotonic()
        held = resident_bytes(self._pid) + self._children_bytes
        if held > self._limit_bytes:
            return f"the worker's resident memory passed {self._limit_bytes / 2**20:.0f} MiB"
        if is_due and swapped_bytes(self._pid) - self._swap_before > SWAP_BYTES:
            return "the host began to swap the worker out"
        if is_due and available_memory_bytes() < HOST_FLOOR_BYTES:
            return f"the host has less than {HOST_FLOOR_BYTES / 2**20:.0f} MiB of memory left"
        return ""


def resident_bytes(pid: int) -> int:
    """Resident memory of one process that is its own or shared, without the pages of files; 0 if it is gone."""
    return _status_bytes(pid, "RssAnon:") + _status_bytes(pid, "RssShmem:")


def swapped_bytes(pid: int) -> int:
    """What of a process lies in swap; 0 if it is gone."""
    return _status_bytes(pid, "VmSwap:")


def _descendants_bytes(pid: int) -> int:
    try:
        return sum(resident_bytes(child.pid) for child in psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return 0


def _status_bytes(pid: int, name: str) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # ended meanwhile
    return 0
