"""Transformers' `TrainingArguments` and TRL's configurations: YAML or JSON; the global batch is derived."""

from __future__ import annotations

from collections.abc import Iterator

from bexplore.config.dialects.family import Family, Program, Signature
from bexplore.config.dialects.numbers import Numbers
from bexplore.config.document.values import Values

TRAINING_MEMORY = (
    "gradient_checkpointing",
    "gradient_checkpointing_kwargs",
    "bf16",
    "fp16",
    "tf32",
    "optim",
    "deepspeed",
    "fsdp",
    "fsdp_config",
    "torch_compile",
    "group_by_length",
    "packing",
)
# Keys by which a file of arguments is one of TRL's scripts: `ScriptArguments`, `ModelConfig` and the trainers' own.
_OF_TRL = (
    "dataset_name",
    "dataset_mixer",
    "dataset_mixture",
    "datasets",
    "attn_implementation",
    "beta",
    "loss_type",
    "lora_r",
    "max_prompt_length",
    "max_completion_length",
    "num_generations",
    "packing",
)


def rules_of_arguments(numbers: Numbers, values: Values) -> Iterator[str]:
    """Yield what `TrainingArguments` refuses."""
    if values.get("bf16") is True and values.get("fp16") is True:
        yield "bf16 and fp16 exclude each other: TrainingArguments raises a ValueError"
    for key in ("per_gpu_train_batch_size", "per_gpu_eval_batch_size"):
        if values.has(key):
            yield f"{key} is no longer read: type per_device_train_batch_size"


def _rules_of_trl(numbers: Numbers, values: Values) -> Iterator[str]:
    yield from rules_of_arguments(numbers, values)
    generations = values.get("num_generations")
    total = numbers.global_batch_size
    if isinstance(generations, int) and generations > 0 and total and numbers.num_replicas and total % generations:
        yield f"the batch of a step, {total}, is no multiple of num_generations {generations}: GRPOConfig refuses it"


def _program_of_trl(values: Values, num_processes: int) -> Program:
    """Return TRL's command; the method follows from the keys that only one trainer has."""
    method = "sft"
    if values.has("num_generations") or values.has("reward_funcs"):
        method = "grpo"
    elif values.has("beta") or values.has("max_prompt_length") or values.has("loss_type"):
        method = "dpo"
    return Program(
        words=("trl", method, "--config", "{config}"), launched=("-m", f"trl.scripts.{method}", "--config", "{config}")
    )


TRL = Family(
    name="trl",
    title="TRL",
    source="trl.SFTConfig, DPOConfig and GRPOConfig; trl.TrlParser",
    signatures=(
        Signature(
            all_of=("model_name_or_path",),
            any_of=_OF_TRL,
            none_of=("stage", "template", "finetuning_type", "cutoff_len", "do_train"),
        ),
    ),
    micro_batch_size=("per_device_train_batch_size",),
    accumulation=("gradient_accumulation_steps",),
    sequence_length=("max_length", "max_seq_length"),
    output_dir=("output_dir",),
    memory=(*TRAINING_MEMORY, "use_peft", "lora_r", "load_in_4bit", "load_in_8bit", "max_prompt_length"),
    probing={"auto_find_batch_size": False},
    rules=_rules_of_trl,
    program=_program_of_trl,
)

TRANSFORMERS = Family(
    name="transformers",
    title="Transformers TrainingArguments",
    source="transformers.TrainingArguments; HfArgumentParser.parse_json_file and parse_yaml_file",
    signatures=(
        Signature(any_of=("per_device_train_batch_size",)),
        Signature(all_of=("output_dir",), any_of=("auto_find_batch_size", "per_device_eval_batch_size", "max_steps")),
    ),
    micro_batch_size=("per_device_train_batch_size",),
    accumulation=("gradient_accumulation_steps",),
    sequence_length=("max_seq_length", "block_size", "model_max_length"),
    output_dir=("output_dir",),
    memory=TRAINING_MEMORY,
    probing={"auto_find_batch_size": False},
    rules=rules_of_arguments,
    note="-- python train.py {config}",
)
