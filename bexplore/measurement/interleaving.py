"""Sizes that took turns on one machine: what each turn of all says that no size alone can say.

A shared machine's speed wanders: over seconds and minutes by more than sizes differ, and longer timing does not average
it away. It wanders for all sizes alike. Where they take turns that are short beside its wandering, what the sizes of a
round share is the machine, and what is left is theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# A size whose samples/s are below another's by this share beyond what counts as a tie is not timed more closely ...
WORSE_THAN_TIED = 0.04
MOST_WORSE = 0.99  # ... and in any case one that has a hundredth of them

# A turn of a size is at least one pass and about this long: short beside what a shared machine's speed wanders in
# (seconds), long beside what a change of the size disturbs. Seconds.
TURN_S = 0.1
MAX_PASSES_OF_TURN = 20
# Fewest rounds, by the seconds of one: long turns average the jitter away by themselves. One would not show that a turn
# was disturbed.
MIN_ROUNDS = ((1.0, 2), (0.0, 4))
# Timing suffices when no size's standard error, of its log pass time, is above this share of what counts as a tie: a
# fifth of it where contenders are told apart, the most of it where a size is only looked at.
ENOUGH_SHARE = 0.2
ENOUGH_SHARE_OF_SCREENING = 0.75
# Seconds of contenders' turns, in budgets of a size alone: with as many as there are sizes, simulated searches ended no
# better and took longer.
BUDGETS_OF_CONTENDERS = 2
# A size that is only looked at is clearly worse when it is by so many standard errors of the difference.
SURELY = 2.5
MOST_SDS = 2.0  # from the median, beyond which a turn counts as disturbed
QUARTILES_APART = 1.349  # standard deviations of a normal sample between its quartiles
# A turn that takes longer by this, ln, and by so many times what most differ by, than its size's fastest and its round
# let expect is no noise of its size: six standard deviations of a usual turn (5 %, `EXPECTED_ROUND_SD`). Simulated
# bursts and wandering machines end alike with 0.2 to 0.45, 3 to 6 times, and a usual share of 0.5 to 0.7.
LEAST_DISTURBANCE = 0.3
DISTURBED_TIMES = 4.0
SURE_DISTURBANCE = math.log(2.0)  # five standard deviations of a machine that wanders by 12 %
PASSES_OF_MEDIAN = 5  # of a size alone; the median of fewer may be a disturbed one
DISTURBED_FACTOR = 2  # times the rounds, where some are disturbed
USUAL_SHARE = 0.6  # of the turns: as many are taken to be undisturbed
# Variance of a turn (5 %, `EXPECTED_ROUND_SD`) over that of the machine's wandering between two rounds (10 %).
ROUND_SHRINKAGE = 0.25
MAD_SDS = 1.4826  # of which one is so many median absolute deviations


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the turns say of one size.

    Attributes:
        pass_time_s: Seconds of a pass at the machine's usual speed in these turns, the same for all sizes of them.
        log_se: Standard error of its logarithm beside what the machine did to all; NaN below two turns that count.
        num_turns: Turns that count; with a fraction where others of their rounds do not.
    """

    pass_time_s: float
    log_se: float
    num_turns: float

    def log_throughput(self, micro_batch_size: int) -> float:
        """ln(samples/s) of a size at this level; NaN where nothing was timed."""
        return math.log(micro_batch_size / self.pass_time_s)


