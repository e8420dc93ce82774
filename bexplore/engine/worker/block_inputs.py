"""Inputs of blocks that are compiled one by one: what of them grows with the samples, and how the compiler learns it.

A block's inputs come from code that runs eagerly, so that the marks on a batch do not reach them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from bexplore.workloads import Workload
from bexplore.workloads.batches import tensor_leaves

# Sizes at which the inputs of blocks are compared. Samples.
COMPARED_SIZES = (2, 3)

# Of each tensor that a block is called with, the dimension that grows with the samples; None for a tensor without.
Dimensions = list[int | None]


def sample_dimensions(workload: Workload) -> list[Dimensions]:
    """Return the dimensions of each compiled block's inputs, by passes forward over two numbers of samples.

    Raises:
        Exception: Whatever the user's model raised.
    """
    assert workload.loss_module is not None  # blocks are those of a loss module
    shapes = [_input_shapes(workload, workload.loss_module, size) for size in COMPARED_SIZES]
    return [_grown(*pair) for pair in zip(*shapes, strict=True)]


def mark_inputs(
    blocks: Sequence[nn.Module], dimensions: Sequence[Dimensions], mark: Callable[[Any, Dimensions], None]
) -> None:
    """Call `mark` with a block's inputs and their dimensions before each of its passes, outside of its program."""
    for block, own in zip(blocks, dimensions, strict=True):
        block.register_forward_pre_hook(_marker(own, mark), with_kwargs=True)


def _marker(dimensions: Dimensions, mark: Callable[[Any, Dimensions], None]) -> Callable[..., None]:
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def before(_block: nn.Module, arguments: Any, keywords: Any) -> None:
        mark((arguments, keywords), dimensions)

    return before


def _input_shapes(workload: Workload, loss_module: nn.Module, micro_batch_size: int) -> list[list[tuple[int, ...]]]:
    found: dict[nn.Module, list[tuple[int, ...]]] = {}

    def note(block: nn.Module, arguments: Any, keywords: Any) -> None:
        found[block] = [tuple(leaf.shape) for leaf in tensor_leaves((arguments, keywords))]

    hooks = [block.register_forward_pre_hook(note, with_kwargs=True) for block in workload.compiled_modules]
    try:
        with torch.no_grad():
            loss_module(*workload.make_batch(micro_batch_size))
    finally:
        for hook in hooks:
            hook.remove()
    return [found.get(block, []) for block in workload.compiled_modules]


def _grown(small: list[tuple[int, ...]], large: list[tuple[int, ...]]) -> Dimensions:
    """Return of each tensor the first dimension in which two shapes differ."""
    return [
        next((index for index, (one, other) in enumerate(zip(*pair, strict=True)) if one != other), None)
        for pair in zip(small, large, strict=True)
    ]
