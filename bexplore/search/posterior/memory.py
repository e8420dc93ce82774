"""The memory boundary as a probability: posterior draws of the largest size that fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bexplore.measurement.statistics import Array
from bexplore.search.space import MemoryAccount, MemoryPrior

# Of a measured peak, as a fraction: allocator rounding and fragmentation. Source: benchmarks/results/sensitivity.md.
PEAK_NOISE_SD = 0.006
# Of resident memory, as a fraction and in bytes: the free pieces between tensors differ by size. Its growth with the
# size, as a multiple of the tensors': 1.24 to 1.6. Source: a fit by hand to 19 sizes of the GPT, BERT and ViT of
# benchmarks/jobs, one process each; benchmarks/results/sensitivity.md.
RESIDENT_NOISE_SD, RESIDENT_NOISE_BYTES = 0.05, 16 * 2**20
RESIDENT_GROWTH, RESIDENT_GROWTH_SD = 1.3, 0.12
RESIDENT_BASE_SD = 1.0  # of the smallest size. Source: wide, since that size is measured before anything else
# ln(reserved / allocated) before anything ran, near the limit, where the allocator gives back what is unused: mean and
# standard deviation between jobs; eager and compiled ones have the same mean. Source: benchmarks/results/
# emulated_memory.md, PyTorch's own allocator on 32 jobs.
LOG_RATIO, LOG_RATIO_SD = 0.10, 0.06
# What one size has for itself: segments that are not full, whose bytes hardly depend on the size, and a share of the
# whole. Source: benchmarks/results/allocator_ratio.md, a model of the allocator over the CPU's programs of four jobs.
UNUSED_BYTES, OWN_SD = 64 * 2**20, 0.015
EXPECTED_RATIO = math.exp(LOG_RATIO)  # Source: the formula
# A job fails this share below the budget, on average of an exponential. Source: benchmarks/results/sensitivity.md.
BUDGET_SLACK = 0.015
# Standard deviation of the fixed part and of the growth around a line through the smallest and the largest peak, where
# nothing was traced; the least growth a sample, of the smallest size's. Source: benchmarks/results/sensitivity.md.
LINE_SD = 0.2
LEAST_SLOPE = 1e-4
# The grid of sizes reaches so far beyond the largest candidate, in so many points. Source: resolves 6 % of a size.
GRID_REACH, GRID_POINTS = 4.0, 96
# P(some candidate does not fit) where nothing is known of memory. Source: benchmarks/results/sensitivity.md.
LIMIT_IS_WITHIN = 0.15
MIN_SURVIVORS = 16  # draws that may stand for those outside the bracket. Source: enough for quantiles of 6 %


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The peak of one probe, by the account of the memory curve."""

    size: int  # samples of one pass
    num_bytes: float  # the peak
    counts_resident_memory: bool = False  # whether it is resident memory, which is noisy, and not the tensors' own

    @property
    def sd_bytes(self) -> float:
        """Standard deviation of its noise."""
        if self.counts_resident_memory:
            return math.hypot(RESIDENT_NOISE_SD * self.num_bytes, RESIDENT_NOISE_BYTES)
        return PEAK_NOISE_SD * self.num_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedPeak:
    """Reserved and allocated memory of one probe."""

    allocated_bytes: float  # peak of the live tensors
    reserved_bytes: float  # peak of the segments; never one that the limit has cut

    @property
    def log_ratio(self) -> float:
        """ln(reserved / allocated)."""
        return math.log(self.reserved_bytes / self.allocated_bytes)

    @property
    def sd(self) -> float:
        """Standard deviation of `log_ratio` around the job's own."""
        return math.hypot(OWN_SD, UNUSED_BYTES / self.allocated_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryObservations:
    """The memory that probes measured."""

    peaks: Sequence[Peak]  # of each measured probe that knows its peak
    budget_bytes: float | None  # the budget in force; None for no limit or an unknown one
    largest_measured: float  # the largest size that ran; 0 if none
    smallest_out_of_memory: float  # the smallest size that did not fit; infinity if none
    # Of each measured probe whose caching allocator was not at its limit; empty where another account is judged.
    reserved: Sequence[ReservedPeak] = ()


def draw_boundaries(
    observed: MemoryObservations, prior: MemoryPrior | None, *, base: int, largest: int, uniforms: Array
) -> Array:
    """Draw the largest size that fits.

    Args:
        largest: Largest candidate; a boundary beyond it means that everything fits.
        uniforms: (6, S) fixed draws from U(0, 1).

    Returns:
        (S,), samples; each at or above the largest measured size and below the smallest out-of-memory size.
    """
    budget = observed.budget_bytes or (prior.budget_bytes if prior else None)
    traced = prior is not None and prior.peak_bytes is not None
    if budget and (traced or len({peak.size for peak in observed.peaks}) >= 2):
        draws = _from_memory_model(observed, prior, budget, base=base, largest=largest, uniforms=uniforms)
    else:
        draws = _without_memory_model(base=base, largest=largest, uniforms=uniforms)
    return _within_bracket(draws, observed, base=base, largest=largest, uniform=uniforms[3])


def draw_ratios(peaks: Sequence[ReservedPeak], normal: Array) -> Array:
    """Draw (S,), 1 and above: reserved over allocated memory of a size that has not run, by (S,) normal draws."""
    weights = np.array([LOG_RATIO_SD**-2, *(peak.sd**-2 for peak in peaks)])
    mean = float(weights @ np.array([LOG_RATIO, *(peak.log_ratio for peak in peaks)]) / weights.sum())
    return np.exp(np.maximum(mean + math.sqrt(1.0 / weights.sum() + OWN_SD**2) * normal, 0.0))


def _from_memory_model(
    observed: MemoryObservations,
    prior: MemoryPrior | None,
    budget: float,
    *,
    base: int,
    largest: int,
    uniforms: Array,
) -> Array:
    """Draw from the model: judged bytes = r (u f(base) + v (f(b) - f(base))), f traced or linear.

    Measured peaks update u and v. The ratio r is 1, except where a caching allocator's reserved memory is judged: there
    the peaks are those of the tensors, and r has a prior and measurements of its own.
    """
    grid = np.unique(np.round(np.geomspace(base, GRID_REACH * largest, GRID_POINTS)))
    if prior is not None and prior.peak_bytes is not None:
        traced = prior.peak_bytes
        shape = np.array([float(traced(int(size))) for size in grid])
        peak_shape = np.array([float(traced(peak.size)) for peak in observed.peaks])
        expected, sd = _multiples(prior)
    else:
        shape, peak_shape = _line(observed.peaks, grid, base)
        expected, sd = np.ones(2), np.full(2, LINE_SD)
    shape = np.maximum.accumulate(shape)
    scale = shape[0]
    mean, covariance = _updated(expected, sd, observed.peaks, peak_shape, scale)
    draws = mean[:, None] + np.linalg.cholesky(covariance) @ _normal(uniforms[:2])
    capacity = budget / scale * (1.0 + BUDGET_SLACK * np.log1p(-uniforms[2]))
    if prior is not None and prior.judged_by is MemoryAccount.RESERVED:
        capacity = capacity / draw_ratios(observed.reserved, _normal(uniforms[4:6])[0])
    growth = np.maximum(draws[1], 1e-6)
    target = scale * (1.0 + (capacity - draws[0]) / growth)
    rising = shape + np.arange(len(shape)) * 1e-9 * scale
    return np.where(draws[0] <= capacity, np.interp(target, rising, grid), 0.5 * base)


def _line(peaks: Sequence[Peak], grid: Array, base: int) -> tuple[Array, Array]:
    """Return the line through the smallest and the largest peak, on the grid and at the peaks' sizes."""
    ascending = sorted(peaks, key=lambda peak: (peak.size, peak.num_bytes))
    least, most = ascending[0], ascending[-1]
    low = least.num_bytes
    slope = max((most.num_bytes - low) / (most.size - least.size), LEAST_SLOPE * low / least.size)
    return low + slope * (grid - base), np.array([low + slope * (peak.size - base) for peak in peaks])


def _updated(expected: Array, sd: Array, peaks: Sequence[Peak], peak_shape: Array, scale: float) -> tuple[Array, Array]:
    """Return the posterior mean (2,) and covariance (2, 2) of u and v."""
    precision: Array = np.diag(1.0 / sd**2)
    moment = precision @ expected
    if len(peaks):
        measured = np.array([peak.num_bytes for peak in peaks]) / scale
        basis = np.stack([np.ones(len(measured)), peak_shape / scale - 1.0], axis=1)
        weight = 1.0 / (np.array([peak.sd_bytes for peak in peaks]) / scale) ** 2
        precision = precision + (basis.T * weight) @ basis
        moment = moment + basis.T @ (weight * measured)
    covariance: Array = np.linalg.inv(precision).astype(np.float64, copy=False)
    return covariance @ moment, covariance


def _multiples(prior: MemoryPrior) -> tuple[Array, Array]:
    """Return (2,) expectation and (2,) standard deviation of u and v, as multiples of the traced peak."""
    if prior.judged_by is MemoryAccount.RESIDENT:
        growth_sd = math.hypot(prior.relative_sd, RESIDENT_GROWTH_SD)
        return np.array([1.0, RESIDENT_GROWTH]), np.array([RESIDENT_BASE_SD, growth_sd])
    return np.ones(2), np.full(2, prior.relative_sd)


def _without_memory_model(*, base: int, largest: int, uniforms: Array) -> Array:
    """Draw a boundary that is probably beyond the candidates, else log-uniform over them."""
    inside = (
        base * (largest / base) ** np.sqrt(uniforms[0]) if largest > base else np.full(uniforms.shape[1], float(base))
    )
    return np.where(uniforms[1] < LIMIT_IS_WITHIN, inside, 2.0 * largest)


def _within_bracket(draws: Array, observed: MemoryObservations, *, base: int, largest: int, uniform: Array) -> Array:
    """Return the draws with those outside the bracket replaced: by others inside, or log-uniformly."""
    low, high = observed.largest_measured, observed.smallest_out_of_memory
    valid = (draws >= low) & (draws < high)
    if valid.all():
        return draws
    survivors = draws[valid]
    if len(survivors) >= MIN_SURVIVORS:
        refill = survivors[np.minimum((uniform[~valid] * len(survivors)).astype(int), len(survivors) - 1)]
    else:
        start = max(low, 0.5 * base)
        end = high if np.isfinite(high) else GRID_REACH * max(largest, start)
        refill = start * (end / start) ** uniform[~valid] * (1 - 1e-12)
    filled = draws.copy()
    filled[~valid] = refill
    return filled


def _normal(uniforms: Array) -> Array:
    """Return two rows of standard normal draws from two of uniform ones (Box and Muller, 1958)."""
    first, second = uniforms
    radius = np.sqrt(-2.0 * np.log(np.clip(first, 1e-12, 1.0)))
    return np.stack([radius * np.cos(2 * np.pi * second), radius * np.sin(2 * np.pi * second)])
