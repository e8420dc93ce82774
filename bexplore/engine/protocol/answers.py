"""From a worker's answer to an observation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from bexplore.engine.protocol.messages import Done, Failed
from bexplore.measurement.probe import Observation, Outcome, Probe, fields_of
from bexplore.units import format_bytes


def observed(answer: Done | Failed, *, spawn_s: float, warnings: Sequence[str], **common: Any) -> Observation:
    """Return the observation of an answer.

    Args:
        spawn_s: Seconds to start the worker's process.
        warnings: For the reader, beside the worker's own.
        common: Fields of `Observation` that are not the worker's.
    """
    start_time_s = answer.start_time_s + spawn_s
    if isinstance(answer, Failed):
        common |= {"outcome": answer.outcome, "reason": answer.reason, "traceback_text": answer.traceback_text}
        common |= {"details": answer.details}
        if not answer.has_ended:
            common |= {"start_time_s": start_time_s, "warnings": tuple(warnings)}
        return Observation(**common)
    values = fields_of(answer.values)
    values["warnings"] += tuple(warnings)
    # Resident memory is no reason to refuse: reserved memory has its limit in the allocator, and a process on a CPU is
    # allowed a little more than its tensors (`engine.worker.memory_limit`).
    outcome, reason = Outcome.MEASURED, ""
    peak, budget = values.get("peak_memory_bytes"), common["memory_budget_bytes"]
    if peak and budget is not None and peak > budget:
        outcome = Outcome.OUT_OF_MEMORY
        reason = f"its peak is {format_bytes(peak - budget)} over the budget of {format_bytes(budget)}"
    return Observation(outcome=outcome, reason=reason, start_time_s=start_time_s, **common, **values)


def answers_both(one: Probe, other: Probe) -> bool:
    """Return whether the answer to one probe answers the other."""
    return (one.micro_batch_size, one.compilation) == (other.micro_batch_size, other.compilation)


def charged(observation: Observation, ahead: Observation) -> Observation:
    """Add what was done ahead of an observation to it."""
    start_time_s = observation.start_time_s
    if observation.worker == ahead.worker:
        start_time_s += ahead.start_time_s
    return dataclasses.replace(
        observation,
        start_time_s=start_time_s,
        elapsed_s=observation.elapsed_s + ahead.elapsed_s,
        started_at_s=ahead.started_at_s,
    )
