"""Clocks: durations on one that nobody sets, and times in which nothing ran because the machine or a process was held.

A wall clock is for dates alone: a time server, a user or a virtual machine that wakes may set it at any time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bexplore.units import format_seconds

# Between two looks, and how late a look counts as held up where this process used less than such a share of a processor
# meanwhile. Source: chosen: a thread that sleeps wakes within a tenth of a second on a machine with ten programs
# for each processor, and the median of a probe's passes bears one that is so much longer.
LOOK_S, LATE_S, IDLE_SHARE = 0.5, 3.0, 0.5
# Times that a probe is run again after it was held up. Source: chosen; one more is rare already.
MOST_TRIES = 3
SUSPENDED = f"each of {MOST_TRIES} tries was held up: the machine slept, or a process was stopped"


class Stopwatch:
    """Times something from now on.

    Attributes:
        started_at_s: Unix time of now.
    """

    def __init__(self) -> None:
        self.started_at_s, self._began_s = time.time(), time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since then."""
        return time.monotonic() - self._began_s

    def times(self) -> dict[str, Any]:
        """Return both by their names in an observation."""
        return {"started_at_s": self.started_at_s, "elapsed_s": self.elapsed_s}


class Suspension:
    """Notices whether the machine slept, or a process was stopped and went on (SIGSTOP, SIGCONT), within its block.

    Such times are no measurement, and what waited too long meanwhile did not hang. A process that never goes on does.

    Args:
        pids: Returns the processes that measure.
        now_s: Returns seconds on a clock that runs while the machine sleeps.
        used_s: Returns the processor seconds of this process.
        is_stopped: Returns whether a process is stopped; None for one that is gone.

    Attributes:
        seconds: How long, in all; 0 for not at all.
    """

    def __init__(
        self,
        pids: Callable[[], Iterable[int]],
        *,
        now_s: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
        used_s: Callable[[], float] = time.process_time,
        is_stopped: Callable[[int], bool | None] = lambda pid: is_stopped(pid),
    ) -> None:
        self._pids, self._now_s, self._used_s, self._is_stopped = pids, now_s, used_s, is_stopped
        self.seconds = 0.0
        self._looked_s, self._had_used_s = now_s(), used_s()
        self._stopped_since_s: dict[int, float] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._keep_looking, daemon=True)

    def __enter__(self) -> Suspension:
        self._thread.start()
        return self

    def __exit__(self, *_exception: Any) -> None:
        self._is_over.set()
        self._thread.join()
        self.look()

    def _keep_looking(self) -> None:
        while not self._is_over.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        """Look at the clocks and the processes."""
        now_s, used_s = self._now_s(), self._used_s()
        late_s, had_used_s = now_s - self._looked_s, used_s - self._had_used_s
        self._looked_s, self._had_used_s = now_s, used_s
        if late_s > LATE_S and had_used_s < IDLE_SHARE * late_s:
            self.seconds += late_s
            self._stopped_since_s.clear()
            return
        for pid in self._pids():
            stopped = self._is_stopped(pid)
            if stopped:
                self._stopped_since_s.setdefault(pid, now_s)
            else:
                since_s = self._stopped_since_s.pop(pid, None)
                if since_s is not None and stopped is not None:  # it went on
                    self.seconds += now_s - since_s


def suspended_text(seconds: float) -> str:
    """Return the warning about a probe that was run again, for people."""
    return f"the machine or a process was suspended for {format_seconds(seconds)} meanwhile: that try was not used"


def is_stopped(pid: int) -> bool | None:
    """Return whether a process is stopped by a signal; None for one that is gone."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return None
    return None if state in b"ZX" else state == b"T"
