"""Builders of traces of a job's variants."""

from __future__ import annotations

from bexplore.trace.cost_model import CostModel, Peak, Phase, Polynomial

GIB = 2**30


def trace(fixed_gib: float = 1.0, gib_a_sample: float = 1.0, flops: float = 100.0, moved: float = 10.0) -> CostModel:
    """A trace whose peak, operations and bytes are lines."""
    return CostModel(
        fingerprint="",
        num_parameters=1,
        model_flops=Polynomial(0, 100),
        hardware_flops=Polynomial(0, flops),
        bytes_moved=Polynomial(0, moved),
        resident=(),
        peaks={Phase.BACKWARD: (Peak(size=Polynomial(fixed_gib * GIB, gib_a_sample * GIB), buffers=()),)},
        relative_sd=0.02,
        trace_s=0.0,
        device="cpu",
        compiler="",
    )
