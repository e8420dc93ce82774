"""Models of many fields, each eager and compiled: a third table of the trace's benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.trace_jobs import TracedJob
from bexplore.job import CompileSettings, Job

_SIZES = (4, 16)
_SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
_TEXT = _SMALL | {"vocab_size": 512, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1}
_TEXT |= {"eos_token_id": 2}
_LLAMA = _TEXT | {"num_key_value_heads": 2, "head_dim": 16}
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
_WORDS = {"input_ids": [512, 64], "labels": [512, 64]}
_AUDIO = {"input_values": [None, 8000], "labels": [32, 10]}
_IMAGES = {"pixel_values": [None, 3, 64, 64], "labels": [10]}
_CONVOLUTIONS = {"conv_dim": [32, 32, 32], "conv_kernel": [10, 4, 4], "conv_stride": [5, 4, 4]}
_SPEECH = _SMALL | _CONVOLUTIONS | {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
_SPEECH |= {"vocab_size": 32, "num_feat_extract_layers": 3}
_SPEECH |= {"layerdrop": 0.0}  # else a measured step lacks a layer by chance, which the trace keeps
_ENCODER_DECODER = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}
_ENCODER_DECODER |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}


def _library(kind: str, config: dict[str, Any], inputs: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    drawn = {"batch": "field_models:drawn", "arguments": {"kind": kind, "config": config, "inputs": inputs or _WORDS}}
    return {"model": "field_models:library"} | drawn | more


def _own(model: str, inputs: dict[str, Any], **arguments: Any) -> dict[str, Any]:
    return {
        "model": f"field_models:{model}",
        "batch": "field_models:drawn",
        "arguments": {"inputs": inputs} | arguments,
    }


_MODELS: dict[str, dict[str, Any]] = {
    # texts
    "modernbert": _library("ModernBertForMaskedLM", _TEXT | {"global_attn_every_n_layers": 2, "cls_token_id": 1}),
    "deberta v2": _library(
        "DebertaV2ForMaskedLM", _TEXT | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
    ),
    "longformer": _library("LongformerForMaskedLM", _TEXT | {"attention_window": 16}),
    "xlnet": _library(
        "XLNetLMHeadModel", {"vocab_size": 512, "d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 128}
    ),
    "led": _library(
        "LEDForConditionalGeneration",
        _ENCODER_DECODER | {"vocab_size": 512, "attention_window": 16, "max_encoder_position_embeddings": 128},
    ),
    # mixtures of experts
    "qwen2 moe": _library("Qwen2MoeForCausalLM", _LLAMA | _EXPERTS | {"shared_expert_intermediate_size": 64}),
    "deepseek v3": _library(
        "DeepseekV3ForCausalLM",
        _TEXT
        | {"num_key_value_heads": 4, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
        | {"q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}
        | {"n_group": 2, "topk_group": 1, "first_k_dense_replace": 1},
    ),
    "granite moe": _library("GraniteMoeForCausalLM", _LLAMA | {"num_local_experts": 8, "num_experts_per_tok": 2}),
    "gpt oss": _library(
        "GptOssForCausalLM", _LLAMA | {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 32}
    ),
    "switch transformers": _library(
        "SwitchTransformersForConditionalGeneration",
        {"vocab_size": 512, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_decoder_layers": 2}
        | {"num_heads": 4, "num_experts": 4, "decoder_start_token_id": 0}
        | {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "use_cache": False},
    ),
    "loop of experts": _own("LoopOfExperts", _WORDS),
    # recurrent and state-space
    "jamba": _library(
        "JambaForCausalLM",
        _LLAMA
        | {"num_experts": 4, "attn_layer_offset": 1, "attn_layer_period": 2, "expert_layer_period": 2}
        | {"mamba_d_state": 8, "mamba_dt_rank": 8, "use_mamba_kernels": False},
        {"input_ids": [512, 16], "labels": [512, 16]},
    ),
    "mamba2": _library(
        "Mamba2ForCausalLM",
        {"vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 16, "num_heads": 8, "head_dim": 16}
        | {"n_groups": 2, "chunk_size": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "recurrent gemma": _library(
        "RecurrentGemmaForCausalLM",
        _TEXT
        | {"lru_width": 64, "head_dim": 16, "num_key_value_heads": 1, "attention_window_size": 32}
        | {"num_hidden_layers": 3},
        {"input_ids": [512, 16], "labels": [512, 16]},
    ),
    "rwkv": _library(
        "RwkvForCausalLM",
        {"vocab_size": 512, "hidden_size": 64, "attention_hidden_size": 64, "num_hidden_layers": 2}
        | {"intermediate_size": 128, "context_length": 64},
        {"input_ids": [512, 16], "labels": [512, 16]},
    ),
    "s4d": _own("StateSpace", _WORDS),
    "lstm of both directions": _own("Recurrent", _WORDS, kind="LSTM"),
    "gru of both directions": _own("Recurrent", _WORDS, kind="GRU"),
    "gru cells": _own("Cells", _WORDS),
    # speech
    "wav2vec2": _library("Wav2Vec2ForCTC", _SPEECH, _AUDIO),
    "wavlm": _library("WavLMForSequenceClassification", _SPEECH, {"input_values": [None, 8000], "labels": [2]}),
    "speech to text": _library(
        "Speech2TextForConditionalGeneration",
        _ENCODER_DECODER | {"vocab_size": 512, "conv_channels": 64, "input_feat_per_channel": 40},
        {"input_features": [None, 128, 40], "labels": [512, 32]},
    ),
    "moonshine": _library(
        "MoonshineForConditionalGeneration",
        {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "encoder_num_hidden_layers": 2}
        | {"decoder_num_hidden_layers": 2, "encoder_num_attention_heads": 4, "decoder_num_attention_heads": 4}
        | {"pad_token_id": 0},
        {"input_values": [None, 8000], "labels": [512, 16]},
    ),
    "audio spectrogram": _library(
        "ASTForAudioClassification",
        _SMALL
        | {"num_mel_bins": 32, "max_length": 128, "num_labels": 10, "problem_type": "single_label_classification"},
        {"input_values": [None, 128, 32], "labels": [10]},
    ),
    # images: detection, segmentation, generation
    "set prediction": {"model": "field_models:SetPrediction", "batch": "field_models:boxes"}
    | {"arguments": {"image_size": 64}},
    "heat map": _own(
        "HeatMap", {"pixels": [None, 3, 64, 64], "classes": [10, 3], "centers": [256, 3], "sizes": [None, 3, 2]}
    ),
    "segformer": _library(
        "SegformerForSemanticSegmentation",
        {"hidden_sizes": [16, 32, 64, 64], "depths": [1, 1, 1, 1], "decoder_hidden_size": 64, "num_labels": 10},
        {"pixel_values": [None, 3, 64, 64], "labels": [10, 64, 64]},
    ),
    "vit mae": _library(
        "ViTMAEForPreTraining",
        _SMALL
        | {"image_size": 64, "patch_size": 8, "decoder_hidden_size": 32, "decoder_num_hidden_layers": 1}
        | {"decoder_num_attention_heads": 4, "decoder_intermediate_size": 64},
        {"pixel_values": [None, 3, 64, 64]},
    ),
    "video mae": _library(
        "VideoMAEForVideoClassification",
        _SMALL | {"image_size": 32, "patch_size": 8, "num_frames": 4, "num_labels": 10},
        {"pixel_values": [None, 4, 3, 32, 32], "labels": [10]},
    ),
    "siglip": _own(
        "Siglip",
        {"input_ids": [512, 32], "pixel_values": [None, 3, 64, 64]},
        config={
            "text_config": _TEXT | {"projection_size": 64},
            "vision_config": _SMALL | {"image_size": 64, "patch_size": 8},
        },
    ),
    "autoencoder": _own("Autoencoder", {"pixels": [None, 3, 32, 32]}),
    "denoiser": _own("Denoiser", {"pixels": [None, 3, 32, 32]}),
    "diffusion transformer": _own("DiffusionTransformer", {"latents": [None, 4, 16, 16], "labels": [10]}),
    "gan with penalty": {"step": "field_models:PenalizedGan"},
    "contrast": _own("Contrast", {"pixels": [None, 3, 64, 64]}),
    # three dimensions
    "volumes": _own("Volumes", {"volumes": [None, 1, 16, 16, 16], "labels": [3, 16, 16, 16]}),
    "points": _own("Points", {"points": [None, 3, 512], "labels": [10]}),
    "rays": _own("Rays", {"origins": [None, 3], "directions": [None, 3], "colors": [None, 3]}),
    # graphs, tables, science, decisions, time series
    "graph": {"model": "field_models:GraphConvolutions", "batch": "field_models:graphs"}
    | {"samples_of": "field_models:count_graphs"},
    "sparse graph": _own("SparseGraph", {"x": [None, 200, 16], "labels": [10]}),
    "recommender": _own(
        "Recommender",
        {"users": [20000], "items": [20000, 20], "words": [5000, 30], "dense": [None, 16], "labels": [2]},
    ),
    "dot products": _own("DotProducts", {"words": [2000, 8, 10], "dense": [None, 16], "labels": [2]}),
    "atoms": _own("Equivariant", {"positions": [None, 20, 3], "forces": [None, 20, 3]}),
    "physics": _own("Physics", {"points": [None, 64, 2], "values": [None, 64]}),
    "flow": _own("Flow", {"x": [None, 64], "y": [None, 64]}),
    "decisions": _library(
        "DecisionTransformerModel",
        {"state_dim": 17, "act_dim": 4, "hidden_size": 64, "max_ep_len": 100, "n_layer": 2, "n_head": 4},
        {"states": [None, 20, 17], "actions": [None, 20, 4], "rewards": [None, 20, 1]}
        | {"returns_to_go": [None, 20, 1], "timesteps": [100, 20], "attention_mask": [2, 20]},
        loss="field_models:decision_loss",
    ),
    "time series": _library(
        "PatchTSTForPrediction",
        {"num_input_channels": 7, "context_length": 128, "patch_length": 16, "patch_stride": 8, "prediction_length": 24}
        | {"d_model": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 128},
        {"past_values": [None, 128, 7], "future_values": [None, 24, 7]},
    ),
}


def _job(name: str, model: dict[str, Any], *, compiled: bool) -> TracedJob:
    fields: dict[str, Any] = {}
    if name == "recommender":
        fields = {"optimizer": "SGD", "optimizer_arguments": {"lr": 0.01}}  # Adam has no sparse gradients
    root = str(Path(__file__).parent / "jobs")
    settings = CompileSettings(enabled=compiled)
    return TracedJob(
        job=Job(workload="imported", model=model, import_root=root, compile=settings, **fields), sizes=_SIZES
    )


FIELD_JOBS: dict[str, TracedJob] = {
    f"{name}, {'compiled' if compiled else 'eager'}": _job(name, model, compiled=compiled)
    for compiled in (False, True)
    for name, model in _MODELS.items()
}
