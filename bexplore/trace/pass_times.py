"""Estimated times of a traced job on a named device: of a pass, and of the update after the last one of a step."""

from __future__ import annotations

from bexplore.estimate.dispatch import host_seconds
from bexplore.estimate.model import Estimate, estimate_sum
from bexplore.estimate.processor import Calibration, estimate_program
from bexplore.host.accelerators import Device
from bexplore.job import Job
from bexplore.trace.cost_model import CostModel


def estimate_pass(device: Device | Calibration, job: Job, traced: CostModel, micro_batch_size: int) -> Estimate | None:
    """Return the time of a pass; None where nothing tells it of this device, or the trace has no kernels."""
    calls = traced.kernel_calls(micro_batch_size)
    if not calls:
        return None
    if isinstance(device, Calibration):
        kept_bytes = traced.activation_bytes(micro_batch_size)
        return estimate_program(device, calls, is_compiled=job.compile.enabled, kept_bytes=kept_bytes)
    host_s = host_seconds(traced.dispatches, uses_cuda_graphs=job.compile.uses_cuda_graphs("cuda"))
    return estimate_sum(device, calls, host_s=host_s)


def estimate_update(device: Device | Calibration, traced: CostModel) -> Estimate | None:
    """Return the time of an update; None as of a pass, and in evaluation."""
    calls = traced.update_kernel_calls()
    if not calls:
        return None
    if isinstance(device, Calibration):
        return estimate_program(device, calls, is_compiled=False)
    return estimate_sum(device, calls, host_s=host_seconds(traced.update_dispatches))
