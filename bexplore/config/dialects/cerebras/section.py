"""Tables that read a section of a ModelZoo file: target name -> reader of one key, with the family's default.

Source: the configuration classes of the public ModelZoo, releases 2.0 to 2.10.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bexplore.config.document import Problems, is_integer, read_flag, read_number, read_positive
from bexplore.config.document.reader import KeyPath, quote, show
from bexplore.config.field_types import MAX_TOKENS
from bexplore.errors import close_match

_NO_EFFECT = frozenset(  # on time and memory: initial values, scales of the loss, generation, metrics, their compiler
    (
        *("initializer", "embedding_initializer", "output_layer_initializer", "ffn_initializer"),
        *("ffn_output_layer_initializer", "initializer_range", "loss_scaling", "loss_weight", "attention_type"),
        *("attention_softmax_fp32", "attention_kernel", "boundary_casting", "tf_summary", "fold_rope_consts"),
        *("compute_eval_metrics", "lr_adjustment_groups", "num_relative_attention_buckets", "dtype"),
        *("alibi_trainable_slopes", "alibi_implementation", "start_token", "end_token", "stop_sequences", "loop_dim"),
        *("max_tokens", "temperature", "top_k", "top_p", "position_embedding_offset", "constant_pos_embedding"),
        *("pos_scaling_factor", "pos_scaling_type", "pos_scaling_extra_args", "rel_distance_mode"),
        *("attention_qk_norm_eps", "precision_opt_level", "mup_base_hidden_size", "mup_base_filter_size"),
        *("sliding_window_every_other_decoder_layer_pattern", "use_experimental_flex_api"),
    )
)
SCALES = frozenset(  # multiplications by a constant
    (
        *("embeddings_scale", "output_logits_scale", "output_logits_alpha", "scale_output_logits_by_d"),
        *("scale_qk_dot_by_d", "scale_qk_dot_by_layer_idx", "attention_logits_alpha"),
    )
)
LENGTHS = ("max_sequence_length", "max_position_embeddings")  # keys of the tokens of a sample
_OFF: tuple[object, ...] = (None, False, 0, "", "none", {}, [])


class Section:
    """A mapping of the file, and the keys of it that have been read or that change neither time nor memory."""

    def __init__(self, problems: Problems, path: KeyPath) -> None:
        values = problems.document.get(path)
        self.problems = problems
        self.path = path
        self.values: Mapping[str, Any] = values if isinstance(values, dict) else {}
        self.read: set[str] = {"name", "mixed_precision", "fp16_type", "use_bfloat16"}

    def at(self, key: str) -> KeyPath:
        """Return the path of a key, which counts as read."""
        self.read.add(key)
        return (*self.path, key)

    def sub(self, *keys: str | int) -> Section:
        """Return a section below this one."""
        if keys:
            self.read.add(str(keys[0]))
        return Section(self.problems, (*self.path, *keys))

    def table(self, readers: Mapping[str, Reader]) -> dict[str, Any]:
        """Return the values of a table; those that are None are left out."""
        found = {name: read(self) for name, read in readers.items()}
        return {name: value for name, value in found.items() if value is not None}

    def ignore(self, *keys: str) -> None:
        """Count keys as read that change neither time nor memory."""
        self.read.update(keys)

    def unread(self) -> list[str]:
        """Return every key that is switched on, may change the program and was not read."""
        ignored = _NO_EFFECT | self.read
        return [key for key, value in self.values.items() if key not in ignored and value not in _OFF]

    def notice_the_rest(self) -> None:
        """Warn of every key that was not read; a constant factor changes neither time nor memory."""
        self.notice_unbuilt([key for key in self.unread() if key not in SCALES])

    def notice_unbuilt(self, keys: Sequence[str]) -> None:
        """Warn of keys that are not built in."""
        if keys:
            rest = ", ".join(f"{show(key)}: {show(self.values[key])}" for key in keys)
            self.problems.warn(self.path, f"not built in, so the program that is measured lacks it: {rest}")


Reader = Callable[[Section], Any]


def size(key: str, default: int | None = None, owner: str = "the section") -> Reader:
    """Return a reader of a positive integer; without a default the key is required, by the owner's name."""

    def read(section: Section) -> int | None:
        path = section.at(key)
        if section.values.get(key) is None and default is None:
            section.problems.error(section.path, f"{owner} has no {key}", f"type {key}: and its number")
        return read_positive(section.problems, path, largest=MAX_TOKENS) or default

    return read


