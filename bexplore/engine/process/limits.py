"""Limits beyond which a worker is ended: seconds of silence in a stage of its probe, and memory seen from outside."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bexplore.host.clocks import LATE_S
from bexplore.host.machine import available_memory_bytes
from bexplore.measurement.probe import Observation

# Called with what a worker reports while it works.
Progress = Callable[[dict[str, Any]], None]

# While nothing is known of the job. Compilers are slow and silent; steps report each pass. Seconds.
FIRST_LIMITS_S: Mapping[str, float] = {
    "start": 120.0,
    "import": 300.0,
    "join": 300.0,
    "build": 900.0,
    "compile": 3600.0,
}
STEP_LIMIT_S = 900.0
# A stage is lost when it takes this many times what is known of it ...
PATIENCE = 20.0
# ... and longer than the floor, however short it is known to be: other processes may start. Seconds.
STAGE_FLOOR_S = 60.0
COMPILE_FLOOR_S = 900.0
# A process with less of a processor than this share, over so many seconds, waits for something else. Judgements: a
# hundred processes on one processor, and ten times as long as on an idle host.
IDLE_SHARE = 0.01
IDLE_WINDOW_S = 10.0
STARVED_FACTOR = 10.0
# No device that anybody trains on is slower. Flops per second.
SLOWEST_FLOPS_PER_S = 1e9


class StageLimits:
    """Learns from what earlier probes took; before the first one, from the trace."""

    def __init__(
        self,
        *,
        step_limit_s: float | None = None,
        flops_per_sample: float | None = None,
        floor_s: float = STAGE_FLOOR_S,
    ) -> None:
        self._step_limit_s = STEP_LIMIT_S if step_limit_s is None else step_limit_s
        self._flops_per_sample = flops_per_sample
        self._floor_s = floor_s
        self._pass_s_per_sample: float | None = None
        self._pass_s = 0.0
        self._compile_s: float | None = None

    def unlearned(self) -> StageLimits:
        """Return the same limits for another program, of which nothing is known yet."""
        return StageLimits(
            step_limit_s=self._step_limit_s, flops_per_sample=self._flops_per_sample, floor_s=self._floor_s
        )

    def learn(self, observation: Observation) -> None:
        """Take in what a probe took; one that failed, or timed nothing, teaches nothing."""
        if not observation.is_measured or not observation.pass_times_s:
            return
        longest_s = max(observation.pass_times_s)
        self._pass_s = max(self._pass_s, longest_s)
        self._pass_s_per_sample = max(self._pass_s_per_sample or 0.0, longest_s / observation.micro_batch_size)
        if observation.compile_time_s:
            self._compile_s = max(self._compile_s or 0.0, observation.compile_time_s)

    def limit_s(self, stage: str, micro_batch_size: int) -> float:
        """Return the seconds of silence that a stage may take at a size."""
        return max(self._floor_s, self._known_limit_s(stage, micro_batch_size))

    def _known_limit_s(self, stage: str, micro_batch_size: int) -> float:
        pass_s = self._expected_pass_s(micro_batch_size)
        if stage == "compile":
            if self._compile_s is None:
                return FIRST_LIMITS_S[stage] + PATIENCE * (pass_s or 0.0)
            return max(COMPILE_FLOOR_S, PATIENCE * (self._compile_s + (pass_s or 0.0)))
        if stage in FIRST_LIMITS_S:
            return FIRST_LIMITS_S[stage]
        if self._pass_s_per_sample is not None:
            return PATIENCE * (pass_s or 0.0)
        return max(self._step_limit_s, pass_s or 0.0)

    def _expected_pass_s(self, micro_batch_size: int) -> float | None:
        """Return an upper bound: a pass grows no faster than its samples."""
        if self._pass_s_per_sample is not None:
            return max(self._pass_s, self._pass_s_per_sample * micro_batch_size)
        if self._flops_per_sample is not None:
            return self._flops_per_sample * micro_batch_size / SLOWEST_FLOPS_PER_S
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the answer to a request may take."""

    # Seconds that each stage may be silent, or a function of the stage's name; None for no limit.
    stage_s: float | Callable[[str], float] | None
    total_s: float | None = None  # seconds of the whole answer; None for no limit
    resident_bytes: int | None = None  # resident memory of the worker and its children; None for no limit
    # Whether a worker that computes may be silent until it has had so many seconds of a processor: on a busy host that
    # takes longer. Not for what runs on a device or with other ranks, where one that hangs may keep a thread busy.
    counts_processor_time: bool = False

    def stage_limit_s(self, stage: str) -> float | None:
        """Return the seconds that a stage may be silent; None for no limit."""
        return self.stage_s(stage) if callable(self.stage_s) else self.stage_s


class Patience:
    """How long a worker may take: each stage, silence included, and all of them together."""

    def __init__(self, limits: Limits, processor_time_s: Callable[[], float] = lambda: 0.0) -> None:
        self._limits = limits
        self._processor_time_s = processor_time_s
        self.stage = "start"  # that the worker reported last
        self._began_s = self._heard_s = self._looked_s = time.monotonic()
        self._used_before_s = 0.0
        self._seen = 0.0, 0.0  # seconds of silence when processor time was last compared, and of a processor until then

    def heard(self, message: Mapping[str, Any]) -> None:
        """Note that a stage begins, or that a pass of it is done."""
        if message.get("stage") or "pass_time_s" in message:
            self.stage, self._heard_s = str(message.get("stage") or self.stage), time.monotonic()
            self._used_before_s = self._processor_time_s() if self._limits.counts_processor_time else 0.0
            self._seen = 0.0, 0.0

    def lost(self) -> str:
        """Return why the worker is lost; empty while it is not."""
        now, limit_s = time.monotonic(), self._limits.stage_limit_s(self.stage)
        unseen_s, self._looked_s = now - self._looked_s, now
        if unseen_s > LATE_S:  # this process was stopped, and perhaps the worker with it
            self._began_s, self._heard_s = self._began_s + unseen_s, min(now, self._heard_s + unseen_s)
        silent_s = now - self._heard_s
        if limit_s is not None and silent_s > limit_s and not self._is_starved(silent_s, limit_s):
            return f"no progress in stage '{self.stage}' for {limit_s:.0f} s"
        total_s = self._limits.total_s
        if total_s is not None and now - self._began_s > total_s:
            return f"not done after {total_s:.0f} s, now in stage '{self.stage}'"
        return ""

    def _is_starved(self, silent_s: float, limit_s: float) -> bool:
        """Return whether a worker computes and has had less of a processor than it may take."""
        if not self._limits.counts_processor_time or silent_s > STARVED_FACTOR * limit_s:
            return False
        used_s = self._processor_time_s() - self._used_before_s
        window_s = silent_s - self._seen[0]
        if window_s < IDLE_WINDOW_S:
            return used_s < limit_s
        is_idle = self._seen[0] > 0 and used_s - self._seen[1] < IDLE_SHARE * window_s
        self._seen = silent_s, used_s
        return not is_idle and used_s < limit_s


def processor_time_s(pid: int) -> float:
    """Return the seconds of a processor that a process and its ended children have had; 0 if it is gone."""
    try:
        return float(sum(psutil.Process(pid).cpu_times()[:4]))
    except psutil.Error:
        return 0.0


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
    """Watches one worker and its descendants: the second fence around its memory; the worker's own limit is the first.

    It catches what a process cannot refuse itself: children, shared mappings, the compiler at work, a host that other
    programs fill. It reads resident memory from /proc; where there is none, it finds no violation.
    """

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
