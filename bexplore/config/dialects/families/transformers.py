"""Trainers over Transformers: files of flat arguments, from which the global batch follows.

TRL and LLaMA-Factory extend `TrainingArguments`; Axolotl and LLaMA-Factory v1 have names of their own for its numbers.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from bexplore.config.dialects.family import Family, Numbers, Program, Signature
from bexplore.config.document.values import Values

_MEMORY = (
    *("gradient_checkpointing", "gradient_checkpointing_kwargs", "bf16", "fp16", "tf32", "optim", "deepspeed", "fsdp"),
    *("fsdp_config", "torch_compile", "group_by_length", "packing"),
)
# Names that `TrainingArguments` alone has.
_ARGUMENTS = (
    *("auto_find_batch_size", "per_device_eval_batch_size", "num_train_epochs", "lr_scheduler_type", "eval_strategy"),
    *(
        "save_strategy",
        "save_total_limit",
        "logging_steps",
        "gradient_checkpointing_kwargs",
        "report_to",
        "push_to_hub",
    ),
    *("dataloader_num_workers", "remove_unused_columns", "ddp_timeout", "warmup_ratio", "logging_strategy"),
)
# Keys of open-instruct's own scripts, whose other keys are TRL's.
_OF_OPEN_INSTRUCT = (
    *("dataset_mixer_list", "dataset_mixer_dict", "use_flash_attn", "exp_name", "max_train_samples"),
    *("use_slow_tokenizer", "checkpointing_steps", "reduce_loss", "dpo_loss_type", "with_tracking"),
)
# Keys by which a file of arguments is one of TRL's scripts: `ScriptArguments`, `ModelConfig` and the trainers' own.
_OF_TRL = (
    *("dataset_name", "dataset_mixer", "dataset_mixture", "datasets", "attn_implementation", "beta", "loss_type"),
    *("lora_r", "max_prompt_length", "max_completion_length", "num_generations", "packing"),
)


def _rules_of_arguments(numbers: Numbers, values: Values) -> Iterator[str]:
    """Yield what `TrainingArguments` refuses."""
    if values.get("bf16") is True and values.get("fp16") is True:
        yield "bf16 and fp16 exclude each other: TrainingArguments raises a ValueError"
    for key in ("per_gpu_train_batch_size", "per_gpu_eval_batch_size"):
        if values.has(key):
            yield f"{key} is no longer read: type per_device_train_batch_size"


_with_arguments = functools.partial(
    Family,
    micro_batch_size=("per_device_train_batch_size",),
    accumulation=("gradient_accumulation_steps",),
    output_dir=("output_dir",),
    probing={"auto_find_batch_size": False},
    rules=_rules_of_arguments,
)


def _rules_of_trl(numbers: Numbers, values: Values) -> Iterator[str]:
    yield from _rules_of_arguments(numbers, values)
    generations = values.get("num_generations")
    total = numbers.global_batch_size
    if isinstance(generations, int) and generations > 0 and total and numbers.num_replicas and total % generations:
        yield f"the batch of a step, {total}, is no multiple of num_generations {generations}: GRPOConfig refuses it"


# Keys that one of TRL's scripts reads. `beta`, `loss_type` and `max_prompt_length` are of several.
_METHODS = {
    "sft": ("packing", "packing_strategy", "padding_free", "dataset_text_field", "assistant_only_loss", "eval_packing"),
    "grpo": ("epsilon", "epsilon_high", "scale_rewards", "mask_truncated_completions", "num_iterations"),
}
# Keys of scripts of other projects, which extend TRL's trainers: alignment-handbook, open-r1.
_OF_OTHER_SCRIPTS = (
    *("dataset_mixer", "dataset_mixture", "dataset_splits", "dataset_configs", "chat_template"),
    *("benchmarks", "system_prompt", "hub_model_revision", "overwrite_hub_revision", "callbacks"),
    *("preprocessing_num_workers", "auto_insert_empty_system_msg", "wandb_project", "reward_weights"),
    *("dataset_prompt_column", "script_args", "task", "tokenizer_name"),
)
_TRL_COMMAND = re.compile(r"\btrl (sft|dpo|grpo|kto|reward|rloo)\b")


def _program_of_trl(values: Values, num_processes: int) -> Program:
    """Return TRL's command; the comments above the file, or keys that one method alone has, show the method."""
    named = _TRL_COMMAND.search(values.header)
    found = [method for method, keys in _METHODS.items() if any(map(values.has, keys))]
    is_of_trl = values.has("dataset_name") and not any(map(values.has, _OF_OTHER_SCRIPTS))
    likeliest = "grpo" if values.has("num_generations") else "dpo" if values.has("beta") else "sft"
    method = named[1] if named is not None else found[0] if found else likeliest
    return Program(
        is_certain=named is not None or (len(found) == 1 and is_of_trl),
        words=("trl", method, "--config", "{config}"),
        launched=("-m", f"trl.scripts.{method}", "--config", "{config}"),
    )


