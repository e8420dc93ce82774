"""`EngineRunner`: a `Runner` whose worker lives as long as its compilation is valid and nothing went wrong."""

from __future__ import annotations

import dataclasses
import functools
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bexplore.engine.process.device_lock import LockHolder, device_locks, lock_names, try_device_locks
from bexplore.engine.process.launcher import Launcher
from bexplore.engine.process.limits import STEP_LIMIT_S, Limits, Progress, StageLimits
from bexplore.engine.process.pool import Workers, is_worth_keeping, may_go_on, must_replace
from bexplore.engine.program_client import check_build
from bexplore.engine.protocol.answers import answers_both, charge_for, make_observation
from bexplore.engine.protocol.failures import can_compile_in
from bexplore.engine.protocol.messages import (
    CheckEagerly,
    CompareEager,
    CompareGradients,
    Done,
    Failed,
    ListLoaded,
    MeasureMemory,
    Prepare,
    ProbeRequest,
    ProfileSteps,
    Request,
    RunProbe,
    SharedMode,
    TimeLoader,
    TimePasses,
    mode_after,
    shared_modes,
)
from bexplore.errors import BexploreError, EngineError, UserInputError, UserProgramError
from bexplore.host.clocks import MOST_TRIES, SUSPENDED, Stopwatch, Suspension, suspended_text
from bexplore.host.contention import Contention
from bexplore.host.machine import package_version
from bexplore.host.records import from_record
from bexplore.job import Job, Parallelism, device_kind
from bexplore.measurement.interleaving import BUDGETS_OF_CONTENDERS
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe
from bexplore.measurement.profile import Profile
from bexplore.units import format_bytes

# Memory that a worker may hold beside the job's tensors: interpreter, torch, the compiler at work.
WORKER_OVERHEAD_BYTES = 4 * 2**30
# What the result says where the gradients of two sizes were not compared.
NOT_COMPARED = "The gradients of two micro-batch sizes could not be compared"
# Errors of a part of a batch whose whole ran, as where labels number the samples of the batch.
ERRORS_OF_PARTS = ("IndexError", "RuntimeError", "ValueError")
LABELS_OF_BATCH = (
    "; labels that number the samples of a batch cannot be split, and with a loss that compares these samples the "
    "micro-batch size changes the training"
)
# A data loader is timed for seconds; one that is silent for so long hangs.
LOADER_LIMIT_S = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings:
    """What a runner is built from."""

    job: Job  # on its device
    run_dir: Path  # worker logs go under `workers/` here
    budget_bytes: int | None = None  # memory budget of the job; None for no limit
    # What a worker's torch reported of the device; empty where unknown.
    device_info: Mapping[str, Any] = field(default_factory=dict)
    # Free on the device before any worker of this runner; None to wait for no memory.
    free_memory_bytes: int | None = None
    largest_measured: int = 0  # the largest size that is known to run, samples; 0 for none
    # Seconds of timed passes after which a probe stops, once it has the fewest that it needs.
    pass_budget_s: float = 4.0
    environment: Mapping[str, str] = field(default_factory=dict)  # variables of the worker beside this process's own
    # Whether a verification compiles into a cache of its own, which is kept: see `artifacts_dir`.
    keeps_artifacts: bool = False
    replica_batch_size: int | None = None  # samples of one replica in a step; None where that is not known
    largest_size: int | None = None  # samples of the largest size that may fit; None where that is not known
    # Starts all ranks of a distributed job; None for one rank of it, or for a job of one device.
    launcher: Launcher | None = None
    worker_key: str | None = None  # that ranks must have which the user starts; None for a new one
    is_timed: bool = True  # whether other explorers of the device must wait; on a CPU memory alone disturbs nobody

    @property
    def lock_names(self) -> list[str]:
        """Names of the locks of the devices."""
        if not self.is_timed and device_kind(self.job.device) == "cpu":
            return []
        num_ranks = 1 if self.launcher is None else self.launcher.num_ranks
        return lock_names(self.job.device, self.device_info, num_ranks=num_ranks)

    @property
    def lock_holder(self) -> LockHolder:
        """This runner, as the device's lock names it."""
        return LockHolder(folder=str(self.run_dir.resolve()))

    @property
    def shared_modes(self) -> tuple[SharedMode, ...]:
        """Kinds of the shared program that may be tried on the device, best first."""
        return shared_modes(device_kind(self.job.device), package_version("torch"))

    def artifacts_dir(self, micro_batch_size: int) -> Path:
        """Return where the compiler's cache of a size is kept that was run as the user compiles it."""
        return self.run_dir.resolve() / "compiled" / f"micro_batch_size_{micro_batch_size}"

    def request(
        self, kind: Callable[..., ProbeRequest], probe: Probe, mode: SharedMode, free_memory_bytes: int | None
    ) -> ProbeRequest:
        """Return the message that lets a worker prepare or run a probe."""
        is_final = probe.purpose.is_verification and probe.compilation is Compilation.EXACT
        if not self.job.compile.enabled:  # whatever the probe's process is shared with
            probe = dataclasses.replace(probe, compilation=Compilation.EAGER)
        folder = self.artifacts_dir(probe.micro_batch_size)
        is_kept = self.keeps_artifacts and is_final and self.job.compile.backend == "inductor"
        return kind(
            job=self.job,
            probe=probe,
            shared_mode=mode,
            budget_bytes=self.budget_bytes,
            pass_budget_s=self.pass_budget_s,
            free_memory_bytes=free_memory_bytes,
            artifacts_dir=str(folder) if is_kept and can_compile_in(folder) else None,
            replica_batch_size=self.replica_batch_size,
            largest_size=self.largest_size,
        )


