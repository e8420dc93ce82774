"""Batches of the user's own: seeded, placed on the device, and checked for their number of samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from bexplore.workloads.batch_layout import UNKNOWN, BatchLayout, batch_layout
from bexplore.workloads.samples import seeded
from bexplore.workloads.settings import require
from bexplore.workloads.torch_private import tree_leaves, tree_map
from bexplore.workloads.workload import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class UserBatches:
    """A user's maker of batches.

    Attributes:
        function: micro_batch_size -> batch, a pytree.
        seed: Of torch's random numbers during each call; the caller's random state is left as it was.
        device: Where every tensor goes, and every other leaf that has a method `to`.
        dtype: Of floating-point tensors; None leaves them as they are.
        layout: Where the samples are.
    """

    function: Callable[[int], Batch]
    seed: int
    device: torch.device
    dtype: torch.dtype | None = None
    layout: BatchLayout = UNKNOWN

    @classmethod
    def of(
        cls, function: Callable[[int], Batch], samples_of: Callable[[Batch], int] | None, **fields: Any
    ) -> UserBatches:
        """Find the layout of a user's batches.

        Args:
            function: As above.
            samples_of: The user's own count of the samples of a batch; None for none.
            fields: As above.

        Raises:
            UserInputError: The batches do not grow as their size does.
        """
        batches = cls(function=function, **fields)
        return dataclasses.replace(batches, layout=batch_layout(batches.make_unchecked, samples_of=samples_of))

    def make(self, micro_batch_size: int) -> Batch:
        """Make a batch of so many samples, the same at each call.

        Raises:
            UnusableSizeError: It has another number of samples.
        """
        batch = self.make_unchecked(micro_batch_size)
        self.layout.check(batch, micro_batch_size)
        return batch

    def make_other(self, micro_batch_size: int, number: int) -> Batch:
        """Make a batch with other random numbers, of which there are as many as numbers from 1 on."""
        return self.make_unchecked(micro_batch_size, seed=self.seed + number)

    def make_unchecked(self, micro_batch_size: int, *, seed: int | None = None) -> Batch:
        """Make a batch, whatever its size."""
        with seeded(self.seed if seed is None else seed, self.device):
            batch = self.function(micro_batch_size)
        require(
            any(isinstance(leaf, torch.Tensor) or hasattr(leaf, "to") for leaf in tree_leaves(batch)),
            f"The batch of {micro_batch_size} samples holds no tensor; it is {type(batch).__name__}.",
            "Return a tensor, or a mapping, tuple or list of tensors.",
        )
        return tree_map(self._place, batch)

    def _place(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf.to(self.device) if hasattr(leaf, "to") else leaf
        return leaf.to(device=self.device, dtype=self.dtype if leaf.is_floating_point() else None)
