"""Batches: synthetic samples, and those of the user's own code with the place of the samples in them.

A synthetic sample i depends on the seed and on i, never on the number of samples. Each has its own generator on the
CPU, so that the same job sees the same samples on every device, and so that making a batch leaves no temporary in the
device's allocator before its peak is read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch

from bexplore.errors import UnusableSizeError, UserInputError, require
from bexplore.workloads.modules import is_fake
from bexplore.workloads.torch_private import tree_leaves, tree_map
from bexplore.workloads.workload import Batch

_SEED_STRIDE = 1_000_003  # a prime: the streams of adjacent seeds do not meet within a million samples
_SMALL_SIZES = (2, 4)  # samples; even, since some models pair their samples
_LARGER_SIZES = (16, 32)
_PLAIN = (int, float, complex, str, bytes, type(None))  # leaves that hold no samples


@contextlib.contextmanager
def seed_torch(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's random numbers inside the block, and leave the caller's random state as it was."""
    forked = [device] if device.type == "cuda" and torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=forked):
        torch.manual_seed(seed)
        yield


def random_tokens(num_samples: int, length: int, vocab_size: int, *, seed: int) -> torch.Tensor:
    """Draw (num_samples, length) token ids on the CPU, int64, uniform in [0, vocab_size)."""
    return torch.stack(
        [torch.randint(vocab_size, (length,), generator=_generator(seed, index)) for index in range(num_samples)]
    )


def random_values(num_samples: int, shape: tuple[int, ...], *, seed: int) -> torch.Tensor:
    """Draw (num_samples, *shape) float32 on the CPU, uniform in [-sqrt(3), sqrt(3)): of variance 1, as an image."""
    rows = [torch.rand(shape, generator=_generator(seed, index)) for index in range(num_samples)]
    return torch.stack(rows).sub_(0.5).mul_(2 * math.sqrt(3))


def _generator(seed: int, index: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed * _SEED_STRIDE + index)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLayout:
    """Place of the samples in a user's batches, as two batches of different sizes show it."""

    # Dimension of the sample for each tensor leaf, None for a tensor that is the same at both sizes; None in all if the
    # number of leaves depends on the size (a list of samples).
    dimensions: list[int | None] | None
    # Length of that dimension per sample for each tensor leaf; None where it does not grow as the size does.
    rows: tuple[Fraction | None, ...] = ()
    tensors: Fraction | None = None  # tensor leaves per sample in a list of samples; None for any other structure
    samples_of: Callable[[Batch], int] | None = None  # the user's own count of the samples of a batch; None for none

    @property
    def is_seen(self) -> bool:
        """Whether the number of samples of a batch can be seen."""
        return self.samples_of is not None or self.tensors is not None or any(self.rows)

    def check(self, batch: Batch, micro_batch_size: int) -> None:
        """Raise UnusableSizeError where a batch visibly has another number of samples."""
        if self.samples_of is not None and not is_fake():
            counted = self.samples_of(batch)
            _check_size(counted == micro_batch_size, micro_batch_size, f"samples_of counts {counted!r} in it")
        leaves = tensor_leaves(batch)
        if self.tensors is not None:
            is_right = len(leaves) == self.tensors * micro_batch_size
            _check_size(is_right, micro_batch_size, f"it is a list of {len(leaves)} tensors")
        if self.dimensions is not None:
            _check_size(len(leaves) == len(self.rows), micro_batch_size, f"it has {len(leaves)} tensors")
            for leaf, dimension, rows in zip(leaves, self.dimensions, self.rows, strict=True):
                if dimension is not None and rows is not None:
                    is_right = leaf.dim() > dimension and leaf.size(dimension) == rows * micro_batch_size
                    _check_size(is_right, micro_batch_size, f"it has a tensor of shape {tuple(leaf.shape)}")


UNKNOWN = BatchLayout(dimensions=None)


def _check_size(is_right: bool, micro_batch_size: int, found: str) -> None:
    if not is_right:
        raise UnusableSizeError(f"a batch of {micro_batch_size} samples is needed, and {found}")


def find_batch_layout(
    make_batch: Callable[[int], Batch], *, samples_of: Callable[[Batch], int] | None = None
) -> BatchLayout:
    """Find where the samples are, by comparing batches of two sizes."""
    layout = _compare_sizes(make_batch, _SMALL_SIZES, samples_of) or _compare_larger_sizes(make_batch, samples_of)
    if layout is not None:
        return layout
    small, large = _SMALL_SIZES
    raise UserInputError(
        f"Batches of {small} and of {large} samples are alike: {_shapes(make_batch(small))}. None of their dimensions "
        "grows with the micro-batch size.",
        hint="Return micro_batch_size samples. Where they cannot be seen in the shapes, name a "
        "function (batch) -> number of samples in explore.workload.samples_of.",
    )


def _compare_larger_sizes(
    make_batch: Callable[[int], Batch], samples_of: Callable[[Batch], int] | None
) -> BatchLayout | None:
    """Compare sizes at which a batch that is padded to a multiple of 8 or 16 grows, too."""
    try:
        return _compare_sizes(make_batch, _LARGER_SIZES, samples_of)
    except Exception:  # of user code, at a size that may never be tried; the caller reports the small sizes
        return None


