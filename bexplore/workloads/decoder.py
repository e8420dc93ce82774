"""The built-in decoder-only language model: the GPT-2 and GPT-3 family and the LLaMA family, by configuration.

Sources: GPT-2 (Radford et al. 2019), GPT-3 (Brown et al. 2020), LLaMA (Touvron et al. 2023), rotary positions
(arXiv 2104.09864), grouped-query attention (arXiv 2305.13245), ALiBi (arXiv 2108.12409), GLU variants
(arXiv 2002.05202).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from bexplore.errors import check_keys, positive_int, require, suggestion
from bexplore.job import Job
from bexplore.workloads.batches import random_tokens
from bexplore.workloads.workload import Workload, assemble

POSITION_EMBEDDINGS = ("learned", "fixed", "rotary", "alibi", "none")
NORMS = ("layernorm", "rmsnorm")
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "squared_relu": lambda x: F.relu(x).square(),
    "silu": F.silu,
    "tanh": torch.tanh,
    "identity": lambda x: x,
}
GATED_ACTIVATIONS = {  # activation(gate(x)) * up(x): three matrices instead of two
    "swiglu": "silu",
    "geglu": "gelu",
    "geglu_tanh": "gelu_tanh",
    "reglu": "relu",
    "bilinear": "identity",
}
_CHOICES = {
    "position_embedding": POSITION_EMBEDDINGS,
    "norm": NORMS,
    "activation": (*ACTIVATIONS, *GATED_ACTIVATIONS),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Sizes and parts of a decoder-only language model; the defaults are GPT-2 small."""

    vocab_size: int = 50257  # entries of the vocabulary
    hidden_size: int = 768  # width of the residual stream
    num_layers: int = 12  # transformer blocks
    num_heads: int = 12  # query heads; divides `hidden_size` unless `head_size` is given
    # Key and value heads (grouped-query attention); divides `num_heads`; None for `num_heads`.
    num_key_value_heads: int | None = None
    head_size: int | None = None  # width of a head; None for `hidden_size / num_heads`
    intermediate_size: int | None = None  # width of the feed-forward network; None for `4 * hidden_size`
    max_position_embeddings: int = 1024  # longest sequence, tokens
    position_embedding: str = "learned"  # one of `learned`, `fixed` (sinusoids), `rotary`, `alibi`, `none`
    rotary_dim: int | None = None  # leading channels of a head that are rotated; None for all. Even
    rope_theta: float = 10000.0  # base of the rotary frequencies
    norm: str = "layernorm"  # `layernorm` or `rmsnorm`, before each part and at the end
    norm_eps: float = 1e-5  # added to the variance
    activation: str = "gelu"  # a key of `GATED_ACTIVATIONS` or one of `ACTIVATIONS`
    use_bias: bool = True  # default of `attention_bias`, `attention_output_bias` and `feed_forward_bias`
    attention_bias: bool | None = None  # biases of the query, key and value projections; None for `use_bias`
    attention_output_bias: bool | None = None  # bias of the attention's output projection; None for `use_bias`
    feed_forward_bias: bool | None = None  # biases of the feed-forward network; None for `use_bias`
    output_bias: bool = False  # bias of the projection to the vocabulary
    tie_embeddings: bool = True  # the projection to the vocabulary uses the weights of the token embedding
    dropout: float = 0.0  # dropout probability of the residual branches
    embedding_dropout: float | None = None  # dropout probability of the embeddings; None for `dropout`
    attention_dropout: float = 0.0  # dropout probability of the attention probabilities
    initializer_range: float = 0.02  # standard deviation of the initial weights

    @classmethod
    def from_mapping(cls, model: Mapping[str, Any]) -> DecoderConfig:
        """Read a configuration whose keys are the attributes; None means the default."""
        check_keys(model, [field.name for field in dataclasses.fields(cls)], "The decoder")
        config = cls(**{key: value for key, value in model.items() if value is not None})
        config.check()
        return config

    def check(self) -> None:
        """Raise UserInputError at the first value that no model can have."""
        for field in dataclasses.fields(self):
            _check_value(field.name, field.type, getattr(self, field.name))
        for name, known in _CHOICES.items():
            value = getattr(self, name)
            require(value in known, f"{name} is {value!r}.", suggestion(str(value), known))
        require(
            self.head_size is not None or self.hidden_size % self.num_heads == 0,
            f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}.",
            "Change one of the two, or set head_size.",
        )
        require(
            self.num_heads % self.key_value_heads == 0,
            f"num_heads {self.num_heads} is not a multiple of num_key_value_heads {self.key_value_heads}.",
            "Each key and value head serves the same number of query heads.",
        )
        require(
            self.position_embedding != "rotary" or (self.rotated % 2 == 0 and self.rotated <= self.head_width),
            f"rotary_dim is {self.rotated} with heads of width {self.head_width}.",
            f"Use an even number from 2 to {self.head_width}.",
        )

    @property
    def key_value_heads(self) -> int:
        """Key and value heads."""
        return self.num_heads if self.num_key_value_heads is None else self.num_key_value_heads

    @property
    def head_width(self) -> int:
        """Channels of one head."""
        return self.hidden_size // self.num_heads if self.head_size is None else self.head_size

    @property
    def rotated(self) -> int:
        """Channels of one head that rotary positions rotate."""
        return self.head_width if self.rotary_dim is None else self.rotary_dim

    @property
    def feed_forward_width(self) -> int:
        """Channels between the two matrices of the feed-forward network."""
        return 4 * self.hidden_size if self.intermediate_size is None else self.intermediate_size


