"""Run passes whose results depend on the samples alone, and leave no trace of them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
_DROPPING_CLASS = re.compile(r"drop|stochastic_?depth", re.IGNORECASE)
_POSITION_OF_DROPOUT = 4  # of `dropout_p` among the arguments of scaled_dot_product_attention


@contextlib.contextmanager
def deterministic(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Switch dropout off and the compiler too, and leave everything else in training mode.

    Batch normalization, and code that branches on `training`, must see training. The functions are replaced where
    every caller finds them, and not intercepted by a mode: modes do not reach the passes that activation
    checkpointing repeats during the backward pass.
    """
    with contextlib.ExitStack() as stack:
        for name in _DROPOUTS:
            stack.enter_context(_replaced(F, name, _identity))
        attention = F.scaled_dot_product_attention
        stack.enter_context(_replaced(F, "scaled_dot_product_attention", _without_dropout(attention)))
        for module in dict.fromkeys(child for root in modules for child in root.modules()):
            if isinstance(module, nn.RNNBase):
                stack.enter_context(_replaced(module, "dropout", 0.0))
            elif _DROPPING_CLASS.search(type(module).__name__) and not list(module.children()):
                stack.enter_context(_replaced(module, "training", False))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


@contextlib.contextmanager
def restored(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Give back gradients, buffers and the random state as they were, without copying a gradient."""
    parameters = {parameter: parameter.grad for module in modules for parameter in module.parameters()}
    buffers = {buffer: buffer.clone() for module in modules for buffer in module.buffers()}
    devices = {tensor.device for tensor in parameters if tensor.device.type == "cuda"}
    with torch.random.fork_rng(devices=list(devices)):
        try:
            yield
        finally:
            for parameter, gradient in parameters.items():
                parameter.grad = gradient
            with torch.no_grad():
                for buffer, value in buffers.items():
                    buffer.copy_(value)


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _identity(input: torch.Tensor, *_args: Any, **_kwargs: Any) -> torch.Tensor:
    return input


def _without_dropout(attention: Any) -> Any:
    def attend(*args: Any, **kwargs: Any) -> torch.Tensor:
        args = (*args[:_POSITION_OF_DROPOUT], 0.0, *args[_POSITION_OF_DROPOUT + 1 :]) if len(args) > 4 else args
        return attention(*args, **(kwargs | {"dropout_p": 0.0} if "dropout_p" in kwargs else kwargs))

    return attend
