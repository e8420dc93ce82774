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
    if name != "trace_job":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from bexplore.trace.tracer import trace_job
    except (ImportError, AttributeError) as error:  # private parts of a compiler that moved
        raise TraceError(
            f"This version of torch lacks what a trace reads: {error}.",
            hint="An exploration works without a trace; torch 2.11 to 2.13 have what it reads.",
        ) from error
    return trace_job
