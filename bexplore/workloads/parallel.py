"""One rank of a distributed training: its process group, its mesh, and a model that shares its work with the others.

Where no process group exists, one is made in which this process is the only rank that is there: a rank of N on one
device, with real tensors and the memory of a real rank. Its collectives are copies, so its times hold no communication.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from bexplore.errors import require
from bexplore.job import Job, Parallelism
from bexplore.workloads.modules import ParallelModel, TensorPlan, find_blocks, is_fake, matches_path
from bexplore.workloads.torch_private import make_chunks_on_demand, register_fake_process_group, unset_fake_temporarily

# Names of the dimensions of a mesh, the outermost first, as in torchtitan.
REPLICATE, SHARD, TENSOR = "dp_replicate", "dp_shard", "tp"

_BLOCKS = "explore.parallelism.blocks"


def make_mesh(job: Job) -> DeviceMesh:
    """Return the mesh of a job's ranks; without a process group, as the first rank of one that is not there."""
    shared = job.parallelism
    degrees = {
        REPLICATE: shared.data_parallel_replicate_degree,
        SHARD: shared.data_parallel_shard_degree,
        TENSOR: shared.tensor_parallel_degree,
    }
    used = {name: degree for name, degree in degrees.items() if degree > 1}
    if not dist.is_initialized():
        register_fake_process_group()
        store = dist.HashStore()  # type: ignore[attr-defined]  # imported there
        dist.init_process_group("fake", rank=0, world_size=shared.num_ranks, store=store)
    require(
        dist.get_world_size() == shared.num_ranks,
        f"The launcher started {dist.get_world_size()} ranks, and the job has {shared.num_ranks} ({shared}).",
        "Correct the launcher's number of ranks, or explore.parallelism.",
    )
    with unset_fake_temporarily():
        return init_device_mesh(torch.device(job.device).type, tuple(used.values()), mesh_dim_names=tuple(used))


@contextlib.contextmanager
def use_real_meshes() -> Iterator[None]:
    """Make meshes of real tensors within, under a mode of fake ones too: which ranks they hold is read."""
    make = DeviceMesh.__init__

    def make_real(self: DeviceMesh, *arguments: Any, **named: Any) -> None:
        with unset_fake_temporarily():
            make(self, *arguments, **named)

    DeviceMesh.__init__ = make_real  # type: ignore[method-assign]  # torch has no door for it
    try:
        yield
    finally:
        DeviceMesh.__init__ = make  # type: ignore[method-assign]  # as above


def is_alone() -> bool:
    """Return whether the other ranks of this process's group are not there."""
    return dist.is_initialized() and dist.get_backend() == "fake"


def parallelize(job: Job, loss_module: nn.Module, tensor_plan: TensorPlan | None) -> ParallelModel:
    """Share the work of a loss module over the ranks of its job, before its optimizer is made."""
    shared = job.parallelism
    mesh = make_mesh(job)
    if shared.tensor_parallel_degree > 1:
        _share_matrices(loss_module, mesh[TENSOR], tensor_plan)
    if shared.is_replicated_only:
        return _replicate(loss_module, mesh[REPLICATE], shared)
    blocks = find_blocks(loss_module, shared.blocks, setting=_BLOCKS)
    if not shared.is_sharded:
        return ParallelModel(loss_module=loss_module, compiled_modules=blocks, is_compiled_by_block=True)
    _shard(loss_module, blocks, mesh, shared)
    return ParallelModel(
        loss_module=loss_module,
        compiled_modules=blocks,
        synchronize=_synchronize_shards(loss_module),
        is_compiled_by_block=True,
    )


