"""The worker processes of one runner: one at work, one parked, one spare; which of them runs a probe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bexplore.engine.process.launcher import Launcher, RankListener
from bexplore.engine.process.limits import FIRST_LIMITS_S, Limits, Progress
from bexplore.engine.process.rank_group import RankGroup
from bexplore.engine.process.worker_process import WorkerProcess
from bexplore.engine.protocol.messages import DeviceInfo, Done, Failed, Refused, Request, SharedMode
from bexplore.errors import EngineError
from bexplore.host.machine import available_memory_bytes
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe

# What every worker imports before its first probe, and what compiles kernels beside it.
STEP_MODULES = ("bexplore.engine.worker.probing",)
INDUCTOR_MODULES = ("torch._inductor.compile_fx",)
# Resident memory of a process that has imported torch and its compiler, and does nothing. Measured: 0.4 GiB. Bytes.
IDLE_BYTES = 2**29


@dataclass(slots=True)
class Worker:
    """A worker process, or all ranks of a job, and what it is good for."""

    process: WorkerProcess | RankGroup  # or the group of ranks
    number: int  # among the runner's workers; its log has the same
    compilation: Compilation | None = None  # the program that it has compiled; None for none
    micro_batch_size: int | None = None  # size that it ran last; None for none
    has_headroom: bool = True  # whether a refusal in it would show that a larger size does not fit

    def ran(self, probe: Probe, answer: Done | Failed) -> None:
        """Note the program and the size of a probe that this worker has answered."""
        self.compilation, self.micro_batch_size = probe.compilation, probe.micro_batch_size
        if answer.has_headroom is not None:
            self.has_headroom = answer.has_headroom


class Workers:
    """Starts workers, and ends each of them."""

    def __init__(
        self,
        run_dir: Path,
        environment: Mapping[str, str] | None = None,
        *,
        launcher: Launcher | None = None,
        key: str | None = None,
    ) -> None:
        self._launcher = launcher
        self._listener = None if launcher is None else RankListener(launcher.host, launcher.port, key)
        self.current: Worker | None = None
        self._parked: Worker | None = None
        self._spare: Worker | None = None
        self._begun: Request | None = None
        self._lock_of_begun = ExitStack()
        self._run_dir = run_dir
        self._environment = environment
        self._num_started = 0

    def ensure(self) -> Worker:
        """Return the worker at work; the spare, or a new one, where there is none."""
        if self.current is None:
            spare, self._spare = self._spare, None
            if spare is not None and not spare.process.is_alive:
                _end(spare)
                spare = None
            self.current = spare or self._start()
        return self.current

    def start(self, *, uses_inductor: bool) -> None:
        """Start the worker at work, where there is none; it imports what its first probe needs and then waits."""
        if self.current is None:
            self.current = self._start(_modules(uses_inductor))

    def start_spare(self, *, budget_bytes: int | None, uses_inductor: bool) -> None:
        """Start a process that imports torch and then waits, where memory beside the job's budget allows it."""
        idle_bytes = self._num_processes * IDLE_BYTES
        if (
            self._can_start_another
            and self._spare is None
            and available_memory_bytes() - (budget_bytes or 0) > idle_bytes
        ):
            self._spare = self._start(_modules(uses_inductor))

    def await_spare(self) -> None:
        """Return once the spare, if there is one, takes no more of the processors."""
        if self._spare is not None:
            self._spare.process.await_preloaded()

    def park(self, *, needed_bytes: int) -> None:
        """Keep the worker at work for later, where the host has the memory that the next one needs beside it."""
        needed_bytes *= self._num_processes
        if self._can_start_another and self._parked is None and available_memory_bytes() >= needed_bytes:
            self._parked, self.current = self.current, None

    def bring_back(self) -> None:
        """Put the parked worker to work, where there is one and none is at work."""
        if self.current is None and self._parked is not None:
            self.current, self._parked = self._parked, None

    def ask(self, request: Request, *, limits: Limits, on_progress: Progress = lambda report: None) -> Done | Failed:
        """Send a request to the worker at work; the worker is ended where no later request may run in it."""
        answer = self.ensure().process.ask(request, limits=limits, on_progress=on_progress)
        if isinstance(answer, Refused):
            self.end_current()
            raise answer.error()
        if isinstance(answer, Failed) and (answer.has_ended or answer.is_sticky):
            self.end_current()
        if isinstance(answer, Failed):
            answer.check_host()
        return answer

    def device_info(self, device: str, *, on_progress: Progress = lambda message: None) -> dict[str, Any]:
        """Return what the worker's torch reports of a device; starts the worker."""
        limits = Limits(stage_s=FIRST_LIMITS_S["import"])
        answer = self.ask(DeviceInfo(device=device), limits=limits, on_progress=on_progress)
        if isinstance(answer, Failed):
            self.close()
            raise EngineError(
                f"device '{device}' cannot be used: {answer.reason}", hint="bexplore doctor shows what torch finds here"
            )
        return answer.values

    def begin(self, request: Request, lock: ExitStack) -> None:
        """Let the worker at work begin a request under the device's lock, before anybody waits for the answer."""
        self.ensure().process.post(request)
        self._begun, self._lock_of_begun = request, lock

    def take_begun_lock(self) -> ExitStack | None:
        """Return the lock under which something was begun; None where nothing was."""
        begun, self._begun = self._begun, None
        return None if begun is None else self._lock_of_begun.pop_all()

    def keep_begun_only_if(self, request: Request) -> None:
        """End the worker that has begun another request."""
        if self._begun is not None and self._begun != request:
            self.end_current()

    def end_current(self) -> None:
        """End the worker at work, if there is one, and what it has begun."""
        worker, self.current = self.current, None
        _end(worker)
        self._begun = None
        self._lock_of_begun.close()

    def close(self) -> None:
        """End all workers."""
        self.end_current()
        for worker in (self._parked, self._spare):
            _end(worker)
        self._parked = self._spare = None
        if self._listener is not None:
            self._listener.close()

    @property
    def _num_processes(self) -> int:
        return 1 if self._launcher is None else self._launcher.num_ranks

    @property
    def _can_start_another(self) -> bool:
        """Whether a second worker may be there beside the one at work: a launcher of the user's starts one group."""
        return self._launcher is None or not self._launcher.is_external

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _start(self, preload: Sequence[str] = ()) -> Worker:
        number = self._num_started
        log_path = self._run_dir / "workers" / f"worker_{number:03d}.log"
        process: WorkerProcess | RankGroup
        if self._launcher is None or self._listener is None:
            process = WorkerProcess(log_path, environment=self._environment, preload=preload)
        else:
            process = RankGroup(
                self._launcher, self._listener, log_path, environment=self._environment, preload=preload
            )
        self._num_started += 1
        return Worker(process=process, number=number)


