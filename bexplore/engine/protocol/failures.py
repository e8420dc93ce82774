"""Reads a failure once: exception, exit status or kernel record -> outcome and reason.

Known exception types come first, then one table of messages. What neither names is a crash of the user's program:
a bug is never reported as "too big".
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bexplore.errors import EngineError, UnusableSizeError, find_failing_line, first_line
from bexplore.host.causes import find_cause, find_place, join_explanation, list_causes
from bexplore.measurement.probe import Outcome

CACHE_OF_COMPILER = "TORCHINDUCTOR_CACHE_DIR"  # names the folder in which Inductor builds
# Message fragment -> reason. Matched against `RuntimeError` and what derives from it, so that a user's own text about
# memory in another exception cannot turn a bug into a size limit. Sources: files of torch 2.13 where nothing else is
# named.
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
    # NCCL: src/include/alloc.h
    (r"Failed to CUDA (calloc|malloc|host alloc)", "NCCL could not allocate its buffers"),
    # Unified Runtime: ur_api.h, which SYCL's exceptions name
    (r"UR_RESULT_ERROR_OUT_OF_(DEVICE|HOST)_MEMORY", "the XPU driver was refused memory"),
    (r"std::bad_alloc|bad allocation", "a native allocation was refused memory"),
    # oneDNN: src/common/memory.cpp and primitive.hpp
    (r"could not create a (memory|primitive)( object)?$", "oneDNN was refused memory"),
    # aten/src/ATen/MapAllocator.cpp: mappings of shared memory, with strerror of ENOMEM
    (r"unable to (mmap|allocate shared memory)\b.*Cannot allocate memory", "the kernel was refusing memory"),
    (r"unable to write to file </torch_.*No space left on device", "the loader's processes had no shared memory left"),
    # numpy/_core/_exceptions.py, as torch/_utils.py passes it on from a process of a loader
    (r"_ArrayMemoryError: Unable to allocate", "numpy was refused memory"),
    # torch/utils/data/_utils/signal_handling.py: a mapping of shared memory that has no page left
    (r"killed by signal: Bus error", "the loader's processes had no shared memory left"),
)

# Exceptions that are refusals of memory, whatever they say; subclasses count.
OUT_OF_MEMORY_TYPES = ("OutOfMemoryError", "MemoryError")

# What an allocator writes where it refuses memory, with its figures or with the words around them: the output of a
# program is read by these, for advice, options and warnings mention the same errors. Sources: as above; and
# libstdc++: libsupc++/vterminate.cc.
_REFUSALS_IN_OUTPUT = (
    r"DefaultCPUAllocator: (can't allocate memory|not enough memory): you tried to allocate \d+ bytes",
    r"(CUDA|HIP|XPU) out of memory\. Tried to allocate [\d.]+ [KMGT]?i?B",
    r"MPS backend out of memory \(MPS allocated: ",
    r"(CUBLAS|HIPBLAS|CUSOLVER)_STATUS_ALLOC_FAILED when calling ",
    r"cuDNN error: CUDNN_STATUS_(ALLOC_FAILED|INTERNAL_ERROR_(DEVICE|HOST)_ALLOCATION_FAILED)",
    r"Cuda failure (\d+ )?'out of memory'",
    r"Failed to CUDA (calloc|malloc|host alloc)( async)? \d+ bytes",
    r"^\s*what\(\):\s+std::bad_alloc",
    r"Unable to allocate [\d.]+ [KMGT]?i?B for an array with shape",
    r"(UR_RESULT_ERROR_OUT_OF_(DEVICE|HOST)_MEMORY)\)",
)
# The last lines of a program's output, without indented ones and native frames, among which a refusal counts as what
# ended it. Source: a judgement: the lines of a logger, and the report of a launcher with eight ranks.
LAST_LINES = 40
# The last line of a Python traceback, with a rank before it where a launcher adds one.
_ERROR_LINE = re.compile(r"^(?:\[?rank\d+\]?:\s?)?([A-Za-z_][\w.]*):\s(.*)$")
_ENDS_WITH_ERROR = ("Error", "Exception", "Interrupt", "Exit", "Group")
# Classes that derive from `RuntimeError`, as the last line of a traceback names them: torch/csrc/Exceptions.cpp.
_ERRORS_OF_RUN_TIME = ("AcceleratorError", "DistBackendError", "DistError", "BackendCompilerFailed", "InductorError")
_TRACEBACK = re.compile(r"^(?:\[?rank\d+\]?:\s*)?\s*(?:\+ Exception Group )?Traceback \(most recent call last\):$")
# In the message of an error that was raised anew: torch/_utils.py (ExceptionWrapper, of a DataLoader or a replica
# of DataParallel) and torch/multiprocessing/spawn.py (ProcessRaisedException).
_INNER_TRACEBACK = re.compile(r"^(?:Original )?Traceback \(most recent call last\):$", re.MULTILINE)
# Lines of loggers that are no reason of an end: torch/_logging/_internal.py (`W1126 12:00:00.123000 17 torch/x.py:5]`,
# with a rank before it), its C++ part in brackets (c10/util/Logging.cpp), the default of Python's `logging`, and
# `USDT:2026-11-27 17:24:31 17:17 x.cpp:59]` of its profiler (kineto: libkineto/src/Logger.cpp).
_LOG_LINE = re.compile(
    r"^(\[?rank\d+\]?:\s?)?([VIWEC]\d{4} [\d:.]+ |\[[VIW]\d{4} [\d:.]+ |(DEBUG|INFO|WARNING):[\w.]+:"
    r"|(VERBOSE|INFO|WARNING|STAGE|USDT):\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \d+:\d+ "
    # with a time: %(asctime)s of logging, Hydra, loguru, DeepSpeed, MONAI; transformers/utils/logging.py; rich
    r"|\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d.{0,80}?\b(DEBUG|INFO|WARNING)\b|\[(DEBUG|INFO|WARNING)\|"
    r"|\[[\d/ :]+\] +(DEBUG|INFO|WARNING)\b)"
)
# What stands below the reason and does not tell it: how to see more, details, what wraps the command. Sources:
# hydra/_internal/utils.py; omegaconf/_utils.py, format_and_raise; click's UsageError, argparse; fire/core.py; tyro;
# torch: c10/cuda/CUDAException.cpp, _dynamo/exc.py; torchrun's table of failures; GNU make; conda/cli/main_run.py.
_ADVICE_LINE = re.compile(
    r"^(\[?rank\d+\]?:\s?)?\s*(Set the environment variable HYDRA_FULL_ERROR"
    r"|(full_key|reference_type|object_type)\s*[:=]"
    r"|Try ['\"`].*--?h(elp)?\b|For (more|further|detailed|full) (info|information|details|helptext)\b"
    r"|\S+ (\S+ )*--help$|To enable traceback please see|(CUDA|HIP) kernel errors might be asynchronous"
    r"|For debugging consider passing (CUDA|AMD|HIP)_|Compile with `?TORCH_USE_|Device-side assertion tracking"
    r"|Set TORCHDYNAMO_VERBOSE=1|For even more developer context|make(\[\d+\])?: \*\*\* |ERROR conda\.cli\.main_run"
    r"|[=-]{20,}$)",
    re.IGNORECASE,
)
_WARNING_LINE = re.compile(r"^(\[?rank\d+\]?:\s?)?(?:\S+|.+\.py):\d+: \w*Warning: ")
# The box around a message of typer or tyro: rich/box.py.
_SIDES = " \u2502\u2503"
_FRAMES = re.compile(r"[\u2500-\u257f\s]+$|[\u256d\u250c].*[\u256e\u2510]$")
# A full disk, by strerror(3) of ENOSPC and EDQUOT, which programs in any language print; and what is no disk: segments
# that processes of a loader share, which take memory (torch/csrc/StorageSharing.cpp).
_FULL_DISK = re.compile(r"No space left on device|Disk quota exceeded|\[Errno (28|122)\]")
# torch/_inductor/exc.py: InvalidCxxCompiler.
_NO_COMPILER = re.compile(r"InvalidCxxCompiler: (No working C\+\+ compiler found|Compiler: \S+ is not found)")
_COMPILE_ERROR = "CppCompileError: "  # there, too
# What Python says of a path that the system refuses.
_REFUSED_PATH = re.compile(r"Error: \[Errno \d+\] ([^:\n]+): '([^'\n]+)'")
# Of a library whose linker was killed, which Inductor takes for a whole one ever after. Messages: glibc, elf/dl-load.c.
_CUT_LIBRARY = re.compile(r"ImportError: (/\S+\.so): (file too short|invalid ELF header|cannot read file data)")
_SHARED_MEMORY = re.compile(r"</torch_|/dev/shm")
# What stands in a traceback between an exception and what led to it: Lib/traceback.py.
_CONTINUED = "the above exception"
# Errors of launchers: torch/distributed/elastic and torch/multiprocessing/spawn.py; of those that start a subprocess.
_LAUNCHER_TYPES = (
    "ChildFailedError",
    "SignalException",
    "ProcessRaisedException",
    "ProcessExitedException",
    "CalledProcessError",
)
# torch/utils/data/_utils/signal_handling.py and torch/csrc/DataLoader.cpp.
_LOADER_KILLED = re.compile(r"DataLoader worker \(pid.*?\) (?:is killed by signal: ([\w ]+)|exited unexpectedly)")
# What srun writes of tasks that end badly, as strsignal(3) names it or as Slurm's limit of memory: its signal; None for
# the limit. Source: src/srun/libsrun/launch.c, _task_finish.
_ENDS_BY_SRUN: dict[str, signal.Signals | None] = {
    "Killed": signal.SIGKILL,
    "Out Of Memory": None,
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Terminated": signal.SIGTERM,
    "Bus error": signal.SIGBUS,
}
_END_BY_SRUN = re.compile(rf"^srun: error: \S+: tasks? ([\d,-]+): ({'|'.join(_ENDS_BY_SRUN)})", re.MULTILINE)
# The report of torch/distributed/elastic/multiprocessing/errors/__init__.py: each failed rank, the first one last.
_END_BY_TORCHRUN = re.compile(r"^\s*rank\s*:\s*(\d+).*?^\s*exitcode\s*:\s*(-?\d+)", re.MULTILINE | re.DOTALL)
_ROOT_CAUSE = "Root Cause"
_SHELL_STATUS = 128  # and the signal's number: POSIX, Shell Command Language, 2.8.2 Exit Status for Commands

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
    """How a probe failed."""

    outcome: Outcome  # never `measured`
    reason: str  # one line for people
    traceback_text: str = ""  # whole traceback; empty where there is no Python exception
    exception_type: str = ""  # name of the exception's class; empty where there is none
    # Whether an allocator refused memory and nothing else happened, so that its process may go on.
    is_clean: bool = False
    is_sticky: bool = False  # whether the device may fail at whatever this process requests of it next
    is_in_compiler: bool = False  # whether the compiler raised it, judged by its type; see `is_compiler_failure`
    ended_by: str = ""  # the signal that ended the process, where nothing shows that memory was short; empty for none


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """How ranks ended, as their launcher wrote it."""

    ranks: tuple[int, ...]
    shown: str  # the same as the launcher writes them, such as `1-3`
    return_code: int | None  # as `subprocess` gives it; None where Slurm ended them at the memory limit of the job
    is_root_cause: bool = False  # whether the launcher names it as the first failure


def read_ends_by_srun(log: str) -> list[RankEnd]:
    """Return the tasks that srun reports as ended by a signal or by Slurm, in the order of the log."""
    found = []
    for shown, end in _END_BY_SRUN.findall(log):
        number = _ENDS_BY_SRUN[end]
        ranges = [part.partition("-") for part in shown.split(",") if part.strip("-")]
        ranks = [rank for first, _, last in ranges for rank in range(int(first), int(last or first) + 1)]
        found.append(RankEnd(ranks=tuple(ranks), shown=shown, return_code=None if number is None else -number))
    return found


def read_ends_by_torchrun(log: str) -> list[RankEnd]:
    """Return the failed ranks of torchrun's report, in its order: the root cause is the last."""
    root_at = log.find(_ROOT_CAUSE)
    return [
        RankEnd(ranks=(int(one[1]),), shown=one[1], return_code=int(one[2]), is_root_cause=0 <= root_at < one.start())
        for one in _END_BY_TORCHRUN.finditer(log)
    ]


