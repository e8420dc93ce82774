"""What others do to an accelerator, and its driver to its clocks, while a probe runs there."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import psutil

from bexplore.host import nvidia_smi
from bexplore.units import format_bytes

# Often enough for a probe's timed passes, which take four seconds by default. Seconds.
SAMPLE_PERIOD_S = 2.0
# A query that is under way when the probe ends is not waited for any longer. Seconds.
STOP_LIMIT_S = 1.0


class DeviceContention:
    """Watches the device of a worker from `start` to `stop`; sees nothing where no tool tells of the device.

    Args:
        device_info: The worker's; empty where they are not known.

    Attributes:
        clock_events: Why the clocks were held down at any time since `start`.
    """

    def __init__(self, device_info: Mapping[str, Any]) -> None:
        self.clock_events: frozenset[str] = frozenset()
        self._device = nvidia_smi.selector(device_info)
        self._is_partition = nvidia_smi.is_partition(device_info)
        self._others: list[nvidia_smi.ComputeProcess] = []
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
        """What a reader must know before believing times that were taken meanwhile."""
        warnings = []
        slow = sorted(self.clock_events - {nvidia_smi.POWER_LIMIT})
        if slow:
            warnings.append(f"the device's clocks were held down ({', '.join(slow)}): the times are too long")
        if self._others:
            held = sum(one.used_bytes or 0 for one in self._others)
            told = f", with {format_bytes(held)} of its memory" if held else ""
            ids = ", ".join(str(one.pid) for one in self._others)
            warnings.append(f"other processes used the device meanwhile{told} (process {ids}): the times are noisier")
        return warnings

    def _sample(self) -> None:
        assert self._device is not None
        while not self._ended.wait(SAMPLE_PERIOD_S):
            self.clock_events |= nvidia_smi.clock_events(self._device)
            if not self._is_partition:
                self._others = self._others_among(nvidia_smi.compute_processes(self._device)) or self._others

    def _others_among(self, processes: list[nvidia_smi.ComputeProcess]) -> list[nvidia_smi.ComputeProcess]:
        """All but this process's workers; where a container does not translate ids, one of them is the worker."""
        own = {child.pid for child in psutil.Process().children(recursive=True)}
        others = [one for one in processes if one.pid not in own]
        return others if len(others) < len(processes) else others[1:]
