"""Identical blocks of a traced model."""

from __future__ import annotations

from bexplore.job import CompileSettings, Job
from bexplore.trace.tracer import trace_job

MODEL = {"vocab_size": 64, "hidden_size": 32, "num_heads": 2, "max_position_embeddings": 16}


def deep_job(num_layers: int = 8, *, backend: str = "aot_eager_decomp_partition") -> Job:
    """`aot_eager_decomp_partition` decomposes and partitions as Inductor does but builds nothing."""
    model, settings = MODEL | {"num_layers": num_layers}, CompileSettings(backend=backend)
    return Job(workload="decoder", model=model, data={"sequence_length": 16}, sequence_length=16, compile=settings)


def test_the_trace_counts_identical_blocks():
    shallow, deep = (trace_job(deep_job(depth, backend="inductor")) for depth in (2, 8))
    assert (shallow.num_blocks, deep.num_blocks) == (0, 8)