def classify_exception(error: BaseException, *, device_is_full: Callable[[], bool] = lambda: False) -> Failure:
    """Name the outcome of an exception that left the user's step.

    `device_is_full` is called where the text alone does not show whether memory was short.
    """
    kind = type(error).__name__
    if isinstance(error, UnusableSizeError):
        return Failure(outcome=Outcome.CRASHED, reason=str(error), exception_type=kind)
    is_in_compiler = is_compiler_failure(error)
    refusal = _refusal(error, OUT_OF_MEMORY_MESSAGES)
    if refusal is None:
        refusal = _refusal(error, AMBIGUOUS_MESSAGES)
        refusal = refusal if refusal and device_is_full() else None
    if refusal:
        memory_reason, link = refusal
        outcome, reason = Outcome.OUT_OF_MEMORY, f"{memory_reason}: {telling_line(link)}"
    else:
        outcome = Outcome.COMPILE_FAILED if is_in_compiler else Outcome.CRASHED
        place = find_place(error)
        reason = f"{kind}: {_say(error, is_in_compiler)}" + (f" ({place})" if place else "")
    return Failure(
        outcome=outcome,
        reason=reason,
        traceback_text="".join(traceback.format_exception(error)),
        exception_type=kind,
        is_clean=outcome is Outcome.OUT_OF_MEMORY and not is_in_compiler and _is_clean(error),
        is_sticky=outcome is not Outcome.OUT_OF_MEMORY and _is_sticky(error),
        is_in_compiler=is_in_compiler,
        ended_by="" if refusal else next(filter(None, (signal_of_loader(str(link)) for link in _chain(error))), ""),
    )


