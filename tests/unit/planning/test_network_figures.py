from __future__ import annotations

import dataclasses
import json

import pytest

from bexplore.errors import UserInputError
from bexplore.planning.collective_times import slow_parts, timed_collective
from bexplore.planning.network_figures import Collective, Link, NetworkFigures
from tests.planning_builders import timed_network

MIB = 2**20


def test_a_ring_sends_twice_the_tensor_for_an_all_reduce_and_once_for_the_others():
    assert Collective.ALL_REDUCE.sent_share(4) == pytest.approx(2 * 3 / 4)
    assert Collective.ALL_GATHER.sent_share(4) == Collective.REDUCE_SCATTER.sent_share(4) == pytest.approx(3 / 4)


def test_bandwidths_are_bytes_over_the_median_round():
    timed = timed_collective(Collective.ALL_REDUCE, 8 * MIB, [1.0, 2.0, 4.0, 2.0, 2.0], 4)
    assert timed.algorithm_bytes_per_s == 4 * MIB
    assert timed.bus_bytes_per_s == 6 * MIB
    assert timed.median_s == 2.0


def test_the_time_of_a_size_that_was_timed_is_its_median():
    network = timed_network({MIB: 1e9, 4 * MIB: 2e9})
    assert network.seconds(Collective.ALL_REDUCE, 4 * MIB, 2) == pytest.approx(4 * MIB / 2e9)


def test_between_two_sizes_the_bandwidth_lies_between_theirs():
    seconds = timed_network({MIB: 1e9, 4 * MIB: 4e9}).seconds(Collective.ALL_REDUCE, 2 * MIB, 2)
    assert 2 * MIB / seconds == pytest.approx(2e9)


def test_beyond_the_largest_size_its_bandwidth_holds_and_below_the_smallest_its_time():
    network = timed_network({MIB: 1e9, 4 * MIB: 2e9})
    assert network.seconds(Collective.ALL_REDUCE, 400 * MIB, 2) == pytest.approx(400 * MIB / 2e9)
    assert network.seconds(Collective.ALL_REDUCE, 1000, 2) == pytest.approx(MIB / 1e9)


def test_one_rank_exchanges_nothing():
    assert NetworkFigures.stated(1e9).seconds(Collective.ALL_REDUCE, MIB, 1) == 0.0


def test_a_file_is_read_as_it_was_written(tmp_path):
    network = timed_network({MIB: 1e9})
    path = tmp_path / "network.json"
    path.write_text(json.dumps(dataclasses.asdict(network)))
    assert NetworkFigures.read(path) == network


@pytest.mark.parametrize("text", ["{}", '{"timed": 3, "links": [], "slow": []}', "[]", "no json"])
def test_a_file_that_is_none_of_ours_is_an_error_with_a_hint(tmp_path, text):
    path = tmp_path / "network.json"
    path.write_text(text)
    with pytest.raises(UserInputError) as error:
        NetworkFigures.read(path)
    assert error.value.hint


def ring(speeds: list[float], hosts: str) -> list[Link]:
    count = len(speeds)
    return [
        Link(ranks=(rank, (rank + 1) % count), hosts=(hosts[rank], hosts[(rank + 1) % count]), bytes_per_s=speed)
        for rank, speed in enumerate(speeds)
    ]


def test_a_slow_link_is_named_with_its_ends():
    (text,) = slow_parts(ring([10e9, 10e9, 4e9, 10e9], "aaaa"))
    assert "rank 2 on a to rank 3 on a: 4 GB/s" in text


def test_a_rank_whose_links_are_both_slow_is_named_once():
    (text,) = slow_parts(ring([10e9, 4e9, 4e9, 10e9, 10e9], "aaaaa"))
    assert text.startswith("rank 2 on a receives at 4 GB/s")


def test_links_between_hosts_are_not_compared_with_those_within():
    assert list(slow_parts(ring([100e9, 10e9, 100e9, 10e9], "aabb"))) == []
