"""Two real ranks: faults, the formula of a step, explorations beside the truth: `python -m benchmarks.distributed`.

`--only faults|steps|explorations`; each record is kept when it is made, and a call makes those that are missing.
Slurm's part needs its programs (apt-get install --no-install-recommends slurmctld slurmd slurm-client munge): the
cluster of one node of tests/slurm is started for it. Ray's part needs the extra `ray`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.machine_facts import machine_facts
from benchmarks.rank_jobs import BATCH_SIZE, JOBS, LARGEST, NUM_RANKS, DistributedJob, Fault, faults
from bexplore.config.config import Config, Request, RequestKind
from bexplore.config.schema import ExploreSettings
from bexplore.engine.process import reaper, timeouts
from bexplore.engine.process.launcher import Launcher
from bexplore.engine.process.timeouts import StageLimits
from bexplore.engine.runner import EngineRunner, RunnerSettings
from bexplore.errors import BexploreError
from bexplore.exploration.exploration import explore
from bexplore.exploration.resumable import ExploreOptions
from bexplore.job import Mode
from bexplore.measurement.probe import Compilation, Probe
from bexplore.run.events import Finished, ProbeFinished

RESULTS = Path(__file__).parent / "results"
RECORDS = RESULTS / "distributed.json"
SLURM = Path(__file__).parents[1] / "tests" / "slurm" / "slurm.sh"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
SILENCE_S = 8.0  # of a rank that hangs, in the faults
CLEAN_UP_S = 10.0  # that the system and Slurm get to end what was killed
FAULT_LIMIT_S = 90.0  # a probe that takes longer has hung
ACCUMULATIONS = (1, 4, 16)
SIZES_OF_STEPS = (2, 8)
ROUNDS_OF_STEPS = 5
ROUNDS_OF_TRUTH = 8
VISIT_S = 1.0  # of passes of one size in a round of the truth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=("faults", "steps", "explorations"), nargs="*")
    parser.add_argument("--fresh", action="store_true", help="forget what earlier calls have recorded of these parts")
    parser.add_argument("--runs", type=int, default=1, help="explorations of each job")
    options = parser.parse_args()
    parts: dict[str, Callable[[dict, int], None]] = {
        "steps": record_steps,
        "explorations": record_explorations,
        "faults": record_faults,
    }
    wanted = options.only or list(parts)
    records = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    os.environ |= ONE_THREAD
    with slurm():
        for name in wanted:
            records[name] = {} if options.fresh else records.get(name, {})
            parts[name](records, options.runs)
    write(records)


def keep(records: dict, part: str, name: str, record: Any) -> None:
    """Write a record as soon as it is made."""
    records.setdefault(part, {})[name] = record
    records["machine"] = machine_facts()
    RECORDS.write_text(json.dumps(records, indent=1) + "\n")
    print(part, name, json.dumps(record)[:200], flush=True)
    write(records)


@contextmanager
def slurm() -> Iterator[None]:
    """Start the one-node cluster of the tests, where it is installed."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    if any(shutil.which(program, path=path) is None for program in ("munged", "slurmctld", "slurmd", "srun")):
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        started = subprocess.run(["bash", SLURM, "start", folder], capture_output=True, text=True, check=True)
        name, _, value = started.stdout.strip().partition("=")
        os.environ[name] = value
        try:
            yield
        finally:
            subprocess.run(["bash", SLURM, "stop", folder], check=True)


# ---- faults


def record_faults(records: dict, _runs: int) -> None:
    for fault in faults():
        if fault.name not in records["faults"]:
            keep(records, "faults", fault.name, outcome_of(fault))


