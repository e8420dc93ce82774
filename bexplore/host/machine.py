"""The host without torch: memory that may be used, processors, devices, versions."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")


def available_memory_bytes() -> int:
    """Return the host memory that a new process may use: what the kernel calls available, within the cgroup's limit."""
    available = psutil.virtual_memory().available
    limit = _cgroup_number("memory.max")
    used = _cgroup_number("memory.current")
    if limit is None or used is None:
        return available
    reclaimable = _cgroup_statistic("memory.stat", "inactive_file")
    return max(0, min(available, limit - used + reclaimable))


def num_usable_processors() -> int:
    """Return the number of processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def oom_kills() -> int:
    """Return how often the kernel's out-of-memory killer has struck here so far."""
    in_group = _cgroup_statistic("memory.events", "oom_kill")
    return in_group + _statistic(Path("/proc/vmstat"), "oom_kill")


def package_version(name: str) -> str:
    """Return the version of an installed package, without importing it; `absent` if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def torch_is_for_cpu() -> bool:
    """Return whether the installed torch was built for no accelerator; a False proves nothing."""
    return package_version("torch").endswith("+cpu")


def processor_name() -> str:
    """Return the processor's own name where the kernel reports it, else the architecture."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux: the architecture has to do
    return platform.processor() or platform.machine()


def accelerator_name() -> str:
    """Return the names of the host's NVIDIA devices as the driver lists them, without torch.

    Empty proves nothing: containers, WSL2 and other makers' devices have no such files.
    """
    names = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        for line in path.read_text().splitlines():
            if line.startswith("Model:"):
                names.append(line.split(":", 1)[1].strip())
    return ", ".join(names)


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
        pass  # not of this kernel: the caller's other sources have to do
    return 0
