"""Effects of other processes on the processors and on a device while something is timed, and of clocks that fall."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bexplore.units import format_bytes

# Share of the processors that others may use before it is reported: beyond it, times move by more than the
# indifference zone of 2 %.
BUSY_SHARE = 0.05
# Often enough for a probe's timed passes, which take four seconds by default. Seconds.
SAMPLE_PERIOD_S = 2.0
# A query that is under way when the probe ends is not waited for any longer. Seconds.
STOP_LIMIT_S = 1.0
QUERY_LIMIT_S = 5.0
# Reasons for which the driver lowers the clocks, by their names in nvidia-smi --help-query-gpu. A loaded device runs at
# its power limit as a rule, so that one alone is no warning; the others are faults of cooling or supply.
POWER_LIMIT = "power limit"
CLOCK_EVENTS = {
    "clocks_event_reasons.hw_slowdown": "hardware slowdown",
    "clocks_event_reasons.sw_thermal_slowdown": "heat",
    "clocks_event_reasons.sw_power_cap": POWER_LIMIT,
}


@dataclass(slots=True)
class CpuContention:
    """What others did to the processors since `start`: the workers, their children and this process are left out."""

    pids: Sequence[int]  # the workers' process ids
    _begin_s: float = 0.0
    _busy_s: float = 0.0
    _own_s: float = 0.0
    _workers_s: float = 0.0
    _throttles: int = 0

    def start(self) -> None:
        """Begin to count."""
        self._begin_s, self._busy_s, self._own_s = time.monotonic(), _busy_s(), self._tree_s()
        self._throttles = _throttle_count()

    def background_cpu_share(self) -> float:
        """Return the share of all processors, 0 to 1, that others have used since `start`."""
        elapsed_s = time.monotonic() - self._begin_s
        others_s = (_busy_s() - self._busy_s) - (self._tree_s() - self._own_s)
        return min(1.0, max(0.0, others_s / (elapsed_s * (psutil.cpu_count() or 1)))) if elapsed_s > 0 else 0.0

    def remark(self) -> str:
        """Return what others used of the processors since `start`, in words; empty where it is little."""
        share = self.background_cpu_share()
        return f"other processes used {share:.0%} of the processors" if share > BUSY_SHARE else ""

    def warnings(self) -> list[str]:
        """Return warnings about times that were taken since `start`."""
        remark = self.remark()
        warnings = [f"{remark} meanwhile: the times are noisier for it"] if remark else []
        if _throttle_count() > self._throttles:
            warnings.append("the processors lowered their clocks because of heat meanwhile: the times are too long")
        return warnings

    def look(self, pids: Sequence[int]) -> None:
        """Note which processes are the workers' now, and what they have used: some end before the last count."""
        self.pids = [*{*self.pids, *pids}]
        self._tree_s()

    def _tree_s(self) -> float:
        """Return the seconds of this process and of the workers' trees, those of ended processes included."""
        own = psutil.Process().cpu_times()
        tree: dict[int, psutil.Process] = {}
        for pid in self.pids:
            with contextlib.suppress(psutil.Error):  # it has ended
                worker = psutil.Process(pid)
                tree |= {one.pid: one for one in (worker, *worker.children(recursive=True))}
        tree_s = 0.0
        for process in tree.values():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                # A finished compiler child moves into its parent's children_* fields.
                tree_s += times.user + times.system + times.children_user + times.children_system
        self._workers_s = max(self._workers_s, tree_s)
        return self._workers_s + own.user + own.system


def _busy_s() -> float:
    times = psutil.cpu_times()
    return times.user + times.system + times.nice + getattr(times, "irq", 0.0) + getattr(times, "softirq", 0.0)


def _throttle_count() -> int:
    """Return how often the processors lowered their clocks because of heat since the host started; 0 if unknown."""
    counts = 0
    for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/core_throttle_count"):
        try:
            counts += int(path.read_text())
        except (OSError, ValueError):
            continue  # a processor that is offline
    return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeProcess:
    """A process that has a context on a device."""

    pid: int  # its id, which is the host's where a container does not translate it
    used_bytes: int | None  # of the device's memory; None where the driver keeps no account


