"""Encoders of texts and images, as models of transformers: BERT with its heads, ESM-2, T5, Transformer, ViT, LLaVA.

Source: the configuration classes `BertModelConfig`, `BertForPreTrainingModelConfig` and their heads,
`Esm2PretrainModelConfig`, `T5ModelConfig` (which the plain Transformer shares), `ViTClassificationModelConfig`,
`GenericImageEncodersModelConfig` (DINOv2), `LlavaModelConfig` and `SimpleMultimodalModelConfig` of the public ModelZoo,
releases 2.1 to 2.10; keys of transformers are those of `BertConfig`, `EsmConfig`, `T5Config`, `MarianConfig` (norms
after each part), `PegasusConfig` (before it), `ViTConfig`, `Dinov2Config` and `LlavaConfig`.
"""

from __future__ import annotations

from typing import Any

from bexplore.config.dialects.cerebras.section import (
    ACTIVATIONS,
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
    side,
    size,
    transformers,
    word,
)

_ENCODER = {
    "vocab_size": size("vocab_size"),
    **SIZES,
    "intermediate_size": size("filter_size", 3072),
    "hidden_act": word("encoder_nonlinearity", "gelu", ACTIVATIONS),
    "hidden_dropout_prob": share("dropout_rate", 0.1, otherwise="embedding_dropout_rate"),
    "attention_probs_dropout_prob": share("attention_dropout_rate", 0.1, otherwise="dropout_rate"),
    "layer_norm_eps": number("layer_norm_epsilon", 1e-5),
}
_ESM2 = _ENCODER | {
    "mask_token_id": given("mask_token_id"),
    "pad_token_id": given("pad_token_id"),
    "emb_layer_norm_before": flag("embedding_layer_norm", False),
    "token_dropout": flag("token_dropout", True),
}
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
_WITHOUT_EFFECT = (
    *("lm_loss_weight", "mlm_loss_scaling", "decoder_nonlinearity", "position_embedding_type", "norm_type"),
    *("use_projection_bias_in_attention", "use_transformer_initialization", "extra_ids", "tgt_vocab_size"),
    *("src_max_position_embeddings", "tgt_max_position_embeddings", "share_encoder_decoder_embedding"),
    *("use_pre_encoder_decoder_dropout", "use_dropout_outside_residual_path", "relu_dropout_rate", "use_ffn_bias"),
    *("scale_encoder_qk_dot_by_d", "scale_decoder_qk_dot_by_d", "mup_base_d_model", "mup_base_d_ff"),
    *("encoder_attention_logits_alpha", "decoder_attention_logits_alpha", "embeddings_alpha", "d_kv"),
)
_LOSS_WEIGHTS = ("mlm_loss_weight", "loss_weight", "label_vocab_file", "vocab_file", "include_padding_in_loss")


def _encoder(model: Section, length: int | None) -> dict[str, Any]:
    """Return the settings of `BertConfig`; its pooler is tanh, as the ModelZoo's files have it."""
    config = model.table(_ENCODER)
    positions = given("max_position_embeddings")(model) or length or 1
    if length is not None and positions < length:
        text = f"{length} positions are built for samples of {length} tokens, instead of {positions}"
        model.problems.warn(model.at("max_position_embeddings"), text)
    config["max_position_embeddings"] = max(positions, length or 1)
    model.ignore("pooler_nonlinearity", "mlm_nonlinearity", "mask_padding_in_positional_embed", "disable_nsp")
    model.ignore(*_LOSS_WEIGHTS)
    return config


def _pretraining(model: Section, data: Section) -> dict[str, Any]:
    length = sequence_length(model, data)
    config = _encoder(model, length)
    task = "masked_lm" if flag("disable_nsp", False)(model) else "pretraining"
    model.notice_the_rest()
    return transformers(task, "bert", config, length)


def _classifier(model: Section, data: Section) -> dict[str, Any]:
    return _head(model, data, "sequence_classification", size("num_labels", 2)(model), "task_dropout")


def _token_classifier(model: Section, data: Section) -> dict[str, Any]:
    return _head(model, data, "token_classification", size("num_classes", 2)(model), "encoder_output_dropout_rate")


def _summarization(model: Section, data: Section) -> dict[str, Any]:
    text = "every token is classified, where the ModelZoo classifies the first token of each sentence"
    model.problems.warn(model.path, text)
    model.ignore("use_cls_bias")
    return _head(model, data, "token_classification", 2, "encoder_output_dropout_rate")


def _head(model: Section, data: Section, task: str, num_labels: int, dropout: str) -> dict[str, Any]:
    length = sequence_length(model, data)
    config = _encoder(model, length) | {"num_labels": num_labels}
    config["classifier_dropout"] = share(dropout, 0.1)(model)
    model.ignore("problem_type")
    model.notice_the_rest()
    return transformers(task, "bert", config, length)


