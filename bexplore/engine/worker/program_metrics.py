"""The exact facts of a job's program, which the guard compares: a worker finds them without running it.

It is analysed twice on fake tensors: by the trace, through fusion and the memory plan, and by Dynamo alone over
several sizes, which finds graph breaks and what a change of the size compiles anew.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_leaves

import bexplore
from bexplore.engine.protocol.messages import Done, TakeMetrics
from bexplore.engine.worker import torch_private
from bexplore.engine.worker.compilation import CompilerCounters, GraphBreak
from bexplore.engine.worker.context import Context, Handlers
from bexplore.engine.worker.device import device_info
from bexplore.errors import BexploreError
from bexplore.job import Job
from bexplore.trace import CostModel, TraceError
from bexplore.trace.cost_model import Polynomial
from bexplore.trace.program_metrics import Coefficients, Item, ProgramMetrics, describe_polynomial
from bexplore.trace.tracer import trace_job
from bexplore.workloads import Batch, Workload, build
from bexplore.workloads.torch_private import CompilableMode

# Sizes of the second analysis, samples. The first divides no usual dimension; the others lie around usual thresholds.
# Not 1, for which torch always compiles apart.
SIZES = (61, 8, 3, 16, 64)
NUM_LARGEST_BUFFERS = 8
_TYPICAL_SIZE = 64  # samples; orders buffers that grow differently
_OWN_FOLDERS = tuple(str(Path(module.__file__).parent) for module in (torch, bexplore) if module.__file__)
_NO_USERS_FILES = (*_OWN_FOLDERS, "<")  # of what Python itself starts: `<frozen runpy>`
_STACK_LINE = re.compile(r'File "([^"]+)", line (\d+)')
# Dynamo's names of frames, and numbers that say only which of several compilations it was.
_ORDINAL = re.compile(r"^\d+/\d+: ")
_EXPECTED = re.compile(r"\. expected .*$")
_CODE_IN_REASON = re.compile(r"\s+#\s.*$")
_PLACE_IN_REASON = re.compile(r"([\w./-]+\.py:\d+) in ")
_NUM_PLACES = 4  # of one kind of thing that are kept
# What reads a value out of a tensor: `item()`, `float(x)`, `if x:`. A fake tensor has none.
_VALUE_READ = torch.ops.aten._local_scalar_dense.default


def handlers(context: Context) -> Handlers:
    """Return the handler of `TakeMetrics`."""

    def answer(request: TakeMetrics) -> Done:
        context.take_device(request.job.device)
        context.report(stage="trace")
        info = device_info(request.device)
        return Done(values={"metrics": program_metrics(request.job).as_record(), "device_info": info})

    return {TakeMetrics: answer}


def program_metrics(job: Job) -> ProgramMetrics:
    """Take the exact facts of a job's program.

    What cannot be found out is left unknown, with its reason among the `problems`: the program of a broken job is a
    result too, and the comparison decides what it means.
    """
    facts = ProgramMetrics(traced_device=torch.device(job.device).type)
    changes, problems = _look_at_plan(job), []
    facts = dataclasses.replace(facts, **changes)
    if job.compile.enabled:
        changes = _look_across_sizes(job)
        problems = [*facts.problems, *(line for line in changes["problems"] if line not in facts.problems)]
        facts = dataclasses.replace(facts, **changes | {"problems": tuple(problems)})
    return facts


class _Graphs:
    """Collects what is compared of each planned graph."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, bool]] = set()
        self._clear()

    def _clear(self) -> None:
        self.operators: Counter[str] = Counter()
        self.kernels: Counter[str] = Counter()
        self.saved: Counter[str] = Counter()
        self.saved_bytes = Polynomial()
        self.buffers: dict[str, Polynomial] = {}
        self.where: dict[str, str] = {}
        self.num_graphs = 0
        self._forward: dict[str, Any] = {}

    def observe(self, graph: Any, probe_batch: int) -> None:
        """Read one graph of the compiler after its planning."""
        key = (torch_private.compile_id(), bool(graph.is_backward))
        if key in self._seen:  # a program that fixes its batch is traced a second time, from the start
            self._seen.clear()
            self._clear()
        self._seen.add(key)
        nodes = {node.name: node for node in graph.orig_gm.graph.nodes}
        self.num_graphs += 1
        for node in nodes.values():
            if node.op == "call_function" and isinstance(node.meta.get("val"), torch.Tensor):
                self._count_operator(node, probe_batch)
        if graph.is_backward:
            self._count_saved(nodes.values(), probe_batch)
        else:
            self._forward = nodes
        for scheduled in graph.scheduler.nodes:
            origins = {o.name: o for part in scheduled.get_nodes() if part.node for o in part.node.get_origins()}
            if origins:
                working = [origin for origin in origins.values() if not _is_view(origin.target)] or origins.values()
                label = "+".join(sorted({_short(origin.target) for origin in working}))
                self._note(self.kernels, label, _first_place(working))

    def _count_operator(self, node: Any, probe_batch: int) -> None:
        value = node.meta["val"]
        label = f"{_short(node.target)} {_describe(value, probe_batch)}"
        self._note(self.operators, label, _place(node))
        if not _is_view(node.target):
            self.buffers[label] = _bytes_of(value, probe_batch)

    def _count_saved(self, nodes: Iterable[Any], probe_batch: int) -> None:
        for node in nodes:
            value = node.meta.get("val")
            if node.op != "placeholder" or node.name.startswith("tangents") or not isinstance(value, torch.Tensor):
                continue
            size = _bytes_of(value, probe_batch)
            if not (size.linear or size.quadratic):
                continue  # a parameter, or a copy of one in another type: no activation
            maker = self._forward.get(node.name, node)
            name = _short(maker.target) if maker.op == "call_function" else "input"
            self.saved_bytes = self.saved_bytes + size
            self._note(self.saved, f"{name} {_describe(value, probe_batch)}", _place(maker))

    def _note(self, counter: Counter[str], label: str, where: str) -> None:
        counter[label] += 1
        self.where.setdefault(label, where)

    def items(self, counter: Counter[str]) -> tuple[Item, ...]:
        """Return the counts, by label."""
        return tuple(
            Item(label=label, count=count, where=self.where[label]) for label, count in sorted(counter.items())
        )

    def largest(self) -> list[str]:
        """Return the labels of the largest results, largest first."""
        ordered = sorted(self.buffers, key=lambda label: (-self.buffers[label](_TYPICAL_SIZE), label))
        return ordered[:NUM_LARGEST_BUFFERS]