class DeviceContention:
    """Samples the device of a worker from `start` to `stop`; finds nothing where no tool reports of the device.

    Args:
        device_info: The worker's; empty where unknown.

    Attributes:
        clock_events: Why the clocks were held down at any time since `start`.
    """

    def __init__(self, device_info: Mapping[str, Any]) -> None:
        self.clock_events: frozenset[str] = frozenset()
        self._device = selector(device_info)
        # The processes of a MIG instance are not distinguished from those of the other instances.
        self._is_partition = " MIG " in str(device_info.get("device_name", ""))
        self._others: list[ComputeProcess] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def start(self) -> None:
        """Begin to sample, while the worker is at work: an idle device has other clocks."""
        if self._device is not None:
            self._thread.start()

    def stop(self) -> None:
        """End the sampling."""
        self._ended.set()
        if self._device is not None:
            self._thread.join(timeout=STOP_LIMIT_S)

    def warnings(self) -> list[str]:
        """Return warnings about times that were taken meanwhile."""
        warnings = []
        slow = sorted(self.clock_events - {POWER_LIMIT})
        if slow:
            warnings.append(f"the device's clocks were held down ({', '.join(slow)}): the times are too long")
        if self._others:
            held = sum(one.used_bytes or 0 for one in self._others)
            memory = f", with {format_bytes(held)} of its memory" if held else ""
            ids = ", ".join(str(one.pid) for one in self._others)
            warnings.append(f"other processes used the device meanwhile{memory} (process {ids}): the times are noisier")
        return warnings

    def _sample(self) -> None:
        assert self._device is not None
        while not self._ended.wait(SAMPLE_PERIOD_S):
            self.clock_events |= clock_events(self._device)
            if not self._is_partition:
                self._others = self._others_among(compute_processes(self._device)) or self._others

    def _others_among(self, processes: list[ComputeProcess]) -> list[ComputeProcess]:
        """Return all but this process's workers; where a container does not translate ids, one is the worker."""
        own = {child.pid for child in psutil.Process().children(recursive=True)}
        others = [one for one in processes if one.pid not in own]
        return others if len(others) < len(processes) else others[1:]


class Contention:
    """What others do to the processors of workers and to their device while the block runs.

    Args:
        pids: The workers' process ids.
        device_info: Its device; empty where unknown.

    Attributes:
        background_cpu_share: Share of all processors, 0 to 1, that others used.
        clock_events: Why the device's clocks were held down.
        warnings: About times that were taken meanwhile.
    """

    def __init__(self, pids: Sequence[int], device_info: Mapping[str, Any]) -> None:
        self._processors, self._device = CpuContention(pids), DeviceContention(device_info)
        self.background_cpu_share = 0.0
        self.clock_events: list[str] = []
        self.warnings: list[str] = []

    def __enter__(self) -> Contention:
        self._processors.start()
        self._device.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._device.stop()
        self.background_cpu_share = self._processors.background_cpu_share()
        self.clock_events = sorted(self._device.clock_events)
        self.warnings = [*self._processors.warnings(), *self._device.warnings()]


def time_equal_work(work: Callable[[], object], seconds: float) -> tuple[list[float], float]:
    """Repeat equal work for so long; return the seconds of each time, and the share of the processors of others."""
    contention = CpuContention([os.getpid()])
    contention.start()
    times_s: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - began)
    return times_s, contention.background_cpu_share()


def selector(device_info: Mapping[str, Any]) -> str | None:
    """Return how nvidia-smi names a job's own device; None where that is not an NVIDIA device.

    Its indices are those of the host, whatever CUDA_VISIBLE_DEVICES says, so they are of no use here.
    """
    if device_info.get("pci_bus_id"):
        return str(device_info["pci_bus_id"])
    return f"GPU-{device_info['uuid']}" if device_info.get("uuid") else None


def clock_events(device: str) -> frozenset[str]:
    """Return why the clocks of a device are held down just now; empty if they are not, or where that is unknown."""
    lines = _query(f"--query-gpu={','.join(CLOCK_EVENTS)}", device)
    states = [state.strip() for line in lines[:1] for state in line.split(",")]
    return frozenset(name for name, state in zip(CLOCK_EVENTS.values(), states, strict=False) if state == "Active")


def compute_processes(device: str) -> list[ComputeProcess]:
    """Return the processes that have a context on a device; none where that is unknown."""
    found = []
    for line in _query("--query-compute-apps=pid,used_memory", device):
        pid, _, used = (part.strip() for part in line.partition(","))
        if pid.isdecimal():
            mebibytes = used.removesuffix(" MiB")
            used_bytes = int(mebibytes) * 2**20 if mebibytes.isdecimal() else None
            found.append(ComputeProcess(pid=int(pid), used_bytes=used_bytes))
    return found


def _query(query: str, device: str) -> list[str]:
    command = ["nvidia-smi", "-i", device, query, "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []  # no such tool, device or query: the times themselves still show what they show
    return [line for line in done.stdout.splitlines() if line.strip()]
