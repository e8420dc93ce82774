"""The `model` and `optimizer` sections of the ModelZoo's GPT-2, GPT-3 and LLaMA families, in our words.

Three kinds of keys: those that are built, those that change no time and no memory (initial values, the loss's scale,
generation), and the rest. Of the rest, each that is switched on is named in a warning: nothing is left out in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bexplore.config import close_match
from bexplore.document import Problems, quoted, shown

KeyPath = tuple[str | int, ...]

_DECODERS = frozenset(
    "gpt gpt2 gpt3 llama llamamodel gpt2lmheadmodel mistral starcoder santacoder bloom mpt jais btlm code_llama".split()
)
_PARALLEL_DECODERS = frozenset("gptj gpt-j gpt_j gptneox gpt-neox gpt_neox falcon".split())
_OTHER_ARCHITECTURE = frozenset(  # keys that only encoders, encoder-decoders and vision models have
    "disable_nsp encoder_num_hidden_layers decoder_num_hidden_layers src_vocab_size tgt_vocab_size d_model d_kv "
    "num_segments image_size patch_size num_classes vit_model projection_layer pooler_nonlinearity".split()
)
_POSITIONS = {"learned": "learned", "fixed": "fixed", "rotary": "rotary", "alibi": "alibi", "none": "none"}
_NORMS = {"layernorm": "layernorm", "rmsnorm": "rmsnorm", "biasless-layernorm": "layernorm"}
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_tanh": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "squared_relu": "squared_relu",
    "relu_squared": "squared_relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
    "linear": "identity",
    "identity": "identity",
    "swiglu": "swiglu",
    "geglu": "geglu",
    "reglu": "reglu",
    "bilinear": "bilinear",
}
_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_heads": "num_heads",
}
_FLAGS = {  # with the family's own defaults
    "share_embedding_weights": ("tie_embeddings", True),
    "use_projection_bias_in_attention": ("attention_bias", True),
    "use_ffn_bias_in_attention": ("attention_output_bias", True),
    "use_ffn_bias": ("feed_forward_bias", True),
    "use_bias_in_output": ("output_bias", False),
}
_READ = frozenset(
    [*_SIZES, *_FLAGS, "name", "filter_size", "max_position_embeddings", "position_embedding_type", "norm_type"]
    + ["layer_norm_epsilon", "nonlinearity", "dropout_rate", "embedding_dropout_rate", "attention_dropout_rate"]
    + ["attention_module", "extra_attention_params", "attention_inner_dim", "rotary_dim", "rope_theta"]
    + [
        "use_position_embedding",
        "mixed_precision",
        "fp16_type",
        "use_bfloat16",
        "max_sequence_length",
        "moe",
        "moe_params",
    ]
)
_NO_EFFECT = frozenset(
    "initializer embedding_initializer output_layer_initializer ffn_initializer ffn_output_layer_initializer "
    "initializer_range loss_scaling loss_weight attention_type attention_softmax_fp32 attention_kernel boundary_casting "
    "tf_summary fold_rope_consts compute_eval_metrics lr_adjustment_groups num_relative_attention_buckets dtype "
    "alibi_trainable_slopes alibi_implementation start_token stop_sequences end_token loop_dim max_tokens temperature top_k "
    "top_p position_embedding_offset constant_pos_embedding pos_scaling_factor pos_scaling_type pos_scaling_extra_args "
    "rel_distance_mode use_experimental_flex_api attention_qk_norm_eps _config precision_opt_level to_float16 "
    "enable_vts sliding_window_every_other_decoder_layer_pattern mup_base_hidden_size mup_base_filter_size "
    "num_extra_input_vocab_tokens use_fp16 fp32_type".split()
)
_SCALES = frozenset(
    "embeddings_scale output_logits_scale output_logits_alpha scale_output_logits_by_d scale_qk_dot_by_d "
    "scale_qk_dot_by_layer_idx attention_logits_alpha".split()
)
_SCALE_DEFAULTS: Mapping[str, tuple[Any, ...]] = {name: (None, False, 1, 1.0) for name in _SCALES}
_LONGEST_SEQUENCE = 10**8
_LARGEST_SIZE = 10**9

_OPTIMIZERS = {
    name.lower(): name
    for name in "AdamW Adam SGD Adafactor RMSprop Adagrad Adadelta Adamax NAdam RAdam ASGD Rprop Muon".split()
}
_NEAREST_OPTIMIZERS = {  # not in torch.optim: the one with as many states a parameter
    "lamb": ("AdamW", "two states a parameter as well"),
    "lion": ("SGD", "with momentum: one state a parameter as well"),
    "adambelief": ("AdamW", "two states a parameter as well"),
}
_ARGUMENTS = {
    "AdamW": "betas eps weight_decay amsgrad",
    "Adam": "betas eps weight_decay amsgrad",
    "SGD": "momentum dampening weight_decay nesterov",
    "Adafactor": "weight_decay",
    "RMSprop": "alpha eps weight_decay momentum centered",
    "Adagrad": "lr_decay weight_decay initial_accumulator_value eps",
    "Adadelta": "rho eps weight_decay",
    "Adamax": "betas eps weight_decay",
    "NAdam": "betas eps weight_decay momentum_decay",
    "RAdam": "betas eps weight_decay",
    "ASGD": "lambd alpha t0 weight_decay",
    "Rprop": "etas step_sizes",
    "Muon": "momentum weight_decay nesterov",
}
_PAIRS = frozenset(("betas", "etas", "step_sizes"))
_FLAG_ARGUMENTS = frozenset(("amsgrad", "nesterov", "centered"))
_LEARNING_RATE = 1e-4  # where a schedule stands in the file: it is not followed, and no time depends on it


def read_decoder(problems: Problems, path: KeyPath, data_path: KeyPath, data: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `Job` of a decoder-only language model.

    Args:
        problems: Receives mistakes and warnings.
        path: Path of the model section, which is a mapping.
        data_path: Path of the data section of the side that is explored.
        data: Its values.
    """
    reader = _Reader(problems, path)
    if not reader.is_decoder():
        return {}
    model: dict[str, Any] = {}
    for key, name in _SIZES.items():
        fallback = data.get("vocab_size") if key == "vocab_size" else None
        model[name] = reader.size(key, fallback)
        if model[name] is None and not problems.document.has((*path, key)):
            problems.error(path, f"the model section has no {key}", f"type {key}: and a number")
    hidden_size, num_heads = model["hidden_size"], model["num_heads"]
    model["intermediate_size"] = reader.size("filter_size")
    if model["intermediate_size"] is None and hidden_size is not None and reader.get("filter_size") is None:
        model["intermediate_size"] = 4 * hidden_size
        problems.warn(path, f"the model section has no filter_size; {4 * hidden_size} is taken (4 x hidden_size)")
    model |= {name: reader.flag(key, default) for key, (name, default) in _FLAGS.items()}
    model |= reader.attention(hidden_size, num_heads)
    model |= {
        "norm": reader.word("norm_type", _NORMS, "layernorm"),
        "norm_eps": reader.number("layer_norm_epsilon", 1e-5),
        "activation": reader.word("nonlinearity", _ACTIVATIONS, "gelu"),
    }
    if reader.get("norm_type") == "biasless-layernorm":
        problems.warn((*path, "norm_type"), "the biases of the norms are kept; biasless-layernorm has none")
    dropout = reader.share("dropout_rate", 0.1)
    model["dropout"] = dropout
    model["embedding_dropout"] = reader.share("embedding_dropout_rate", dropout)
    model["attention_dropout"] = reader.share("attention_dropout_rate", dropout)
    sequence_length = reader.sequence_length(data_path, data)
    positions = reader.size("max_position_embeddings") or sequence_length
    if sequence_length is not None and positions is not None and positions < sequence_length:
        if model["position_embedding"] == "learned":
            problems.error(
                (*path, "max_position_embeddings"),
                f"max_position_embeddings {positions} is below the sequence length {sequence_length}",
                f"type max_position_embeddings: {sequence_length}",
            )
        positions = sequence_length
    model["max_position_embeddings"] = positions
    reader.notice_the_rest()
    return {
        "model": {name: value for name, value in model.items() if value is not None},
        "data": {"vocab_size": model["vocab_size"], "sequence_length": sequence_length},
        "sequence_length": sequence_length,
    }


