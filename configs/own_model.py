"""What `own_model.yaml` names: a small convolutional network on images of 32 x 32."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def build(num_classes: int) -> nn.Module:
    """Three convolutions, each halving the image, and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, num_classes),
    )


def make_batch(micro_batch_size: int, num_classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and their classes; bexplore seeds torch before each call and moves the tensors to the device."""
    return torch.randn(micro_batch_size, 3, 32, 32), torch.randint(num_classes, (micro_batch_size,))


def make_loader(micro_batch_size: int, num_classes: int) -> DataLoader:
    """The loader of the training; random images stand in for a data set here."""
    images, classes = torch.randn(2048, 3, 32, 32), torch.randint(num_classes, (2048,))
    return DataLoader(TensorDataset(images, classes), batch_size=micro_batch_size, shuffle=True, num_workers=1)


def loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy."""
    return F.cross_entropy(output, targets)
