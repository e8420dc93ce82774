"""What the host does for a program: seconds of its calls, beside which the device works.

An eager program is a call of each operator from Python and, in the backward pass, from autograd's own thread; a
compiled one calls a kernel at a time. The device works off what was launched: it waits for a host that is slower.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum

import numpy as np


class Dispatch(StrEnum):
    """A kind of call of the host."""

    OPERATOR = "operator"  # of the forward pass, or of the update
    VIEW = "view"  # an operator that launches nothing
    BACKWARD_OPERATOR = "backward_operator"  # autograd's own thread calls it
    BACKWARD_VIEW = "backward_view"
    LIST_TENSOR = "list_tensor"  # a tensor of a list, in an operator that works on lists: an optimizer's
    KERNEL = "kernel"  # of a compiled graph
    GRAPH = "graph"  # a compiled graph: its guards, and what surrounds it
    RECORDED_GRAPH = "recorded_graph"  # a CUDA graph, which is launched as one
    RECORDED_KERNEL = "recorded_kernel"  # of such a graph


# Seconds of a call with PyTorch and Python, without the driver. Source: benchmarks/results/host_times.md, of seven
# models, with autocast and without, on an emulated device, whose driver does nothing.
SECONDS: Mapping[Dispatch, float] = {
    Dispatch.OPERATOR: 16.4e-6,
    Dispatch.VIEW: 3.7e-6,
    Dispatch.BACKWARD_OPERATOR: 15.7e-6,
    Dispatch.BACKWARD_VIEW: 0.2e-6,
    Dispatch.LIST_TENSOR: 0.65e-6,
    Dispatch.KERNEL: 12e-6,
    Dispatch.GRAPH: 100e-6,  # chosen: guards, and the wrappers of a graph's inputs; not measured apart
    # Source: NVIDIA, "Constant Time Launch for Straight-Line CUDA Graphs".
    Dispatch.RECORDED_GRAPH: 2.5e-6,
    Dispatch.RECORDED_KERNEL: 1e-9,
}
# Of the driver, for each kernel. Source: NVIDIA, "Getting Started with CUDA Graphs": kernels of 2.9 us follow each
# other every 3.8 us, which is what their launches take then.
LAUNCH_S = 3.8e-6
_LAUNCHING = (Dispatch.OPERATOR, Dispatch.BACKWARD_OPERATOR, Dispatch.KERNEL)
# Standard deviation of ln of the host's seconds: how the program's own Python is written, processors of servers,
# versions of Python and PyTorch. Source: 0.3 between forward passes of programs on one processor
# (benchmarks/results/host_times.md); between processors and versions it was not measured.
HOST_SD = 0.3
# Exponent with which the times of host and device are added: infinite, the longer one counts alone. Parts of a pass in
# which the host is slower lie beside others in which the device is. Chosen: where both take as long, the pass takes
# 12 % more; no figure checks it.
OVERLAP = 6.0


def host_seconds(calls: Mapping[Dispatch, float], *, uses_cuda_graphs: bool = False) -> float:
    """Return the seconds of a host for its calls; a compiled graph that is recorded is launched as one."""
    if uses_cuda_graphs:
        num_graphs, num_kernels = (calls.get(kind, 0.0) for kind in (Dispatch.GRAPH, Dispatch.KERNEL))
        recorded = {Dispatch.RECORDED_GRAPH: num_graphs, Dispatch.RECORDED_KERNEL: num_kernels}
        calls = {kind: number for kind, number in calls.items() if kind is not Dispatch.KERNEL} | recorded
    launches = math.fsum(calls.get(kind, 0.0) for kind in _LAUNCHING)
    return LAUNCH_S * launches + math.fsum(SECONDS[kind] * number for kind, number in calls.items())


def overlap_seconds(device_s: np.ndarray, host_s: np.ndarray) -> np.ndarray:
    """Return the times of programs whose kernels and whose host take so long alone: the longer one, with a crossing."""
    longer = np.maximum(np.maximum(device_s, host_s), 1e-300)
    shorter = np.minimum(device_s, host_s)
    return np.asarray(longer * (1 + (shorter / longer) ** OVERLAP) ** (1 / OVERLAP))


def device_weight(device_s: float, host_s: float) -> float:
    """Return the share of a relative change of the device's time by which `overlap_seconds` changes, 0 to 1."""
    if not host_s:
        return 1.0
    return 1.0 / (1.0 + math.exp(OVERLAP * (math.log(host_s) - math.log(max(device_s, 1e-300)))))
