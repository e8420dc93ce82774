"""Times of kernels by a model: `estimate_kernels(device, kernels)`, and their sum over the calls of a program.

A matrix product is cut into tiles, which multiprocessors work off in waves; arithmetic overlaps with traffic. The
library's choice of a tile is not known: times of all candidates are averaged, the fast ones with most weight. A kernel
that only moves bytes takes its traffic, at least a floor. How wrong this is: `docs/estimates.md`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from bexplore.estimate.collectives import StepExposure
from bexplore.estimate.dispatch import HOST_SD, device_weight, overlap_seconds
from bexplore.estimate.efficiencies import (
    Efficiencies,
    ProductEfficiency,
    Spread,
    StreamEfficiency,
    find_efficiencies,
)
from bexplore.estimate.kernels import HALF_BYTES, SINGLE_BYTES, Attention, Kernel, MatrixProduct, Stream
from bexplore.host.accelerators import Device

# Rows and columns of the tiles of cuBLAS and CUTLASS (the names of their kernels have them), and into how many parts
# the inner dimension is split. With 64 x 256, 192 x 128 and 256 x 192, or 3, 6 and 8 parts, kernels left out had the
# same errors within 0.2 % (median) and 0.5 % (p90): benchmarks/kernel_times.py.
_TILES = ((64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128))
_SPLITS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# More than 4 parts have at least so many elements of the inner dimension each: gradients of weights sum over samples
# and positions. Chosen beyond the longest one of the fitted kernels, 11,008; benchmarks/whole_steps.py has such.
_FEW_PARTS, _LEAST_INNER = 4, 4096
_CANDIDATES = np.array([(*tile, parts) for tile in _TILES for parts in _SPLITS], dtype=float)
_NEVER_S = 1e9  # of what is no candidate
_INNER_STEP = 64  # elements of the inner dimension that a tile loads at once
_SUM_BYTES = SINGLE_BYTES  # of an element of a partial sum
# Elements: tensor cores load 16 bytes at once. Source: NVIDIA's matrix multiplication guide, whose figure shows about
# half the speed without; no kernel time here checks it.
_ALIGNMENT, _UNALIGNED_FACTOR = 8, 2.0
# Time at which half of the power limit's loss is reached. Source: benchmarks/kernel_times.py; with 0.1 ms the median
# error of kernels left out was 5.5 %, with 0.3 ms and 1 ms 5.3 %.
_CLOCK_S = 1e-3
# Share of the peak that fused attention reaches: (forward, backward), by whether the device has Hopper's tensor cores,
# which the kernels of PyTorch up to now do not fill. Source: FlashAttention-2, arXiv 2307.08691: 50 to 73 % and up to
# 63 % on an A100, up to 335 of 989 TFLOP/s on an H100, read from its figures; no kernel time here checks it.
_ATTENTION_SHARES = {False: (0.6, 0.5), True: (0.36, 0.33)}
_ATTENTION_SPREAD = Spread(kernel=0.25, common=0.0)  # of ln: that range over lengths and head sizes
_HOPPER = (9, 0)
# Tensor cores of Ampere and later round float32 to TF32, at half of the peak of half precision: NVIDIA's data sheets of
# A100 (156 of 312 TFLOP/s), H100 (495 of 989), A40 (74.8 of 149.7) and L4 (60 of 121).
_FIRST_TF32, _TF32_SHARE = (8, 0), 0.5


# Operations of a convolution of each channel alone, in each clock of a multiprocessor: its kernels wait for loads.
# Source: RepLKNet, arXiv 2203.06717, the table of PyTorch's latencies: 24 layers of 64 x 384 x 32 x 32 with a kernel of
# 7 x 7 take 54.8 ms on an RTX 2080 Ti (68 multiprocessors, 1.545 GHz): 1.08 TFLOP/s. No kernel time here checks it.
_SINGLE_CHANNEL_FLOPS = 10.3
_SINGLE_CHANNEL_SD = 0.5  # of ln; chosen: libraries have kernels of several kinds for it
# Standard deviation of ln of a whole pass beyond that of its kernels: what the model leaves out.
# Source: benchmarks/results/whole_steps.md, root mean square of 33 published passes of 15 jobs.
PROGRAM_SD = 0.165


class Bound(StrEnum):
    """What takes most of a kernel's time."""

    ARITHMETIC = "arithmetic"
    WAVES = "waves"  # too few tiles, or too few in the last wave: multiprocessors wait
    BANDWIDTH = "bandwidth"
    LAUNCH = "launch"
    HOST = "host"  # the device waits for the host's next call
    COMMUNICATION = "communication"  # the device waits for other ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelEstimate:
    """The estimated time of one kernel."""

    seconds: float
    relative_sd: float  # standard deviation of ln, of this kernel's own error
    bound: Bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The estimated time of kernels that run one after the other."""

    seconds: float
    relative_sd: float  # standard deviation of ln of the sum
    # The part of it that changes with a little of the size, by the tiles of products. Errors of other kernels change
    # slowly, if at all: benchmarks/results/estimated_scores.md.
    own_sd: float
    shares: Mapping[Bound, float]  # of the time, by what bounds each kernel
    kernels_s: float = 0.0  # of the kernels alone
    host_s: float = 0.0  # of the host's calls alone; 0 where they are not known
    communication: StepExposure | None = None  # what ranks exchange meanwhile; None where nothing is counted
    exposed_s: float = 0.0  # of that, which computation does not hide and `seconds` hold

    @property
    def alone_s(self) -> float:
        """Seconds of a rank that exchanges nothing."""
        return self.seconds - self.exposed_s

    @property
    def replica_s(self) -> float:
        """Seconds of a replica that exchanges nothing with others; its own ranks may share matrices."""
        return self.alone_s + (0.0 if self.communication is None else self.communication.inner.waited_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """What a device's makers publish of it."""

    num_multiprocessors: int
    flops_per_s: Mapping[int, float | None]  # dense, by bytes of an element
    bytes_per_s: float
    cache_bytes: int  # of the second level
    clocks_per_s: float = math.inf  # the highest of the multiprocessors
    tf32_flops_per_s: float = 0.0  # 0 for a device without

    def uses_tf32(self, kernel: Kernel) -> bool:
        """Return whether a product in float32 runs on tensor cores."""
        return isinstance(kernel, MatrixProduct) and kernel.allows_tf32 and self.tf32_flops_per_s > 0

    @classmethod
    def of(cls, device: Device) -> Peaks:
        """Return the peaks of a CUDA device whose bandwidth is published."""
        assert device.num_multiprocessors and device.bandwidth_bytes_per_s
        has_tf32 = device.capability is not None and device.capability >= _FIRST_TF32
        return cls(
            num_multiprocessors=device.num_multiprocessors,
            flops_per_s={HALF_BYTES: device.bfloat16_flops_per_s, SINGLE_BYTES: device.float32_flops_per_s},
            tf32_flops_per_s=has_tf32 * _TF32_SHARE * (device.bfloat16_flops_per_s or 0.0),
            bytes_per_s=device.bandwidth_bytes_per_s,
            cache_bytes=device.chip.l2_bytes if device.chip is not None else 0,
            clocks_per_s=device.chip.clock_khz * 1e3 if device.chip is not None else math.inf,
        )