def _look_at_plan(job: Job) -> dict[str, Any]:
    """Trace the step through the compiler's memory plan, every block of a deep model included."""
    graphs = _Graphs()
    try:
        model = trace_job(job, full_depth=True, observe=graphs.observe)
        phases = _read_phases(job, model)
    except TraceError as error:
        cause = error.__cause__ if error.__cause__ is not None else error
        return {"problems": (_describe_failure(cause),)}
    changes = _read_cost_model(model) | {"phases": phases}
    if graphs.num_graphs:
        largest = graphs.largest()
        changes |= {
            "num_saved_activations": graphs.saved.total(),
            "saved_activation_bytes": _triple(graphs.saved_bytes),
            "saved_activations": graphs.items(graphs.saved),
            "largest_buffer_bytes": _triple(graphs.buffers[largest[0]]) if largest else None,
            "largest_buffers": tuple(Item(label=label, where=graphs.where[label]) for label in largest),
            "operators": graphs.items(graphs.operators),
            "num_kernels": graphs.kernels.total(),
            "kernels": graphs.items(graphs.kernels),
        }
    return changes


def _read_cost_model(model: CostModel) -> dict[str, Any]:
    return {
        "traced_device": model.device,
        "num_parameters": model.num_parameters,
        "flops": _triple(model.hardware_flops),
    }


def _read_phases(job: Job, model: CostModel) -> dict[str, tuple[Coefficients, ...]]:
    """Return the peaks by phase: of a number of tokens those of the shortest samples too, with more rows for a size."""
    lengths = job.lengths
    shortest = [] if lengths is None else [one.length for one in lengths.extreme_batches(1)[1:]]
    models = [(model, 1.0)]
    models += [(trace_job(job.at_length(one), full_depth=True), lengths.longest / one) for one in shortest if lengths]
    phases: dict[str, tuple[Coefficients, ...]] = {}
    for one, rows in models:
        for phase, peaks in one.peaks.items():
            grown = (Polynomial(*peak.size.as_record()) for peak in peaks)
            scaled = (Polynomial(p.constant, p.linear * rows, p.quadratic * rows**2) for p in grown)
            phases[phase.value] = (*phases.get(phase.value, ()), *map(_triple, scaled))
    return phases


