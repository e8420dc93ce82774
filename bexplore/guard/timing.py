"""Blocks of passes, ratios of times with their intervals, and the rule that judges them (numpy only).

A ratio above 1 is slower. Values of one worker process share its process effect (memory layout, thread placement), so
that workers, and not passes, are resampled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bexplore.guard.report import Status
from bexplore.measurement.statistics import LEVEL, NORMAL, student_quantile

TIME_TOLERANCE = 0.03  # of a ratio; the threshold of the guard where the user gives no other
NUM_RESAMPLES = 2000
MAX_PASSES_PER_BLOCK = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Consecutive passes of one worker."""

    pass_times_s: tuple[float, ...]  # wall seconds of each pass
    cpu_time_s: float  # processor seconds of the worker for all passes
    loss: float = 0.0  # loss of the last pass

    @property
    def log_wall_s(self) -> float:
        """Return ln of the median pass; NaN if the loss is not a number."""
        return math.log(float(np.median(self.pass_times_s))) if math.isfinite(self.loss) else math.nan

    @property
    def log_cpu_s(self) -> float:
        """Return ln of the mean processor seconds of a pass; NaN if the loss is not a number."""
        mean_s = self.cpu_time_s / len(self.pass_times_s)
        return math.log(max(mean_s, 1e-9)) if math.isfinite(self.loss) else math.nan


def count_passes(pass_time_s: float, block_s: float) -> int:
    """Return the number of passes of one block."""
    return max(1, min(MAX_PASSES_PER_BLOCK, round(block_s / max(pass_time_s, 1e-6))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A ratio of times and its interval."""

    value: float  # the ratio; NaN where something was not a number or nothing was measured
    low: float  # lower end of the interval
    high: float  # upper end
    num_workers: int  # number of workers, or of pairs of workers
    num_rounds: int  # number of values of all workers

    def __str__(self) -> str:
        return f"{self.value:.3f}x [{self.low:.3f}, {self.high:.3f}]"


def estimate_ratio(log_ratios: Sequence[Sequence[float]], *, seed: int = 0) -> Ratio:
    """Estimate a ratio from logarithms of single ratios, grouped by worker.

    The interval is that of a bootstrap over workers and, within each, over its values; about the estimate it is
    widened by Student's quantile over the normal one and by sqrt(n / (n - 1)), without which a bootstrap of few
    workers is too narrow. Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, sections 12.5 and 14.

    Args:
        log_ratios: For each worker, or pair of workers, the logarithms of its ratios.
    """
    groups = [np.asarray(group, dtype=float) for group in log_ratios if len(group)]
    count = sum(len(group) for group in groups)
    if not groups or not all(np.isfinite(group).all() for group in groups):
        return _unknown(len(groups), count)
    center = float(np.mean([np.median(group) for group in groups]))

    def means() -> np.ndarray:
        rng = np.random.default_rng(seed)
        medians = np.array([_resampled_medians(group, rng) for group in groups])  # (num_workers, NUM_RESAMPLES)
        chosen = rng.integers(len(groups), size=(len(groups), NUM_RESAMPLES))
        return np.asarray(np.take_along_axis(medians, chosen, axis=0).mean(axis=0))

    return _estimate(center, means, num_workers=len(groups), num_rounds=count)


def estimate_unpaired_ratio(before: Sequence[float], after: Sequence[float]) -> Ratio:
    """Estimate the ratio after / before of workers that did not run side by side.

    The interval is a bootstrap over the workers of both sides, widened as in `estimate_ratio` by the smaller side.
    """
    old, new = np.asarray(before, dtype=float), np.asarray(after, dtype=float)
    smaller, count = min(len(old), len(new)), len(old) + len(new)
    if not smaller or not np.isfinite(old).all() or not np.isfinite(new).all():
        return _unknown(smaller, count)

    def differences() -> np.ndarray:
        rng = np.random.default_rng(0)
        means = [side[rng.integers(len(side), size=(NUM_RESAMPLES, len(side)))].mean(axis=1) for side in (old, new)]
        return np.asarray(means[1] - means[0])

    return _estimate(float(new.mean() - old.mean()), differences, num_workers=smaller, num_rounds=count)


def _unknown(num_workers: int, num_rounds: int) -> Ratio:
    return Ratio(value=math.nan, low=math.nan, high=math.nan, num_workers=num_workers, num_rounds=num_rounds)


def _estimate(center: float, resampled: Callable[[], np.ndarray], *, num_workers: int, num_rounds: int) -> Ratio:
    """Return the ratio about a centre, with the widened interval of resampled centres; unbounded for one worker."""
    value, low, high = math.exp(center), 0.0, math.inf
    if num_workers > 1:
        tail = (1 - LEVEL) / 2
        lower, upper = np.quantile(resampled(), [tail, 1 - tail])
        degrees = num_workers - 1
        widening = student_quantile(degrees) / NORMAL * math.sqrt(num_workers / degrees)
        low = math.exp(center - widening * max(0.0, center - float(lower)))
        high = math.exp(center + widening * max(0.0, float(upper) - center))
    return Ratio(value=value, low=low, high=high, num_workers=num_workers, num_rounds=num_rounds)


def judge_ratio(ratio: Ratio, tolerance: float = TIME_TOLERANCE) -> Status:
    """Return worse (slower) or better only if the whole interval is beyond the tolerance; NaN is worse."""
    if math.isnan(ratio.value):
        return Status.WORSE
    upper = 1 + tolerance
    if ratio.low > upper:
        return Status.WORSE
    if ratio.high < 1 / upper:
        return Status.BETTER
    return Status.SAME if 1 / upper <= ratio.low and ratio.high <= upper else Status.UNSURE


def count_needed_workers(ratio: Ratio, tolerance: float = TIME_TOLERANCE) -> int | None:
    """Return the number of workers that would make an unsure ratio sure at the observed noise; None for no such number.

    A ratio on the tolerance itself stays unsure with any number of workers.
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
