"""The jobs on which the trace is held against the allocator: small enough for two processor cores, deep enough to
exercise what is left out of a deep model, each with sizes 16 times apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bexplore.job import CompileSettings, Job, Mode, Precision

_GPT = {"num_layers": 6, "hidden_size": 128, "num_heads": 4, "vocab_size": 4096, "max_position_embeddings": 256}
_LLAMA = _GPT | {
    "position_embedding": "rotary",
    "norm": "rmsnorm",
    "activation": "swiglu",
    "intermediate_size": 344,
    "use_bias": False,
    "tie_embeddings": False,
    "num_key_value_heads": 2,
}
_SGD = {"optimizer": "SGD", "optimizer_arguments": {"lr": 0.01, "momentum": 0.9}}


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedJob:
    """A job and the sizes at which its peak is measured.

    Attributes:
        job: What is traced and run.
        sizes: Micro-batch sizes, growing.
        has_convolutions: Whether opaque workspaces are expected.
    """

    job: Job
    sizes: tuple[int, ...]
    has_convolutions: bool = False


def transformers_job(task: str, model_type: str, config: Mapping[str, object], **fields: object) -> Job:
    """A job of the library's own models."""
    model = {"task": task, "model_type": model_type, "config": dict(config)}
    return Job(workload="transformers", model=model, **fields)


_GPT2_CONFIG = {"n_layer": 6, "n_embd": 128, "n_head": 4, "vocab_size": 4096, "n_positions": 256}
_LLAMA_CONFIG = {
    "num_hidden_layers": 6,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 344,
    "vocab_size": 4096,
    "max_position_embeddings": 256,
}
_BERT_CONFIG = {
    "num_hidden_layers": 6,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "vocab_size": 4096,
}
_T5_CONFIG = {
    "num_layers": 6,
    "d_model": 128,
    "d_kv": 32,
    "num_heads": 4,
    "d_ff": 512,
    "vocab_size": 4096,
}
_VIT_CONFIG = {
    "num_hidden_layers": 6,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "image_size": 112,
    "patch_size": 8,
    "num_labels": 100,
}
_RESNET_CONFIG = {
    "layer_type": "basic",
    "depths": [2, 2, 2, 2],
    "hidden_sizes": [32, 64, 128, 256],
    "embedding_size": 32,
    "num_labels": 100,
}

JOBS: dict[str, TracedJob] = {
    "gpt adamw": TracedJob(job=Job(workload="decoder", model=_GPT, sequence_length=256), sizes=(4, 16, 64)),
    "gpt bfloat16 sgd": TracedJob(
        job=Job(workload="decoder", model=_GPT, sequence_length=256, precision=Precision.BFLOAT16, **_SGD),
        sizes=(8, 128),
    ),
    "gpt autocast clipped": TracedJob(
        job=Job(
            workload="decoder",
            model=_GPT,
            sequence_length=256,
            precision=Precision.AUTOCAST_BFLOAT16,
            max_gradient_norm=1.0,
        ),
        sizes=(4, 64),
    ),
    "gpt dropout": TracedJob(
        job=Job(workload="decoder", model=_GPT | {"dropout": 0.1}, sequence_length=256), sizes=(4, 64)
    ),
    "gpt eager": TracedJob(
        job=Job(workload="decoder", model=_GPT, sequence_length=256, compile=CompileSettings(enabled=False)),
        sizes=(4, 64),
    ),
    "gpt evaluation": TracedJob(
        job=Job(workload="decoder", model=_GPT, sequence_length=256, mode=Mode.EVAL), sizes=(16, 256)
    ),
    "llama sgd": TracedJob(job=Job(workload="decoder", model=_LLAMA, sequence_length=256, **_SGD), sizes=(4, 64)),
    "llama checkpointed": TracedJob(
        job=Job(workload="decoder", model=_LLAMA, sequence_length=256, activation_checkpointing="full"),
        sizes=(8, 32, 128),
    ),
    "transformers gpt2": TracedJob(
        job=transformers_job("causal_lm", "gpt2", _GPT2_CONFIG, sequence_length=256), sizes=(4, 16, 64)
    ),
    "transformers gpt2 checkpointed": TracedJob(
        job=transformers_job("causal_lm", "gpt2", _GPT2_CONFIG, sequence_length=256, activation_checkpointing="full"),
        sizes=(8, 128),
    ),
    "transformers llama bfloat16": TracedJob(
        job=transformers_job("causal_lm", "llama", _LLAMA_CONFIG, sequence_length=256, precision=Precision.BFLOAT16),
        sizes=(8, 128),
    ),
    "transformers bert": TracedJob(
        job=transformers_job("masked_lm", "bert", _BERT_CONFIG, sequence_length=256), sizes=(4, 64)
    ),
    "transformers t5": TracedJob(
        job=transformers_job("seq2seq_lm", "t5", _T5_CONFIG, sequence_length=128), sizes=(4, 64)
    ),
    "transformers vit": TracedJob(
        job=transformers_job("image_classification", "vit", _VIT_CONFIG), sizes=(8, 128), has_convolutions=True
    ),
    "transformers resnet": TracedJob(
        job=transformers_job("image_classification", "resnet", _RESNET_CONFIG, **_SGD),
        sizes=(4, 16, 64),
        has_convolutions=True,
    ),
}

