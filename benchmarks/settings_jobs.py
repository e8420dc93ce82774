"""Four CPU jobs whose memory budget binds, settings and size together: `python -m benchmarks.settings_jobs`.

Each job is explored with the defaults. Then the truth: every setting at every size that fits, in rounds over all of
them, each setting in its own worker. With `--apart`, each setting is explored by itself too, for its seconds. Each
record is kept when it is made, and a call makes those that are missing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine_facts import machine_facts
from bexplore.config.config import Config
from bexplore.config.load import load_config
from bexplore.engine.runner import EngineRunner, RunnerSettings
from bexplore.errors import BexploreError
from bexplore.exploration.exploration import explore
from bexplore.exploration.resumable import ExploreOptions
from bexplore.measurement.probe import Compilation, Probe
from bexplore.run.events import Finished, ProbeFinished
from bexplore.run.result import RunResult

RESULTS = Path(__file__).parent / "results"
RECORDS = RESULTS / "settings_jobs.json"
JOBS = ("settings_gpt", "settings_compiled", "settings_llama", "settings_own")
FOLDER = Path(__file__).parent / "jobs"
ROUNDS = 8  # of the truth
VISIT_S = 0.4  # of passes of one size in a round


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", nargs="*", default=JOBS)
    parser.add_argument("--apart", action="store_true", help="explore each setting by itself, too")
    parser.add_argument("--fresh", action="store_true", help="forget what earlier calls have recorded of these jobs")
    options = parser.parse_args()
    os.chdir(FOLDER.parents[1])
    os.environ["PYTHONPATH"] = str(FOLDER.parents[1])  # where a job's own code imports the benchmarks from
    records = json.loads(RECORDS.read_text()) if RECORDS.exists() else {"jobs": {}}
    for name in options.jobs:
        if options.fresh:
            records["jobs"].pop(name, None)
        record = records["jobs"].setdefault(name, {})
        config = load_config(FOLDER / f"{name}.yaml")
        if "answer" not in record:
            record |= together(config)
            keep(records)
        if "truth" not in record:
            record["truth"] = truth_of(config)
            keep(records)
        if options.apart and "apart" not in record:
            record["apart"] = list(apart(config))
            keep(records)


def keep(records: dict[str, Any]) -> None:
    """Write the records, and the page of them."""
    records["machine"] = machine_facts()
    RECORDS.write_text(json.dumps(records, indent=1) + "\n")
    (RESULTS / "settings_jobs.md").write_text("\n".join(page_of(records)).rstrip() + "\n")


# ---- explorations


def together(config: Config) -> dict[str, Any]:
    """Explore settings and size together."""
    result, probes, elapsed_s = explored(config)
    return {
        "answer": [name_of(config, result.settings), result.micro_batch_size],
        "confidence": result.confidence,
        "num_probes": len(probes),
        "ran": sorted({(name_of(config, one.details["settings"]), one.micro_batch_size) for one in probes}),
        "over_file": result.settings_over_file,
        "stop_reason": str(result.stop_reason),
        "elapsed_s": elapsed_s,
    }


def apart(config: Config) -> Iterator[dict[str, Any]]:
    """Explore each setting by itself, as one has to without settings."""
    for variant in config.variants:
        own = dataclasses.replace(config, job=variant.job, variants=())
        began_s = time.monotonic()
        try:
            result, probes, elapsed_s = explored(own)
        except BexploreError as error:  # nothing fits
            yield {"name": variant.name, "error": error.message, "elapsed_s": time.monotonic() - began_s}
            continue
        yield {
            "name": variant.name,
            "answer": result.micro_batch_size,
            "num_probes": len(probes),
            "elapsed_s": elapsed_s,
        }


def explored(config: Config) -> tuple[RunResult, list[Any], float]:
    """Return the result of an exploration in a new folder, its observations and its seconds."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        events = list(explore(config, ExploreOptions(model_dir=f"{folder}/run")))
    elapsed_s = time.monotonic() - began_s
    result = next(event.result for event in events if isinstance(event, Finished))
    probes = [event.observation for event in events if isinstance(event, ProbeFinished)]
    print(config.path.name, result.settings, result.micro_batch_size, f"{elapsed_s:.0f} s", flush=True)
    return result, probes, elapsed_s


def name_of(config: Config, settings: Any) -> str:
    """Return a combination of settings in words."""
    return next((one.name for one in config.variants if dict(one.values) == dict(settings)), config.variants[0].name)


# ---- the truth


