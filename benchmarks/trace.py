"""The trace against the allocator: `python -m benchmarks.trace [--quick]`.

Every size is measured in a process of its own: two whole steps, then a third under the profiler, each of two
accumulation passes and an update. What was measured before on the same torch is read from the results; `--fresh`
measures again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.trace_field_jobs import FIELD_JOBS
from benchmarks.trace_jobs import DEEP_JOBS, JOBS, QUICK_JOBS, TracedJob
from benchmarks.trace_other_jobs import OTHER_JOBS
from bexplore.host.records import from_record, to_record
from bexplore.trace import CostModel

RESULTS = Path(__file__).parent / "results"
MEASURED = RESULTS / "trace_measured.json"
BUDGETS_PER_JOB = 50
TRACES_PER_DEEP_JOB = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few jobs, and two sizes each")
    parser.add_argument("--fresh", action="store_true", help="measure again what is in the results already")
    parser.add_argument("--others", action="store_true", help="models of other kinds, in a table of their own")
    parser.add_argument("--only", metavar="JOB", help="this job alone")
    parser.add_argument("--child", nargs=3, metavar=("ACTION", "JOB", "SIZE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        action, name, size = options.child
        print(json.dumps(CHILD_ACTIONS[action](name, int(size))))
        return
    measured = {} if options.fresh or not MEASURED.exists() else json.loads(MEASURED.read_text())
    rows: list[dict[str, Any]] = []
    untraced: dict[str, str] = {}
    is_whole = not (options.quick or options.others or options.only)
    deep = [_deep_row(name) for name in DEEP_JOBS] if is_whole else []  # first: it is quick
    for name in _names(options):
        traced = _in_child("trace", name)
        if "untraced" in traced:
            untraced[name] = traced["untraced"]
            continue
        model = from_record(CostModel, traced.pop("cost_model"))
        sizes = _find(name).sizes[:2] if options.quick else _find(name).sizes
        counted = _measured_once(measured, "count", name, sizes[0], traced["job_fingerprint"])
        for size in sizes:
            peak = _measured_once(measured, "measure", name, size, traced["job_fingerprint"])
            rows.append(_row(name, size, model, peak, counted, traced["trace_s"]))
            print(f"{name:32s} {size:4d}  {rows[-1]['error_percent']:+.2f} %", file=sys.stderr)
        _write(options, rows, untraced, deep)
    print(_markdown(_write(options, rows, untraced, deep)))


def _names(options: argparse.Namespace) -> list[str]:
    if options.only:
        return [options.only]
    return list(OTHER_JOBS if options.others else QUICK_JOBS if options.quick else JOBS)


def _measured_once(
    measured: dict[str, dict[str, Any]], action: str, name: str, size: int, fingerprint: str
) -> dict[str, Any]:
    """What an action gives at a size, from the results if it is there."""
    key = f"{name} | {size if action == 'measure' else action} | {fingerprint}"
    if key not in measured:
        measured[key] = _in_child(action, name, size)
        MEASURED.write_text(json.dumps(measured, indent=1) + "\n")
    return measured[key]


def _write(
    options: argparse.Namespace, rows: list[dict[str, Any]], untraced: dict[str, str], deep: list[dict[str, Any]]
) -> dict[str, Any]:
    """Write what is known so far, so that an interrupted benchmark leaves what it found."""
    report = {
        "command": _command(),
        "machine": _machine(),
        "accuracy": rows,
        "untraced": untraced,
        "boundary": _boundary(rows),
        "cost": deep,
    }
    if not options.only:
        suffix = "_quick" if options.quick else "_others" if options.others else ""
        (RESULTS / f"trace{suffix}.json").write_text(json.dumps(report, indent=1) + "\n")
        (RESULTS / f"trace{suffix}.md").write_text(_markdown(report))
    return report


def _in_child(action: str, name: str, size: int = 0) -> dict[str, Any]:
    """Run one action in a fresh process; its last line is the answer."""
    command = [sys.executable, "-m", "benchmarks.trace", "--child", action, name, str(size)]
    finished = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE)
    answer: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return answer


def trace_child(name: str, _size: int) -> dict[str, Any]:
    """Trace a job; the reason where it cannot be traced."""
    from bexplore.errors import TraceError
    from bexplore.trace.tracer import trace_job

    traced = _find(name)
    before = _resident_bytes()
    started, processor_started = time.perf_counter(), time.process_time()
    try:
        model = trace_job(traced.job)
    except TraceError as error:
        return {"untraced": error.message}
    trace_s = time.perf_counter() - started
    processor_s = time.process_time() - processor_started
    return {
        "cost_model": to_record(model),
        "trace_s": trace_s,
        "processor_s": processor_s,
        "resident_growth_bytes": _resident_bytes() - before,
        "resident_bytes": _resident_bytes(),
        "job_fingerprint": traced.job.fingerprint(torch=_torch_version()),
    }


def measure_child(name: str, size: int) -> dict[str, Any]:
    """Run a job at one size and read the allocator's peak in its third step."""
    import torch

    from bexplore.engine.worker.peak_memory import measure_peak, storage_bytes
    from bexplore.workloads import build

    traced = _find(name)
    workload = build(traced.job)
    if traced.job.compile.enabled:
        for module in workload.compiled_modules:
            module.compile(dynamic=False)
    batch = workload.make_batch(size)

    def step() -> None:
        for _ in range(2):
            workload.forward_backward(batch, 0.5)
        workload.update()

    for _ in range(2):
        step()
    states = [dict(optimizer.state) for optimizer in workload.optimizers]
    weights = [[*module.parameters(), *module.buffers()] for module in workload.compiled_modules]
    alive = [batch, states, weights]
    peak = measure_peak(step, torch.device(traced.job.device), alive=alive)
    return {"peak_memory_bytes": peak.allocated_bytes if peak else None, "state_bytes": storage_bytes(alive)}


