"""Decoder-only language models: GPT-2, GPT-3, LLaMA and their like as the built-in decoder, others of transformers.

Some keys are built in; some change neither time nor memory (initial values, the scale of the loss, generation). Of the
rest, a warning names each that is switched on.

Source: the configuration classes of the GPT-2, GPT-3 and LLaMA models, `MixtralModelConfig`, `Gemma2ModelConfig` and
`MoEConfig` of the public ModelZoo, releases 2.0 to 2.10; keys of transformers are those of `MixtralConfig`,
`Qwen2MoeConfig` (experts of which some see every token) and `Gemma2Config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bexplore.config.dialects.cerebras.section import (
    SCALES,
    SIZES,
    Architecture,
    Section,
    flag,
    given,
    has,
    number,
    refuse,
    sequence_length,
    share,
    size,
    transformers,
    word,
)
from bexplore.config.document import is_integer
from bexplore.config.document.reader import quote
from bexplore.errors import close_match

_DECODERS = frozenset(
    (
        *("gpt", "gpt2", "gpt3", "llama", "code_llama", "llamamodel", "gpt2lmheadmodel"),
        *("mistral", "starcoder", "santacoder", "bloom", "mpt", "jais", "btlm"),
    )
)
# Attention and feed-forward side by side: by name, or by a key that only those families have.
_PARALLEL_KEY = "use_untied_layer_norm"
_PARALLEL_DECODERS = frozenset(("gptj", "gpt-j", "gpt_j", "gptneox", "gpt-neox", "gpt_neox", "falcon"))

_OTHER_MODELS = frozenset(("llava", "mixtral"))  # resemble a name above, and are other models
SHOWN_DECODERS = "gpt2, gpt3, llama, mistral, falcon, bloom, gptj, gpt-neox, starcoder, mpt, jais"

# Keys of encoders, encoder-decoders and vision models alone; in 2.0 to 2.2 a section has no name.
_OTHER_ARCHITECTURES = frozenset(
    (
        *("disable_nsp", "num_segments", "pooler_nonlinearity", "mlm_nonlinearity", "num_classes"),
        *("encoder_num_hidden_layers", "decoder_num_hidden_layers", "src_vocab_size", "tgt_vocab_size"),
        *("d_model", "d_kv", "image_size", "patch_size", "vit_model", "projection_layer", "image_model"),
    )
)
_NEAR_KEY = 0.88  # similarity from which an unknown key is taken for a misspelt one; real ones resemble each other
_NEAR_NAME = 0.75  # similarity from which an unknown name is taken for a misspelt one; "lama" has 0.89
_DESCRIBE_IT = (
    "describe it under explore.workload (transformers, or model and batch by import path): "
    "bexplore init --example own_model writes one"
)

_OWNER = "the model section"
_SIZES = {
    "hidden_size": size("hidden_size", owner=_OWNER),
    "num_layers": size("num_hidden_layers", owner=_OWNER),
    "num_heads": size("num_heads", owner=_OWNER),
}
_FLAGS = {
    "tie_embeddings": flag("share_embedding_weights", True),
    "attention_bias": flag("use_projection_bias_in_attention", True),
    "attention_output_bias": flag("use_ffn_bias_in_attention", True),
    "feed_forward_bias": flag("use_ffn_bias", True),
    "output_bias": flag("use_bias_in_output", False),
}
_POSITIONS = {kind: kind for kind in ("learned", "fixed", "rotary", "alibi", "none")}
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
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
    "linear": "identity",
    "swiglu": "swiglu",
    "geglu": "geglu",
    "reglu": "reglu",
    "bilinear": "bilinear",
}
_OTHERWISE_READ = (  # by other architectures, or only with some value of another key
    *("rotary_dim", "rope_theta", "extra_attention_params", "max_sequence_length"),
    *("moe", "moe_params", _PARALLEL_KEY, "model_name"),
)


def read_decoder(model: Section, data: Section) -> dict[str, Any]:
    """Return the fields of `Job` of a decoder-only language model."""
    if not _is_decoder(model):
        return {"model": {}}
    fields = _sizes(model, data) | model.table(_FLAGS)
    fields |= _heads(model, fields)
    fields |= _positions(model, fields)
    fields["norm"] = word("norm_type", "layernorm", _NORMS)(model)
    if str(model.values.get("norm_type")).lower() == "biasless-layernorm":
        text = "biasless-layernorm is built with its bias, one vector a norm more"
        model.problems.warn(model.at("norm_type"), text)
    fields["norm_eps"] = number("layer_norm_epsilon", 1e-5)(model)
    fields["activation"] = word("nonlinearity", "gelu", _ACTIVATIONS)(model)
    fields["dropout"] = dropout = share("dropout_rate", 0.1)(model)
    fields["embedding_dropout"] = share("embedding_dropout_rate", dropout)(model)
    fields["attention_dropout"] = share("attention_dropout_rate", dropout)(model)
    length = sequence_length(model, data, "max_sequence_length", "sequence_length", "max_position_embeddings")
    fields["max_position_embeddings"] = _num_positions(model, fields, length)
    _notice_the_rest(model)
    return {
        "model": {name: value for name, value in fields.items() if value is not None},
        "data": {"vocab_size": fields["vocab_size"], "sequence_length": length},
        "sequence_length": length,
    }


def _is_decoder(model: Section) -> bool:
    values, name = model.values, model.values.get("name")
    lowered = str(name).lower()
    foreign = sorted(_OTHER_ARCHITECTURES.intersection(values))
    if name is not None and lowered not in _DECODERS | _PARALLEL_DECODERS:
        known = () if lowered in _OTHER_MODELS else sorted(_DECODERS | _PARALLEL_DECODERS)
        near = close_match(lowered, known, cutoff=_NEAR_NAME)
        hint = f"did you mean {near}? If not, {_DESCRIBE_IT}" if near else _DESCRIBE_IT
        rule = f"the model {quote(name)} is not built in; decoders are: {SHOWN_DECODERS}"
        model.problems.error(model.at("name"), rule, hint)
    elif name is None and foreign:
        rule = f"not a decoder-only language model, by its {', '.join(foreign)}; only those are built in"
        model.problems.error(model.at(foreign[0]), rule, _DESCRIBE_IT)
    else:
        if lowered in _PARALLEL_DECODERS or _PARALLEL_KEY in values:
            text = "this family runs attention and feed-forward side by side; here one follows the other"
            model.problems.warn(model.at("name" if name is not None else _PARALLEL_KEY), text)
        return True
    return False


def _sizes(model: Section, data: Section) -> dict[str, Any]:
    is_in_data = model.values.get("vocab_size") is None and data.values.get("vocab_size") is not None
    vocab_size = size("vocab_size", owner=_OWNER)(data if is_in_data else model)
    model.ignore("vocab_size")
    found = {"vocab_size": vocab_size} | {name: read(model) for name, read in _SIZES.items()}
    found["intermediate_size"] = given("filter_size")(model)
    width = found["hidden_size"]
    if model.values.get("filter_size") is None and width is not None:
        found["intermediate_size"] = 4 * width
        text = f"the model section has no filter_size; {4 * width} (4 x hidden_size) is taken"
        model.problems.warn(model.path, text)
    return found


def _heads(model: Section, fields: dict[str, Any]) -> dict[str, Any]:
    problems, num_heads, inner = model.problems, fields["num_heads"], given("attention_inner_dim")(model)
    key, width = ("attention_inner_dim", inner) if inner is not None else ("hidden_size", fields["hidden_size"])
    if width is not None and num_heads is not None and width % num_heads:
        problems.error(model.at(key), f"{key} {width} is not a multiple of num_heads {num_heads}")
    head_size = inner // num_heads if inner and num_heads and inner % num_heads == 0 else None
    path, module = model.at("attention_module"), model.values.get("attention_module")
    if module not in (None, "aiayn_attention", "multiquery_attention"):
        rule = f"attention_module {quote(module)} is not built in"
        problems.error(path, rule, "aiayn_attention and multiquery_attention are")
    if module != "multiquery_attention":
        return {"head_size": head_size}
    extra = model.sub("extra_attention_params")
    groups = given("num_kv_groups")(extra) or 1
    if num_heads is not None and num_heads % groups:
        rule = f"num_heads {num_heads} is not a multiple of num_kv_groups {groups}"
        problems.error(extra.at("num_kv_groups"), rule)
    return {"head_size": head_size, "num_key_value_heads": groups}


def _positions(model: Section, fields: dict[str, Any]) -> dict[str, Any]:
    kind = word("position_embedding_type", "learned", _POSITIONS)(model)
    if not flag("use_position_embedding", True)(model):
        kind = "none"
    if kind != "rotary":
        return {"position_embedding": kind}
    rotary_dim = given("rotary_dim")(model)
    width = fields["head_size"]
    if width is None and fields["hidden_size"] and fields["num_heads"]:
        width = fields["hidden_size"] // fields["num_heads"]
    if rotary_dim is not None and width is not None and (rotary_dim > width or rotary_dim % 2):
        rule = f"rotary_dim must be even and at most the width of a head, {width}; it is {rotary_dim}"
        model.problems.error(model.at("rotary_dim"), rule)
    return {"position_embedding": kind, "rotary_dim": rotary_dim, "rope_theta": number("rope_theta", 10000.0)(model)}


def _num_positions(model: Section, fields: dict[str, Any], length: int | None) -> int | None:
    """Read the positions of the model; only learned ones cannot grow with the sequence."""
    num_positions = given("max_position_embeddings")(model)
    if num_positions is None or length is None or num_positions >= length:
        return num_positions or length
    if fields["position_embedding"] == "learned":
        rule = f"max_position_embeddings {num_positions} is below the sequence length {length}"
        model.problems.error(model.at("max_position_embeddings"), rule, f"type max_position_embeddings: {length}")
    return length


def _notice_the_rest(model: Section) -> None:
    """Name every key that is switched on, changes the program and is not built, and the key that it resembles."""
    model.ignore(*_OTHERWISE_READ)
    scales: list[str] = []
    rest: list[str] = []
    for key in model.unread():
        near = close_match(key, sorted(model.read), cutoff=_NEAR_KEY)
        if key in SCALES:
            scales += [key] if model.values[key] is True or model.values[key] != 1 else []
        elif near is not None and near not in model.values:
            model.problems.warn((*model.path, key), f"{quote(key)} is not read; did you mean {quote(near)}?")
        else:
            rest.append(key)
    model.notice_unbuilt(rest)
    if scales:
        text = f"constant factors left out, of no account for time and memory: {', '.join(scales)}"
        model.problems.warn(model.path, text)


_GATED = {
    "hidden_act": word("nonlinearity", "swiglu", {"swiglu": "silu", "geglu": "gelu_pytorch_tanh"}),
    "vocab_size": size("vocab_size"),
    **SIZES,
    "intermediate_size": size("filter_size"),
    "rms_norm_eps": number("layer_norm_epsilon", 1e-5),
    "attention_dropout": share("attention_dropout_rate", 0.1, otherwise="dropout_rate"),
    "sliding_window": given("attention_sliding_window_length"),
    "tie_word_embeddings": flag("share_embedding_weights", True),
}
_GEMMA2 = _GATED | {
    "attn_logit_softcapping": number("attention_logit_softcapping", 50.0),
    "final_logit_softcapping": number("final_logit_softcapping", 30.0),
}
_BUILT = (  # as every model of transformers here has it
    *("attention_module", "extra_attention_params", "position_embedding_type", "rotary_dim", "norm_type"),
    *("use_projection_bias_in_attention", "use_ffn_bias_in_attention", "use_ffn_bias"),
    *("use_bias_in_output", "embedding_dropout_rate", "rope_theta", "norm_first_sandwich", "attention_inner_dim"),
    *("sliding_window_every_other_decoder_layer", "moe", "dropout_rate", "query_layer_norm"),
)


def _gated_decoder(model: Section, data: Section, table: Mapping[str, Any]) -> tuple[dict[str, Any], int | None]:
    length = sequence_length(model, data)
    config = model.table(table) | {"max_position_embeddings": given("max_position_embeddings")(model) or length}
    heads = config.get("num_attention_heads", 1)
    config["num_key_value_heads"] = given("num_kv_groups")(model.sub("extra_attention_params")) or heads
    inner = given("attention_inner_dim")(model) or config.get("hidden_size", heads)
    if inner % heads:
        model.problems.error(model.path, f"num_heads {heads} does not divide the {inner} channels of the attention")
    config["head_dim"] = inner // heads
    theta = number("rope_theta", 10000.0)(model)
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}
    model.ignore(*_BUILT)
    return config, length


def _gemma2(model: Section, data: Section) -> dict[str, Any]:
    config, length = _gated_decoder(model, data, _GEMMA2)
    config |= {"query_pre_attn_scalar": config["head_dim"], "hidden_activation": config.pop("hidden_act")}
    model.notice_the_rest()
    return transformers("causal_lm", "gemma2", config, length)


def _experts(model: Section, data: Section) -> dict[str, Any]:
    config, length = _gated_decoder(model, data, _GATED)
    experts = _expert_section(model)
    num_experts, num_chosen = size("num_experts")(experts) or 1, size("top_k", 1)(experts)
    config["router_aux_loss_coef"] = number("load_balancing_loss_coef", 0.01)(experts)
    config |= {"output_router_logits": True, "num_experts_per_tok": num_chosen}
    if num_chosen > num_experts:
        experts.problems.error(experts.at("top_k"), f"top_k {num_chosen} exceeds the {num_experts} experts")
    if model.values.get("position_embedding_type", "learned") != "rotary":
        kind = model.values.get("position_embedding_type", "learned")
        model.problems.warn(model.at("position_embedding_type"), f"{kind} positions are built as rotary ones")
    num_shared = given("num_shared_experts")(experts)
    experts.ignore("router_fp32", "routing_algorithm", "null_expert_bias", "router_selection_nonlinearity")
    experts.notice_the_rest()
    model.notice_the_rest()
    if num_shared is None:
        return transformers("causal_lm", "mixtral", config | {"num_local_experts": num_experts}, length)
    width = config.get("intermediate_size", 1)
    config |= {"num_experts": num_experts, "moe_intermediate_size": width, "use_sliding_window": False}
    config["shared_expert_intermediate_size"] = num_shared * width
    return transformers("causal_lm", "qwen2_moe", config, length)


def _expert_section(model: Section) -> Section:
    return next((part for part in (model.sub("moe"), model.sub("moe_params")) if part.values), model.sub("moe"))


def is_mixture(values: Mapping[str, Any]) -> bool:
    """Return whether a section has several experts, whatever its name."""
    experts = values.get("moe") or values.get("moe_params")
    num_experts = experts.get("num_experts") if isinstance(experts, dict) else None
    return is_integer(num_experts) and num_experts > 1


MIXTURE = Architecture(names=(), shown_by=is_mixture, read=_experts)
ARCHITECTURES = (
    Architecture(names=("gemma2",), shown_by=has("norm_first_sandwich"), read=_gemma2),
    Architecture(names=("layers_api_demo",), shown_by=has("embedding_size"), read=refuse("The layers demo")),
    Architecture(names=("dpo",), shown_by=has("dpo"), read=refuse("DPO")),
)
