"""Whether a size is ever recommended that was seen to be slower than another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.search_pool import over_cores
from benchmarks.search_problems import TOLERANCE, Problem, explored, simulated_problems
from benchmarks.search_statistics import wilson
from bexplore.measurement.interleaving import estimate_alone
from bexplore.measurement.probe import Observation
from tests.simulated.simulator import Family

ROUNDING = 1e-9  # of a mean of logarithms
SURELY = 2.0  # standard errors of the difference beyond which a size was seen to be slower without a doubt


@dataclass(frozen=True, slots=True)
class Below:
    """How a recommended size stands to the others by their own measurements.

    Attributes:
        share: Of the speed of the fastest of them, which it misses.
        share_surely: Which it misses of any at least, with what the standard errors allow; below 0 for nothing.
    """

    share: float
    share_surely: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One exploration, each of whose recommendations was held against what had been measured until then.

    Attributes:
        streamed: Of each streamed recommendation.
        ended: Of the last one.
    """

    streamed: tuple[Below, ...]
    ended: Below


def below(observations: Sequence[Observation], size: int) -> Below:
    """Hold a size against the others.

    What a size's own measurements say is the mean, over its probes, of ln(samples/s) of their median passes; its
    standard error is from the spread of its probes or, where that is larger, from the passes of each. Nothing else is
    looked at: no drift, no busy neighbours, no disturbed probe, no belief.
    """
    own: dict[int, list[Observation]] = {}
    for item in observations:
        if item.is_measured:
            own.setdefault(item.micro_batch_size, []).append(item)
    levels = {measured: _level(items) for measured, items in own.items()}
    level, error = levels.pop(size)
    gaps = [(other - level, SURELY * math.hypot(error, its_error)) for other, its_error in levels.values()]
    most = max((gap for gap, _ in gaps), default=0.0)
    surely = max((gap - confirmation for gap, confirmation in gaps), default=0.0)
    return Below(-math.expm1(-max(most, 0.0)), -math.expm1(-surely))


def _level(probes: Sequence[Observation]) -> tuple[float, float]:
    """ln(samples/s) of one size's probes, and its standard error."""
    values = [math.log(item.samples_per_s) for item in probes]
    of_passes = math.sqrt(np.mean([np.nan_to_num(estimate_alone(item.pass_times_s).log_se) ** 2 for item in probes]))
    of_probes = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return float(np.mean(values)), max(of_passes, of_probes) / math.sqrt(len(values))


def is_below(share: float, tolerance: float = TOLERANCE) -> bool:
    """Whether a size misses more than what counts as a tie."""
    return share > tolerance + ROUNDING


def watched(problem: Problem) -> Watched | None:
    """Watch one exploration, whose sizes run with one kind of program and never take turns; None where nothing fits."""
    found = explored(problem)
    if found is None:
        return None
    streamed = (below(found.observations[:number], told.micro_batch_size) for number, told in found.streamed)
    return Watched(streamed=tuple(streamed), ended=below(found.observations, found.best.micro_batch_size))


def never_below(count: int, first_seed: int) -> list[dict[str, Any]]:
    """Watch about so many simulated explorations, as many of each family; a row of all and of each."""
    each = math.ceil(count / len(Family))
    found = {
        family.value: over_cores(watched, list(simulated_problems(family, each, first_seed=first_seed)))
        for family in Family
    }
    everything = [run for runs in found.values() for run in runs]
    return [{"world": name} | _row(runs) for name, runs in ({"all": everything} | found).items()]


def _row(runs: Sequence[Watched]) -> dict[str, Any]:
    streamed = [told for run in runs for told in run.streamed]
    ended_below = sum(is_below(run.ended.share) for run in runs)
    return {
        "explorations": len(runs),
        "ended_below": ended_below,
        "ended_below_share": wilson(ended_below, len(runs)),
        "ended_surely_below": sum(is_below(run.ended.share_surely) for run in runs),
        "recommendations": len(streamed),
        "recommendations_below": sum(is_below(told.share) for told in streamed),
        "recommendations_surely_below": sum(is_below(told.share_surely) for told in streamed),
        "most_below": max((told.share for told in streamed), default=0.0),
    }
