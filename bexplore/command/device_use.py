"""What NVIDIA's driver shows of the devices: others that use those of a start, and memory that is not free after it."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from bexplore.units import format_bytes

TOOL = "nvidia-smi"
QUERY_LIMIT_S = 5.0
LOOK_PERIOD_S = 5.0  # a query takes up to a tenth of a second of one processor
# Seconds that the driver gets to free the memory of processes that have ended. Source: a judgement; it takes below a
# second as a rule, and a process that is stuck in the driver takes for ever.
FREE_LIMIT_S, POLL_S = 30.0, 0.25
# Bytes beyond those before the start that count as free. Source: the driver keeps a few MiB for itself.
SLACK_BYTES = 64 * 2**20


def used_bytes() -> dict[str, int]:
    """Return device -> bytes of its memory in use; empty without a device."""
    rows = _query("--query-gpu=uuid,memory.used")
    return {row[0]: int(row[1]) * 2**20 for row in rows if len(row) == 2 and row[1].isdecimal()}


@dataclass(slots=True, kw_only=True)
class DeviceUse:
    """The use of this host's devices, from before a start until it has ended.

    Attributes:
        before: Device -> bytes in use before the start.
    """

    before: dict[str, int] = field(default_factory=used_bytes)
    _others: dict[str, set[int]] = field(default_factory=dict)
    _looked_s: float = 0.0

    def look(self, own: Collection[int]) -> None:
        """Note who else uses the devices of the start just now, a few times a minute.

        Args:
            own: Processes of the start.
        """
        if not self.before or time.monotonic() - self._looked_s < LOOK_PERIOD_S:
            return
        self._looked_s = time.monotonic()
        users: dict[str, set[int]] = {}
        for device, pid in _query("--query-compute-apps=gpu_uuid,pid"):
            users.setdefault(device, set()).update([int(pid)] if pid.isdecimal() else [])
        for device, pids in users.items():
            others = pids - set(own)
            if others != pids:  # else the start does not use it, or a container does not translate the ids
                self._others.setdefault(device, set()).update(others)

    def warnings(self) -> list[str]:
        """Return warnings about others on the devices of the start."""
        return [
            f"other processes used device {device} meanwhile (process {', '.join(map(str, sorted(pids)))}): "
            "the times are noisier"
            for device, pids in sorted(self._others.items())
            if pids
        ]

    def wait_until_free(self) -> list[str]:
        """Wait until the devices hold no more than before the start; return warnings about those that do."""
        limit_s = time.monotonic() + FREE_LIMIT_S
        while held := self._held():
            if time.monotonic() >= limit_s:
                return [
                    f"device {device} holds {format_bytes(more)} more than before the start: the next size has less"
                    for device, more in sorted(held.items())
                ]
            time.sleep(POLL_S)
        return []

    def _held(self) -> dict[str, int]:
        now = used_bytes() if self.before else {}
        more = {device: used - self.before.get(device, used) for device, used in now.items()}
        return {device: count for device, count in more.items() if count > SLACK_BYTES}


def _query(query: str) -> list[list[str]]:
    """Return the lines that the driver's tool prints, each in its parts; none where it is not there or fails."""
    if shutil.which(TOOL) is None:
        return []
    command = [TOOL, query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [[part.strip() for part in line.split(",")] for line in done.stdout.splitlines() if line.count(",") == 1]
