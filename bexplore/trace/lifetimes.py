"""Times at which each piece of memory of a fake training step is allocated and freed.

Python's reference counts end a tensor, also a fake one: what autograd keeps for the backward pass, what an optimizer
leaves as a temporary, what a compiled graph gets to own. A compiled graph is one call here; its replay (`plan`) reports
the memory inside.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bexplore.errors import WITHOUT_TRACE, TraceError
from bexplore.trace.convolutions import find_layouts
from bexplore.trace.cost_model import NOTHING, Event, Phase, Place, Polynomial
from bexplore.trace.fake_operators import has_fake_kernel, make_meanwhile, run_fake
from bexplore.trace.operations import (
    Cost,
    count_bytes,
    count_call,
    count_dispatches,
    list_written,
    map_shapes,
    result_itemsize,
)
from bexplore.trace.operators import ctc_outputs, is_ctc_loss, takes_workspace, workspace_sizes
from bexplore.trace.real_values import (
    SCALAR_READS,
    RealValues,
    find_user_frame,
    has_unknown_size,
    run_with_sizes,
)
from bexplore.trace.torch_private import (
    is_in_backward,
    is_shared,
    make_alias,
    may_add_gradients,
    number_of_node,
    storage_key,
    storage_key_of,
    suggest_symbolic,
)
from bexplore.workloads.modules import local
from bexplore.workloads.torch_private import CompilableMode, FakeTensor, tree_leaves

# Views that hide from autograd that they are; from torch 2.15 on the last step of each linear layer of many dimensions.
_UNSAFE_VIEWS = frozenset({torch.ops.aten._unsafe_view.default})
# Operators that take memory and launch nothing.
_ALLOCATIONS = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
_ADD = torch.ops.aten.add.Tensor
_HIDDEN_RESERVES = (torch.ops.aten._cudnn_rnn.default,)
# Operators that make no tensor: a rank of N calls them for every parameter, 40 % of all calls of a deep model.
_WITHOUT_TENSORS = ("prim", "profiler")


def launches_nothing(operator: Any) -> bool:
    """Return whether an operator makes a view, or takes memory alone."""
    is_view = getattr(operator, "is_view", False) or operator in _UNSAFE_VIEWS
    return bool(is_view or operator.overloadpacket.__name__ in _ALLOCATIONS)


class LifetimeTracker:
    """A ledger of storages and, while it records, of their events."""

    def __init__(self, probe_batch: int) -> None:
        self.probe_batch = probe_batch
        self.events: dict[Phase, list[Event]] = {phase: [] for phase in Phase}
        self.costs: list[Cost] = []
        self.operators: list[str] = []
        self.phase: Phase | None = None
        self._storages: dict[int, tuple[weakref.ref[Any], Polynomial, Place]] = {}
        self._recording = False
        self._is_past_forward = False
        self._silent = False
        self.is_paused = False
        self._dying: list[int] | None = None
        self._makers: dict[int, int | None] = {}  # of a storage, the number of the autograd function that made it
        self._overwritten: tuple[int, Event] | None = None  # memory that a sum may have taken over, the sum's event

    @contextlib.contextmanager
    def record(self, phase: Phase | None = None) -> Iterator[None]:
        """Record events within; phase None finds out whether it is the forward or the backward phase.

        The latter begins with the first backward pass: a penalty of gradients has further forward passes after it.
        """
        self._recording, self.phase, self._is_past_forward = True, phase, False
        try:
            yield
        finally:
            self._recording, self.phase = False, None

    @contextlib.contextmanager
    def silence(self) -> Iterator[None]:
        """Ignore what is allocated within: the caller records it."""
        self._silent = True
        try:
            yield
        finally:
            self._silent = False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Ignore every operator within: none of them runs in a training step."""
        before, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = before

    def append(self, size: Polynomial, place: Place) -> None:
        """Record one event, if it has a size and recording is on."""
        if self._recording and size:
            self.events[self.current_phase()].append(Event(size, place))

    def take_workspace(self, operator: Any, arguments: Any, result: Any, place: Place) -> None:
        """Record what an operator takes for itself while it runs."""
        tensors = (leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor))
        first = next(tensors, None)
        if first is None:
            return
        sizes = workspace_sizes(
            operator,
            map_shapes(arguments),
            map_shapes(result),
            self.probe_batch,
            itemsize=first.itemsize,
            layouts=find_layouts(operator, arguments),
            device=first.device.type,
        )
        for size in sizes:
            self.append(size, place)
            self.append(-size, place)

    def count(self, operator: Any, arguments: Any, keywords: Any, result: Any) -> None:
        """Record the cost of an operator outside of compiled graphs."""
        if not self._recording:
            return
        if operator in _HIDDEN_RESERVES:
            raise TraceError(
                f"{operator} keeps memory for its backward pass that no fake tensor shows.",
                hint=WITHOUT_TRACE,
            )
        shapes = map_shapes(result)
        self.operators.append(f"{operator} {shapes}")
        # autograd's own formulas run without gradients; a recomputed forward pass runs with them
        is_recomputed = self.phase is None and is_in_backward() and torch.is_grad_enabled()
        is_silent = launches_nothing(operator)
        values = (arguments, keywords, result if result is not None else list_written(operator, arguments, keywords))
        cost = count_call(
            operator,
            map_shapes(arguments),
            map_shapes(keywords),
            shapes,
            itemsize=result_itemsize(result),
            moved=NOTHING if is_silent else count_bytes(values, self.probe_batch),
            largest_new=self._find_largest_new(arguments, result),
            probe_batch=self.probe_batch,
        )
        cost = dataclasses.replace(cost, dispatches=count_dispatches(arguments, keywords, is_view=is_silent))
        self.costs.append(dataclasses.replace(cost, model_flops=NOTHING) if is_recomputed else cost)

    def _find_largest_new(self, arguments: Any, result: Any) -> Polynomial:
        """Return the bytes of the largest tensor that an operator made, and did not get."""
        given = {id(leaf) for leaf in tree_leaves(arguments)}
        made = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor) and id(one) not in given]
        return max((count_bytes(one, self.probe_batch) for one in made), key=lambda size: size(8), default=NOTHING)

    def current_phase(self) -> Phase:
        """Return the phase that is being recorded."""
        if self.phase is not None:
            return self.phase
        self._is_past_forward |= is_in_backward()
        return Phase.BACKWARD if self._is_past_forward else Phase.FORWARD

    def adopt(self, tensor: torch.Tensor, place: Place, size: Polynomial | None = None) -> bool:
        """Watch a tensor's storage without an event; False if it is watched already."""
        tensor = local(tensor)
        key = storage_key(tensor)
        if key in self._storages:
            return False
        if size is None:
            size = self.size_of(tensor)
        reference = weakref.ref(tensor.untyped_storage(), lambda _: self._bury(key))
        self._storages[key] = (reference, size, place)
        return True

    def size_of(self, tensor: torch.Tensor) -> Polynomial:
        """Return the bytes of a tensor's whole storage."""
        return self._polynomial(int(tensor.untyped_storage().nbytes()))

    def _polynomial(self, num_bytes: int) -> Polynomial:
        return Polynomial.from_value(num_bytes, self.probe_batch)

    def resize(self, storage: torch.UntypedStorage, num_bytes: int) -> None:
        """Record that a watched storage gets another size: FSDP2 so frees parameters of all ranks, and takes them."""
        key = storage_key_of(storage)
        if key in self._storages:
            reference, size, place = self._storages[key]
            self.append(-size, place)
            size = self._polynomial(num_bytes)
            self.append(size, place)
            self._storages[key] = (reference, size, place)

    def is_watched(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor's storage is watched."""
        return storage_key(local(tensor)) in self._storages

    def alive(self) -> Polynomial:
        """Return the bytes of all watched storages."""
        return sum((size for _, size, _ in self._storages.values()), start=NOTHING)

    def allocate(self, tensor: torch.Tensor, place: Place) -> None:
        """Record the allocation of a tensor's storage, unless it is watched."""
        if not self._silent and self.adopt(tensor, place):
            self._makers[storage_key(local(tensor))] = number_of_node()
            self.append(self.size_of(tensor), place)

    def expect_overwritten(self, operator: Any, arguments: Any) -> None:
        """Take the sum that was allocated last for one in place, if the gradient before it ends with its operator.

        Autograd adds a gradient to one that nothing else holds in place, but never where these are fake. Source:
        `accumulate` in torch/csrc/autograd/input_buffer.cpp, torch 2.13.
        """
        self._overwritten = None
        if not self._recording or operator is not _ADD or not isinstance(arguments[1], torch.Tensor):
            return
        if arguments[0]._is_view():
            return  # which holds its base, too
        before, added = map(storage_key, arguments[:2])
        events = self.events[self.current_phase()]
        if before != added and events and may_add_gradients(self._makers.get(before)):
            self._overwritten = before, events[-1]

    def release(self, values: list[Any]) -> set[int]:
        """Empty a list and return the storages that die by it, without events: the caller records them."""
        self._dying = []
        values.clear()
        dead, self._dying = set(self._dying), None
        return dead

    def owned(self, tensor: torch.Tensor) -> tuple[int, Polynomial, Place]:
        """Watch a tensor's storage from now on; return its key, size and place."""
        self.adopt(tensor, Place("input of a graph"))
        key = storage_key(tensor)
        _, size, place = self._storages[key]
        return key, size, place

    def _bury(self, key: int) -> None:
        _, size, place = self._storages.pop(key)
        self._makers.pop(key, None)
        if self._dying is not None:
            self._dying.append(key)
        elif not self._take_over(key, size):
            self.append(-size, place)

    def _take_over(self, key: int, size: Polynomial) -> bool:
        if self._overwritten is None or self._overwritten[0] != key or not self._recording:
            return False
        events, event = self.events[self.current_phase()], self._overwritten[1]
        if not events or events[-1] is not event or event.size != size:
            return False
        events.pop()
        return True


class LifetimeMode(CompilableMode):
    """Report to a tracker what every operator outside of compiled graphs allocates.

    Args:
        scalar: Value that reading a number out of a fake tensor gives; None reads a floating-point one as 1, and
            others as `values` has them. An optimizer reads its step count, which changes no size; nor does a loss or a
            scale. An update that reads a truth value, as that of L-BFGS and one that looks for NaN, reads all others
            as `values` has them.
        values: What the program reads in a pass, or in an update, of real tensors.
    """

    def __init__(
        self, tracker: LifetimeTracker, *, scalar: int | None = None, values: RealValues | None = None
    ) -> None:
        super().__init__()
        self._tracker = tracker
        self._scalar = scalar
        self._values = values

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and record new tensors; of those that ranks share, the operators on a rank's own part."""
        if self._tracker.is_paused or func.namespace in _WITHOUT_TENSORS:
            return func(*args, **(kwargs or {}))
        if any(map(is_shared, types)):
            return NotImplemented
        if func in SCALAR_READS and (known := self._read(args[0])) is not None:
            return known
        result, own_table = self._run(func, args, kwargs or {})
        place = None
        for leaf in (*tree_leaves(result), own_table):
            if isinstance(leaf, torch.Tensor) and not self._tracker.is_watched(leaf):
                place = place or _find_place(func)
                self._tracker.allocate(leaf, place)
        self._tracker.expect_overwritten(func, args)
        leaf = own_table = None  # the operator frees its own table: another event
        self._tracker.count(func, args, kwargs or {}, result)
        if takes_workspace(func):
            self._tracker.take_workspace(func, args, result, place or _find_place(func))
        return result

    def _read(self, tensor: torch.Tensor) -> Any:
        values = self._values
        if values is not None and values.tells_all(tensor):
            return values.ask_number("number", self._tracker.probe_batch)
        if self._scalar is not None:
            return self._scalar
        if tensor.is_floating_point():
            return 1.0
        if values is None or not isinstance(tensor, FakeTensor):
            return None
        return values.ask_number("number", self._tracker.probe_batch)

    def _run(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, torch.Tensor | None]:
        """Return the result of an operator, and what it allocates for itself meanwhile."""
        if self._values is not None and has_unknown_size(func, args):
            return run_with_sizes(self._values, func, args, kwargs, self._tracker.probe_batch), None
        if is_ctc_loss(func):
            return ctc_outputs(func, args)
        result = func(*args, **kwargs) if has_fake_kernel(func, args) else run_fake(func, args, kwargs)
        return result, make_meanwhile(func, args, result)


def _find_place(operator: Any) -> Place:
    return Place(f"{_find_user_line()} {operator.overloadpacket.__name__}")


def _find_user_line() -> str:
    """Return the innermost frame outside of torch and of the trace, as `file.py:12`."""
    frame = find_user_frame()
    return f"{_file_name(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else "torch"


@functools.cache
def _file_name(path: str) -> str:
    return Path(path).name


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
    """One output of a graph: a strided view of the memory of a name."""

    name: str  # name of a buffer of the plan or of an input
    shape: tuple[int, ...]  # length of each dimension, elements
    # Dimensions whose length follows from the number of samples, for a graph behind a graph break
    symbolic: tuple[int, ...]
    stride: tuple[int, ...]  # stride of each dimension, elements
    offset: int  # offset in the memory, elements
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledGraph:
    """One graph that the compiler has planned."""

    input_names: tuple[str, ...]  # names of the inputs in order, numbers included
    steps: tuple[Step, ...]  # allocations, aliases and drops of its memory plan in order
    outputs: tuple[Any, ...]  # outputs in order; what is no tensor (a number, None, a mesh of ranks) as it is returned
    is_backward: bool = False  # whether it is the backward half of a pair
    costs: tuple[Cost, ...] = ()  # operations of its nodes, and the fewest bytes that its kernels read and write
    operators: tuple[str, ...] = ()  # operators and output shapes, one line each; the fingerprint is made of them


class _Memory:
    """One piece of memory during a replay: its names, and whether this graph reports its end."""

    __slots__ = ("names", "owned", "place", "size", "tensor")

    def __init__(self, size: Polynomial, place: Place, *, owned: bool) -> None:
        self.size = size
        self.place = place
        self.owned = owned
        self.tensor: torch.Tensor | None = None
        self.names: set[str] = set()


def replay(graph: CompiledGraph, arguments: list[Any], tracker: LifetimeTracker, fake_mode: Any) -> tuple[Any, ...]:
    """Run the memory plan of a graph instead of it: report its events, return fake outputs.

    Args:
        arguments: Inputs; the list is emptied, as compiled graphs do, so that inputs without other owners end here.
    """
    memories = _take_inputs(graph, arguments, tracker)
    for step in graph.steps:
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
    return _return_outputs(graph, memories, tracker, fake_mode)


def _take_inputs(graph: CompiledGraph, arguments: list[Any], tracker: LifetimeTracker) -> dict[str, _Memory]:
    returned = {output.name for output in graph.outputs if isinstance(output, Output)}
    by_key: dict[int, _Memory] = {}
    memories: dict[str, _Memory] = {}
    for name, argument in zip(graph.input_names, arguments, strict=True):
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
    graph: CompiledGraph, memories: dict[str, _Memory], tracker: LifetimeTracker, fake_mode: Any
) -> tuple[Any, ...]:
    returned = {output.name for output in graph.outputs if isinstance(output, Output)}
    kept = {id(memories[name]) for name in returned if name in memories}
    for name in [name for name, memory in memories.items() if id(memory) not in kept]:
        _drop(name, memories, tracker)
    results = []
    with tracker.silence(), fake_mode, torch.no_grad():
        for output in graph.outputs:
            results.append(_materialize(output, memories, tracker) if isinstance(output, Output) else output)
    return tuple(results)


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
    offset = int(memory.tensor.storage_offset()) + output.offset
    result = make_alias(memory.tensor, output.shape, output.stride, offset)
    for dimension in output.symbolic:
        suggest_symbolic(result, dimension)
    return result
