"""What oneDNN takes for a convolution on the CPU beside its result: operands and results in its own layouts.

Source: the allocator's events around single calls, torch 2.13 with oneDNN, under AVX2 and AVX-512; a table of the tests
has them. Of what a kernel takes for each thread, the sums of long kernels alone are counted. Of one thread torch
computes points of fewer than 16 samples without oneDNN (`use_mkldnn` in aten/src/ATen/native/Convolution.cpp), and
takes less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bexplore.trace.cost_model import NOTHING, Polynomial

FORWARD = torch.ops.aten.convolution.default
BACKWARD = torch.ops.aten.convolution_backward.default
CONVOLUTIONS = (FORWARD, BACKWARD)
_FLOAT32_BYTES = 4
_REGISTER_FLOATS = {"AVX2": 8, "AVX512": 16}  # by torch's name of the processor's instructions
_WIDTH_WITH_HALF = 16  # of a register, from which on half precisions have convolutions of this kind
_LEAST_BLOCK = 8  # channels
_FEW = 3  # channels of images that the gradient of weights reads as they are
_LONGEST = 14  # kernel of which the gradient of weights needs no blocks
# The gradient of the weights of a longer kernel is a product of matrices, and without AVX-512 that of a dilated one and
# that of padded volumes: each thread has the columns of a sample, or of a slice of its volume, and so many sums.
# One thread alone has them where each would compute so many points or more. Source: calls of torch 2.13 with kernels of
# 15 and 16, dilations of 2 to 8, volumes and groups, of 1 and 2 threads, 8 to 128 channels, 64 to 1,089 points and 1 to
# 16 samples.
_SUMS_OF_A_THREAD = 4
_POINTS_OF_A_THREAD = 256
_NARROW_WIDTH = 3  # of a convolution of single channels that needs no blocks

Shape = Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """How the tensors of a convolution lie."""

    is_channels_last: bool = False  # whether it is computed with the channels last: images or weights have them so
    copies_images: bool = False  # whether its images lie otherwise, and are copied
    copies_gradient: bool = False  # whether the gradient of its result does
    copies_weight: bool = False  # whether its weights do


def find_layouts(operator: Any, arguments: Any) -> Layouts:
    """Return how the tensors of a convolution lie, as torch looks at them.

    Source: `mkldnn_convolution_backward` in aten/src/ATen/native/mkldnn/Conv.cpp and `mkldnn_conv_use_channels_last` in
    aten/src/ATen/native/ConvUtils.h, torch 2.13.
    """
    if operator not in CONVOLUTIONS:
        return Layouts()
    images, weight = arguments[:2] if operator is FORWARD else arguments[1:3]
    is_last = any(one.stride(1) == 1 and not one.is_contiguous() for one in (images, weight))
    return Layouts(
        is_channels_last=is_last,
        copies_images=not _lies_so(images, is_last),
        copies_gradient=operator is BACKWARD and not _lies_so(arguments[0], is_last),
        copies_weight=not _lies_so(weight, is_last),
    )


def _lies_so(tensor: torch.Tensor, is_channels_last: bool) -> bool:
    if not is_channels_last:
        return tensor.is_contiguous()
    return tensor.stride(1) == 1 or tensor.shape[1] == 1 or math.prod(tensor.shape[2:]) == 1


def size_convolution(
    operator: Any, shapes: Any, result: Any, probe_batch: int, *, itemsize: int, layouts: Layouts
) -> tuple[Polynomial, ...]:
    """Return the bytes that one call takes beside its results, at the moments that may be its highest.

    Tensors among arguments and result are given as their shapes, at a prime micro-batch size.
    """
    if operator is FORWARD:
        images, weight, bias, stride, _, dilation, is_transposed, _, groups = shapes
        ends = (result, images) if is_transposed else (images, result)
        own = _Layer(*ends, weight, stride, dilation, groups, itemsize, probe_batch)
        if layouts.is_channels_last:
            copied = [(layouts.copies_images, images), (layouts.copies_weight, weight)]
            copy = sum((own.count(shape) for is_copied, shape in copied if is_copied), start=NOTHING)
            return (copy + Polynomial(own.size_weights_of_last_channels()),)
        return own.find_sources(is_added_to=bias is not None) if is_transposed else own.find_results()
    gradient, images, weight, _, stride, _, dilation, is_transposed, _, groups, output_mask = shapes
    own = _Layer(images, gradient, weight, stride, dilation, groups, itemsize, probe_batch)
    copied = [(layouts.copies_images, images), (layouts.copies_gradient, gradient), (layouts.copies_weight, weight)]
    copy = sum((own.count(shape) for is_copied, shape in copied if is_copied), start=NOTHING)
    if layouts.is_channels_last:
        plain = own.count(weight)
        sums = own.find_sums() if output_mask[1] and own.has_long_kernel else NOTHING
        return copy + plain.times(2), copy + plain + Polynomial(own.size_blocked_weights()), copy + sums
    if is_transposed:
        own = _Layer(gradient, images, weight, stride, dilation, groups, itemsize, probe_batch)
    sizes: tuple[Polynomial, ...] = ()
    outputs = sum((own.count(shape) for shape in result if shape is not None), start=NOTHING)
    if output_mask[0]:
        data = own.find_results() if is_transposed else own.find_sources()
        sizes += tuple(copy + own.count(images) + size - outputs for size in data)
    if output_mask[1]:
        before = copy + (own.count(images) if output_mask[0] else NOTHING)
        sizes += tuple(before + size - outputs for size in own.find_weights())
    return sizes


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer, of which a transposed one has source and result exchanged."""

    source: Shape
    result: Shape
    weight: Shape
    stride: Shape
    dilation: Shape
    groups: int
    itemsize: int
    probe_batch: int

    def count(self, shape: Shape) -> Polynomial:
        return Polynomial.from_value(self.itemsize * math.prod(shape), self.probe_batch)

    @property
    def _width(self) -> int:
        return _REGISTER_FLOATS.get(torch.backends.cpu.get_cpu_capability(), 1)

    @property
    def _is_single(self) -> bool:
        """Whether each channel has a kernel of its own."""
        return self.weight[1] == 1 and self.weight[0] == self.groups > 1

    @property
    def _is_product(self) -> bool:
        """Whether it is computed as a product of matrices, whose operands lie as they are."""
        own = (self.source[1] // self.groups, self.result[1] // self.groups)
        return self.groups > 1 and not self._is_single and any(channels % _LEAST_BLOCK for channels in own)

    @property
    def _is_first(self) -> bool:
        """Whether the images have few channels, and are read as they are: not where the kernel is a point."""
        few = self.source[1] < self._width if self._width > _LEAST_BLOCK else self.source[1] in (1, 3)
        return few and self.groups == 1 and max(self.weight[2:]) > 1

    def _pad(self, shape: Shape, width: int = 0) -> Polynomial:
        """Return the bytes of images in blocks of as many channels as a register holds."""
        is_blocked = self.groups == 1 or self._is_single
        channels = self._round_up(shape[1], width or self._width) if is_blocked else shape[1]
        return self.count((shape[0], channels, *shape[2:]))

    def _round_up(self, channels: int, width: int) -> int:
        """Return channels in whole blocks; samples, which stand for them in a second derivative, as they are."""
        return round_up(channels, width) if channels % self.probe_batch else channels

    def _pad_weights(self, source: int, result: int) -> Polynomial:
        if self.groups != 1:
            return self.count(self.weight)
        channels = (self._round_up(self.result[1], result), self._round_up(self.source[1], source))
        return self.count((*channels, *self.weight[2:]))

    def find_results(self) -> tuple[Polynomial, ...]:
        """Return what a forward pass takes: operands and the result in blocks, then that and the plain one."""
        blocks = self._pad(self.result)
        operands = self._pad_weights(1 if self._is_first else self._width, self._width)
        operands += NOTHING if self._is_first else self._pad(self.source)
        return (NOTHING if self._is_product else operands) + blocks - self.count(self.result), blocks

    def find_sources(self, *, is_added_to: bool = False) -> tuple[Polynomial, ...]:
        """Return what the gradient of the source takes, or a transposed layer, to whose result a bias may be added.

        What a stride spreads out passes through a copy more.
        """
        plain = self.count(self.source)
        operands = self._pad(self.result) + self._pad_weights(self._width, self._width)
        if max(self.stride) > 1 and self.groups == 1:
            return operands, plain.times(2)
        blocks = self._pad(self.source)
        copies = blocks.times(2 if is_added_to else 1)
        return (NOTHING if self._is_product else operands) + copies - plain, blocks

    def find_weights(self) -> tuple[Polynomial, ...]:
        """Return what the gradient of the weights takes, that itself included."""
        plain = self.count(self.weight)
        longest = max(self.weight[2:])
        is_long = longest > (_NARROW_WIDTH if self._is_single else _LONGEST)
        is_point = longest == 1
        is_unusual = self._width <= _LEAST_BLOCK and (self._has_padded_slices or max(self.dilation) > 1)
        if self._is_product or is_long or is_unusual:
            return (plain + self.find_sums(),)
        source = result = self._width
        if not is_point and self.source[1] <= _LEAST_BLOCK:
            source = 1 if self.source[1] <= _FEW else _LEAST_BLOCK
            result = _LEAST_BLOCK if self.result[1] <= _LEAST_BLOCK and source > 1 else result
        blocks = self._pad_weights(source, result)
        operands = self._pad(self.result, result) + (NOTHING if source == 1 else self._pad(self.source, source))
        return operands + blocks, blocks + plain

    @property
    def _has_padded_slices(self) -> bool:
        """Whether it is of volumes that have slices of zeros before them."""
        length, taps, step = self.source[2], self.dilation[0] * (self.weight[2] - 1), self.stride[0]
        return len(self.weight) > 4 and self.result[2] > (length - taps - 1) // step + 1

    @property
    def has_long_kernel(self) -> bool:
        """Whether the gradient of the weights is a product of matrices."""
        return self.groups == 1 and max(self.weight[2:]) > _LONGEST

    def find_sums(self) -> Polynomial:
        """Return what the threads take for the gradient of the weights as a product of matrices.

        It is an upper bound of long kernels over large images: where the columns are more than about twelve times
        images, weights and result together for each thread, oneDNN computes them in parts.
        """
        points = math.prod(self.result[-2:] if len(self.result) > 4 else self.result[2:])  # of a volume, of a slice
        columns = Polynomial(self.itemsize * self.source[1] // self.groups * math.prod(self.weight[2:]) * points)
        threads = torch.get_num_threads()
        are_many = points // threads >= _POINTS_OF_A_THREAD
        return (self.count(self.weight).times(_SUMS_OF_A_THREAD) + columns).times(1 if are_many else threads)

    def size_weights_of_last_channels(self) -> int:
        """Return what the weights take in a forward pass over images whose channels come last.

        They are in blocks where each channel has several kernels of its own.
        """
        plain = self.itemsize * math.prod(self.weight)
        has_several = self.weight[1] == 1 < self.groups < self.weight[0]
        return max(plain, self.size_blocked_weights()) if has_several and self._width > _LEAST_BLOCK else plain

    def size_blocked_weights(self) -> int:
        """Return what the gradient of the weights of a grouped convolution takes, of images whose channels come last.

        The weights of each group are padded to blocks of as many channels as a vector register holds: of one channel a
        group, 256 times the weights. A half precision also has sums in float32, and transposes one sample and its
        gradient. Convolutions of single channels that are narrow need no blocks.
        """
        num_out, num_in, *kernel = self.weight
        width, groups = self._width, self.groups
        is_half = self.itemsize < _FLOAT32_BYTES
        if groups == 1 or width == 1 or (is_half and width < _WIDTH_WITH_HALF):
            return 0
        if self._is_single and max(kernel) <= _NARROW_WIDTH and max(self.dilation) == 1:
            return 0
        in_channels = groups * round_up(num_in, width)
        padded = in_channels * round_up(num_out // groups, width) * math.prod(kernel)
        if not is_half:
            return padded * self.itemsize
        transposed = 2 * in_channels * math.prod(length + 1 for length in self.source[2:])
        return padded * (self.itemsize + _FLOAT32_BYTES) + transposed * self.itemsize


def round_up(size: int, multiple: int) -> int:
    """Return the smallest multiple that is no smaller than a size."""
    return -(-size // multiple) * multiple
