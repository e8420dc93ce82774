"""What a training step costs at every micro-batch size, from one trace without device memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bexplore.trace.cost_model import CostModel
from bexplore.trace.errors import TraceError

if TYPE_CHECKING:
    from bexplore.trace.tracer import trace_job

__all__ = ["CostModel", "TraceError", "trace_job"]


def __getattr__(name: str) -> Any:
    """Import the tracer at its first use: who only evaluates a cost model needs no torch."""
    if name == "trace_job":
        from bexplore.trace.tracer import trace_job

        return trace_job
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
