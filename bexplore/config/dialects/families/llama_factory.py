"""LLaMA-Factory: flat YAML over Transformers' arguments, and its second generation (v1)."""

from __future__ import annotations

from bexplore.config.dialects.families.transformers import TRAINING_MEMORY, rules_of_arguments
from bexplore.config.dialects.family import Family, Program, Signature

_TRAIN = Program(words=("llamafactory-cli", "train", "{config}"), launched=("-m", "llamafactory.launcher", "{config}"))

LLAMA_FACTORY = Family(
    name="llama-factory",
    title="LLaMA-Factory",
    source="llamafactory.hparams: DataArguments, FinetuningArguments, TrainingArguments",
    signatures=(
        Signature(
            any_of=("finetuning_type", "template", "cutoff_len", "do_train"),
            all_of=("stage", "model_name_or_path"),
            none_of=("micro_batch_size",),
        ),
        Signature(all_of=("model_name_or_path", "template", "per_device_train_batch_size")),
    ),
    micro_batch_size=("per_device_train_batch_size",),
    accumulation=("gradient_accumulation_steps",),
    sequence_length=("cutoff_len",),
    output_dir=("output_dir",),
    memory=("disable_gradient_checkpointing", "finetuning_type", "lora_rank", "quantization_bit", *TRAINING_MEMORY),
    probing={"auto_find_batch_size": False},
    rules=rules_of_arguments,
    program=lambda values, num_processes: _TRAIN,
)

LLAMA_FACTORY_V1 = Family(
    name="llama-factory-v1",
    title="LLaMA-Factory v1",
    source="llamafactory.v1.config.training_args: TrainingArguments",
    signatures=(
        Signature(
            all_of=("model",),
            any_of=("dist_config", "init_config", "model_class", "kernel_config", "train_dataset"),
            none_of=("trainer", "device_train_microbatch_size", "global_train_batch_size", "model.name"),
        ),
    ),
    micro_batch_size=("micro_batch_size",),
    global_batch_size=("global_batch_size",),
    sequence_length=("cutoff_len",),
    output_dir=("output_dir",),
    memory=("enable_activation_checkpointing", "bf16", "dist_config", "peft_config", "quant_config"),
    program=lambda values, num_processes: Program(
        words=("llamafactory-cli", "sft", "{config}"), launched=("-m", "llamafactory.v1.launcher", "sft", "{config}")
    ),
)
