"""The parallelism of a job: `explore.parallelism`, checked in itself and against the file."""

from __future__ import annotations

from typing import Any

from bexplore.config.document.document import Problems, dotted_path
from bexplore.config.document.reader import KeyPath, quoted
from bexplore.config.schema import ExploreSettings, ParallelismOptions
from bexplore.errors import close_match
from bexplore.job import Parallelism

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
            place, f"{quoted(launcher)} is no launcher", f"did you mean {near}?" if near else f"known here: {known}"
        )