def _share_matrices(loss_module: nn.Module, mesh: DeviceMesh, plan: TensorPlan | None) -> None:
    require(
        plan is not None,
        "There is no tensor-parallel plan for this model.",
        "Use the built-in decoder, a model of transformers that has one (base_model_tp_plan), or tensor_parallel_degree"
        ": 1.",
    )
    assert plan is not None  # as required
    styles: dict[str, type[ParallelStyle]] = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}
    for name, module in loss_module.named_modules():
        style = next((kind for pattern, kind in plan.items() if matches_path(name, pattern)), None)
        if style is None:
            continue
        shared = module.out_features if style == "colwise" else module.in_features
        require(
            int(shared) % mesh.size() == 0,
            f"{name} has {shared} {'outputs' if style == 'colwise' else 'inputs'}, which {mesh.size()} ranks cannot "
            "share equally.",
            "Lower explore.parallelism.tensor_parallel_degree.",
        )
        parallelize_module(module, mesh, styles[style]())


def _replicate(loss_module: nn.Module, mesh: DeviceMesh, shared: Parallelism) -> ParallelModel:
    """Wrap in DistributedDataParallel; what is inside is compiled, which gives one graph without a break."""
    trained = [parameter for parameter in loss_module.parameters() if parameter.requires_grad]
    bucket_bytes = sum(parameter.numel() * parameter.itemsize for parameter in trained)
    if is_fake() or not trained:
        # Its reducer is C++ and reads the memory of parameters, which fake ones lack: only its buckets are accounted.
        return ParallelModel(
            loss_module=loss_module,
            compiled_modules=[loss_module],
            bucket_bytes=bucket_bytes if trained else 0,
        )
    wrapped = DistributedDataParallel(
        loss_module,
        process_group=mesh.get_group(),
        bucket_cap_mb=shared.bucket_cap_mb,
        gradient_as_bucket_view=shared.gradient_as_bucket_view,
        find_unused_parameters=shared.find_unused_parameters,
    )
    if is_alone():
        wrapped.register_comm_hook(None, _stays_here)
    return ParallelModel(
        loss_module=wrapped,
        compiled_modules=[loss_module],
        synchronize=_synchronize_replicas(wrapped),
        bucket_bytes=bucket_bytes,
    )


def _synchronize_replicas(module: DistributedDataParallel) -> Callable[[bool], AbstractContextManager[object]]:
    @contextlib.contextmanager
    def synchronize(is_synchronized: bool) -> Iterator[None]:
        with contextlib.nullcontext() if is_synchronized else module.no_sync():
            yield
        if is_synchronized:
            # Buckets are made anew once, in the order of the first gradients: here, where no peak is read yet, and not
            # at the beginning of the second pass. Source: `_pre_forward` in torch/nn/parallel/distributed.py.
            module.reducer._rebuild_buckets()

    return synchronize


def _stays_here(_state, bucket):  # type: ignore[no-untyped-def]  # torch takes no annotations that are texts
    """Complete the reduction of a bucket at once: the reducer waits for a value that no other rank sends."""
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def _shard(loss_module: nn.Module, blocks: list[nn.Module], mesh: DeviceMesh, shared: Parallelism) -> None:
    """Shard each block, then what is left, as torchtitan does."""
    copies = shared.data_parallel_replicate_degree > 1
    options: dict[str, Any] = {"mesh": mesh[REPLICATE, SHARD] if copies else mesh[SHARD]}
    types = {"param_dtype": shared.mixed_precision_param, "reduce_dtype": shared.mixed_precision_reduce}
    if any(types.values()):
        given = {name: getattr(torch, dtype) for name, dtype in types.items() if dtype is not None}
        options["mp_policy"] = MixedPrecisionPolicy(**given)
    policy = shared.fsdp_reshard_after_forward
    with make_chunks_on_demand() if is_fake() else contextlib.nullcontext():
        for block in blocks:
            fully_shard(block, reshard_after_forward=policy != "never", **options)
        fully_shard(loss_module, reshard_after_forward=policy == "always", **options)


def _synchronize_shards(module: nn.Module) -> Callable[[bool], AbstractContextManager[object]]:
    assert isinstance(module, FSDPModule)  # `fully_shard` has made it one

    @contextlib.contextmanager
    def synchronize(is_synchronized: bool) -> Iterator[None]:
        module.set_requires_gradient_sync(is_synchronized)
        try:
            yield
        finally:
            module.set_requires_gradient_sync(True)

    return synchronize
