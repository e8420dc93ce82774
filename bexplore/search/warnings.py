"""Reasons for caution with a search's numbers: noise of the machine, and the program that was measured."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from bexplore.measurement.probe import Observation
from bexplore.search.evidence import Evidence
from bexplore.units import format_seconds

# Probes between the first and the last measurement of the base that make their difference a drift. Source: as
# many as half of `noise_model.DRIFT_LENGTH`; fewer lie within seconds of each other.
MIN_DRIFT_PROBES = 3
# Kinds of shared program, as in `engine.protocol.shared_mode`: one for each size; one for 1 sample, one for the others.
STATIC, DYNAMIC = "static", "dynamic"


def program_warnings(observations: Sequence[Observation]) -> tuple[str, ...]:
    """Warn of sizes of batches that could not be checked, and of a search that compiled more than once."""
    return (*_unseen_samples(observations), *_compilations(observations))


def samples_are_seen(observations: Sequence[Observation]) -> bool | None:
    """Return whether each batch was checked for its number of samples; None where no worker reported it."""
    reported = [item.details["samples_are_seen"] for item in observations if "samples_are_seen" in item.details]
    return all(reported) if reported else None


def _unseen_samples(observations: Sequence[Observation]) -> tuple[str, ...]:
    if samples_are_seen(observations) is not False:
        return ()
    return (
        "the number of samples in a batch could not be seen in its tensors, so no size was checked: name a function "
        "(batch) -> number of samples in explore.workload.samples_of",
    )


def _compilations(observations: Sequence[Observation]) -> tuple[str, ...]:
    search = [item for item in observations if item.probe.compilation.is_for_search]
    second = _second_programs(search)
    again = [item for item in search if item.num_recompiles and item not in second]
    static = [item for item in search if item.details.get("shared_mode") == STATIC and item.num_graphs]
    compiled = again or static[1:]
    if not compiled:
        return ()
    reasons = [reason for item in compiled for reason in item.details.get("recompile_reasons", ())]
    why = reasons[0] if reasons else "its program could not be compiled once for every size"
    took = format_seconds(sum(item.compile_time_s for item in compiled))
    return (f"the search compiled again in {len(compiled)} of {len(search)} probes, {took} in all: {why}",)


def _second_programs(search: Sequence[Observation]) -> list[Observation]:
    """Return the probes that compiled the second of the two programs that a backed number of samples has.

    One sample has a program of its own, for which the compiler takes any length of 1 to be fixed.
    """
    found, begun, began_with_one = [], set(), set()
    for item in search:
        process, has_one_sample = (item.worker, item.probe.variant), item.micro_batch_size == 1
        if item.details.get("shared_mode") != DYNAMIC or (process, has_one_sample) in begun:
            continue
        begun.add((process, has_one_sample))
        if has_one_sample and item.num_graphs and not item.num_recompiles:
            began_with_one.add(process)
        elif has_one_sample or process in began_with_one:
            found.append(item)
    return found


def noise_warnings(
    evidence: Sequence[Evidence], *, base: int, tolerance: float, exact_over_shared: float | None = None
) -> tuple[str, ...]:
    """Warn of repeated probes that differ by more than the tolerance, and of a base that has moved.

    Args:
        evidence: Every finished probe, in order.
        exact_over_shared: Throughput as the training runs over that in the search; None where one of them did not run.
    """
    measured = [(number, item) for number, item in enumerate(evidence) if item.is_measured]
    was_interleaved = any(item.interleaved for _, item in measured)
    found = []
    spread = _spread(measured)
    if spread is not None and spread[1] > tolerance:
        size, share, count = spread
        differ = f"{count} probes of micro-batch size {size} differ by {100 * share:.1f} %"
        advice = (
            "sizes were timed interleaved, in which this cancels; samples/s of one moment, and the difference of the "
            "search's process and the final answer's own, are no surer than that"
            if was_interleaved
            else "stop other work on it, or set explore.tolerance to the difference that matters to you"
        )
        found.append(f"the machine is noisy: {differ}, more than the tolerance of {100 * tolerance:g} %; {advice}")
    elif exact_over_shared is not None and abs(math.log(exact_over_shared)) > tolerance and was_interleaved:
        found.append(
            "the machine's speed drifts: the search and the final answer's own process were timed apart, and their "
            f"difference of {100 * abs(exact_over_shared - 1.0):.0f} % may be drift; sizes were timed interleaved, in "
            "which this cancels"
        )
    drift = _drift(measured, base)
    if drift is not None and abs(drift) > tolerance:
        found.append(
            f"the machine drifts: the base, micro-batch size {base}, was {100 * abs(drift):.1f} % "
            f"{'faster' if drift > 0 else 'slower'} when it was measured again; check clocks and temperature"
        )
    return tuple(found)


def _spread(measured: Sequence[tuple[int, Evidence]]) -> tuple[int, float, int] | None:
    """Return the size whose repeated probes differ most: size, largest over smallest less one, probes."""
    groups: dict[tuple[int, str, int], list[float]] = defaultdict(list)
    for _, item in measured:
        groups[item.micro_batch_size, item.compilation.value, item.variant].append(item.log_throughput)
    repeated = {key: values for key, values in groups.items() if len(values) > 1}
    if not repeated:
        return None
    (size, *_), values = max(repeated.items(), key=lambda pair: float(np.ptp(pair[1])))
    return size, math.expm1(float(np.ptp(values))), len(values)


def _drift(measured: Sequence[tuple[int, Evidence]], base: int) -> float | None:
    """Return the change of the base's samples/s from its first to its last measurement, as a share."""
    own = [(number, item) for number, item in measured if (item.micro_batch_size, item.variant) == (base, 0)]
    own = [(number, item) for number, item in own if item.compilation is own[0][1].compilation]
    if len(own) < 2 or own[-1][0] - own[0][0] < MIN_DRIFT_PROBES:
        return None
    return math.expm1(own[-1][1].log_throughput - own[0][1].log_throughput)
