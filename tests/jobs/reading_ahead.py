"""A training that reads batches ahead of the passes that take them, in the way that `--how` names.

A sample costs a fixed time of sleep, so that a pass shows how many samples it had, however busy the machine is.
"""

import argparse
import queue
import threading
import time
from collections import deque

import torch
from torch.utils.data import DataLoader, TensorDataset

SAMPLE_S = 0.004
DEPTH = 12

parser = argparse.ArgumentParser()
parser.add_argument("--micro-batch-size", type=int)
parser.add_argument("--out")
parser.add_argument("--how", default="thread")
OPTIONS = parser.parse_args()


def by_thread(loader):
    """Let a thread fill a queue."""
    waiting = queue.Queue(DEPTH)

    def fill():
        for batch in loader:
            waiting.put(batch)
        waiting.put(None)

    threading.Thread(target=fill, daemon=True).start()
    return iter(waiting.get, None)


def by_buffer(loader, depth=DEPTH):
    """Keep some batches, as a generator that buffers does."""
    kept = deque()
    for batch in loader:
        kept.append(batch)
        if len(kept) > depth:
            yield kept.popleft()
    yield from kept


def by_copy(loader):
    """Keep copies of five batches, as a prefetcher to a device does of one."""
    return by_buffer(([one.clone() for one in batch] for batch in loader), 5)


def crops(loader):
    """Make two samples of each, as contrastive trainings do."""
    return by_buffer([torch.cat([one, -one]) for one in batch] for batch in loader)


READERS = {"thread": by_thread, "buffer": by_buffer, "copy": by_copy, "crops": crops, "function": by_thread}
options = {"num_workers": 2, "prefetch_factor": 6, "persistent_workers": True} if OPTIONS.how == "workers" else {}
samples = TensorDataset(torch.randn(4096, 8))
loader = DataLoader(samples, batch_size=OPTIONS.micro_batch_size, shuffle=True, drop_last=True, **options)
model = torch.nn.Linear(8, 1)
call = model.forward if OPTIONS.how == "function" else model  # the calls of a module show its batches
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    for (batch,) in READERS.get(OPTIONS.how, iter)(loader):
        time.sleep(SAMPLE_S * len(batch) / (2 if OPTIONS.how == "crops" else 1))
        optimizer.zero_grad()
        call(batch).square().mean().backward()
        optimizer.step()