def count_child(name: str, size: int) -> dict[str, Any]:
    """Count the operations of a pass, as it is run and as the model needs them, each a sample."""
    from benchmarks.trace_flops import flops_as_run, flops_of_the_model

    job = _find(name).job
    return {"hardware": flops_as_run(job, size), "model": flops_of_the_model(job, size)}


CHILD_ACTIONS: dict[str, Callable[[str, int], dict[str, Any]]] = {
    "trace": trace_child,
    "measure": measure_child,
    "count": count_child,
}


def _find(name: str) -> TracedJob:
    return (JOBS | OTHER_JOBS | FIELD_JOBS | DEEP_JOBS)[name]


def _row(
    name: str, size: int, model: CostModel, measured: dict[str, Any], counted: dict[str, float], trace_s: float
) -> dict[str, Any]:
    peak, predicted = measured["peak_memory_bytes"], model.peak_memory_bytes(size)
    return {
        "job": name,
        "micro_batch_size": size,
        "predicted_peak_memory_bytes": predicted,
        "measured_peak_memory_bytes": peak,
        "activation_bytes": peak - measured["state_bytes"],
        "error_percent": 100 * (predicted / peak - 1),
        "has_convolutions": _find(name).has_convolutions,
        "trace_s": trace_s,
        "hardware_flops_error_percent": 100 * (model.hardware_flops_per_sample / counted["hardware"] - 1),
        "model_flops_error_percent": 100 * (model.flops_per_sample / counted["model"] - 1),
        "peak_is_in": model.peak_at(size)[0].value,
    }


def _deep_row(name: str) -> dict[str, Any]:
    traces = [_in_child("trace", name) for _ in range(TRACES_PER_DEEP_JOB)]
    model = from_record(CostModel, traces[0]["cost_model"])
    return {
        "job": name,
        "num_parameters": model.num_parameters,
        "trace_s": [trace["trace_s"] for trace in traces],
        "processor_s": [trace["processor_s"] for trace in traces],
        "median_trace_s": statistics.median(trace["trace_s"] for trace in traces),
        "resident_bytes": max(trace["resident_bytes"] for trace in traces),
        "resident_growth_bytes": max(trace["resident_growth_bytes"] for trace in traces),
        "peak_memory_bytes": {size: model.peak_memory_bytes(size) for size in DEEP_JOBS[name].sizes},
    }


