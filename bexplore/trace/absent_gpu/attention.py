"""Which kernel scaled dot-product attention takes on a CUDA device, by PyTorch's own rules.

PyTorch chooses in C++, for the device that is there. Here the rules are those of its source, for dense tensors:
`aten/src/ATen/native/transformers/cuda/sdp_utils.cpp` and `attention.cpp`, torch 2.11 to 2.13.
"""

from __future__ import annotations

import math
import warnings
from enum import StrEnum
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import guard_or_false
from torch.nn.functional import pad

_HALF_TYPES = (torch.float16, torch.bfloat16)
_LARGEST_HEAD_OF_FLASH = 256
_LARGEST_HEAD_OF_CUDNN = 128
_LARGEST_CUDNN_DIMENSION = 65535
_MASK_ALIGNMENT = 16  # elements to which memory-efficient attention pads a mask
_HEAD_ALIGNMENT_OF_FLASH = 8

Tensor = torch.Tensor


class AttentionBackend(StrEnum):
    """The kernels that attention may take."""

    CUDNN = "cudnn"
    FLASH = "flash"
    EFFICIENT = "efficient"
    MATH = "math"


def choose_backend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    is_causal: bool,
    enable_gqa: bool,
    *,
    capability: tuple[int, int],
) -> AttentionBackend:
    """Choose the kernel of one call.

    Args:
        query: (batch, heads, length, head size).
        key: (batch, heads, length, head size).
        value: (batch, heads, length, head size).
        mask: Added to the scores, or booleans; None for none.
        dropout: Probability with which a score is dropped.
        is_causal: Whether later keys are masked.
        enable_gqa: Whether several heads of the query share one of the key.
        capability: Compute capability of the device, major and minor.
    """
    if not _is_regular(query, key, value, mask):
        return AttentionBackend.MATH
    same_heads = query.size(1) == key.size(1) == value.size(1)
    shares_heads = enable_gqa and query.size(1) % key.size(1) == 0 and key.size(1) == value.size(1)
    heads_fit = shares_heads if enable_gqa else same_heads
    is_half = query.dtype in (_HALF_TYPES if capability >= (8, 0) else _HALF_TYPES[:1])
    if capability >= (8, 0) and is_half and heads_fit:
        if _prefers_cudnn(capability) and _suits_cudnn(query, key, value, mask, dropout):
            return AttentionBackend.CUDNN
        if mask is None and _suits_flash(query, key, value, dropout, is_causal, capability):
            return AttentionBackend.FLASH
    if same_heads and _suits_efficient(query, key, value, capability):
        return AttentionBackend.EFFICIENT
    return AttentionBackend.MATH


