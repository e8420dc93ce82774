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
ENOUGH_SHARE_OF_LOOK = 0.75
# Seconds of contenders' turns, in budgets of a size alone: with as many as there are sizes, simulated searches ended no
# better and took longer.
BUDGETS_OF_CONTENDERS = 2
# A size that is only looked at is clearly worse when it is by so many standard errors of the difference.
SURELY = 2.5
MOST_SDS = 2.0  # from the median, beyond which a turn counts as disturbed
QUARTILES_APART = 1.349  # standard deviations of a normal sample between its quartiles
MAD_SDS = 1.4826  # of which one is so many median absolute deviations


@dataclass(frozen=True, slots=True)
class Level:
    """What the turns say of one size.

    Attributes:
        pass_time_s: Seconds of a pass at the machine's usual speed in these turns, the same for all sizes of them.
        log_se: Standard error of its logarithm beside what the machine did to all; NaN below two turns.
    """

    pass_time_s: float
    log_se: float

    def log_throughput(self, micro_batch_size: int) -> float:
        """ln(samples/s) of a size at this level; NaN where nothing was timed."""
        return math.log(micro_batch_size / self.pass_time_s)


def levels_of(turn_times_s: Mapping[int, Sequence[float]]) -> dict[int, Level]:
    """The level of each size that took turns.

    Source: the two-way layout with rounds as blocks (Box, Hunter and Hunter, "Statistics for Experimenters", chapter
    4): what is left of ln(seconds) when the round's mean is taken away is the size's own. Of K sizes these residuals
    have the variance of a turn times 1 - 1/K. A turn that was disturbed is drawn in to `MOST_SDS` (a Winsorized mean:
    Tukey, "The future of data analysis", 1962), which keeps nearly all of what a mean knows. One burst in
    four rounds widens the quartiles, and not the median absolute deviation: the level is drawn in by the latter. Few
    rounds may agree by chance, so its error is that of what is drawn in by the former.

    Args:
        turn_times_s: By size, seconds of a pass in each round; every size has as many rounds.
    """
    logs = np.log(np.array([list(times_s) for times_s in turn_times_s.values()]))
    num_sizes, num_rounds = logs.shape
    machine = logs.mean(axis=0)
    own = logs - machine
    middle = np.median(own, axis=1, keepdims=True)
    lower, upper = np.quantile(own, (0.25, 0.75), axis=1, keepdims=True)
    levels = np.exp(np.median(machine) + _drawn_in(own, middle, MAD_SDS * _mad(own, middle)).mean(axis=1))
    errors = np.full(num_sizes, math.nan)
    if num_rounds >= 2:
        drawn_in = _drawn_in(own, middle, (upper - lower) / QUARTILES_APART)
        errors = drawn_in.std(axis=1, ddof=1) / math.sqrt(num_rounds * (1.0 - 1.0 / max(num_sizes, 2)))
    return {size: Level(float(levels[i]), float(errors[i])) for i, size in enumerate(turn_times_s)}


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
class Rounds:
    """The rounds of one probe, and when there are enough of them.

    Attributes:
        size: The probe's own; the others ran before.
        max_rounds: Upper bound.
        budget_s: Seconds of turns after which it is enough, once the fewest rounds are there.
        is_look: Whether the size is only looked at, so that it needs less precision, and one clearly worse none.
        tolerance: Two sizes within this share of each other are as good as each other.
        turn_times_s: By size, seconds of a pass in each round.
        num_passes: By size, passes of a turn.
    """

    size: int
    max_rounds: int
    budget_s: float
    is_look: bool
    tolerance: float
    num_passes: Mapping[int, int]
    turn_times_s: dict[int, list[float]] = field(default_factory=dict)

    def add(self, turn_times_s: Mapping[int, float]) -> None:
        """Take in a round: by size, seconds of a pass."""
        for size, seconds in turn_times_s.items():
            self.turn_times_s.setdefault(size, []).append(seconds)

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
        count = len(self.turn_times_s.get(self.size, ()))
        if not count:
            return False
        total_s = sum(self.num_passes[size] * sum(times_s) for size, times_s in self.turn_times_s.items())
        if self.is_look and count >= 2 and self._is_clearly_worse:
            return True
        if count < min(self.max_rounds, next(fewest for limit_s, fewest in MIN_ROUNDS if total_s >= count * limit_s)):
            return False
        if count >= self.max_rounds or total_s >= self.budget_s:
            return True
        error = max(level.log_se for level in levels_of(self.turn_times_s).values())
        return error < (ENOUGH_SHARE_OF_LOOK * self.tolerance if self.is_look else enough_se(self.tolerance))

    @property
    def _is_clearly_worse(self) -> bool:
        own = _log_throughputs(self.size, self.turn_times_s[self.size])
        others = ((size, times_s) for size, times_s in self.turn_times_s.items() if size != self.size)
        return any(self._is_surely_worse(own - _log_throughputs(size, times_s)) for size, times_s in others)

    def _is_surely_worse(self, differences: NDArray[np.float64]) -> bool:
        """Whether the mean of some differences of ln(samples/s) is below the limit by far more than they scatter."""
        error = max(float(np.std(differences, ddof=1)) / math.sqrt(len(differences)), enough_se(self.tolerance))
        return float(np.mean(differences)) + SURELY * error < math.log1p(-clearly_worse(self.tolerance))


def _log_throughputs(size: int, times_s: Sequence[float]) -> NDArray[np.float64]:
    return math.log(size) - np.log(times_s)
