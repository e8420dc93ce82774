"""The trace on models of many fields: `python -m benchmarks.trace_fields [--only WORDS] [--resume]`.

Each model is traced, eager and compiled, and its peak read from the allocator at two sizes as `benchmarks.trace` does
it; a job that cannot be traced is measured at small sizes, as an exploration does. A job is written as soon as it is
done. Peaks that were measured before on the same torch are read from the results; `--fresh` measures again.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.machine_facts import machine_facts
from benchmarks.trace_field_jobs import FIELD_JOBS
from bexplore.host.records import from_record
from bexplore.trace import CostModel

RESULTS = Path(__file__).parent / "results"
REPORT = RESULTS / "trace_fields.json"
LIMIT_S = 900.0  # of one action: a judgement, the longest takes a tenth


def main() -> None:
    """Trace and measure what the results lack, and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="WORDS", help="jobs whose name contains one of these, parted by |")
    parser.add_argument("--resume", action="store_true", help="leave out the jobs that the results have")
    parser.add_argument("--fresh", action="store_true", help="measure again what is in the results already")
    options = parser.parse_args()
    for name in FIELD_JOBS:
        known = _read()["jobs"].get(name, {})
        if any(word in name for word in (options.only or "").split("|")) and not (options.resume and known):
            row = _make_row(name, {} if options.fresh else known)
            print(f"{name:36s} {_describe(row)}", file=sys.stderr, flush=True)
            _write(name, row)
    print(_markdown(_read()))


def _make_row(name: str, known: dict[str, Any]) -> dict[str, Any]:
    sizes = FIELD_JOBS[name].sizes
    row: dict[str, Any] = {"sizes": sizes, "measured_peak_memory_bytes": known.get("measured_peak_memory_bytes")}
    if not row["measured_peak_memory_bytes"]:
        measured = [_run_child("measure", name, size) for size in sizes]
        failed = [one["failed"] for one in measured if "failed" in one]
        if failed:
            return row | {"not_run": failed[0]}
        row["measured_peak_memory_bytes"] = [one["peak_memory_bytes"] for one in measured]
    answer = _run_child("trace", name)
    if "untraced" in answer:
        row["untraced"] = answer["untraced"]
        answer = _run_child("fit", name)
    row |= {key: answer[key] for key in ("failed", "measured_at") if key in answer}
    if "cost_model" in answer:
        model = from_record(CostModel, answer["cost_model"])
        row["predicted_peak_memory_bytes"] = [model.peak_memory_bytes(size) for size in sizes]
        row["trace_s"] = model.trace_s
    return row


def _run_child(action: str, name: str, size: int = 0) -> dict[str, Any]:
    """Return the answer of one action in a fresh process; what it said last where it fails."""
    if action == "fit":
        return _fit(name)
    command = [sys.executable, "-m", "benchmarks.trace", "--child", action, name, str(size)]
    # Of one thread torch computes small convolutions of points without oneDNN; a user has several.
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    try:
        finished = subprocess.run(command, check=True, text=True, capture_output=True, timeout=LIMIT_S, env=environment)
        answer: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    except subprocess.CalledProcessError as error:
        return {"failed": error.stderr.strip().splitlines()[-1][:200]}
    except subprocess.TimeoutExpired:
        return {"failed": f"more than {LIMIT_S:.0f} s"}
    return answer


def _fit(name: str) -> dict[str, Any]:
    """Measure a job at small sizes, in a worker of the engine."""
    from bexplore.engine.runner import EngineRunner, RunnerSettings
    from bexplore.exploration.untraced import list_small_sizes

    with tempfile.TemporaryDirectory() as folder:
        settings = RunnerSettings(job=FIELD_JOBS[name].job, run_dir=Path(folder))
        with EngineRunner(settings) as runner:
            measured = runner.measure_memory(list_small_sizes(1, None))
    if not measured.is_measured:
        return {"failed": measured.reason}
    cost_model = measured.details["cost_model"]
    return {"cost_model": cost_model, "measured_at": from_record(CostModel, cost_model).measured_at}


