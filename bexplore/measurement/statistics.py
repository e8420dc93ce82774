"""Student's interval: within what the mean of a few values lies, where their scatter is all that is known of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95  # of every interval that is shown
# Student's 97.5 % quantiles by degrees of freedom. Source: any table of the t distribution.
_STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228}
NORMAL = 1.960  # the same of the normal distribution


@dataclass(frozen=True, slots=True)
class PairedRatio:
    """The ratio of two times that were taken in pairs, and its 95 % interval.

    Attributes:
        value: The geometric mean of the pairs' ratios.
        low: Lower end of the interval; 0 where one pair is all there is.
        high: Upper end; infinite as above.
        num_pairs: How many pairs.
    """

    value: float
    low: float
    high: float
    num_pairs: int

    def is_within(self, tolerance: float) -> bool:
        """Whether the whole interval is within a share of 1 that counts as no difference."""
        return 1.0 / (1.0 + tolerance) <= self.low and self.high <= 1.0 + tolerance

    def is_narrow(self, width: float) -> bool:
        """Whether the upper end is above the lower one by at most this share of it."""
        return self.high <= (1.0 + width) * self.low


def paired_ratio(times_s: Sequence[float], other_times_s: Sequence[float]) -> PairedRatio:
    """The ratio of times to others that were taken beside them, one by one.

    Source: Student's interval of the mean of the logarithms (Box, Hunter and Hunter, "Statistics for Experimenters",
    chapter 3, paired comparisons). No value is left out or drawn in: a disturbed pair widens the interval.

    Args:
        times_s: Seconds, at least one.
        other_times_s: As many.
    """
    logs = np.log(times_s) - np.log(other_times_s)
    count, center = len(logs), float(np.mean(logs))
    if count < 2:
        return PairedRatio(math.exp(center), 0.0, math.inf, count)
    half = student_quantile(count - 1) * float(np.std(logs, ddof=1)) / math.sqrt(count)
    return PairedRatio(math.exp(center), math.exp(center - half), math.exp(center + half), count)


def student_quantile(degrees: int) -> float:
    """The 97.5 % quantile of Student's t distribution.

    Source: beyond the table, the first term of its expansion about the normal one (Abramowitz and Stegun, 26.7.5).
    """
    return _STUDENT.get(degrees, NORMAL * (1 + (1 + NORMAL**2) / (4 * degrees)))
