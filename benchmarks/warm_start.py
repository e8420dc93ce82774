"""What the kept artifacts of a verified size spare a training: `python -m benchmarks.warm_start [--rounds N]`.

One program, the job of a configuration compiled as its training compiles it, is started in fresh processes: with an
empty compile cache (cold), with the cache that a verification has kept (kept), and with an empty cache into which the
bytes of `torch.compiler.save_cache_artifacts` of a cold process were loaded (saved). In each the first step is timed,
compilation included, and one later step. What belongs to the machine, the precompiled header of the C++ compiler, is
there before the first. Processor seconds, those of the C++ compiler included, stand beside wall seconds: neighbours do
not change them much.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bexplore.config.load import load_config
from bexplore.engine.runner import EngineRunner, RunnerSettings
from bexplore.host.machine import package_version, processor_name
from bexplore.measurement.probe import Compilation, Outcome, Probe, Purpose

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
MICRO_BATCH_SIZE = 8
VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
WAYS = {
    "cold": "an empty cache",
    "kept": "the cache that the verification kept",
    "saved": "an empty cache, and what `save_cache_artifacts` had saved",
}


def child(config: str, saves: str | None, loads: str | None) -> dict[str, float]:
    """One training process: build, compile, a first and a second step."""
    import torch

    from bexplore.engine.protocol.shared_mode import SharedMode
    from bexplore.engine.worker.compilation import compile_workload
    from bexplore.workloads import build

    job = load_config(Path(config)).on_device("cpu").job
    began_s, began_cpu_s = time.perf_counter(), _processor_s()
    if loads is not None:
        torch.compiler.load_cache_artifacts(Path(loads).read_bytes())
    workload = build(job)
    compile_workload(workload, job.compile, Compilation.EXACT, SharedMode.STATIC, ())
    times_s = []
    for _ in range(2):
        workload.forward_backward(workload.make_batch(MICRO_BATCH_SIZE))
        workload.update()
        times_s.append((time.perf_counter() - began_s, _processor_s() - began_cpu_s))
    if saves is not None:
        found = torch.compiler.save_cache_artifacts()
        Path(saves).write_bytes(found[0] if found else b"")
    (first_s, first_cpu_s), (both_s, _) = times_s
    return {"first_step_s": first_s, "first_step_processor_s": first_cpu_s, "second_step_s": both_s - first_s}


def _processor_s() -> float:
    """Seconds of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def start(config: Path, cache: Path, *options: str) -> dict[str, float]:
    """Run `child` in a process of its own with a compile cache of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.warm_start", "--config", str(config), "--child", *options],
        env=os.environ | {VARIABLE: str(cache)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def keep(config: Path, folder: Path) -> Path:
    """Verify the size once as an exploration does; returns the cache that is kept."""
    job = load_config(config).on_device("cpu").job
    probe = Probe(
        number=0,
        micro_batch_size=MICRO_BATCH_SIZE,
        compilation=Compilation.EXACT,
        purpose=Purpose.VERIFY,
        max_passes=2,
    )
    with EngineRunner(RunnerSettings(job=job, run_dir=folder, keeps_artifacts=True)) as runner:
        observation = runner(probe)
        assert observation.outcome is Outcome.MEASURED, observation.reason
        return runner.settings.artifacts_dir(MICRO_BATCH_SIZE)


def measure(config: Path, rounds: int) -> dict[str, Any]:
    """All ways in turn, `rounds` times."""
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kept = keep(config, folder)
        kept_bytes = sum(file.stat().st_size for file in kept.rglob("*") if file.is_file())
        for turn in range(rounds):
            saved = folder / f"saved_{turn}"
            found["cold"].append(start(config, folder / f"cold_{turn}", "--saves", str(saved)))
            found["saved"].append(start(config, folder / f"loaded_{turn}", "--loads", str(saved)))
            copy = folder / f"kept_{turn}"
            shutil.copytree(kept, copy)
            found["kept"].append(start(config, copy))
        saved_bytes = saved.stat().st_size
    return {"ways": found, "kept_bytes": kept_bytes, "saved_bytes": saved_bytes}


def report(record: dict[str, Any]) -> str:
    """The page of a result."""
    lines = [
        "# Cold and warm first step",
        "",
        f"Written by `{record['command']}` on {record['date']}: {record['machine']}.",
        f"The job is `{record['config']}` at micro-batch size {MICRO_BATCH_SIZE}; medians of {record['rounds']} fresh "
        f"processes each. The kept cache has {record['kept_bytes'] / 1e6:.1f} MB.",
        "",
        "| started with | first step | processor time of it | second step |",
        "|---|---|---|---|",
    ]
    for way, title in WAYS.items():
        runs = record["ways"][way]
        first, processor, second = (
            statistics.median(run[name] for run in runs)
            for name in ("first_step_s", "first_step_processor_s", "second_step_s")
        )
        lines.append(f"| {title} | {first:.1f} s | {processor:.1f} s | {second:.2f} s |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, write the results, show them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="fresh processes of each kind")
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "quickstart.yaml")
    for hidden in ("--saves", "--loads"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(str(options.config), options.saves, options.loads)))
        return
    load_before = os.getloadavg()[0]
    record = measure(options.config.resolve(), options.rounds) | {
        "command": " ".join(["python -m benchmarks.warm_start", *sys.argv[1:]]),
        "config": os.path.relpath(options.config, ROOT),
        "rounds": options.rounds,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": f"{os.cpu_count()} processors of {processor_name()}, torch {package_version('torch')}; load average "
        f"{load_before:.1f} before, {os.getloadavg()[0]:.1f} after",
    }
    (RESULTS / "warm_start.json").write_text(json.dumps(record, indent=1) + "\n")
    text = report(record)
    (RESULTS / "warm_start.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
