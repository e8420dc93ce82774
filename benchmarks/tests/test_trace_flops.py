"""Operations that the trace counts beside those that run."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.trace_flops import flops_as_run, flops_of_the_model
from bexplore.job import CompileSettings, Job
from bexplore.trace.tracer import trace_job

DECODER = {"num_layers": 2, "hidden_size": 64, "num_heads": 2, "vocab_size": 512, "max_position_embeddings": 32}
EAGER = CompileSettings(enabled=False)


def decoder_job(*, model: dict | None = None, **fields) -> Job:
    return Job(workload="decoder", model=DECODER | (model or {}), compile=EAGER, sequence_length=32, **fields)


def test_operations_of_a_compiled_and_checkpointed_step_are_those_that_run():
    deep = decoder_job(model={"num_layers": 7}, activation_checkpointing="full")  # not all of which are traced
    job = dataclasses.replace(deep, compile=CompileSettings())
    # partitions as the default backend does, and builds nothing
    as_run = dataclasses.replace(job, compile=CompileSettings(backend="aot_eager_decomp_partition"))
    model = trace_job(job)
    assert model.hardware_flops_per_sample == pytest.approx(flops_as_run(as_run, 4), rel=1e-6)
    assert model.flops_per_sample == pytest.approx(flops_of_the_model(job, 4), rel=1e-6)
