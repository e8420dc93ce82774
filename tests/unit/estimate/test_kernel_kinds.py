"""Which kernels run on tensor cores: products in float32 where TF32 is allowed, no convolution of single channels."""

from __future__ import annotations

import pytest

from bexplore.estimate.kernels import MatrixProduct, Stream
from bexplore.estimate.model import Bound, estimate_kernels
from bexplore.host.accelerators import DEVICES


def seconds(device: str, **fields) -> float:
    product = MatrixProduct(rows=8192, columns=4096, inner=4096, **fields)
    (found,) = estimate_kernels(DEVICES[device], [product])
    return found.seconds


@pytest.mark.parametrize(("device", "least", "most"), [("h100", 5.0, 8.0), ("a100", 6.0, 9.0), ("v100", 1.0, 1.0)])
def test_tf32_speeds_a_large_product_up_as_the_peaks_tell(device, least, most):
    assert least <= seconds(device, itemsize=4) / seconds(device, itemsize=4, allows_tf32=True) <= most


def test_tf32_takes_twice_the_time_of_half_precision():
    assert seconds("a100", itemsize=4, allows_tf32=True) == pytest.approx(2 * seconds("a100"), rel=0.1)


def test_a_convolution_of_each_channel_alone_waits_for_loads_beyond_its_bytes():
    small, wide = (Stream(num_bytes=2e8, flops=flops) for flops in (0.0, 2e10))
    short, long = estimate_kernels(DEVICES["h100"], [small, wide])
    assert long.seconds > 5 * short.seconds
    assert long.bound is Bound.ARITHMETIC and long.relative_sd > short.relative_sd
