"""Operations of a pass of 37 architectures by the trace, beside those in closed form from their configurations.

Conventions: matrix products, convolutions and attention count, a multiplication and an addition as two; attention
without its causal half; of a mixture of experts those that each token meets. A training step is three times the forward
pass, less the gradient of the images, which is not needed.

    python -m benchmarks.operations
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine_facts import machine_facts
from bexplore.job import CompileSettings, Job, Mode
from bexplore.trace.tracer import trace_job

T, H, N, KV, D, F, V, L = 64, 64, 4, 2, 16, 160, 500, 3  # tokens, width, heads, key heads, head, inner, words, layers
E, K, S = 8, 2, 96  # experts, those of a token, their inner width


def attention(width: int = H, heads: int = N, keys: int = KV, head: int = D, tokens: int = T, seen: int = 0) -> int:
    """Four projections and two products with the keys, of `tokens` queries; `seen` keys of another sequence."""
    projections = 2 * width * head * (2 * heads * tokens + 2 * keys * (seen or tokens))
    return projections + 4 * tokens * (seen or tokens) * heads * head


def feed_forward(width: int = H, inner: int = F, matrices: int = 3, tokens: int = T) -> int:
    return 2 * tokens * width * inner * matrices


def experts(inner: int = S, chosen: int = K, number: int = E, shared: int = 0) -> int:
    router = 2 * T * H * number
    return router + chosen * feed_forward(inner=inner) + (feed_forward(inner=shared) if shared else 0)


def decoder(layer: int, layers: int = L, head: int = 2 * T * H * V) -> int:
    return layers * layer + head


USUAL = attention() + feed_forward()
FULL = attention(keys=N)  # as many keys as queries
OLD = FULL + feed_forward(matrices=2)
# Deep compression of keys: widths of the compressed query and key, and the parts of a head with and without a rotation.
Q_RANK, KV_RANK, ROTATED, PLAIN = 48, 32, 8, 16
LATENT = (
    2 * T * (H * Q_RANK + Q_RANK * N * (ROTATED + PLAIN) + H * (KV_RANK + ROTATED) + KV_RANK * N * (PLAIN + PLAIN))
    + 2 * T * N * PLAIN * H
    + 2 * T * T * N * (ROTATED + PLAIN + PLAIN)
)

_USUAL = {
    "vocab_size": V,
    "hidden_size": H,
    "num_hidden_layers": L,
    "num_attention_heads": N,
    "intermediate_size": F,
    "max_position_embeddings": 2 * T,
    "pad_token_id": 0,
}
_GROUPED = _USUAL | {"num_key_value_heads": KV, "head_dim": D}
_GPT = {"vocab_size": V, "n_embd": H, "n_layer": L, "n_head": N, "n_positions": 2 * T, "n_inner": F}
_MOE = _GROUPED | {"num_experts_per_tok": K}


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model of transformers, with the operations of its forward pass of one sample.

    Attributes:
        first: Of these, those of the first layer, whose input is no parameter and needs no gradient.
    """

    task: str
    config: Mapping[str, Any]
    forward: int
    first: int = 0


def text(config: Mapping[str, Any], layer: int, **more: Any) -> Architecture:
    return Architecture("causal_lm", config, decoder(layer, **more))


PATCHES, IMAGE, CHANNELS = 16, 32, 3
_VIT = {
    "hidden_size": H,
    "num_hidden_layers": L,
    "num_attention_heads": N,
    "intermediate_size": F,
    "image_size": IMAGE,
    "patch_size": 8,
    "num_labels": 10,
}
PATCH = 2 * PATCHES * H * CHANNELS * 8 * 8


def vision() -> int:
    tokens = PATCHES + 1  # one stands for the class
    layer = attention(keys=N, tokens=tokens) + feed_forward(matrices=2, tokens=tokens)
    return L * layer + PATCH + 2 * H * 10


def convolution(side: int, inputs: int, outputs: int, kernel: int = 1) -> int:
    """A convolution with `side` x `side` results; of single channels with one input."""
    return 2 * side**2 * inputs * outputs * kernel**2


STEM = 2 * 112**2 * CHANNELS * 32 * 9  # of MobileNetV2 and EfficientNet, for images of 224 x 224


