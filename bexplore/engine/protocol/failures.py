"""Reads a failure once: exception, exit status or kernel record -> outcome and reason.

Known exception types come first, then one table of messages. What neither names is a crash of the user's program:
a bug is never reported as "too big".
"""

from __future__ import annotations

import re
import signal
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bexplore.errors import UnusableSizeError, first_line
from bexplore.measurement.probe import Outcome

# Message fragment -> reason. Matched against RuntimeError and MemoryError only, so that a user's own text about memory
# in another exception cannot turn a bug into a size limit. Sources: files of torch 2.13 where nothing else is named.
OUT_OF_MEMORY_MESSAGES: tuple[tuple[str, str], ...] = (
    # c10/core/impl/alloc_cpu.cpp
    (r"DefaultCPUAllocator: (can't allocate memory|not enough memory)", "the CPU allocator was refused memory"),
    # c10/cuda/CUDACachingAllocator.cpp; of HIP its translation
    (r"CUDA out of memory", "the CUDA allocator was refused memory"),
    (r"HIP out of memory", "the HIP allocator was refused memory"),
    # c10/xpu/XPUCachingAllocator.cpp
    (r"XPU out of memory", "the XPU allocator was refused memory"),
    # aten/src/ATen/mps/MPSAllocator.mm
    (r"MPS backend out of memory", "the MPS allocator was refused memory"),
    # c10/cuda/CUDAException.cpp, with cudaGetErrorString of cudaErrorMemoryAllocation
    (r"CUDA error: out of memory", "the CUDA driver was refused memory"),
    (r"HIP error: out of memory", "the HIP driver was refused memory"),
    # c10/cuda/driver_api.h: expandable segments; Inductor's static launcher
    (r"CUDA driver error: out of memory", "the CUDA driver was refused memory"),
    # Triton: third_party/nvidia/backend/driver.c and third_party/amd/backend/driver.c, gpuAssert
    (r"Triton Error \[(CUDA|HIP)\]: out of memory", "Triton could not load a kernel for lack of memory"),
    # aten/src/ATen/cuda/CUDABlas.cpp, _cublasGetErrorEnum
    (r"(CUBLAS|HIPBLAS)_STATUS_ALLOC_FAILED", "cuBLAS could not allocate its workspace"),
    # aten/src/ATen/cuda/Exceptions.h, with cudnnGetErrorString; the longer names are those of cuDNN 9 (cudnn_graph.h)
    (r"CUDNN_STATUS_ALLOC_FAILED", "cuDNN could not allocate its workspace"),
    (r"CUDNN_STATUS_INTERNAL_ERROR_(DEVICE|HOST)_ALLOCATION_FAILED", "cuDNN could not allocate its workspace"),
    # aten/src/ATen/cuda/Exceptions.h, with cusolverGetErrorMessage
    (r"CUSOLVER_STATUS_ALLOC_FAILED", "cuSOLVER could not allocate its workspace"),
    # NCCL: src/include/checks.h, CUDACHECK; from 2.19 with the error's number
    (r"Cuda failure (\d+ )?'out of memory'", "NCCL could not allocate its buffers"),
    # Unified Runtime: ur_api.h, which SYCL's exceptions name
    (r"UR_RESULT_ERROR_OUT_OF_(DEVICE|HOST)_MEMORY", "the XPU driver was refused memory"),
    (r"std::bad_alloc|bad allocation", "a native allocation was refused memory"),
    # oneDNN: src/common/memory.cpp and primitive.hpp
    (r"could not create a (memory|primitive)( object)?$", "oneDNN was refused memory"),
)

