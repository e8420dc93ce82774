"""The `explore:` section: every default, check and description of a setting."""

from __future__ import annotations

import dataclasses
import itertools
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from bexplore.config.code_keys import refuse_code
from bexplore.config.document import Problems, as_flag, dotted_path
from bexplore.config.document.reader import KeyPath, quote
from bexplore.config.field_types import (
    Address,
    Bandwidth,
    Candidates,
    Checkpointing,
    Duration,
    Enabled,
    Flag,
    Fraction,
    ImportPath,
    Memory,
    Percent,
    PrecisionName,
    Samples,
    Seconds,
    Share,
    Size,
    Tokens,
    translate,
)
from bexplore.job.batching import INDIFFERENCE_ZONE

TRAINING_TIME_S = 36_000.0  # 10 h, of a training of unknown length
# About half of the probes of a search. Five sizes take 0.34 of the seconds of separate starts, and no difference of
# their speeds was seen beyond the noise of a start. Source: benchmarks/results/command_shared_starts.md.
SIZES_PER_START = 8

_FEWEST_PLAIN_SECONDS = 60  # a smaller number without a unit may have been meant as minutes or hours
_LIKELY_UNITS = {"time_budget": "min", "probe_time_limit": "min", "trace_time_limit": "min", "training_time": "h"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Limits that one word of `explore.effort` sets."""

    max_probes: int
    passes_per_probe: int
    target_confidence: float  # out of 100, from which on a probe must save several times its cost
    # Most of the training's time that the search takes. Source: chosen; of 10 hours they are 12 minutes, an hour and
    # three hours.
    training_share: float


EFFORTS: Mapping[str, Effort] = {
    "quick": Effort(max_probes=8, passes_per_probe=5, target_confidence=75.0, training_share=0.02),
    "normal": Effort(max_probes=16, passes_per_probe=10, target_confidence=90.0, training_share=0.1),
    "thorough": Effort(max_probes=40, passes_per_probe=30, target_confidence=97.0, training_share=0.3),
}


class _Section(BaseModel):
    """A strict, closed and frozen section: a text is no number, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class CompileOptions(_Section):
    """Arguments of torch.compile in the user's own training; true, false and both are short for `enabled`."""

    enabled: Enabled = Field(
        True,
        description="Whether the training is compiled; false: explore it eagerly; both: compare the two at the winner.",
    )
    backend: str = Field("inductor", description="Backend of torch.compile.")
    mode: str | None = Field(
        None, description="Mode of torch.compile, such as reduce-overhead; null or default: its default."
    )
    fullgraph: Flag = Field(False, description="Whether a graph break is an error.")
    dynamic: Flag | None = Field(False, description="As in torch.compile; false: each size has a static program.")
    options: dict[str, Any] | None = Field(None, description="Options of the backend; excludes mode.")

    @model_validator(mode="after")
    def _mode_excludes_options(self) -> CompileOptions:
        if self.mode is not None and self.options is not None:
            raise ValueError("mode and options exclude each other, in torch.compile too; keep one")
        return self


class TorchOptions(_Section):
    """Process-wide settings of torch in the training, named as torch names them."""

    float32_matmul_precision: Literal["highest", "high", "medium"] | None = Field(
        None,
        description="As torch.set_float32_matmul_precision: highest, high (TF32 on CUDA) or medium; null: torch's "
        "default, highest.",
    )
    cudnn_benchmark: Flag | None = Field(
        None, description="As torch.backends.cudnn.benchmark; null: torch's default, false."
    )


class ImplementationOptions(_Section):
    """Which implementation of the optimizer runs, over what the file's own optimizer says."""

    fused: Flag | None = Field(None, description="As in torch.optim; null: as the file's optimizer says.")
    foreach: Flag | None = Field(None, description="As in torch.optim; null: as the file's optimizer says.")


def _words_of_command(value: Any) -> Any:
    return shlex.split(value) if isinstance(value, str) else value


def _texts(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: str(one) if type(one) in (int, float) else one for name, one in value.items()}


def _settings(value: Any) -> Any:
    if value is not None and value != "auto" and not isinstance(value, dict):
        raise ValueError(f"must be auto, or a mapping of settings to lists of values, not {quote(value)}")
    return value


_SETTINGS_SCHEMA = WithJsonSchema({"anyOf": [{"enum": ["auto", None]}, {"type": "object"}]})


def _short_for_enabled(value: Any) -> Any:
    if isinstance(value, dict):
        return value
    if value != "both" and as_flag(value) is None:
        raise ValueError(f"must be true, false, both or a mapping, not {quote(value)}")
    return {"enabled": value}


class OptimizerOptions(_Section):
    """The optimizer of a workload, instead of the file's own `optimizer` section."""

    name: str = Field("AdamW", description="Class of torch.optim.")
    arguments: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the class.")
    max_gradient_norm: float | None = Field(
        None, gt=0, description="Clip the global gradient norm to this; null: no clipping."
    )


class TransformersOptions(_Section):
    """A model of the transformers package, made from its configuration; nothing is downloaded."""

    task: Literal["causal_lm", "masked_lm", "seq2seq_lm", "image_classification"] = Field(
        description="Task: causal_lm, masked_lm, seq2seq_lm or image_classification."
    )
    model_type: str = Field(description="Model type as in transformers, such as bert, t5, vit.")
    config: dict[str, Any] = Field(default_factory=dict, description="Values of the model's configuration class.")
    sequence_length: Tokens | None = Field(None, description="Tokens a sample; null: the most that the model allows.")
    target_length: Tokens | None = Field(
        None, description="Tokens of the target of seq2seq_lm; null: as many as the source."
    )
    attention_mask: Flag = Field(False, description="Give the model a mask of ones, as a padding collator would.")
    image_size: Annotated[int, Field(ge=1, le=65536)] | None = Field(
        None, description="Pixels of the side of a square image; null: as in the configuration."
    )


class WorkloadOptions(_Section):
    """The program to train, where the file does not describe it: one of transformers, model, step."""

    transformers: TransformersOptions | None = Field(None, description="A model of the transformers package.")
    model: ImportPath | None = Field(None, description="Import path: (...) -> torch.nn.Module.")
    batch: ImportPath | None = Field(None, description="Import path: (micro_batch_size, ...) -> a batch of that size.")
    loss: ImportPath | None = Field(
        None, description="Import path: (output, targets, ...) -> scalar loss; null: the model's own."
    )
    step: ImportPath | None = Field(None, description="Import path: (...) -> your own training step.")
    loader: ImportPath | None = Field(
        None, description="Import path: (micro_batch_size, ...) -> your DataLoader, which is timed apart from the step."
    )
    samples_of: ImportPath | None = Field(
        None, description="Import path: (batch, ...) -> number of samples, where shapes do not show it."
    )
    arguments: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments; each callable gets those in its signature."
    )
    optimizer: OptimizerOptions | None = Field(None, description="Optimizer; null: the file's own, else AdamW.")
    sequence_length: Tokens | None = Field(None, description="Tokens a sample, to count tokens; null: unknown.")

    @model_validator(mode="after")
    def _one_kind(self) -> WorkloadOptions:
        given = [name for name in ("transformers", "model", "step") if getattr(self, name) is not None]
        if len(given) != 1:
            what = " and ".join(given) if given else "none of them"
            raise ValueError(f"needs exactly one of transformers, model, step; given: {what}")
        if self.model is not None and self.batch is None:
            raise ValueError("model needs batch: the import path of a callable that makes a batch of a given size")
        if self.model is None and (self.batch or self.loss):
            raise ValueError(f"batch and loss go with model; {given[0]} brings its own")
        own = next((name for name in ("loader", "samples_of") if getattr(self, name)), None)
        if self.transformers is not None and own is not None:
            raise ValueError(f"{own} goes with model or step; what transformers builds has samples of its own")
        if self.step is not None and self.optimizer is not None:
            raise ValueError("step brings its own optimizers; remove optimizer")
        return self


