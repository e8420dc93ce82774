"""Which timed passes count, and when there are enough of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bexplore.measurement.interleaving import enough_se
from bexplore.measurement.statistics import median_se

# Fewest timed passes, by the seconds of one: a long pass averages the jitter away by itself.
MIN_PASSES = ((4.0, 1), (1.0, 2), (0.1, 3), (0.0, 5))
# The same where all that were timed show that the size is clearly worse than another.
MIN_PASSES_OF_WORSE = ((1.0, 1), (0.0, 2))
# Short passes are timed at least this long in all, however many that takes: they cost nothing. Seconds, passes.
MIN_TIMED_S = 0.25
MAX_PASSES = 200
# A pass with a thread that waited for a processor longer than this share of it was disturbed: well above the 1.3 to
# 1.9 % that the watchdog and the kernel cost on a quiet machine with as many threads as processors.
DISTURBED_SHARE = 0.05
# Passes and seconds that a probe may take in all where it is disturbed, as a multiple of what it takes undisturbed.
DISTURBED_FACTOR = 2.0


@dataclass(slots=True)
class Passes:
    """The timed passes of one probe.

    Attributes:
        max_passes: Upper bound on passes that count.
        budget_s: Seconds of passes after which it is enough, once the fewest are there.
        tolerance: Two sizes within this share of each other are as good as each other.
        worse_s: A size whose fastest pass takes longer is clearly worse than another, and needs no precision.
        undisturbed_s: Seconds of passes that had the processors when they wanted them, in order.
        all_s: Seconds of all passes, in order.
        scheduler_wait_s: Of each of them, the longest time that one of its threads waited for a processor.
    """

    max_passes: int
    budget_s: float
    tolerance: float
    worse_s: float = math.inf
    undisturbed_s: list[float] = field(default_factory=list)
    all_s: list[float] = field(default_factory=list)
    scheduler_wait_s: list[float] = field(default_factory=list)
    _all_total_s: float = 0.0
    _undisturbed_total_s: float = 0.0

    def add(self, seconds: float, *, scheduler_wait_s: float, num_passes: int = 1) -> None:
        """Take in a pass, or the mean of several, and the longest time that one of its threads waited."""
        self.all_s.append(seconds)
        self.scheduler_wait_s.append(scheduler_wait_s)
        self._all_total_s += num_passes * seconds
        if scheduler_wait_s <= DISTURBED_SHARE * seconds:
            self.undisturbed_s.append(seconds)
            self._undisturbed_total_s += num_passes * seconds

    @property
    def are_enough(self) -> bool:
        """Whether further passes would add nothing that the decision needs, or cost more than they may."""
        se = enough_se(self.tolerance)
        if self._is_clearly_worse or enough(
            self.undisturbed_s, self.max_passes, self.budget_s, se=se, total_s=self._undisturbed_total_s
        ):
            return True
        is_disturbed = len(self.undisturbed_s) < len(self.all_s)
        most, longest_s = round(DISTURBED_FACTOR * self.max_passes), DISTURBED_FACTOR * self.budget_s
        return is_disturbed and enough(self.all_s, most, longest_s, se=0.0, total_s=self._all_total_s)

    @property
    def counted_s(self) -> list[float]:
        """The passes that count: the undisturbed ones, or all of them where too few were."""
        return self.all_s if self._all_count else self.undisturbed_s

    @property
    def scheduler_wait_fraction(self) -> float:
        """Median share of the passes that count for which one of their threads waited for a processor."""
        shares = np.array(self.scheduler_wait_s) / np.array(self.all_s)
        counted = shares if self._all_count else shares[shares <= DISTURBED_SHARE]
        return float(np.median(counted)) if len(counted) else 0.0

    @property
    def _is_clearly_worse(self) -> bool:
        times_s = self.undisturbed_s
        return bool(times_s) and len(times_s) >= _fewest(times_s, MIN_PASSES_OF_WORSE) and min(times_s) > self.worse_s

    @property
    def _all_count(self) -> bool:
        return not self._is_clearly_worse and len(self.undisturbed_s) < _fewest(self.undisturbed_s or self.all_s)


def enough(times_s: Sequence[float], max_passes: int, budget_s: float, *, se: float, total_s: float) -> bool:
    """Return whether passes suffice: the fewest are there, and the bound, the budget or the error is reached.

    A mean of several passes counts as one pass, but for `total_s`, the seconds that all of them took.
    """
    if not times_s:
        return False
    if len(times_s) < _fewest(times_s) or (total_s < MIN_TIMED_S and len(times_s) < MAX_PASSES):
        return False
    return len(times_s) >= max_passes or total_s > budget_s or median_se(np.log(times_s)) < se


def _fewest(times_s: Sequence[float], rule: Sequence[tuple[float, int]] = MIN_PASSES) -> int:
    median_s = float(np.median(times_s)) if times_s else 0.0
    return next(count for seconds, count in rule if median_s >= seconds)