def interleaved_estimates(interleaved_times_s: Mapping[int, Sequence[float]]) -> dict[int, Estimate]:
    """The level of each size that took turns.

    Source: the two-way layout with rounds as blocks (Box, Hunter and Hunter, "Statistics for Experimenters", chapter
    4): what is left of ln(seconds) when the round's mean is taken away is the size's own. Of K sizes these residuals
    have the variance of a turn times 1 - 1/K. Turns that `are_disturbed` are missing plots (Yates, "The analysis of
    replicated experiments when the field results are incomplete", 1933). A turn that seems disturbed beside what is
    left is drawn in to `MOST_SDS` (a Winsorized mean: Tukey, "The future of data analysis", 1962), which keeps nearly
    all of what a mean knows. One of four rounds widens the quartiles, and not the median absolute deviation: the level
    is drawn in by the latter. Few rounds may agree by chance, so its error is that of what is drawn in by the former.

    Args:
        interleaved_times_s: By size, seconds of a pass in each round; every size has as many rounds.
    """
    logs = np.log(np.array([list(times_s) for times_s in interleaved_times_s.values()]))
    counts = ~are_disturbed(logs)
    logs, num_turns = _completed(logs, counts)
    machine = logs.mean(axis=0)
    own = logs - machine
    middle = np.median(own, axis=1, keepdims=True)
    lower, upper = np.quantile(own, (0.25, 0.75), axis=1, keepdims=True)
    levels = np.exp(np.median(machine) + _drawn_in(own, middle, MAD_SDS * _mad(own, middle)).mean(axis=1))
    drawn_in = _drawn_in(own, middle, (upper - lower) / QUARTILES_APART)
    squares = np.square(drawn_in - drawn_in.mean(axis=1, keepdims=True)).sum(axis=1, where=counts)
    freedom = (counts.sum(axis=1) - 1) * (1.0 - 1.0 / max(len(logs), 2))
    errors = np.sqrt(np.divide(squares, freedom * num_turns, where=freedom > 0, out=np.full(len(logs), math.nan)))
    return {
        size: Estimate(float(levels[i]), float(errors[i]), float(num_turns[i]))
        for i, size in enumerate(interleaved_times_s)
    }


def estimate_alone(pass_times_s: Sequence[float]) -> Estimate:
    """The level of a size that was timed alone: that of its median pass; of few passes without the disturbed ones.

    The standard error is NaN below two passes. Source: 1.4826 MAD estimates the standard deviation of a normal sample,
    1.2533 s / sqrt(n) the standard error of its median; times 1.5 for the autocorrelation of consecutive steps, seen in
    public repeats.
    """
    logs = np.log(np.array(pass_times_s, dtype=float))
    if 0 < len(logs) < PASSES_OF_MEDIAN:
        logs = logs[~are_disturbed(logs[None, :])[0]]
    if len(logs) < 2:
        return Estimate(math.exp(logs[0]) if len(logs) else math.nan, math.nan, len(logs))
    return Estimate(float(np.median(np.exp(logs))), log_median_se(logs), len(logs))


def log_median_se(logs: Array) -> float:
    """Standard error of the median of two and more logarithms of passes: see `estimate_alone`."""
    mad = float(np.median(np.abs(logs - np.median(logs))))
    return 1.5 * 1.2533 * MAD_SDS * mad / math.sqrt(len(logs))