TRL = _with_arguments(
    name="trl",
    title="TRL",
    source="trl.SFTConfig, DPOConfig and GRPOConfig; trl.TrlParser",
    signatures=(
        Signature(
            all_of=("model_name_or_path", "per_device_train_batch_size"),
            any_of=_OF_TRL,
            none_of=("stage", "template", "finetuning_type", "cutoff_len", "do_train", "train_file", "validation_file"),
        ),
    ),
    marks=(*_ARGUMENTS, *_OF_TRL, "use_peft", "torch_dtype", "dtype"),
    foreign=("defaults", *_OF_OPEN_INSTRUCT),
    sequence_length=("max_length", "max_seq_length"),
    memory=(*_MEMORY, "use_peft", "lora_r", "load_in_4bit", "load_in_8bit", "max_prompt_length"),
    rules=_rules_of_trl,
    program=_program_of_trl,
)

TRANSFORMERS = _with_arguments(
    name="transformers",
    title="Transformers TrainingArguments",
    source="transformers.TrainingArguments; HfArgumentParser.parse_json_file and parse_yaml_file",
    signatures=(
        Signature(any_of=("per_device_train_batch_size",)),
        Signature(all_of=("output_dir",), any_of=_ARGUMENTS, score=0),
        Signature(any_of=_ARGUMENTS, score=-3),  # the rest stands on the command line
    ),
    marks=_ARGUMENTS,
    foreign=("defaults", *_OF_OPEN_INSTRUCT),
    sequence_length=("max_seq_length", "block_size", "model_max_length"),
    memory=_MEMORY,
    note="-- python train.py {config}",
)

LLAMA_FACTORY = _with_arguments(
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
    marks=(
        *("finetuning_type", "template", "cutoff_len", "do_train", "lora_target", "dataset_dir", "overwrite_cache"),
        *("plot_loss", "preprocessing_num_workers"),
    ),
    sequence_length=("cutoff_len",),
    memory=("disable_gradient_checkpointing", "finetuning_type", "lora_rank", "quantization_bit", *_MEMORY),
    program=lambda values, num_processes: Program(
        words=("llamafactory-cli", "train", "{config}"), launched=("-m", "llamafactory.launcher", "{config}")
    ),
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
            score=1,
        ),
    ),
    marks=(
        "dist_config",
        "init_config",
        "model_class",
        "kernel_config",
        "cutoff_len",
        "micro_batch_size",
        "peft_config",
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


def _rules_of_axolotl(numbers: Numbers, values: Values) -> Iterator[str]:
    if values.get("batch_size") is not None and values.get("gradient_accumulation_steps") is not None:
        yield "batch_size and gradient_accumulation_steps exclude each other: axolotl divides one by the other"
    if values.get("sample_packing") and values.get("sequence_len") is None:
        yield "sample_packing needs sequence_len"


AXOLOTL = Family(
    name="axolotl",
    title="Axolotl",
    source="axolotl.utils.schemas.training and its hints on batch_size",
    signatures=(
        Signature(
            all_of=("base_model",),
            any_of=("micro_batch_size", "datasets", "pretraining_dataset", "sequence_len", "adapter", "rl"),
            score=1,
        ),
    ),
    marks=(
        *("micro_batch_size", "sequence_len", "val_set_size", "sample_packing", "pad_to_sequence_len", "num_epochs"),
        *("dataset_prepared_path", "lora_target_linear", "lora_r", "load_in_4bit", "load_in_8bit", "special_tokens"),
        *("train_on_inputs", "flash_attention", "chat_template", "strict", "rl", "plugins", "wandb_project"),
        *("pretraining_dataset", "gradient_accumulation_steps", "saves_per_epoch", "evals_per_epoch", "bf16"),
    ),
    foreign=("defaults", "input_features", "output_features", "trainer"),
    micro_batch_size=("micro_batch_size",),
    accumulation=("gradient_accumulation_steps",),
    global_batch_size=("batch_size",),
    sequence_length=("sequence_len",),
    output_dir=("output_dir",),
    memory=(
        *("gradient_checkpointing", "activation_offloading", "adapter", "load_in_8bit", "load_in_4bit", "bf16", "fp16"),
        *("tf32", "sample_packing", "optimizer", "deepspeed", "fsdp", "fsdp_config", "flash_attention"),
        *("context_parallel_size", "tensor_parallel_size", "dp_shard_size"),
    ),
    probing={"auto_find_batch_size": False, "auto_resume_from_checkpoints": False},
    rules=_rules_of_axolotl,
    program=lambda values, num_processes: Program(
        words=("axolotl", "train", "{config}"), launched=("-m", "axolotl.cli.train", "{config}")
    ),
)