def _look_across_sizes(job: Job) -> dict[str, Any]:
    """Run Dynamo over several sizes: graphs and breaks of the first, recompilations of the others."""
    fake_mode = torch_private.FakeTensorMode()
    torch.compiler.reset()
    torch_private.take_compilation_records()
    watch, outside = CompilerCounters(), _OutsideGraphs(job)
    try:
        with fake_mode:
            workload = build(job)
        for module in workload.compiled_modules:
            outside.compile(module, fullgraph=job.compile.fullgraph)
        _run_fake(workload, fake_mode, outside, SIZES[0])
        first, eager_operators = watch.take(), outside.items()
        # At the second size: by then Dynamo has seen of every input, also behind a graph break, that its size varies.
        with _fixed_sizes(job) as fixed:
            _run_fake(workload, fake_mode, outside, SIZES[1])
        recompiles = _recompiles()
        for size in SIZES[2:]:
            _run_fake(workload, fake_mode, outside, size)
            recompiles += _recompiles()
    except BexploreError:
        raise
    except Exception as error:  # the user's code on fake tensors may fail in any way, which is the result
        return {"problems": (_describe_failure(error),)}
    finally:
        torch.compiler.reset()
    return {
        "num_graphs": first.num_graphs,
        "num_graph_breaks": len(first.graph_breaks),
        "graph_breaks": _merge(_item_of_break(one, job) for one in first.graph_breaks),
        "num_eager_operators": sum(item.count for item in eager_operators),
        "eager_operators": eager_operators,
        "num_fixed_sizes": len(fixed),
        "fixed_sizes": _merge(fixed.values()),
        "num_recompiles": len(recompiles),
        "recompiles": _merge(recompiles),
        "problems": (),
    }


class _OutsideGraphs(CompilableMode):
    """Counts the operators of compiled modules that lie in no graph; gives numbers where they read values."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job
        self._items: list[Item] = []
        self._counts = False

    def compile(self, module: torch.nn.Module, *, fullgraph: bool) -> None:
        """Compile a module into graphs that run as they were captured; operators beside them are counted."""
        module.compile(backend=lambda graph, _inputs: self._counting(graph, counts=False), fullgraph=fullgraph)
        compiled: Any = module._compiled_call_impl
        module._compiled_call_impl = self._counting(compiled, counts=True)

    def _counting(self, call: Callable[..., Any], *, counts: bool) -> Callable[..., Any]:
        def run(*arguments: Any, **keywords: Any) -> Any:
            self._counts, before = counts, self._counts
            try:
                return call(*arguments, **keywords)
            finally:
                self._counts = before

        return run

    def items(self) -> tuple[Item, ...]:
        """Return the operators so far."""
        return _merge(self._items)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and note it where it is a compiled module's and in no graph."""
        if self._counts and func.namespace != "prim":
            self._items.append(Item(label=_short(func), where=_user_line(self._job)))
        if func is _VALUE_READ:  # any number will do: which branch a real one takes is not known
            return False if args[0].dtype is torch.bool else 1.0 if args[0].is_floating_point() else 1
        return func(*args, **(kwargs or {}))


def _user_line(job: Job) -> str:
    """Return the innermost frame outside of torch and of this package, as `_show_place`; empty where there is none."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_NO_USERS_FILES):
        frame = frame.f_back
    return _show_place(frame.f_code.co_filename, frame.f_lineno, job) if frame is not None else ""


def _run_fake(
    workload: Workload, fake_mode: torch_private.FakeTensorMode, outside: _OutsideGraphs, micro_batch_size: int
) -> None:
    with fake_mode:
        batch = workload.make_batch(micro_batch_size)
        _prefer_symbolic(batch, workload)
    with fake_mode, outside:
        workload.forward_backward(batch)


def _prefer_symbolic(batch: Batch, workload: Workload) -> None:
    """Keep the sample dimension symbolic where the program allows it; where not, it compiles again for each size."""
    leaves = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    for leaf, dimension in zip(leaves, workload.batch_dimensions or [0] * len(leaves), strict=True):
        if dimension is not None and leaf.dim() > dimension:
            torch_private.prefer_dynamic(leaf, dimension)


def _item_of_break(one: GraphBreak, job: Job) -> Item:
    return Item(label=one.reason, where=_show_place(one.path, one.line, job) if one.path else "")


@contextlib.contextmanager
def _fixed_sizes(job: Job) -> Iterator[dict[tuple[str, int | None], Item]]:
    """Collect, by place, the lines of the user's code that turn a size of the batch into a number."""
    fixed: dict[tuple[str, int | None], Item] = {}
    original = ShapeEnv.produce_guards_verbose

    def produce(environment: Any, *arguments: Any, **keywords: Any) -> Any:
        for stack in getattr(environment, "specialization_stacks", {}).values():
            frame = next((one for one in reversed(stack) if not one.filename.startswith(_OWN_FOLDERS)), None)
            if frame is not None:
                where = _show_place(frame.filename, frame.lineno, job)
                fixed[frame.filename, frame.lineno] = Item(label=(frame.line or "a size").strip(), where=where)
        return original(environment, *arguments, **keywords)

    with mock.patch.object(ShapeEnv, "produce_guards_verbose", produce):
        yield fixed


