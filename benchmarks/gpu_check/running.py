"""Runs a step's process under a time limit and reads what it has noted, however it ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu_check.context import Facts
from benchmarks.gpu_check.verdict import Verdict, Word

ROOT = Path(__file__).parent.parent.parent
TAIL_BYTES = 3000
CHILD = (sys.executable, "-m", "benchmarks.gpu_check.child")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A step that has ended: its verdict, all that it noted, its seconds, whether its time was up."""

    verdict: Verdict
    facts: Facts
    wall_s: float
    is_cut: bool


def run(
    name: str,
    *,
    limit_s: float,
    on_cpu: bool,
    known: Mapping[str, Facts],
    recording: Path,
    child: Sequence[str] = CHILD,
) -> Ended:
    """Run one step; its processes are gone when this returns.

    Args:
        name: The step.
        limit_s: Seconds after which all of its processes are ended.
        on_cpu: Whether with tiny jobs on the CPU.
        known: Facts of earlier steps.
        recording: File for the allocator's events.
        child: The command that runs a step; its name and the request's file are appended.
    """
    with tempfile.TemporaryDirectory(prefix="bexplore-gpu-check-") as folder:
        notes, request, log = Path(folder, "notes"), Path(folder, "request.json"), Path(folder, "log")
        asked = {"on_cpu": on_cpu, "known": known, "notes": str(notes), "recording": str(recording)}
        request.write_text(json.dumps(asked))
        began_s = time.monotonic()
        code = _run([*child, name, str(request)], log, limit_s)
        wall_s = time.monotonic() - began_s
        facts, verdict = _read(notes)
        tail = log.read_text(errors="replace")[-TAIL_BYTES:]
    if verdict is None:
        facts["log"] = tail
        how = f"no end within {limit_s:.0f} s" if code is None else f"the process ended {code}: {_last_line(tail)}"
        verdict = Verdict(word=Word.FAILED, found=how)
    return Ended(verdict=verdict, facts=facts, wall_s=wall_s, is_cut=code is None)


def _run(command: list[str], log: Path, limit_s: float) -> int | None:
    """Exit code; None where the time was up."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            env=os.environ | {"PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end_group(process)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End the process and what it left behind; workers, which have groups of their own, end with it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # all of it has ended
    process.wait()


def _read(notes: Path) -> tuple[Facts, Verdict | None]:
    facts: Facts = {}
    verdict = None
    for line in notes.read_text().splitlines() if notes.exists() else []:
        try:
            record = json.loads(line)
        except ValueError:
            continue  # the process was ended while it wrote
        facts |= record.get("facts", {})
        if "verdict" in record:
            verdict = Verdict(word=Word(record["verdict"]), found=record["found"])
    return facts, verdict


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no output"
