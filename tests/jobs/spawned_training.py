"""A training whose ranks are spawned by a script that goes on after them; it imports nothing of this package."""

import argparse
import os
from pathlib import Path

import torch
import torch.multiprocessing
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def train(rank: int, size: int, port: int) -> None:
    """Train for ever on one of two ranks."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    samples = TensorDataset(torch.randn(size * 512, 32))
    while True:
        for (batch,) in DataLoader(samples, batch_size=size, sampler=DistributedSampler(samples)):
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batch-size", type=int)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--port", type=int)
    parser.add_argument("--export", type=Path)
    options = parser.parse_args()
    try:
        torch.multiprocessing.spawn(train, (options.micro_batch_size, options.port), nprocs=2)
        (options.export / "exported.pt").write_text("what a script writes once its ranks have ended well")
    finally:
        (options.export / "finally.pt").write_text("what a script writes however its ranks have ended")
