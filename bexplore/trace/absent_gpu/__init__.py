"""A CUDA device that is not there, good enough for the compiler to lower, schedule and plan for it.

The rest of the process sees the device: `stand_in` is for a process of its own. Nothing can be computed on it; fake
tensors lie on it, and the memory plan of the compiler is that of the device's own program.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from bexplore.trace.absent_gpu.guard import load_hooks
from bexplore.trace.gpu_properties import GpuProperties

__all__ = ["reason_against", "stand_in"]

CHECKED_TORCH = ("2.13",)  # the private interfaces that are replaced here differ between versions
_registrations: list[object] = []  # end with the process


def reason_against() -> str:
    """Tell why no absent device can be stood in for here, in one line with what to type; empty where it can."""
    if sys.platform != "linux":
        return "the program of a CUDA device is planned on Linux only"
    if find_spec("triton") is None:
        return "Triton, which writes the kernels of a CUDA device, is not installed: pip install 'bexplore[gpu-trace]'"
    try:
        torch_version = version("torch")
    except PackageNotFoundError:
        return "torch is not installed: pip install torch"
    if ".".join(torch_version.split(".")[:2]) not in CHECKED_TORCH:
        return f"planning for an absent device was checked with torch {', '.join(CHECKED_TORCH)}, not {torch_version}"
    return ""


def stand_in(properties: GpuProperties) -> None:
    """Make this process see a CUDA device of these properties, before it imports torch.

    Raises:
        TraceError: There is no C++ compiler, or torch is imported already.
        ImportError: Triton is not installed.
    """
    library = load_hooks()

    from bexplore.trace.absent_gpu.attention import route_attention
    from bexplore.trace.absent_gpu.torch_cuda import answer_for
    from bexplore.trace.absent_gpu.triton_driver import use_absent_driver

    library.register_absent_device_guard()
    answer_for(properties)
    use_absent_driver(properties.capability)
    _registrations.append(route_attention(properties.capability))