def _modules(uses_inductor: bool) -> Sequence[str]:
    return (*STEP_MODULES, *(INDUCTOR_MODULES if uses_inductor else ()))


def _end(worker: Worker | None) -> None:
    if worker is not None:
        worker.process.close()


def must_replace(
    worker: Worker, probe: Probe, *, shared_mode: SharedMode, largest_measured: int, uses_cuda_graphs: bool
) -> bool:
    """Return whether a worker must not run a probe: it is good for more of the same program only.

    CUDA graphs of an earlier size stay, and hold memory that the allocator cannot give back.
    """
    if worker.compilation is None:
        return False
    own_program_per_size = probe.compilation is Compilation.EXACT or (
        probe.compilation is Compilation.SHARED and (shared_mode is SharedMode.STATIC or uses_cuda_graphs)
    )
    return (
        probe.fresh_worker
        or probe.compilation is not worker.compilation
        or (probe.micro_batch_size > largest_measured and not worker.has_headroom)
        or (own_program_per_size and probe.micro_batch_size != worker.micro_batch_size)
        or not worker.process.is_alive
    )


def is_worth_keeping(worker: Worker, probe: Probe, *, shared_mode: SharedMode, on_cpu: bool) -> bool:
    """Return whether a later probe may need a worker's program; two workers do not share an accelerator's memory."""
    has_shared_program = worker.compilation is Compilation.SHARED and shared_mode is not SharedMode.STATIC
    return has_shared_program and not probe.compilation.is_for_search and on_cpu and worker.process.is_alive


def may_go_on(answer: Done | Failed, refused: Observation, *, largest_measured: int) -> bool:
    """Return whether a worker is as good as before a size that it has refused.

    Not where a larger size ran: then it is the process, not the size, that lacks the memory.
    """
    if refused.outcome is not Outcome.OUT_OF_MEMORY:
        return False
    is_larger = refused.micro_batch_size > largest_measured > 0
    # An answer that is done was over the budget: nothing was refused.
    return is_larger and (isinstance(answer, Done) or answer.is_reusable)
