"""A model of transformers that is not compiled chooses its attention mask in a trace as it does in a step."""

from __future__ import annotations

import pytest

from bexplore.job import CompileSettings, Job
from bexplore.trace.tracer import trace_job
from tests.torch.trace.test_trace import measured_peak

pytest.importorskip("transformers")

GROUPED_HEADS = {
    "num_hidden_layers": 1,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "intermediate_size": 64,
    "vocab_size": 64,
    "max_position_embeddings": 64,
}


def test_grouped_heads_are_not_repeated_where_no_mask_is_made():
    job = Job(
        workload="transformers",
        model={"task": "causal_lm", "model_type": "llama", "config": GROUPED_HEADS},
        sequence_length=64,
        compile=CompileSettings(enabled=False),
    )

    assert trace_job(job).peak_memory_bytes(8) == pytest.approx(measured_peak(job, 8), rel=0.01)
