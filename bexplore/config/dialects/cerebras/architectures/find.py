"""The model of a section: by its name, else by the keys that only one model has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bexplore.config.dialects.cerebras.architectures import decoders, encoder_decoders, encoders, vision
from bexplore.config.dialects.cerebras.architectures.architecture import Architecture

# In the order in which keys are looked for: an earlier model may have the keys of a later one.
_ALL = (*vision.ARCHITECTURES, *encoder_decoders.ARCHITECTURES, *decoders.ARCHITECTURES, *encoders.ARCHITECTURES)


def find_architecture(values: Mapping[str, Any]) -> Architecture | None:
    """Return the model that a section describes; None for a plain decoder and for what is not built in."""
    if decoders.MIXTURE.shown_by(values):
        return decoders.MIXTURE
    name = values.get("name")
    if name is None:
        return next((one for one in _ALL if one.shown_by(values)), None)
    return next((one for one in _ALL if str(name).lower() in one.names), None)


def shown_names() -> str:
    """Return the names of all models, for a message."""
    return ", ".join(sorted({one.names[0] for one in _ALL} | {"mixtral"}))
