"""`EngineRunner`: a `Runner` whose worker lives as long as its compilation is valid and nothing went wrong."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from bexplore.engine.failures import Failure
from bexplore.engine.machine import Tenants
from bexplore.engine.process import Progress, WorkerProcess
from bexplore.engine.shared import SharedMode
from bexplore.engine.stage_limits import FIRST_LIMITS_S, STEP_LIMIT_S, StageLimits
from bexplore.errors import EngineError, UserInputError
from bexplore.job import Job
from bexplore.probe import Compilation, Observation, Outcome, Probe

# Memory that a worker may hold beside the job's tensors: interpreter, torch, the compiler at work.
WORKER_OVERHEAD_BYTES = 4 * 2**30


class EngineRunner:
    """Runs probes on real hardware.

    Args:
        job: What to run.
        run_dir: Worker logs go under `workers/` here.
        budget_bytes: Memory budget of the job; None for no limit.
        on_progress: Called with what a worker reports while it works.
        pass_budget_s: Seconds of timed passes after which a probe stops, once it has the fewest that it needs.
        limits: How long each stage may be silent; learns from every probe.
        environment: Variables of the worker beside this process's own.
    """

    def __init__(
        self,
        job: Job,
        *,
        run_dir: Path,
        budget_bytes: int | None,
        on_progress: Progress = lambda message: None,
        pass_budget_s: float = 4.0,
        limits: StageLimits | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.job = job
        self.budget_bytes = budget_bytes
        self._run_dir = run_dir
        self._on_progress = on_progress
        self._pass_budget_s = pass_budget_s
        self.limits = limits or StageLimits()
        self._environment = environment
        self._worker: WorkerProcess | None = None
        self._worker_compilation: Compilation | None = None
        self._num_workers = 0
        self._shared_mode = SharedMode.NESTED
        self._static_size: int | None = None

    def __call__(self, probe: Probe) -> Observation:
        """Compile and run one size; every failure of the job is an observation.

        Raises:
            UserInputError: The job cannot be built from what the configuration says.

        A shared program that does not compile with one kind of symbolic batch dimension is tried with the next.
        """
        while True:
            observation = self._run(probe)
            next_mode = self._next_shared_mode(observation)
            if next_mode is None:
                return observation
            self._shared_mode = next_mode

    def facts(self) -> dict[str, Any]:
        """What the worker's torch says about the device; starts the worker.

        Raises:
            EngineError: The worker cannot be started, or the device is not there.
        """
        answer = self._ask({"kind": "facts", "device": self.job.device}, limit_s=FIRST_LIMITS_S["import"])
        if isinstance(answer, Failure) or "outcome" in answer:
            reason = answer.reason if isinstance(answer, Failure) else answer["reason"]
            self.close()
            raise EngineError(
                f"device '{self.job.device}' cannot be used: {reason}",
                hint="bexplore doctor shows what torch finds here",
            )
        return answer

    def same_training(self, *, base_micro_batch_size: int, micro_batch_size: int) -> dict[str, Any] | None:
        """Compare the gradients of one replica batch at two splits; None if the comparison itself failed."""
        self.close()
        answer = self._ask(
            {
                "kind": "same_training",
                "job": self.job.as_dict(),
                "base_micro_batch_size": base_micro_batch_size,
                "micro_batch_size": micro_batch_size,
            },
            limit_s=STEP_LIMIT_S,
        )
        self.close()
        return None if isinstance(answer, Failure) or answer["outcome"] != "measured" else answer

    def time_passes(self, *, micro_batch_size: int, num_passes: int) -> dict[str, Any]:
        """Time passes of a size that this runner has just measured, in its live worker; see `Session.time_passes`.

        Raises:
            EngineError: The worker is gone, or the step failed.
        """
        request = {"kind": "time_passes", "micro_batch_size": micro_batch_size, "num_passes": num_passes}
        with device_lock(self.job.device, waiting=lambda: self._on_progress({"kind": "progress", "stage": "lock"})):
            return self._told(request)

    def loaded_from(self, folder: Path) -> list[str]:
        """Files under a folder from which the worker has imported modules.

        Raises:
            EngineError: The worker is gone.
        """
        return list(self._told({"kind": "loaded_from", "folder": str(folder)})["files"])

    def _told(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = self._ask(request, limit_s=STEP_LIMIT_S)
        if isinstance(answer, Failure) or answer.get("outcome") != "measured":
            reason = answer.reason if isinstance(answer, Failure) else answer.get("reason", answer.get("refused"))
            raise EngineError(f"the worker could not answer: {reason}", hint="see the worker's log in the run folder")
        return answer

    def close(self) -> None:
        """End the worker, if there is one."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None
            self._worker_compilation = None

    def __enter__(self) -> EngineRunner:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _run(self, probe: Probe) -> Observation:
        if self._must_replace_worker(probe):
            self.close()
        with device_lock(self.job.device, waiting=lambda: self._on_progress({"kind": "progress", "stage": "lock"})):
            started_at_s, began = time.time(), time.monotonic()
            worker = self._ensure_worker()
            spawn_s = time.monotonic() - began
            tenants = Tenants(worker.pid)
            tenants.start()
            answer = self._ask(self._probe_request(probe), limit_s=probe.time_limit_s, size=probe.micro_batch_size)
            others_share = tenants.others_share()
            tenant_warnings = tenants.warnings(on_accelerator=self.job.device.split(":")[0] == "cuda")
        self._worker_compilation, self._static_size = probe.compilation, probe.micro_batch_size
        observation = self._observe(
            probe,
            answer,
            started_at_s=started_at_s,
            elapsed_s=time.monotonic() - began,
            spawn_s=spawn_s,
            tenant_warnings=tenant_warnings,
        )
        observation = dataclasses.replace(observation, others_share=others_share)
        self.limits.learn(observation)
        if not observation.is_measured:
            self.close()
        return observation

    def _must_replace_worker(self, probe: Probe) -> bool:
        """A worker is good for more probes of the same program only."""
        if self._worker is None or self._worker_compilation is None:
            return False
        other_program = probe.compilation is not self._worker_compilation
        own_program_per_size = probe.compilation is Compilation.EXACT or (
            probe.compilation is Compilation.SHARED and self._shared_mode is SharedMode.STATIC
        )
        return (
            probe.fresh_worker
            or other_program
            or (own_program_per_size and probe.micro_batch_size != self._static_size)
            or not self._worker.is_alive
        )

    def _next_shared_mode(self, observation: Observation) -> SharedMode | None:
        failed = observation.outcome is Outcome.COMPILE_FAILED
        is_shared = observation.probe.compilation is Compilation.SHARED
        return self._shared_mode.next if failed and is_shared else None

    def _ensure_worker(self) -> WorkerProcess:
        if self._worker is None:
            log_path = self._run_dir / "workers" / f"worker_{self._num_workers:03d}.log"
            self._worker = WorkerProcess(log_path, environment=self._environment)
            self._num_workers += 1
        return self._worker

    def _probe_request(self, probe: Probe) -> dict[str, Any]:
        return {
            "kind": "probe",
            "probe": dataclasses.asdict(probe),
            "job": self.job.as_dict(),
            "shared_mode": self._shared_mode,
            "budget_bytes": self.budget_bytes,
            "pass_budget_s": self._pass_budget_s,
        }

    def _ask(self, request: dict[str, Any], *, limit_s: float | None, size: int = 1) -> dict[str, Any] | Failure:
        worker = self._ensure_worker()

        def stage_limit_s(stage: str) -> float:
            return limit_s if limit_s is not None else self.limits.limit_s(stage, size)

        on_cpu = self.job.device.split(":")[0] == "cpu"
        resident_limit = self.budget_bytes + WORKER_OVERHEAD_BYTES if on_cpu and self.budget_bytes is not None else None
        answer = worker.ask(
            request,
            on_progress=self._on_progress,
            time_limit_s=stage_limit_s,
            resident_limit_bytes=resident_limit,
            total_limit_s=limit_s,
        )
        if isinstance(answer, Failure):
            self.close()
        elif "refused" in answer:
            self.close()
            raise UserInputError(answer["refused"], hint=answer["hint"])
        return answer

    def _observe(
        self,
        probe: Probe,
        answer: dict[str, Any] | Failure,
        *,
        started_at_s: float,
        elapsed_s: float,
        spawn_s: float,
        tenant_warnings: list[str],
    ) -> Observation:
        common: dict[str, Any] = {
            "probe": probe,
            "elapsed_s": elapsed_s,
            "started_at_s": started_at_s,
            "worker": self._num_workers - 1,
            "memory_budget_bytes": self.budget_bytes,
        }
        if isinstance(answer, Failure):
            return Observation(
                outcome=answer.outcome, reason=answer.reason, traceback_text=answer.traceback_text, **common
            )
        facts = {name: value for name, value in answer.items() if name not in ("kind", "shared_mode")}
        self._shared_mode = SharedMode(answer.get("shared_mode", self._shared_mode))
        outcome = Outcome(facts.pop("outcome"))
        reason = facts.pop("reason", "")
        for name in ("pass_times_s", "update_times_s", "graph_break_reasons"):
            facts[name] = tuple(facts.get(name, ()))
        facts["start_time_s"] = facts.get("start_time_s", 0.0) + spawn_s
        facts["warnings"] = (*facts.get("warnings", ()), *tenant_warnings)
        peak = facts.get("peak_memory_bytes")
        if outcome is Outcome.MEASURED and peak and self.budget_bytes is not None and peak > self.budget_bytes:
            outcome = Outcome.OUT_OF_MEMORY
            reason = f"its peak of {peak / 2**20:.0f} MiB is over the budget of {self.budget_bytes / 2**20:.0f} MiB"
        return Observation(outcome=outcome, reason=reason, **common, **facts)


@contextmanager
def device_lock(device: str, *, waiting: Callable[[], None]) -> Iterator[None]:
    """Keep a second explorer of this host off the device while one measures.

    Args:
        device: Name of the torch device.
        waiting: Called once if another explorer holds the lock.
    """
    folder = Path(os.environ.get("BEXPLORE_LOCK_DIR", tempfile.gettempdir()))
    path = folder / f"bexplore-{os.getuid()}-{device.replace(':', '-')}.lock"
    with _open_lock(path) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _open_lock(path: Path) -> IO[str]:
    try:
        return path.open("a")
    except OSError as error:
        raise EngineError(
            f"cannot open the device lock {path}: {error.strerror}",
            hint="set BEXPLORE_LOCK_DIR to a folder that can be written",
        ) from error
