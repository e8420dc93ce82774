"""Axolotl: one flat YAML file; the global batch follows from micro-batch, accumulation and world size."""

from __future__ import annotations

from collections.abc import Iterator

from bexplore.config.dialects.family import Family, Program, Signature
from bexplore.config.dialects.numbers import Numbers
from bexplore.config.document.values import Values


def _rules(numbers: Numbers, values: Values) -> Iterator[str]:
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
        ),
    ),
    micro_batch_size=("micro_batch_size",),
    accumulation=("gradient_accumulation_steps",),
    global_batch_size=("batch_size",),
    sequence_length=("sequence_len",),
    output_dir=("output_dir",),
    memory=(
        "gradient_checkpointing",
        "activation_offloading",
        "adapter",
        "load_in_8bit",
        "load_in_4bit",
        "bf16",
        "fp16",
        "tf32",
        "sample_packing",
        "optimizer",
        "deepspeed",
        "fsdp",
        "fsdp_config",
        "flash_attention",
        "context_parallel_size",
        "tensor_parallel_size",
        "dp_shard_size",
    ),
    probing={"auto_find_batch_size": False, "auto_resume_from_checkpoints": False},
    rules=_rules,
    program=lambda values, num_processes: Program(
        words=("axolotl", "train", "{config}"), launched=("-m", "axolotl.cli.train", "{config}")
    ),
)
