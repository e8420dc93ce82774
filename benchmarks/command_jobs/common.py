"""What the jobs share: their options, random rows, and the log of seconds and loss that each prints itself."""

import argparse
import itertools
import json
import os
import time
from pathlib import Path

import torch

WIDTH = 512
CLASSES = 16
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}  # of the process group of ranks on such devices


def options(*more: tuple[str, object]) -> argparse.Namespace:
    """Read the command line; `more` holds a name and a default for each option of one job alone."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batch-size", type=int, default=8)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=sorted(BACKENDS), default="cpu")
    for name, default in more:
        parser.add_argument(name, type=type(default), default=default)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    return given


def own_device(args: argparse.Namespace, rank: int | None = None) -> torch.device:
    """Return the device of this process: each rank of a host takes the one of its number."""
    if args.device == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) if rank is None else rank)
    torch.cuda.set_device(device)
    return device


class StepLog:
    """One JSON line for each optimizer step: its number, its seconds and its loss with all digits."""

    def __init__(self):
        self.step, self.before = 0, time.perf_counter()

    def __call__(self, loss: float) -> None:
        now = time.perf_counter()
        print(json.dumps({"step": self.step, "seconds": now - self.before, "loss": float(loss)}), flush=True)
        self.step, self.before = self.step + 1, now


class Rows(torch.utils.data.Dataset):
    """Random rows with a class each, made on the spot; row i is the same in every process."""

    def __init__(self, length: int):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(WIDTH, generator=generator), index % CLASSES


def classifier(depth: int = 4) -> torch.nn.Sequential:
    """A tiny model: linear layers, each with its activation."""
    torch.manual_seed(0)
    layers = [layer for _ in range(depth) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())]
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, CLASSES))


def image_classifier() -> torch.nn.Sequential:
    """A tiny model of convolutions, whose activations leave the caches of a processor as the size grows."""
    torch.manual_seed(0)
    channels, layers = (2, 32, 32, 32), []
    for inner, outer in itertools.pairwise(channels):
        layers += [torch.nn.Conv2d(inner, outer, 3, padding=1), torch.nn.GELU()]
    image = torch.nn.Unflatten(1, (2, 16, 16)), torch.nn.Upsample(scale_factor=3)
    return torch.nn.Sequential(*image, *layers, torch.nn.Flatten(), torch.nn.Linear(32 * 48 * 48, CLASSES))


def encoder(depth: int = 6, width: int = 1024) -> torch.nn.Sequential:
    """A transformer encoder over rows as 64 tokens; a sample takes some 20 MiB of a device in float32."""
    torch.manual_seed(0)
    layers = [torch.nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, batch_first=True) for _ in range(depth)]
    head = torch.nn.Flatten(), torch.nn.Linear(64 * width, CLASSES)
    return torch.nn.Sequential(torch.nn.Unflatten(1, (64, 8)), torch.nn.Linear(8, width), *layers, *head)


MODELS = {"layers": classifier, "images": image_classifier, "encoder": encoder}
