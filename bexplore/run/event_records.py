"""Events as JSON objects. Unknown is null, never 0."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from bexplore.job.batching import MAX_SAMPLES, GlobalBatchSize
from bexplore.measurement.probe import Observation
from bexplore.measurement.profile import Profile
from bexplore.run import events
from bexplore.run.parts.checks import Bottleneck
from bexplore.search.posterior.memory import EXPECTED_RATIO
from bexplore.search.recommendation import Recommendation
from bexplore.search.result import ProbeFinished
from bexplore.search.space import MemoryAccount
from bexplore.trace.cost_model import CostModel

# The fields of the `trace` event. Those that `CostModel` has under the same name are taken from it as they are.
_TRACE_FIELDS = (
    "num_parameters",
    "num_blocks",
    "device",
    "device_name",
    "relative_sd",
    "flops_per_sample",
    "hardware_flops_per_sample",
    "peak_memory_bytes",
    "max_micro_batch_size",
    "bounds",
    "reserved_over_peak",
    "trace_s",
    "remembered_from",
    "fingerprint",
    "measured_at",
    "why_untraced",
    "notes",
)


def event_record(event: events.JobEvent) -> dict[str, Any] | None:
    """Return the JSON object of an event; None for an event that is not written."""
    if isinstance(event, events.AlreadyFinished):
        return event.result.as_record() | {"already_finished": True}
    if isinstance(event, events.Finished):
        return event.result.as_record()
    if isinstance(event, events.Planned):
        return {"event": "plan"} | _plain(event) | {"run_dir": str(event.run.directory) if event.run else None}
    if isinstance(event, events.Traced):
        return _trace_record(event)
    if isinstance(event, ProbeFinished):
        return probe_record(event.observation)
    if isinstance(event, events.Recommended):
        own = {"variant": event.recommendation.variant, "settings": dict(event.settings)}
        own["micro_batch_tokens"] = event.micro_batch_tokens
        return {
            "event": "recommendation",
            **recommendation_record(event.recommendation, event.global_batch_sizes),
            **own,
        }
    return None


def trace_record(
    cost_model: CostModel | None,
    *,
    budget_bytes: int = 0,
    judged_by: MemoryAccount = MemoryAccount.TENSORS,
    minimum: int = 1,
    maximum: int | None = None,
    micro_batch_sizes: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Return the fields of the `trace` event.

    Args:
        cost_model: The trace; None where there is none: its fields are null.
        maximum: Largest; None for no bound.
        micro_batch_sizes: Sizes whose peak is listed; None for the bounds and the powers of two between them, up to the
            first that does not fit.
    """
    record = {name: getattr(cost_model, name, None) for name in _TRACE_FIELDS} | {"notes": []}
    if cost_model is None:
        return record
    ratio = EXPECTED_RATIO if judged_by is MemoryAccount.RESERVED else 1.0
    largest = MAX_SAMPLES if maximum is None else maximum
    fits = cost_model.max_micro_batch_size(budget_bytes / ratio, limit=largest)
    if micro_batch_sizes is None:
        micro_batch_sizes = listed_sizes(fits, minimum=minimum, maximum=maximum)
    return record | {
        "peak_memory_bytes": {str(size): cost_model.peak_memory_bytes(size) for size in micro_batch_sizes},
        "max_micro_batch_size": fits if fits >= minimum else None,
        "bounds": [minimum, maximum],
        "reserved_over_peak": ratio,
        "measured_at": list(cost_model.measured_at) or None,
        **({} if cost_model.has_operations else {"flops_per_sample": None, "hardware_flops_per_sample": None}),
        "notes": [*cost_model.notes, *cost_model.growing],
    }


def listed_sizes(largest_fitting: int, *, minimum: int, maximum: int | None) -> list[int]:
    """Return the bounds and the powers of two between them, up to the first beyond the largest size that fits."""
    largest = MAX_SAMPLES if maximum is None else maximum
    powers = {2**exponent for exponent in range(largest_fitting.bit_length() + 1)} | {minimum, largest}
    end = min(2 * max(largest_fitting, minimum), largest)
    return [size for size in sorted(powers) if minimum <= size <= end]


def probe_record(observation: Observation) -> dict[str, Any]:
    """Return the `probe` event of an observation."""
    return {
        "event": "probe",
        "number": observation.probe.number,
        "micro_batch_size": observation.micro_batch_size,
        "variant": observation.probe.variant,
        "settings": observation.details.get("settings", {}),
        "outcome": observation.outcome.value,
        "reason": observation.reason,
        "purpose": observation.probe.purpose.value,
        **observation.times_s,
        "start_time_s": observation.start_time_s,
        "compile_time_s": observation.compile_time_s,
        "elapsed_s": observation.elapsed_s,
        "peak_memory_bytes": observation.peak_memory_bytes,
        "resident_memory_bytes": observation.resident_memory_bytes,
        "num_alloc_retries": observation.num_alloc_retries,
        "predicted_peak_memory_bytes": observation.probe.predicted_peak_memory_bytes,
        "memory_budget_bytes": observation.memory_budget_bytes,
        "compilation": observation.program_name,
        "num_graphs": observation.num_graphs,
        "num_graph_breaks": observation.num_graph_breaks,
        "graph_break_reasons": list(observation.graph_break_reasons),
        "num_recompiles": observation.num_recompiles,
        "samples_per_s": None if observation.is_emulated else _known(observation.samples_per_s),
        "estimate": observation.details.get("estimate"),
        "loss": observation.loss,
        "parallel": observation.details.get("parallel"),
        "warnings": list(observation.warnings),
    }


def recommendation_record(best: Recommendation, sizes: tuple[GlobalBatchSize, ...]) -> dict[str, Any]:
    """Return the fields of the `recommendation` event, which the `result` event shares."""
    return {
        "micro_batch_size": best.micro_batch_size,
        "relative_performance": best.relative_performance,
        "confidence": best.confidence,
        "samples_per_s": best.samples_per_s,
        "speeds": [dataclasses.asdict(one) for one in best.speeds],
        "base_micro_batch_size": best.base_micro_batch_size,
        "relative_performance_interval": best.relative_performance_interval,
        "regret_bound_90": best.regret_bound_90,
        "left_to_gain": best.left_to_gain,
        "num_probes": best.num_probes,
        "elapsed_s": best.elapsed_s,
        "global_batch_sizes": [dataclasses.asdict(size) for size in sizes],
    }


def _trace_record(event: events.Traced) -> dict[str, Any]:
    return (
        {"event": "trace"}
        | dict(event.record or trace_record(None))
        | {
            "memory_budget_bytes": event.memory_budget_bytes,
            "reason": event.reason,
            "variants": [dict(one) for one in event.variants],
            "left_out": [dataclasses.asdict(one) for one in event.left_out],
        }
    )


def _plain(event: events.Planned) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(event) if field.name != "run"]
    return {name: getattr(event, name) for name in names}


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def profile_record(profile: Profile, bottlenecks: Sequence[Bottleneck]) -> dict[str, Any]:
    """Return the `profile` event, with what limits the steps by it."""
    findings = [dataclasses.asdict(one) for one in bottlenecks]
    return {"event": "profile", **dataclasses.asdict(profile), "bottlenecks": findings}
