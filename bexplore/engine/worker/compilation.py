"""Compiles a workload: which program, what of it is symbolic, which blocks are regions; readies and keeps its tools."""

from __future__ import annotations

import math
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from bexplore.engine.protocol.shared_mode import SharedMode, shared_modes
from bexplore.engine.worker import torch_private
from bexplore.engine.worker.opaque_convolution import can_be_opaque, has_convolutions, make_convolutions_opaque
from bexplore.job import CompileSettings, Job
from bexplore.measurement.probe import Compilation
from bexplore.trace.repeated_blocks import find_repeats
from bexplore.workloads import Batch, Workload

# Blocks of one class from which on they are compiled once, as a nested region, instead of one by one.
MIN_REGION_COPIES = 3
# The programs with which Inductor tries vector instructions have 151 to 459 bytes, the smallest kernel 4.8 kB. Bytes.
_LARGEST_TRIAL_BYTES = 1024
# What every kernel of Inductor's begins with; it does nothing, and its cached library stays a few kilobytes.
_EMPTY_KERNEL = """
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C" void kernel(float* out_ptr0) {}
"""


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

    Args:
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

    Args:
        block_classes: Of the blocks that are compiled once in a nested one; see `repeated_classes`.
        largest_size: Samples, for which a shared program's kernels are chosen where it depends on their number; None to
            compile again where another kernel would be chosen.
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

    Args:
        job: Decides whether any C++ is compiled at all.
    """

    def __init__(self, job: Job, *, is_compiled: bool) -> None:
        self._thread: threading.Thread | None = None
        on_cpu = torch.device(job.device).type == "cpu"
        if on_cpu and is_compiled and job.compile.enabled and job.compile.backend == "inductor":
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
