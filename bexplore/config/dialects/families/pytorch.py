"""PyTorch's own trainers: torchtitan's TOML with a section `training`, torchtune's recipes with `_component_` entries.

With torchtitan a global batch of -1 is the local one of all replicas; with torchtune the global batch follows from
batch size and accumulation.
"""

from __future__ import annotations

from collections.abc import Iterator

from bexplore.config.dialects.family import Family, Program, Signature
from bexplore.config.dialects.numbers import Numbers
from bexplore.config.document.values import Values


def _rules_of_torchtitan(numbers: Numbers, values: Values) -> Iterator[str]:
    total, micro, replicas = numbers.global_batch_size, numbers.micro_batch_size, numbers.num_replicas
    if total and micro and replicas and total % (micro * replicas):
        yield (
            f"training.global_batch_size {total} is not divisible by local_batch_size {micro} x data-parallel degree "
            f"{replicas}: torchtitan's Trainer asserts it"
        )


TORCHTITAN = Family(
    name="torchtitan",
    title="torchtitan",
    source="torchtitan.config.job_config: Training, Parallelism; torchtitan.train: Trainer",
    signatures=(
        Signature(
            any_of=("training.local_batch_size", "training.batch_size", "training.global_batch_size"),
            suffixes=(".toml",),
        ),
    ),
    micro_batch_size=("training.local_batch_size", "training.batch_size"),
    global_batch_size=("training.global_batch_size",),
    replicas=(("parallelism.data_parallel_replicate_degree",), ("parallelism.data_parallel_shard_degree",)),
    sequence_length=("training.seq_len",),
    output_dir=("job.dump_folder",),
    memory=(
        *("activation_checkpoint", "parallelism", "compile", "training.compile", "model", "float8"),
        *("quantize", "training.mixed_precision_param"),
    ),
    rules=_rules_of_torchtitan,
    program=lambda values, num_processes: Program(launched=("-m", "torchtitan.train", "--job.config_file", "{config}")),
    note="releases since August 2026 configure in Python and in tokens: type {micro_batch_size} behind --",
)


def _rules_of_torchtune(numbers: Numbers, values: Values) -> Iterator[str]:
    if (numbers.accumulation or 1) > 1 and values.get("optimizer_in_bwd") is True:
        yield "optimizer_in_bwd and gradient accumulation exclude each other: the recipe raises a RuntimeError"
    if values.get("enable_activation_offloading") is True and values.get("enable_activation_checkpointing") is False:
        yield "enable_activation_offloading needs enable_activation_checkpointing"


def _program_of_torchtune(values: Values, num_processes: int) -> Program:
    """Return `tune run` of the recipe that the file's keys show: LoRA or full, on one device or on several."""
    component = str(values.get("model._component_", ""))
    is_lora = "lora" in component
    has_shards = values.has("fsdp_cpu_offload") or values.has("custom_sharded_layers")
    is_many = num_processes > 1 or has_shards
    recipe = f"{'lora' if is_lora else 'full'}_finetune_{'distributed' if is_many else 'single_device'}"
    launcher = ("--nproc_per_node", str(num_processes)) if is_many else ()
    return Program(words=("tune", "run", *launcher, recipe, "--config", "{config}"))


TORCHTUNE = Family(
    name="torchtune",
    title="torchtune",
    source="torchtune's recipes: full_finetune_single_device and its kin",
    signatures=(
        Signature(
            any_of=("model._component_", "models", "policy_model", "tokenizer._component_", "dataset._component_"),
            all_of=("batch_size",),
        ),
    ),
    micro_batch_size=("batch_size",),
    accumulation=("gradient_accumulation_steps",),
    sequence_length=("tokenizer.max_seq_len",),
    output_dir=("output_dir",),
    memory=(
        *("dtype", "model", "enable_activation_checkpointing", "enable_activation_offloading", "optimizer"),
        *("optimizer_in_bwd", "compile", "dataset.packed", "fsdp_cpu_offload"),
    ),
    probing={"resume_from_checkpoint": False},
    rules=_rules_of_torchtune,
    program=_program_of_torchtune,
)
