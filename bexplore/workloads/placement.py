"""Make and move modules, with real tensors and with the fake ones of a trace."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from bexplore.workloads.torch_private import current_fake_mode


def is_fake() -> bool:
    """Return whether tensors made now are fake: shapes without values or memory."""
    return current_fake_mode() is not None


@contextlib.contextmanager
def creation_device(device: torch.device) -> Iterator[None]:
    """Make the user's modules on the devices in their code, or, with fake tensors, on the job's device at once.

    Real modules are moved afterwards, as in a training script: code written for the CPU (NumPy, `item`) may run while
    they are made. So are those of a fake mode that takes real tensors of the CPU for such code.
    """
    fake_mode = current_fake_mode()
    if fake_mode is None:
        yield
        return
    with contextlib.nullcontext() if fake_mode.allow_non_fake_inputs else device, _converting_in_place():
        yield


@contextlib.contextmanager
def _converting_in_place() -> Iterator[None]:
    """Let the user's own `module.to(...)` and its like work on fake tensors, which torch cannot swap."""
    original = nn.Module._apply
    converted: dict[tuple[int, int], tuple[Any, ...]] = {}  # by identity, so that tied weights stay tied

    def convert(tensor: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        key = id(tensor), id(function)
        if key not in converted:
            result = function(tensor.detach())
            same = (result.dtype, result.device, result.stride()) == (tensor.dtype, tensor.device, tensor.stride())
            if not same and isinstance(tensor, nn.Parameter):
                result = nn.Parameter(result, tensor.requires_grad)
            converted[key] = (tensor if same else result, tensor, function)  # kept, so that no identity is reused
        return converted[key][0]

    def apply(self: nn.Module, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
        for child in self.children() if recurse else ():
            child._apply(function)
        tables: tuple[dict[str, Any], ...] = (self._parameters, self._buffers)
        for own in tables:
            own.update({name: convert(tensor, function) for name, tensor in own.items() if tensor is not None})
        return self

    nn.Module._apply = apply  # type: ignore[method-assign]  # replaced for a while, which has no type
    try:
        yield
    finally:
        nn.Module._apply = original  # type: ignore[method-assign]  # and put back


def place(module: nn.Module, device: torch.device, dtype: torch.dtype | None = None) -> nn.Module:
    """Move a module in place, also with fake tensors, which `module.to` cannot swap."""
    if not is_fake():
        return module.to(device=device, dtype=dtype)
    placed: dict[int, torch.Tensor] = {}  # by identity, so that tied weights stay tied
    for owner in module.modules():
        for name, tensor in (*owner._parameters.items(), *owner._buffers.items()):
            if tensor is not None:
                setattr(owner, name, placed.setdefault(id(tensor), _move(tensor, device, dtype)))
    return module


def _move(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype | None) -> torch.Tensor:
    moved = tensor.detach().to(device=device, dtype=dtype if tensor.is_floating_point() else None)
    if moved.dtype == tensor.dtype and moved.device == tensor.device:
        return tensor
    return nn.Parameter(moved, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else moved


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return a rank's own part of a tensor that ranks share; any other tensor as it is."""
    part: torch.Tensor = getattr(tensor, "_local_tensor", tensor)  # `to_local` makes a view, 0.2 ms of fake tensors
    return part


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole of a tensor that ranks share; any other tensor as it is."""
    full_tensor = getattr(tensor, "full_tensor", None)
    return tensor if full_tensor is None else full_tensor()
