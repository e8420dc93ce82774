"""JSON Schemas of the files, for editors: of the ModelZoo's sections, and of each other family's."""

from __future__ import annotations

from typing import Any

from bexplore.config.dialects.cerebras.layout import FLAG, STEP_KEYS
from bexplore.config.dialects.family import Family, Keys
from bexplore.config.schema import ExploreSettings

_POSITIVE = {"type": "integer", "minimum": 1}
_DESCRIPTIONS = {
    "accumulation": "Micro-batches of one replica in one optimizer step.",
    "global_batch_size": "One optimizer step over all replicas.",
    "sequence_length": "Tokens of a sample.",
}


def make_schema() -> dict[str, Any]:
    """Return a JSON Schema of the file for editors: `explore` in full, of other sections the keys that are read."""
    explore = ExploreSettings.model_json_schema()
    definitions = explore.pop("$defs", {}) | {"MicroBatchSize": _micro_batch_size_schema()}
    micro = {"$ref": "#/$defs/MicroBatchSize"}
    optional = {"type": ["integer", "null"], "description": "Of the training; its duration follows."}
    steps = dict.fromkeys(STEP_KEYS, optional)
    data = _object(batch_size=_POSITIVE, micro_batch_size=micro, micro_batch_tokens=micro)
    flags = _object(**{FLAG: micro})
    callback = _object(**{f"{scope}Flags": flags for scope in ("ScopedTrain", "ScopedValidate", "Global")})
    init = _object(
        callbacks={"type": ["array", "null"], "items": callback}, loop={"type": ["object", "null"], "properties": steps}
    )
    trainer = {"init": init, "fit": _object(train_dataloader=_object(batch_size=_POSITIVE))}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "bexplore configuration",
        **_object(
            explore=explore,
            train_input=data,
            eval_input=data,
            runconfig=_object(num_csx=_POSITIVE, use_cs_grad_accum={"type": "boolean"}, **steps),
            trainer={"type": ["object", "array"], "properties": trainer},
        ),
        "$defs": definitions,
    }


def make_family_schema(family: Family) -> dict[str, Any]:
    """Return a JSON Schema for editors; keys that bexplore does not read are allowed."""
    whole = make_schema()
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
    for key in keys:
        *sections, last = key.split(".")
        inner = properties
        for section in sections:
            inner = inner.setdefault(section, {"type": "object", "properties": {}}).setdefault("properties", {})
        inner.setdefault(last, schema)


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def _micro_batch_size_schema() -> dict[str, Any]:
    bounds = _object(min=_POSITIVE, max=_POSITIVE) | {"additionalProperties": False}
    explore = _object(explore=bounds) | {"required": ["explore"], "additionalProperties": False}
    words = {"enum": ["explore", "auto", "none", "None", "disable", None]}
    return {
        "description": "explore: search; auto: search quickly among divisors; a number: use it; null: none.",
        "anyOf": [_POSITIVE, words, explore],
    }