def _say(error: BaseException, is_in_compiler: bool) -> str:
    """Return what an exception says, and of one of the compiler's what caused it, where it does not say that."""
    text, cause = telling_line(error), find_cause(error)
    words = telling_line(cause)
    return f"{text.rstrip(': ')}: {type(cause).__name__}: {words}" if is_in_compiler and words not in text else text


def is_compiler_failure(error: BaseException) -> bool:
    """Return whether torch.compile, not the user's code, raised this, judged by its type.

    Dynamo reports some errors of the user's own code under its own types (a shape error seen with fake tensors, say),
    so a True here is checked against an eager pass.
    """
    return any(type(link).__module__.startswith(COMPILER_MODULES) for link in list_causes(error))


def classify_exit(
    return_code: int | None, *, killed_by_kernel: bool, last_output: str, what: str = "the worker"
) -> Failure:
    """Name the outcome of a worker that ended without an answer."""
    if return_code == -signal.SIGKILL and killed_by_kernel:
        return Failure(outcome=Outcome.OUT_OF_MEMORY, reason=f"the kernel's out-of-memory killer ended {what}")
    refused = refusal_in_output(last_output)
    if refused:
        reason = f"{what} ended after it wrote: {first_line(refused)}"
        return Failure(outcome=Outcome.OUT_OF_MEMORY, reason=reason, traceback_text=last_output)
    ended_by = signal_name(return_code)
    if return_code is None:
        how = f"{what} closed its pipe without an answer"
    elif ended_by:
        how = f"{what} was ended by {ended_by}"
    else:
        how = f"{what} exited with status {return_code} without an answer"
    return Failure(outcome=Outcome.CRASHED, reason=how, traceback_text=last_output, ended_by=ended_by)


