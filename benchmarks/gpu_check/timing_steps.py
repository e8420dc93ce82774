"""Section 5, time: passes back to back against one by one, and what the driver says of the clocks meanwhile."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.gpu import nvidia_smi
from benchmarks.gpu_check.verdict import Verdict, judged
from bexplore.actions.probe import probe_once

SIZES = (1, 4, 32)
NUM_PASSES = 20
TIME_TOLERANCE = 0.03  # of bexplore's pass and one of many back to back; two processes differ by about 1 %
BUSY_S = 6.0
CLOCK_QUERY = ",".join(
    [
        "index",
        "pci.bus_id",
        "clocks.sm",
        "clocks.max.sm",
        "power.draw",
        "power.limit",
        "temperature.gpu",
        *(
            f"clocks_event_reasons.{name}"
            for name in ("active", "hw_slowdown", "sw_thermal_slowdown", "sw_power_cap", "gpu_idle")
        ),
    ]
)


def compare_timing(context: Context) -> Verdict:
    """Seconds of a pass: bexplore's, one by one between synchronizations, and the share of many back to back."""
    config = context.config("gpt", few_layers=True)
    rows: dict[int, dict[str, Any]] = {}
    for size in context.sizes(*SIZES):
        run, synchronize = _compiled_pass(config, size)
        rows[size] = _own_times(run, synchronize)
        with tempfile.TemporaryDirectory() as folder:
            seen = probe_once(config, micro_batch_size=size, compilation="exact", model_dir=folder).observation
        rows[size]["bexplore_s"] = seen.pass_time_s if seen.is_measured else None
        context.note(rows=rows)
    told, is_right = [], True
    for size, row in rows.items():
        ratio = row["bexplore_s"] / row["back_to_back_s"] if row["bexplore_s"] else None
        is_right = is_right and ratio is not None and abs(ratio - 1) <= TIME_TOLERANCE
        alone = row["one_by_one_s"] / row["back_to_back_s"]
        told.append(f"{size}: one by one {alone:.3f}, bexplore {ratio:.3f}" if ratio else f"{size}: not measured")
    return judged(is_right, f"over back to back, {'; '.join(told)}")


def _compiled_pass(config: Any, size: int) -> tuple[Callable[[], object], Callable[[], None]]:
    import torch

    from bexplore.workloads import build

    workload = build(config.job)
    for module in workload.compiled_modules:
        module.compile(backend=config.job.compile.backend, dynamic=False)
    batch = workload.make_batch(size)

    def synchronize() -> None:
        if config.job.device != "cpu":
            torch.cuda.synchronize()

    def run() -> object:
        return workload.forward_backward(batch)

    for _ in range(3):
        run()
    synchronize()
    return run, synchronize


def _own_times(run: Callable[[], object], synchronize: Callable[[], None]) -> dict[str, Any]:
    alone_s = []
    for _ in range(NUM_PASSES):
        began_s = time.perf_counter()
        run()
        synchronize()
        alone_s.append(time.perf_counter() - began_s)
    began_s = time.perf_counter()
    for _ in range(NUM_PASSES):
        run()
    enqueued_s = (time.perf_counter() - began_s) / NUM_PASSES
    synchronize()
    return {
        "one_by_one_s": statistics.median(alone_s),
        "back_to_back_s": (time.perf_counter() - began_s) / NUM_PASSES,
        "enqueued_s": enqueued_s,
    }


def watch_clocks(context: Context) -> Verdict:
    """The driver's words before, during and after seconds of full load; they become test data."""
    config = context.config("gpt", few_layers=True)
    run, synchronize = _compiled_pass(config, context.sizes(32)[-1])
    samples: dict[str, list[Any]] = {"before": [_clocks()], "during": [], "after": []}
    ended = threading.Event()

    def sample() -> None:
        while not ended.is_set():
            samples["during"].append(_clocks())

    thread = threading.Thread(target=sample)
    thread.start()
    until_s = time.monotonic() + (0.5 if context.is_tiny else BUSY_S)
    while time.monotonic() < until_s:
        run()
        synchronize()
    ended.set()
    thread.join()
    samples["after"].append(_clocks())
    context.note(clocks=samples, whole=nvidia_smi("-q", "-d", "PERFORMANCE,CLOCK,POWER"))
    answered = [one for one in samples["during"] if one.get("code") == 0]
    last = answered[-1]["stdout"].strip().splitlines()[-1] if answered else str(samples["during"][-1:])[:200]
    return judged(bool(answered) or context.on_cpu, f"{len(answered)} answers under load; the last: {last}")


def _clocks() -> dict[str, Any]:
    return nvidia_smi(f"--query-gpu={CLOCK_QUERY}", "--format=csv,noheader")