def are_disturbed(logs: Array) -> NDArray[np.bool_]:
    """(K, R), which turns somebody else's work made far longer, of K sizes in R rounds.

    Nothing speeds a turn up, so the fastest of a size is the nearest to what it takes alone. What all sizes of a round
    are slower than that is the machine; what one is slower beyond it is a disturbance of this turn. Where half of a
    size's turns seem to be disturbed, it is noisy, and none is singled out. What takes twice as long as the fastest is
    no noise, and no wandering of the machine.

    Args:
        logs: (K, R), ln(seconds of a pass).
    """
    behind = logs - logs.min(axis=1, keepdims=True)
    excess = behind - behind.min(axis=0) if len(logs) > 1 else behind
    usual = np.quantile(excess, USUAL_SHARE, method="lower")
    seem = excess > max(LEAST_DISTURBANCE, DISTURBED_TIMES * usual)
    most = max((logs.shape[1] - 1) // 2, 1)
    return np.asarray((seem & (seem.sum(axis=1, keepdims=True) <= most)) | (behind > SURE_DISTURBANCE))


def _completed(logs: Array, counts: NDArray[np.bool_]) -> tuple[Array, Array]:
    """(K, R), the layout with what is expected of the turns that do not count, and (K,), how many turns each is worth.

    Rounds that miss a size are compared across by what the machine wanders between two of them.
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
    num_turns = 1.0 / variance if num_sizes > 1 else counts.sum(axis=1).astype(float)
    return np.where(counts, logs, expected), num_turns


def _drawn_in(own: Array, middle: Array, sd: Array) -> Array:
    return np.clip(own, middle - MOST_SDS * sd, middle + MOST_SDS * sd)


def _mad(own: Array, middle: Array) -> Array:
    """(K, 1), median absolute deviations."""
    return np.asarray(np.median(np.abs(own - middle), axis=1, keepdims=True))


def enough_se(tolerance: float) -> float:
    """Standard error of ln(pass time) below which further passes tell nothing that the decision needs."""
    return ENOUGH_SHARE * tolerance


def clearly_worse(tolerance: float) -> float:
    """The share of another's samples/s by which a size must be behind it to be clearly worse."""
    return min(tolerance + WORSE_THAN_TIED, MOST_WORSE)


def num_passes_of_turn(pass_time_s: float) -> int:
    """Passes that make a turn of a size."""
    return min(max(1, math.ceil(TURN_S / pass_time_s)), MAX_PASSES_OF_TURN)


@dataclass(slots=True)
class InterleavedTiming:
    """The rounds of one probe, and when there are enough of them.

    Attributes:
        size: The probe's own; the others ran before.
        max_rounds: Upper bound; `DISTURBED_FACTOR` times as many where some are disturbed.
        budget_s: Seconds of undisturbed turns after which it is enough, once the fewest rounds are there.
        is_screening: Whether the size is only looked at, so that it needs less precision, and one clearly worse none.
        tolerance: Two sizes within this share of each other are as good as each other.
        interleaved_times_s: By size, seconds of a pass in each round.
        num_passes: By size, passes of a turn.
    """

    size: int
    max_rounds: int
    budget_s: float
    is_screening: bool
    tolerance: float
    num_passes: Mapping[int, int]
    interleaved_times_s: dict[int, list[float]] = field(default_factory=dict)

    def add(self, interleaved_times_s: Mapping[int, float]) -> None:
        """Take in a round: by size, seconds of a pass."""
        for size, seconds in interleaved_times_s.items():
            self.interleaved_times_s.setdefault(size, []).append(seconds)

    def take(self, order: Sequence[int], turn: Callable[[int], float]) -> None:
        """Take rounds until they are enough, each the other way round than the one before.

        So a steady drift meets all sizes alike.

        Args:
            order: The sizes, in the order of the first round.
            turn: Runs a turn of a size; seconds of a pass.
        """
        while not self.are_enough:
            self.add({size: turn(size) for size in order})
            order = order[::-1]

    @property
    def are_enough(self) -> bool:
        """Whether further rounds would tell nothing that the decision needs, or cost more than they may."""
        num_rounds = len(self.interleaved_times_s.get(self.size, ()))
        if not num_rounds:
            return False
        counts = self._counts
        count = int(counts.sum(axis=1).min())
        if self.is_screening and count >= 2 and self._is_clearly_worse(counts):
            return True
        seconds = self._seconds
        usual_s = float(np.where(counts, seconds, 0.0).sum(axis=1) @ (1.0 / np.maximum(counts.sum(axis=1), 1)))
        enough = min(self.max_rounds, next(fewest for limit_s, fewest in MIN_ROUNDS if usual_s >= limit_s))
        if num_rounds >= DISTURBED_FACTOR * self.max_rounds:
            return True
        if count < enough:
            return False
        if count >= self.max_rounds or float(seconds[counts].sum()) >= self.budget_s:
            return True
        error = max(level.log_se for level in interleaved_estimates(self.interleaved_times_s).values())
        return error < (ENOUGH_SHARE_OF_SCREENING * self.tolerance if self.is_screening else enough_se(self.tolerance))

    @property
    def _seconds(self) -> Array:
        """(K, R), of the turns."""
        return np.array(
            [self.num_passes[size] * np.array(times_s) for size, times_s in self.interleaved_times_s.items()]
        )

    @property
    def _counts(self) -> NDArray[np.bool_]:
        """(K, R), turns that nobody else disturbed."""
        return ~are_disturbed(np.log(np.array(list(self.interleaved_times_s.values()))))

    def _is_clearly_worse(self, counts: NDArray[np.bool_]) -> bool:
        """Whether it is so beside any other, by the rounds in which neither was disturbed."""
        sizes = np.array(list(self.interleaved_times_s))
        logs = np.log(sizes)[:, None] - np.log(np.array(list(self.interleaved_times_s.values())))
        own = int(np.flatnonzero(sizes == self.size)[0])
        both = counts & counts[own]
        others = (i for i in range(len(sizes)) if i != own and both[i].sum() >= 2)
        return any(self._is_surely_worse((logs[own] - logs[i])[both[i]]) for i in others)

    def _is_surely_worse(self, differences: NDArray[np.float64]) -> bool:
        """Whether the mean of some differences of ln(samples/s) is below the limit by far more than they scatter."""
        error = max(float(np.std(differences, ddof=1)) / math.sqrt(len(differences)), enough_se(self.tolerance))
        return float(np.mean(differences)) + SURELY * error < math.log1p(-clearly_worse(self.tolerance))
