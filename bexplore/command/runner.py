"""The Runner of a training command: a probe is a start with the size filled in, or a further size of a start."""

from __future__ import annotations

import errno
import math
import re
import signal
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bexplore.command import open_start
from bexplore.command.device_use import DeviceUse
from bexplore.command.failures import KILLED_BY_KERNEL, CommandFailure, of_end, of_errors, of_lost
from bexplore.command.open_start import OpenStart
from bexplore.command.probe_folder import ProbeFolder
from bexplore.command.processes import Start
from bexplore.command.reports import Rank, Reports, ReportsReader, with_own_batches
from bexplore.command.timing import (
    MIN_TIMED_STEPS,
    StepTiming,
    expected_step_s,
    first_own_step,
    in_groups,
    slowest,
    with_common_evaluations,
)
from bexplore.command.verdicts import (
    Arrived,
    SizeCheck,
    Verdict,
    arrived_instead,
    check_accumulation,
    check_capacity,
    check_replicas,
    is_cut,
    take_capacity,
)
from bexplore.command.watch import Ending, Watch
from bexplore.config.command import Command
from bexplore.engine.protocol.failures import ended_with, full_disk, last_line
from bexplore.errors import EngineError, UserInputError, UserProgramError
from bexplore.host.clocks import MOST_TRIES, SUSPENDED, Stopwatch, Suspension, suspended_text
from bexplore.host.contention import CpuContention
from bexplore.host.machine import oom_kills
from bexplore.host.process_tree import PROBE_MARK
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe
from bexplore.units import counted, format_seconds

