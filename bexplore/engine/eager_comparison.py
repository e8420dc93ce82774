"""Compiled against eager passes of one size: when the pairs of timings are enough, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from bexplore.measurement.statistics import PairedRatio, paired_ratio

# Fewest pairs of timings. Timings scatter by 5 % (`EXPECTED_ROUND_SD` in `search.posterior.noise_model`): the interval
# of five pairs then reaches 9 % to each side. More follow until it is narrow.
MIN_PAIRS = 5


class EagerVerdict(StrEnum):
    """What the interval says of eager passes beside compiled ones."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    UNSURE = "unsure"


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerComparison:
    """Eager against compiled at one size."""

    verdict: EagerVerdict | None = None  # None where eager did not run, like the next three and `samples_per_s`
    over_compiled: float | None = None  # samples/s of eager passes over those of compiled ones
    low: float | None = None  # end of its 95 % interval
    high: float | None = None  # the other end
    num_pairs: int = 0  # pairs of timings, one compiled and one eager
    compiled_timed_s: float = 0.0  # seconds of all compiled passes that were timed
    eager_timed_s: float = 0.0  # seconds of all eager ones
    samples_per_s: float | None = None  # of eager passes
    peak_memory_bytes: int | None = None  # of an eager step; None where it was not read
    problem: str = ""  # why eager did not run; empty where it did


def are_enough(compiled_s: Sequence[float], eager_s: Sequence[float], *, tolerance: float, is_spent: bool) -> bool:
    """Return whether more pairs would change nothing, or cost more than they may; the fewest are always run."""
    if len(compiled_s) < MIN_PAIRS:
        return False
    return is_spent or paired_ratio(compiled_s, eager_s).is_narrow(tolerance)


def judge(answer: Mapping[str, Any], *, micro_batch_size: int, tolerance: float) -> EagerComparison:
    """Judge a worker's times."""
    if answer.get("problem"):
        return EagerComparison(problem=str(answer["problem"]))
    compiled, eager = np.array(answer["compiled_timings"]), np.array(answer["eager_timings"])  # (num_pairs, 2) each
    eager_s = eager[:, 1] / eager[:, 0]
    ratio = paired_ratio(compiled[:, 1] / compiled[:, 0], eager_s)
    return EagerComparison(
        verdict=_verdict(ratio, tolerance),
        over_compiled=ratio.value,
        low=ratio.low,
        high=ratio.high,
        num_pairs=ratio.num_pairs,
        compiled_timed_s=float(compiled[:, 1].sum()),
        eager_timed_s=float(eager[:, 1].sum()),
        samples_per_s=micro_batch_size / math.exp(float(np.mean(np.log(eager_s)))),
        peak_memory_bytes=answer["eager_peak_memory_bytes"],
    )


def _verdict(ratio: PairedRatio, tolerance: float) -> EagerVerdict:
    """Return the verdict; faster means by more than the tolerance: it takes that to train without the compiler."""
    if ratio.is_within(tolerance):
        return EagerVerdict.SAME
    if ratio.low > 1.0 + tolerance:
        return EagerVerdict.FASTER
    return EagerVerdict.SLOWER if ratio.high < 1.0 else EagerVerdict.UNSURE
