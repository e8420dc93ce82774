"""The `Job` of `explore.workload`, or of the model that a dialect has read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bexplore.config.document.document import Problems
from bexplore.config.document.reader import quoted
from bexplore.config.schema import ExploreSettings, TransformersOptions, WorkloadOptions
from bexplore.config.sections.values import is_integer
from bexplore.job import CompileSettings, Job, Precision, TorchSettings

_TRANSFORMERS_DATA = ("sequence_length", "target_length", "image_size")


def described_job(settings: ExploreSettings, common: Mapping[str, Any], described: Mapping[str, Any]) -> Job:
    """Make the job of a model that the file describes.

    Args:
        common: Fields of `Job` that do not depend on the kind of workload.
        described: `workload` (without one, the built-in decoder), `model`, `data` and `sequence_length`.
    """
    fields = {"workload": "decoder"} | dict(common) | dict(described) | _process(settings)
    return Job(**fields | _implementation(settings, fields))


def workload_job(
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
                f"a step of your own decides its precision itself; precision is {quoted(settings.precision)}",
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