# The same, but each is also the text of other faults: it counts only where the device's memory was nearly full.
AMBIGUOUS_MESSAGES: tuple[tuple[str, str], ...] = (
    # aten/src/ATen/cuda/CublasHandlePool.cpp: creating a handle takes memory of the device
    (r"(CUBLAS|HIPBLAS)_STATUS_NOT_INITIALIZED", "cuBLAS could not start on a device whose memory is full"),
    (r"CUDNN_STATUS_NOT_INITIALIZED", "cuDNN could not start on a device whose memory is full"),
    (r"CUDNN_STATUS_INTERNAL_ERROR", "cuDNN failed on a device whose memory is full"),
    # aten/src/ATen/native/cudnn/Conv_v8.cpp: a plan whose workspace is refused is passed over, until none is left
    (r"(GET|FIND) was unable to find an engine", "cuDNN had no memory for the workspace of any algorithm"),
    (r"CUSOLVER_STATUS_(NOT_INITIALIZED|INTERNAL_ERROR)", "cuSOLVER failed on a device whose memory is full"),
    (r"UR_RESULT_ERROR_OUT_OF_RESOURCES", "the XPU driver had no resources on a device whose memory is full"),
)

# After these every further call to the device fails in the same process, whatever it is. Source: CUDA Runtime
# API, section 6.3 "Error handling" of cudaError_t ("leaves the process in an inconsistent state"), texts by
# cudaGetErrorString; HIP has the same. The statuses of libraries are what they make of such an error.
STICKY_MESSAGES = (
    r"an illegal memory access was encountered",  # 700
    r"the launch timed out and was terminated",  # 702
    r"device-side assert triggered",  # 710
    r"hardware stack error",  # 714
    r"an illegal instruction was encountered",  # 715
    r"misaligned address",  # 716
    r"operation not supported on global/shared address space",  # 717
    r"invalid program counter",  # 718
    r"unspecified launch failure",  # 719
    r"uncorrectable ECC error encountered",  # 214
    r"uncorrectable NVLink error",  # 220
    r"Invalid access of peer GPU memory over nvlink",  # 226
    r"CUBLAS_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR)",
    r"CUDNN_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR)",
    r"UR_RESULT_ERROR_DEVICE_LOST",
)

# What a rank reports that lost another one: gloo's transport, NCCL's watchdog and store, and the kernel's own texts.
# Sources: gloo/transport/tcp/pair.cc and uv/device.cc; torch/csrc/distributed/c10d/NCCLUtils.cpp; errno(3).
LOST_CONNECTION = re.compile(
    r"Connection (closed|reset|refused)|Broken pipe|remote process (exited|has)|Socket (closed|Timeout)|"
    r"failed to recv|Application timeout caused pair closure|Timed out waiting .* for (recv|send) operation|"
    r"DistBackendError|DistNetworkError|DistStoreError"
)

# Exceptions that are defined here are the compiler's own.
COMPILER_MODULES = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch.fx.experimental")


