"""Interleaved timing: sizes are timed in rounds, so that common-mode drift cancels in their comparison.

A shared machine's speed drifts over seconds and minutes by more than sizes differ, and longer timing does not average
the drift away. It is the same for all sizes. In rounds that are short beside the drift, what the sizes of a round share
is the machine's, and the rest is their own. A *timing* is one size's part of one round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bexplore.measurement.statistics import MAD_SDS, QUARTILE_DISTANCE, TIMING_S, Array, mad, mean_se, median_se

# sensitivity.md is benchmarks/results/sensitivity.md: what half and double of each figure do to searches.

# A size whose samples/s are below another's by this share beyond the indifference zone is not timed more closely ...
WORSE_THAN_TIED = 0.04  # Source: twice the default zone; sensitivity.md
MOST_WORSE = 0.99  # ... and in any case one that has a hundredth of the samples/s. Source: keeps 1 - share above 0
MAX_PASSES_PER_TIMING = 20  # Source: passes of 5 ms; sensitivity.md
# Fewest rounds, by the seconds of one: long timings average jitter away. Source: sensitivity.md; a single round
# could not show that a timing was disturbed.
MIN_ROUNDS = ((1.0, 2), (0.0, 4))
# Timing suffices when the largest standard error of a size's log pass time is below this share of the indifference
# zone. Source: five standard errors a zone between contenders, the zone itself in screening; sensitivity.md.
ENOUGH_SHARE = 0.2
ENOUGH_SHARE_OF_SCREENING = 0.75
# Seconds of the contenders' timings, in budgets of one size. Source: simulated searches of `Family.DRIFTING_HOST`: as
# many budgets as sizes ended no better and took longer; sensitivity.md.
BUDGETS_OF_CONTENDERS = 2
# A screened size is clearly worse by so many standard errors of the difference. Source: P < 1 % of a normal one.
SURELY = 2.5
MOST_SDS = 2.0  # of clipping. Source: usual of a Winsorized mean; keeps over 95 % of its efficiency
# A timing is disturbed that is longer, ln, by this and by so many times what most timings differ by, than its size's
# fastest and its round let expect. Source: six standard deviations of a usual timing (5 %, `EXPECTED_ROUND_SD`);
# simulated bursts and drifting hosts end alike with 0.2 to 0.45, 3 to 6 times, and a usual share of 0.5 to 0.7.
LEAST_DISTURBANCE = 0.3
DISTURBED_TIMES = 4.0
USUAL_SHARE = 0.6  # of the timings count as undisturbed. Source: see `LEAST_DISTURBANCE`
SURE_DISTURBANCE = math.log(2.0)  # Source: five standard deviations of a host that drifts by 12 %
PASSES_OF_MEDIAN = 5  # the median of fewer may be a disturbed one. Source: breaks down at two of four
DISTURBED_FACTOR = 2  # times the rounds, where some are disturbed. Source: sensitivity.md
# Variance of a timing over that of drift between rounds. Source: (5 % / 10 %)^2, `EXPECTED_ROUND_SD`, `COMMON_MODE_SD`.
ROUND_SHRINKAGE = 0.25


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimate of one size from its timings."""

    # Seconds of a pass at the machine's median speed in these rounds, which is common to their sizes.
    pass_time_s: float
    log_se: float  # standard error of its logarithm, without common-mode drift; NaN below two timings that count
    num_timings: float  # timings that count; fractional where timings of other sizes in these rounds do not

    def log_throughput(self, micro_batch_size: int) -> float:
        """Return ln(samples/s) of a size with this pass time; NaN where nothing was timed."""
        return math.log(micro_batch_size / self.pass_time_s)