def signal_name(return_code: int | None) -> str:
    """Return the signal that ended a process, by its status (negative) or by a shell's of it (128 and its number)."""
    number = 0 if return_code is None else -return_code if return_code < 0 else return_code - _SHELL_STATUS
    known = {one.value: one.name for one in signal.Signals}
    return known.get(number, f"signal {number}" if return_code is not None and return_code < 0 else "")


def find_host_error(text: str) -> EngineError | None:
    """Return the error of the host that a traceback or a last line of output shows: a full disk, no compiler, no cache.

    It is no failure of the user's program: any size would fail, and all go on once the host is in order.
    """
    if _NO_COMPILER.search(text):
        return EngineError(
            f"torch.compile needs a C++ compiler, and {os.environ.get('CXX') or 'g++'} is not on PATH",
            hint="apt install g++, or name another one: export CXX=clang++; a job that trains without torch.compile "
            "has explore.compile: false",
        )
    cache = os.environ.get(CACHE_OF_COMPILER) or str(Path(tempfile.gettempdir(), "torchinductor_"))
    if _COMPILE_ERROR in text and not can_compile_in(cache):
        return EngineError(
            f"torch.compile builds nothing in {cache}: it splits its commands at blanks",
            hint=f"export {CACHE_OF_COMPILER}=/tmp/torchinductor, or another folder without blanks and quotes",
        )
    cut = _CUT_LIBRARY.search(text)
    if cut is not None and cut[1].startswith(cache):
        return EngineError(
            f"the compiler's cache has a library that was cut off as it was built: {cut[1]}",
            hint=f"rm {shlex.quote(cut[1])}, then run the same command again: it goes on from here",
        )
    lines = [line.strip() for line in without_logs(text) if _FULL_DISK.search(line) and not _SHARED_MEMORY.search(line)]
    if lines:
        return EngineError(
            f"a disk is full: {first_line(lines[-1])}",
            hint=f"make room there (temporary files are in {os.environ.get('TMPDIR', '/tmp')}), then run the same "
            "command again: it goes on from here",
        )
    for why, path in _REFUSED_PATH.findall(text):
        if path.startswith(cache):
            return EngineError(
                f"the compiler's cache cannot be used: {why}: {path}",
                hint=f"let it be written, or name another folder: export {CACHE_OF_COMPILER}=/tmp/torchinductor",
            )
    return None


