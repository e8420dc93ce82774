"""Operations of one pass, counted call by call and not from a graph: what the trace is held against.

Conventions, those of `torch.utils.flop_counter`: matrix products, convolutions and fused attention count, nothing else;
a multiplication and an addition are two operations; attention is counted without its causal half.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from bexplore.job import Job
from bexplore.workloads import build
from bexplore.workloads.torch_private import CompilableMode

_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_ATTENTION_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
# The formula of the backward pass counts five matrix products, of which the model needs four: one is a recomputation.
_MODEL_SHARE = 4 / 5


def flops_as_run(job: Job, micro_batch_size: int) -> float:
    """Operations a sample of one pass of the job as the user runs it, compiled if it is: every call that is made.

    Compiled code calls libraries for all that counts, and those calls are dispatched like any other.
    """
    workload = build(job)
    if job.compile.enabled:
        for module in workload.compiled_modules:
            module.compile(dynamic=False, backend=job.compile.backend)
    batch = workload.make_batch(micro_batch_size)
    workload.forward_backward(batch)
    with _Calls() as calls:
        workload.forward_backward(batch)
    return calls.flops / micro_batch_size


def flops_of_the_model(job: Job, micro_batch_size: int) -> float:
    """Operations a sample of one eager pass without checkpointing, by torch's own counter; recomputation left out."""
    job = dataclasses.replace(job, activation_checkpointing="none")
    with FakeTensorMode():
        workload = build(job)
        for module in workload.compiled_modules if job.mode == "eval" else ():
            module.requires_grad_(False)  # the counter wants gradients wherever weights do
        batch = workload.make_batch(micro_batch_size)
        with _counter() as counter:
            workload.forward_backward(batch)
    by_operator = counter.get_flop_counts()["Global"]
    attention_backward = by_operator.get(_ATTENTION_BACKWARD, 0)
    return (sum(by_operator.values()) - (1 - _MODEL_SHARE) * attention_backward) / micro_batch_size


class _Calls(CompilableMode):
    """Counts every call; torch's own counter would have compiled code run eagerly."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0
        self._formulas = _counter().flop_registry

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(func, HigherOrderOperator):  # attention that is recomputed with the random state of the first run
            position = next(place for place, value in enumerate(args) if isinstance(value, OpOverload))
            func, args = args[position], args[position + 1 :]
        formula = self._formulas.get(func.overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=result)
        return result


def _counter() -> FlopCounterMode:
    """Torch's counter, which is told about fused attention on CPU."""

    def forward(query: Any, key: Any, value: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
        return sdpa_flop_count(query, key, value)

    def backward(gradient: Any, query: Any, key: Any, value: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
        return sdpa_backward_flop_count(gradient, query, key, value)

    return FlopCounterMode(display=False, custom_mapping={_ATTENTION: forward, _ATTENTION_BACKWARD: backward})
