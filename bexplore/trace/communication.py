"""What the ranks of a job exchange in a pass: by how they share its parameters, and by its trace.

Replicas add up their gradients by one all-reduce in a step; ranks that share parameters gather them before each forward
and, unless they keep them, each backward pass, and scatter the sum of their gradients. Source: PyTorch Distributed
(arXiv 2006.15704) and FSDP (arXiv 2304.11277).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from bexplore.estimate.collectives import Collective, Communication, Exchange
from bexplore.estimate.kernels import HALF_BYTES, SINGLE_BYTES
from bexplore.job import Job, Mode, Parallelism
from bexplore.trace.cost_model import CostModel

_ITEMSIZES = {"bfloat16": HALF_BYTES, "float16": HALF_BYTES, "float32": SINGLE_BYTES}


def find_job_communication(job: Job, traced: CostModel, micro_batch_size: int) -> Communication:
    """Return what a rank of a job exchanges in a pass of a size."""
    shared = job.training_parallelism
    tensor = shared.tensor_parallel_degree
    if job.mode is Mode.EVAL:
        shared = dataclasses.replace(shared, fsdp_reshard_after_forward="never", gradient_sync="last")
    itemsize = job.precision.weight_bytes
    found = find_communication(
        shared, itemsize * traced.num_parameters / tensor, num_blocks=traced.num_blocks, itemsize=itemsize
    )
    last_pass = found.last_pass if job.mode is Mode.TRAIN else ()  # evaluation gathers once and reduces nothing
    return dataclasses.replace(found, last_pass=last_pass, waited=traced.exchanges(micro_batch_size, tensor))


def find_communication(
    parallelism: Parallelism, gradient_bytes: float, *, num_blocks: int = 0, itemsize: int = SINGLE_BYTES
) -> Communication:
    """Return what a rank of data-parallel ranks exchanges.

    Args:
        parallelism: How ranks share the work; what tensor-parallel ranks exchange is no part of it.
        gradient_bytes: One copy of the gradients of one tensor-parallel rank's share of the model; of parameters there
            are as many.
        num_blocks: Blocks that are gathered one by one; 0 if unknown, for one message.
        itemsize: Bytes of an element of these gradients; shards may be gathered and reduced in another type.
    """
    if parallelism.is_sharded:
        return _exchange_shards(parallelism, gradient_bytes / itemsize, max(1, num_blocks), itemsize)
    if not parallelism.is_replicated_only:
        return Communication()
    num_buckets = max(1, round(gradient_bytes / parallelism.bucket_cap_bytes))
    reduced = Exchange(
        collective=Collective.ALL_REDUCE,
        num_bytes=gradient_bytes,
        num_ranks=parallelism.data_parallel_replicate_degree,
        num_messages=num_buckets,
    )
    return _place_reductions((), (reduced,), parallelism)


def _exchange_shards(
    parallelism: Parallelism, num_parameters: float, num_messages: int, itemsize: int
) -> Communication:
    """Return what ranks exchange that share parameters: gathers in each pass, a sum of gradients where it is due.

    Gradients are reduced in the type in which parameters are gathered, unless another is set. Source: PyTorch,
    `MixedPrecisionPolicy` of `fully_shard`.
    """
    copies, shards = parallelism.data_parallel_replicate_degree, parallelism.data_parallel_shard_degree
    tensor = parallelism.tensor_parallel_degree
    gathered_itemsize = _ITEMSIZES.get(parallelism.mixed_precision_param or "", itemsize)
    reduced_bytes = num_parameters * _ITEMSIZES.get(parallelism.mixed_precision_reduce or "", gathered_itemsize)
    num_gathers = 1 if parallelism.fsdp_reshard_after_forward == "never" else 2
    among_shards: dict[str, Any] = {"num_ranks": shards, "stride": tensor}
    gathered = Exchange(
        collective=Collective.ALL_GATHER,
        num_bytes=num_gathers * num_parameters * gathered_itemsize,
        num_messages=num_gathers * num_messages,
        **among_shards,
    )
    scattered = Exchange(
        collective=Collective.REDUCE_SCATTER, num_bytes=reduced_bytes, num_messages=num_messages, **among_shards
    )
    if copies == 1:
        return _place_reductions((gathered,), (scattered,), parallelism)
    among_copies = Exchange(
        collective=Collective.ALL_REDUCE,
        num_bytes=reduced_bytes / shards,
        num_ranks=copies,
        num_messages=num_messages,
        stride=tensor * shards,
    )
    return _place_reductions((gathered,), (scattered, among_copies), parallelism)


def _place_reductions(
    gathered: tuple[Exchange, ...], reduced: tuple[Exchange, ...], parallelism: Parallelism
) -> Communication:
    """Return the collectives with gradients reduced in the last pass of a step, or in each."""
    if parallelism.synchronizes_last:
        return Communication(every_pass=gathered, last_pass=reduced)
    return Communication(every_pass=gathered + reduced)