# Steps before the timed ones: the first compiles and allocates the optimizer's states, the second is profiled for its
# memory, the third recovers from that. Source: as the engine's `WARM_UP_PASSES`, in steps.
WARMUP_STEPS, MEMORY_STEP = 3, 1
# Micro-batches of a step while probing, where the command lets it be chosen: two tell a pass from an update and from
# what happens once a step.
PROBING_ACCUMULATION = 2
MAX_TIMED_STEPS = 5000  # Source: 8 s of steps of 1.6 ms
# Seconds of timed steps of each further size of a start. Source: two looks at a size differ by far more than the passes
# of one, benchmarks/results/command_shared_starts.md, so that a second look is worth more than a longer one.
FURTHER_S = 0.5
# The size that a start for several sizes is given: so many times the size for which it is started, or so many samples.
# A search goes on from its base with up to 64 samples, and later in steps of less than 8 times; a size far above what
# is asked for may exceed the samples that the training has. Source: searches among 4,096 sizes of the simulator.
CAPACITY_TIMES, LEAST_CAPACITY = 8, 64
# Steps of batches that were read ahead at the size before, beyond which a size has a start of its own. Source: a
# judgement; queues of prefetching threads have up to some ten batches.
MOST_STEPS_AHEAD = 64
# Seconds in which a start that was given a size which nobody asked for must come to its first pass: where no start is
# known, where one is, and so many times the longest. Source: a judgement; most programs load their data in a minute.
FIRST_PASS_S, KNOWN_PASS_S, KNOWN_PASS_TIMES = 120.0, 30.0, 3.0
# Exceptions before the first batch that no size causes, if their texts do not name it. Source: a judgement: checks of
# a size raise a ValueError, an AssertionError or a RuntimeError, or end the command by `argparse`.
OF_NO_SIZE = (
    "ImportError",
    "ModuleNotFoundError",
    "SyntaxError",
    "IndentationError",
    "NameError",
    "AttributeError",
    "FileNotFoundError",
    "PermissionError",
    "NotADirectoryError",
    "IsADirectoryError",
    "JSONDecodeError",
)
# What the kernel says where the host has no room for a start, whatever the command.
OF_HOST = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE)
# Endings that have nothing to do with the size.
HOPELESS = (Ending.UNOBSERVED, Ending.NO_STEP)
# What a start without a step may be, beside a slow one.
_ELSEWHERE = "where it trains in processes of a cluster (Ray's), give them this PYTHONPATH: docs/commands.md, Ray"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSettings:
    """What a runner of a command needs beside the command.

    Attributes:
        run_dir: Folder of the run; each start has a folder in it.
        memory_limit_bytes: Memory of one replica; None for no limit.
        sizes_per_start: Sizes that one start may serve.
        candidates: Sizes that may be asked for, ascending; a start that serves several is given one of them.
        environment: Variables of a start beside this process's own and the command's.
        should_stop: Whether the exploration was interrupted; polled while a start runs.
        on_progress: Called with what happens, for people.
    """

    run_dir: Path
    memory_limit_bytes: int | None = None
    sizes_per_start: int = 1
    candidates: tuple[int, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    should_stop: Callable[[], bool] = lambda: False
    on_progress: Callable[[dict[str, Any]], None] = lambda message: None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What the watch over one probe has seen.

    Attributes:
        opened: The start.
        watch: The watch.
        ending: Why it ended.
        warnings: Of the machine meanwhile.
        killed_by_kernel: Whether the kernel's out-of-memory killer struck meanwhile.
        suspended_s: Seconds in which the machine slept or a process was stopped: the probe is no measurement.
    """

    opened: OpenStart
    watch: Watch
    ending: Ending
    warnings: tuple[str, ...]
    killed_by_kernel: bool
    suspended_s: float


class CommandRunner:
    """Runs probes by starting the user's command.

    With several sizes per start, a probe of the search (`Compilation.SHARED`) is served by a start that was given a
    larger size: batches of the probe's size are cut from the lists of samples of its loaders. All ranks park after the
    last observed step and go on with the next size. Where that fails, the size has a start of its own, whose
    observation is that of the training itself (`Compilation.EXACT`).

    Args:
        command: The command.
        settings: What else is needed.

    Attributes:
        num_replicas: Data-parallel replicas that a probe has shown; None before.
        device_info: Description of the device that the command uses; empty before.
        shares_starts: Whether a start serves several sizes; False once it has shown that it cannot.
    """

    def __init__(self, command: Command, settings: CommandSettings) -> None:
        self.command = command
        self.settings = settings
        self.num_replicas = command.num_replicas
        self.device_info: dict[str, Any] = {}
        self.shares_starts = settings.sizes_per_start > 1
        self._sizes = SizeCheck()
        self._held: OpenStart | None = None
        self._early: dict[int, str] = {}  # by size that a start was given, how it failed before its first batch
        self._fails_early = False  # at any size
        self._refused: int | None = None  # the smallest size that ran out of memory
        self._max_samples: int | None = None  # of a micro-batch that the data fills
        self._step_times_s: dict[int, float] = {}  # by size that was measured
        self._first_pass_s: float | None = None  # of the slowest start so far
        self._left: tuple[str, ...] = ()  # of starts that have been ended since the last observation

    def __call__(self, probe: Probe) -> Observation:
        """Run a probe; observe its steps.

        Raises:
            UserInputError: The command cannot be started.
            UserProgramError: What was asked for cannot be seen, or does not happen, whatever the size.
            KeyboardInterrupt: The exploration was interrupted; nothing of the start is left.
        """
        accumulation = PROBING_ACCUMULATION if self.command.sets_accumulation else None
        if not self.shares_starts or probe.compilation is not Compilation.SHARED or probe.fresh_worker:
            return self.run(probe, accumulation)
        stopwatch, limit_s = Stopwatch(), self._pass_limit_s()
        served, was_spent = self._serve(probe, accumulation)
        if served is not None:
            return served
        observation = self.run(probe, accumulation)
        was_slow = (self._first_pass_s or 0.0) > limit_s  # and was given up for that alone
        self.shares_starts = was_spent or was_slow or not observation.is_measured
        return replace(observation, **stopwatch.times())

    def run(self, probe: Probe, accumulation: int | None) -> Observation:
        """Run one probe in a start of its own, with so many micro-batches a step; None leaves them to the command."""
        self.close()
        if probe.compilation is Compilation.SHARED:
            probe = replace(probe, compilation=Compilation.EXACT)
        stopwatch = Stopwatch()
        for _ in range(MOST_TRIES):
            opened = self._open(probe, accumulation)
            try:
                seen = self._watched(opened, probe)
            finally:
                self._end(opened)
            if not seen.suspended_s:
                break
        observation = self._judged(seen, probe, stopwatch)
        self._fill_at_most(observation.max_samples)
        if observation.outcome is Outcome.OUT_OF_MEMORY:
            self._refused = min(probe.micro_batch_size, self._refused or probe.micro_batch_size)
        return observation

    def close(self) -> None:
        """End the start that waits for another size, if there is one."""
        held, self._held = self._held, None
        if held is not None:
            self._end(held)

    def learn(self, observation: Observation) -> None:
        """Take over what a probe of this command has shown, in an exploration that goes on."""
        self._fill_at_most(observation.max_samples)
        if not observation.is_measured:
            return
        self._first_pass_s = max(self._first_pass_s or 0.0, observation.start_time_s)
        self._step_times_s[observation.micro_batch_size] = observation.details["step_time_s"]
        found = observation.details.get("arrived")
        if found:
            verdict = Verdict(observation.details["verdicts"]["micro_batch_size"])
            self._sizes.learn(observation.micro_batch_size, Arrived(**found), verdict)

    @property
    def size_to_confirm(self) -> int | None:
        """A size that another start must be given, to show that the command follows its size; None for none."""
        tried = [size for size in self._sizes.arrived if size not in self._sizes.given]
        return min(tried) if tried and self._sizes.needs_another_start else None

    def by_hand(self, micro_batch_size: int) -> str:
        """Return what to type to run a start by hand."""
        return "run that start by hand: " + self.command.shown_with(
            micro_batch_size=micro_batch_size,
            accumulation=PROBING_ACCUMULATION if self.command.sets_accumulation else 1,
            num_replicas=self.num_replicas or 1,
        ).replace("{output_dir}", "$(mktemp -d)")

    @property
    def unconfirmed_size(self) -> int | None:
        """The size of which another number of samples arrived, until a second size shows why; None for none."""
        return self._sizes.unconfirmed

    def arrived_at(self, micro_batch_size: int) -> str:
        """Return how many samples arrived at a size, for people."""
        return arrived_instead(self._sizes.arrived[micro_batch_size].rows, micro_batch_size)

    def _end(self, opened: OpenStart) -> None:
        self._left = (*self._left, *opened.end())

    def _serve(self, probe: Probe, accumulation: int | None) -> tuple[Observation | None, bool]:
        """Run a probe in a start that serves several sizes.

        Returns:
            The measurement, None where the size needs a start of its own; and whether that says nothing of further
            starts: the training had come to its end after other sizes, or a signal ended it.
        """
        stopwatch = Stopwatch()
        held = self._next_of_held(probe, accumulation) or self._open_for_several(probe, accumulation)
        self._held = held
        observation = None
        try:
            seen = self._watched(held, probe)
            observation = self._judged_of_several(seen, probe, stopwatch)
        finally:
            if observation is None or not observation.is_measured or not held.park():
                self.close()
        if observation is None or not observation.is_measured:
            ranks = seen.watch.reports.ranks
            if seen.ending is Ending.NO_BATCH and self._fills_less(ranks, held.capacity, probe.micro_batch_size):
                return self._serve(probe, accumulation)
            if held.is_reused and seen.ending is Ending.ENDED and not ranks:
                return self._serve(probe, accumulation)  # it was ending when it was asked: a new start serves the size
            is_struck = seen.suspended_s > 0 or (observation is not None and bool(observation.details.get("ended_by")))
            return None, is_struck or (held.is_reused and any(rank.outcome == "ended" for rank in ranks))
        if observation.num_graphs:  # the compiler makes another program of the second size than of the first
            self.shares_starts = False
            self.close()
        return observation, False

    def _fills_less(self, ranks: Sequence[Rank], capacity: int | None, size: int) -> bool:
        """Return whether the data has too few samples for the size that a start was given, and enough for a probe's."""
        num_samples = _num_samples(ranks)
        if capacity is None or num_samples is None or not size <= num_samples < capacity:
            return False
        self._fill_at_most(num_samples)
        return True

    def _pass_limit_s(self) -> float:
        """Return the seconds in which a start at a size that nobody asked for must come to its first pass."""
        if self._first_pass_s is None:
            return FIRST_PASS_S
        return max(KNOWN_PASS_S, KNOWN_PASS_TIMES * self._first_pass_s)

    def _num_needed(self, ranks: Sequence[Rank]) -> int:
        """Return the steps that a probe needs, those of batches that were read ahead at another size included."""
        first = _first_own_step(ranks)
        return 0 if first is None or first > MOST_STEPS_AHEAD else first + WARMUP_STEPS + MIN_TIMED_STEPS

    def _judged_of_several(self, seen: _Seen, probe: Probe, stopwatch: Stopwatch) -> Observation | None:
        """Return the observation of a size of a start for several; None where the size needs a start of its own.

        Raises:
            UserProgramError: It would end the same way there.
        """
        if seen.suspended_s:
            return None
        ranks, capacity = seen.watch.reports.ranks, seen.opened.capacity
        finding = check_capacity(ranks, capacity) if ranks and capacity is not None else None
        if finding is not None:
            raise UserProgramError(f"{finding.verdict.value}: {finding.why}", hint=finding.hint)
        are_cut = capacity is not None and any(rank.record["num_cut_lists"] for rank in ranks)
        if capacity is not None and are_cut and not take_capacity(self._sizes, ranks, capacity):
            self.shares_starts = False
            return None
        try:
            return self._judged(seen, probe, stopwatch)
        except UserProgramError:
            if (seen.ending in HOPELESS or self._fails_early) and not seen.opened.is_reused:
                raise
            return None

    def _next_of_held(self, probe: Probe, accumulation: int | None) -> OpenStart | None:
        """Let the start that waits go on with a probe; end it and return None where it cannot."""
        held, size = self._held, probe.micro_batch_size
        if held is None or len(held.served) >= self.settings.sizes_per_start or not held.can_serve(size, accumulation):
            self.close()
            return None
        folder, num_steps = self._folder(probe), self._num_steps(size)
        settings = self._observer_settings(size, accumulation, held.capacity) | {"max_steps": num_steps}
        held.go_on(folder, size, settings, num_steps)
        return held

    def _num_steps(self, size: int) -> int:
        """Return the steps of a further size of a start, by how long those of other sizes took."""
        step_s = expected_step_s(self._step_times_s, size)
        return WARMUP_STEPS + min(max(MIN_TIMED_STEPS, math.ceil(FURTHER_S / step_s)), MAX_TIMED_STEPS)

    def _open_for_several(self, probe: Probe, accumulation: int | None) -> OpenStart:
        size = probe.micro_batch_size
        fits = (self._refused or math.inf) - 1
        most = min(max(CAPACITY_TIMES * size, LEAST_CAPACITY), fits, self._max_samples or math.inf)
        roomy = [one for one in self.settings.candidates if size < one <= most]
        return self._open(probe, accumulation, capacity=max(roomy, default=size))

    def _watched(self, opened: OpenStart, probe: Probe) -> _Seen:
        folder, contention, kills = opened.latest, CpuContention([opened.start.pid]), oom_kills()

        def look(pids: Sequence[int]) -> None:
            contention.look(pids)
            opened.devices.look(pids)

        opened.watch = watch = Watch(
            start=opened.start,
            read=ReportsReader(folder.reports).read,
            time_limit_s=probe.time_limit_s,
            should_stop=self.settings.should_stop,
            stop_after=folder.stop_after,
            beat=folder.beat,
            look=look,
            num_warmup=WARMUP_STEPS,
            is_shared=opened.capacity is not None,
            is_reused=opened.is_reused,
            num_steps=opened.num_steps,
            num_needed=self._num_needed,
            pass_limit_s=self._pass_limit_s() if (opened.capacity or 0) > probe.micro_batch_size else None,
        )
        contention.start()
        with Suspension(watch.here) as suspension:
            ending = watch.until_end()
        if suspension.seconds:
            self._left = (*self._left, suspended_text(suspension.seconds))
        if not opened.is_reused and watch.first_pass_s is not None:
            self._first_pass_s = max(self._first_pass_s or 0.0, watch.first_pass_s)
        return _Seen(
            opened=opened,
            watch=watch,
            ending=ending,
            warnings=(*contention.warnings(), *opened.devices.warnings()),
            killed_by_kernel=oom_kills() > kills,
            suspended_s=suspension.seconds,
        )

    def _judged(self, seen: _Seen, probe: Probe, stopwatch: Stopwatch) -> Observation:
        """Return the observation of what was seen.

        Raises:
            UserProgramError: What was asked for cannot be seen, or does not happen, whatever the size.
            EngineError: A disk is full.
        """
        left, self._left = self._left, ()
        blank = Observation(
            probe=probe,
            outcome=Outcome.CRASHED,
            **stopwatch.times(),
            worker=seen.opened.number,
            memory_budget_bytes=self.settings.memory_limit_bytes,
            warnings=(*seen.warnings, *left),
        )
        if seen.suspended_s:
            return replace(blank, reason=SUSPENDED, details={"ended_by": signal.SIGSTOP.name})
        if seen.ending is Ending.NO_BATCH:
            return self._without_batch(blank, seen.watch)
        if seen.ending is not Ending.OBSERVED:
            _check_host(seen.watch)
        failure = self._failure(seen.ending, seen.watch, killed_by_kernel=seen.killed_by_kernel)
        if failure is not None and not seen.opened.is_reused:
            self._check_early(failure, seen.opened.capacity or probe.micro_batch_size, seen.opened.folder.path)
        if failure is not None:
            return replace(
                blank,
                outcome=failure.outcome,
                reason=failure.reason,
                traceback_text=failure.traceback_text,
                details={"ended_by": failure.ended_by} if failure.ended_by else {},
            )
        return self._measured(blank, seen.watch.reports, seen.opened)

    def _folder(self, probe: Probe) -> ProbeFolder:
        parent = self.settings.run_dir / "probes"
        stem = f"{probe.number:03d}_size_{probe.micro_batch_size}"
        taken = sum(1 for path in parent.glob(f"{stem}*") if path.is_dir())
        return ProbeFolder(path=(parent / (stem if not taken else f"{stem}_{taken + 1}")).resolve())

    def _open(self, probe: Probe, accumulation: int | None, capacity: int | None = None) -> OpenStart:
        """Start the command: with a probe's size, or with a larger one from whose batches it is cut."""
        folder, size = self._folder(probe), probe.micro_batch_size
        values = self.command.values(
            micro_batch_size=capacity or size,
            accumulation=accumulation or 1,
            num_replicas=self.num_replicas or 1,
            folder=folder.path,
        )
        env = folder.write(self.command, values, self._observer_settings(size, accumulation, capacity))
        argv, _ = self.command.filled(values)
        self.settings.on_progress({"stage": "start", "micro_batch_size": size})
        devices = DeviceUse()
        try:
            start = Start(argv, env={**self.settings.environment, **env}, folder=folder.path)
        except OSError as error:
            if error.errno in OF_HOST:
                raise EngineError(
                    f"the command cannot be started: {error.strerror}",
                    hint="make room on the disk, in memory or among processes, then run the same command again",
                ) from error
            raise UserInputError(
                f"the command cannot be started: {argv[0]}: {error.strerror}", hint="type the command as in your shell"
            ) from error
        return OpenStart(
            start=start,
            folder=folder,
            latest=folder,
            number=probe.number,
            devices=devices,
            accumulation=accumulation,
            capacity=capacity,
            served=[size],
        )

    def _observer_settings(self, size: int, accumulation: int | None, capacity: int | None) -> dict[str, Any]:
        return {
            "micro_batch_size": size,
            "accumulation": accumulation or 1,
            "capacity": capacity,
            "max_steps": WARMUP_STEPS + MAX_TIMED_STEPS,
            "memory_step": MEMORY_STEP,
            "profile_memory": True,
            "memory_limit_bytes": self.settings.memory_limit_bytes,
            "park_s": open_start.PARK_S,
            "life_limit_s": open_start.LIFE_LIMIT_S,
        }

    def _check_early(self, failure: CommandFailure, given: int, folder: Path) -> None:
        """Note a failure before the first batch; further starts of a program that fails so at any size show nothing.

        Args:
            failure: How a start ended.
            given: The size that the start was given.
            folder: Of the start, which its own messages may name.

        Raises:
            UserProgramError: It has nothing to do with the size.
        """
        if failure.outcome is not Outcome.CRASHED or failure.ended_by or not failure.is_early or self._sizes.arrived:
            return
        text = failure.reason.replace(str(folder), "")
        others = [size for size, told in self._early.items() if told == text]
        apart = any(max(size, given) >= CAPACITY_TIMES * min(size, given) for size in others)
        is_certain = failure.exception_type in OF_NO_SIZE and not re.search(rf"(?<!\d){given}(?!\d)", text)
        self._early[given] = text
        self._fails_early = is_certain or apart
        if self._fails_early:
            raise UserProgramError(
                f"the command fails before its first batch, whatever the size: {failure.reason}",
                hint=self.by_hand(given),
                traceback_text=failure.traceback_text,
            )

    def _failure(  # noqa: C901 - a failure for each ending, in their order
        self, ending: Ending, watch: Watch, *, killed_by_kernel: bool
    ) -> CommandFailure | None:
        """Return why a start gave no measurement; None where it gave one.

        Raises:
            UserProgramError: It would at no size.
        """
        reports, log = watch.reports, watch.start.log_tail()
        of_observer = of_errors(reports.errors)
        is_refusal = of_observer is not None and of_observer.outcome is Outcome.OUT_OF_MEMORY
        if ending is Ending.OBSERVED and not is_refusal:
            return None
        if of_observer is not None:
            failure = of_lost(log, reports) or of_observer
            return KILLED_BY_KERNEL if failure.ended_by and killed_by_kernel else failure
        if ending is Ending.UNOBSERVED:
            raise UserProgramError(
                "torch runs in the command, and the observer was not loaded into it: its Python ignores PYTHONPATH "
                "(-I, -E, -S), or its launcher clears the environment",
                hint=f"let the launcher pass PYTHONPATH and {PROBE_MARK} on, leave -S out, and for -I or -E install "
                "the observer there: bexplore attach --install --python PYTHON",
            )
        if ending is Ending.NO_STEP or (ending is Ending.ENDED and self._ended_without_step(watch)):
            if self._sizes.arrived:
                reason = "it ended without an optimizer step: its data may have fewer samples than the size"
                return CommandFailure(outcome=Outcome.CRASHED, reason=reason, traceback_text=log)
            read = f"read {reports.num_batches} batches and " if reports.num_batches else ""
            raise UserProgramError(
                f"no step observed: the command {read}trains without torch.optim.Optimizer.step and "
                "torch.autograd.backward",
                hint="let your optimizer derive from torch.optim.Optimizer and call loss.backward(); where processes "
                "train that get a PYTHONPATH of their own (runtime_env of Ray), add this one's to it, or type: "
                "bexplore attach --install --python PYTHON",
                traceback_text=log,
            )
        if ending is Ending.ENDED and not reports.hellos:
            code = watch.start.return_code
            raise UserProgramError(
                f"the command {ended_with(0 if code is None else code)} before any process imported torch",
                hint="run the command by hand first: it must train without bexplore",
                traceback_text=log,
            )
        if ending is Ending.TIMED_OUT:
            limit = format_seconds(watch.time_limit_s)
            most = max(reports.num_steps.values(), default=0)
            seen = f"after {counted(most, 'step')}" if most else f"and no step was seen; {_ELSEWHERE}"
            return CommandFailure(outcome=Outcome.TIMED_OUT, reason=f"it ran for {limit}, {seen}", traceback_text=log)
        if ending is Ending.NO_PASS:
            reason = f"no pass was seen in {format_seconds(self._pass_limit_s())}"
            return CommandFailure(outcome=Outcome.TIMED_OUT, reason=reason, traceback_text=log)
        if ending is Ending.HUNG:
            return CommandFailure(outcome=Outcome.TIMED_OUT, reason=_stuck(reports), traceback_text=log)
        if ending is Ending.HOST_FULL:
            return CommandFailure(outcome=Outcome.OUT_OF_MEMORY, reason="the memory of the host was nearly used up")
        return of_end(watch.start.return_code, log, reports, killed_by_kernel=killed_by_kernel, lost_pid=watch.lost_pid)

    def _ended_without_step(self, watch: Watch) -> bool:
        """Return whether the training ended well, and no process of it stepped an optimizer."""
        reports = watch.reports
        return bool(reports.hellos) and not reports.ranks and watch.start.return_code == 0

    def _without_batch(self, blank: Observation, watch: Watch) -> Observation:
        """Return the observation of a training whose epochs are empty.

        Raises:
            UserProgramError: It would at no size.
        """
        num_samples, size = _num_samples(watch.reports.ranks), blank.micro_batch_size
        hint = "explore smaller sizes, train with more samples, or keep the last batch of an epoch (drop_last=False)"
        if num_samples is None or num_samples >= size:
            reason = f"epochs without a batch of {counted(size, 'sample')}: the DataLoader gives none"
            if not self._sizes.arrived:
                raise UserProgramError(reason, hint=hint, traceback_text=watch.start.log_tail())
            return replace(blank, reason=reason)
        reason = f"epochs without a batch of {size}: the data of a rank has {counted(num_samples, 'sample')}"
        if num_samples < min(self.settings.candidates, default=1):
            raise UserProgramError(reason, hint=hint, traceback_text=watch.start.log_tail())
        return replace(blank, reason=f"{reason}; {hint}", max_samples=num_samples)

    def _too_short(self, blank: Observation, reports: Reports) -> Observation:
        """Return the observation of a training that ended before enough steps: large sizes use their data up sooner.

        As many samples in as many steps as are needed are the largest size that is worth another start.

        Raises:
            UserProgramError: No smaller size trained for longer.
        """
        fewest = min(len(rank.steps) for rank in reports.ranks)
        needed, size = WARMUP_STEPS + MIN_TIMED_STEPS, blank.micro_batch_size
        ended = f"the training ended after {counted(fewest, 'step')}; {needed} are needed"
        hint = "let the command train longer; it is ended after its last observed step"
        if not self._sizes.arrived:
            raise UserProgramError(ended, hint=hint)
        most = fewest * size // needed
        return replace(blank, reason=f"{ended}: sizes above {most} are left out, or {hint}", max_samples=most)

    def _measured(self, blank: Observation, reports: Reports, opened: OpenStart) -> Observation:
        """Return the observation of a training that was observed: measured, unless it did something else than asked.

        Raises:
            UserProgramError: It does not do what was asked for, and no probe before did.
        """
        size, accumulation = blank.micro_batch_size, opened.accumulation
        reports = replace(reports, ranks=with_own_batches(reports.ranks))
        first = _first_own_step(reports.ranks)
        if first is None or first > MOST_STEPS_AHEAD:
            return replace(blank, reason=f"the model had no batch of {size} after those that were read ahead")
        timed = with_common_evaluations(reports.ranks)
        timing = slowest(timed, num_warmup=first + WARMUP_STEPS, micro_batch_size=size)
        if timing is None or timing.num_steps < MIN_TIMED_STEPS:
            return self._too_short(blank, reports)
        if opened.capacity is not None and not is_cut(reports.ranks, size, opened.capacity):
            return replace(blank, reason=f"batches of {size} could not be cut from those of {opened.capacity}")
        if any(rank.record["is_resumed"] for rank in reports.ranks):
            raise UserProgramError(
                "the training loaded an optimizer's state before its first step: each probe would resume from it",
                hint="leave the checkpoint out while you explore; the size holds for the resumed training too",
            )
        cut_from = opened.capacity if opened.capacity not in (None, size) else 0
        finding_of_size = self._sizes.of(
            reports.ranks, size, accumulation or round(timing.micro_batches_per_step), cut_from=cut_from or 0
        )
        num_replicas, finding_of_replicas = check_replicas(reports.ranks, self.command.num_replicas)
        findings = {
            "micro_batch_size": finding_of_size,
            "replicas": finding_of_replicas,
            "accumulation": check_accumulation(timing, accumulation),
        }
        verdicts = {name: finding.verdict.value for name, finding in findings.items()}
        wrong = next((one for one in findings.values() if one.is_refused), None)
        if wrong is not None and not wrong.is_of_this_size:
            raise UserProgramError(f"{wrong.verdict.value}: {wrong.why}", hint=wrong.hint)
        details = _details(reports, timing, num_replicas, size) | {"verdicts": verdicts}
        if size in self._sizes.arrived:
            details["arrived"] = asdict(self._sizes.arrived[size])
        if wrong is not None and wrong.num_samples is not None:
            return replace(blank, reason=wrong.why, details=details, max_samples=wrong.num_samples)
        swallowed = wrong.why if wrong is not None else _swallowed(reports)
        if swallowed:
            hint = f"; {wrong.hint}" if wrong is not None else ""
            reason = f"{swallowed}: the program may catch what runs out of memory{hint}"
            return replace(blank, outcome=Outcome.OUT_OF_MEMORY, reason=reason, details=details)
        self.num_replicas, self.device_info = num_replicas, _device_info(reports)
        self._step_times_s[size] = timing.step_time_s
        return replace(
            blank,
            outcome=Outcome.MEASURED,
            details=details,
            max_samples=_num_samples(reports.ranks),
            warnings=(*blank.warnings, *self._end_of_data(reports), *_warnings(reports)),
            **_times(blank, timing, opened, whole_steps=not self.command.sets_accumulation),
            **_memory(reports, opened),
            **_compiled(reports),
        )

    def _end_of_data(self, reports: Reports) -> list[str]:
        """Take over the samples of an epoch; say so once, if they leave candidates out."""
        before, num_samples = self._max_samples, _num_samples(reports.ranks)
        self._fill_at_most(num_samples)
        if before is not None or num_samples is None or num_samples >= max(self.settings.candidates, default=0):
            return []
        return [f"an epoch has {counted(num_samples, 'sample')} on each rank: larger sizes are left out"]

    def _fill_at_most(self, max_samples: int | None) -> None:
        if max_samples is not None:
            self._max_samples = min(max_samples, self._max_samples or max_samples)


def _check_host(watch: Watch) -> None:
    """Check that the host is not to blame for the end of a start.

    Raises:
        EngineError: A disk was full.
    """
    told = "\n".join(error["traceback"] for error in watch.reports.errors)
    error = full_disk(told or last_line(watch.start.log_tail()))
    if error is not None:
        raise error


def _num_samples(ranks: Sequence[Rank]) -> int | None:
    """Return the samples that an epoch has on every rank."""
    return min((rank.num_samples for rank in ranks if rank.num_samples is not None), default=None)


def _first_own_step(ranks: Sequence[Rank]) -> int | None:
    """Return the first step with batches of the probe's size on every rank; None where a rank has none."""
    firsts = [first_own_step(rank, WARMUP_STEPS + MIN_TIMED_STEPS) for rank in ranks]
    known = [first for first in firsts if first is not None]
    return max(known, default=0) if len(known) == len(firsts) else None


def _stuck(reports: Reports) -> str:
    steps = reports.num_steps
    fewest = min(steps.values(), default=0)
    if len(steps) <= 1:
        return f"no step was completed after step {fewest}, and the process has not worked since: it sleeps or waits"
    return f"no rank completed a step after step {fewest}: a rank waits for one that does not come"


def _times(blank: Observation, timing: StepTiming, opened: OpenStart, *, whole_steps: bool) -> dict[str, Any]:
    """Return the times of the observation; all that is not a timed pass or update is the price of a start.

    Where the command's accumulation cannot be chosen, an update belongs to every step, and so to the passes.
    """
    passes_s, updates_s = timing.pass_times_s, timing.update_times_s
    if whole_steps:
        passes_s, updates_s = tuple(s / timing.micro_batches_per_step for s in timing.step_times_s), ()
    most = blank.probe.max_passes
    times = {"pass_times_s": in_groups(passes_s, most), "update_times_s": in_groups(updates_s, most)}
    start_s = 0.0 if opened.is_reused else max(0.0, blank.elapsed_s - sum(map(sum, times.values())))
    return times | {"start_time_s": start_s}


def _memory(reports: Reports, opened: OpenStart) -> dict[str, Any]:
    """Return the peaks of the rank that needs most: tensors; reserved (CUDA), or resident above torch itself (CPU).

    What is held is unknown where a larger size ran in the process before, which does not give all of it back.
    """
    peaks = [rank.memory.get("peak_bytes") for rank in reports.ranks]
    held = [rank.memory.get("reserved_peak_bytes") or _resident(rank) for rank in reports.ranks]
    return {
        "peak_memory_bytes": max((one for one in peaks if one is not None), default=None),
        "resident_memory_bytes": max((one for one in held if one is not None and opened.needs_least), default=None),
        "num_alloc_retries": max(int(rank.memory.get("num_alloc_retries") or 0) for rank in reports.ranks),
    }


def _resident(rank: Rank) -> int | None:
    peak, before = rank.memory.get("resident_peak_bytes"), rank.memory.get("resident_at_attach_bytes")
    return None if peak is None or before is None else max(0, peak - before)


def _compiled(reports: Reports) -> dict[str, Any]:
    """Return the compiler's counts on rank 0; a training that compiled nothing has none."""
    counters = reports.ranks[0].record["compiler"]
    if not counters or not counters["num_graphs"]:
        return {"ran_eagerly": True}
    return {
        "num_graphs": counters["num_graphs"],
        "num_graph_breaks": counters["num_graph_breaks"],
        "graph_break_reasons": tuple(counters["graph_break_reasons"]),
        "num_recompiles": counters["num_recompiles"],
    }


def _swallowed(reports: Reports) -> str:
    """Return what the allocator refused in the observed steps after the first; empty for nothing.

    Refusals before are of libraries that try how much a kernel may take, and of frameworks that search for a size.
    """
    refused = max(_refusals(rank) for rank in reports.ranks)
    return f"the allocator refused memory {counted(refused, 'time')} in the observed steps" if refused else ""


def _refusals(rank: Rank) -> int:
    return int(rank.memory.get("num_ooms") or 0) - int(rank.memory.get("num_ooms_before") or 0)


def _warnings(reports: Reports) -> tuple[str, ...]:
    return tuple(sorted({f"the observer: {note}" for rank in reports.ranks for note in rank.record["notes"]}))


def _details(reports: Reports, timing: StepTiming, num_replicas: int, micro_batch_size: int) -> dict[str, Any]:
    return {
        "num_ranks": len(reports.ranks),
        "num_replicas": num_replicas,
        "step_time_s": timing.step_time_s,
        "micro_batches_per_step": timing.micro_batches_per_step,
        "passes_per_step": timing.passes_per_step,
        "optimizers": sorted({name for rank in reports.ranks for name in rank.record["optimizers"]}),
        "peak_memory_bytes_by_rank": [rank.memory.get("peak_bytes") for rank in reports.ranks],
        "elements_per_step": [statistics.median(step.num_elements for step in rank.steps) for rank in reports.ranks],
        "samples_are_seen": True,
        "batch_coupled": sorted({name for rank in reports.ranks for name in rank.record.get("batch_coupled", ())}),
        "last_batch": _last_batch(reports, micro_batch_size),
    }


def _last_batch(reports: Reports, micro_batch_size: int) -> int | None:
    """Return the samples of the last batch of an epoch that has fewer than the others; None for none, or if unknown."""
    for rank in reports.ranks:
        rest = (rank.num_samples or 0) % micro_batch_size
        if rest and not rank.record.get("drops_last"):
            return rest
    return None


def _device_info(reports: Reports) -> dict[str, Any]:
    first = reports.ranks[0].record
    names = {"device": first["device"], "device_name": first["device_name"] or None, "torch": first["torch"]}
    names["is_emulated"] = first["is_emulated"]
    return {name: value for name, value in names.items() if value}
