"""Decoders that the built-in one lacks: mixtures of experts (Mixtral) and Gemma 2; DPO over a decoder.

Source: the configuration classes `MixtralModelConfig`, `Gemma2ModelConfig`, `MoEConfig` and `DPOModelConfig` of the
public ModelZoo, releases 2.2 to 2.10; keys of transformers are those of `MixtralConfig`, `Qwen2MoeConfig` (experts of
which some see every token) and `Gemma2Config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bexplore.config.dialects.cerebras.architectures.architecture import SIZES, Architecture, has, transformers
from bexplore.config.dialects.cerebras.architectures.plain_decoder import read_decoder
from bexplore.config.dialects.cerebras.section import Section, flag, given, number, sequence_length, share, size, word
from bexplore.config.sections.values import is_integer

_DECODER = {
    "hidden_act": word("nonlinearity", "swiglu", {"swiglu": "silu", "geglu": "gelu_pytorch_tanh"}),
    "vocab_size": size("vocab_size"),
    **SIZES,
    "intermediate_size": size("filter_size"),
    "rms_norm_eps": number("layer_norm_epsilon", 1e-5),
    "attention_dropout": share("attention_dropout_rate", 0.1, otherwise="dropout_rate"),
    "sliding_window": given("attention_sliding_window_length"),
    "tie_word_embeddings": flag("share_embedding_weights", True),
}
_GEMMA2 = _DECODER | {
    "attn_logit_softcapping": number("attention_logit_softcapping", 50.0),
    "final_logit_softcapping": number("final_logit_softcapping", 30.0),
}
_BUILT = (  # as every model of transformers here has it
    *("attention_module", "extra_attention_params", "position_embedding_type", "rotary_dim", "norm_type"),
    *("use_projection_bias_in_attention", "use_ffn_bias_in_attention", "use_ffn_bias"),
    *("use_bias_in_output", "embedding_dropout_rate", "rope_theta", "norm_first_sandwich", "attention_inner_dim"),
    *("sliding_window_every_other_decoder_layer", "moe", "dropout_rate", "query_layer_norm"),
)


def _decoder(model: Section, data: Section, table: Mapping[str, Any]) -> tuple[dict[str, Any], int | None]:
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
    config, length = _decoder(model, data, _GEMMA2)
    config |= {"query_pre_attn_scalar": config["head_dim"], "hidden_activation": config.pop("hidden_act")}
    model.notice_the_rest()
    return transformers("causal_lm", "gemma2", config, length)


def _experts(model: Section, data: Section) -> dict[str, Any]:
    config, length = _decoder(model, data, _DECODER)
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


def _preference(model: Section, data: Section) -> dict[str, Any]:
    """Read DPO: the policy is a section of its own from 2.3 on, and the model section itself before."""
    policy = model.sub("policy_model") if "policy_model" in model.values else model
    fields = read_decoder(policy, data)
    own = model.sub("dpo")
    settings = own.table({"beta": number("beta", 0.1), "reference_free": flag("reference_free", False)})
    return fields | {"workload": "preference", "model": {"decoder": fields["model"]} | settings}


def _demonstration(model: Section, data: Section) -> dict[str, Any]:
    """Read the demonstration of the layers' interface, whose width is `embedding_size`."""
    fields = model.table(
        {
            "vocab_size": size("vocab_size"),
            "hidden_size": size("embedding_size"),
            "num_layers": size("num_hidden_layers"),
            "num_heads": size("num_heads"),
            "intermediate_size": size("hidden_size"),
            "activation": word("nonlinearity", "gelu", {"gelu": "gelu", "relu": "relu"}),
            "dropout": share("dropout"),
        }
    )
    length = sequence_length(model, data, "seq_length", "seq_len")
    model.ignore("seq_len")
    model.notice_the_rest()
    fields |= {"max_position_embeddings": length, "position_embedding": "fixed", "tie_embeddings": False}
    data_fields = {"vocab_size": fields.get("vocab_size"), "sequence_length": length}
    return {"workload": "decoder", "model": fields, "data": data_fields, "sequence_length": length}


def is_mixture(values: Mapping[str, Any]) -> bool:
    """Return whether a section has several experts, whatever its name."""
    experts = values.get("moe") or values.get("moe_params")
    num_experts = experts.get("num_experts") if isinstance(experts, dict) else None
    return is_integer(num_experts) and num_experts > 1


MIXTURE = Architecture(names=(), shown_by=is_mixture, read=_experts)
ARCHITECTURES = (
    Architecture(names=("gemma2",), shown_by=has("norm_first_sandwich"), read=_gemma2),
    Architecture(names=("layers_api_demo",), shown_by=has("embedding_size"), read=_demonstration),
    Architecture(names=("dpo",), shown_by=has("dpo"), read=_preference),
)
