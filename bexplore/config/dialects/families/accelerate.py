"""accelerate's own file: processes, sharding and accumulation; the micro-batch size is an argument of the script."""

from __future__ import annotations

from bexplore.config.dialects.family import Family, Signature

ACCELERATE = Family(
    name="accelerate",
    title="accelerate",
    source="accelerate.commands.config.config_args: ClusterConfig",
    signatures=(
        Signature(all_of=("distributed_type",), any_of=("compute_environment", "num_processes", "mixed_precision")),
        Signature(all_of=("compute_environment",), any_of=("num_processes", "mixed_precision", "machine_rank")),
    ),
    micro_batch_size=("deepspeed_config.train_micro_batch_size_per_gpu",),
    accumulation=("deepspeed_config.gradient_accumulation_steps", "gradient_accumulation_steps"),
    replicas=(("num_processes",),),
    memory=("distributed_type", "mixed_precision", "deepspeed_config", "fsdp_config", "parallelism_config"),
    note="the size stands in the script's arguments: "
    "-- accelerate launch --config_file {config} train.py --batch-size {micro_batch_size}",
)
