"""Requests about a job's program, each in a worker of its own: whether it builds, what it costs, its exact facts.

The state that such a request leaves in the compiler does not reach the probes.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bexplore.engine.process.limits import Limits, Progress
from bexplore.engine.process.worker_process import WorkerProcess
from bexplore.engine.protocol.messages import (
    Answer,
    BuildFake,
    Done,
    Failed,
    FindKernels,
    Refused,
    Request,
    TakeMetrics,
    Trace,
)
from bexplore.errors import EngineError, UserProgramError
from bexplore.estimate.kernels import Kernel
from bexplore.host.records import from_record, to_record
from bexplore.job import Job, Precision, device_kind
from bexplore.job.lengths import Collation
from bexplore.measurement.probe import Outcome
from bexplore.trace import cache
from bexplore.trace.absent_gpu import GpuProperties, reason_against
from bexplore.trace.cost_model import CostModel, MemoryByLength, TracedKernel, traced_lengths
from bexplore.trace.program_metrics import ProgramMetrics

# A build on fake tensors takes seconds; one that takes longer is left to the probe, which has limits of its own.
BUILD_LIMIT_S = 60.0
# A trace takes seconds of a processor; one that takes this many is given up. `explore.trace_time_limit` is another.
TRACE_LIMIT_S = 120.0
# All blocks of a whole model are traced: a deep one takes minutes.
METRICS_LIMIT_S = 900.0
RESIDENT_BYTES = 8 * 2**30
METRICS_RESIDENT_BYTES = 16 * 2**30
# Sizes and indices are SymPy's expressions, and it keeps 1000 results of each of its functions; the compiler asks for
# more of them again. Processor time of a ResNet 50 for CUDA: 40.7 s with 1000, 38.4 s with these.
_FAST_SYMPY = {"SYMPY_CACHE_SIZE": "20000"}


class GivenUp(str):
    """The reason why there is no trace, which another attempt may not meet: time or memory of this host."""


def ask_once(
    request: Request,
    log_path: Path,
    *,
    limits: Limits,
    environment: Mapping[str, str] | None = None,
    on_progress: Progress = lambda report: None,
) -> Answer:
    """Send one request to a worker of its own."""
    worker = WorkerProcess(log_path, environment=environment)
    try:
        answer = worker.ask(request, limits=limits, on_progress=on_progress)
    finally:
        worker.close()
    if isinstance(answer, Failed):
        answer.check_host()
    return answer


class KernelFinder:
    """Tells kernels of the calls that the observer of a training has seen; its worker starts with the first ones."""

    def __init__(self, log_path: Path, *, environment: Mapping[str, str]) -> None:
        self._log_path, self._environment = log_path, environment
        self._worker: WorkerProcess | None = None

    def __call__(self, calls: Sequence[Mapping[str, Any]]) -> list[list[Kernel]]:
        """Return the kernels of each call."""
        if self._worker is None:
            self._worker = WorkerProcess(self._log_path, environment=self._environment)
        limits = Limits(stage_s=BUILD_LIMIT_S, resident_bytes=RESIDENT_BYTES)
        answer = self._worker.ask(FindKernels(calls=[dict(one) for one in calls]), limits=limits)
        if not isinstance(answer, Done):
            self.close()
            reason = answer.reason if isinstance(answer, Failed) else answer.message
            raise EngineError(f"kernels of the command cannot be told apart: {reason}", hint=f"see {self._log_path}")
        found = ([from_record(TracedKernel, one) for one in kernels] for kernels in answer.values["kernels"])
        return [[kernel.at(1) for kernel in kernels] for kernels in found]

    def close(self) -> None:
        """End its worker."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()


def check_build(job: Job, log_path: Path, *, environment: Mapping[str, str] | None = None) -> None:
    """Build a job on fake tensors of the CPU, in a process that leaves every device alone.

    A fault of the user's own code is raised for a job on the CPU alone: elsewhere the code may need the device.
    """
    scaled = job.precision is Precision.AUTOCAST_FLOAT16
    on_cpu = dataclasses.replace(job, device="cpu", precision=Precision.AUTOCAST_BFLOAT16 if scaled else job.precision)
    environment = {**(environment or {}), "CUDA_VISIBLE_DEVICES": ""}
    limits = Limits(stage_s=BUILD_LIMIT_S, resident_bytes=RESIDENT_BYTES)
    answer = ask_once(BuildFake(job=on_cpu), log_path, limits=limits, environment=environment)
    if not isinstance(answer, Refused):
        return  # a failure is left to the probe
    error = answer.error()
    if device_kind(job.device) == "cpu" or not isinstance(error, UserProgramError):
        raise error


