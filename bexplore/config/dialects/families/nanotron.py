"""nanotron: YAML with a section `tokens`; accumulation is per replica, the global batch is derived."""

from __future__ import annotations

from bexplore.config.dialects.family import Family, Program, Signature

NANOTRON = Family(
    name="nanotron",
    title="nanotron",
    source="nanotron.config: TokensArgs, ParallelismArgs, Config.global_batch_size",
    signatures=(Signature(any_of=("tokens.micro_batch_size", "tokens.batch_accumulation_per_replica")),),
    micro_batch_size=("tokens.micro_batch_size",),
    accumulation=("tokens.batch_accumulation_per_replica",),
    replicas=(("parallelism.dp",),),
    sequence_length=("tokens.sequence_length",),
    output_dir=("checkpoints.checkpoints_path",),
    memory=(
        "parallelism.recompute_layer",
        "parallelism.tp",
        "parallelism.pp",
        "parallelism.context_parallel_size",
        "model.dtype",
        "model.model_config",
        "optimizer.zero_stage",
        "optimizer.accumulate_grad_in_fp32",
    ),
    program=lambda values, num_processes: Program(launched=("run_train.py", "--config-file", "{config}")),
    note="started by torchrun from nanotron's folder",
)