def _is_regular(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Return whether every fused kernel could take the shapes and strides."""
    tensors = (query, key, value)
    if any(tensor.dim() != 4 or tensor.size(0) != query.size(0) for tensor in tensors):
        return False
    if any(tensor.size(2) == 0 for tensor in tensors):
        return False
    return all(tensor.stride(-1) == 1 for tensor in (*tensors, *(() if mask is None else (mask,))))


def _prefers_cudnn(capability: tuple[int, int]) -> bool:
    """Return whether cuDNN comes first, as with cuDNN above 9.15.0, which torch for CUDA 13 brings along."""
    return capability[0] in (9, 10)


def _suits_cudnn(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float) -> bool:
    head_sizes = (query.size(3), value.size(3))
    return (
        max(head_sizes) <= _LARGEST_HEAD_OF_CUDNN
        and all(size % 8 == 0 for size in head_sizes)
        # Of a size without bounds torch takes the answer to be no.
        and all(guard_or_false(query.size(place) <= _LARGEST_CUDNN_DIMENSION) for place in (0, 1))
        and (16 * dropout).is_integer()
        and key.size(2) != 1
        and (not dropout or query.size(2) != 1)
        and (mask is None or _mask_fits(mask, query, key))
        and not torch.are_deterministic_algorithms_enabled()
    )


def _mask_fits(mask: Tensor, query: Tensor, key: Tensor) -> bool:
    """Return whether a mask has two or four dimensions, each of 1 or of that of the scores."""
    scores = (query.size(0), query.size(1), query.size(2), key.size(2))[-mask.dim() :]
    fits = all(size in (1, wanted) for size, wanted in zip(mask.shape, scores, strict=True))
    return mask.dim() in (2, 4) and fits and not mask.requires_grad


def _suits_flash(
    query: Tensor, key: Tensor, value: Tensor, dropout: float, is_causal: bool, capability: tuple[int, int]
) -> bool:
    head_size = query.size(3)
    if not head_size == key.size(3) == value.size(3) <= _LARGEST_HEAD_OF_FLASH:
        return False
    if is_causal and query.size(2) != key.size(2):
        return False
    has_small_shared_memory = (8, 6) <= capability <= (8, 9) or capability[0] == 12
    if has_small_shared_memory and any(tensor.requires_grad for tensor in (query, key, value)):
        return head_size <= 192 or (not dropout and head_size > 224)
    return True


def _suits_efficient(query: Tensor, key: Tensor, value: Tensor, capability: tuple[int, int]) -> bool:
    is_half = query.dtype in _HALF_TYPES
    if query.dtype not in (torch.float32, *(_HALF_TYPES if capability >= (8, 0) else _HALF_TYPES[:1])):
        return False
    if capability >= (8, 0):
        alignment = 8 if is_half else 4
    else:
        alignment = 8 if is_half and capability >= (7, 0) else 1
    return query.size(3) == key.size(3) and query.size(3) % alignment == 0 and value.size(3) % alignment == 0


def route_attention(capability: tuple[int, int]) -> torch.library.Library:
    """Let attention on a CUDA device take the kernel that a device of this capability takes.

    Returns:
        The registration, which lasts as long as this object.
    """
    registration = torch.library.Library("aten", "IMPL")

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        arguments = (query, key, value, attn_mask, dropout_p, is_causal)
        if query.device.type == "cuda":
            backend = choose_backend(*arguments, enable_gqa, capability=capability)
        else:
            backend = AttentionBackend.MATH
        return _KERNELS[backend](*arguments, scale, enable_gqa)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that a kernel of its own is replaced, which is what is wanted
        registration.impl("scaled_dot_product_attention", attention, "CompositeImplicitAutograd", allow_override=True)
    return registration


def _cudnn(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, is_causal: bool, scale: Any, _: bool
) -> Tensor:
    bias = _as_bias(mask, query.dtype)
    saves = _needs_gradient(query, key, value)
    return torch.ops.aten._scaled_dot_product_cudnn_attention(
        query, key, value, bias, saves, dropout, is_causal, False, scale=scale
    )[0]


def _flash(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, is_causal: bool, scale: Any, _: bool
) -> Tensor:
    head_size = query.size(-1)
    short = -head_size % _HEAD_ALIGNMENT_OF_FLASH
    padded = [pad(tensor, (0, short)) if short else tensor for tensor in (query, key, value)]
    scale = scale if scale is not None else 1.0 / math.sqrt(head_size)
    result = torch.ops.aten._scaled_dot_product_flash_attention(*padded, dropout, is_causal, False, scale=scale)[0]
    return result[..., :head_size] if short else result


def _efficient(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, is_causal: bool, scale: Any, _: bool
) -> Tensor:
    bias = _as_bias(mask, query.dtype)
    if bias is not None:
        bias = _aligned(bias.expand(query.size(0), query.size(1), query.size(2), key.size(2)))
    saves = _needs_gradient(query, key, value)
    return torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, saves, dropout, is_causal, scale=scale
    )[0]


def _math(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    is_causal: bool,
    scale: Any,
    enable_gqa: bool,
) -> Tensor:
    return torch.ops.aten._scaled_dot_product_attention_math(
        query, key, value, _as_bias(mask, query.dtype), dropout, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]


_KERNELS = {
    AttentionBackend.CUDNN: _cudnn,
    AttentionBackend.FLASH: _flash,
    AttentionBackend.EFFICIENT: _efficient,
    AttentionBackend.MATH: _math,
}


def _as_bias(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return a mask of booleans as numbers that are added to the scores."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask.logical_not(), -math.inf)


def _aligned(bias: Tensor) -> Tensor:
    """Return the bias as memory-efficient attention wants it: rows at multiples of 16 elements."""
    length = bias.size(-1)
    if length % _MASK_ALIGNMENT:
        return pad(bias, (0, -length % _MASK_ALIGNMENT))[..., :length]
    return bias.contiguous() if any(stride % _MASK_ALIGNMENT for stride in bias.stride()[:-1]) else bias


def _needs_gradient(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
