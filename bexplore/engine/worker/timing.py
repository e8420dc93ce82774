"""Timing one size: alone, or interleaved with sizes that ran before."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from bexplore.engine.worker.steps import Steps
from bexplore.engine.worker.stopping_rule import Passes
from bexplore.measurement.interleaving import BUDGETS_OF_CONTENDERS, InterleavedTiming, passes_per_timing
from bexplore.measurement.probe import Probe, Purpose
from bexplore.workloads import Batch

Report = Callable[..., None]


class RanPass(NamedTuple):
    """A pass of a probe's size, or the mean of several that ran back to back.

    Attributes:
        seconds: How long it took.
        scheduler_wait_s: For how long one of its threads waited for a processor.
        loss: Of its samples.
        num_passes: How many it is the mean of.
    """

    seconds: float
    scheduler_wait_s: float
    loss: float
    num_passes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """What was timed of a probe's size.

    Attributes:
        pass_times_s: Seconds of the passes that count, in order; each may be the mean of several.
        interleaved_times_s: As `Observation` has it.
        scheduler_wait_fraction: As `Observation` has it.
        loss: Of the last pass of the probe's size.
        details: Extra facts by name, JSON values only.
    """

    pass_times_s: list[float]
    scheduler_wait_fraction: float
    loss: float
    interleaved_times_s: Mapping[int, list[float]] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)


def time_alone(
    steps: Steps,
    batch: Batch,
    probe: Probe,
    *,
    budget_s: float,
    known: Sequence[RanPass] = (),
    usual_pass_s: float = 0.0,
    report: Report,
) -> Timed:
    """Time passes of one size until they suffice.

    Args:
        steps: Runs and times them.
        batch: Of the probe's size.
        probe: What to run.
        budget_s: Seconds of passes after which it is enough.
        known: Passes that ran just before and count too.
        usual_pass_s: About how long a pass takes; 0 for not known.
        report: Called with the seconds of each pass.
    """
    worse_s = math.inf if probe.worse_pass_s is None else probe.worse_pass_s
    passes = Passes(max_passes=probe.max_passes, budget_s=budget_s, tolerance=probe.tolerance, worse_s=worse_s)
    ran = list(known)
    for one in known:
        passes.add(one.seconds, scheduler_wait_s=one.scheduler_wait_s)
    last_s = usual_pass_s
    while not passes.are_enough:
        ran.append(run_pass(steps, batch, last_s))
        last_s = ran[-1].seconds
        passes.add(last_s, scheduler_wait_s=ran[-1].scheduler_wait_s, num_passes=ran[-1].num_passes)
        report(pass_time_s=last_s)
    counted_s = passes.counted_s
    return Timed(
        pass_times_s=counted_s,
        scheduler_wait_fraction=passes.scheduler_wait_fraction,
        loss=ran[-1].loss,
        details={
            "num_disturbed_passes": len(passes.all_s) - len(passes.undisturbed_s),
            "all_pass_times_s": passes.all_s if len(passes.all_s) > len(counted_s) else [],
            **_back_to_back(ran),
        },
    )


def time_interleaved(
    steps: Steps,
    batches: Mapping[int, Batch],
    probe: Probe,
    *,
    usual_pass_s: Mapping[int, float],
    budget_s: float,
    known: Sequence[RanPass] = (),
    report: Report,
) -> Timed:
    """Time passes of several sizes in rounds, a short turn of each, until they suffice.

    Args:
        steps: Runs and times them.
        batches: By size; the probe's own and those that it is interleaved with.
        probe: What to run.
        usual_pass_s: By size, about how long a pass takes; a turn has passes by it.
        budget_s: Seconds of all timings after which it is enough for a screening probe; contenders have
            `BUDGETS_OF_CONTENDERS` times as much.
        known: The probe's own turn of the first round, where it has just run.
        report: Called with the seconds of each pass of the probe's own size, and after the others' passes.
    """
    own = probe.micro_batch_size
    is_screening = probe.purpose is Purpose.SEARCH
    num_times = {size: _num_times_of_turn(steps, usual_pass_s[size]) for size in batches}
    last_s = {size: usual_pass_s[size] for size in batches}
    rounds = InterleavedTiming(
        size=own,
        max_rounds=probe.max_passes,
        budget_s=budget_s * (1 if is_screening else BUDGETS_OF_CONTENDERS),
        is_screening=is_screening,
        tolerance=probe.tolerance,
        num_passes={size: num_times[size] * steps.num_back_to_back(usual_pass_s[size]) for size in batches},
    )
    ran: list[RanPass] = []

    def turn(size: int) -> float:
        is_own = size == own
        passes = list(known) if is_own and not ran else []
        passes = passes or [run_pass(steps, batches[size], last_s[size]) for _ in range(num_times[size])]
        last_s[size] = passes[-1].seconds
        if is_own:
            ran.extend(passes)
        report(**{"pass_time_s": passes[-1].seconds} if is_own else {})
        return float(np.median([one.seconds for one in passes]))

    rounds.take([own, *(size for size in batches if size != own)], turn)
    return Timed(
        pass_times_s=[one.seconds for one in ran],
        interleaved_times_s=rounds.interleaved_times_s,
        scheduler_wait_fraction=float(np.median([one.scheduler_wait_s / one.seconds for one in ran])),
        loss=ran[-1].loss,
        details=_back_to_back(ran),
    )


def run_pass(steps: Steps, batch: Batch, last_s: float = 0.0) -> RanPass:
    """Run a pass, timed; or as many back to back as the seconds of the last one ask for."""
    num_passes = steps.num_back_to_back(last_s)
    seconds = steps.timed_pass(batch, num_passes)
    return RanPass(seconds, steps.scheduler_wait_s, steps.loss(), num_passes)


def _num_times_of_turn(steps: Steps, pass_s: float) -> int:
    """Return how often a size is timed in a round, each time for one pass or several back to back."""
    return passes_per_timing(steps.num_back_to_back(pass_s) * pass_s)


def _back_to_back(ran: Sequence[RanPass]) -> dict[str, list[int]]:
    """Return how many passes each recorded time is the mean of; nothing where each is of one."""
    num_passes = [one.num_passes for one in ran]
    return {"num_back_to_back": num_passes} if max(num_passes) > 1 else {}
