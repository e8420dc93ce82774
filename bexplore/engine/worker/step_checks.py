"""Checks of a user's step: whether it trains, and whether its gradients depend on how the samples are split.

A mean over samples has the same gradient however the samples are split. Batch statistics, losses that compare the
samples of a batch, means weighted by padding and balancing terms of experts have not.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

from bexplore.errors import UserInputError
from bexplore.host.accelerators import is_emulated
from bexplore.job import Mode, Precision
from bexplore.workloads import Batch, Workload
from bexplore.workloads.batches import tensor_leaves

_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
_DROPPING_CLASS = re.compile(r"drop|stochastic_?depth", re.IGNORECASE)
_POSITION_OF_DROPOUT = 4  # of `dropout_p` among the arguments of scaled_dot_product_attention
_SHOWN = 3  # modules named in the sentence; all of them are in the result
_BATCH_STATISTICS = "Batch statistics"
_BY_CLASS_NAME = (  # not base classes: these live in everybody's own code; "$", since whole models carry such names too
    (_BATCH_STATISTICS, re.compile(r"batch_?norm", re.IGNORECASE)),
    (
        "Balancing of experts",
        re.compile(r"(moe|moe_?(block|layer)|mixture_?of_?experts|experts|router)$", re.IGNORECASE),
    ),
    ("Losses within a batch", re.compile(r"contrastive|info_?nce|nt_?xent|clip_?loss|supcon", re.IGNORECASE)),
)
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
FEWEST_SAMPLES = 4  # of a size whose half shows more than whether there are gradients
_MOST_SAMPLES = 4  # of a batch: bounds the time; even, since some models pair their samples
_OTHER_BATCHES = 16  # until the step is refused: few samples may violate a margin. A judgement, no measurement


@contextlib.contextmanager
def deterministic(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Switch dropout off and the compiler too, and leave everything else in training mode.

    Batch normalization, and code that branches on `training`, must see training. The functions are replaced where
    every caller finds them, and not intercepted by a mode: modes do not reach the passes that activation
    checkpointing repeats during the backward pass.
    """
    with contextlib.ExitStack() as stack:
        for name in _DROPOUTS:
            stack.enter_context(_replaced(F, name, _identity))
        attention = F.scaled_dot_product_attention
        stack.enter_context(_replaced(F, "scaled_dot_product_attention", _without_dropout(attention)))
        for module in dict.fromkeys(child for root in modules for child in root.modules()):
            if isinstance(module, nn.RNNBase):
                stack.enter_context(_replaced(module, "dropout", 0.0))
            elif _DROPPING_CLASS.search(type(module).__name__) and not list(module.children()):
                stack.enter_context(_replaced(module, "training", False))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


