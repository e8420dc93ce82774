"""NeMo 1.x: Hydra YAML with the batch in the section `model`; accumulation is derived."""

from __future__ import annotations

from bexplore.config.dialects.families.megatron import rules_of_megatron
from bexplore.config.dialects.family import Family, Signature

# Pretraining has the batch in the model; finetuning in the training set.
_MICRO = ("model.micro_batch_size", "model.data.train_ds.micro_batch_size")
_GLOBAL = ("model.global_batch_size", "model.data.train_ds.global_batch_size")

NEMO = Family(
    name="nemo",
    title="NeMo 1.x",
    source="nemo.collections.nlp.modules.common.megatron: MegatronBaseModel, initialize_model_parallel_for_nemo",
    signatures=(Signature(any_of=(*_MICRO, *_GLOBAL), all_of=("trainer",)),),
    micro_batch_size=_MICRO,
    global_batch_size=_GLOBAL,
    replicas=(("trainer.devices",), ("trainer.num_nodes",)),
    model_parallel=(
        ("model.tensor_model_parallel_size",),
        ("model.pipeline_model_parallel_size",),
        ("model.context_parallel_size",),
    ),
    sequence_length=("model.encoder_seq_length", "model.data.seq_length", "model.data.train_ds.max_seq_length"),
    output_dir=("exp_manager.explicit_log_dir", "exp_manager.exp_dir"),
    memory=(
        "trainer.precision",
        "model.activations_checkpoint_granularity",
        "model.activations_checkpoint_method",
        "model.activations_checkpoint_num_layers",
        "model.sequence_parallel",
        "model.megatron_amp_O2",
        "model.hidden_size",
        "model.num_layers",
        "model.optim.name",
    ),
    rules=rules_of_megatron,
    note="replicas: trainer.devices x trainer.num_nodes over the model-parallel sizes",
)
