from __future__ import annotations

import dataclasses
import json
import random

import pytest

from bexplore.errors import UserInputError
from bexplore.estimate.collectives import Collective
from bexplore.planning.network import (
    MEMORY_SHARE,
    Link,
    NetworkFigures,
    TimedCollective,
    explain_sent_bytes,
    find_slow_parts,
    group_senders,
    limit_tensor_bytes,
)
from tests.unit.planning.builders import timed_network

MIB = 2**20


def test_a_ring_sends_the_tensor_twice_for_an_all_reduce_once_otherwise():
    assert Collective.ALL_REDUCE.sent_share(4) == pytest.approx(2 * 3 / 4)
    assert Collective.ALL_GATHER.sent_share(4) == Collective.REDUCE_SCATTER.sent_share(4) == pytest.approx(3 / 4)


def test_bandwidths_are_bytes_over_the_median_round():
    timed = TimedCollective.from_rounds(Collective.ALL_REDUCE, 8 * MIB, [1.0, 2.0, 4.0, 2.0, 2.0], 4)
    assert timed.algorithm_bytes_per_s == 4 * MIB
    assert timed.bus_bytes_per_s == 6 * MIB
    assert timed.median_s == 2.0


def test_the_time_of_a_size_that_was_timed_is_its_median():
    network = timed_network({MIB: 1e9, 4 * MIB: 2e9})
    assert network.seconds(Collective.ALL_REDUCE, 4 * MIB, 2) == pytest.approx(4 * MIB / 2e9)


def test_between_two_sizes_the_bandwidth_lies_between_theirs():
    seconds = timed_network({MIB: 1e9, 4 * MIB: 4e9}).seconds(Collective.ALL_REDUCE, 2 * MIB, 2)
    assert 2 * MIB / seconds == pytest.approx(2e9)


def test_bandwidth_holds_beyond_the_largest_size_time_below_the_smallest():
    network = timed_network({MIB: 1e9, 4 * MIB: 2e9})
    assert network.seconds(Collective.ALL_REDUCE, 400 * MIB, 2) == pytest.approx(400 * MIB / 2e9)
    assert network.seconds(Collective.ALL_REDUCE, 1000, 2) == pytest.approx(MIB / 1e9)


def test_one_rank_exchanges_nothing():
    assert NetworkFigures.stated(1e9).seconds(Collective.ALL_REDUCE, MIB, 1) == 0.0


def test_a_file_is_read_as_it_was_written(tmp_path):
    link = Link.from_rounds((0, 1), ("a", "b"), [1e9, 2e9, 3e9])
    network = dataclasses.replace(timed_network({MIB: 1e9}), links=(link,), notes=("a note",))
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


def written(tmp_path, **fields):
    """A network file with some values of its first collective, or of itself, replaced."""
    record = json.loads(json.dumps(dataclasses.asdict(timed_network({MIB: 1e9, 4 * MIB: 2e9}))))
    own = {name: value for name, value in fields.items() if name in record}
    record["timed"][0] |= {name: value for name, value in fields.items() if name not in record}
    path = tmp_path / "network.json"
    path.write_text(json.dumps(record | own))
    return path


@pytest.mark.parametrize(
    "fields",
    [
        {"bus_bytes_per_s": 0},
        {"bus_bytes_per_s": float("nan")},
        {"bus_bytes_per_s": "fast"},
        {"num_bytes": -1},
        {"num_bytes": 4 * MIB},
        {"median_s": None},
        {"num_ranks": 0},
        {"num_hosts": True},
        {"stated_bytes_per_s": 0.0},
        {"slow": [1]},
        {"slow": ["\x1b[31mred"]},
        {"device_name": 7},
    ],
    ids=str,
)
def test_a_value_that_no_network_has_is_an_error_with_a_hint(tmp_path, fields):
    with pytest.raises(UserInputError, match="is not what bexplore network writes") as error:
        NetworkFigures.read(written(tmp_path, **fields))
    assert "bexplore network" in error.value.hint


