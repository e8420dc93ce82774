"""Two models of the user's own, and the plain training of each that `benchmarks.plan_steps` times.

`torchrun --nproc-per-node 2 -m benchmarks.jobs.planned_training NAME MICRO_BATCH_SIZE ACCUMULATION STEPS` trains as any
script does, with nothing of bexplore, and prints the seconds of its optimizer steps.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_WIDTH, _LENGTH, _CLASSES, _IMAGE = 160, 64, 512, 32
WARM_UP_STEPS = 5


class Encoder(nn.Module):
    """A transformer encoder over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(_CLASSES, _WIDTH)
        layer = nn.TransformerEncoderLayer(_WIDTH, 4, 640, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.classes = nn.Linear(_WIDTH, _CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map (samples, tokens) to (samples, tokens, classes)."""
        return self.classes(self.encoder(self.tokens(tokens)))


class Convolutions(nn.Module):
    """A small network of convolutions over images."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 32, 64, 128)
        blocks = [
            nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
            for before, after in itertools.pairwise(widths)
        ]
        self.features = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classes = nn.Linear(widths[-1], 100)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map (samples, 3, height, width) to (samples, classes)."""
        return self.classes(self.features(images))


def encoder() -> Encoder:
    """Return the encoder."""
    return Encoder()


def convolutions() -> Convolutions:
    """Return the network of convolutions."""
    return Convolutions()


def tokens(micro_batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens and their classes."""
    drawn = torch.randint(_CLASSES, (2, micro_batch_size, _LENGTH))
    return drawn[0], drawn[1]


def images(micro_batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images and their classes."""
    return torch.randn(micro_batch_size, 3, _IMAGE, _IMAGE), torch.randint(100, (micro_batch_size,))


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy."""
    return nn.functional.cross_entropy(output.flatten(0, -2), target.flatten())


MAKERS = {"encoder": (encoder, tokens), "convolutions": (convolutions, images)}


def main() -> None:
    """Train for some steps, and print their seconds on the first rank."""
    name, micro, accumulation, steps = sys.argv[1], *map(int, sys.argv[2:5])
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    make_model, make_batch = MAKERS[name]
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = [make_batch(micro) for _ in range(8)]
    began = 0.0
    for number in range(WARM_UP_STEPS + steps):
        if number == WARM_UP_STEPS:
            dist.barrier()
            began = time.perf_counter()
        for place in range(accumulation):
            inputs, target = batches[place % len(batches)]
            is_last = place == accumulation - 1
            with contextlib.nullcontext() if is_last else model.no_sync():
                (loss(model(inputs), target) / accumulation).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    if dist.get_rank() == 0:
        print("TIMED " + json.dumps({"seconds": time.perf_counter() - began, "steps": steps}), flush=True)
    os._exit(0)  # gloo's threads may outlive the interpreter's


if __name__ == "__main__":
    main()
