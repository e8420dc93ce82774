"""From what a worker says to an observation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from bexplore.errors import BexploreError, EngineError, ExitCode, UserInputError, UserProgramError
from bexplore.measurement.probe import Observation, Outcome, Probe
from bexplore.units import format_bytes

# What an answer says of the worker, and not of the size.
OF_THE_WORKER = ("kind", "shared_mode", "is_reusable", "is_sticky", "has_headroom")


def refusal(answer: Mapping[str, Any]) -> BexploreError:
    """The error that a worker raised on purpose, as one of this process."""
    message, hint = answer["refused"], answer["hint"]
    if answer["traceback_text"]:
        return UserProgramError(message, hint=hint, traceback_text=answer["traceback_text"])
    kind = UserInputError if answer["exit_code"] == ExitCode.USER_INPUT else EngineError
    return kind(message, hint=hint)


def observed(answer: Mapping[str, Any], *, spawn_s: float, warnings: Sequence[str], **common: Any) -> Observation:
    """The observation of an answer.

    Args:
        answer: A worker's, to a probe.
        spawn_s: Seconds to start the worker's process.
        warnings: What a reader must know beside the worker's own.
        common: Fields of `Observation` that the worker does not know.
    """
    facts = {name: value for name, value in answer.items() if name not in OF_THE_WORKER}
    outcome = Outcome(facts.pop("outcome"))
    reason = facts.pop("reason", "")
    for name in ("pass_times_s", "update_times_s", "graph_break_reasons"):
        facts[name] = tuple(facts.get(name, ()))
    turns = facts.get("interleaved_times_s", {})
    facts["interleaved_times_s"] = {int(size): tuple(times_s) for size, times_s in turns.items()}
    facts["start_time_s"] = facts.get("start_time_s", 0.0) + spawn_s
    facts["warnings"] = (*facts.get("warnings", ()), *warnings)
    # What was held is no reason to refuse: reserved memory has its limit in the allocator, and a process on a CPU is
    # allowed a little more than its tensors (`engine.worker.limits`).
    peak, budget = facts.get("peak_memory_bytes"), common["memory_budget_bytes"]
    if outcome is Outcome.MEASURED and peak and budget is not None and peak > budget:
        outcome = Outcome.OUT_OF_MEMORY
        reason = f"its peak is {format_bytes(peak - budget)} over the budget of {format_bytes(budget)}"
    return Observation(outcome=outcome, reason=reason, **common, **facts)


def asks_the_same(one: Probe, other: Probe) -> bool:
    """Whether the answer to one probe answers the other."""
    return (one.micro_batch_size, one.compilation) == (other.micro_batch_size, other.compilation)


def charged(observation: Observation, ahead: Observation) -> Observation:
    """An observation with what was done ahead of it."""
    start_time_s = observation.start_time_s
    if observation.worker == ahead.worker:
        start_time_s += ahead.start_time_s
    return dataclasses.replace(
        observation,
        start_time_s=start_time_s,
        elapsed_s=observation.elapsed_s + ahead.elapsed_s,
        started_at_s=ahead.started_at_s,
    )
