"""Model sections of the ModelZoo in its own keys, scaled down: family -> (model section, data section)."""

from __future__ import annotations

from typing import Any

from tests.unit.config.builders import LLAMA

_ENCODER = {
    "vocab_size": 61,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_heads": 2,
    "filter_size": 24,
    "max_position_embeddings": 16,
    "dropout_rate": 0.0,
    "layer_norm_epsilon": 1e-5,
}
_BERT = _ENCODER | {"encoder_nonlinearity": "gelu", "pooler_nonlinearity": "tanh"}
_SEQ2SEQ = {
    "src_vocab_size": 61,
    "encoder_num_hidden_layers": 1,
    "decoder_num_hidden_layers": 2,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 24,
    "num_heads": 2,
    "dropout_rate": 0.0,
}
_PAIRS = {"src_max_sequence_length": 12, "tgt_max_sequence_length": 5}
_VIT = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_heads": 2,
    "filter_size": 32,
    "layer_norm_epsilon": 1e-6,
    "image_size": [8, 8],
    "patch_size": [4, 4],
    "num_channels": 3,
    "nonlinearity": "gelu",
}
_TEXT = LLAMA | {"name": "LlamaModel", "num_heads": 4, "rotary_dim": 8, "max_position_embeddings": 24}

Sections = tuple[dict[str, Any], dict[str, Any]]

TINY: dict[str, Sections] = {
    "bert": (_BERT, {"max_sequence_length": 12}),
    "bert without pairs": (_BERT | {"name": "bert", "disable_nsp": True}, {"max_sequence_length": 12}),
    "bert/classifier": (_BERT | {"problem_type": "single_label_classification", "num_labels": 3}, {}),
    "bert/token_classifier": (_BERT | {"num_classes": 7, "encoder_output_dropout_rate": 0.0}, {}),
    "bert/extractive_summarization": (_BERT | {"use_cls_bias": True}, {"max_sequence_length": 20}),
    "esm2": (_ENCODER | {"name": "esm2", "mask_token_id": 60, "pad_token_id": 1, "token_dropout": True}, {}),
    "t5": (_SEQ2SEQ | {"position_embedding_type": "relative", "extra_ids": 3}, _PAIRS),
    "transformer": (
        _SEQ2SEQ | {"position_embedding_type": "fixed", "use_pre_encoder_decoder_layer_norm": False},
        _PAIRS,
    ),
    "transformer with norms first": (_SEQ2SEQ | {"name": "transformer"}, _PAIRS),
    "gemma2": (
        LLAMA | {"name": "gemma2", "nonlinearity": "geglu", "attention_inner_dim": 64, "num_heads": 4},
        {"max_sequence_length": 12},
    ),
    "mixtral": (LLAMA | {"name": "mixtral", "moe": {"num_experts": 4, "top_k": 2}}, {"max_sequence_length": 12}),
    "mixtral with a shared expert": (
        LLAMA | {"name": "mixtral", "moe": {"num_experts": 4, "top_k": 1, "num_shared_experts": 1}},
        {"max_sequence_length": 12},
    ),
    "vision_transformer": (_VIT | {"name": "vision_transformer", "num_classes": 7}, {}),
    "dinov2 classifier": (
        _VIT | {"num_classes": 7, "use_dinov2_classifier": True, "freeze": ["^vit_model"], "layerscale_value": 0.01},
        {},
    ),
    "llava": (
        {
            "image_model": _VIT | {"nonlinearity": "quick_gelu"},
            "text_model": _TEXT,
            "freeze": ["^image_model", "^text_model"],
            "image_feature_select_layer_idx": -2,
        },
        {},
    ),
    "multimodal_simple": (
        {
            "name": "multimodal_simple",
            "image_model_list": {"image_models": [{"image_encoder": _VIT | {"image_layer_idx": -2}}]},
            "text_model": _TEXT,
            "freeze": ["^image_model.image_model_list"],
        },
        {},
    ),
}

_UNNAMED = {key: value for key, value in LLAMA.items() if key != "name"}
# What only its own program trains: family -> model section.
REFUSED: dict[str, dict[str, Any]] = {
    "dpr": {"q_encoder": _BERT, "ctx_encoder": _BERT},
    "dpo": {"name": "dpo", "dpo": {"beta": 0.01}, "policy_model": LLAMA},
    "dpo without a name": _UNNAMED | {"dpo": {"beta": 0.2}, "model_name": "llama"},
    "dino": {"name": "dino", "image_model_trunks": [{"image_model": _VIT}]},
    "dit": {"hidden_size": 16, "patch_size": [2, 2], "frequency_embedding_size": 8},
    "layers_api_demo": {"embedding_size": 16, "num_heads": 2, "hidden_size": 24, "seq_len": 10},
    "fc_mnist": {"name": "fc_mnist", "depth": 2, "hidden_size": 10, "activation_fn": "relu"},
}


def file_of(family: str) -> dict[str, Any]:
    """Return a whole file of a family, in the older layout."""
    model, data = TINY[family] if family in TINY else (REFUSED[family], {})
    return {
        "train_input": data | {"batch_size": 8, "micro_batch_size": "explore"},
        "model": model,
        "optimizer": {"optimizer_type": "AdamW", "learning_rate": 0.001},
        "runconfig": {"max_steps": 10},
    }
