"""One rank of `benchmarks.distributed`'s steps: passes, updates and whole steps of a job, timed in turns.

Started by torchrun. The last rank but none matters: all agree on the slowest rank's seconds, and the first one prints.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist

from bexplore.engine.worker.ranks import JoinedRanks
from bexplore.engine.worker.steps import Steps
from bexplore.job import Job
from bexplore.workloads import build

TURNS = 16  # of a round, of all parts of the formula and, as often as they have as many passes, of whole steps


def main() -> None:
    record, sizes, accumulations, rounds = json.loads(sys.argv[1])
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    job = Job.from_dict(record)
    workload = build(job)
    ranks = JoinedRanks()
    steps = Steps(workload, torch.device("cpu"), ranks=ranks, replica_batch_size=None)
    rows = []
    for size in sizes:
        batch = workload.make_batch(size)
        for _ in range(2):
            run_step(steps, batch, 2)
        for number in range(rounds):
            rows.append(times(steps, batch, size, number, accumulations))
    if dist.get_rank() == 0:
        print("ROWS " + json.dumps(rows), flush=True)
    dist.barrier()
    os._exit(0)  # gloo's threads may outlive the interpreter's


def times(steps: Steps, batch: object, size: int, number: int, accumulations: list[int]) -> dict:
    """Return seconds of a pass of either kind, of an update, and of whole steps, taken in one round.

    Each is the median of several, as a probe times several passes: one pass of milliseconds meets the noise of the
    machine. Parts and whole steps are interleaved, as that noise changes within seconds.
    """

    def seconds(run: Callable[[], object]) -> float:
        return steps._timed(run).seconds

    parts, whole = [], {count: [] for count in accumulations}
    for turn in range(TURNS):
        parts.append(
            (
                seconds(lambda: steps.forward_backward(batch, is_last=False)),
                seconds(lambda: steps.forward_backward(batch, is_last=True)),
                seconds(steps.update),
            )
        )
        for count in accumulations:
            if turn % count == 0:
                whole[count].append(seconds(lambda count=count: run_step(steps, batch, count)))
    inner, last, update = (statistics.median(values) for values in zip(*parts, strict=True))
    step_s = {str(count): statistics.median(values) for count, values in whole.items()}
    return {"size": size, "round": number, "inner_s": inner, "last_s": last, "update_s": update, "step_s": step_s}


def run_step(steps: Steps, batch: object, accumulation_steps: int) -> None:
    """Run one optimizer step as a training does."""
    for number in range(accumulation_steps):
        steps.forward_backward(batch, is_last=number == accumulation_steps - 1)
    steps.update()


if __name__ == "__main__":
    main()
