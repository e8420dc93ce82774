"""Which kernel scaled dot-product attention takes on a CUDA device, by PyTorch's own rules.

PyTorch chooses in C++, for the device that is there. Here the rules are those of its source, for dense tensors:
`aten/src/ATen/native/transformers/cuda/sdp_utils.cpp` and `attention.cpp`, torch 2.11 to 2.13.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import guard_or_false
from torch.nn.functional import pad

_HALF_TYPES = (torch.float16, torch.bfloat16)
_LARGEST_HEAD_OF_FLASH = 256
_LARGEST_HEAD_OF_CUDNN = 128
_LARGEST_CUDNN_DIMENSION = 65535
_MASK_ALIGNMENT = 16  # elements to which memory-efficient attention pads a mask
_HEAD_ALIGNMENT_OF_FLASH = 8

Capability = tuple[int, int]


class AttentionBackend(StrEnum):
    """The kernels that attention may take."""

    CUDNN = "cudnn"
    FLASH = "flash"
    EFFICIENT = "efficient"
    MATH = "math"


@dataclass(frozen=True, slots=True)
class Attention:
    """One call of `torch.nn.functional.scaled_dot_product_attention`.

    Tensors are (batch, heads, length, head size); without a scale, scores are divided by sqrt(head size).
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None = None
    dropout: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value."""
        return self.query, self.key, self.value

    @property
    def saves_for_backward(self) -> bool:
        """Whether a backward pass will follow."""
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in self.tensors)

    def bias(self) -> Tensor | None:
        """Return the mask as numbers that are added to the scores."""
        if self.mask is None or self.mask.dtype is not torch.bool:
            return self.mask
        return torch.zeros_like(self.mask, dtype=self.query.dtype).masked_fill_(self.mask.logical_not(), -math.inf)


def choose_backend(call: Attention, capability: Capability) -> AttentionBackend:
    """Choose the kernel of one call on a device of a compute capability, major and minor."""
    if not _is_regular(call):
        return AttentionBackend.MATH
    heads, key_heads, value_heads = (tensor.size(1) for tensor in call.tensors)
    same_heads = heads == key_heads == value_heads
    heads_fit = heads % key_heads == 0 and key_heads == value_heads if call.enable_gqa else same_heads
    is_half = call.query.dtype in (_HALF_TYPES if capability >= (8, 0) else _HALF_TYPES[:1])
    if capability >= (8, 0) and is_half and heads_fit:
        if _prefers_cudnn(capability) and _suits_cudnn(call):
            return AttentionBackend.CUDNN
        if call.mask is None and _suits_flash(call, capability):
            return AttentionBackend.FLASH
    if same_heads and _suits_efficient(call, capability):
        return AttentionBackend.EFFICIENT
    return AttentionBackend.MATH


def _is_regular(call: Attention) -> bool:
    """Return whether every fused kernel could take the shapes and strides."""
    if any(tensor.dim() != 4 or tensor.size(0) != call.query.size(0) for tensor in call.tensors):
        return False
    if any(tensor.size(2) == 0 for tensor in call.tensors):
        return False
    return all(tensor.stride(-1) == 1 for tensor in (*call.tensors, *(() if call.mask is None else (call.mask,))))


def _prefers_cudnn(capability: Capability) -> bool:
    """Return whether cuDNN comes first, as with cuDNN above 9.15.0, which torch for CUDA 13 brings along."""
    return capability[0] in (9, 10)


def _suits_cudnn(call: Attention) -> bool:
    head_sizes = (call.query.size(3), call.value.size(3))
    return (
        max(head_sizes) <= _LARGEST_HEAD_OF_CUDNN
        and all(size % 8 == 0 for size in head_sizes)
        # torch takes an unknown answer for no where a size has no bounds
        and all(guard_or_false(call.query.size(place) <= _LARGEST_CUDNN_DIMENSION) for place in (0, 1))
        and (16 * call.dropout).is_integer()
        and call.key.size(2) != 1
        and (not call.dropout or call.query.size(2) != 1)
        and (call.mask is None or _mask_fits(call, call.mask))
        and not torch.are_deterministic_algorithms_enabled()
    )


def _mask_fits(call: Attention, mask: Tensor) -> bool:
    """Return whether a mask has two or four dimensions, each of 1 or of that of the scores."""
    scores = (*call.query.shape[:3], call.key.size(2))[-mask.dim() :]
    fits = all(size in (1, wanted) for size, wanted in zip(mask.shape, scores, strict=True))
    return mask.dim() in (2, 4) and fits and not mask.requires_grad


def _suits_flash(call: Attention, capability: Capability) -> bool:
    head_size = call.query.size(3)
    if not head_size == call.key.size(3) == call.value.size(3) <= _LARGEST_HEAD_OF_FLASH:
        return False
    if call.is_causal and call.query.size(2) != call.key.size(2):
        return False
    has_small_shared_memory = (8, 6) <= capability <= (8, 9) or capability[0] == 12
    if has_small_shared_memory and any(tensor.requires_grad for tensor in call.tensors):
        return head_size <= 192 or (not call.dropout and head_size > 224)
    return True


def _suits_efficient(call: Attention, capability: Capability) -> bool:
    is_half = call.query.dtype in _HALF_TYPES
    if call.query.dtype not in (torch.float32, *(_HALF_TYPES if capability >= (8, 0) else _HALF_TYPES[:1])):
        return False
    if capability >= (8, 0):
        alignment = 8 if is_half else 4
    else:
        alignment = 8 if is_half and capability >= (7, 0) else 1
    head_size = call.query.size(3)
    return head_size == call.key.size(3) and head_size % alignment == 0 and call.value.size(3) % alignment == 0


def route_attention(capability: Capability) -> torch.library.Library:
    """Let attention on a CUDA device take the kernel of that capability, as long as the registration lives."""
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
        call = Attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        is_on_gpu = query.device.type == "cuda"
        return _KERNELS[choose_backend(call, capability) if is_on_gpu else AttentionBackend.MATH](call)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that a kernel of its own is replaced, which is intended
        registration.impl("scaled_dot_product_attention", attention, "CompositeImplicitAutograd", allow_override=True)
    return registration


def _cudnn(call: Attention) -> Tensor:
    return torch.ops.aten._scaled_dot_product_cudnn_attention(
        *call.tensors, call.bias(), call.saves_for_backward, call.dropout, call.is_causal, False, scale=call.scale
    )[0]


def _flash(call: Attention) -> Tensor:
    head_size = call.query.size(-1)
    short = -head_size % _HEAD_ALIGNMENT_OF_FLASH
    padded = [pad(tensor, (0, short)) if short else tensor for tensor in call.tensors]
    scale = call.scale if call.scale is not None else 1.0 / math.sqrt(head_size)
    result = torch.ops.aten._scaled_dot_product_flash_attention(
        *padded, call.dropout, call.is_causal, False, scale=scale
    )[0]
    return result[..., :head_size] if short else result


def _efficient(call: Attention) -> Tensor:
    bias = call.bias()
    if bias is not None:
        bias = _align_bias(bias).expand(*call.query.shape[:3], call.key.size(2))
    return torch.ops.aten._scaled_dot_product_efficient_attention(
        *call.tensors, bias, call.saves_for_backward, call.dropout, call.is_causal, scale=call.scale
    )[0]


def _math(call: Attention) -> Tensor:
    return torch.ops.aten._scaled_dot_product_attention_math(
        *call.tensors, call.bias(), call.dropout, call.is_causal, scale=call.scale, enable_gqa=call.enable_gqa
    )[0]


_KERNELS = {
    AttentionBackend.CUDNN: _cudnn,
    AttentionBackend.FLASH: _flash,
    AttentionBackend.EFFICIENT: _efficient,
    AttentionBackend.MATH: _math,
}


def _align_bias(bias: Tensor) -> Tensor:
    """Return the bias as memory-efficient attention needs it: rows at multiples of 16 elements.

    It is padded as it is given, before it is repeated for each sample and head. Source: `preprocess_mask` and
    `pad_bias` in attention.cpp.
    """
    if bias.stride(-1) == 1 and all(stride % _MASK_ALIGNMENT == 0 for stride in bias.stride()[:-1]):
        return bias
    length = bias.size(-1)
    return pad(bias, (0, _MASK_ALIGNMENT - length % _MASK_ALIGNMENT))[..., :length]
