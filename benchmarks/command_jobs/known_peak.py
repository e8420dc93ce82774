"""A training whose samples a second peak at 8 samples: a pass takes 20 ms and 0.2 ms times the size squared."""

import argparse
import os
import time

import torch

PASS_S, SQUARE_S = 0.02, 0.0002

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
        time.sleep(PASS_S + SQUARE_S * len(batch) ** 2)
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
