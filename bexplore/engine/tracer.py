"""Traces a job in a worker process of its own, so that the compiler's state of the probes stays untouched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bexplore.engine.failures import Failure
from bexplore.engine.process import WorkerProcess
from bexplore.job import Job
from bexplore.trace.cost_model import CostModel

# A trace takes seconds; one that takes this long is given up, and the exploration goes on without it.
TRACE_LIMIT_S = 120.0
TRACE_RESIDENT_BYTES = 8 * 2**30


def trace_in_worker(job: Job, run_dir: Path, on_progress: Callable[[dict[str, Any]], None]) -> CostModel | str:
    """Trace the job; the reason in one line where that is not possible."""
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
    return CostModel.from_dict(answer["cost_model"])