@dataclass(frozen=True, slots=True)
class Shapes:
    """Matrix products as arrays (num_products,)."""

    rows: np.ndarray
    columns: np.ndarray
    inner: np.ndarray
    batch: np.ndarray
    itemsize: np.ndarray
    on_tensor_cores: np.ndarray | bool = False  # whether they run there in float32, rounded to TF32

    @classmethod
    def of(cls, peaks: Peaks, products: Sequence[MatrixProduct]) -> Shapes:
        """Return the shapes of products on a device."""
        sizes = [(one.rows, one.columns, one.inner, one.batch, one.itemsize) for one in products]
        rows, columns, inner, batch, itemsize = np.array(sizes, dtype=float).T
        on_tensor_cores = np.array([peaks.uses_tf32(one) for one in products])
        return cls(rows, columns, inner, batch, itemsize, on_tensor_cores)

    @property
    def flops(self) -> np.ndarray:
        """Operations."""
        return 2 * self.batch * self.rows * self.columns * self.inner

    @property
    def num_bytes(self) -> np.ndarray:
        """Bytes of operands and results, each once."""
        elements = self.rows * self.inner + self.inner * self.columns + self.rows * self.columns
        return self.itemsize * self.batch * elements

    def find_peaks(self, peaks: Peaks) -> np.ndarray:
        """Return the operations a second that the device can do in each product's precision."""
        own = np.array([peaks.flops_per_s[int(itemsize)] for itemsize in self.itemsize], dtype=float)
        return np.where(self.on_tensor_cores, peaks.tf32_flops_per_s, own)