def _list_of_lengths(value: Any) -> Any:
    if isinstance(value, str):
        return {"file": value}
    if isinstance(value, list):
        return {"values": value}
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"must be a list of lengths, the path of a file or a mapping, not {quote(value)}")
    return value


def _texts_as_keys(value: Any) -> Any:
    return {str(key): one for key, one in value.items()} if isinstance(value, dict) else value


def _as_percent(text: str) -> float:
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = math.nan
    if not 0 <= percent <= 100:
        raise ValueError(f"{text} in quantiles is no percent from 0 to 100")
    return percent


class LengthsOptions(_Section):
    """The lengths of the training's samples and how a batch is padded; a list is short for `values`, a text for `file`.

    One of values, quantiles, file, from gives the lengths.
    """

    values: Annotated[list[Tokens], Field(min_length=1)] | None = Field(
        None, description="Lengths of samples, tokens; each as often as it occurs, or with `weights`."
    )
    weights: list[Annotated[float, Field(ge=0)]] | None = Field(
        None, description="How often each of `values` occurs, in any unit; null: each as often."
    )
    quantiles: Annotated[dict[str, Tokens] | None, BeforeValidator(_texts_as_keys)] = Field(
        None, description="Lengths by percent of the samples that are no longer: {0: 8, 50: 90, 99: 400, 100: 512}."
    )
    file: str | None = Field(
        None,
        description="File of lengths, beside this one: numbers in a text, a JSON list, a column of a .csv, or an array "
        "in .npy or .npz.",
    )
    column: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="Column of a table, or array of a .npz, that holds the lengths; null where there is one."
    )
    source: Literal["loader"] | None = Field(
        None, alias="from", description="loader: those that explore.workload.loader gives, or of its data set."
    )
    num_samples: Annotated[int, Field(ge=1, le=10_000_000)] = Field(
        2000, description="Samples that are read of the loader at most."
    )
    padding: Literal["longest", "max", "sorted", "buckets", "packed"] = Field(
        "longest",
        description="How samples become a batch: padded to the longest of the batch, to the longest of all (max), as "
        "longest after sorting (sorted) or within `buckets`, or packed into rows of the longest length.",
    )
    buckets: list[Tokens] = Field(default_factory=list, description="Longest sample of each bucket, tokens.")
    multiple_of: Annotated[int, Field(ge=1, le=65536)] = Field(
        1, description="Rows are padded to a multiple of this (pad_to_multiple_of)."
    )
    argument: Annotated[str, Field(min_length=1, max_length=64)] = Field(
        "sequence_length", description="Keyword argument by which your own `batch` or `make_batch` takes the length."
    )

    @model_validator(mode="after")
    def _one_source(self) -> LengthsOptions:
        sources = {"values": self.values, "quantiles": self.quantiles, "file": self.file, "from": self.source}
        given = [name for name, one in sources.items() if one is not None]
        if len(given) != 1:
            what = " and ".join(given) if given else "none of them"
            raise ValueError(f"needs exactly one of {', '.join(sources)}; given: {what}")
        if self.column is not None and self.file is None:
            raise ValueError("column goes with file")
        if self.weights is not None and len(self.weights) != len(self.values or ()):
            raise ValueError(f"weights has {len(self.weights)} numbers, and values {len(self.values or ())}")
        if self.weights is not None and not sum(self.weights) > 0:
            raise ValueError("weights are all 0")
        if (self.padding == "buckets") != bool(self.buckets):
            raise ValueError("padding: buckets goes with a list of buckets, such as [64, 128, 256]")
        return self

    @model_validator(mode="after")
    def _quantiles_in_order(self) -> LengthsOptions:
        if self.quantiles is None:
            return self
        marks = self.marks()
        if not marks or (marks[0][0], marks[-1][0]) != (0, 100):
            raise ValueError("quantiles needs 0, the shortest, and 100, the longest sample")
        if any(one[1] > other[1] for one, other in itertools.pairwise(marks)):
            raise ValueError("quantiles must not fall from one percent to the next")
        return self

    def marks(self) -> list[tuple[float, int]]:
        """Return percents and lengths of `quantiles`, ascending."""
        return sorted((_as_percent(name), length) for name, length in (self.quantiles or {}).items())


