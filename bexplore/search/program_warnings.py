"""What a reader must know of the program that was measured, beside its times."""

from __future__ import annotations

from collections.abc import Sequence

from bexplore.measurement.probe import Observation
from bexplore.units import format_seconds

STATIC = "static"  # the kind of shared program that serves one size, as `engine.shared.SharedMode` names it


def program_warnings(observations: Sequence[Observation]) -> tuple[str, ...]:
    """Say where sizes of batches were not seen, and where the search compiled more than once, and why."""
    return (*_unseen_samples(observations), *_compilations(observations))


def samples_are_seen(observations: Sequence[Observation]) -> bool | None:
    """Whether each batch was checked for as many samples as its size says; None where nothing tells."""
    told = [item.details["samples_are_seen"] for item in observations if "samples_are_seen" in item.details]
    return all(told) if told else None


def _unseen_samples(observations: Sequence[Observation]) -> tuple[str, ...]:
    if samples_are_seen(observations) is not False:
        return ()
    return (
        "the number of samples in a batch could not be seen in its tensors, so no size was checked: name a function "
        "(batch) -> number of samples in explore.workload.samples_of",
    )


def _compilations(observations: Sequence[Observation]) -> tuple[str, ...]:
    search = [item for item in observations if item.probe.compilation.is_for_search]
    again = [item for item in search if item.num_recompiles]
    static = [item for item in search if item.details.get("shared_mode") == STATIC and item.num_graphs]
    compiled = again or static[1:]
    if not compiled:
        return ()
    reasons = [reason for item in compiled for reason in item.details.get("recompile_reasons", ())]
    why = reasons[0] if reasons else "its program could not be compiled once for every size"
    took = format_seconds(sum(item.compile_time_s for item in compiled))
    return (f"the search compiled again in {len(compiled)} of {len(search)} probes, {took} in all: {why}",)
