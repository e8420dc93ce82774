"""Lines of Inductor's wrappers as JSON, and back: plans of a GPU program are read where no Triton can make them.

`tests/gpu_trace` writes them, on a device that is stood in for; `tests/torch/trace/test_trace_cuda.py` reads them.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import torch
import torch._inductor.ir as ir
from torch._inductor.codegen import wrapper as lines
from torch._inductor.codegen.common import WorkspaceArg, WorkspaceZeroMode

from bexplore.trace.cost_model import NOTHING, Polynomial
from bexplore.trace.inductor import _Reader
from bexplore.trace.lifetimes import Alias, Allocate, Drop, Step

_FIELDS = {
    lines.AllocateLine: ("node",),
    lines.ReuseLine: ("node", "reused_as", "delete_old"),
    lines.ReinterpretLine: ("node", "reused_as"),
    lines.MultiOutputLine: ("result_name", "arg_name", "indices"),
    lines.FreeLine: ("node",),
    lines.FreeIfNotReusedLine: ("node", "is_reused"),
    lines.ExternKernelAllocLine: ("node",),
}
_BY_NAME = {kind.__name__: kind for kind in _FIELDS}
_CUDA = torch.device("cuda:0")


def record_graph(graph: Any) -> dict[str, Any]:
    """The lines that decide memory, and the buffers that lines of text make."""
    records = [record for line in graph.wrapper_code.lines if (record := _record(line, graph)) is not None]
    return {"is_backward": bool(graph.is_backward), "lines": records}


def _record(line: Any, graph: Any) -> Any:
    if isinstance(line, str):
        name = line.split(" = ")[0]
        return {"text": line, "node": _node(graph.get_buffer(name))} if " = workspace_" in line else None
    names = _FIELDS.get(type(line))
    if names is None:
        return None
    values = {name: getattr(line, name) for name in names}
    nodes = {name: _node(value) for name, value in values.items() if name in ("node", "reused_as")}
    plain = {name: value for name, value in values.items() if name not in nodes}
    if "indices" in plain:
        plain["indices"] = [int(index) for _, index in plain["indices"]]
    return {"line": type(line).__name__} | plain | nodes


def _node(node: Any) -> dict[str, Any]:
    record: dict[str, Any] = {"name": node.get_name(), "workspace": isinstance(node, WorkspaceArg)}
    layout = node.get_output_spec()
    if isinstance(layout, ir.Layout) and not isinstance(layout, ir.NoneLayout):
        record |= _layout(node.get_layout())
    outputs = [out for out in getattr(node, "outputs", None) or [] if isinstance(out, ir.MultiOutput)]
    if outputs:
        record["outputs"] = [
            {"indices": [int(i) for _, i in out.indices]} | _layout(out.get_layout()) for out in outputs
        ]
    aliased = [] if record["workspace"] else list(node.get_inputs_that_alias_output())
    return record | ({"aliased": aliased} if aliased else {})


def _layout(layout: Any) -> dict[str, Any]:
    return {
        "size": [int(size) for size in layout.size],
        "stride": [int(stride) for stride in layout.stride],
        "offset": int(layout.offset),
        "dtype": str(layout.dtype).removeprefix("torch."),
    }


class RecordedNode:
    """As much of a buffer as the reader of plans asks for."""

    def __init__(self, record: dict[str, Any]) -> None:
        self._record = record
        self.outputs = [_recorded_output(record["name"], output) for output in record.get("outputs", [])]

    def get_name(self) -> str:
        return self._record["name"]

    def get_dtype(self) -> torch.dtype:
        return getattr(torch, self._record["dtype"])

    def get_layout(self) -> Any:
        own = self._record
        return ir.FixedLayout(_CUDA, self.get_dtype(), own["size"], own["stride"], own["offset"])

    def get_output_spec(self) -> Any:
        if self.outputs:
            return ir.MultiOutputLayout(device=_CUDA)
        return self.get_layout() if "size" in self._record else ir.NoneLayout(device=_CUDA)

    def get_size(self) -> list[int]:
        return self._record["size"]

    def get_inputs_that_alias_output(self) -> list[str]:
        return self._record.get("aliased", [])

    def get_origins(self) -> list[Any]:
        return []

    def get_origin_node(self) -> None:
        return None


def _recorded_output(name: str, record: dict[str, Any]) -> Any:
    output = object.__new__(ir.MultiOutput)
    layout = ir.FixedLayout(_CUDA, getattr(torch, record["dtype"]), record["size"], record["stride"], record["offset"])
    for field, value in {"name": name, "layout": layout, "indices": [(list, i) for i in record["indices"]]}.items():
        object.__setattr__(output, field, value)
    return output


def _rebuilt(record: dict[str, Any]) -> Any:
    if "text" in record:
        return record["text"]
    line = object.__new__(_BY_NAME[record["line"]])
    for name, value in record.items():
        if name in ("node", "reused_as"):
            value = _rebuilt_node(value)
        elif name == "indices":
            value = [(list, index) for index in value]
        if name != "line":
            object.__setattr__(line, name, value)
    return line


def _rebuilt_node(record: dict[str, Any]) -> Any:
    if not record["workspace"]:
        return RecordedNode(record)
    return WorkspaceArg(
        count=record["size"][0],
        zero_mode=WorkspaceZeroMode.UNINITIALIZED,
        device=_CUDA,
        outer_name=record["name"],
        dtype=getattr(torch, record["dtype"]),
    )


def steps_of(record: dict[str, Any], probe_batch: int) -> list[Step]:
    """What the reader of plans makes of recorded lines."""
    buffers = {line["node"]["name"]: RecordedNode(line["node"]) for line in record["lines"] if "text" in line}
    graph = SimpleNamespace(
        constants=[],
        wrapper_code=SimpleNamespace(lines=[_rebuilt(line) for line in record["lines"]]),
        get_buffer=buffers.get,
        get_allocation_size=lambda node: node.get_size() if hasattr(node, "get_size") else node.get_layout().size,
        sizevars=SimpleNamespace(shape_env=SimpleNamespace(backed_var_to_val={}, var_to_val={})),
    )
    return list(_Reader(graph, probe_batch).steps())


def most_bytes(steps: Iterable[Step], micro_batch_size: int) -> int:
    """Bytes of what a plan allocates, at its highest moment."""
    owners: dict[str, str] = {}
    names: dict[str, set[str]] = {}
    sizes: dict[str, Polynomial] = {}
    running, most = NOTHING, 0.0
    for step in steps:
        match step:
            case Allocate(name, size, _):
                owners[name], names[name], sizes[name] = name, {name}, size
                running = running + size
            case Alias(name, of, _) if of in owners:
                owners[name] = owners[of]
                names[owners[of]].add(name)
            case Drop(name) if name in owners:
                owner = owners.pop(name)
                names[owner].discard(name)
                running = running if names[owner] else running - sizes[owner]
        most = max(most, running(micro_batch_size))
    return round(most)
