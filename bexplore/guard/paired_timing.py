"""Interleaved timing of two programs within one job, in pairs of live workers.

A pair is one worker process of each side. Their blocks are interleaved, A B B A and then B A A B, so that drift of the
machine and the cost of a change affect both. The next pair is two new processes, which shows the process effect. That
effect limits the precision: two processes of one program differ by 1 to 2 % for as long as they live. So more pairs
follow while they may add precision.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bexplore.guard.statistics import TIME_TOLERANCE, Judgement, Ratio, judge, ratio_of, workers_needed
from bexplore.host.contention import CpuContention

# Pairs of the first stage, and of a second one unless the first is wholly within the tolerance; then one by one while
# the answer is unsure and time is left.
PAIRS_PER_STAGE = 3
MAX_PAIRS = 24
TIME_LIMIT_S = 120.0  # of all pairs with their starts; two stages run regardless
# Seconds of passes of one block. Short, so that a disturbance of a tenth of a second affects both sides
# (autocorrelation of passes on one shared host: 0.75 after 10 ms, 0.5 after 40 ms, 0.2 after 200 ms).
BLOCK_S = 0.04
# Seconds of passes of one pair. Its start costs 4 s of a small program, the process effect is 1.1 % and the noise of
# 2 s of passes 1.9 %: sqrt(4 x 2 x 1.9**2 / 1.1**2) = 5 pays best; 3 is nearly as good and gives more pairs.
STAGE_PAIR_S = 3.0
MIN_ROUNDS, MAX_ROUNDS = 3, 40
MAX_PASSES_PER_BLOCK = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Consecutive passes of one worker.

    Attributes:
        pass_times_s: Wall seconds of each pass.
        cpu_time_s: Processor seconds of the worker for all passes.
        loss: Loss of the last pass.
    """

    pass_times_s: tuple[float, ...]
    cpu_time_s: float
    loss: float = 0.0

    @property
    def log_wall_s(self) -> float:
        """Return ln of the median pass; NaN if the loss is not a number."""
        return math.log(float(np.median(self.pass_times_s))) if math.isfinite(self.loss) else math.nan

    @property
    def log_cpu_s(self) -> float:
        """Return ln of the mean processor seconds of a pass; NaN if the loss is not a number."""
        mean_s = self.cpu_time_s / len(self.pass_times_s)
        return math.log(max(mean_s, 1e-9)) if math.isfinite(self.loss) else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One interleaved round of a pair: two blocks of each side, one side's between the other's."""

    reference: tuple[Block, Block]
    candidate: tuple[Block, Block]

    @property
    def log_wall_ratio(self) -> float:
        """Return ln(candidate's wall time / reference's)."""
        return (sum(b.log_wall_s for b in self.candidate) - sum(b.log_wall_s for b in self.reference)) / 2

    @property
    def log_cpu_ratio(self) -> float:
        """Return ln(candidate's processor time / reference's)."""
        return (sum(b.log_cpu_s for b in self.candidate) - sum(b.log_cpu_s for b in self.reference)) / 2


Pair = Sequence[Round]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeDecision:
    """The judgement of the times of two programs.

    Attributes:
        judgement: The candidate compared with the reference.
        wall: Ratio of wall times, candidate over reference.
        cpu: Ratio of processor times.
        stages: Ratio of wall times of the first stage, and of all later pairs.
        reason: Why it is unsure, or a remark; empty for none.
        advice: How to make it sure; empty where it is.
    """

    judgement: Judgement
    wall: Ratio
    cpu: Ratio
    stages: tuple[Ratio, ...]
    reason: str = ""
    advice: str = ""


def watch_processors() -> Callable[[], str]:
    """Return the `remark` of `decide`, about what happens from now on."""
    contention = CpuContention([os.getpid()])
    contention.start()
    return contention.remark


def decide(
    measure: Callable[[int], Sequence[Pair]],
    *,
    tolerance: float = TIME_TOLERANCE,
    remark: Callable[[], str] = lambda: "",
    may_go_on: Callable[[], bool] = lambda: False,
) -> TimeDecision:
    """Decide whether a candidate is slower than a reference, with a second measurement as confirmation.

    The interval of the first stage within the tolerance ends it. Otherwise a second stage of new processes follows, and
    more pairs while the answer is unsure. The judgement is slower (or faster) only if the interval of all pairs is
    beyond the tolerance, and the first stage and the later pairs both confirm it.

    Args:
        measure: Number of pairs -> samples of as many new pairs.
        tolerance: Relative difference of times that counts as none.
        remark: Returns what other processes used of the processors so far, in words; empty where it is little. Beyond
            it, wall time alone proves nothing.
        may_go_on: Returns whether there is time for a pair beyond the second stage.
    """
    pairs = list(measure(PAIRS_PER_STAGE))
    decision = _decided(pairs, tolerance, remark())
    while wanted := _num_wanted(decision, may_go_on):
        again = list(measure(wanted))
        if not again:
            break  # a worker could not run: the caller has the reason
        pairs += again
        decision = _decided(pairs, tolerance, remark())
    return decision


def _num_wanted(decision: TimeDecision, may_go_on: Callable[[], bool]) -> int:
    """Return the number of further pairs; 0 where the answer is sure, or time is up."""
    if not math.isfinite(decision.wall.value):
        return 0
    if len(decision.stages) == 1:
        return PAIRS_PER_STAGE if decision.judgement is not Judgement.SAME else 0
    is_open = decision.judgement is Judgement.UNSURE and decision.wall.num_workers < MAX_PAIRS
    return 1 if is_open and may_go_on() else 0


def _decided(pairs: Sequence[Pair], tolerance: float, remark: str) -> TimeDecision:
    wall, cpu = _wall(pairs), ratio_of([[one.log_cpu_ratio for one in pair] for pair in pairs])
    first, later = pairs[:PAIRS_PER_STAGE], pairs[PAIRS_PER_STAGE:]
    stages = (_wall(first), *([_wall(later)] if later else []))
    judgement, reason = _judged(wall, cpu, stages, tolerance, is_busy=bool(remark))
    return TimeDecision(
        judgement=judgement,
        wall=wall,
        cpu=cpu,
        stages=stages,
        reason=reason,
        advice=_advice(wall, tolerance, remark) if judgement is Judgement.UNSURE else "",
    )


def _wall(pairs: Sequence[Pair]) -> Ratio:
    return ratio_of([[one.log_wall_ratio for one in pair] for pair in pairs])


def _judged(
    wall: Ratio, cpu: Ratio, stages: Sequence[Ratio], tolerance: float, *, is_busy: bool
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
        if is_busy:
            return Judgement.UNSURE, "wall times differ and processor times do not, while other processes ran"
        return judgement, "processor times do not differ: the difference is waiting, not computing"
    return judgement, ""


def _advice(wall: Ratio, tolerance: float, remark: str) -> str:
    if remark:
        return f"{remark}: run it on a quiet machine"
    needed = workers_needed(wall, tolerance)
    if needed is None:
        return f"the ratio lies on the tolerance itself: --time-tolerance {2 * tolerance:g} would settle it"
    return f"about {needed} pairs of workers would settle it at this noise; {wall.num_workers} were run"


def block_length(pass_time_s: float, block_s: float = BLOCK_S) -> int:
    """Return the number of passes of one block."""
    return max(1, min(MAX_PASSES_PER_BLOCK, round(block_s / max(pass_time_s, 1e-6))))


def num_rounds(pass_time_s: float) -> int:
    """Return the number of interleaved rounds of one pair."""
    round_s = 4 * block_length(pass_time_s) * max(pass_time_s, 1e-6)
    return max(MIN_ROUNDS, min(MAX_ROUNDS, round(STAGE_PAIR_S / round_s)))


def run_pair(
    reference: Callable[[int, int], Block],
    candidate: Callable[[int, int], Block],
    *,
    pass_time_s: float,
) -> tuple[Round, ...]:
    """Time one pair of live workers interleaved: A B B A, B A A B, and so on.

    Args:
        reference: (number of passes, number of the round) -> the reference's block.
        candidate: The same for the candidate.
        pass_time_s: Rough seconds of a pass, which decide the length of a block.
    """
    length = block_length(pass_time_s)
    rounds = []
    for round_number in range(num_rounds(pass_time_s)):
        is_reference_first = round_number % 2 == 0
        outer, inner = (reference, candidate) if is_reference_first else (candidate, reference)
        first, second, third, fourth = (side(length, round_number) for side in (outer, inner, inner, outer))
        around, between = (first, fourth), (second, third)
        rounds.append(
            Round(
                reference=around if is_reference_first else between,
                candidate=between if is_reference_first else around,
            )
        )
    return tuple(rounds)
