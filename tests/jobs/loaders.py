"""Data loaders of "the user", good and bad."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Dataset

SAMPLE_S = 0.05


class Samples(Dataset):
    def __init__(self, num_samples: int = 64, sample_s: float = 0.0) -> None:
        self.num_samples, self.sample_s = num_samples, sample_s

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.sample_s)
        return torch.randn(32), index % 4


def slow(micro_batch_size: int) -> DataLoader:
    return DataLoader(Samples(sample_s=SAMPLE_S), batch_size=micro_batch_size)


def plain(micro_batch_size: int, num_workers: int = 0) -> DataLoader:
    return DataLoader(Samples(), batch_size=micro_batch_size, num_workers=num_workers)


def quick(micro_batch_size: int) -> Iterator[torch.Tensor]:
    while True:
        yield torch.zeros(micro_batch_size, 32)


def too_small(micro_batch_size: int) -> DataLoader:
    return DataLoader(Samples(2), batch_size=micro_batch_size, drop_last=True)


def hangs(micro_batch_size: int) -> Iterator[torch.Tensor]:
    time.sleep(3600)
    yield torch.zeros(micro_batch_size, 32)


class Broken(Samples):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        raise FileNotFoundError("shard_007.tar")


def broken(micro_batch_size: int) -> DataLoader:
    return DataLoader(Broken(), batch_size=micro_batch_size, num_workers=1)


def no_loader(micro_batch_size: int) -> int:
    return micro_batch_size