def can_compile_in(folder: str | Path) -> bool:
    """Return whether a folder is one word of a shell, as the compiler's commands are split.

    Source: `_run_compile_cmd` in torch/_inductor/cpp_builder.py.
    """
    try:
        return shlex.split(str(folder)) == [str(folder)]
    except ValueError:  # a single quote
        return False


def describe_exit(return_code: int) -> str:
    """Return how a process ended, for people: by which signal, else with which status."""
    name = signal_name(return_code)
    return f"was ended by {name}" if name else f"ended with status {return_code}"


def last_line(text: str) -> str:
    """Return the last line of what a program wrote that may say why it ended; empty for none.

    What a library logs while all is well, warnings, and advice below an error are no reason.
    """
    lines = (line.strip(_SIDES) for line in reversed(without_logs(text)))
    return next((line.strip() for line in lines if line.strip() and not _FRAMES.match(line)), "")


def without_logs(text: str) -> list[str]:
    """Return the lines of an output, but for those of libraries' loggers, of warnings and of advice."""
    lines, is_of_warning = [], False
    for line in text.splitlines():
        is_code = is_of_warning and line.startswith("  ")  # the line of code that a warning shows below itself
        is_of_warning = _WARNING_LINE.search(line) is not None
        if not (is_code or is_of_warning or _LOG_LINE.search(line) or _ADVICE_LINE.search(line)):
            lines.append(line)
    return lines


def signal_of_loader(message: str) -> str:
    """Return the signal that ended a process of a DataLoader, by the message of its error; empty for none."""
    found = _LOADER_KILLED.search(message)
    if found is None:
        return ""
    named = {signal.strsignal(one): one.name for one in signal.Signals}
    return named.get(found[1], signal.SIGKILL.name)  # nothing else ends one unexpectedly


def refusal_in_output(text: str) -> str:
    """Return the line of a program's last output in which memory was refused; empty for none.

    A line counts where it is the last of a traceback, or where it is what an allocator writes. Another error that ends
    the output after it shows that the program survived the refusal.
    """
    lines = [line for line in without_logs(text) if line.strip()]
    told = [index for index, line in enumerate(lines) if not line.startswith((" ", "frame #"))]
    lines = lines[told[-LAST_LINES] if len(told) > LAST_LINES else 0 :]
    found = next((index for index in reversed(range(len(lines))) if _is_refusal(lines[index])), None)
    return "" if found is None or _has_another_error(lines[found + 1 :]) else lines[found].strip()


def is_of_launcher(kind: str, message: str) -> bool:
    """Return whether an exception only says that another process failed."""
    return kind in _LAUNCHER_TYPES or LOST_CONNECTION.search(f"{kind}: {message}") is not None