def residual(side: int, inputs: int, outputs: int, kernel: int, *, stride: int, times: int, squeezed: int = 0) -> int:
    """An inverted residual block (Sandler et al. 2018, table 1), with the squeezed width of Tan and Le 2019."""
    inner = times * inputs
    widen = convolution(side, inputs, inner) if times > 1 else 0
    narrow = convolution(side // stride, inner, outputs)
    return widen + convolution(side // stride, 1, inner, kernel) + narrow + 2 * convolution(1, inner, squeezed)


def mobile(stages: Sequence[tuple[int, int, int, int, int]], *, squeezes: bool) -> int:
    """Stages of blocks: repeats, outputs, kernel, stride, times; then 1280 channels and ten classes."""
    total, side, inputs = STEM, 112, 32
    for repeats, outputs, kernel, stride, times in stages:
        for number in range(repeats):
            squeezed, step = inputs // 4 if squeezes else 0, 1 if number else stride
            total += residual(side, inputs, outputs, kernel, stride=step, times=times, squeezed=squeezed)
            side, inputs = side // step, outputs
    return total + convolution(side, inputs, 1280) + 2 * 1280 * 10


# Table 2 of Sandler et al. 2018, and table 1 of Tan and Le 2019 (B0).
MOBILENET_V2 = (
    (1, 16, 3, 1, 1),
    (2, 24, 3, 2, 6),
    (3, 32, 3, 2, 6),
    (4, 64, 3, 2, 6),
    (3, 96, 3, 1, 6),
    (3, 160, 3, 2, 6),
    (1, 320, 3, 1, 6),
)
EFFICIENTNET_B0 = (
    (1, 16, 3, 1, 1),
    (2, 24, 3, 2, 6),
    (2, 40, 5, 2, 6),
    (3, 80, 3, 2, 6),
    (3, 112, 5, 1, 6),
    (4, 192, 5, 2, 6),
    (1, 320, 3, 1, 6),
)
_LABELS = {"num_labels": 10}
_B0 = _LABELS | {"image_size": 224, "width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280}
CONVNEXT_STEM = convolution(56, CHANNELS, 96, 4)


def convnext() -> int:
    """ConvNeXt-T (Liu et al. 2022): a convolution of single channels and two products a block."""
    total, side = CONVNEXT_STEM, 56
    for depth, width in ((3, 96), (3, 192), (9, 384), (3, 768)):
        total += depth * (convolution(side, 1, width, 7) + 2 * convolution(side, width, 4 * width))
        if width < 768:
            side //= 2
            total += convolution(side, width, 2 * width, 2)
    return total + 2 * 768 * 10


ARCHITECTURES: dict[str, Architecture] = {
    "gpt2": text(_GPT, OLD),
    "gpt_neo": text(
        {
            "vocab_size": V,
            "hidden_size": H,
            "num_layers": L,
            "num_heads": N,
            "intermediate_size": F,
            "max_position_embeddings": 2 * T,
            "attention_types": [[["global"], L]],
        },
        OLD,
    ),
    "gptj": text(_GPT | {"rotary_dim": 8}, OLD),
    "gpt_bigcode": text(_GPT, attention(keys=1) + feed_forward(matrices=2)),
    "gpt_neox": text(_USUAL, OLD),
    "opt": text(_USUAL | {"ffn_dim": F, "word_embed_proj_dim": H}, OLD),
    "bloom": text(
        {"vocab_size": V, "hidden_size": H, "n_layer": L, "n_head": N, "pad_token_id": 0},
        FULL + feed_forward(inner=4 * H, matrices=2),
    ),
    "codegen": text(_GPT | {"rotary_dim": 8, "n_ctx": 2 * T}, OLD),
    "phi": text(_USUAL, OLD),
    "llama": text(_GROUPED, USUAL),
    "mistral": text(_GROUPED, USUAL),
    "qwen2": text(_GROUPED, USUAL),
    "qwen3": text(_GROUPED, USUAL),
    "gemma": text(_GROUPED, USUAL),
    "gemma2": text(_GROUPED, USUAL),
    "phi3": text(_GROUPED, USUAL),
    "olmo2": text(_GROUPED, USUAL),
    "granite": text(_GROUPED, USUAL),
    "stablelm": text(_GROUPED, USUAL),
    "starcoder2": text(_GROUPED, attention() + feed_forward(matrices=2)),
    "cohere": text(_GROUPED, USUAL),
    "mixtral": text(_MOE | {"num_local_experts": E, "intermediate_size": S}, attention() + experts()),
    "qwen2_moe": text(
        _MOE | {"num_experts": E, "moe_intermediate_size": S, "shared_expert_intermediate_size": F},
        attention() + experts(shared=F) + 2 * T * H,
    ),  # a gate of the shared expert
    "qwen3_moe": text(_MOE | {"num_experts": E, "moe_intermediate_size": S}, attention() + experts()),
    "olmoe": text(_MOE | {"num_experts": E, "intermediate_size": S}, attention() + experts()),
    "granitemoe": text(_MOE | {"num_local_experts": E, "intermediate_size": S}, attention() + experts()),
    "gpt_oss": text(_MOE | {"num_local_experts": E, "intermediate_size": S}, attention() + experts()),
    "deepseek_v3": text(
        _USUAL
        | {
            "num_experts_per_tok": K,
            "n_routed_experts": E,
            "n_shared_experts": 1,
            "moe_intermediate_size": S,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 0,
            "q_lora_rank": Q_RANK,
            "kv_lora_rank": KV_RANK,
            "qk_rope_head_dim": ROTATED,
            "qk_nope_head_dim": PLAIN,
            "v_head_dim": PLAIN,
            "num_key_value_heads": N,
        },
        LATENT + experts(shared=S),
    ),
    "bert": Architecture("masked_lm", _USUAL, decoder(OLD) + 2 * T * H * H),  # a layer before the words
    "roberta": Architecture("masked_lm", _USUAL | {"max_position_embeddings": 2 * T + 2}, decoder(OLD) + 2 * T * H * H),
    "distilbert": Architecture(
        "masked_lm",
        {"vocab_size": V, "dim": H, "n_layers": L, "n_heads": N, "hidden_dim": F},
        decoder(OLD) + 2 * T * H * H,
    ),
    "t5": Architecture(
        "seq2seq_lm",
        {"vocab_size": V, "d_model": H, "d_kv": D, "num_layers": L, "num_heads": N, "d_ff": F},
        2 * L * OLD + L * FULL + 2 * T * H * V,
    ),
    "bart": Architecture(
        "seq2seq_lm",
        {
            "vocab_size": V,
            "d_model": H,
            "encoder_layers": L,
            "decoder_layers": L,
            "encoder_attention_heads": N,
            "decoder_attention_heads": N,
            "encoder_ffn_dim": F,
            "decoder_ffn_dim": F,
            "max_position_embeddings": 2 * T,
        },
        2 * L * OLD + L * FULL + 2 * T * H * V,
    ),
    "vit": Architecture("image_classification", _VIT, vision(), PATCH),
    "mobilenet_v2": Architecture("image_classification", _LABELS, mobile(MOBILENET_V2, squeezes=False), STEM),
    "efficientnet": Architecture("image_classification", _B0, mobile(EFFICIENTNET_B0, squeezes=True), STEM),
    "convnext": Architecture("image_classification", _LABELS, convnext(), CONVNEXT_STEM),
}


# Compiled, too: one of each kind, as each takes ten seconds.
COMPILED = ("gpt2", "llama", "mixtral", "qwen2_moe", "gpt_oss", "deepseek_v3", "bart", "vit", "mobilenet_v2")
RESULTS = Path(__file__).parent / "results"


def count(name: str, mode: Mode, *, compiled: bool = False) -> tuple[float, float]:
    """Return the operations of a sample by the trace, and those in closed form."""
    architecture = ARCHITECTURES[name]
    model = {"task": architecture.task, "model_type": name, "config": dict(architecture.config)}
    length: dict[str, Any] = {} if architecture.task.startswith("image") else {"sequence_length": T}
    settings = CompileSettings(enabled=compiled)
    traced = trace_job(Job(workload="transformers", model=model, mode=mode, compile=settings, **length))
    if traced.unknown:
        raise ValueError(f"{name}: operations of {', '.join(traced.unknown)} are not known")
    by_hand = architecture.forward if mode is Mode.EVAL else 3 * architecture.forward - architecture.first
    return traced.flops_per_sample, by_hand


def main() -> None:
    """Count, and write the results."""
    rows: list[dict[str, Any]] = []
    for name in ARCHITECTURES:
        for compiled in (False, True) if name in COMPILED else (False,):
            for mode in Mode:
                traced, by_hand = count(name, mode, compiled=compiled)
                rows.append({"name": name, "mode": mode, "compiled": compiled, "traced": traced, "by_hand": by_hand})
    report = {"machine": machine_facts(), "rows": rows}
    (RESULTS / "operations.json").write_text(json.dumps(report, indent=1) + "\n")
    (RESULTS / "operations.md").write_text(describe(report))
    print(describe(report))


def describe(report: Mapping[str, Any]) -> str:
    """Return the report as Markdown."""
    lines = [
        "# Operations by the trace and in closed form",
        "",
        f"`python -m benchmarks.operations`: torch {report['machine']['torch']}, millions of operations a sample.",
        "",
        "| architecture | pass | program | traced | by hand | error % |",
        "| --- | --- | --- | ---: | ---: | ---: |",
    ]
    worst = 0.0
    for row in report["rows"]:
        error = 100 * (row["traced"] / row["by_hand"] - 1)
        worst = max(worst, abs(error))
        program = "compiled" if row["compiled"] else "eager"
        numbers = f"{row['traced'] / 1e6:.3f} | {row['by_hand'] / 1e6:.3f} | {error:+.3f}"
        lines.append(f"| {row['name']} | {row['mode']} | {program} | {numbers} |")
    number = len({row["name"] for row in report["rows"]})
    lines += ["", f"The largest error of {len(report['rows'])} programs of {number} architectures is {worst:.3f} %."]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
