"""The Runner of a training command: a probe is a start with the size filled in, or a further size of a start."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bexplore.command import watch as watching
from bexplore.command.failures import fails_at_a_sample
from bexplore.command.judgement import (
    MAX_TIMED_STEPS,
    PROBING_ACCUMULATION,
    Judge,
    Learned,
    Watched,
    count_needed_steps,
    refuse,
)
from bexplore.command.reports import ReportsReader, find_num_samples
from bexplore.command.start import DeviceUse, ProbeFolder, Start
from bexplore.command.timing import WARMUP_STEPS
from bexplore.command.verdicts import check_capacity, describe_arrival, take_capacity
from bexplore.command.watch import Ending, OpenStart, Watch
from bexplore.config.command import Command
from bexplore.errors import EngineError, UserInputError, UserProgramError
from bexplore.host.clocks import MOST_TRIES, Stopwatch, Suspension, suspended_text
from bexplore.host.contention import CpuContention
from bexplore.host.json_files import write_json
from bexplore.host.machine import oom_kills
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe, Purpose

MEMORY_STEP = 1  # the warm-up step that is profiled for its memory
# What the kernel says where the host has no room for a start, whatever the command.
OF_HOST = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE)
# Endings that have nothing to do with the size.
HOPELESS = (Ending.UNOBSERVED, Ending.NO_STEP)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSettings:
    """What a runner of a command needs beside the command."""

    run_dir: Path  # folder of the run; each start has a folder in it
    memory_limit_bytes: int | None = None  # memory of one replica; None for no limit
    sizes_per_start: int = 1  # sizes that one start may serve
    # Sizes that may be asked for, ascending; a start that serves several is given one of them
    candidates: tuple[int, ...] = ()
    # Variables of a start beside this process's own and the command's
    environment: Mapping[str, str] = field(default_factory=dict)
    # Whether the exploration was interrupted; polled while a start runs
    should_stop: Callable[[], bool] = lambda: False
    on_progress: Callable[[dict[str, Any]], None] = lambda message: None  # called with what happens, for people


class CommandRunner:
    """Runs probes by starting the user's command.

    With several sizes per start, a probe of the search (`Compilation.SHARED`) is served by a start that was given a
    larger size: batches of the probe's size are cut from the lists of samples of its loaders. All ranks park after the
    last observed step and go on with the next size. Where that fails, the size has a start of its own, whose
    observation is that of the training itself (`Compilation.EXACT`).
    """

    def __init__(self, command: Command, settings: CommandSettings) -> None:
        self.command = command
        self.settings = settings
        self.shares_starts = settings.sizes_per_start > 1
        self._learned = Learned(num_replicas=command.num_replicas)
        self._judge = Judge(command=command, candidates=settings.candidates, learned=self._learned)
        self._held: OpenStart | None = None
        self._left: tuple[str, ...] = ()  # of starts that have been ended since the last observation
        # Of the probe: begun anew after a suspension, whose hours no other probe costs
        self._stopwatch = Stopwatch()
        self._began_at_s = self._stopwatch.started_at_s  # Unix time; what was there before is left as it was

    @property
    def num_replicas(self) -> int | None:
        """Data-parallel replicas that a probe has shown; None before."""
        return self._learned.num_replicas

    @num_replicas.setter
    def num_replicas(self, num_replicas: int) -> None:
        self._learned.num_replicas = num_replicas

    @property
    def device_info(self) -> dict[str, Any]:
        """Description of the device that the command uses; empty before."""
        return self._learned.device_info

    @property
    def recorded_kernels(self) -> tuple[Mapping[str, Any], ...]:
        """What each rank of the last start asked an emulated device to do in a step; empty where it was none."""
        return self._learned.kernels

    @property
    def size_to_confirm(self) -> int | None:
        """A size that another start must be given, to show that the command follows its size; None for none."""
        return self._learned.sizes.size_to_confirm

    @property
    def unconfirmed_size(self) -> int | None:
        """The size of which another number of samples arrived, until a second size shows why; None for none."""
        return self._learned.sizes.unconfirmed

    def arrived_at(self, micro_batch_size: int) -> str:
        """Return how many samples arrived at a size, for people."""
        return describe_arrival(self._learned.sizes.arrived[micro_batch_size].rows, micro_batch_size)

    def by_hand(self, micro_batch_size: int) -> str:
        """Return what to type to run a start by hand."""
        return self._judge.suggest_by_hand(micro_batch_size)

    def learn(self, observation: Observation) -> None:
        """Take over what a probe of this command has shown, in an exploration that goes on."""
        self._learned.take_over(observation)
        self._began_at_s = min(self._began_at_s, observation.started_at_s or self._began_at_s)

    def __call__(self, probe: Probe) -> Observation:
        """Run a probe; observe its steps.

        Raises:
            UserInputError: The command cannot be started.
            UserProgramError: What was asked for cannot be seen, or does not happen, whatever the size.
            KeyboardInterrupt: The exploration was interrupted; nothing of the start is left.
        """
        self._stopwatch = Stopwatch()
        observation = self._run_probe(probe)
        if self._serves_another():
            return observation
        return replace(observation, details=observation.details | {"start_ended": True})

    def _serves_another(self) -> bool:
        return self._held is not None and len(self._held.served) < self.settings.sizes_per_start

    def _run_probe(self, probe: Probe) -> Observation:
        accumulation = PROBING_ACCUMULATION if self.command.sets_accumulation else None
        is_first = probe.purpose is Purpose.BASE and not self._learned.passes_per_step
        if self.shares_starts and accumulation is None and is_first:
            observation = self._run_base(probe)
            if not observation.is_measured and self._learned.is_early:
                self._serve(probe, accumulation)  # which raises where a much larger size fails as early, the same way
            return observation
        if not self.shares_starts or probe.compilation is not Compilation.SHARED or probe.fresh_worker:
            return self._run_alone(probe, accumulation)
        limit_s = self._learned.pass_limit_s()
        served, may_serve_others = self._serve(probe, accumulation)
        if served is not None:
            return served
        observation = self._run_alone(probe, accumulation)
        was_slow = (self._learned.first_pass_s or 0.0) > limit_s  # and was given up for that alone
        may_go_on = may_serve_others or was_slow or not observation.is_measured
        self.shares_starts = may_go_on and not self._learned.steps_follow_size
        return observation

    def _run_base(self, probe: Probe) -> Observation:
        """Run the smallest size of a command that chooses its accumulation in a start of its own.

        Where the accumulation follows the size, as where a batch is fixed, the steps of a start for several sizes are
        those of its own size: they are compared with these.
        """
        observation = self._run_alone(probe, None)
        if observation.num_graphs or (observation.is_measured and not self._learned.has_lists):
            self.shares_starts = False
        # Of the search: its answer runs once more, and no two starts are equally fast.
        is_of_search = observation.is_measured and self.shares_starts
        return replace(observation, probe=probe) if is_of_search else observation

    def run(self, probe: Probe, accumulation: int | None) -> Observation:
        """Run one probe in a start of its own, with so many micro-batches a step; None leaves them to the command."""
        self._stopwatch = Stopwatch()
        return self._run_alone(probe, accumulation)

    def _run_alone(self, probe: Probe, accumulation: int | None) -> Observation:
        self.close()
        if probe.compilation is Compilation.SHARED:
            probe = replace(probe, compilation=Compilation.EXACT)
        observation = self._start_alone(probe, accumulation)
        is_of_sample = observation.outcome is Outcome.CRASHED and fails_at_a_sample(observation.traceback_text)
        if is_of_sample and self._learned.sizes.arrived:  # by chance: another start may not meet it
            again = self._start_alone(probe, accumulation)
            told = f"a start failed at a sample of the data set, and was repeated: {observation.reason}"
            observation = replace(again, warnings=(told, *again.warnings)) if again.is_measured else again
        self._learned.limit_samples(observation.max_samples)
        if observation.outcome is Outcome.OUT_OF_MEMORY:
            self._learned.note_out_of_memory(probe.micro_batch_size)
        return observation

    def _start_alone(self, probe: Probe, accumulation: int | None) -> Observation:
        for _ in range(MOST_TRIES):
            opened = self._open(probe, accumulation)
            try:
                watched = self._watch(opened, probe)
            finally:
                self._end(opened)
            if not watched.suspended_s:
                break
        observation = self._judge_start(watched, probe)
        if isinstance(observation, UserProgramError):
            raise observation
        return observation

    def close(self) -> None:
        """End the start that waits for another size, if there is one."""
        held, self._held = self._held, None
        if held is not None:
            self._end(held)

    def _end(self, opened: OpenStart) -> None:
        self._left = (*self._left, *opened.end())

    # -- a start that serves several sizes

    def _serve(self, probe: Probe, accumulation: int | None) -> tuple[Observation | None, bool]:
        """Return the measurement of a probe in a start that serves several sizes, and whether such starts go on.

        None where the size needs a start of its own. Its failure says nothing of further starts for several sizes
        where the training had come to its end after other sizes, or a signal ended it.
        """
        held = self._go_on_with_held(probe, accumulation)
        if held is None:
            capacity = self._learned.choose_capacity(probe.micro_batch_size, self.settings.candidates)
            held = self._open(probe, accumulation, capacity)
        self._held = held
        observation = None
        try:
            watched = self._watch(held, probe)
            observation = self._judge_served(watched, probe)
        finally:
            if observation is None or not observation.is_measured or not held.park():
                self.close()
        if observation is None or not observation.is_measured:
            if self._serves_at_once(watched, probe):
                return self._serve(probe, accumulation)
            is_struck = watched.suspended_s > 0 or (observation is not None and "ended_by" in observation.details)
            is_spent = held.is_reused and any(rank.outcome == "ended" for rank in watched.ranks)
            return None, is_struck or is_spent
        if observation.num_graphs:  # the compiler makes another program of the second size than of the first
            self.shares_starts = False
            self.close()
        return observation, True

    def _serves_at_once(self, watched: Watched, probe: Probe) -> bool:
        """Return whether another start for several sizes serves a probe that this one could not."""
        if watched.ending is Ending.NO_BATCH:
            return self._fills_less(watched, probe.micro_batch_size)
        # It was ending when it was asked.
        return watched.opened.is_reused and watched.ending is Ending.ENDED and not watched.ranks

    def _fills_less(self, watched: Watched, size: int) -> bool:
        """Return whether the data has too few samples for the size that a start was given, and enough for a probe's."""
        num_samples, capacity = find_num_samples(watched.ranks), watched.opened.capacity
        if capacity is None or num_samples is None or not size <= num_samples < capacity:
            return False
        self._learned.limit_samples(num_samples)
        return True

    def _judge_served(self, watched: Watched, probe: Probe) -> Observation | None:
        """Return the observation of a size of a start for several; None where the size needs a start of its own.

        A start of its own that would end the same way is a UserProgramError.
        """
        if watched.suspended_s:
            return None
        ranks, capacity = watched.ranks, watched.opened.capacity
        finding = check_capacity(ranks, capacity) if ranks and capacity is not None else None
        if finding is not None:
            raise refuse(finding, self.command)
        are_cut = capacity is not None and any(rank.record["num_cut_lists"] for rank in ranks)
        if capacity is not None and are_cut and not take_capacity(self._learned.sizes, ranks, capacity):
            self.shares_starts = False
            return None
        observation = self._judge_start(watched, probe)
        if self._learned.steps_follow_size:
            self.shares_starts = False
            return None
        if not isinstance(observation, UserProgramError):
            return observation
        if (watched.ending in HOPELESS or self._learned.fails_early) and not watched.opened.is_reused:
            raise observation
        return None

    def _go_on_with_held(self, probe: Probe, accumulation: int | None) -> OpenStart | None:
        """Let the start that waits go on with a probe; end it and return None where it cannot."""
        held, size = self._held, probe.micro_batch_size
        if held is None or not self._serves_another() or not held.can_serve(size, accumulation):
            self.close()
            return None
        folder, num_steps = self._choose_folder(probe), self._learned.count_steps(size)
        settings = self._make_observer_settings(size, accumulation, held.capacity) | {"max_steps": num_steps}
        held.go_on(folder, size, settings, num_steps)
        return held

    # -- one start

    def _open(self, probe: Probe, accumulation: int | None, capacity: int | None = None) -> OpenStart:
        """Start the command: with a probe's size, or with a larger one from whose batches it is cut."""
        folder, size = self._choose_folder(probe), probe.micro_batch_size
        values = self.command.values(
            micro_batch_size=capacity or size,
            accumulation=accumulation or 1,
            num_replicas=self.num_replicas or 1,
            folder=folder.path,
        )
        env = folder.write(self.command, values, self._make_observer_settings(size, accumulation, capacity))
        argv, _ = self.command.filled(values)
        self.settings.on_progress({"stage": "command", "micro_batch_size": size})
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

    def _choose_folder(self, probe: Probe) -> ProbeFolder:
        parent = self.settings.run_dir / "probes"
        stem = f"{probe.number:03d}_size_{probe.micro_batch_size}"
        taken = sum(1 for path in parent.glob(f"{stem}*") if path.is_dir())
        return ProbeFolder(path=(parent / (stem if not taken else f"{stem}_{taken + 1}")).resolve())

    def _make_observer_settings(self, size: int, accumulation: int | None, capacity: int | None) -> dict[str, Any]:
        return {
            **self._find_lengths(size * (accumulation or 1)),
            "micro_batch_size": size,
            "accumulation": accumulation or 1,
            "capacity": capacity,
            "max_steps": WARMUP_STEPS + MAX_TIMED_STEPS,
            "memory_step": MEMORY_STEP,
            "profile_memory": True,
            "memory_limit_bytes": self.settings.memory_limit_bytes,
            "began_at_s": None if self.command.writes_are_fine else self._began_at_s,
            "run_dir": str(self.settings.run_dir.resolve()),
            "park_s": watching.PARK_S,
            "life_limit_s": watching.LIFE_LIMIT_S,
        }

    def _find_lengths(self, num_samples: int) -> dict[str, Any]:
        """Return the longest samples of the data set, and a file with the lengths of all; nothing where unknown."""
        lengths, path = self.command.sample_lengths, self.settings.run_dir.resolve() / "sample_lengths.json"
        if not lengths:
            return {}
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, {"lengths": lengths})
        longest = np.argsort(-np.array(lengths), kind="stable")[:num_samples].tolist()
        return {"longest_samples": longest, "lengths_file": str(path)}

    def _watch(self, opened: OpenStart, probe: Probe) -> Watched:
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
            tell=self.settings.on_progress,
            num_warmup=WARMUP_STEPS,
            is_shared=opened.capacity is not None,
            is_reused=opened.is_reused,
            num_steps=opened.num_steps,
            num_needed=count_needed_steps,
            pass_limit_s=self._learned.pass_limit_s() if (opened.capacity or 0) > probe.micro_batch_size else None,
        )
        contention.start()
        with Suspension(watch.list_pids_here) as suspension:
            ending = watch.until_end()
        if suspension.seconds:
            self._left = (*self._left, suspended_text(suspension.seconds))
            self._stopwatch = Stopwatch()
        elif not opened.is_reused and watch.first_pass_s is not None:
            self._learned.note_first_pass(watch.first_pass_s)
        self._judge.check_assumed_replicas(watch.reports)
        return Watched(
            opened=opened,
            watch=watch,
            ending=ending,
            warnings=(*contention.warnings(), *opened.devices.warnings()),
            killed_by_kernel=oom_kills() > kills,
            suspended_s=suspension.seconds,
        )

    def _judge_start(self, watched: Watched, probe: Probe) -> Observation | UserProgramError:
        """Return what a start shows, with the warnings of the machine where it has times that these are about."""
        judged = self._judge.judge(watched, self._make_blank(watched, probe))
        if isinstance(judged, UserProgramError) or not judged.is_measured:
            return judged
        return replace(judged, warnings=(*watched.warnings, *judged.warnings))

    def _make_blank(self, watched: Watched, probe: Probe) -> Observation:
        left, self._left = self._left, ()
        return Observation(
            probe=probe,
            outcome=Outcome.CRASHED,
            **self._stopwatch.times(),
            worker=watched.opened.number,
            memory_budget_bytes=self.settings.memory_limit_bytes,
            ran_eagerly=None,
            warnings=left,
        )
