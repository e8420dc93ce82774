"""A small model whose forward pass, or whose making, fails on one rank in a way that is asked for."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

WIDTH = 64
SLOW_S = 1.5


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.layer(x))


class Model(nn.Module):
    """Two blocks and a head; `fault` happens on rank `fault_rank` in forward pass `fault_at` (0: while it is made)."""

    def __init__(self, fault: str, fault_rank: int, fault_at: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, 1)
        self.fault, self.fault_rank, self.fault_at = fault, fault_rank, fault_at
        self.num_passes = 0
        self.happen()

    def happen(self) -> None:
        at, self.num_passes = self.num_passes, self.num_passes + 1
        if at == self.fault_at and dist.is_initialized() and dist.get_rank() == self.fault_rank:
            FAULTS[self.fault]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.happen()
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def model(fault: str = "none", fault_rank: int = 0, fault_at: int = 0) -> nn.Module:
    return Model(fault, fault_rank, fault_at)


def batch(micro_batch_size: int) -> torch.Tensor:
    return torch.randn(micro_batch_size, WIDTH)


def large_batch(micro_batch_size: int) -> torch.Tensor:
    return torch.randn(micro_batch_size * 2**16, WIDTH)


def loss(output: torch.Tensor, _inputs: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def out_of_memory() -> None:
    torch.empty(2**50)


def raise_error() -> None:
    raise ValueError("the labels and the logits differ")


def hang() -> None:
    while True:
        time.sleep(0.1)


def disconnect() -> None:
    """Shut every socket to the explorer, as a lost network does: those that the listener has accepted."""
    for path in list(Path("/proc/self/fd").iterdir()):
        try:
            copy = socket.socket(fileno=os.dup(int(path.name)))
        except OSError:
            continue
        with copy:
            if copy.family == socket.AF_INET and _is_of_explorer(copy):
                copy.shutdown(socket.SHUT_RDWR)


def _is_of_explorer(candidate: socket.socket) -> bool:
    address = sys.argv[sys.argv.index("--connect") + 1]
    try:
        return candidate.getpeername()[1] == int(address.rpartition(":")[2])
    except OSError:
        return False


FAULTS = {
    "none": lambda: None,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(3),
    "error": raise_error,
    "memory": out_of_memory,
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "hang": hang,
    "slow": lambda: time.sleep(SLOW_S),
    "disconnect": disconnect,
}
