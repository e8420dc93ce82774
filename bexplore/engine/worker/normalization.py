"""Batch normalization in a program whose number of samples is unknown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType

import torch
import torch.nn.functional as F


def check_batch_statistics_at_run_time() -> None:
    """Let `F.batch_norm` ask for more than one value of each channel when the program runs, for this whole process.

    While it is compiled the question has no answer where the number of samples is unbacked: the graph breaks there, or
    the program is compiled again for each size. That there is a sample at all answers the next question of the kind,
    whether the input is empty (`_batch_norm_impl_index` in aten/src/ATen/native/Normalization.cpp).
    """
    original = F._verify_batch_size  # type: ignore[attr-defined]  # private, and in no stub
    if isinstance(original, FunctionType) and not hasattr(original, "is_checked_at_run_time"):
        F._verify_batch_size = _checked_at_run_time(original)  # type: ignore[attr-defined]  # as above


def _checked_at_run_time(original: Callable[[Sequence[int]], None]) -> Callable[[Sequence[int]], None]:
    def verify(size: Sequence[int]) -> None:
        if not isinstance(size[0], torch.SymInt):
            return original(size)
        torch._check(size[0] > 0)
        if any(isinstance(length, int) and length > 1 for length in size[2:]):
            return None
        num_values = size[0]
        for length in size[2:]:
            num_values = num_values * length
        torch._check(num_values != 1, lambda: "Expected more than 1 value per channel when training")
        return None

    verify.is_checked_at_run_time = True  # type: ignore[attr-defined]  # so that it is not wrapped twice
    return verify