_MOST_DEVICES = 1_000_000
Degree = Annotated[int, Field(ge=1, le=_MOST_DEVICES)]
HalfOrFull = Literal["float32", "bfloat16", "float16"]


class ParallelismOptions(_Section):
    """How the ranks of the training share its work; names as in torchtitan. Without the section: one device.

    The data-parallel degrees multiply to `num_csx`, where the file gives it.
    """

    data_parallel_replicate_degree: Degree = Field(
        1, description="Copies of the model; without sharding: DistributedDataParallel, with it: HSDP."
    )
    data_parallel_shard_degree: Annotated[int, Field(ge=-1, le=_MOST_DEVICES)] = Field(
        -1, description="Ranks that shard the parameters of a copy (FSDP2); -1: num_csx over the copies."
    )
    tensor_parallel_degree: Degree = Field(1, description="Ranks that share each layer's matrices.")
    fsdp_reshard_after_forward: Literal["default", "always", "never"] = Field(
        "default", description="Whether parameters are sharded again behind the forward pass; default: those of blocks."
    )
    mixed_precision_param: HalfOrFull | None = Field(
        None, description="Type of sharded parameters in a pass (FSDP2); null: as they are."
    )
    mixed_precision_reduce: HalfOrFull | None = Field(
        None, description="Type in which sharded gradients are reduced (FSDP2); null: as they are."
    )
    bucket_cap_mb: Annotated[float, Field(gt=0)] | None = Field(
        None, description="MiB of a gradient bucket of DistributedDataParallel; null: its default."
    )
    gradient_as_bucket_view: Flag = Field(False, description="As in DistributedDataParallel.")
    find_unused_parameters: Flag = Field(False, description="As in DistributedDataParallel.")
    gradient_sync: Literal["last", "every"] = Field(
        "last", description="Whether gradients are reduced in the last accumulation pass of a step, or in every pass."
    )
    blocks: list[str] = Field(
        default_factory=list,
        description="Modules that are sharded and compiled each by itself, such as model.layers.*; empty: the repeated "
        "blocks of the model.",
    )

    @model_validator(mode="after")
    def _no_shard_of_none(self) -> ParallelismOptions:
        if self.data_parallel_shard_degree == 0:
            raise ValueError("data_parallel_shard_degree is at least 1, or -1 for what num_csx leaves")
        return self


