"""What the ranks of a training command ask an emulated device to do, as its observer has recorded one step of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bexplore.estimate.dispatch import Dispatch, host_seconds
from bexplore.estimate.kernels import Kernel
from bexplore.exploration.emulated_speeds import Work
from bexplore.measurement.probe import Observation

# Takes the calls that an observer has described; returns the kernels of each.
FindKernels = Callable[[Sequence[Mapping[str, Any]]], list[list[Kernel]]]


def read_work(
    ran: Observation, recorded: Sequence[Mapping[str, Any]], find_kernels: FindKernels, *, ranks_whole_steps: bool
) -> list[Work]:
    """Return the work of each rank in a pass, which is one micro-batch, and in an update.

    Args:
        recorded: Of each rank, what the observer recorded of a step.
        ranks_whole_steps: Whether a pass has its share of the update: the command fixes its accumulation.
    """
    per_step = ran.details["micro_batches_per_step"]
    per_pass = per_step / max(ran.details["passes_per_step"], 1)
    found = []
    for one in recorded:
        kernels = find_kernels(one["calls"])
        of_pass, of_update = 1 / (per_pass * one["num_passes"]), 1 / per_step if ranks_whole_steps else 1.0
        passes = _add_kernels(kernels, one["passes"], of_pass, {})
        updates = _add_kernels(kernels, one["updates"], of_update, passes if ranks_whole_steps else {})
        host_s, update_host_s = of_pass * _host_seconds(one, "pass"), of_update * _host_seconds(one, "update")
        if ranks_whole_steps:
            found.append(Work(passes=passes, host_s=host_s + update_host_s, has_update=True))
        else:
            found.append(Work(passes=passes, host_s=host_s, updates=updates, update_host_s=update_host_s))
    return found


def _add_kernels(
    kernels: Sequence[Sequence[Kernel]], counts: Sequence[Sequence[int]], share: float, to: dict[Kernel, float]
) -> dict[Kernel, float]:
    """Add a share of the calls that were counted to others, and return them."""
    for place, number in counts:
        for kernel in kernels[place]:
            to[kernel] = to.get(kernel, 0.0) + share * number
    return to


def _host_seconds(recorded: Mapping[str, Any], part: str) -> float:
    counts = recorded[f"{part}_dispatches"]
    return host_seconds({Dispatch(name): number for name, number in counts.items()})
