"""Compiles a workload: which program, what of it is symbolic, its tools, and the account of what the compiler did."""

from __future__ import annotations

import math
import os
import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from bexplore.engine.protocol.messages import SharedMode, shared_modes
from bexplore.engine.worker import torch_private
from bexplore.engine.worker.opaque_convolution import can_be_opaque, has_convolutions, make_convolutions_opaque
from bexplore.errors import first_line
from bexplore.job import CompileSettings, Job
from bexplore.measurement.probe import Compilation
from bexplore.trace.repeated_blocks import find_repeats
from bexplore.workloads import Batch, Workload

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
# Code in which a graph may break though the user's line is the one that counts.
LIBRARY_FOLDER = str(Path(torch.__file__).parent)
# Blocks of one class from which on they are compiled once, as a nested region, instead of one by one.
MIN_REGION_COPIES = 3
# The programs with which Inductor tries vector instructions have 151 to 459 bytes, the smallest kernel 4.8 kB. Bytes.
_LARGEST_TRIAL_BYTES = 1024
# What every kernel of Inductor's begins with; it does nothing, and its cached library stays a few kilobytes.
_EMPTY_KERNEL = """
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C" void kernel(float* out_ptr0) {}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphBreak:
    """A place that ends a graph, or that leaves the function around it to Python."""

    reason: str  # first line of the compiler's reason
    path: str = ""  # of the file of the innermost line outside of torch; empty where unknown
    line: int = 0  # 0 where unknown

    def __str__(self) -> str:
        return f"{self.reason} at {Path(self.path).name}:{self.line}" if self.path else self.reason


@dataclass(slots=True)
class CompilerAccount:
    """What the compiler did since the last `take`."""

    num_graphs: int = 0  # graphs that were compiled
    num_recompiles: int = 0  # those of them that replaced an earlier graph of the same code
    compile_time_s: float = 0.0  # seconds inside the compiler, backward graphs included
    graph_breaks: tuple[GraphBreak, ...] = ()  # each place once
    recompile_reasons: tuple[str, ...] = ()  # why, first line of each


@dataclass(slots=True)
class CompilerCounters:
    """Reads torch's own records of its compilations; `take` gives what is new."""

    _num_seen_breaks: int = 0

    def take(self) -> CompilerAccount:
        """Return what was compiled since the last call, and forget it."""
        metrics = torch_private.take_compilation_records()
        frames = [m for m in metrics if getattr(m, "is_forward", True) is not False and m.graph_op_count]
        done = [frame for frame in frames if not frame.fail_type]
        again = [frame for frame in done if _compile_ordinal(frame.compile_id) > 0]
        reasons = {first_line(getattr(frame, "recompile_reason", None)) for frame in again} - {""}
        return CompilerAccount(
            num_graphs=len(done),
            num_recompiles=len(again),
            compile_time_s=sum(_seconds(metric) for metric in metrics),
            graph_breaks=tuple(dict.fromkeys([*self._new_breaks(), *_skipped_frames(metrics)])),
            recompile_reasons=tuple(sorted(reasons)),
        )

    def _new_breaks(self) -> list[GraphBreak]:
        known = torch_private.graph_break_records()
        first_new = self._num_seen_breaks if self._num_seen_breaks <= len(known) else 0  # a reset empties the list
        self._num_seen_breaks = len(known)
        return [_graph_break(one.reason, one.user_stack) for one in known[first_new:]]


def _graph_break(reason: str, stack: Sequence[Any]) -> GraphBreak:
    own = [frame for frame in stack if not frame.filename.startswith(LIBRARY_FOLDER)] or stack
    path, line = (own[-1].filename, own[-1].lineno or 0) if own else ("", 0)
    return GraphBreak(reason=_ADDRESS.sub("", first_line(reason)), path=path, line=line)


def _skipped_frames(metrics: Sequence[Any]) -> Iterator[GraphBreak]:
    """Yield breaks that leave a whole function to Python, as one inside a loop does; torch lists them nowhere else."""
    for metric in metrics:
        if metric.fail_type and metric.fail_user_frame_filename:
            yield GraphBreak(
                reason=_ADDRESS.sub("", first_line(metric.fail_reason)),
                path=metric.fail_user_frame_filename,
                line=metric.fail_user_frame_lineno or 0,
            )


def _compile_ordinal(compile_id: str | None) -> int:
    """Return the second number of torch's `frame/ordinal[_attempt]` compile id: 0 for a first compilation."""
    try:
        return int(str(compile_id).split("/")[1].split("_")[0])
    except (IndexError, ValueError):
        return 0


def _seconds(metric: Any) -> float:
    """Wall seconds of one compilation record: the frame's own for a forward, the lazy backward's otherwise."""
    duration_us = getattr(metric, "duration_us", None)
    return duration_us / 1e6 if duration_us else (metric.entire_frame_compile_time_s or 0.0)


def repeated_classes(workload: Workload) -> list[type[torch.nn.Module]]:
    """Return the classes of the blocks that the workload's modules repeat with other weights."""
    repeats = [r for module in workload.compiled_modules for r in find_repeats(module, min_copies=MIN_REGION_COPIES)]
    return list(dict.fromkeys(type(repeat.container[repeat.start]) for repeat in repeats))


def nest(block_classes: Sequence[type[torch.nn.Module]]) -> None:
    """Make the forward pass of every block of these classes a nested region, for this whole process."""
    for block_class in block_classes:
        block_class.forward = torch.compiler.nested_compile_region(block_class.forward)
    torch_private.trace_region_schemas_once()


