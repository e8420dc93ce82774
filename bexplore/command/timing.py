"""From observed steps to the seconds of a pass and of an update, of the slowest rank."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from bexplore.command.reports import Rank, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming:
    """The timed steps of one rank.

    Attributes:
        step_times_s: Seconds from the end of one update to the end of the next.
        update_times_s: Seconds of the updates in them.
        pass_times_s: Seconds of one micro-batch in each step, without its update.
        micro_batches_per_step: Micro-batches of a step: by the loaders, else by backward passes.
        passes_per_step: Backward passes of a step.
    """

    step_times_s: tuple[float, ...]
    update_times_s: tuple[float, ...]
    pass_times_s: tuple[float, ...]
    micro_batches_per_step: float
    passes_per_step: float

    @property
    def step_time_s(self) -> float:
        """Median seconds of a step."""
        return statistics.median(self.step_times_s)


def timing_of(rank: Rank, *, num_warmup: int) -> StepTiming | None:
    """Return the timing of a rank; None where it has no step after its warm-up.

    A step with twice the passes of others (a gradient scaler that skipped an update) counts by its passes.

    Args:
        rank: The record of the rank.
        num_warmup: Steps that are not timed.
    """
    pairs = list(pairwise(rank.steps))[max(num_warmup - 1, 0) :]
    if not pairs:
        return None
    timed = [step for _, step in pairs]
    per_pass = micro_batches_per_pass(timed)
    times_s = [step.ended_s - before.ended_s for before, step in pairs]
    updates_s = [min(step.update_s, seconds) for step, seconds in zip(timed, times_s, strict=True)]
    counts = [max(step.num_passes, 1) * per_pass for step in timed]
    return StepTiming(
        step_times_s=tuple(times_s),
        update_times_s=tuple(updates_s),
        pass_times_s=tuple((s - u) / n for s, u, n in zip(times_s, updates_s, counts, strict=True)),
        micro_batches_per_step=statistics.median(counts),
        passes_per_step=statistics.median(step.num_passes for step in timed),
    )


def micro_batches_per_pass(steps: Sequence[Step]) -> float:
    """Return micro-batches per backward pass: one where no loader returned any.

    Several losses of one batch (adversarial training, chunked losses) and closures that an optimizer calls again give
    less than one. Loaders read ahead, so the counts of a single step may be off, and all steps are counted together.
    """
    num_fetches, num_passes = sum(step.num_fetches for step in steps), sum(step.num_passes for step in steps)
    if not num_fetches or not num_passes:
        return 1.0
    ratio = num_fetches / num_passes
    return 1.0 / round(1.0 / ratio) if ratio <= 0.75 else float(max(round(ratio), 1))


def slowest(ranks: Sequence[Rank], *, num_warmup: int) -> StepTiming | None:
    """Return the timing of the rank with the longest steps; None where a rank has none.

    Ranks without a pass of their own (a launcher's helper) have no record.
    """
    timings = [timing_of(rank, num_warmup=num_warmup) for rank in ranks]
    if not timings or any(timing is None for timing in timings):
        return None
    return max((timing for timing in timings if timing is not None), key=lambda one: one.step_time_s)


def in_groups(times_s: Sequence[float], most: int) -> tuple[float, ...]:
    """Return the means of consecutive timings in at most so many groups of equal size: short steps are jittery."""
    length = max(1, len(times_s) // most)
    starts = range(0, len(times_s) - length + 1, length)
    return tuple(statistics.fmean(times_s[start : start + length]) for start in starts)[:most]
