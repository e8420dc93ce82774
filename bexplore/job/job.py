"""A job: everything that decides the program that runs, from the model to the number of replicas."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from bexplore.errors import UserInputError
from bexplore.host.accelerators import Device
from bexplore.host.records import to_record
from bexplore.host.secret_values import hidden_record
from bexplore.job.lengths import Collation, Lengths

# Modes of torch.compile that record CUDA graphs. Source: `list_mode_options` in torch/_inductor/__init__.py, torch 2.11
# to 2.13.
CUDA_GRAPH_MODES = ("reduce-overhead", "max-autotune")


def device_kind(device: str) -> str:
    """Return the kind of a device that torch names: `cuda` of `cuda:1`, `cpu` of `cpu`."""
    return device.partition(":")[0]


class Mode(StrEnum):
    """Training runs forward, backward and update; evaluation runs forward only."""

    TRAIN = "train"
    EVAL = "eval"


class Precision(StrEnum):
    """The number formats of weights and of arithmetic."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"  # weights, gradients and arithmetic
    AUTOCAST_BFLOAT16 = "autocast_bfloat16"  # float32 weights, bfloat16 arithmetic in the operators of torch.autocast
    AUTOCAST_FLOAT16 = "autocast_float16"  # with gradient scaling; CUDA only

    @property
    def weight_bytes(self) -> int:
        """Bytes of an element of a weight, and of its gradient."""
        return 2 if self is Precision.BFLOAT16 else 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileSettings:
    """Arguments of torch.compile in the user's own training: the keys of `explore.compile` (config/schema.py)."""

    enabled: bool = True
    backend: str = "inductor"
    mode: str | None = None
    fullgraph: bool = False
    dynamic: bool | None = False
    options: Mapping[str, Any] | None = None

    @property
    def uses_inductor(self) -> bool:
        """Whether the program is compiled by torch's own compiler of kernels."""
        return self.enabled and self.backend == "inductor"

    def uses_cuda_graphs(self, device: str) -> bool:
        """Return whether the compiled program is recorded into CUDA graphs on a torch device.

        Source: `list_mode_options` in torch/_inductor/__init__.py, and the backend `cudagraphs` of torch/_dynamo.
        """
        if not self.enabled or device_kind(device) != "cuda":
            return False
        if self.backend != "inductor":
            return self.backend == "cudagraphs"
        options = self.options or {}
        return self.mode in CUDA_GRAPH_MODES or bool(options.get("triton.cudagraphs"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchSettings:
    """Process-wide settings of torch that change which kernels run: the keys of `explore.torch` (config/schema.py).

    None leaves torch's default, or what the user's own code sets when it is imported.
    """

    float32_matmul_precision: str | None = None
    cudnn_benchmark: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """How the ranks of a training share its work: the keys of `explore.parallelism` (config/schema.py).

    The degree of shards is never -1 here: what the replicas leave has been put in its place.
    """

    data_parallel_replicate_degree: int = 1
    data_parallel_shard_degree: int = 1
    tensor_parallel_degree: int = 1
    fsdp_reshard_after_forward: str = "default"
    mixed_precision_param: str | None = None
    mixed_precision_reduce: str | None = None
    bucket_cap_mb: float | None = None
    gradient_as_bucket_view: bool = False
    find_unused_parameters: bool = False
    gradient_sync: str = "last"
    blocks: tuple[str, ...] = ()

    @property
    def num_replicas(self) -> int:
        """Ranks with a micro-batch of their own; ranks of one tensor-parallel group share theirs."""
        return self.data_parallel_replicate_degree * self.data_parallel_shard_degree

    @property
    def num_ranks(self) -> int:
        """All ranks, one a device."""
        return self.num_replicas * self.tensor_parallel_degree

    @property
    def is_distributed(self) -> bool:
        """Whether there is more than one rank."""
        return self.num_ranks > 1

    @property
    def is_sharded(self) -> bool:
        """Whether parameters are sharded over data-parallel ranks (FSDP2, HSDP)."""
        return self.data_parallel_shard_degree > 1

    @property
    def is_replicated_only(self) -> bool:
        """Whether replicas hold whole copies that DistributedDataParallel keeps equal."""
        return self.data_parallel_replicate_degree > 1 and not self.is_sharded

    @property
    def bucket_cap_bytes(self) -> int:
        """Size of a gradient bucket of DistributedDataParallel, by default 25 MiB. Source: its documentation."""
        return int((25 if self.bucket_cap_mb is None else self.bucket_cap_mb) * 2**20)

    @property
    def synchronizes_last(self) -> bool:
        """Whether passes differ: only the last one of a step reduces gradients."""
        return self.num_replicas > 1 and self.gradient_sync == "last"

    def with_ranks(self, num_ranks: int) -> Parallelism:
        """Return the same on another number of ranks: the outermost data-parallel degree takes the difference."""
        inner = self.tensor_parallel_degree
        if not self.is_sharded:
            return dataclasses.replace(self, data_parallel_replicate_degree=_share(num_ranks, inner))
        inner *= self.data_parallel_replicate_degree
        return dataclasses.replace(self, data_parallel_shard_degree=_share(num_ranks, inner))

    def __str__(self) -> str:
        parts = [
            f"DDP over {self.data_parallel_replicate_degree} ranks" if self.is_replicated_only else "",
            f"FSDP over {self.data_parallel_shard_degree} ranks" if self.is_sharded else "",
            f"{self.data_parallel_replicate_degree} copies"
            if self.is_sharded and self.data_parallel_replicate_degree > 1
            else "",
            f"tensor parallel over {self.tensor_parallel_degree}" if self.tensor_parallel_degree > 1 else "",
        ]
        return ", ".join(part for part in parts if part) or "one device"


def _share(num_ranks: int, inner: int) -> int:
    if num_ranks % inner:
        near = [number for number in (num_ranks // inner * inner, (num_ranks // inner + 1) * inner) if number]
        raise UserInputError(
            f"{num_ranks} devices are not a multiple of the {inner} that the other degrees of parallelism take",
            hint=f"type {' or '.join(map(str, near))}",
        )
    return num_ranks // inner


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One replica's program in JSON values, which cross process borders and have a fingerprint."""

    workload: str  # a key of the builders in `bexplore.workloads`, such as `decoder`, `transformers`, `imported`
    # Parameters of the builder (for `decoder`: sizes of the model).
    model: Mapping[str, Any] = field(default_factory=dict)
    # Form of a batch (sequence length, vocabulary, image size, an import path ...).
    data: Mapping[str, Any] = field(default_factory=dict)
    mode: Mode = Mode.TRAIN  # train or eval
    optimizer: str = "AdamW"  # name of a `torch.optim` class; ignored in evaluation
    optimizer_arguments: Mapping[str, Any] = field(default_factory=dict)
    # Clip the global gradient norm to this before the update; None for no clipping.
    max_gradient_norm: float | None = None
    precision: Precision = Precision.FLOAT32
    device: str = "cpu"  # a torch device, such as `cpu`, `cuda` or `cuda:1`
    num_replicas: int = 1  # data-parallel
    # How ranks share the work; the default is one device, whatever the replicas.
    parallelism: Parallelism = field(default_factory=Parallelism)
    sequence_length: int | None = None  # tokens a sample, of the longest one; None where samples are not sequences
    lengths: Lengths | None = None  # distribution of the lengths of samples; None where all are as long
    compile: CompileSettings = field(default_factory=CompileSettings)  # arguments of torch.compile
    torch: TorchSettings = field(default_factory=TorchSettings)  # process-wide settings of torch
    seed: int = 0  # seed of the initial weights and of the synthetic samples
    activation_checkpointing: str = "none"  # as in `explore`, like the next two
    checkpointed_modules: tuple[str, ...] = ()  # paths of the blocks that are recomputed
    activation_memory_budget: float = 1.0  # share of the activations, 0 to 1, that the compiler keeps
    # Folder put first on the import path of a worker (that of the configuration); None for none.
    import_root: str | None = None

    @property
    def training_parallelism(self) -> Parallelism:
        """How the ranks of the training share the work; replicas that are not said to share it hold whole copies."""
        return self.parallelism if self.parallelism.is_distributed else self.parallelism.with_ranks(self.num_replicas)

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary that `records.from_record` turns back into an equal job.

        What is at its default and was added later is left out, so that the identity of a program stays.
        """
        record = to_record(self)
        plain = {name for name in _LEFT_OUT if getattr(self, name) == getattr(_PLAIN, name)}
        return {name: value for name, value in record.items() if name not in plain}

    def peak_flops_per_s(self, device: Device | None) -> float | None:
        """Return the published peak of the job's arithmetic; None for float32: the figures are those of 16 bits."""
        return None if device is None or self.precision is Precision.FLOAT32 else device.bfloat16_flops_per_s

    @property
    def tokens_per_sample(self) -> float | None:
        """Mean tokens of a sample, without padding; None where samples are not sequences."""
        if self.lengths is None:
            return self.sequence_length
        return self.lengths.longest if self.lengths.collation is Collation.TOKENS else self.lengths.mean

    @property
    def num_positions(self) -> int | None:
        """Tokens of the longest row that the model has positions for; None where its configuration does not say."""
        config: Mapping[str, Any] = self.model.get("config") or self.model
        found = (config.get(name) for name in NAMES_OF_POSITIONS)
        return next((value for value in found if isinstance(value, int) and value > 0), None)

    def at_length(self, length: int) -> Job:
        """Return the job whose samples all have one length, as the user's own callables are told it, too.

        The targets of a sample are shorter in proportion. The length of an image is its side.
        """
        model, data = self.model, dict(self.data)
        if self.workload == "imported" and self.lengths is not None:
            model = {**model, "arguments": {**(model.get("arguments") or {}), self.lengths.argument: length}}
        if data.get("target_length"):
            data["target_length"] = max(1, round(data["target_length"] * length / (self.sequence_length or length)))
        if "image_size" in data:
            data["image_size"] = length
        return dataclasses.replace(self, model=model, data=data, sequence_length=length, lengths=None)

    def fingerprint(self, **environment: object) -> str:
        """Return sixteen hexadecimal digits that change with the program, and with nothing else.

        The folder of the configuration is left out, and so is the name of the file of lengths: the same job in another
        checkout is the same job. So is one with another password: secrets are masked.
        """
        record = self.as_record() | {"import_root": None} | {"environment": environment}
        if self.lengths is not None:
            record["lengths"] = record["lengths"] | {"source": ""}
        text = json.dumps(hidden_record(record, by_value=False), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


# Fields that a record of a job has only where they are not at their defaults.
_LEFT_OUT = (
    "lengths",
    "parallelism",
    "activation_checkpointing",
    "checkpointed_modules",
    "activation_memory_budget",
)
_PLAIN = Job(workload="")


# Names under which a model's configuration bounds its sequences. Sources: configurations of the package transformers;
# nanoGPT and LitGPT (`block_size`), torchtune (`max_seq_len`), GPT-NeoX and others (`context_length`).
NAMES_OF_POSITIONS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "max_sequence_length",
    "block_size",
    "context_length",
)


def digest_code(job: Job) -> dict[str, str]:
    """Return sixteen hexadecimal digits of each file of the user's own code beside the configuration.

    Only the modules in the job's import paths are read, and none is imported; a change elsewhere shows in the trace.
    """
    if job.workload != "imported" or job.import_root is None:
        return {}
    digests = {}
    paths = [value for value in job.model.values() if isinstance(value, str) and ":" in value]
    for module in sorted({path.partition(":")[0] for path in paths}):
        stem = Path(job.import_root, *module.split("."))
        for path in (stem.with_suffix(".py"), stem / "__init__.py"):
            if path.is_file():
                name = str(path.relative_to(job.import_root))
                digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return digests