def _boundary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Largest sizes under random budgets, by the trace and by the measured peaks, interpolated between sizes."""
    if not rows:
        return {}
    chooser = random.Random(0)
    ratios = [ratio for name in dict.fromkeys(row["job"] for row in rows) for ratio in _ratios(name, rows, chooser)]
    within = sum(abs(ratio - 1) <= 0.03 for ratio in ratios)
    return {
        "budgets": len(ratios),
        "within_3_percent": within / len(ratios),
        "more_than_3_percent_above": sum(ratio > 1.03 for ratio in ratios) / len(ratios),
        "worst_above_percent": 100 * (max(ratios) - 1),
        "worst_below_percent": 100 * (min(ratios) - 1),
    }


def _ratios(name: str, rows: list[dict[str, Any]], chooser: random.Random) -> Iterator[float]:
    own = [row for row in rows if row["job"] == name]
    lowest, highest = own[0]["measured_peak_memory_bytes"], own[-1]["measured_peak_memory_bytes"]
    for _ in range(BUDGETS_PER_JOB):
        budget = chooser.uniform(lowest, highest)
        yield _size_at(budget, own, "predicted_peak_memory_bytes") / _size_at(budget, own, "measured_peak_memory_bytes")


def _size_at(budget: float, rows: list[dict[str, Any]], key: str) -> float:
    """Size, as a real number, at which the peak equals the budget."""
    for first, second in itertools.pairwise(rows):
        if budget <= second[key] or second is rows[-1]:
            share = (budget - first[key]) / (second[key] - first[key])
            return first["micro_batch_size"] + share * (second["micro_batch_size"] - first["micro_batch_size"])
    raise ValueError("a job needs two sizes")


def _resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _torch_version() -> str:
    import torch

    return str(torch.__version__)


def _command() -> str:
    return " ".join(["python -m benchmarks.trace", *(argument for argument in sys.argv[1:])])


def _machine() -> dict[str, Any]:
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "load_average_1min": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": _torch_version(),
    }


def _markdown(report: dict[str, Any]) -> str:
    machine, rows, boundary = report["machine"], report["accuracy"], report["boundary"]
    lines = [
        "# The trace against the allocator",
        "",
        f"`{report['command']}` on {machine['cores']} cores of {machine['processor']} (shared with other work: load "
        f"{machine['load_average_1min']:.1f}), Python {machine['python']}, torch {machine['torch']}.",
        "",
        "Peak of a step: two accumulation passes and an update, after two earlier steps; fresh process per size.",
        "",
        "| job | size | predicted MiB | measured MiB | error % | activations MiB | hardware flops error % "
        "| model flops error % | trace s |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        lines.append(
            f"| {row['job']} | {row['micro_batch_size']} | {row['predicted_peak_memory_bytes'] / 2**20:.2f} "
            f"| {row['measured_peak_memory_bytes'] / 2**20:.2f} | {row['error_percent']:+.2f} "
            f"| {row['activation_bytes'] / 2**20:.0f} | {row['hardware_flops_error_percent']:+.2f} "
            f"| {row['model_flops_error_percent']:+.2f} | {row['trace_s']:.1f} |"
        )
    lines += ["", *_summary(rows)] if rows else []
    lines += ["", *(f"* No trace of {name}: {reason}" for name, reason in report["untraced"].items())]
    if boundary:
        lines += [
            "",
            f"Boundary: {boundary['budgets']} random budgets; the largest size that fits by the trace is within 3 % of "
            f"the measured one in {boundary['within_3_percent']:.1%} of cases, more than 3 % above it in "
            f"{boundary['more_than_3_percent_above']:.1%} (worst {boundary['worst_above_percent']:+.2f} %, "
            f"{boundary['worst_below_percent']:+.2f} %).",
        ]
    lines += [line for row in report["cost"] for line in ("", _cost_line(row))]
    return "\n".join(lines) + "\n"


def _cost_line(row: dict[str, Any]) -> str:
    seconds = ", ".join(f"{value:.1f}" for value in row["trace_s"])
    processor_s = statistics.median(row["processor_s"])
    return (
        f"Cost of {row['job']} ({row['num_parameters'] / 1e9:.2f} billion parameters), after imports: "
        f"{row['median_trace_s']:.1f} s (median of {seconds}), of which {processor_s:.1f} s of processor time; "
        f"{row['resident_bytes'] / 1e9:.2f} GB resident."
    )


def _summary(rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    for title, convolutions in (("without convolutions", False), ("with convolutions", True)):
        large = [
            abs(row["error_percent"])
            for row in rows
            if row["has_convolutions"] is convolutions and row["activation_bytes"] > 100e6
        ]
        if large:
            lines.append(
                f"Jobs {title}, activations above 100 MB ({len(large)} peaks): median error "
                f"{statistics.median(large):.2f} %, worst {max(large):.2f} %."
            )
    for title, key in (
        ("Operations as they are run, against every call of the compiled step", "hardware_flops_error_percent"),
        (
            "Operations of the model, against torch's counter on the eager step without checkpointing",
            "model_flops_error_percent",
        ),
    ):
        lines.append(f"{title}: worst error {max(abs(row[key]) for row in rows):.2f} %.")
    return lines


if __name__ == "__main__":
    main()
