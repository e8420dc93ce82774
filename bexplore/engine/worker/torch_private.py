"""Private interfaces of torch that a worker needs, all in this file.

`host.torch_interfaces` lists them, and what is lost without each. Those that an exploration can do without are looked
up when they are used.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any
from unittest import mock
from weakref import WeakKeyDictionary

import sympy
import torch
import torch._functorch.config as functorch_config
import torch._higher_order_ops
import torch._inductor.config as inductor_config
import torch.nn.functional as F
import torch.profiler
from torch._C._profiler import _EventType
from torch._dynamo import config as dynamo_config
from torch._dynamo import decorators
from torch._dynamo import utils as dynamo_utils
from torch._dynamo.callback import callback_handler
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch._subclasses.fake_tensor import FakeTensorMode

from bexplore.host.torch_interfaces import find_interface

__all__ = [
    "CAN_MARK_UNBACKED",
    "FakeTensorMode",
    "around_compilations",
    "check_batch_statistics_at_run_time",
    "choose_kernels_for_largest",
    "choose_layout_as_for_a_number",
    "compile_cpp_kernel",
    "compile_id",
    "compiler_cache_dir",
    "compute_constants_at_run_time",
    "expect_length",
    "graph_break_records",
    "keep_activations_within",
    "make_limits_loud",
    "mark_dynamic",
    "mark_unbacked",
    "memory_events",
    "memory_events_by_range",
    "prefer_dynamic",
    "take_compilation_records",
    "trace_region_schemas_once",
    "zero_in_place",
]

mark_dynamic: Callable[[torch.Tensor, int], None] = decorators.mark_dynamic
prefer_dynamic: Callable[[torch.Tensor, int], None] = decorators.maybe_mark_dynamic
CAN_MARK_UNBACKED = hasattr(decorators, "mark_unbacked")
zero_in_place: Callable[[list[torch.Tensor]], None] = torch._foreach_zero_


def memory_events(profiler: torch.profiler.profile) -> list[tuple[int, int]]:
    """Return the address and the bytes of each memory event of the CPU, in their order; negative bytes for an end."""
    (events,) = memory_events_by_range(profiler, "cpu").values()
    return events


def memory_events_by_range(
    profiler: torch.profiler.profile, device_type: str, ranges: Sequence[str] = ("",)
) -> dict[str, list[tuple[int, int]]]:
    """Return the memory events of a device from the start of each named range on, as `memory_events`.

    `profiler.events()` folds memory events into their operators, and loses order and address; the tree keeps both.

    Args:
        ranges: Names of `record_function`, in the order in which they ran; the first has all that is before the second.
    """
    finished: Any = profiler.profiler
    found: list[tuple[int, int, int]] = []
    starts: dict[str, int] = {}
    waiting = list(finished.kineto_results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if event.tag != _EventType.Allocation:
            starts.setdefault(event.name, event.start_time_ns)
        elif event.extra_fields.device.type == device_type:
            found.append((event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size))
    found.sort(key=lambda one: one[0])
    borders = [bisect.bisect_left(found, starts[name], key=lambda one: one[0]) for name in ranges[1:]]
    events = [(address, num_bytes) for _, address, num_bytes in found]
    each = zip(ranges, [0, *borders], [*borders, len(events)], strict=True)
    return {name: events[start:end] for name, start, end in each}


def mark_unbacked(tensor: torch.Tensor, dimension: int, *, hint: int | None) -> None:
    """Declare a sample dimension of unknown size; all dimensions marked so are of one size.

    Kernels are chosen for the `hint`, which is not guarded; None for the compiler's default.
    """
    decorators.mark_unbacked(tensor, dimension, shape_id="samples", hint_override=hint)


def make_limits_loud() -> None:
    """Turn silent fallbacks to eager into errors, for this whole process.

    Past `recompile_limit` torch.compile runs eagerly without a word, and the time of an eager pass would be reported as
    a compiled one.
    """
    dynamo_config.fail_on_recompile_limit_hit = True
    dynamo_config.suppress_errors = False


def compute_constants_at_run_time() -> None:
    """Switch the folding of constants off, for this whole process.

    Folding depends on whether a tensor is contiguous, which is unknown while its size is: a compile error with T5,
    whose masks are constants of the size of the batch (torch 2.13).
    """
    inductor_config.joint_graph_constant_folding = False


def keep_activations_within(budget: float) -> None:
    """Let the compiler keep a share of the activations that it would keep by itself, for this whole process.

    Below 1 it saves those that are dearest to recompute for their bytes, by a knapsack over operations that it counts:
    nothing is run for that, unless the user's own code has set `activation_memory_budget_runtime_estimator` to
    `profile`. 1 leaves what the user's own code sets. Source: `choose_saved_values_set` in
    torch/_functorch/partitioners.py.
    """
    if budget < 1.0:
        functorch_config.activation_memory_budget = budget


def take_compilation_records() -> Sequence[Any]:
    """Return torch's records of compilations since the last call, and forget them."""
    records = dynamo_utils.get_compilation_metrics()
    dynamo_utils.clear_compilation_metrics()
    return records


