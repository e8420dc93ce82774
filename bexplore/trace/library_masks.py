"""Attention masks of `transformers`, whose choice reads values that fake tensors lack."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

from bexplore.job import Job

_MASKS = "transformers.masking_utils"
_FIND_PACKED = "find_packed_sequence_indices"


@contextlib.contextmanager
def masks_as_run(job: Job) -> Iterator[None]:
    """Let a model of the library that is not compiled choose its mask, within this context, as it does when it runs.

    It looks in the positions for several sequences in one sample, and makes no mask where there is one. While it is
    compiled, and with fake tensors, it cannot look, and makes a mask in any case: then keys and values of grouped heads
    are repeated, too, which took 6 % of the memory of a small LLaMA. Source: `find_packed_sequence_indices` in
    transformers/masking_utils.py.
    """
    masks = sys.modules.get(_MASKS)
    if job.compile.enabled or not hasattr(masks, _FIND_PACKED):
        yield
        return
    with mock.patch.object(masks, _FIND_PACKED, _one_sequence_a_sample):
        yield


def _one_sequence_a_sample(position_ids: Any) -> None:
    """Tell that no sample is made of several sequences, which synthetic ones are not."""
