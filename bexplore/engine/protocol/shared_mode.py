"""Kinds of the program that all probes of the search share, and their order; for both sides of the process border."""

from __future__ import annotations

import re
from enum import StrEnum

# From this torch on, Inductor splits reductions by the hint of an unbacked size. Source: torch/_inductor/ir.py,
# `num_splits`, 2.11 `symbolic_hint` (which ignores the hint) against 2.12 `all_unbacked_explicitly_hinted`.
_SPLITS_BY_HINT = (2, 12)


class SharedMode(StrEnum):
    """How the number of samples is made symbolic.

    | mode | programs of a search |
    |---|---|
    | nested, unbacked | one: a number without a hint leaves nothing to specialise on |
    | dynamic | two: one for a single sample, whose length the compiler takes to be fixed, and one for all others |
    | static | one for each size |

    The dynamic one chooses kernels on an accelerator as for the largest size that may fit, where they depend on the
    number of samples: see `choose_kernels_for_largest`. Beyond that size it compiles again, where indices of 32 bits
    end; without a trace that tells the size, wherever other kernels would be chosen.
    """

    NESTED = "nested"  # unbacked, and repeated blocks are compiled once, as a region inside the whole
    UNBACKED = "unbacked"
    DYNAMIC = "dynamic"
    STATIC = "static"

    @property
    def serves_every_size(self) -> bool:
        """Whether one compilation is enough."""
        return self in (SharedMode.NESTED, SharedMode.UNBACKED)


# The order in which modes are tried. On a CPU one compilation for all sizes is worth most: its kernels are loops whose
# code depends on no size. On CUDA only a backed number has the kernels of the exact program, at the price of two
# compilations (benchmarks/results/shared_kernels.md). With an unbacked one, hint or not, indices have 64 bits,
# reductions over rows are not fused with those over columns (`MixOrderReduction.can_fuse` in
# torch/_inductor/scheduler.py) and attention does not take cuDNN's kernel, which has a largest batch
# (`check_cudnn_tensor_shapes` in aten/src/ATen/native/transformers/cuda/sdp_utils.cpp).
_ON_CPU = (SharedMode.NESTED, SharedMode.UNBACKED, SharedMode.DYNAMIC, SharedMode.STATIC)
_ON_CUDA = (SharedMode.DYNAMIC, SharedMode.UNBACKED, SharedMode.STATIC)
_BACKED = (SharedMode.DYNAMIC, SharedMode.STATIC)


def shared_modes(device_type: str, torch_version: str, *, has_convolutions: bool = False) -> tuple[SharedMode, ...]:
    """Give the modes to try on a device, best first.

    The compiler cannot choose kernels of convolutions that it sees for an unbacked number of samples.
    """
    if has_convolutions:
        return _BACKED
    if device_type == "cpu":
        return _ON_CPU
    return _ON_CUDA if _major_minor(torch_version) >= _SPLITS_BY_HINT else _BACKED


def mode_after(mode: SharedMode, modes: tuple[SharedMode, ...]) -> SharedMode | None:
    """Give what to try where a mode does not compile; None after the last."""
    later = modes[modes.index(mode) + 1 :]
    return later[0] if later else None


def _major_minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