def outcome_of(fault: Fault) -> dict[str, Any]:
    """Run a probe that meets a fault, and count what is left behind."""
    limits = StageLimits(step_limit_s=SILENCE_S, floor_s=SILENCE_S)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        settings = settings_of(fault.job, fault.launcher, Path(folder))
        # The limits of stages of which nothing is known are minutes: here they are seconds.
        short = mock.patch.dict(timeouts.FIRST_LIMITS_S, {"build": SILENCE_S})  # type: ignore[arg-type]  # it is a dict
        with short, EngineRunner(settings, limits=limits) as runner:
            probe = Probe(number=0, micro_batch_size=4, compilation=Compilation.EAGER, max_passes=4)
            try:
                found = runner(probe)
                outcome, reason, details = str(found.outcome), without_root(found.reason), found.details
            except BexploreError as error:
                outcome, reason, details = "error", error.message, {}
    elapsed_s = time.monotonic() - began_s
    rank = details.get("failed_rank")
    is_right = outcome == fault.expected and (outcome == "measured" or rank == fault.rank)
    return {
        "outcome": outcome,
        "rank": rank,
        "reason": reason,
        "elapsed_s": elapsed_s,
        "is_right": is_right,
        "left_over": len(left_over()),
        "allocations": len(allocations()),
    }


def without_root(reason: str) -> str:
    """Return a reason whose files are named from the root of this repository, as on every machine."""
    return reason.replace(f"{Path(__file__).parents[1]}/", "")


def settings_of(job: Any, launcher: str, folder: Path) -> RunnerSettings:
    return RunnerSettings(
        job=job,
        run_dir=folder,
        replica_batch_size=BATCH_SIZE // job.num_replicas,
        launcher=Launcher(kind=launcher, num_ranks=NUM_RANKS),
        environment=ONE_THREAD,
    )


def left_over() -> list[int]:
    """Return processes that this one has started for ranks and that outlive a closed runner, once they had time."""
    return _after_a_while(lambda: reaper.marked_processes(f"{os.getpid()}."))


def allocations() -> list[str]:
    """Return the jobs and steps that Slurm still holds, once it had time to clean up; none without Slurm."""
    if "SLURM_CONF" not in os.environ:
        return []
    words = (["squeue", "-h"], ["squeue", "-h", "-s"])

    def held() -> list[str]:
        listed = [subprocess.run(one, capture_output=True, text=True, check=False).stdout for one in words]
        return [line for text in listed for line in text.splitlines()]

    return _after_a_while(held)


def _after_a_while(found: Callable[[], list[Any]]) -> list[Any]:
    until_s = time.monotonic() + CLEAN_UP_S
    while found() and time.monotonic() < until_s:
        time.sleep(0.5)
    return found()


# ---- the formula of a step


def record_steps(records: dict, _runs: int) -> None:
    for job in JOBS:
        if job.parallelism.num_replicas > 1 and job.name not in records["steps"]:
            keep(records, "steps", job.name, steps_of(job))


def steps_of(job: DistributedJob) -> list[dict[str, Any]]:
    """Return seconds of passes, updates and whole steps of two ranks."""
    given = json.dumps([job.job.as_dict(), SIZES_OF_STEPS, ACCUMULATIONS, ROUNDS_OF_STEPS])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(NUM_RANKS)]
    done = subprocess.run(
        [*command, "-m", "benchmarks.distributed_steps", given], capture_output=True, text=True, check=False
    )
    rows = [line for line in done.stdout.splitlines() if line.startswith("ROWS ")]
    if not rows:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-4000:])
    return json.loads(rows[0].removeprefix("ROWS "))


def formula_errors(rows: list[dict[str, Any]]) -> dict[tuple[int, int], float]:
    """Return the error of (A - 1) t_in + t_last + u against a real step, by size and accumulation, medians of rounds.

    All five are of one round, so that the machine's drift meets them alike.
    """
    errors: dict[tuple[int, int], list[float]] = {}
    for row in rows:
        for text, real_s in row["step_s"].items():
            count = int(text)
            expected_s = (count - 1) * row["inner_s"] + row["last_s"] + row["update_s"]
            errors.setdefault((row["size"], count), []).append(expected_s / real_s - 1.0)
    return {key: statistics.median(found) for key, found in errors.items()}


# ---- explorations


def record_explorations(records: dict, runs: int) -> None:
    for job in JOBS:
        for run in range(runs):
            name = f"{job.name}, run {run}"
            if name not in records["explorations"]:
                keep(records, "explorations", name, exploration_of(job, run))


