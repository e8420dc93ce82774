"""The optimizer's part of a step: the states that it keeps and the temporaries that it makes."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from bexplore.trace.lifetimes import LifetimeMode, LifetimeTracker
from bexplore.trace.timeline import Event, Phase
from bexplore.workloads import Workload


def trace_update(
    workload: Workload, trained: list[torch.Tensor], fake_mode: Any, prime: int
) -> tuple[int, list[Event]]:
    """Run the update twice on fake gradients: the first makes the states, the second is the usual one.

    Args:
        workload: Built under `fake_mode`, at full depth.
        trained: Parameters that get a gradient.
        fake_mode: The mode of its tensors.
        prime: As in `LifetimeTracker`.

    Returns:
        Bytes of the optimizer states, and the events of the second update.
    """
    tracker = LifetimeTracker(prime)
    with fake_mode, LifetimeMode(tracker, scalar=1):
        _set_gradients(trained)
        workload.update()
        _set_gradients(trained)
        states = [leaf for optimizer in workload.optimizers for leaf in tree_leaves(dict(optimizer.state))]
        tensors = [leaf for leaf in states if isinstance(leaf, torch.Tensor)]
        storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
        with tracker.record(Phase.UPDATE):
            workload.update()
    return sum(storages.values()), tracker.events[Phase.UPDATE]


def _set_gradients(parameters: list[torch.Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
