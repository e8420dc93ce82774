"""What `gpu_asserting.yaml` names: a model of 4 classes, and batches that hold a class 99 from 8 samples on."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, CLASSES = 32, 4
WRONG_FROM = 8


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))


def samples(micro_batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    targets = torch.randint(CLASSES, (micro_batch_size,))
    targets[WRONG_FROM - 1 :] = 99
    return torch.randn(micro_batch_size, WIDTH), targets


def cross_entropy(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output, targets)
