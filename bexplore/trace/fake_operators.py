"""Fake outputs of operators whose kernel for fake tensors lacks memory that they take, or refuses what runs."""

from __future__ import annotations

import functools
from typing import Any

import torch

from bexplore.trace.torch_private import runs_formula, suggest_memory_format
from bexplore.workloads.torch_private import unset_fake_temporarily

_ATEN = torch.ops.aten
_GROUPED_PRODUCT = _ATEN._grouped_mm.default
# Gradients of an index, a gather, a maximum or what else selects: autograd writes into new zeros, but makes a second
# tensor where these are fake. Source: `areAnyTensorSubclassLike` and `isTensorSubclassLike` in torch/csrc/autograd/
# FunctionsManual.cpp and aten/src/ATen/native/TensorAdvancedIndexing.cpp, torch 2.13.
_WRITERS = frozenset(
    (
        _ATEN.index_add.default,
        _ATEN.index_put.default,
        _ATEN.masked_scatter.default,
        _ATEN.put.default,
        _ATEN.scatter.src,
        _ATEN.scatter_add.default,
    )
)
_WRITERS_THAT_MAY_ADD = (_ATEN.index_put.default, _ATEN.put.default)  # that replace are no gradients of what selects
# Losses whose number lies in memory of the size of the input. Source: `TORCH_META_FUNC(mse_loss)` and that of
# `smooth_l1_loss` in aten/src/ATen/native/Loss.cpp, torch 2.13, on every device.
_SPACIOUS_LOSSES = (_ATEN.mse_loss.default, _ATEN.smooth_l1_loss.default)
_RUNNING_SUMS = (_ATEN.cumsum.default, _ATEN.cumprod.default)
_SUMS = (_ATEN.sum.default, _ATEN.sum.dim_IntList, _ATEN.nansum.default, _ATEN.mean.default, _ATEN.mean.dim)
_REDUCTIONS = frozenset((*_RUNNING_SUMS, *_SUMS, _ATEN.prod.default, _ATEN.prod.dim_int))
# On the CPU their images are contiguous, or have channels last. Source: `batch_norm_cpu` and `batch_norm_backward_cpu`
# in aten/src/ATen/native/Normalization.cpp, torch 2.13.
_BATCH_NORMS = (_ATEN.native_batch_norm.default, _ATEN.native_batch_norm_backward.default)
_LSTM = _ATEN.mkldnn_rnn_layer.default
_LSTM_STATE, _LSTM_REVERSED, _LSTM_TRAINS = 5, 7, 15  # positions of its arguments
_LSTM_MODE = 2  # of the kinds of recurrent layers, in torch's numbers
# Of an LSTM that is run to see what it keeps: from 16 samples on that is proportional to the samples, within 0.1 % to
# the steps, and rounded to pages of 4 KiB. Source: calls of torch 2.13 at 8 to 128 samples and 64 to 128 steps.
_LSTM_SAMPLES, _LSTM_STEPS = 16, 128


def has_fake_kernel(operator: Any, arguments: Any) -> bool:
    """Return whether torch's own kernel for fake tensors is as its kernel for real ones is."""
    if operator is _GROUPED_PRODUCT:
        return bool(arguments[0].dtype is torch.bfloat16)  # it refuses all others, which the CPU computes
    if operator in _WRITERS:
        adds = operator not in _WRITERS_THAT_MAY_ADD or arguments[3:4] == (True,)
        return not (adds and runs_formula())
    if operator in _SPACIOUS_LOSSES:
        return False
    if operator in _BATCH_NORMS:
        images = arguments[_BATCH_NORMS.index(operator)]
        return bool(images.device.type != "cpu" or images.is_contiguous())
    return operator is not _LSTM


def run_fake(operator: Any, arguments: Any, keywords: Any) -> Any:
    """Return the fake result of an operator without a kernel for fake tensors."""
    if operator is _GROUPED_PRODUCT:
        return _multiply_groups(*arguments, **keywords)
    if operator in _WRITERS:
        return arguments[0]
    if operator in _SPACIOUS_LOSSES:
        return _keep_space(operator(*arguments, **keywords), arguments)
    if operator in _BATCH_NORMS:
        made, *rest = operator(*arguments, **keywords)
        images = arguments[_BATCH_NORMS.index(operator)]
        return made.contiguous(memory_format=suggest_memory_format(images)), *rest
    *outputs, _ = operator(*arguments, **keywords)
    return *outputs, _keep_for_backward(outputs[0], arguments)


