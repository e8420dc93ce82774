"""Estimated against measured passes on this machine's processor: `python -m benchmarks.calibrated_jobs --resume`.

Twelve jobs, each at five or six sizes. Each size is a process of its own, which compiles as a training does; sizes take
turns, so that drift of the machine affects all alike. Nothing is fitted on them: the estimates are by the table that
`bexplore doctor --calibrate` kept. `--resume` measures jobs that are not in the result file yet, until `--seconds` have
passed; `--estimate` estimates again what is measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine_facts import machine_facts
from benchmarks.trace_field_jobs import FIELD_JOBS
from benchmarks.trace_jobs import JOBS
from benchmarks.trace_other_jobs import OTHER_JOBS
from bexplore.estimate.calibrations import recall
from bexplore.estimate.processor import Calibration, estimate_program
from bexplore.host.records import from_record, to_record
from bexplore.job import CompileSettings, Job
from bexplore.trace.cost_model import CostModel

RESULTS = Path(__file__).parent / "results"
MEASURED_S = 12.0  # of passes of one job
ROUNDS, TURN_S, WARM_UP_PASSES = (5, 15), 0.2, 3  # fewest and most turns of a size; seconds of one
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
    "gpt, eager": _take("gpt eager", 1, 2, 4, 8, 16),
    "distilbert, eager": _take("distilbert, rmsprop", 1, 2, 4, 8, 16, 32, eager=True),
    "lstm, eager": _take("lstm, eager", 4, 8, 16, 32, 64, 128),
    "batch norm net, eager": _take("batch norm, eager", 2, 4, 8, 16, 32, 64),
    "denoiser, eager": _take("denoiser, eager", 1, 2, 4, 8, 16, 32),
    "mlp mixer, compiled": _take("mixer", 4, 8, 16, 32, 64),
    "time series, compiled": _take("time series, compiled", 2, 4, 8, 16, 32),
    "bert, compiled": _take("transformers bert", 1, 2, 4, 8, 16),
    "gpt, compiled": _take("gpt adamw", 1, 2, 4, 8, 16),
    "vit, compiled": _take("transformers vit", 1, 2, 4, 8, 16),
    "llama, bfloat16, compiled": _take("transformers llama bfloat16", 1, 2, 4, 8, 16),
    "resnet, compiled": _take("transformers resnet", 1, 2, 4, 8, 16),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resume", action="store_true", help="keep what is measured already")
    parser.add_argument("--seconds", type=float, default=240.0, help="after which no further job is begun")
    parser.add_argument("--estimate", action="store_true", help="measure nothing, and trace again")
    parser.add_argument("--child", nargs=3, metavar=("ACTION", "JOB", "SIZE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        action, name, size = options.child
        print(json.dumps(trace(name))) if action == "trace" else serve(name, int(size))
        return
    began_s, path = time.monotonic(), RESULTS / "calibrated_jobs.json"
    known = json.loads(path.read_text())["jobs"] if options.resume or options.estimate else {}
    for name in CALIBRATED_JOBS:
        if not options.estimate and name not in known and time.monotonic() - began_s < options.seconds:
            known[name] = {"measured": measure(name)}
            print(name, f"{time.monotonic() - began_s:.0f} s", flush=True)
        _write(path, known, {})
    calibration = recall()
    assert calibration is not None, "bexplore doctor --calibrate"
    for name, row in known.items():
        if options.estimate or "estimated" not in row:
            row["estimated"] = _estimate(name, calibration, [int(size) for size in row["measured"]])
    _write(path, known, to_record(calibration))


def _estimate(name: str, calibration: Calibration, sizes: Sequence[int]) -> Row:
    command = [sys.executable, "-m", "benchmarks.calibrated_jobs", "--child", "trace", name, "0"]
    finished = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE)
    traced = from_record(CostModel, json.loads(finished.stdout.splitlines()[-1]))
    is_compiled = CALIBRATED_JOBS[name].job.compile.enabled
    estimates = {
        size: estimate_program(
            calibration,
            traced.kernel_calls(size),
            is_compiled=is_compiled,
            kept_bytes=traced.activation_bytes(size),
        )
        for size in sizes
    }
    return {
        str(size): {"seconds": one.seconds, "shares": {bound.value: share for bound, share in one.shares.items()}}
        for size, one in estimates.items()
    }


def trace(name: str) -> Row:
    """Trace a job."""
    from bexplore.trace.tracer import trace_job

    return to_record(trace_job(CALIBRATED_JOBS[name].job))


def serve(name: str, size: int) -> None:
    """Prepare a size, say so, then answer each number of passes with their seconds; an end of the input ends it."""
    from bexplore.workloads import build

    own = CALIBRATED_JOBS[name]
    workload = build(own.job)
    for module in workload.compiled_modules if own.job.compile.enabled else ():
        module.compile(dynamic=False)
    batch, seconds = workload.make_batch(size), 0.0
    for _ in range(1 + WARM_UP_PASSES):
        began_s = time.perf_counter()
        workload.forward_backward(batch)
        seconds = time.perf_counter() - began_s
    print(seconds, flush=True)
    for line in sys.stdin:
        workload.forward_backward(batch)  # brings its weights back into the caches
        times = []
        for _ in range(int(line)):
            began_s = time.perf_counter()
            workload.forward_backward(batch)
            times.append(time.perf_counter() - began_s)
        print(json.dumps(times), flush=True)


def measure(name: str) -> dict[str, list[float]]:
    """Time passes of all sizes in turns; return the seconds of each pass by size."""
    sizes = CALIBRATED_JOBS[name].sizes
    command = [sys.executable, "-m", "benchmarks.calibrated_jobs", "--child", "serve", name]
    children = {
        size: subprocess.Popen([*command, str(size)], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for size in sizes
    }
    once = {size: float(_read(child)) for size, child in children.items()}
    times: dict[int, list[float]] = {size: [] for size in sizes}
    began_s = time.monotonic()
    for number in range(ROUNDS[1]):
        if number >= ROUNDS[0] and time.monotonic() - began_s > MEASURED_S:
            break
        for size, child in children.items():
            assert child.stdin is not None
            print(max(1, round(TURN_S / once[size])), file=child.stdin, flush=True)
            times[size] += json.loads(_read(child))
    for child in children.values():
        child.communicate()
    return {str(size): own for size, own in times.items()}


def _read(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    line = child.stdout.readline()
    assert line, f"a process ended: {child.args!r}"
    return line


def _write(path: Path, known: Mapping[str, Row], calibration: Row) -> None:
    facts = machine_facts() | {"command": "python -m benchmarks.calibrated_jobs --resume"}
    jobs = {name: known[name] for name in CALIBRATED_JOBS if name in known}
    summaries = {name: summarize(row) for name, row in jobs.items() if "estimated" in row}
    report = {"facts": facts, "calibration": calibration, "summaries": summaries, "jobs": jobs}
    path.write_text(json.dumps(report, indent=1) + "\n")
    if summaries:
        path.with_suffix(".md").write_text(markdown(report))


def summarize(row: Row) -> Row:
    """The error of the curve's shape, and what the size loses that is estimated best."""
    sizes = [int(size) for size in row["measured"]]
    medians = {size: statistics.median(row["measured"][str(size)]) for size in sizes}
    estimates = {size: row["estimated"][str(size)]["seconds"] for size in sizes}
    errors = [math.log(estimates[size] / medians[size]) for size in sizes]
    mean = statistics.fmean(errors)
    speeds = {size: size / seconds for size, seconds in medians.items()}
    chosen = max(sizes, key=lambda size: size / estimates[size])
    return {
        "median_s": medians,
        "estimated_s": estimates,
        "bias": mean,
        "shape": [error - mean for error in errors],
        "shape_rms": math.sqrt(statistics.fmean((error - mean) ** 2 for error in errors)),
        "estimated_best": chosen,
        "measured_best": max(speeds, key=lambda size: speeds[size]),
        "steps": [
            (own - before) / math.sqrt(math.log2(size / smaller))
            for (smaller, size), (before, own) in zip(
                itertools.pairwise(sizes), itertools.pairwise(errors), strict=True
            )
        ],
        "loss": 1 - speeds[chosen] / max(speeds.values()),
    }


