"""A start that is under way: the watch until every rank has its record, or will have none, and whether it goes on."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from bexplore.command.failures import find_reported_failure
from bexplore.command.reports import Place, Rank, Reports
from bexplore.command.start import DeviceUse, ProbeFolder, Start
from bexplore.command.timing import MIN_TIMED_STEPS
from bexplore.engine.process.limits import HOST_FLOOR_BYTES
from bexplore.host.machine import available_memory_bytes
from bexplore.measurement.probe import Outcome
from bexplore.units import counted

POLL_S = 0.05
# Seconds that a rank waits after its last step for what comes next. Source: chosen: a search decides within
# seconds, and where the explorer is gone, the ranks end by themselves soon.
PARK_S = 60.0
# Seconds without a sign of the explorer after which ranks leave. Source: chosen; the watch gives one every 5 s,
# and a file system of several hosts may show it half a minute late.
LIFE_LIMIT_S = 60.0
# A rank tells its steps and reads the number of the last one at most every 0.25 s (`EXCHANGE_S` of the observer); the
# number is set so many polls and seconds ahead of the fastest rank, so that none has passed it. One that has is waited
# for: see `_stop_all`.
POLLS_AHEAD, AHEAD_S = 4, 0.25
# A poll takes at most this share of the time: a thousand ranks write thousands of files.
READ_SHARE = 0.2
BEAT_S = 5.0  # between two signs of life to the ranks, which leave where none comes
# Seconds of timed steps: half of what the start took, within these. Source: chosen; the median of a probe is then
# known to about the noise between two starts, and no start is repeated for want of steps.
TIMED_SHARE, LEAST_TIMED_S, MOST_TIMED_S = 0.5, 2.0, 8.0
# Seconds of a step at least, where two reports are seen at once. Source: chosen; a step has some 30 kernels.
LEAST_STEP_S = 1e-4
SHARED_S = 1.0  # of each size of a start that serves several
TELL_S = 1.0  # between two reports for people
PROCESSES_S = 1.0  # between two looks at the processes, which cost milliseconds
# Seconds after which a process with torch and without an observer ends the start, as long as no rank has completed a
# step. Source: the observer's finder notes a process before it loads torch's modules; a fork has another command line
# within milliseconds.
UNOBSERVED_S = 5.0
# Seconds that other ranks and the launcher get to show more after the first error of a process.
AFTER_ERROR_S = 3.0
# Seconds that processes get to end once their training has, before their status counts as good. Source: chosen;
# torch takes a second to unload, and a busy machine ten times as long.
LEAVING_S = 20.0
# A training that had completed a step is lost when the next takes longer than this, and so many times the longest.
HANG_S, HANG_TIMES = 60.0, 20.0
# Ranks that show nothing new for this long, and so many times the longest that they had, while one waits after the last
# step: another read its number too late, has begun the step after it, and waits there for the first. A later step is
# named a few times at most: a rank that trains nothing never stops. Source: chosen; a later step costs a few seconds.
PARTED_S, PARTED_TIMES, MOST_PARTED = 5.0, 2.0, 3
# Seconds after which the last step of a further size, announced beforehand, is named anew: an evaluation runs in
# its steps. Source: chosen; half a second of steps is announced.
LATE_S = 5.0
# A program that reads so many batches for so long, and passes none, trains elsewhere. Source: chosen; what is read
# before a first pass is an example, an evaluation (whose batches do not count), or is kept (nor do these).
UNUSED_BATCHES, UNUSED_S = 10, 60.0


class Ending(StrEnum):
    """Why the watch ended."""

    OBSERVED = "observed"
    ENDED = "ended"  # the command itself
    ERROR = "error"
    LOST = "lost"  # a training process is gone without a record
    UNOBSERVED = "unobserved"
    HUNG = "hung"
    TIMED_OUT = "timed_out"
    NO_PASS = "no_pass"  # within the seconds that a start has for its first
    NO_STEP = "no_step"
    NO_BATCH = "no_batch"  # the epochs are empty
    HOST_FULL = "host_full"


@dataclass(slots=True, kw_only=True)
class Watch:
    """The watch over one start."""

    start: Start
    read: Callable[[], Reports]  # returns the reports so far
    time_limit_s: float | None  # seconds after which the start is given up; None for no limit
    should_stop: Callable[[], bool]  # whether the exploration was interrupted
    stop_after: Callable[[int], None]  # sets the number of the last step
    beat: Callable[[], None]  # tells the ranks that the explorer lives
    look: Callable[[Sequence[int]], None]  # called with the processes of this host once a second
    num_warmup: int  # steps that are not timed
    tell: Callable[[dict[str, Any]], None] = lambda message: None  # called once a second with what happens, for people
    is_shared: bool = False  # whether the start serves several sizes
    is_reused: bool = False  # whether its training has run before, with another size: nothing is built any more
    # Steps after which the ranks stop by their settings; None where the watch names the last step
    num_steps: int | None = None
    # Returns the steps that ranks which have stopped should have had: they go on where they had fewer
    num_needed: Callable[[Sequence[Rank]], int] = lambda ranks: 0
    pass_limit_s: float | None = None  # seconds after which a start without a pass is given up; None for no limit
    first_pass_s: float | None = None  # seconds after which the first pass was seen; None before
    reports: Reports = field(default_factory=Reports)
    lost_pid: int | None = None  # the training process that is gone; None for none
    _began_s: float = field(default_factory=time.monotonic)
    _looked_s: float = 0.0
    _beat_s: float = 0.0
    _told_s: float = 0.0
    _stage: str = ""
    _poll_s: float = POLL_S
    _first_torch_s: float | None = None
    _error_s: float | None = None
    _missing_s: float | None = None
    _progress: dict[Place, tuple[int, ...]] = field(default_factory=dict)
    _progressed_s: float = 0.0
    _longest_s: float = 0.0
    _first_batch_s: float | None = None
    _timed_from: tuple[float, int] | None = None  # seconds and steps at the end of the warm-up
    _fastest: tuple[float, int] = (0.0, 0)  # when the steps of the fastest rank were seen first, and they
    _last_step: int | None = None
    _num_parted: int = 0  # times that a later one was named

    def until_end(self) -> Ending:
        """Wait for the end; an exploration that was interrupted raises KeyboardInterrupt."""
        while True:
            if self.should_stop():
                raise KeyboardInterrupt
            ended = self.start.return_code is not None  # before the reports are read: they are whole then
            began_s = time.monotonic()
            self.reports = self.read()
            self._poll_s = max(POLL_S, (time.monotonic() - began_s) / READ_SHARE)
            if began_s - self._beat_s > BEAT_S:
                self._beat_s = began_s
                self.beat()
            if began_s - self._told_s > TELL_S:
                self._told_s = began_s
                self._tell_stage()
            ending = self._find_ending(ended)
            if ending is not None:
                return ending
            time.sleep(self._poll_s)

    def _tell_stage(self) -> None:
        reports = self.reports
        num_steps = max(reports.num_steps.values(), default=0)
        has_batch = any(any(counts) for counts in reports.counts.values())
        stage = "steps" if num_steps else "first step" if has_batch else "program" if reports.hellos else "command"
        self.tell({"num_steps": num_steps} if stage == self._stage else {"stage": stage, "num_steps": num_steps})
        self._stage = stage

    def find_parked(self) -> list[int]:
        """Return the processes of this host that wait for their release after the last step."""
        ranks = (rank.record for rank in self.reports.ranks if rank.outcome == "observed")
        return [record["pid"] for record in ranks if record["host"] == os.uname().nodename]

    def _find_ending(self, ended: bool) -> Ending | None:
        now_s = time.monotonic()
        self._stop_all(now_s)
        ending = self._find_ending_in_records(ended, now_s)
        if ending is not None:
            return ending
        if ended and not self._lives_on():
            return Ending.ENDED
        if self._has_failed(now_s, ended):
            return Ending.ERROR
        ending = self._find_ending_in_time(now_s)
        if ending is None and now_s - self._looked_s > PROCESSES_S:
            self._looked_s = now_s
            return self._find_ending_in_processes(now_s)
        return ending

    def _find_ending_in_records(self, ended: bool, now_s: float) -> Ending | None:
        reports = self.reports
        outcomes = {rank.outcome for rank in reports.ranks}
        if "no_batch" in outcomes:
            return Ending.NO_BATCH
        if not reports.are_whole or self._is_passed:
            return None
        if "no_step" in outcomes:
            return Ending.NO_STEP
        if outcomes == {"observed"} and not self._goes_on():
            return Ending.OBSERVED
        return self._find_ending_of_whole_training() if ended or self._is_over(now_s) else None

    def _find_ending_in_time(self, now_s: float) -> Ending | None:
        spent_s = now_s - self._began_s
        if self.time_limit_s is not None and spent_s > self.time_limit_s:
            return Ending.TIMED_OUT
        if self.reports.num_steps:
            self.first_pass_s = self.first_pass_s or spent_s
        elif self.pass_limit_s is not None and spent_s > self.pass_limit_s:
            return Ending.NO_PASS
        if self._hangs(now_s):
            return Ending.HUNG
        return Ending.NO_STEP if self._trains_elsewhere(now_s) else None

    def _stop_all(self, now_s: float) -> None:
        """Name the last step once enough will be timed by then; name a later one where a rank has passed it."""
        steps = self.reports.num_steps.values()
        fastest = max(steps, default=0)
        if fastest != self._fastest[1]:
            self._fastest = now_s, fastest
        if self._timed_from is None:
            if min(steps, default=0) >= self.num_warmup:
                self._timed_from = now_s, fastest
            return
        since_s, first = self._timed_from
        if self.num_steps is not None and now_s - since_s < LATE_S:
            return
        # A step that had ended since would have been told: longer than this, none has, as between two epochs.
        seen_s, unseen_s = self._fastest[0], min(now_s - self._fastest[0], self._poll_s + AHEAD_S)
        ahead_s = unseen_s + POLLS_AHEAD * self._poll_s + AHEAD_S
        step_s = (seen_s - since_s) / (fastest - first) if fastest > first else 0.0
        last = fastest + 2 + math.ceil(ahead_s / max(step_s, LEAST_STEP_S))
        is_long = seen_s - since_s + ahead_s >= self._choose_timed_s(since_s - self._began_s)
        is_enough = is_long and fastest > first and last - first >= MIN_TIMED_STEPS
        is_parted = self._is_passed or self._waits_for_parked(now_s)
        if self.num_steps is not None and last >= self.num_steps:
            if not is_parted or self._last_step == self.num_steps:
                return
            last = self.num_steps
        if is_parted or (self._last_step is None and is_enough):
            self._num_parted += is_parted
            self._last_step = last
            self.stop_after(self._last_step)

    def _goes_on(self) -> bool:
        """Let ranks that have stopped after too few steps go on; return whether they do."""
        fewest = min(len(rank.steps) for rank in self.reports.ranks)
        needed = self.num_needed(self.reports.ranks)
        if needed > max(fewest, self._last_step or 0):
            self._last_step = needed
            self.stop_after(needed)
        return self._last_step is not None and fewest < min(needed, self._last_step)

    def _choose_timed_s(self, warmup_s: float) -> float:
        if any(hello.get("is_emulated") for hello in self.reports.hellos):  # whose times mean nothing
            return 0.0
        if self.is_shared:
            return SHARED_S
        return min(max(TIMED_SHARE * warmup_s, LEAST_TIMED_S), MOST_TIMED_S)

    @property
    def _is_passed(self) -> bool:
        """Whether a rank has passed the last step, so that the others have to go on."""
        return self._last_step is not None and max(self.reports.num_steps.values()) > self._last_step

    def _waits_for_parked(self, now_s: float) -> bool:
        """Return whether a rank has begun the step after the last one and waits there for one that has parked."""
        has_parked = any(rank.outcome == "observed" for rank in self.reports.ranks)
        if self._last_step is None or not has_parked or self.reports.are_whole or self._num_parted >= MOST_PARTED:
            return False
        # A rank that has parked leaves after `PARK_S`.
        patience_s = min(max(PARTED_S, PARTED_TIMES * self._longest_s), PARK_S / 2)
        return now_s - self._progressed_s > patience_s

    def _lives_on(self) -> bool:
        """Return whether training processes outlive the command itself, as those of a cluster may."""
        return bool({hello["pid"] for hello in self.reports.hellos} & set(self.start.alive()))

    def _is_over(self, now_s: float) -> bool:
        """Return whether all ranks have ended their training and the command still runs: it is waited for no more."""
        self._missing_s = self._missing_s or now_s
        return now_s - self._missing_s > LEAVING_S

    def _find_ending_of_whole_training(self) -> Ending:
        """Return the ending of a training that ended by itself: a rank that failed has a record, too."""
        if self.start.return_code:
            return Ending.ENDED
        return Ending.ERROR if self._has_uncaught else Ending.OBSERVED

    @property
    def _has_uncaught(self) -> bool:
        # What ends a process beside a training that goes on is of a helper.
        uncaught = {"uncaught"} if self.reports.num_steps else {"uncaught", "process"}
        return any(error["where"] in uncaught for error in self.reports.errors)

    def _has_failed(self, now_s: float, ended: bool) -> bool:
        """Return whether an error has ended the training; one that a program catches lets it go on."""
        failure = find_reported_failure(self.reports.errors)
        if failure is None or not (self._has_uncaught or failure.outcome is Outcome.OUT_OF_MEMORY):
            return False
        if self._error_s is None:
            self.start.hold_scripts()
        self._error_s = self._error_s or now_s
        return ended or now_s - self._error_s > AFTER_ERROR_S

    def _hangs(self, now_s: float) -> bool:
        """Return whether no rank has given a sign of life for far longer than any step took.

        What comes before the first step may take as long as it likes, unless the training has run before.
        """
        if self.reports.counts != self._progress:
            if self._progress and not self._num_parted:  # the wait of a rank that has parked is no step
                self._longest_s = max(self._longest_s, now_s - self._progressed_s)
            self._progress, self._progressed_s = dict(self.reports.counts), now_s
        if not self.is_reused and not any(self.reports.num_steps.values()):
            return False
        patience_s = max(HANG_S, HANG_TIMES * self._longest_s)
        return now_s - (self._progressed_s if self._progress else self._began_s) > patience_s

    def _trains_elsewhere(self, now_s: float) -> bool:
        """Return whether batches are read all the time, and no process passes any."""
        num_batches = self.reports.num_batches
        if not num_batches or self.reports.num_steps or self._progressed_s != now_s:
            return False
        self._first_batch_s = self._first_batch_s or now_s
        return num_batches >= UNUSED_BATCHES and now_s - self._first_batch_s > UNUSED_S

    def _find_ending_in_processes(self, now_s: float) -> Ending | None:
        alive = self.start.alive()
        self.look(alive)
        if available_memory_bytes() < HOST_FLOOR_BYTES:
            return Ending.HOST_FULL
        here = self.list_pids_here()
        if not any(self.reports.num_steps.values()) and self.start.find_unobserved():
            self._first_torch_s = self._first_torch_s or now_s
            if now_s - self._first_torch_s > UNOBSERVED_S:
                return Ending.UNOBSERVED
        done = {rank.record["pid"] for rank in self.reports.ranks}
        training = {pid for _, pid in self.reports.num_steps} & here
        gone = training - done - set(alive)
        if gone and not self.reports.errors:
            self.lost_pid = min(gone)
            self._error_s = self._error_s or now_s
            return Ending.LOST if now_s - self._error_s > AFTER_ERROR_S else None
        return None

    def list_pids_here(self) -> set[int]:
        """Return the process ids of this host that said hello."""
        host = os.uname().nodename
        return {hello["pid"] for hello in self.reports.hellos if hello["host"] == host}


@dataclass(slots=True, kw_only=True)
class OpenStart:
    """A start of the command."""

    start: Start
    folder: ProbeFolder
    latest: ProbeFolder  # folder of its latest probe: the same, or one for each further probe
    number: int  # number of its first probe
    devices: DeviceUse  # the devices' memory and users, as they were before it
    accumulation: int | None = None  # micro-batches of a step that were asked for; None where the command chooses
    # The size that the command was given, from whose batches smaller ones are cut; None where the start has one probe,
    # of the command's own batches
    capacity: int | None = None
    served: list[int] = field(default_factory=list)  # sizes that it has run
    num_steps: int | None = None  # steps of the latest probe; None where the watch over it names the last one
    watch: Watch | None = None  # the watch over its latest probe; None before
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
        parked = () if self.watch is None or not self.watch.reports.are_whole else self.watch.find_parked()
        left = self.start.end(ranks=parked, release=self.latest.release)
        self.folder.clean()
        self.latest.hide_in_reports()
        texts = [f"{counted(len(left), 'process')} of probe {self.number} could not be ended: {left}"] if left else []
        return [*texts, *self.devices.wait_until_free()]