def recall_or_trace(
    job: Job,
    run_dir: Path,
    on_progress: Progress,
    *,
    gpu: GpuProperties | None = None,
    fresh: bool,
    environment: Mapping[str, str] | None = None,
    limit_s: float | None = TRACE_LIMIT_S,
) -> CostModel | str:
    """Return the job's trace of an earlier run if nothing has changed since, else a new one, kept for later runs.

    Where there can be none, return the reason in one line. `gpu` is the device of a CUDA job, present or absent. A job
    of a number of tokens is traced at several lengths: any of them may need most memory.
    """
    known = None if fresh else cache.recall(job, gpu=gpu)
    traced = known or _trace(job, run_dir, on_progress, gpu=gpu, keeps=True, environment=environment, limit_s=limit_s)
    if isinstance(traced, str) or job.lengths is None or job.lengths.collation is not Collation.TOKENS:
        return traced
    by_length = trace_lengths(
        job, traced, run_dir, on_progress, gpu=gpu, fresh=fresh, environment=environment, limit_s=limit_s
    )
    return dataclasses.replace(traced, by_length=by_length)


def trace_lengths(
    job: Job,
    at_longest: CostModel,
    run_dir: Path,
    on_progress: Progress = lambda message: None,
    *,
    gpu: GpuProperties | None,
    fresh: bool,
    environment: Mapping[str, str] | None = None,
    limit_s: float | None = TRACE_LIMIT_S,
) -> MemoryByLength | None:
    """Trace a job at some lengths of its samples; return None where all are as long, or where it cannot be traced.

    Args:
        at_longest: Its trace at the longest, which may have those at others already.
    """
    if job.lengths is None or at_longest.by_length is not None or at_longest.measured_at:
        return at_longest.by_length
    models = {job.lengths.longest: at_longest}
    for length in traced_lengths(job.lengths)[1:]:
        at_length = job.at_length(length)
        traced = recall_or_trace(
            at_length, run_dir, on_progress, gpu=gpu, fresh=fresh, environment=environment, limit_s=limit_s
        )
        if not isinstance(traced, CostModel):
            return None
        models[length] = traced
    return MemoryByLength(models=models, lengths=job.lengths)


def trace_in_worker(
    job: Job,
    run_dir: Path,
    on_progress: Progress,
    *,
    gpu: GpuProperties | None = None,
    environment: Mapping[str, str] | None = None,
    limit_s: float | None = TRACE_LIMIT_S,
) -> CostModel | str:
    """Trace the job whatever earlier runs kept; return the reason in one line where that is not possible."""
    return _trace(job, run_dir, on_progress, gpu=gpu, keeps=False, environment=environment, limit_s=limit_s)


def _trace(
    job: Job,
    run_dir: Path,
    on_progress: Progress,
    *,
    gpu: GpuProperties | None,
    keeps: bool,
    environment: Mapping[str, str] | None,
    limit_s: float | None,
) -> CostModel | str:
    # The device that is stood in for takes the place of one that is here: tracing takes nothing of its memory.
    why_not = reason_against() if gpu is not None else ""
    properties = to_record(gpu) if gpu is not None and not why_not else None
    environment = {**(environment or {}), **({"CUDA_VISIBLE_DEVICES": ""} if properties else {})}
    environment |= {name: value for name, value in _FAST_SYMPY.items() if name not in os.environ}
    traced_job = dataclasses.replace(job, device="cuda:0") if properties else job  # the only device that there is then
    answer = ask_once(
        Trace(job=traced_job, gpu=properties, why_not=why_not),
        run_dir / "workers" / "trace.log",
        limits=Limits(stage_s=limit_s, resident_bytes=RESIDENT_BYTES, counts_processor_time=True),
        environment=environment,
        on_progress=on_progress,
    )
    if isinstance(answer, Failed):
        is_late = answer.outcome is Outcome.TIMED_OUT
        return GivenUp(f"{answer.reason}; explore.trace_time_limit gives it longer" if is_late else answer.reason)
    if isinstance(answer, Refused):
        error = answer.error()
        if isinstance(error, EngineError):
            return error.message
        raise error
    cost_model = from_record(CostModel, answer.values["cost_model"])
    sources = answer.values["sources"]
    is_own_program = cost_model.device == device_kind(job.device)
    if keeps and is_own_program and sources is not None:
        cache.remember(job, cost_model, cache.Sources(**sources), gpu=gpu)
    return cost_model


def metrics_in_worker(
    job: Job,
    log_path: Path,
    *,
    device: str,
    environment: Mapping[str, str] | None = None,
) -> tuple[ProgramMetrics, dict[str, Any]]:
    """Return the exact facts of a job's program, and those of `device_info`.

    What the program's own faults hide is among its `problems`; the facts of the device are empty where the program
    failed in an unforeseen way.
    """
    answer = ask_once(
        TakeMetrics(job=job, device=device),
        log_path,
        limits=Limits(stage_s=METRICS_LIMIT_S, resident_bytes=METRICS_RESIDENT_BYTES),
        environment=environment,
    )
    if isinstance(answer, Refused):
        raise answer.error()
    if isinstance(answer, Done):
        return ProgramMetrics.from_record(answer.values["metrics"]), answer.values["device_info"]
    if answer.has_ended:
        raise EngineError(f"the program's facts could not be taken: {answer.reason}", hint=f"see {log_path}")
    return ProgramMetrics(traced_device=device_kind(job.device), problems=(answer.reason,)), {}
