"""Megatron-LM's and Megatron-Bridge's YAML; accumulation is derived from the global batch."""

from __future__ import annotations

from collections.abc import Iterator

from bexplore.config.dialects.family import Family, Signature
from bexplore.config.dialects.numbers import Numbers
from bexplore.config.document.values import Values


def rules_of_megatron(numbers: Numbers, values: Values) -> Iterator[str]:
    """Yield the objection of Megatron's calculator of micro-batches.

    Source: megatron.core.num_microbatches_calculator: ConstantNumMicroBatchesCalculator.
    """
    total, micro, replicas = numbers.global_batch_size, numbers.micro_batch_size, numbers.num_replicas
    if total and micro and total % (micro * (replicas or 1)):
        times = f" x data-parallel size {replicas}" if replicas else ""
        yield f"global batch size {total} is not divisible by micro-batch size {micro}{times}"


MEGATRON_BRIDGE = Family(
    name="megatron-bridge",
    title="Megatron-Bridge",
    source="megatron.bridge.training.config: TrainingConfig, ConfigContainer",
    signatures=(
        Signature(
            any_of=("train.micro_batch_size", "train.global_batch_size"),
            none_of=("train.max_seq_length", "train.lr_warmup_steps", "checkpoint_dir"),
        ),
    ),
    micro_batch_size=("train.micro_batch_size",),
    global_batch_size=("train.global_batch_size",),
    sequence_length=("model.seq_length", "dataset.sequence_length", "dataset.seq_length"),
    output_dir=("checkpoint.save",),
    memory=(
        "model.recompute_granularity",
        "model.recompute_method",
        "model.recompute_num_layers",
        "model.tensor_model_parallel_size",
        "model.pipeline_model_parallel_size",
        "model.context_parallel_size",
        "model.expert_model_parallel_size",
        "model.sequence_parallel",
        "mixed_precision",
        "ddp",
        "optimizer.use_distributed_optimizer",
    ),
    rules=rules_of_megatron,
    note="give the data-parallel size as --replicas",
)

_ARGS = "MODEL_ARGS.--"

MEGATRON_LM = Family(
    name="megatron-lm",
    title="Megatron-LM",
    source="megatron.training.arguments: validate_args; megatron.training.yaml_arguments",
    signatures=(
        Signature(any_of=("language_model",), all_of=("micro_batch_size",)),
        Signature(any_of=(f"{_ARGS}micro-batch-size", f"{_ARGS}global-batch-size")),
    ),
    micro_batch_size=("micro_batch_size", f"{_ARGS}micro-batch-size"),
    global_batch_size=("global_batch_size", f"{_ARGS}global-batch-size"),
    sequence_length=("seq_length", "encoder_seq_length", f"{_ARGS}seq-length"),
    output_dir=("save", f"{_ARGS}save"),
    memory=(
        "model_parallel",
        "language_model",
        "use_distributed_optimizer",
        *(
            f"{_ARGS}{name}"
            for name in (
                "recompute-granularity",
                "tensor-model-parallel-size",
                "pipeline-model-parallel-size",
                "context-parallel-size",
                "bf16",
                "fp16",
                "sequence-parallel",
                "use-distributed-optimizer",
            )
        ),
    ),
    rules=rules_of_megatron,
    note="-- torchrun ... pretrain_gpt.py --yaml-cfg {config}; give the data-parallel size as --replicas",
)
