"""The trace against PyTorch's own allocator on an emulated H100: `python -m benchmarks.emulated_memory [--only JOB]`.

Each size runs in a process of its own under the CUDA build of PyTorch in $BEXPLORE_CUDA_TORCH: two steps, then a third
of two accumulation passes and an update whose peaks are read. Then the limit of the allocator is lowered, to find the
lowest under which that step still runs. The trace knows nothing of that build: it is made by the CPU's PyTorch.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import statistics
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.emulated_memory_jobs import EXPLAINED, JOBS
from benchmarks.machine_facts import machine_facts

DEVICE = "h100"
FOLDER_VARIABLE = "BEXPLORE_CUDA_TORCH"
RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parents[1]
COUNTED_FROM_BYTES = 512 * 2**20  # of the ratios of reserved to allocated memory
RESOLUTION = 1.005  # of the lowest limit

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="JOB", help="jobs whose name has this in it")
    parser.add_argument("--fresh", action="store_true", help="measure again what is in the results already")
    parser.add_argument("--trace-again", action="store_true", help="trace again, and keep what was measured")
    parser.add_argument("--child", nargs=2, metavar=("JOB", "SIZE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        job, size = options.child
        print(json.dumps(measure_step(job, int(size))), flush=True)
        os._exit(0)  # autograd's thread for a device may take Python's lock while it ends, which ends it by a signal
    path = RESULTS / "emulated_memory.json"
    report = json.loads(path.read_text()) if path.exists() else {"measured": {}, "traced": {}}
    for name, (_, sizes) in JOBS.items():
        if options.only and options.only not in name:
            continue
        if options.fresh or options.trace_again or name not in report["traced"]:
            report["traced"][name] = trace(name)
        for size in sizes:
            measured = report["measured"].setdefault(name, {})
            if options.fresh or str(size) not in measured:
                command = ["-m", "benchmarks.emulated_memory", "--child", name, str(size)]
                measured[str(size)] = run_emulated(command)[-1]
        report["facts"] = machine_facts() | {"command": "python -m benchmarks.emulated_memory", "device": DEVICE}
        path.write_text(json.dumps(report, indent=1) + "\n")
        path.with_suffix(".md").write_text(markdown(report))
        print(*lines_of(report, name), sep="\n", file=sys.stderr)


def run_emulated(arguments: list[str], folders: Sequence[Path] = ()) -> list[Any]:
    """Run Python on an emulated device, with packages of further folders; return the JSON objects that it prints."""
    from bexplore.emulated_gpu import emulated_environment
    from bexplore.host.accelerators import DEVICES

    site = Path(os.environ[FOLDER_VARIABLE])
    environment = emulated_environment(DEVICES[DEVICE], torch_folder=site / "torch")
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (site, *folders, ROOT, Path(sysconfig.get_path("purelib")))))
    finished = subprocess.run(
        [sys.executable, *arguments], env=os.environ | environment, check=True, text=True, stdout=subprocess.PIPE
    )
    return [json.loads(line) for line in finished.stdout.splitlines() if line.startswith("{")]


def trace(name: str) -> Row:
    """The peaks that a trace predicts, by size; or why there are none."""
    from benchmarks.trace_cuda import trace as trace_sizes

    job, sizes = JOBS[name]
    return trace_sizes(job, sizes)


def measure_step(name: str, size: int) -> Row:
    """Run a job at one size; return the allocator's peaks in its third step, and its lowest limit."""
    import torch

    from bexplore.engine.protocol.messages import SharedMode
    from bexplore.engine.worker.compilation import compile_workload
    from bexplore.engine.worker.peak_memory import measure_peak
    from bexplore.measurement.probe import Compilation
    from bexplore.workloads import build

    job, _ = JOBS[name]
    workload = build(job)
    compile_workload(workload, job.compile, Compilation.EXACT, SharedMode.STATIC, ())
    batch = workload.make_batch(size)

    def step() -> None:
        for _ in range(2):
            workload.forward_backward(batch, 0.5)
        workload.update()

    for _ in range(2):
        step()
    peak = measure_peak(step, torch.device("cuda"), alive=())
    assert peak is not None and peak.reserved_bytes is not None
    return {
        "allocated_bytes": peak.allocated_bytes,
        "reserved_bytes": peak.reserved_bytes,
        "lowest_limit_bytes": find_lowest_limit(step, workload.optimizers, peak.allocated_bytes, peak.reserved_bytes),
    }


