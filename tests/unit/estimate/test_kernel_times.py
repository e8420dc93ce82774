"""Estimated times of kernels: near published ones, never above a peak, and honest about what is not known."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest

from bexplore.estimate.kernels import Attention, MatrixProduct, Stream
from bexplore.estimate.model import Bound, estimate_kernels, estimate_sum
from bexplore.host.accelerators import DEVICES

WITH_PEAKS = [
    key
    for key, device in DEVICES.items()
    if device.capability and device.bfloat16_flops_per_s and device.bandwidth_bytes_per_s
]


def product(rows: int, columns: int, inner: int, **more: int) -> MatrixProduct:
    return MatrixProduct(rows=rows, columns=columns, inner=inner, **more)


def seconds(key: str, *kernels: MatrixProduct | Stream | Attention) -> float:
    estimate = estimate_sum(DEVICES[key], Counter(kernels))
    assert estimate is not None
    return estimate.seconds


# Source: microsoft/vidur (MIT), profiling/compute, Llama-2-7b: median milliseconds.
@pytest.mark.parametrize(
    ("key", "kernel", "published_ms"),
    [
        ("h100", product(4096, 22016, 4096), 0.987),
        ("h100", product(4096, 4096, 11008), 0.441),
        ("h100", product(64, 12288, 4096), 0.0375),
        ("a100", product(4096, 22016, 4096), 3.324),
        ("a100", product(1024, 4096, 4096), 0.176),
        ("a40", product(4096, 22016, 4096), 6.688),
        ("a40", product(2048, 4096, 4096), 0.69),
        ("h100", Stream(num_bytes=3 * 2 * 4096 * 4096), 0.031),
        ("a100", Stream(num_bytes=2 * 2 * 4096 * 4096, kind="reduction"), 0.104),
        ("a40", Stream(num_bytes=3 * 2 * 4096 * 11008, kind="activation"), 0.495),
        # float32: sitar-lab/NeuSight (MIT), an A100 of 40 GB; waynehacking8/blackwell-tensorcore-kernels
        ("a100", product(512, 970, 6686, itemsize=4), 0.415),
        ("a100", product(999, 856, 4638, itemsize=4), 0.511),
        ("h100", product(8192, 8192, 8192, itemsize=4), 21.776),
    ],
)
def test_a_published_kernel_time_is_met_within_a_fifth(key, kernel, published_ms):
    assert seconds(key, kernel) * 1e3 == pytest.approx(published_ms, rel=0.2)


@pytest.mark.parametrize("key", WITH_PEAKS)
@pytest.mark.parametrize("size", [1, 17, 129, 4096, 32768])
def test_no_kernel_is_faster_than_the_published_peaks(key, size):
    device = DEVICES[key]
    kernel = product(size, 4096, 4096)
    assert seconds(key, kernel) > kernel.flops / device.bfloat16_flops_per_s
    moved = Stream(num_bytes=size * 8192 * 64)
    if device.chip is None or moved.num_bytes > device.chip.l2_bytes:
        assert seconds(key, moved) > moved.num_bytes / device.bandwidth_bytes_per_s


@pytest.mark.parametrize("key", ["h100", "a100", "a40", "l40s"])
def test_more_of_any_dimension_never_makes_a_product_much_faster(key):
    sizes = [16, 64, 128, 256, 512, 1024, 2048, 4096, 8192]
    for other in (512, 4096):
        for place in range(3):
            shapes = [[other] * place + [size] + [other] * (2 - place) for size in sizes]
            times = [seconds(key, product(*shape)) for shape in shapes]
            assert all(later > 0.98 * earlier for earlier, later in itertools.pairwise(times))


@pytest.mark.parametrize(
    ("kernel", "bound"),
    [
        (product(8192, 8192, 8192), Bound.ARITHMETIC),
        (product(16, 8192, 8192), Bound.BANDWIDTH),
        (product(64, 64, 64), Bound.LAUNCH),
        (product(128, 128, 16384), Bound.WAVES),  # a handful of tiles for 132 multiprocessors
        (Stream(num_bytes=1e9), Bound.BANDWIDTH),
        (Stream(num_bytes=1e3), Bound.LAUNCH),
    ],
)
def test_an_estimate_says_what_bounds_a_kernel(kernel, bound):
    estimates = estimate_kernels(DEVICES["h100"], [kernel])
    assert estimates is not None
    assert estimates[0].bound is bound


def test_a_product_that_is_not_aligned_takes_longer():
    assert seconds("h100", product(4096, 4096, 4095)) > 1.5 * seconds("h100", product(4096, 4096, 4096))


def test_a_batch_of_small_products_shares_one_launch():
    one, batch = product(128, 128, 64), product(128, 128, 64, batch=64)
    assert seconds("h100", batch) < 8 * seconds("h100", one)


def test_a_sum_over_many_positions_is_cut_into_parts():
    positions = 3_211_264  # of the gradient of a first convolution's weights, whose operands take 0.7 ms to read
    assert seconds("a100", product(64, 147, positions)) < 3 * 2 * (64 + 147) * positions / 2e12


def test_products_of_both_precisions_have_times_of_their_own():
    half, single = product(2048, 2048, 2048), product(2048, 2048, 2048, itemsize=4)
    together = estimate_kernels(DEVICES["a100"], [single, half, single])
    apart = [estimate_kernels(DEVICES["a100"], [kernel]) for kernel in (single, half, single)]
    assert together == [estimates[0] for estimates in apart if estimates]
    assert seconds("a100", single) > 8 * seconds("a100", half)


def test_the_sum_is_that_of_its_kernels_and_less_uncertain():
    kernels = [product(size, 4096, 4096) for size in (512, 1024, 2048)] + [Stream(num_bytes=1e8)]
    estimates, total = estimate_kernels(DEVICES["a100"], kernels), estimate_sum(DEVICES["a100"], Counter(kernels))
    assert estimates is not None
    assert total is not None
    assert total.seconds == pytest.approx(math.fsum(one.seconds for one in estimates))
    assert 0 < total.relative_sd < min(one.relative_sd for one in estimates)
    assert math.fsum(total.shares.values()) == pytest.approx(1)


def test_calls_of_one_kernel_share_its_error():
    kernel = product(4096, 4096, 4096)
    once, often = (estimate_sum(DEVICES["h100"], {kernel: calls}) for calls in (1, 100))
    assert once is not None
    assert often is not None
    assert (often.seconds, often.relative_sd) == pytest.approx((100 * once.seconds, once.relative_sd))


def test_fused_attention_takes_its_operations_or_its_bytes():
    forward, backward = (Attention(flops=1e12, num_bytes=1e6, is_backward=back) for back in (False, True))
    assert 1e12 / 312e12 < seconds("a100", forward) < seconds("a100", backward) < 3 * 1e12 / 312e12
    assert seconds("a100", Attention(flops=1e6, num_bytes=1e9, is_backward=False)) > 1e9 / 2e12


def test_a_device_that_was_not_fitted_on_is_less_certain():
    kernels = {product(4096, 4096, 4096): 50}
    fitted, other = (estimate_sum(DEVICES[key], kernels) for key in ("a40", "l40s"))
    assert fitted is not None
    assert other is not None
    assert other.relative_sd > fitted.relative_sd


@pytest.mark.parametrize("key", sorted(set(DEVICES) - set(WITH_PEAKS)))
def test_a_device_without_published_peaks_has_no_estimate(key):
    assert estimate_sum(DEVICES[key], {product(64, 64, 64): 1}) is None


def test_single_precision_has_its_own_peak_and_a_v100_has_that_alone():
    half, single = product(4096, 4096, 4096), product(4096, 4096, 4096, itemsize=4)
    assert seconds("h100", single) > 10 * seconds("h100", half)
    assert single.flops / 15.7e12 < seconds("v100", single) < 2 * single.flops / 15.7e12
    assert estimate_sum(DEVICES["v100"], {half: 1}) is None


def test_nothing_takes_no_time():
    estimate = estimate_sum(DEVICES["h100"], {})
    assert estimate is not None
    assert (estimate.seconds, estimate.relative_sd) == (0, 0)
