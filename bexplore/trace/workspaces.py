"""Memory that a convolution takes for itself on the CPU, and that no plan shows."""

from __future__ import annotations

import math
from typing import Any

import torch

from bexplore.trace.polynomial import Polynomial

_FORWARD = torch.ops.aten.convolution.default
_BACKWARD = torch.ops.aten.convolution_backward.default


def workspace_sizes(
    operator: Any, shapes: Any, result: Any, prime: int, *, itemsize: int, is_channels_last: bool, device: str
) -> tuple[Polynomial, ...]:
    """Bytes that one call of an operator takes beside its outputs, one after the other; empty where none are known.

    Source: the allocator's events around single calls, torch 2.13 with oneDNN. Weights are reordered into blocks, and
    images too unless their channels come last: the operands first, then the result out of its blocks. A result that a
    stride spreads out (the gradient of a strided convolution's input) passes through one copy more.

    Args:
        operator: Overload of an operator.
        shapes: Its arguments, tensors given as their shapes, at the micro-batch size `prime`.
        result: Its result, in the same form.
        prime: As in `Polynomial.of_value`.
        itemsize: Bytes of an element.
        is_channels_last: Memory format of the images.
        device: Type of the device.
    """
    if device != "cpu" or operator not in (_FORWARD, _BACKWARD):
        return ()

    def size_of(*each: Any) -> Polynomial:
        return Polynomial.of_value(sum(itemsize * math.prod(shape) for shape in each), prime)

    if operator is _FORWARD:
        images, weight, _, stride, _, _, is_transposed, *_ = shapes
        if is_channels_last:
            return (size_of(weight),)
        copies = 2 if is_transposed and max(stride) > 1 else 1
        return size_of(weight) + size_of(images), size_of(result).times(copies)
    gradient, images, weight, _, stride, _, _, is_transposed, *_, output_mask = shapes
    if is_channels_last:
        return (size_of(weight).times(2),)
    # the gradient of the weights, an output, is not there yet while that of the images leaves its blocks
    spread_out = size_of(images).times(2) - size_of(weight)
    is_spread_out = output_mask[0] and not is_transposed and max(stride) > 1
    return *((spread_out,) if is_spread_out else ()), size_of(weight), size_of(gradient, images)
