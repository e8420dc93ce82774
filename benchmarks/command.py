"""Training commands under the observer: `python -m benchmarks.command --unmodified`.

Each job of `benchmarks/command_jobs/table.py` whose packages are present is started three times: as probes of two sizes
by the product's Runner, and by itself. Shown are what the second probe saw (ranks, replicas, samples of a step,
verdicts), its seconds of a step beside those that the job logs itself, and whether the first losses of its start and of
the one by itself are the same bits.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import psutil

from benchmarks.command_jobs.table import FOLDER, JOBS, CommandJob
from bexplore.command.runner import CommandRunner, CommandSettings
from bexplore.command.start import TRACKERS_OFF, Start
from bexplore.command.timing import WARMUP_STEPS
from bexplore.config.command import Command
from bexplore.config.load import load_config
from bexplore.errors import BexploreError
from bexplore.host.machine import package_version, processor_name
from bexplore.measurement.probe import Observation, Outcome, Probe

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
SLURM = ROOT / "tests" / "slurm" / "slurm.sh"
SBIN = "/usr/sbin:/sbin"  # daemons of Slurm
SMALLER, SIZE, ACCUMULATION = 8, 16, 2
COMPARED_LOSSES, LEAST_COMPARED = 12, 7  # a start of slow steps has seven or little more
LARGEST_DIFFERENCE = 0.02  # of the seconds of a step, between the observer and the job's own log
MOST_SHIFT = 4
START_LIMIT_S = 300.0  # DeepSpeed builds an operator at its first start
COLUMNS = (
    "ranks",
    "replicas",
    "micro-batches a step",
    "samples a step",
    "verdict",
    "ms a step",
    "by its own log",
    "off by",
    "same losses",
    "probe s",
    "right",
)
# What needs a GPU to start at all: what it is, why, and the command to try there, which docs/commands.md has, too.
NOT_ON_CPU = (
    (
        "torchtitan 0.3.0, in a checkout of its release",
        "it imports Triton, and its device falls back to CUDA",
        "bexplore explore --replicas 2 -- torchrun --standalone --nproc-per-node 2 -m torchtitan.train "
        "--module llama3 --config llama3_debugmodel --training.local_batch_size {micro_batch_size} "
        "--training.steps 100000 --training.disable_cuda_graphs --dump_folder {output_dir}",
    ),
    (
        "axolotl 0.19.0 on 2 ranks, with a file in which micro_batch_size is explore",
        'it ends with "Cannot access accelerator device"; 1 rank was right in a trial by hand',
        "bexplore explore axolotl.yaml --replicas 2 -- torchrun --standalone --nproc-per-node 2 -m axolotl.cli.train "
        "{config} --output-dir {output_dir}",
    ),
    (
        "LitGPT 0.5.13 on 2 devices, in benchmarks/command_jobs",
        "several devices mean FSDP, which Lightning Fabric has for GPUs alone; 1 device is in the table",
        "bexplore explore litgpt.yaml --replicas 2 --env PYTHONPATH=$PWD -- litgpt pretrain --config {config} "
        "--devices 2 --train.global_batch_size {global_batch_size} --out_dir {output_dir}",
    ),
)
GRAPHS = (
    "By its source, torchtitan replays forward and backward as a CUDA graph unless that is disabled, and the observer "
    "sees no replay."
)
_LINE = re.compile(r"\{\"step\": \d[^{}]*\}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.command", description=__doc__)
    parser.add_argument("--unmodified", action="store_true", required=True, help="each job of the table, once")
    parser.add_argument("--only", nargs="+", metavar="JOB", default=[job.name for job in JOBS], help="these jobs alone")
    parser.add_argument(
        "--environment", type=Path, default=ROOT / ".venv-command", help="virtual environment of the frameworks"
    )
    options = parser.parse_args(arguments)
    _enter(options.environment.resolve())
    report = _earlier()
    with _slurm():
        for job in JOBS:
            if job.name in options.only:
                absent, known = _absent(job), report["unmodified"].get(job.name)
                if absent and known is not None:
                    continue
                row = {"left out": ", ".join(absent)} if absent else _row(job)
                report["unmodified"][job.name] = row
                _write(report | _facts())
                print(job.name, row, flush=True)
    rows = [row for row in report["unmodified"].values() if "left out" not in row]
    return 0 if all(row["right"] for row in rows) else 1


def _enter(environment: Path) -> None:
    """Let this process's children run in the folder of the jobs, with the frameworks' programs first."""
    folders = [str(environment / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    os.environ |= {"PATH": os.pathsep.join(folders), "OMP_NUM_THREADS": "1"}
    os.environ.pop("PYTHONPATH", None)
    os.chdir(FOLDER)


def _absent(job: CommandJob) -> list[str]:
    code = "import importlib.util, sys; print(*[n for n in sys.argv[1:] if importlib.util.find_spec(n) is None])"
    programs = [name for name in job.packages if shutil.which(name) or shutil.which(name, path=SBIN)]
    others = [name for name in job.packages if name not in programs]
    return subprocess.run(["python", "-c", code, *others], capture_output=True, text=True, check=True).stdout.split()


@contextmanager
def _slurm() -> Iterator[None]:
    """Run a Slurm of one node, where it is installed."""
    folder = tempfile.mkdtemp(prefix="bexplore-slurm-")
    try:
        started = subprocess.run(["bash", SLURM, "start", folder], capture_output=True, text=True, check=False)
        os.environ["SLURM_CONF"] = started.stdout.strip().partition("=")[2]
        yield
    finally:
        subprocess.run(["bash", SLURM, "stop", folder], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _row(job: CommandJob) -> dict[str, Any]:
    scratch = Path(tempfile.mkdtemp(prefix="bexplore-command-"))
    try:
        began_s = time.monotonic()
        seen = _probed(job, scratch)
        row = {"probe s": round(time.monotonic() - began_s, 1)}
        if isinstance(seen, str):
            return row | {"verdict": seen, "right": job.outcome != "verified" and job.outcome in seen}
        return row | _compared(job, seen, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _probed(job: CommandJob, scratch: Path) -> Observation | str:
    """Return what the probe of the larger of two sizes measured, or how the first that failed did.

    A lone size is accepted whatever arrives; what arrives for the second must be in proportion.
    """
    work_dir = scratch / "observed"
    runner = CommandRunner(_command(job, work_dir), CommandSettings(run_dir=scratch / "run"))
    try:
        for number, size in enumerate((SMALLER, SIZE)):
            shutil.rmtree(work_dir)
            work_dir.mkdir()
            observation = runner(Probe(number=number, micro_batch_size=size, time_limit_s=START_LIMIT_S))
            if observation.outcome is not Outcome.MEASURED:
                break
    except BexploreError as error:
        return str(error)
    return observation if observation.outcome is Outcome.MEASURED else f"{observation.outcome}: {observation.reason}"


def _command(job: CommandJob, work_dir: Path) -> Command:
    work_dir.mkdir(parents=True)
    own = {"{work_dir}": str(work_dir), "{folder}": str(FOLDER)}

    def filled(text: str) -> str:
        for name, value in own.items():
            text = text.replace(name, value)
        return text

    overrides = [f"explore.command={json.dumps([filled(word) for word in job.argv])}", "explore.writes_are_fine=true"]
    if job.env:
        overrides.append(f"explore.env={json.dumps({name: filled(value) for name, value in job.env.items()})}")
    if job.asked_replicas:
        overrides.append(f"explore.replicas={job.asked_replicas}")
    command = load_config(job.config and FOLDER / job.config, overrides=overrides).command
    assert command is not None
    return command


def _compared(job: CommandJob, observation: Observation, scratch: Path) -> dict[str, Any]:
    details = observation.details
    folder = max((scratch / "run" / "probes").iterdir())
    with_observer = _log(job, folder / "log.txt", scratch / "observed")
    num_compared = min(COMPARED_LOSSES, len(with_observer))
    without = _unobserved(job, scratch, num_compared)
    seen_s, own_s = _paired(_seen_steps(folder / "reports", job.log_rank), [row["seconds"] for row in with_observer])
    off = seen_s / own_s - 1.0
    pairs = list(zip(with_observer[:num_compared], without[:num_compared], strict=False))
    num_same = sum(one["loss"] == other["loss"] for one, other in pairs)
    samples = round(SIZE * details["micro_batches_per_step"] * details["num_replicas"])
    right = (
        job.outcome == "verified"
        and (details["num_ranks"], details["num_replicas"]) == (job.num_ranks, job.num_replicas)
        and samples == job.samples_per_step(SIZE, ACCUMULATION)
        and abs(off) <= LARGEST_DIFFERENCE
        and num_same == len(pairs) == num_compared >= LEAST_COMPARED
    )
    return {
        "ranks": details["num_ranks"],
        "replicas": details["num_replicas"],
        "micro-batches a step": details["micro_batches_per_step"],
        "samples a step": samples,
        "verdict": ", ".join(sorted(set(details["verdicts"].values()))),
        "ms a step": round(1e3 * seen_s, 2),
        "by its own log": round(1e3 * own_s, 2),
        "off by": f"{off:+.2%}",
        "same losses": f"{num_same} of {len(pairs)}",
        "right": right,
    }


def _seen_steps(reports: Path, rank: int) -> list[tuple[float, int]]:
    """Return seconds, and steps by the job's own count, of each step of a rank but the first.

    Where a gradient scaler skips an update, the job counts a step more than the observer.
    """
    steps = json.loads(next(reports.glob(f"rank-{rank}-*.json")).read_text())["steps"]
    usual = statistics.median(step["num_fetches"] for step in steps) or 1.0
    return [
        (step["ended_s"] - before["ended_s"] - step["evaluation_s"], max(round(step["num_fetches"] / usual), 1))
        for before, step in pairwise(steps)
    ]


def _paired(seen: Sequence[tuple[float, int]], own_s: Sequence[float]) -> tuple[float, float]:
    """Return the mean seconds of the same steps, as seen and by the job's own log.

    The observer may count a step more or less than the job before it knows its optimizers. So the two are paired with
    the shift that fits best. Means, since what the one clock adds to a step it takes from the next.
    """
    firsts = [0, *accumulate(count for _, count in seen)]
    shifts = []
    for shift in range(-MOST_SHIFT, MOST_SHIFT + 1):
        pairs = []
        for at in range(WARMUP_STEPS + 1, len(seen)):
            (seconds, count), first = seen[at], firsts[at] + shift
            if first >= 0 and first + count <= len(own_s):
                pairs.append((seconds, sum(own_s[first : first + count])))
        if pairs:
            shifts.append((statistics.fmean(abs(one - other) for one, other in pairs), pairs))
    _, best = min(shifts)
    return statistics.fmean(one for one, _ in best), statistics.fmean(other for _, other in best)


def _unobserved(job: CommandJob, scratch: Path, num_rows: int) -> list[dict[str, float]]:
    """Start the job without the observer; return so many first rows of its log at least, and end it."""
    work_dir, folder = scratch / "unobserved", scratch / "unobserved_start"
    command = _command(job, work_dir)
    (folder / "output").mkdir(parents=True)
    values = command.values(
        micro_batch_size=SIZE, accumulation=ACCUMULATION, num_replicas=job.asked_replicas or 1, folder=folder
    )
    if command.file is not None:
        (folder / command.file.name).write_text(command.file.copy(values))
    argv, env = command.filled(values)
    start = Start(argv, env=TRACKERS_OFF | env, folder=folder)
    limit_s = time.monotonic() + START_LIMIT_S
    rows: list[dict[str, float]] = []
    try:
        while len(rows) < num_rows and start.return_code is None and time.monotonic() < limit_s:
            time.sleep(0.2)
            rows = _log(job, start.log_path, work_dir)
    finally:
        start.end()
    return rows


def _log(job: CommandJob, path: Path, work_dir: Path) -> list[dict[str, float]]:
    """Return step, seconds and loss of each row of the log that the job writes itself."""
    if job.log_file is None:
        return [json.loads(line) for line in _LINE.findall(path.read_text(errors="replace"))]
    table = work_dir / job.log_file
    if not table.exists():
        return []
    with table.open() as stream:
        rows = [row for row in csv.DictReader(stream) if row.get("time")]
    times = [0.0, *(float(row["time"]) for row in rows)]
    return [
        {"step": step, "seconds": times[step + 1] - times[step], "loss": float(row["loss"])}
        for step, row in enumerate(rows)
    ]


def _earlier() -> dict[str, Any]:
    """Rows of an earlier run stay, so that jobs may be run one by one."""
    path = RESULTS / "command.json"
    return json.loads(path.read_text()) if path.exists() else {"unmodified": {}}


def _facts() -> dict[str, str]:
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{processor_name()}, {os.cpu_count()} processors, "
        f"{psutil.virtual_memory().total / 2**30:.0f} GiB, {platform.system()} {platform.release()}",
        "versions": f"Python {platform.python_version()}, torch {package_version('torch')}",
    }


def _write(report: Mapping[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "command.json").write_text(json.dumps(report, indent=1) + "\n")
    (RESULTS / "command.md").write_text(_markdown(report))


def _markdown(report: Mapping[str, Any]) -> str:
    rows = report["unmodified"]
    ran = {name: row for name, row in rows.items() if "left out" not in row}
    lines = ["# Training commands", "", "Written by `make bench-command`.", ""]
    lines += [f"* {name}: {report[name]}" for name in ("machine", "versions", "at")]
    lines += [
        f"* a probe of micro-batch size {SMALLER}, then the one of {SIZE} that is shown, OMP_NUM_THREADS=1; the first "
        f"{COMPARED_LOSSES} losses of its start, or as many as it has, and of one without the observer",
        "* `verified` holds for the size, ranks, replicas and micro-batches: what arrives for the second size is in "
        "proportion to the first",
        "* a row stays until its job is run again, so rows may be of different versions and loads of the machine",
        f"* right: {sum(row['right'] for row in ran.values())} of {len(ran)}",
        "",
        f"| job | {' | '.join(COLUMNS)} |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    for name, row in ran.items():
        lines.append(f"| {name} | {' | '.join(_cell(row.get(column, '')) for column in COLUMNS)} |")
    absent = {name: row["left out"] for name, row in rows.items() if "left out" in row}
    lines += ["", *(f"* not run: {name} needs {needs}" for name, needs in absent.items())] if absent else []
    lines += ["", "## Not run on a CPU", "", *(f"* {what}: {why}" for what, why, _ in NOT_ON_CPU), "", "```"]
    lines += [command for _, _, command in NOT_ON_CPU]
    lines += ["```", "", GRAPHS]
    return "\n".join(lines).rstrip() + "\n"


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    return str(value).replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    sys.exit(main())
