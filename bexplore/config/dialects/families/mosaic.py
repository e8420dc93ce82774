"""Trainers with MosaicML's names: Composer with llm-foundry, and OLMo; the accumulation follows from the global batch.

Composer's may be uneven. OLMo-core, the second trainer of OLMo, counts tokens instead of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bexplore.config.dialects.family import Family, Program, Remainder, Signature
from bexplore.config.dialects.numbers import Numbers
from bexplore.config.document.values import Values


def _whole_shares(otherwise: str) -> Callable[[Numbers, Values], Iterator[str]]:
    """Return the rule that the global batch has a whole share for each device, with what the trainer does otherwise."""

    def rules(numbers: Numbers, values: Values) -> Iterator[str]:
        total, replicas = numbers.global_batch_size, numbers.num_replicas
        if total and replicas and total % replicas:
            yield f"global_train_batch_size {total} is not divisible by the {replicas} devices: {otherwise}"

    return rules


COMPOSER = Family(
    name="composer",
    title="Composer, llm-foundry",
    source="llmfoundry.utils.config_utils: calculate_batch_size_info; composer.Trainer: device_train_microbatch_size",
    signatures=(
        Signature(
            any_of=(
                *("device_train_microbatch_size", "global_train_batch_size", "parameters.device_train_microbatch_size"),
                *("parameters.global_train_batch_size", "trainer.device_train_microbatch_size"),
                *("train_loader.global_batch_size", "device_train_grad_accum", "grad_accum"),
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
        *("fsdp_config", "precision", "model", "optimizer", "variables", "parameters.fsdp_config", "parameters.model"),
    ),
    remainder=Remainder.SMALLER,
    rules=_whole_shares("llm-foundry's calculate_batch_size_info raises a ValueError"),
    program=lambda values, num_processes: Program(
        words=("composer", "train.py", "{config}"), launched=("train.py", "{config}")
    ),
    note="started from llm-foundry's scripts/train; auto halves the size on out-of-memory and is replaced",
)

OLMO = Family(
    name="olmo",
    title="OLMo",
    source="olmo.config: TrainConfig; scripts/train.py",
    signatures=(
        Signature(
            all_of=("global_train_batch_size",),
            any_of=("model.d_model", "model.mlp_ratio", "model.mlp_hidden_size"),
            none_of=("train_loader",),
        ),
        Signature(all_of=("device_train_microbatch_size", "model.d_model"), any_of=("model.rope", "save_folder")),
    ),
    micro_batch_size=("device_train_microbatch_size",),
    global_batch_size=("global_train_batch_size",),
    sequence_length=("model.max_sequence_length",),
    output_dir=("save_folder",),
    memory=("model", "activation_checkpointing", "precision", "fsdp", "distributed_strategy", "compile"),
    rules=_whole_shares("train.py asserts it"),
    program=lambda values, num_processes: Program(launched=("scripts/train.py", "{config}")),
)

OLMO_CORE = Family(
    name="olmo-core",
    title="OLMo-core",
    source="olmo_core.train.train_module: TransformerTrainModuleConfig; olmo_core.data: NumpyDataLoaderConfig",
    signatures=(Signature(any_of=("train_module.rank_microbatch_size", "trainer.rank_microbatch_size")),),
    micro_batch_size=("train_module.rank_microbatch_size", "trainer.rank_microbatch_size"),
    global_batch_size=("data_loader.global_batch_size",),
    sequence_length=("dataset.sequence_length", "train_module.max_sequence_length"),
    output_dir=("trainer.save_folder",),
    memory=("model", "train_module.ac_config", "train_module.dp_config", "train_module.compile_model"),
    counts_tokens=True,
    note="in tokens: the size times the sequence length",
)