def estimate_interleaved(interleaved_times_s: Mapping[int, Sequence[float]]) -> dict[int, Estimate]:
    """Estimate each size that was timed interleaved.

    Source: the two-way layout with rounds as blocks (Box, Hunter and Hunter, "Statistics for Experimenters", chapter
    4): ln(seconds) less the round's mean is the size's own. Of K sizes these residuals have the variance of a timing
    times 1 - 1/K. Timings that `find_disturbed` are missing plots (Yates, "The analysis of replicated experiments when
    the field results are incomplete", 1933). Residuals are clipped to `MOST_SDS` (a Winsorized mean: Tukey, "The future
    of data analysis", 1962). One disturbed round of four widens the quartiles and not the median absolute deviation, so
    the estimate is clipped by the latter. Few rounds may agree by chance, so its error is that of clipping by the
    former.
    """
    logs = np.log(np.array([list(times_s) for times_s in interleaved_times_s.values()]))
    counts = ~find_disturbed(logs)
    logs, num_timings = _complete(logs, counts)
    machine = logs.mean(axis=0)
    own = logs - machine
    middle = np.median(own, axis=1, keepdims=True)
    lower, upper = np.quantile(own, (0.25, 0.75), axis=1, keepdims=True)
    pass_times_s = np.exp(np.median(machine) + _clip(own, middle, MAD_SDS * mad(own)).mean(axis=1))
    clipped = _clip(own, middle, (upper - lower) / QUARTILE_DISTANCE)
    squares = np.square(clipped - clipped.mean(axis=1, keepdims=True)).sum(axis=1, where=counts)
    freedom = (counts.sum(axis=1) - 1) * (1.0 - 1.0 / max(len(logs), 2))
    errors = np.sqrt(np.divide(squares, freedom * num_timings, where=freedom > 0, out=np.full(len(logs), math.nan)))
    columns = (pass_times_s.tolist(), errors.tolist(), num_timings.tolist())
    return dict(zip(interleaved_times_s, map(Estimate, *columns), strict=True))


def estimate_alone(pass_times_s: Sequence[float]) -> Estimate:
    """Estimate a size that was timed alone by its median pass; of few passes, without the disturbed ones."""
    logs = np.log(np.array(pass_times_s, dtype=float))
    if 0 < len(logs) < PASSES_OF_MEDIAN:
        logs = logs[~find_disturbed(logs[None, :])[0]]
    if len(logs) < 2:
        return Estimate(math.exp(logs[0]) if len(logs) else math.nan, math.nan, len(logs))
    return Estimate(float(np.median(np.exp(logs))), median_se(logs), len(logs))


