"""Reads why a start ended without a measurement: reports of the observer, exit status, the text of the log."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bexplore.command.reports import Reports
from bexplore.engine.protocol.failures import COMPILER_MODULES, LOST_CONNECTION, OUT_OF_MEMORY_MESSAGES
from bexplore.measurement.probe import Outcome

_MEMORY_TYPES = ("OutOfMemoryError", "MemoryError")
_LOST = "the other ranks lost their connection to it"
_LONGEST_REASON = 300  # characters
_TRACEBACK = re.compile(r"^(?:\[?rank\d+\]?:\s*)?Traceback \(most recent call last\):$", re.MULTILINE)
_RANK_PREFIX = re.compile(r"^\[?rank\d+\]?:\s?", re.MULTILINE)
# Errors of launchers: torch/distributed/elastic and torch/multiprocessing/spawn.py.
_LAUNCHER_TYPES = ("ChildFailedError", "SignalException", "ProcessRaisedException", "ProcessExitedException")
# The report of torch/distributed/elastic/multiprocessing/errors/__init__.py.
_ROOT_CAUSE = re.compile(r"Root Cause.*?\n\s*rank\s*:\s*(\d+).*?\n\s*exitcode\s*:\s*(-?\d+)", re.DOTALL)
# What srun writes of tasks that end badly: src/srun/libsrun/launch.c.
_SLURM_TASK = re.compile(r"^srun: error: \S+: tasks? ([\d,-]+): (Killed|Out Of Memory|Segmentation fault)", re.M)
_SIGNALLED = re.compile(r"(?:exitcode\s*:?\s*|exit code\s*|signal\s*)-?(9|SIGKILL)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandFailure:
    """How a start failed.

    Attributes:
        outcome: Never `measured`.
        reason: One line for people.
        traceback_text: The training's own traceback; empty where it wrote none.
    """

    outcome: Outcome
    reason: str
    traceback_text: str = ""


def of_errors(errors: Sequence[Mapping[str, Any]]) -> CommandFailure | None:
    """Return the failure that the reported errors show: the earliest, unless one is a refusal of memory.

    Ranks that lost their connection to the first one report later. A refusal of memory counts even where the program
    caught it: then other ranks may fail first, at a collective that never comes.
    """
    if not errors:
        return None
    refused = next((error for error in errors if _memory_reason(error) is not None), None)
    error = refused or next((error for error in errors if not _is_consequence(error)), errors[0])
    link, rank = error["chain"][0], error.get("rank")
    where = f" on rank {rank}" if rank is not None else ""
    text = f"{link['type']}: {_first_line(link['message'])}"
    if refused is not None:
        return CommandFailure(
            outcome=Outcome.OUT_OF_MEMORY,
            reason=f"{_memory_reason(error)}{where}: {text}"[:_LONGEST_REASON],
            traceback_text=error["traceback"],
        )
    in_compiler = any(one["module"].startswith(COMPILER_MODULES) for one in error["chain"])
    outcome = Outcome.COMPILE_FAILED if in_compiler else Outcome.CRASHED
    return CommandFailure(outcome=outcome, reason=f"{text}{where}"[:_LONGEST_REASON], traceback_text=error["traceback"])


def of_lost(log: str, reports: Reports) -> CommandFailure | None:
    """Return the failure of a rank that ended without an error of its own; None where some rank reported one.

    The other ranks report the connection that they lose, and the launcher that a rank of it failed.
    """
    if not reports.errors or not all(map(_is_consequence, reports.errors)):
        return None
    task = _SLURM_TASK.search(log)
    if task is not None:
        failure = _of_task(task, log)
        return replace(failure, reason=f"{failure.reason}; {_LOST}")
    root, told = _ROOT_CAUSE.search(log), {str(error["rank"]) for error in reports.errors}
    silent = sorted({str(one["rank"]) for one in reports.hellos if one["rank"] is not None} - told)
    if root is not None:
        which, status = f"rank {root[1]}", int(root[2])
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    elif silent:
        which, how = f"rank {', '.join(silent)}", "was killed" if _SIGNALLED.search(log) else "ended"
    else:
        return None
    reason = f"{which} {how}; {_LOST}"
    return CommandFailure(outcome=Outcome.CRASHED, reason=reason, traceback_text=log)


def of_end(
    return_code: int | None, log: str, reports: Reports, *, killed_by_kernel: bool, lost_pid: int | None
) -> CommandFailure:
    """Return the failure of a start whose processes reported no error.

    Args:
        return_code: Of the command; None where it still ran.
        log: Its last lines.
        reports: What was observed.
        killed_by_kernel: Whether the kernel's out-of-memory killer struck meanwhile.
        lost_pid: A training process that is gone without a record; None for none.
    """
    if killed_by_kernel:
        return CommandFailure(
            outcome=Outcome.OUT_OF_MEMORY, reason="the kernel's out-of-memory killer ended a process of the training"
        )
    refused = next((line for line in log.splitlines() if _is_memory_line(line)), None)
    if refused is not None:
        reason = f"the command wrote: {refused.strip()}"[:_LONGEST_REASON]
        return CommandFailure(outcome=Outcome.OUT_OF_MEMORY, reason=reason, traceback_text=_last_traceback(log))
    task = _SLURM_TASK.search(log)
    if task is not None:
        return _of_task(task, log)
    if lost_pid is not None or return_code == -signal.SIGKILL or _SIGNALLED.search(log):
        rank = next((one.get("rank") for one in reports.hellos if one["pid"] == lost_pid), None)
        which = "a process of the training" if rank is None else f"rank {rank}"
        return CommandFailure(outcome=Outcome.CRASHED, reason=f"{which} was killed", traceback_text=log)
    trace = _last_traceback(log)
    last = next((line for line in reversed((trace or log).splitlines()) if line.strip()), "it wrote nothing")
    how = "the command ended" if return_code is not None else "the command was ended"
    status = f" with status {return_code}" if return_code is not None else ""
    return CommandFailure(
        outcome=Outcome.CRASHED, reason=f"{how}{status}: {last.strip()}"[:_LONGEST_REASON], traceback_text=trace or log
    )


def _of_task(task: re.Match[str], log: str) -> CommandFailure:
    """Return the failure of a rank whose end srun tells; Slurm's limit of memory is that of the job's cgroup."""
    number, end = task.groups()
    if end == "Out Of Memory":
        reason = f"Slurm ended rank {number} at the memory limit of the job"
        return CommandFailure(outcome=Outcome.OUT_OF_MEMORY, reason=reason, traceback_text=log)
    how = "was killed" if end == "Killed" else "ended with a segmentation fault"
    return CommandFailure(outcome=Outcome.CRASHED, reason=f"rank {number} {how}", traceback_text=log)


def _is_consequence(error: Mapping[str, Any]) -> bool:
    """Return whether an error only says that another process failed."""
    if error["chain"][0]["type"] in _LAUNCHER_TYPES:
        return True
    return any(LOST_CONNECTION.search(f"{link['type']}: {link['message']}") for link in error["chain"])


def _memory_reason(error: Mapping[str, Any]) -> str | None:
    for link in error["chain"]:
        if link["type"] in _MEMORY_TYPES:
            return "the allocator was refused memory"
        if link["type"] in ("RuntimeError", "AcceleratorError"):
            for pattern, reason in OUT_OF_MEMORY_MESSAGES:
                if re.search(pattern, link["message"], re.MULTILINE):
                    return reason
    return None


def _is_memory_line(line: str) -> bool:
    """Return whether a line of the log is the last line of a traceback about memory; a mention in words is not."""
    kind, colon, message = _RANK_PREFIX.sub("", line.strip()).partition(": ")
    name = kind.rpartition(".")[2]
    if name in _MEMORY_TYPES and (colon or kind == line.strip()):
        return True
    return name == "RuntimeError" and any(re.search(pattern, message) for pattern, _ in OUT_OF_MEMORY_MESSAGES)


def _last_traceback(log: str) -> str:
    starts = [found.start() for found in _TRACEBACK.finditer(log)]
    return _RANK_PREFIX.sub("", log[starts[-1] :]) if starts else ""


def _first_line(message: str) -> str:
    return next((line.strip() for line in message.splitlines() if line.strip()), "no message")
