"""Times of kernels on a processor, by a table that `bexplore doctor --calibrate` measures on it.

A product takes its operations, the packing of operands and the writing of its result, each at a rate of its own. A
kernel that only moves bytes takes so many seconds a byte, interpolated between measured sizes: rates change where
caches end, and where memory is asked of the system anew. Each kernel of an eager program, and of a compiled one, takes
a launch. How wrong this is: `docs/estimates.md`.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bexplore.estimate.efficiencies import Spread
from bexplore.estimate.kernels import Attention, Kernel, MatrixProduct, Stream
from bexplore.estimate.model import PROGRAM_SD, Bound, Estimate
from bexplore.host.accelerators import Device

# Standard deviation of ln of the speed of one size over that of its half. Source:
# benchmarks/results/calibrated_jobs.md, neighbouring sizes of its jobs.
PROCESSOR_DOUBLING_SD = 0.13
_SWEEPS = 400  # of coordinates; the last changes no estimate by more than a thousandth
_ROUNDS = 10  # of a fit whose weights are its last result
# Bytes of a result from which on glibc asks the system for its memory each time, whose pages must first be made; what
# is smaller it keeps. Source: DEFAULT_MMAP_THRESHOLD_MAX on 64 bits, mallopt(3).
_KEPT_BYTES = 32 * 2**20
# Bytes of freed memory from which on glibc gives it back to the system, so that the next pass asks for it anew. Source:
# twice the threshold above, M_TRIM_THRESHOLD of mallopt(3).
_TRIMMED_BYTES = 2 * _KEPT_BYTES
# Rows and columns that registers hold at once: 16 numbers of float32 in one of AVX-512, some rows of them.
_TILE_ROWS, _TILE_COLUMNS = 8, 16
_NUM_PARTS = 4  # of the kernels, each of which is left out in turn
_NO_SPREAD = Spread(kernel=0.0, common=0.0)
_KNOT_STEP = math.log(8.0)  # between sizes of a stream: three powers of two
_STIFFNESS = 0.1  # of the line between sizes, against errors of ln of the seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedKernel:
    """A kernel that was run alone."""

    kernel: Kernel
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedProgram:
    """A pass of a small program."""

    calls: Mapping[Kernel, float]
    seconds: float
    is_compiled: bool
    kept_bytes: float = 0.0  # what the forward pass keeps for the backward pass
    is_apart: bool  # whether nothing is fitted on it: its error tells that of the table


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What kernels of one kind take: seconds for each of their `features`."""

    seconds: tuple[float, ...]
    spread: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRates:
    """What kernels take that move bytes for one kind of work."""

    num_bytes: tuple[float, ...]  # sizes, growing
    seconds: tuple[float, ...]  # at each of them
    spread: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """What a program takes beside its kernels."""

    kernel_s: float  # for each kernel
    pass_s: float = 0.0  # for each pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The measured table of one processor."""

    name: str  # of the processor
    num_threads: int
    torch_version: str
    made_at: str  # ISO 8601, UTC
    products: Mapping[str, Rates]  # by `name_kind`
    streams: Mapping[str, StreamRates]  # by `Work`
    fresh_s: float  # for each byte of a result whose memory the system gives anew
    eager: Launches
    compiled: Launches
    program_sd: float  # standard deviation of ln of a pass of a small program, which was not fitted on


def name_kind(kernel: MatrixProduct | Attention) -> str:
    """Return which rates a kernel has."""
    precision = {2: "half", 4: "single"}.get(kernel.itemsize, "single")
    if isinstance(kernel, Attention):
        return f"attention {'backward ' if kernel.is_backward else ''}{precision}"
    if kernel.is_weight_gradient:
        return f"convolution's weights {precision}"
    return f"{'convolution' if kernel.window else 'product'} {precision}"


