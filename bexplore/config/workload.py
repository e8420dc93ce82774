"""The `Job` of `explore.workload` or of the model that a dialect has read; its parallelism and lengths."""

from __future__ import annotations

import csv
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from bexplore.config.code_keys import OWN_LAUNCHERS
from bexplore.config.document import Problems, dotted_path, is_integer
from bexplore.config.document.reader import KeyPath, quote
from bexplore.config.field_types import MAX_TOKENS
from bexplore.config.schema import (
    ExploreSettings,
    LengthsOptions,
    ParallelismOptions,
    TransformersOptions,
    WorkloadOptions,
)
from bexplore.errors import close_match
from bexplore.host.json_files import parse_json
from bexplore.job import CompileSettings, Job, Parallelism, Precision, TorchSettings
from bexplore.job.lengths import MAX_DISTINCT, Collation, Integers, Lengths

_TRANSFORMERS_DATA = ("sequence_length", "target_length", "image_size")


def make_described_job(settings: ExploreSettings, common: Mapping[str, Any], described: Mapping[str, Any]) -> Job:
    """Make the job of a model that the file describes."""
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
    if options.task == "image_classification":
        return None
    lengths = [options.config.get(name) for name in ("max_position_embeddings", "n_positions")]
    return next((length for length in lengths if is_integer(length) and length > 0), None)


_PATH: KeyPath = ("explore", "parallelism")
_OF_SHARDING = ("mixed_precision_param", "mixed_precision_reduce")
_OF_DDP = ("bucket_cap_mb", "gradient_as_bucket_view", "find_unused_parameters")


def read_parallelism(problems: Problems, settings: ExploreSettings, num_replicas_path: KeyPath) -> Parallelism:
    """Return the parallelism of a job that bexplore builds; one device where the file names none."""
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
    if launcher is None or launcher in OWN_LAUNCHERS:
        if launcher not in (None, "none") and settings.parallelism is None:
            problems.error(place, f"launcher {launcher} starts ranks, and explore.parallelism names none", "write both")
        return
    if "{worker}" not in launcher:
        near = close_match(launcher, OWN_LAUNCHERS)
        known = f"{', '.join(OWN_LAUNCHERS)}, or a command with {{worker}} where the command of one rank stands"
        problems.error(
            place,
            f"{quote(launcher)} is no launcher",
            f"did you mean {near}?" if near else f"known here: {known}",
        )


_NAMED_COLUMNS = 8  # of a table, in an error
_MOST_BYTES = 256 * 2**20  # of a file of lengths
_KEY: KeyPath = ("explore", "lengths")
_IMAGE_TASKS = ("image_classification",)  # whose samples have a side in pixels for a length


def with_lengths(problems: Problems, settings: ExploreSettings, job: Job, in_tokens: bool = False) -> Job:
    """Return a job with the lengths of its samples, at whose longest it is built and traced.

    Samples are cut off behind the job's own sequence length, as a tokenizer does. One program then serves all lengths
    of a training that does not say otherwise, and a padding collator's mask is given to models of transformers.
    """
    options = settings.lengths
    if options is None or not _has_lengths(problems, job, in_tokens):
        return job
    if options.source is not None:
        _check_loader(problems, job)
        return job  # what the loader gives is read when the job is
    found = read_lengths(problems, options)
    if found is None:
        return job
    given, warnings = give_lengths(settings, job, *found, in_tokens=in_tokens)
    for name, message, hint in find_contradictions(given):
        problems.error((*_KEY, name), message, hint)
    for warning in warnings:
        problems.warn(_KEY, warning)
    return given


def find_contradictions(job: Job) -> Iterator[tuple[str, str, str]]:
    """Yield what of `explore.lengths` no training can do: the key, what is wrong, and what to type."""
    lengths, positions = job.lengths, job.num_positions
    assert lengths is not None
    if lengths.buckets and lengths.buckets[-1] < lengths.values[-1]:
        yield (
            "buckets",
            f"the largest bucket holds up to {lengths.buckets[-1]} tokens, and the longest sample has "
            f"{lengths.values[-1]}",
            f"add a bucket of {lengths.values[-1]}",
        )
    if positions is not None and lengths.longest > positions:
        yield (
            "multiple_of",
            f"rows padded to a multiple of {lengths.multiple_of} have up to {lengths.longest} tokens, and the model "
            f"has {positions} positions",
            f"type a divisor of {positions}",
        )


def give_lengths(
    settings: ExploreSettings,
    job: Job,
    samples: Sequence[int] | Integers,
    weights: Sequence[float] | None = None,
    *,
    in_tokens: bool = False,
) -> tuple[Job, list[str]]:
    """Return a job with the lengths of its samples, and warnings.

    Args:
        settings: With `lengths`.
        samples: Lengths, tokens.
        weights: How often each occurs; None for each as often.
        in_tokens: Whether a micro-batch is as many samples as have a number of tokens, unless they are packed.
    """
    options = settings.lengths
    assert options is not None
    lengths = Lengths.from_samples(
        samples,
        weights,
        collation=Collation.TOKENS if in_tokens and options.padding != "packed" else Collation(options.padding),
        multiple_of=options.multiple_of,
        buckets=tuple(sorted(options.buckets)),
        argument=options.argument,
        source=options.file or ("the loader" if options.source else "explore.lengths"),
    )
    limit, warnings = job.sequence_length or job.model.get("max_position_embeddings"), []
    if isinstance(limit, int) and lengths.values[-1] > limit:
        share = sum(weight for value, weight in zip(lengths.values, lengths.weights, strict=True) if value > limit)
        warnings.append(f"{share:.2%} of the samples are longer than {limit} tokens, and are cut off there")
        lengths = lengths.truncated(limit)
    compiling = job.compile
    if lengths.varies and "dynamic" not in settings.compile.model_fields_set:
        compiling = dataclasses.replace(compiling, dynamic=None)  # torch's own default: the second length is symbolic
    given = dataclasses.replace(
        job, lengths=lengths, sequence_length=lengths.longest, compile=compiling, data=_data(settings, job, lengths)
    )
    return given, warnings


