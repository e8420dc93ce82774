"""GPT-NeoX: JSON-like YAML, often several files, with DeepSpeed's numbers at the top."""

from __future__ import annotations

from bexplore.config.dialects.family import Family, Program, Signature

GPT_NEOX = Family(
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
    micro_batch_size=("train_micro_batch_size_per_gpu",),
    global_batch_size=("train_batch_size",),
    accumulation=("gradient_accumulation_steps",),
    sequence_length=("seq_length",),
    output_dir=("save",),
    memory=(
        "checkpoint_activations",
        "checkpoint_num_layers",
        "partition_activations",
        "pipe_parallel_size",
        "model_parallel_size",
        "zero_optimization",
        "fp16",
        "bf16",
        "precision",
        "hidden_size",
        "num_layers",
        "attention_config",
    ),
    program=lambda values, num_processes: Program(words=("python", "deepy.py", "train.py", "{config}")),
    note="name your other files behind the command: -- python deepy.py train.py {config} local_setup.yml",
)
