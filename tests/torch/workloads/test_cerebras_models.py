"""Models of both layouts of a dialect, as the decoder that is built."""

from __future__ import annotations

from pathlib import Path

import pytest

from bexplore.job import Precision
from bexplore.workloads.decoder import DecoderConfig
from tests.unit.config.builders import FLAG, Folder, sections, trainer


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


# The job


def test_the_older_layout_becomes_a_job(folder):
    config = folder.load(sections())
    assert (config.batch_size, config.num_replicas, config.model_dir) == (240, 2, "./out")
    assert config.job.workload == "decoder"
    assert config.job.sequence_length == 64
    assert (config.job.optimizer, config.job.max_gradient_norm) == ("AdamW", 1.0)
    assert config.job.optimizer_arguments == {"lr": 0.001, "weight_decay": 0.1}
    assert config.job.precision is Precision.FLOAT32
    model = DecoderConfig.from_mapping(config.job.model)
    assert (model.vocab_size, model.num_layers, model.intermediate_size) == (100, 2, 128)
    assert (model.position_embedding, model.norm, model.activation) == ("learned", "layernorm", "gelu")
    assert model.tie_embeddings


def test_the_newer_layout_becomes_a_job(folder):
    config = folder.load(trainer([{"ScopedTrainFlags": {FLAG: "explore"}}]))
    assert (config.batch_size, config.num_replicas) == (240, 2)
    assert config.job.precision is Precision.AUTOCAST_BFLOAT16
    assert config.job.optimizer_arguments["betas"] == [0.9, 0.95]
    assert config.job.max_gradient_norm == 1.0
    model = DecoderConfig.from_mapping(config.job.model)
    assert (model.position_embedding, model.rotary_dim, model.rope_theta) == ("rotary", 8, 500000.0)
    assert (model.norm, model.activation, model.num_key_value_heads) == ("rmsnorm", "swiglu", 2)
    biases = (model.attention_bias, model.attention_output_bias, model.feed_forward_bias, model.output_bias)
    assert (model.tie_embeddings, *biases) == (False,) * 5
