"""Jobs that are traced for a CUDA device that is not there: twelve more models, eager ones, published ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.trace_jobs import transformers_job
from bexplore.job import CompileSettings, Job, Precision

_FOLDER = str(Path(__file__).parent / "jobs")
_HALF = {"device": "cuda", "precision": Precision.AUTOCAST_BFLOAT16}


def _text(model_type: str, config: dict[str, Any], *, task: str = "causal_lm", **fields: Any) -> Job:
    return transformers_job(task, model_type, config, **{"sequence_length": 512} | _HALF | fields)


def _images(model_type: str, config: dict[str, Any], **fields: Any) -> Job:
    return transformers_job(
        "image_classification", model_type, {"num_labels": 1000} | config, data={"image_size": 224}, **_HALF | fields
    )


def _own(model: str, batch: str, *, loss: str | None = None, **fields: Any) -> Job:
    paths = {"model": f"traced_models:{model}", "batch": f"traced_models:{batch}"}
    if loss:
        paths["loss"] = f"traced_models:{loss}"
    return Job(workload="imported", model=paths, import_root=_FOLDER, **_HALF | fields)


_SMALL_LLAMA = {
    "num_hidden_layers": 8,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 1376,
    "vocab_size": 32000,
    "max_position_embeddings": 1024,
}
_SGD = {"optimizer": "SGD", "optimizer_arguments": {"lr": 0.1, "momentum": 0.9}}
_RESNET_50 = {
    "layer_type": "bottleneck",
    "depths": [3, 4, 6, 3],
    "hidden_sizes": [256, 512, 1024, 2048],
    "embedding_size": 64,
}
_BART_BASE = {
    "d_model": 768,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "encoder_attention_heads": 12,
    "decoder_attention_heads": 12,
    "encoder_ffn_dim": 3072,
    "decoder_ffn_dim": 3072,
}

# Chosen before any of them was traced for CUDA, and not exchanged since.
MORE_JOBS: dict[str, Job] = {
    "mixtral, 4 experts": _text("mixtral", _SMALL_LLAMA | {"num_local_experts": 4, "intermediate_size": 1024}),
    "t5 small": _text(
        "t5",
        {"num_layers": 6, "d_model": 512, "d_kv": 64, "num_heads": 8, "d_ff": 2048, "vocab_size": 32128},
        task="seq2seq_lm",
    ),
    "resnet 50, sgd": _images("resnet", _RESNET_50, **_SGD),
    "u-net, group norm": _own("group_norm_unet", "images_with_masks", loss="pixel_cross_entropy"),
    "convnext tiny": _images("convnext", {"depths": [3, 3, 9, 3], "hidden_sizes": [96, 192, 384, 768]}),
    "whisper, small": _own("whisper", "speech"),
    "clip, small": _own("clip", "texts_and_images"),
    "mamba, 32 tokens": _text(
        "mamba",
        {"hidden_size": 256, "num_hidden_layers": 8, "state_size": 16, "vocab_size": 32000},
        sequence_length=32,
    ),
    "gemma": _text("gemma", _SMALL_LLAMA),
    "mistral, window of 256": _text("mistral", _SMALL_LLAMA | {"sliding_window": 256}),
    "swin tiny": _images("swin", {"embed_dim": 96, "depths": [2, 2, 6, 2], "num_heads": [3, 6, 12, 24]}),
    "bart base": _text("bart", _BART_BASE, task="seq2seq_lm"),
}

_EAGER = {"compile": CompileSettings(backend="eager")}
_GPT = {"num_layers": 4, "hidden_size": 512, "num_heads": 8, "vocab_size": 8192, "max_position_embeddings": 512}
_BERT = {
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "intermediate_size": 2048,
    "vocab_size": 8192,
}

EAGER_JOBS: dict[str, Job] = {
    "gpt, float32": Job(workload="decoder", model=_GPT, sequence_length=512, device="cuda", **_EAGER),
    "gpt, autocast, clipped": Job(
        workload="decoder", model=_GPT, sequence_length=512, max_gradient_norm=1.0, **_HALF | _EAGER
    ),
    "bert with dropout, autocast": _text("bert", _BERT, task="masked_lm", **_EAGER),
    "llama, bfloat16": _text(
        "llama", _SMALL_LLAMA | {"num_hidden_layers": 4}, **_EAGER | {"precision": Precision.BFLOAT16}
    ),
    "llama, autocast float16": _text(
        "llama", _SMALL_LLAMA | {"num_hidden_layers": 4}, **_EAGER | {"precision": Precision.AUTOCAST_FLOAT16}
    ),
    "resnet 50, sgd, autocast": _images("resnet", _RESNET_50, **_SGD | _EAGER),
    "u-net, group norm, float32": _own(
        "group_norm_unet", "images_with_masks", loss="pixel_cross_entropy", **_EAGER | {"precision": Precision.FLOAT32}
    ),
    "gpt, autocast, aot_eager": Job(
        workload="decoder", model=_GPT, sequence_length=512, **_HALF, compile=CompileSettings(backend="aot_eager")
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedJob:
    """A job rebuilt after a published one.

    Attributes:
        job: As near to the published one as bexplore can be told.
        model: Its name in the published table.
        differs: What is known to differ, beside what differs for all of them.
    """

    job: Job
    model: str
    differs: str


_AS_PUBLISHED = {"device": "cuda", "compile": CompileSettings(enabled=False)}
_FLOAT16 = _AS_PUBLISHED | {"precision": Precision.AUTOCAST_FLOAT16}
_FLOAT32 = _AS_PUBLISHED | {"precision": Precision.FLOAT32}
_ADAM = {"optimizer": "Adam", "optimizer_arguments": {"lr": 0.001}}
_PLAIN_SGD = {"optimizer": "SGD", "optimizer_arguments": {"lr": 0.01}}
_BERT_BASE = {
    "num_hidden_layers": 12,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
}
_CONVNEXT_LARGE = {"depths": [3, 3, 27, 3], "hidden_sizes": [192, 384, 768, 1536], "drop_path_rate": 0.5}
_FRESH_GRADIENTS = "gradients are dropped at every step there, kept between two passes here"
_LOGITS = "the logits live through the backward pass there: {:.0f} MiB a sample"


def _bert(**fields: Any) -> Job:
    return _text("bert", _BERT_BASE, task="masked_lm", **_ADAM | fields)


PUBLISHED_JOBS: tuple[PublishedJob, ...] = (
    PublishedJob(job=_bert(**_FLOAT16), model="bert-fp16", differs=_LOGITS.format(512 * 30522 * 2 / 2**20)),
    PublishedJob(job=_bert(**_FLOAT32), model="bert-fp32", differs=_LOGITS.format(512 * 30522 * 4 / 2**20)),
    PublishedJob(job=_bert(**_FLOAT32), model="bert-tf32", differs=_LOGITS.format(512 * 30522 * 4 / 2**20)),
    PublishedJob(
        job=_own("t5_small_eager_attention", "long_texts", **_ADAM | _FLOAT16),
        model="t5",
        differs=_LOGITS.format(1024 * 32128 * 2 / 2**20)
        + "; transformers 4.49 takes the softmax of attention in float32 and casts it back",
    ),
    PublishedJob(
        job=_own("whisper_tiny_classifier", "long_speech", **_ADAM | _FLOAT16),
        model="whisper",
        differs="",
    ),
    PublishedJob(
        job=_own("resnet_50_channels_last", "large_images_channels_last", **_PLAIN_SGD | _FLOAT16),
        model="resnet50",
        differs=f"{_FRESH_GRADIENTS}; the images are float16 there; torchvision's model, ReLU in place",
    ),
    PublishedJob(
        job=_images("convnext", _CONVNEXT_LARGE, **_PLAIN_SGD | _FLOAT16),
        model="convnext_large-fp16",
        differs=f"{_FRESH_GRADIENTS}; the images are float16 there; torchvision's model",
    ),
    PublishedJob(
        job=_images("convnext", _CONVNEXT_LARGE, **_PLAIN_SGD | _FLOAT32),
        model="convnext_large-fp32",
        differs=f"{_FRESH_GRADIENTS}; torchvision's model",
    ),
    PublishedJob(
        job=_text(
            "reformer",
            {"num_buckets": 128, "max_position_embeddings": 4096},
            task="masked_lm",
            **_ADAM | _FLOAT16 | {"sequence_length": 4096},
        ),
        model="reformer",
        differs=_LOGITS.format(4096 * 320 * 2 / 2**20),
    ),
)
