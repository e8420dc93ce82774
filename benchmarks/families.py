"""Files of real packages, explored as their users would: `python -m benchmarks.families`.

For each job of `benchmarks/family_jobs` the file's number is replaced by the word with `bexplore init`, explored with
the family's usual command (where the family has one), and the answer is written back with `bexplore apply`. Beside it
stands an exhaustive sweep: every size that keeps the file's global batch, started several times under the same
observer, interleaved. The regret of the answer is what it is below the fastest in the same round, in the median; the
fastest of ten is itself chosen with luck.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bexplore.command import watch
from bexplore.command.runner import PROBING_ACCUMULATION, CommandRunner, CommandSettings
from bexplore.config.load import load_config
from bexplore.host.machine import package_version, processor_name
from bexplore.measurement.probe import Compilation, Probe

ROOT = Path(__file__).parent.parent
JOBS, SHARED = Path(__file__).parent / "family_jobs", Path(__file__).parent / "command_jobs"
RESULTS = Path(__file__).parent / "results"
GLOBAL_BATCH = 48
SIZES = [size for size in range(1, GLOBAL_BATCH + 1) if GLOBAL_BATCH % size == 0]
# accelerate launch, of the environment that has DeepSpeed
ACCELERATE = ("python", "-m", "accelerate.commands.launch", "--use_deepspeed", "--num_processes", "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyJob:
    """A file of a family and what its user types beside it.

    Attributes:
        name: Family, as in the documentation.
        file: File of the folder.
        package: Package that trains.
        command: What stands behind `--`; empty for the family's usual command.
        options: Further options.
    """

    name: str
    file: str
    package: str
    command: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    @property
    def explored(self) -> str:
        """The file that `bexplore init` writes."""
        stem, dot, suffix = self.file.rpartition(".")
        return f"{stem}.explore{dot}{suffix}"


FAMILY_JOBS = (
    FamilyJob(name="LitGPT", file="litgpt.yaml", package="litgpt"),
    FamilyJob(name="TRL", file="trl.yaml", package="trl"),
    FamilyJob(
        name="Transformers TrainingArguments",
        file="transformers.json",
        package="transformers",
        command=("python", "transformers_train.py", "{config}"),
    ),
    FamilyJob(
        name="accelerate with DeepSpeed",
        file="deepspeed.json",
        package="deepspeed",
        command=(*ACCELERATE, "deepspeed_train.py", "{config}"),
        options=("--replicas", "1", "--writes-are-fine"),
    ),
    FamilyJob(
        name="Lightning CLI",
        file="lightning.yaml",
        package="lightning",
        command=("python", "lightning_main.py", "fit", "--config", "{config}"),
    ),
    FamilyJob(
        name="torchtune",
        file="torchtune.yaml",
        package="torchtune",
        # The family's usual command by its module: Ray, of the same environment, installs a `tune` of its own.
        command=("python", "-m", "torchtune._cli.tune", "run", "full_finetune_single_device", "--config", "{config}"),
    ),
    FamilyJob(name="Axolotl", file="axolotl.yaml", package="axolotl"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="starts of each size for the sweep")
    parser.add_argument("--jobs", nargs="*", default=[job.file for job in FAMILY_JOBS])
    parser.add_argument(
        "--more", action="store_true", help="add the starts to the sweep that is there; explore nothing"
    )
    parser.add_argument("--environment", type=Path, default=ROOT / ".venv-command", help="packages of all but Axolotl")
    parser.add_argument("--timed-s", type=float, default=10.0, help="seconds of timed steps in each start of the sweep")
    options = parser.parse_args()
    watch.LEAST_TIMED_S = watch.MOST_TIMED_S = options.timed_s  # of this process, which runs the sweep alone
    records = _earlier()
    for job in (job for job in FAMILY_JOBS if job.file in options.jobs):
        with _workplace(options.environment):
            records[job.name] = _more(job, records[job.name], options) if options.more else _record(job, options)
        print(json.dumps({job.name: records[job.name]}), flush=True)
        _write(records)


def _earlier() -> dict[str, Any]:
    path = RESULTS / "families.json"
    return json.loads(path.read_text()) if path.exists() else {}


@contextmanager
def _workplace(environment: Path) -> Iterator[None]:
    """A folder with the files of all jobs, a small model and texts; the packages come first on PATH."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        for source in (*JOBS.iterdir(), *(SHARED / one for one in ("litgpt_tokens.py", "torchtune_parts.py"))):
            if source.is_file() and source.name != "__init__.py":
                shutil.copy(source, folder)
        shutil.copy(SHARED / "common.py", folder)
        path = [str(environment.resolve() / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
        os.environ |= {"PATH": os.pathsep.join(path), "PYTHONPATH": folder, "OMP_NUM_THREADS": "1"}
        os.chdir(folder)
        subprocess.run(["python", "inputs.py", "."], check=True, capture_output=True)
        try:
            yield
        finally:
            os.chdir(before)


def _record(job: FamilyJob, options: argparse.Namespace) -> dict[str, Any]:
    """Explore a job, write the answer back, and sweep it."""
    behind = ["--", *job.command] if job.command else []
    _bexplore("init", job.file)
    began_s = time.monotonic()
    log = _bexplore("explore", job.explored, *job.options, "--set", "explore.candidates=divisors", "--json", *behind)
    elapsed_s = time.monotonic() - began_s
    result = next(event for event in map(json.loads, log.splitlines()) if event["event"] == "result")
    before = Path(job.explored).read_text().splitlines()
    _bexplore("apply", job.explored, "--yes", *job.options, "--set", "explore.candidates=divisors", *behind)
    after = Path(job.explored).read_text().splitlines()
    return {
        "package": f"{job.package} {_version(job.package)}",
        "micro_batch_size": result["micro_batch_size"],
        "confidence": result["confidence"],
        "num_probes": result["num_probes"],
        "elapsed_s": elapsed_s,
        "batch_size": result["batch_size"],
        "changed": [line.strip() for old, line in zip(before, after, strict=True) if old != line],
        "timed_s": options.timed_s,
        "speeds": _sweep(job.explored, job, options.rounds),
    }


def _more(job: FamilyJob, record: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Add starts of each size to a record, or put them in the place of starts that were timed for another while."""
    more = _sweep(job.file, job, options.rounds)
    if record["timed_s"] != options.timed_s:
        return record | {"timed_s": options.timed_s, "speeds": more}
    return record | {"speeds": {size: [*record["speeds"][str(size)], *found] for size, found in more.items()}}


def _version(package: str) -> str:
    """Return a package's version in the environment of the jobs."""
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run(["python", "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def _command_of(job: FamilyJob) -> list[str]:
    command = [f"explore.command={json.dumps(list(job.command))}"] if job.command else []
    return [*command, "micro_batch_size=explore", "explore.replicas=1", "explore.replica_batch_size=null"]


def _bexplore(*words: str) -> str:
    done = subprocess.run(["bexplore", *words], check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"bexplore {' '.join(words)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


def _sweep(file: str, job: FamilyJob, rounds: int) -> dict[int, list[float]]:
    """Return samples/s in each start of a file, by size; sizes are interleaved."""
    config = load_config(file, overrides=["explore.writes_are_fine=true", *_command_of(job)])
    assert config.command is not None
    speeds: dict[int, list[float]] = {size: [] for size in SIZES}
    for number in range(rounds):
        for size in SIZES if number % 2 == 0 else reversed(SIZES):
            with tempfile.TemporaryDirectory() as folder:
                runner = CommandRunner(config.command, CommandSettings(run_dir=Path(folder)))
                probe = Probe(number=0, micro_batch_size=size, compilation=Compilation.EXACT, time_limit_s=600.0)
                observation = runner.run(probe, PROBING_ACCUMULATION if config.command.sets_accumulation else None)
            if observation.is_measured:
                speeds[size].append(observation.samples_per_s)
    return speeds


def _regret(speeds: dict[int, list[float]], size: int) -> tuple[int, float, float]:
    """Return the fastest size, what another is below it, and that less twice its standard error.

    Sizes are compared within each round, because the machine's speed changes from round to round.
    """
    rounds = list(zip(*speeds.values(), strict=True))
    means = [math.exp(statistics.fmean(map(math.log, found))) for found in rounds]
    middles = {
        one: statistics.median(speed / mean for speed, mean in zip(found, means, strict=True))
        for one, found in speeds.items()
    }
    best = max(middles, key=lambda one: middles[one])
    below = [1.0 - ours / theirs for ours, theirs in zip(speeds[size], speeds[best], strict=True)]
    error = statistics.stdev(below) / math.sqrt(len(below)) if len(below) > 1 else 0.0
    return best, statistics.median(below), max(0.0, statistics.median(below) - 2.0 * error)


def _write(records: dict[str, Any]) -> None:
    rows = []
    for name, one in records.items():
        speeds = {int(size): found for size, found in one["speeds"].items()}
        best, below, beyond = _regret(speeds, one["micro_batch_size"])
        starts, timed = min(map(len, speeds.values())), one["timed_s"] or "2 to 8"
        rows.append(
            f"| {name} | {one['package']} | {one['micro_batch_size']} | {one['confidence']} | {one['num_probes']} | "
            f"{one['elapsed_s']:.0f} | {starts} | {timed} | {best} | {below:.1%} | {beyond:.1%} | "
            f"{one['batch_size']} | "
            f"`{'`, `'.join(one['changed'])}` |"
        )
    text = [
        "# Files of real packages, explored as their users would",
        "",
        f"Command: `python -m benchmarks.families`, {datetime.now(UTC):%Y-%m-%d}. "
        f"{processor_name()}, {os.cpu_count()} processors, Python {platform.python_version()}, "
        f"torch {package_version('torch')}, one process a training.",
        "",
        f"Each file has a global batch of {GLOBAL_BATCH}; the sizes that keep it are {', '.join(map(str, SIZES))}. The "
        "fastest has the highest median over as many interleaved starts of each size, compared within a round; what is "
        "beyond the interval is the difference less twice its standard error. Rows timed for 2 to 8 s have the window "
        "of a probe, from before the option `--timed-s`; the others were swept again with `--more --timed-s 10`, "
        "because the first steps of a large size are slow: by the short window LitGPT's 48 was 8.5 % below 16 "
        "(5 starts), DeepSpeed's 48 3.7 % below 16 (3) and TRL's 24 2.3 % below 16 (5).",
        "",
        "| family | package | answer | score | probes | seconds | starts a size | s timed | fastest | "
        "below the fastest | beyond the interval | global batch | lines that `apply` changed |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
        *rows,
        "",
    ]
    (RESULTS / "families.md").write_text("\n".join(text))
    (RESULTS / "families.json").write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