def _read() -> dict[str, Any]:
    report: dict[str, Any] = json.loads(REPORT.read_text()) if REPORT.exists() else {"jobs": {}}
    return report


def _write(name: str, row: dict[str, Any]) -> None:
    """Add one job to the results; another process may be adding others."""
    with REPORT.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        report = json.loads(file.read() or '{"jobs": {}}')
        jobs = report["jobs"] | {name: row}
        report = {
            "command": "python -m benchmarks.trace_fields",
            "machine": machine_facts(),
            "jobs": {one: jobs[one] for one in FIELD_JOBS if one in jobs},
        }
        file.truncate(0)
        file.write(json.dumps(report, indent=1) + "\n")
        file.flush()
        REPORT.with_suffix(".md").write_text(_markdown(report))


def _list_errors(row: dict[str, Any]) -> list[float]:
    pairs = zip(row.get("predicted_peak_memory_bytes") or (), row["measured_peak_memory_bytes"] or (), strict=False)
    return [100 * (predicted / measured - 1) for predicted, measured in pairs]


def _describe(row: dict[str, Any]) -> str:
    errors = " ".join(f"{error:+.2f} %" for error in _list_errors(row))
    return " ".join([errors, *(f"{key}: {row[key]}" for key in ("untraced", "failed", "not_run") if key in row)])


def _markdown(report: dict[str, Any]) -> str:
    facts, jobs = report["machine"], report["jobs"]
    lines = [
        "# The trace on models of many fields",
        "",
        f"`{report['command']}`: {facts['processors']} cores, {facts['processor']}, torch {facts['torch']}.",
        "",
        "Peak of a step: two accumulation passes and an update, after two earlier steps; fresh process per size.",
        "",
        "| job | size | predicted MiB | allocator MiB | error % | how, seconds |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for name, row in jobs.items():
        how = f"measured at {', '.join(map(str, row['measured_at']))}" if "measured_at" in row else "traced"
        predicted = row.get("predicted_peak_memory_bytes")
        actual = row["measured_peak_memory_bytes"]
        if "failed" in row or predicted is None or actual is None:
            reason = f"does not run: {row['not_run']}" if "not_run" in row else row.get("failed")
            lines.append(f"| {name} | - | - | - | - | {reason} |")
            continue
        for size, one, other, error in zip(row["sizes"], predicted, actual, _list_errors(row), strict=True):
            mib = f"{one / 2**20:.2f} | {other / 2**20:.2f}"
            lines.append(f"| {name} | {size} | {mib} | {error:+.2f} | {how}, {row['trace_s']:.1f} |")
    lines += ["", *_summarize(jobs), ""]
    for key, words in (("not_run", "torch itself does not run {}"), ("untraced", "No trace of {}")):
        lines += [f"* {words.format(name)}: {row[key]}" for name, row in jobs.items() if key in row]
    return "\n".join([*lines, ""])


def _summarize(jobs: dict[str, Any]) -> list[str]:
    lines = []
    for mode in ("eager", "compiled"):
        own = [row for name, row in jobs.items() if name.endswith(f", {mode}") and "not_run" not in row]
        if not own:
            continue
        missing = sum(name.endswith(f", {mode}") and name not in jobs for name in FIELD_JOBS)
        if missing:
            lines.append(f"{missing} models {mode} were not run yet.")
        traced = [row for row in own if "untraced" not in row and "failed" not in row]
        fitted = [row for row in own if "measured_at" in row]
        parts = [f"Of {len(own)} models that run {mode}, {len(traced)} are traced and {len(fitted)} measured instead"]
        for word, rows in (("traced", traced), ("measured", fitted)):
            errors = [abs(error) for row in rows for error in _list_errors(row)]
            if errors:
                parts.append(
                    f"{len(errors)} peaks of those {word} have a median error of {statistics.median(errors):.2f} %, "
                    f"the worst {max(errors):.2f} %"
                )
        lines.append("; ".join(parts) + ".")
    return lines


if __name__ == "__main__":
    main()
