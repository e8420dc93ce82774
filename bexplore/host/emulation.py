"""Whether this process runs on emulated devices, whose results and times mean nothing."""

from __future__ import annotations

import ctypes

_MARK = "bexplore_is_emulated"  # a function of the emulated CUDA runtime: 0 where it is there and has no device


def is_emulated() -> bool:
    """Return whether the CUDA devices of this process are emulated; needs no torch."""
    has_devices = getattr(ctypes.CDLL(None), _MARK, None)
    return has_devices is not None and has_devices() != 0
