"""The `Job` of `explore.workload` or of the model that a dialect has read, and its `explore.parallelism`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bexplore.config.document.document import Problems, dotted_path
from bexplore.config.document.reader import KeyPath, quote
from bexplore.config.schema import ExploreSettings, ParallelismOptions, TransformersOptions, WorkloadOptions
from bexplore.config.sections.values import is_integer
from bexplore.errors import close_match
from bexplore.job import CompileSettings, Job, Parallelism, Precision, TorchSettings

_TRANSFORMERS_DATA = ("sequence_length", "target_length", "image_size")


def make_described_job(settings: ExploreSettings, common: Mapping[str, Any], described: Mapping[str, Any]) -> Job:
    """Make the job of a model that the file describes.

    Args:
        common: Fields of `Job` that do not depend on the kind of workload.
        described: `workload` (without one, the built-in decoder), `model`, `data` and `sequence_length`.
    """
    fields = {"workload": "decoder"} | dict(common) | dict(described) | _process(settings)
    return Job(**fields | _implementation(settings, fields))


def make_workload_job(
    settings: ExploreSettings, workload: WorkloadOptions, common: Mapping[str, Any], problems: Problems
) -> Job:
    """Make the job of the workload section, whose optimizer goes before the file's."""
    fields = dict(common) | _process(settings) | _optimizer(workload)
    fields |= _implementation(settings, fields)
    if workload.transformers is not None:
        return Job(**fields | _transformers(workload.transformers, workload.sequence_length))
    fields |= {"workload": "imported", "model": _imported(workload), "sequence_length": workload.sequence_length}
    if workload.step is not None:
        _check_own_step(settings, problems)
        if settings.precision not in (None, "float32"):
            problems.error(
                ("explore", "precision"),
                f"a step of your own decides its precision itself; precision is {quote(settings.precision)}",
                "remove it, and use torch.autocast inside the step",
            )
        for name in ("optimizer", "optimizer_arguments", "max_gradient_norm"):
            fields.pop(name, None)
        fields["precision"] = Precision.FLOAT32
    return Job(**fields)


def _check_own_step(settings: ExploreSettings, problems: Problems) -> None:
    """Note settings that a step of the user's own decides itself."""
    if settings.activation_checkpointing != "none":
        problems.error(
            ("explore", "activation_checkpointing"),
            "a step of your own checkpoints its activations itself",
            "remove it",
        )
    for name in ("fused", "foreach"):
        if getattr(settings.optimizer, name) is not None:
            problems.error(("explore", "optimizer", name), "a step of your own brings its own optimizers", "remove it")


def _imported(workload: WorkloadOptions) -> dict[str, Any]:
    names = ("model", "batch", "loss", "step", "loader", "samples_of", "arguments")
    return {name: getattr(workload, name) for name in names if getattr(workload, name)}


def _process(settings: ExploreSettings) -> dict[str, Any]:
    """Return how the training's process compiles and what it recomputes, and what it sets in torch."""
    compiling = settings.compile.model_dump() | {"enabled": settings.compile.enabled is not False}
    compiling["mode"] = None if settings.compile.mode == "default" else settings.compile.mode  # torch's own name of it
    return {
        "compile": CompileSettings(**compiling),
        "torch": TorchSettings(**settings.torch.model_dump()),
        "activation_checkpointing": settings.activation_checkpointing,
        "checkpointed_modules": tuple(settings.checkpointed_modules),
        "activation_memory_budget": settings.activation_memory_budget,
    }