def _check_value(name: str, declared: Any, value: Any) -> None:
    """Check a value against its declared type, which is a string: int, float or bool, perhaps with None."""
    if value is None:
        return
    kind = str(declared).removesuffix(" | None")
    if kind == "int":
        positive_int(value, name)
    elif kind == "bool":
        require(isinstance(value, bool), f"{name} is {value!r}.", f"Set {name} to true or false.")
    elif kind == "float":
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0
        require(number, f"{name} is {value!r}.", f"Set {name} to a number of 0 or more.")
        require("dropout" not in name or value < 1, f"{name} is {value!r}.", f"Set {name} below 1.")


# Source: Megatron-LM (arXiv 1909.08053), section 3. A rank's rows of the fused query, key and value are those of its
# own heads, as a checkpoint for tensor parallelism stores them. Embeddings, norms and output are whole on each rank.
TENSOR_PLAN = {
    "decoder.blocks.*.attention.query_key_value": "colwise",
    "decoder.blocks.*.attention.output": "rowwise",
    "decoder.blocks.*.feed_forward.up": "colwise",
    "decoder.blocks.*.feed_forward.gate": "colwise",
    "decoder.blocks.*.feed_forward.down": "rowwise",
}


def build_decoder(job: Job) -> Workload:
    """Build the decoder of `job.model` on the job's device, with uniform random tokens.

    The sequence length is the job's; without one, the longest that the model takes.
    """
    config = DecoderConfig.from_mapping(job.model)
    length = job.sequence_length or config.max_position_embeddings
    require(
        length <= config.max_position_embeddings,
        f"The sequence length {length} exceeds max_position_embeddings {config.max_position_embeddings}.",
        "Shorten the sequences, or raise max_position_embeddings.",
    )
    device = torch.device(job.device)
    with device:
        loss_module = DecoderLoss(config)
        loss_module.init_weights()

    def make_batch(micro_batch_size: int, length: int = length) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = random_tokens(micro_batch_size, length + 1, config.vocab_size, seed=job.seed)
        # copies, since `contiguous` leaves a single row as it is, with a stride that compiled code would guard on
        inputs, targets = (
            part.clone(memory_format=torch.contiguous_format) for part in (tokens[:, :-1], tokens[:, 1:])
        )
        return inputs.to(device), targets.to(device)

    loss_module.share_heads(job.parallelism.tensor_parallel_degree)
    return assemble(
        job,
        loss_module,
        make_batch,
        batch_dimensions=[0, 0],
        make_batch_of_length=make_batch,
        tensor_plan=TENSOR_PLAN,
    )


