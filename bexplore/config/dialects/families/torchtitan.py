"""torchtitan: TOML with a section `training`; a global batch of -1 is the local one of all replicas."""

from __future__ import annotations

from collections.abc import Iterator

from bexplore.config.dialects.family import Family, Program, Signature
from bexplore.config.dialects.numbers import Numbers
from bexplore.config.document.values import Values


def _rules(numbers: Numbers, values: Values) -> Iterator[str]:
    total, micro, replicas = numbers.global_batch_size, numbers.micro_batch_size, numbers.num_replicas
    if total and micro and replicas and total % (micro * replicas):
        yield (
            f"training.global_batch_size {total} is not divisible by local_batch_size {micro} x data-parallel degree "
            f"{replicas}: torchtitan's Trainer asserts it"
        )


TORCHTITAN = Family(
    name="torchtitan",
    title="torchtitan",
    source="torchtitan.config.job_config: Training, Parallelism; torchtitan.train: Trainer",
    signatures=(
        Signature(
            any_of=("training.local_batch_size", "training.batch_size", "training.global_batch_size"),
            suffixes=(".toml",),
        ),
    ),
    micro_batch_size=("training.local_batch_size", "training.batch_size"),
    global_batch_size=("training.global_batch_size",),
    replicas=(("parallelism.data_parallel_replicate_degree",), ("parallelism.data_parallel_shard_degree",)),
    sequence_length=("training.seq_len",),
    output_dir=("job.dump_folder",),
    memory=(
        "activation_checkpoint",
        "parallelism",
        "compile",
        "training.compile",
        "model",
        "float8",
        "quantize",
        "training.mixed_precision_param",
    ),
    rules=_rules,
    program=lambda values, num_processes: Program(launched=("-m", "torchtitan.train", "--job.config_file", "{config}")),
    note="releases since August 2026 configure in Python and in tokens: type {micro_batch_size} behind --",
)