def read_optimizer(problems: Problems, path: KeyPath, precision_path: KeyPath | None) -> dict[str, Any]:
    """Fields of `Job` of the optimizer section, in both its forms: `optimizer_type: AdamW` and `AdamW: {...}`."""
    document = problems.document
    section = document.get(path)
    if not isinstance(section, dict):
        section = {}
    written, values, here = _optimizer_form(section, path)
    fields: dict[str, Any] = {}
    if written is not None:
        name = _optimizer_name(problems, written, here)
        arguments = _optimizer_arguments(problems, name, values, here)
        fields = {"optimizer": name, "optimizer_arguments": arguments}
    norm_path: KeyPath = (*path, "max_gradient_norm")
    if not document.has(norm_path) and precision_path is not None:
        norm_path = (*precision_path, "max_gradient_norm")
    norm = document.get(norm_path)
    if norm is not None and not _is_number(norm):
        problems.error(norm_path, f"max_gradient_norm must be a number, not {quoted(norm)}")
    elif norm is not None and norm > 0:
        fields["max_gradient_norm"] = float(norm)
    return fields


def as_flag(value: Any) -> bool | None:
    """True and false, and the words that YAML 1.1, which the family's own reader speaks, takes for them."""
    if isinstance(value, bool):
        return value
    words = {"yes": True, "on": True, "no": False, "off": False}
    return words.get(value.lower()) if isinstance(value, str) else None