def _recompiles() -> list[Item]:
    """Return what was compiled again since the last call, and why."""
    metrics = torch_private.take_compilation_records()
    return [_recompile(str(metric.recompile_reason or "unknown reason")) for metric in metrics if metric.graph_op_count]


def _recompile(reason: str) -> Item:
    line = next((line.strip() for line in reason.splitlines() if line.strip()), "unknown reason")
    place = _PLACE_IN_REASON.search(line)
    label = _EXPECTED.sub("", _CODE_IN_REASON.sub("", _ORDINAL.sub("", line)))
    return Item(label=label, where=Path(place[1]).name if place else "")


def _merge(items: Iterable[Item]) -> tuple[Item, ...]:
    """Merge items of one label: the sum of the counts and the first places."""
    counts: Counter[str] = Counter()
    places: dict[str, dict[str, None]] = {}
    for item in items:
        counts[item.label] += item.count
        places.setdefault(item.label, {}).setdefault(item.where)
    return tuple(
        Item(label=label, count=counts[label], where=", ".join(list(filter(None, places[label]))[:_NUM_PLACES]))
        for label in sorted(counts)
    )


def _describe_failure(error: BaseException) -> str:
    """Describe a failure in one line, with the innermost place of the user's own code."""
    places = [(path, int(number)) for path, number in _STACK_LINE.findall(str(error))]
    places += [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    own = [place for place in places if not place[0].startswith(_OWN_FOLDERS)]
    where = f" ({Path(own[-1][0]).name}:{own[-1][1]})" if own else ""
    cause = _detail(str(error)) or _headline(error)
    return f"the program cannot be traced for every size: {cause.rstrip('.')}{where}"


def _detail(text: str) -> str:
    """Return the one line of Dynamo's long messages that names the cause."""
    fake_call = re.search(r"got \w+\(\"?'?(.+?)\"?'?\)$", text, re.MULTILINE)
    specialised = re.search(r"(your code specialized it to be a constant \(\d+\))", text)
    return fake_call[1] if fake_call else specialised[1] if specialised else ""


def _headline(error: BaseException) -> str:
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def _first_place(nodes: Iterable[Any]) -> str:
    places = sorted(place for place in map(_place, nodes) if place)
    return places[0] if places else ""


def _place(node: Any) -> str:
    """Return `file.py:12` of the user's line that made a node."""
    places = _STACK_LINE.findall(node.meta.get("stack_trace") or node.stack_trace or "")
    own = [place for place in places if not place[0].startswith(_OWN_FOLDERS)] or places
    return f"{Path(own[-1][0]).name}:{own[-1][1]}" if own else ""


def _show_place(path: str, line: int | None, job: Job) -> str:
    """Return a place relative to the job's own folder where it lies there: no path of this machine is kept."""
    root = Path(job.import_root or ".").resolve()
    target = Path(path)
    return f"{target.relative_to(root) if target.is_relative_to(root) else target.name}:{line}"


def _short(target: Any) -> str:
    packet = getattr(target, "overloadpacket", target)
    return str(getattr(packet, "__name__", packet))


def _is_view(target: Any) -> bool:
    schema = getattr(target, "_schema", None)
    return schema is not None and any(result.alias_info is not None for result in schema.returns)


def _describe(value: torch.Tensor, probe_batch: int) -> str:
    """Return `float32[b, 128b]`; b is the micro-batch size."""
    sizes = [describe_polynomial(_polynomial(size, probe_batch).as_record()) for size in value.shape]
    return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(sizes)}]"


def _bytes_of(value: torch.Tensor, probe_batch: int) -> Polynomial:
    """Return the bytes of a tensor, by its value at the micro-batch size of the trace."""
    elements = 1
    for size in value.shape:
        elements *= _at_hint(size)
    return Polynomial.from_value(elements * value.dtype.itemsize, probe_batch)


def _polynomial(size: Any, probe_batch: int) -> Polynomial:
    """Return a size by its value at the probe batch; a program that fixes its batch has a number there."""
    return Polynomial.from_value(_at_hint(size), probe_batch)


def _at_hint(size: Any) -> int:
    return size if isinstance(size, int) else int(size.node.hint)


def _triple(polynomial: Polynomial) -> tuple[float, float, float]:
    return polynomial.constant, polynomial.linear, polynomial.quadratic