def graph_break_records() -> Sequence[Any]:
    """Return torch's records of graph breaks since the compiler was reset."""
    return dynamo_utils.graph_break_reasons


def compile_id() -> str:
    """Return the name of the compilation that this thread is in."""
    return str(torch._guards.CompileContext.current_compile_id())


@contextmanager
def around_compilations(on_start: Callable[[], None], on_end: Callable[[], None]) -> Iterator[None]:
    """Call `on_start` before and `on_end` after each compilation that happens inside the block.

    They may be called while the compiler watches this thread (it builds a second derivative when it is first needed):
    it must not compile them, which would wait for this call's own lock.
    """

    def start(_arguments: Any) -> None:
        on_start()

    def end(_arguments: Any) -> None:
        on_end()

    start, end = torch.compiler.disable(start), torch.compiler.disable(end)
    callback_handler.register_start_callback(start)
    callback_handler.register_end_callback(end)
    try:
        yield
    finally:
        callback_handler.remove_start_callback(start)
        callback_handler.remove_end_callback(end)


def compiler_cache_dir() -> Path:
    """Return the folder of Inductor's cache."""
    return Path(cache_dir())


def compile_cpp_kernel(code: str) -> None:
    """Compile a C++ kernel of one float argument as Inductor does, into its cache."""
    find_interface("torch._inductor.codecache.CppPythonBindingsCodeCache.load_pybinding")(["float*"], code)


def choose_layout_as_for_a_number() -> None:
    """Let Inductor choose the layout of convolutions with a symbolic number of samples as with a number.

    Off the CPU it leaves them contiguous where a size is symbolic, and may have channels last where it is a number.
    Source: `GraphLowering.decide_layout_opt` (torch 2.11 to 2.13). For this whole process.
    """
    graph = find_interface("torch._inductor.graph")
    decide = find_interface("torch._inductor.graph.GraphLowering.decide_layout_opt")
    if decide is None or not hasattr(graph, "has_free_symbols"):
        return

    def decide_as_for_a_number(gm: torch.fx.GraphModule, *, is_inference: bool) -> bool:
        with mock.patch.object(graph, "has_free_symbols", return_value=False):
            return bool(decide(gm, is_inference=is_inference))

    graph.GraphLowering.decide_layout_opt = staticmethod(decide_as_for_a_number)


def choose_kernels_for_largest(micro_batch_size: int) -> None:
    """Let Inductor choose kernels of a symbolic length as for the largest that `expect_length` tells, without a guard.

    By itself it chooses for the length that it compiles for and guards that choice, so that lengths on its other side
    are compiled again: two reductions of a normalization are one kernel from 5 * 2^20 elements on, and indices have 64
    bits from 2^31 elements on. These kernels are right on both sides; the guard stays where indices have 32 bits.
    Source: `MixOrderReduction.can_fuse` in torch/_inductor/scheduler.py, `expr_fits_within_32bit` in
    torch/_inductor/utils.py (torch 2.11 to 2.13). For this whole process, whose programs get cache keys of their own.
    """
    torch.compiler.config.cache_key_tag = f"bexplore: kernels for {micro_batch_size} samples"
    reductions = find_interface("torch._inductor.scheduler.MixOrderReduction")
    own_indices = (
        find_interface("torch._inductor.codegen.simd"),
        find_interface("torch._inductor.codegen.triton_utils"),
    )
    for module in own_indices:
        fits = getattr(module, "expr_fits_within_32bit", None)
        if fits is not None and not hasattr(fits, "is_for_largest"):
            module.expr_fits_within_32bit = _fits_at_largest(fits)
    can_fuse = getattr(reductions, "can_fuse", None)
    if can_fuse is None or hasattr(reductions, "is_for_largest"):
        return

    def can_fuse_at_largest(*nodes: Any) -> bool:
        sizes = _lengths_in_compilation()
        evaluate = sizes.evaluate_expr

        def evaluate_at_largest(left: Any, *options: Any, **named: Any) -> bool:
            value = _at_largest(left)
            return evaluate(left, *options, **named) if value is None else bool(value)

        with mock.patch.object(sizes, "evaluate_expr", evaluate_at_largest):
            return bool(can_fuse(*nodes))

    reductions.can_fuse = can_fuse_at_largest
    reductions.is_for_largest = True  # so that it is not wrapped twice


