"""The second fence around a worker's memory, seen from outside; the worker's own limit is the first.

It catches what a process cannot refuse itself: children, shared mappings, the compiler at work, a host that other
programs fill. What it sees is resident memory, read from /proc; where there is none, it sees nothing.
"""

from __future__ import annotations

import mmap
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from bexplore.host.machine import available_memory_bytes, num_usable_processors

# How often memory is looked at. Seconds.
POLL_S = 0.025
# The same where it takes shared memory or has children, of which no limit of its own counts the sum, and where they
# could use up what is left before the next look: this watch is the only fence then. A look costs a processor a
# millisecond, which the compilers that run as children would miss. Seconds.
POLL_CLOSE_S = 0.003
# How fast one processor fills memory, with as much again for faster ones than those that it was measured on. Bytes a
# second.
FILLED_PER_S = 6 * 2**30
# Swap and the host's memory change slowly; so do children where looking for them costs a walk over all processes.
SLOWLY_S = 0.5
# What children hold alone is asked again after so many times the seconds that the last answer took.
OWN_EVERY = 20.0
# Below this the kernel begins to reclaim in earnest, and then to kill. Bytes.
HOST_FLOOR_BYTES = 192 * 2**20
# What an idle page or two in swap is not. Bytes.
SWAP_BYTES = 64 * 2**20
# Growth beyond the room of the steps that is no sign of anything: the worker refuses itself before this one does.
SLACK_BYTES = 32 * 2**20


class MemoryWatchdog:
    """Watches one worker and its descendants.

    Args:
        pid: The worker.
        limit_bytes: Resident memory of all of them together beyond which they must end; None for no limit.
    """

    def __init__(self, pid: int, limit_bytes: int | None) -> None:
        self._pid = pid
        self._most_bytes = self._limit_bytes = limit_bytes
        self._slack_bytes = 0
        self._children_before = 0
        self._swap_before = swapped_bytes(pid)
        self._shared_before = _memory(pid).shared_bytes
        self._poll_s = POLL_S
        self._children = _Children(pid)
        self._looked_at_s = 0.0

    def allow(self, headroom_bytes: int) -> None:
        """From now on the worker and its children may grow by so much, within the limit that was given."""
        if self._most_bytes is not None:
            now = _memory(self._pid)
            self._children_before = self._children.own_bytes()
            self._limit_bytes = min(self._most_bytes, now.resident_bytes + self._children_before + headroom_bytes)
            self._slack_bytes, self._shared_before = SLACK_BYTES, now.shared_bytes

    @property
    def poll_s(self) -> float:
        """Seconds after which to look again."""
        return self._poll_s

    def violation(self) -> str:
        """Why the worker must end; empty where it need not."""
        if self._limit_bytes is None:
            return ""
        now, children_bytes = _memory(self._pid), self._children.own_bytes()
        takes_shared = now.shared_bytes - self._shared_before > SLACK_BYTES
        has_children = children_bytes - self._children_before > SLACK_BYTES
        # Slack is for what the worker refuses itself. Each child refuses itself too, but beside its parent, and what a
        # program makes of that is not known: it is ended before.
        slack_bytes = -self._slack_bytes if has_children else 0 if takes_shared else self._slack_bytes
        left_bytes = self._limit_bytes + slack_bytes - now.resident_bytes - children_bytes
        self._poll_s = self._next_look_s(left_bytes) if takes_shared or has_children else POLL_S
        if left_bytes < 0:
            return f"the worker's resident memory passed {self._limit_bytes / 2**20:.0f} MiB"
        if time.monotonic() - self._looked_at_s <= SLOWLY_S:
            return ""
        self._looked_at_s = time.monotonic()
        if swapped_bytes(self._pid) - self._swap_before > SWAP_BYTES:
            return "the host began to swap the worker out"
        if available_memory_bytes() < HOST_FLOOR_BYTES:
            return f"the host has less than {HOST_FLOOR_BYTES / 2**20:.0f} MiB of memory left"
        return ""

    def _next_look_s(self, left_bytes: int) -> float:
        used_up_s = left_bytes / (FILLED_PER_S * num_usable_processors())
        return min(POLL_S, max(POLL_CLOSE_S, used_up_s))


class _Children:
    """The descendants of a process, found anew at every look where the kernel lists them, else now and then."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._pids: list[int] = []
        self._walked_at_s = 0.0
        self._again_at_s = 0.0
        self._known: dict[int, _Child] = {}

    def own_bytes(self) -> int:
        """What they hold alone: a forked child shares its parent's pages until it writes.

        How much that is, is slow to ask of large processes, and asked while one grows it grows further. So it is asked
        once of each that is new; what more becomes resident is its own. It is asked again where page faults without
        more resident memory tell that pages of the parent were written to.
        """
        self._find()
        is_due = time.monotonic() > self._again_at_s
        if any(pid not in self._known for pid in self._pids) or (is_due and self._copied_bytes() > SLACK_BYTES):
            began_s = time.monotonic()
            self._known = {pid: _Child.of(pid) for pid in self._pids}
            self._again_at_s = time.monotonic() + OWN_EVERY * (time.monotonic() - began_s)
        return sum(max(0, resident_bytes(pid) - self._known[pid].parents_bytes) for pid in self._pids)

    def _copied_bytes(self) -> int:
        """At most so much of their parents' pages became theirs since they were looked at closely."""
        return sum(self._known[pid].copied_bytes(pid) for pid in self._pids)

    def _find(self) -> None:
        listed = _listed_descendants(self._pid)
        if listed is not None:
            self._pids = listed
        elif time.monotonic() - self._walked_at_s > SLOWLY_S:
            self._pids, self._walked_at_s = _walked_descendants(self._pid), time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Child:
    """One descendant, looked at closely.

    Attributes:
        parents_bytes: Of what was resident, pages that were still its parent's.
        resident_bytes: What was resident.
        num_faults: Page faults so far.
    """

    parents_bytes: int
    resident_bytes: int
    num_faults: int

    @classmethod
    def of(cls, pid: int) -> _Child:
        resident, num_faults = resident_bytes(pid), _page_faults(pid)
        return cls(parents_bytes=max(0, resident - _own_bytes(pid)), resident_bytes=resident, num_faults=num_faults)

    def copied_bytes(self, pid: int) -> int:
        faulted = (_page_faults(pid) - self.num_faults) * mmap.PAGESIZE
        return min(self.parents_bytes, max(0, faulted - max(0, resident_bytes(pid) - self.resident_bytes)))


def _page_faults(pid: int) -> int:
    """Minor page faults of a process so far; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])
    except (OSError, IndexError):
        return 0


def _listed_descendants(pid: int) -> list[int] | None:
    """Descendants as the kernel lists them by thread; None where it does not."""
    found: list[int] = []
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return found  # ended meanwhile
    for thread in threads:
        try:
            found += map(int, (thread / "children").read_bytes().split())
        except FileNotFoundError:
            if thread.exists():
                return None  # the thread is there, and no list: a kernel without it
        except OSError:
            continue  # ended meanwhile
    return found + [below for child in found for below in _listed_descendants(child) or ()]


def _walked_descendants(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def _own_bytes(pid: int) -> int:
    """What a process holds alone, or shares on purpose; all that is resident where the kernel does not tell."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return resident_bytes(pid)
    words = [line.split() for line in lines if line.startswith("Private_Dirty:")]
    return sum(int(kibibytes) * 1024 for _, kibibytes, _ in words) + _memory(pid).shared_bytes


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
