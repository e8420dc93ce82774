"""Times of collectives by the links of devices, and what of them computation hides."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bexplore.estimate.collectives import (
    BACKWARD_SHARE,
    Collective,
    Communication,
    Exchange,
    Interconnect,
    PassExposure,
    StepExposure,
)
from bexplore.estimate.model import Bound, Estimate, add_communication
from bexplore.host.accelerators import DEVICES, LinkKind

MIB, GIB = 2**20, 2**30


def links(device: str = "a100", network_bytes_per_s: float | None = None) -> Interconnect:
    found = Interconnect.find(DEVICES[device], network_bytes_per_s)
    assert found is not None
    return found


class Steady:
    """A network on which every collective takes a second."""

    def seconds(self, collective, num_bytes, num_ranks, stride=1):
        return 1.0


def test_devices_are_joined_by_nvlink_by_pcie_or_by_nothing_that_is_known():
    assert (links("h100").links.kind, links("h100").links.bytes_per_s) == (LinkKind.NVLINK, 18 * 20.6e9)
    assert (links("l40s").links.kind, links("l40s").links.bytes_per_s) == (LinkKind.PCIE, 24e9)
    assert links("rtx-4060").links.bytes_per_s == 12e9  # eight lanes
    assert DEVICES["gh200"].links is None and DEVICES["mi300x"].links is None
    assert Interconnect.find(DEVICES["gh200"]) is None


@pytest.mark.parametrize("device", [key for key, device in DEVICES.items() if device.links is not None])
def test_every_device_with_links_has_times(device):
    for collective in Collective:
        assert 0 < links(device).seconds(collective, MIB, 8) < math.inf


def test_a_large_collective_takes_its_bytes_over_the_links_and_a_small_one_its_steps():
    large = links().seconds(Collective.ALL_GATHER, GIB, 8)
    assert large == pytest.approx(7 / 8 * GIB / 240e9, rel=0.02)
    small = links().seconds(Collective.ALL_GATHER, 8, 8)
    assert small == pytest.approx(6.6e-6 + 7 * 0.6e-6, rel=0.01)
    assert links().seconds(Collective.ALL_REDUCE, 8, 8) > small


def test_one_rank_and_no_bytes_take_no_time():
    assert links().seconds(Collective.ALL_REDUCE, GIB, 1) == 0.0
    assert links().seconds(Collective.ALL_REDUCE, 0, 8) == 0.0


def test_a_switch_that_adds_up_makes_an_all_reduce_of_more_than_two_devices_faster_than_a_ring():
    ring = 2 * links("h100").seconds(Collective.REDUCE_SCATTER, GIB, 8)
    assert links("h100").seconds(Collective.ALL_REDUCE, GIB, 8) == pytest.approx(ring * 370 / 480, rel=0.03)
    pair = 2 * links("h100").seconds(Collective.REDUCE_SCATTER, GIB, 2)
    assert links("h100").seconds(Collective.ALL_REDUCE, GIB, 2) == pytest.approx(pair, rel=0.01)


def test_a_slower_network_between_nodes_bounds_a_collective_of_several():
    within, between = links(), links(network_bytes_per_s=25e9)
    assert between.seconds(Collective.ALL_REDUCE, GIB, 8) == within.seconds(Collective.ALL_REDUCE, GIB, 8)
    assert between.seconds(Collective.ALL_GATHER, GIB, 16) == pytest.approx(15 / 16 * GIB / 25e9, rel=0.02)
    small = between.seconds(Collective.ALL_REDUCE, 1024, 16)
    assert small > within.seconds(Collective.ALL_REDUCE, 1024, 16)


def test_a_tree_is_faster_than_a_ring_of_many_nodes_for_small_messages():
    many = links(network_bytes_per_s=100e9)
    assert many.seconds(Collective.ALL_REDUCE, 1024, 512) < 2 * many.seconds(Collective.REDUCE_SCATTER, 1024, 512) / 5


def test_ranks_that_lie_apart_are_in_more_nodes():
    found = links(network_bytes_per_s=25e9)
    near, far = (found.seconds(Collective.ALL_REDUCE, GIB, 4, stride) for stride in (1, 8))
    assert far > 5 * near


def test_an_unknown_network_is_told_and_counted_as_one_node():
    assert links().knows(8) and not links().knows(16) and links(network_bytes_per_s=1e9).knows(16)
    assert links().seconds(Collective.ALL_REDUCE, GIB, 16) < 16 * GIB / 240e9
    assert "as if all 16 ranks were in one node" in links().describe(16)
    assert links().describe(8) == "NVLink at 240 GB/s, not timed"
    assert "25 GB/s between nodes of 8" in links(network_bytes_per_s=25e9).describe(16)


def reduced(num_messages: int = 10) -> Exchange:
    return Exchange(collective=Collective.ALL_REDUCE, num_bytes=GIB, num_ranks=8, num_messages=num_messages)


def test_gradients_are_hidden_by_the_backward_half_but_for_the_last_message():
    exposure = Communication(last_pass=(reduced(),)).expose(Steady(), is_last=True)
    assert (exposure.seconds, exposure.last_s) == (10.0, 1.0)
    assert exposure.exposed_s(100.0) == pytest.approx(1.0)
    assert exposure.exposed_s(9.0) == pytest.approx(10.0 - BACKWARD_SHARE * 9.0)
    assert exposure.exposed_s(np.array([100.0, 0.0]), np.array([2.0, 2.0])) == pytest.approx([2.0, 20.0])
    assert Communication(last_pass=(reduced(),)).expose(Steady(), is_last=False).exposed_s(9.0) == 0.0


def test_no_overlap_hides_nothing():
    exposure = Communication(every_pass=(reduced(),)).expose(Steady(), 0.0, is_last=False)
    assert exposure.exposed_s(100.0) == pytest.approx(10.0)


def test_what_the_next_layer_waits_for_is_never_hidden():
    exposure = Communication(waited=(reduced(4),)).expose(Steady(), is_last=False)
    assert exposure.exposed_s(100.0) == pytest.approx(4.0)


def test_more_passes_of_a_step_share_one_reduction():
    inner, last = PassExposure(), PassExposure(beside_s=10.0, last_s=1.0, beside_share=0.5)
    for last_share, mean_s in ((1.0, 5.0), (0.25, 1.25), (0.0, 0.0)):
        step = StepExposure(inner=inner, last=last, last_share=last_share)
        assert step.exposed_s(10.0) == pytest.approx(mean_s)
        assert step.seconds == pytest.approx(10.0 * last_share)


def one_pass(relative_sd: float = 0.0) -> Estimate:
    return Estimate(seconds=1.0, relative_sd=relative_sd, own_sd=0.0, shares={Bound.ARITHMETIC: 1.0})


def exchanged(beside_s: float, beside_share: float) -> StepExposure:
    last = PassExposure(beside_s=beside_s, last_s=0.1, beside_share=beside_share)
    return StepExposure(inner=PassExposure(), last=last, last_share=1.0)


def test_a_pass_is_as_unsure_as_the_links_by_the_share_that_it_waits_for_them():
    hidden = add_communication(one_pass(), exchanged(beside_s=0.5, beside_share=1.0), relative_sd=0.4)
    waited = add_communication(one_pass(), exchanged(beside_s=1.0, beside_share=0.0), relative_sd=0.4)
    assert (hidden.seconds, waited.seconds) == pytest.approx((1.1, 2.0))
    assert hidden.relative_sd == pytest.approx(math.log(1 + 0.1 / 1.1 * (math.exp(0.4) - 1)))
    assert waited.relative_sd == pytest.approx(math.log((1 + math.exp(0.4)) / 2))
    assert waited.shares[Bound.COMMUNICATION] == pytest.approx(0.5)


def test_an_unsure_computation_leaves_a_pass_that_waits_for_its_links_sure():
    alone, waiting = (
        add_communication(one_pass(0.2), exchanged(beside_s=beside_s, beside_share=1.0), relative_sd=0.0)
        for beside_s in (0.0, 50.0)
    )
    assert alone.relative_sd == pytest.approx(math.log((math.exp(0.2) + 0.1) / 1.1))
    assert waiting.relative_sd < 0.01