def markdown(report: Row) -> str:
    """The report for people."""
    facts, rows = report["facts"], report["summaries"]
    squares = [one**2 for row in rows.values() for one in row["shape"]]
    steps = [one**2 for row in rows.values() for one in row["steps"]]
    lines = [
        f"| {name} | {', '.join(map(str, row['median_s']))} | {_in_ms(row['median_s'])} | "
        f"{_in_ms(row['estimated_s'])} | {100 * row['bias']:+.0f} % | {100 * row['shape_rms']:.1f} % | "
        f"{row['estimated_best']} | {row['measured_best']} | {100 * row['loss']:.1f} % |"
        for name, row in rows.items()
    ]
    return "\n".join(
        [
            "# Estimated and measured passes on a processor",
            "",
            f"`{facts['command']}`, {facts['at']}, {facts['processor']}, {facts['processors']} processors, torch "
            f"{facts['torch']}. Estimates are by the table of `bexplore doctor --calibrate`; nothing is fitted on the "
            "jobs. The shape is ln(estimated / measured) without the mean of its job, the loss what the size that is "
            "estimated best loses against the fastest measured one. Seconds are medians of passes, in ms.",
            "",
            f"{len(rows)} jobs: shape {100 * math.sqrt(statistics.fmean(squares)):.1f} % (root mean square over all "
            f"sizes), loss {100 * statistics.fmean(row['loss'] for row in rows.values()):.1f} % in the mean, "
            f"{100 * max(row['loss'] for row in rows.values()):.1f} % at most. Standard deviation of the error of one "
            f"size against that of its half: {100 * math.sqrt(statistics.fmean(steps)):.1f} % of ln.",
            "",
            "| job | sizes | measured ms | estimated ms | bias | shape rms | estimated best | fastest | loss |",
            "|---|---|---|---|---:|---:|---:|---:|---:|",
            *lines,
            "",
        ]
    )


def _in_ms(seconds: Mapping[int, float]) -> str:
    return ", ".join(f"{one * 1e3:.1f}" for one in seconds.values())


if __name__ == "__main__":
    main()
