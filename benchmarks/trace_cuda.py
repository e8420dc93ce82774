"""The trace on a CUDA device that is not there: `python -m benchmarks.trace_cuda [--part PART] [--only JOB]`.

Three tables: jobs that are traced for an H100 without one; eager jobs, whose memory PyTorch's own tracker reckons a
second time; and jobs rebuilt after published ones, beside the peaks that were measured on H100s. It needs Triton:
`pip install 'bexplore[gpu-trace]'`. What stands in the results already is kept; `--fresh` traces it again.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.trace_cuda_jobs import EAGER_JOBS, MORE_JOBS, PUBLISHED_JOBS
from benchmarks.trace_cuda_reckoning import GPU
from benchmarks.trace_cuda_report import line_through, markdown
from bexplore.config.load import load_config
from bexplore.engine import program_client
from bexplore.job import Job
from bexplore.trace.absent_gpu import reason_against
from bexplore.trace.cost_model import CostModel

RESULTS = Path(__file__).parent / "results"
SIZES = (8, 32)  # samples; two, so that a constant part and a slope follow
PATIENCE_S = 1200.0  # processor time is judged; on a loaded machine it is a small share of the wall's
_BLAS = "cuBLAS workspaces"  # resident in the trace, invisible to a tracker of tensors
_ENGINE_JOBS = {path.stem: path for path in sorted((Path(__file__).parent / "jobs").glob("engine_cuda_*.yaml"))}

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=PARTS, help="this table alone")
    parser.add_argument("--only", metavar="JOB", help="this job alone")
    parser.add_argument("--fresh", action="store_true", help="trace again what is in the results already")
    parser.add_argument(
        "--published", type=Path, default=Path("../shared/curves/milabench_h100.csv"), help="table of published peaks"
    )
    options = parser.parse_args()
    if reason := reason_against():
        parser.error(reason)
    program_client.TRACE_LIMIT_S = PATIENCE_S
    path = RESULTS / "trace_cuda.json"
    for part in [options.part] if options.part else PARTS:
        jobs, measure = PARTS[part](options)
        for name in [name for name in jobs if options.only in (None, name)]:
            if options.fresh or name not in _read(path).get(part, {}):
                row = measure(name) | {"load_average_1min": os.getloadavg()[0]}
                print(f"{name}: {json.dumps(row)[:200]}", file=sys.stderr)
                _keep(path, part, name, row)
    print(_write(path))


def _keep(path: Path, part: str, name: str, row: Row) -> None:
    """Write a row down at once, so that an interruption, or another part that runs meanwhile, loses nothing."""
    report = _read(path)
    report.setdefault(part, {})[name] = row
    report["facts"] = _facts()
    path.write_text(json.dumps(report, indent=1) + "\n")
    _write(path)


def _read(path: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return report


def _write(path: Path) -> str:
    text = markdown(_read(path))
    path.with_suffix(".md").write_text(text)
    return text


def traced_part(_: argparse.Namespace) -> tuple[list[str], Callable[[str], Row]]:
    """Jobs of the engine's benchmark, and models on which nothing was tuned."""

    def measure(name: str) -> Row:
        job = load_config(_ENGINE_JOBS[name]).job if name in _ENGINE_JOBS else MORE_JOBS[name]
        return trace(job) | {"is_engine_job": name in _ENGINE_JOBS}

    return [*_ENGINE_JOBS, *MORE_JOBS], measure


def eager_part(_: argparse.Namespace) -> tuple[list[str], Callable[[str], Row]]:
    """Eager jobs, traced and reckoned a second time."""

    def measure(name: str) -> Row:
        reckoned = {str(size): _reckon(name, size) for size in SIZES}
        peaks = {size: max(phases.values()) for size, phases in reckoned.items()}
        return trace(EAGER_JOBS[name]) | {"reckoned": reckoned, "reckoned_line": line_through(peaks)}

    return list(EAGER_JOBS), measure


def published_part(options: argparse.Namespace) -> tuple[list[str], Callable[[str], Row]]:
    """Jobs rebuilt after published ones."""
    jobs = {published.model: published for published in PUBLISHED_JOBS}
    curves = read_peaks(options.published)

    def measure(name: str) -> Row:
        sizes = tuple(int(size) for size in curves[name])
        return trace(jobs[name].job, sizes) | {"published": curves[name], "differs": jobs[name].differs}

    return list(jobs), measure


PARTS = {"traced": traced_part, "eager": eager_part, "published": published_part}


def trace(job: Job, sizes: tuple[int, ...] = SIZES) -> Row:
    """Trace a job in a process of its own: seconds, and the peak at some sizes; or why there is none."""
    started_s, processor_started_s = time.perf_counter(), _processor_s()
    with tempfile.TemporaryDirectory() as run_dir:
        answer = program_client.trace_in_worker(job, Path(run_dir), lambda _: None, gpu=GPU)
    seconds = {"wall_s": time.perf_counter() - started_s, "processor_s": _processor_s() - processor_started_s}
    if isinstance(answer, str):
        return seconds | {"refused": answer}
    return seconds | _described(answer, sizes)


def _described(model: CostModel, sizes: tuple[int, ...]) -> Row:
    peaks = {str(size): model.peak_memory_bytes(size) for size in sizes}
    return {
        "trace_s": model.trace_s,
        "num_parameters": model.num_parameters,
        "peak_memory_bytes": peaks,
        "blas_workspace_bytes": sum(int(buffer.size(1)) for buffer in model.resident if buffer.label == _BLAS),
        "phase": {str(size): model.peak_at(size)[0].value for size in sizes},
        "line": line_through(peaks),
        "notes": list(model.notes),
    }


def _reckon(name: str, size: int) -> dict[str, int]:
    command = [sys.executable, "-m", "benchmarks.trace_cuda_reckoning", name, str(size)]
    finished = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE)
    answer: dict[str, int] = json.loads(finished.stdout.splitlines()[-1])
    return answer


def read_peaks(path: Path) -> dict[str, dict[str, float]]:
    """Published peaks in bytes, by model and by size."""
    curves: dict[str, dict[str, float]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["peak_mem_gib"]:
                curve = curves.setdefault(row["model"], {})
                curve[row["micro_batch_size"]] = float(row["peak_mem_gib"]) * 2**30
    return curves


def _processor_s() -> float:
    """Processor time of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _facts() -> dict[str, Any]:
    return {
        "command": "python -m benchmarks.trace_cuda",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("torch", "triton", "transformers")},
        "gpu": GPU.name if GPU else None,
    }


if __name__ == "__main__":
    main()