def exploration_of(job: DistributedJob, run: int) -> dict[str, Any]:
    """Explore with the defaults, then measure every power of two and the answer in rounds."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        events = list(explore(config_of(job, run, Path(folder)), ExploreOptions(model_dir=f"{folder}/run")))
    elapsed_s = time.monotonic() - began_s
    result = next(event.result for event in events if isinstance(event, Finished))
    probes = [event.observation for event in events if isinstance(event, ProbeFinished)]
    truth = truth_of(job, result.micro_batch_size)
    return {
        "launcher": job.launcher,
        "answer": result.micro_batch_size,
        "confidence": result.confidence,
        "num_probes": len(probes),
        "num_sizes": len({probe.micro_batch_size for probe in probes}),
        "graphs": {
            kind: sum(probe.num_graphs or 0 for probe in probes if probe.probe.compilation == kind)
            for kind in (Compilation.SHARED, Compilation.EXACT)
        },
        "exact_graphs": [
            (probe.micro_batch_size, probe.num_graphs)
            for probe in probes
            if probe.probe.compilation is Compilation.EXACT
        ],
        "elapsed_s": elapsed_s,
        "parallel": dataclasses.asdict(result.parallel) if result.parallel else None,
        "truth": truth,
    }


def config_of(job: DistributedJob, run: int, folder: Path) -> Config:
    settings = ExploreSettings.model_validate({"max": LARGEST, "seed": run, "launcher": job.launcher, "device": "cpu"})
    return Config(
        path=folder / "job.yaml",
        layout="benchmark",
        mode=Mode.TRAIN,
        request=Request(kind=RequestKind.EXPLORE),
        batch_size=BATCH_SIZE,
        num_replicas=job.parallelism.num_replicas,
        model_dir="run",
        job=job.job,
        explore=settings,
    )


def truth_of(job: DistributedJob, answer: int) -> dict[str, list[float]]:
    """Return seconds of a pass by size: visits of all ranks to each size, in rounds, in one group."""
    sizes = sorted({2**exponent for exponent in range(int(math.log2(LARGEST)) + 1)} | {6, 12, 24, answer})
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    with tempfile.TemporaryDirectory() as folder:
        settings = settings_of(job.job, "torchrun", Path(folder))
        with EngineRunner(settings) as runner:
            usual = {}
            for number, size in enumerate(sizes):
                found = runner(Probe(number=number, micro_batch_size=size, max_passes=2))
                assert found.is_measured, found.reason
                usual[size] = found.pass_time_s
            for number in range(ROUNDS_OF_TRUTH):
                for size in sizes if number % 2 == 0 else reversed(sizes):
                    num_passes = max(2, math.ceil(VISIT_S / usual[size]))
                    values = runner.time_passes(micro_batch_size=size, num_passes=num_passes)
                    seconds[size].append(statistics.median(values["pass_times_s"]))
    return {str(size): times for size, times in seconds.items()}


def regret(truth: dict[str, list[float]], answer: int) -> tuple[float, float]:
    """Return what an answer is below the fastest size, and that less twice its standard error over rounds."""
    logs = {int(size): np.log(int(size) / np.array(times)) for size, times in truth.items()}
    best = max(logs, key=lambda size: float(np.median(logs[size])))
    differences = logs[best] - logs[answer]
    below = 1.0 - math.exp(-float(np.median(differences)))
    error = float(np.std(differences, ddof=1)) / math.sqrt(len(differences)) if best != answer else 0.0
    return max(0.0, below), max(0.0, below - 2.0 * error)


# ---- the page


def write(records: dict) -> None:
    machine = records.get("machine", {})
    text = [
        "# Two real ranks",
        "",
        f"Written by `python -m benchmarks.distributed`, {machine.get('at', '')}. {machine.get('processor', '')}, "
        f"{machine.get('processors', '')} processors, Python {machine.get('python', '')}, "
        f"torch {machine.get('torch', '')}; gloo, one thread a rank. Memory is in distributed_trace.md.",
        "",
        *page_of_steps(records.get("steps", {})),
        *page_of_explorations(records.get("explorations", {})),
        *page_of_faults(records.get("faults", {})),
    ]
    (RESULTS / "distributed.md").write_text("\n".join(text).rstrip() + "\n")


def page_of_steps(rows_by_job: dict) -> Iterator[str]:
    if not rows_by_job:
        return
    yield from ("## The step by its formula", "")
    yield (
        "`(A - 1) t_in + t_last + u` against real steps of A accumulation steps of two ranks, interleaved within "
        f"a round; median of {ROUNDS_OF_STEPS} rounds. Must: within 8 %."
    )
    yield from (
        "",
        f"| job | size | {' | '.join(f'A = {count}' for count in ACCUMULATIONS)} |",
        "|---|---:|---:|---:|---:|",
    )
    worst = 0.0
    for name, rows in rows_by_job.items():
        errors = formula_errors(rows)
        worst = max([worst, *map(abs, errors.values())])
        for size in SIZES_OF_STEPS:
            cells = " | ".join(f"{errors[size, count]:+.1%}" for count in ACCUMULATIONS)
            yield f"| {name} | {size} | {cells} |"
    yield from ("", f"Worst: **{worst:.1%}**.", "")


def page_of_explorations(found: dict) -> Iterator[str]:
    if not found:
        return
    yield from ("## Whole explorations on two ranks", "")
    yield (
        f"Sizes 1 to {LARGEST}, batch_size {BATCH_SIZE}; defaults of bexplore. The truth: {ROUNDS_OF_TRUTH} rounds "
        "over powers of two, 6, 12, 24 and the answer, all ranks, one program. Graphs are those that all ranks "
        "compiled; the rank that is alone compiles one more for the search. Where the answer does not divide "
        "batch_size, the size that keeps it is compiled exactly, too. Must: regret beyond the interval mean <= 0.7 %, "
        "worst <= 2.5 %; one graph for the search and one for the answer."
    )
    yield from (
        "",
        "| job | launcher | answer | score | probes (sizes) | graphs, search and answer | s | below the fastest "
        "| beyond the interval | parallel efficiency |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    )
    beyonds = []
    for name, one in found.items():
        below, beyond = regret(one["truth"], one["answer"])
        beyonds.append(beyond)
        efficiency = (one["parallel"] or {}).get("parallel_efficiency")
        yield (
            f"| {name} | {one['launcher']} | {one['answer']} | {one['confidence']} | {one['num_probes']} "
            f"({one['num_sizes']}) | {one['graphs']['shared']}, {one['graphs']['exact']} | {one['elapsed_s']:.0f} | "
            f"{below:.1%} | {beyond:.1%} | {f'{efficiency:.0%}' if efficiency else ''} |"
        )
    yield from ("", f"Mean **{statistics.fmean(beyonds):.2%}**, worst **{max(beyonds):.2%}**.", "")


def page_of_faults(found: dict) -> Iterator[str]:
    if not found:
        return
    right = sum(one["is_right"] for one in found.values())
    hung = sum(one["elapsed_s"] > FAULT_LIMIT_S for one in found.values())
    yield from ("## Faults", "")
    yield (
        f"One rank of two fails; a rank counts as hung after {SILENCE_S:.0f} s here. **{right} of {len(found)} right** "
        f"(outcome and rank), {hung} took longer than {FAULT_LIMIT_S:.0f} s, "
        f"{sum(one['left_over'] for one in found.values())} processes and "
        f"{sum(one['allocations'] for one in found.values())} allocations of Slurm were left. Must: >= 98 %, 0, 0, 0."
    )
    yield from ("", "| fault | outcome | reason | s | right |", "|---|---|---|---:|---|")
    for name, one in found.items():
        reason = one["reason"].replace("|", "/").replace("\n", " ")[:110]
        right_word = "yes" if one["is_right"] else "**no**"
        yield f"| {name} | {one['outcome']} | {reason} | {one['elapsed_s']:.0f} | {right_word} |"
    yield ""


if __name__ == "__main__":
    main()