def _check_loader(problems: Problems, job: Job) -> None:
    if not job.model.get("loader"):
        problems.error(
            (*_KEY, "from"),
            "there is no loader to read lengths from",
            "name it: explore.workload.loader; or give explore.lengths a file of lengths",
        )


def _is_of_images(job: Job) -> bool:
    return job.workload == "transformers" and job.model.get("task") in _IMAGE_TASKS


def _has_lengths(problems: Problems, job: Job, in_tokens: bool) -> bool:
    if _is_of_images(job) and in_tokens:
        problems.error(
            _KEY, "a batch of images has no number of tokens here", "type micro_batch_size: explore, not tokens"
        )
        return False
    if job.workload in ("decoder", "transformers", "imported"):
        return True
    problems.error(
        _KEY,
        f"samples of {job.workload} have no length here",
        "remove it; the decoder, tasks of transformers, and code of your own take lengths",
    )
    return False


def _data(settings: ExploreSettings, job: Job, lengths: Lengths) -> dict[str, Any]:
    data = dict(job.data)
    if job.workload != "transformers":
        return data
    if _is_of_images(job):
        return data | {"image_size": lengths.longest}
    data["sequence_length"] = lengths.longest
    options = settings.workload.transformers if settings.workload is not None else None
    is_given = options is not None and "attention_mask" in options.model_fields_set
    if not is_given and lengths.collation is not Collation.PACKED:
        data["attention_mask"] = True
    return data


def read_lengths(problems: Problems, options: LengthsOptions) -> tuple[Integers, list[float] | None] | None:
    """Return the lengths of samples that a file gives, and how often each occurs; None where it has a mistake."""
    if options.values is not None:
        return np.asarray(options.values), options.weights
    if options.quantiles is not None:
        percents, lengths = zip(*options.marks(), strict=True)
        places = 100 * (np.arange(MAX_DISTINCT) + 0.5) / MAX_DISTINCT
        between = np.rint(np.interp(places, percents, lengths)).astype(np.int64)
        return np.append(between[:-1], lengths[-1]), None
    path = problems.document.path.resolve().parent / str(options.file)
    try:
        return _of_file(path, options.column), None
    # of any broken file
    except (OSError, ValueError, TypeError, EOFError, AttributeError, RecursionError, BadZipFile, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        problems.error((*_KEY, "file"), f"cannot read lengths from {quote(str(options.file))}: {reason}")
        return None


def _of_file(path: Path, column: str | None) -> Integers:
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES >> 20} MiB")
    if path.suffix in (".npy", ".npz"):
        found = _of_arrays(np.load(path, allow_pickle=False), column)
    elif path.suffix == ".json":
        found = np.asarray(parse_json(path.read_text()))
    else:
        text = path.read_text().strip()
        if not text:
            raise ValueError("it is empty")
        words = re.split(r"[\s,;]+", text)
        wrong = next((word for word in words if not _is_number(word)), None)
        if column is not None or (wrong is not None and path.suffix in (".csv", ".tsv")):
            words = _of_table(text, column)
            wrong = next((word for word in words if not _is_number(word)), None)
        if wrong is not None:
            raise ValueError(f"{quote(wrong)} is no number of tokens")
        found = np.asarray([int(word) for word in words])
    if found.ndim != 1 or not len(found) or not np.issubdtype(found.dtype, np.number) or np.iscomplexobj(found):
        raise ValueError("it holds no list of numbers")
    if not ((found >= 1) & (found <= MAX_TOKENS) & (found == np.rint(found))).all():
        raise ValueError(f"lengths are whole numbers from 1 to {MAX_TOKENS}")
    return found.astype(np.int64)


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdecimal()


def _of_arrays(loaded: Any, column: str | None) -> Any:
    """Return the array of a .npy, or the named one of a .npz."""
    if not hasattr(loaded, "files"):
        return loaded.ravel()
    return loaded[_choose(loaded.files, column)].ravel()


def _of_table(text: str, column: str | None) -> list[str]:
    """Return the cells of a column of a table, whose first line names its columns."""
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    heads, *rows = csv.reader(text.splitlines(), delimiter=delimiter)
    heads = [head.strip() for head in heads]
    place = heads.index(_choose(heads, column))
    return [row[place].strip() if place < len(row) else "" for row in rows if row]


def _choose(names: Sequence[str], column: str | None) -> str:
    if column is None and len(names) == 1:
        return names[0]
    if column in names:
        return str(column)
    known = ", ".join(names[:_NAMED_COLUMNS])
    if column is None:
        raise ValueError(f"it has the columns {known}: name one in explore.lengths.column")
    near = close_match(column, list(names))
    raise ValueError(f"it has no column {quote(column)}" + (f"; did you mean {near}?" if near else f", but {known}"))
