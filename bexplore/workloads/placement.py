"""Where modules are made and moved, with real tensors and with the fake ones of a trace."""

from __future__ import annotations

import contextlib

import torch
from torch import nn


def is_fake() -> bool:
    """Whether tensors made now are fake: shapes without values or memory."""
    return torch._guards.detect_fake_mode() is not None


def creation_device(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Where the user's own modules are made: as their code says, or with fake tensors at once on the device.

    Real modules are moved afterwards, as their own training script would do: code written for the CPU (NumPy, `item`)
    may run while they are made.
    """
    return device if is_fake() else contextlib.nullcontext()


def place(module: nn.Module, device: torch.device, dtype: torch.dtype | None = None) -> nn.Module:
    """Do what `module.to` does, in place, also with fake tensors, which `module.to` cannot swap."""
    if not is_fake():
        return module.to(device=device, dtype=dtype)
    placed: dict[int, torch.Tensor] = {}  # by identity, so that tied weights stay tied
    for owner in module.modules():
        for name, tensor in (*owner._parameters.items(), *owner._buffers.items()):
            if tensor is not None:
                setattr(owner, name, placed.setdefault(id(tensor), _placed(tensor, device, dtype)))
    return module


def _placed(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype | None) -> torch.Tensor:
    moved = tensor.detach().to(device=device, dtype=dtype if tensor.is_floating_point() else None)
    if moved.dtype == tensor.dtype and moved.device == tensor.device:
        return tensor
    return nn.Parameter(moved, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else moved
