"""Timing one size: alone, or interleaved with sizes that ran before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from bexplore.engine.worker.steps import Steps
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


def time_size(
    steps: Steps,
    batches: Mapping[int, Batch],
    probe: Probe,
    *,
    usual_pass_s: Mapping[int, float],
    budget_s: float,
    known: Sequence[RanPass] = (),
    report: Report,
) -> Timed:
    """Time rounds of passes, a short visit to each size in turn, until the rounds suffice.

    Args:
        steps: Runs and times the passes.
        batches: By size; the probe's own, alone or with those of the sizes that it is interleaved with.
        probe: The size, and how precisely to time it.
        usual_pass_s: By size, about how long a pass takes; a visit has as many passes as that asks for.
        budget_s: Seconds of passes after which the rounds suffice; contenders that are interleaved have
            `BUDGETS_OF_CONTENDERS` times as much.
        known: Passes of the probe's own size that have just run and count: the first visit, or a round each if the size
            is alone.
        report: Called with the seconds of each pass of the probe's own size, and without them for other sizes.
    """
    own, is_alone = probe.micro_batch_size, len(batches) == 1
    is_screening = probe.purpose is Purpose.SEARCH and not is_alone
    num_times = {size: _num_times_of_visit(steps, usual_pass_s[size]) for size in batches}
    last_s = {size: usual_pass_s[size] for size in batches}
    rounds = InterleavedTiming(
        size=own,
        max_rounds=probe.max_passes,
        budget_s=budget_s * (1 if is_screening or is_alone else BUDGETS_OF_CONTENDERS),
        is_screening=is_screening,
        tolerance=probe.tolerance,
        num_passes={size: num_times[size] * steps.num_back_to_back(usual_pass_s[size]) for size in batches},
    )
    ran: list[RanPass] = []

    def visit(size: int) -> float:
        is_own = size == own
        passes = list(known) if is_own and not ran else []
        for _ in range(0 if passes else num_times[size]):
            passes.append(run_pass(steps, batches[size], last_s[size]))
            last_s[size] = passes[-1].seconds
        if is_own:
            ran.extend(passes)
        report(**{"pass_time_s": passes[-1].seconds} if is_own else {})
        return float(np.median([one.seconds for one in passes]))

    if is_alone:
        ran.extend(known)
        for one in known:
            rounds.add({own: one.seconds})
    rounds.take([own, *(size for size in batches if size != own)], visit)
    return Timed(
        pass_times_s=[one.seconds for one in ran],
        interleaved_times_s={} if is_alone else rounds.interleaved_times_s,
        scheduler_wait_fraction=float(np.median([one.scheduler_wait_s / one.seconds for one in ran])),
        loss=ran[-1].loss,
        details=_back_to_back(ran),
    )


def run_pass(steps: Steps, batch: Batch, last_s: float = 0.0) -> RanPass:
    """Run a pass, timed; or as many back to back as the seconds of the last one ask for."""
    num_passes = steps.num_back_to_back(last_s)
    seconds = steps.timed_pass(batch, num_passes)
    return RanPass(seconds, steps.scheduler_wait_s, steps.loss(), num_passes)


def _num_times_of_visit(steps: Steps, pass_s: float) -> int:
    """Return how often a size is timed in a round, each time for one pass or several back to back."""
    return passes_per_timing(steps.num_back_to_back(pass_s) * pass_s)


def _back_to_back(ran: Sequence[RanPass]) -> dict[str, list[int]]:
    """Return how many passes each recorded time is the mean of; nothing where each is of one."""
    num_passes = [one.num_passes for one in ran]
    return {"num_back_to_back": num_passes} if max(num_passes) > 1 else {}
