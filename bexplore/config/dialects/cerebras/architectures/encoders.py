"""BERT with its heads, ESM-2, and the two encoders of DPR.

Source: the configuration classes `BertModelConfig`, `BertForPreTrainingModelConfig` and their heads,
`Esm2PretrainModelConfig` and `DPRModelConfig` of the public ModelZoo, releases 2.1 to 2.10; keys of transformers are
those of `BertConfig` and `EsmConfig`.
"""

from __future__ import annotations

from typing import Any

from bexplore.config.dialects.cerebras.architectures.architecture import (
    ACTIVATIONS,
    SIZES,
    Architecture,
    has,
    transformers,
)
from bexplore.config.dialects.cerebras.section import Section, flag, given, number, sequence_length, share, size, word

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


def _retrieval(model: Section, data: Section) -> dict[str, Any]:
    question, context = model.sub("q_encoder"), model.sub("ctx_encoder")
    length = sequence_length(question, data)
    encoders = {"question": _encoder(question, length)}
    if context.values:
        encoders["context"] = _encoder(context, length)
    for section in (question, context):
        section.notice_the_rest()
    model.ignore("scale_similarity")
    model.notice_the_rest()
    return {
        "workload": "dual_encoder",
        "model": encoders,
        "data": {"sequence_length": length},
        "sequence_length": length,
    }


ARCHITECTURES = (
    Architecture(names=("dpr",), shown_by=has("q_encoder"), read=_retrieval),
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
