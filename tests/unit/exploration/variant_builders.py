"""Builders of traces of a job's variants."""

from __future__ import annotations

from bexplore.trace.cost_model import CostModel, Phase, Polynomial
from tests.builders import cost_model

GIB = 2**30


def trace(fixed_gib: float = 1.0, gib_a_sample: float = 1.0, flops: float = 100.0, moved: float = 10.0) -> CostModel:
    """A trace whose peak, operations and bytes are lines."""
    peak = Polynomial(fixed_gib * GIB, gib_a_sample * GIB)
    operations = {"model_flops": Polynomial(0, 100), "hardware_flops": Polynomial(0, flops)}
    return cost_model(peak, phase=Phase.BACKWARD, bytes_moved=Polynomial(0, moved), **operations)
