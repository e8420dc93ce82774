"""Memory that an operator takes for itself while it runs, and that no plan shows."""

from __future__ import annotations

import math
from typing import Any

import torch

from bexplore.trace.polynomial import Polynomial

_FORWARD = torch.ops.aten.convolution.default
_BACKWARD = torch.ops.aten.convolution_backward.default
_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_backward.default
_ATTENTION_BACKWARD = (
    _FLASH_BACKWARD,
    torch.ops.aten._scaled_dot_product_efficient_attention_backward.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default,
)
_FLOAT32_BYTES = 4
_ROWS_OF_A_TILE, _COLUMNS_OF_A_TILE = 128, 32  # elements to which attention rounds a length, and a head


def workspace_sizes(
    operator: Any, shapes: Any, result: Any, probe_batch: int, *, itemsize: int, is_channels_last: bool, device: str
) -> tuple[Polynomial, ...]:
    """Give the bytes that one call takes beside its outputs, one after the other; empty where none are known.

    Args:
        operator: Overload of an operator.
        shapes: Its arguments, tensors given as their shapes, at the micro-batch size `probe_batch`.
        result: Its result, in the same form.
        probe_batch: As in `Polynomial.of_value`.
        itemsize: Bytes of an element.
        is_channels_last: Memory format of the images.
        device: Type of the device.
    """
    if device == "cpu" and operator in (_FORWARD, _BACKWARD):
        return _of_convolution(operator, shapes, result, probe_batch, itemsize, is_channels_last)
    if device == "cuda" and operator in _ATTENTION_BACKWARD:
        return _of_attention(operator, shapes, probe_batch, itemsize)
    return ()


def _of_attention(operator: Any, shapes: Any, probe_batch: int, itemsize: int) -> tuple[Polynomial, ...]:
    """Give what the backward pass of fused attention takes on a CUDA device.

    The gradient of the query is summed up in float32, beside one number a row; where several heads share a key, those
    of key and value are made for every head first. Source: `flash_attn/flash_api.cpp` (`dq_accum`, `softmax_d`,
    `dk_expanded`) and `mem_eff_attention/kernel_backward.h` (`workspace_elements_gq`) of torch 2.13. cuDNN's own is
    not published; it is taken to be alike.
    """
    _, query, key, *_ = shapes
    batch, heads, length, head_size = query
    rows = batch * heads * _rounded_up(length, _ROWS_OF_A_TILE)
    sums = _FLOAT32_BYTES * rows * (_rounded_up(head_size, _COLUMNS_OF_A_TILE) + 1)
    is_half = itemsize < _FLOAT32_BYTES  # in float32 the sums are the gradient itself
    expanded = 0
    if operator is _FLASH_BACKWARD and key[1] != heads:
        expanded = 2 * itemsize * batch * heads * key[2] * head_size
    return (Polynomial.of_value((sums if is_half else 0) + expanded, probe_batch),)


def _rounded_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _of_convolution(
    operator: Any, shapes: Any, result: Any, probe_batch: int, itemsize: int, is_channels_last: bool
) -> tuple[Polynomial, ...]:
    """Give what a convolution takes on the CPU.

    Source: the allocator's events around single calls, torch 2.13 with oneDNN. Weights are reordered into blocks, and
    images too unless their channels come last: the operands first, then the result out of its blocks. A result that a
    stride spreads out (the gradient of a strided convolution's input) passes through one copy more.
    """

    def size_of(*each: Any) -> Polynomial:
        return Polynomial.of_value(sum(itemsize * math.prod(shape) for shape in each), probe_batch)

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
