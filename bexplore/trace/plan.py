"""The memory plan of one compiled graph, and its replay on fake tensors.

A plan names buffers as the compiler does. Several names may stand for one piece of memory (a reuse, a view), which is
free when its last name is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from bexplore.errors import TraceError
from bexplore.trace.lifetimes import LifetimeTracker
from bexplore.trace.polynomial import Polynomial
from bexplore.trace.timeline import Place
from bexplore.trace.torch_private import suggest_symbolic


@dataclass(frozen=True, slots=True)
class Allocate:
    """New memory under a name."""

    name: str
    size: Polynomial
    place: Place


@dataclass(frozen=True, slots=True)
class Alias:
    """A second name for the memory of `of`; a place where a new buffer takes the memory over."""

    name: str
    of: str
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Drop:
    """The end of a name; an unknown name has no memory of its own."""

    name: str


Step = Allocate | Alias | Drop


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One output of a graph: a strided view of the memory of a name.

    Attributes:
        name: Name of a buffer of the plan or of an input.
        shape: Length of each dimension, elements.
        symbolic: Dimensions whose length follows from the number of samples, for a graph behind a graph break.
        stride: Stride of each dimension, elements.
        offset: Offset in the memory, elements.
        dtype: Element type.
        device: Device of the memory.
    """

    name: str
    shape: tuple[int, ...]
    symbolic: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class Constant:
    """An output that is no tensor, such as a mesh of ranks that the backward graph needs."""

    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The memory of one compiled graph.

    Attributes:
        input_names: Names of the inputs in order, numbers included.
        steps: Allocations, aliases and drops in order.
        outputs: Outputs in order; None, numbers and constants as they are returned.
    """

    input_names: tuple[str, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Output | Constant | int | None, ...]


class _Memory:
    """One piece of memory during a replay: its names, and whether this graph reports its end."""

    __slots__ = ("names", "owned", "place", "size", "tensor")

    def __init__(self, size: Polynomial, place: Place, *, owned: bool) -> None:
        self.size = size
        self.place = place
        self.owned = owned
        self.tensor: torch.Tensor | None = None
        self.names: set[str] = set()


def replay(plan: Plan, arguments: list[Any], tracker: LifetimeTracker, fake_mode: Any) -> tuple[Any, ...]:
    """Run a plan instead of the graph: report its events, return fake outputs.

    Args:
        arguments: Inputs; the list is emptied, as compiled graphs do, so that inputs without other owners end here.
    """
    memories = _take_inputs(plan, arguments, tracker)
    for step in plan.steps:
        match step:
            case Allocate(name, size, place):
                memories[name] = memory = _Memory(size, place, owned=True)
                memory.names.add(name)
                tracker.append(size, place)
            case Alias(name, of, place) if of in memories:
                memories[name] = memory = memories[of]
                memory.names.add(name)
                if place is not None and memory.owned:
                    tracker.append(-memory.size, memory.place)
                    tracker.append(memory.size, place)
                    memory.place = place
            case Drop(name) if name in memories:
                _drop(name, memories, tracker)
    return _return_outputs(plan, memories, tracker, fake_mode)


def _take_inputs(plan: Plan, arguments: list[Any], tracker: LifetimeTracker) -> dict[str, _Memory]:
    returned = {output.name for output in plan.outputs if isinstance(output, Output)}
    by_key: dict[int, _Memory] = {}
    memories: dict[str, _Memory] = {}
    for name, argument in zip(plan.input_names, arguments, strict=True):
        if isinstance(argument, torch.Tensor):
            key, size, place = tracker.owned(argument)
            memory = by_key.setdefault(key, _Memory(size, place, owned=False))
            memory.names.add(name)
            memories[name] = memory
            if name in returned:
                memory.tensor = argument
        argument = None  # the loop must not keep the last one alive
    for key in tracker.release(arguments):
        if key in by_key:
            by_key[key].owned = True
    return memories


def _drop(name: str, memories: dict[str, _Memory], tracker: LifetimeTracker) -> None:
    memory = memories.pop(name)
    memory.names.discard(name)
    if not memory.names and memory.owned:
        tracker.append(-memory.size, memory.place)


def _return_outputs(
    plan: Plan, memories: dict[str, _Memory], tracker: LifetimeTracker, fake_mode: Any
) -> tuple[Any, ...]:
    returned = {output.name for output in plan.outputs if isinstance(output, Output)}
    kept = {id(memories[name]) for name in returned if name in memories}
    for name in [name for name, memory in memories.items() if id(memory) not in kept]:
        _drop(name, memories, tracker)
    results = []
    with tracker.silence(), fake_mode, torch.no_grad():
        for output in plan.outputs:
            results.append(_returned(output, memories, tracker))
    return tuple(results)


def _returned(output: Output | Constant | int | None, memories: dict[str, _Memory], tracker: LifetimeTracker) -> Any:
    if isinstance(output, Output):
        return _materialize(output, memories, tracker)
    return output.value if isinstance(output, Constant) else output


def _materialize(output: Output, memories: dict[str, _Memory], tracker: LifetimeTracker) -> torch.Tensor:
    memory = memories.get(output.name)
    if memory is None:
        raise TraceError(f"The compiler's plan has an output without memory: {output.name}, {list(output.shape)}.")
    if memory.tensor is None:
        length = 1 + output.offset + sum((n - 1) * s for n, s in zip(output.shape, output.stride, strict=True))
        memory.tensor = torch.empty(max(length, 1), dtype=output.dtype, device=output.device)
        tracker.adopt(memory.tensor, memory.place, memory.size)
    elif memory.tensor.shape == output.shape and memory.tensor.stride() == output.stride and not output.offset:
        return memory.tensor
    offset = memory.tensor.storage_offset() + output.offset
    result = torch.as_strided(memory.tensor, output.shape, output.stride, offset)
    for dimension in output.symbolic:
        suggest_symbolic(result, dimension)
    return result
