"""What PyTorch's CUDA build does otherwise than the CPU build on tensors of a CUDA device: it has more kernels.

Without them an operator falls apart into others, whose results take memory; and a convolution without cuDNN gives up
the layout of its operands.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._prims_common import suggest_memory_format

# Operators that have a kernel in the CUDA build, and fall apart where they have none. Source: native_functions.yaml of
# torch 2.13, operators with both a CUDA and a CompositeImplicitAutograd kernel.
_WITH_CUDA_KERNEL = ("silu_backward", "mish_backward", "_fused_rms_norm")


def keep_operators() -> torch.library.Library:
    """Let operators stay whole that have a kernel in the CUDA build.

    Returns:
        The registration, which lasts as long as this object.
    """
    registration = torch.library.Library("aten", "IMPL")
    for name in _WITH_CUDA_KERNEL:
        registration.impl(name, _compute_nothing, "CUDA")
    return registration


def _compute_nothing(*_arguments: Any) -> torch.Tensor:
    raise NotImplementedError("an absent device computes nothing")


def keep_layouts() -> None:
    """Let convolutions of this process keep the layout of their operands, as cuDNN's do.

    Source: `determine_backend_memory_format` in aten/src/ATen/native/Convolution.cpp, and
    `cudnn_conv_suggest_memory_format` in aten/src/ATen/native/ConvUtils.h, of torch 2.11 to 2.13.
    """
    of_this_build = torch._C._conv_determine_backend_memory_format

    def determine(input: torch.Tensor, weight: torch.Tensor, backend: Any) -> torch.memory_format:
        if input.device.type != "cuda":
            return of_this_build(input, weight, backend)
        formats = [suggest_memory_format(tensor) for tensor in (input, weight)]
        kept = [one for one in formats if one is not torch.contiguous_format]
        return kept[0] if kept and input.dtype is not torch.float64 else torch.contiguous_format

    torch._C._conv_determine_backend_memory_format = determine
