"""A job that has been built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from bexplore.job import Job

Batch = Any  # a pytree of tensors whose dimension 0 is the sample, unless the workload says otherwise


@dataclass(slots=True, kw_only=True)
class Workload:
    """Live modules, a maker of batches, and the two halves of a training step.

    Attributes:
        job: What it was built from.
        loss_module: `loss_module(*batch)` gives the scalar loss, model and loss in one module, so that one compilation
            covers both; None where the user brings a whole step of their own.
        compiled_modules: What is compiled in place (`nn.Module.compile`) before the first pass.
        make_batch: micro_batch_size -> batch on the job's device; deterministic, sample i does not depend on the size.
        forward_backward: (batch, loss_scale) -> detached loss; adds to `.grad` in training, forward only in evaluation.
        update: Clips, steps the optimizers and clears the gradients; does nothing in evaluation.
        optimizers: What `update` steps; empty in evaluation.
        batch_dimensions: For each tensor leaf of a batch, the dimension of the sample; None for a tensor without one.
            None in all where the structure of a batch depends on its size (a list of samples).
        samples_are_seen: Whether `make_batch` checks that a batch has as many samples as it was asked for.
        make_other_batch: (micro_batch_size, number) -> a batch with other random numbers, of the user's own code, by a
            number from 1 on. None for none.
    """

    job: Job
    loss_module: nn.Module | None
    compiled_modules: list[nn.Module]
    make_batch: Callable[[int], Batch]
    forward_backward: Callable[..., torch.Tensor]
    update: Callable[[], None]
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    batch_dimensions: list[int | None] | None = None
    samples_are_seen: bool = True
    make_other_batch: Callable[[int, int], Batch] | None = None
