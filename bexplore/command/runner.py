"""The Runner of a training command: one probe is one start with the size filled in."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bexplore.command.failures import CommandFailure, of_end, of_errors, of_lost
from bexplore.command.probe_folder import ProbeFolder
from bexplore.command.processes import Start
from bexplore.command.reports import Rank, Reports
from bexplore.command.timing import StepTiming, in_groups, slowest
from bexplore.command.verdicts import SizeCheck, Verdict, check_accumulation, check_replicas
from bexplore.command.watch import MIN_TIMED_STEPS, Ending, Watch
from bexplore.config.command import Command
from bexplore.errors import UserInputError, UserProgramError
from bexplore.host.contention import CpuContention
from bexplore.host.machine import oom_kills
from bexplore.measurement.probe import Observation, Outcome, Probe
from bexplore.units import counted, format_seconds

# Steps before the timed ones: the first compiles and allocates the optimizer's states, the second is profiled for its
# memory, the third recovers from that. Source: as the engine's `WARM_UP_PASSES`, in steps.
WARMUP_STEPS, MEMORY_STEP = 3, 1
# Micro-batches of a step while probing, where the command lets it be chosen: two tell a pass from an update and from
# what happens once a step.
PROBING_ACCUMULATION = 2
MAX_TIMED_STEPS = 5000  # Source: 8 s of steps of 1.6 ms
# Seconds that the launcher gets to end by itself once its ranks have ended.
GRACE_S = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSettings:
    """What a runner of a command needs beside the command.

    Attributes:
        run_dir: Folder of the run; each start has a folder in it.
        memory_limit_bytes: Memory of one replica; None for no limit.
        should_stop: Whether the exploration was interrupted; polled while a start runs.
        on_progress: Called with what happens, for people.
    """

    run_dir: Path
    memory_limit_bytes: int | None = None
    should_stop: Callable[[], bool] = lambda: False
    on_progress: Callable[[dict[str, Any]], None] = lambda message: None


class CommandRunner:
    """Runs probes by starting the user's command.

    Args:
        command: The command.
        settings: What else is needed.

    Attributes:
        num_replicas: Data-parallel replicas that a probe has shown; None before.
        device_info: Description of the device that the command uses; empty before.
    """

    def __init__(self, command: Command, settings: CommandSettings) -> None:
        self.command = command
        self.settings = settings
        self.num_replicas = command.num_replicas
        self.device_info: dict[str, Any] = {}
        self._sizes = SizeCheck()

    def __call__(self, probe: Probe) -> Observation:
        """Start the command with the probe's size, observe its steps and end it.

        Raises:
            UserInputError: The command cannot be started.
            UserProgramError: What was asked for cannot be seen, or does not happen, whatever the size.
            KeyboardInterrupt: The exploration was interrupted; nothing of the start is left.
        """
        return self.run(probe, PROBING_ACCUMULATION if self.command.sets_accumulation else None)

    def run(self, probe: Probe, accumulation: int | None) -> Observation:
        """Run one probe with so many micro-batches a step; None leaves them to the command."""
        began_s = time.time()
        folder = self._folder(probe)
        start = self._start(probe, accumulation, folder)
        watch = Watch(
            start=start,
            read=lambda: Reports.read(folder.reports),
            time_limit_s=probe.time_limit_s,
            should_stop=self.settings.should_stop,
            stop_after=folder.stop_after,
            num_warmup=WARMUP_STEPS,
        )
        contention, kills = CpuContention(start.process.pid), oom_kills()
        contention.start()
        try:
            ending = watch.until_end()
            warnings = tuple(contention.warnings())
        finally:
            folder.release()
            left = start.end(grace_s=GRACE_S if watch.reports.are_whole else 0.0)
            folder.clean()
        if left:
            warnings += (f"{counted(len(left), 'process')} of probe {probe.number} could not be ended: {left}",)
        blank = Observation(
            probe=probe,
            outcome=Outcome.CRASHED,
            started_at_s=began_s,
            elapsed_s=time.time() - began_s,
            worker=probe.number,
            memory_budget_bytes=self.settings.memory_limit_bytes,
            warnings=warnings,
        )
        failure = self._failure(ending, watch, killed_by_kernel=oom_kills() > kills)
        if failure is not None:
            return replace(blank, outcome=failure.outcome, reason=failure.reason, traceback_text=failure.traceback_text)
        return self._measured(blank, watch.reports, accumulation)

    def _folder(self, probe: Probe) -> ProbeFolder:
        parent = self.settings.run_dir / "probes"
        stem = f"{probe.number:03d}_size_{probe.micro_batch_size}"
        taken = sum(1 for path in parent.glob(f"{stem}*") if path.is_dir())
        return ProbeFolder(path=(parent / (stem if not taken else f"{stem}_{taken + 1}")).resolve())

    def _start(self, probe: Probe, accumulation: int | None, folder: ProbeFolder) -> Start:
        values = self.command.values(
            micro_batch_size=probe.micro_batch_size,
            accumulation=accumulation or 1,
            num_replicas=self.num_replicas or 1,
            folder=folder.path,
        )
        settings = {
            "micro_batch_size": probe.micro_batch_size,
            "accumulation": accumulation or 1,
            "max_steps": WARMUP_STEPS + MAX_TIMED_STEPS,
            "memory_step": MEMORY_STEP,
            "profile_memory": True,
            "memory_limit_bytes": self.settings.memory_limit_bytes,
        }
        env = folder.write(self.command, values, settings)
        argv, _ = self.command.filled(values)
        self.settings.on_progress({"stage": "start", "micro_batch_size": probe.micro_batch_size})
        try:
            return Start(argv, env=env, folder=folder.path)
        except OSError as error:
            raise UserInputError(
                f"the command cannot be started: {argv[0]}: {error.strerror}", hint="type the command as in your shell"
            ) from error

    def _failure(self, ending: Ending, watch: Watch, *, killed_by_kernel: bool) -> CommandFailure | None:
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
            return of_lost(log, reports) or of_observer
        if ending is Ending.UNOBSERVED:
            raise UserProgramError(
                "torch runs in the command, and the observer was not loaded into it: its Python ignores PYTHONPATH "
                "(-I, -E, -S, or a launcher that clears the environment)",
                hint="install the observer there: bexplore attach --install --python PYTHON",
            )
        if ending is Ending.NO_STEP or (ending is Ending.ENDED and self._ended_without_step(watch)):
            raise UserProgramError(
                "no step observed: the command trains without torch.optim.Optimizer.step and torch.autograd.backward",
                hint="let your optimizer derive from torch.optim.Optimizer and call loss.backward()",
                traceback_text=log,
            )
        if ending is Ending.ENDED and not reports.hellos:
            status = watch.start.return_code
            raise UserProgramError(
                f"the command ended with status {status} before any process imported torch",
                hint="run the command by hand first: it must train without bexplore",
                traceback_text=log,
            )
        if ending is Ending.TIMED_OUT:
            limit = format_seconds(watch.time_limit_s)
            seen = f"after {counted(max(reports.num_steps.values(), default=0), 'step')}"
            return CommandFailure(outcome=Outcome.TIMED_OUT, reason=f"it ran for {limit}, {seen}", traceback_text=log)
        if ending is Ending.HUNG:
            return CommandFailure(outcome=Outcome.TIMED_OUT, reason=_stuck(reports), traceback_text=log)
        if ending is Ending.HOST_FULL:
            return CommandFailure(outcome=Outcome.OUT_OF_MEMORY, reason="the memory of the host was nearly used up")
        return of_end(watch.start.return_code, log, reports, killed_by_kernel=killed_by_kernel, lost_pid=watch.lost_pid)

    def _ended_without_step(self, watch: Watch) -> bool:
        """Return whether the training ended well, and no process of it stepped an optimizer."""
        reports = watch.reports
        return bool(reports.hellos) and not reports.ranks and watch.start.return_code == 0

    def _too_short(self, blank: Observation, reports: Reports) -> Observation:
        """Return the observation of a training that ended before enough steps: large sizes use their data up sooner.

        Raises:
            UserProgramError: No smaller size trained for longer.
        """
        fewest = min(len(rank.steps) for rank in reports.ranks)
        ended = f"the training ended after {counted(fewest, 'step')}; {WARMUP_STEPS + MIN_TIMED_STEPS} are needed"
        hint = "let the command train longer; it is ended after its last observed step"
        if not self._sizes.arrived:
            raise UserProgramError(ended, hint=hint)
        return replace(blank, reason=f"{ended}: {hint}")

    def _measured(self, blank: Observation, reports: Reports, accumulation: int | None) -> Observation:
        """Return the observation of a training that was observed: measured, unless it did something else than asked.

        Raises:
            UserProgramError: It does not do what was asked for, and no probe before did.
        """
        size = blank.micro_batch_size
        timing = slowest(reports.ranks, num_warmup=WARMUP_STEPS, micro_batch_size=size)
        if timing is None:
            return self._too_short(blank, reports)
        finding_of_size = self._sizes.of(reports.ranks, size, accumulation or round(timing.micro_batches_per_step))
        num_replicas, finding_of_replicas = check_replicas(reports.ranks, self.command.num_replicas)
        findings = {
            "micro_batch_size": finding_of_size,
            "replicas": finding_of_replicas,
            "accumulation": check_accumulation(timing, accumulation),
        }
        verdicts = {name: finding.verdict.value for name, finding in findings.items()}
        wrong = next((one for one in findings.values() if one.verdict is not Verdict.VERIFIED), None)
        if wrong is not None and not wrong.is_of_this_size:
            raise UserProgramError(f"{wrong.verdict.value}: {wrong.why}", hint=wrong.hint)
        details = _details(reports, timing, num_replicas) | {"verdicts": verdicts}
        if wrong is not None:
            reason = f"{wrong.why}: the framework may shrink a size that runs out of memory; {wrong.hint}"
            return replace(blank, outcome=Outcome.OUT_OF_MEMORY, reason=reason, details=details)
        self.num_replicas, self.device_info = num_replicas, _device_info(reports)
        return replace(
            blank,
            outcome=Outcome.MEASURED,
            details=details,
            warnings=(*blank.warnings, *_warnings(reports)),
            **_times(blank, timing, whole_steps=not self.command.sets_accumulation),
            **_memory(reports),
            **_compiled(reports),
        )


def _stuck(reports: Reports) -> str:
    steps = reports.num_steps
    fewest = min(steps.values(), default=0)
    return f"no rank completed a step after step {fewest}: a rank waits for one that does not come"


def _times(blank: Observation, timing: StepTiming, *, whole_steps: bool) -> dict[str, Any]:
    """Return the times of the observation; all that is not a timed pass or update is the price of a start.

    Where the command's accumulation cannot be chosen, an update belongs to every step, and so to the passes.
    """
    passes_s, updates_s = timing.pass_times_s, timing.update_times_s
    if whole_steps:
        passes_s, updates_s = tuple(s / timing.micro_batches_per_step for s in timing.step_times_s), ()
    most = blank.probe.max_passes
    times = {"pass_times_s": in_groups(passes_s, most), "update_times_s": in_groups(updates_s, most)}
    return times | {"start_time_s": max(0.0, blank.elapsed_s - sum(map(sum, times.values())))}


def _memory(reports: Reports) -> dict[str, Any]:
    """Return the peaks of the rank that needs most: tensors; reserved (CUDA), or resident above torch itself (CPU)."""
    peaks = [rank.memory.get("peak_bytes") for rank in reports.ranks]
    held = [rank.memory.get("reserved_peak_bytes") or _resident(rank) for rank in reports.ranks]
    return {
        "peak_memory_bytes": max((one for one in peaks if one is not None), default=None),
        "resident_memory_bytes": max((one for one in held if one is not None), default=None),
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


def _warnings(reports: Reports) -> tuple[str, ...]:
    found = {f"the observer: {note}" for rank in reports.ranks for note in rank.record["notes"]}
    refused = max(int(rank.memory.get("num_ooms") or 0) for rank in reports.ranks)
    if refused:
        found.add(f"the allocator refused memory {counted(refused, 'time')}, and the program caught it")
    return tuple(sorted(found))


def _details(reports: Reports, timing: StepTiming, num_replicas: int) -> dict[str, Any]:
    return {
        "num_ranks": len(reports.ranks),
        "num_replicas": num_replicas,
        "step_time_s": timing.step_time_s,
        "micro_batches_per_step": timing.micro_batches_per_step,
        "passes_per_step": timing.passes_per_step,
        "optimizers": sorted({name for rank in reports.ranks for name in rank.record["optimizers"]}),
        "samples_are_seen": True,
    }


def _device_info(reports: Reports) -> dict[str, Any]:
    first = reports.ranks[0].record
    names = {"device": first["device"], "device_name": first["device_name"] or None, "torch": first["torch"]}
    return {name: value for name, value in names.items() if value}
