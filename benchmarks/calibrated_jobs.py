"""Estimated against measured passes on this machine's processor: `python -m benchmarks.calibrated_jobs --resume`.

Twelve jobs, each at five or six sizes. A job is measured in one process, with a program of its own for each size, as a
training compiles it; sizes take turns, so that drift of the machine affects all alike. Nothing is fitted on them: the
estimates have what `bexplore doctor --calibrate` kept. `--resume` measures jobs that are not in the result file yet,
as many as `--seconds` allow; `--prepare` traces and compiles without measuring, `--estimate` computes estimates alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.trace_field_jobs import FIELD_JOBS
from benchmarks.trace_jobs import JOBS
from benchmarks.trace_other_jobs import OTHER_JOBS
from bexplore.host.records import to_record
from bexplore.job import CompileSettings, Job

RESULTS = Path(__file__).parent / "results"
MEASURED_S = 16.0  # of passes of one job
FEWEST_ROUNDS, TURN_S, WARM_UP_PASSES = 5, 0.1, 2
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CalibratedJob:
    """A job of the trace's benchmarks, and the sizes at which it is measured."""

    job: Job
    sizes: Sequence[int]


def _take(name: str, *sizes: int, eager: bool = False) -> CalibratedJob:
    job = (JOBS | OTHER_JOBS | FIELD_JOBS)[name].job
    return CalibratedJob(dataclasses.replace(job, compile=CompileSettings(enabled=False)) if eager else job, sizes)


CALIBRATED_JOBS = {
    "gpt, compiled": _take("gpt adamw", 1, 2, 4, 8, 16),
    "gpt, eager": _take("gpt eager", 1, 2, 4, 8, 16),
    "llama, bfloat16, compiled": _take("transformers llama bfloat16", 1, 2, 4, 8, 16),
    "bert, compiled": _take("transformers bert", 1, 2, 4, 8, 16),
    "distilbert, eager": _take("distilbert, rmsprop", 1, 2, 4, 8, 16, 32, eager=True),
    "vit, compiled": _take("transformers vit", 1, 2, 4, 8, 16),
    "resnet, compiled": _take("transformers resnet", 1, 2, 4, 8, 16),
    "batch norm net, eager": _take("batch norm, eager", 2, 4, 8, 16, 32, 64),
    "lstm, eager": _take("lstm, eager", 4, 8, 16, 32, 64, 128),
    "mlp mixer, compiled": _take("mixer", 4, 8, 16, 32, 64, 128),
    "denoiser, eager": _take("denoiser, eager", 1, 2, 4, 8, 16, 32),
    "time series, compiled": _take("time series, compiled", 2, 4, 8, 16, 32, 64),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resume", action="store_true", help="keep what is measured already")
    parser.add_argument("--only", metavar="JOB", help="this job alone")
    parser.add_argument("--seconds", type=float, default=330.0, help="after which no further job is begun")
    parser.add_argument("--prepare", action="store_true", help="trace and compile, measure nothing")
    parser.add_argument("--estimate", action="store_true", help="only estimate what is measured already")
    parser.add_argument("--child", nargs=2, metavar=("ACTION", "JOB"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        action, name = options.child
        print(json.dumps(measure(name) if action == "measure" else trace(name)))
        return
    began_s, path = time.monotonic(), RESULTS / "calibrated_jobs.json"
    known = json.loads(path.read_text())["jobs"] if options.resume or options.estimate else {}
    for name in [options.only] if options.only else list(CALIBRATED_JOBS):
        is_left = options.prepare or name not in known or options.only
        if options.estimate or not is_left or time.monotonic() - began_s > options.seconds:
            continue
        print(name, flush=True)
        known[name] = known.get(name, {}) | {"trace": _in_child("trace", name)}
        if not options.prepare:
            known[name]["measured"] = _in_child("measure", name)
    for name, row in known.items():
        print(name, row)


def _in_child(action: str, name: str) -> Any:
    command = [sys.executable, "-m", "benchmarks.calibrated_jobs", "--child", action, name]
    finished = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE)
    return json.loads(finished.stdout.splitlines()[-1])


def trace(name: str) -> Row:
    """Trace a job."""
    from bexplore.trace.tracer import trace_job

    return to_record(trace_job(CALIBRATED_JOBS[name].job))


def measure(name: str, seconds: float = MEASURED_S) -> Row:
    """Time passes of all sizes in turns; return the times of each size by round."""
    from bexplore.workloads import build

    own = CALIBRATED_JOBS[name]
    workload = build(own.job)
    for module in workload.compiled_modules if own.job.compile.enabled else ():
        module.compile(dynamic=False)
    batches = {size: workload.make_batch(size) for size in own.sizes}
    once: dict[int, float] = {}
    for size, batch in batches.items():
        for _ in range(1 + WARM_UP_PASSES):
            began_s = time.perf_counter()
            workload.forward_backward(batch)
            once[size] = time.perf_counter() - began_s
    passes = {size: max(1, round(TURN_S / once[size])) for size in own.sizes}
    rounds: dict[int, list[float]] = {size: [] for size in own.sizes}
    began = time.perf_counter()
    while len(rounds[own.sizes[0]]) < FEWEST_ROUNDS or time.perf_counter() - began < seconds:
        for size, batch in batches.items():
            workload.forward_backward(batch)  # brings its weights and buffers back
            began_s = time.perf_counter()
            for _ in range(passes[size]):
                workload.forward_backward(batch)
            rounds[size].append((time.perf_counter() - began_s) / passes[size])
    return {str(size): times for size, times in rounds.items()}


if __name__ == "__main__":
    main()
