"""Whether this process runs on emulated devices, whose results and times mean nothing."""

from __future__ import annotations

import ctypes

_MARK = "bexplore_is_emulated"  # a function of the emulated CUDA runtime, which is loaded before the program


def is_emulated() -> bool:
    """Return whether the CUDA runtime of this process is the emulated one; needs no torch."""
    return hasattr(ctypes.CDLL(None), _MARK)