def _compare_sizes(
    make_batch: Callable[[int], Batch], sizes: tuple[int, int], samples_of: Callable[[Batch], int] | None
) -> BatchLayout | None:
    """Return the layout that batches of two sizes show; None where they are alike."""
    batches = [make_batch(size) for size in sizes]
    if samples_of is not None and not is_fake():
        _check_count(samples_of, batches, sizes)
    small, large = (tensor_leaves(batch) for batch in batches)
    num_leaves = {len(tree_leaves(batch)) for batch in batches}
    if len(small) != len(large) or any(a.dim() != b.dim() for a, b in zip(small, large, strict=True)):
        tensors = _per_sample(len(small), len(large), sizes)
        return BatchLayout(dimensions=None, tensors=tensors, samples_of=samples_of)
    found = [_sample_dimension(a, b, sizes) for a, b in zip(small, large, strict=True)]
    dimensions, rows = [dimension for dimension, _ in found], tuple(rows for _, rows in found)
    if not any(rows) and sizes == _SMALL_SIZES:
        _refuse_other_number(make_batch, small, large)
    is_hidden = samples_of is not None or len(num_leaves) > 1 or _holds_objects(batches[0])
    if all(dimension is None for dimension in dimensions) and not is_hidden:
        return None
    return BatchLayout(dimensions=dimensions, rows=rows, samples_of=samples_of)


def _check_count(samples_of: Callable[[Batch], int], batches: Sequence[Batch], sizes: tuple[int, int]) -> None:
    counted = [samples_of(batch) for batch in batches]
    require(
        counted == list(sizes),
        f"samples_of counts {counted[0]!r} and {counted[1]!r} samples in batches of {sizes[0]} and {sizes[1]}.",
        "Return micro_batch_size samples, and correct samples_of: (batch) -> number of samples.",
    )


def _sample_dimension(
    small: torch.Tensor, large: torch.Tensor, sizes: tuple[int, int]
) -> tuple[int | None, Fraction | None]:
    """Return the dimension that grows as the size does and its length per sample; else one that differs."""
    lengths = list(zip(small.shape, large.shape, strict=True))
    rows = [_per_sample(a, b, sizes) for a, b in lengths]
    proportional = [index for index, found in enumerate(rows) if found]
    if proportional:
        dimension = next((index for index in proportional if rows[index] == 1), proportional[0])
        return dimension, rows[dimension]
    return next((index for index, (a, b) in enumerate(lengths) if a != b), None), None


def _per_sample(small: int, large: int, sizes: tuple[int, int]) -> Fraction | None:
    """Return what each sample adds to two lengths; None where they do not grow as the sizes do."""
    return Fraction(small, sizes[0]) if small != large and small * sizes[1] == large * sizes[0] else None


def _refuse_other_number(
    make_batch: Callable[[int], Batch], small: Sequence[torch.Tensor], large: Sequence[torch.Tensor]
) -> None:
    """Raise if the rows of each growing tensor differ from the samples by a constant, at a third size too.

    If another tensor grows otherwise, as packed tokens do, such rows may be the offsets of samples, one more
    than these.
    """
    if all(a.shape == b.shape for a, b in zip(small, large, strict=True)):
        return
    sizes = (*_SMALL_SIZES, sum(_SMALL_SIZES))
    growing = [
        tensors
        for tensors in zip(small, large, tensor_leaves(make_batch(sizes[-1])), strict=False)
        if len({tensor.shape for tensor in tensors}) > 1
    ]
    excess = [_excess(tensors, sizes) for tensors in growing]
    require(
        None in excess,
        f"A batch of {sizes[0]} samples has a tensor of shape {tuple(growing[0][0].shape)}, one of {sizes[1]} samples "
        f"{tuple(growing[0][1].shape)}: {abs(excess[0] or 0)} too {'many' if (excess[0] or 0) > 0 else 'few'}.",
        "Return micro_batch_size samples.",
    )


def _excess(tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> int | None:
    """Return by how much a dimension exceeds each of the sizes; None where the excess varies."""
    for lengths in zip(*(tensor.shape for tensor in tensors), strict=False):
        found = {length - size for length, size in zip(lengths, sizes, strict=True)}
        if len(found) == 1:
            return found.pop()
    return None


def _holds_objects(batch: Batch) -> bool:
    return any(not isinstance(leaf, (torch.Tensor, *_PLAIN)) for leaf in tree_leaves(batch))


def _shapes(batch: Batch) -> str:
    return ", ".join(str(tuple(leaf.shape)) for leaf in tensor_leaves(batch))


def tensor_leaves(batch: Batch) -> list[torch.Tensor]:
    """Return the tensors of a batch, in the order of `Workload.batch_dimensions`."""
    return [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserBatches:
    """A user's maker of batches."""

    function: Callable[[int], Batch]  # micro_batch_size -> batch, a pytree
    seed: int  # seed of torch's random numbers in each call; the caller's random state is left as it was
    device: torch.device  # device of every tensor, and of every other leaf that has a method `to`
    dtype: torch.dtype | None = None  # type of floating-point tensors; None leaves it
    layout: BatchLayout = UNKNOWN  # place of the samples

    @classmethod
    def of(
        cls, function: Callable[[int], Batch], samples_of: Callable[[Batch], int] | None, **fields: Any
    ) -> UserBatches:
        """Make one with the layout that two batches show; arguments as in `find_batch_layout`."""
        batches = cls(function=function, **fields)
        return dataclasses.replace(batches, layout=find_batch_layout(batches.make_unchecked, samples_of=samples_of))

    def make(self, micro_batch_size: int) -> Batch:
        """Make a batch of a number of samples, the same at each call; UnusableSizeError if it has another number."""
        batch = self.make_unchecked(micro_batch_size)
        self.layout.check(batch, micro_batch_size)
        return batch

    def make_other(self, micro_batch_size: int, number: int) -> Batch:
        """Make another batch, with the random numbers of a number from 1 on."""
        return self.make_unchecked(micro_batch_size, seed=self.seed + number)

    def make_unchecked(self, micro_batch_size: int, *, seed: int | None = None) -> Batch:
        """Make a batch without checking its number of samples."""
        with seed_torch(self.seed if seed is None else seed, self.device):
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
