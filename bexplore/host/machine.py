"""The host as the explorer sees it, without torch: memory that may be used, other tenants, versions."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")
# Share of the processor that others may use before it is said: beyond it, times move by more than the tie of 2 %.
BUSY_SHARE = 0.05


def available_memory_bytes() -> int:
    """Host memory that a new process may use: what the kernel calls available, within the cgroup's limit."""
    available = psutil.virtual_memory().available
    limit = _cgroup_number("memory.max")
    used = _cgroup_number("memory.current")
    if limit is None or used is None:
        return available
    reclaimable = _cgroup_statistic("memory.stat", "inactive_file")
    return max(0, min(available, limit - used + reclaimable))


def num_usable_processors() -> int:
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def oom_kills() -> int:
    """How often the kernel's out-of-memory killer has struck here so far."""
    in_group = _cgroup_statistic("memory.events", "oom_kill")
    return in_group + _statistic(Path("/proc/vmstat"), "oom_kill")


def package_version(name: str) -> str:
    """Version of an installed package, without importing it; `absent` if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def torch_is_for_cpu() -> bool:
    """Whether the installed torch was built for no accelerator; a False says nothing."""
    return package_version("torch").endswith("+cpu")


def processor_name() -> str:
    """The processor's own name where the kernel tells it, else the architecture."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux: the architecture has to do
    return platform.processor() or platform.machine()


def throttle_count() -> int:
    """How often the processors have lowered their clocks because of heat, since the host started; 0 if not told."""
    counts = 0
    for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/core_throttle_count"):
        try:
            counts += int(path.read_text())
        except (OSError, ValueError):
            continue  # a processor that is offline
    return counts


def accelerator_name() -> str:
    """Names of the host's NVIDIA devices as the driver tells them, without torch.

    Empty proves nothing: containers, WSL2 and other makers' devices have no such files. A worker's torch knows.
    """
    names = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        for line in path.read_text().splitlines():
            if line.startswith("Model:"):
                names.append(line.split(":", 1)[1].strip())
    return ", ".join(names)


@dataclass(slots=True)
class CpuContention:
    """What others did to the host since `start`: the worker, its children and this process are left out.

    Attributes:
        pid: The worker's process id.
    """

    pid: int
    _begin_s: float = 0.0
    _busy_s: float = 0.0
    _own_s: float = 0.0
    _throttles: int = 0

    def start(self) -> None:
        """Begin to count."""
        self._begin_s, self._busy_s, self._own_s = time.monotonic(), _busy_s(), self._tree_s()
        self._throttles = throttle_count()

    def background_cpu_share(self) -> float:
        """Share of all processors, 0 to 1, that others have used since `start`."""
        elapsed_s = time.monotonic() - self._begin_s
        others_s = (_busy_s() - self._busy_s) - (self._tree_s() - self._own_s)
        return min(1.0, max(0.0, others_s / (elapsed_s * (psutil.cpu_count() or 1)))) if elapsed_s > 0 else 0.0

    def warnings(self) -> list[str]:
        """What a reader must know before believing times that were taken since `start`."""
        warnings = []
        share = self.background_cpu_share()
        if share > BUSY_SHARE:
            warnings.append(
                f"other processes used {share:.0%} of the processors meanwhile: the times are noisier for it"
            )
        if throttle_count() > self._throttles:
            warnings.append("the processors lowered their clocks because of heat meanwhile: the times are too long")
        return warnings

    def _tree_s(self) -> float:
        try:
            worker = psutil.Process(self.pid)
            times = [worker.cpu_times()] + [child.cpu_times() for child in worker.children(recursive=True)]
            own = psutil.Process().cpu_times()
        except psutil.Error:
            return self._own_s
        # A finished compiler child moves into its parent's children_* fields.
        tree_s = sum(t.user + t.system + t.children_user + t.children_system for t in times)
        return tree_s + own.user + own.system


def _busy_s() -> float:
    times = psutil.cpu_times()
    return times.user + times.system + times.nice + getattr(times, "irq", 0.0) + getattr(times, "softirq", 0.0)


def _cgroup_number(name: str) -> int | None:
    try:
        return int((CGROUP / name).read_text())
    except (OSError, ValueError):
        return None  # no cgroup v2 here, or the word `max`


def _cgroup_statistic(name: str, key: str) -> int:
    return _statistic(CGROUP / name, key)


def _statistic(path: Path, key: str) -> int:
    try:
        for line in path.read_text().splitlines():
            name, _, number = line.partition(" ")
            if name == key:
                return int(number)
    except (OSError, ValueError):
        pass  # this kernel does not tell: the caller's other sources have to do
    return 0
