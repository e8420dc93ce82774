"""One model of the ModelZoo: the mark of its section, and the function that reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bexplore.config.dialects.cerebras.section import Section, size

ACTIVATIONS = {  # of transformers, by the ModelZoo's words
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_fast",
    "gelu_pytorch_tanh": "gelu_pytorch_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
SIZES = {  # of transformers
    "hidden_size": size("hidden_size"),
    "num_hidden_layers": size("num_hidden_layers"),
    "num_attention_heads": size("num_heads"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A model that the ModelZoo names, or that the keys of its section show.

    Attributes:
        names: `model.name` in lower case (from release 2.3 on, and in some files before).
        shown_by: Whether a section without a name describes this model.
        read: (model section, data section) -> `workload`, `model`, `data` and `sequence_length` of `Job`.
    """

    names: tuple[str, ...]
    shown_by: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Section, Section], dict[str, Any]]


def has(*keys: str) -> Callable[[Mapping[str, Any]], bool]:
    """Return a test for any of the keys."""
    return lambda values: any(key in values for key in keys)


def transformers(
    task: str,
    model_type: str,
    config: Mapping[str, Any],
    length: int | None = None,
    freeze: tuple[str, ...] = (),
    **data: Any,
) -> dict[str, Any]:
    """Return the fields of `Job` of a model of transformers.

    Args:
        length: Tokens of a sample; None for images.
        freeze: Regular expressions of the names of parameters that are not trained.
    """
    model = {"task": task, "model_type": model_type, "config": dict(config)}
    return {
        "workload": "transformers",
        "model": model | ({"freeze": list(freeze)} if freeze else {}),
        "data": data | ({} if length is None else {"sequence_length": length}),
        "sequence_length": length,
    }
