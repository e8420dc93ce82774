"""What a project would use instead, each judging the same samples by its own published rule.

A run is a list of pairs; a pair is a list of rounds; see `bexplore.guard.paired_timing`. `previous` is the run before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import mean, stdev

import numpy as np

from bexplore.guard.paired_timing import PAIRS_PER_STAGE, Block, Round
from bexplore.guard.statistics import Judgement

Run = list[list[Round]]
Rival = Callable[[Run, Run | None], Judgement]

ASV_FACTOR = 1.1  # `asv continuous --factor`, its default
ASV_ALPHA = 0.002  # `asv compare`: the threshold of the Mann-Whitney test, two-sided
PYPERF_QUANTILE = 1.96  # Student's, two-sided 95 %, for the many values of one run
SINGLE_TOLERANCE = 0.05  # a CI action that compares one number with the last one, at its usual threshold


def fixed(tolerance: float) -> Rival:
    """Mean of one side over mean of the other, against a fixed percentage, as CI scripts do."""

    def judge(run: Run, _previous: Run | None) -> Judgement:
        reference, candidate = _passes(run)
        return _beyond(mean(candidate) / mean(reference), tolerance)

    return judge


def asv_continuous(run: Run, _previous: Run | None) -> Judgement:
    """A factor of 1.1 between the medians, and a Mann-Whitney test. Source: asv, `_stats.is_different`."""
    reference, candidate = _passes(run)
    judgement = _beyond(float(np.median(candidate)) / float(np.median(reference)), ASV_FACTOR - 1)
    return judgement if _mann_whitney_p(reference, candidate) < ASV_ALPHA else Judgement.SAME


def pyperf_compare(run: Run, _previous: Run | None) -> Judgement:
    """A t test over all values, pooled variance. Source: pyperf, `_utils.is_significant`."""
    reference, candidate = _passes(run)
    variance = (stdev(reference) ** 2 + stdev(candidate) ** 2) / 2
    score = (mean(candidate) - mean(reference)) / math.sqrt(variance * 2 / len(reference))
    if abs(score) < PYPERF_QUANTILE:
        return Judgement.SAME
    return Judgement.SLOWER if score > 0 else Judgement.FASTER


def single_previous_value(run: Run, previous: Run | None) -> Judgement:
    """The mean of this run's candidate over the mean of the reference of the run before: one number of each job."""
    if previous is None:
        return Judgement.SAME
    reference, _ = _passes(previous[:1])
    _, candidate = _passes(run[:1])
    return _beyond(mean(candidate) / mean(reference), SINGLE_TOLERANCE)


RIVALS: Mapping[str, Rival] = {
    "fixed 5 %": fixed(0.05),
    "fixed 10 %": fixed(0.10),
    "Mann-Whitney and 1.1x (asv)": asv_continuous,
    "t test (pyperf)": pyperf_compare,
    "single previous value, 5 %": single_previous_value,
}


def _passes(run: Run) -> tuple[list[float], list[float]]:
    """Wall seconds of the passes of each side, of the pairs of one stage."""

    def times(blocks: tuple[Block, ...]) -> list[float]:
        return [seconds for block in blocks for seconds in block.pass_times_s]

    rounds = [one for pair in run[:PAIRS_PER_STAGE] for one in pair]
    reference = [seconds for one in rounds for seconds in times(one.reference)]
    candidate = [seconds for one in rounds for seconds in times(one.candidate)]
    return reference, candidate


def _beyond(ratio: float, tolerance: float) -> Judgement:
    if ratio > 1 + tolerance:
        return Judgement.SLOWER
    return Judgement.FASTER if ratio < 1 / (1 + tolerance) else Judgement.SAME


def _mann_whitney_p(first: list[float], second: list[float]) -> float:
    """Two-sided, normal approximation; ties do not occur among clock readings of this resolution."""
    ranks = np.argsort(np.argsort(np.concatenate([first, second]))) + 1
    n, m = len(first), len(second)
    u = float(ranks[:n].sum()) - n * (n + 1) / 2
    score = (u - n * m / 2) / math.sqrt(n * m * (n + m + 1) / 12)
    return math.erfc(abs(score) / math.sqrt(2))
