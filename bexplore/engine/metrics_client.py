"""Asks a worker process of its own for the exact facts of a job's program."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bexplore.engine.process.worker_process import Progress, WorkerProcess
from bexplore.engine.protocol.answers import refusal
from bexplore.engine.protocol.failures import Failure
from bexplore.errors import EngineError
from bexplore.job import Job
from bexplore.trace.program_metrics import ProgramMetrics

# A whole model is traced, every block of it: a deep one takes minutes.
METRICS_LIMIT_S = 900.0
METRICS_RESIDENT_BYTES = 16 * 2**30


def metrics_in_worker(
    job: Job,
    log_path: Path,
    *,
    device: str,
    environment: Mapping[str, str] | None = None,
    on_progress: Progress = lambda _: None,
) -> tuple[ProgramMetrics, dict[str, Any]]:
    """Take the exact facts of a job's program; what the program's own faults hide is among their `problems`.

    Args:
        job: On the device that its program is to be traced for.
        log_path: Receives what the worker and the user's code print.
        device: The device, or `auto`, of which facts are wanted too.
        environment: Variables of the worker beside this process's own.
        on_progress: Called with what the worker reports.

    Returns:
        The facts, and those of `device_info`; the latter empty where the program failed in an unforeseen way.

    Raises:
        UserInputError: The job itself is wrong.
        EngineError: The worker could not answer.
    """
    worker = WorkerProcess(log_path, environment=environment)
    try:
        answer = worker.ask(
            {"kind": "program_metrics", "job": job.as_dict(), "device": device},
            on_progress=on_progress,
            time_limit_s=lambda stage: METRICS_LIMIT_S,
            resident_limit_bytes=METRICS_RESIDENT_BYTES,
        )
    finally:
        worker.close()
    if isinstance(answer, Failure):
        raise EngineError(f"the program's facts could not be taken: {answer.reason}", hint=f"see {log_path}")
    if "refused" in answer:
        raise refusal(answer)
    if answer["outcome"] != "measured":
        return ProgramMetrics(traced_device=job.device.partition(":")[0], problems=(str(answer["reason"]),)), {}
    return ProgramMetrics.from_dict(answer["facts"]), answer["machine"]