def given(key: str) -> Reader:
    """Return a reader of a positive integer that may be absent."""
    return lambda section: read_positive(section.problems, section.at(key), largest=MAX_TOKENS)


def number(key: str, default: float) -> Reader:
    """Return a reader of a number."""
    return lambda section: read_number(section.problems, section.at(key), default)


def share(key: str, default: float = 0.0, otherwise: str | None = None) -> Reader:
    """Return a reader of a probability below 1; where it is absent, that of another key is taken."""

    def read(section: Section) -> float:
        where = key if otherwise is None or section.values.get(key) is not None else otherwise
        section.ignore(key)
        value = read_number(section.problems, section.at(where), default)
        if not 0 <= value < 1:
            section.problems.error(section.at(where), f"{where} must be from 0 to below 1, not {value:g}")
        return value

    return read


def flag(key: str, default: bool) -> Reader:
    """Return a reader of a truth value."""
    return lambda section: read_flag(section.problems, section.at(key), default)


def word(key: str, default: str, known: Mapping[str, str]) -> Reader:
    """Return a reader of one of the family's words."""

    def read(section: Section) -> str:
        path, value = section.at(key), section.values.get(key)
        lowered = str(default if value is None else value).lower()
        if lowered in known:
            return known[lowered]
        near = close_match(lowered, list(known))
        choice = f"did you mean {near}?" if near else f"built in: {', '.join(known)}"
        section.problems.error(path, f"{key} {quote(value)} is not built in", choice)
        return known[default]

    return read


def side(key: str, default: int | None = None) -> Reader:
    """Return a reader of the side of a square, written as one number or as two equal ones."""

    def read(section: Section) -> int | None:
        path, value = section.at(key), section.values.get(key)
        if isinstance(value, list) and len(value) == 2 and value[0] == value[1] and is_integer(value[0]):
            value = value[0]
        if value is None and default is not None:
            return default
        if is_integer(value) and value > 0:
            return int(value)
        rule = f"{key} must be a positive integer or two equal ones, not {quote(value)}"
        section.problems.error(path if key in section.values else section.path, rule, f"type {key}: [224, 224]")
        return default

    return read


def sequence_length(model: Section, data: Section, *keys: str) -> int | None:
    """Read the tokens of a sample: by the data section, else by the first of the model's keys.

    Args:
        keys: Keys of both sections, in the order in which they are tried, `LENGTHS` without any; noted as a mistake
            where none is given.
    """
    keys = keys or LENGTHS
    for section in (data, model):
        for key in keys:
            path = section.at(key)
            if section.values.get(key) is not None:
                return read_positive(section.problems, path, largest=MAX_TOKENS)
    model.problems.error(model.path, "nothing gives the sequence length", f"type {keys[-1]}: 512, for example")
    return None


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
    """A model that the ModelZoo names, or that the keys of its section show."""

    names: tuple[str, ...]  # `model.name` in lower case (from release 2.3 on, and in some files before)
    shown_by: Callable[[Mapping[str, Any]], bool]  # whether a section without a name describes this model
    read: Callable[[Section, Section], dict[str, Any]]  # model and data section -> fields of `Job`


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
    """Return the fields of `Job` of a model of transformers."""
    model = {"task": task, "model_type": model_type, "config": dict(config)}
    return {
        "workload": "transformers",
        "model": model | ({"freeze": list(freeze)} if freeze else {}),
        "data": data | ({} if length is None else {"sequence_length": length}),
        "sequence_length": length,
    }


def refuse(title: str) -> Callable[[Section, Section], dict[str, Any]]:
    """Return the reader of a model that only its own program trains: it notes that, and the line to type."""

    def read(model: Section, _data: Section) -> dict[str, Any]:
        place = model.at("name") if "name" in model.values else model.path
        command = (
            f"bexplore explore {shlex.quote(str(model.problems.document.path))} -- COMMAND {{config}} {{output_dir}}"
        )
        model.problems.error(place, f"{title} is not built in", f"start its own training: {command}")
        return {"model": {}}

    return read
