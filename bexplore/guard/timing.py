"""Times of two programs within one job: alternating live workers, and what their samples say.

A pair is one worker process of each side. They take turns, A B B A, so that a drift of the machine falls on both; the
next pair is two new processes, so that the luck of a process is seen. It is what limits the answer: two processes
of one program differ by 2 % for as long as they live. So more pairs follow while they may tell more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bexplore.guard.statistics import TIME_TOLERANCE, Judgement, Ratio, judge, ratio_of, workers_needed

# Pairs of a first look, and as many again where it leaves a doubt or a suspicion; while a doubt is left and time too,
# as many once more.
PAIRS_PER_STAGE = 3
MAX_PAIRS = 24
TIME_LIMIT_S = 120.0  # of all pairs, their starts included; two stages are run whatever they take
# Seconds of passes that one worker runs in its turn. Short: what disturbs a machine for a tenth of a second falls on
# both sides then (autocorrelation of passes on one shared host: 0.75 after 10 ms, 0.5 after 40 ms, 0.2 after 200 ms).
BLOCK_S = 0.04
# Seconds of passes that one pair may run. On a busy host its start costs 7 s even of a small program, the luck of its
# processes is 1.5 % and the noise of 2 s of passes 2.6 %: sqrt(7 x 2 x 2.6**2 / 1.5**2) pays best for both.
STAGE_PAIR_S = 6.0
MIN_ROUNDS, MAX_ROUNDS = 3, 40
MAX_PASSES_PER_BLOCK = 200
# Share of the processors that other processes may use before wall time alone is no proof.
BUSY_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Passes that one worker ran in its turn.

    Attributes:
        pass_times_s: Wall seconds of each.
        cpu_time_s: Processor seconds of the worker for all of them.
        loss: Of the last pass.
    """

    pass_times_s: tuple[float, ...]
    cpu_time_s: float
    loss: float = 0.0

    @property
    def log_wall_s(self) -> float:
        """ln of the median pass; NaN if the loss is not a number."""
        return math.log(float(np.median(self.pass_times_s))) if math.isfinite(self.loss) else math.nan

    @property
    def log_cpu_s(self) -> float:
        """ln of the mean processor seconds of a pass; NaN if the loss is not a number."""
        mean_s = self.cpu_time_s / len(self.pass_times_s)
        return math.log(max(mean_s, 1e-9)) if math.isfinite(self.loss) else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One turn of a pair: reference, candidate, candidate, reference."""

    reference: tuple[Block, Block]
    candidate: tuple[Block, Block]

    @property
    def log_wall_ratio(self) -> float:
        """ln(candidate's wall time / reference's)."""
        return (sum(b.log_wall_s for b in self.candidate) - sum(b.log_wall_s for b in self.reference)) / 2

    @property
    def log_cpu_ratio(self) -> float:
        """ln(candidate's processor time / reference's)."""
        return (sum(b.log_cpu_s for b in self.candidate) - sum(b.log_cpu_s for b in self.reference)) / 2


Pair = Sequence[Round]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeDecision:
    """What the times of two programs say.

    Attributes:
        judgement: Of the candidate against the reference.
        wall: Ratio of wall times, candidate over reference.
        cpu: Ratio of processor times.
        stages: Ratio of wall times of each stage by itself.
        others_share: Share of the processors, 0 to 1, that other processes used meanwhile; None if unknown.
        reason: Why it is unsure, or what must be known of it; empty where nothing.
        advice: What would make it sure; empty where it is.
    """

    judgement: Judgement
    wall: Ratio
    cpu: Ratio
    stages: tuple[Ratio, ...]
    others_share: float | None = None
    reason: str = ""
    advice: str = ""


def decide(
    measure: Callable[[int], Sequence[Pair]],
    *,
    tolerance: float = TIME_TOLERANCE,
    others_share: Callable[[], float | None] = lambda: None,
    may_go_on: Callable[[], bool] = lambda: False,
) -> TimeDecision:
    """Say whether a candidate is slower than a reference, and measure again before saying so.

    A first stage that is wholly within the tolerance ends it. Otherwise a second stage of new processes follows, and
    more while the answer is unsure. Slower (or faster) is said only if the interval of all pairs is wholly beyond the
    tolerance, and the first stage and all that was measured after it both point there.

    Args:
        measure: Number of pairs -> samples of so many new pairs.
        tolerance: Relative difference of times that counts as none.
        others_share: Share of the processors that others used so far.
        may_go_on: Whether there is time for one more stage beyond the second.
    """
    pairs = list(measure(PAIRS_PER_STAGE))
    stages = [_wall(pairs)]
    decision = _decided(pairs, stages, tolerance, others_share())
    while math.isfinite(decision.wall.value) and _wants_more(decision, may_go_on):
        again = list(measure(PAIRS_PER_STAGE))
        if not again:
            break  # a worker could not run: the caller knows why
        stages.append(_wall(again))
        pairs += again
        decision = _decided(pairs, stages, tolerance, others_share())
    return decision


def _wants_more(decision: TimeDecision, may_go_on: Callable[[], bool]) -> bool:
    if len(decision.stages) == 1:
        return decision.judgement is not Judgement.SAME
    is_open = decision.judgement is Judgement.UNSURE and decision.wall.num_workers + PAIRS_PER_STAGE <= MAX_PAIRS
    return is_open and may_go_on()


def _decided(
    pairs: Sequence[Pair], stages: Sequence[Ratio], tolerance: float, others_share: float | None
) -> TimeDecision:
    wall, cpu = _wall(pairs), ratio_of([[one.log_cpu_ratio for one in pair] for pair in pairs])
    confirming = [stages[0], _wall(pairs[PAIRS_PER_STAGE:])] if len(stages) > 1 else [stages[0]]
    judgement, reason = _judged(wall, cpu, confirming, tolerance, others_share)
    return TimeDecision(
        judgement=judgement,
        wall=wall,
        cpu=cpu,
        stages=tuple(stages),
        others_share=others_share,
        reason=reason,
        advice=_advice(wall, tolerance, others_share) if judgement is Judgement.UNSURE else "",
    )


def _wall(pairs: Sequence[Pair]) -> Ratio:
    return ratio_of([[one.log_wall_ratio for one in pair] for pair in pairs])


def _judged(
    wall: Ratio, cpu: Ratio, stages: Sequence[Ratio], tolerance: float, others_share: float | None
) -> tuple[Judgement, str]:
    judgement = judge(wall, tolerance)
    if math.isnan(wall.value):
        return judgement, "a loss or a time is not a number"
    if judgement in (Judgement.SAME, Judgement.UNSURE):
        return judgement, ""
    sign = 1 if judgement is Judgement.SLOWER else -1
    if not all(sign * math.log(stage.value) > math.log1p(tolerance) for stage in stages):
        return Judgement.UNSURE, "a second measurement did not confirm the first"
    if judge(cpu, tolerance) is Judgement.SAME:
        if others_share is not None and others_share > BUSY_SHARE:
            return Judgement.UNSURE, "wall times differ and processor times do not, while other processes ran"
        return judgement, "processor times do not differ: the difference is waiting, not computing"
    return judgement, ""


def _advice(wall: Ratio, tolerance: float, others_share: float | None) -> str:
    if others_share is not None and others_share > BUSY_SHARE:
        return f"other processes used {others_share:.0%} of the processors: run it on a quiet machine"
    needed = workers_needed(wall, tolerance)
    if needed is None:
        return f"the ratio lies on the tolerance itself: --time-tolerance {2 * tolerance:g} would settle it"
    return f"about {needed} pairs of workers would settle it at this noise; {wall.num_workers} were run"


def block_length(pass_time_s: float, block_s: float = BLOCK_S) -> int:
    """Passes of one turn."""
    return max(1, min(MAX_PASSES_PER_BLOCK, round(block_s / max(pass_time_s, 1e-6))))


def num_rounds(pass_time_s: float) -> int:
    """Turns of one pair."""
    turn_s = 4 * block_length(pass_time_s) * max(pass_time_s, 1e-6)
    return max(MIN_ROUNDS, min(MAX_ROUNDS, round(STAGE_PAIR_S / turn_s)))


def run_pair(
    reference: Callable[[int], Block], candidate: Callable[[int], Block], *, pass_time_s: float
) -> tuple[Round, ...]:
    """Let one pair of live workers take turns, A B B A.

    Args:
        reference: Number of passes -> the reference's block.
        candidate: The same of the candidate.
        pass_time_s: Rough seconds of a pass, from which the length of a turn follows.
    """
    length = block_length(pass_time_s)
    rounds = []
    for _ in range(num_rounds(pass_time_s)):
        first = reference(length)
        second, third = candidate(length), candidate(length)
        rounds.append(Round(reference=(first, reference(length)), candidate=(second, third)))
    return tuple(rounds)