def find_features(kernel: Kernel) -> tuple[float, ...]:
    """Return what the time of a kernel is linear in: a call, operations, elements of its matrices."""
    if isinstance(kernel, Attention):
        return 1.0, kernel.flops, kernel.num_bytes
    assert isinstance(kernel, MatrixProduct), "a stream has no features"
    rows, columns, inner, batch = kernel.rows, kernel.columns, kernel.inner, kernel.batch
    window = max(kernel.window, 1)  # so often a convolution has each element of its images
    shared = batch / window
    whole = 2.0 * batch * inner * _round_up(rows, _TILE_ROWS) * _round_up(columns, _TILE_COLUMNS)  # tiles of registers
    return 1.0, whole, shared * columns * inner, shared * rows * inner, shared * rows * columns


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step


def fit_rates(timed: Sequence[TimedKernel]) -> tuple[float, ...]:
    """Return the seconds of each feature, none below zero, that are nearest to the times by their ratio."""
    features, seconds = np.array([find_features(one.kernel) for one in timed]), np.array([one.seconds for one in timed])
    scale = seconds
    rates = np.zeros(features.shape[1])
    for _ in range(_ROUNDS):
        rates = solve_non_negative(features / scale[:, None], seconds / scale)
        scale = np.sqrt(np.maximum(features @ rates, seconds / 100) * seconds)  # nearer to that of logarithms
    return tuple(map(float, rates))


