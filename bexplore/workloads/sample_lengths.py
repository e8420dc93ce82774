"""Read the lengths of samples from the user's own loader: those of its data set, or of single samples one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import torch

from bexplore.errors import require
from bexplore.job import Job
from bexplore.workloads.import_path import check_call, load_callables
from bexplore.workloads.samples import seeded
from bexplore.workloads.user_batch import tensor_leaves

_REPORT_EVERY = 100  # samples


def read_lengths(job: Job, num_samples: int, report: Callable[[int], None]) -> list[int]:
    """Return lengths of samples that the loader of `job.model["loader"]` gives.

    A data set that has `lengths`, one a sample, is not read: its loader's `dataset.lengths` is the answer. Otherwise
    the loader is asked for batches of one sample, and nothing of them is kept. The length of a sample is the sum of
    its `attention_mask`, where it has one, else dimension 1 of its first tensor with two dimensions or more.

    Args:
        job: With an import path of its loader.
        num_samples: The most that are read.
        report: Called with the number of samples that were read.

    Raises:
        UserInputError: The loader gives no samples with a length.
        Exception: Any error of the user's loader.
    """
    paths = {name: path for name, path in job.model.items() if name != "arguments"}
    make_loader = load_callables(paths, job.model.get("arguments") or {}, import_root=job.import_root)["loader"]
    check_call(make_loader, "micro_batch_size", setting="loader")
    with seeded(job.seed, torch.device("cpu")):
        loader = make_loader(1)
        known = getattr(getattr(loader, "dataset", None), "lengths", None)
        if known is not None:
            return [int(length) for length in known]
        require(
            isinstance(loader, Iterable),
            f"loader is {make_loader.path!r}, which returned {type(loader).__name__}, not an iterable of batches.",
            "Return a torch.utils.data.DataLoader, or any other iterable of batches.",
        )
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
