"""Traces a job in a worker process of its own, so that the compiler's state of the probes stays untouched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bexplore.engine.failures import Failure
from bexplore.engine.machine import accelerator_name
from bexplore.engine.process import WorkerProcess
from bexplore.job import Job
from bexplore.trace import cache
from bexplore.trace.cost_model import CostModel

# A trace takes seconds; one that takes this long is given up, and the exploration goes on without it.
TRACE_LIMIT_S = 120.0
TRACE_RESIDENT_BYTES = 8 * 2**30


Progress = Callable[[dict[str, Any]], None]


def recall_or_trace(job: Job, run_dir: Path, on_progress: Progress, *, fresh: bool) -> CostModel | str:
    """The job's trace from an earlier run if nothing has changed since, else a new one, which is kept for later runs.

    Args:
        job: What to trace.
        run_dir: Receives the worker's log.
        on_progress: Called with what the worker reports.
        fresh: Trace in any case.

    Returns:
        The trace; the reason in one line where there can be none.
    """
    known = None if fresh else cache.recall(job, devices=accelerator_name())
    return known or _trace(job, run_dir, on_progress, keeps=True)


def trace_in_worker(job: Job, run_dir: Path, on_progress: Progress) -> CostModel | str:
    """Trace the job whatever is known from earlier runs; the reason in one line where that is not possible."""
    return _trace(job, run_dir, on_progress, keeps=False)


def _trace(job: Job, run_dir: Path, on_progress: Progress, *, keeps: bool) -> CostModel | str:
    worker = WorkerProcess(run_dir / "workers" / "trace.log")
    try:
        answer = worker.ask(
            {"kind": "trace", "job": job.as_dict()},
            on_progress=on_progress,
            time_limit_s=lambda stage: TRACE_LIMIT_S,
            resident_limit_bytes=TRACE_RESIDENT_BYTES,
        )
    finally:
        worker.close()
    if isinstance(answer, Failure):
        return answer.reason
    if "refused" in answer:
        return str(answer["refused"])
    if answer["outcome"] != "measured":
        return str(answer["reason"])
    cost_model = CostModel.from_dict(answer["cost_model"])
    if keeps and answer["sources"] is not None:
        cache.remember(job, cost_model, cache.Sources(**answer["sources"]), devices=accelerator_name())
    return cost_model
