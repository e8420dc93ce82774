"""From a start that was watched to what it shows: an observation, or what is wrong with the command at any size."""

from __future__ import annotations

import math
import re
import shlex
import signal
import statistics
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from bexplore.command.failures import (
    KILLED_BY_KERNEL,
    CommandFailure,
    describe_end,
    ends_with_error,
    find_lost_rank,
    find_own_error,
    find_reported_failure,
)
from bexplore.command.reports import (
    Rank,
    Reports,
    describe_compiler,
    describe_device,
    describe_memory,
    describe_swallowed,
    find_kernels,
    find_last_batch,
    find_num_samples,
    list_notes,
    share_batches,
)
from bexplore.command.timing import (
    MIN_TIMED_STEPS,
    WARMUP_STEPS,
    StepTiming,
    expect_step_s,
    find_depletion,
    find_own_step,
    find_slowest,
    group_means,
    share_evaluations,
)
from bexplore.command.verdicts import (
    Arrived,
    CheckResult,
    Finding,
    SizeCheck,
    check_accumulation,
    check_replicas,
    is_cut,
)
from bexplore.command.watch import Ending, OpenStart, Watch
from bexplore.config.command import Command, count_processes
from bexplore.config.document import dotted_path
from bexplore.engine.protocol.failures import describe_exit, find_host_error, last_line, read_ends_by_torchrun
from bexplore.errors import UserProgramError
from bexplore.host.clocks import SUSPENDED
from bexplore.host.process_tree import PROBE_MARK
from bexplore.measurement.probe import Observation, Outcome
from bexplore.units import counted, format_seconds

# Micro-batches of a step while probing, where the command lets it be chosen: two tell a pass from an update and from
# what happens once a step.
PROBING_ACCUMULATION = 2
MAX_TIMED_STEPS = 5000  # Source: 8 s of steps of 1.6 ms
# Seconds of timed steps of each further size of a start. Source: runs of one size differ by far more than the passes of
# one run, benchmarks/results/command_shared_starts.md: a second look at a size is worth more than a longer one.
FURTHER_S = 0.5
# The size that a start for several sizes is given: so many times the size for which it is started, or so many samples.
# A search goes on from its base with up to 64 samples, and later in steps of less than 8 times; a size far above what
# is asked for may exceed the samples that the training has. Source: searches among 4,096 sizes of the simulator.
CAPACITY_TIMES, LEAST_CAPACITY = 8, 64
# Steps of batches that were read ahead at the size before, beyond which a size has a start of its own. Source: chosen;
# queues of prefetching threads have up to some ten batches.
MOST_STEPS_AHEAD = 64
# Seconds in which a start that was given a size which nobody asked for must come to its first pass: where no start is
# known, where one is, and so many times the longest. Source: chosen; most programs load their data in a minute.
FIRST_PASS_S, KNOWN_PASS_S, KNOWN_PASS_TIMES = 120.0, 30.0, 3.0
# Times as many passes a step as another size has, from which they follow the size. Source: chosen; a fixed batch of two
# samples has twice as many at the smallest size, and closures of optimizers differ by less.
FOLLOWING = 1.5
# Exceptions before the first batch that no size causes, if their texts do not name it. Source: chosen: checks of a size
# raise a ValueError, an AssertionError or a RuntimeError, or end the command by `argparse`.
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
# And those of no value, for which a device that computes none is not to blame. Source: chosen; torch refuses values by
# a RuntimeError, and programs do so by a ValueError, an AssertionError, an IndexError or a KeyError.
OF_NO_VALUE = (*OF_NO_SIZE, "TypeError", "NotImplementedError")
# What a program says that trains in a new folder alone, before its first batch. Source: `errno.EEXIST` and `ENOTEMPTY`,
# Python's `FileExistsError`, transformers ("already exists and is not empty").
_FOLDER_EXISTS = re.compile(
    r"FileExistsError|\bFile exists\b|(?=.*(?:dir|folder|path)).*\b(?:already exists?|not empty)\b",
    re.IGNORECASE | re.DOTALL,
)
# What `stty` and Python print of a program that asks for a terminal. Source: `errno.ENOTTY`, glibc.
_NO_TERMINAL = "Inappropriate ioctl for device"
# Standard deviation of the elements of a sample between steps, over their mean, from which batches differ in length.
# Source: chosen; a step that is longer by as much is slower by about that.
DIFFERENT = 0.1
# What a start without a step may be, beside a slow one.
_ELSEWHERE = "where it trains in processes of a cluster (Ray's), give them this PYTHONPATH: docs/commands.md, Ray"