def refusal_reason(kinds: Sequence[str], message: str, messages: Sequence[tuple[str, str]]) -> str | None:
    """Return why an exception is a refusal of memory; None where it is none.

    `kinds` are the names of its class and of those that it derives from.
    """
    if not set(kinds).isdisjoint(OUT_OF_MEMORY_TYPES):
        return "the allocator was refused memory"
    if "OSError" in kinds and message.startswith(f"[Errno {errno.ENOMEM}]"):
        return "the kernel was refusing memory"
    if "RuntimeError" in kinds:
        return next((why for pattern, why in messages if re.search(pattern, message, re.MULTILINE)), None)
    return None


def _has_another_error(lines: Sequence[str]) -> bool:
    """Return whether a traceback follows that neither goes on with the one before nor is a launcher's."""
    is_another = goes_on = False
    for line in lines:
        goes_on = goes_on or _CONTINUED in line.lower()
        if _TRACEBACK.search(line):
            is_another, goes_on = not goes_on, False
        error = _ERROR_LINE.match(line.strip())
        if is_another and error and not line.startswith(" ") and error[1].endswith(_ENDS_WITH_ERROR):
            if not is_of_launcher(error[1].rpartition(".")[2], error[2]):
                return True
            is_another = False
    return is_another


def _is_refusal(line: str) -> bool:
    error = _ERROR_LINE.match(line.strip())
    if error is None:
        is_named = re.fullmatch(r"([\w.]+\.)?(\w+)", line.strip())
        if is_named:
            return is_named[2] in OUT_OF_MEMORY_TYPES
        return any(re.search(pattern, line) for pattern in _REFUSALS_IN_OUTPUT)
    name, message = error[1].rpartition(".")[2], error[2]
    if name.endswith(_ENDS_WITH_ERROR):
        kinds = (name, "MemoryError") if name == "_ArrayMemoryError" else (name,)
        kinds = (*kinds, "RuntimeError") if name in _ERRORS_OF_RUN_TIME else kinds
        return refusal_reason(kinds, message, OUT_OF_MEMORY_MESSAGES) is not None
    return any(re.search(pattern, line) for pattern in _REFUSALS_IN_OUTPUT)


def find_inner_error(message: str) -> str:
    """Return the exception of another process or thread of which a message holds the traceback; empty for none.

    Its class and message, of several lines where that has some; the innermost, where it holds another one.
    """
    *_, after = _INNER_TRACEBACK.split(message)
    lines = after.splitlines() if after != message else []
    first = next((index for index, line in enumerate(lines) if line.strip() and not line.startswith(" ")), len(lines))
    return "\n".join(lines[first:]).strip()


def telling_line(error: BaseException) -> str:
    """Return the line of an exception's message that says what went wrong: the first.

    Where the message holds the traceback of another process or thread, that one's. A line that ends with a colon
    (`backend='inductor' raised:`) takes the next one along. Without a message it is the line of source that raised.
    """
    message = find_inner_error(str(error)).removeprefix(f"{type(error).__name__}: ") or str(error)
    lines = join_explanation([line.strip() for line in without_logs(message) if line.strip()])
    if len(lines) > 1 and lines[0].endswith(":"):
        lines[0] = f"{lines[0]} {lines[1]}"
    if not lines:  # a bare assertion says by its source alone what does not hold
        lines = [find_failing_line("".join(traceback.format_exception(error))) or type(error).__name__]
    return first_line(lines[0])


def _chain(error: BaseException) -> list[BaseException]:
    """Return all that led to an exception, the nearest first: causes, what was being handled, members of a group.

    `raise ... from None` hides from a reader what was being handled; it led to the exception none the less.
    """
    links: dict[int, BaseException] = {}
    waiting = [error]
    while waiting:
        link = waiting.pop(0)
        if id(link) in links:
            continue
        links[id(link)] = link
        members = link.exceptions if isinstance(link, BaseExceptionGroup) else ()
        others = (link.__cause__, getattr(link, "inner_exception", None), link.__context__, *members)
        waiting.extend(one for one in others if isinstance(one, BaseException))
    return list(links.values())


def _refusal(error: BaseException, messages: Sequence[tuple[str, str]]) -> tuple[str, BaseException] | None:
    """Return why memory was refused, and the exception that says so; None where none does."""
    for link in _chain(error):
        kinds = [kind.__name__ for kind in type(link).__mro__]
        reason = refusal_reason(kinds, str(link), messages)
        if reason is not None:
            return reason, link
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
