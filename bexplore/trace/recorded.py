"""Kernels of operators that a training was seen to run on an emulated device, by their shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from bexplore.trace.cost_model import NOTHING, Polynomial, TracedKernel
from bexplore.trace.kernel_shapes import stream_kernel
from bexplore.trace.operations import count_call
from bexplore.trace.torch_private import OpOverload

# Sizes are numbers here, of no micro-batch size: no size is a multiple of it. Source: a Mersenne prime.
_NO_BATCH = 2**61 - 1


def find_recorded_kernels(call: Mapping[str, Any]) -> tuple[TracedKernel, ...]:
    """Return the kernels of one call that the observer of a training command has described."""
    moved = Polynomial(call["bytes"])
    operator = _find_operator(call["operator"])
    if operator is None or "arguments" not in call:
        return (stream_kernel(moved, NOTHING, ()),) if moved else ()
    return count_call(
        operator,
        tuple(_read_shapes(call["arguments"])),
        {name: _read_shapes(value) for name, value in call["keywords"]},
        _read_shapes(call["result"]),
        itemsize=call["itemsize"],
        moved=moved,
        largest_new=NOTHING,
        probe_batch=_NO_BATCH,
    ).kernels


def _find_operator(name: str) -> OpOverload | None:
    """Return an operator by its name, such as `aten.mm.default`; None where this torch has none."""
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, OpOverload) else None


def _read_shapes(values: Any) -> Any:
    """Return the values of a call in the form of `map_shapes`."""
    if isinstance(values, Mapping):
        return torch.Size(values["shape"])
    if isinstance(values, Sequence) and not isinstance(values, str):
        return tuple(map(_read_shapes, values))
    return values
