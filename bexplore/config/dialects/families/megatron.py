"""Trainers with Megatron's or DeepSpeed's numbers: a micro-batch of one data-parallel replica.

Megatron-LM, Megatron-Bridge and NeMo 1.x (Hydra) derive the accumulation from the global batch, with one rule; nanotron
has the accumulation, and derives the global batch.

DeepSpeed's numbers stand in its JSON, at the top of GPT-NeoX's files, and below `deepspeed_config` of accelerate's:
`train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x world size`. `"auto"` is not a
search: Transformers and accelerate copy the value from their arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

from bexplore.config.dialects.family import Family, Numbers, Program, Signature
from bexplore.config.document.values import Values


def _rules_of_megatron(numbers: Numbers, values: Values) -> Iterator[str]:
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
            score=1,
        ),
    ),
    marks=(
        *("train.train_iters", "train.eval_iters", "train.eval_interval", "model.tensor_model_parallel_size"),
        *(
            "model.pipeline_model_parallel_size",
            "model.seq_length",
            "checkpoint.save",
            "checkpoint.pretrained_checkpoint",
        ),
        *("ddp", "dist", "rng", "scheduler.lr_decay_style", "scheduler.lr_warmup_iters", "optimizer.min_lr", "logger"),
        *("dataset.seq_length", "dataset.sequence_length", "mixed_precision", "tokenizer.tokenizer_type"),
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
    rules=_rules_of_megatron,
    note="give the data-parallel size as explore.replicas",
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
    rules=_rules_of_megatron,
    note="-- torchrun --standalone --nproc-per-node 1 pretrain_gpt.py --yaml-cfg {config}",
)


# Pretraining has the batch in the model; finetuning in the training set.
_MICRO = ("model.micro_batch_size", "model.data.train_ds.micro_batch_size")
_GLOBAL = ("model.global_batch_size", "model.data.train_ds.global_batch_size")

NEMO = Family(
    name="nemo",
    title="NeMo 1.x",
    source="nemo.collections.nlp.modules.common.megatron: MegatronBaseModel, initialize_model_parallel_for_nemo",
    signatures=(Signature(any_of=(*_MICRO, *_GLOBAL), all_of=("trainer",), score=1),),
    marks=(
        *("exp_manager", "trainer.num_nodes", "trainer.precision", "trainer.devices", "model.encoder_seq_length"),
        *("model.tensor_model_parallel_size", "model.pipeline_model_parallel_size", "model.megatron_amp_O2"),
        *("model.restore_from_path", "model.optim.name", *_GLOBAL),
    ),
    foreign=(),  # its files may be trees of Hydra
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
    rules=_rules_of_megatron,
    note="replicas: trainer.devices x trainer.num_nodes over the model-parallel sizes",
)

# What nanotron's `run_train.py` reads. Source: nanotron.config.Config, which refuses others; nanotron.trainer.
_SECTIONS_OF_NANOTRON = frozenset(
    (
        *("general", "parallelism", "model", "tokenizer", "checkpoints", "logging", "tokens", "optimizer", "data"),
        *("data_stages", "profiler", "lighteval", "s3_upload", "metrics_logging", "explore"),
    )
)
_MODELS_OF_NANOTRON = frozenset(("is_llama_config", "is_qwen2_config", "is_starcoder2_config"))


def _program_of_nanotron(values: Values, num_processes: int) -> Program:
    """Return nanotron's script; its examples of other models, and forks with sections of theirs, have their own."""
    model = values.get("model.model_config")
    kinds = {key for key in model if str(key).startswith("is_")} if isinstance(model, Mapping) else set()
    is_certain = _SECTIONS_OF_NANOTRON.issuperset(values.values) and _MODELS_OF_NANOTRON.issuperset(kinds)
    return Program(launched=("run_train.py", "--config-file", "{config}"), is_certain=is_certain)


NANOTRON = Family(
    name="nanotron",
    title="nanotron",
    source="nanotron.config: TokensArgs, ParallelismArgs, Config.global_batch_size",
    signatures=(Signature(any_of=("tokens.micro_batch_size", "tokens.batch_accumulation_per_replica")),),
    micro_batch_size=("tokens.micro_batch_size",),
    accumulation=("tokens.batch_accumulation_per_replica",),
    replicas=(("parallelism.dp",),),
    parallel_degrees=(("parallelism.tp",), ("parallelism.pp",), ("parallelism.context_parallel_size",)),
    sequence_length=("tokens.sequence_length",),
    output_dir=("checkpoints.checkpoints_path",),
    memory=(
        *("parallelism.recompute_layer", "parallelism.tp", "parallelism.pp", "parallelism.context_parallel_size"),
        *("model.dtype", "model.model_config", "optimizer.zero_stage", "optimizer.accumulate_grad_in_fp32"),
    ),
    program=_program_of_nanotron,
    note="started by torchrun from nanotron's folder",
)


