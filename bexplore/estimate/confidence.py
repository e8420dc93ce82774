"""How sure the order of estimated sizes is: draws of the errors in which sizes differ.

An error that all sizes have in common leaves their order alone. Four others do not: that of the host's calls, for
which small sizes wait most; that of the links between ranks, likewise; errors that grow slowly with the size; and those
of single shapes, which only sizes that are nearly the same have in common.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bexplore.estimate.collectives import StepExposure
from bexplore.estimate.dispatch import HOST_SD, overlap_seconds

# Standard deviation of ln of the speed of one size over that of its half. Source:
# benchmarks/results/estimated_scores.md: what the variogram of products grows by over two doublings, up to 0.05.
DOUBLING_SD = 0.03
# Distance in ln of the size over which the error of a shape changes. Source: benchmarks/results/estimated_scores.md,
# the variogram of matrix products over tokens on three devices, which is exponential.
SHAPE_LENGTH = 0.1
NUM_DRAWS = 1024  # Source: a probability to within 0.016, one standard error at a half
_JITTER = 1e-10  # keeps a covariance positive definite; of ln


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeEstimate:
    """The estimate of one size."""

    micro_batch_size: int
    seconds: float  # of the kernels of a pass
    own_sd: float  # standard deviation of ln of these by the errors of single shapes
    host_s: float = 0.0  # of the host for its calls, the same for every size of a program
    memory_share: float = 0.0  # of the memory budget that it needs, 0 to 1 where it fits
    variant: int = 0  # which variant of the job
    communication: StepExposure | None = None  # what ranks exchange meanwhile


class ErrorDraws:
    """Joint draws of the speeds of all sizes, up to what they have in common, and of which of them fit."""

    def __init__(
        self,
        estimates: Sequence[SizeEstimate],
        *,
        memory_sd: float = 0.0,
        doubling_sd: float = DOUBLING_SD,
        link_sd: float = 0.0,
        seed: int = 0,
    ) -> None:
        """Draw.

        Args:
            doubling_sd: Standard deviation of ln of the speed of one size over that of its half.
            memory_sd: Standard deviation of ln of the memory's error, which all sizes have in common.
            link_sd: The same of the seconds of collectives.
        """
        self._at = {(one.micro_batch_size, one.variant): place for place, one in enumerate(estimates)}
        random = np.random.default_rng(seed)
        covariance = _find_covariance(estimates, doubling_sd) + _JITTER * np.eye(len(estimates))
        errors = random.standard_normal((NUM_DRAWS, len(estimates))) @ np.linalg.cholesky(covariance).T
        host_s = np.array([one.host_s for one in estimates]) * np.exp(HOST_SD * random.standard_normal((NUM_DRAWS, 1)))
        seconds = overlap_seconds(np.array([one.seconds for one in estimates]) * np.exp(errors), host_s)
        needed = np.array([one.memory_share for one in estimates])
        self.fits = needed * np.exp(memory_sd * random.standard_normal((NUM_DRAWS, 1))) <= 1.0
        link_factor = np.exp(link_sd * random.standard_normal(NUM_DRAWS))
        for place, one in enumerate(estimates):
            if one.communication is not None:
                seconds[:, place] += one.communication.exposed_s(seconds[:, place], link_factor)
        # (num_draws, num_sizes), ln(samples/s)
        self.log_speed = np.log([one.micro_batch_size for one in estimates]) - np.log(seconds)

    def has(self, micro_batch_size: int, variant: int = 0) -> bool:
        """Return whether a size was drawn."""
        return (micro_batch_size, variant) in self._at

    def regrets(self, micro_batch_size: int, variant: int = 0) -> np.ndarray:
        """Return the share of the best feasible speed that a size misses in each draw (num_draws,); 1: no fit."""
        place = self._at[micro_batch_size, variant]
        best = np.where(self.fits, self.log_speed, -np.inf).max(axis=1)
        missed = 1.0 - np.exp(np.minimum(self.log_speed[:, place] - best, 0.0))
        return np.where(self.fits[:, place], missed, 1.0)

    def log_ratio_sd(self, one: tuple[int, int], other: tuple[int, int]) -> float:
        """Return the standard deviation of ln of the speed of one size and variant over another's."""
        return float(np.std(self.log_speed[:, self._at[one]] - self.log_speed[:, self._at[other]]))


def _find_covariance(estimates: Sequence[SizeEstimate], doubling_sd: float) -> np.ndarray:
    at = np.log([one.micro_batch_size for one in estimates])
    own = np.array([one.own_sd for one in estimates])
    variants = np.array([one.variant for one in estimates])
    begun = at - at.min()  # of a walk with independent steps for each doubling
    walk = doubling_sd**2 / math.log(2) * np.minimum.outer(begun, begun)
    near = np.exp(-np.abs(np.subtract.outer(at, at)) / SHAPE_LENGTH) * np.equal.outer(variants, variants)
    return np.asarray(walk + np.outer(own, own) * near)