def _esm2(model: Section, data: Section) -> dict[str, Any]:
    length = sequence_length(model, data)
    config = model.table(_ESM2) | {"position_embedding_type": "rotary"}
    config["max_position_embeddings"] = given("max_position_embeddings")(model) or length
    model.ignore("disable_nsp", "mlm_nonlinearity", "pooler_nonlinearity", "position_embedding_type", "rotary_dim")
    model.ignore("share_embedding_weights", "use_final_layer_norm", *_LOSS_WEIGHTS)
    model.notice_the_rest()
    if flag("use_vsl", False)(data):
        text = "use_vsl packs several sequences into a sample; their attention is measured as that of one sequence"
        data.problems.warn(data.at("use_vsl"), text)
    return transformers("masked_lm", "esm", config, length)


def _read_lengths(model: Section, data: Section) -> tuple[int, int | None, int | None]:
    """Return vocabulary, tokens of a source and tokens of a target."""
    vocab_size = size("src_vocab_size")(model) or 1
    extra = given("extra_ids")(model) or 0
    source = sequence_length(model, data, "src_max_sequence_length", "src_max_position_embeddings")
    target = sequence_length(model, data, "tgt_max_sequence_length", "tgt_max_position_embeddings")
    model.ignore(*_WITHOUT_EFFECT)
    return vocab_size + extra, source, target


def _t5(model: Section, data: Section) -> dict[str, Any]:
    vocab_size, source, target = _read_lengths(model, data)
    config = model.table(_T5) | {"vocab_size": vocab_size}
    if str(model.values.get("norm_type", "rmsnorm")).lower() == "layernorm":
        model.problems.warn(model.at("norm_type"), "layernorm is built as T5's RMS norm, one mean and one vector less")
    model.notice_the_rest()
    return transformers("seq2seq_lm", "t5", config, source, target_length=target)


def _transformer(model: Section, data: Section) -> dict[str, Any]:
    vocab_size, source, target = _read_lengths(model, data)
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


TEXT_ENCODERS = (
    Architecture(names=("t5",), shown_by=_is_t5, read=_t5),
    Architecture(names=("transformer",), shown_by=has("src_vocab_size"), read=_transformer),
    Architecture(names=("dpr",), shown_by=has("q_encoder"), read=refuse("DPR")),
    Architecture(names=("esm2",), shown_by=has("token_dropout"), read=_esm2),
    Architecture(names=("bert/classifier",), shown_by=has("num_labels", "problem_type"), read=_classifier),
    Architecture(names=("bert/extractive_summarization",), shown_by=has("use_cls_bias"), read=_summarization),
    Architecture(
        names=("bert/token_classifier",),
        shown_by=lambda values: "num_classes" in values and "encoder_nonlinearity" in values,
        read=_token_classifier,
    ),
    Architecture(names=("bert",), shown_by=has("pooler_nonlinearity", "disable_nsp"), read=_pretraining),
)


_IMAGE_ENCODER = {
    **SIZES,
    "layer_norm_eps": number("layer_norm_epsilon", 1e-5),
    "image_size": side("image_size"),
    "patch_size": side("patch_size"),
    "num_channels": size("num_channels", 3),
}
_VIT = _IMAGE_ENCODER | {
    "intermediate_size": size("filter_size"),
    "hidden_act": word("nonlinearity", "gelu", ACTIVATIONS),
    "hidden_dropout_prob": share("dropout_rate", 0.0, otherwise="embedding_dropout_rate"),
    "attention_probs_dropout_prob": share("attention_dropout_rate", 0.0, otherwise="dropout_rate"),
    "qkv_bias": flag("use_projection_bias_in_attention", True),
}
_DINOV2 = _IMAGE_ENCODER | {
    "layerscale_value": number("layerscale_value", 1.0),
    "hidden_dropout_prob": share("dropout_rate", 0.0),
    "attention_probs_dropout_prob": share("attention_dropout_rate", 0.0, otherwise="dropout_rate"),
    "drop_path_rate": share("stochastic_depth_drop_prob", 0.0),
    "qkv_bias": flag("use_projection_bias_in_attention", True),
}
_CLIP = _IMAGE_ENCODER | {
    "intermediate_size": size("filter_size"),
    "hidden_act": word("nonlinearity", "gelu", ACTIVATIONS),
    "attention_dropout": share("attention_dropout_rate", 0.0, otherwise="dropout_rate"),
}
_LLAMA = {
    "hidden_act": word("nonlinearity", "swiglu", {"swiglu": "silu"}),
    "vocab_size": size("vocab_size"),
    **SIZES,
    "intermediate_size": size("filter_size"),
    "max_position_embeddings": size("max_position_embeddings"),
    "rms_norm_eps": number("layer_norm_epsilon", 1e-5),
    "attention_dropout": share("attention_dropout_rate", 0.0, otherwise="dropout_rate"),
    "tie_word_embeddings": flag("share_embedding_weights", True),
}
_BUILT = (
    *("position_embedding_type", "use_post_embed_layer_norm", "use_embed_proj_bias", "use_ffn_bias", "norm_first"),
    *("use_ffn_bias_in_attention", "use_conv_patchified_embedding", "use_encoder_pooler_layer", "prepend_cls_token"),
    *("pooler_nonlinearity", "use_bias_in_output", "interpolate_position_embedding", "projection_initializer"),
    *("position_embedding_initializer", "cls_token_initializer", "default_initializer", "use_masked_patches"),
    *("stochastic_depth_mode", "stochastic_depth_drop_prob_schedule", "use_dinov2_classifier", "image_layer_idx"),
    *("rotary_dim", "norm_type", "embd_pdrop", "embedding_dropout_rate", "use_projection_bias_in_attention"),
    *("rope_theta", "extra_ffn_params", "embedding_layer_norm", "attention_module", "extra_attention_params"),
)


