"""Traces a job in a worker process of its own, so that the compiler's state of the probes stays untouched."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bexplore.engine.process.worker_process import WorkerProcess
from bexplore.engine.protocol.answers import refusal
from bexplore.engine.protocol.failures import Failure
from bexplore.errors import EngineError
from bexplore.job import Job
from bexplore.trace import cache
from bexplore.trace.absent_gpu import reason_against
from bexplore.trace.cost_model import CostModel
from bexplore.trace.gpu_properties import GpuProperties

# A trace takes seconds; one that takes this long is given up, and the exploration goes on without it.
TRACE_LIMIT_S = 120.0
TRACE_RESIDENT_BYTES = 8 * 2**30
# Sizes and indices are SymPy's expressions, and it keeps 1000 results of each of its functions; the compiler asks for
# more of them again. Processor time of a ResNet 50 for CUDA: 40.7 s with 1000, 38.4 s with these.
_FAST_SYMPY = {"SYMPY_CACHE_SIZE": "20000"}


Progress = Callable[[dict[str, Any]], None]


def recall_or_trace(
    job: Job, run_dir: Path, on_progress: Progress, *, gpu: GpuProperties | None = None, fresh: bool
) -> CostModel | str:
    """The job's trace from an earlier run if nothing has changed since, else a new one, which is kept for later runs.

    Args:
        job: What to trace.
        run_dir: Receives the worker's log.
        on_progress: Called with what the worker reports.
        gpu: The device of a CUDA job, whether it is here or not; None for a job on the CPU.
        fresh: Trace in any case.

    Returns:
        The trace; the reason in one line where there can be none.

    Raises:
        UserInputError: The job itself is wrong.
        UserProgramError: The user's own code fails while it is built.
    """
    known = None if fresh else cache.recall(job, gpu=gpu)
    return known or _trace(job, run_dir, on_progress, gpu=gpu, keeps=True)


def trace_in_worker(
    job: Job, run_dir: Path, on_progress: Progress, *, gpu: GpuProperties | None = None
) -> CostModel | str:
    """Trace the job whatever is known from earlier runs; the reason in one line where that is not possible."""
    return _trace(job, run_dir, on_progress, gpu=gpu, keeps=False)


def _trace(
    job: Job, run_dir: Path, on_progress: Progress, *, gpu: GpuProperties | None, keeps: bool
) -> CostModel | str:
    # The device that is stood in for takes the place of one that is here: tracing takes nothing of its memory.
    why_not = reason_against() if gpu is not None else ""
    stands_in = gpu is not None and not why_not
    environment = {"CUDA_VISIBLE_DEVICES": ""} if stands_in else {}
    environment |= {name: value for name, value in _FAST_SYMPY.items() if name not in os.environ}
    traced_job = dataclasses.replace(job, device="cuda:0") if stands_in else job  # the only device that there is then
    properties = gpu.as_dict() if gpu is not None and stands_in else None
    worker = WorkerProcess(run_dir / "workers" / "trace.log", environment=environment)
    try:
        answer = worker.ask(
            {"kind": "trace", "job": traced_job.as_dict(), "gpu": properties, "why_not": why_not},
            on_progress=on_progress,
            time_limit_s=lambda stage: TRACE_LIMIT_S,
            resident_limit_bytes=TRACE_RESIDENT_BYTES,
        )
    finally:
        worker.close()
    if isinstance(answer, Failure):
        return answer.reason
    if "refused" in answer:
        error = refusal(answer)
        if isinstance(error, EngineError):
            return error.message
        raise error
    if answer["outcome"] != "measured":
        return str(answer["reason"])
    cost_model = CostModel.from_dict(answer["cost_model"])
    is_own_program = cost_model.device == job.device.partition(":")[0]
    if keeps and is_own_program and answer["sources"] is not None:
        cache.remember(job, cost_model, cache.Sources(**answer["sources"]), gpu=gpu)
    return cost_model
