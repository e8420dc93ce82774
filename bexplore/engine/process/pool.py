"""The worker processes of one runner: one at work, one set aside with the search's program, one that waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bexplore.engine.process.worker_process import WorkerProcess
from bexplore.host.machine import available_memory_bytes
from bexplore.measurement.probe import Compilation

# What every worker imports before its first probe, and what compiled ones do beside it.
STEP_MODULES = ("bexplore.engine.worker.session",)
COMPILER_MODULES = (*STEP_MODULES, "torch._inductor.compile_fx")
# Resident memory of a process that has imported torch and its compiler, and does nothing. Measured: 0.4 GiB. Bytes.
IDLE_BYTES = 2**29


@dataclass(slots=True)
class Worker:
    """A worker process and what it is good for.

    Attributes:
        process: The process.
        number: Ordinal among the runner's workers; its log has the same.
        compilation: Program that it has compiled; None for none.
        micro_batch_size: Size that it ran last; None for none.
        has_headroom: Whether it can tell if a size fits that is larger than those that it ran.
    """

    process: WorkerProcess
    number: int
    compilation: Compilation | None = None
    micro_batch_size: int | None = None
    has_headroom: bool = True


class Workers:
    """Starts workers, and ends each of them.

    Args:
        run_dir: Worker logs go under `workers/` here.
        environment: Variables of a worker beside this process's own.
    """

    def __init__(self, run_dir: Path, environment: Mapping[str, str] | None) -> None:
        self.current: Worker | None = None
        self._parked: Worker | None = None
        self._spare: Worker | None = None
        self._run_dir = run_dir
        self._environment = environment
        self._num_started = 0

    def ensure(self) -> Worker:
        """The worker at work; one that waits, or a new one, where there is none."""
        if self.current is None:
            spare, self._spare = self._spare, None
            if spare is not None and not spare.process.is_alive:
                _end(spare)
                spare = None
            self.current = spare or self._start()
        return self.current

    def start(self, *, is_compiled: bool) -> None:
        """Start the worker at work, where there is none; it imports what its first probe needs and then waits."""
        if self.current is None:
            self.current = self._start(COMPILER_MODULES if is_compiled else STEP_MODULES)

    def start_spare(self, *, budget_bytes: int | None) -> None:
        """Start a process that imports torch and then waits, where memory beside the job's budget allows it."""
        if self._spare is None and available_memory_bytes() - (budget_bytes or 0) > IDLE_BYTES:
            self._spare = self._start(COMPILER_MODULES)

    def await_spare(self) -> None:
        """Return once the spare, if there is one, takes no more of the processors."""
        if self._spare is not None:
            self._spare.process.await_preloaded()

    def park(self, *, needed_bytes: int) -> None:
        """Keep the worker at work for later, where the host has the memory that the next one needs beside it."""
        if self._parked is None and available_memory_bytes() >= needed_bytes:
            self._parked, self.current = self.current, None

    def bring_back(self) -> None:
        """Put the worker that was set aside to work, where there is one and none is at work."""
        if self.current is None and self._parked is not None:
            self.current, self._parked = self._parked, None

    def end_current(self) -> None:
        """End the worker at work, if there is one."""
        worker, self.current = self.current, None
        _end(worker)

    def close(self) -> None:
        """End all workers."""
        self.end_current()
        for worker in (self._parked, self._spare):
            _end(worker)
        self._parked = self._spare = None

    def _start(self, preload: Sequence[str] = ()) -> Worker:
        number = self._num_started
        log_path = self._run_dir / "workers" / f"worker_{number:03d}.log"
        process = WorkerProcess(log_path, environment=self._environment, preload=preload)
        self._num_started += 1
        return Worker(process=process, number=number)


def _end(worker: Worker | None) -> None:
    if worker is not None:
        worker.process.close()
