"""A rank that reckons the bytes of collectives by the kernel's own count of the loopback interface."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

NUM_BYTES = 32 * 2**20


def bytes_through_loopback() -> int:
    (line,) = (line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[0])


def main() -> None:
    dist.init_process_group("gloo")
    whole, part = torch.zeros(NUM_BYTES // 4), torch.zeros(NUM_BYTES // 4 // dist.get_world_size())
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    runs = {"all_reduce": lambda: dist.all_reduce(whole), "all_gather": lambda: gather(whole, part)}
    found: dict[str, list[int]] = {name: [] for name in runs}
    for _ in range(5):
        for name, run in runs.items():
            dist.barrier()
            before = bytes_through_loopback()
            run()
            dist.barrier()
            found[name].append(bytes_through_loopback() - before)
    if dist.get_rank() == 0:
        print(json.dumps({name: min(counts) / dist.get_world_size() for name, counts in found.items()}), flush=True)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