_NO_TORCH = "No module named 'torch'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What the watch over one probe has seen."""

    opened: OpenStart  # the start
    watch: Watch
    ending: Ending
    warnings: tuple[str, ...]  # of the machine meanwhile
    killed_by_kernel: bool  # whether the kernel's out-of-memory killer struck meanwhile
    suspended_s: float  # seconds in which the machine slept or a process was stopped: the probe is no measurement

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """The records of its ranks."""
        return self.watch.reports.ranks


@dataclass(slots=True, kw_only=True)
class Learned:
    """What the starts of one command have shown so far."""

    num_replicas: int | None = None  # data-parallel replicas; None before
    # Description of the device that the command uses; empty before
    device_info: dict[str, Any] = field(default_factory=dict)
    sizes: SizeCheck = field(default_factory=SizeCheck)  # what arrived at each size
    step_times_s: dict[int, float] = field(default_factory=dict)  # by size that was measured
    passes_per_step: dict[int, float] = field(default_factory=dict)  # by size that a start was given
    has_lists: bool = False  # whether loaders took their batches from lists of samples, which can be cut
    first_pass_s: float | None = None  # seconds of the slowest start until its first pass; None before
    # Tokens of a sample to which the seconds of all sizes are adjusted; None before, or where steps show no tokens
    tokens_per_sample: float | None = None
    max_samples: int | None = None  # samples of a micro-batch that the data fills; None if unknown
    too_large: int | None = None  # the smallest size that ran out of memory; None for none
    # By size that a start was given, how it failed before its first batch, or before its first step
    unmeasured: dict[int, str] = field(default_factory=dict)
    is_early: bool = False  # whether one of them failed before its first batch
    fails_early: bool = False  # whether the command fails so at any size
    is_emulated: bool = False  # whether its starts use an emulated device
    # Of each rank of the last start that trained, what it asked an emulated device to do in a step; empty elsewhere
    kernels: tuple[Mapping[str, Any], ...] = ()

    def take_over(self, observation: Observation) -> None:
        """Take over what a probe of an earlier explorer has shown."""
        self.limit_samples(observation.max_samples)
        if not observation.is_measured:
            return
        self.note_first_pass(observation.start_time_s)
        self.step_times_s[observation.micro_batch_size] = observation.details["step_time_s"]
        self.tokens_per_sample = self.tokens_per_sample or observation.details.get("tokens_per_sample")
        found = observation.details.get("arrived")
        if found:
            given = found["cut_from"] or observation.micro_batch_size
            self.passes_per_step[given] = observation.details["passes_per_step"]
            result = CheckResult(observation.details["verdicts"]["micro_batch_size"])
            self.sizes.learn(observation.micro_batch_size, Arrived(**found), result)

    @property
    def steps_follow_size(self) -> bool:
        """Whether steps have more passes where a start is given a smaller size, as of a batch that is fixed."""
        passes = self.passes_per_step.values()
        return bool(passes) and max(passes) >= FOLLOWING * min(passes)

    def limit_samples(self, max_samples: int | None) -> None:
        """Note how many samples of a micro-batch the data fills at most."""
        if max_samples is not None:
            self.max_samples = min(max_samples, self.max_samples or max_samples)

    def note_first_pass(self, seconds: float) -> None:
        """Note how long a start took until its first pass."""
        self.first_pass_s = max(self.first_pass_s or 0.0, seconds)

    def note_out_of_memory(self, micro_batch_size: int) -> None:
        """Note a size that ran out of memory."""
        self.too_large = min(micro_batch_size, self.too_large or micro_batch_size)

    def pass_limit_s(self) -> float:
        """Return the seconds in which a start at a size that nobody asked for must come to its first pass."""
        if self.first_pass_s is None:
            return FIRST_PASS_S
        return max(KNOWN_PASS_S, KNOWN_PASS_TIMES * self.first_pass_s)

    def count_steps(self, micro_batch_size: int) -> int:
        """Return the steps of a further size of a start, by how long those of other sizes took."""
        step_s = expect_step_s(self.step_times_s, micro_batch_size)
        return WARMUP_STEPS + min(max(MIN_TIMED_STEPS, math.ceil(FURTHER_S / step_s)), MAX_TIMED_STEPS)

    def choose_capacity(self, micro_batch_size: int, candidates: Collection[int]) -> int:
        """Return the size that a start for several sizes is given."""
        fits = (self.too_large or math.inf) - 1
        most = min(max(CAPACITY_TIMES * micro_batch_size, LEAST_CAPACITY), fits, self.max_samples or math.inf)
        return max((one for one in candidates if micro_batch_size < one <= most), default=micro_batch_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Says what watched starts of one command show."""

    command: Command
    candidates: tuple[int, ...]  # sizes that may be asked for
    learned: Learned  # what its starts have shown so far, which each judgement adds to

    def judge(self, watched: Watched, blank: Observation) -> Observation | UserProgramError:
        """Return what a start shows: its blank observation filled in, or an error where no start shows anything."""
        self.learned.is_emulated |= any(hello.get("is_emulated") for hello in watched.watch.reports.hellos)
        if watched.suspended_s:
            return replace(blank, reason=SUSPENDED, details={"ended_by": signal.SIGSTOP.name})
        if watched.ending is Ending.NO_BATCH:
            return self._judge_empty_epochs(watched, blank)
        if watched.ending is not Ending.OBSERVED:
            _check_host(watched.watch)
        failure = self._find_failure(watched, blank.micro_batch_size)
        if failure is None:
            return self._judge_training(watched, blank)
        if isinstance(failure, UserProgramError):
            return failure
        return self._find_early_refusal(failure, watched, blank) or replace(
            blank,
            outcome=failure.outcome,
            reason=failure.reason,
            traceback_text=failure.traceback_text,
            details={"ended_by": failure.ended_by} if failure.ended_by else {},
        )

    def check_assumed_replicas(self, reports: Reports) -> None:
        """Refuse a start that was given the numbers of one replica and has more, however it ended.

        Raises:
            UserProgramError: Its size says nothing.
        """
        if self.command.num_replicas is not None or not self.command.needs_replicas:
            return
        shows_batches = any(rank.digests for rank in reports.ranks)
        found = check_replicas(reports.ranks, None)[0] if shows_batches else reports.num_ranks
        if found > 1:
            raise UserProgramError(
                f"the command started {counted(found, 'replica')}, and its own numbers were made for 1",
                hint=f"give `replicas={found}`",
            )

    def suggest_by_hand(self, micro_batch_size: int) -> str:
        """Return what to type to see why a start fails."""
        by_hand = self._suggest_start(micro_batch_size)
        if not self.learned.is_emulated:
            return by_hand
        return (
            "an emulated device computes no values, and a program that branches on them may fail there alone "
            f"(docs/emulated_gpu.md); where there is a GPU, {by_hand}"
        )

    def _suggest_start(self, micro_batch_size: int) -> str:
        accumulation = PROBING_ACCUMULATION if self.command.sets_accumulation else 1
        line = self.command.describe_by_hand(micro_batch_size, accumulation, self.learned.num_replicas or 1)
        return f"run that start by hand{line}"

    # -- a start that gave no measurement

    def _judge_empty_epochs(self, watched: Watched, blank: Observation) -> Observation | UserProgramError:
        num_samples, size = find_num_samples(watched.ranks), blank.micro_batch_size
        hint = "explore smaller sizes, train with more samples, or keep the last batch of an epoch (drop_last=False)"
        if num_samples is None or num_samples >= size:
            reason = f"epochs without a batch of {counted(size, 'sample')}: the DataLoader gives none"
            if self.learned.sizes.arrived:
                return replace(blank, reason=reason)
            return UserProgramError(reason, hint=hint, traceback_text=watched.watch.start.log_tail())
        reason = f"epochs without a batch of {size}: the data of a rank has {counted(num_samples, 'sample')}"
        if num_samples < min(self.candidates, default=1):
            return UserProgramError(reason, hint=hint, traceback_text=watched.watch.start.log_tail())
        return replace(blank, reason=f"{reason}; {hint}", max_samples=num_samples)

    def _find_failure(self, watched: Watched, size: int) -> CommandFailure | UserProgramError | None:
        reports, log = watched.watch.reports, watched.watch.start.log_tail()
        of_observer = find_reported_failure(reports.errors)
        is_refused_memory = of_observer is not None and of_observer.outcome is Outcome.OUT_OF_MEMORY
        if watched.ending is Ending.OBSERVED and not is_refused_memory:
            return None
        if of_observer is not None:
            unstarted = self._find_unstarted(watched, log, size)
            if unstarted is not None:
                return unstarted
            failure = find_lost_rank(log, reports) or of_observer
            return KILLED_BY_KERNEL if failure.ended_by and watched.killed_by_kernel else failure
        return (
            self._find_unseen(watched, log, size)
            or self._find_timeout(watched, log)
            or describe_end(
                watched.watch.start.return_code,
                log,
                reports,
                killed_by_kernel=watched.killed_by_kernel,
                lost_pid=watched.watch.lost_pid,
            )
        )

    def _find_unseen(self, watched: Watched, log: str, size: int) -> CommandFailure | UserProgramError | None:
        """Return why the observer saw no step of a training that may have run well; None where it saw some."""
        reports, ending, code = watched.watch.reports, watched.ending, watched.watch.start.return_code
        if ending is Ending.UNOBSERVED:
            return UserProgramError(
                "torch runs in the command, and the observer was not loaded into it: its Python ignores "
                "PYTHONPATH (-I, -E, -S), or its launcher clears the environment",
                hint=f"let the launcher pass PYTHONPATH and {PROBE_MARK} on, leave -S out, and for -I or -E install "
                "the observer there: bexplore attach --install --python PYTHON",
            )
        ended_well = bool(reports.hellos) and not reports.ranks and code == 0
        if ended_well and ends_with_error(log):
            return None  # a program that logs all its errors ends well
        if ending is Ending.NO_STEP or (ending is Ending.ENDED and ended_well):
            if self.learned.sizes.arrived:
                reason = "it ended without an optimizer step: its data may have fewer samples than the size"
                return CommandFailure(outcome=Outcome.CRASHED, reason=reason, traceback_text=log)
            if reports.num_batches and (watched.opened.capacity or size) == 1:
                reason = "no optimizer step was seen: the program may leave out batches of one sample"
                return CommandFailure(outcome=Outcome.CRASHED, reason=reason)
            read = f"read {reports.num_batches} batches and " if reports.num_batches else ""
            return UserProgramError(
                f"no step observed: the command {read}trains without torch.optim.Optimizer.step and "
                "torch.autograd.backward",
                hint="let your optimizer derive from torch.optim.Optimizer and call loss.backward(); where processes "
                "train that get a PYTHONPATH of their own (runtime_env of Ray), add this one's to it, or type: "
                "bexplore attach --install --python PYTHON",
                traceback_text=log,
            )
        return self._find_unstarted(watched, log, size)

    def _find_unstarted(self, watched: Watched, log: str, size: int) -> UserProgramError | None:
        """Return why the program cannot have begun: no process imported torch, or the launcher alone did."""
        hellos, code = watched.watch.reports.hellos, watched.watch.start.return_code
        ranks_left = any(end.return_code is not None and end.return_code > 0 for end in read_ends_by_torchrun(log))
        if watched.ending is not Ending.ENDED or any(one["rank"] is not None for one in hellos):
            return None
        if hellos and not ranks_left:
            return None
        hint = self.suggest_by_hand(watched.opened.capacity or size)
        if _NO_TORCH in log:  # bexplore was called by its path, and the shell's own Python is another
            own = shlex.quote(sys.executable)
            hint = f"its Python has no torch; bexplore's has: write {own} in its place, or activate its environment"
        who, why = "rank" if hellos else "process", find_own_error(log)
        error = f"the command {describe_exit(0 if code is None else code)} before any {who} imported torch"
        return UserProgramError(
            f"{error}: {why}" if why else error,
            hint=hint,
            traceback_text=log,
        )

    def _find_timeout(self, watched: Watched, log: str) -> CommandFailure | None:
        reports = watched.watch.reports
        if watched.ending is Ending.TIMED_OUT:
            most = max(reports.num_steps.values(), default=0)
            seen = f"after {counted(most, 'step')}" if most else f"and no step was seen; {_ELSEWHERE}"
            reason = f"it ran for {format_seconds(watched.watch.time_limit_s)}, {seen}"
        elif watched.ending is Ending.NO_PASS:
            reason = f"no pass was seen in {format_seconds(self.learned.pass_limit_s())}"
        elif watched.ending is Ending.HUNG:
            reason = _describe_hang(reports)
        elif watched.ending is Ending.HOST_FULL:
            return CommandFailure(outcome=Outcome.OUT_OF_MEMORY, reason="the memory of the host was nearly used up")
        else:
            return None
        return CommandFailure(outcome=Outcome.TIMED_OUT, reason=reason, traceback_text=log)

    def _find_early_refusal(
        self, failure: CommandFailure, watched: Watched, blank: Observation
    ) -> UserProgramError | None:
        """Return why no further start shows anything: the command fails before its first batch at any size.

        On an emulated device, which computes no values, also in its first step.
        """
        learned, opened, reports = self.learned, watched.opened, watched.watch.reports
        if opened.is_reused or failure.outcome is not Outcome.CRASHED or failure.ended_by:
            return None
        # A batch may be of another process than the one that failed, or raised its error anew.
        is_early = failure.is_early and not reports.has_batch
        if not is_early and (not learned.is_emulated or any(reports.num_steps.values())):
            return None
        if _FOLDER_EXISTS.search(failure.reason):
            used = "output_dir" in self.command.placeholders
            place = "in place of {output_dir}" if used else "where it takes its output folder, in a key of its file too"
            return UserProgramError(
                f"the command wants an output folder that is not there yet: {failure.reason}",
                hint=f"write {{output_dir}}/run {place}",
                traceback_text=failure.traceback_text,
            )
        if learned.sizes.arrived:
            return None
        given = opened.capacity or blank.micro_batch_size
        text = failure.reason.replace(str(opened.folder.path), "")  # which its own messages may name
        others = [size for size, told in learned.unmeasured.items() if told == text]
        # Early words may be of the size, as of one that is too small; those of emulated values are of none.
        least_apart = CAPACITY_TIMES if is_early else 2
        apart = any(max(size, given) >= least_apart * min(size, given) for size in others)
        is_certain = failure.exception_type in OF_NO_SIZE and not re.search(rf"(?<!\d){given}(?!\d)", text)
        wants_terminal = _NO_TERMINAL in watched.watch.start.log_tail()
        learned.unmeasured[given] = text
        learned.is_early |= is_early
        learned.fails_early = apart or (is_early and (is_certain or wants_terminal))
        if not learned.fails_early:
            return None
        hint = (self._suggest_start if failure.exception_type in OF_NO_VALUE else self.suggest_by_hand)(given)
        if wants_terminal:
            hint = (
                "it asks for a terminal, and a start has none, as in a batch job; this command gives it one: "
                f"script -qec {shlex.quote(self.command.shown)} /dev/null"
            )
        return UserProgramError(
            f"the command fails {'before its first batch' if is_early else 'in its first step'}, whatever the size: "
            f"{failure.reason}",
            hint=hint,
            traceback_text=failure.traceback_text,
        )

    # -- a training that was observed

    def _judge_training(self, watched: Watched, blank: Observation) -> Observation | UserProgramError:
        """Return the measurement, unless the training did something else than asked."""
        size, opened = blank.micro_batch_size, watched.opened
        reports = replace(watched.watch.reports, ranks=share_batches(watched.ranks))
        first = find_common_step(reports.ranks)
        if first is None:
            return replace(blank, reason=f"the model had no batch of {size} after those that were read ahead")
        timed = share_evaluations(reports.ranks)
        timing = find_slowest(
            timed,
            num_warmup=first + WARMUP_STEPS,
            micro_batch_size=size,
            tokens_per_sample=self.learned.tokens_per_sample or self._find_mean_length(reports),
        )
        if timing is None or timing.num_steps < MIN_TIMED_STEPS:
            return self._judge_short_training(reports, blank)
        if opened.capacity is not None and not is_cut(reports.ranks, size, opened.capacity):
            return replace(blank, reason=f"batches of {size} could not be cut from those of {opened.capacity}")
        if _is_resumed(reports) and not self.learned.sizes.arrived:
            return UserProgramError(
                "the training loaded an optimizer's state before its first step: each probe would resume from it",
                hint="leave the checkpoint out while you explore, which an earlier start may have written where the "
                "command writes; the size holds for the resumed training too",
            )
        after_warmup = max(rank.record.get("accumulation_after_warmup") or 0 for rank in reports.ranks)
        if after_warmup and not self.command.sets_accumulation:
            timing = timing.with_micro_batches(after_warmup)
        if all(rank.record["is_emulated"] and rank.record["device"] == "cpu" for rank in reports.ranks):
            return UserProgramError(
                "the training ran on the CPU, and not on the emulated device",
                hint="let the command train on cuda, by its own option for the device, as on a machine that has one; "
                "without `device_name` the training is explored on this machine",
            )
        return self._judge_settings(reports, timing, opened, blank)

    def _find_mean_length(self, reports: Reports) -> float | None:
        """Return the mean of the lengths of samples, where the lists of the loaders are of these samples."""
        lengths = self.command.sample_lengths
        is_of_data = any(rank.record.get("num_lists_of_longest", 0) for rank in reports.ranks)
        return statistics.fmean(lengths) if is_of_data else None

    def _note_longest(self, reports: Reports) -> Iterator[str]:
        """Yield that memory was not read with the longest samples, where lengths are given."""
        num_lists = [rank.record.get("num_lists_of_longest", 0) for rank in reports.ranks]
        if self.command.sample_lengths and not any(num_lists):
            yield (
                "memory is that of samples as they came, not of the longest: no DataLoader takes samples by number of "
                f"as many as explore.lengths has, {len(self.command.sample_lengths)}"
            )

    def _judge_settings(
        self, reports: Reports, timing: StepTiming, opened: OpenStart, blank: Observation
    ) -> Observation | UserProgramError:
        """Return the measurement, where what was asked for was seen and no refusal of memory was swallowed."""
        size = blank.micro_batch_size
        findings, num_replicas = self._check_settings(reports, timing, opened, size)
        wrong = next((one for one in findings.values() if one.is_refused), None)
        if wrong is not None and not wrong.is_of_this_size:
            return refuse(wrong, self.command)
        details = _describe_details(reports, timing, num_replicas, size)
        details["verdicts"] = {name: finding.result.value for name, finding in findings.items()}
        if size in self.learned.sizes.arrived:
            details["arrived"] = asdict(self.learned.sizes.arrived[size])
        if wrong is not None and wrong.num_samples is not None:
            return replace(blank, reason=wrong.why, details=details, max_samples=wrong.num_samples)
        if wrong is not None and wrong.is_rounded:
            return replace(blank, outcome=Outcome.CRASHED, reason=wrong.why, details=details)
        swallowed = wrong.why if wrong is not None else describe_swallowed(reports)
        if swallowed:
            hint = f"; {wrong.hint}" if wrong is not None else ""
            reason = f"{swallowed}: the program may catch what runs out of memory{hint}"
            return replace(blank, outcome=Outcome.OUT_OF_MEMORY, reason=reason, details=details)
        self.learned.num_replicas, self.learned.device_info = num_replicas, describe_device(reports)
        self.learned.step_times_s[size] = timing.step_time_s
        self.learned.has_lists |= any(rank.record.get("list_lengths") for rank in reports.ranks)
        self.learned.passes_per_step[opened.capacity or size] = timing.passes_per_step
        self.learned.tokens_per_sample = self.learned.tokens_per_sample or timing.tokens_per_sample
        self.learned.kernels = find_kernels(reports)
        return replace(
            blank,
            outcome=Outcome.MEASURED,
            details=details,
            max_samples=find_num_samples(reports.ranks),
            warnings=(
                *blank.warnings,
                *self._note_end_of_data(reports),
                *list_notes(reports),
                *self._note_longest(reports),
                *_note_lengths(reports, timing),
                *_note_read_ahead(reports, timing),
                *_note_warmup(reports),
                *_note_resumed(reports),
                *_note_saved(reports),
            ),
            **_describe_times(blank, timing, opened, whole_steps=not self.command.sets_accumulation),
            **describe_memory(reports, needs_least=opened.needs_least),
            **describe_compiler(reports),
        )

    def _check_settings(
        self, reports: Reports, timing: StepTiming, opened: OpenStart, size: int
    ) -> tuple[dict[str, Finding], int]:
        """Return what was found of each setting that the command was asked for, and the replicas that it has."""
        accumulation = opened.accumulation or round(timing.micro_batches_per_step)
        cut_from = opened.capacity if opened.capacity not in (None, size) else 0
        of_size = self.learned.sizes.check(reports.ranks, size, accumulation, cut_from=cut_from or 0)
        num_replicas, of_replicas = check_replicas(reports.ranks, self.command.num_replicas)
        of_accumulation = check_accumulation(timing, opened.accumulation)
        return {"micro_batch_size": of_size, "replicas": of_replicas, "accumulation": of_accumulation}, num_replicas

    def _judge_short_training(self, reports: Reports, blank: Observation) -> Observation | UserProgramError:
        """Return the largest size that is worth another start: as many samples in as many steps as are needed."""
        fewest = min(len(rank.steps) for rank in reports.ranks)
        needed = WARMUP_STEPS + MIN_TIMED_STEPS
        ended = f"the training ended after {counted(fewest, 'step')}; {needed} are needed"
        hint = "let the command train longer; it is ended after its last observed step"
        if not self.learned.sizes.arrived:
            return UserProgramError(ended, hint=hint)
        most = min(
            fewest * blank.micro_batch_size // needed, self._fill_epochs(reports, blank.micro_batch_size, needed)
        )
        return replace(blank, reason=f"{ended}: sizes above {most} are left out, or {hint}", max_samples=most)

    def _fill_epochs(self, reports: Reports, size: int, needed: int) -> int:
        """Return the largest size with so many steps in the epochs that a training had, each of which ends its steps.

        What is left at the end of an epoch makes a step where each batch has one, unless the loader drops it. With
        accumulation that is not known: half of a step is counted.
        """
        num_samples = find_num_samples(reports.ranks)
        shortest = min(reports.ranks, key=lambda rank: len(rank.steps))
        num_passes = sum(step.num_passes for step in shortest.steps)
        if num_samples is None or not num_passes:
            return size
        num_epochs = max(1, round(num_passes * size / num_samples))
        accumulation = self.command.accumulation or max(step.num_passes for step in shortest.steps)
        of_rest = 0.0 if shortest.record.get("drops_last") else 1.0 if accumulation == 1 else 0.5
        full_steps = math.ceil(needed / num_epochs) - of_rest
        if not full_steps:
            return size
        most = num_samples / (accumulation * full_steps)
        return max(1, math.ceil(most) - 1 if of_rest else int(most))

    def _note_end_of_data(self, reports: Reports) -> list[str]:
        """Take over the samples of an epoch; say so once, if they leave candidates out."""
        before, num_samples = self.learned.max_samples, find_num_samples(reports.ranks)
        self.learned.limit_samples(num_samples)
        if before is not None or num_samples is None or num_samples >= max(self.candidates, default=0):
            return []
        return [f"an epoch has {counted(num_samples, 'sample')} on each rank: larger sizes are left out"]


def _note_read_ahead(reports: Reports, timing: StepTiming) -> Iterator[str]:
    """Yield that a loader is slower than the steps, whose batches were read ahead; an emulated device has no times."""
    num_warmup = (find_common_step(reports.ranks) or 0) + WARMUP_STEPS
    found = [find_depletion(rank, num_warmup=num_warmup) for rank in reports.ranks if not rank.record["is_emulated"]]
    yield from [one.describe(timing.step_time_s) for one in found if one is not None][:1]


def _note_lengths(reports: Reports, timing: StepTiming) -> Iterator[str]:
    """Yield that batches differ in length, where nothing tells the tokens of each."""
    if timing.tokens_per_sample is not None:
        return
    for rank in reports.ranks:
        timed = [step for step in rank.steps[-timing.num_steps :] if step.num_samples]
        if any(step.num_samples == 1 or step.num_elements % step.num_samples for step in timed):
            continue  # of graphs, or of lists of objects: nothing is padded to one length; one sample does not show it
        elements = [step.num_elements / step.num_samples for step in timed]
        if len(elements) > 1 and statistics.stdev(elements) > DIFFERENT * statistics.fmean(elements):
            yield (
                f"its batches differ in length ({min(elements):.0f} to {max(elements):.0f} elements a sample), and "
                "nothing tells the tokens of each, so that a few steps may be longer than usual: give explore.lengths, "
                "or let batches hold an attention_mask or their lengths"
            )
            return


def _note_warmup(reports: Reports) -> Iterator[str]:
    """Yield that steps were observed in a warmup of the accumulation."""
    if any(rank.record.get("accumulation_after_warmup") for rank in reports.ranks):
        yield (
            "the accumulation of the command grows in a warmup, in which its steps were observed: a step is told with "
            "the micro-batches that it has afterwards, from passes and updates that were timed apart"
        )


def _is_resumed(reports: Reports) -> bool:
    return any(rank.record["is_resumed"] for rank in reports.ranks)


def _note_resumed(reports: Reports) -> Iterator[str]:
    """Yield that a start went on from what one before it had left; the first one would have been refused."""
    if _is_resumed(reports):
        yield (
            "a start resumed from a checkpoint that an earlier start had left: remove it before you train, or your "
            "training resumes from it, too; with {output_dir} where the command writes, each start has its own"
        )


def _note_saved(reports: Reports) -> Iterator[str]:
    """Yield what the training saved outside of the folder of its start, or was kept from writing over."""
    where = "outside of {output_dir}: let the command write there, or consent: `writes_are_fine=True`"
    for path in sorted({path for rank in reports.ranks for path in rank.record["kept_files"]}):
        yield f"{path} was there before, and no start saves over it; the training does, {where}"
    for path in sorted({path for rank in reports.ranks for path in rank.record["left_files"]}):
        yield f"a start saved {path}, {where}"


def refuse(finding: Finding, command: Command) -> UserProgramError:
    """Return the error of a command that does something else than asked; of a size in a file, the hint has its key."""
    hint = finding.hint
    if finding.num_shares > 1:
        if command.file is not None and command.has_size_in_file:
            key = dotted_path(command.file.paths("micro_batch_size")[0])
            hint = f"add to the options: --set {key}={{global_batch_size}}"
        if command.num_replicas is None and count_processes(command.argv) is None:
            hint = f"{hint}, and give `replicas={finding.num_shares}`"
    return UserProgramError(f"{finding.result.value}: {finding.why}", hint=hint)


def find_common_step(ranks: Sequence[Rank]) -> int | None:
    """Return the first step with batches of the probe's size on every rank; None where that would come too late."""
    firsts = [find_own_step(rank, WARMUP_STEPS + MIN_TIMED_STEPS) for rank in ranks]
    known = [first for first in firsts if first is not None]
    latest = max(known, default=0)
    return latest if len(known) == len(firsts) and latest <= MOST_STEPS_AHEAD else None


def count_needed_steps(ranks: Sequence[Rank]) -> int:
    """Return the steps that a probe needs, those of batches that were read ahead at another size included."""
    first = find_common_step(ranks)
    return 0 if first is None else first + WARMUP_STEPS + MIN_TIMED_STEPS


def _check_host(watch: Watch) -> None:
    """Raise an EngineError where a full disk is to blame for the end of a start."""
    told = "\n".join(error["traceback"] for error in watch.reports.errors)
    error = find_host_error(told or last_line(watch.start.log_tail()))
    if error is not None:
        raise error


def _describe_hang(reports: Reports) -> str:
    steps = reports.num_steps
    fewest = min(steps.values(), default=0)
    if len(steps) <= 1:
        return f"no step was completed after step {fewest}, and the process has not worked since: it sleeps or waits"
    return f"no rank completed a step after step {fewest}: a rank waits for one that does not come"


def _describe_times(blank: Observation, timing: StepTiming, opened: OpenStart, *, whole_steps: bool) -> dict[str, Any]:
    """Return the times of the observation; all that is not a timed pass or update is the price of a start.

    Where the command's accumulation cannot be chosen, an update belongs to every step, and so to the passes.
    """
    passes_s, updates_s = timing.pass_times_s, timing.update_times_s
    if whole_steps:
        passes_s, updates_s = tuple(s / timing.micro_batches_per_step for s in timing.step_times_s), ()
    most = blank.probe.max_passes
    times = {"pass_times_s": group_means(passes_s, most), "update_times_s": group_means(updates_s, most)}
    start_s = 0.0 if opened.is_reused else max(0.0, blank.elapsed_s - sum(map(sum, times.values())))
    return times | {"start_time_s": start_s}


def _describe_details(reports: Reports, timing: StepTiming, num_replicas: int, micro_batch_size: int) -> dict[str, Any]:
    return {
        "num_ranks": len(reports.ranks),
        "num_replicas": num_replicas,
        "step_time_s": timing.step_time_s,
        "num_timed_steps": len(timing.step_times_s),
        "tokens_per_sample": timing.tokens_per_sample,
        "micro_batches_per_step": timing.micro_batches_per_step,
        "passes_per_step": timing.passes_per_step,
        "share_without_training": timing.share_left_out,
        "share_of_reading": timing.share_of_reading,
        "num_loader_workers": max((rank.num_loader_workers for rank in reports.ranks), default=0),
        "optimizers": sorted({name for rank in reports.ranks for name in rank.record["optimizers"]}),
        "peak_memory_bytes_by_rank": [rank.memory.get("peak_bytes") for rank in reports.ranks],
        "elements_per_step": [statistics.median(step.num_elements for step in rank.steps) for rank in reports.ranks],
        "samples_are_seen": True,
        "batch_coupled": sorted({name for rank in reports.ranks for name in rank.record.get("batch_coupled", ())}),
        "parallel_devices": max(rank.record.get("parallel_devices", 1) for rank in reports.ranks),
        "last_batch": find_last_batch(reports, micro_batch_size),
        "num_lists_of_longest": max((rank.record.get("num_lists_of_longest", 0) for rank in reports.ranks), default=0),
    }
