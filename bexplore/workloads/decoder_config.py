"""Settings of the built-in decoder, with the checks of their values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bexplore.errors import check_keys, positive_int, require, suggestion

POSITION_EMBEDDINGS = ("learned", "fixed", "rotary", "alibi", "none")
NORMS = ("layernorm", "rmsnorm")
ACTIVATIONS = ("gelu", "gelu_tanh", "quick_gelu", "relu", "squared_relu", "silu", "tanh", "identity")
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
    """Sizes and parts of a decoder-only language model; the defaults are GPT-2 small.

    Attributes:
        vocab_size: Entries of the vocabulary.
        hidden_size: Width of the residual stream.
        num_layers: Transformer blocks.
        num_heads: Query heads; divides `hidden_size` unless `head_size` is given.
        num_key_value_heads: Key and value heads (grouped-query attention); divides `num_heads`; None for `num_heads`.
        head_size: Width of a head; None for `hidden_size / num_heads`.
        intermediate_size: Width of the feed-forward network; None for `4 * hidden_size`.
        max_position_embeddings: Longest sequence, tokens.
        position_embedding: One of `learned`, `fixed` (sinusoids), `rotary`, `alibi`, `none`.
        rotary_dim: Leading channels of a head that are rotated; None for all. Even.
        rope_theta: Base of the rotary frequencies.
        norm: `layernorm` or `rmsnorm`, before each part and at the end.
        norm_eps: Added to the variance.
        activation: A key of `GATED_ACTIVATIONS` or one of `ACTIVATIONS`.
        use_bias: Default of `attention_bias`, `attention_output_bias` and `feed_forward_bias`.
        attention_bias: Biases of the query, key and value projections; None for `use_bias`.
        attention_output_bias: Bias of the attention's output projection; None for `use_bias`.
        feed_forward_bias: Biases of the feed-forward network; None for `use_bias`.
        output_bias: Bias of the projection to the vocabulary.
        tie_embeddings: The projection to the vocabulary uses the weights of the token embedding.
        dropout: Dropout probability of the residual branches.
        embedding_dropout: Dropout probability of the embeddings; None for `dropout`.
        attention_dropout: Dropout probability of the attention probabilities.
        initializer_range: Standard deviation of the initial weights.
    """

    vocab_size: int = 50257
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    num_key_value_heads: int | None = None
    head_size: int | None = None
    intermediate_size: int | None = None
    max_position_embeddings: int = 1024
    position_embedding: str = "learned"
    rotary_dim: int | None = None
    rope_theta: float = 10000.0
    norm: str = "layernorm"
    norm_eps: float = 1e-5
    activation: str = "gelu"
    use_bias: bool = True
    attention_bias: bool | None = None
    attention_output_bias: bool | None = None
    feed_forward_bias: bool | None = None
    output_bias: bool = False
    tie_embeddings: bool = True
    dropout: float = 0.0
    embedding_dropout: float | None = None
    attention_dropout: float = 0.0
    initializer_range: float = 0.02

    @classmethod
    def from_mapping(cls, model: Mapping[str, Any]) -> DecoderConfig:
        """Read a configuration whose keys are the attributes; None means the default.

        Raises:
            UserInputError: A key is unknown, or the values contradict each other.
        """
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
