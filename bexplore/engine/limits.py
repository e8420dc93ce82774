"""Memory limits of the worker's own process, so that "too big" is an error of one probe and not the end of the host."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Growth beside the tensors that a step is allowed: thread stacks, allocator arenas, a library's scratch. Bytes.
STEP_OVERHEAD_BYTES = 192 * 2**20
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def volunteer_for_the_oom_killer() -> None:
    """Make the kernel's out-of-memory killer choose this worker before any other process of the user."""
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:
        pass  # not Linux, or forbidden in this container: the budget and the watchdog remain


class DataLimit:
    """Holds a soft RLIMIT_DATA around steps and lifts it around compilations.

    The kernel refuses a private mapping beyond the limit, and torch's allocator turns that into its own clean error.
    """

    def __init__(self, budget_bytes: int | None) -> None:
        self._budget_bytes = budget_bytes
        self._hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        self._active = False
        self._live_bytes = 0

    @contextmanager
    def around_steps(self, live_bytes: int) -> Iterator[None]:
        """Limit what the block may add to the `live_bytes` of tensors that exist already."""
        if self._budget_bytes is None or not _data_bytes():
            yield
            return
        self._live_bytes = live_bytes
        self._active = True
        self.lower()
        try:
            yield
        finally:
            self._active = False
            self.lift()

    def lift(self) -> None:
        """Allow everything again: the compiler's own memory is not the job's."""
        self._set(self._hard)

    def lower(self) -> None:
        """Take the limit up again, measured from where the process stands now."""
        if self._active and self._budget_bytes is not None:
            room = max(0, self._budget_bytes - self._live_bytes) + STEP_OVERHEAD_BYTES
            self._set(_data_bytes() + room)

    def _set(self, soft: int) -> None:
        if self._hard != resource.RLIM_INFINITY:
            soft = self._hard if soft == resource.RLIM_INFINITY else min(soft, self._hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, self._hard))


def _data_bytes() -> int:
    """Bytes that count against RLIMIT_DATA now; 0 where the kernel does not tell."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    for line in status.splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return 0


def kill_own_group() -> None:
    """End this worker and everything that it started."""
    os.killpg(os.getpgid(0), signal.SIGKILL)
