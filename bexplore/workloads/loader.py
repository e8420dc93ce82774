"""The user's own data loader: its speed apart from the step, and the lengths of its samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from bexplore.errors import require
from bexplore.job import Job
from bexplore.workloads.batches import seed_torch, tensor_leaves
from bexplore.workloads.import_path import UserCallable, check_call, load_callables

TIMED_S = 3.0  # seconds of steady delivery; shorter only where LONGEST_S ends it
MIN_TIMED_BATCHES = 3
LONGEST_S = 20.0  # seconds in all, the start of the loader's own workers included


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSpeed:
    """Speed of a loader on otherwise idle processors."""

    micro_batch_size: int  # samples of a batch
    samples_per_s: float  # speed of steady delivery, without batches that workers prepared while they started
    num_batches: int  # batches of steady delivery
    elapsed_s: float  # seconds of steady delivery
    first_batch_s: float  # seconds to the first batch, start of the loader's workers included
    num_workers: int | None  # worker processes of the loader; None for anything but a DataLoader
    largest_batch: int  # samples of the largest batch that it gave


def time_loader(job: Job, micro_batch_size: int) -> LoaderSpeed:
    """Time the loader of `job.model["loader"]`, a path: micro_batch_size -> an iterable of batches.

    A loader with worker processes fills its queue in waves of one batch a worker; the first wave includes their start
    and is left out. A loader that ends is started again, as in the next epoch. Its errors are not caught.
    """
    with seed_torch(job.seed, torch.device("cpu")):
        samples_of = _load(job).get("samples_of", _num_samples)
        return _time_batches(_make_loader(job, micro_batch_size), micro_batch_size, samples_of)


def _load(job: Job) -> dict[str, UserCallable]:
    paths = {name: path for name, path in job.model.items() if name != "arguments"}
    return load_callables(paths, job.model.get("arguments") or {}, import_root=job.import_root)


def _make_loader(job: Job, micro_batch_size: int) -> Iterable[Any]:
    make_loader = _load(job)["loader"]
    check_call(make_loader, "micro_batch_size", setting="loader")
    loader = make_loader(micro_batch_size)
    require(
        isinstance(loader, Iterable),
        f"loader is {make_loader.path!r}, which returned {type(loader).__name__}, not an iterable of batches.",
        "Return a torch.utils.data.DataLoader, or any other iterable of batches.",
    )
    assert isinstance(loader, Iterable)  # as required
    return loader


def _time_batches(loader: Iterable[Any], micro_batch_size: int, samples_of: Callable[[Any], int]) -> LoaderSpeed:
    num_workers = getattr(loader, "num_workers", None)
    first_wave = max(1, num_workers or 0)
    began_s = time.perf_counter()
    arrived_s, samples = [], []
    for batch in _epochs(loader):
        arrived_s.append(time.perf_counter() - began_s)
        samples.append(int(samples_of(batch)))
        timed_s = arrived_s[-1] - arrived_s[min(first_wave, len(arrived_s)) - 1]
        if arrived_s[-1] > LONGEST_S or (timed_s > TIMED_S and len(arrived_s) >= first_wave + MIN_TIMED_BATCHES):
            break
    start_s = arrived_s[first_wave - 1] if len(arrived_s) > first_wave else 0.0
    counted = samples[first_wave:] or samples
    elapsed_s = arrived_s[-1] - start_s
    return LoaderSpeed(
        micro_batch_size=micro_batch_size,
        samples_per_s=sum(counted) / elapsed_s,
        num_batches=len(counted),
        elapsed_s=elapsed_s,
        first_batch_s=arrived_s[0],
        num_workers=num_workers,
        largest_batch=max(samples),
    )


def _epochs(loader: Iterable[Any]) -> Iterator[Any]:
    """Yield the batches of epoch after epoch; of an iterator, its only epoch."""
    while True:
        num_batches = 0
        for batch in loader:
            num_batches += 1
            yield batch
        require(
            num_batches > 0,
            "The loader gave no batch.",
            "With drop_last the data set must hold at least one whole micro-batch.",
        )
        if isinstance(loader, Iterator):
            return


def _num_samples(batch: Any) -> int:
    tensors = [leaf for leaf in tensor_leaves(batch) if leaf.dim() > 0]
    require(
        bool(tensors),
        f"The loader gave {type(batch).__name__} without a tensor.",
        "Give batches as the model takes them: a tensor, or a mapping, tuple or list of tensors.",
    )
    return int(tensors[0].shape[0])


_REPORT_EVERY = 100  # samples


def read_lengths(job: Job, num_samples: int, report: Callable[[int], None]) -> list[int]:
    """Return lengths of samples that the loader of `job.model["loader"]` gives; its errors are not caught.

    A data set that has `lengths`, one a sample, is not read: its loader's `dataset.lengths` is the answer. Otherwise
    the loader is asked for batches of one sample, and nothing of them is kept. The length of a sample is the sum of
    its `attention_mask`, where it has one, else dimension 1 of its first tensor with two dimensions or more.
    """
    with seed_torch(job.seed, torch.device("cpu")):
        loader = _make_loader(job, 1)
        known = getattr(getattr(loader, "dataset", None), "lengths", None)
        if known is not None:
            return [int(length) for length in known]
        lengths = []
        for batch in islice(loader, num_samples):
            lengths.append(_length(batch))
            if len(lengths) % _REPORT_EVERY == 0:
                report(len(lengths))
    require(bool(lengths), "The loader gave no batch of one sample.", "Give its data set at least one sample.")
    return lengths


def _length(batch: Any) -> int:
    mask = batch.get("attention_mask") if hasattr(batch, "get") else None
    if isinstance(mask, torch.Tensor):
        return max(1, int(mask.sum()))
    tensor = next((leaf for leaf in tensor_leaves(batch) if leaf.dim() >= 2), None)
    shapes = [tuple(leaf.shape) for leaf in tensor_leaves(batch)]
    require(
        tensor is not None and tensor.shape[0] == 1,
        f"A batch of one sample from the loader shows no length: its tensors have the shapes {shapes}.",
        "Let the loader take its batch size, dimension 1 of its first tensor being the length; or give the data set "
        "`lengths`, or explore.lengths a file.",
    )
    assert tensor is not None  # as required
    return int(tensor.shape[1])
