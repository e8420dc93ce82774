"""A CUDA device that is not there, good enough for the compiler to lower, schedule and plan for it.

The rest of the process sees the device: `stand_in` is for a process of its own. Nothing can be computed on it; fake
tensors lie on it, and the memory plan of the compiler is that of the device's own program.
"""

from __future__ import annotations

from bexplore.trace.absent_gpu.process import reason_against, stand_in

__all__ = ["reason_against", "stand_in"]