def truth_of(config: Config) -> dict[str, dict[str, list[float]]]:
    """Return seconds of passes by settings and size: those whose measured peak fits, in rounds over all of them."""
    sizes = [int(size) for size in config.explore.candidates]
    budget_bytes = int(config.explore.memory_budget)
    with ExitStack() as stack:
        runners, usual_s = {}, dict[tuple[str, int], float]()
        for number, variant in enumerate(config.variants):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            settings = RunnerSettings(job=variant.job, run_dir=Path(folder))
            runner = runners[variant.name] = stack.enter_context(EngineRunner(settings))
            compilation = Compilation.SHARED if variant.job.compile.enabled else Compilation.EAGER
            for size in sizes:
                probe = Probe(number=number, micro_batch_size=size, compilation=compilation, max_passes=3)
                found = runner(probe)
                assert found.is_measured and found.peak_memory_bytes, found.reason
                if found.peak_memory_bytes > budget_bytes:
                    break
                usual_s[variant.name, size] = found.pass_time_s
        return rounds_over(runners, usual_s)


def rounds_over(
    runners: dict[str, EngineRunner], usual_s: dict[tuple[str, int], float]
) -> dict[str, dict[str, list[float]]]:
    """Return seconds of passes: the median of each visit."""
    seconds: dict[str, dict[str, list[float]]] = {name: {} for name in runners}
    for number in range(ROUNDS):
        for name, size in list(usual_s) if number % 2 == 0 else reversed(list(usual_s)):
            num_passes = max(2, math.ceil(VISIT_S / usual_s[name, size]))
            values = runners[name].time_passes(micro_batch_size=size, num_passes=num_passes)
            seconds[name].setdefault(str(size), []).append(statistics.median(values["pass_times_s"]))
    return seconds


def regret(truth: dict[str, dict[str, list[float]]], name: str, size: int) -> tuple[float, float]:
    """Return what an answer is below the fastest, and that less twice its standard error over rounds."""
    logs = {
        (other, int(text)): np.log(int(text) / np.array(times))
        for other, by_size in truth.items()
        for text, times in by_size.items()
    }
    best = max(logs, key=lambda key: float(np.median(logs[key])))
    if best == (name, size):
        return 0.0, 0.0
    differences = logs[best] - logs[name, size]
    below = 1.0 - math.exp(-float(np.median(differences)))
    error = float(np.std(differences, ddof=1)) / math.sqrt(len(differences))
    return max(0.0, below), max(0.0, below - 2.0 * error)


# ---- the page


def page_of(records: dict[str, Any]) -> Iterator[str]:
    machine = records["machine"]
    yield "# Settings and size together, four jobs whose memory budget binds"
    yield ""
    yield (
        f"Written by `python -m benchmarks.settings_jobs [--apart]`, {machine['at']}. {machine['processor']}, "
        f"{machine['processors']} processors, Python {machine['python']}, torch {machine['torch']}."
    )
    yield ""
    yield (
        f"The truth: every setting at every size that fits, {ROUNDS} rounds over all of them, each setting in its own "
        "worker with one program for all sizes. Must: regret beyond its interval mean <= 1 %, worst <= 3 %; seconds "
        "<= 0.45 of exploring each setting by itself."
    )
    yield ""
    yield (
        "| job | settings | pairs that fit | answer | score | probes | below the fastest | beyond the interval "
        "| over the file's settings | s | apart, s | share |"
    )
    yield "|---|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    beyonds, shares = [], []
    for name, one in records["jobs"].items():
        if "truth" not in one:
            continue
        below, beyond = regret(one["truth"], *one["answer"])
        beyonds.append(beyond)
        apart_s = sum(own["elapsed_s"] for own in one["apart"]) if "apart" in one else math.nan
        shares.append(one["elapsed_s"] / apart_s)
        num_pairs = sum(len(by_size) for by_size in one["truth"].values())
        settings, size = one["answer"]
        over_file = one["over_file"]
        yield (
            f"| {name} | {len(one['truth'])} | {num_pairs} | {settings}: {size} | {one['confidence']} | "
            f"{one['num_probes']} | {below:.1%} | {beyond:.1%} | {'' if over_file is None else f'{over_file:.2f}'} | "
            f"{one['elapsed_s']:.0f} | {_or_blank(apart_s, '.0f')} | {_or_blank(shares[-1], '.2f')} |"
        )
    yield ""
    if beyonds:
        known = [share for share in shares if math.isfinite(share)]
        yield (
            f"Mean beyond the interval **{statistics.fmean(beyonds):.2%}**, worst **{max(beyonds):.2%}**; share of the "
            f"seconds, mean **{_or_blank(statistics.fmean(known) if known else math.nan, '.2f')}**."
        )


def _or_blank(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else ""


if __name__ == "__main__":
    main()
