"""T5, and the plain Transformer of encoder and decoder.

Source: the configuration class `T5ModelConfig` of the public ModelZoo, releases 2.1 to 2.10, which both models share;
keys of transformers are those of `T5Config`, `MarianConfig` (norms after each part) and `PegasusConfig` (before it).
"""

from __future__ import annotations

from typing import Any

from bexplore.config.dialects.cerebras.architectures.architecture import ACTIVATIONS, Architecture, transformers
from bexplore.config.dialects.cerebras.section import Section, flag, given, number, sequence_length, share, size, word

_T5 = {
    "d_model": size("d_model", 512),
    "d_kv": size("d_kv", 64),
    "d_ff": size("d_ff", 2048),
    "num_layers": size("encoder_num_hidden_layers", 6),
    "num_decoder_layers": given("decoder_num_hidden_layers"),
    "num_heads": size("num_heads", 8),
    "relative_attention_num_buckets": size("relative_attention_num_buckets", 32),
    "dropout_rate": share("dropout_rate", 0.1),
    "layer_norm_epsilon": number("layer_norm_epsilon", 1e-5),
    "feed_forward_proj": word(
        "encoder_nonlinearity", "relu", {"relu": "relu", "gelu": "gelu", "geglu": "gated-gelu", "silu": "silu"}
    ),
    "tie_word_embeddings": flag("share_embedding_weights", True),
}
_TRANSFORMER = {
    "d_model": size("d_model", 512),
    "encoder_layers": size("encoder_num_hidden_layers", 6),
    "encoder_attention_heads": size("num_heads", 8),
    "encoder_ffn_dim": size("d_ff", 2048),
    "dropout": share("dropout_rate", 0.1),
    "attention_dropout": share("dropout_rate", 0.1),
    "activation_dropout": share("relu_dropout_rate", 0.0),
    "activation_function": word("encoder_nonlinearity", "relu", ACTIVATIONS),
    "tie_word_embeddings": flag("share_embedding_weights", True),
}
_NO_EFFECT = (
    *("lm_loss_weight", "mlm_loss_scaling", "decoder_nonlinearity", "position_embedding_type", "norm_type"),
    *("use_projection_bias_in_attention", "use_transformer_initialization", "extra_ids", "tgt_vocab_size"),
    *("src_max_position_embeddings", "tgt_max_position_embeddings", "share_encoder_decoder_embedding"),
    *("use_pre_encoder_decoder_dropout", "use_dropout_outside_residual_path", "relu_dropout_rate", "use_ffn_bias"),
    *("scale_encoder_qk_dot_by_d", "scale_decoder_qk_dot_by_d", "mup_base_d_model", "mup_base_d_ff"),
    *("encoder_attention_logits_alpha", "decoder_attention_logits_alpha", "embeddings_alpha", "d_kv"),
)


def _common(model: Section, data: Section) -> tuple[int, int | None, int | None]:
    """Return vocabulary, tokens of a source and tokens of a target."""
    vocab_size = size("src_vocab_size")(model) or 1
    extra = given("extra_ids")(model) or 0
    source = sequence_length(model, data, "src_max_sequence_length", "src_max_position_embeddings")
    target = sequence_length(model, data, "tgt_max_sequence_length", "tgt_max_position_embeddings")
    model.ignore(*_NO_EFFECT)
    return vocab_size + extra, source, target


def _t5(model: Section, data: Section) -> dict[str, Any]:
    vocab_size, source, target = _common(model, data)
    config = model.table(_T5) | {"vocab_size": vocab_size}
    if str(model.values.get("norm_type", "rmsnorm")).lower() == "layernorm":
        model.problems.warn(model.at("norm_type"), "layernorm is built as T5's RMS norm, one mean and one vector less")
    model.notice_the_rest()
    return transformers("seq2seq_lm", "t5", config, source, target_length=target)


def _transformer(model: Section, data: Section) -> dict[str, Any]:
    vocab_size, source, target = _common(model, data)
    width, heads, head = size("d_model", 512)(model), size("num_heads", 8)(model), size("d_kv", 64)(model)
    if width != heads * head:
        rule = f"d_kv {head} x num_heads {heads} is not d_model {width}"
        model.problems.error(model.at("d_kv"), rule, "in the plain Transformer the heads share its width")
    config = model.table(_TRANSFORMER)
    config |= {
        "vocab_size": vocab_size,
        "decoder_layers": given("decoder_num_hidden_layers")(model) or config["encoder_layers"],
        "decoder_attention_heads": config["encoder_attention_heads"],
        "decoder_ffn_dim": config["encoder_ffn_dim"],
        "max_position_embeddings": max(source or 1, target or 1),
        "pad_token_id": 0,
        "eos_token_id": 0,
        "decoder_start_token_id": 0,
        "forced_eos_token_id": None,
    }
    norms_first = flag("use_pre_encoder_decoder_layer_norm", True)(model)
    model.notice_the_rest()
    return transformers("seq2seq_lm", "pegasus" if norms_first else "marian", config, source, target_length=target)


def _is_t5(values: Any) -> bool:
    """Return whether a section without a name is T5's: its positions are relative, the other's are not."""
    return "src_vocab_size" in values and str(values.get("position_embedding_type", "relative")).lower() == "relative"


ARCHITECTURES = (
    Architecture(names=("t5",), shown_by=_is_t5, read=_t5),
    Architecture(names=("transformer",), shown_by=lambda values: "src_vocab_size" in values, read=_transformer),
)
