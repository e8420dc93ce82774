"""Reads a failure once: exception, exit status or kernel record -> outcome and reason.

Known exception types come first, then one table of messages. What neither names is a crash of the user's program:
a bug is never reported as "too big".
"""

from __future__ import annotations

import re
import signal
import traceback
from dataclasses import dataclass

from bexplore.probe import Outcome

# Message fragment -> reason. Matched against RuntimeError and MemoryError only, so that a user's own text about memory
# in another exception cannot turn a bug into a size limit.
OUT_OF_MEMORY_MESSAGES: tuple[tuple[str, str], ...] = (
    (r"DefaultCPUAllocator: (can't allocate memory|not enough memory)", "the CPU allocator was refused memory"),
    (r"CUDA out of memory", "the CUDA allocator was refused memory"),
    (r"HIP out of memory", "the HIP allocator was refused memory"),
    (r"XPU out of memory", "the XPU allocator was refused memory"),
    (r"MPS backend out of memory", "the MPS allocator was refused memory"),
    (r"CUBLAS_STATUS_ALLOC_FAILED", "cuBLAS could not allocate its workspace"),
    (r"CUDNN_STATUS_ALLOC_FAILED", "cuDNN could not allocate its workspace"),
    (r"CUDA error: out of memory", "the CUDA driver was refused memory"),
    (r"std::bad_alloc|bad allocation", "a native allocation was refused memory"),
    (r"could not create a (memory|primitive)( object)?$", "oneDNN was refused memory"),
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
    """

    outcome: Outcome
    reason: str
    traceback_text: str = ""
    exception_type: str = ""
    is_clean: bool = False


def classify_exception(error: BaseException) -> Failure:
    """Name the outcome of an exception that left the user's step."""
    text = "".join(traceback.format_exception(error))
    kind = type(error).__name__
    memory_reason = _out_of_memory_reason(error)
    if memory_reason:
        return Failure(
            outcome=Outcome.OUT_OF_MEMORY,
            reason=f"{memory_reason}: {first_line(error)}",
            traceback_text=text,
            exception_type=kind,
            is_clean=_is_clean(error),
        )
    if is_compiler_failure(error):
        return Failure(
            outcome=Outcome.COMPILE_FAILED,
            reason=f"{kind}: {first_line(error)}",
            traceback_text=text,
            exception_type=kind,
        )
    place = _last_place(error)
    return Failure(
        outcome=Outcome.CRASHED,
        reason=f"{kind}: {first_line(error)}" + (f" ({place})" if place else ""),
        traceback_text=text,
        exception_type=kind,
    )


def is_compiler_failure(error: BaseException) -> bool:
    """Whether torch.compile, not the user's code, raised this, as far as the type tells.

    Dynamo reports some errors of the user's own code under its own types (a shape error seen with fake tensors, say),
    so a True here is checked against an eager pass before it is believed.
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


def first_line(error: BaseException) -> str:
    """The first non-empty line of an exception's message, at most 300 characters.

    A DataLoader's message holds the traceback of its worker, whose last line is what went wrong. A line that ends with
    a colon (`backend='inductor' raised:`) takes the next one along.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and "in DataLoader worker process" in lines[0]:
        lines.reverse()
    if len(lines) > 1 and lines[0].endswith(":"):
        lines[0] = f"{lines[0]} {lines[1]}"
    return (lines[0] if lines else type(error).__name__)[:300]


def _chain(error: BaseException) -> list[BaseException]:
    """The exception and its causes, outermost first."""
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in links:
        links.append(link)
        link = link.__cause__ or getattr(link, "inner_exception", None)
    return links


def _out_of_memory_reason(error: BaseException) -> str | None:
    for link in _chain(error):
        if type(link).__name__ in ("OutOfMemoryError", "MemoryError"):
            return "the allocator was refused memory"
        if isinstance(link, RuntimeError):
            for pattern, reason in OUT_OF_MEMORY_MESSAGES:
                if re.search(pattern, str(link), re.MULTILINE):
                    return reason
    return None


def _is_clean(error: BaseException) -> bool:
    if is_compiler_failure(error):
        return False
    return any(re.search(clean, str(error), re.MULTILINE) for clean in CLEAN_REFUSALS)


def _last_place(error: BaseException) -> str:
    """`file:line` of the innermost frame outside torch, where the user should look first."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/torch/" not in frame.filename and "/bexplore/engine/" not in frame.filename]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""
