"""What an exploration says while it goes on, and how each event is written as JSON.

Events of the loop itself are those of `bexplore.search.result`; here stand those of a whole job, from the plan to the
summary. Unknown is null in JSON, never 0.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bexplore.batching import MAX_SAMPLES, GlobalBatchSize
from bexplore.engine.eager_comparison import EagerComparison
from bexplore.exploration.bottlenecks import Bottleneck
from bexplore.exploration.run_directory import Run
from bexplore.measurement.probe import Observation
from bexplore.search.policy.decision import without_numbers
from bexplore.search.posterior.memory import EXPECTED_RATIO
from bexplore.search.recommendation import Recommendation
from bexplore.search.result import ProbeFinished, ProbeStarted, Result
from bexplore.search.space import MemoryAccount
from bexplore.search.warnings import samples_are_seen
from bexplore.trace.cost_model import CostModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What is about to happen.

    Attributes:
        title: The job in a few words.
        run: Where it is kept; None in a dry run.
        num_known_probes: Observations of an earlier, unfinished run that this one goes on from.
        changes: Why the newest earlier run here could not be used; a line each.
        device: As torch names it, and its own name.
        candidates: How many sizes, from which to which.
        max_probes: Probes at most.
        expected_s: Rough length of the whole; None if unknown.
        warnings: What a reader must know.
        num_parameters: Elements of all parameters; None where the plan stands before the trace.
        why_expected: Where `expected_s` comes from, or why it is unknown; empty where nobody has looked.
    """

    title: str
    run: Run | None
    num_known_probes: int
    changes: tuple[str, ...]
    device: str
    candidates: str
    max_probes: int
    expected_s: float | None
    warnings: tuple[str, ...] = ()
    num_parameters: int | None = None
    why_expected: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """What one look at the traced program tells of every size.

    Attributes:
        record: The fields of the `trace` event; None where the program could not be traced.
        reason: Why it could not; empty where it could.
        memory_budget_bytes: The budget in force.
        why_budget: Where the budget comes from.
        warnings: What a reader must know.
    """

    record: Mapping[str, Any] | None
    reason: str
    memory_budget_bytes: int
    why_budget: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommended:
    """The recommendation so far.

    Attributes:
        recommendation: Size, relative performance, confidence.
        global_batch_sizes: Those that are valid with it, around the user's own.
    """

    recommendation: Recommendation
    global_batch_sizes: tuple[GlobalBatchSize, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepsBatchSize:
    """The fastest size with which the user's own global batch size is valid.

    Attributes:
        micro_batch_size: Samples of one replica in one pass.
        accumulation_steps: Passes of one replica in an optimizer step of that batch.
        samples_per_s: Of the pass, as measured.
        relative_performance: Its samples/s over those of the base.
        confidence: P(it is within the tolerance of the fastest that keeps the batch size) in percent, 0 to 98.
        over_recommended: Its samples/s over those of the size that is recommended whatever the batch size.
        free_micro_batch_size: That size.
        compilation: Program that it ran; None where another explorer of the study ran it.
        step_time_s: Seconds of an optimizer step of that batch, without synchronisation; None as above.
    """

    micro_batch_size: int
    accumulation_steps: int
    samples_per_s: float
    relative_performance: float
    confidence: int
    over_recommended: float
    free_micro_batch_size: int
    compilation: str | None
    step_time_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The last words.

    Attributes:
        result: How the loop ended; its recommendation may be None after an interruption.
        run: Where everything is.
        verified: The observation that stands behind the recommended size: the latest exact one, else the latest.
        base: An observation of the base size; None where it was not measured.
        global_batch_sizes: Those that are valid with the recommended size, around the user's own.
        batch_size_request: The user's own global batch size, when it is valid, and whether it must be kept:
            `batch_size` (None if none was given), `replica_batch_size` (None also if it has no whole share),
            `divisibility`, `keep_batch_size`; and `training_samples`, of one replica, where the training's time comes
            from them.
        user_batch_message: Whether it is valid with the recommended size, and what is near; empty if none was given.
        keeps_batch_size: The fastest size with which the user's own global batch size is valid: the recommended one if
            it is valid with it; None where no batch size was given, or nothing that ran is valid with it.
        gradient_equivalence: What the comparison of gradients said; None where it could not be made.
        num_probes: Probes in all.
        elapsed_s: Seconds from the start of the exploration.
        eager: How fast the recommended size runs without torch.compile; None where that was not measured.
        artifacts_dir: The compiler's cache of the recommended size, which a training may start from; None for none.
        failures: What did not run, and why: `failures_of` the observations.
        loader: What timing the user's own data loader said; None where the configuration names none.
        bottlenecks: What holds the job back beside its size, the weightiest first.
    """

    result: Result
    run: Run
    verified: Observation | None
    base: Observation | None
    global_batch_sizes: tuple[GlobalBatchSize, ...] = ()
    batch_size_request: Mapping[str, Any] = field(default_factory=dict)
    user_batch_message: str = ""
    keeps_batch_size: KeepsBatchSize | None = None
    gradient_equivalence: Mapping[str, Any] | None = None
    num_probes: int = 0
    elapsed_s: float = 0.0
    failures: tuple[Mapping[str, Any], ...] = ()
    eager: EagerComparison | None = None
    artifacts_dir: Path | None = None
    loader: Mapping[str, Any] | None = None
    bottlenecks: tuple[Bottleneck, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyFinished:
    """A finished run was found: nothing is run again.

    Attributes:
        record: The `result` event of that run.
        run: Where it is.
    """

    record: Mapping[str, Any]
    run: Run


JobEvent = Planned | Traced | ProbeStarted | ProbeFinished | Recommended | Finished | AlreadyFinished


def event_record(event: JobEvent) -> dict[str, Any] | None:
    """The JSON object of an event; None for an event that is not written."""
    if isinstance(event, AlreadyFinished):
        return dict(event.record) | {"stored": True}
    if isinstance(event, ProbeStarted):
        return None
    if isinstance(event, Planned):
        return {"event": "plan"} | _plain(event) | {"run_dir": str(event.run.directory) if event.run else None}
    if isinstance(event, Traced):
        return _trace_record(event)
    if isinstance(event, ProbeFinished):
        return probe_record(event.observation)
    if isinstance(event, Recommended):
        return {"event": "recommendation"} | recommendation_record(event.recommendation, event.global_batch_sizes)
    return _result_record(event)


def trace_record(
    cost_model: CostModel,
    *,
    budget_bytes: int,
    judged_by: MemoryAccount = MemoryAccount.TENSORS,
    minimum: int = 1,
    maximum: int | None = None,
    micro_batch_sizes: Sequence[int] | None = None,
) -> dict[str, Any]:
    """What the `trace` event says of a traced step.

    Args:
        cost_model: The trace.
        budget_bytes: The memory budget in force.
        judged_by: The account that must fit it.
        minimum: Smallest micro-batch size that may be tried.
        maximum: Largest; None for no bound.
        micro_batch_sizes: Sizes to tell the peak of; None for the bounds and the powers of two between them, up to the
            first that does not fit.
    """
    ratio = EXPECTED_RATIO if judged_by is MemoryAccount.RESERVED else 1.0
    largest = MAX_SAMPLES if maximum is None else maximum
    fits = cost_model.max_micro_batch_size(budget_bytes / ratio, limit=largest)
    if micro_batch_sizes is None:
        powers = {2**exponent for exponent in range(fits.bit_length() + 1)} | {minimum, largest}
        micro_batch_sizes = [size for size in sorted(powers) if minimum <= size <= min(2 * max(fits, minimum), largest)]
    return {
        "num_parameters": cost_model.num_parameters,
        "device": cost_model.device,
        "device_name": cost_model.device_name,
        "relative_sd": cost_model.relative_sd,
        "flops_per_sample": cost_model.flops_per_sample,
        "peak_memory_bytes": {str(size): cost_model.peak_memory_bytes(size) for size in micro_batch_sizes},
        "max_micro_batch_size": fits if fits >= minimum else None,
        "bounds": [minimum, maximum],
        "reserved_over_peak": ratio,
        "trace_s": cost_model.trace_s,
        "remembered_from": cost_model.remembered_from,
        "fingerprint": cost_model.fingerprint,
        "notes": list(cost_model.notes),
    }


def probe_record(observation: Observation) -> dict[str, Any]:
    """The `probe` event of an observation."""
    return {
        "event": "probe",
        "number": observation.probe.number,
        "micro_batch_size": observation.micro_batch_size,
        "outcome": observation.outcome.value,
        "reason": observation.reason,
        "purpose": observation.probe.purpose.value,
        "pass_times_s": list(observation.pass_times_s),
        "update_times_s": list(observation.update_times_s),
        "interleaved_times_s": {str(size): list(times_s) for size, times_s in observation.interleaved_times_s.items()},
        "start_time_s": observation.start_time_s,
        "compile_time_s": observation.compile_time_s,
        "elapsed_s": observation.elapsed_s,
        "peak_memory_bytes": observation.peak_memory_bytes,
        "resident_memory_bytes": observation.resident_memory_bytes,
        "num_alloc_retries": observation.num_alloc_retries,
        "predicted_peak_memory_bytes": observation.probe.predicted_peak_memory_bytes,
        "memory_budget_bytes": observation.memory_budget_bytes,
        "compilation": "eager" if observation.ran_eagerly else observation.probe.compilation.value,
        "num_graphs": observation.num_graphs,
        "num_graph_breaks": observation.num_graph_breaks,
        "graph_break_reasons": list(observation.graph_break_reasons),
        "num_recompiles": observation.num_recompiles,
        "samples_per_s": _known(observation.samples_per_s),
        "loss": observation.loss,
        "warnings": list(observation.warnings),
    }


def failures_of(observations: Sequence[Observation]) -> tuple[Mapping[str, Any], ...]:
    """What did not run, by reasons that differ in more than numbers.

    Returns:
        `outcome`, `reason` and `traceback_text` of the first failure of each reason, and all its `micro_batch_sizes`,
        ascending.
    """
    by_reason: dict[tuple[str, str], list[Observation]] = {}
    for observation in observations:
        if not observation.is_measured:
            key = (observation.outcome.value, without_numbers(observation.reason))
            by_reason.setdefault(key, []).append(observation)
    return tuple(
        {
            "outcome": alike[0].outcome.value,
            "reason": alike[0].reason,
            "traceback_text": alike[0].traceback_text,
            "micro_batch_sizes": sorted({observation.micro_batch_size for observation in alike}),
        }
        for alike in by_reason.values()
    )


def recommendation_record(best: Recommendation, sizes: tuple[GlobalBatchSize, ...]) -> dict[str, Any]:
    """The fields that the `recommendation` and `result` events share."""
    return {
        "micro_batch_size": best.micro_batch_size,
        "relative_performance": best.relative_performance,
        "confidence": best.confidence,
        "samples_per_s": _known(best.samples_per_s),
        "relative_performance_interval": best.relative_performance_interval,
        "regret_bound_90": best.regret_bound_90,
        "left_to_gain": best.left_to_gain,
        "num_probes": best.num_probes,
        "elapsed_s": best.elapsed_s,
        "global_batch_sizes": [dataclasses.asdict(size) for size in sizes],
    }


def step_time_s(observation: Observation | None, accumulation_steps: int) -> float | None:
    """Seconds of one optimizer step: passes and one update; synchronisation of replicas is not in it."""
    if observation is None or not observation.is_measured:
        return None
    update_s = observation.update_time_s if observation.update_times_s else 0.0
    return accumulation_steps * observation.pass_time_s + update_s


def _trace_record(event: Traced) -> dict[str, Any]:
    unknown = {
        "num_parameters": None,
        "flops_per_sample": None,
        "peak_memory_bytes": None,
        "max_micro_batch_size": None,
        "reserved_over_peak": None,
        "trace_s": None,
        "remembered_from": None,
        "fingerprint": None,
    }
    record = {"event": "trace"} | unknown | dict(event.record or {})
    return record | {"memory_budget_bytes": event.memory_budget_bytes, "reason": event.reason}


def _result_record(event: Finished) -> dict[str, Any]:
    result, best, further = event.result, event.result.recommendation, event.result.next_probe
    record: dict[str, Any] = {"event": "result"}
    if best is None:
        record |= dict.fromkeys(
            (
                "micro_batch_size",
                "relative_performance",
                "relative_performance_interval",
                "confidence",
                "samples_per_s",
                "regret_bound_90",
                "left_to_gain",
            )
        )
        record |= {"num_probes": event.num_probes, "elapsed_s": event.elapsed_s, "global_batch_sizes": []}
    else:
        record |= recommendation_record(best, event.global_batch_sizes)
        for size in record["global_batch_sizes"]:
            size["step_time_s"] = step_time_s(event.verified, size["accumulation_steps"])
    return record | {
        "num_probes": event.num_probes,
        "elapsed_s": event.elapsed_s,
        "base_micro_batch_size": result.base_micro_batch_size,
        "stop_reason": str(result.stop_reason),
        "training_time_s": further.training_time_s if further else None,
        "next_probe_s": further.cost_s if further else None,
        "next_probe_saves": further.saves if further else None,
        "smallest_within_tolerance": result.smallest_within_tolerance,
        "memory_saved_bytes": result.memory_saved_bytes,
        "exact_over_shared": result.exact_over_shared,
        "full_over_reduced": result.full_over_reduced,
        "peak_memory_bytes": result.peak_memory_bytes,
        "resident_memory_bytes": result.resident_memory_bytes,
        "memory_headroom_bytes": result.memory_headroom_bytes,
        "outcomes": dict(result.outcomes),
        "failures": [dict(failure) for failure in event.failures],
        "batch_size": None,
        "training_samples": None,
        **event.batch_size_request,
        "batch_message": event.user_batch_message,
        "keeps_batch_size": None if event.keeps_batch_size is None else dataclasses.asdict(event.keeps_batch_size),
        "gradient_equivalence": None if event.gradient_equivalence is None else dict(event.gradient_equivalence),
        "loader": None if event.loader is None else dict(event.loader),
        "bottlenecks": [dataclasses.asdict(item) for item in event.bottlenecks],
        "eager": None if event.eager is None else dataclasses.asdict(event.eager),
        "artifacts_dir": None if event.artifacts_dir is None else str(event.artifacts_dir),
        "compilation": event.verified.probe.compilation.value if event.verified else None,
        "optimizers": event.verified.details.get("optimizers") if event.verified else None,
        "samples_are_seen": samples_are_seen([event.verified] if event.verified else []),
        "warnings": list(result.warnings),
        "run_dir": str(event.run.directory),
    }


def _plain(event: Planned) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(event) if field.name != "run"]
    return {name: getattr(event, name) for name in names}


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
