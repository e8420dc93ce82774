"""What the ranks of a job exchange, by how they share its parameters and by its trace."""

from __future__ import annotations

import dataclasses

import pytest

from bexplore.estimate.collectives import Collective, Communication
from bexplore.job import Job, Mode, Parallelism, Precision
from bexplore.trace.communication import find_communication, find_job_communication
from bexplore.trace.cost_model import KernelKind, Polynomial, TracedKernel
from tests.builders import cost_model

GB = 1e9


def test_one_device_exchanges_nothing():
    assert find_communication(Parallelism(), GB) == Communication()


def test_replicas_reduce_their_gradients_once_a_step_in_buckets():
    found = find_communication(Parallelism(data_parallel_replicate_degree=4), GB)
    (reduced,) = found.last_pass
    assert found.every_pass == ()
    assert (reduced.collective, reduced.num_ranks) == (Collective.ALL_REDUCE, 4)
    assert reduced.num_messages == round(GB / (25 * 2**20))
    assert found.sent_bytes(is_last=True) == pytest.approx(2 * 3 / 4 * GB)


def test_replicas_that_reduce_in_every_pass_do_so_in_the_first_ones_too():
    found = find_communication(Parallelism(data_parallel_replicate_degree=4, gradient_sync="every"), GB)
    assert found.sent_bytes(is_last=False) == found.sent_bytes(is_last=True) > 0


@pytest.mark.parametrize(("reshard", "gathers"), [("default", 2), ("always", 2), ("never", 1)])
def test_shards_are_gathered_before_each_half_pass_unless_kept(reshard, gathers):
    parallelism = Parallelism(data_parallel_shard_degree=8, fsdp_reshard_after_forward=reshard)
    found = find_communication(parallelism, GB, num_blocks=10)
    assert found.sent_bytes(is_last=False) == pytest.approx(gathers * 7 / 8 * GB)
    assert found.sent_bytes(is_last=True) == pytest.approx((gathers + 1) * 7 / 8 * GB)


def test_copies_of_shards_reduce_the_shards_among_each_other():
    parallelism = Parallelism(data_parallel_shard_degree=8, data_parallel_replicate_degree=2)
    found = find_communication(parallelism, GB)
    assert [one.collective for one in found.last_pass] == [Collective.REDUCE_SCATTER, Collective.ALL_REDUCE]
    assert found.last_pass[1].sent_bytes == pytest.approx(2 * 1 / 2 * GB / 8)


def test_shards_are_gathered_and_reduced_in_the_types_that_are_set_for_them():
    half = Parallelism(data_parallel_shard_degree=8, mixed_precision_param="bfloat16")
    gathered, reduced = find_communication(half, GB).in_pass(is_last=True)
    assert (gathered.num_bytes, reduced.num_bytes) == (2 * GB / 2, GB / 2)

    mixed = dataclasses.replace(half, mixed_precision_reduce="float32")
    gathered, reduced = find_communication(mixed, GB / 2, itemsize=2).in_pass(is_last=True)
    assert (gathered.num_bytes, reduced.num_bytes) == (2 * GB / 2, GB)


def test_ranks_of_a_copy_are_neighbours_and_copies_lie_farther_apart():
    parallelism = Parallelism(data_parallel_replicate_degree=2, data_parallel_shard_degree=4, tensor_parallel_degree=8)
    exchanged = find_communication(parallelism, GB).in_pass(is_last=True)
    assert [(one.num_ranks, one.stride) for one in exchanged] == [(4, 8), (4, 8), (2, 32)]


def job(mode: Mode = Mode.TRAIN, num_replicas: int = 1, **parallelism) -> Job:
    return Job(
        workload="decoder",
        mode=mode,
        precision=Precision.BFLOAT16,
        num_replicas=num_replicas,
        parallelism=Parallelism(**parallelism),
    )


ALL_REDUCE = TracedKernel(kind=KernelKind.ALL_REDUCE, sizes=(Polynomial(0, 1000),), itemsize=2, calls=6)
TRACE = cost_model(num_parameters=10**9, num_blocks=12, kernels=(ALL_REDUCE,))


def test_replicas_that_are_not_said_to_share_the_work_hold_whole_copies():
    (reduced,) = find_job_communication(job(num_replicas=8), TRACE, 1).last_pass
    assert (reduced.collective, reduced.num_ranks, reduced.num_bytes) == (Collective.ALL_REDUCE, 8, 2e9)


def test_what_ranks_of_tensor_parallelism_exchange_grows_with_the_size():
    found = find_job_communication(job(tensor_parallel_degree=4), TRACE, 8)
    assert (found.every_pass, found.last_pass) == ((), ())
    (one,) = found.waited
    assert (one.collective, one.num_ranks, one.num_messages) == (Collective.ALL_REDUCE, 4, 6)
    assert one.num_bytes == 6 * 8 * 1000


def test_a_collective_is_no_kernel_of_a_rank():
    assert TRACE.kernel_calls(8) == {}


def test_evaluation_gathers_shards_once_and_reduces_nothing():
    found = find_job_communication(job(Mode.EVAL, data_parallel_shard_degree=4, gradient_sync="every"), TRACE, 1)
    (gathered,) = found.in_pass(is_last=True)
    assert (gathered.collective, gathered.num_bytes) == (Collective.ALL_GATHER, 2e9)
    assert find_job_communication(job(Mode.EVAL, num_replicas=8), TRACE, 1).in_pass(is_last=True) == ()
