"""Ratios of times, their intervals, and the one rule that judges them (numpy only).

A ratio above 1 is slower. Values of one worker process share its luck (memory layout, thread placement), so that the
worker, and not the pass, is what is resampled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from bexplore.measurement.statistics import LEVEL, NORMAL, student_quantile

TIME_TOLERANCE = 0.03  # of a ratio; the threshold of the guard where the user gives no other
NUM_RESAMPLES = 2000


class Judgement(StrEnum):
    """What an interval says about a tolerance."""

    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same"
    UNSURE = "unsure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A ratio of times and its interval.

    Attributes:
        value: The ratio; NaN where something was not a number or nothing was measured.
        low: Lower end of the interval.
        high: Upper end.
        num_workers: Workers, or pairs of workers, that it comes from.
        num_rounds: Values of all of them.
    """

    value: float
    low: float
    high: float
    num_workers: int
    num_rounds: int

    def __str__(self) -> str:
        """For people: the ratio and its interval."""
        return f"{self.value:.3f}x [{self.low:.3f}, {self.high:.3f}]"


def ratio_of(log_ratios: Sequence[Sequence[float]], *, seed: int = 0) -> Ratio:
    """Estimate a ratio from logarithms of single ratios, grouped by worker.

    The interval is that of a bootstrap over workers and, within each, over its values; about the estimate it is
    widened by Student's quantile over the normal one and by sqrt(n / (n - 1)), without which a bootstrap of few
    workers is too sure. Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, sections 12.5 and 14.

    Args:
        log_ratios: For each worker, or pair of workers, the logarithms of its ratios.
        seed: Of the resampling: the same values give the same interval.
    """
    groups = [np.asarray(group, dtype=float) for group in log_ratios if len(group)]
    count = sum(len(group) for group in groups)
    if not groups or not all(np.isfinite(group).all() for group in groups):
        return Ratio(value=math.nan, low=math.nan, high=math.nan, num_workers=len(groups), num_rounds=count)
    center = float(np.mean([np.median(group) for group in groups]))
    if len(groups) == 1:
        return Ratio(value=math.exp(center), low=0.0, high=math.inf, num_workers=1, num_rounds=count)
    rng = np.random.default_rng(seed)
    medians = np.array([_resampled_medians(group, rng) for group in groups])  # (num_workers, NUM_RESAMPLES)
    chosen = rng.integers(len(groups), size=(len(groups), NUM_RESAMPLES))
    means = np.take_along_axis(medians, chosen, axis=0).mean(axis=0)
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    widening = _widening(len(groups))
    return Ratio(
        value=math.exp(center),
        low=math.exp(center - widening * max(0.0, center - float(low))),
        high=math.exp(center + widening * max(0.0, float(high) - center)),
        num_workers=len(groups),
        num_rounds=count,
    )


def judge(ratio: Ratio, tolerance: float = TIME_TOLERANCE) -> Judgement:
    """Slower or faster only if the whole interval is beyond the tolerance; what is not a number is slower."""
    if math.isnan(ratio.value):
        return Judgement.SLOWER
    upper = 1 + tolerance
    if ratio.low > upper:
        return Judgement.SLOWER
    if ratio.high < 1 / upper:
        return Judgement.FASTER
    if 1 / upper <= ratio.low and ratio.high <= upper:
        return Judgement.SAME
    return Judgement.UNSURE


def workers_needed(ratio: Ratio, tolerance: float = TIME_TOLERANCE) -> int | None:
    """How many workers would make an unsure ratio sure, at the noise that was seen; None where none would.

    A ratio on the tolerance itself stays unsure for ever; another tolerance is what settles it.
    """
    edges = (math.log1p(tolerance), -math.log1p(tolerance))
    if not 0 < ratio.value < math.inf or ratio.num_workers < 2:
        return None
    center = math.log(ratio.value)
    distance = min(abs(center - edge) for edge in edges)
    half_width = max(math.log(ratio.high) - center, center - math.log(ratio.low))
    if half_width <= 0 or distance < half_width / 8:
        return None
    return max(ratio.num_workers + 1, math.ceil(ratio.num_workers * (half_width / distance) ** 2))


def _resampled_medians(group: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    picks = rng.integers(len(group), size=(NUM_RESAMPLES, len(group)))
    return np.median(group[picks], axis=1)


def _widening(num_workers: int) -> float:
    degrees = num_workers - 1
    return student_quantile(degrees) / NORMAL * math.sqrt(num_workers / degrees)


def unpaired_ratio(before: Sequence[float], after: Sequence[float], *, seed: int = 0) -> Ratio:
    """Estimate the ratio after / before of workers that did not run side by side.

    The interval is a bootstrap over the workers of both sides, widened as in `ratio_of` by the smaller side.

    Args:
        before: The logarithm of each worker's time.
        after: The same of now.
        seed: Of the resampling.
    """
    old, new = np.asarray(before, dtype=float), np.asarray(after, dtype=float)
    smaller = min(len(old), len(new))
    count = len(old) + len(new)
    if not smaller or not np.isfinite(old).all() or not np.isfinite(new).all():
        return Ratio(value=math.nan, low=math.nan, high=math.nan, num_workers=smaller, num_rounds=count)
    center = float(new.mean() - old.mean())
    if smaller == 1:
        return Ratio(value=math.exp(center), low=0.0, high=math.inf, num_workers=1, num_rounds=count)
    rng = np.random.default_rng(seed)
    means = [side[rng.integers(len(side), size=(NUM_RESAMPLES, len(side)))].mean(axis=1) for side in (old, new)]
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(means[1] - means[0], [tail, 1 - tail])
    widening = _widening(smaller)
    return Ratio(
        value=math.exp(center),
        low=math.exp(center - widening * (center - float(low))),
        high=math.exp(center + widening * (float(high) - center)),
        num_workers=smaller,
        num_rounds=count,
    )
