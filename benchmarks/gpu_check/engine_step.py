"""Section 8: the engine's benchmark on one job, as far as it comes in the time of a step."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.verdict import Verdict, judged

MINUTES, MINUTES_IF_TINY = 7.5, 1.5
KINDS = ("explore", "floor", "sweep", "truth")


def run_benchmark(context: Context) -> Verdict:
    """`make bench-gpu` for one job; its own results file keeps what it has measured."""
    minutes = MINUTES_IF_TINY if context.is_tiny else MINUTES
    asked = ["--cuda", "--jobs", "cuda_gpt", "--runs", "1", "--only", *KINDS, "--minutes", str(minutes)]
    results = context.recording.parent if context.is_tiny else None
    more = ["--results", str(results)] if results else []
    more += ["--cpu"] if context.on_cpu else []
    command = [sys.executable, "-m", "benchmarks.engine", *asked, *more]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    context.note(code=done.returncode, report=done.stdout[-8000:], told=done.stderr[-3000:])
    lines = [line for line in done.stderr.splitlines() if line.startswith("cuda_gpt")]
    return judged(done.returncode == 0, f"exit {done.returncode}; {json.dumps(lines[-5:])}")
