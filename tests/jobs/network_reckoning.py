"""A rank that reckons the bytes and the seconds of collectives on its own, beside those that bexplore times.

Bytes are the kernel's own count of the loopback interface, seconds those of a plain clock around one collective. Its
first rank prints, by collective: bytes that a rank sends, seconds, and the bus bandwidth that bexplore reports.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from bexplore.estimate.collectives import Collective
from bexplore.planning.network_timing import process_group, time_collective

NUM_BYTES = 24 * 2**20  # two and three ranks divide it
ROUNDS = 5


def bytes_through_loopback() -> int:
    (line,) = (line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[0])


def main() -> None:
    with process_group() as ranks:
        whole, part = torch.zeros(NUM_BYTES // 4), torch.zeros(NUM_BYTES // 4 // ranks.num_ranks)
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        runs = {
            Collective.ALL_REDUCE: lambda: dist.all_reduce(whole),
            Collective.REDUCE_SCATTER: lambda: scatter(part, whole),
            Collective.ALL_GATHER: lambda: gather(whole, part),
        }
        found = {}
        for collective, run in runs.items():
            counts, seconds = [], []
            for _ in range(ROUNDS):
                before = bytes_through_loopback()  # no rank sends before this one is at the barrier, too
                dist.barrier()
                began = time.perf_counter()
                run()
                seconds.append(time.perf_counter() - began)
                dist.barrier()
                counts.append(bytes_through_loopback() - before)
            timed = time_collective(ranks, collective, NUM_BYTES)
            found[collective] = {
                "sent_bytes": min(counts) / ranks.num_ranks,
                "seconds": sorted(seconds)[ROUNDS // 2],
                "bus_bytes_per_s": timed.bus_bytes_per_s,
            }
        if ranks.rank == 0:
            print(json.dumps(found), flush=True)
        dist.barrier()
        sys.stdout.flush()
        os._exit(0)  # gloo's threads may outlive the interpreter's


if __name__ == "__main__":
    main()