class DecoderLoss(nn.Module):
    """Next-token cross entropy of a `Decoder`, in float32."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.decoder = Decoder(config)

    def forward(self, input_ids: torch.Tensor, target_ids: torch.Tensor) -> torch.Tensor:
        """Return the mean loss over all tokens, scalar float32.

        Args:
            input_ids: (samples, tokens) int64.
            target_ids: (samples, tokens) int64, the token after each input.
        """
        logits = self.decoder(input_ids)
        return F.cross_entropy(logits.flatten(0, 1).float(), target_ids.flatten())

    def share_heads(self, num_ranks: int) -> None:
        """Let attention compute one of so many equal parts of its heads; its matrices are shared by `TENSOR_PLAN`."""
        if num_ranks == 1:
            return
        config = self.decoder.config
        for name, count in (("num_heads", config.num_heads), ("num_key_value_heads", config.key_value_heads)):
            require(
                count % num_ranks == 0,
                f"{name} is {count}, which {num_ranks} tensor-parallel ranks cannot share equally.",
                "Lower explore.parallelism.tensor_parallel_degree.",
            )
        for module in self.modules():
            if isinstance(module, _Attention):
                module.widths = tuple(width // num_ranks for width in module.widths)
            elif isinstance(module, _Alibi):
                module.num_heads = config.num_heads // num_ranks

    def init_weights(self) -> None:
        """Fill every parameter, once: the layers' own initialization is off."""
        config = self.decoder.config
        for module in self.modules():
            if isinstance(module, (_Linear, _Embedding)):
                module.weight.data.normal_(std=config.initializer_range)
            if isinstance(module, _Linear) and module.bias is not None:
                module.bias.data.zero_()


class Decoder(nn.Module):
    """Token ids to logits."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = _Embedding(config.vocab_size, config.hidden_size)
        self.position_embedding = _positions(config, {"learned": _LearnedPositions, "fixed": _FixedPositions})
        dropout = config.dropout if config.embedding_dropout is None else config.embedding_dropout
        self.embedding_dropout = nn.Dropout(dropout)
        self.positions = _positions(config, {"rotary": _Rotary, "alibi": _Alibi})
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.num_layers))
        self.norm = _norm(config)
        self.output = None if config.tie_embeddings else _Linear(config.hidden_size, config.vocab_size, bias=False)
        self.output_bias = nn.Parameter(torch.zeros(config.vocab_size)) if config.output_bias else None

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Map (samples, tokens) int64 to (samples, tokens, vocab_size) logits."""
        hidden = self.token_embedding(input_ids)
        if self.position_embedding is not None:
            hidden = hidden + self.position_embedding(input_ids.size(1))
        hidden = self.embedding_dropout(hidden)
        for block in self.blocks:
            hidden = block(hidden, self.positions)
        weight = self.token_embedding.weight if self.output is None else self.output.weight
        return F.linear(self.norm(hidden), weight, self.output_bias)


class _Block(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.attention_norm = _norm(config)
        self.attention = _Attention(config)
        self.feed_forward_norm = _norm(config)
        self.feed_forward = _FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: torch.Tensor, positions: nn.Module | None) -> torch.Tensor:
        hidden = hidden + self.dropout(self.attention(self.attention_norm(hidden), positions))
        return hidden + self.dropout(self.feed_forward(self.feed_forward_norm(hidden)))


