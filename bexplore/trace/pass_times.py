"""Estimated times of a traced job on a named device: of a pass, and of the update after the last one of a step.

A pass of a job with ranks has its share of what these exchange in a step.
"""

from __future__ import annotations

from typing import Any

from bexplore.estimate.collectives import Interconnect
from bexplore.estimate.dispatch import host_seconds
from bexplore.estimate.model import Estimate, add_communication, estimate_sum
from bexplore.estimate.processor import Calibration, estimate_program
from bexplore.host.accelerators import Device
from bexplore.job import Job
from bexplore.trace.communication import find_job_communication
from bexplore.trace.cost_model import CostModel


def estimate_pass(
    device: Device | Calibration,
    job: Job,
    traced: CostModel,
    micro_batch_size: int,
    *,
    replica_batch_size: int | None = None,
    network_bytes_per_s: float | None = None,
) -> Estimate | None:
    """Return the time of a pass; None where nothing tells it of this device, or the trace has no kernels.

    Args:
        replica_batch_size: Samples of a replica in a step, by which the last pass of it counts; None for many.
        network_bytes_per_s: Bus bandwidth between nodes; None if unknown.
    """
    calls = traced.kernel_calls(micro_batch_size)
    if not calls:
        return None
    if isinstance(device, Calibration):
        kept_bytes = traced.activation_bytes(micro_batch_size)
        return estimate_program(device, calls, is_compiled=job.compile.enabled, kept_bytes=kept_bytes)
    host_s = host_seconds(traced.dispatches, uses_cuda_graphs=job.compile.uses_cuda_graphs("cuda"))
    alone = estimate_sum(device, calls, host_s=host_s)
    links = find_links(device, job, network_bytes_per_s)
    if alone is None or links is None or not alone.seconds:
        return alone
    last_share = 0.0 if replica_batch_size is None else min(1.0, micro_batch_size / replica_batch_size)
    exchanged = find_job_communication(job, traced, micro_batch_size).expose_step(links, last_share=last_share)
    return add_communication(alone, exchanged, relative_sd=links.relative_sd)


def find_links(device: Device | Calibration, job: Job, network_bytes_per_s: float | None = None) -> Interconnect | None:
    """Return the links by which what the ranks of a job exchange is counted; None for one rank, or unknown links."""
    if isinstance(device, Calibration) or not job.training_parallelism.is_distributed:
        return None
    return Interconnect.find(device, network_bytes_per_s)


def describe_communication(found: Estimate, job: Job, links: Interconnect | None) -> dict[str, Any] | None:
    """Return what the ranks of a job exchange in an estimated pass, and over which links; None for nothing."""
    if found.communication is None or links is None:
        return None
    num_ranks = job.training_parallelism.num_ranks
    return {
        "seconds": found.communication.seconds,
        "exposed_s": found.exposed_s,
        "replica_s": found.replica_s,
        "links": links.describe(num_ranks),
        "is_complete": links.knows(num_ranks),
    }


def estimate_update(device: Device | Calibration, traced: CostModel) -> Estimate | None:
    """Return the time of an update; None as of a pass, and in evaluation."""
    calls = traced.update_kernel_calls()
    if not calls:
        return None
    if isinstance(device, Calibration):
        return estimate_program(device, calls, is_compiled=False)
    return estimate_sum(device, calls, host_s=host_seconds(traced.update_dispatches))
