"""Composer and llm-foundry: YAML with the global batch; accumulation is derived and may be uneven."""

from __future__ import annotations

from collections.abc import Iterator

from bexplore.config.dialects.family import Family, Program, Remainder, Signature
from bexplore.config.dialects.numbers import Numbers
from bexplore.config.document.values import Values


def _rules(numbers: Numbers, values: Values) -> Iterator[str]:
    total, replicas = numbers.global_batch_size, numbers.num_replicas
    if total and replicas and total % replicas:
        yield (
            f"global_train_batch_size {total} is not divisible by the {replicas} devices: llm-foundry's "
            "calculate_batch_size_info raises a ValueError"
        )


COMPOSER = Family(
    name="composer",
    title="Composer, llm-foundry",
    source="llmfoundry.utils.config_utils: calculate_batch_size_info; composer.Trainer: device_train_microbatch_size",
    signatures=(
        Signature(
            any_of=(
                "device_train_microbatch_size",
                "global_train_batch_size",
                "parameters.device_train_microbatch_size",
                "parameters.global_train_batch_size",
                "trainer.device_train_microbatch_size",
                "train_loader.global_batch_size",
                "device_train_grad_accum",
                "grad_accum",
            ),
        ),
    ),
    micro_batch_size=(
        "device_train_microbatch_size",
        "parameters.device_train_microbatch_size",
        "trainer.device_train_microbatch_size",
    ),
    global_batch_size=("global_train_batch_size", "parameters.global_train_batch_size"),
    accumulation=("device_train_grad_accum", "grad_accum"),
    replicas=(("compute.gpus",),),
    sequence_length=("max_seq_len", "variables.max_seq_len", "parameters.max_seq_len"),
    output_dir=("save_folder", "parameters.save_folder"),
    memory=(
        "fsdp_config",
        "precision",
        "model",
        "optimizer",
        "variables",
        "parameters.fsdp_config",
        "parameters.model",
    ),
    remainder=Remainder.SMALLER,
    rules=_rules,
    program=lambda values, num_processes: Program(
        words=("composer", "train.py", "{config}"), launched=("train.py", "{config}")
    ),
    note="started from llm-foundry's scripts/train; auto halves the size on out-of-memory and is replaced",
)
