"""Reserved over allocated memory, without a GPU: `python -m benchmarks.allocator_ratio`.

The allocations and frees of traced steps run through the model of CUDA's caching allocator, one after another as a
probe has them: weights, gradients and states, then steps of two accumulation passes and an update. The programs are
those of the CPU, which stand in for those of CUDA. Two ratios come of it: of what is reserved where nothing limits it,
and of the lowest limit under which the steps still run, because the cache is released. The spread of the first between
the sizes of a job is in the prior of `bexplore.search.posterior.memory`; its mean is measured by `emulated_memory`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.caching_allocator import OutOfMemoryError, Peaks, replay
from bexplore import load_config
from bexplore.job import Job
from bexplore.trace import tracer
from bexplore.trace.passes import modules_of
from bexplore.trace.polynomial import Polynomial
from bexplore.trace.timeline import Event, Phase

RESULTS = Path(__file__).parent / "results"
JOBS = ("engine_gpt", "engine_bert", "engine_llama_hf", "engine_vit")
STATES_PER_PARAMETER = 2  # AdamW
NUM_PASSES, NUM_STEPS = 2, 2
LARGEST_BYTES = 64 * 2**30
RESOLUTION = 1.002  # of the lowest limit
COUNTED_FROM_BYTES = 2**30  # segments of 20 MiB are 2 % of it; budgets of accelerators are above


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a training step allocates and frees.

    Attributes:
        resident_bytes: Of each tensor that lives all the while.
        events: By phase.
    """

    resident_bytes: list[Polynomial]
    events: dict[Phase, list[Event]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    rows = []
    for name in JOBS:
        began_s = time.perf_counter()
        step = traced_step(load_config(Path(__file__).parent / "jobs" / f"{name}.yaml").job)
        rows += ratios(name, step)
        print(f"{name}: {time.perf_counter() - began_s:.0f} s", flush=True)
    record = {"rows": rows, "summary": summary(rows)}
    (RESULTS / "allocator_ratio.json").write_text(json.dumps(record, indent=1) + "\n")
    (RESULTS / "allocator_ratio.md").write_text(table(record))
    print(table(record))


def traced_step(job: Job) -> Step:
    """The step of a job, all of its blocks."""
    events: dict[Phase, list[Event]] = {}
    resident: list[Polynomial] = []
    find_peaks, find_resident = tracer.find_peaks, tracer._resident

    def kept_resident(workload: Any, fake_mode: Any, traced: Any, trained: list[Any], probe_batch: int) -> Any:
        weights = [tensor for module in modules_of(workload) for tensor in module.state_dict().values()]
        own = [tensor.numel() * tensor.itemsize for tensor in {id(tensor): tensor for tensor in weights}.values()]
        grown = [tensor.numel() * tensor.itemsize for tensor in trained]
        resident.extend(Polynomial(size) for size in [*own, *grown, *(grown * STATES_PER_PARAMETER)])
        resident.append(traced.batch_size)
        return find_resident(workload, fake_mode, traced, trained, probe_batch)

    def kept_events(buffers: Any, own: list[Event], *, past: list[Event], **rest: Any) -> Any:
        events[list(Phase)[len(events)]] = own
        return find_peaks(buffers, own, past=past, **rest)

    with mock.patch.object(tracer, "_resident", kept_resident), mock.patch.object(tracer, "find_peaks", kept_events):
        tracer.trace_job(job)
    return Step(resident_bytes=resident, events=events)


def recording(step: Step, micro_batch_size: int) -> Iterator[tuple[str, int, int]]:
    """Events as the allocator would tell them, of two steps and what lives before."""
    address = 0
    for size in step.resident_bytes:
        address += 1
        yield "alloc", address, math.ceil(size(micro_batch_size))
    alive: dict[Any, list[int]] = defaultdict(list)
    passes = [Phase.FORWARD, Phase.BACKWARD] * NUM_PASSES
    for event in (event for phase in [*passes, Phase.UPDATE] * NUM_STEPS for event in step.events[phase]):
        size = math.ceil(abs(event.size(micro_batch_size)))
        if event.size(micro_batch_size) > 0:
            address += 1
            alive[event.place, size].append(address)
            yield "alloc", address, size
        elif alive[event.place, size]:
            yield "free_completed", alive[event.place, size].pop(0), size


def ratios(name: str, step: Step) -> Iterator[dict[str, Any]]:
    """A row for each power of two up to the largest memory."""
    exponent = 0
    while True:
        size = 2**exponent
        events = list(recording(step, size))
        peaks = replay(events)
        if peaks.allocated_bytes > LARGEST_BYTES:
            return
        yield {
            "job": name,
            "micro_batch_size": size,
            "allocated_bytes": peaks.allocated_bytes,
            "reserved_bytes": peaks.reserved_bytes,
            "lowest_limit_bytes": lowest_limit(events, peaks),
        }
        exponent += 1


def lowest_limit(events: Sequence[tuple[str, int, int]], peaks: Peaks) -> int:
    """Bytes that must be allowed, found by halving."""
    low, high = peaks.allocated_bytes, peaks.reserved_bytes
    while high > low * RESOLUTION:
        middle = (low + high) // 2
        try:
            replay(events, limit_bytes=middle)
        except OutOfMemoryError:
            low = middle
        else:
            high = middle
    return high


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean and spread of ln(reserved / allocated): between jobs, and within a job between sizes."""
    by_job: dict[str, list[float]] = defaultdict(list)
    limits = []
    for row in rows:
        if row["allocated_bytes"] >= COUNTED_FROM_BYTES:
            by_job[row["job"]].append(math.log(row["reserved_bytes"] / row["allocated_bytes"]))
            limits.append(math.log(row["lowest_limit_bytes"] / row["allocated_bytes"]))
    smaller = [row for row in rows if row["allocated_bytes"] < COUNTED_FROM_BYTES]
    unused_mib = [(row["reserved_bytes"] - row["allocated_bytes"]) / 2**20 for row in smaller]
    means = [statistics.mean(values) for values in by_job.values()]
    within = [value - statistics.mean(values) for values in by_job.values() for value in values]
    freedom = len(within) - len(by_job)
    return {
        "mean_log_ratio": statistics.mean(means),
        "sd_between_jobs": statistics.stdev(means),
        "sd_within_job": math.sqrt(sum(value**2 for value in within) / freedom),
        "largest_log_ratio": max(value for values in by_job.values() for value in values),
        "mean_log_lowest_limit": statistics.mean(limits),
        "num_sizes": len(within),
        "mean_unused_mib": statistics.mean(unused_mib),
        "sd_unused_mib": statistics.stdev(unused_mib),
        "num_smaller_sizes": len(smaller),
    }


def table(record: dict[str, Any]) -> str:
    lines = [
        "# Reserved over allocated memory: steps of the CPU's programs in the model of CUDA's caching allocator",
        "",
        "Made by `python -m benchmarks.allocator_ratio`. Not measured on a GPU.",
        "",
        "| job | micro-batch size | allocated, GiB | reserved / allocated | lowest limit / allocated |",
        "|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        allocated = row["allocated_bytes"]
        lines.append(
            f"| {row['job']} | {row['micro_batch_size']} | {allocated / 2**30:.3f} "
            f"| {row['reserved_bytes'] / allocated:.3f} | {row['lowest_limit_bytes'] / allocated:.3f} |"
        )
    found = record["summary"]
    lines += [
        "",
        f"From {COUNTED_FROM_BYTES / 2**30:g} GiB on, {found['num_sizes']} sizes: ln(reserved / allocated) has the "
        f"mean {found['mean_log_ratio']:.3f}, a standard deviation of {found['sd_between_jobs']:.3f} between jobs and "
        f"of {found['sd_within_job']:.3f} between the sizes of a job, and is {found['largest_log_ratio']:.3f} at most. "
        f"The lowest limit has the mean {found['mean_log_lowest_limit']:.3f}. At {found['num_smaller_sizes']} smaller "
        f"sizes reserved less allocated is {found['mean_unused_mib']:.0f} +- {found['sd_unused_mib']:.0f} MiB.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
