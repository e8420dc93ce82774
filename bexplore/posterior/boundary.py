"""The memory boundary as a probability: draws of the largest size that fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bexplore.space import MemoryPrior

Array = NDArray[np.float64]

PEAK_NOISE_SD = 0.006  # of a measured peak, as a fraction; allocator rounding and fragmentation
BUDGET_SLACK = 0.015  # a job fails this share below the budget, on average; how far is exponential, without an end
LIMIT_IS_WITHIN = 0.15  # P(some candidate does not fit) where nothing is known of memory
UNSEEN_SLOPE_SD = 1.5  # of ln(growth per sample) before two sizes were measured


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    """What probes said about memory.

    Attributes:
        peaks: (size, peak bytes) of each measured probe that knows its peak.
        budget_bytes: The budget in force; None for no limit or an unknown one.
        largest_measured: The largest size that ran; 0 if none.
        smallest_out_of_memory: The smallest size that did not fit; infinity if none.
    """

    peaks: Sequence[tuple[int, float]]
    budget_bytes: float | None
    largest_measured: float
    smallest_out_of_memory: float


def draw_boundaries(
    facts: MemoryFacts, prior: MemoryPrior | None, *, base: int, largest: int, uniforms: Array
) -> Array:
    """Draw the largest size that fits.

    Args:
        facts: What probes said.
        prior: What the trace said; None for nothing.
        base: Smallest candidate.
        largest: Largest candidate; a boundary beyond it means that everything fits.
        uniforms: (4, S) fixed draws from U(0, 1).

    Returns:
        (S,), samples; each at or above the largest measured size and below the smallest out-of-memory size.
    """
    budget = facts.budget_bytes or (prior.budget_bytes if prior else None)
    traced = prior is not None and prior.peak_bytes is not None
    sizes_seen = {size for size, _ in facts.peaks}
    if budget and (traced or len(sizes_seen) >= 2):
        draws = _from_memory_model(facts, prior, budget, base=base, largest=largest, uniforms=uniforms)
    else:
        draws = _without_memory_model(facts, base=base, largest=largest, uniforms=uniforms)
    return _within_bracket(draws, facts, base=base, largest=largest, uniform=uniforms[3])


def _from_memory_model(
    facts: MemoryFacts, prior: MemoryPrior | None, budget: float, *, base: int, largest: int, uniforms: Array
) -> Array:
    """Peak = u f(base) + v (f(b) - f(base)), f traced or linear; u and v updated by the measured peaks."""
    grid = np.unique(np.round(np.geomspace(base, 4.0 * largest, 96)))
    if prior is not None and prior.peak_bytes is not None:
        traced = prior.peak_bytes
        shape = np.array([float(traced(int(size))) for size in grid])
        peak_shape = np.array([float(traced(size)) for size, _ in facts.peaks])
        sd = np.array([prior.relative_sd, prior.relative_sd])
    else:
        (low_size, low), (high_size, high) = min(facts.peaks), max(facts.peaks)
        slope = max((high - low) / (high_size - low_size), 1e-4 * low / low_size)
        shape = low + slope * (grid - base)
        peak_shape = np.array([low + slope * (size - base) for size, _ in facts.peaks])
        sd = np.array([0.2, 0.2])
    shape = np.maximum.accumulate(shape)
    scale = shape[0]
    precision = np.diag(1.0 / sd**2)
    moment = precision @ np.ones(2)
    if len(facts.peaks):
        measured = np.array([peak for _, peak in facts.peaks]) / scale
        basis = np.stack([np.ones(len(measured)), peak_shape / scale - 1.0], axis=1)
        weight = 1.0 / (PEAK_NOISE_SD * measured) ** 2
        precision = precision + (basis.T * weight) @ basis
        moment = moment + basis.T @ (weight * measured)
    covariance = np.linalg.inv(precision)
    mean = covariance @ moment
    normal = _normal(uniforms[:2])
    draws = mean[:, None] + np.linalg.cholesky(covariance) @ normal
    capacity = budget / scale * (1.0 + BUDGET_SLACK * np.log1p(-uniforms[2]))
    growth = np.maximum(draws[1], 1e-6)
    target = scale * (1.0 + (capacity - draws[0]) / growth)
    rising = shape + np.arange(len(shape)) * 1e-9 * scale
    fits_base = draws[0] <= capacity
    return np.where(fits_base, np.interp(target, rising, grid), 0.5 * base)


def _without_memory_model(facts: MemoryFacts, *, base: int, largest: int, uniforms: Array) -> Array:
    """A boundary that is probably beyond the candidates, else log-uniform over them."""
    inside = (
        base * (largest / base) ** np.sqrt(uniforms[0]) if largest > base else np.full(uniforms.shape[1], float(base))
    )
    return np.where(uniforms[1] < LIMIT_IS_WITHIN, inside, 2.0 * largest)


def _within_bracket(draws: Array, facts: MemoryFacts, *, base: int, largest: int, uniform: Array) -> Array:
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
