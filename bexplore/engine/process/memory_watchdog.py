"""The second fence around a worker's memory, seen from outside; the worker's own limit is the first.

It catches what a process cannot refuse itself: children, shared mappings, the compiler at work, a host that other
programs fill. It reads resident memory from /proc; where there is none, it finds no violation.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from bexplore.host.machine import available_memory_bytes

# How often the worker's memory is read. Seconds.
POLL_S = 0.025
# How often its children are found and their memory is read, which takes the kernel milliseconds a process. Seconds.
CHILDREN_S = 0.25
# Swap and the host's memory change slowly. Seconds.
SLOWLY_S = 0.5
# Below this the kernel begins to reclaim in earnest, and then to kill. Bytes.
HOST_FLOOR_BYTES = 192 * 2**20
# What an idle page or two in swap is not. Bytes.
SWAP_BYTES = 64 * 2**20
# Growth beyond the headroom of the steps that shows nothing: the worker refuses itself before this one does.
SLACK_BYTES = 32 * 2**20


class MemoryWatchdog:
    """Watches one worker and its descendants."""

    def __init__(self, pid: int, limit_bytes: int | None) -> None:
        self._pid = pid
        self._most_bytes = self._limit_bytes = limit_bytes
        self._slack_bytes = 0
        self._swap_before = swapped_bytes(pid)
        self._shared_before = _status(pid).get("RssShmem", 0)
        self._children_bytes = self._children_before = 0
        self._children_read_at_s = self._host_read_at_s = 0.0

    def allow(self, headroom_bytes: int) -> None:
        """Let the worker and its children grow by so much from now on, within the limit that was given."""
        if self._most_bytes is not None:
            self._read_children()
            self._children_before = self._children_bytes
            now_bytes = resident_bytes(self._pid) + self._children_bytes
            self._limit_bytes = min(self._most_bytes, now_bytes + headroom_bytes)
            self._slack_bytes, self._shared_before = SLACK_BYTES, _status(self._pid).get("RssShmem", 0)

    def violation(self) -> str:
        """Return why the worker must end; empty where it need not."""
        if self._limit_bytes is None:
            return ""
        if time.monotonic() - self._children_read_at_s > CHILDREN_S:
            self._read_children()
        now = _status(self._pid)
        takes_shared = now.get("RssShmem", 0) - self._shared_before > SLACK_BYTES
        has_children = self._children_bytes - self._children_before > SLACK_BYTES
        # Slack is for what the worker refuses itself. Each child refuses itself too, but beside its parent, and what a
        # program makes of that is not known: it is ended before.
        slack_bytes = -self._slack_bytes if has_children else 0 if takes_shared else self._slack_bytes
        if _resident(now) + self._children_bytes > self._limit_bytes + slack_bytes:
            return f"the worker's resident memory passed {self._limit_bytes / 2**20:.0f} MiB"
        if time.monotonic() - self._host_read_at_s <= SLOWLY_S:
            return ""
        self._host_read_at_s = time.monotonic()
        if swapped_bytes(self._pid) - self._swap_before > SWAP_BYTES:
            return "the host began to swap the worker out"
        if available_memory_bytes() < HOST_FLOOR_BYTES:
            return f"the host has less than {HOST_FLOOR_BYTES / 2**20:.0f} MiB of memory left"
        return ""

    def _read_children(self) -> None:
        """Add what the descendants have beside the worker: a forked child shares its pages until one of them writes.

        A page that n processes share counts as the n-th part in each one's proportional memory, and whole in the
        worker's resident memory, which is lowered by the rest.
        """
        self._children_read_at_s = time.monotonic()
        try:
            pids = [child.pid for child in psutil.Process(self._pid).children(recursive=True)]
        except psutil.Error:
            pids = []  # ended meanwhile
        self._children_bytes = 0
        if pids:
            doubly_counted = resident_bytes(self._pid) - _proportional_bytes(self._pid)
            self._children_bytes = sum(map(_proportional_bytes, pids)) - doubly_counted


def resident_bytes(pid: int) -> int:
    """Return a process's resident memory that is its own or shared, without the pages of files; 0 if it is gone."""
    return _resident(_status(pid))


def swapped_bytes(pid: int) -> int:
    """Return what of a process lies in swap; 0 if it is gone."""
    return _status(pid).get("VmSwap", 0)


def _resident(status: Mapping[str, int]) -> int:
    return status.get("RssAnon", 0) + status.get("RssShmem", 0)


def _proportional_bytes(pid: int) -> int:
    """Return a process's share of its pages, those of files excepted; resident memory where that is unknown."""
    found = _sizes(f"/proc/{pid}/smaps_rollup", ("Pss_Anon:", "Pss_Shmem:"))
    return sum(found.values()) if found else resident_bytes(pid)


def _status(pid: int) -> dict[str, int]:
    return _sizes(f"/proc/{pid}/status", ("RssAnon:", "RssShmem:", "VmSwap:"))


def _sizes(path: str, names: tuple[str, ...]) -> dict[str, int]:
    """Return the sizes of a /proc file by name, in bytes; empty if the process is gone."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return {}
    words = [line.split() for line in lines if line.startswith(names)]
    return {name.rstrip(":"): int(kibibytes) * 1024 for name, kibibytes, _ in words}
