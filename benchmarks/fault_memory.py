"""How far the memory of a worker and its children comes where a size needs four times the budget."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from bexplore.engine.process.limits import resident_bytes, swapped_bytes
from bexplore.engine.runner import EngineRunner, RunnerSettings
from bexplore.host.machine import oom_kills
from bexplore.job import CompileSettings, Job
from bexplore.measurement.probe import Compilation, Probe

ROOT = Path(__file__).parent.parent
GIB = 2**30
BUDGET_BYTES = 2 * GIB
FITS, TOO_BIG = 2, 32  # samples of 256 MiB: a quarter of the budget, and four times it
LIMITED = ("at_once", "pieces", "arrays", "backward", "child")
WATCHED = ("shared",)  # no process limit of the kernel counts shared mappings: only the watch from outside sees them


class TreeSampler:
    """Follows the resident memory of a process and its descendants from a thread."""

    def __init__(self, pid: int) -> None:
        self._pid, self._ended = pid, threading.Event()
        self.peak_bytes = self.before_bytes = self.swapped_bytes = 0
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def mark(self) -> None:
        """Steps begin: from here on memory is the job's."""
        self.before_bytes = self.peak_bytes = self._tree_bytes()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._ended.wait(0.004):
            self.peak_bytes = max(self.peak_bytes, self._tree_bytes())
            self.swapped_bytes = max(self.swapped_bytes, swapped_bytes(self._pid))

    def _tree_bytes(self) -> int:
        try:
            children = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text().split()
        except OSError:
            children = []
        # A forked child shares its parent's pages until it writes: only what it holds alone is added. Children first:
        # if the parent ends in between, pages that they shared have become theirs, and are not counted twice.
        held = sum(_private_bytes(int(pid)) for pid in children)
        return held + resident_bytes(self._pid)


def _private_bytes(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Private_Dirty:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # ended meanwhile
    return 0


def four_times_the_budget(folder: Path, *, probes: int) -> dict[str, Any]:
    """Probe a size that needs four times the budget, again and again, in every way of taking memory."""
    bystander = subprocess.Popen(
        [sys.executable, "-c", "held = bytearray(200 * 2**20); import time; print(1, flush=True); time.sleep(3600)"],
        stdout=subprocess.PIPE,
    )
    assert bystander.stdout is not None
    bystander.stdout.readline()
    kills_before, outcomes = oom_kills(), Counter[str]()
    ways: dict[str, list[float]] = {way: [] for way in (*LIMITED, *WATCHED)}
    swapped = 0
    try:
        for number in range(probes):
            way = list(ways)[number % len(ways)]
            share, outcome, in_swap = _one(folder / f"{number}", way)
            ways[way].append(share)
            outcomes[outcome] += 1
            swapped = max(swapped, in_swap)
        is_alive = bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
    return {
        "probes": probes,
        "budget_gib": BUDGET_BYTES / GIB,
        "outcomes": dict(outcomes),
        "highest_share_of_budget": {way: round(max(shares), 3) for way, shares in ways.items() if shares},
        "over_105_percent": sum(share > 1.05 for way in LIMITED for share in ways[way]),
        "over_105_percent_shared_mappings": sum(share > 1.05 for way in WATCHED for share in ways[way]),
        "swapped_bytes": swapped,
        "bystander_alive": is_alive,
        "kernel_kills": oom_kills() - kills_before,
        "host_available_gib": round(psutil.virtual_memory().available / GIB, 1),
    }


def _one(folder: Path, way: str) -> tuple[float, str, int]:
    """Share of the budget that the job's memory reached, the outcome, and bytes in swap."""
    sampler: TreeSampler | None = None

    def listen(message: dict[str, Any]) -> None:
        if message.get("stage") == "first pass" and sampler is not None and not sampler.before_bytes:
            sampler.mark()

    paths = {"model": f"benchmarks.jobs.hungry:{way}", "batch": "benchmarks.jobs.hungry:samples"}
    paths["loss"] = "benchmarks.jobs.hungry:cross_entropy"
    job = Job(workload="imported", model=paths, import_root=str(ROOT), compile=CompileSettings(enabled=False))
    settings = RunnerSettings(job=job, run_dir=folder, budget_bytes=BUDGET_BYTES)
    with EngineRunner(settings, on_progress=listen) as runner:
        runner.start()
        runner.await_started()
        assert runner.worker_pid is not None
        sampler = TreeSampler(runner.worker_pid)
        fits = runner(Probe(number=0, micro_batch_size=FITS, max_passes=2, compilation=Compilation.EAGER))
        observation = runner(Probe(number=1, micro_batch_size=TOO_BIG, max_passes=2, compilation=Compilation.EAGER))
        time.sleep(0.01)
        sampler.close()
    share = (sampler.peak_bytes - sampler.before_bytes) / BUDGET_BYTES
    return share, f"{fits.outcome.value}, then {observation.outcome.value}", sampler.swapped_bytes
