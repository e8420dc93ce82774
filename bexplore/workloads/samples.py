"""Synthetic samples: sample i depends on the seed and on i, never on the number of samples.

Each sample has its own generator on the CPU, so that the same job sees the same samples on every device, and so that
making a batch leaves no temporary in the device's allocator before its peak is read.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import torch

_SEED_STRIDE = 1_000_003  # a prime: the streams of adjacent seeds do not meet within a million samples


@contextlib.contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's random numbers inside the block, and leave the caller's random state as it was."""
    forked = [device] if device.type == "cuda" and torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=forked):
        torch.manual_seed(seed)
        yield


def random_tokens(num_samples: int, length: int, vocab_size: int, *, seed: int) -> torch.Tensor:
    """Draw token ids, uniform in [0, vocab_size).

    Returns:
        (num_samples, length) int64, on the CPU.
    """
    return torch.stack(
        [torch.randint(vocab_size, (length,), generator=_generator(seed, index)) for index in range(num_samples)]
    )


def random_values(num_samples: int, shape: tuple[int, ...], *, seed: int) -> torch.Tensor:
    """Draw values of mean 0 and variance 1, uniform in [-sqrt(3), sqrt(3)), as in a normalized image.

    Returns:
        (num_samples, *shape) float32, on the CPU.
    """
    rows = [torch.rand(shape, generator=_generator(seed, index)) for index in range(num_samples)]
    return torch.stack(rows).sub_(0.5).mul_(2 * math.sqrt(3))


def _generator(seed: int, index: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed * _SEED_STRIDE + index)
