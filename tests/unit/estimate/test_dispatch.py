"""A pass takes as long as its kernels or as its host, whichever is slower."""

from __future__ import annotations

import numpy as np
import pytest

from bexplore.estimate.dispatch import Dispatch, device_weight, host_seconds, overlap_seconds
from bexplore.estimate.kernels import MatrixProduct
from bexplore.estimate.model import Bound, estimate_sum
from bexplore.host.accelerators import DEVICES

EAGER = {Dispatch.OPERATOR: 500.0, Dispatch.BACKWARD_OPERATOR: 900.0, Dispatch.VIEW: 400.0}
COMPILED = {Dispatch.KERNEL: 200.0, Dispatch.GRAPH: 2.0}


def calls(rows: int) -> dict[MatrixProduct, float]:
    return {MatrixProduct(rows=rows, columns=4096, inner=4096): 100.0}


def test_a_small_pass_takes_as_long_as_its_host_and_a_large_one_as_its_kernels():
    host_s = host_seconds(EAGER)
    small, large = (estimate_sum(DEVICES["h100"], calls(rows), host_s=host_s) for rows in (16, 2**17))
    assert small.seconds == pytest.approx(host_s, rel=0.02)
    assert large.seconds == pytest.approx(large.kernels_s, rel=0.02)
    assert small.shares[Bound.HOST] > 0.5 > large.shares.get(Bound.HOST, 0.0)
    for one in (small, large):
        assert sum(one.shares.values()) == pytest.approx(1.0)


def test_without_a_host_a_pass_is_its_kernels():
    alone = estimate_sum(DEVICES["h100"], calls(64))
    assert alone.seconds == alone.kernels_s and Bound.HOST not in alone.shares


def test_the_errors_of_shapes_count_for_nothing_while_the_device_waits():
    waiting = estimate_sum(DEVICES["h100"], calls(16), host_s=1.0)
    assert waiting.own_sd < 1e-3 < estimate_sum(DEVICES["h100"], calls(16)).own_sd


def test_the_crossing_is_smooth_and_never_below_either():
    device_s = np.geomspace(0.01, 100.0, 50)
    both = overlap_seconds(device_s, np.ones(50))
    assert np.all(both >= np.maximum(device_s, 1.0)) and np.all(both <= device_s + 1.0)
    assert np.all(np.diff(both) >= 0)
    slopes = np.diff(np.log(both)) / np.diff(np.log(device_s))
    weights = [device_weight(one, 1.0) for one in np.sqrt(device_s[1:] * device_s[:-1])]
    assert slopes == pytest.approx(weights, abs=0.02)


def test_a_compiled_program_has_less_to_call_and_a_recorded_one_least():
    recorded = host_seconds(COMPILED, uses_cuda_graphs=True)
    assert recorded < host_seconds(COMPILED) < host_seconds(EAGER)
    assert host_seconds(EAGER, uses_cuda_graphs=True) == host_seconds(EAGER)  # nothing of it is recorded
