"""The worker's own process: limits of its memory, so that "too big" ends a probe and no host, and its processors."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

# Growth beside the tensors that a step is allowed (thread stacks, allocator arenas, a library's scratch): this share of
# the budget, within bounds. Bytes.
STEP_OVERHEAD_SHARE = 0.04
STEP_OVERHEAD_BYTES = (64 * 2**20, 192 * 2**20)
# What the compiler may take beside the job, as seen from outside. Bytes.
COMPILER_BYTES = 4 * 2**30
# Growth beside the weights while the job is built: what the user's modules import and load. Bytes.
BUILD_OVERHEAD_BYTES = 4 * 2**30
_PR_SET_PDEATHSIG = 1
_TASKS = Path("/proc/self/task")


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
        # Of the process before its first step, the job's tensors not counted: what counts against RLIMIT_DATA, and
        # what is resident of it.
        self._base_bytes: int | None = None
        self._base_resident_bytes = 0
        self._ceiling_bytes: int | None = None  # of RLIMIT_DATA while steps run
        self._lifted_at_bytes: int | None = None
        self._lifted_at_resident_bytes = 0

    @contextmanager
    def around_steps(self, live_bytes: int, *, is_known_to_fit: bool = False) -> Iterator[None]:
        """Limit what the block may add to the `live_bytes` of tensors that exist already.

        A step `is_known_to_fit` where one as large ran in this process before: only what that left behind could
        refuse it.
        """
        _give_back_free_heap()
        headroom, counted = self.headroom_bytes(live_bytes), _data_bytes()
        if headroom is None or not counted:
            yield
            return
        if self._base_bytes is None:
            self._base_bytes = counted - live_bytes
            self._base_resident_bytes = _status_bytes("RssAnon") - live_bytes
        # From one base for all steps of this process: what an earlier size left in the heap is headroom of this one's.
        # Of that, address space without memory behind it is not resident, and a heap in pieces would be refused what
        # fits. But with headroom for all of it a step that does not fit is not refused here: the watchdog ends it.
        left = counted - live_bytes - self._base_bytes
        left_resident = _status_bytes("RssAnon") - live_bytes - self._base_resident_bytes
        empty = max(0, left - max(0, left_resident))
        self._ceiling_bytes = self._base_bytes + live_bytes + headroom + (empty if is_known_to_fit else 0)
        self._set(self._ceiling_bytes)
        try:
            yield
        finally:
            self._ceiling_bytes = self._lifted_at_bytes = None
            self._set(self._hard)

    @contextmanager
    def around_building(self) -> Iterator[None]:
        """Limit what the block may add: weights beyond the budget are refused instead of filling the host."""
        if self._budget_bytes is None or not _data_bytes():
            yield
            return
        self._set(_data_bytes() + self._budget_bytes + BUILD_OVERHEAD_BYTES)
        try:
            yield
        finally:
            self._set(self._hard)

    def headroom_bytes(self, live_bytes: int) -> int | None:
        """Return what steps may add to the `live_bytes` of tensors that exist already; None for no limit."""
        if self._budget_bytes is None:
            return None
        smallest, largest = STEP_OVERHEAD_BYTES
        overhead = min(max(smallest, int(STEP_OVERHEAD_SHARE * self._budget_bytes)), largest)
        return max(0, self._budget_bytes - live_bytes) + overhead

    def growth_bytes(self, live_bytes: int) -> int | None:
        """Return what this process may still grow by, as seen from outside; None for no limit.

        Less than the headroom where an earlier size left memory behind that the C library has not given back.
        """
        headroom = self.headroom_bytes(live_bytes)
        if headroom is None or self._base_bytes is None:
            return headroom
        return max(0, self._base_resident_bytes + live_bytes + headroom - _status_bytes("RssAnon"))

    def has_headroom(self, live_bytes: int) -> bool:
        """Return whether a step that is larger than any before could be given any memory at all.

        Not where address space that earlier sizes left in pieces reaches the limit: what is refused then says nothing
        of the size.
        """
        headroom = self.headroom_bytes(live_bytes)
        if headroom is None or self._base_bytes is None:
            return True
        _give_back_free_heap()
        return _data_bytes() < self._base_bytes + live_bytes + headroom

    def idle_bytes(self) -> int:
        """Return what this process holds once its free memory is given back; 0 where the kernel keeps no account."""
        _give_back_free_heap()
        return _status_bytes("RssAnon")

    def lift(self) -> None:
        """Allow everything again while the compiler works: its own memory is not the job's."""
        if self._ceiling_bytes is not None:
            self._lifted_at_bytes = _data_bytes()
            self._lifted_at_resident_bytes = _status_bytes("RssAnon")
            self._set(self._hard)

    def lower(self) -> None:
        """Take the limit up again, higher by what the compiler keeps; the tensors of the step so far still count."""
        if self._ceiling_bytes is not None and self._lifted_at_bytes is not None:
            kept = max(0, _data_bytes() - self._lifted_at_bytes)
            self._base_bytes, self._ceiling_bytes = (self._base_bytes or 0) + kept, self._ceiling_bytes + kept
            self._base_resident_bytes += max(0, _status_bytes("RssAnon") - self._lifted_at_resident_bytes)
            self._lifted_at_bytes = None
            self._set(self._ceiling_bytes)

    def resident_during(self, step: Callable[[], None]) -> int | None:
        """Run a step; return the most bytes resident for the job meanwhile, None where the kernel keeps no account.

        More than the tensors: the C library keeps pieces of freed memory that no later tensor fits into, and they
        count against the budget as tensors do.
        """
        if self._base_bytes is None or not _forget_highest_resident():
            step()
            return None
        resident, anonymous = _status_bytes("VmRSS"), _status_bytes("RssAnon")
        step()
        grown = max(0, _status_bytes("VmHWM") - resident)
        return anonymous - self._base_resident_bytes + grown

    def _set(self, soft: int) -> None:
        if self._hard != resource.RLIM_INFINITY:
            soft = self._hard if soft == resource.RLIM_INFINITY else min(soft, self._hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, self._hard))


def _data_bytes() -> int:
    """Return the bytes that count against RLIMIT_DATA now; 0 where the kernel keeps no account."""
    return _status_bytes("VmData")


def _status_bytes(name: str) -> int:
    """Return a size of this process by its name in /proc/self/status; 0 where there is none."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    for line in status.splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _forget_highest_resident() -> bool:
    """Let the kernel's highest resident memory of this process (VmHWM) begin anew; whether that worked."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return _status_bytes("VmHWM") > 0


def _give_back_free_heap() -> None:
    """Return what the C library keeps of freed memory to the kernel, where the C library can (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def kill_own_group() -> None:
    """End this worker and everything that it started."""
    os.killpg(os.getpgid(0), signal.SIGKILL)


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