class ExploreSettings(_Section):
    """The optional top-level section `explore:`. Every key has a default; `--set explore.KEY=VALUE` overrides one."""

    effort: Literal["quick", "normal", "thorough"] = Field(
        "normal",
        description="How much to spend: sets max_probes, passes_per_probe, target_confidence and, "
        "where it is not given, the time budget.",
    )
    max_probes: Annotated[int, Field(ge=1, le=10_000)] = Field(
        EFFORTS["normal"].max_probes,
        description="Probes of the search at most (sizes compiled and run, repeats included); up to two more look for "
        "a size that keeps batch_size.",
    )
    passes_per_probe: Annotated[int, Field(ge=2, le=10_000)] = Field(
        EFFORTS["normal"].passes_per_probe, description="Timed passes of one probe at most."
    )
    target_confidence: Annotated[Percent, Field(gt=0, lt=100)] = Field(
        EFFORTS["normal"].target_confidence,
        description="Stop at this confidence score, out of 100, unless another probe saves several "
        "times its cost; below 100.",
    )
    tolerance: Annotated[Fraction, Field(ge=0, lt=1)] = Field(
        INDIFFERENCE_ZONE,
        description="Indifference zone: sizes with a throughput within this fraction of the best count as equal, "
        "and are timed no more precisely.",
    )
    time_budget_s: Duration = Field(
        None,
        alias="time_budget",
        description='Seconds, or text such as "10min", that the search may take; null: a share of the '
        "training's time, 2 % with effort quick, 10 % with normal, 30 % with thorough.",
    )
    training_time_s: Duration = Field(
        None,
        alias="training_time",
        description='Seconds, or text such as "3d", that the training will take: the search ends where another probe '
        "costs more than its expected saving. null: from the steps in the file, else 10h.",
    )
    probe_time_limit_s: Duration = Field(
        1800.0,
        alias="probe_time_limit",
        description="Seconds, or text, after which one probe is given up as timed_out; null: no limit.",
    )
    trace_time_limit_s: Duration = Field(
        120.0,
        alias="trace_time_limit",
        description="Seconds of a processor, or text, after which the trace is given up and small sizes are measured "
        "instead; null: no limit.",
    )
    stage_time_floor: Seconds = Field(
        60.0, description="Seconds, or text, that any stage (build, compile, a step) may take without reporting."
    )
    device: Annotated[str, Field(min_length=1, max_length=64)] = Field(
        "auto", description="A torch device such as cpu, cuda, cuda:1; auto: the accelerator if there is one, else cpu."
    )
    device_name: Annotated[str, Field(min_length=1, max_length=64)] | None = Field(
        None,
        description="An NVIDIA device that is not here, such as h100 or 8xh100. Speed on it is estimated; a training "
        "command, or a job with a launcher, is run on an emulated one, which tells what fits; this: a job's speed on "
        "this machine's processor is estimated, once it was calibrated; null: the devices of this machine.",
    )
    network_bandwidth: Bandwidth = Field(
        None,
        description="Bus bandwidth between nodes, such as 50GB/s or 400Gbit/s, by which what ranks on several nodes "
        "exchange is estimated; null: not known.",
    )
    emulate: Flag = Field(
        False,
        description="Whether `device_name` is emulated for its memory alone: sizes that fit by the allocator, and no "
        "speed.",
    )
    memory_budget: Memory = Field(
        "auto", description='Memory of one replica: a size ("12GiB"), a fraction of the device (0.8), or auto.'
    )
    replica_reserve: Size = Field(
        "auto", description="Memory kept free for gradient buckets and collectives of several replicas: a size or auto."
    )
    min: Samples | None = Field(None, description="Smallest micro-batch size to try, samples; null: 1.")
    max: Samples | None = Field(
        None,
        description="Largest micro-batch size to try, samples; null: what fits, at most 65536 samples and 16777216 "
        "tokens, more than any published batch; of a command, at most 4096 samples.",
    )
    candidates: Candidates = Field(
        "all", description="Which sizes: all, powers_of_two, divisors or even (of the replica batch), or a list."
    )
    divisibility: Literal["strict", "even"] = Field(
        "strict", description="When a global batch size is valid: whole micro-batches only, or equal parts (even)."
    )
    keep_batch_size: Flag = Field(
        False,
        description="Recommend the fastest size with which batch_size is valid; false: report it beside the fastest of "
        "all.",
    )
    precision: PrecisionName | None = Field(
        None, description="Number formats; null: those of the model's own section, else float32."
    )
    activation_checkpointing: Checkpointing = Field(
        "none",
        description="Recompute activations of blocks in the backward pass: none, selective (all but matrix products "
        "and attention) or full; true and false for full and none.",
    )
    checkpointed_modules: list[str] = Field(
        default_factory=list,
        description="Modules that are recomputed, such as model.layers.*; empty: the repeated blocks of the model.",
    )
    activation_memory_budget: Share = Field(
        1.0,
        description="Share of the activations, 0 to 1, that the compiler keeps for the backward pass; it recomputes "
        "those that are cheapest for their bytes. 1: its usual rules.",
    )
    optimizer: ImplementationOptions = Field(
        default_factory=lambda: ImplementationOptions.model_validate({}),
        description="Which implementation of the optimizer runs.",
    )
    settings: Annotated[Literal["auto"] | dict[str, Any] | None, BeforeValidator(_settings), _SETTINGS_SCHEMA] = Field(
        None,
        description="Settings to explore together with the size: keys of this section, each with a list of values; "
        "auto: a few that trade memory for speed. See docs/settings.md.",
    )
    compile: Annotated[
        CompileOptions,
        BeforeValidator(_short_for_enabled, json_schema_input_type=bool | Literal["both"] | CompileOptions),
    ] = Field(
        default_factory=lambda: CompileOptions.model_validate({}),
        description="How the training is compiled; true, false or both for short.",
    )
    torch: TorchOptions = Field(
        default_factory=lambda: TorchOptions.model_validate({}),
        description="Process-wide settings of torch that the training makes; part of the job's fingerprint.",
    )
    parallelism: ParallelismOptions | None = Field(
        None, description="How the ranks of the training share its work; null: one device, num_csx times."
    )
    lengths: Annotated[LengthsOptions | None, BeforeValidator(_list_of_lengths)] = Field(
        None,
        description="Lengths of the training's samples, and how a batch is padded; null: all are as long. See "
        "docs/lengths.md.",
    )
    storage: str | None = Field(
        None,
        description="URL of the Optuna storage (sqlite:///study.db, or postgresql://..., with the extra postgresql); "
        "null: in the run directory.",
    )
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = Field(
        0, description="Seed of the weights, the samples and the search; the same seed gives the same next probe."
    )
    workload: WorkloadOptions | None = Field(
        None, description="The program to train, where the file does not describe it; null: the file's model section."
    )

    command: Annotated[list[str] | None, BeforeValidator(_words_of_command)] = Field(
        None,
        description="Your own training command, a list of words or one text, with placeholders such as "
        "{micro_batch_size}; null: bexplore builds the job from the file.",
    )
    env: Annotated[dict[str, str], BeforeValidator(_texts)] = Field(
        default_factory=dict, description="Further variables of the environment of `command`; placeholders are filled."
    )
    dialect: str | None = Field(
        None, description="Family of the file, such as axolotl; null: recognised from its keys. See docs/dialects.md."
    )
    launcher: str | None = Field(
        None,
        description="Starts the ranks. Of a job with `parallelism`: none (one rank of N, whose times hold no "
        "communication), torchrun, srun, ray, external (you start them), or your own words with {worker} and "
        "{num_ranks}; null: none. Of a file's usual command: python, torchrun, accelerate, deepspeed or srun; null: "
        "torchrun for several replicas.",
    )
    rendezvous: Address | None = Field(
        None,
        description="HOST or HOST:PORT of this machine at which ranks on other hosts call; null: loopback, any port.",
    )
    processes: Samples | None = Field(
        None, description="Processes that the launcher starts; null: one for each replica."
    )
    replicas: Samples | None = Field(
        None, description="Data-parallel replicas that `command` starts; null: the first probe shows it."
    )
    global_batch_size: Samples | None = Field(
        None,
        description="Samples of one optimizer step of `command` over all replicas; null: the one you choose later.",
    )
    replica_batch_size: Samples | None = Field(
        None, description="Likewise of one replica, where the number of replicas is not known before the first start."
    )
    sizes_per_start: Annotated[int, Field(ge=1, le=1000)] = Field(
        SIZES_PER_START,
        description="Sizes that one start of `command` may serve: smaller batches are cut from those of its size, for "
        "the search alone; the recommended size runs in a start of its own.",
    )
    writes_are_fine: Flag = Field(
        False, description="Whether `command` may write where it likes, because it does not take {output_dir}."
    )

    @model_validator(mode="before")
    @classmethod
    def _expand_effort(cls, values: Any) -> Any:
        """Take limits that are not given from `effort`."""
        if not isinstance(values, dict) or not isinstance(values.get("effort", "normal"), str):
            return values
        effort = EFFORTS.get(values.get("effort", "normal"))
        if effort is None:
            return values
        given = {name: value for name, value in dataclasses.asdict(effort).items() if name in cls.model_fields}
        return given | values

    @model_validator(mode="after")
    def _bounds_in_order(self) -> ExploreSettings:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self

    @property
    def replica_reserve_bytes(self) -> int | None:
        """Bytes kept free for several replicas; None for `auto`."""
        return None if self.replica_reserve == "auto" else int(self.replica_reserve)

    def memory_budget_bytes(self, device_memory_bytes: int) -> int | None:
        """Return the bytes of the given budget; None for `auto`."""
        if self.memory_budget == "auto":
            return None
        if isinstance(self.memory_budget, float):
            return int(self.memory_budget * device_memory_bytes)
        return int(self.memory_budget)


