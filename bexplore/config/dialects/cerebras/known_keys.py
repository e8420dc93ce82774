"""Keys and words of the ModelZoo's decoder sections, with their meaning in this package.

Source: the configuration classes of the GPT-2, GPT-3 and LLaMA models, releases 2.0 to 2.10.
"""

from __future__ import annotations

DECODERS = frozenset(
    (
        *("gpt", "gpt2", "gpt3", "llama", "code_llama", "llamamodel", "gpt2lmheadmodel"),
        *("mistral", "starcoder", "santacoder", "bloom", "mpt", "jais", "btlm"),
    )
)
# Attention and feed-forward side by side: by name, or by a key that only those families have.
PARALLEL_KEY = "use_untied_layer_norm"
PARALLEL_DECODERS = frozenset(("gptj", "gpt-j", "gpt_j", "gptneox", "gpt-neox", "gpt_neox", "falcon"))

OTHER_MODELS = frozenset(("llava", "mixtral"))  # resemble a name above, and are other models
SHOWN_DECODERS = "gpt2, gpt3, llama, mistral, falcon, bloom, gptj, gpt-neox, starcoder, mpt, jais"

# Keys of encoders, encoder-decoders and vision models alone; in 2.0 to 2.2 a section has no name.
OTHER_ARCHITECTURES = frozenset(
    (
        *("disable_nsp", "num_segments", "pooler_nonlinearity", "mlm_nonlinearity", "num_classes"),
        *("encoder_num_hidden_layers", "decoder_num_hidden_layers", "src_vocab_size", "tgt_vocab_size"),
        *("d_model", "d_kv", "image_size", "patch_size", "vit_model", "projection_layer", "image_model"),
    )
)

SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_heads": "num_heads",
}
FLAGS = {  # our name, and the family's default
    "share_embedding_weights": ("tie_embeddings", True),
    "use_projection_bias_in_attention": ("attention_bias", True),
    "use_ffn_bias_in_attention": ("attention_output_bias", True),
    "use_ffn_bias": ("feed_forward_bias", True),
    "use_bias_in_output": ("output_bias", False),
}
POSITIONS = {"learned": "learned", "fixed": "fixed", "rotary": "rotary", "alibi": "alibi", "none": "none"}
NORMS = {"layernorm": "layernorm", "rmsnorm": "rmsnorm", "biasless-layernorm": "layernorm"}
ACTIVATIONS = {
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

READ = frozenset(
    (
        *SIZES,
        *FLAGS,
        *("name", "filter_size", "max_position_embeddings", "max_sequence_length", "position_embedding_type"),
        *("use_position_embedding", "rotary_dim", "rope_theta", "norm_type", "layer_norm_epsilon", "nonlinearity"),
        *("dropout_rate", "embedding_dropout_rate", "attention_dropout_rate", "attention_inner_dim"),
        *("attention_module", "extra_attention_params", "mixed_precision", "fp16_type", "use_bfloat16"),
        *("moe", "moe_params", PARALLEL_KEY, "dpo", "model_name"),
    )
)
NO_EFFECT = frozenset(  # on time and memory: initial values, scales of the loss, generation, metrics, their compiler
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
