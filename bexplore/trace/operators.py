"""Workspaces of libraries: memory of single operators that no tensor shows."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch

from bexplore.errors import TraceError
from bexplore.trace.convolutions import CONVOLUTIONS, Layouts, round_up, size_convolution
from bexplore.trace.cost_model import Polynomial

_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_backward.default
_ATTENTION_BACKWARD = (
    _FLASH_BACKWARD,
    torch.ops.aten._scaled_dot_product_efficient_attention_backward.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default,
)
# Gradients of a group, cut for each rank: up to torch 2.14, and from 2.15 on. They exist where parameters are sharded.
_CHUNK_CAT = ("fsdp.chunk_cat.default", "fsdp.chunk_cat_mixed_dtype.default")
_WITH_WORKSPACE = frozenset(map(str, (*CONVOLUTIONS, *_ATTENTION_BACKWARD, *_CHUNK_CAT)))
_FLOAT32_BYTES = 4
_ROWS_OF_A_TILE, _COLUMNS_OF_A_TILE = 128, 32  # elements to which attention rounds a length, and a head

# Those of lengths in tensors; lengths in lists fail above, where torch fills a tensor with them that has no memory.
_CTC_LOSS = torch.ops.aten._ctc_loss.Tensor
_CTC_LOSS_BACKWARD = torch.ops.aten._ctc_loss_backward.Tensor
_KIB, _MIB = 2**10, 2**20
_SMALL_BYTES = 2 * 4096 * _KIB + 8 * 16 * _KIB  # the libraries' own `:4096:2:16:8`
_LARGE_BYTES = 32 * _MIB
_AMD_BYTES, _AMD_INSTINCT_BYTES = 32 * _MIB, 128 * _MIB  # the latter of gfx94x and gfx95x, MI300 and newer
_CUDA_VARIABLES = ("CUBLAS_WORKSPACE_CONFIG",)
_HIP_VARIABLES = ("CUBLAS_WORKSPACE_CONFIG", "HIPBLAS_WORKSPACE_CONFIG", "ROCBLAS_WORKSPACE_CONFIG")
# Major capabilities with the large workspace, by the first torch that has it so. Source: pytorch#91564 for Hopper,
# pytorch#175344 for Blackwell, which 2.11 lacks. The change in 2.13 (pytorch#183923) was not read; it could move two
# workspaces by 24 MiB each.
_LARGE_FROM = (((2, 12), (9, 10, 12)), ((0, 0), (9,)))
# The first torch that frees a workspace after its call, on NVIDIA's devices. Source: the emulated allocator under 2.13
# and 2.15, and `isCUDABlasWorkspaceCachingEnabled` in aten/src/ATen/cuda/CublasHandlePool.cpp. 2.14 was not run.
_FREED_FROM = (2, 15)


def takes_workspace(operator: Any) -> bool:
    """Return whether a call of an operator may take memory beside its outputs."""
    return str(operator) in _WITH_WORKSPACE


def workspace_sizes(
    operator: Any, shapes: Any, result: Any, probe_batch: int, *, itemsize: int, layouts: Layouts, device: str
) -> tuple[Polynomial, ...]:
    """Return the bytes that one call takes beside its outputs, one after the other; empty where unknown.

    Tensors among arguments and result are given as their shapes, at a prime micro-batch size.
    """
    if device == "cpu" and operator in CONVOLUTIONS:
        return size_convolution(operator, shapes, result, probe_batch, itemsize=itemsize, layouts=layouts)
    if device == "cuda" and operator in _ATTENTION_BACKWARD:
        return _size_attention(operator, shapes, probe_batch, itemsize)
    if device == "cpu" and str(operator) in _CHUNK_CAT:
        return _size_chunk_cat(shapes, itemsize)
    return ()


def _size_chunk_cat(shapes: Any, itemsize: int) -> tuple[Polynomial, ...]:
    """Return what cutting gradients for the ranks takes on the CPU: copies, padded, of those that do not divide.

    On CUDA one kernel pads and copies at once. Source: `_pad_chunk` in aten/src/ATen/native/TensorShape.cpp.
    """
    gradients, dimension, num_chunks, *_ = shapes
    padded = 0
    for shape in gradients:
        rows = round_up(shape[dimension], num_chunks)
        if rows != shape[dimension]:
            padded += rows * math.prod((*shape[:dimension], *shape[dimension + 1 :]))
    return (Polynomial(itemsize * padded),)


def _size_attention(operator: Any, shapes: Any, probe_batch: int, itemsize: int) -> tuple[Polynomial, ...]:
    """Return what the backward pass of fused attention takes on a CUDA device.

    The gradient of the query is summed up in float32, beside one number a row; where several heads share a key, those
    of key and value are made for every head first. Source: `flash_attn/flash_api.cpp` (`dq_accum`, `softmax_d`,
    `dk_expanded`) and `mem_eff_attention/kernel_backward.h` (`workspace_elements_gq`) of torch 2.13. cuDNN's own is
    not published; it is taken to be alike.
    """
    _, query, key, *_ = shapes
    batch, heads, length, head_size = query
    rows = batch * heads * round_up(length, _ROWS_OF_A_TILE)
    sums = _FLOAT32_BYTES * rows * (round_up(head_size, _COLUMNS_OF_A_TILE) + 1)
    is_half = itemsize < _FLOAT32_BYTES  # in float32 the sums are the gradient itself
    expanded = 0
    if operator is _FLASH_BACKWARD and key[1] != heads:
        expanded = 2 * itemsize * batch * heads * key[2] * head_size
    return (Polynomial.from_value((sums if is_half else 0) + expanded, probe_batch),)


def is_ctc_loss(operator: Any) -> bool:
    """Return whether an operator is the CTC loss or its gradient."""
    return operator in (_CTC_LOSS, _CTC_LOSS_BACKWARD)


def ctc_outputs(operator: Any, arguments: Any) -> tuple[Any, Any]:
    """Return the operator's fake outputs, and what it allocates for itself meanwhile (None for nothing).

    The widest table that the targets allow is assumed: padded targets `(batch, longest)` bound their lengths.
    Source: `ctc_loss_cpu_template` and `ctc_loss_backward_cpu_template` in torch's `native/LossCTC.cpp`, and the same
    sizes in `native/cuda/LossCTC.cu`.
    """
    if operator == _CTC_LOSS_BACKWARD:
        log_probs, log_alpha = arguments[1], arguments[6]
        return torch.empty_like(log_probs), torch.empty_like(log_alpha)
    log_probs, targets = arguments[:2]
    if targets.dim() != 2:
        raise TraceError(
            "The memory of the CTC loss of concatenated targets depends on the length of the longest.",
            hint="Pad the targets to (batch, longest).",
        )
    longest = targets.size(1)
    num_steps, batch = log_probs.shape[:2]
    return (log_probs.new_empty((batch,)), log_probs.new_empty((batch, num_steps, 2 * longest + 1))), None


def count_blas_workspaces(*, environment: Mapping[str, str], torch_version: tuple[int, int], is_rocm: bool) -> int:
    """Return how many workspaces lie in memory at a time: that of a call, or those that two threads keep.

    The calling thread has one, and autograd's thread another.
    """
    usual = "1" if is_rocm or torch_version < _FREED_FROM else "0"
    is_kept = torch_version < _FREED_FROM or environment.get("TORCH_CUBLAS_WORKSPACE_CACHE", usual) == "1"
    return 2 if is_kept else 1


def blas_workspace_bytes(
    *,
    capability: tuple[int, int],
    environment: Mapping[str, str],
    torch_version: tuple[int, int],
    gcn_architecture: str | None = None,
) -> int:
    """Return the bytes of the workspace of one thread's handle on one stream.

    Source: `parseChosenWorkspaceSize` in aten/src/ATen/cuda/CublasHandlePool.cpp. cuBLASLt shares the workspace.
    """
    variables = _CUDA_VARIABLES if gcn_architecture is None else _HIP_VARIABLES
    configured = next((environment[name] for name in variables if name in environment), "")
    pools = re.findall(r":([0-9]+):([0-9]+)", configured)
    if pools:
        return sum(int(size) * _KIB * int(count) for size, count in pools)
    if gcn_architecture is not None:
        return _AMD_INSTINCT_BYTES if gcn_architecture.startswith(("gfx94", "gfx95")) else _AMD_BYTES
    large = next(majors for version, majors in _LARGE_FROM if torch_version >= version)
    return _LARGE_BYTES if capability[0] in large else _SMALL_BYTES
