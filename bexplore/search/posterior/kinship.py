"""The covariance of two variants of a job: a measurement of one shows most of the other's shape, little of its level.

Variants compute the same model. What recomputing activations, another precision or another compiler changes is the
speed of all sizes, the place of the knee, and a little of each size: an intrinsic model of coregionalization with a
shared curve (Bonilla, Chai and Williams, "Multi-task Gaussian process prediction", 2008).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bexplore.measurement.statistics import Array

# ln(samples/s) of a variant beyond what its operations let expect: of all its sizes, per e-fold of the size, of a size
# alone. Source: benchmarks/results/sensitivity.md, variants; narrower than the simulated jobs there.
LEVEL_SD, TILT_SD, OWN_SD = 0.15, 0.04, 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinship:
    """One variant among its kin.

    Attributes:
        variant: Whose curve is drawn.
        log_speeds: By variant, expected ln(samples/s) over that of variant 0; empty for equal ones.
    """

    variant: int = 0
    log_speeds: Mapping[int, float] = field(default_factory=dict)

    def log_speed_over_own(self, variant: int) -> float:
        """Return the expected ln(samples/s) of another variant over the own one's; 0 for the own."""
        return self.log_speeds.get(variant, 0.0) - self.log_speeds.get(self.variant, 0.0)

    def covariance(self, variants: Sequence[int], log_sizes: Array) -> Array:
        """Return (n, n), the covariance that measurements of other variants add.

        Each variant, the own one too, has a level and a tilt of its own, of which the difference to the own counts: two
        other variants share the own one's half of it.

        Args:
            variants: (n,), of each measurement.
            log_sizes: (n,), ln of its size.
        """
        number = np.array(variants)
        other = number != self.variant
        both = other[:, None] & other[None, :]
        share = both * np.where(number[:, None] == number[None, :], 1.0, 0.5)
        centred = log_sizes - log_sizes.mean()
        tilted = centred[:, None] * centred[None, :]
        same_size = np.isclose(log_sizes[:, None], log_sizes[None, :], rtol=0.0, atol=math.log1p(1e-9))
        return share * (LEVEL_SD**2 + TILT_SD**2 * tilted + OWN_SD**2 * same_size)