def _vit(model: Section, data: Section) -> dict[str, Any]:
    labels = {"num_labels": given("num_classes")(model) or size("num_classes", 1000)(data)}
    frozen = _is_frozen(model, "vit_model")
    if flag("use_dinov2_classifier", False)(model):
        config, kind = _dinov2(model), "dinov2"
    else:
        config, kind = model.table(_VIT), "vit"
        model.ignore(*_BUILT)
    model.notice_the_rest()
    freeze = (f"^{kind}\\.",) if frozen else ()
    return transformers("image_classification", kind, config | labels, freeze=freeze)


def _dinov2(model: Section) -> dict[str, Any]:
    """Return the settings of `Dinov2Config`, whose gated network is two thirds as wide as its ratio says."""
    config = model.table(_DINOV2)
    is_gated = word("nonlinearity", "gelu", {"gelu": "", "swiglu": "gated"})(model) == "gated"
    width, hidden = size("filter_size")(model) or 1, config.get("hidden_size", 1)
    ratio = width * (3 if is_gated else 2), hidden * 2
    if ratio[0] % ratio[1]:
        rule = f"filter_size {width} is no whole multiple of hidden_size {hidden}"
        model.problems.error(model.at("filter_size"), rule, "Dinov2Config has a whole ratio only")
    model.ignore(*_BUILT)
    return config | {"mlp_ratio": ratio[0] // ratio[1], "use_swiglu_ffn": is_gated}


def _is_frozen(model: Section, part: str) -> bool:
    patterns = model.values.get("freeze")
    model.ignore("freeze")
    return isinstance(patterns, list) and any(part in str(pattern) for pattern in patterns)


def _llava(model: Section, data: Section) -> dict[str, Any]:
    layer = model.values.get("image_feature_select_layer_idx", -1)
    model.ignore("image_feature_select_layer_idx", "image_start_idx", "projector", "image_feature_select_mode")
    return _multimodal(model, data, model.sub("image_model"), layer)


def _simple_multimodal(model: Section, data: Section) -> dict[str, Any]:
    images = model.sub("image_model_list")
    listed = images.values.get("image_models")
    if isinstance(listed, list) and len(listed) > 1:
        model.problems.error(images.at("image_models"), f"{len(listed)} image models are not built in; one is")
    encoder = images.sub("image_models", 0, "image_encoder")
    return _multimodal(model, data, encoder, encoder.values.get("image_layer_idx", -1))


def _multimodal(model: Section, data: Section, images: Section, layer: Any) -> dict[str, Any]:
    text = model.sub("text_model")
    vision = images.table(_CLIP) | {"model_type": "clip_vision_model"}
    decoder = text.table(_LLAMA) | {"model_type": "llama"}
    decoder["num_key_value_heads"] = given("num_kv_groups")(text.sub("extra_attention_params")) or decoder.get(
        "num_attention_heads", 1
    )
    theta = number("rope_theta", 10000.0)(text)
    decoder["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}
    length = sequence_length(text, data)
    patches = (vision.get("image_size", 1) // vision.get("patch_size", 1)) ** 2
    if length is not None and length <= patches:
        model.problems.error(model.path, f"the {patches} patches of an image leave no token of {length} for the text")
    freeze = [r"vision_tower\."] if _is_frozen(model, "image_model") else []
    freeze += [r"language_model\.", "^lm_head"] if _is_frozen(model, "text_model") else []
    for section in (images, text):
        section.ignore(*_BUILT)
        section.notice_the_rest()
    model.notice_the_rest()
    config = {"vision_config": vision, "text_config": decoder, "vision_feature_layer": layer}
    config |= {"image_seq_length": patches, "image_token_index": decoder.get("vocab_size", 1) - 1}
    return transformers("image_text_to_text", "llava", config, length, tuple(freeze))


IMAGE_ENCODERS = (
    Architecture(names=("dino",), shown_by=has("image_model_trunks"), read=refuse("DINOv2's self-distillation")),
    Architecture(names=("llava",), shown_by=has("image_model"), read=_llava),
    Architecture(names=("multimodal_simple",), shown_by=has("image_model_list"), read=_simple_multimodal),
    Architecture(names=("dit",), shown_by=has("frequency_embedding_size"), read=refuse("DiT")),
    Architecture(names=("fc_mnist",), shown_by=has("activation_fn"), read=refuse("The perceptron fc_mnist")),
    Architecture(names=("vision_transformer", "vit"), shown_by=has("patch_size"), read=_vit),
)