_LONG = {"max_position_embeddings": 2048}
_SMALLEST = (1, 2, 3)

# At one, two or three samples the compiler may decide otherwise than at many, and there lies the limit of a big model.
JOBS |= {
    "gpt, 2048 tokens": TracedJob(
        job=Job(workload="decoder", model=_GPT | _LONG, sequence_length=2048), sizes=_SMALLEST
    ),
    "gpt bfloat16, 2048 tokens": TracedJob(
        job=Job(workload="decoder", model=_GPT | _LONG, sequence_length=2048, precision=Precision.BFLOAT16, **_SGD),
        sizes=_SMALLEST,
    ),
    "llama checkpointed, 4096 tokens": TracedJob(
        job=Job(
            workload="decoder",
            model=_LLAMA | {"max_position_embeddings": 4096},
            sequence_length=4096,
            activation_checkpointing="full",
        ),
        sizes=_SMALLEST,
    ),
    "transformers gpt2, 2048 tokens": TracedJob(
        job=transformers_job("causal_lm", "gpt2", _GPT2_CONFIG | {"n_positions": 2048}, sequence_length=2048),
        sizes=_SMALLEST,
    ),
    "transformers bert, 1024 tokens": TracedJob(
        job=transformers_job(
            "masked_lm", "bert", _BERT_CONFIG | {"max_position_embeddings": 1024}, sequence_length=1024
        ),
        sizes=_SMALLEST,
    ),
    "transformers t5, 512 tokens": TracedJob(
        job=transformers_job("seq2seq_lm", "t5", _T5_CONFIG | {"num_layers": 2}, sequence_length=512), sizes=_SMALLEST
    ),
    "transformers vit, 448 pixels": TracedJob(
        job=transformers_job("image_classification", "vit", _VIT_CONFIG | {"image_size": 448}),
        sizes=_SMALLEST,
        has_convolutions=True,
    ),
    "transformers resnet, 896 pixels": TracedJob(
        job=transformers_job("image_classification", "resnet", _RESNET_CONFIG, data={"image_size": 896}, **_SGD),
        sizes=_SMALLEST,
        has_convolutions=True,
    ),
}

QUICK_JOBS = ("gpt adamw", "llama checkpointed", "transformers resnet")

DEEP_JOBS: dict[str, TracedJob] = {  # only traced: for the cost of a trace
    "gpt-2 small, 12 layers, 1024 tokens": TracedJob(job=Job(workload="decoder", model={}), sizes=(1, 8, 64)),
    "llama 7b, 32 layers, 2048 tokens": TracedJob(
        job=Job(
            workload="decoder",
            model=_LLAMA
            | {
                "num_layers": 32,
                "hidden_size": 4096,
                "num_heads": 32,
                "num_key_value_heads": 32,
                "intermediate_size": 11008,
                "vocab_size": 32000,
                "max_position_embeddings": 2048,
            },
            precision=Precision.BFLOAT16,
        ),
        sizes=(1, 8, 64),
    ),
}