def read_settings(
    section: Any, problems: Problems, *, allow_code: bool = True, effort: str = "normal"
) -> ExploreSettings:
    """Check the `explore:` section: note every mistake, and return the defaults if there is any."""
    if section is not None and not isinstance(section, dict):
        problems.error(("explore",), f"explore must be a mapping of settings, not {quote(section)}")
    values = {"effort": effort} | section if isinstance(section, dict) else {"effort": effort}
    if not allow_code:
        refuse_code(values, problems)
    for key, unit in _LIKELY_UNITS.items():
        value = values.get(key)
        if isinstance(value, int | float) and 1 < value < _FEWEST_PLAIN_SECONDS:
            word = "hours" if unit == "h" else "minutes"
            text = f"{key} {value:g} without a unit is taken as seconds; write {value:g}{unit} for {word}"
            problems.warn(("explore", key), text)
    try:
        return ExploreSettings.model_validate(values)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            translate(detail, problems, _known_keys)
        return ExploreSettings.model_validate({"effort": effort})


def dotted_keys() -> list[str]:
    """Return every key of the section, dotted."""
    return [dotted_path(("explore", *path, name)) for path, section in _SECTIONS.items() for name in _names(section)]


def _known_keys(path: KeyPath) -> Sequence[str]:
    return _names(_SECTIONS[path])


def _names(section: type[BaseModel]) -> list[str]:
    """Return the keys of a section, as a file has them."""
    return [field.alias or name for name, field in section.model_fields.items()]


_SECTIONS: Mapping[KeyPath, type[BaseModel]] = {
    (): ExploreSettings,
    ("compile",): CompileOptions,
    ("optimizer",): ImplementationOptions,
    ("torch",): TorchOptions,
    ("parallelism",): ParallelismOptions,
    ("lengths",): LengthsOptions,
    ("workload",): WorkloadOptions,
    ("workload", "transformers"): TransformersOptions,
    ("workload", "optimizer"): OptimizerOptions,
}
