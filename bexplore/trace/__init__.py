"""The cost of a training step at every micro-batch size, from one trace without device memory.

`trace.tracer.trace_job` makes a `CostModel`; evaluating one needs no torch.
"""

from __future__ import annotations

from bexplore.errors import TraceError
from bexplore.trace.cost_model import CostModel

__all__ = ["CostModel", "TraceError"]
