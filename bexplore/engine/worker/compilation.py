"""Compiles a workload and keeps account of what the compiler did: graphs, breaks, recompilations, seconds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config as inductor_config
from torch._dynamo import config as dynamo_config
from torch._dynamo import decorators
from torch._dynamo import utils as dynamo_utils
from torch._dynamo.callback import callback_handler
from torch.utils._pytree import tree_leaves

from bexplore.engine.protocol.shared_mode import SharedMode, shared_modes
from bexplore.engine.worker.nested_regions import nest
from bexplore.engine.worker.normalization import check_batch_statistics_at_run_time
from bexplore.engine.worker.opaque_convolution import (
    can_be_opaque,
    choose_layout_as_for_a_number,
    has_convolutions,
    make_convolutions_opaque,
)
from bexplore.job import CompileSettings
from bexplore.measurement.probe import Compilation
from bexplore.workloads import Batch, Workload


def make_limits_loud() -> None:
    """Turn silent fallbacks to eager into errors, for this whole process.

    Past `recompile_limit` torch.compile runs eagerly without a word, and the time of an eager pass would be reported as
    a compiled one.
    """
    dynamo_config.fail_on_recompile_limit_hit = True
    dynamo_config.suppress_errors = False


def feasible_mode(workload: Workload, wanted: SharedMode, block_classes: Sequence[type[torch.nn.Module]]) -> SharedMode:
    """Give the wanted kind of shared program, or the next one that this workload allows.

    Inductor's convolutions fail at run time with an unbacked number of samples (seen with torch 2.13 on the CPU: the
    strides that it expects are not those that it gets), so that they start with a backed one where they cannot be
    hidden from it. On CUDA they are never hidden: Inductor may give them the layout channels-last there
    (`decide_layout_opt` in torch/_inductor/graph.py), hidden ones keep the one that they get, and the shared program
    would have another speed and other memory than the exact one. See `choose_layout_as_for_a_number`.

    Args:
        workload: What is to be compiled.
        wanted: One of the modes of its device.
        block_classes: Of the blocks that a nested program compiles once; empty where there are none.
    """
    device_type = torch.device(workload.job.device).type
    modules = _all_modules(workload)
    is_hidden = device_type == "cpu" and can_be_opaque(modules)
    order = shared_modes(device_type, torch.__version__)
    allowed = set(
        shared_modes(device_type, torch.__version__, has_convolutions=has_convolutions(modules) and not is_hidden)
    )
    if not block_classes:
        allowed.discard(SharedMode.NESTED)
    return next(mode for mode in order[order.index(wanted) :] if mode in allowed)


def compile_workload(
    workload: Workload,
    settings: CompileSettings,
    compilation: Compilation,
    shared_mode: SharedMode,
    block_classes: Sequence[type[torch.nn.Module]],
) -> None:
    """Compile the workload's modules in place; nothing is built before the first pass.

    Args:
        workload: What to compile.
        settings: How the user's training compiles.
        compilation: Which program.
        shared_mode: The kind of shared program.
        block_classes: Of the blocks that are compiled once in a nested one; see `regions.repeated_classes`.
    """
    if compilation is Compilation.EAGER or not settings.enabled:
        return
    if compilation is Compilation.SHARED and shared_mode.serves_every_size:
        # Folding asks whether a tensor is contiguous, which has no answer while its size has none: a compile error with
        # T5, whose masks are constants of the size of the batch (torch 2.13). Without it they are computed.
        inductor_config.joint_graph_constant_folding = False
        check_batch_statistics_at_run_time()
        if has_convolutions(_all_modules(workload)):
            make_convolutions_opaque()
    if compilation is Compilation.SHARED and shared_mode is SharedMode.DYNAMIC:
        choose_layout_as_for_a_number()
    if compilation is Compilation.SHARED and shared_mode is SharedMode.NESTED:
        nest(block_classes)
    arguments: dict[str, Any] = {"backend": settings.backend, "fullgraph": settings.fullgraph}
    if settings.mode is not None:
        arguments["mode"] = settings.mode
    if settings.options:
        arguments["options"] = dict(settings.options)
    # The shared program marks its one symbolic dimension by hand; everything else stays static.
    arguments["dynamic"] = settings.dynamic if compilation is Compilation.EXACT else None
    for module in workload.compiled_modules:
        module.compile(**arguments)


def mark_batch_dimension(
    batch: Batch, dimensions: list[int | None] | None, mode: SharedMode, *, hint: int | None = None
) -> None:
    """Declare the sample dimension of every tensor of a batch symbolic, and nothing else.

    Args:
        batch: Pytree of tensors.
        dimensions: Sample dimension of each tensor leaf, None for a tensor without one; None where the structure of
            the batch is not known (a list of samples, say), so that nothing can be marked.
        mode: Kind of the shared program.
        hint: The number of samples that the compiler is to choose kernels for where it must not rely on any; None for
            its own default, which is thousands. It is not guarded: another one compiles nothing anew.
    """
    if mode is SharedMode.STATIC or dimensions is None:
        return
    tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    for index, tensor in enumerate(tensors):
        dimension = dimensions[index]
        if dimension is None or tensor.dim() == 0:
            continue
        if mode is SharedMode.DYNAMIC:
            decorators.mark_dynamic(tensor, dimension)
        else:
            decorators.mark_unbacked(tensor, dimension, shape_id="samples", hint_override=hint)


def _all_modules(workload: Workload) -> list[torch.nn.Module]:
    return [part for module in workload.compiled_modules for part in module.modules()]


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
# Code in which a graph may break though the user's line is the one that counts.
LIBRARY_FOLDER = str(Path(torch.__file__).parent)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphBreak:
    """A place that ends a graph, or that leaves the function around it to Python.

    Attributes:
        reason: First line of the compiler's reason.
        path: File of the innermost line outside of torch; empty where unknown.
        line: Its number; 0 where unknown.
    """

    reason: str
    path: str = ""
    line: int = 0

    def __str__(self) -> str:
        return f"{self.reason} at {Path(self.path).name}:{self.line}" if self.path else self.reason


@dataclass(slots=True)
class CompilerAccount:
    """What the compiler did since the last `take`.

    Attributes:
        num_graphs: Graphs that were compiled.
        num_recompiles: Those of them that replaced an earlier graph of the same code.
        compile_time_s: Seconds inside the compiler, backward graphs included.
        graph_breaks: Each place once.
        recompile_reasons: Why, first line of each.
    """

    num_graphs: int = 0
    num_recompiles: int = 0
    compile_time_s: float = 0.0
    graph_breaks: tuple[GraphBreak, ...] = ()
    recompile_reasons: tuple[str, ...] = ()


@dataclass(slots=True)
class CompilerCounters:
    """Reads torch's own records of its compilations; `take` gives what is new."""

    _num_seen_breaks: int = 0

    def take(self) -> CompilerAccount:
        """Return what was compiled since the last call, and forget it."""
        metrics = dynamo_utils.get_compilation_metrics()
        dynamo_utils.clear_compilation_metrics()
        frames = [m for m in metrics if getattr(m, "is_forward", True) is not False and m.graph_op_count]
        done = [frame for frame in frames if not frame.fail_type]
        again = [frame for frame in done if _compile_ordinal(frame.compile_id) > 0]
        reasons = {_first_line(getattr(frame, "recompile_reason", None)) for frame in again} - {""}
        return CompilerAccount(
            num_graphs=len(done),
            num_recompiles=len(again),
            compile_time_s=sum(_seconds(metric) for metric in metrics),
            graph_breaks=tuple(dict.fromkeys([*self._new_breaks(), *_skipped_frames(metrics)])),
            recompile_reasons=tuple(sorted(reasons)),
        )

    def _new_breaks(self) -> list[GraphBreak]:
        known = dynamo_utils.graph_break_reasons
        first_new = self._num_seen_breaks if self._num_seen_breaks <= len(known) else 0  # a reset empties the list
        self._num_seen_breaks = len(known)
        return [_graph_break(one.reason, one.user_stack) for one in known[first_new:]]


