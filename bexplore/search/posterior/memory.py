"""The memory boundary as a probability: draws of the largest size that fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bexplore.search.posterior.reserved_memory import ReservedPeak, draw_ratios
from bexplore.search.space import MemoryAccount, MemoryPrior

Array = NDArray[np.float64]

PEAK_NOISE_SD = 0.006  # of a measured peak, as a fraction; allocator rounding and fragmentation
# Of what a process held, as a fraction and in bytes: the pieces that stay free between its tensors differ by size.
# A rough fit by hand to 19 sizes of the GPT, BERT and ViT of `benchmarks/jobs`, one process each.
RESIDENT_NOISE_SD, RESIDENT_NOISE_BYTES = 0.05, 16 * 2**20
# Its growth with the size, as a multiple of that of the tensors: 1.24 to 1.6 among the same.
RESIDENT_GROWTH, RESIDENT_GROWTH_SD = 1.3, 0.12
RESIDENT_BASE_SD = 1.0  # of the smallest size, which is measured before anything else
BUDGET_SLACK = 0.015  # a job fails this share below the budget, on average; how far is exponential, without an end
LIMIT_IS_WITHIN = 0.15  # P(some candidate does not fit) where nothing is known of memory
# P(a size that failed above all that ran failed for itself alone); of several such sizes, each by itself. The first
# says little (a corrupt shard, an odd length), two that the program ends there, as a data set or a bound in the code
# does. A judgement and no measurement; after three, a probe beyond them is as good as ruled out (`MIN_FEASIBLE`).
FAILS_ALONE = 0.25
UNSEEN_SLOPE_SD = 1.5  # of ln(growth per sample) before two sizes were measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """What one probe took, by the account that the curve of memory is about.

    Attributes:
        size: Samples of one pass.
        num_bytes: The peak.
        counts_resident_memory: Whether it is what the process held, which is noisy, and not what its tensors took.
    """

    size: int
    num_bytes: float
    counts_resident_memory: bool = False

    @property
    def sd_bytes(self) -> float:
        """Standard deviation of its noise."""
        if self.counts_resident_memory:
            return math.hypot(RESIDENT_NOISE_SD * self.num_bytes, RESIDENT_NOISE_BYTES)
        return PEAK_NOISE_SD * self.num_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryObservations:
    """What probes said about memory.

    Attributes:
        peaks: Of each measured probe that knows its peak.
        reserved: Of each measured probe whose caching allocator was not at its limit; empty where another account is
            judged.
        budget_bytes: The budget in force; None for no limit or an unknown one.
        largest_measured: The largest size that ran; 0 if none.
        smallest_out_of_memory: The smallest size that did not fit; infinity if none.
    """

    peaks: Sequence[Peak]
    budget_bytes: float | None
    largest_measured: float
    smallest_out_of_memory: float
    reserved: Sequence[ReservedPeak] = ()


def draw_boundaries(
    facts: MemoryObservations, prior: MemoryPrior | None, *, base: int, largest: int, uniforms: Array
) -> Array:
    """Draw the largest size that fits.

    Args:
        facts: What probes said.
        prior: What the trace said; None for nothing.
        base: Smallest candidate.
        largest: Largest candidate; a boundary beyond it means that everything fits.
        uniforms: (6, S) fixed draws from U(0, 1).

    Returns:
        (S,), samples; each at or above the largest measured size and below the smallest out-of-memory size.
    """
    budget = facts.budget_bytes or (prior.budget_bytes if prior else None)
    traced = prior is not None and prior.peak_bytes is not None
    sizes_seen = {peak.size for peak in facts.peaks}
    if budget and (traced or len(sizes_seen) >= 2):
        draws = _from_memory_model(facts, prior, budget, base=base, largest=largest, uniforms=uniforms)
    else:
        draws = _without_memory_model(facts, base=base, largest=largest, uniforms=uniforms)
    return _within_bracket(draws, facts, base=base, largest=largest, uniform=uniforms[3])


def draw_ends(failed: Sequence[int], *, largest_measured: float, base: int, uniforms: Array) -> Array:
    """Draw the largest size at which the program runs, whatever its memory.

    Args:
        failed: Sizes above all that ran, ascending, that failed for reasons of their own.
        largest_measured: The largest size that ran; 0 if none.
        base: Smallest candidate.
        uniforms: (2, S) fixed draws from U(0, 1).

    Returns:
        (S,), samples; infinity where the sizes failed each for itself.
    """
    if not failed:
        return np.full(uniforms.shape[1], np.inf)
    low = max(largest_measured, 0.5 * base)
    inside = low * (failed[0] / low) ** uniforms[1] * (1 - 1e-12)
    return np.where(uniforms[0] < FAILS_ALONE ** len(failed), np.inf, inside)


def _from_memory_model(
    facts: MemoryObservations, prior: MemoryPrior | None, budget: float, *, base: int, largest: int, uniforms: Array
) -> Array:
    """What is judged = r (u f(base) + v (f(b) - f(base))), f traced or linear.

    Measured peaks update u and v. The ratio r is 1, but where a caching allocator's reserved memory is judged: there
    the peaks are those of the tensors, and r has a prior and measurements of its own.
    """
    grid = np.unique(np.round(np.geomspace(base, 4.0 * largest, 96)))
    if prior is not None and prior.peak_bytes is not None:
        traced = prior.peak_bytes
        shape = np.array([float(traced(int(size))) for size in grid])
        peak_shape = np.array([float(traced(peak.size)) for peak in facts.peaks])
        expected, sd = _multiples(prior)
    else:
        least, most = min(facts.peaks, key=_size_and_bytes), max(facts.peaks, key=_size_and_bytes)
        low = least.num_bytes
        slope = max((most.num_bytes - low) / (most.size - least.size), 1e-4 * low / least.size)
        shape = low + slope * (grid - base)
        peak_shape = np.array([low + slope * (peak.size - base) for peak in facts.peaks])
        expected, sd = np.ones(2), np.array([0.2, 0.2])
    shape = np.maximum.accumulate(shape)
    scale = shape[0]
    precision = np.diag(1.0 / sd**2)
    moment = precision @ expected
    if len(facts.peaks):
        measured = np.array([peak.num_bytes for peak in facts.peaks]) / scale
        basis = np.stack([np.ones(len(measured)), peak_shape / scale - 1.0], axis=1)
        weight = 1.0 / (np.array([peak.sd_bytes for peak in facts.peaks]) / scale) ** 2
        precision = precision + (basis.T * weight) @ basis
        moment = moment + basis.T @ (weight * measured)
    covariance = np.linalg.inv(precision)
    mean = covariance @ moment
    normal = _normal(uniforms[:2])
    draws = mean[:, None] + np.linalg.cholesky(covariance) @ normal
    capacity = budget / scale * (1.0 + BUDGET_SLACK * np.log1p(-uniforms[2]))
    if prior is not None and prior.judged_by is MemoryAccount.RESERVED:
        capacity = capacity / draw_ratios(facts.reserved, _normal(uniforms[4:6])[0])
    growth = np.maximum(draws[1], 1e-6)
    target = scale * (1.0 + (capacity - draws[0]) / growth)
    rising = shape + np.arange(len(shape)) * 1e-9 * scale
    fits_base = draws[0] <= capacity
    return np.where(fits_base, np.interp(target, rising, grid), 0.5 * base)


def _multiples(prior: MemoryPrior) -> tuple[Array, Array]:
    """(2,) expectation and (2,) standard deviation of u and v, as multiples of what was traced."""
    if prior.judged_by is MemoryAccount.RESIDENT:
        return np.array([1.0, RESIDENT_GROWTH]), np.array(
            [RESIDENT_BASE_SD, math.hypot(prior.relative_sd, RESIDENT_GROWTH_SD)]
        )
    return np.ones(2), np.full(2, prior.relative_sd)


def _size_and_bytes(peak: Peak) -> tuple[int, float]:
    return peak.size, peak.num_bytes


def _without_memory_model(facts: MemoryObservations, *, base: int, largest: int, uniforms: Array) -> Array:
    """A boundary that is probably beyond the candidates, else log-uniform over them."""
    inside = (
        base * (largest / base) ** np.sqrt(uniforms[0]) if largest > base else np.full(uniforms.shape[1], float(base))
    )
    return np.where(uniforms[1] < LIMIT_IS_WITHIN, inside, 2.0 * largest)


def _within_bracket(draws: Array, facts: MemoryObservations, *, base: int, largest: int, uniform: Array) -> Array:
    low, high = facts.largest_measured, facts.smallest_out_of_memory
    valid = (draws >= low) & (draws < high)
    if valid.all():
        return draws
    survivors = draws[valid]
    if len(survivors) >= 16:
        refill = survivors[np.minimum((uniform[~valid] * len(survivors)).astype(int), len(survivors) - 1)]
    else:
        start = max(low, 0.5 * base)
        end = high if np.isfinite(high) else 4.0 * max(largest, start)
        refill = start * (end / start) ** uniform[~valid] * (1 - 1e-12)
    return np.concatenate([survivors, refill])[
        np.argsort(np.concatenate([np.flatnonzero(valid), np.flatnonzero(~valid)]))
    ]


def _normal(uniforms: Array) -> Array:
    """Two rows of standard normal draws from two of uniform ones (Box and Muller, 1958)."""
    first, second = uniforms
    radius = np.sqrt(-2.0 * np.log(np.clip(first, 1e-12, 1.0)))
    return np.stack([radius * np.cos(2 * np.pi * second), radius * np.sin(2 * np.pi * second)])
