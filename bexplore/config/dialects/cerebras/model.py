"""The `model` section of decoder-only language models (GPT-2, GPT-3, LLaMA, Falcon, ...), as settings of our decoder.

Some keys are built in; some change neither time nor memory (initial values, the scale of the loss, generation). Of the
rest, a warning names each that is switched on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bexplore.config.dialects.cerebras import known_keys
from bexplore.config.dialects.values import read_flag, read_number, read_positive
from bexplore.config.document.document import Problems
from bexplore.config.document.reader import KeyPath, quoted, shown
from bexplore.errors import close_match

_LONGEST_SEQUENCE = 10**8  # tokens
_NEAR_KEY = 0.88  # similarity from which an unknown key is taken for a misspelt one; real ones resemble each other
_NEAR_NAME = 0.75  # similarity from which an unknown name is taken for a misspelt one; "lama" has 0.89
_DESCRIBE_IT = "describe it under explore.workload (transformers, or model and batch by import path); see configs/"


def read_decoder(problems: Problems, path: KeyPath, data_path: KeyPath) -> dict[str, Any]:
    """Return the fields of `Job` of a decoder-only language model.

    Args:
        path: Path of the model section, which is a mapping.
        data_path: Path of the data section of the side that is explored.
    """
    values: Mapping[str, Any] = problems.document.get(path)
    if not _is_decoder(problems, path, values):
        return {"model": {}}
    model = _sizes(problems, path, data_path)
    model |= {name: read_flag(problems, (*path, key), default) for key, (name, default) in known_keys.FLAGS.items()}
    model |= _heads(problems, path, model)
    model |= _positions(problems, path, model)
    model["norm"] = _word(problems, (*path, "norm_type"), known_keys.NORMS, "layernorm")
    model["norm_eps"] = read_number(problems, (*path, "layer_norm_epsilon"), 1e-5)
    model["activation"] = _word(problems, (*path, "nonlinearity"), known_keys.ACTIVATIONS, "gelu")
    model |= _dropouts(problems, path)
    sequence_length = _sequence_length(problems, path, data_path)
    model["max_position_embeddings"] = _num_positions(problems, path, model, sequence_length)
    _notice_the_rest(problems, path, values)
    return {
        "model": {name: value for name, value in model.items() if value is not None},
        "data": {"vocab_size": model["vocab_size"], "sequence_length": sequence_length},
        "sequence_length": sequence_length,
    }


def _is_decoder(problems: Problems, path: KeyPath, values: Mapping[str, Any]) -> bool:
    """Return whether the section describes a built-in model; note it if not."""
    name = values.get("name")
    lowered = str(name).lower()
    foreign = sorted(known_keys.OTHER_ARCHITECTURES.intersection(values))
    if name is not None and lowered not in known_keys.DECODERS | known_keys.PARALLEL_DECODERS:
        known = () if lowered in known_keys.OTHER_MODELS else sorted(known_keys.DECODERS | known_keys.PARALLEL_DECODERS)
        near = close_match(lowered, known, cutoff=_NEAR_NAME)
        hint = f"did you mean {near}? If not, {_DESCRIBE_IT}" if near else _DESCRIBE_IT
        rule = f"the model {quoted(name)} is not built in; decoders are: {known_keys.SHOWN_DECODERS}"
        problems.error((*path, "name"), rule, hint)
    elif name is None and foreign:
        rule = f"not a decoder-only language model, by its {', '.join(foreign)}; only those are built in"
        problems.error((*path, foreign[0]), rule, _DESCRIBE_IT)
    else:
        if lowered in known_keys.PARALLEL_DECODERS or known_keys.PARALLEL_KEY in values:
            text = "this family runs attention and feed-forward side by side; here one follows the other"
            problems.warn((*path, "name" if name is not None else known_keys.PARALLEL_KEY), text)
        return True
    return False


def _sizes(problems: Problems, path: KeyPath, data_path: KeyPath) -> dict[str, Any]:
    document = problems.document
    found: dict[str, Any] = {}
    for key, name in known_keys.SIZES.items():
        place = (*path, key)
        if key == "vocab_size" and document.get(place) is None:
            place = (*data_path, key)
        found[name] = read_positive(problems, place)
        if document.get(place) is None:
            problems.error(path, f"the model section has no {key}", f"type {key}: and its number")
    found["intermediate_size"] = read_positive(problems, (*path, "filter_size"))
    if document.get((*path, "filter_size")) is None and found["hidden_size"] is not None:
        found["intermediate_size"] = 4 * found["hidden_size"]
        problems.warn(
            path, f"the model section has no filter_size; {4 * found['hidden_size']} (4 x hidden_size) is taken"
        )
    return found


def _heads(problems: Problems, path: KeyPath, model: Mapping[str, Any]) -> dict[str, Any]:
    num_heads, inner = model["num_heads"], read_positive(problems, (*path, "attention_inner_dim"))
    key, width = ("attention_inner_dim", inner) if inner is not None else ("hidden_size", model["hidden_size"])
    if width is not None and num_heads is not None and width % num_heads:
        problems.error((*path, key), f"{key} {width} is not a multiple of num_heads {num_heads}")
    head_size = inner // num_heads if inner and num_heads and inner % num_heads == 0 else None
    module = problems.document.get((*path, "attention_module"))
    if module not in (None, "aiayn_attention", "multiquery_attention"):
        rule = f"attention_module {quoted(module)} is not built in"
        problems.error((*path, "attention_module"), rule, "aiayn_attention and multiquery_attention are")
    if module != "multiquery_attention":
        return {"head_size": head_size}
    groups_path = (*path, "extra_attention_params", "num_kv_groups")
    groups = read_positive(problems, groups_path) or 1
    if num_heads is not None and num_heads % groups:
        problems.error(groups_path, f"num_heads {num_heads} is not a multiple of num_kv_groups {groups}")
    return {"head_size": head_size, "num_key_value_heads": groups}


def _positions(problems: Problems, path: KeyPath, model: Mapping[str, Any]) -> dict[str, Any]:
    """Read how positions enter, and the rotary numbers."""
    kind = _word(problems, (*path, "position_embedding_type"), known_keys.POSITIONS, "learned")
    if not read_flag(problems, (*path, "use_position_embedding"), True):
        kind = "none"
    if kind != "rotary":
        return {"position_embedding": kind}
    rotary_dim = read_positive(problems, (*path, "rotary_dim"))
    width = model.get("head_size")
    if width is None and model["hidden_size"] and model["num_heads"]:
        width = model["hidden_size"] // model["num_heads"]
    if rotary_dim is not None and width is not None and (rotary_dim > width or rotary_dim % 2):
        rule = f"rotary_dim must be even and at most the width of a head, {width}; it is {rotary_dim}"
        problems.error((*path, "rotary_dim"), rule)
    theta = read_number(problems, (*path, "rope_theta"), 10000.0)
    return {"position_embedding": kind, "rotary_dim": rotary_dim, "rope_theta": theta}


def _dropouts(problems: Problems, path: KeyPath) -> dict[str, float]:
    """Read dropout probabilities, with the family's own defaults."""
    found: dict[str, float] = {}
    keys = {"dropout_rate": "dropout", "embedding_dropout_rate": "embedding_dropout"}
    keys |= {"attention_dropout_rate": "attention_dropout"}
    for key, name in keys.items():
        found[name] = read_number(problems, (*path, key), found.get("dropout", 0.1))
        if not 0 <= found[name] < 1:
            problems.error((*path, key), f"{key} must be from 0 to below 1, not {found[name]:g}")
    return found


