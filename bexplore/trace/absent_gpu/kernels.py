"""What PyTorch's CUDA build does otherwise than the CPU build on tensors of a CUDA device: it has more kernels.

Without them an operator falls apart into others, whose results take memory.
"""

from __future__ import annotations

from typing import Any

import torch

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
