"""The lengths of a job's samples: `explore.lengths`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bexplore.config.document.document import Problems
from bexplore.config.document.reader import KeyPath, quote
from bexplore.config.field_types import MAX_TOKENS
from bexplore.config.schema import ExploreSettings, LengthsOptions
from bexplore.host.json_files import parse_json
from bexplore.job import Job
from bexplore.job.lengths import MAX_DISTINCT, Collation, Integers, Lengths

_MOST_BYTES = 256 * 2**20  # of a file of lengths
_KEY: KeyPath = ("explore", "lengths")
_IMAGE_TASKS = ("image_classification",)  # whose samples have no length


def with_lengths(problems: Problems, settings: ExploreSettings, job: Job, in_tokens: bool = False) -> Job:
    """Return a job with the lengths of its samples, at whose longest it is built and traced.

    Samples are cut off behind the job's own sequence length, as a tokenizer does. One program then serves all lengths
    of a training that does not say otherwise, and a padding collator's mask is given to models of transformers.

    Args:
        problems: Receives what is wrong.
        in_tokens: As of `give_lengths`.
    """
    options = settings.lengths
    if options is None or not _has_lengths(problems, job):
        return job
    if options.source is not None:
        _check_loader(problems, job)
        return job  # what the loader gives is read when the job is
    found = _read(problems, options)
    if found is None:
        return job
    given, warnings = give_lengths(settings, job, *found, in_tokens=in_tokens)
    for warning in warnings:
        problems.warn(_KEY, warning)
    return given


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


def _has_lengths(problems: Problems, job: Job) -> bool:
    is_of_images = job.workload == "transformers" and job.model.get("task") in _IMAGE_TASKS
    if job.workload in ("decoder", "transformers", "imported") and not is_of_images:
        return True
    problems.error(
        _KEY,
        f"samples of {job.model.get('task', job.workload)} have no length here",
        "remove it; the decoder, text tasks of transformers, and code of your own take lengths",
    )
    return False


def _data(settings: ExploreSettings, job: Job, lengths: Lengths) -> dict[str, Any]:
    data = dict(job.data)
    if job.workload != "transformers":
        return data
    data["sequence_length"] = lengths.longest
    options = settings.workload.transformers if settings.workload is not None else None
    is_given = options is not None and "attention_mask" in options.model_fields_set
    if not is_given and lengths.collation is not Collation.PACKED:
        data["attention_mask"] = True
    return data


def _read(problems: Problems, options: LengthsOptions) -> tuple[Integers, list[float] | None] | None:
    """Return lengths and their weights; None where the file of them is wrong."""
    if options.values is not None:
        return np.asarray(options.values), options.weights
    if options.quantiles is not None:
        percents, lengths = zip(*options.marks(), strict=True)
        places = 100 * (np.arange(MAX_DISTINCT) + 0.5) / MAX_DISTINCT
        between = np.rint(np.interp(places, percents, lengths)).astype(np.int64)
        return np.append(between[:-1], lengths[-1]), None
    path = problems.document.path.resolve().parent / str(options.file)
    try:
        return _of_file(path), None
    except (OSError, ValueError, TypeError, EOFError, AttributeError, RecursionError) as error:  # of any broken file
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        problems.error((*_KEY, "file"), f"cannot read lengths from {quote(str(options.file))}: {reason}")
        return None


def _of_file(path: Path) -> Integers:
    """Read lengths of samples; a ValueError says what the file holds instead."""
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES >> 20} MiB")
    if path.suffix == ".npy":
        found = np.load(path, allow_pickle=False).ravel()
    elif path.suffix == ".json":
        found = np.asarray(parse_json(path.read_text()))
    else:
        if not path.read_text().strip():
            raise ValueError("it is empty")
        words = re.split(r"[\s,;]+", path.read_text().strip())
        wrong = next((word for word in words if not (word.isascii() and word.isdecimal())), None)
        if wrong is not None:
            raise ValueError(f"{quote(wrong)} is no number of tokens")
        found = np.asarray([int(word) for word in words])
    if found.ndim != 1 or not len(found) or not np.issubdtype(found.dtype, np.number) or np.iscomplexobj(found):
        raise ValueError("it holds no list of numbers")
    if not ((found >= 1) & (found <= MAX_TOKENS) & (found == np.rint(found))).all():
        raise ValueError(f"lengths are whole numbers from 1 to {MAX_TOKENS}")
    return found.astype(np.int64)
