"""Does the micro-batch size change the training? Gradients of the same samples, in one pass and in many, compared.

A mean over samples has the same gradient however the samples are split. Batch statistics, losses that compare the
samples of a batch, means weighted by padding and balancing terms of experts have not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.utils import _pytree as pytree

from bexplore.engine.worker.batch_coupling import find_batch_coupled_modules
from bexplore.engine.worker.deterministic import deterministic, restored
from bexplore.job import Mode, Precision
from bexplore.workloads import Batch, Workload

_MOST_SMALL_PASSES = 8  # bounds the time; a size that matters shows long before
# Relative differences that rounding explains. Measured on the CPU with GPT, LLaMA, BERT, T5 and ViT models of up to
# four layers and splits 8 = 4 x 2, 32 = 32 x 1 and 7 = 2 + 2 + 3, the worst: float32 8e-7, autocast 1.0e-2, bfloat16
# 3e-2 where the same pass in reverse order did not differ as much. A batch-normalized ResNet differs by 2 and more.
_FLOAT32_TOLERANCE = 1e-4
_TF32_TOLERANCE = 5e-3  # accelerators may round factors to 10 bits, an eighth of the error of bfloat16's 7
_AUTOCAST_TOLERANCE = 0.03
_BFLOAT16_TOLERANCE = 0.1  # gradients are accumulated in 8 bits
_NOISE_FACTOR = 3.0  # times the difference that the same pass over the same samples in reverse order makes
_LARGEST_NOISE = 0.3  # relative; beyond it the passes are random, and a comparison would say nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientEquivalence:
    """What the comparison found.

    Attributes:
        same: Whether the gradients agree; None where they could not be compared.
        worst_relative_difference: Of all parameters, relative to the root mean square of the gradient; None as above.
        modules: Modules that may explain a difference, as `name (class)`; empty where the gradients agree.
        message: The result in a sentence or two.
    """

    same: bool | None
    worst_relative_difference: float | None = None
    modules: tuple[str, ...] = ()
    message: str = ""


def compare_gradients(workload: Workload, *, base_micro_batch_size: int, micro_batch_size: int) -> GradientEquivalence:
    """Compare the gradients of the same samples at two splits, losses weighted by samples.

    Runs without the compiler and with dropout switched off; batch normalization stays as in training. Needs the memory
    of one pass at the larger size. Gradients, buffers and the random state are left as they were.

    Args:
        base_micro_batch_size: Samples of a pass of the base split.
        micro_batch_size: Samples of a pass of the recommended split.
    """
    small, large = sorted((base_micro_batch_size, micro_batch_size))
    if workload.job.mode is Mode.EVAL:
        return _unknown("Evaluation has no gradients to compare.")
    if small == large:
        message = "The recommended size is the base size."
        return GradientEquivalence(same=True, worst_relative_difference=0.0, message=message)
    num_samples = min(large, _MOST_SMALL_PASSES * small)
    with restored(workload.compiled_modules), deterministic(workload.compiled_modules):
        samples = _Samples(workload.make_batch(num_samples), workload.batch_dimensions, num_samples)
        if not samples.can_be_split:
            return _unknown("The samples of this batch cannot be told apart, so no two splits were compared.")
        comparison, whole = _Comparison(workload), [samples.take(0, num_samples)]
        found = comparison.difference(samples.split(small), whole)
        # What the order of the samples does matters only where the splits differ by more than rounding.
        noise = 0.0 if found <= _tolerance(workload) else comparison.difference([samples.reverse()], whole)
    splits = f"1 pass of {num_samples} and {math.ceil(num_samples / small)} passes of {small}"
    return _judge(workload, noise=noise, found=found, num_samples=num_samples, splits=splits)


@dataclass(frozen=True, slots=True)
class _Part:
    """Some of the samples, and their share of all."""

    batch: Batch
    share: float


class _Samples:
    """A batch that can be taken apart along its sample dimensions."""

    def __init__(self, batch: Batch, dimensions: list[int | None] | None, num_samples: int) -> None:
        self._leaves, self._structure = pytree.tree_flatten(batch)
        self._num_samples = num_samples
        tensors = [index for index, leaf in enumerate(self._leaves) if isinstance(leaf, torch.Tensor)]
        known = dict(zip(tensors, dimensions or [], strict=False))
        self._dimensions = {index: dimension for index, dimension in known.items() if dimension is not None}
        self.can_be_split = bool(self._dimensions) and all(
            self._leaves[index].size(dimension) == num_samples for index, dimension in self._dimensions.items()
        )

    def take(self, start: int, stop: int) -> _Part:
        return self._part(torch.arange(start, stop))

    def reverse(self) -> _Part:
        return self._part(torch.arange(self._num_samples).flip(0))

    def split(self, size: int) -> list[_Part]:
        """Split evenly into as few parts as `size` allows, so that no part is a lone remainder."""
        parts = math.ceil(self._num_samples / size)
        edges = [self._num_samples * index // parts for index in range(parts + 1)]
        return [self.take(start, stop) for start, stop in itertools.pairwise(edges)]

    def _part(self, indices: torch.Tensor) -> _Part:
        leaves = list(self._leaves)
        for index, dimension in self._dimensions.items():
            leaves[index] = leaves[index].index_select(dimension, indices.to(leaves[index].device))
        batch = pytree.tree_unflatten(leaves, self._structure)
        return _Part(batch=batch, share=indices.numel() / self._num_samples)


class _Comparison:
    """Differences of gradients, formed in `.grad` itself: no second copy of the gradients is ever held."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        parameters = [parameter for module in workload.compiled_modules for parameter in module.parameters()]
        self._parameters = [parameter for parameter in dict.fromkeys(parameters) if parameter.requires_grad]

    def difference(self, parts: Sequence[_Part], reference: Sequence[_Part]) -> float:
        """Return the worst relative difference of the gradients of two splits; NaN where one is not finite or absent.

        A parameter's difference is relative to its own gradient or, where that is smaller, to the root mean square of
        the whole gradient: some gradients are zero but for rounding (the bias of the keys in an attention).
        """
        for parameter in self._parameters:
            parameter.grad = None
        for part in reference:
            self._add(part, -part.share)
        own_norms = self._norms()
        for part in parts:
            self._add(part, part.share)
        differences = self._norms()
        counts = [parameter.numel() for parameter in self._parameters if parameter.grad is not None]
        if not counts or len(own_norms) != len(differences):
            return math.nan
        mean_square = math.fsum(norm * norm for norm in own_norms) / sum(counts)
        scales = [max(norm, math.sqrt(mean_square * count)) for norm, count in zip(own_norms, counts, strict=True)]
        ratios = [a / scale if scale else a for a, scale in zip(differences, scales, strict=True)]
        return max(ratios) if all(math.isfinite(ratio) for ratio in ratios) else math.nan

    def _add(self, part: _Part, factor: float) -> None:
        """Add factor times the gradients of a part; by scaling what is there, since a step may take no loss scale."""
        self._scale(1 / factor)
        self._workload.forward_backward(part.batch)
        self._scale(factor)

    def _scale(self, factor: float) -> None:
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def _norms(self) -> list[float]:
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        return [float(torch.linalg.vector_norm(gradient, dtype=torch.float32)) for gradient in gradients]


