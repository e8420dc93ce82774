"""Memory that cuBLAS, or hipBLAS, holds for itself: torch takes it from its own allocator, so no plan shows it."""

from __future__ import annotations

import re
from collections.abc import Mapping

_KIB, _MIB = 2**10, 2**20
_SMALL_BYTES = 2 * 4096 * _KIB + 8 * 16 * _KIB  # the libraries' own `:4096:2:16:8`
_LARGE_BYTES = 32 * _MIB
_AMD_BYTES, _AMD_INSTINCT_BYTES = 32 * _MIB, 128 * _MIB  # the latter of gfx94x and gfx95x, MI300 and newer
_CUDA_VARIABLES = ("CUBLAS_WORKSPACE_CONFIG",)
_HIP_VARIABLES = ("CUBLAS_WORKSPACE_CONFIG", "HIPBLAS_WORKSPACE_CONFIG", "ROCBLAS_WORKSPACE_CONFIG")
# Major capabilities with the large workspace, by the first torch that has it so. Source: pytorch#91564 for Hopper,
# pytorch#175344 for Blackwell, of which 2.11 has nothing yet. What 2.13 made of it (pytorch#183923) was not read; the
# two workspaces of 24 MiB more or less are what is at stake.
_LARGE_FROM = (((2, 12), (9, 10, 12)), ((0, 0), (9,)))


def blas_workspace_bytes(
    *,
    capability: tuple[int, int],
    environment: Mapping[str, str],
    torch_version: tuple[int, int],
    gcn_architecture: str | None = None,
) -> int:
    """Return the bytes of the workspace of one thread's handle on one stream.

    Source: `parseChosenWorkspaceSize` in aten/src/ATen/cuda/CublasHandlePool.cpp. cuBLASLt shares the workspace.

    Args:
        capability: Of the device, such as (9, 0).
        environment: Of the process; `CUBLAS_WORKSPACE_CONFIG` overrides the default.
        torch_version: Major and minor version of torch.
        gcn_architecture: Of an AMD device, such as `gfx942`; None for NVIDIA.
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
