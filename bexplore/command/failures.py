"""Reads why a start ended without a measurement: reports of the observer, exit status, the text of the log."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bexplore.command.reports import Reports
from bexplore.engine.protocol.failures import (
    COMPILER_MODULES,
    OUT_OF_MEMORY_MESSAGES,
    RankEnd,
    describe_exit,
    find_inner_error,
    is_of_launcher,
    last_line,
    read_ends_by_srun,
    read_ends_by_torchrun,
    refusal_in_output,
    refusal_reason,
    signal_name,
    signal_of_loader,
    without_logs,
)
from bexplore.errors import find_failing_line, shorten
from bexplore.measurement.probe import Outcome

_LOST = "the other ranks lost their connection to it"
_LONGEST_REASON = 300  # characters
_TRACEBACK = re.compile(r"^(?:\[?rank\d+\]?:\s*)?Traceback \(most recent call last\):$", re.MULTILINE)
_RANK_PREFIX = re.compile(r"^\[?rank\d+\]?:\s?", re.MULTILINE)
# A signal as launchers tell it: torch.distributed.elastic, torch.multiprocessing, mpirun, subprocess.
_SIGNALLED = re.compile(
    r"(?:exitcode\s*:?\s*-|exit code\s*:?\s*-|died with <Signals\.|(?:on|by|got|received|with) signal\s*:?\s*)"
    r"(\d+|SIG[A-Z]+)\b",
    re.IGNORECASE,
)
# Of a process that another one started: subprocess.CalledProcessError, torch/multiprocessing/spawn.py.
_STARTED_ENDED = re.compile(
    r"^(?:CalledProcessError|ProcessExitedException): .*(?:exit (?:status|code) (?P<status>\d+)\b|died with|signal)",
    re.DOTALL,
)
_INTERRUPTED = re.compile(r"^(?:\[?rank\d+\]?:\s*)?KeyboardInterrupt\b", re.MULTILINE)
# The error of a program that parses its arguments: argparse, jsonargparse, click and fire write it so, some of them
# with a usage below. A measured error ("error: 0.12") is none, nor is what a launcher says of the program.
_USAGE_ERROR = re.compile(r"^(?!srun:)(?:\S+: )?error: (?![\d.+-]+\b)", re.IGNORECASE)
_FETCH = "torch/utils/data/_utils/fetch.py"
_IS_BARE = re.compile(r"^[\w.]+$")  # an exception without a message
_IGNORED = "Exception ignored in"  # Python writes so of errors in a destructor and at its exit, which end nothing
_MOST_AFTER_ERROR = 3  # lines behind the error of a program that ends with it
# The line of a traceback that names the exception, behind its frames, which are indented.
_RAISED = re.compile(r"^(?P<type>[\w.]+)(?:: ?(?P<message>.*))?$", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandFailure:
    """How a start failed."""

    outcome: Outcome  # never `measured`
    reason: str  # one line for people
    traceback_text: str = ""  # the training's own traceback; empty where it wrote none
    ended_by: str = ""  # the signal that ended a process of the training, where nothing shows that memory was short
    is_early: bool = False  # whether it came before the first batch
    exception_type: str = ""  # name of the exception's class; empty where none was reported


KILLED_BY_KERNEL = CommandFailure(
    outcome=Outcome.OUT_OF_MEMORY, reason="the kernel's out-of-memory killer ended a process of the training"
)


def find_reported_failure(errors: Sequence[Mapping[str, Any]]) -> CommandFailure | None:
    """Return the failure that the reported errors show: the earliest, unless one is a refusal of memory.

    Ranks that lost their connection to the first one report later. A refusal of memory counts even where the program
    caught it: then other ranks may fail first, at a collective that never comes.
    """
    if not errors:
        return None
    errors = [_unwrap(error) for error in errors]
    refused = next(((error, found) for error in errors if (found := _find_refusal(error)) is not None), None)
    if refused is not None:
        error, (reason, link) = refused
        return CommandFailure(
            outcome=Outcome.OUT_OF_MEMORY,
            reason=shorten(f"{reason}{_describe_rank(error)}: {_describe_link(link)}", _LONGEST_REASON),
            traceback_text=error["traceback"],
        )
    error = next((error for error in errors if not _is_consequence(error)), errors[0])
    text, where = _describe_link(error["chain"][0], error["traceback"]), _describe_rank(error)
    in_compiler = any(one["module"].startswith(COMPILER_MODULES) for one in error["chain"])
    return CommandFailure(
        outcome=Outcome.COMPILE_FAILED if in_compiler else Outcome.CRASHED,
        reason=shorten(f"{text}{where}", _LONGEST_REASON),
        traceback_text=error["traceback"],
        ended_by=next(filter(None, (signal_of_loader(link["message"]) for link in error["chain"])), ""),
        is_early=error.get("num_batches") == 0,
        exception_type=error["chain"][0]["type"],
    )


def fails_at_a_sample(traceback_text: str) -> bool:
    """Return whether a loader failed where it takes a sample of the data set, and not where it makes a batch of them.

    Source: `fetch` in torch/utils/data/_utils/fetch.py.
    """
    _, is_of_loader, below = traceback_text.rpartition(_FETCH)
    return bool(is_of_loader) and "collate" not in below


def find_lost_rank(log: str, reports: Reports) -> CommandFailure | None:
    """Return the failure of a rank that ended without an error of its own; None where some rank reported one.

    The other ranks report the connection that they lose, and the launcher that a rank of it failed.
    """
    if not reports.errors or not all(_is_consequence(_unwrap(error)) for error in reports.errors):
        return None
    roots = [one for one in read_ends_by_torchrun(log) if one.is_root_cause]
    ends = [*read_ends_by_srun(log), *roots]
    ranks = {str(one["rank"]) for one in reports.hellos if one["rank"] is not None}
    if ends:
        return _describe_lost_rank(_describe_rank_end(ends[0], log), log, reports, is_alone=ranks == {ends[0].shown})
    silent = sorted(ranks - {str(error["rank"]) for error in reports.errors})
    if not silent:
        return None if ranks else _describe_started_process(log, reports)
    ended_by = _find_signal(log)
    reason = f"rank {', '.join(silent)} {f'was killed by {ended_by}' if ended_by else 'ended'}; {_LOST}"
    return CommandFailure(outcome=Outcome.CRASHED, reason=reason, traceback_text=log, ended_by=ended_by)


def find_own_error(log: str) -> str:
    """Return the line in which a program says why it ended, before its launcher does; empty for none."""
    starts = (found.start() for found in _TRACEBACK.finditer(log))
    own = log[: next((start for start in starts if _is_raised_by_launcher(log[start:])), len(log))]
    has_words = bool("".join(without_logs(own)).strip())
    return shorten(_read_error(_cut_last_traceback(own), own), _LONGEST_REASON) if has_words else ""


def describe_end(
    return_code: int | None, log: str, reports: Reports, *, killed_by_kernel: bool, lost_pid: int | None
) -> CommandFailure:
    """Return the failure of a start whose processes reported no error; a command that still ran has no return code."""
    if killed_by_kernel:
        return KILLED_BY_KERNEL
    refused = refusal_in_output(log)
    if refused:
        reason = shorten(f"the command wrote: {refused}", _LONGEST_REASON)
        return CommandFailure(outcome=Outcome.OUT_OF_MEMORY, reason=reason, traceback_text=_cut_last_traceback(log))
    of_tasks = read_ends_by_srun(log)
    if of_tasks:
        return _describe_rank_end(of_tasks[0], log)
    ended_by = signal_name(return_code) or _find_signal(log)
    if lost_pid is not None or ended_by:
        rank = next((one.get("rank") for one in reports.hellos if one["pid"] == lost_pid), None)
        which = "a process of the training" if rank is None else f"rank {rank}"
        how = f"was killed by {ended_by}" if ended_by else "was killed, or ended without a record"
        return CommandFailure(
            outcome=Outcome.CRASHED,
            reason=f"{which} {how}",
            traceback_text=log,
            ended_by=ended_by or signal.SIGKILL.name,
        )
    trace = _cut_last_traceback(log)
    last = (_read_error(trace, log) or "it wrote nothing else than logs") if log.strip() else "it wrote nothing"
    how = f"the command {describe_exit(return_code)}" if return_code is not None else "the command was ended"
    return CommandFailure(
        outcome=Outcome.CRASHED,
        reason=shorten(f"{how}: {last}", _LONGEST_REASON),
        traceback_text=trace or log,
        is_early=return_code is not None and not reports.counts and not reports.ranks,
    )


def ends_with_error(log: str) -> bool:
    """Return whether an output ends with a traceback: also that of a program that logs all its errors and ends well."""
    trace = _cut_last_traceback(log)
    found = _RAISED.match(_find_exception(trace))
    before = [log[: start.start()].rstrip().rpartition("\n")[2] for start in _TRACEBACK.finditer(log)]
    if found is None or before[-1].startswith(_IGNORED):
        return False
    behind = trace.rpartition(found["type"])[2]
    return sum(bool(line.strip()) for line in without_logs(behind)[1:]) <= _MOST_AFTER_ERROR


def _describe_rank_end(end: RankEnd, log: str) -> CommandFailure:
    """Return the failure of ranks whose end the launcher tells; Slurm's limit of memory is that of the job's cgroup."""
    if end.return_code is None:
        reason = f"Slurm ended rank {end.shown} at the memory limit of the job"
        return CommandFailure(outcome=Outcome.OUT_OF_MEMORY, reason=reason, traceback_text=log)
    ended_by = signal_name(end.return_code)
    how = f"was killed by {ended_by}" if ended_by else describe_exit(end.return_code)
    reason = f"rank {end.shown} {how}"
    return CommandFailure(outcome=Outcome.CRASHED, reason=reason, traceback_text=log, ended_by=ended_by)


def _describe_lost_rank(failure: CommandFailure, log: str, reports: Reports, *, is_alone: bool) -> CommandFailure:
    """Add to how a rank ended what it wrote where it left by itself, as for its arguments, or that others lost it."""
    has_left = not failure.ended_by and failure.outcome is Outcome.CRASHED
    if has_left and all(error["rank"] is None for error in reports.errors):  # of the launcher alone
        reason = f"{failure.reason}: {find_own_error(log) or 'it wrote nothing'}"
        return replace(failure, reason=reason, is_early=not reports.counts and not reports.ranks)
    return failure if is_alone else replace(failure, reason=f"{failure.reason}; {_LOST}")


def _describe_started_process(log: str, reports: Reports) -> CommandFailure | None:
    """Return the failure of a process without a rank that ended with a status, which another one raised as an error.

    So do `accelerate launch` for one process, and torch.multiprocessing.spawn.
    """
    links = (link for error in reports.errors for link in error["chain"])
    found = next(filter(None, (_STARTED_ENDED.search(f"{link['type']}: {link['message']}") for link in links)), None)
    if found is None:
        return None
    ended_by, own = _find_signal(log), find_own_error(log)
    how = f"was killed by {ended_by}" if ended_by else describe_exit(int(found["status"] or 1))
    reason = f"the process that was started {how}{f': {own}' if own and not ended_by else ''}"
    return CommandFailure(
        outcome=Outcome.CRASHED,
        reason=reason,
        traceback_text=log,
        ended_by=ended_by,
        is_early=not ended_by and not reports.counts and not reports.ranks,
    )


def _find_signal(log: str) -> str:
    """Return the signal of which the last lines of a log tell; empty for none."""
    found = _SIGNALLED.search(log)
    if found is not None:
        return found[1].upper() if found[1].upper().startswith("SIG") else signal_name(-int(found[1]))
    return signal.SIGINT.name if _INTERRUPTED.search(log) else ""


def _unwrap(error: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a reported error with those of other processes and threads in place of those that raised them anew."""
    return {**error, "chain": [_unwrap_link(link) for link in error["chain"]]}


