from __future__ import annotations

import pytest

from bexplore.job import Parallelism
from bexplore.planning.communication import Communication, communication_of
from bexplore.planning.network_figures import Collective, NetworkFigures

GB = 1e9


def test_one_device_exchanges_nothing():
    assert communication_of(Parallelism(), GB) == Communication()


def test_replicas_reduce_their_gradients_once_a_step_in_buckets():
    found = communication_of(Parallelism(data_parallel_replicate_degree=4), GB)
    (reduced,) = found.last_pass
    assert found.every_pass == ()
    assert (reduced.collective, reduced.num_ranks) == (Collective.ALL_REDUCE, 4)
    assert reduced.num_messages == round(GB / (25 * 2**20))
    assert found.sent_bytes(is_last=True) == pytest.approx(2 * 3 / 4 * GB)


def test_replicas_that_reduce_in_every_pass_do_so_in_the_first_ones_too():
    found = communication_of(Parallelism(data_parallel_replicate_degree=4, gradient_sync="every"), GB)
    assert found.sent_bytes(is_last=False) == found.sent_bytes(is_last=True) > 0


@pytest.mark.parametrize(("reshard", "gathers"), [("default", 2), ("always", 2), ("never", 1)])
def test_shards_are_gathered_before_each_half_of_a_pass_unless_they_are_kept(reshard, gathers):
    parallelism = Parallelism(data_parallel_shard_degree=8, fsdp_reshard_after_forward=reshard)
    found = communication_of(parallelism, GB, num_blocks=10)
    assert found.sent_bytes(is_last=False) == pytest.approx(gathers * 7 / 8 * GB)
    assert found.sent_bytes(is_last=True) == pytest.approx((gathers + 1) * 7 / 8 * GB)


def test_copies_of_shards_reduce_the_shards_among_each_other():
    parallelism = Parallelism(data_parallel_shard_degree=8, data_parallel_replicate_degree=2)
    found = communication_of(parallelism, GB)
    assert [one.collective for one in found.last_pass] == [Collective.REDUCE_SCATTER, Collective.ALL_REDUCE]
    assert found.last_pass[1].sent_bytes == pytest.approx(2 * 1 / 2 * GB / 8)


def test_the_last_message_is_never_hidden():
    network = NetworkFigures.stated(100 * GB)
    found = communication_of(Parallelism(data_parallel_replicate_degree=2), GB)
    assert found.exposed_s(network, 100.0, 1.0, is_last=True) == pytest.approx(
        network.seconds(Collective.ALL_REDUCE, GB / found.last_pass[0].num_messages, 2)
    )