def find_disturbed(logs: Array) -> NDArray[np.bool_]:
    """Return (K, R), which timings of K sizes in R rounds other processes made far longer.

    Nothing speeds a timing up, so the fastest of a size is the nearest to its undisturbed time. What all sizes of a
    round are slower than that is the machine; what one size is slower beyond it is a disturbance. Where half of a
    size's timings seem disturbed, the size is noisy, and none is singled out. Twice the fastest is a disturbance in any
    case: neither noise nor drift reaches it.

    Args:
        logs: (K, R), ln(seconds of a pass).
    """
    behind = logs - logs.min(axis=1, keepdims=True)
    excess = behind - behind.min(axis=0) if len(logs) > 1 else behind
    usual = np.quantile(excess, USUAL_SHARE, method="lower")
    seem = excess > max(LEAST_DISTURBANCE, DISTURBED_TIMES * usual)
    most = max((logs.shape[1] - 1) // 2, 1)
    return np.asarray((seem & (seem.sum(axis=1, keepdims=True) <= most)) | (behind > SURE_DISTURBANCE))


def _complete(logs: Array, counts: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Return (K, R), the layout with expected values of timings that do not count, and (K,), effective timings.

    Rounds that miss a size are compared across the drift between two rounds.
    """
    num_sizes, num_rounds = logs.shape
    at_size, at_round = np.nonzero(counts)
    design = np.zeros((len(at_size), num_sizes + num_rounds))
    design[np.arange(len(at_size)), at_size] = 1.0
    design[np.arange(len(at_size)), num_sizes + at_round] = 1.0
    shrinkage = np.append(np.zeros(num_sizes), np.full(num_rounds, ROUND_SHRINKAGE))
    covariance = np.linalg.inv(design.T @ design + np.diag(shrinkage))
    center = logs[counts].mean()
    fitted = covariance @ (design.T @ (logs[counts] - center))
    expected = center + fitted[:num_sizes, None] + fitted[None, num_sizes:]
    contrast = np.eye(num_sizes) - 1.0 / num_sizes
    variance = np.diag(contrast @ covariance[:num_sizes, :num_sizes] @ contrast) / (1.0 - 1.0 / max(num_sizes, 2))
    num_timings = 1.0 / variance if num_sizes > 1 else counts.sum(axis=1).astype(float)
    return np.where(counts, logs, expected), num_timings


def _clip(own: Array, middle: Array, sd: Array) -> Array:
    return np.clip(own, middle - MOST_SDS * sd, middle + MOST_SDS * sd)


def enough_se(tolerance: float) -> float:
    """Return the standard error of ln(pass time) below which further passes do not change a decision."""
    return ENOUGH_SHARE * tolerance


def clearly_worse(tolerance: float) -> float:
    """Return the share of another's samples/s by which a size must be behind to be clearly worse."""
    return min(tolerance + WORSE_THAN_TIED, MOST_WORSE)


def passes_per_timing(pass_time_s: float) -> int:
    """Return how many passes make one timing of a size."""
    return min(max(1, math.ceil(TIMING_S / pass_time_s)), MAX_PASSES_PER_TIMING)


@dataclass(slots=True)
class InterleavedTiming:
    """The rounds of one probe, and the rule that stops them."""

    size: int  # the probe's own; the others ran before
    max_rounds: int  # upper bound; `DISTURBED_FACTOR` times as many where some are disturbed
    budget_s: float  # seconds of undisturbed timings that suffice, once the fewest rounds are there
    # Whether the probe only screens the size: it needs less precision, and a clearly worse size none.
    is_screening: bool
    tolerance: float  # the indifference zone
    num_passes: Mapping[int, float]  # by size, passes of a timing; of batches of many lengths, mean ones
    # By size, seconds of a pass in each round.
    interleaved_times_s: dict[int, list[float]] = field(default_factory=dict)

    def add(self, interleaved_times_s: Mapping[int, float]) -> None:
        """Add a round: by size, seconds of a pass."""
        for size, seconds in interleaved_times_s.items():
            self.interleaved_times_s.setdefault(size, []).append(seconds)

    def take(self, order: Sequence[int], time_size: Callable[[int], float]) -> None:
        """Run rounds until they suffice, each in the reverse order of the last, so that a steady drift cancels."""
        while not self.are_enough:
            self.add({size: time_size(size) for size in order})
            order = order[::-1]

    @property
    def are_enough(self) -> bool:
        """Whether further rounds would not change the decision, or cost more than they may."""
        num_rounds = len(self.interleaved_times_s.get(self.size, ()))
        if not num_rounds:
            return False
        counts = self._counts
        count = int(counts.sum(axis=1).min())
        if self.is_screening and count >= 2 and self._is_clearly_worse(counts):
            return True
        seconds = self._seconds
        usual_s = float(np.where(counts, seconds, 0.0).sum(axis=1) @ (1.0 / np.maximum(counts.sum(axis=1), 1)))
        fewest = min(self.max_rounds, next(count for limit_s, count in MIN_ROUNDS if usual_s >= limit_s))
        if num_rounds >= DISTURBED_FACTOR * self.max_rounds:
            return True
        if count < fewest:
            return False
        if count >= self.max_rounds or float(seconds[counts].sum()) >= self.budget_s:
            return True
        error = max(estimate.log_se for estimate in self._estimates)
        return error < (ENOUGH_SHARE_OF_SCREENING * self.tolerance if self.is_screening else enough_se(self.tolerance))

    @property
    def _estimates(self) -> list[Estimate]:
        """The estimate of each size; a size alone has no other that separates its noise from the machine's."""
        if len(self.interleaved_times_s) == 1:
            return [estimate_alone(times_s) for times_s in self.interleaved_times_s.values()]
        return list(estimate_interleaved(self.interleaved_times_s).values())

    @property
    def _seconds(self) -> Array:
        """(K, R), of the timings."""
        return np.array(
            [self.num_passes[size] * np.array(times_s) for size, times_s in self.interleaved_times_s.items()]
        )

    @property
    def _counts(self) -> NDArray[np.bool_]:
        """(K, R), undisturbed timings."""
        return ~find_disturbed(np.log(np.array(list(self.interleaved_times_s.values()))))

    def _is_clearly_worse(self, counts: NDArray[np.bool_]) -> bool:
        """Return whether it is clearly worse than any other size, by the rounds in which neither was disturbed."""
        sizes = np.array(list(self.interleaved_times_s))
        logs = np.log(sizes)[:, None] - np.log(np.array(list(self.interleaved_times_s.values())))
        own = int(np.flatnonzero(sizes == self.size)[0])
        both = counts & counts[own]
        others = (i for i in range(len(sizes)) if i != own and both[i].sum() >= 2)
        return any(self._is_surely_worse((logs[own] - logs[i])[both[i]]) for i in others)

    def _is_surely_worse(self, differences: Array) -> bool:
        """Return whether the mean difference of ln(samples/s) is below the limit by far more than its error."""
        error = max(mean_se(differences), enough_se(self.tolerance))
        return float(np.mean(differences)) + SURELY * error < math.log1p(-clearly_worse(self.tolerance))
