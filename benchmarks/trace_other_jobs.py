"""Models of other kinds, on which nothing in the trace was tuned: a second table of its benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.trace_jobs import TracedJob, transformers_job
from bexplore.job import CompileSettings, Job, Mode, Precision

_LENGTH = 128
_SMALL = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512}
_TEXT = {"vocab_size": 1000, "max_position_embeddings": _LENGTH + 8}
_SIZES = (2, 32)


def _text(task: str, model_type: str, config: dict[str, Any] | None = None, **fields: Any) -> TracedJob:
    config = _SMALL | _TEXT if config is None else config
    return TracedJob(
        job=transformers_job(task, model_type, config, **{"sequence_length": _LENGTH, **fields}), sizes=_SIZES
    )


def _images(model_type: str, config: dict[str, Any], **fields: Any) -> TracedJob:
    config = {"num_labels": 10, "image_size": 64} | config
    job = transformers_job("image_classification", model_type, config, data={"image_size": 64}, **fields)
    return TracedJob(job=job, sizes=_SIZES, has_convolutions=True)


def _own(model: str, batch: str, *, loss: str | None = None, convolutions: bool = False, **fields: Any) -> TracedJob:
    paths = {"model": f"traced_models:{model}", "batch": f"traced_models:{batch}"}
    if loss:
        paths["loss"] = f"traced_models:{loss}"
    job = Job(workload="imported", model=paths, import_root=str(Path(__file__).parent / "jobs"), **fields)
    return TracedJob(job=job, sizes=_SIZES, has_convolutions=convolutions)


_LLAMA_LIKE = _SMALL | _TEXT | {"num_key_value_heads": 2, "head_dim": 32}
_SGD = {"optimizer": "SGD", "optimizer_arguments": {"lr": 0.01, "momentum": 0.9}}

OTHER_JOBS: dict[str, TracedJob] = {
    "mistral": _text("causal_lm", "mistral", _LLAMA_LIKE | {"sliding_window": 64}),
    "qwen2, foreach adam": _text(
        "causal_lm", "qwen2", _LLAMA_LIKE, optimizer="Adam", optimizer_arguments={"foreach": True}
    ),
    "gemma, adafactor": _text("causal_lm", "gemma", _LLAMA_LIKE, optimizer="Adafactor"),
    "opt, clipped": _text(
        "causal_lm",
        "opt",
        {
            "hidden_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 512,
            "word_embed_proj_dim": 128,
        }
        | _TEXT,
        max_gradient_norm=1.0,
    ),
    "distilbert, rmsprop": _text(
        "masked_lm",
        "distilbert",
        {"dim": 128, "n_layers": 2, "n_heads": 4, "hidden_dim": 512} | _TEXT,
        optimizer="RMSprop",
        optimizer_arguments={"momentum": 0.9},
    ),
    "roberta, autocast": _text("masked_lm", "roberta", precision=Precision.AUTOCAST_BFLOAT16),
    "electra, amsgrad": _text(
        "masked_lm", "electra", _SMALL | _TEXT | {"embedding_size": 64}, optimizer_arguments={"amsgrad": True}
    ),
    "albert, 8 shared blocks": _text(
        "masked_lm", "albert", _SMALL | _TEXT | {"embedding_size": 64, "num_hidden_layers": 8}
    ),
    "mixtral": _text("causal_lm", "mixtral", _LLAMA_LIKE | {"num_local_experts": 4, "intermediate_size": 256}),
    "mamba": _text(
        "causal_lm",
        "mamba",
        {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 8, "vocab_size": 1000},
        sequence_length=16,
    ),
    "bart": _text(
        "seq2seq_lm",
        "bart",
        {
            "d_model": 128,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 512,
            "decoder_ffn_dim": 512,
        }
        | _TEXT,
    ),
    "gpt-neox, bfloat16": _text("causal_lm", "gpt_neox", precision=Precision.BFLOAT16),
    "bloom": _text("causal_lm", "bloom", {"hidden_size": 128, "n_layer": 2, "n_head": 4, "vocab_size": 1000}),
    "bert, evaluation": _text("masked_lm", "bert", mode=Mode.EVAL),
    "swin": _images(
        "swin", {"embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "patch_size": 4}
    ),
    "convnext": _images("convnext", {"depths": [2, 2, 2, 2], "hidden_sizes": [32, 64, 128, 256]}),
    "deit": _images("deit", _SMALL | {"patch_size": 8}),
    "mobilenet v2, sgd": _images("mobilenet_v2", {"depth_multiplier": 0.5}, **_SGD),
    "whisper": _own("whisper", "speech", convolutions=True),
    "clip": _own("clip", "texts_and_images", convolutions=True),
    "encoder with dropout": _own("encoder", "vectors"),
    "encoder, time first": _own("encoder_time_first", "vectors_time_first"),
    "nn.Transformer, tied": _own("Sequences", "tokens"),
    "mixer": _own("mixer", "vectors"),
    "gru": _own("gru", "vectors"),
    "lstm": _own("lstm", "vectors"),
    "lstm, eager": _own("lstm", "vectors", compile=CompileSettings(enabled=False)),
    "u-net": _own("UNet", "images_with_masks", loss="pixel_cross_entropy", convolutions=True),
    "group norm": _own("group_norm_net", "images", convolutions=True),
    "batch norm, sgd": _own("batch_norm_net", "images", convolutions=True, **_SGD),
    "batch norm, eager": _own("batch_norm_net", "images", convolutions=True, compile=CompileSettings(enabled=False)),
    "channels last": _own("channels_last_net", "images_channels_last", convolutions=True),
    "graph breaks": _own("Printing", "vectors"),
    "data-dependent size": _own("Selecting", "vectors"),
}
