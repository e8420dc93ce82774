"""The error of estimates in what an exploration answers: its score and its intervals."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from bexplore.estimate.confidence import ErrorDraws
from bexplore.search.recommendation import WANTED_SCORE, Recommendation
from bexplore.search.result import Result

INTERVAL_SDS = 1.96  # Source: 95 %, `measurement.statistics.LEVEL`
# Takes a recommendation's size and its variant; returns the standard deviation of ln of its samples/s.
FindSd = Callable[[int, int], float]


def widen_speeds(best: Recommendation, find_sd: FindSd) -> Recommendation:
    """Return a recommendation whose intervals of samples/s hold the model's error."""
    sd = find_sd(best.micro_batch_size, best.variant)
    speeds = (dataclasses.replace(one, interval=_widen(one.interval, sd)) for one in best.speeds)
    return dataclasses.replace(best, speeds=tuple(speeds))


def allow_for_errors(best: Recommendation, draws: ErrorDraws, find_sd: FindSd, *, tolerance: float) -> Recommendation:
    """Return a recommendation whose score and intervals hold the model's error beside the search's."""
    own, base = (best.micro_batch_size, best.variant), (best.base_micro_batch_size, best.base_variant)
    if not draws.has(*own):
        return best
    regrets = draws.regrets(*own)
    bound = float(np.quantile(regrets, WANTED_SCORE / 100))
    gain_sd = draws.log_ratio_sd(own, base) if draws.has(*base) else 0.0
    known, interval = best.regret_bound_90, best.relative_performance_interval
    return dataclasses.replace(
        widen_speeds(best, find_sd),
        confidence=min(best.confidence, int(100 * float((regrets <= tolerance).mean()))),
        relative_performance_interval=None if interval is None else _widen(interval, gain_sd),
        regret_bound_90=None if known is None or bound >= 1.0 else max(known, bound),
        left_to_gain=max(best.left_to_gain, float(regrets[regrets < 1.0].mean())),  # where it fits
    )


def qualify(result: Result, draws: ErrorDraws, find_sd: FindSd, *, tolerance: float) -> Result:
    """Return the end of a search whose answers hold the model's error; a further probe would not lessen that."""
    best, second = result.recommendation, result.second_answer
    if best is not None:
        best = allow_for_errors(best, draws, find_sd, tolerance=tolerance)
    if second is not None:
        own = allow_for_errors(second.recommendation, draws, find_sd, tolerance=tolerance)
        second = dataclasses.replace(second, recommendation=own)
    return dataclasses.replace(result, recommendation=best, second_answer=second, next_probe=None)


def _widen(interval: tuple[float, float], sd: float) -> tuple[float, float]:
    factor = math.exp(INTERVAL_SDS * sd)
    return interval[0] / factor, interval[1] * factor
