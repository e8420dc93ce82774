"""A start that is under way: its processes, its folders, and whether its parked ranks can serve another size."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bexplore.command.device_use import DeviceUse
from bexplore.command.probe_folder import ProbeFolder
from bexplore.command.processes import Start
from bexplore.command.watch import Watch
from bexplore.units import counted

# Seconds that a rank waits after its last step for what comes next. Source: a judgement: a search decides within
# seconds, and where the explorer is gone, the ranks end by themselves soon.
PARK_S = 60.0
# Seconds without a sign of the explorer after which ranks leave. Source: a judgement; the watch gives one every 5 s,
# and a file system of several hosts may show it half a minute late.
LIFE_LIMIT_S = 60.0


@dataclass(slots=True, kw_only=True)
class OpenStart:
    """A start of the command.

    Attributes:
        start: Its processes.
        folder: Its folder.
        latest: Folder of its latest probe: the same, or one for each further probe.
        number: Number of its first probe.
        accumulation: Micro-batches of a step that were asked for; None where the command chooses.
        capacity: The size that the command was given, from whose batches smaller ones are cut; None where the start
            has one probe, of the command's own batches.
        devices: The devices' memory and users, as they were before it.
        served: Sizes that it has run.
        num_steps: Steps of the latest probe; None where the watch over it names the last one.
        watch: The watch over its latest probe; None before.
    """

    start: Start
    folder: ProbeFolder
    latest: ProbeFolder
    number: int
    devices: DeviceUse
    accumulation: int | None = None
    capacity: int | None = None
    served: list[int] = field(default_factory=list)
    num_steps: int | None = None
    watch: Watch | None = None
    _parked_s: float = 0.0

    @property
    def is_reused(self) -> bool:
        """Whether the latest probe is not its first."""
        return len(self.served) > 1

    @property
    def needs_least(self) -> bool:
        """Whether no larger size ran before the latest, whose free memory the process would still hold."""
        return self.served[-1] >= max(self.served)

    def park(self) -> bool:
        """Note that the latest probe is over; return whether all ranks wait for another."""
        self._parked_s = time.monotonic()
        ranks = self.watch.reports.ranks if self.watch else ()
        # An allocator that had to retry holds no room for what comes next, and its counts are of the whole process.
        retried = any(rank.memory.get("num_ooms") or rank.memory.get("num_alloc_retries") for rank in ranks)
        return not retried and all(rank.outcome == "observed" for rank in ranks)

    def can_serve(self, micro_batch_size: int, accumulation: int | None) -> bool:
        """Return whether the parked ranks can go on with a size."""
        fits = self.capacity is not None and micro_batch_size <= self.capacity and accumulation == self.accumulation
        return fits and self.start.return_code is None and time.monotonic() - self._parked_s < PARK_S / 2

    def go_on(self, following: ProbeFolder, micro_batch_size: int, settings: Mapping[str, Any], num_steps: int) -> None:
        """Let the parked ranks go on with so many steps of a further size."""
        self.num_steps = num_steps
        self.latest.go_on(following, settings)
        self.latest = following
        self.served.append(micro_batch_size)

    def end(self) -> list[str]:
        """End all of its processes, and remove what the training wrote; return what is left, for people."""
        parked = () if self.watch is None or not self.watch.reports.are_whole else self.watch.parked()
        left = self.start.end(ranks=parked, release=self.latest.release)
        self.folder.clean()
        self.latest.hide_in_reports()
        texts = [f"{counted(len(left), 'process')} of probe {self.number} could not be ended: {left}"] if left else []
        return [*texts, *self.devices.wait_until_free()]