class _Reader:
    """Reads one model section; notes what is wrong and goes on."""

    def __init__(self, problems: Problems, path: KeyPath) -> None:
        self.problems = problems
        self.path = path
        self.values: Mapping[str, Any] = problems.document.get(path)

    def get(self, key: str) -> Any:
        return self.values.get(key)

    def error(self, key: str, rule: str, hint: str = "") -> None:
        self.problems.error((*self.path, key), rule, hint)

    def is_decoder(self) -> bool:
        """Whether the section describes something that is built in; notes it if not."""
        name = self.get("name")
        lowered = str(name).lower() if name is not None else ""
        foreign = sorted(_OTHER_ARCHITECTURE.intersection(self.values))
        experts = self.get("moe") or self.get("moe_params")
        num_experts = experts.get("num_experts", 1) if isinstance(experts, dict) else 1
        where = "describe it under explore.workload (transformers, or model and batch by import path); see configs/"
        if name is not None and lowered not in _DECODERS | _PARALLEL_DECODERS:
            if lowered != "mixtral" or not _is_integer(num_experts):
                near = close_match(lowered, sorted(_DECODERS | _PARALLEL_DECODERS), cutoff=0.75)
                guess = f"did you mean {near}? if not, " if near else ""
                self.error(
                    "name",
                    f"the model {quoted(name)} is not built in: gpt2, gpt3, llama and their like are",
                    guess + where,
                )
                return False
        if _is_integer(num_experts) and num_experts > 1:
            self.error("moe", f"mixture of experts ({num_experts} experts) is not built in", where)
            return False
        if name is None and foreign:
            self.error(foreign[0], f"not a decoder-only language model ({', '.join(foreign)}): not built in", where)
            return False
        if lowered in _PARALLEL_DECODERS:
            self.problems.warn(
                (*self.path, "name"),
                f"{shown(name)} runs attention and feed-forward side by side; here one follows the other",
            )
        return True

    def size(self, key: str, fallback: Any = None) -> int | None:
        value = self.get(key) if self.get(key) is not None else fallback
        if value is None:
            return None
        if not _is_integer(value) or not 1 <= value <= _LARGEST_SIZE:
            self.error(key, f"{key} must be a positive integer, not {quoted(value)}")
            return None
        return int(value)

    def number(self, key: str, default: float) -> float:
        value = self.get(key)
        value = _number_from_text(value)
        if value is None:
            return default
        if not _is_number(value):
            self.error(key, f"{key} must be a number, not {quoted(value)}")
            return default
        return float(value)

    def share(self, key: str, default: float) -> float:
        value = self.number(key, default)
        if not 0 <= value < 1:
            self.error(key, f"{key} must be from 0 to below 1, not {value:g}")
            return 0.0
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key)
        if value is None:
            return default
        flag = as_flag(value)
        if flag is None:
            self.error(key, f"{key} must be true or false, not {quoted(value)}")
        return default if flag is None else flag

    def word(self, key: str, known: Mapping[str, str], default: str) -> str:
        value = self.get(key)
        if value is None:
            return known[default]
        lowered = str(value).lower()
        if lowered not in known:
            near = close_match(lowered, list(known))
            choice = f"did you mean {near}?" if near else f"built in: {', '.join(known)}"
            self.error(key, f"{key} {quoted(value)} is not built in", choice)
            return known[default]
        return known[lowered]

    def attention(self, hidden_size: int | None, num_heads: int | None) -> dict[str, Any]:
        """Heads, grouping and positions."""
        head_size = None
        inner = self.size("attention_inner_dim")
        for key, width in (("hidden_size", None if inner else hidden_size), ("attention_inner_dim", inner)):
            if width is not None and num_heads is not None and width % num_heads:
                self.error(key, f"{key} {width} is not a multiple of num_heads {num_heads}")
        if inner is not None and num_heads is not None:
            head_size = max(1, inner // num_heads)
        width = head_size or (max(1, hidden_size // num_heads) if hidden_size and num_heads else None)
        found = {"head_size": head_size, "num_key_value_heads": self.key_value_heads(num_heads)}
        kind = self.word("position_embedding_type", _POSITIONS, "learned")
        if not self.flag("use_position_embedding", True):
            kind = "none"
        found["position_embedding"] = kind
        if kind == "rotary":
            rotary_dim = self.size("rotary_dim")
            if rotary_dim is not None and width is not None and (rotary_dim > width or rotary_dim % 2):
                self.error(
                    "rotary_dim", f"rotary_dim {rotary_dim} must be even and at most {width}, the width of a head"
                )
            found |= {"rotary_dim": rotary_dim, "rope_theta": self.number("rope_theta", 10000.0)}
        return found

    def key_value_heads(self, num_heads: int | None) -> int | None:
        """Groups of keys and values; None for one a head."""
        module = self.get("attention_module")
        if module not in (None, "aiayn_attention", "multiquery_attention"):
            self.error(
                "attention_module",
                f"attention_module {quoted(module)} is not built in",
                "aiayn_attention or multiquery_attention is",
            )
        extra = self.get("extra_attention_params")
        extra = extra if isinstance(extra, dict) else {}
        if module != "multiquery_attention":
            return None
        groups = extra.get("num_kv_groups", 1)
        key_path = (*self.path, "extra_attention_params", "num_kv_groups")
        if not _is_integer(groups) or groups < 1:
            self.problems.error(key_path, f"num_kv_groups must be a positive integer, not {quoted(groups)}")
            return None
        if num_heads is not None and num_heads % groups:
            self.problems.error(key_path, f"num_heads {num_heads} is not a multiple of num_kv_groups {groups}")
        return int(groups)

    def sequence_length(self, data_path: KeyPath, data: Mapping[str, Any]) -> int | None:
        """Tokens a sample: by the data section, else by the model section."""
        places = [(data_path, data, "max_sequence_length"), (data_path, data, "sequence_length")]
        places += [(self.path, self.values, "max_sequence_length"), (self.path, self.values, "max_position_embeddings")]
        for path, values, key in places:
            value = values.get(key)
            if value is None:
                continue
            if _is_integer(value) and 1 <= value <= _LONGEST_SEQUENCE:
                return int(value)
            self.problems.error((*path, key), f"{key} must be a positive integer, not {quoted(value)}")
            return None
        self.problems.error(
            self.path, "nothing gives the sequence length", "type max_position_embeddings: in the model section"
        )
        return None

    def notice_the_rest(self) -> None:
        """Name every key that changes the program and is not built."""
        rest, scales = [], []
        for key, value in self.values.items():
            if key in _READ or key in _NO_EFFECT:
                continue
            if key in _SCALES:
                scales += [key] if value not in _SCALE_DEFAULTS[key] or value is True else []
                continue
            near = close_match(key, sorted(_READ), cutoff=0.88)
            if near is not None and near not in self.values:
                self.problems.warn((*self.path, key), f"{quoted(key)} is not read; did you mean {quoted(near)}?")
            elif value not in (None, False, 0, "", "none") and value != {} and value != []:
                rest.append(f"{shown(key)}: {shown(value)}")
        if rest:
            self.problems.warn(self.path, f"not built in, so the program that is measured lacks it: {', '.join(rest)}")
        if scales:
            self.problems.warn(
                self.path, f"constant factors are left out, which changes neither time nor memory: {', '.join(scales)}"
            )


def _optimizer_form(section: Mapping[str, Any], path: KeyPath) -> tuple[str | None, Mapping[str, Any], KeyPath]:
    """The written name, the arguments, and where they stand."""
    written = section.get("optimizer_type")
    if written is not None:
        return str(written), section, path
    for name, values in section.items():
        is_known = name.lower() in _OPTIMIZERS or name.lower() in _NEAREST_OPTIMIZERS
        if is_known or (isinstance(values, dict) and len(section) == 1):
            return name, values if isinstance(values, dict) else {}, (*path, name)
    return None, {}, path


def _optimizer_name(problems: Problems, written: str, path: KeyPath) -> str:
    """The class of torch.optim."""
    lowered = written.lower()
    if lowered in _NEAREST_OPTIMIZERS:
        name, why = _NEAREST_OPTIMIZERS[lowered]
        problems.warn(path, f"torch.optim has no {shown(written)}; {name} is run instead ({why})")
        return name
    if lowered in _OPTIMIZERS:
        return _OPTIMIZERS[lowered]
    near = close_match(lowered, list(_OPTIMIZERS))
    known = f"did you mean {_OPTIMIZERS[near]}?" if near else f"known: {', '.join(_OPTIMIZERS.values())}"
    problems.error(path, f"the optimizer {quoted(written)} is not one of torch.optim", known)
    return "AdamW"


def _optimizer_arguments(problems: Problems, name: str, values: Mapping[str, Any], path: KeyPath) -> dict[str, Any]:
    """Keyword arguments of the class: those that it takes; schedules and loss scaling stay where they are."""
    rate = _number_from_text(values.get("learning_rate", values.get("lr")))
    arguments: dict[str, Any] = {"lr": float(rate) if _is_number(rate) and rate > 0 else _LEARNING_RATE}
    aliases = {"weight_decay": ("weight_decay", "weight_decay_rate")}
    for argument in _ARGUMENTS[name].split():
        for key in aliases.get(argument, (argument,)):
            value = _number_from_text(values.get(key))
            if value is None:
                continue
            if argument in _PAIRS:
                is_right = isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))
            elif argument in _FLAG_ARGUMENTS:
                is_right = isinstance(value, bool)
            elif argument == "eps" and isinstance(value, list):
                continue  # the two epsilons of another Adafactor
            else:
                is_right = _is_number(value)
            if is_right:
                arguments[argument] = value
            else:
                kind = (
                    "two numbers"
                    if argument in _PAIRS
                    else "true or false"
                    if argument in _FLAG_ARGUMENTS
                    else "a number"
                )
                problems.error((*path, key), f"{key} must be {kind}, not {quoted(value)}")
    return arguments


def _number_from_text(value: Any) -> Any:
    """`1e-5` as a text in quotes is a number to everybody else."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and value == value and abs(value) != float("inf")
    )
