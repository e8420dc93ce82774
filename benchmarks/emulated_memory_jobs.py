"""Sixteen small models whose memory is traced, and measured by PyTorch's allocator on an emulated device."""

from __future__ import annotations

import dataclasses
from typing import Any

from benchmarks.trace_cuda_jobs import EAGER_JOBS, MORE_JOBS
from benchmarks.trace_jobs import transformers_job
from bexplore.job import CompileSettings, Job, Precision

_EAGER = CompileSettings(enabled=False)
_VIT = {"num_hidden_layers": 2, "hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}


def _shortened(job: Job, **fields: Any) -> Job:
    """The same job with fewer layers, since the host compiles each; `config` is part of its model."""
    config = fields.pop("config", {})
    model = {**job.model, "config": {**job.model["config"], **config}} if config else job.model
    return dataclasses.replace(job, model=model, compile=CompileSettings(), **fields)


_TWO = {"num_hidden_layers": 2}
# Model -> the job as it is compiled, and two sizes.
_COMPILED: dict[str, tuple[Job, tuple[int, int]]] = {
    "gpt, clipped": (_shortened(EAGER_JOBS["gpt, autocast, clipped"]), (4, 32)),
    "bert, dropout": (_shortened(EAGER_JOBS["bert with dropout, autocast"], config=_TWO), (4, 64)),
    "llama, bfloat16": (_shortened(EAGER_JOBS["llama, bfloat16"], config=_TWO), (4, 32)),
    "vit, float32": (
        transformers_job(
            "image_classification",
            "vit",
            _VIT | {"image_size": 224, "num_labels": 1000},
            device="cuda",
            precision=Precision.FLOAT32,
        ),
        (8, 64),
    ),
    "mixtral, 4 experts": (_shortened(MORE_JOBS["mixtral, 4 experts"], config=_TWO), (4, 32)),
    "t5": (_shortened(MORE_JOBS["t5 small"], config={"num_layers": 2}), (4, 32)),
    "resnet, bottlenecks": (
        _shortened(MORE_JOBS["resnet 50, sgd"], config={"depths": [1, 2, 2, 1]}),
        (16, 128),
    ),
    "u-net, group norm": (_shortened(MORE_JOBS["u-net, group norm"]), (8, 64)),
    "convnext": (_shortened(MORE_JOBS["convnext tiny"], config={"depths": [1, 1, 2, 1]}), (8, 64)),
    "whisper": (_shortened(MORE_JOBS["whisper, small"]), (32, 512)),
    "clip": (_shortened(MORE_JOBS["clip, small"]), (64, 1024)),
    "mamba, 32 tokens": (_shortened(MORE_JOBS["mamba, 32 tokens"], config=_TWO), (8, 64)),
    "gemma, float16": (
        _shortened(MORE_JOBS["gemma"], config=_TWO, precision=Precision.AUTOCAST_FLOAT16),
        (4, 32),
    ),
    "mistral, window of 256": (_shortened(MORE_JOBS["mistral, window of 256"], config=_TWO), (4, 32)),
    "swin": (_shortened(MORE_JOBS["swin tiny"], config={"depths": [1, 1, 2, 1]}), (8, 64)),
    "bart": (_shortened(MORE_JOBS["bart base"], config={"encoder_layers": 2, "decoder_layers": 2}), (4, 32)),
}

# Name -> the job, and two sizes.
JOBS: dict[str, tuple[Job, tuple[int, int]]] = {
    f"{name}, {way}": (job if way == "compiled" else dataclasses.replace(job, compile=_EAGER), sizes)
    for name, (job, sizes) in _COMPILED.items()
    for way in ("eager", "compiled")
}

# Jobs that differ by more than 2.5 %, and why.
EXPLAINED = {
    "vit, float32, eager": "two more activations of one layer live in the backward pass of the second layer's "
    "perceptron; which operator takes them was not found.",
    "mamba, 32 tokens, compiled": "the compiler's program of 64 samples holds a larger buffer of the scan (128 MiB "
    "where the traced one, of a prime number of samples, has 64); why it chooses so was not found.",
    "mixtral, 4 experts, eager": "PyTorch refuses `grouped_mm` of float32 on fake tensors, and computes it on "
    "a device; without a trace the exploration goes on.",
    "clip, compiled": "the trace counts a workspace of cuDNN's attention like that of FlashAttention; the real "
    "one is not published, and the emulated library asks for none.",
}
