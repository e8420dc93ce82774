"""Programs that take 256 MiB a sample beside their tiny weights, each in a way of its own."""

from __future__ import annotations

import mmap
import os

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

WIDTH = 32
MIB = 2**20
PIECE_BYTES = 8 * MIB
SAMPLE_BYTES = 256 * MIB


class Hungry(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.body = nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) + eat(self.way, x.shape[0] * SAMPLE_BYTES)


class EatsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]  # Function takes anything
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]  # Function takes anything
        return gradient + eat("pieces", gradient.shape[0] * SAMPLE_BYTES)


class HungryBackward(Hungry):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return EatsBackward.apply(self.body(x))


@torch.compiler.disable
def eat(way: str, num_bytes: int) -> float:
    """Hold and touch so many bytes; 0."""
    if way == "at_once":
        return 0.0 * float(torch.ones(num_bytes // 4).sum())
    if way == "pieces":
        held = [torch.ones(PIECE_BYTES // 4) for _ in range(num_bytes // PIECE_BYTES)]
        return 0.0 * float(held[-1].sum())
    if way == "numpy":
        arrays = [np.ones(PIECE_BYTES // 8) for _ in range(num_bytes // PIECE_BYTES)]
        return 0.0 * float(arrays[-1].sum())
    if way == "shared":
        area = mmap.mmap(-1, num_bytes)
        for start in range(0, num_bytes, PIECE_BYTES):
            area[start : start + PIECE_BYTES] = b"x" * PIECE_BYTES
        return 0.0
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)  # OpenMP's threads are not forked, and a child that asks for them waits for ever
            eat("pieces", num_bytes)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return 0.0


def samples(micro_batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(micro_batch_size, WIDTH), torch.randint(4, (micro_batch_size,))


def cross_entropy(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output, targets)


def tiny() -> nn.Module:
    return nn.Linear(WIDTH, 4)


def at_once() -> nn.Module:
    return Hungry("at_once")


def pieces() -> nn.Module:
    return Hungry("pieces")


def arrays() -> nn.Module:
    return Hungry("numpy")


def shared() -> nn.Module:
    return Hungry("shared")


def child() -> nn.Module:
    return Hungry("child")


def backward() -> nn.Module:
    return HungryBackward("pieces")
