"""Passes of a built workload: run, timed, and the tensors that live meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from bexplore.engine.worker import run_queue
from bexplore.engine.worker.allocator import storage_bytes
from bexplore.workloads import Batch, Workload

WARM_DEVICE_S = 0.3

# A parameter, and what it has as a gradient.
Gradient = tuple[torch.nn.Parameter, torch.Tensor | None]


class Steps:
    """Runs and times the passes and updates of a workload.

    Args:
        workload: A job, built.
        device: Where it lives.

    Attributes:
        waited_s: For how long one of the threads of the call that was timed last waited for a processor.
    """

    def __init__(self, workload: Workload, device: torch.device) -> None:
        self._workload, self._device = workload, device
        self._last_loss = torch.tensor(float("nan"))
        self.waited_s = 0.0

    def timed_pass(self, batch: Batch) -> float:
        """Seconds of one forward and backward pass, which adds to the gradients that there are."""
        return self.timed(lambda: self._workload.forward_backward(batch))

    def timed(self, run: Callable[[], Any]) -> float:
        """Seconds of one call: device events on CUDA, wall clock elsewhere; notes how long its threads waited."""
        self.waited_s = 0.0
        if self._device.type == "cuda":
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize(self._device)
            start.record()
            result = run()
            end.record()
            torch.cuda.synchronize(self._device)
            seconds = start.elapsed_time(end) / 1e3
        else:
            synchronize(self._device)
            waited_s = run_queue.waited_s()
            begin = time.perf_counter()
            result = run()
            synchronize(self._device)
            seconds = time.perf_counter() - begin
            self.waited_s = run_queue.longest_wait_s(waited_s, run_queue.waited_s())
        if isinstance(result, torch.Tensor):
            self._last_loss = result
        return seconds

    def loss(self) -> float:
        """The loss of the last pass that was timed."""
        with torch.no_grad():
            return float(self._last_loss)

    def _parameters(self) -> list[torch.nn.Parameter]:
        modules = list(self._workload.compiled_modules)
        if self._workload.loss_module is not None:
            modules.append(self._workload.loss_module)
        stepped = [p for o in self._workload.optimizers for group in o.param_groups for p in group["params"]]
        own = [p for module in modules for p in module.parameters()]
        return list({id(p): p for p in stepped + own}.values())

    def gradients(self) -> list[Gradient]:
        """Each parameter with its gradient as it is now."""
        return [(parameter, parameter.grad) for parameter in self._parameters()]

    def attach(self, gradients: Sequence[Gradient]) -> None:
        """Put gradients back that an update has cleared."""
        for parameter, gradient in gradients:
            parameter.grad = gradient

    def clear_gradients(self) -> None:
        """As before the first pass of a step."""
        for parameter in self._parameters():
            parameter.grad = None

    def alive(self, batch: Batch = ()) -> list[Any]:
        """Pytrees of the tensors that live between steps, and a batch."""
        modules = [m for m in [self._workload.loss_module, *self._workload.compiled_modules] if m is not None]
        buffers = [b for module in modules for b in module.buffers()]
        states = [optimizer.state for optimizer in self._workload.optimizers]
        return [self._parameters(), buffers, [list(s.values()) for s in states], batch]

    def live_bytes(self, batch: Batch = ()) -> int:
        """Bytes of their distinct storages."""
        return storage_bytes(self.alive(batch))


def with_dense_gradients(gradients: Sequence[Gradient]) -> list[torch.nn.Parameter] | None:
    """The parameters that have a gradient; None where one is sparse, whose memory no zeros stand for."""
    trained = [(parameter, gradient) for parameter, gradient in gradients if gradient is not None]
    if any(gradient.layout is not torch.strided for _, gradient in trained):
        return None
    return [parameter for parameter, _ in trained]


def attach_zeros(parameters: Sequence[torch.nn.Parameter]) -> None:
    """Give parameters gradients of zeros, as a pass leaves gradients that the next one adds to."""
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)


def len_of(batch: Batch) -> int:
    """Samples of a batch, by its first tensor."""
    tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.dim() > 0]
    return int(tensors[0].shape[0]) if tensors else 0


def warm_device(device: torch.device) -> None:
    """Keep the device busy for a moment: an idle one starts at a low clock."""
    square = torch.ones(512, 512, device=device)
    until = time.perf_counter() + WARM_DEVICE_S
    while time.perf_counter() < until:
        square = (square @ square).clamp_(max=1.0)
        synchronize(device)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "mps":
        torch.mps.synchronize()  # there is one, and the function takes none
    elif device.type != "cpu":
        getattr(torch, device.type).synchronize(device)
