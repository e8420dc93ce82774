"""Is compiled code faster at all? Eager and compiled passes of one size, timed in turn, and what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# Pairs of passes: where it was asked for, and where it is only a look that must stay cheap.
PAIRS_ASKED = 5
PAIRS_OF_A_LOOK = 2
# What a look may cost, as a share of the exploration so far.
SHARE_OF_A_LOOK = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerComparison:
    """Eager against compiled at one size.

    Attributes:
        over_compiled: Samples/s of eager passes over those of compiled ones; None where eager did not run.
        is_faster: Whether eager was faster by more than the tolerance, and in each pair; None as above.
        num_pairs: Pairs of passes, timed in turn.
        samples_per_s: Of eager passes; None as above.
        peak_memory_bytes: Of an eager step; None where it was not read.
        asked: Whether the configuration asks for it, as `explore.compile: both`.
        problem: Why eager did not run; empty where it did.
    """

    over_compiled: float | None
    is_faster: bool | None
    num_pairs: int
    samples_per_s: float | None
    peak_memory_bytes: int | None
    asked: bool
    problem: str = ""


def look_is_cheap(*, pass_time_s: float, elapsed_s: float) -> bool:
    """Whether a look that nobody asked for is cheap beside what the exploration took."""
    num_passes = 1 + 2 * PAIRS_OF_A_LOOK
    return num_passes * pass_time_s <= SHARE_OF_A_LOOK * elapsed_s


def judge(answer: Mapping[str, Any], *, micro_batch_size: int, tolerance: float, asked: bool) -> EagerComparison:
    """What a worker's times say.

    Args:
        answer: `problem`, or `compiled_pass_times_s`, `eager_pass_times_s` and `eager_peak_memory_bytes`.
        micro_batch_size: Samples of a pass.
        tolerance: A share of speed that counts as none.
        asked: Whether the configuration asks for the comparison.
    """
    if answer.get("problem"):
        return EagerComparison(
            over_compiled=None,
            is_faster=None,
            num_pairs=0,
            samples_per_s=None,
            peak_memory_bytes=None,
            asked=asked,
            problem=str(answer["problem"]),
        )
    compiled: Sequence[float] = answer["compiled_pass_times_s"]
    eager: Sequence[float] = answer["eager_pass_times_s"]
    ratios = np.array(compiled) / np.array(eager)
    return EagerComparison(
        over_compiled=float(np.median(ratios)),
        is_faster=bool(np.median(ratios) > 1.0 + tolerance and (ratios > 1.0).all()),
        num_pairs=len(ratios),
        samples_per_s=micro_batch_size / float(np.median(eager)),
        peak_memory_bytes=answer["eager_peak_memory_bytes"],
        asked=asked,
    )
