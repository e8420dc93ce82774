"""Trainers with Megatron's numbers: a micro-batch of one data-parallel replica, and model-parallel degrees beside it.

Megatron-LM, Megatron-Bridge and NeMo 1.x (Hydra) derive the accumulation from the global batch, with one rule; nanotron
has the accumulation, and derives the global batch.
"""

from __future__ import annotations

from collections.abc import Iterator

from bexplore.config.dialects.family import Family, Program, Signature
from bexplore.config.dialects.numbers import Numbers
from bexplore.config.document.values import Values


def _rules(numbers: Numbers, values: Values) -> Iterator[str]:
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
        *("model.recompute_granularity", "model.recompute_method", "model.recompute_num_layers"),
        *("model.tensor_model_parallel_size", "model.pipeline_model_parallel_size", "model.context_parallel_size"),
        *("model.expert_model_parallel_size", "model.sequence_parallel", "mixed_precision"),
        *("ddp", "optimizer.use_distributed_optimizer"),
    ),
    rules=_rules,
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
                *("recompute-granularity", "tensor-model-parallel-size", "pipeline-model-parallel-size"),
                *("context-parallel-size", "bf16", "fp16", "sequence-parallel", "use-distributed-optimizer"),
            )
        ),
    ),
    rules=_rules,
    note="-- torchrun ... pretrain_gpt.py --yaml-cfg {config}; give the data-parallel size as --replicas",
)


# Pretraining has the batch in the model; finetuning in the training set.
_MICRO = ("model.micro_batch_size", "model.data.train_ds.micro_batch_size")
_GLOBAL = ("model.global_batch_size", "model.data.train_ds.global_batch_size")

NEMO = Family(
    name="nemo",
    title="NeMo 1.x",
    source="nemo.collections.nlp.modules.common.megatron: MegatronBaseModel, initialize_model_parallel_for_nemo",
    signatures=(Signature(any_of=(*_MICRO, *_GLOBAL), all_of=("trainer",)),),
    micro_batch_size=_MICRO,
    global_batch_size=_GLOBAL,
    replicas=(("trainer.devices",), ("trainer.num_nodes",)),
    model_parallel=(
        ("model.tensor_model_parallel_size",),
        ("model.pipeline_model_parallel_size",),
        ("model.context_parallel_size",),
    ),
    sequence_length=("model.encoder_seq_length", "model.data.seq_length", "model.data.train_ds.max_seq_length"),
    output_dir=("exp_manager.explicit_log_dir", "exp_manager.exp_dir"),
    memory=(
        *("trainer.precision", "model.activations_checkpoint_granularity", "model.activations_checkpoint_method"),
        *("model.activations_checkpoint_num_layers", "model.sequence_parallel", "model.megatron_amp_O2"),
        *("model.hidden_size", "model.num_layers", "model.optim.name"),
    ),
    rules=_rules,
    note="replicas: trainer.devices x trainer.num_nodes over the model-parallel sizes",
)

NANOTRON = Family(
    name="nanotron",
    title="nanotron",
    source="nanotron.config: TokensArgs, ParallelismArgs, Config.global_batch_size",
    signatures=(Signature(any_of=("tokens.micro_batch_size", "tokens.batch_accumulation_per_replica")),),
    micro_batch_size=("tokens.micro_batch_size",),
    accumulation=("tokens.batch_accumulation_per_replica",),
    replicas=(("parallelism.dp",),),
    sequence_length=("tokens.sequence_length",),
    output_dir=("checkpoints.checkpoints_path",),
    memory=(
        *("parallelism.recompute_layer", "parallelism.tp", "parallelism.pp", "parallelism.context_parallel_size"),
        *("model.dtype", "model.model_config", "optimizer.zero_stage", "optimizer.accumulate_grad_in_fp32"),
    ),
    program=lambda values, num_processes: Program(launched=("run_train.py", "--config-file", "{config}")),
    note="started by torchrun from nanotron's folder",
)