def _sequence_length(problems: Problems, path: KeyPath, data_path: KeyPath) -> int | None:
    """Read the tokens of a sample: of the data section, else of the model section."""
    places = [(*data_path, "max_sequence_length"), (*data_path, "sequence_length")]
    places += [(*path, "max_sequence_length"), (*path, "max_position_embeddings")]
    for place in places:
        if problems.document.get(place) is not None:
            return read_positive(problems, place, largest=_LONGEST_SEQUENCE)
    problems.error(path, "nothing gives the sequence length", "type max_position_embeddings: 1024, for example")
    return None


def _num_positions(
    problems: Problems, path: KeyPath, model: Mapping[str, Any], sequence_length: int | None
) -> int | None:
    """Read the positions of the model; only learned ones cannot grow with the sequence."""
    place = (*path, "max_position_embeddings")
    given = read_positive(problems, place, largest=_LONGEST_SEQUENCE)
    if given is None or sequence_length is None or given >= sequence_length:
        return given or sequence_length
    if model["position_embedding"] == "learned":
        rule = f"max_position_embeddings {given} is below the sequence length {sequence_length}"
        problems.error(place, rule, f"type max_position_embeddings: {sequence_length}")
    return sequence_length


def _word(problems: Problems, path: KeyPath, known: Mapping[str, str], default: str) -> str:
    """Translate one of the family's words into ours."""
    value = problems.document.get(path)
    if value is None:
        return known[default]
    lowered = str(value).lower()
    if lowered not in known:
        near = close_match(lowered, list(known))
        choice = f"did you mean {near}?" if near else f"built in: {', '.join(known)}"
        problems.error(path, f"{path[-1]} {quoted(value)} is not built in", choice)
        return known[default]
    if lowered == "biasless-layernorm":
        problems.warn(path, "biasless-layernorm is built with its bias, one vector a norm more")
    return known[lowered]


def _notice_the_rest(problems: Problems, path: KeyPath, values: Mapping[str, Any]) -> None:
    """Name every key that is switched on, changes the program and is not built."""
    rest: list[str] = []
    scales: list[str] = []
    for key, value in values.items():
        if key in known_keys.READ or key in known_keys.NO_EFFECT or value in (None, False, 0, "", "none", {}, []):
            continue
        near = close_match(key, sorted(known_keys.READ), cutoff=_NEAR_KEY)
        if key in known_keys.SCALES:
            scales += [key] if value is True or value != 1 else []
        elif near is not None and near not in values:
            problems.warn((*path, key), f"{quoted(key)} is not read; did you mean {quoted(near)}?")
        else:
            rest.append(f"{shown(key)}: {shown(value)}")
    if rest:
        problems.warn(path, f"not built in, so the program that is measured lacks it: {', '.join(rest)}")
    if scales:
        problems.warn(path, f"constant factors left out, of no account for time and memory: {', '.join(scales)}")
