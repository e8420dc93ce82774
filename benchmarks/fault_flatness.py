"""Whether the explorer's own memory stays flat over many probes, and how soon the next worker starts after a death."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from bexplore.engine.process.memory_watchdog import resident_bytes
from bexplore.engine.runner import EngineRunner, RunnerSettings
from bexplore.job import CompileSettings, Job
from bexplore.measurement.probe import Compilation, Probe

ROOT = Path(__file__).parent.parent
WARM_PROBES = 20  # after so many, everything that is loaded once is loaded
DEATH_EVERY = 25


def memory_over_probes(folder: Path, *, probes: int) -> dict[str, Any]:
    """Run many probes in one explorer; now and then the worker is killed from outside."""
    paths = {name: f"benchmarks.jobs.hungry:{name}" for name in ("samples", "cross_entropy")}
    model = {"model": "benchmarks.jobs.hungry:tiny", "batch": paths["samples"], "loss": paths["cross_entropy"]}
    job = Job(workload="imported", model=model, import_root=str(ROOT), compile=CompileSettings(enabled=False))
    warm_bytes, gaps_s, outcomes = 0, [], []
    settings = RunnerSettings(job=job, run_dir=folder, budget_bytes=2**30, pass_budget_s=0.05)
    with EngineRunner(settings) as runner:
        for number in range(probes):
            if number == WARM_PROBES:
                warm_bytes = resident_bytes(os.getpid())
            if number and number % DEATH_EVERY == 0 and runner.worker_pid is not None:
                gaps_s.append(_replace_dead_worker(runner))
            observation = runner(
                Probe(number=number, micro_batch_size=1 + number % 8, max_passes=2, compilation=Compilation.EAGER)
            )
            outcomes.append(observation.outcome.value)
    return {
        "probes": probes,
        "measured": outcomes.count("measured"),
        "explorer_growth_mib": round((resident_bytes(os.getpid()) - warm_bytes) / 2**20, 2),
        "deaths": len(gaps_s),
        "longest_gap_to_next_worker_s": round(max(gaps_s, default=0.0), 3),
    }


def _replace_dead_worker(runner: EngineRunner) -> float:
    """Seconds from the death of a worker to the start of the next."""
    assert runner.worker_pid is not None
    os.kill(runner.worker_pid, 9)
    began = time.monotonic()
    runner.close()
    runner._workers.ensure()
    return time.monotonic() - began
