"""What a reader must know of the noise before believing the numbers: evidence and advice, never a silent guess."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from bexplore.search.evidence import Evidence

MIN_DRIFT_PROBES = 3  # probes between the first and the last measurement of the base that make it a drift


def noise_warnings(
    evidence: Sequence[Evidence], *, base: int, tolerance: float, exact_over_shared: float | None = None
) -> tuple[str, ...]:
    """Say where repeated probes disagree by more than the tolerance, and where the base has moved.

    Args:
        evidence: Every finished probe, in order.
        base: The smallest candidate.
        tolerance: Two sizes within this share of each other are as good as each other.
        exact_over_shared: Throughput of exact over shared compilation, as measured; None where one of them did not run.
    """
    measured = [(number, item) for number, item in enumerate(evidence) if item.is_measured]
    found = []
    spread = _spread(measured)
    if spread is not None and spread[1] > tolerance:
        size, share, count = spread
        differ = f"{count} probes of micro-batch size {size} differ by {100 * share:.1f} %"
        found.append(
            f"the machine is noisy: {differ}, more than the tolerance of {100 * tolerance:g} %; {_what_to_do(measured)}"
        )
    elif exact_over_shared is not None and abs(math.log(exact_over_shared)) > tolerance and _took_turns(measured):
        found.append(
            "the machine wanders: exact and shared compilation were timed apart, and their difference of "
            f"{100 * abs(exact_over_shared - 1.0):.0f} % may be the machine's; sizes were held against each other in "
            "short turns, in which this cancels"
        )
    drift = _drift(measured, base)
    if drift is not None and abs(drift) > tolerance:
        found.append(
            f"the machine drifts: the base, micro-batch size {base}, was {100 * abs(drift):.1f} % "
            f"{'faster' if drift > 0 else 'slower'} when it was measured again; check clocks and temperature"
        )
    return tuple(found)


def _what_to_do(measured: Sequence[tuple[int, Evidence]]) -> str:
    if _took_turns(measured):
        return (
            "sizes were held against each other in short turns, in which this cancels; samples/s of one moment, and "
            "those of exact against shared compilation, are no surer than that"
        )
    return "stop other work on it, or set explore.tolerance to the difference that matters to you"


def _took_turns(measured: Sequence[tuple[int, Evidence]]) -> bool:
    return any(item.interleaved for _, item in measured)


def _spread(measured: Sequence[tuple[int, Evidence]]) -> tuple[int, float, int] | None:
    """The size whose repeated probes differ most: size, largest over smallest less one, probes."""
    groups: dict[tuple[int, str], list[float]] = defaultdict(list)
    for _, item in measured:
        groups[item.micro_batch_size, item.compilation.value].append(item.log_throughput)
    repeated = {key: values for key, values in groups.items() if len(values) > 1}
    if not repeated:
        return None
    (size, _), values = max(repeated.items(), key=lambda pair: float(np.ptp(pair[1])))
    return size, math.expm1(float(np.ptp(values))), len(values)


def _drift(measured: Sequence[tuple[int, Evidence]], base: int) -> float | None:
    """Change of the base's samples/s from its first to its last measurement, as a share."""
    own = [(number, item) for number, item in measured if item.micro_batch_size == base]
    own = [(number, item) for number, item in own if item.compilation is own[0][1].compilation]
    if len(own) < 2 or own[-1][0] - own[0][0] < MIN_DRIFT_PROBES:
        return None
    return math.expm1(own[-1][1].log_throughput - own[0][1].log_throughput)
