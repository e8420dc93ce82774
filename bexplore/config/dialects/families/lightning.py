"""Files for Lightning's trainer: LitGPT's, with a section `train`, and those of the Lightning CLI.

Devices and hosts multiply to the replicas. LitGPT derives the accumulation, without a check that it divides; with the
CLI the batch size is an argument of the user's own data or model.
"""

from __future__ import annotations

from collections.abc import Iterator

from bexplore.config.dialects.family import Family, Program, Remainder, Signature
from bexplore.config.dialects.numbers import Numbers
from bexplore.config.document.reader import KeyPath
from bexplore.config.document.values import Values, paths_below

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
                *("train.max_seq_length", "train.lr_warmup_steps", "train.save_interval", "train.lr_warmup_fraction"),
                *("train.tie_embeddings", "checkpoint_dir", "initial_checkpoint_dir"),
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

_PLACES = ("data.init_args.batch_size", "data.batch_size", "model.init_args.batch_size")
_SIZES = ("batch_size", "train_batch_size", "micro_batch_size")
_OF_EVALUATION = ("val", "test", "eval", "predict")


def _find_size(values: Values) -> KeyPath | None:
    """Return the shortest path to a batch size of the training data: its name is an argument of the user's class."""
    found = [
        path
        for section in ("data", "model")
        for path in paths_below(values.values.get(section), (section,))
        if path[-1] in _SIZES and not any(str(key).startswith(_OF_EVALUATION) for key in path)
    ]
    return min(found, key=len, default=None)


LIGHTNING_CLI = Family(
    name="lightning-cli",
    title="Lightning CLI",
    source="lightning.pytorch.cli.LightningCLI; Trainer: accumulate_grad_batches, devices, num_nodes",
    signatures=(
        Signature(
            all_of=("trainer",),
            any_of=("model.class_path", "data.class_path", *_PLACES, "trainer.max_epochs"),
            none_of=("trainer.init", "model.micro_batch_size", "defaults", "exp_manager"),
        ),
    ),
    micro_batch_size=_PLACES,
    find_size=_find_size,
    accumulation=("trainer.accumulate_grad_batches",),
    replicas=(("trainer.devices",), ("trainer.num_nodes",)),
    output_dir=("trainer.default_root_dir",),
    memory=("trainer.precision", "trainer.strategy", "model", "trainer.gradient_clip_val"),
    note="-- python main.py fit --config {config}",
)
