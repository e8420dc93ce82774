"""Batches of a workload, of one length or of typical ones, and what the compiler is shown of what grows in them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from bexplore.engine.protocol.messages import SharedMode
from bexplore.engine.worker.compilation import mark_batch_dimension
from bexplore.engine.worker.steps import BatchMix
from bexplore.engine.worker.torch_private import prefer_dynamic
from bexplore.job.lengths import Lengths
from bexplore.measurement.probe import Compilation
from bexplore.workloads import Batch, Workload
from bexplore.workloads.batches import tensor_leaves

_SAMPLES_COMPARED = 2
# Sizes at which the inputs of blocks are compared. Samples.
COMPARED_SIZES = (2, 3)
# Of each tensor that a block is called with, the dimension that grows with the samples; None for a tensor without.
Dimensions = list[int | None]


class Batches:
    """Makes the batches of a workload.

    Without a `largest_size` a shared program's kernels are chosen for the first size.
    """

    def __init__(
        self,
        workload: Workload,
        compilation: Compilation,
        shared_mode: SharedMode,
        *,
        largest_size: int | None = None,
    ) -> None:
        self._workload, self._compilation, self._shared_mode = workload, compilation, shared_mode
        self._size, self._largest_size = 1, largest_size
        self.device = torch.device(workload.job.device)
        self._hint: int | None = None  # samples for which an accelerator's kernels are chosen

    @property
    def serve_several_sizes(self) -> bool:
        """Whether one program does, so that the compiler is shown what grows with the samples."""
        return self._compilation is Compilation.SHARED and self._workload.job.compile.enabled

    @property
    def serve_several_lengths(self) -> bool:
        """Whether one compiled program does: always of a search, and in the training unless it compiles statically."""
        is_compiled = self._workload.job.compile.enabled and self._compilation is not Compilation.EAGER
        return is_compiled and not self.compile_each_length

    @property
    def compile_each_length(self) -> bool:
        """Whether each length is a program of its own: in a training that compiles statically."""
        settings = self._workload.job.compile
        return settings.enabled and self._compilation is Compilation.EXACT and settings.dynamic is False

    def longest(self, micro_batch_size: int) -> Batch:
        """Return a batch of the longest samples, or of the only length that there is."""
        return self._ready(self._workload.make_batch(micro_batch_size), micro_batch_size)

    def make_timed(self, micro_batch_size: int, lengths: Lengths | None = None) -> Batch | BatchMix:
        """Return what a pass of a size is timed with: the batches that stand for all of its lengths."""
        make, lengths = self._workload.make_batch_of_length, lengths or self._workload.job.lengths
        if make is None or lengths is None:
            return self.longest(micro_batch_size)
        typical = lengths.typical_batches(micro_batch_size)
        batches = (self.make_of_length(one.num_rows, one.length) for one in typical)
        # the size over the mean seconds of its passes is samples per second, whatever the rows of its batches
        scale = micro_batch_size / sum(one.share * one.num_rows for one in typical)
        return BatchMix(tuple(batches), tuple(one.share * scale for one in typical))

    def make_of_length(self, micro_batch_size: int, length: int) -> Batch:
        """Return a batch whose rows have a length; for workloads of several lengths."""
        assert self._workload.make_batch_of_length is not None
        return self._ready(self._workload.make_batch_of_length(micro_batch_size, length), micro_batch_size)

    def mark(self, tree: Any, dimensions: list[int | None] | None) -> None:
        """Declare the sample dimensions of the tensors of a pytree symbolic, as the shared program needs it."""
        growth = None if self._largest_size is None else max(1.0, self._largest_size / self._size)
        mark_batch_dimension(tree, dimensions, self._shared_mode, hint=self._hint, growth=growth)

    def _ready(self, batch: Batch, micro_batch_size: int) -> Batch:
        batch = tree_map(_with_standard_strides, batch)
        if self.serve_several_sizes:
            self._size = micro_batch_size
            self._hint = self._hint or (None if self.device.type == "cpu" else micro_batch_size)
            self.mark(batch, self._workload.batch_dimensions)
        if self.serve_several_lengths and self._length_dimensions:
            for tensor, dimensions in zip(tensor_leaves(batch), self._length_dimensions, strict=True):
                for dimension in dimensions:
                    prefer_dynamic(tensor, dimension)
        return batch

    @functools.cached_property
    def _length_dimensions(self) -> list[list[int]]:
        """Dimensions of each tensor of a batch that grow with its length; empty where that cannot be seen."""
        make, lengths = self._workload.make_batch_of_length, self._workload.job.lengths
        if make is None or lengths is None or not lengths.varies:
            return []
        ends = (lengths.batch_lengths(1).min(), lengths.longest)
        short, long = (tensor_leaves(make(_SAMPLES_COMPARED, int(length))) for length in ends)
        if [tensor.dim() for tensor in short] != [tensor.dim() for tensor in long]:
            return []
        return [
            [place for place, (one, other) in enumerate(zip(a.shape, b.shape, strict=True)) if one != other]
            for a, b in zip(short, long, strict=True)
        ]


def _with_standard_strides(leaf: Any) -> Any:
    """Give a contiguous tensor its standard strides: with one sample, a view may have any, and torch guards on them."""
    if isinstance(leaf, torch.Tensor) and leaf.is_contiguous():
        return leaf.clone(memory_format=torch.contiguous_format)
    return leaf


def sample_dimensions(workload: Workload) -> list[Dimensions]:
    """Return the dimensions of each compiled block's inputs, by passes forward over two numbers of samples."""
    assert workload.loss_module is not None  # blocks are those of a loss module
    shapes = [_input_shapes(workload, workload.loss_module, size) for size in COMPARED_SIZES]
    return [_find_growing(*pair) for pair in zip(*shapes, strict=True)]


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


def _find_growing(small: list[tuple[int, ...]], large: list[tuple[int, ...]]) -> Dimensions:
    """Return of each tensor the first dimension in which two shapes differ."""
    return [
        next((index for index, (one, other) in enumerate(zip(*pair, strict=True)) if one != other), None)
        for pair in zip(small, large, strict=True)
    ]
