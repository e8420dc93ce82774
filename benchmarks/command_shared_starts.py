"""Sizes of one start against separate starts: do they rank alike? `python -m benchmarks.command_shared_starts`.

Four jobs of `benchmarks/command_jobs`, two of them with two ranks. A round starts the command once for each size, and
once for all sizes, in turns upwards and downwards; all in one loop, so that the machine's drift meets both alike. What
is compared is ln(samples/s) of one start less that of separate starts, size by size and centred over the sizes of a
job: a level that all sizes share changes no ranking.
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
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.command_jobs.table import FOLDER, JOBS, CommandJob
from benchmarks.command_search import NAMES, overrides
from bexplore.command.runner import CommandRunner, CommandSettings
from bexplore.config.load import load_config
from bexplore.host.machine import package_version, processor_name
from bexplore.job.batching import INDIFFERENCE_ZONE
from bexplore.measurement.probe import Compilation, Probe

RESULTS = Path(__file__).parent / "results"
SIZES = (8, 16, 32, 48, 64)
WAYS = ("separate", "shared")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--jobs", nargs="*", default=NAMES)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    os.chdir(FOLDER)
    rows = []
    for number in range(options.rounds):
        for job in (job for job in JOBS if job.name in options.jobs):
            sizes = SIZES if number % 2 == 0 else SIZES[::-1]
            rows += [{"round": number, "job": job.name, **row} for way in WAYS for row in of_way(job, way, sizes)]
        write(rows, options)
        print(f"round {number + 1} of {options.rounds}", flush=True)


def of_way(job: CommandJob, way: str, sizes: tuple[int, ...]) -> list[dict]:
    """Return samples/s and seconds of each size, in starts of their own or in one."""
    config = load_config(None, overrides=overrides(job))
    assert config.command is not None
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        shared = way == "shared"
        settings = CommandSettings(run_dir=Path(folder), sizes_per_start=len(sizes) if shared else 1, candidates=SIZES)
        runner = CommandRunner(config.command, settings)
        for number, size in enumerate(sizes):
            compilation = Compilation.SHARED if shared else Compilation.EXACT
            began_s = time.monotonic()
            observation = runner(Probe(number=number, micro_batch_size=size, compilation=compilation))
            assert observation.is_measured, observation.reason
            assert observation.probe.compilation is compilation, observation
            rows.append({"way": way, "size": size, "samples_per_s": observation.samples_per_s})
            rows[-1] |= {"elapsed_s": time.monotonic() - began_s, "is_first": number == 0}
        runner.close()
    return rows


def of_job(rows: list[dict], job: str) -> dict:
    """Return the comparison of a job: by size, the centred difference, its standard error, and the medians."""
    speeds = {
        way: {
            size: [row["samples_per_s"] for row in rows if (row["job"], row["way"], row["size"]) == (job, way, size)]
            for size in SIZES
        }
        for way in WAYS
    }
    differences = [
        {size: math.log(speeds["shared"][size][i] / speeds["separate"][size][i]) for size in SIZES}
        for i in range(len(speeds["shared"][SIZES[0]]))
    ]
    levels = [statistics.fmean(one.values()) for one in differences]
    centred = {size: [one[size] - level for one, level in zip(differences, levels, strict=True)] for size in SIZES}
    medians = {way: {size: statistics.median(speeds[way][size]) for size in SIZES} for way in WAYS}
    best = {way: max(SIZES, key=lambda size: medians[way][size]) for way in WAYS}
    return {
        "job": job,
        "level": statistics.fmean(levels),
        "difference": {size: statistics.fmean(values) for size, values in centred.items()},
        "se": {size: standard_error(values) for size, values in centred.items()},
        "best": best,
        "regret": 1.0 - medians["separate"][best["shared"]] / medians["separate"][best["separate"]],
        "elapsed_s": {way: seconds(rows, job, way) for way in WAYS},
        "noise": {way: statistics.median(relative_sd(one) for one in speeds[way].values()) for way in WAYS},
    }


def standard_error(values: list[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def relative_sd(values: list[float]) -> float:
    return statistics.stdev(map(math.log, values)) if len(values) > 1 else math.nan


def seconds(rows: list[dict], job: str, way: str) -> float:
    """Return the seconds of a round."""
    own = [row for row in rows if (row["job"], row["way"]) == (job, way)]
    return sum(row["elapsed_s"] for row in own) / len({row["round"] for row in own})


def beyond_noise(found: list[dict]) -> tuple[float, float, float]:
    """Return the root mean square of the differences, what noise explains of it, and what is left."""
    values = [(one["difference"][size], one["se"][size]) for one in found for size in SIZES]
    # Centring takes one of the sizes' freedoms, from the difference and from its standard error alike.
    square = statistics.fmean(value**2 for value, _ in values)
    noise = statistics.fmean(se**2 for _, se in values)
    return math.sqrt(square), math.sqrt(noise), math.sqrt(max(0.0, square - noise))


def write(rows: list[dict], options: argparse.Namespace) -> None:
    found = [of_job(rows, name) for name in NAMES if name in options.jobs]
    num_rounds = 1 + max(row["round"] for row in rows)
    square, noise, left = beyond_noise(found)
    whole = {way: sum(one["elapsed_s"][way] for one in found) for way in WAYS}
    text = [
        "# Sizes of one start against separate starts",
        "",
        f"Command: `python -m benchmarks.command_shared_starts --rounds {num_rounds}`, "
        f"{datetime.now(UTC):%Y-%m-%d}. {processor_name()}, {os.cpu_count()} processors shared with other work, "
        f"Python {platform.python_version()}, torch {package_version('torch')}.",
        "",
        f"{len(SIZES)} sizes, {num_rounds} rounds; separate and shared starts interleaved. Differences of "
        "ln(samples/s), shared less separate, centred over the sizes of a job: root mean square "
        f"**{square:.1%}**, of which noise explains {noise:.1%} and **{left:.1%}** is left; the indifference zone is "
        f"{INDIFFERENCE_ZONE:.0%}. A round of all jobs takes {whole['separate']:.0f} s in separate starts and "
        f"{whole['shared']:.0f} s in shared ones (**{whole['shared'] / whole['separate']:.2f}**).",
        "",
        f"| job | {' | '.join(f'size {size}' for size in SIZES)} | of all sizes | noise: separate, shared | fastest: "
        "separate, shared | regret of the second | seconds: separate, shared |",
        f"|---|{'---:|' * len(SIZES)}---:|---:|---:|---:|---:|",
    ]
    for one in found:
        cells = [f"{one['difference'][size]:+.1%} ± {2 * one['se'][size]:.1%}" for size in SIZES]
        pairs = [
            f"{one['noise']['separate']:.1%}, {one['noise']['shared']:.1%}",
            f"{one['best']['separate']}, {one['best']['shared']}",
            f"{one['regret']:.1%}",
            f"{one['elapsed_s']['separate']:.0f}, {one['elapsed_s']['shared']:.0f}",
        ]
        text.append(f"| {one['job']} | {' | '.join(cells)} | {one['level']:+.1%} | {' | '.join(pairs)} |")
    text += ["", "± is two standard errors; *noise* is the standard deviation of one start's samples/s of a size.", ""]
    (RESULTS / "command_shared_starts.md").write_text("\n".join(text))
    (RESULTS / "command_shared_starts.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
