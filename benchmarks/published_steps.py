"""Published times of single training passes and steps: jobs from their configurations, and what was measured of each.

No sweeps: a job has one size on a device, or two. Sources:

* sitar-lab/NeuSight (MIT), scripts/asplos/label: forward and backward, eager, float32 without tensor cores; no update.
* huggingface/pytorch-image-models (Apache 2.0), results/benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv: a step of a
  model at one size, mixed precision in float16.
* NVIDIA/DeepLearningExamples, PyTorch/Classification/ConvNets/resnet50v1.5/README.md: images a second of one device, at
  the sizes of its configs.yml; and sandeepkumar-skb/pytorch_experiments, torchvision_exp/README.md.
* karpathy/nanoGPT, README.md: an iteration without torch.compile, one A100 of eight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bexplore.job import CompileSettings, Job, Precision

AMP = Precision.AUTOCAST_BFLOAT16  # as fast as float16, and traced on every processor
H100, A100, L4, V100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA L4", "Tesla V100-SXM2-32GB"
A100_40GB, RTX_3090, V100_16GB = "NVIDIA A100-SXM4-40GB", "NVIDIA GeForce RTX 3090", "Tesla V100-SXM2-16GB"


# Scores in memory, as these programs have them: PyTorch 1.12 and NeuSight's programs know no fused attention.
_EAGER: dict[str, Any] = {"_attn_implementation": "eager"}


@dataclass(frozen=True)
class PublishedJob:
    """A job, and (device, micro-batch size, milliseconds) of its passes."""

    task: str
    model_type: str
    config: dict[str, Any]  # what differs from transformers' defaults
    points: tuple[tuple[str, int, float], ...]
    sequence_length: int | None = None
    precision: Precision = Precision.FLOAT32
    optimizer: str = ""  # of the update that is part of what was timed; empty for passes alone

    @property
    def job(self) -> Job:
        return Job(
            workload="transformers",
            model={"task": self.task, "model_type": self.model_type, "config": self.config},
            compile=CompileSettings(enabled=False),
            sequence_length=self.sequence_length,
            precision=self.precision,
            optimizer=self.optimizer or "SGD",
            optimizer_arguments={"lr": 0.1, "momentum": 0.9} if self.optimizer in ("", "SGD") else {"lr": 0.001},
        )


def _gpt(width: int, layers: int, heads: int, length: int, *points: tuple[str, int, float]) -> PublishedJob:
    config = {"n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": length} | _EAGER
    return PublishedJob("causal_lm", "gpt2", config, points, length)


def _images(
    model_type: str, *points: tuple[str, int, float], precision: Precision = AMP, **config: Any
) -> PublishedJob:
    own = {"num_labels": 1000} | config
    return PublishedJob("image_classification", model_type, own, points, None, precision, "SGD")


_BERT: dict[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
} | _EAGER
_OPT: dict[str, Any] = {"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32, "ffn_dim": 8192}
_OPT |= {"word_embed_proj_dim": 2048} | _EAGER
_SMALL_VIT: dict[str, Any] = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536} | _EAGER
_NANO_GPT = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0} | _EAGER
_BERT_POINTS = (
    (A100, 2, 213.18),  # its forward pass alone takes as long as the backward pass: 103.5 of 213 ms
    (A100, 8, 716.22),
    (H100, 2, 74.75),
    (H100, 8, 235.98),
    (L4, 2, 316.30),
    (L4, 8, 1275.44),
    (V100, 2, 234.26),
    (V100, 8, 841.12),
)
JOBS = {
    "BERT large": PublishedJob("masked_lm", "bert", _BERT, _BERT_POINTS, 512),
    "GPT-2 large": _gpt(
        *(1280, 36, 20, 1024),
        *((A100, 1, 524.05), (A100, 4, 1635.74), (H100, 1, 183.98), (H100, 4, 638.81)),
        *((L4, 1, 967.44), (V100, 1, 576.92)),
    ),
    "GPT-3 XL": _gpt(3072, 24, 24, 2048, (A100, 1, 2502.19), (H100, 1, 933.44)),
    "GPT-3 2.7B": _gpt(2560, 32, 32, 2048, (A100, 1, 3012.92), (H100, 1, 998.73)),
    "OPT 1.3B": PublishedJob(
        *("causal_lm", "opt", _OPT),
        ((A100, 1, 1369.51), (A100, 2, 3188.82), (H100, 1, 513.28), (H100, 2, 1015.92)),
        2048,
    ),
    "ViT base": _images("vit", (RTX_3090, 192, 487.73), **_EAGER),
    "ViT small": _images("vit", (RTX_3090, 384, 362.16), **_SMALL_VIT),
    "BEiT base": _images("beit", (RTX_3090, 192, 534.02), **_EAGER),
    "Swin tiny": _images("swin", (RTX_3090, 256, 393.64), **_EAGER),
    "ConvNeXt tiny": _images("convnext", (RTX_3090, 256, 311.54)),
    "PoolFormer S24": _images("poolformer", (RTX_3090, 256, 369.79), depths=[4, 4, 12, 4]),
    "ResNet-101": _images("resnet", (RTX_3090, 256, 340.74), depths=[3, 4, 23, 3]),
    "ResNet-50": _images("resnet", (A100, 256, 256 / 2470 * 1e3)),
    "ResNet-50, float32": _images(
        "resnet", (V100_16GB, 112, 112 / 367 * 1e3), (V100, 128, 342.37), precision=Precision.FLOAT32
    ),
    "GPT-2 small": PublishedJob("causal_lm", "gpt2", _NANO_GPT, ((A100_40GB, 12, 250.0),), 1024, AMP, "AdamW"),
}