def _implementation(settings: ExploreSettings, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the optimizer's arguments with the implementation that the settings name; nothing where they name none."""
    named = {name: value for name, value in settings.optimizer.model_dump().items() if value is not None}
    return {"optimizer_arguments": {**fields.get("optimizer_arguments", {}), **named}} if named else {}


def _optimizer(workload: WorkloadOptions) -> dict[str, Any]:
    if workload.optimizer is None:
        return {}
    return {
        "optimizer": workload.optimizer.name,
        "optimizer_arguments": dict(workload.optimizer.arguments),
        "max_gradient_norm": workload.optimizer.max_gradient_norm,
    }


def _transformers(options: TransformersOptions, sequence_length: int | None) -> dict[str, Any]:
    data = {name: getattr(options, name) for name in _TRANSFORMERS_DATA if getattr(options, name) is not None}
    if options.task != "image_classification":
        if sequence_length is not None:
            data.setdefault("sequence_length", sequence_length)
        if options.attention_mask:
            data["attention_mask"] = True
    return {
        "workload": "transformers",
        "model": {"task": options.task, "model_type": options.model_type, "config": dict(options.config)},
        "data": data,
        "sequence_length": data.get("sequence_length") or _longest_sequence(options),
    }


def _longest_sequence(options: TransformersOptions) -> int | None:
    """Return the tokens of a sample by the model's configuration; None for images or if it has none."""
    if options.task == "image_classification":
        return None
    lengths = [options.config.get(name) for name in ("max_position_embeddings", "n_positions")]
    return next((length for length in lengths if is_integer(length) and length > 0), None)


_PATH: KeyPath = ("explore", "parallelism")
_OF_SHARDING = ("mixed_precision_param", "mixed_precision_reduce")
_OF_DDP = ("bucket_cap_mb", "gradient_as_bucket_view", "find_unused_parameters")
# Launchers of the ranks; anything else is a command that holds `{worker}`.
LAUNCHERS = ("none", "torchrun", "srun", "ray", "external")


def read_parallelism(problems: Problems, settings: ExploreSettings, num_replicas_path: KeyPath) -> Parallelism:
    """Return the parallelism of a job that bexplore builds; one device where the file names none.

    Args:
        problems: Of the file; receives what is wrong.
        num_replicas_path: Key of the file that holds the number of data-parallel replicas.
    """
    options = settings.parallelism
    if options is None:
        _check_launcher(problems, settings)
        return Parallelism()
    num_replicas = problems.document.get(num_replicas_path)
    given = num_replicas if isinstance(num_replicas, int) and num_replicas > 0 else None
    shards = _shards(problems, options, given, num_replicas_path)
    values: dict[str, Any] = options.model_dump() | {"data_parallel_shard_degree": shards}
    parallelism = Parallelism(**values | {"blocks": tuple(options.blocks)})
    _check_kind(problems, parallelism)
    _check_launcher(problems, settings)
    if not parallelism.is_distributed:
        key = dotted_path(num_replicas_path)
        problems.warn(_PATH, f"explore.parallelism gives one device: type {key}, or a degree above 1")
    return parallelism


def _shards(problems: Problems, options: ParallelismOptions, num_replicas: int | None, path: KeyPath) -> int:
    """Return the ranks that shard a copy: as given, else what the replicas leave."""
    copies, shards = options.data_parallel_replicate_degree, options.data_parallel_shard_degree
    key = dotted_path(path)
    if shards == -1:
        if num_replicas is not None and num_replicas % copies:
            problems.error(
                (*_PATH, "data_parallel_replicate_degree"),
                f"{copies} copies do not divide {key} {num_replicas}",
                f"type a divisor of {num_replicas}, or {key}: {num_replicas // copies * copies or copies}",
            )
        return max(1, (num_replicas or copies) // copies)
    if num_replicas is not None and copies * shards != num_replicas:
        problems.error(
            (*_PATH, "data_parallel_shard_degree"),
            f"degrees of {copies} and {shards} make {copies * shards} replicas, and {key} is {num_replicas}",
            f"type {key}: {copies * shards}, or leave data_parallel_shard_degree out",
        )
    return shards


def _check_kind(problems: Problems, parallelism: Parallelism) -> None:
    """Note settings that go with another kind of parallelism than the one that the degrees give."""
    if parallelism.is_replicated_only and parallelism.tensor_parallel_degree > 1:
        problems.error(
            (*_PATH, "tensor_parallel_degree"),
            "DistributedDataParallel takes no matrices that ranks share",
            "shard the copies too: data_parallel_shard_degree above 1",
        )
    defaults = Parallelism()
    kinds = (
        (_OF_SHARDING, parallelism.is_sharded, "sharded parameters (data_parallel_shard_degree above 1)"),
        (_OF_DDP, parallelism.is_replicated_only, "DistributedDataParallel (copies without shards)"),
        (("fsdp_reshard_after_forward",), parallelism.is_sharded, "sharded parameters"),
        (("blocks",), not parallelism.is_replicated_only, "sharded parameters or tensor parallelism"),
    )
    for names, applies, kind in kinds:
        for name in names:
            if getattr(parallelism, name) != getattr(defaults, name) and not applies:
                problems.error((*_PATH, name), f"{name} goes with {kind}; these degrees are {parallelism}", "remove it")


def _check_launcher(problems: Problems, settings: ExploreSettings) -> None:
    launcher, place = settings.launcher, ("explore", "launcher")
    if launcher == "external" and ":" not in (settings.rendezvous or ""):
        lacks = "none" if settings.rendezvous is None else f"no port: {settings.rendezvous}"
        problems.error(
            place,
            f"launcher external waits for ranks at an address, and explore.rendezvous names {lacks}",
            "type explore.rendezvous: HOST:PORT, an address of this machine",
        )
    if launcher is None or launcher in LAUNCHERS:
        if launcher not in (None, "none") and settings.parallelism is None:
            problems.error(place, f"launcher {launcher} starts ranks, and explore.parallelism names none", "write both")
        return
    if "{worker}" not in launcher:
        near = close_match(launcher, LAUNCHERS)
        known = f"{', '.join(LAUNCHERS)}, or a command with {{worker}} where the command of one rank stands"
        problems.error(
            place,
            f"{quote(launcher)} is no launcher",
            f"did you mean {near}?" if near else f"known here: {known}",
        )