def estimate_sum(device: Device, calls: Mapping[Kernel, float], *, host_s: float = 0.0) -> Estimate | None:
    """Return the time of kernels that run one after the other; None where `estimate_kernels` has none.

    The error of a kernel is the same in all its calls, and independent of that of another shape. Beside it, kernels of
    one kind have an error in common.

    Args:
        calls: How often each kernel runs.
        host_s: Seconds of the host for its calls, which run beside the kernels.
    """
    found = find_efficiencies(device)
    times = estimate_kernels(device, list(calls))
    if found is None or times is None:
        return None
    efficiencies, transfer_sd = found
    parts = [(kernel, time, calls[kernel] * time.seconds) for kernel, time in zip(calls, times, strict=True)]
    seconds = math.fsum(part for _, _, part in parts)
    if not seconds:
        return Estimate(seconds=0.0, relative_sd=0.0, own_sd=0.0, shares={})
    peaks = Peaks.of(device)
    common = math.fsum(_find_spread(peaks, efficiencies, kernel).common * part for kernel, _, part in parts)
    own = math.hypot(*(time.relative_sd * part for _, time, part in parts))
    of_products = (time.relative_sd * part for kernel, time, part in parts if isinstance(kernel, MatrixProduct))
    shares = {bound: math.fsum(part for _, time, part in parts if time.bound is bound) / seconds for bound in Bound}
    alone = Estimate(
        seconds=seconds,
        relative_sd=math.hypot(common / seconds, own / seconds, transfer_sd),
        own_sd=math.hypot(*of_products) / seconds,
        shares={bound: share for bound, share in shares.items() if share},
        kernels_s=seconds,
    )
    return _add_host(alone, host_s)


def _add_host(alone: Estimate, host_s: float) -> Estimate:
    """Return the time of kernels whose host takes some seconds for its calls; what the device waits is the host's."""
    seconds = float(overlap_seconds(np.array(alone.kernels_s), np.array(host_s)))
    weight = device_weight(alone.kernels_s, host_s)
    shares = {bound: share * alone.kernels_s / seconds for bound, share in alone.shares.items()}
    waiting = 1.0 - alone.kernels_s / seconds
    return replace(
        alone,
        seconds=seconds,
        host_s=host_s,
        relative_sd=math.hypot(weight * alone.relative_sd, (1.0 - weight) * HOST_SD),
        own_sd=weight * alone.own_sd,
        shares=shares | ({Bound.HOST: waiting} if waiting > 0 else {}),
    )


def add_communication(alone: Estimate, communication: StepExposure, *, relative_sd: float) -> Estimate:
    """Return the time of a pass with what its ranks exchange, the mean over the passes of a step.

    Args:
        relative_sd: Standard deviation of ln of the seconds of collectives.
    """

    def total_s(compute_factor: float = 1.0, factor: float = 1.0) -> float:
        compute_s = compute_factor * alone.seconds
        return compute_s + float(communication.exposed_s(compute_s, factor))

    seconds = total_s()
    by_compute = math.log(total_s(compute_factor=math.exp(alone.relative_sd)) / seconds)
    by_collectives = math.log(total_s(factor=math.exp(relative_sd)) / seconds)
    shares = {bound: share * alone.seconds / seconds for bound, share in alone.shares.items()}
    waiting = 1.0 - alone.seconds / seconds
    return replace(
        alone,
        seconds=seconds,
        relative_sd=math.hypot(by_compute, by_collectives),
        shares=shares | ({Bound.COMMUNICATION: waiting} if waiting > 0 else {}),
        communication=communication,
        exposed_s=seconds - alone.seconds,
    )


def _find_spread(peaks: Peaks, efficiencies: Efficiencies, kernel: Kernel) -> Spread:
    if isinstance(kernel, MatrixProduct):
        return _find_numbers(peaks, efficiencies, kernel)[1]
    return _ATTENTION_SPREAD if isinstance(kernel, Attention) else efficiencies.stream_spread


def _find_numbers(peaks: Peaks, efficiencies: Efficiencies, product: MatrixProduct) -> tuple[ProductEfficiency, Spread]:
    """Return the numbers of a product's arithmetic: tensor cores have those of half precision, also with TF32.

    No public kernel time in TF32 checks that.
    """
    if product.itemsize == HALF_BYTES or peaks.uses_tf32(product):
        return efficiencies.product, efficiencies.product_spread
    assert efficiencies.single is not None, "find_efficiencies adds it"
    return efficiencies.single.product, efficiencies.single.spread


def _arithmetic(peaks: Peaks, product: MatrixProduct) -> tuple[int, bool]:
    return product.itemsize, peaks.uses_tf32(product)


