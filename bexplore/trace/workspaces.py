"""Memory that a convolution takes for itself on the CPU, and that no plan shows."""

from __future__ import annotations

import math
from typing import Any

import torch

from bexplore.trace.polynomial import Polynomial

_FORWARD = torch.ops.aten.convolution.default
_BACKWARD = torch.ops.aten.convolution_backward.default


def workspace_sizes(
    operator: Any, shapes: Any, prime: int, *, itemsize: int, is_channels_last: bool, device: str
) -> tuple[Polynomial, ...]:
    """Bytes that one call of an operator takes beside its outputs, one after the other; empty where none are known.

    Source: the allocator's events around single calls, torch 2.13 with oneDNN: weights are reordered into blocks, in
    the backward pass for both gradients; images are reordered too unless their channels come last.

    Args:
        operator: Overload of an operator.
        shapes: Its arguments, tensors given as their shapes, at the micro-batch size `prime`.
        prime: As in `Polynomial.of_value`.
        itemsize: Bytes of an element.
        is_channels_last: Memory format of the images.
        device: Type of the device.
    """
    if device != "cpu" or operator not in (_FORWARD, _BACKWARD):
        return ()
    *images, weight = (itemsize * math.prod(shape) for shape in shapes[: 2 if operator is _FORWARD else 3])
    weight_size, images_size = Polynomial.of_value(weight, prime), Polynomial.of_value(sum(images), prime)
    if operator is _FORWARD:
        return (weight_size if is_channels_last else weight_size + images_size,)
    if is_channels_last:
        return (weight_size.times(2),)
    return weight_size, images_size