# Of these, what an allocator says that has refused memory before anything was done with it. Whatever else lacks memory
# may leave a library, a device or a process half-way: oneDNN, once it could not create a primitive, creates none of any
# size (seen with torch 2.13).
CLEAN_REFUSALS = (
    r"DefaultCPUAllocator: (can't allocate memory|not enough memory)",
    r"^(CUDA|HIP|XPU) out of memory",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How a probe failed.

    Attributes:
        outcome: Never `measured`.
        reason: One line for people.
        traceback_text: Whole traceback; empty where there is no Python exception.
        exception_type: Name of the exception's class; empty where there is none.
        is_clean: Whether an allocator refused memory and nothing else happened, so that its process may go on.
        is_sticky: Whether the device may fail at whatever this process requests of it next.
        is_in_compiler: Whether the compiler raised it, judged by its type; see `is_compiler_failure`.
    """

    outcome: Outcome
    reason: str
    traceback_text: str = ""
    exception_type: str = ""
    is_clean: bool = False
    is_sticky: bool = False
    is_in_compiler: bool = False


def classify_exception(error: BaseException, *, device_is_full: Callable[[], bool] = lambda: False) -> Failure:
    """Name the outcome of an exception that left the user's step.

    Args:
        device_is_full: Called where the text alone does not show whether memory was short.
    """
    kind = type(error).__name__
    if isinstance(error, UnusableSizeError):
        return Failure(outcome=Outcome.CRASHED, reason=str(error), exception_type=kind)
    is_in_compiler = is_compiler_failure(error)
    memory_reason = _memory_reason(error, OUT_OF_MEMORY_MESSAGES)
    if memory_reason is None:
        memory_reason = _memory_reason(error, AMBIGUOUS_MESSAGES)
        memory_reason = memory_reason if memory_reason and device_is_full() else None
    if memory_reason:
        outcome, reason = Outcome.OUT_OF_MEMORY, f"{memory_reason}: {telling_line(error)}"
    elif is_in_compiler:
        outcome, reason = Outcome.COMPILE_FAILED, f"{kind}: {telling_line(error)}"
    else:
        place = _last_place(error)
        outcome, reason = Outcome.CRASHED, f"{kind}: {telling_line(error)}" + (f" ({place})" if place else "")
    return Failure(
        outcome=outcome,
        reason=reason,
        traceback_text="".join(traceback.format_exception(error)),
        exception_type=kind,
        is_clean=outcome is Outcome.OUT_OF_MEMORY and not is_in_compiler and _is_clean(error),
        is_sticky=outcome is not Outcome.OUT_OF_MEMORY and _is_sticky(error),
        is_in_compiler=is_in_compiler,
    )


def is_compiler_failure(error: BaseException) -> bool:
    """Return whether torch.compile, not the user's code, raised this, judged by its type.

    Dynamo reports some errors of the user's own code under its own types (a shape error seen with fake tensors, say),
    so a True here is checked against an eager pass.
    """
    return any(type(link).__module__.startswith(COMPILER_MODULES) for link in _chain(error))


def classify_exit(return_code: int | None, *, killed_by_kernel: bool, last_output: str) -> Failure:
    """Name the outcome of a worker that ended without an answer.

    Args:
        return_code: As `subprocess` gives it; negative for a signal; None if unknown.
        killed_by_kernel: Whether the kernel's out-of-memory killer struck meanwhile.
        last_output: Last lines that the worker wrote, kept for the reader.
    """
    if return_code == -signal.SIGKILL and killed_by_kernel:
        return Failure(outcome=Outcome.OUT_OF_MEMORY, reason="the kernel's out-of-memory killer ended the worker")
    if return_code is None:
        how = "the worker closed its pipe without an answer"
    elif return_code < 0:
        how = f"the worker was ended by {signal.Signals(-return_code).name}"
    else:
        how = f"the worker exited with status {return_code} without an answer"
    return Failure(outcome=Outcome.CRASHED, reason=how, traceback_text=last_output)


def telling_line(error: BaseException) -> str:
    """Return the line of an exception's message that says what went wrong: the first, but for two kinds.

    A DataLoader's message holds the traceback of its worker, whose last line is what went wrong. A line that ends with
    a colon (`backend='inductor' raised:`) takes the next one along.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and "in DataLoader worker process" in lines[0]:
        lines.reverse()
    if len(lines) > 1 and lines[0].endswith(":"):
        lines[0] = f"{lines[0]} {lines[1]}"
    return first_line(lines[0] if lines else error)


def _chain(error: BaseException) -> list[BaseException]:
    """Return the exception and its causes, outermost first."""
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in links:
        links.append(link)
        link = link.__cause__ or getattr(link, "inner_exception", None)
    return links


def _memory_reason(error: BaseException, messages: Sequence[tuple[str, str]]) -> str | None:
    for link in _chain(error):
        if type(link).__name__ in ("OutOfMemoryError", "MemoryError"):
            return "the allocator was refused memory"
        if isinstance(link, RuntimeError):
            for pattern, reason in messages:
                if re.search(pattern, str(link), re.MULTILINE):
                    return reason
    return None


def _is_clean(error: BaseException) -> bool:
    return any(re.search(clean, str(error), re.MULTILINE) for clean in CLEAN_REFUSALS)


def _is_sticky(error: BaseException) -> bool:
    """Return whether a device reported a fault that it may not recover from, in the table or not."""
    return any(
        type(link).__name__ == "AcceleratorError"
        or (isinstance(link, RuntimeError) and any(re.search(pattern, str(link)) for pattern in STICKY_MESSAGES))
        for link in _chain(error)
    )


def _last_place(error: BaseException) -> str:
    """Return `file:line` of the innermost frame outside torch, where the user should look first."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/torch/" not in frame.filename and "/bexplore/engine/" not in frame.filename]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""