def expect_length(length: int, largest: int) -> None:
    """Tell `choose_kernels_for_largest` the largest length in place of one that may be compiled for."""
    _largest_lengths[length] = max(largest, _largest_lengths.get(length, 0))


_largest_lengths: dict[int, int] = {}  # length that is compiled for -> the largest in its place


def _fits_at_largest(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def fits_at_largest(expression: Any) -> bool:
        largest = _at_largest(expression)
        return fits(expression) and (largest is None or bool(largest <= torch.iinfo(torch.int32).max))

    fits_at_largest.is_for_largest = True  # type: ignore[attr-defined]  # so that it is not wrapped twice
    return fits_at_largest


def _lengths_in_compilation() -> Any:
    return find_interface("torch._inductor.virtualized.V").graph.sizevars


def _at_largest(expression: Any) -> Any:
    """Return the value of an expression of lengths at their largest; None where it has one that was not seen."""
    sizes = _lengths_in_compilation()
    environment = sizes.shape_env
    known = environment.backed_var_to_val if hasattr(environment, "backed_var_to_val") else environment.var_to_val
    expression = sympy.sympify(expression).subs(sizes.inv_precomputed_replacements)
    if any(symbol not in known for symbol in expression.free_symbols):
        return None
    values = {symbol: int(known[symbol]) for symbol in expression.free_symbols}
    return expression.subs({symbol: _largest_lengths.get(value, value) for symbol, value in values.items()})


def trace_region_schemas_once() -> None:
    """Let torch trace a nested region for its schema once, not once a block and again in each of its own passes.

    The schema holds what a region writes to, which is the region's alone. Measured with torch 2.13 and a BERT of six
    blocks, in pairs: two traces of two regions instead of 14, and 43 and 47 s of compilation instead of 57 and 53 s.
    Where torch has another way to find out, nothing is changed.
    """
    operator = type(torch._higher_order_ops.invoke_subgraph)
    trace = getattr(operator, "gen_schema", None)
    if trace is None or hasattr(trace, "remembers"):
        return
    known: WeakKeyDictionary[torch.nn.Module, dict[tuple[type, ...], Any]] = WeakKeyDictionary()

    def gen_schema(self: Any, subgraph: Any, identifier: Any, *operands: Any, **named: Any) -> Any:
        if named or not isinstance(subgraph, torch.fx.GraphModule):
            return trace(self, subgraph, identifier, *operands, **named)
        schemas = known.setdefault(subgraph, {})
        kinds = tuple(type(operand) for operand in operands)
        if kinds not in schemas:
            schemas[kinds] = trace(self, subgraph, identifier, *operands)
        return schemas[kinds]

    gen_schema.remembers = True  # type: ignore[attr-defined]  # so that it is not wrapped twice
    operator.gen_schema = gen_schema  # type: ignore[method-assign]  # torch has no door for it


def check_batch_statistics_at_run_time() -> None:
    """Let `F.batch_norm` check for more than one value of each channel when the program runs, for this whole process.

    While it is compiled the check has no answer where the number of samples is unbacked: the graph breaks there, or
    the program is compiled again for each size. That there is a sample at all answers the next check of the kind,
    whether the input is empty (`_batch_norm_impl_index` in aten/src/ATen/native/Normalization.cpp).
    """
    original = find_interface("torch.nn.functional._verify_batch_size")
    if isinstance(original, FunctionType) and not hasattr(original, "is_checked_at_run_time"):
        F._verify_batch_size = _checked_at_run_time(original)  # type: ignore[attr-defined]  # as above


def _checked_at_run_time(original: Callable[[Sequence[int]], None]) -> Callable[[Sequence[int]], None]:
    def verify(size: Sequence[int]) -> None:
        if not isinstance(size[0], torch.SymInt):
            return original(size)
        torch._check(size[0] > 0)
        if any(isinstance(length, int) and length > 1 for length in size[2:]):
            return None
        num_values = size[0]
        for length in size[2:]:
            num_values = num_values * length
        torch._check(num_values != 1, lambda: "Expected more than 1 value per channel when training")
        return None

    verify.is_checked_at_run_time = True  # type: ignore[attr-defined]  # so that it is not wrapped twice
    return verify


@contextmanager
def recording_memory(path: Path) -> Iterator[None]:
    """Record each allocation on CUDA devices, with its stack, and write the snapshot for torch's page of memory."""
    torch.cuda.memory._record_memory_history()
    try:
        yield
        torch.cuda.memory._dump_snapshot(str(path))
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