@contextlib.contextmanager
def restored(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Give back gradients, buffers and the random state as they were, without copying a gradient."""
    parameters = {parameter: parameter.grad for module in modules for parameter in module.parameters()}
    buffers = {buffer: buffer.clone() for module in modules for buffer in module.buffers()}
    devices = {tensor.device for tensor in parameters if tensor.device.type == "cuda"}
    with torch.random.fork_rng(devices=list(devices)):
        try:
            yield
        finally:
            for parameter, gradient in parameters.items():
                parameter.grad = gradient
            with torch.no_grad():
                for buffer, value in buffers.items():
                    buffer.copy_(value)


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _identity(input: torch.Tensor, *_args: Any, **_kwargs: Any) -> torch.Tensor:
    return input


def _without_dropout(attention: Any) -> Any:
    def attend(*args: Any, **kwargs: Any) -> torch.Tensor:
        args = (*args[:_POSITION_OF_DROPOUT], 0.0, *args[_POSITION_OF_DROPOUT + 1 :]) if len(args) > 4 else args
        return attention(*args, **(kwargs | {"dropout_p": 0.0} if "dropout_p" in kwargs else kwargs))

    return attend


def find_batch_coupled_modules(roots: Sequence[nn.Module]) -> tuple[tuple[str, ...], str]:
    """Name the modules in training mode whose class is known to couple the samples of a batch.

    Return them as `name (class)`, the outermost of nested ones, and a sentence for people, which is truncated; it says
    what else to look for where there are none.
    """
    by_cause: dict[str, list[str]] = {}
    for root in roots:
        found: list[str] = []
        for name, module in root.named_modules():
            cause = _cause(module)
            if cause is not None and not any(name.startswith(f"{outer}.") for outer in found):
                found.append(name)
                by_cause.setdefault(cause, []).append(f"{name or 'the model'} ({type(module).__name__})")
    if not by_cause:
        return (), (
            "No module is known to cause it: look for a loss that compares the samples of a batch, a mean weighted by "
            "padding, or a sum where a mean is meant."
        )
    sentence = "; ".join(f"{cause}: {_truncate(names)}" for cause, names in by_cause.items())
    return tuple(name for names in by_cause.values() for name in names), f"{sentence}."


def _cause(module: nn.Module) -> str | None:
    if not module.training:
        return None
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return _BATCH_STATISTICS
    name = type(module).__name__
    return next((cause for cause, pattern in _BY_CLASS_NAME if pattern.search(name)), None)


def _truncate(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientEquivalence:
    """What the comparison found."""

    same: bool | None  # whether the gradients agree; None where they could not be compared
    # Of all parameters, relative to the root mean square of the gradient; None where not compared.
    worst_relative_difference: float | None = None
    # Modules that may explain a difference, as `name (class)`; empty where the gradients agree.
    modules: tuple[str, ...] = ()
    message: str = ""  # the result in a sentence or two


def compare_gradients(workload: Workload, *, base_micro_batch_size: int, micro_batch_size: int) -> GradientEquivalence:
    """Compare the gradients of the same samples at two splits, losses weighted by samples.

    Runs without the compiler and with dropout switched off; batch normalization stays as in training. Needs the memory
    of one pass at the larger size. Gradients, buffers and the random state are left as they were.
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


_Part = tuple[Batch, float]  # some of the samples, and their share of all


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
        return batch, indices.numel() / self._num_samples


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
        for batch, share in reference:
            self._add(batch, -share)
        own_norms = self._norms()
        for batch, share in parts:
            self._add(batch, share)
        differences = self._norms()
        counts = [parameter.numel() for parameter in self._parameters if parameter.grad is not None]
        if not counts or len(own_norms) != len(differences):
            return math.nan
        mean_square = math.fsum(norm * norm for norm in own_norms) / sum(counts)
        scales = [max(norm, math.sqrt(mean_square * count)) for norm, count in zip(own_norms, counts, strict=True)]
        ratios = [a / scale if scale else a for a, scale in zip(differences, scales, strict=True)]
        return max(ratios) if all(math.isfinite(ratio) for ratio in ratios) else math.nan

    def _add(self, batch: Batch, factor: float) -> None:
        """Add factor times the gradients of a batch; by scaling what is there, since a step may take no loss scale."""
        self._scale(1 / factor)
        self._workload.forward_backward(batch)
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
    modules, explanation = find_batch_coupled_modules(workload.compiled_modules)
    return GradientEquivalence(
        same=False,
        worst_relative_difference=found,
        modules=modules,
        message=(
            f"With this model the micro-batch size changes the training: {between}, differ by {found:.2g} "
            f"(rounding explains {tolerance:.1g}). {explanation}"
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


def check_step(workload: Workload, parameters: Sequence[torch.nn.Parameter], micro_batch_size: int) -> bool:
    """Check that a training step leaves gradients, and that they depend on the batch, without the compiler.

    A single sample shows only whether there are gradients: a loss that compares the samples of a batch is then the
    same whatever it is. At most half of the size that was run is taken, since without the compiler a pass needs more
    memory. Parameters may be updated; where none is known nothing is checked. Return whether all was checked.

    Raises:
        UserInputError: No parameter has a gradient, and none changes without one; or all gradients are zero; or
            different batches give the same loss and the same gradients, to the last bit.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if is_emulated():  # every gradient is zero there
        return True
    num_samples = next((size for size in (_MOST_SAMPLES, 2) if 2 * size <= micro_batch_size), 1)
    with restored(workload.compiled_modules), deterministic(workload.compiled_modules):
        batch = workload.make_batch(num_samples)
        first = _run(workload, trained, batch)
        if trained and all(norm is None for norm in first.norms):
            _require_changes(workload, trained, batch)
        elif trained and num_samples > 1:
            _require_dependence(workload, trained, batch, first, num_samples)
    return num_samples > 1


@dataclass(frozen=True, slots=True)
class _Pass:
    """The loss, and of each gradient its norm; None for none. Two are equal only to the last bit."""

    loss: float
    norms: tuple[float | None, ...]


def _run(workload: Workload, trained: Sequence[torch.nn.Parameter], batch: Batch) -> _Pass:
    for parameter in trained:
        parameter.grad = None
    loss = workload.forward_backward(batch)
    gradients = [parameter.grad for parameter in trained]
    return _Pass(float(loss), tuple(None if gradient is None else _norm(gradient) for gradient in gradients))


def _norm(gradient: torch.Tensor) -> float:
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return float(torch.linalg.vector_norm(values, dtype=torch.float32))


def _require_changes(workload: Workload, trained: Sequence[torch.nn.Parameter], batch: Batch) -> None:
    """Raise unless a step changes parameters without `.grad`: in hooks of its passes, or by gradients of its own."""
    before = [float(parameter.detach().sum(dtype=torch.float32)) for parameter in trained]
    workload.forward_backward(batch)
    workload.update()
    if before == [float(parameter.detach().sum(dtype=torch.float32)) for parameter in trained]:
        raise UserInputError(
            "After a pass no parameter has a gradient, and an update changes none: the step trains nothing.",
            hint="Call loss.backward() in forward_backward, and give the trained parameters requires_grad.",
        )


def _require_dependence(
    workload: Workload, trained: Sequence[torch.nn.Parameter], batch: Batch, first: _Pass, num_samples: int
) -> None:
    """Raise unless one of some batches has a gradient that is not zero and differs from the first one's."""
    is_zero = not any(first.norms)
    for number in range(1, 1 + _OTHER_BATCHES):
        assert workload.make_other_batch is not None
        other = workload.make_other_batch(num_samples, number)
        if _are_equal(batch, other):
            return
        found = _run(workload, trained, other)
        if any(found.norms) and found != first:
            return
        is_zero = is_zero and not any(found.norms)
    raise _zero_gradients(num_samples) if is_zero else _independent_of_batch(first.loss, num_samples)


def _are_equal(batch: Batch, other: Batch) -> bool:
    """Return whether the tensors of two batches are the same: data that is not random, from which nothing follows."""
    ours, theirs = tensor_leaves(batch), tensor_leaves(other)
    return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


def _zero_gradients(num_samples: int) -> UserInputError:
    return UserInputError(
        f"All gradients are zero, of {1 + _OTHER_BATCHES} batches of {num_samples} samples: the step trains nothing.",
        hint="See whether the loss is detached from the parameters, or multiplied by zero.",
    )


def _independent_of_batch(loss: float, num_samples: int) -> UserInputError:
    return UserInputError(
        f"{1 + _OTHER_BATCHES} different batches of {num_samples} samples give the same loss, {loss:.9g}, and the same "
        "gradients: the step does not depend on its batch.",
        hint="Compute the loss from the batch that the step is given.",
    )