def find_lowest_limit(step: Any, optimizers: list[Any], allocated_bytes: int, reserved_bytes: int) -> int:
    """The lowest limit of the allocator under which a step runs, found by halving."""
    import torch

    total_bytes = torch.cuda.get_device_properties(0).total_memory
    low, high = allocated_bytes, reserved_bytes
    while high > low * RESOLUTION:
        middle = (low + high) // 2
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(middle / total_bytes)
        try:
            step()
            high = middle
        except torch.OutOfMemoryError:
            low = middle
            for optimizer in optimizers:
                optimizer.zero_grad()
        torch.cuda.set_per_process_memory_fraction(1.0)
    return high


def rows_of(report: Row) -> list[Row]:
    """A row for each job and size that was measured and traced."""
    rows = []
    for name, measured in report["measured"].items():
        for size, peaks in measured.items():
            traced = report["traced"][name].get("peak_memory_bytes", {}).get(size)
            error = 100 * (traced / peaks["allocated_bytes"] - 1) if traced else None
            rows.append({"job": name, "size": int(size), "traced_bytes": traced, "error_percent": error, **peaks})
    return rows


def ratio_lines(report: Row) -> list[str]:
    """Sentences on reserved over allocated memory, with memory to spare and near the limit."""
    lines = []
    for way in ("eager", "compiled", ""):
        for key, where in (("reserved_bytes", "with memory to spare"), ("lowest_limit_bytes", "at the lowest limit")):
            logs = {
                name: [math.log(peaks[key] / peaks["allocated_bytes"]) for peaks in sizes.values() if counts(peaks)]
                for name, sizes in report["measured"].items()
                if name.endswith(way)
            }
            logs = {name: values for name, values in logs.items() if values}
            means = [statistics.mean(values) for values in logs.values()]
            within = [value - statistics.mean(values) for values in logs.values() for value in values]
            own_sd = math.sqrt(sum(value**2 for value in within) / max(len(within) - len(logs), 1))
            lines.append(
                f"* {way or 'all'}, {where}: ln has the mean {statistics.mean(means):.3f} (a ratio of "
                f"{math.exp(statistics.mean(means)):.3f}), a standard deviation of {statistics.stdev(means):.3f} "
                f"between {len(logs)} jobs and of {own_sd:.3f} between the sizes of a job; the largest ratio is "
                f"{math.exp(max(value for values in logs.values() for value in values)):.3f}."
            )
    return lines


def counts(peaks: Row) -> bool:
    """Whether a peak is large enough that segments of 20 MiB are a few percent of it."""
    return bool(peaks["allocated_bytes"] >= COUNTED_FROM_BYTES)


def lines_of(report: Row, name: str = "") -> list[str]:
    """The rows of a table."""
    return [
        f"| {row['job']} | {row['size']} | {row['allocated_bytes'] / 2**20:.1f} "
        + (
            f"| {row['traced_bytes'] / 2**20:.1f} | {row['error_percent']:+.2f} "
            if row["traced_bytes"]
            else "| not traced | "
        )
        + f"| {row['reserved_bytes'] / row['allocated_bytes']:.3f} "
        f"| {row['lowest_limit_bytes'] / row['allocated_bytes']:.3f} |"
        for row in rows_of(report)
        if name in ("", row["job"])
    ]


def markdown(report: Row) -> str:
    """The report for people."""
    facts = report["facts"]
    errors = [abs(row["error_percent"]) for row in rows_of(report) if row["error_percent"] is not None]
    return "\n".join(
        [
            "# Memory: the trace against PyTorch's allocator on an emulated device",
            "",
            f"`{facts['command']}`, {facts['at']}: {facts['processors']} processors of {facts['processor']}; Python "
            f"{facts['python']}, torch {facts['torch']} for the trace, its CUDA build on the emulated device "
            f"({facts['device']}).",
            "",
            "Peaks of a step of two accumulation passes and an update, after two such steps. The lowest limit is that "
            "of the allocator's memory under which the step still runs, because unused segments are given back.",
            "",
            f"{len(errors)} peaks: median error {statistics.median(errors):.2f} %, worst {max(errors):.2f} %.",
            "",
            "| job | size | allocated, MiB | traced, MiB | error, % | reserved / allocated | limit / allocated |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
            *lines_of(report),
            "",
            "What is left, and why: `allocated` counts whole blocks, of which up to 1 MiB may be unused, so that small "
            "steps are up to 2.5 % above the trace.",
            "",
            *(f"* {name}: {why}" for name, why in EXPLAINED.items()),
            "",
            f"Reserved over allocated memory, of peaks from {COUNTED_FROM_BYTES / 2**20:.0f} MiB on:",
            "",
            *ratio_lines(report),
            "",
        ]
    )


if __name__ == "__main__":
    main()