def _graph_break(reason: str, stack: Sequence[Any]) -> GraphBreak:
    own = [frame for frame in stack if not frame.filename.startswith(LIBRARY_FOLDER)] or stack
    path, line = (own[-1].filename, own[-1].lineno or 0) if own else ("", 0)
    return GraphBreak(reason=_ADDRESS.sub("", _first_line(reason)), path=path, line=line)


def _skipped_frames(metrics: Sequence[Any]) -> Iterator[GraphBreak]:
    """Breaks that leave a whole function to Python, as one inside a loop does; torch lists them nowhere else."""
    for metric in metrics:
        if metric.fail_type and metric.fail_user_frame_filename:
            yield GraphBreak(
                reason=_ADDRESS.sub("", _first_line(metric.fail_reason)),
                path=metric.fail_user_frame_filename,
                line=metric.fail_user_frame_lineno or 0,
            )


@contextmanager
def around_compilations(on_start: Callable[[], None], on_end: Callable[[], None]):
    """Call `on_start` before and `on_end` after each compilation that happens inside the block."""

    def start(_arguments: Any) -> None:
        on_start()

    def end(_arguments: Any) -> None:
        on_end()

    callback_handler.register_start_callback(start)
    callback_handler.register_end_callback(end)
    try:
        yield
    finally:
        callback_handler.remove_start_callback(start)
        callback_handler.remove_end_callback(end)


def _compile_ordinal(compile_id: str | None) -> int:
    """The second number of torch's `frame/ordinal[_attempt]` compile id: 0 for a first compilation."""
    try:
        return int(str(compile_id).split("/")[1].split("_")[0])
    except (IndexError, ValueError):
        return 0


def _seconds(metric: Any) -> float:
    """Wall seconds of one compilation record: the frame's own for a forward, the lazy backward's otherwise."""
    duration_us = getattr(metric, "duration_us", None)
    return duration_us / 1e6 if duration_us else (metric.entire_frame_compile_time_s or 0.0)


def _first_line(text: str | None) -> str:
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return lines[0][:300] if lines else ""