class _Attention(nn.Module):
    """Causal self-attention with grouped key and value heads."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.head_width = config.head_width
        self.grouped = config.key_value_heads != config.num_heads
        self.dropout = config.attention_dropout
        query_width = config.num_heads * config.head_width
        key_value_width = config.key_value_heads * config.head_width
        bias = config.use_bias if config.attention_bias is None else config.attention_bias
        output_bias = config.use_bias if config.attention_output_bias is None else config.attention_output_bias
        self.widths: tuple[int, ...] = (query_width, key_value_width, key_value_width)
        self.query_key_value = _Linear(config.hidden_size, sum(self.widths), bias=bias)
        self.output = _Linear(query_width, config.hidden_size, bias=output_bias)

    def forward(self, hidden: torch.Tensor, positions: nn.Module | None) -> torch.Tensor:
        parts = self.query_key_value(hidden).split(self.widths, dim=-1)
        query, key, value = (part.unflatten(-1, (-1, self.head_width)).transpose(1, 2) for part in parts)
        bias = None
        if isinstance(positions, _Rotary):
            query, key = positions(query), positions(key)
        elif isinstance(positions, _Alibi):
            bias = positions(hidden.size(1)).to(query.dtype)
        attended = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=bias,
            is_causal=bias is None,
            dropout_p=self.dropout if self.training else 0.0,
            enable_gqa=self.grouped,
        )
        return self.output(attended.transpose(1, 2).flatten(2))


class _FeedForward(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        bias = config.use_bias if config.feed_forward_bias is None else config.feed_forward_bias
        self.gated = config.activation in GATED_ACTIVATIONS
        self.activation = ACTIVATIONS[GATED_ACTIVATIONS.get(config.activation, config.activation)]
        width = config.feed_forward_width
        self.up = _Linear(config.hidden_size, width, bias=bias)
        self.gate = _Linear(config.hidden_size, width, bias=bias) if self.gated else None
        self.down = _Linear(width, config.hidden_size, bias=bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.gate is None:
            return self.down(self.activation(self.up(hidden)))
        return self.down(self.activation(self.gate(hidden)) * self.up(hidden))


class _LearnedPositions(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.table = _Embedding(config.max_position_embeddings, config.hidden_size)

    def forward(self, length: int) -> torch.Tensor:
        return self.table.weight[:length]


class _FixedPositions(nn.Module):
    """Sinusoids; source: Vaswani et al. 2017, section 3.5."""

    table: torch.Tensor

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        angles = _angles(config.max_position_embeddings, config.hidden_size, 10000.0)
        table = torch.cat([angles.sin(), angles.cos()], dim=-1)[:, : config.hidden_size]
        self.register_buffer("table", table, persistent=False)

    def forward(self, length: int) -> torch.Tensor:
        return self.table[:length]


class _Rotary(nn.Module):
    """Rotate pairs of channels (i, i + rotated / 2), as LLaMA does."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.rotated = config.rotated
        angles = _angles(config.max_position_embeddings, config.rotated, config.rope_theta)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, heads: torch.Tensor) -> torch.Tensor:
        """Rotate (samples, heads, tokens, head width); shape and dtype stay."""
        length = heads.size(-2)
        cos, sin = self.cos[:length].to(heads.dtype), self.sin[:length].to(heads.dtype)
        first, second = heads[..., : self.rotated].chunk(2, dim=-1)
        rotated_pair = [first * cos - second * sin, second * cos + first * sin]
        return torch.cat([*rotated_pair, heads[..., self.rotated :]], dim=-1)


class _Alibi(nn.Module):
    """Penalties that grow with the distance, and minus infinity for the future."""

    bias: torch.Tensor

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        slopes = torch.tensor([2.0 ** (-8.0 * (head + 1) / config.num_heads) for head in range(config.num_heads)])
        position = torch.arange(config.max_position_embeddings)
        distance = (position[None, :] - position[:, None]).float()
        bias = (slopes[:, None, None] * distance).masked_fill(distance > 0, -math.inf)
        self.register_buffer("bias", bias, persistent=False)
        self.num_heads = config.num_heads

    def forward(self, length: int) -> torch.Tensor:
        """Return the (heads, length, length) bias."""
        return self.bias[: self.num_heads, :length, :length]


class _Linear(nn.Linear):
    def reset_parameters(self) -> None:
        """Leave the weights to `DecoderLoss.init_weights`: filling them twice doubles the start of a worker."""


class _Embedding(nn.Embedding):
    def reset_parameters(self) -> None:
        """Leave the weights to `DecoderLoss.init_weights`."""


def _norm(config: DecoderConfig) -> nn.Module:
    if config.norm == "rmsnorm":
        return nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
    return nn.LayerNorm(config.hidden_size, eps=config.norm_eps)


def _positions(config: DecoderConfig, kinds: dict[str, Callable[[DecoderConfig], nn.Module]]) -> nn.Module | None:
    make = kinds.get(config.position_embedding)
    return None if make is None else make(config)


def _angles(length: int, channels: int, base: float) -> torch.Tensor:
    """Return (length, ceil(channels / 2)) float32, radians: position times base^(-2i / channels)."""
    frequencies = base ** (-torch.arange(0, channels, 2).float() / channels)
    return torch.outer(torch.arange(length).float(), frequencies)
