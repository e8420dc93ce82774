"""Memory from steps at small sizes against the allocator at large ones: `python -m benchmarks.untraced [--only JOB]`.

Jobs that cannot be traced, and jobs of the trace's benchmark as if they could not be. Each size is a probe that
verifies, in a process of its own; the cost model is that of `bexplore.exploration.untraced`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine_facts import machine_facts
from benchmarks.trace_jobs import JOBS
from bexplore.engine.runner import EngineRunner, RunnerSettings
from bexplore.exploration.untraced import list_small_sizes
from bexplore.host.records import from_record
from bexplore.job import CompileSettings, Job
from bexplore.measurement.probe import Compilation, Probe, Purpose
from bexplore.trace.cost_model import CostModel

RESULTS = Path(__file__).parent / "results"
CODE = Path(__file__).parents[1] / "tests" / "jobs"
SIZES = (64, 512)
MODELS = ("Looping", "Branching", "OfNumpy", "Scaling", "Opaque", "Updating", "Normalizing", "Comparing")
TRACED = ("gpt adamw", "gpt eager", "gpt autocast clipped", "llama checkpointed", "transformers resnet")


def _untraceable(model: str, *, compiled: bool) -> Job:
    paths = {"model": f"untraceable:{model}", "batch": "untraceable:samples", "loss": "untraceable:loss"}
    return Job(
        workload="imported", model=paths, import_root=str(CODE), compile=CompileSettings(enabled=compiled), device="cpu"
    )


def list_jobs() -> dict[str, tuple[Job, tuple[int, ...]]]:
    """Return each job with the sizes at which it is measured."""
    own = {f"{model} eager": (_untraceable(model, compiled=False), SIZES) for model in MODELS}
    own |= {f"{model} compiled": (_untraceable(model, compiled=True), SIZES) for model in MODELS[:3]}
    return own | {name: (JOBS[name].job, JOBS[name].sizes[-1:]) for name in TRACED}


def measure_job(job: Job, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Return the cost model's peaks and those of the allocator."""
    with tempfile.TemporaryDirectory() as folder, EngineRunner(RunnerSettings(job=job, run_dir=Path(folder))) as runner:
        began_s = time.perf_counter()
        measured = runner.measure_memory(list_small_sizes(1, None))
        seconds = time.perf_counter() - began_s
        if not measured.is_measured:
            return {"reason": measured.reason}
        model = from_record(CostModel, measured.details["cost_model"])
        rows = []
        for size in sizes:
            probe = Probe(number=0, micro_batch_size=size, purpose=Purpose.VERIFY, max_passes=1)
            own = dataclasses.replace(probe, compilation=Compilation.SHARED, fresh_worker=True)
            peak = runner(own).peak_memory_bytes
            predicted = model.peak_memory_bytes(size)
            error = None if peak is None else 100 * (predicted / peak - 1)
            rows.append({"size": size, "predicted": predicted, "measured": peak, "error_percent": error})
    return {
        "measured_at": model.measured_at,
        "seconds": seconds,
        "steps_s": model.trace_s,
        "relative_sd": model.relative_sd,
        "sizes": rows,
    }


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="JOB", help="this job alone, without results")
    only = parser.parse_args().only
    report: dict[str, Any] = {"machine": machine_facts(), "jobs": {}}
    for name, (job, sizes) in list_jobs().items():
        if only in (None, name):
            report["jobs"][name] = measure_job(job, sizes)
            print(name, json.dumps(report["jobs"][name]), file=sys.stderr, flush=True)
    text = describe(report)
    if only is None:
        (RESULTS / "untraced.json").write_text(json.dumps(report, indent=1) + "\n")
        (RESULTS / "untraced.md").write_text(text)
    print(text)


def describe(report: dict[str, Any]) -> str:
    """Return the report as Markdown."""
    facts = report["machine"]
    lines = [
        "# Memory of jobs that cannot be traced",
        "",
        f"`python -m benchmarks.untraced`: {facts['processors']} cores, {facts['processor']}, torch {facts['torch']}.",
        "",
        "Steps at small sizes, fitted moment by moment, against the allocator's peak of a fresh process.",
        "",
        "| job | measured at | size | predicted MiB | allocator MiB | error % | seconds, compilation included |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    errors = []
    for name, job in report["jobs"].items():
        for row in job.get("sizes", ()):
            at = ", ".join(map(str, job["measured_at"]))
            shown = [f"{row[key] / 2**20:.2f}" if row[key] else "-" for key in ("predicted", "measured")]
            error = "-" if row["error_percent"] is None else f"{row['error_percent']:+.2f}"
            errors += [] if row["error_percent"] is None else [abs(row["error_percent"])]
            lines.append(f"| {name} | {at} | {row['size']} | {' | '.join(shown)} | {error} | {job['steps_s']:.1f} |")
        if "reason" in job:
            lines.append(f"| {name} | not measured: {job['reason']} | | | | | |")
    if errors:
        middle, worst = statistics.median(errors), max(errors)
        lines += ["", f"Of {len(errors)} peaks the median error is {middle:.2f} %, the worst {worst:.2f} %."]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
