"""Convolutions that are opaque to the compiler, so that one program serves every number of samples.

Inductor chooses a convolution's kernel and strides by the number of samples, and guards on it: a program with a
convolution is compiled for one sample, for a few and for many, and not at all where the number is unknown. An operator
of our own has none of these guards. It runs the very kernels that eager mode would; what the compiler would have fused
with them stays apart, which the exact run of the answer does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_DIMENSIONS = {"conv1d": 1, "conv2d": 2, "conv3d": 3}


def has_convolutions(modules: Sequence[nn.Module]) -> bool:
    """Return whether one of these modules is a convolution."""
    return any(isinstance(module, nn.modules.conv._ConvNd) for module in modules)


def can_be_opaque(modules: Sequence[nn.Module]) -> bool:
    """Return whether all convolutions among these modules may be replaced.

    Transposed ones are not, nor those whose tensors have their channels last: the operator's are contiguous.
    """
    convolutions = [module for module in modules if isinstance(module, nn.modules.conv._ConvNd)]
    return all(_is_plain(module) for module in convolutions)


def _is_plain(module: nn.modules.conv._ConvNd) -> bool:
    return not module.transposed and not nn.parameter.is_lazy(module.weight) and module.weight.is_contiguous()


def make_convolutions_opaque() -> None:
    """Replace `torch.nn.functional.conv1d` to `conv3d`, which modules call too, for this whole process."""
    for name in _DIMENSIONS:
        original = getattr(F, name)
        if not isinstance(original, FunctionType):  # torch's own is built in
            setattr(F, name, _opaque(original, _DIMENSIONS[name]))


def _opaque(original: Any, num_dimensions: int) -> Any:
    def convolve(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int | Sequence[int] = 1,
        padding: str | int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
    ) -> Tensor:
        if isinstance(padding, str) or input.dim() != num_dimensions + 2:
            return original(input, weight, bias, stride, padding, dilation, groups)
        device_type = input.device.type
        if torch.is_autocast_enabled(device_type):
            dtype = torch.get_autocast_dtype(device_type)
            input, weight = input.to(dtype), weight.to(dtype)
            bias = bias if bias is None else bias.to(dtype)
        sizes = [_each(value, num_dimensions) for value in (stride, padding, dilation)]
        return convolution(input, weight, bias, *sizes, groups)

    return convolve


def _each(value: int | Sequence[int], count: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * count if len(values) == 1 else values


@torch.library.custom_op("bexplore::convolution", mutates_args=())
def convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """Convolve; the arguments are those of `torch.convolution`.

    Args:
        input: (samples, channels, *sizes)
        weight: (channels out, channels / groups, *kernel sizes)
        bias: (channels out) or None

    Returns:
        (samples, channels out, *sizes out), contiguous.
    """
    none = [0] * len(stride)
    return torch.convolution(input, weight, bias, stride, padding, dilation, False, none, groups).contiguous()


@convolution.register_fake
def _(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    sizes = [
        (input.shape[index + 2] + 2 * padding[index] - dilation[index] * (weight.shape[index + 2] - 1) - 1)
        // stride[index]
        + 1
        for index in range(len(stride))
    ]
    return input.new_empty([input.shape[0], weight.shape[0], *sizes])


@torch.library.custom_op("bexplore::convolution_backward", mutates_args=())
def convolution_backward(
    gradient: Tensor,
    input: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute gradients of input, weight and bias; of those that are not wanted, an empty tensor."""
    none = [0] * len(stride)
    found = torch.ops.aten.convolution_backward(
        gradient.contiguous(), input, weight, [weight.shape[0]], stride, padding, dilation, False, none, groups, wanted
    )
    gradients = [one.contiguous() if one is not None else gradient.new_empty(0) for one in found]
    return gradients[0], gradients[1], gradients[2]


@convolution_backward.register_fake
def _(
    gradient: Tensor,
    input: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    shapes = (input.shape, weight.shape, weight.shape[:1])
    first, second, third = (
        gradient.new_empty(shape if is_wanted else (0,)) for shape, is_wanted in zip(shapes, wanted, strict=True)
    )
    return first, second, third


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    input, weight, bias, ctx.stride, ctx.padding, ctx.dilation, ctx.groups = inputs
    ctx.has_bias = bias is not None
    ctx.save_for_backward(input, weight)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    input, weight = ctx.saved_tensors
    wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.has_bias and ctx.needs_input_grad[2]]
    found = convolution_backward(gradient, input, weight, ctx.stride, ctx.padding, ctx.dilation, ctx.groups, wanted)
    gradients = [one if is_wanted else None for one, is_wanted in zip(found, wanted, strict=True)]
    return (*gradients, None, None, None, None)


convolution.register_autograd(_differentiate, setup_context=_remember)
