"""What NVIDIA's driver says of one device through its own tool; nothing where the tool is not there."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

QUERY_LIMIT_S = 5.0
# Reasons for which the driver lowers the clocks, by their names in nvidia-smi --help-query-gpu. A loaded device runs at
# its power limit as a rule, so that one alone says nothing of the times; the others are faults of cooling or supply.
POWER_LIMIT = "power limit"
CLOCK_EVENTS = {
    "clocks_event_reasons.hw_slowdown": "hardware slowdown",
    "clocks_event_reasons.sw_thermal_slowdown": "heat",
    "clocks_event_reasons.sw_power_cap": POWER_LIMIT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeProcess:
    """A process that has a context on the device.

    Attributes:
        pid: Its id, which is the host's where a container does not translate it.
        used_bytes: Of the device's memory; None where the driver does not tell.
    """

    pid: int
    used_bytes: int | None


def selector(device_info: Mapping[str, Any]) -> str | None:
    """What nvidia-smi must be asked for to mean a job's own device; None where that is not an NVIDIA device.

    Its indices are those of the host, whatever CUDA_VISIBLE_DEVICES says, so they are of no use here.
    """
    if device_info.get("pci_bus_id"):
        return str(device_info["pci_bus_id"])
    return f"GPU-{device_info['uuid']}" if device_info.get("uuid") else None


def is_partition(device_info: Mapping[str, Any]) -> bool:
    """Whether the device is a MIG instance: its processes are not told apart from those of its neighbours."""
    return " MIG " in str(device_info.get("device_name", ""))


def clock_events(device: str) -> frozenset[str]:
    """Why the clocks of a device are held down just now; empty if they are not, or the driver does not tell."""
    lines = _query(f"--query-gpu={','.join(CLOCK_EVENTS)}", device)
    states = [state.strip() for line in lines[:1] for state in line.split(",")]
    return frozenset(name for name, state in zip(CLOCK_EVENTS.values(), states, strict=False) if state == "Active")


def compute_processes(device: str) -> list[ComputeProcess]:
    """The processes that have a context on a device; none where the driver does not tell."""
    found = []
    for line in _query("--query-compute-apps=pid,used_memory", device):
        pid, _, used = (part.strip() for part in line.partition(","))
        if pid.isdecimal():
            mebibytes = used.removesuffix(" MiB")
            found.append(
                ComputeProcess(pid=int(pid), used_bytes=int(mebibytes) * 2**20 if mebibytes.isdecimal() else None)
            )
    return found


def _query(query: str, device: str) -> list[str]:
    command = ["nvidia-smi", "-i", device, query, "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []  # no such tool, device or query: the times themselves still show what they show
    return [line for line in done.stdout.splitlines() if line.strip()]
