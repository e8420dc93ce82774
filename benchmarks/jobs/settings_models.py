"""Models with arguments of their own that trade memory for speed, each with its batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.jobs.traced_models import CLASSES, WIDTH, Pooled

Pair = tuple[torch.Tensor, torch.Tensor]


def images(micro_batch_size: int) -> Pair:
    return torch.randn(micro_batch_size, 3, 64, 64), torch.randint(CLASSES, (micro_batch_size,))


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(8, width) for _ in range(2))
        self.convolutions = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            hidden = convolution(F.silu(norm(hidden)))
        return x + hidden


class ResidualNet(nn.Module):
    """Four residual blocks of one width between a patch embedding and a classifier."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 4, stride=4)
        self.blocks = nn.ModuleList(_Residual(width) for _ in range(4))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden.mean((2, 3)))


class _FeedForward(nn.Module):
    """Pre-norm perceptrons, of which the last `num_recomputed` run again in the backward pass."""

    def __init__(self, num_blocks: int, expansion: int, num_recomputed: int) -> None:
        super().__init__()
        self.num_kept = num_blocks - num_recomputed
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(WIDTH), nn.Linear(WIDTH, expansion * WIDTH), nn.GELU(), nn.Linear(expansion * WIDTH, WIDTH)
            )
            for _ in range(num_blocks)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, block in enumerate(self.blocks):
            is_kept = number < self.num_kept
            x = x + (block(x) if is_kept else checkpoint(block, x, use_reentrant=False))
        return x


def feed_forward(num_blocks: int = 4, expansion: int = 4, num_recomputed: int = 0) -> nn.Module:
    return Pooled(_FeedForward(num_blocks, expansion, num_recomputed))
