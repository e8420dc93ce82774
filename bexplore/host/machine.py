"""The host without torch: memory that may be used, processors, devices, versions."""

from __future__ import annotations

import functools
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import psutil

PROC = Path("/proc")


class _MemoryGroup(NamedTuple):
    """A control group that limits memory: one of this process, or one that holds it.

    Attributes:
        folder: Its files.
        limits: Names of those that hold a limit; the lowest is in force.
        used: Name of the one that holds what is used.
        reclaimable: Key in `memory.stat` of the page cache that the kernel takes back first.
        events: Name of the file that counts kills.
    """

    folder: Path
    limits: tuple[str, ...]
    used: str
    reclaimable: str
    events: str

    def limit_bytes(self) -> int | None:
        """Return the limit in force; None for none."""
        found = [_number(self.folder / name) for name in self.limits]
        return min((one for one in found if one is not None), default=None)

    def free_bytes(self) -> int | None:
        """Return what may still be used; None without a limit."""
        limit, used = self.limit_bytes(), _number(self.folder / self.used)
        if limit is None or used is None:
            return None
        return max(0, limit - used + _statistic(self.folder / "memory.stat", self.reclaimable))


# By the version of control groups: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of Linux. Above
# `memory.high` the kernel slows a group down until it has taken its memory back.
_FILES = {
    "cgroup2": (("memory.max", "memory.high"), "memory.current", "inactive_file", "memory.events"),
    "cgroup": (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file", "memory.oom_control"),
}


def available_memory_bytes() -> int:
    """Return the host memory that a new process may use: what the kernel calls available, within its groups' limits."""
    free = (group.free_bytes() for group in _memory_groups())
    return min([psutil.virtual_memory().available, *(one for one in free if one is not None)])


def memory_limit_bytes() -> int | None:
    """Return the lowest memory limit of the groups of this process; None for none below the host's memory."""
    limits = [limit for group in _memory_groups() if (limit := group.limit_bytes()) is not None]
    lowest = min(limits, default=None)
    return None if lowest is None or lowest >= psutil.virtual_memory().total else lowest


def total_memory_bytes() -> int:
    """Return the memory of the host, or the limit of a group of this process."""
    return memory_limit_bytes() or psutil.virtual_memory().total


def num_usable_processors() -> int:
    """Return the number of processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def num_threads() -> int:
    """Return the number of threads with which torch computes on the processors, unless a program sets another."""
    own = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(own) if own.isdecimal() and int(own) else num_usable_processors()


def oom_kills() -> int:
    """Return how often the kernel's out-of-memory killer has struck here so far."""
    in_groups = sum(_statistic(group.folder / group.events, "oom_kill") for group in _memory_groups()[:1])
    return in_groups + _statistic(PROC / "vmstat", "oom_kill")


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


def _memory_groups() -> list[_MemoryGroup]:
    """Return the control groups whose memory this process uses, its own first; empty where there are none."""
    try:
        return _groups_of((PROC / "self/cgroup").read_text(), (PROC / "self/mountinfo").read_text())
    except OSError:
        return []  # not Linux


@functools.lru_cache(maxsize=4)
def _groups_of(memberships: str, mounts: str) -> list[_MemoryGroup]:
    """Return the groups by proc(5): `ID:CONTROLLERS:PATH` of each hierarchy, and where hierarchies are mounted.

    The host's memory is limited by the hierarchy of version 1, if there is one for it, else by that of version 2.
    """
    paths = {}
    for line in memberships.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            paths["cgroup" if controllers else "cgroup2"] = PurePosixPath(path)
    found = []
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind in paths and (kind == "cgroup2" or "memory" in options.split(" ")[-1].split(",")):
            root, mounted = (PurePosixPath(word) for word in before.split(" ")[3:5])
            inside = paths[kind].relative_to(root) if paths[kind].is_relative_to(root) else PurePosixPath()
            inside = PurePosixPath() if ".." in inside.parts else inside  # outside of the namespace of groups
            folders = [mounted / one for one in (inside, *inside.parents)]
            found.append((kind, [_MemoryGroup(Path(folder), *_FILES[kind]) for folder in folders]))
    return next((groups for _, groups in sorted(found, key=lambda one: len(one[0]))), [])


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None  # the root of a hierarchy has no such file, and no limit is the word `max`


def _statistic(path: Path, key: str) -> int:
    try:
        for line in path.read_text().splitlines():
            name, _, number = line.partition(" ")
            if name == key:
                return int(number)
    except (OSError, ValueError):
        pass  # not of this kernel: the caller's other sources have to do
    return 0
