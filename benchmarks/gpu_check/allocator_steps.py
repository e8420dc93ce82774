"""Section 7: what the caching allocator is asked for in two steps of a small GPT, for a replay without a GPU.

The file: `{"device", "torch", "recordings": [{"micro_batch_size", "max_memory_allocated", "max_memory_reserved",
"events": [["alloc", address, bytes], ...]}]}`. It begins before the first tensor, so that a replay needs no state.
Addresses count from the lowest segment's. Actions are torch's own: `alloc`, `free_requested`, `free_completed`,
`segment_alloc`, `segment_free`, ...
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.verdict import Verdict, judged
from bexplore.host.records import from_record

SIZES = (1, 4, 16)
NUM_STEPS = 2
MAX_EVENTS = 100_000
MOST_FILE_BYTES = 1_000_000
SMALL = ("model.num_hidden_layers=2", "model.hidden_size=256", "model.num_heads=4", "model.filter_size=1024")


def record_events(context: Context) -> Verdict:
    """A process for each size, since the allocator's state is part of the question."""
    recordings = []
    for size in context.sizes(*SIZES):
        config = context.config("gpt", *([] if context.is_tiny else SMALL))
        context.note(file=str(context.recording))
        command = [sys.executable, "-m", "benchmarks.gpu_check.allocator_steps", json.dumps(config.job.as_record())]
        done = subprocess.run([*command, str(size)], text=True, capture_output=True, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if not lines:
            return judged(False, f"size {size}: exit {done.returncode}: {done.stderr[-500:]}")
        recordings.append(json.loads(lines[-1]))
    found = {"device": recordings[0].pop("device"), "torch": recordings[0].pop("torch"), "recordings": recordings}
    text = json.dumps(found, separators=(",", ":")) + "\n"
    context.recording.parent.mkdir(parents=True, exist_ok=True)
    context.recording.write_text(text)
    counts = ", ".join(f"{one['micro_batch_size']}: {len(one['events'])} events" for one in recordings)
    has_events = context.on_cpu or all(one["events"] for one in recordings)
    return judged(has_events and len(text) <= MOST_FILE_BYTES, f"{counts}; {len(text) / 1e3:.0f} kB")


def main(job_json: str, size: str) -> None:
    import torch

    from bexplore.job import Job

    job = from_record(Job, json.loads(job_json))
    if job.device == "cpu":
        _two_steps(job, int(size))
        found: dict[str, Any] = {"device": "cpu", "max_memory_allocated": 0, "max_memory_reserved": 0, "events": []}
    else:
        torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=MAX_EVENTS)
        _two_steps(job, int(size))
        torch.cuda.synchronize()
        found = {
            "device": torch.cuda.get_device_name(job.device),
            "max_memory_allocated": torch.cuda.max_memory_allocated(job.device),
            "max_memory_reserved": torch.cuda.max_memory_reserved(job.device),
            "events": compact(torch.cuda.memory._snapshot()["device_traces"][0]),
        }
    print(json.dumps(found | {"torch": torch.__version__, "micro_batch_size": int(size)}), flush=True)


def _two_steps(job: Any, size: int) -> None:
    from bexplore.workloads import build

    workload = build(job)
    for module in workload.compiled_modules:
        module.compile(backend=job.compile.backend, dynamic=False)
    batch = workload.make_batch(size)
    for _ in range(NUM_STEPS):
        for _ in range(2):
            workload.forward_backward(batch)
        workload.update()


def compact(trace: list[dict[str, Any]]) -> list[list[Any]]:
    """`[action, address, bytes]` of each event; the lowest address is 0."""
    events = [event for event in trace if event["action"] != "snapshot"]
    lowest = min((event["addr"] for event in events), default=0)
    return [[event["action"], event["addr"] - lowest, event["size"]] for event in events]


if __name__ == "__main__":
    main(*sys.argv[1:])