def estimate_kernels(device: Device, kernels: Sequence[Kernel]) -> list[KernelEstimate] | None:
    """Return the time of one call of each kernel; None where a peak of the device that they need is unknown."""
    found = find_efficiencies(device)
    if found is None:
        return None
    efficiencies, _ = found
    peaks = Peaks.of(device)
    itemsizes = {kernel.itemsize for kernel in kernels if not isinstance(kernel, Stream)}
    if not all(peaks.flops_per_s.get(itemsize) for itemsize in itemsizes):
        return None
    products = dict.fromkeys(kernel for kernel in kernels if isinstance(kernel, MatrixProduct))
    known: dict[Kernel, KernelEstimate] = {}
    for arithmetic in {_arithmetic(peaks, product) for product in products}:
        alike = [product for product in products if _arithmetic(peaks, product) == arithmetic]
        known.update(zip(alike, _estimate_products(peaks, efficiencies, alike), strict=True))
    streams = [kernel for kernel in kernels if isinstance(kernel, Stream)]
    for kind in {stream.kind for stream in streams}:
        of_kind = [stream for stream in streams if stream.kind == kind]
        known.update(zip(of_kind, _estimate_streams(peaks, efficiencies, of_kind), strict=True))
    for kernel in kernels:
        if isinstance(kernel, Attention):
            known[kernel] = _estimate_attention(device, efficiencies, kernel)
    return [known[kernel] for kernel in kernels]


def _estimate_attention(device: Device, efficiencies: Efficiencies, kernel: Attention) -> KernelEstimate:
    peaks, own = Peaks.of(device), efficiencies.product
    is_hopper_half = device.capability == _HOPPER and kernel.itemsize == HALF_BYTES
    share, flops_per_s = _ATTENTION_SHARES[is_hopper_half][kernel.is_backward], peaks.flops_per_s[kernel.itemsize] or 0
    arithmetic_s = kernel.flops / (flops_per_s * share)
    traffic_s = kernel.num_bytes / (peaks.bytes_per_s * own.bandwidth_share)
    seconds = max(arithmetic_s, traffic_s) + own.launch_s
    return KernelEstimate(
        seconds=seconds,
        relative_sd=_ATTENTION_SPREAD.kernel,
        bound=_find_bound(seconds, arithmetic_s=arithmetic_s, traffic_s=traffic_s, floor_s=own.launch_s),
    )


def _estimate_products(
    peaks: Peaks, efficiencies: Efficiencies, products: Sequence[MatrixProduct]
) -> list[KernelEstimate]:
    """Return the times of products in one arithmetic."""
    own, spread = _find_numbers(peaks, efficiencies, products[0])
    shapes = Shapes.of(peaks, products)
    seconds = product_seconds(peaks, own, shapes)
    ideal_s = shapes.flops / (shapes.find_peaks(peaks) * own.peak_share)
    traffic_s = shapes.num_bytes / (peaks.bytes_per_s * own.bandwidth_share)
    return [
        KernelEstimate(
            seconds=float(time),
            relative_sd=spread.kernel,
            bound=_find_bound(time, arithmetic_s=arithmetic, traffic_s=traffic, floor_s=own.launch_s + own.wave_s),
        )
        for time, arithmetic, traffic in zip(seconds, ideal_s, traffic_s, strict=True)
    ]


def _find_bound(seconds: float, *, arithmetic_s: float, traffic_s: float, floor_s: float) -> Bound:
    """Return the longest of what the parts of a product would take alone; else multiprocessors wait for tiles."""
    longest, bound = max((arithmetic_s, Bound.ARITHMETIC), (traffic_s, Bound.BANDWIDTH), (floor_s, Bound.LAUNCH))
    return Bound.WAVES if longest < seconds / 2 else bound


def count_waves(device: Device, product: MatrixProduct) -> float:
    """Return the tiles of a product over the multiprocessors, with the tile that is fastest by the model."""
    found = find_efficiencies(device)
    assert found is not None
    peaks = Peaks.of(device)
    own, _ = _find_numbers(peaks, found[0], product)
    seconds = _candidate_seconds(peaks, own, Shapes.of(peaks, [product]))[:, 0]
    tile_rows, tile_columns, parts = _CANDIDATES[int(np.argmin(seconds))]
    num_tiles = math.ceil(product.rows / tile_rows) * math.ceil(product.columns / tile_columns) * parts * product.batch
    return float(num_tiles) / peaks.num_multiprocessors


