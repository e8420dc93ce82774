"""DeepSpeed's numbers: in its JSON, at the top of GPT-NeoX's files, and below `deepspeed_config` of accelerate's.

`train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x world size`. `"auto"` is not a
search: Transformers and accelerate copy the value from their arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from bexplore.config.dialects.family import Family, Program, Signature
from bexplore.config.dialects.numbers import Numbers
from bexplore.config.document.values import Values

_NEOX = ("num_layers", "hidden_size", "num_attention_heads")
_with_numbers = functools.partial(
    Family,
    micro_batch_size=("train_micro_batch_size_per_gpu",),
    global_batch_size=("train_batch_size",),
    accumulation=("gradient_accumulation_steps",),
)


def _rules(numbers: Numbers, values: Values) -> Iterator[str]:
    if values.get("fp16.enabled") is True and values.get("bf16.enabled") is True:
        yield "fp16 and bf16 are both enabled: DeepSpeed's configuration asserts that one of them is"
    stage = values.get("zero_optimization.stage")
    if stage is not None and stage != "auto" and stage not in (0, 1, 2, 3):
        yield f"zero_optimization.stage is {stage}; DeepSpeed has 0, 1, 2 and 3"
    if values.get("train_batch_size") is None and values.get("train_micro_batch_size_per_gpu") is None:
        yield (
            "none of train_batch_size and train_micro_batch_size_per_gpu is given: DeepSpeed's configuration asserts "
            "that one of them is"
        )


DEEPSPEED = _with_numbers(
    name="deepspeed",
    title="DeepSpeed",
    source="deepspeed.runtime.config: DeepSpeedConfig._configure_train_batch_size and _batch_assertion",
    signatures=(
        Signature(any_of=("train_micro_batch_size_per_gpu", "train_batch_size"), none_of=_NEOX),
        Signature(
            all_of=("zero_optimization",),
            any_of=("zero_optimization.stage", "fp16", "bf16", "gradient_clipping"),
            none_of=_NEOX,
        ),
        Signature(any_of=("zero_optimization.stage",), none_of=_NEOX),
    ),
    memory=("zero_optimization", "fp16", "bf16", "amp", "activation_checkpointing", "optimizer", "tensor_parallel"),
    probing={"autotuning.enabled": False, "elasticity.enabled": False},
    rules=_rules,
    note="auto there means: copied from the arguments of Transformers or accelerate",
)

GPT_NEOX = _with_numbers(
    name="gpt-neox",
    title="GPT-NeoX",
    source="megatron.neox_arguments: NeoXArgs.calculate_batch_parameters and check_batch_parameters",
    signatures=(
        Signature(
            any_of=("train_micro_batch_size_per_gpu", "train_batch_size", "pipe_parallel_size", "pos_emb"),
            all_of=("num_layers", "hidden_size"),
        ),
        Signature(all_of=("train_micro_batch_size_per_gpu",), any_of=("train_iters", "seq_length")),
    ),
    sequence_length=("seq_length",),
    output_dir=("save",),
    memory=(
        *("checkpoint_activations", "checkpoint_num_layers", "partition_activations", "pipe_parallel_size"),
        *("model_parallel_size", "zero_optimization", "fp16", "bf16", "precision", "hidden_size"),
        *("num_layers", "attention_config"),
    ),
    program=lambda values, num_processes: Program(words=("python", "deepy.py", "train.py", "{config}")),
    note="name your other files behind the command: -- python deepy.py train.py {config} local_setup.yml",
)

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