def solve_non_negative(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the non-negative least-squares solution, one coordinate after the other (num_columns,)."""
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    gram, wanted = (matrix / scale).T @ (matrix / scale), (matrix / scale).T @ target
    solution = np.zeros(len(scale))
    for _ in range(_SWEEPS):
        for place in range(len(solution)):
            gradient = gram[place] @ solution - wanted[place]
            solution[place] = max(0.0, solution[place] - gradient / gram[place, place]) if gram[place, place] else 0.0
    return np.asarray(solution / scale)


def fit_streams(timed: Sequence[TimedKernel]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return sizes, and the seconds at each, between which ln of the seconds is linear in ln of the bytes."""
    logs = np.log([max(one.kernel.num_bytes, 1.0) for one in timed])
    knots = np.arange(logs.min(), logs.max() + _KNOT_STEP / 2, _KNOT_STEP)
    hats = np.maximum(0.0, 1.0 - np.abs(logs[:, None] - knots) / _KNOT_STEP)
    bends = np.diff(np.eye(len(knots)), n=2, axis=0) * _STIFFNESS  # a knot without a size near it is on the line
    target = np.concatenate([np.log([one.seconds for one in timed]), np.zeros(len(bends))])
    heights = np.linalg.lstsq(np.vstack([hats, bends]), target, rcond=None)[0]
    return tuple(map(float, np.exp(knots))), tuple(map(float, np.exp(heights)))


def count_fresh_bytes(kernel: Kernel) -> float:
    """Return the bytes of a result whose memory the system gives anew in each call; 0 for one that is kept."""
    result_bytes = kernel.num_bytes / 4 if isinstance(kernel, Attention) else kernel.result_bytes
    return result_bytes if result_bytes >= _KEPT_BYTES else 0.0


def stream_seconds(rates: StreamRates, num_bytes: float) -> float:
    """Return the seconds of a kernel: of the smallest size at least, and in proportion beyond the largest."""
    sizes = rates.num_bytes
    place = bisect.bisect_right(sizes, num_bytes)
    if place == 0:
        return rates.seconds[0]
    if place == len(sizes):
        return rates.seconds[-1] * num_bytes / sizes[-1]
    share = math.log(num_bytes / sizes[place - 1]) / math.log(sizes[place] / sizes[place - 1])
    return float(rates.seconds[place - 1] ** (1 - share) * rates.seconds[place] ** share)


def estimate_kernel(calibration: Calibration, kernel: Kernel) -> tuple[float, Spread, Bound]:
    """Return the seconds of one call of a kernel without its launch, its spread, and what bounds it."""
    fresh_s = calibration.fresh_s * count_fresh_bytes(kernel)
    if isinstance(kernel, Stream):
        streams = calibration.streams[kernel.work.value]
        seconds, smallest_s = stream_seconds(streams, kernel.num_bytes) + fresh_s, streams.seconds[0]
        return seconds, streams.spread, Bound.LAUNCH if seconds < 2 * smallest_s else Bound.BANDWIDTH
    rates = calibration.products[name_kind(kernel)]
    call_s, arithmetic_s, *traffic_s = (
        amount * rate for amount, rate in zip(find_features(kernel), rates.seconds, strict=True)
    )
    bandwidth_s = math.fsum(traffic_s) + fresh_s
    _, bound = max((arithmetic_s, Bound.ARITHMETIC), (bandwidth_s, Bound.BANDWIDTH), (call_s, Bound.LAUNCH))
    return call_s + arithmetic_s + bandwidth_s, rates.spread, bound


def estimate_program(
    calibration: Calibration, calls: Mapping[Kernel, float], *, is_compiled: bool, kept_bytes: float = 0.0
) -> Estimate:
    """Return the time of a pass of a program; errors are added up as in `model.estimate_sum`.

    Args:
        calls: How often each kernel runs.
        kept_bytes: What the forward pass keeps for the backward pass.
    """
    launches = calibration.compiled if is_compiled else calibration.eager
    launch_s = launches.pass_s + launches.kernel_s * math.fsum(calls.values())
    parts = [(kernel, *estimate_kernel(calibration, kernel), times) for kernel, times in calls.items()]
    fresh_bytes = math.fsum(times * count_fresh_bytes(kernel) for kernel, times in calls.items())
    trimmed_bytes = max(0.0, kept_bytes - _TRIMMED_BYTES - fresh_bytes)
    of_bounds = dict.fromkeys(Bound, 0.0)
    of_bounds |= {Bound.LAUNCH: launch_s, Bound.BANDWIDTH: calibration.fresh_s * trimmed_bytes}
    own = own_products = common = 0.0
    for kernel, seconds, spread, bound, times in parts:
        of_bounds[bound] += times * seconds
        own += (spread.kernel * times * seconds) ** 2
        own_products += (spread.kernel * times * seconds) ** 2 if isinstance(kernel, MatrixProduct) else 0.0
        common += spread.common * times * seconds
    total_s = math.fsum(of_bounds.values())
    return Estimate(
        seconds=total_s,
        relative_sd=math.hypot(math.sqrt(own), common) / total_s,
        own_sd=math.sqrt(own_products) / total_s,
        shares={bound: seconds / total_s for bound, seconds in of_bounds.items() if seconds},
        kernels_s=total_s,  # a processor is its own host
    )


def find_program_sd(device: Device | Calibration) -> float:
    """Return the standard deviation of ln of a whole pass beyond that of its kernels."""
    return device.program_sd if isinstance(device, Calibration) else PROGRAM_SD


def fit_launches(programs: Sequence[TimedProgram], kernels_s: Sequence[float]) -> Launches:
    """Return what passes take beyond their kernels: a part for each kernel, and one for each pass."""
    if not programs:
        return Launches(kernel_s=0.0)
    rest = np.array([max(0.0, one.seconds - own) for one, own in zip(programs, kernels_s, strict=True)])
    counts = np.array([[math.fsum(one.calls.values()), 1.0] for one in programs])
    scale = np.array([one.seconds for one in programs])
    kernel_s, pass_s = solve_non_negative(counts / scale[:, None], rest / scale)
    return Launches(kernel_s=float(kernel_s), pass_s=float(pass_s))


def fit_calibration(
    timed: Sequence[TimedKernel],
    programs: Sequence[TimedProgram],
    *,
    name: str,
    num_threads: int,
    torch_version: str,
    made_at: str,
) -> Calibration:
    """Return the table of a processor; its spreads are errors on kernels and passes that were kept apart."""
    products = [one for one in timed if not isinstance(one.kernel, Stream)]
    streams = _group([one for one in timed if isinstance(one.kernel, Stream)], lambda one: one.kernel.work.value)
    kept = {work: [one for one in own if not count_fresh_bytes(one.kernel)] for work, own in streams.items()}
    stream_rates = {work: _fit_streams(own) for work, own in kept.items()}
    fresh_s = _fit_fresh([one for own in streams.values() for one in own], stream_rates)
    products = [one for one in products if not count_fresh_bytes(one.kernel)]
    kernels_only = Calibration(
        name=name,
        num_threads=num_threads,
        torch_version=torch_version,
        made_at=made_at,
        products={
            kind: _fit_products(own) for kind, own in _group(products, lambda one: name_kind(one.kernel)).items()
        },
        streams=stream_rates,
        fresh_s=fresh_s,
        eager=Launches(kernel_s=0.0),
        compiled=Launches(kernel_s=0.0),
        program_sd=0.0,
    )
    return _fit_programs(kernels_only, programs)


def _fit_fresh(timed: Sequence[TimedKernel], rates: Mapping[str, StreamRates]) -> float:
    """Return what a byte takes whose memory the system gives anew, beyond what kernels of kept memory take."""
    found = []
    for one in timed:
        fresh_bytes, kernel = count_fresh_bytes(one.kernel), one.kernel
        if fresh_bytes and isinstance(kernel, Stream):
            kept_s = stream_seconds(rates[kernel.work.value], kernel.num_bytes)
            found.append(max(0.0, one.seconds - kept_s) / fresh_bytes)
    return float(np.median(found)) if found else 0.0


def _group(timed: Sequence[TimedKernel], name: Callable[[Any], str]) -> dict[str, list[TimedKernel]]:
    groups: dict[str, list[TimedKernel]] = {}
    for one in timed:
        groups.setdefault(name(one), []).append(one)
    return groups


def _add_up(rates: Sequence[float], kernel: Kernel) -> float:
    return math.fsum(amount * rate for amount, rate in zip(find_features(kernel), rates, strict=True))


def _fit_products(timed: Sequence[TimedKernel]) -> Rates:
    errors = _find_errors(timed, fit_rates, _add_up)
    return Rates(seconds=fit_rates(timed), spread=_find_spread(errors))


def _fit_streams(timed: Sequence[TimedKernel]) -> StreamRates:
    def predict(found: tuple[tuple[float, ...], tuple[float, ...]], kernel: Any) -> float:
        return stream_seconds(StreamRates(num_bytes=found[0], seconds=found[1], spread=_NO_SPREAD), kernel.num_bytes)

    errors = _find_errors(timed, fit_streams, predict)
    num_bytes, seconds = fit_streams(timed)
    return StreamRates(num_bytes=num_bytes, seconds=seconds, spread=_find_spread(errors))


def _find_errors(
    timed: Sequence[TimedKernel], fit: Callable[[Sequence[TimedKernel]], Any], predict: Callable[[Any, Any], float]
) -> np.ndarray:
    """Return ln of estimated over measured seconds of kernels, each left out in turn with others (num_kernels,)."""
    errors = []
    for part in range(min(_NUM_PARTS, len(timed))):
        fitted = fit([one for place, one in enumerate(timed) if place % _NUM_PARTS != part])
        errors += [math.log(predict(fitted, one.kernel) / one.seconds) for one in timed[part::_NUM_PARTS]]
    return np.array(errors)


def _fit_programs(kernels_only: Calibration, programs: Sequence[TimedProgram]) -> Calibration:
    """Return the table with launches, and the error of passes on which none was fitted."""
    found = kernels_only
    for is_compiled in (False, True):
        fitted = [one for one in programs if one.is_compiled == is_compiled and not one.is_apart]
        alone = [_estimate_timed(kernels_only, one) for one in fitted]
        launches = fit_launches(fitted, alone)
        found = replace(found, compiled=launches) if is_compiled else replace(found, eager=launches)
    apart = [one for one in programs if one.is_apart]
    estimates = [_estimate_timed(found, one) for one in apart]
    errors = [math.log(own / one.seconds) for own, one in zip(estimates, apart, strict=True)]
    return replace(found, program_sd=math.sqrt(math.fsum(error**2 for error in errors) / max(len(errors), 1)))


def _estimate_timed(calibration: Calibration, one: TimedProgram) -> float:
    return estimate_program(calibration, one.calls, is_compiled=one.is_compiled, kept_bytes=one.kept_bytes).seconds


def _find_spread(errors: np.ndarray) -> Spread:
    return Spread(kernel=float(np.std(errors)), common=float(abs(np.mean(errors))))
