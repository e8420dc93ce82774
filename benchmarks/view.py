"""What the live view and the report cost: `python -m benchmarks.view [--quick]`.

Processor time of this process while events of an exploration come in as fast as real ones, with the view on a terminal
and without it; the difference over the time that passed is what the view adds. The report is written once at the end.
Limit: 1 % of an exploration.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from bexplore.host.machine import package_version, processor_name
from bexplore.job import Job
from bexplore.measurement.probe import Observation, Outcome, Probe
from bexplore.output.console import Progress
from bexplore.output.report.files import write_text
from bexplore.output.report.page import html
from bexplore.output.report.report_data import read_report_data
from bexplore.run import run_directory
from bexplore.run.events import Planned, Recommended, Traced
from bexplore.search.recommendation import Recommendation
from bexplore.search.result import ProbeFinished, ProbeStarted

RESULTS = Path(__file__).parent / "results" / "view.json"
PROBE_S, PASS_S = 4.0, 0.25
SIZES = (1, 64, 8, 16, 32, 24, 48, 20)


def observations(count: int) -> list[Observation]:
    made = []
    for number in range(count):
        size = SIZES[number % len(SIZES)]
        seconds = (0.02 + 0.01 * size) * (1 + 0.01 * (number % 3))
        made.append(
            Observation(
                probe=Probe(number=number, micro_batch_size=size),
                outcome=Outcome.MEASURED,
                pass_times_s=tuple(seconds * (1 + 0.002 * turn) for turn in range(10)),
                update_times_s=(0.01,),
                elapsed_s=PROBE_S,
                peak_memory_bytes=2**30 + size * 2**24,
                memory_budget_bytes=8 * 2**30,
            )
        )
    return made


def play(progress: Progress, probes: list[Observation]) -> float:
    """Events at the pace of an exploration; returns the processor seconds of this process."""
    began = time.process_time()
    facts = {
        "title": "job",
        "run": None,
        "num_known_probes": 0,
        "changes": (),
        "device": "cpu",
        "candidates": "64 sizes",
    }
    progress(Planned(max_probes=16, expected_s=60.0, **facts))
    progress(Traced(record=None, reason="none", memory_budget_bytes=8 * 2**30, why_budget="given"))
    for observation in probes:
        progress(ProbeStarted(probe=observation.probe, expected_s=PROBE_S))
        for stage in ("compile", "memory", "passes"):
            progress.report({"stage": stage})
        for _ in range(int(PROBE_S / PASS_S)):
            time.sleep(PASS_S)
            progress.report({"pass_time_s": PASS_S})
        progress(ProbeFinished(observation=observation))
        best = Recommendation(
            micro_batch_size=64,
            relative_performance=2.0,
            confidence=70,
            samples_per_s=90.0,
            smallest_within_tolerance=64,
            base_micro_batch_size=1,
            num_probes=observation.probe.number + 1,
        )
        progress(Recommended(recommendation=best, global_batch_sizes=()))
    progress.close()
    return time.process_time() - began


def report_s(probes: list[Observation]) -> float:
    """Seconds of reading a run and writing its report."""
    with tempfile.TemporaryDirectory() as folder:
        meta = {"job": Job(workload="decoder").as_dict(), "search_specification": {}, "environment": {}, "title": "job"}
        run = run_directory.create_run(Path(folder), meta=meta, now=datetime.now(UTC))
        for observation in probes:
            run.journal.append(observation)
        began = time.perf_counter()
        write_text(run.directory / "report.html", html(read_report_data(run)))
        return time.perf_counter() - began


def main() -> None:
    quick = "--quick" in sys.argv[1:]
    probes = observations(3 if quick else 12)
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123, a device has no path of its own
        terminal = Console(file=nowhere, force_terminal=True, width=100, height=40)
        lines = Console(file=nowhere, force_terminal=False, width=100)
        with_view_s, without_s = play(Progress(terminal), probes), play(Progress(lines), probes)
    passed_s = len(probes) * PROBE_S
    written_s = report_s(probes)
    record = {
        "passed_s": passed_s,
        "view_processor_s": with_view_s,
        "lines_processor_s": without_s,
        "view_share": (with_view_s - without_s) / passed_s,
        "report_s": written_s,
        "report_share_of_a_minute": written_s / 60.0,
        "limit": 0.01,
        "command": " ".join(["python -m benchmarks.view", *sys.argv[1:]]),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{processor_name()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}",
        "versions": f"Python {platform.python_version()}, rich {package_version('rich')}",
    }
    print(json.dumps(record, indent=1))
    if not quick:
        RESULTS.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
