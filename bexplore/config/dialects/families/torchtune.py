"""torchtune: recipes' YAML with `_component_` entries; the global batch follows from batch size and accumulation."""

from __future__ import annotations

from collections.abc import Iterator

from bexplore.config.dialects.family import Family, Program, Signature
from bexplore.config.dialects.numbers import Numbers
from bexplore.config.document.values import Values


def _rules(numbers: Numbers, values: Values) -> Iterator[str]:
    if (numbers.accumulation or 1) > 1 and values.get("optimizer_in_bwd") is True:
        yield "optimizer_in_bwd and gradient accumulation exclude each other: the recipe raises a RuntimeError"
    if values.get("enable_activation_offloading") is True and values.get("enable_activation_checkpointing") is False:
        yield "enable_activation_offloading needs enable_activation_checkpointing"


def _program(values: Values, num_processes: int) -> Program:
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
        "dtype",
        "model",
        "enable_activation_checkpointing",
        "enable_activation_offloading",
        "optimizer",
        "optimizer_in_bwd",
        "compile",
        "dataset.packed",
        "fsdp_cpu_offload",
    ),
    probing={"resume_from_checkpoint": False},
    rules=_rules,
    program=_program,
)
