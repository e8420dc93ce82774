"""Models of images: ViT and LLaVA, as models of transformers.

Source: the configuration classes `ViTClassificationModelConfig`, `GenericImageEncodersModelConfig` (DINOv2),
`LlavaModelConfig` and `SimpleMultimodalModelConfig` of the public ModelZoo, releases 2.1 to 2.10; keys of transformers
are those of `ViTConfig`, `Dinov2Config` and `LlavaConfig`.
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
    **SIZES,
    "layer_norm_eps": number("layer_norm_epsilon", 1e-5),
    "image_size": side("image_size"),
    "patch_size": side("patch_size"),
    "num_channels": size("num_channels", 3),
}
_VIT = _ENCODER | {
    "intermediate_size": size("filter_size"),
    "hidden_act": word("nonlinearity", "gelu", ACTIVATIONS),
    "hidden_dropout_prob": share("dropout_rate", 0.0, otherwise="embedding_dropout_rate"),
    "attention_probs_dropout_prob": share("attention_dropout_rate", 0.0, otherwise="dropout_rate"),
    "qkv_bias": flag("use_projection_bias_in_attention", True),
}
_DINOV2 = _ENCODER | {
    "layerscale_value": number("layerscale_value", 1.0),
    "hidden_dropout_prob": share("dropout_rate", 0.0),
    "attention_probs_dropout_prob": share("attention_dropout_rate", 0.0, otherwise="dropout_rate"),
    "drop_path_rate": share("stochastic_depth_drop_prob", 0.0),
    "qkv_bias": flag("use_projection_bias_in_attention", True),
}
_CLIP = _ENCODER | {
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


ARCHITECTURES = (
    Architecture(names=("dino",), shown_by=has("image_model_trunks"), read=refuse("DINOv2's self-distillation")),
    Architecture(names=("llava",), shown_by=has("image_model"), read=_llava),
    Architecture(names=("multimodal_simple",), shown_by=has("image_model_list"), read=_simple_multimodal),
    Architecture(names=("dit",), shown_by=has("frequency_embedding_size"), read=refuse("DiT")),
    Architecture(names=("fc_mnist",), shown_by=has("activation_fn"), read=refuse("The perceptron fc_mnist")),
    Architecture(names=("vision_transformer", "vit"), shown_by=has("patch_size"), read=_vit),
)
