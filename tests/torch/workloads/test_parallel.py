"""Ranks that share a model: which modules are shared, what is refused, and that a pass trains as on one device."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from bexplore.errors import UserInputError
from bexplore.job import CompileSettings, Job, Parallelism, Precision
from bexplore.workloads import build
from bexplore.workloads.modules import find_blocks, local
from bexplore.workloads.parallel import make_mesh
from bexplore.workloads.torch_private import make_chunks_on_demand
from bexplore.workloads.workload import check_precision, convert_modules
from tests.torch.groups import leave_group

DECODER = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "vocab_size": 50, "max_position_embeddings": 8}
EAGER = CompileSettings(enabled=False)

pytestmark = pytest.mark.usefixtures("no_group_left")


def job(parallelism: Parallelism, **fields) -> Job:
    shared = {"parallelism": parallelism, "num_replicas": parallelism.num_replicas, "compile": EAGER}
    return Job(workload="decoder", model=DECODER, sequence_length=8, **shared | fields)


def of(**degrees) -> Parallelism:
    return Parallelism(**degrees)


def test_sharded_parameters_are_whole_in_name_and_a_share_in_memory():
    workload = build(job(of(data_parallel_shard_degree=4)))
    for parameter in workload.loss_module.parameters():
        assert isinstance(parameter, DTensor)
        assert local(parameter).size(0) == -(-parameter.size(0) // 4)
    assert workload.compiled_modules == list(workload.loss_module.decoder.blocks)
    assert workload.is_compiled_by_block
    assert workload.bucket_bytes == 0


def test_replicas_hold_buckets_of_one_more_copy_of_the_trained_gradients():
    workload = build(job(of(data_parallel_replicate_degree=4)))
    assert workload.bucket_bytes == sum(4 * parameter.numel() for parameter in workload.loss_module.parameters())
    assert not workload.is_compiled_by_block
    assert workload.compiled_modules == [workload.loss_module]


def test_a_pass_of_replicas_gives_the_loss_and_the_gradients_of_one_device():
    """Where a copy stands for a sum over replicas: each of them has the same samples."""
    found = []
    for parallelism in (of(), of(data_parallel_replicate_degree=4)):
        leave_group()
        workload = build(job(parallelism))
        loss = workload.forward_backward(workload.make_batch(2))
        found.append([loss, *(parameter.grad for parameter in workload.loss_module.parameters())])
    torch.testing.assert_close(*found)


def test_matrices_are_shared_by_columns_then_rows_with_a_finite_loss():
    workload = build(job(of(tensor_parallel_degree=4)))
    block = workload.loss_module.decoder.blocks[0]
    assert local(block.feed_forward.up.weight).shape == (32, 32)  # of 128 x 32
    assert local(block.feed_forward.down.weight).shape == (32, 32)  # of 32 x 128
    assert not isinstance(workload.loss_module.decoder.token_embedding.weight, DTensor)
    assert torch.isfinite(workload.forward_backward(workload.make_batch(2)))


def test_a_pass_that_reduces_nothing_leaves_no_gradient_of_a_shard():
    workload = build(job(of(data_parallel_shard_degree=2)))
    batch = workload.make_batch(2)
    workload.forward_backward(batch, synchronize=False)
    parameters = list(workload.loss_module.parameters())
    assert all(parameter.grad is None for parameter in parameters)
    workload.forward_backward(batch)
    assert all(isinstance(parameter.grad, DTensor) for parameter in parameters)


def test_buckets_are_made_anew_in_the_first_pass_and_not_in_the_second():
    workload = build(job(of(data_parallel_replicate_degree=2)))
    workload.forward_backward(workload.make_batch(2))
    wrapped = workload.forward_backward.__self__._loss_module
    assert not wrapped.reducer._rebuild_buckets()


@pytest.mark.parametrize(
    ("parallelism", "fields", "message"),
    [
        (of(tensor_parallel_degree=3), {}, "num_heads is 4, which 3 tensor-parallel ranks cannot share"),
        (of(data_parallel_shard_degree=2, blocks=("decoder.layers.*",)), {}, "which fits no module"),
        (of(data_parallel_shard_degree=2), {"optimizer": "LBFGS"}, "LBFGS"),
    ],
)
def test_what_ranks_cannot_share_is_refused(parallelism, fields, message):
    with pytest.raises(UserInputError, match=message):
        build(job(parallelism, **fields))


def test_gradients_are_not_scaled_where_ranks_share_some_matrices():
    scaled = job(of(tensor_parallel_degree=2), precision=Precision.AUTOCAST_FLOAT16, device="cuda:0")
    with pytest.raises(UserInputError, match="scales gradients") as error:
        check_precision(scaled)
    assert "autocast_bfloat16" in error.value.hint
    check_precision(job(of(data_parallel_shard_degree=2), precision=Precision.AUTOCAST_FLOAT16, device="cuda:0"))


def test_a_group_of_another_number_of_ranks_is_an_error_that_names_both():
    make_mesh(job(of(data_parallel_shard_degree=4)))
    assert dist.get_world_size() == 4
    with pytest.raises(UserInputError, match="started 4 ranks, and the job has 2"):
        make_mesh(job(of(data_parallel_shard_degree=2)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


def test_blocks_are_members_of_the_outermost_lists_of_the_users_classes():
    model = nn.ModuleDict(
        {"stem": nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), "body": nn.ModuleList([Block(), Block()])}
    )
    assert find_blocks(model, setting="blocks") == list(model["body"])
    assert find_blocks(model, ("body.1",), setting="blocks") == [model["body"][1]]
    with pytest.raises(UserInputError, match="no list of repeated blocks"):
        find_blocks(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), setting="blocks")


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 8, 250])
@pytest.mark.parametrize("num_chunks", [1, 2, 4, 64])
def test_chunks_on_demand_are_those_of_torch_and_empty_behind_them(rows, num_chunks):
    import torch.distributed.fsdp._fully_shard._fsdp_param as sharding

    tensor = torch.arange(2.0 * rows).view(rows, 2)
    made = sharding._chunk_with_empty(tensor, num_chunks, dim=0)
    with make_chunks_on_demand():
        chunks = sharding._chunk_with_empty(tensor, num_chunks, dim=0)
    assert len(list(chunks)) == len(made)
    for chunk, own in zip(chunks, made, strict=True):
        assert chunk.numel() == own.numel()
        assert torch.equal(chunk.flatten(), own.flatten())
    assert sharding._chunk_with_empty(tensor, num_chunks, dim=0)[0].shape == made[0].shape


def test_a_loss_module_passes_a_conversion_before_it_is_shared():
    seen = []

    class Noted:
        def __init__(self, loss_module: nn.Module) -> None:
            self.loss_module = loss_module

        def __enter__(self) -> None:
            seen.append({type(parameter) for parameter in self.loss_module.parameters()})

        def __exit__(self, *_error) -> None:
            seen.append({type(parameter.data) for parameter in self.loss_module.parameters()})

    with convert_modules(Noted):
        build(job(of(data_parallel_shard_degree=2)))
    assert seen == [{nn.Parameter}, {DTensor}]
    build(job(of(data_parallel_shard_degree=2)))
    assert len(seen) == 2
