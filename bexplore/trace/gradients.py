"""The memory of gradients through a step: in one copy, in buckets beside it, or whole until replicas reduce them."""

from __future__ import annotations

from dataclasses import dataclass

from bexplore.job import Parallelism
from bexplore.trace.polynomial import Polynomial
from bexplore.trace.timeline import Buffer, Event, Place


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientMemory:
    """What of the gradients lives when.

    Attributes:
        resident: During the whole step.
        before_pass: From before the last pass of a step until the update.
        before_update: From the update on.
    """

    resident: tuple[Buffer, ...] = ()
    before_pass: tuple[Event, ...] = ()
    before_update: tuple[Event, ...] = ()


def gradient_memory(
    parallelism: Parallelism, *, gradient_bytes: int, bucket_bytes: int, accumulated: Polynomial
) -> GradientMemory:
    """Return the memory of the gradients that the passes before the last have left.

    DistributedDataParallel holds buckets of one more copy from its construction on. As views of them gradients take
    nothing of their own, unless a pass that reduces nothing has made them. Sharded gradients that are reduced in the
    last pass alone are whole until then. Source: torch/csrc/distributed/c10d/reducer.cpp; `unsharded_accumulated_grad`
    in torch/distributed/fsdp/_fully_shard/_fsdp_param.py; both checked by the allocator: benchmarks/results/
    distributed_trace.md.

    Args:
        gradient_bytes: Of one copy, as the optimizer reads it: of sharded parameters, the rank's shards.
        bucket_bytes: Of all gradient buckets.
        accumulated: What the passes before the last have left.
    """
    gradients = Buffer(label="gradients", size=Polynomial(gradient_bytes))
    if parallelism.is_sharded and parallelism.synchronizes_last:
        return GradientMemory(
            before_pass=(Event(accumulated, Place("gradients of all shards")),),
            before_update=(Event(gradients.size, Place(gradients.label)),),
        )
    buckets = Buffer(label="gradient buckets", size=Polynomial(bucket_bytes))
    if not bucket_bytes:
        return GradientMemory(resident=(gradients,))
    if not parallelism.gradient_as_bucket_view:
        return GradientMemory(resident=(gradients, buckets))
    beside = (Event(buckets.size, Place(buckets.label)),) if parallelism.synchronizes_last else ()
    return GradientMemory(resident=(gradients,), before_pass=beside)
