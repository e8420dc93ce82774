"""Leaves most of the identical blocks of a built model out, for good."""

from __future__ import annotations

from bexplore.trace.repeated_blocks import find_repeats, keep_blocks
from bexplore.workloads import Workload


class NoBlocksError(Exception):
    """The model has no run of as many identical blocks as the trace found."""


def truncate_layers(workload: Workload, kept_blocks: int, num_blocks: int) -> None:
    """Keep the first blocks of every run of `num_blocks` identical ones; the optimizers forget the others' weights.

    Raises:
        NoBlocksError: There is no such run.
    """
    modules = workload.compiled_modules
    found = [repeat for module in modules for repeat in find_repeats(module, min_copies=num_blocks)]
    repeats = [repeat for repeat in found if repeat.copies == num_blocks]
    if not repeats:
        raise NoBlocksError(f"the model has no {num_blocks} identical blocks in a row")
    left_out = {
        id(weight) for repeat in repeats for block in keep_blocks(repeat, kept_blocks) for weight in block.parameters()
    }
    for optimizer in workload.optimizers:
        for group in optimizer.param_groups:
            group["params"] = [weight for weight in group["params"] if id(weight) not in left_out]