def _unwrap_link(link: Mapping[str, Any]) -> Mapping[str, Any]:
    found = _RAISED.match(find_inner_error(link["message"]))
    if found is None:
        return link
    module, _, kind = found["type"].rpartition(".")
    is_same = kind == link["type"]  # a DataLoader's: of the same class, whose bases are known
    own = {} if is_same else {"module": module or "builtins", "bases": ()}
    return {**link, **own, "type": kind, "message": found["message"] or ""}


def _is_consequence(error: Mapping[str, Any]) -> bool:
    """Return whether an error only says that another process failed."""
    return any(is_of_launcher(link["type"], link["message"]) for link in error["chain"])


def _find_refusal(error: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    """Return why memory was refused, and the exception that says so; None where none does."""
    for link in (*error["chain"], *error.get("contexts", ())):
        reason = refusal_reason((link["type"], *link.get("bases", ())), link["message"], OUT_OF_MEMORY_MESSAGES)
        if reason is not None:
            return reason, link
    return None


def _describe_link(link: Mapping[str, Any], traceback_text: str = "") -> str:
    """Return an exception in a line; one without a message by the line of source that raised it."""
    return f"{link['type']}: {_read_first_line(link['message']) or find_failing_line(traceback_text) or 'no message'}"


def _describe_rank(error: Mapping[str, Any]) -> str:
    return f" on rank {error['rank']}" if error.get("rank") is not None else ""


def _cut_last_traceback(log: str) -> str:
    """Return the last traceback and what follows it, but for those of launchers; empty for none."""
    starts = [found.start() for found in _TRACEBACK.finditer(log)]
    traces = [_RANK_PREFIX.sub("", log[start:]) for start in reversed(starts)]
    own = (trace for trace in traces if not _is_raised_by_launcher(trace))
    return next(own, traces[0] if traces else "")


def _read_error(trace: str, log: str) -> str:
    """Return the line that says why a program ended: its exception's, that of its arguments, else its last one."""
    if trace:
        found = _find_exception(trace) or last_line(trace)
        source = find_failing_line(trace) if _IS_BARE.match(found) else ""
        return f"{found}: {source}" if source else found
    refused = [line for line in without_logs(log) if _USAGE_ERROR.match(line)]
    return refused[-1].strip() if refused else last_line(log)


def _find_exception(trace: str) -> str:
    """Return the line of a traceback that names its exception; a message that begins on the next line goes along."""
    lines = [line.rstrip() for line in trace.splitlines()[1:] if line.strip()]
    # Loguru marks the frame that caught the exception.
    first = next((index for index, line in enumerate(lines) if not line.startswith((" ", "> File "))), None)
    if first is None:
        return ""
    told = lines[first : first + 2]
    return " ".join(line.strip() for line in told) if told[0].endswith(":") else told[0]


def _is_raised_by_launcher(trace: str) -> bool:
    found = _RAISED.match(_find_exception(trace))
    return found is not None and is_of_launcher(found["type"].rpartition(".")[2], found["message"] or "")


def _read_first_line(message: str) -> str:
    return next((line.strip() for line in without_logs(message) if line.strip()), "")
