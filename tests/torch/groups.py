"""The group of a rank that is alone in the process of a test."""

from __future__ import annotations

from torch import distributed as dist

from bexplore.workloads.parallel import is_alone


def leave_group() -> None:
    """Leave a group of one rank that is there, so that a job of another number of ranks can be built."""
    if is_alone():
        dist.destroy_process_group()
