"""Interleaved timing of two programs within one job, in pairs of live workers.

A pair is one worker process of each side. Their blocks are interleaved, A B B A and then B A A B, so that drift of the
machine and the cost of a change affect both. The next pair is two new processes, which shows the process effect. That
effect limits the precision: two processes of one program differ by 1 to 2 % for as long as they live. So more pairs
follow while they may add precision.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from bexplore.errors import EngineError
from bexplore.guard.reference import Reference, find_foreign_files
from bexplore.guard.report import Finding, NotCompared, Part, Status, Tier
from bexplore.guard.sizes import report_missing_times
from bexplore.guard.snapshot import Observed, open_runner, run_first_probe, time_block
from bexplore.guard.timing import (
    TIME_TOLERANCE,
    Block,
    Ratio,
    count_needed_workers,
    count_passes,
    estimate_ratio,
    judge_ratio,
)
from bexplore.host.contention import CpuContention
from bexplore.measurement.probe import Compilation

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One interleaved round of a pair: two blocks of each side, one side's between the other's."""

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
    """The status of the times of two programs."""

    status: Status  # of the candidate: worse is slower
    wall: Ratio  # ratio of wall times, candidate over reference
    cpu: Ratio  # ratio of processor times
    stages: tuple[Ratio, ...]  # ratio of wall times of the first stage, and of all later pairs
    reason: str = ""  # why it is unsure, or a remark; empty for none
    advice: str = ""  # how to make it sure; empty where it is


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
    more pairs while the answer is unsure. The answer is worse (or better) only if the interval of all pairs is
    beyond the tolerance, and the first stage and the later pairs both confirm it.

    Args:
        measure: Number of pairs -> samples of as many new pairs.
        remark: Returns what other processes used of the processors so far, in words; empty where it is little. Beyond
            it, wall time alone proves nothing.
        may_go_on: Returns whether there is time for a pair beyond the second stage.
    """
    pairs = list(measure(PAIRS_PER_STAGE))
    decision = _decide_now(pairs, tolerance, remark())
    while wanted := _count_wanted(decision, may_go_on):
        again = list(measure(wanted))
        if not again:
            break  # a worker could not run: the caller has the reason
        pairs += again
        decision = _decide_now(pairs, tolerance, remark())
    return decision


def _count_wanted(decision: TimeDecision, may_go_on: Callable[[], bool]) -> int:
    """Return the number of further pairs; 0 where the answer is sure, or time is up."""
    if not math.isfinite(decision.wall.value):
        return 0
    if len(decision.stages) == 1:
        return PAIRS_PER_STAGE if decision.status is not Status.SAME else 0
    is_open = decision.status is Status.UNSURE and decision.wall.num_workers < MAX_PAIRS
    return 1 if is_open and may_go_on() else 0


def _decide_now(pairs: Sequence[Pair], tolerance: float, remark: str) -> TimeDecision:
    wall, cpu = _wall(pairs), estimate_ratio([[one.log_cpu_ratio for one in pair] for pair in pairs])
    first, later = pairs[:PAIRS_PER_STAGE], pairs[PAIRS_PER_STAGE:]
    stages = (_wall(first), *([_wall(later)] if later else []))
    status, reason = _judge_stages(wall, cpu, stages, tolerance, is_busy=bool(remark))
    return TimeDecision(
        status=status,
        wall=wall,
        cpu=cpu,
        stages=stages,
        reason=reason,
        advice=_advice(wall, tolerance, remark) if status is Status.UNSURE else "",
    )


def _wall(pairs: Sequence[Pair]) -> Ratio:
    return estimate_ratio([[one.log_wall_ratio for one in pair] for pair in pairs])


def _judge_stages(
    wall: Ratio, cpu: Ratio, stages: Sequence[Ratio], tolerance: float, *, is_busy: bool
) -> tuple[Status, str]:
    status = judge_ratio(wall, tolerance)
    if math.isnan(wall.value):
        return status, "a loss or a time is not a number"
    if status in (Status.SAME, Status.UNSURE):
        return status, ""
    sign = 1 if status is Status.WORSE else -1
    if not all(sign * math.log(stage.value) > math.log1p(tolerance) for stage in stages):
        return Status.UNSURE, "a second measurement did not confirm the first"
    if judge_ratio(cpu, tolerance) is Status.SAME:
        if is_busy:
            return Status.UNSURE, "wall times differ and processor times do not, while other processes ran"
        return status, "processor times do not differ: the difference is waiting, not computing"
    return status, ""


def _advice(wall: Ratio, tolerance: float, remark: str) -> str:
    if remark:
        return f"{remark}: run it on a quiet machine"
    needed = count_needed_workers(wall, tolerance)
    if needed is None:
        return f"the ratio lies on the tolerance itself: a time tolerance of {2 * tolerance:g} would settle it"
    return f"about {needed} pairs of workers would settle it at this noise; {wall.num_workers} were run"


def count_rounds(pass_time_s: float) -> int:
    """Return the number of interleaved rounds of one pair."""
    round_s = 4 * count_passes(pass_time_s, BLOCK_S) * max(pass_time_s, 1e-6)
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
    length = count_passes(pass_time_s, BLOCK_S)
    rounds = []
    for round_number in range(count_rounds(pass_time_s)):
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


def time_in_pairs(
    before: Observed,
    now: Observed,
    reference: Reference,
    *,
    tiers: frozenset[Tier],
    tolerance: float,
    time_limit_s: float = TIME_LIMIT_S,
) -> Part:
    """Time both programs in alternating live workers.

    Args:
        time_limit_s: No pair begins that would exceed it, except for the first six.
    """
    size = now.snapshot.recommended_micro_batch_size
    if Tier.SAME_JOB not in tiers:
        return Part()
    if size is None:
        reason = "no size is known: run bexplore explore first, or give `micro_batch_size=N`"
        return Part(not_compared=(report_missing_times(reason, None),))
    remark = watch_processors()
    failures: list[Part] = []
    began_s = time.monotonic()
    num_measured = 0
    pair_s = 0.0

    def measure(num_pairs: int) -> list[Pair]:
        nonlocal num_measured, pair_s
        pairs: list[Pair] = []
        for _ in range(num_pairs):
            pair_began_s = time.monotonic()
            now.setup.say(f"timing size {size} against {reference.title}: pair {num_measured + 1} of workers")
            pair = _time_pair(before, now, reference, size)
            if isinstance(pair, Part):
                failures.append(pair)
                break
            pairs.append(pair)
            num_measured += 1
            pair_s = time.monotonic() - pair_began_s
        return pairs

    def may_go_on() -> bool:
        return not failures and time.monotonic() - began_s + pair_s <= time_limit_s

    decision = decide(measure, tolerance=tolerance, remark=remark, may_go_on=may_go_on)
    if failures:
        return failures[0]
    advice = (decision.advice,) if decision.advice else ()
    return Part(findings=(_time_finding(decision, size),), advice=advice)


def _time_pair(before: Observed, now: Observed, reference: Reference, size: int) -> Pair | Part:
    """Time one pair of new workers; return a part of a report where one of them cannot run."""
    title = f"times of size {size}"
    with ExitStack() as stack:
        runners = [stack.enter_context(open_runner(observed)) for observed in (before, now)]
        for runner in runners:  # both at once: their imports take longest
            runner.start()
        for runner in runners:
            runner.await_started()
        pass_times_s = []
        for observed, runner in zip((before, now), runners, strict=True):
            exact = Compilation.EXACT if observed.config.job.compile.enabled else Compilation.EAGER
            observation = run_first_probe(runner, size, exact)
            if observation.is_measured:
                pass_times_s.append(observation.pass_time_s)
            else:
                outcome = f"{observation.outcome}: {observation.reason}"
                if observed is before:
                    reason = f"the reference does not run: {outcome}"
                    return Part(not_compared=(NotCompared(title=title, reason=reason),))
                return Part(findings=(report_failure(size, outcome),))
        if reference.foreign_root is not None:
            refuse_foreign(find_foreign_files(runners[0].loaded_from(reference.foreign_root)), reference)
        old, new = runners
        return run_pair(
            lambda count, round_number: time_block(old, size, count, round_number),
            lambda count, round_number: time_block(new, size, count, round_number),
            pass_time_s=pass_times_s[1],
        )


def refuse_foreign(files: Sequence[str], reference: Reference) -> None:
    """Refuse a reference whose workers run the present code, which would always be equal."""
    if files:
        raise EngineError(
            f"the workers of {reference.title} imported {files[0]} of the present checkout"
            + (f" and {len(files) - 1} more of its files" if len(files) > 1 else ""),
            hint="compare two checkouts that are installed apart, or name a second configuration: `against=PATH`",
        )


def report_failure(size: int, outcome: str) -> Finding:
    """Return the finding for a size that ran before and does not run now."""
    return Finding(
        name="times",
        title=f"a pass of size {size}",
        tier=Tier.SAME_JOB,
        status=Status.WORSE,
        before="runs",
        after=outcome,
    )


def _time_finding(decision: TimeDecision, size: int) -> Finding:
    stages = ", then ".join(str(stage) for stage in decision.stages)
    details = [f"wall time {decision.wall}, processor time {decision.cpu}", f"measured: {stages}"]
    return Finding(
        name="times",
        title=f"wall time of a pass of size {size}",
        tier=Tier.SAME_JOB,
        status=decision.status,
        before="1x",
        after=str(decision.wall),
        details=tuple([*details, *filter(None, [decision.reason])]),
    )
