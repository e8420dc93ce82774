"""Whether a job can be built at all: its import paths, signatures and optimizer, before anything is waited for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from bexplore.engine.process.worker_process import WorkerProcess
from bexplore.engine.protocol.answers import refusal
from bexplore.engine.protocol.failures import Failure
from bexplore.errors import UserProgramError
from bexplore.job import Job, Precision

# A build on fake tensors takes seconds; one that takes longer is left to the probe, which has limits of its own.
BUILD_LIMIT_S = 60.0
BUILD_RESIDENT_BYTES = 8 * 2**30


def check_build(job: Job, log_path: Path, *, environment: Mapping[str, str] | None = None) -> None:
    """Build a job on fake tensors of the CPU, in a process of its own that leaves every device alone.

    Raises:
        UserInputError: The job itself is wrong.
        UserProgramError: The user's own code fails while it is built, for a job on the CPU; elsewhere it may need the
            device.
    """
    worker = WorkerProcess(log_path, environment={**(environment or {}), "CUDA_VISIBLE_DEVICES": ""})
    scaled = job.precision is Precision.AUTOCAST_FLOAT16
    on_cpu = dataclasses.replace(job, device="cpu", precision=Precision.AUTOCAST_BFLOAT16 if scaled else job.precision)
    try:
        answer = worker.ask(
            {"kind": "build", "job": on_cpu.as_dict()},
            on_progress=lambda message: None,
            time_limit_s=lambda stage: BUILD_LIMIT_S,
            resident_limit_bytes=BUILD_RESIDENT_BYTES,
        )
    finally:
        worker.close()
    if isinstance(answer, Failure) or "refused" not in answer:
        return  # the probe tells
    error = refusal(answer)
    if job.device.partition(":")[0] == "cpu" or not isinstance(error, UserProgramError):
        raise error
