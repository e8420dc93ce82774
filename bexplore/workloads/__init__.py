"""Programs to train: `build` turns a `Job` into a `Workload` of live torch modules."""

from __future__ import annotations

from bexplore.workloads.builders import build
from bexplore.workloads.workload import Batch, Workload

__all__ = ["Batch", "Workload", "build"]
