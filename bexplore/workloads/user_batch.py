"""Batches of the user's own: placed on the device, and which dimension of each tensor is the sample."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils import _pytree as pytree

from bexplore.workloads.samples import seeded
from bexplore.workloads.settings import require
from bexplore.workloads.workload import Batch

_SMALL_SIZES = (2, 4)  # samples; even, since some models pair their samples


def batch_maker(
    function: Callable[[int], Batch], *, seed: int, device: torch.device, dtype: torch.dtype | None = None
) -> Callable[[int], Batch]:
    """Wrap a user's maker of batches: seeded, and on the device.

    Args:
        function: micro_batch_size -> batch, a pytree.
        seed: Of torch's random numbers during each call; the caller's random state is left as it was.
        device: Where every tensor goes.
        dtype: Of floating-point tensors; None leaves them as they are.
    """

    def place(leaf: object) -> object:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.to(device=device, dtype=dtype if leaf.is_floating_point() else None)

    def make_batch(micro_batch_size: int) -> Batch:
        with seeded(seed, device):
            batch = function(micro_batch_size)
        require(
            any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(batch)),
            f"The batch of {micro_batch_size} samples holds no tensor; it is {type(batch).__name__}.",
            "Return a tensor, or a mapping, tuple or list of tensors.",
        )
        return pytree.tree_map(place, batch)

    return make_batch


def batch_dimensions(make_batch: Callable[[int], Batch]) -> list[int | None] | None:
    """Find the sample's dimension of each tensor leaf, by comparing batches of two sizes.

    Returns:
        Per tensor leaf the first dimension that differs, None for a tensor that is the same at both sizes; None in all
        if the number of leaves depends on the size (a list of samples).
    """
    small, large = (tensor_leaves(make_batch(size)) for size in _SMALL_SIZES)
    if len(small) != len(large) or any(a.dim() != b.dim() for a, b in zip(small, large, strict=True)):
        return None
    return [
        next((dimension for dimension in range(a.dim()) if a.size(dimension) != b.size(dimension)), None)
        for a, b in zip(small, large, strict=True)
    ]


def tensor_leaves(batch: Batch) -> list[torch.Tensor]:
    """The tensors of a batch, in the order of `Workload.batch_dimensions`."""
    return [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