_NEOX = ("num_layers", "hidden_size", "num_attention_heads")
_with_numbers = functools.partial(
    Family,
    micro_batch_size=("train_micro_batch_size_per_gpu",),
    global_batch_size=("train_batch_size",),
    accumulation=("gradient_accumulation_steps",),
)


def _rules_of_deepspeed(numbers: Numbers, values: Values) -> Iterator[str]:
    if values.get("fp16.enabled") is True and values.get("bf16.enabled") is True:
        yield "fp16 and bf16 are both enabled: DeepSpeed's configuration asserts that one of them is"
    stage = values.get("zero_optimization.stage")
    if stage is not None and stage != "auto" and stage not in (0, 1, 2, 3):
        yield f"zero_optimization.stage is {stage}; DeepSpeed has 0, 1, 2 and 3"


DEEPSPEED = _with_numbers(
    name="deepspeed",
    title="DeepSpeed",
    source="deepspeed.runtime.config: DeepSpeedConfig._configure_train_batch_size and _batch_assertion",
    signatures=(
        Signature(any_of=("train_micro_batch_size_per_gpu",), none_of=_NEOX),
        Signature(all_of=("train_batch_size",), none_of=_NEOX, score=1),
        Signature(
            all_of=("zero_optimization",),
            any_of=("zero_optimization.stage", "fp16", "bf16", "gradient_clipping"),
            none_of=_NEOX,
        ),
        Signature(any_of=("zero_optimization.stage",), none_of=_NEOX),
    ),
    marks=(
        *("zero_optimization", "fp16.enabled", "bf16.enabled", "optimizer.type", "optimizer.params", "scheduler.type"),
        *("gradient_clipping", "steps_per_print", "wall_clock_breakdown", "zero_allow_untested_optimizer"),
        *("prescale_gradients", "comms_logger", "activation_checkpointing", "communication_data_type"),
    ),
    memory=("zero_optimization", "fp16", "bf16", "amp", "activation_checkpointing", "optimizer", "tensor_parallel"),
    probing={"autotuning.enabled": False, "elasticity.enabled": False},
    rules=_rules_of_deepspeed,
    reads_absent_size=False,
    note="auto there means: copied from the arguments of Transformers or accelerate",
)

GPT_NEOX = _with_numbers(
    name="gpt-neox",
    title="GPT-NeoX",
    source="megatron.neox_arguments: NeoXArgs.calculate_batch_parameters and check_batch_parameters",
    signatures=(
        Signature(
            any_of=("train_micro_batch_size_per_gpu", "train_batch_size", "pipe_parallel_size", "pos_emb"),
            all_of=("num_layers", "hidden_size"),
            score=1,
        ),
        Signature(all_of=("train_micro_batch_size_per_gpu",), any_of=("train_iters", "seq_length")),
    ),
    marks=(
        *("train_micro_batch_size_per_gpu", "pipe_parallel_size", "model_parallel_size", "pos_emb", "train_iters"),
        *(
            "lr_decay_style",
            "zero_optimization",
            "num_attention_heads",
            "max_position_embeddings",
            "checkpoint_activations",
        ),
        *("partition_activations", "attention_config", "no_weight_tying", "gas", "tokenizer_type"),
    ),
    sequence_length=("seq_length",),
    output_dir=("save",),
    memory=(
        *("checkpoint_activations", "checkpoint_num_layers", "partition_activations", "pipe_parallel_size"),
        *("model_parallel_size", "zero_optimization", "fp16", "bf16", "precision", "hidden_size"),
        *("num_layers", "attention_config"),
    ),
    program=lambda values, num_processes: Program(words=("python", "deepy.py", "train.py", "{config}")),
    note="name your other files behind the command: -- python deepy.py train.py {config} local_setup.yml",
)

ACCELERATE = Family(
    name="accelerate",
    title="accelerate",
    source="accelerate.commands.config.config_args: ClusterConfig",
    signatures=(
        Signature(all_of=("distributed_type",), any_of=("compute_environment", "num_processes", "mixed_precision")),
        Signature(all_of=("compute_environment",), any_of=("num_processes", "mixed_precision", "machine_rank")),
    ),
    micro_batch_size=("deepspeed_config.train_micro_batch_size_per_gpu",),
    unread=("deepspeed_config.train_batch_size",),
    accumulation=("deepspeed_config.gradient_accumulation_steps", "gradient_accumulation_steps"),
    replicas=(("num_processes",),),
    model_parallel=(
        ("megatron_lm_config.megatron_lm_tp_degree", "parallelism_config.parallelism_config_tp_size"),
        ("megatron_lm_config.megatron_lm_pp_degree", "parallelism_config.parallelism_config_cp_size"),
    ),
    memory=("distributed_type", "mixed_precision", "deepspeed_config", "fsdp_config", "parallelism_config"),
    reads_absent_size=False,
    note="-- accelerate launch --config_file {config} train.py --batch-size {micro_batch_size} --out {output_dir}",
)
