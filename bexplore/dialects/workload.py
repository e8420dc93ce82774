"""`explore.workload` to a `Job`: what the file's own family does not describe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bexplore.config import ExploreSettings, TransformersOptions, WorkloadOptions
from bexplore.job import CompileSettings, Job

_TRANSFORMERS_DATA = ("sequence_length", "target_length", "image_size")


def workload_job(settings: ExploreSettings, common: Mapping[str, Any], decoder: Mapping[str, Any] | None = None) -> Job:
    """The job of the workload section, or of a decoder that a dialect has read.

    Args:
        settings: The `explore:` section.
        common: Fields of `Job` that do not depend on the kind of workload.
        decoder: Fields of `Job` of a built-in decoder; None takes `settings.workload`.
    """
    fields = dict(common) | {"compile": CompileSettings(**settings.compile.model_dump())}
    workload = settings.workload
    if decoder is not None or workload is None:
        return Job(**(fields | {"workload": "decoder"} | dict(decoder or {})))
    fields |= _optimizer(workload)
    if workload.transformers is not None:
        return Job(**(fields | _transformers(workload.transformers, workload.sequence_length)))
    named = {name: getattr(workload, name) for name in ("model", "batch", "loss", "step")}
    model = {name: path for name, path in named.items() if path is not None}
    model["arguments"] = dict(workload.arguments)
    return Job(**(fields | {"workload": "imported", "model": model, "sequence_length": workload.sequence_length}))


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
    if "sequence_length" not in data and sequence_length is not None:
        data["sequence_length"] = sequence_length
    return {
        "workload": "transformers",
        "model": {"task": options.task, "model_type": options.model_type, "config": dict(options.config)},
        "data": data,
        "sequence_length": data.get("sequence_length"),
    }
