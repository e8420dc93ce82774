"""Memory that a caching allocator reserves, as a multiple of the tensors that live in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# ln(reserved / allocated) before anything ran. Source: benchmarks/results/allocator_ratio.md, a model of the allocator
# over the CPU's programs of four jobs; its spread between jobs is rounded up, as the programs of CUDA are others.
LOG_RATIO, LOG_RATIO_SD = 0.035, 0.03
# What one size has for itself: segments that are not full, whose bytes hardly depend on the size, and a share of the
# whole. Source: the same table.
UNUSED_BYTES = 64 * 2**20
OWN_SD = 0.015
EXPECTED_RATIO = math.exp(LOG_RATIO)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedPeak:
    """What one probe shows of the ratio.

    Attributes:
        allocated_bytes: Peak of the live tensors.
        reserved_bytes: Peak of the segments; never one that the limit has cut.
    """

    allocated_bytes: float
    reserved_bytes: float

    @property
    def log_ratio(self) -> float:
        """ln(reserved / allocated)."""
        return math.log(self.reserved_bytes / self.allocated_bytes)

    @property
    def sd(self) -> float:
        """Standard deviation of `log_ratio` around the job's own."""
        return math.hypot(OWN_SD, UNUSED_BYTES / self.allocated_bytes)


def draw_ratios(peaks: Sequence[ReservedPeak], normal: Array) -> Array:
    """Draw reserved over allocated memory of a size that has not run.

    Args:
        peaks: Of probes; each corrects the prior.
        normal: (S,), standard normal draws.

    Returns:
        (S,), 1 and above.
    """
    weights = np.array([LOG_RATIO_SD**-2, *(peak.sd**-2 for peak in peaks)])
    mean = float(weights @ np.array([LOG_RATIO, *(peak.log_ratio for peak in peaks)]) / weights.sum())
    return np.exp(np.maximum(mean + math.sqrt(1.0 / weights.sum() + OWN_SD**2) * normal, 0.0))
