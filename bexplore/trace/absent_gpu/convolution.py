"""The layout of a convolution's result on a CUDA device, by PyTorch's own rule.

PyTorch's CPU build has no cuDNN: there convolutions of a CUDA device would go to kernels that give up channels-last, and
each result would be copied into another layout. Up to 16 % of the memory of a step was such copies.
Source: benchmarks/results/emulated_memory.md.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._prims_common import suggest_memory_format


def keep_layouts() -> None:
    """Let convolutions of this process keep the layout of their operands, as cuDNN's do.

    Source: `determine_backend_memory_format` in aten/src/ATen/native/Convolution.cpp, and
    `cudnn_conv_suggest_memory_format` in aten/src/ATen/native/ConvUtils.h, of torch 2.11 to 2.13.
    """
    of_this_build: Any = torch._C._conv_determine_backend_memory_format

    def determine(images: torch.Tensor, weight: torch.Tensor, backend: Any) -> torch.memory_format:
        if images.device.type != "cuda":
            memory_format: torch.memory_format = of_this_build(images, weight, backend)
            return memory_format
        formats = [suggest_memory_format(tensor) for tensor in (images, weight)]
        kept = [one for one in formats if one is not torch.contiguous_format]
        return kept[0] if kept and images.dtype is not torch.float64 else torch.contiguous_format

    torch._C._conv_determine_backend_memory_format = determine
