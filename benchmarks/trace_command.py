"""`bexplore trace` of a job of a size that nobody here could run: its seconds and its memory."""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def timed_trace(job: str, *arguments: str) -> dict[str, Any]:
    """Run the command as a user does, anew, for the program of an H100 where Triton is installed.

    Args:
        job: The text of the job's file.
        arguments: Further arguments of the command.

    Returns:
        Its seconds, its output and the memory of the largest of its processes; `failure`, where it failed.
    """
    from bexplore.trace.absent_gpu import reason_against

    device = [] if reason_against() else ["--device-name", "h100"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "job.yaml")
        file.write_text(job)
        words = ["bexplore", "trace", str(file), *arguments, "--fresh", *device]
        started, before = time.perf_counter(), os.times()
        status = _run(words, Path(folder, "output.txt"))
        wall_s, after = time.perf_counter() - started, os.times()
        output = Path(folder, "output.txt").read_text()
    if status:
        return {"failure": output[-2000:]}
    return {
        "device": "h100" if device else "cpu",
        "wall_s": wall_s,
        "cpu_s": after.children_user + after.children_system - before.children_user - before.children_system,
        "resident_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
        "output": output,
    }


def large_lines(record: dict[str, Any], job: str, limit_s: float, limit_bytes: float) -> list[str]:
    """Return what a page says of such a record; nothing where it was not measured.

    Args:
        job: The job, in words.
        limit_s: The most seconds that it must take.
        limit_bytes: The most memory that it must take.
    """
    if "wall_s" not in record:
        return []
    return [
        "",
        f"`bexplore trace` of {job}, for the program of {record['device']}: {record['wall_s']:.0f} s, "
        f"{record['cpu_s']:.0f} s of processor time, {record['resident_bytes'] / 1e9:.2f} GB resident (must: at most "
        f"{limit_s:.0f} s and {limit_bytes / 1e9:.1f} GB).",
    ]


def _run(words: list[str], output: Path) -> int:
    with output.open("w") as file:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-m", *words],
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, file.fileno(), 1), (os.POSIX_SPAWN_DUP2, file.fileno(), 2)],
        )
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