def feasible_mode(workload: Workload, wanted: SharedMode, block_classes: Sequence[type[torch.nn.Module]]) -> SharedMode:
    """Give the wanted kind of shared program, or the next one that this workload allows.

    Inductor's convolutions fail at run time with an unbacked number of samples (seen with torch 2.13 on the CPU: the
    strides that it expects are not those that it gets), so that they start with a backed one where they cannot be
    hidden from it. On CUDA they are never hidden: Inductor may give them the layout channels-last there
    (`decide_layout_opt` in torch/_inductor/graph.py), hidden ones keep the one that they get, and the shared program
    would have another speed and other memory than the exact one. See `choose_layout_as_for_a_number`.
    """
    device_type = torch.device(workload.job.device).type
    modules = _all_modules(workload)
    is_hidden = device_type == "cpu" and can_be_opaque(modules)
    order = shared_modes(device_type, torch.__version__)
    allowed = set(
        shared_modes(device_type, torch.__version__, has_convolutions=has_convolutions(modules) and not is_hidden)
    )
    if not block_classes or workload.is_compiled_by_block:
        allowed.discard(SharedMode.NESTED)
    if not torch_private.CAN_MARK_UNBACKED:
        allowed -= {SharedMode.NESTED, SharedMode.UNBACKED}
    return next(mode for mode in order[order.index(wanted) :] if mode in allowed)


def compile_workload(
    workload: Workload,
    settings: CompileSettings,
    compilation: Compilation,
    shared_mode: SharedMode,
    block_classes: Sequence[type[torch.nn.Module]],
    *,
    largest_size: int | None = None,
) -> None:
    """Compile the workload's modules in place; nothing is built before the first pass.

    Without a `largest_size` a shared program is compiled again wherever other kernels would be chosen.
    """
    if compilation is Compilation.EAGER or not settings.enabled:
        return
    torch_private.keep_activations_within(workload.job.activation_memory_budget)
    if compilation is Compilation.SHARED and shared_mode.serves_every_size:
        torch_private.compute_constants_at_run_time()
        torch_private.check_batch_statistics_at_run_time()
        if has_convolutions(_all_modules(workload)):
            make_convolutions_opaque()
    if compilation is Compilation.SHARED and shared_mode is SharedMode.DYNAMIC:
        torch_private.choose_layout_as_for_a_number()
        if largest_size is not None:
            torch_private.choose_kernels_for_largest(largest_size)
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
    batch: Batch,
    dimensions: list[int | None] | None,
    mode: SharedMode,
    *,
    hint: int | None = None,
    growth: float | None = None,
) -> None:
    """Declare the sample dimension of every tensor of a batch symbolic, and nothing else.

    Args:
        batch: Pytree of tensors.
        dimensions: Sample dimension of each tensor leaf, None for a tensor without one; None where the structure of
            the batch is not known (a list of samples, say), so that nothing can be marked.
        hint: The number of samples that the compiler is to choose kernels for where it must not rely on any; None for
            its own default, which is thousands. It is not guarded: another one compiles nothing anew.
        growth: The largest number of samples over that of this batch; None where it is not known.
    """
    if mode is SharedMode.STATIC or dimensions is None:
        return
    tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    for index, tensor in enumerate(tensors):
        dimension = dimensions[index]
        if dimension is None or tensor.dim() == 0:
            continue
        if mode is SharedMode.DYNAMIC:
            torch_private.mark_dynamic(tensor, dimension)
            if growth is not None:
                torch_private.expect_length(tensor.shape[dimension], math.ceil(tensor.shape[dimension] * growth))
        else:
            torch_private.mark_unbacked(tensor, dimension, hint=hint)


def _all_modules(workload: Workload) -> list[torch.nn.Module]:
    return [part for module in workload.compiled_modules for part in module.modules()]


class Toolchain:
    """The C++ compiler of this machine, made ready while the processors have little else to do.

    Inductor compiles small programs to learn which vector instructions work, and precompiles its large header. Neither
    depends on the job. Measured with torch 2.13 and GCC 12 on two cores: 8.5 s and 5.7 s of a first compilation of
    28.9 s.
    """

    def __init__(self, job: Job, *, is_compiled: bool) -> None:
        self._thread: threading.Thread | None = None
        on_cpu = torch.device(job.device).type == "cpu"
        if on_cpu and is_compiled and job.compile.uses_inductor:
            self._thread = threading.Thread(target=_compile_nothing, daemon=True)
            self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether it still works, so that the processors are not free."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Return once it works no more."""
        if self._thread is not None:
            self._thread.join()


def _compile_nothing() -> None:
    try:
        torch_private.compile_cpp_kernel(_EMPTY_KERNEL)
    except Exception:  # of any kind: the job's own compilation meets it again, and that one is reported
        pass


def keep_artifacts_in(folder: Path) -> None:
    """Let the compiler of this process read and write only in a folder, which the user's training may start from.

    It is a folder of Inductor's own cache: on the CPU `torch.compiler.save_cache_artifacts` leaves the compiled
    libraries out (seen with torch 2.13), and a cache of its own makes the compile seconds of the final answer cold
    ones. Trials of the processor's instructions are copied: they are the machine's, and cost seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for source in torch_private.compiler_cache_dir().glob("??/*.cpp"):
        library = source.with_suffix(".so")
        if source.stat().st_size <= _LARGEST_TRIAL_BYTES and library.is_file():
            place = folder / source.parent.name
            place.mkdir(exist_ok=True)
            for file in (source, library):
                shutil.copy2(file, place / file.name)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder.resolve())
