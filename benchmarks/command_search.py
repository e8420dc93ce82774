"""A whole exploration of a training command beside a power-of-two sweep of it: `python -m benchmarks.command_search`.

Six jobs of `benchmarks/command_jobs`, three of them with two ranks; `--jobs` measures some of them anew. The sweep
starts the same command once for each power of two, under the same observer and with the same rule for its steps, and
takes the fastest. The truth is the median of further starts of every power of two and of both answers, interleaved; the
regret of an answer is what it is below the fastest of these. A difference within the truth's own interval counts as
none.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.command_jobs.table import FOLDER, JOBS, CommandJob
from bexplore.command.runner import CommandRunner, CommandSettings
from bexplore.config.load import load_config
from bexplore.exploration.exploration import explore
from bexplore.exploration.resumable import ExploreOptions
from bexplore.host.machine import package_version, processor_name
from bexplore.measurement.probe import Compilation, Probe
from bexplore.run.events import Finished

RESULTS = Path(__file__).parent / "results"
NAMES = (
    *("plain loop", "plain loop, images", "HF Trainer"),
    *("torchrun DDP", "torchrun DDP, images", "HF Trainer, 2 ranks"),
)
RECORDS = RESULTS / "command_search.json"
MAXIMUM = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one finder found in one run of a job."""

    job: str
    finder: str
    micro_batch_size: int
    num_probes: int
    elapsed_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=1, help="runs of both finders, interleaved")
    parser.add_argument("--rounds", type=int, default=3, help="starts of each size for the truth")
    parser.add_argument("--jobs", nargs="*", default=NAMES)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    os.chdir(FOLDER)
    known = json.loads(RECORDS.read_text()) if RECORDS.exists() else []
    records = [record for record in known if record["job"] not in options.jobs]
    for job in (job for job in JOBS if job.name in options.jobs):
        found = [find(job, run) for run in range(options.runs) for find in (sweep, exploration)]
        truth = truth_of(job, {one.micro_batch_size for one in found}, options.rounds)
        at = f"{datetime.now(UTC):%Y-%m-%d}"
        records.append({"job": job.name, "at": at, "found": [asdict(one) for one in found], "truth": truth})
        print(json.dumps(records[-1]), flush=True)
    write(records, options)


def sweep(job: CommandJob, run: int) -> Found:
    """Start every power of two once."""
    began_s = time.monotonic()
    sizes = [2**exponent for exponent in range(int(math.log2(MAXIMUM)) + 1)]
    speeds = {size: speed for size in sizes if (speed := started(job, size)) is not None}
    best = max(speeds, key=lambda size: speeds[size])
    return Found(
        job=job.name,
        finder="powers of two",
        micro_batch_size=best,
        num_probes=len(sizes),
        elapsed_s=time.monotonic() - began_s,
    )


def exploration(job: CommandJob, run: int) -> Found:
    """Explore with the defaults."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        options = ExploreOptions(model_dir=f"{folder}/run")
        events = list(explore(load_config(None, overrides=[*overrides(job), f"explore.seed={run}"]), options))
    result = next(event.result for event in events if isinstance(event, Finished))
    return Found(
        job=job.name,
        finder="bexplore",
        micro_batch_size=result.micro_batch_size,
        num_probes=result.num_probes,
        elapsed_s=time.monotonic() - began_s,
    )


def truth_of(job: CommandJob, answers: set[int], rounds: int) -> dict[int, list[float]]:
    """Return samples/s of a replica in each start, by size; sizes are interleaved."""
    sizes = sorted({2**exponent for exponent in range(int(math.log2(MAXIMUM)) + 1)} | answers)
    speeds: dict[int, list[float]] = {size: [] for size in sizes}
    for number in range(rounds):
        for size in sizes if number % 2 == 0 else reversed(sizes):
            speed = started(job, size)
            if speed is not None:
                speeds[size].append(speed)
    return speeds


def overrides(job: CommandJob) -> list[str]:
    return [f"explore.command={json.dumps(list(job.argv))}", f"explore.max={MAXIMUM}"]


def started(job: CommandJob, size: int) -> float | None:
    """Return samples/s of a replica in one start of a size; None where it was not measured."""
    config = load_config(None, overrides=overrides(job))
    assert config.command is not None
    with tempfile.TemporaryDirectory() as folder:
        runner = CommandRunner(config.command, CommandSettings(run_dir=Path(folder)))
        probe = Probe(number=0, micro_batch_size=size, compilation=Compilation.EXACT, time_limit_s=600.0)
        observation = runner(probe)
    return observation.samples_per_s if observation.is_measured else None


def regret(truth: dict[int, list[float]], size: int) -> tuple[float, float]:
    """Return what a size is below the fastest, and that less the interval of both medians."""
    middles = {one: statistics.median(speeds) for one, speeds in truth.items() if speeds}
    best = max(middles, key=lambda one: middles[one])
    below = 1.0 - middles[size] / middles[best]
    spread = math.hypot(relative_se(truth[size]), relative_se(truth[best]))
    return below, max(0.0, below - 2.0 * spread)


def relative_se(speeds: list[float]) -> float:
    if len(speeds) < 2:
        return 0.0
    return statistics.stdev(speeds) / statistics.fmean(speeds) / math.sqrt(len(speeds))


def write(records: list[dict], options: argparse.Namespace) -> None:
    rows, ratios, regrets = [], [], []
    for record in records:
        times: dict[str, list[float]] = {}
        for one in record["found"]:
            times.setdefault(one["finder"], []).append(one["elapsed_s"])
            truth = {int(size): speeds for size, speeds in record["truth"].items()}
            below, beyond = regret(truth, one["micro_batch_size"])
            rows.append(
                f"| {record['job']} | {record['at']} | {one['finder']} | {one['micro_batch_size']} | "
                f"{one['num_probes']} | {one['elapsed_s']:.0f} | {below:.1%} | {beyond:.1%} |"
            )
            regrets += [beyond] if one["finder"] == "bexplore" else []
        ratios.append(statistics.median(times["bexplore"]) / statistics.median(times["powers of two"]))
    whole = sum(one["elapsed_s"] for r in records for one in r["found"] if one["finder"] == "bexplore")
    swept = sum(one["elapsed_s"] for r in records for one in r["found"] if one["finder"] != "bexplore")
    text = [
        "# A training command: the exploration beside a sweep of powers of two",
        "",
        f"Command: `python -m benchmarks.command_search --runs {options.runs} --rounds {options.rounds}`, "
        f"{datetime.now(UTC):%Y-%m-%d}. {processor_name()}, {os.cpu_count()} processors, "
        f"Python {platform.python_version()}, torch {package_version('torch')}.",
        "",
        f"Sizes 1 to {MAXIMUM}. Seconds in all: {whole:.0f} of bexplore, {swept:.0f} of the sweep: "
        f"**{whole / swept:.2f}** (by job {', '.join(f'{ratio:.2f}' for ratio in ratios)}). Regret of bexplore beyond "
        f"the truth's interval: mean **{statistics.fmean(regrets):.1%}**, worst **{max(regrets):.1%}**.",
        "",
        "| job | day | finder | answer | probes | seconds | below the fastest | beyond the interval |",
        "|---|---|---|---:|---:|---:|---:|---:|",
        *rows,
        "",
    ]
    (RESULTS / "command_search.md").write_text("\n".join(text))
    RECORDS.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
