"""Memory that a convolution takes for itself on the CPU, and that no plan shows."""

from __future__ import annotations

import math
from typing import Any

import torch

_FORWARD = torch.ops.aten.convolution.default
_BACKWARD = torch.ops.aten.convolution_backward.default


def workspace_bytes(operator: Any, shapes: Any, *, itemsize: int, is_channels_last: bool, device: str) -> int:
    """Bytes that one call of an operator takes beside its outputs; 0 where none are known.

    Source: the allocator's events around single calls, torch 2.13 with oneDNN: weights are reordered into blocks, in
    the backward pass for both gradients; images are reordered too unless their channels come last.

    Args:
        operator: Overload of an operator.
        shapes: Its arguments, tensors given as their shapes.
        itemsize: Bytes of an element.
        is_channels_last: Memory format of the images.
        device: Type of the device.
    """
    if device != "cpu" or operator not in (_FORWARD, _BACKWARD):
        return 0
    if operator is _FORWARD:
        images, weight = (itemsize * math.prod(shape) for shape in shapes[:2])
        return weight if is_channels_last else weight + images
    outputs, images, weight = (itemsize * math.prod(shape) for shape in shapes[:3])
    return 2 * weight if is_channels_last else max(weight, images + outputs)
