"""Statistics of repeated timings: MAD, standard errors of median and mean, Student's interval of a paired ratio."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = NDArray[np.intp]

LEVEL = 0.95  # of every interval that is shown. Source: the convention
# Student's 97.5 % quantiles by degrees of freedom. Source: any table of the t distribution.
_STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228}
NORMAL = 1.960  # the same quantile of the normal distribution. Source: any table of it
# Standard deviation of a normal sample over its median absolute deviation (MAD), and distance of its quartiles over its
# standard deviation. Source: the quartile of the normal distribution, 0.6745: 1 / 0.6745 and 2 * 0.6745.
MAD_SDS = 1.4826
QUARTILE_DISTANCE = 1.349
# Standard error of the median of a normal sample over that of its mean. Source: sqrt(pi / 2).
MEDIAN_OVER_MEAN = 1.2533
# Consecutive passes are autocorrelated: their standard error is this much larger. Source: repeats of the public sweeps
# in benchmarks/curves; benchmarks/results/sensitivity.md.
AUTOCORRELATION = 1.5
# Seconds of one timing, at least one pass: short beside changes of the machine's speed (seconds), long beside what a
# change of the size disturbs. Source: the rounds of a shared machine of two cores, see `MAX_ROUND_OF_TWO_S` in
# `search.policy`; benchmarks/results/sensitivity.md.
TIMING_S = 0.1


@dataclass(frozen=True, slots=True)
class PairedRatio:
    """The ratio of two times that were taken in pairs, and its 95 % interval."""

    value: float  # the geometric mean of the pairs' ratios
    low: float  # lower end of the interval; 0 of a single pair
    high: float  # upper end of the interval; infinite of a single pair
    num_pairs: int

    def is_within(self, tolerance: float) -> bool:
        """Return whether the whole interval is within the indifference zone around 1."""
        return 1.0 / (1.0 + tolerance) <= self.low and self.high <= 1.0 + tolerance

    def is_narrow(self, width: float) -> bool:
        """Return whether the upper end exceeds the lower one by at most this share of the lower one."""
        return self.high <= (1.0 + width) * self.low


def mad(values: Array) -> Array:
    """Return the median absolute deviation along the last axis, which stays with length 1."""
    return np.asarray(np.median(np.abs(values - np.median(values, axis=-1, keepdims=True)), axis=-1, keepdims=True))


def median_se(values: Array) -> float:
    """Return the standard error of the median of two or more consecutive timings, or of their logarithms."""
    return AUTOCORRELATION * MEDIAN_OVER_MEAN * MAD_SDS * float(mad(values)[0]) / math.sqrt(len(values))


def mean_se(values: Array) -> float:
    """Return the standard error of the mean of two or more independent values."""
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))


def paired_ratio(times_s: Sequence[float], other_times_s: Sequence[float]) -> PairedRatio:
    """Return the ratio of times to others that were taken beside them, pair by pair.

    Source: Student's interval of the mean of the logarithms (Box, Hunter and Hunter, "Statistics for Experimenters",
    chapter 3, paired comparisons). No value is dropped or clipped: a disturbed pair widens the interval.
    """
    logs = np.log(times_s) - np.log(other_times_s)
    count, center = len(logs), float(np.mean(logs))
    if count < 2:
        return PairedRatio(math.exp(center), 0.0, math.inf, count)
    half = student_quantile(count - 1) * mean_se(logs)
    return PairedRatio(math.exp(center), math.exp(center - half), math.exp(center + half), count)


def student_quantile(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's t distribution.

    Source: beyond the table, the first term of its expansion about the normal one (Abramowitz and Stegun, 26.7.5).
    """
    return _STUDENT.get(degrees, NORMAL * (1 + (1 + NORMAL**2) / (4 * degrees)))