def product_seconds(peaks: Peaks, own: ProductEfficiency, shapes: Shapes) -> np.ndarray:
    """Return the times of products (num_products,): the average over tiles that the library may choose."""
    logs = np.log(_candidate_seconds(peaks, own, shapes))
    weights = np.exp((logs.min(axis=0) - logs) / own.choice_spread)
    return np.asarray(np.exp((weights * logs).sum(axis=0) / weights.sum(axis=0)))


def _candidate_seconds(peaks: Peaks, own: ProductEfficiency, shapes: Shapes) -> np.ndarray:
    """Return the times with each candidate (num_candidates, num_products)."""
    tile_rows, tile_columns, parts = _CANDIDATES.T[:, :, None]
    num_tiles = np.ceil(shapes.rows / tile_rows) * np.ceil(shapes.columns / tile_columns) * parts * shapes.batch
    share = num_tiles / peaks.num_multiprocessors
    waves = (1 - own.smoothness) * np.ceil(share) + own.smoothness * np.maximum(1.0, share)
    steps = np.ceil(shapes.inner / parts / _INNER_STEP) * _INNER_STEP
    elements = tile_rows * tile_columns + own.operand_cost * (tile_rows + tile_columns)
    tile_s = 2 * elements * steps * peaks.num_multiprocessors / (shapes.find_peaks(peaks) * own.peak_share)
    on_tensor_cores = (shapes.itemsize == HALF_BYTES) | shapes.on_tensor_cores
    is_slow = on_tensor_cores & ((shapes.columns % _ALIGNMENT != 0) | (shapes.inner % _ALIGNMENT != 0))
    arithmetic_s = waves * (tile_s * np.where(is_slow, _UNALIGNED_FACTOR, 1.0) + own.wave_s)
    is_split = parts > 1
    sums_bytes = is_split * parts * _SUM_BYTES * shapes.rows * shapes.columns * shapes.batch
    traffic_s = (shapes.num_bytes + sums_bytes) / (peaks.bytes_per_s * own.bandwidth_share)
    longest_s = np.maximum(arithmetic_s, traffic_s)
    ratio = np.minimum(arithmetic_s, traffic_s) / longest_s
    body_s = longest_s * (1 + ratio**own.overlap) ** (1 / own.overlap)
    result_bytes = shapes.itemsize * shapes.rows * shapes.columns * shapes.batch
    body_s = body_s + own.store_share * result_bytes / peaks.bytes_per_s
    slowed_s = body_s * (1 + own.clock_loss * body_s / (body_s + _CLOCK_S))
    is_candidate = (parts <= _FEW_PARTS) | (shapes.inner >= parts * _LEAST_INNER)
    return np.where(is_candidate, slowed_s + own.launch_s + is_split * own.split_s, _NEVER_S)


def _estimate_streams(peaks: Peaks, efficiencies: Efficiencies, kernels: Sequence[Stream]) -> Iterator[KernelEstimate]:
    """Yield the times of streams of one kind."""
    own = efficiencies.streams[kernels[0].kind]
    traffic = stream_seconds(peaks, own, np.array([kernel.num_bytes for kernel in kernels], dtype=float)).tolist()
    flops_per_s = _SINGLE_CHANNEL_FLOPS * peaks.num_multiprocessors * peaks.clocks_per_s
    for kernel, traffic_s in zip(kernels, traffic, strict=True):
        arithmetic_s = kernel.flops / flops_per_s
        if arithmetic_s > traffic_s:
            yield KernelEstimate(seconds=arithmetic_s, relative_sd=_SINGLE_CHANNEL_SD, bound=Bound.ARITHMETIC)
        else:
            bound = Bound.LAUNCH if own.floor_s > traffic_s / 2 else Bound.BANDWIDTH
            yield KernelEstimate(seconds=traffic_s, relative_sd=efficiencies.stream_spread.kernel, bound=bound)


def stream_seconds(peaks: Peaks, own: StreamEfficiency, num_bytes: np.ndarray) -> np.ndarray:
    """Return the times of kernels that move bytes (num_kernels,)."""
    in_cache = peaks.cache_bytes / np.maximum(peaks.cache_bytes + num_bytes, 1.0)
    speed = own.bandwidth_share * (1 + own.cache_gain * in_cache)
    speed = np.where(num_bytes > peaks.cache_bytes, np.minimum(speed, 1.0), speed)  # the rest comes from memory
    return np.asarray(np.hypot(own.floor_s, num_bytes / (peaks.bytes_per_s * speed)))
