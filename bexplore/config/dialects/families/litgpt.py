"""LitGPT: YAML with a section `train`; accumulation is derived, without a check that it divides."""

from __future__ import annotations

from collections.abc import Iterator

from bexplore.config.dialects.family import Family, Program, Remainder, Signature
from bexplore.config.dialects.numbers import Numbers
from bexplore.config.document.values import Values

_METHODS = (("lora_r", "finetune_lora"), ("adapter_start_layer", "finetune_adapter"), ("model_name", "pretrain"))


def _rules(numbers: Numbers, values: Values) -> Iterator[str]:
    total, replicas, micro = numbers.global_batch_size, numbers.num_replicas, numbers.micro_batch_size
    if total and replicas and total // replicas == 0:
        yield f"train.global_batch_size {total} is smaller than the {replicas} devices"
    if total and replicas and micro and total // replicas < micro:
        yield (
            f"train.micro_batch_size {micro} is larger than the {total // replicas} samples of one device in a step: "
            "LitGPT would accumulate over 0 micro-batches"
        )
    if values.get("train.max_steps") is not None and values.get("train.max_tokens") is not None:
        yield "train.max_steps and train.max_tokens exclude each other"


def _program(values: Values, num_processes: int) -> Program:
    method = next((method for key, method in _METHODS if values.has(key)), None)
    if method is None:
        method = "finetune_full" if values.has("checkpoint_dir") else "pretrain"
    return Program(words=("litgpt", method, "--config", "{config}"))


LITGPT = Family(
    name="litgpt",
    title="LitGPT",
    source="litgpt.args: TrainArgs.gradient_accumulation_iters and batch_size",
    signatures=(
        Signature(
            all_of=("train",),
            any_of=(
                "train.max_seq_length",
                "train.lr_warmup_steps",
                "train.save_interval",
                "train.lr_warmup_fraction",
                "train.tie_embeddings",
                "checkpoint_dir",
                "initial_checkpoint_dir",
            ),
            none_of=("job", "training"),
        ),
    ),
    micro_batch_size=("train.micro_batch_size",),
    global_batch_size=("train.global_batch_size",),
    replicas=(("devices",), ("num_nodes",)),
    sequence_length=("train.max_seq_length",),
    output_dir=("out_dir",),
    memory=("precision", "quantize", "model_name", "model_config", "lora_r", "checkpoint_dir", "optimizer"),
    remainder=Remainder.DROPPED,
    rules=_rules,
    program=_program,
)