def test_a_file_larger_than_any_network_is_not_read(tmp_path):
    path = tmp_path / "network.json"
    path.write_text(" " * (16 * MIB + 1))
    with pytest.raises(UserInputError, match="larger than 16"):
        NetworkFigures.read(path)


def ring(speeds: list[float], hosts: str) -> list[Link]:
    count = len(speeds)
    return [
        Link(ranks=(rank, (rank + 1) % count), hosts=(hosts[rank], hosts[(rank + 1) % count]), bytes_per_s=speed)
        for rank, speed in enumerate(speeds)
    ]


def test_a_slow_link_is_named_with_its_ends():
    (text,) = find_slow_parts(ring([10e9, 10e9, 4e9, 10e9], "aaaa"))
    assert "rank 2 on a to rank 3 on a: 4 GB/s (±0%)" in text


def test_a_rank_whose_links_are_both_slow_is_named_once():
    (text,) = find_slow_parts(ring([10e9, 4e9, 4e9, 10e9, 10e9], "aaaaa"))
    assert text.startswith("rank 2 on a receives at 4 GB/s")


def test_links_between_hosts_are_not_compared_with_those_within():
    assert list(find_slow_parts(ring([100e9, 10e9, 100e9, 10e9], "aabb"))) == []


def rounds_of_ring(medians: list[float], noise: float, seed: int) -> list[Link]:
    """A ring on one host, of whose links each round differs by some share from the median."""
    draw = random.Random(seed)
    count = len(medians)
    return [
        Link.from_rounds((rank, (rank + 1) % count), ("a", "a"), [speed * draw.gauss(1.0, noise) for _ in range(9)])
        for rank, speed in enumerate(medians)
    ]


def test_a_link_has_the_median_of_its_rounds():
    assert Link.from_rounds((0, 1), ("a", "a"), [1e9, 9e9, 2e9]).bytes_per_s == 2e9


def test_links_that_are_alike_are_not_named_for_their_noise():
    named = [bool(list(find_slow_parts(rounds_of_ring([1e9] * 8, 0.4, seed)))) for seed in range(100)]
    assert sum(named) <= 5


def test_a_link_that_is_slow_in_every_round_is_named_beside_noise():
    for seed in range(20):
        (text,) = find_slow_parts(rounds_of_ring([1e9] * 5 + [0.3e9] + [1e9] * 2, 0.1, seed))
        assert text.startswith("rank 5 on a to rank 6 on a: 0.")


def test_one_disturbed_round_names_no_link_and_hides_none():
    rounds = [1e9] * 8 + [0.1e9]
    ring_of_four = [Link.from_rounds((rank, (rank + 1) % 4), ("a", "a"), rounds) for rank in range(3)]
    assert list(find_slow_parts([*ring_of_four, Link.from_rounds((3, 0), ("a", "a"), rounds)])) == []
    assert len(list(find_slow_parts([*ring_of_four, Link.from_rounds((3, 0), ("a", "a"), [0.4e9] * 8 + [5e9])]))) == 1


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 5, 8, 9])
def test_every_rank_sends_once_and_links_that_run_together_share_no_rank(num_ranks):
    groups = list(group_senders(num_ranks))
    assert sorted(sender for group in groups for sender in group) == list(range(num_ranks))
    for group in groups:
        ends = [rank for sender in group for rank in (sender, (sender + 1) % num_ranks)]
        assert len(ends) == len(set(ends))


def test_ranks_of_one_memory_share_what_is_free_with_room_for_copies():
    assert limit_tensor_bytes(100e9, 4) == pytest.approx(MEMORY_SHARE * 25e9)
    assert 2 * MEMORY_SHARE < 1


def test_gloo_sends_an_all_reduce_for_a_reduce_scatter_and_nccl_does_not():
    (note,) = explain_sent_bytes("gloo", 4)
    assert "each rank sends 1.5 times the tensor, and the bus bandwidth counts 0.75" in note
    assert list(explain_sent_bytes("nccl", 4)) == []
