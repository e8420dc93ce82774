"""Compiled against eager passes of one size: when the pairs of timings are enough, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from bexplore.measurement.statistics import TIMING_S, PairedRatio, paired_ratio

# Fewest pairs of timings. Timings scatter by 5 % (`EXPECTED_ROUND_SD` in `search.posterior.noise_model`): the interval
# of five pairs then reaches 9 % to each side. More follow until it is narrow.
MIN_PAIRS = 5
# What an unrequested comparison may cost, as a share of the exploration so far.
CHEAP_SHARE = 0.05


class Verdict(StrEnum):
    """What the interval says of eager passes beside compiled ones."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    UNSURE = "unsure"


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerComparison:
    """Eager against compiled at one size.

    Attributes:
        verdict: Faster by more than the tolerance, slower, or the same within it, each by the whole interval; None
            where eager did not run.
        over_compiled: Samples/s of eager passes over those of compiled ones; None as above.
        low: Lower end of its 95 % interval; None as above.
        high: Upper end; None as above.
        num_pairs: Pairs of timings, one compiled and one eager.
        compiled_timed_s: Seconds of all compiled passes that were timed.
        eager_timed_s: Seconds of all eager ones.
        samples_per_s: Of eager passes; None as above.
        peak_memory_bytes: Of an eager step; None where it was not read.
        asked: Whether the configuration requests it, as `explore.compile: both`.
        problem: Why eager did not run; empty where it did.
    """

    asked: bool
    verdict: Verdict | None = None
    over_compiled: float | None = None
    low: float | None = None
    high: float | None = None
    num_pairs: int = 0
    compiled_timed_s: float = 0.0
    eager_timed_s: float = 0.0
    samples_per_s: float | None = None
    peak_memory_bytes: int | None = None
    problem: str = ""


def comparison_is_cheap(*, pass_time_s: float, elapsed_s: float) -> bool:
    """Return whether an unrequested comparison is cheap beside what the exploration took."""
    return 2 * (1 + MIN_PAIRS) * max(pass_time_s, TIMING_S) <= CHEAP_SHARE * elapsed_s


def are_enough(
    compiled_s: Sequence[float], eager_s: Sequence[float], *, tolerance: float, is_spent: bool, asked: bool
) -> bool:
    """Return whether more pairs would change nothing, or cost more than they may.

    Args:
        compiled_s: Seconds of a pass in each compiled timing.
        eager_s: The same of the eager timing beside it.
        tolerance: A share of speed that counts as none; an interval that is no wider is narrow enough.
        is_spent: Whether the time that was meant for them is over.
        asked: Whether the configuration requests it, so that the fewest pairs are run whatever they take.
    """
    if len(compiled_s) < MIN_PAIRS:
        return is_spent and not asked
    ratio = paired_ratio(compiled_s, eager_s)
    is_silent = not asked and ratio.high < 1.0  # an unrequested comparison that finds eager slower is not reported
    return is_spent or is_silent or ratio.is_narrow(tolerance)


def judge(answer: Mapping[str, Any], *, micro_batch_size: int, tolerance: float, asked: bool) -> EagerComparison | None:
    """Judge a worker's times; None where an unrequested comparison was too short.

    Args:
        answer: `problem`, or `compiled_timings`, `eager_timings` and `eager_peak_memory_bytes`.
    """
    if answer.get("problem"):
        return EagerComparison(asked=asked, problem=str(answer["problem"]))
    compiled, eager = np.array(answer["compiled_timings"]), np.array(answer["eager_timings"])  # (num_pairs, 2) each
    if len(eager) < MIN_PAIRS:
        return None
    eager_s = eager[:, 1] / eager[:, 0]
    ratio = paired_ratio(compiled[:, 1] / compiled[:, 0], eager_s)
    return EagerComparison(
        asked=asked,
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


def _verdict(ratio: PairedRatio, tolerance: float) -> Verdict:
    """Return the verdict; faster means by more than the tolerance: it takes that to train without the compiler."""
    if ratio.is_within(tolerance):
        return Verdict.SAME
    if ratio.low > 1.0 + tolerance:
        return Verdict.FASTER
    return Verdict.SLOWER if ratio.high < 1.0 else Verdict.UNSURE