def begin(workers: Workers, settings: RunnerSettings, probe: Probe) -> None:
    """Let a worker begin what `EngineRunner.prepare` then waits for, while the caller does something untimed.

    Nothing is begun while another explorer holds the device.
    """
    lock = try_device_locks(settings.lock_names, holder=settings.lock_holder)
    if lock is not None:
        request = settings.request(Prepare, probe, settings.shared_modes[0], settings.free_memory_bytes)
        workers.begin(request, lock)


class EngineRunner:
    """Runs probes on real hardware, in workers that are started already or in new ones.

    The limits of silence learn from every probe.
    """

    def __init__(
        self,
        settings: RunnerSettings,
        *,
        workers: Workers | None = None,
        limits: StageLimits | None = None,
        on_progress: Progress = lambda message: None,
    ) -> None:
        self.settings = settings
        self.limits = limits or StageLimits()
        self.largest_measured = settings.largest_measured
        self._on_progress = on_progress
        self._workers = workers or Workers(
            settings.run_dir, settings.environment, launcher=settings.launcher, key=settings.worker_key
        )
        self._lock_holder = settings.lock_holder
        self._free_memory_bytes = settings.free_memory_bytes
        self._is_known_to_build = False
        self._warnings: list[str] = []  # of the next observation
        self._known_mode: SharedMode | None = None  # which a worker has tried
        self._ahead: Observation | None = None

    @property
    def job(self) -> Job:
        """The job that runs."""
        return self.settings.job

    def __call__(self, probe: Probe) -> Observation:
        """Compile and run one size; every failure of the job is an observation.

        A shared program that does not compile with one kind of symbolic batch dimension is tried with the next.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return self._in_some_mode(probe, RunProbe)
        if not ahead.is_measured and answers_both(ahead.probe, probe):
            return dataclasses.replace(ahead, probe=probe)
        return charge_for(self._in_some_mode(probe, RunProbe), ahead)

    def prepare(self, probe: Probe) -> None:
        """Compile for a probe ahead of it, while something else keeps times from being taken.

        The next probe is charged with what this takes. If this fails, that is the answer to the same question.
        """
        self._workers.keep_begun_only_if(self._request(Prepare, probe))  # what was begun may be another probe
        self._workers.ensure()
        self._workers.start_spare(budget_bytes=self.settings.budget_bytes, uses_inductor=self.job.compile.uses_inductor)
        self._ahead = self._in_some_mode(probe, Prepare)
        self._workers.await_spare()

    def measure_memory(self, sizes: Sequence[int]) -> Observation:
        """Measure a step at a few small sizes, ascending; `details` of what it returns has the cost model."""
        probe = Probe(number=0, micro_batch_size=sizes[0])
        return self._in_some_mode(probe, functools.partial(MeasureMemory, sizes=tuple(sizes)))

    def gradient_equivalence(self, *, base_micro_batch_size: int, micro_batch_size: int) -> dict[str, Any]:
        """Compare the gradients of one replica batch at two splits; a `message` alone where that failed.

        The worker that ran the final answer does it if it is still there; its process changed nothing of the program.
        """
        # How samples are split changes the gradients, or not, on one device as on many.
        whole = dataclasses.replace(self.job, parallelism=Parallelism())
        request = CompareGradients(
            job=whole, base_micro_batch_size=base_micro_batch_size, micro_batch_size=micro_batch_size
        )
        worker = self._workers.current
        found = None
        is_usable = worker is not None and worker.compilation is not Compilation.SHARED and worker.process.is_alive
        if is_usable and not self.job.parallelism.is_distributed:
            found = self._ask(request, limit_s=STEP_LIMIT_S)
        self.close()
        if not isinstance(found, Done):
            try:
                found = self._ask(request, limit_s=STEP_LIMIT_S)
            except BexploreError as error:
                return {"same": None, "message": f"{NOT_COMPARED}: {error.message}"}
            finally:
                self.close()
        if isinstance(found, Done):
            return found.values
        is_of_parts = found.outcome is Outcome.CRASHED and found.details.get("exception_type") in ERRORS_OF_PARTS
        hint = LABELS_OF_BATCH if is_of_parts else ""
        return {"same": None, "message": f"{NOT_COMPARED}: {found.reason}{hint}"}

    def time_loader(self, micro_batch_size: int) -> dict[str, Any]:
        """Time the user's own loader in a worker of its own, where it may hang or die and take nothing along.

        Return the fields of `LoaderSpeed` and `problem`: why there are none of them, empty where there are.
        """
        self.close()
        request = TimeLoader(job=self.job, micro_batch_size=micro_batch_size)
        try:
            answer = self._ask(request, limit_s=LOADER_LIMIT_S)
        except (UserInputError, UserProgramError) as error:
            return {"problem": error.message}
        self.close()
        return answer.values | {"problem": ""} if isinstance(answer, Done) else {"problem": answer.reason}

    def compare_eager(self, *, micro_batch_size: int, tolerance: float) -> dict[str, Any] | None:
        """Time compiled and eager passes interleaved, in the worker that has just run the size as the user compiles it.

        Return the fields of `Session.compare_eager`, or `problem`; None where that worker is no longer there.
        """
        worker = self._workers.current
        if worker is None or (worker.compilation, worker.micro_batch_size) != (Compilation.EXACT, micro_batch_size):
            return None
        request = CompareEager(
            micro_batch_size=micro_batch_size,
            budget_s=BUDGETS_OF_CONTENDERS * self.settings.pass_budget_s,
            tolerance=tolerance,
        )
        answer = self._ask(request, limit_s=STEP_LIMIT_S)
        return answer.values if isinstance(answer, Done) else {"problem": answer.reason}

    def profile(self, *, micro_batch_size: int, trace_path: Path) -> Profile:
        """Profile steps of the size that ran last, in its worker."""
        request = ProfileSteps(micro_batch_size=micro_batch_size, trace_path=str(trace_path))
        answer = self._ask(request, limit_s=STEP_LIMIT_S)
        if not isinstance(answer, Done):
            raise EngineError(f"the steps could not be profiled: {answer.reason}", hint="probe without `trace_path`")
        return from_record(Profile, answer.values)

    def rest(self) -> None:
        """End the worker at work: the next probe starts another."""
        self._workers.end_current()

    def start(self) -> None:
        """Start the worker's process, which imports what its first probe needs while others do the same."""
        self._workers.start(uses_inductor=self.job.compile.uses_inductor)

    def await_started(self) -> None:
        """Return once the worker that `start` has started takes no more of the processors."""
        if self._workers.current is not None:
            self._workers.current.process.await_preloaded()

    def time_passes(self, *, micro_batch_size: int, num_passes: int, round_number: int | None = None) -> dict[str, Any]:
        """Time passes of a size that this runner has just measured, in its live worker; see `Session.time_passes`."""
        request = TimePasses(micro_batch_size=micro_batch_size, num_passes=num_passes, round_number=round_number)
        with self._device_lock():
            return self._values(request)

    def loaded_from(self, folder: Path) -> list[str]:
        """Return the files under a folder from which the worker has imported modules."""
        return list(self._values(ListLoaded(folder=str(folder)))["files"])

    def _values(self, request: Request) -> dict[str, Any]:
        answer = self._ask(request, limit_s=STEP_LIMIT_S)
        if isinstance(answer, Failed):
            raise EngineError(
                f"the worker could not answer: {answer.reason}", hint="see the worker's log in the run folder"
            )
        return answer.values

    @property
    def worker_pid(self) -> int | None:
        """Process id of the worker at work; None where there is none."""
        return None if self._workers.current is None else self._workers.current.process.pid

    def close(self) -> None:
        """End all workers."""
        self._workers.close()

    def _device_lock(self) -> AbstractContextManager[object]:
        """Return the lock that was taken when something was begun, or a new one."""
        taken = self._workers.take_begun_lock()
        if taken is not None:
            return taken
        return device_locks(self.settings.lock_names, holder=self._lock_holder, waiting=self._waits_for)

    def _waits_for(self, holder: LockHolder | None) -> None:
        """Report who has the device, and what is wrong with the job itself before the wait."""
        name = "another exploration" if holder is None else str(holder)
        self._on_progress({"stage": "lock", "holder": name})
        if not self._is_known_to_build:
            check_build(
                self.job, self.settings.run_dir / "workers" / "build.log", environment=self.settings.environment
            )
            self._is_known_to_build = True

    def __enter__(self) -> EngineRunner:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    @property
    def _shared_mode(self) -> SharedMode:
        """Kind of shared program to begin with: the best of the device until a worker has tried it."""
        return self._known_mode or self.settings.shared_modes[0]

    def _in_some_mode(self, probe: Probe, kind: Callable[..., ProbeRequest]) -> Observation:
        first_mode = self._shared_mode
        while True:
            observation = self._run(probe, kind)
            next_mode = self._next_shared_mode(observation)
            if next_mode is None:
                if _lacked_memory_in_compiler(observation):  # in every mode: it is the size, and not the program
                    self._known_mode = first_mode
                return observation
            self._known_mode = next_mode

    def _run(self, probe: Probe, kind: Callable[..., ProbeRequest], num_tries: int = MOST_TRIES) -> Observation:
        self._choose_worker(probe)
        with self._device_lock():
            stopwatch = Stopwatch()
            is_new = self._workers.current is None
            worker = self._workers.ensure()
            spawn_s = stopwatch.elapsed_s if is_new else 0.0
            request = self._request(kind, probe)
            with (
                Suspension(lambda: worker.process.pids) as suspension,
                Contention(worker.process.pids, self.settings.device_info) as contention,
            ):
                answer = self._ask(request, limit_s=probe.time_limit_s, stages_of=probe.micro_batch_size)
            if suspension.seconds:
                self._warnings.append(suspended_text(suspension.seconds))
                details = {"ended_by": signal.SIGSTOP.name}
                answer = Failed(outcome=Outcome.CRASHED, reason=SUSPENDED, details=details, has_ended=True)
            answer = self._blame(answer, request)
        if suspension.seconds and num_tries > 1:
            self._workers.end_current()
            return self._run(probe, kind, num_tries - 1)
        worker.ran(probe, answer)
        self._is_known_to_build = True
        if isinstance(answer, Done) or not answer.has_ended:
            self._known_mode = answer.shared_mode or self._shared_mode
            warnings, self._warnings = [*self._warnings, *contention.warnings], []
        else:
            warnings = []
        observation = make_observation(
            answer,
            spawn_s=spawn_s,
            warnings=warnings,
            probe=probe,
            **stopwatch.times(),
            worker=worker.number,
            memory_budget_bytes=self.settings.budget_bytes,
            background_cpu_share=contention.background_cpu_share,
        )
        if not self.job.compile.enabled:  # a failure does not report it
            observation = dataclasses.replace(observation, ran_eagerly=True)
        if contention.clock_events:
            events = {"clock_events": contention.clock_events}
            observation = dataclasses.replace(observation, details=observation.details | events)
        self.limits.learn(observation)
        if observation.is_measured:
            self.largest_measured = max(self.largest_measured, observation.micro_batch_size)
        elif not may_go_on(answer, observation, largest_measured=self.largest_measured):
            self._workers.end_current()
        return observation

    def _choose_worker(self, probe: Probe) -> None:
        """Part from a worker that must not run this probe; what it has compiled is kept where memory allows it."""
        worker = self._workers.current
        mode = self._shared_mode
        if worker is not None and must_replace(
            worker,
            probe,
            shared_mode=mode,
            largest_measured=self.largest_measured,
            uses_cuda_graphs=self.job.compile.uses_cuda_graphs(self.job.device),
        ):
            if is_worth_keeping(worker, probe, shared_mode=mode, on_cpu=self._on_cpu):
                self._workers.park(needed_bytes=self._estimate_needed_bytes(probe))
            self._workers.end_current()
        if probe.compilation is Compilation.SHARED and not probe.fresh_worker:
            self._workers.bring_back()

    @property
    def _on_cpu(self) -> bool:
        return device_kind(self.job.device) == "cpu"

    @property
    def _resident_limit_bytes(self) -> int | None:
        """Resident memory that a worker may have in all; None where nothing bounds it."""
        budget_bytes = self.settings.budget_bytes
        return None if budget_bytes is None or not self._on_cpu else budget_bytes + WORKER_OVERHEAD_BYTES

    def _estimate_needed_bytes(self, probe: Probe) -> int:
        """Return the bytes that a probe needs in a worker of its own, so far as that is known."""
        tensors = probe.predicted_peak_memory_bytes or self.settings.budget_bytes or 0
        return tensors + WORKER_OVERHEAD_BYTES

    def _next_shared_mode(self, observation: Observation) -> SharedMode | None:
        """Return the kind of shared program to try next; None where this one compiles, and after the last.

        What the compiler lacks memory for (choosing kernels with tensors of its own) is no matter of the size yet. A
        program that is compiled anew in each pass would be so in every kind.
        """
        failed = observation.outcome is Outcome.COMPILE_FAILED or _lacked_memory_in_compiler(observation)
        failed = failed and not observation.details.get("recompiles_each_pass")
        is_shared = observation.probe.compilation is Compilation.SHARED
        return mode_after(self._shared_mode, self.settings.shared_modes) if failed and is_shared else None

    def _blame(self, answer: Done | Failed, request: ProbeRequest) -> Done | Failed:
        """Return the answer to a probe that broke its device, once a new process has run the size without the compiler.

        The user's program is to blame only where it fails there too; otherwise what the compiler made of it is.
        """
        is_compiled = request.probe.compilation is not Compilation.EAGER and self.job.compile.enabled
        if isinstance(answer, Done) or not answer.is_sticky or not is_compiled:
            return answer
        own = self._ask(self._request(CheckEagerly, request.probe), limit_s=STEP_LIMIT_S)
        self._workers.end_current()
        if isinstance(own, Failed) and own.outcome is Outcome.CRASHED:
            return dataclasses.replace(
                answer, outcome=own.outcome, reason=own.reason, traceback_text=own.traceback_text
            )
        found = f"ends otherwise: {own.outcome}" if isinstance(own, Failed) else "runs"
        reason = f"{answer.reason} (without torch.compile, in a new process, the same step {found})"
        return dataclasses.replace(answer, outcome=Outcome.COMPILE_FAILED, reason=reason)

    def _request(self, kind: Callable[..., ProbeRequest], probe: Probe) -> ProbeRequest:
        return self.settings.request(kind, probe, self._shared_mode, self._free_memory_bytes)

    def _ask(self, request: Request, *, limit_s: float | None, stages_of: int | None = None) -> Done | Failed:
        """Ask the worker; for a probe of size `stages_of`, no stage may be silent for too long either."""
        limits = Limits(
            stage_s=limit_s if stages_of is None else lambda stage: self.limits.limit_s(stage, stages_of),
            total_s=limit_s,
            resident_bytes=self._resident_limit_bytes,
        )
        return self._workers.ask(request, limits=limits, on_progress=self._heard)

    def _heard(self, message: dict[str, Any]) -> None:
        """Pass on what a worker reports; memory of the device that did not come back is not waited for again."""
        if "free_memory_bytes" in message:
            free_bytes, before_bytes = int(message["free_memory_bytes"]), self._free_memory_bytes or 0
            self._free_memory_bytes = free_bytes
            self._warnings.append(
                f"{format_bytes(free_bytes)} of the device's memory are free, {format_bytes(before_bytes)} were when "
                "this job began: sizes near the budget may fail for it"
            )
        self._on_progress(message)


def _lacked_memory_in_compiler(observation: Observation) -> bool:
    return observation.outcome is Outcome.OUT_OF_MEMORY and bool(observation.details.get("is_in_compiler"))
