"""`JobVariant`: the job with one value for each setting that is explored together with the size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bexplore.config.document.reader import KeyPath
from bexplore.job import Job

ARGUMENT = "workload.arguments."  # and the name of a keyword argument of the user's own callables


@dataclass(frozen=True, slots=True, kw_only=True)
class JobVariant:
    """A job with one value for each key of `explore.settings`.

    Attributes:
        values: By key of the section `explore`, dotted. An argument of the user's own callables is absent where the
            file does not give it.
        job: The program.
        name: The values that are explored, in words.
    """

    values: Mapping[str, Any]
    job: Job
    name: str


def key_path(key: str) -> KeyPath:
    """Return the path of a key of `explore.settings` in the file: a name of an argument may contain dots."""
    if key.startswith(ARGUMENT):
        return ("explore", "workload", "arguments", key.removeprefix(ARGUMENT))
    return ("explore", *key.split("."))


def has_value(key: str, job: Job) -> bool:
    """Return whether a job has a value of a key: it may lack an argument of the user's own callables."""
    return not key.startswith(ARGUMENT) or key.removeprefix(ARGUMENT) in job.model.get("arguments", {})


def value_of(key: str, job: Job) -> Any:
    """Return the value that a job has of a key of `explore.settings`, as the file would have it.

    Raises:
        KeyError: The key is an argument of the user's own callables that the job does not give.
    """
    if key.startswith(ARGUMENT):
        return job.model.get("arguments", {})[key.removeprefix(ARGUMENT)]
    return {
        "activation_checkpointing": job.activation_checkpointing,
        "activation_memory_budget": job.activation_memory_budget,
        "precision": job.precision.value,
        "compile.enabled": job.compile.enabled,
        "compile.mode": job.compile.mode or "default",
        "optimizer.fused": job.optimizer_arguments.get("fused"),
        "optimizer.foreach": job.optimizer_arguments.get("foreach"),
    }[key]


def name_of(values: Mapping[str, Any]) -> str:
    """Return settings in words, such as `activation_checkpointing=selective, chunk=8`; empty for none."""
    return ", ".join(f"{key.removeprefix(ARGUMENT)}={_word(value)}" for key, value in values.items())


def changes_training(values: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the settings, in words, that train with other numbers than the file's own settings do.

    What an argument of the user's own callables changes is known to nobody here.
    """
    precision = values.get("precision")
    return () if precision == own.get("precision") else (f"precision {precision} instead of {own.get('precision')}",)


def _word(value: Any) -> str:
    words = {None: "default", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)