def make_meanwhile(operator: Any, arguments: Any, result: Any) -> torch.Tensor | None:
    """Return a tensor that an operator makes for itself, and that ends with it: losses of samples, a converted input.

    Source: `make_reduction` in aten/src/ATen/native/ReduceOpsUtils.h and `impl_func_cum_ops` in ReduceOps.cpp, torch
    2.13: a sum of truth values first makes 8 bytes of each.
    """
    if operator in _SPACIOUS_LOSSES:
        return None if result.dim() else result.new_empty(_find_loss_shape(arguments))
    if operator not in _REDUCTIONS or arguments[0].dtype is result.dtype:
        return None
    is_short = arguments[0].dtype in (torch.float16, torch.bfloat16) and result.dtype is torch.float32
    if is_short and result.device.type == "cuda" and operator not in _RUNNING_SUMS:
        return None
    return result.new_empty(arguments[0].shape)


def _find_loss_shape(arguments: Any) -> torch.Size:
    return torch.broadcast_shapes(arguments[0].shape, arguments[1].shape)


def _keep_space(loss: torch.Tensor, arguments: Any) -> torch.Tensor:
    return loss if loss.dim() else loss.new_empty(_find_loss_shape(arguments)).as_strided((), ())


def _multiply_groups(
    first: torch.Tensor,
    second: torch.Tensor,
    offsets: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return the product by groups: of rows, of columns, or, where both have two dimensions, of what is summed.

    Source: `create_grouped_gemm_output_tensor` in aten/src/ATen/native/GroupedMMUtils.h, torch 2.13: on a GPU rows
    are padded to 16 bytes.
    """
    del bias
    shape: tuple[int, ...] = (first.shape[-2], second.shape[-1])
    if first.dim() == second.dim():
        groups = first.shape[0] if offsets is None else offsets.shape[0]
        shape = (groups, *shape)
    dtype = out_dtype or first.dtype
    alignment = 16 // dtype.itemsize if first.device.type == "cuda" else 1
    width = -(-shape[-1] // alignment) * alignment
    return first.new_empty((*shape[:-1], width), dtype=dtype)[..., : shape[-1]]


def _keep_for_backward(output: torch.Tensor, arguments: Any) -> torch.Tensor:
    """Return what an LSTM on the CPU keeps for its backward pass, whose size oneDNN alone knows."""
    if not arguments[_LSTM_TRAINS]:
        return output.new_empty((0,), dtype=torch.uint8)
    images = arguments[0]
    samples = arguments[_LSTM_STATE].shape[0]
    steps = images.shape[0] * images.shape[1] // samples
    run_steps = min(steps, _LSTM_STEPS)
    kept = _measure_lstm(run_steps, tuple(arguments[1].shape), images.dtype, arguments[_LSTM_REVERSED])
    return output.new_empty((samples * round(kept / _LSTM_SAMPLES * steps / run_steps),), dtype=torch.uint8)


@functools.cache
def _measure_lstm(steps: int, weight_shape: tuple[int, int], dtype: torch.dtype, is_reversed: bool) -> int:
    """Return the bytes that a layer of one direction keeps, of `_LSTM_SAMPLES` samples."""
    gates, input_size = weight_shape
    hidden_size = gates // 4
    with unset_fake_temporarily(), torch.enable_grad():
        zeros = functools.partial(torch.zeros, dtype=dtype, device="cpu")
        samples, state = zeros(steps, _LSTM_SAMPLES, input_size), zeros(_LSTM_SAMPLES, hidden_size)
        weights = (zeros(gates, input_size), zeros(gates, hidden_size), zeros(gates), zeros(gates))
        rest: Any = (is_reversed, [], _LSTM_MODE, hidden_size, 1, True, False, False, True)
        result = _LSTM(samples, *weights, state, state, *rest)
    return int(result[-1].untyped_storage().nbytes())
