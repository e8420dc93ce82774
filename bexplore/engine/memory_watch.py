"""The second fence around a worker's memory, seen from outside; the worker's own limit is the first.

It catches what a process cannot refuse itself: children, shared mappings, the compiler at work, a host that other
programs fill. What it sees is resident memory, read from /proc; where there is none, it sees nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from bexplore.engine.machine import available_memory_bytes

# How often memory is looked at. Also how far a worker can run before it is seen: 3 GiB/s times this. Seconds.
POLL_S = 0.025
# The same while it takes shared memory, which no limit of its own refuses: this watch is the only fence. Seconds.
POLL_SHARED_S = 0.003
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
        self._slack_bytes = 0
        self._swap_before = swapped_bytes(pid)
        self._shared_before = _memory(pid).shared_bytes
        self._takes_shared = False
        self._children_bytes = 0
        self._children_at_s = 0.0

    def allow(self, room_bytes: int) -> None:
        """From now on the worker may grow by so much, within the limit that was given."""
        if self._most_bytes is not None:
            now = _memory(self._pid)
            self._limit_bytes = min(self._most_bytes, now.resident_bytes + room_bytes)
            self._slack_bytes, self._shared_before = SLACK_BYTES, now.shared_bytes

    @property
    def poll_s(self) -> float:
        """Seconds after which to look again."""
        return POLL_SHARED_S if self._takes_shared else POLL_S

    def violation(self) -> str:
        """Why the worker must end; empty where it need not."""
        if self._limit_bytes is None:
            return ""
        is_due = time.monotonic() - self._children_at_s > CHILDREN_EVERY_S
        if is_due:
            self._children_bytes, self._children_at_s = _descendants_bytes(self._pid), time.monotonic()
        now = _memory(self._pid)
        self._takes_shared = now.shared_bytes - self._shared_before > SLACK_BYTES
        slack_bytes = 0 if self._takes_shared else self._slack_bytes  # it is for what the worker refuses itself
        if now.resident_bytes + self._children_bytes > self._limit_bytes + slack_bytes:
            return f"the worker's resident memory passed {self._limit_bytes / 2**20:.0f} MiB"
        if is_due and swapped_bytes(self._pid) - self._swap_before > SWAP_BYTES:
            return "the host began to swap the worker out"
        if is_due and available_memory_bytes() < HOST_FLOOR_BYTES:
            return f"the host has less than {HOST_FLOOR_BYTES / 2**20:.0f} MiB of memory left"
        return ""


def resident_bytes(pid: int) -> int:
    """Resident memory of one process that is its own or shared, without the pages of files; 0 if it is gone."""
    return _memory(pid).resident_bytes


def swapped_bytes(pid: int) -> int:
    """What of a process lies in swap; 0 if it is gone."""
    return _memory(pid).swapped_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Memory:
    """Of one process, in bytes, without the pages of files; 0 throughout if it is gone."""

    private_bytes: int
    shared_bytes: int
    swapped_bytes: int

    @property
    def resident_bytes(self) -> int:
        return self.private_bytes + self.shared_bytes


def _descendants_bytes(pid: int) -> int:
    try:
        return sum(resident_bytes(child.pid) for child in psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return 0


def _memory(pid: int) -> _Memory:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        lines = []  # ended meanwhile
    words = [line.split() for line in lines if line.startswith(("RssAnon:", "RssShmem:", "VmSwap:"))]
    found = {name: int(kibibytes) * 1024 for name, kibibytes, _ in words}
    return _Memory(
        private_bytes=found.get("RssAnon:", 0),
        shared_bytes=found.get("RssShmem:", 0),
        swapped_bytes=found.get("VmSwap:", 0),
    )
