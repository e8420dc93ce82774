"""A training whose samples a second peak at 8: a pass takes 20 ms, and 5 ms for each sample above 8."""

import argparse
import os
import time

import torch

PASS_S, MORE_S, PEAK = 0.02, 0.005, 8

parser = argparse.ArgumentParser()
parser.add_argument("--micro-batch-size", type=int, required=True)
parser.add_argument("--out", required=True)
size = parser.parse_args().micro_batch_size
model = torch.nn.Linear(32, 1)
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    for (batch,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(size * 512, 32)), size):
        time.sleep(PASS_S + MORE_S * max(0, len(batch) - PEAK))
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
