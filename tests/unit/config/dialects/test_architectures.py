from __future__ import annotations

import pytest

from tests.unit.config.builders import trainer
from tests.unit.config.dialects.modelzoo_files import REFUSED, TINY, file_of

# Family -> workload, model type, and settings that come from its section alone.
EXPECTED = {
    "bert": ("transformers", "bert", {"vocab_size": 61, "num_attention_heads": 2, "intermediate_size": 24}),
    "bert without pairs": ("transformers", "bert", {"max_position_embeddings": 16}),
    "bert/classifier": ("transformers", "bert", {"num_labels": 3}),
    "bert/token_classifier": ("transformers", "bert", {"num_labels": 7, "classifier_dropout": 0.0}),
    "bert/extractive_summarization": ("transformers", "bert", {"num_labels": 2, "max_position_embeddings": 20}),
    "esm2": ("transformers", "esm", {"mask_token_id": 60, "position_embedding_type": "rotary"}),
    "t5": ("transformers", "t5", {"vocab_size": 64, "num_layers": 1, "num_decoder_layers": 2, "d_kv": 8}),
    "transformer": ("transformers", "marian", {"vocab_size": 61, "encoder_layers": 1, "decoder_layers": 2}),
    "transformer with norms first": ("transformers", "pegasus", {"max_position_embeddings": 12}),
    "gemma2": ("transformers", "gemma2", {"head_dim": 16, "num_key_value_heads": 2}),
    "mixtral": ("transformers", "mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "mixtral with a shared expert": (
        "transformers",
        "qwen2_moe",
        {"num_experts": 4, "shared_expert_intermediate_size": 128, "moe_intermediate_size": 128},
    ),
    "vision_transformer": ("transformers", "vit", {"num_labels": 7, "image_size": 8, "patch_size": 4}),
    "dinov2 classifier": ("transformers", "dinov2", {"num_labels": 7, "mlp_ratio": 2, "layerscale_value": 0.01}),
    "llava": ("transformers", "llava", {"image_seq_length": 4, "vision_feature_layer": -2, "image_token_index": 99}),
    "multimodal_simple": ("transformers", "llava", {"image_seq_length": 4, "vision_feature_layer": -2}),
}
TASKS = {
    "bert": "pretraining",
    "bert without pairs": "masked_lm",
    "bert/classifier": "sequence_classification",
    "bert/token_classifier": "token_classification",
    "llava": "image_text_to_text",
}


def test_every_family_has_its_expectation():
    assert set(EXPECTED) == set(TINY)


@pytest.mark.parametrize("family", EXPECTED)
def test_a_section_becomes_the_settings_of_a_model_of_transformers(folder, family):
    job = folder.load(file_of(family)).job
    workload, model_type, settings = EXPECTED[family]
    assert (job.workload, job.model["model_type"]) == (workload, model_type)
    assert job.model["task"] == TASKS.get(family, job.model["task"])
    assert {key: job.model["config"][key] for key in settings} == settings


@pytest.mark.parametrize("family", REFUSED)
def test_a_model_that_is_not_built_is_refused_with_the_line_to_type(folder, family):
    command = f"bexplore explore {folder.path} -- COMMAND {{config}} {{output_dir}}"
    expected = f" is not built in | start its own training: {command}"
    assert folder.refusal(file_of(family)).endswith(expected)


@pytest.mark.parametrize("family", TINY)
def test_no_key_of_a_section_is_left_unread(folder, family):
    assert not [line for line in folder.load(file_of(family)).warnings if "not built in, so" in line]


def test_the_newer_layout_is_read_by_the_same_tables(folder):
    model, data = TINY["t5"]
    values = trainer(model=model | {"name": "t5"})
    values["trainer"]["fit"]["train_dataloader"] |= data
    job = folder.load(values).job
    assert (job.sequence_length, job.data["target_length"]) == (12, 5)


def test_a_gated_dinov2_is_as_wide_as_the_file_says(folder):
    values = file_of("dinov2 classifier")
    values["model"] = values["model"] | {"nonlinearity": "swiglu"}
    config = folder.load(values).job.model["config"]
    assert int(config["mlp_ratio"] * 16 * 2 / 3) == 32
    assert config["use_swiglu_ffn"]


@pytest.mark.parametrize(
    ("family", "change", "expected"),
    [
        ("bert", {"hidden_size": None}, "the section has no hidden_size"),
        ("bert", {"num_heads": "two"}, 'num_heads must be a positive integer, not "two"'),
        ("bert", {"encoder_nonlinearity": "gelo"}, "did you mean gelu?"),
        ("bert", {"dropout_rate": 2}, "dropout_rate must be from 0 to below 1, not 2"),
        ("transformer", {"d_kv": 4}, "d_kv 4 x num_heads 2 is not d_model 16"),
        ("vision_transformer", {"image_size": [8, 4]}, "image_size must be a positive integer or two equal ones"),
        ("dinov2 classifier", {"filter_size": 33}, "filter_size 33 is no whole multiple of hidden_size 16"),
        ("mixtral", {"moe": {"num_experts": 2, "top_k": 3}}, "top_k 3 exceeds the 2 experts"),
        ("llava", {"image_model": TINY["llava"][0]["image_model"] | {"patch_size": 1}}, "64 patches of an image"),
    ],
)
def test_a_section_that_cannot_be_built_is_refused(folder, family, change, expected):
    values = file_of(family)
    values["model"] = values["model"] | change
    assert expected in folder.refusal(values)


def test_an_unread_key_that_is_switched_on_is_a_warning(folder):
    values = file_of("t5")
    values["model"] = values["model"] | {"tie_encoder_decoder": True}
    assert any("tie_encoder_decoder: true" in line for line in folder.load(values).warnings)
