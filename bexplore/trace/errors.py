"""The error of a job that cannot be traced."""

from __future__ import annotations

from bexplore.errors import BexploreError


class TraceError(BexploreError):
    """The job cannot be traced; an exploration says so once and goes on without a cost model."""
