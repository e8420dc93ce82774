"""A training by accelerate behind `find_fastest_batch_size`; run as a program with its folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from accelerate import Accelerator

import bexplore

FOLDER = Path(sys.argv[1])


@bexplore.find_fastest_batch_size(candidates=[4, 8], max_probes=3, model_dir=str(FOLDER / "model_dir"))
def train(batch_size: int, num_steps: int, *, output_dir: str = str(FOLDER)) -> int:
    accelerator = Accelerator(cpu=True)
    data = torch.utils.data.TensorDataset(torch.randn(256, 8), torch.randn(256, 1))
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(data, batch_size=batch_size, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    while step < num_steps:
        for inputs, targets in loader:
            optimizer.zero_grad()
            accelerator.backward(torch.nn.functional.mse_loss(model(inputs), targets))
            optimizer.step()
            step += 1
            Path(output_dir, "step.txt").write_text(f"{step}")
            if step == num_steps:
                break
    return batch_size


if __name__ == "__main__":
    in_probe = "BEXPLORE_OUTPUT_DIR" in os.environ
    print("trained with", train(10**6 if in_probe else 3), train(1))  # a probe is ended after some steps
