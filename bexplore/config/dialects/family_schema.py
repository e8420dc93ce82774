"""A JSON Schema of a family's files: the word at its key, its numbers, and the section `explore`."""

from __future__ import annotations

from typing import Any

from bexplore.config.config import json_schema
from bexplore.config.dialects.family import Family, Keys

_DESCRIPTIONS = {
    "accumulation": "Micro-batches of one replica in one optimizer step.",
    "global_batch_size": "One optimizer step over all replicas.",
    "sequence_length": "Tokens of a sample.",
}


def family_schema(family: Family) -> dict[str, Any]:
    """Return a JSON Schema for editors; keys that bexplore does not read are allowed."""
    whole = json_schema()
    properties: dict[str, Any] = {"explore": whole["properties"]["explore"]}
    _place(properties, family.micro_batch_size, {"$ref": "#/$defs/MicroBatchSize"})
    for name, description in _DESCRIPTIONS.items():
        number = {"type": ["integer", "number", "string", "null"], "description": description}
        _place(properties, getattr(family, name), number)
    return {
        "$schema": whole["$schema"],
        "title": f"{family.title}, with bexplore",
        "type": "object",
        "properties": properties,
        "$defs": whole["$defs"],
    }


def _place(properties: dict[str, Any], keys: Keys, schema: dict[str, Any]) -> None:
    """Put a schema at each of the keys, through objects."""
    for key in keys:
        *sections, last = key.split(".")
        inner = properties
        for section in sections:
            inner = inner.setdefault(section, {"type": "object", "properties": {}}).setdefault("properties", {})
        inner.setdefault(last, schema)