def _judge(workload: Workload, *, noise: float, found: float, num_samples: int, splits: str) -> GradientEquivalence:
    if not math.isfinite(noise) or not math.isfinite(found):
        return _unknown("The gradients of the two splits are absent or not finite, so they were not compared.")
    if noise > _LARGEST_NOISE:
        return _unknown(
            f"Two passes over the same {num_samples} samples differ by {noise:.0%} already (random numbers, or the "
            "order of the samples), so no two splits were compared."
        )
    tolerance = max(_tolerance(workload), _NOISE_FACTOR * noise)
    between = f"gradients of the same {num_samples} samples, in {splits}"
    if found <= tolerance:
        message = f"The micro-batch size does not change the training: {between}, agree to {found:.1g}."
        return GradientEquivalence(same=True, worst_relative_difference=found, message=message)
    coupled = find_batch_coupled_modules(workload.compiled_modules)
    return GradientEquivalence(
        same=False,
        worst_relative_difference=found,
        modules=coupled.modules,
        message=(
            f"With this model the micro-batch size changes the training: {between}, differ by {found:.2g} "
            f"(rounding explains {tolerance:.1g}). {coupled.sentence}"
        ),
    )


def _tolerance(workload: Workload) -> float:
    """Return the relative difference that rounding alone explains, by the number formats in use."""
    if workload.job.precision in (Precision.AUTOCAST_BFLOAT16, Precision.AUTOCAST_FLOAT16):
        return _AUTOCAST_TOLERANCE
    dtypes = {parameter.dtype for module in workload.compiled_modules for parameter in module.parameters()}
    if dtypes & {torch.bfloat16, torch.float16}:
        return _BFLOAT16_TOLERANCE
    return _FLOAT32_TOLERANCE if torch.device(workload.job.device).type == "cpu" else _TF32_TOLERANCE


def _unknown(message: str) -> GradientEquivalence:
    return GradientEquivalence(same=None, message=message)
