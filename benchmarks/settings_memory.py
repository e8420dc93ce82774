"""The trace under settings that trade memory for speed, against probes: `python -m benchmarks.settings_memory`.

Each job under each choice of settings is a process of its own, which traces it and then runs it as a probe does. What
an earlier call recorded on the same torch is not measured again, but with `--fresh`; `--traces` traces again alone.
Last, `bexplore trace` of a LLaMA of 7 billion parameters under three settings: its seconds and its memory.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.settings_memory_jobs import LARGE_JOB, LARGE_MEMORY, Case, case, cases
from benchmarks.trace_command import large_lines, timed_trace

RESULTS = Path(__file__).parent / "results"
RECORDS = RESULTS / "settings_memory.json"
TABLE = RESULTS / "settings_memory.md"
MEDIAN_PERCENT = 0.5
WORST_PERCENT = 5.0
LARGE = "llama 7B | table"
LARGE_WORDS = "a LLaMA of 7 billion parameters under three settings, on one device of 80 GiB"
LARGE_LIMIT_S = 60.0
LARGE_LIMIT_BYTES = 2e9
_BUDGET_BYTES = 8 * 2**30
_LIMIT_S = 600  # of one process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="WORDS", default="", help="cases whose name has these words")
    parser.add_argument("--fresh", action="store_true", help="measure again what is recorded already")
    parser.add_argument("--traces", action="store_true", help="trace again what is recorded already")
    parser.add_argument("--child", nargs=2, metavar=("CASE", "ACTIONS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, actions = options.child
        print(json.dumps({action: CHILD_ACTIONS[action](case(name)) for action in actions.split(",")}))
        return
    records: dict[str, Any] = {} if options.fresh or not RECORDS.exists() else json.loads(RECORDS.read_text())
    records = {name: record for name, record in records.items() if record["torch"] == version("torch")}
    for one in sorted(cases(), key=lambda one: one.job.compile.enabled):  # the quick ones first
        if options.only not in one.name:
            continue
        known = {key: value for key, value in records.get(one.name, {}).items() if key != "failure"}
        actions = [action for action in CHILD_ACTIONS if action not in known or (options.traces and action == "trace")]
        if actions:
            records[one.name] = known | _in_child(one, actions)
            RECORDS.write_text(json.dumps(records, indent=1) + "\n")
            TABLE.write_text(_markdown(records))
        print(_line(one, records), file=sys.stderr, flush=True)
    if options.only in LARGE and (options.traces or LARGE not in records):
        records[LARGE] = {"torch": version("torch"), **timed_trace(LARGE_JOB, "--memory-budget", LARGE_MEMORY)}
        RECORDS.write_text(json.dumps(records, indent=1) + "\n")
    TABLE.write_text(_markdown(records))
    print(_markdown(records))


def _in_child(one: Case, actions: Sequence[str]) -> dict[str, Any]:
    """Run actions in a fresh process; its last line is the answer."""
    command = [sys.executable, "-m", "benchmarks.settings_memory", "--child", one.name, ",".join(actions)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(Path(tempfile.gettempdir(), "bexplore_settings_memory"))
    started = time.perf_counter()
    done = subprocess.run(command, text=True, capture_output=True, timeout=_LIMIT_S, env=environment, check=False)
    answer: dict[str, Any] = {"torch": version("torch"), "wall_s": time.perf_counter() - started}
    if done.returncode:
        return answer | {"failure": done.stderr[-2000:]}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return answer | json.loads(lines[-1])


def trace_child(one: Case) -> dict[str, Any]:
    """Trace a job."""
    from bexplore.trace.tracer import trace_job

    model = trace_job(one.job)
    return {
        "peaks": {str(size): model.peak_memory_bytes(size) for size in one.sizes},
        "hardware_flops": {str(size): model.hardware_flops(size) for size in one.sizes},
        "trace_s": model.trace_s,
        "notes": list(model.notes),
    }


def probe_child(one: Case) -> dict[str, Any]:
    """Run a job, as a probe runs it."""
    from bexplore.engine.protocol.messages import RunProbe
    from bexplore.engine.protocol.shared_mode import SharedMode
    from bexplore.engine.worker.session import Session
    from bexplore.measurement.probe import Compilation, Probe

    compilation = Compilation.EXACT if one.job.compile.enabled else Compilation.EAGER
    session = Session(
        RunProbe(
            job=one.job,
            probe=Probe(number=0, micro_batch_size=1, compilation=compilation),
            shared_mode=SharedMode.NESTED,
            budget_bytes=_BUDGET_BYTES,
        ),
        report=lambda **_: None,
    )
    peaks = {}
    for number, size in enumerate(one.sizes):
        probe = Probe(number=number, micro_batch_size=size, compilation=compilation, max_passes=2)
        peaks[str(size)] = session.measure(probe, pass_budget_s=0.0)["peak_memory_bytes"]
    return {"peaks": peaks}


CHILD_ACTIONS = {"trace": trace_child, "probe": probe_child}


def _errors(one: Case, records: dict[str, Any]) -> dict[int, float]:
    """Return the error of the trace by size, percent of the measured peak; empty where one is missing."""
    record = records.get(one.name, {})
    if not {"trace", "probe"} <= record.keys():
        return {}
    traced, measured = record["trace"]["peaks"], record["probe"]["peaks"]
    return {size: 100 * (traced[str(size)] / measured[str(size)] - 1) for size in one.sizes}


def _line(one: Case, records: dict[str, Any]) -> str:
    record = records[one.name]
    return f"{one.name:50s} {_cells(one, records)} ({record['wall_s']:.0f} s)"


def _cells(one: Case, records: dict[str, Any]) -> str:
    if "failure" in records[one.name]:
        return "failed"
    return ", ".join(f"{error:+.2f}" for error in _errors(one, records).values())


def _markdown(records: dict[str, Any]) -> str:
    known = [one for one in cases() if one.name in records]
    lines = [
        "# Memory under settings, against probes",
        "",
        f"Written by `python -m benchmarks.settings_memory` on {os.cpu_count()} cores of {platform.machine()}, Python "
        f"{platform.python_version()}, torch {version('torch')}.",
        "",
        "Peak of a step of two accumulation passes and an update: predicted by the trace, and measured by a probe. "
        "What is recomputed is in `selective`, `full` (`explore.activation_checkpointing`) and `budget` "
        "(`explore.activation_memory_budget`); compiled where nothing else is said.",
        "",
        "| model | settings | sizes | predicted MiB | measured MiB | error % | trace s |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
        *(_row(one, records) for one in known),
        "",
        _summary(known, records),
        *large_lines(records.get(LARGE, {}), LARGE_WORDS, LARGE_LIMIT_S, LARGE_LIMIT_BYTES),
    ]
    failures = [f"* {one.name}: {_last_line(records[one.name])}" for one in known if "failure" in records[one.name]]
    return "\n".join([*lines, *(["", *failures] if failures else [])]) + "\n"


def _row(one: Case, records: dict[str, Any]) -> str:
    record = records[one.name]
    predicted, measured = (
        ", ".join(f"{peak / 2**20:.1f}" for peak in record.get(action, {}).get("peaks", {}).values())
        for action in CHILD_ACTIONS
    )
    trace_s = f"{record['trace']['trace_s']:.1f}" if "trace" in record else ""
    sizes = ", ".join(map(str, one.sizes))
    return f"| {one.model} | {one.settings} | {sizes} | {predicted} | {measured} | {_cells(one, records)} | {trace_s} |"


def _summary(known: Sequence[Case], records: dict[str, Any]) -> str:
    errors = [abs(error) for one in known for error in _errors(one, records).values()]
    if not errors:
        return "Nothing measured."
    return (
        f"{len({one.model for one in known})} jobs, {len(known)} choices of settings, {len(errors)} peaks: median "
        f"error {statistics.median(errors):.2f} % (must: at most {MEDIAN_PERCENT} %), worst {max(errors):.2f} % (must: "
        f"at most {WORST_PERCENT:.0f} %)."
    )


def _last_line(record: dict[str, Any]) -> str:
    lines: list[str] = record["failure"].strip().splitlines()
    return lines[-1] if lines else "the process ended without a word"


if __name__ == "__main__":
    main()
