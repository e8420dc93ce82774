"""The optimizer's part of a step: the states that it keeps and the temporaries that it makes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import optimizer as torch_optimizer
from torch.utils import _foreach_utils
from torch.utils._pytree import tree_leaves

from bexplore.trace.lifetimes import LifetimeMode, LifetimeTracker
from bexplore.trace.timeline import Event, Phase
from bexplore.workloads import Workload


def trace_update(
    workload: Workload, trained: list[torch.Tensor], fake_mode: Any, probe_batch: int
) -> tuple[int, list[Event]]:
    """Run the update twice on fake gradients: the first makes the states, the second is the usual one.

    Args:
        workload: Built under `fake_mode`, at full depth.
        trained: Parameters that get a gradient.
        fake_mode: The mode of its tensors.
        probe_batch: As in `LifetimeTracker`.

    Returns:
        Bytes of the optimizer states, and the events of the second update.
    """
    tracker = LifetimeTracker(probe_batch)
    with fake_mode, LifetimeMode(tracker, scalar=1), foreach_of_fake_tensors(), scalers_that_never_skip():
        _set_gradients(trained)
        workload.update()
        _set_gradients(trained)
        states = [leaf for optimizer in workload.optimizers for leaf in tree_leaves(dict(optimizer.state))]
        tensors = [leaf for leaf in states if isinstance(leaf, torch.Tensor)]
        storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
        with tracker.record(Phase.UPDATE):
            workload.update()
    return sum(storages.values()), tracker.events[Phase.UPDATE]


@contextlib.contextmanager
def foreach_of_fake_tensors() -> Iterator[None]:
    """Let optimizers and clipping choose their kernels for fake tensors as they do for real ones.

    On an accelerator the default is one kernel over all parameters, with temporaries of all of them, where every type
    is known; a fake tensor's is not. Source: `_default_to_fused_or_foreach` in torch/optim/optimizer.py and
    `_has_foreach_support` in torch/utils/_foreach_utils.py (torch 2.11 to 2.13).
    """
    with contextlib.ExitStack() as stack:
        for module in (torch_optimizer, _foreach_utils):
            known = module._foreach_supported_types
            stack.enter_context(mock.patch.object(module, "_foreach_supported_types", [*known, FakeTensor]))
        yield


@contextlib.contextmanager
def scalers_that_never_skip() -> Iterator[None]:
    """Let gradient scalers step whatever they find: of fake gradients nobody can tell if they are finite."""

    def step(_scaler: Any, optimizer: torch.optim.Optimizer, _state: Any, *arguments: Any, **keywords: Any) -> Any:
        return optimizer.step(*arguments, **keywords)

    with mock.patch.object(torch.amp.GradScaler, "_maybe_opt_step", step):
        yield


def _set_gradients(parameters: list[torch.Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
