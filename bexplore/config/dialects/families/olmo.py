"""OLMo: the YAML of its first trainer, in samples, and OLMo-core's saved configurations, in tokens."""

from __future__ import annotations

from collections.abc import Iterator

from bexplore.config.dialects.family import Family, Program, Signature
from bexplore.config.dialects.numbers import Numbers
from bexplore.config.document.values import Values


def _rules(numbers: Numbers, values: Values) -> Iterator[str]:
    total, replicas = numbers.global_batch_size, numbers.num_replicas
    if total and replicas and total % replicas:
        yield f"global_train_batch_size {total} is not divisible by the {replicas} devices: train.py asserts it"


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
    rules=_rules,
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
