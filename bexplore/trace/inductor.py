"""Inductor's memory plan of each graph, without building any code.

The compiler runs as in the user's training, up to the text of its kernels and its wrapper. A replay of the wrapper's
allocations takes the place of the module that would be built from the text.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from bexplore.errors import TraceError
from bexplore.estimate.dispatch import Dispatch
from bexplore.job import Job
from bexplore.trace.convolutions import Layouts
from bexplore.trace.cost_model import Place, Polynomial, TracedKernel
from bexplore.trace.kernel_shapes import has_kernels, stream_kernel
from bexplore.trace.lifetimes import Alias, Allocate, CompiledGraph, Drop, Output, Step
from bexplore.trace.operations import Cost, count_graph_flops, node_shapes
from bexplore.trace.operators import workspace_sizes
from bexplore.trace.torch_private import (
    ChooseSaved,
    GraphLowering,
    WorkspaceArg,
    compile_without_building,
    ir,
    refuse_sparse,
    symbol_values,
    wrapper_lines,
)
from bexplore.workloads.torch_private import tree_leaves

Observe = Callable[[GraphLowering, int], None]
# The last sum of a mix-order reduction is a line of text: `buf9 = workspace_0[0 : 768].view(...).sum(dim=0)`.
_BUFFER_OF_TEXT = re.compile(r"^(buf\d+) = workspace_\d+\[")


@contextlib.contextmanager
def plan_only(
    probe_batch: int,
    job: Job,
    run: Callable[[CompiledGraph, list[Any]], tuple[Any, ...]],
    observe: Observe | None = None,
    choose_saved: ChooseSaved | None = None,
) -> Iterator[None]:
    """Make torch.compile plan graphs instead of building them, within this context.

    Args:
        run: Called in place of each compiled graph, with its inputs.
        observe: Called with each planned graph of the compiler and `probe_batch`.
        choose_saved: Chooses what a forward pass keeps; None leaves that to the compiler.
    """

    def load(graph: GraphLowering) -> Callable[[list[Any]], tuple[Any, ...]]:
        compiled = _read(graph, probe_batch)
        if observe is not None:
            observe(graph, probe_batch)
        return lambda arguments: run(compiled, arguments)

    device_type = torch.device(job.device).type
    with compile_without_building(
        load,
        device_type=device_type,
        activation_memory_budget=job.activation_memory_budget,
        choose_saved=choose_saved,
    ):
        yield


def _read(graph: GraphLowering, probe_batch: int) -> CompiledGraph:
    reader = _Reader(graph, probe_batch)
    return CompiledGraph(
        input_names=tuple(graph.graph_inputs),
        steps=tuple(reader.steps()),
        outputs=tuple(reader.output(output) for output in graph.graph_outputs),
        is_backward=bool(graph.is_backward),
        costs=(*count_graph_flops(graph.orig_gm.graph, probe_batch, find_modules), *reader.traffic()),
        operators=tuple(reader.operators()),
    )


class _Reader:
    """Reader of the lines of a planned wrapper, with symbolic sizes as polynomials."""

    def __init__(self, graph: GraphLowering, probe_batch: int) -> None:
        self._graph = graph
        self._probe_batch = probe_batch
        self._hints = symbol_values(graph)
        self._is_static = all(int(hint) % probe_batch for hint in self._hints.values())
        self._polynomials: dict[Any, Polynomial] = {}

    def steps(self) -> Iterator[Step]:
        for name in self._graph.constants:
            yield Allocate(name, Polynomial(), Place("constant"))
        for line in self._graph.wrapper_code.lines:
            yield from self._read_line(line)

    def _read_line(self, line: Any) -> Iterator[Step]:  # noqa: C901 - a case for each kind of line
        match line:
            case str() if match := _BUFFER_OF_TEXT.match(line):
                buffer = self._graph.get_buffer(match[1])
                yield Allocate(match[1], self._storage_size(buffer), _find_place(buffer))
            case wrapper_lines.AllocateLine():
                yield Allocate(line.node.get_name(), self._storage_size(line.node), _find_place(line.node))
            case wrapper_lines.ReuseLine():
                yield Alias(line.reused_as.get_name(), line.node.get_name(), _find_place(line.reused_as))
                if line.delete_old:
                    yield Drop(line.node.get_name())
            case wrapper_lines.ReinterpretLine():
                yield Alias(line.reused_as.get_name(), line.node.get_name())
            case wrapper_lines.MultiOutputLine():
                yield Alias(line.result_name, _element(line.arg_name, line.indices))
            case wrapper_lines.FreeLine():
                yield Drop(line.node.get_name())
            case wrapper_lines.FreeIfNotReusedLine() if not line.is_reused:
                yield Drop(line.node.get_name())
                for output in _elements(line.node):
                    yield Drop(_element(line.node.get_name(), output.indices))
            case wrapper_lines.ExternKernelAllocLine():
                yield from self._read_extern_allocation(line.node)

    def _read_extern_allocation(self, node: Any) -> Iterator[Step]:
        aliased = list(node.get_inputs_that_alias_output())
        outputs = _elements(node)
        if isinstance(node.get_output_spec(), ir.MultiOutputLayout):
            for output in outputs:
                name = _element(node.get_name(), output.indices)
                if aliased:
                    yield Alias(name, aliased[0])
                else:
                    yield Allocate(name, self._storage_size(output), _find_place(node))
        elif isinstance(node.get_output_spec(), ir.Layout) and not isinstance(node.get_output_spec(), ir.NoneLayout):
            if aliased:
                yield Alias(node.get_name(), aliased[0])
            else:
                yield Allocate(node.get_name(), self._storage_size(node), _find_place(node))
        yield from self._workspace(node, outputs[0] if outputs else node)

    def _workspace(self, node: Any, output: Any) -> Iterator[Step]:
        origin = _find_origin(node)
        if origin is None or not isinstance(output.get_output_spec(), ir.Layout):
            return
        layout = output.get_output_spec()
        sizes = workspace_sizes(
            origin.target,
            torch.fx.node.map_arg(origin.args, node_shapes),
            node_shapes(origin),
            self._probe_batch,
            itemsize=layout.dtype.itemsize,
            layouts=Layouts(is_channels_last=len(layout.stride) > 1 and layout.stride[1] == 1),  # copies are buffers
            device=layout.device.type,
        )
        name = f"{node.get_name()} workspace"
        for size in sizes:
            yield Allocate(name, size, _find_place(node))
            yield Drop(name)

    def output(self, node: Any) -> Any:
        # What is no tensor is returned as it is.
        if isinstance(node, ir.NoneAsConstantBuffer):
            return None
        if isinstance(node, ir.TorchBindObject):
            return node.get_real_obj()
        if isinstance(node, ir.ShapeAsConstantBuffer):
            return self._at_hint(node.expr)
        layout = node.get_layout()
        return Output(
            name=node.get_name(),
            shape=tuple(self._at_hint(size) for size in layout.size),
            symbolic=tuple(place for place, size in enumerate(layout.size) if not _is_number(size)),
            stride=tuple(self._at_hint(stride) for stride in layout.stride),
            offset=self._at_hint(layout.offset),
            dtype=layout.dtype,
            device=layout.device,
        )

    def traffic(self) -> Iterator[Cost]:
        lines = self._graph.wrapper_code.lines
        allocated = {line.node.get_name() for line in lines if isinstance(line, wrapper_lines.AllocateLine)}
        for node in self._graph.scheduler.nodes:
            accesses = node.get_read_write_buffer_accesses(include_reads=True, include_writes=True)
            moved = Polynomial()
            for size in accesses.values():
                moved = moved + Polynomial.from_value(int(size), self._probe_batch)
            origins = [origin for part in node.get_nodes() if part.node for origin in part.node.get_origins()]
            # operators that count have their kernels already
            is_counted = node.is_extern() and any(has_kernels(origin.target) for origin in origins)
            kernels = () if is_counted or not moved else (self._stream(node, moved, allocated, origins),)
            dispatches = {Dispatch.KERNEL: 1.0} if moved else {}
            # a node of the compiler's own has no modules: its inputs were made in the same ones
            inputs = (one for origin in origins for one in origin.all_input_nodes)
            module = max(map(find_modules, origins), default="") or max(map(find_modules, inputs), default="")
            yield Cost(module=module, bytes_moved=moved, kernels=kernels, dispatches=dispatches)
        yield Cost(dispatches={Dispatch.GRAPH: 1.0})

    def _stream(
        self, node: Any, moved: Polynomial, allocated: set[str], origins: Sequence[torch.fx.Node]
    ) -> TracedKernel:
        own = [one.node for one in node.get_outputs() if one.get_name() in allocated and one.node is not None]
        sizes = map(self._storage_size, own)
        largest = max(sizes, key=lambda size: size(self._probe_batch), default=Polynomial())
        return stream_kernel(moved, largest, [one.target for one in origins])

    def operators(self) -> Iterator[str]:
        for node in self._graph.orig_gm.graph.nodes:
            if node.op == "call_function":
                values = [one for one in tree_leaves(node.meta.get("val")) if isinstance(one, torch.Tensor)]
                for value in values:  # of a gradient, say, which the plan has as a whole tensor
                    refuse_sparse(value)
                shapes = [f"{value.dtype}{[self._describe(size) for size in value.shape]}" for value in values]
                yield f"{node.target} {' '.join(shapes)}"

    def _describe(self, size: Any) -> str:
        if isinstance(size, int):
            return str(size)
        return "+".join(str(value) for value in self._polynomial(size.node.expr).as_record())

    def _storage_size(self, node: Any) -> Polynomial:
        """Return the bytes up to the last element: rows may be padded, and start at an offset."""
        layout = node.get_layout()
        sizes = self._graph.get_allocation_size(node)
        if any(size == 0 for size in sizes):
            return Polynomial()
        last = self._polynomial(layout.offset)
        for size, stride in zip(sizes, layout.stride, strict=True):
            last = last + (self._polynomial(size) - Polynomial(1)) * self._polynomial(stride)
        return (last + Polynomial(1)).times(node.get_dtype().itemsize)

    def _polynomial(self, expression: Any) -> Polynomial:
        if _is_number(expression):
            return (
                Polynomial.from_value(int(expression), self._probe_batch)
                if self._is_static
                else Polynomial(int(expression))
            )
        if expression not in self._polynomials:
            self._polynomials[expression] = Polynomial.interpolate(
                lambda size: self._evaluate(expression, size), self._probe_batch
            )
        return self._polynomials[expression]

    def _at_hint(self, expression: Any) -> int:
        return expression if isinstance(expression, int) else self._evaluate(expression, self._probe_batch)

    def _evaluate(self, expression: Any, micro_batch_size: int) -> int:
        expression = self._graph.sizevars.remove_precomputed_replacements(expression)
        values = {}
        for symbol in expression.free_symbols:
            if symbol not in self._hints:
                raise TraceError(
                    f"The model has a size that depends on its data ({symbol} in {expression}).",
                    hint="Sizes must follow from the shapes of the batch alone for a trace.",
                )
            hint = int(self._hints[symbol])
            values[symbol] = hint if hint % self._probe_batch else hint // self._probe_batch * micro_batch_size
        return int(expression.xreplace(values))


def _is_number(size: Any) -> bool:
    return isinstance(size, int) or bool(size.is_Integer)


def _elements(node: Any) -> list[Any]:
    outputs = getattr(node, "outputs", None) or []
    leaves = tree_leaves(outputs)
    return [leaf for leaf in leaves if isinstance(leaf, ir.MultiOutput)]


def _element(name: str, indices: Any) -> str:
    return name + "".join(f"[{index}]" for _, index in indices)


def _find_place(node: Any) -> Place:
    if isinstance(node, WorkspaceArg):  # of a kernel of several operators
        return Place("workspace of a kernel")
    origin = _find_origin(node)
    if origin is None:
        return Place(node.get_name().rstrip("0123456789"))
    operator = getattr(origin.target, "overloadpacket", origin.target)
    label = f"{_find_source_line(origin)} {getattr(operator, '__name__', operator)}".strip()
    return Place(label, find_modules(origin), is_recomputed(origin))


def _find_origin(node: Any) -> torch.fx.Node | None:
    """Return the graph node that a buffer comes from; of a fused kernel the last by name."""
    origins = [origin for origin in node.get_origins() if origin.op == "call_function"]
    operator = getattr(node, "op_overload", None)
    own = [origin for origin in origins if operator is not None and origin.target is operator]
    return node.get_origin_node() or max(own or origins, key=lambda one: one.name, default=None)


def is_recomputed(origin: torch.fx.Node) -> bool:
    """Return whether a node of a backward graph is one of the forward pass that runs again.

    Source: `_is_forward_node_with_seq_nr` and `must_recompute` in torch/_functorch/partitioners.py.
    """
    return bool(origin.meta.get("partitioner_tag") == "is_forward")


def find_modules(origin: torch.fx.Node) -> str:
    """Return the modules in whose forward a node, or the node that it differentiates, was made, as `Place` does."""
    stack = origin.meta.get("nn_module_stack") or origin.meta.get("fwd_nn_module_stack") or {}
    return " > ".join(_normalize_path(path) for path, _ in stack.values())


def _normalize_path(path: str) -> str:
    """Normalize `L['self']._modules['blocks'][1]` and `L['self'].blocks.1` to `blocks.1`."""
    return re.sub(r"""\[['"]?([^\]'"]+)['"]?\]""", r".\1", path).replace("._modules.", ".").removeprefix("L.self.")


def _find_source_line(origin: torch.fx.Node) -> str:
    trace = origin.stack_trace or ""
    for line in reversed(trace.splitlines()):
        if line.strip().startswith('File "'):
            path, number = line.split('"')[1], line.split(", line ")[1].split(",")[0]
            return f"{Path(path).name}:{number}"
    return ""
